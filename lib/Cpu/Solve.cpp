// Linear systems: elimination without pivoting for positive definite matrices, conjugate gradients.
#include "lib/Cpu/LowerOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

namespace {

// The exact solver works on buffers with vectors of a fixed width. `work` holds [matrix | rhs] row by row,
// each row padded with zeros to whole vectors. Row operations start at the vector that holds the diagonal:
// what they leave to the left of it is never read as a part of the factor.
struct Elimination {
  OpBuilder &b;
  Location loc;
  int64_t n, columns; // the size of the matrix, the number of right sides
  int64_t width, rowLength;
  Value work;

  Value index(int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); }
  Value add(Value x, Value y) { return arith::AddIOp::create(b, loc, x, y); }
  VectorType vectorType() { return VectorType::get(width, b.getF32Type()); }
  Value spread(Value scalar) { return vector::BroadcastOp::create(b, loc, vectorType(), scalar); }
  Value entry(Value row, Value column) {
    return memref::LoadOp::create(b, loc, work, ValueRange{row, column});
  }
  // The start of the vector that holds a column.
  Value vectorOf(Value column) {
    return arith::SubIOp::create(b, loc, column, arith::RemUIOp::create(b, loc, column, index(width)));
  }

  template <typename Body>
  scf::ForOp loop(Value from, Value to, int64_t step, ValueRange carried, Body body) {
    return scf::ForOp::create(b, loc, from, to, index(step), carried,
                              [&](OpBuilder &nested, Location, Value i, ValueRange values) {
                                OpBuilder::InsertionGuard guard(b);
                                b.setInsertionPoint(nested.getInsertionBlock(), nested.getInsertionPoint());
                                SmallVector<Value> next = body(i, values);
                                scf::YieldOp::create(b, loc, next);
                              });
  }

  // Row i loses its part along row j for every i > j, which makes the matrix upper triangular. The matrix
  // stays symmetric below the eliminated rows, so the factor is read from row j.
  void eliminate() {
    loop(index(0), index(n - 1), 1, {}, [&](Value j, ValueRange) {
      Value next = add(j, index(1));
      Value inverse = arith::DivFOp::create(b, loc, MatrixBuilder(b, loc).number(1), entry(j, j));
      loop(next, index(n), 1, {}, [&](Value i, ValueRange) {
        Value factor = spread(arith::MulFOp::create(b, loc, entry(j, i), inverse));
        loop(vectorOf(i), index(rowLength), width, {}, [&](Value c, ValueRange) {
          Value pivot = vector::LoadOp::create(b, loc, vectorType(), work, ValueRange{j, c});
          Value row = vector::LoadOp::create(b, loc, vectorType(), work, ValueRange{i, c});
          Value less = arith::SubFOp::create(b, loc, row, arith::MulFOp::create(b, loc, factor, pivot));
          vector::StoreOp::create(b, loc, less, work, ValueRange{i, c});
          return SmallVector<Value>();
        });
        return SmallVector<Value>();
      });
      return SmallVector<Value>();
    });
  }

  // From the last row up, for one right side at a time. `solution` holds each as a row of whole vectors, zero
  // where not yet known, so that whole vectors of the triangle can be multiplied.
  void substitute(Value solution) {
    Value zero = MatrixBuilder(b, loc).number(0);
    loop(index(0), index(columns), 1, {}, [&](Value column, ValueRange) {
      loop(index(0), index(n), 1, {}, [&](Value up, ValueRange) {
        Value i = arith::SubIOp::create(b, loc, index(n - 1), up);
        auto sums =
            loop(vectorOf(i), index(solutionLength()), width, spread(zero), [&](Value c, ValueRange sum) {
              Value row = vector::LoadOp::create(b, loc, vectorType(), work, ValueRange{i, c});
              Value known = vector::LoadOp::create(b, loc, vectorType(), solution, ValueRange{column, c});
              Value product = arith::MulFOp::create(b, loc, row, known);
              return SmallVector<Value>{arith::AddFOp::create(b, loc, sum[0], product)};
            });
        Value sum = vector::ReductionOp::create(b, loc, vector::CombiningKind::ADD, sums.getResult(0));
        Value rest = arith::SubFOp::create(b, loc, entry(i, add(column, index(n))), sum);
        Value x = arith::DivFOp::create(b, loc, rest, entry(i, i));
        memref::StoreOp::create(b, loc, x, solution, ValueRange{column, i});
        return SmallVector<Value>();
      });
      return SmallVector<Value>();
    });
  }

  int64_t solutionLength() const { return llvm::alignTo(n, width); }
};

} // namespace

Matrix cpu::solveExactly(MatrixBuilder &m, Matrix matrix, Matrix rhs, unsigned vectorWidth) {
  OpBuilder &b = m.builder();
  Location loc = m.location();
  int64_t n = matrix.sizes[0], columns = rhs.sizes[1];
  if (n == 1)
    return m.map(rhs.sizes, {rhs, matrix},
                 [&](ValueRange e) { return arith::DivFOp::create(b, loc, e[0], e[1]); });
  Type f32 = b.getF32Type();
  int64_t rowLength = llvm::alignTo(n + columns, vectorWidth);
  auto buffer = [&](int64_t rows, int64_t length) -> Value {
    Value result = memref::AllocOp::create(b, loc, MemRefType::get({rows, length}, f32));
    linalg::FillOp::create(b, loc, m.number(0), result);
    return result;
  };
  // A part of a buffer as a matrix; `rank` 1 drops the second dimension.
  auto part = [&](Value whole, int64_t column, ArrayRef<int64_t> shape) -> Value {
    SmallVector<OpFoldResult> offsets = {b.getIndexAttr(0), b.getIndexAttr(column)};
    SmallVector<OpFoldResult> lengths = {b.getIndexAttr(shape[0]),
                                         b.getIndexAttr(shape.size() == 2 ? shape[1] : 1)};
    SmallVector<OpFoldResult> strides(2, b.getIndexAttr(1));
    auto type = memref::SubViewOp::inferRankReducedResultType(shape, cast<MemRefType>(whole.getType()),
                                                              offsets, lengths, strides);
    return memref::SubViewOp::create(b, loc, type, whole, offsets, lengths, strides);
  };
  auto copy = [&](Value tensor, Value target) {
    auto type = cast<RankedTensorType>(tensor.getType());
    SmallVector<int64_t> strides(type.getRank(), ShapedType::kDynamic);
    strides.back() = 1;
    auto layout = StridedLayoutAttr::get(b.getContext(), ShapedType::kDynamic, strides);
    Value source =
        bufferization::ToBufferOp::create(b, loc, MemRefType::get(type.getShape(), f32, layout), tensor,
                                          /*read_only=*/true);
    linalg::CopyOp::create(b, loc, source, target);
  };
  Value work = buffer(n, rowLength);
  copy(m.stored(matrix, {0, 1}), part(work, 0, {n, n}));
  if (columns == 1)
    copy(m.stored(rhs, {0}), part(work, n, {n}));
  else
    copy(m.stored(rhs, {0, 1}), part(work, n, {n, columns}));

  Elimination elimination{b, loc, n, columns, vectorWidth, rowLength, work};
  Value solution = buffer(columns, elimination.solutionLength());
  elimination.eliminate();
  elimination.substitute(solution);

  SmallVector<OpFoldResult> offsets(2, b.getIndexAttr(0)), strides(2, b.getIndexAttr(1));
  SmallVector<OpFoldResult> lengths = {b.getIndexAttr(columns), b.getIndexAttr(n)};
  SmallVector<int64_t> shape;
  SmallVector<unsigned, 2> axes;
  if (columns > 1) { // one row for each right side: the result lies transposed
    shape.push_back(columns);
    axes.push_back(1);
  }
  shape.push_back(n);
  axes.push_back(0);
  auto type = memref::SubViewOp::inferRankReducedResultType(shape, cast<MemRefType>(solution.getType()),
                                                            offsets, lengths, strides);
  Value result = memref::SubViewOp::create(b, loc, type, solution, offsets, lengths, strides);
  Type tensor = RankedTensorType::get(shape, f32);
  return {bufferization::ToTensorOp::create(b, loc, tensor, result, /*restrict=*/true), axes, rhs.sizes};
}

Matrix cpu::solveIteratively(MatrixBuilder &m, Matrix matrix, Matrix rhs, int64_t iterations, double eps) {
  OpBuilder &b = m.builder();
  Location loc = m.location();
  SmallVector<unsigned, 2> axes;
  if (rhs.sizes[0] > 1)
    axes.push_back(0);
  auto squared = [&](Matrix x) { return m.product(x.transposed(), x); };
  auto quotient = [&](Matrix num, Matrix den) {
    Value zero = m.number(0), sum = arith::AddFOp::create(b, loc, den.value, m.number(eps));
    Value ratio = arith::DivFOp::create(b, loc, num.value, sum);
    Value isZero = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OEQ, sum, zero);
    return Matrix{arith::SelectOp::create(b, loc, isZero, zero, ratio), {}, {1, 1}};
  };
  // x = 0, residual = direction = rhs.
  Value start = m.stored(rhs, axes);
  Value zeros = m.stored(m.constant(rhs.sizes, 0), axes);
  auto index = [&](int64_t value) -> Value { return arith::ConstantIndexOp::create(b, loc, value); };
  auto owned = [&](Value value) -> Value {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type ? bufferization::AllocTensorOp::create(b, loc, type, ValueRange(), value).getResult() : value;
  };
  SmallVector<Value> inits = {zeros, owned(start), owned(start), squared(rhs).value};
  auto loop = scf::ForOp::create(b, loc, index(0), index(iterations), index(1), inits);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  auto carried = loop.getRegionIterArgs();
  Matrix x{carried[0], axes, rhs.sizes}, residual{carried[1], axes, rhs.sizes},
      direction{carried[2], axes, rhs.sizes}, size{carried[3], {}, {1, 1}};
  Matrix image = m.product(matrix, direction);
  Matrix step = quotient(size, m.product(direction.transposed(), image));
  Matrix nextX = m.add(x, m.mul(step, direction));
  Matrix nextResidual = m.sub(residual, m.mul(step, image));
  Matrix nextSize = squared(nextResidual);
  Matrix nextDirection = m.add(nextResidual, m.mul(quotient(nextSize, size), direction));
  scf::YieldOp::create(b, loc, storeCarried(m, {nextX, nextResidual, nextDirection, nextSize}, carried));
  return {loop.getResult(0), axes, rhs.sizes};
}
