// The ops of a rule's regions as linalg on tensors.
#include "lib/Cpu/LowerOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/TypeSwitch.h"

#include <cmath>

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

std::array<int64_t, 2> cpu::sizesOf(Value value) {
  return {matType(value).numRows(), matType(value).numCols()};
}

Value cpu::toIndex(OpBuilder &b, Location loc, Value scalar) {
  Value integer = arith::FPToSIOp::create(b, loc, b.getI64Type(), scalar);
  return arith::IndexCastOp::create(b, loc, b.getIndexType(), integer);
}
Value cpu::toScalar(OpBuilder &b, Location loc, Value index) {
  Value integer = arith::IndexCastOp::create(b, loc, b.getI64Type(), index);
  return arith::SIToFPOp::create(b, loc, b.getF32Type(), integer);
}

LogicalResult OpLowering::lower(Block &block) {
  for (Operation &op : block.without_terminator())
    if (failed(lower(op)))
      return failure();
  return success();
}

LogicalResult OpLowering::lower(Operation &op) {
  if (auto loop = dyn_cast<ForOp>(op))
    return lowerFor(loop);
  MatrixBuilder m(b, op.getLoc(), tokens);
  auto operand = [&](unsigned i) { return matrices.lookup(op.getOperand(i)); };
  auto unsupported = [&](StringRef what) {
    op.emitError() << what << " run only in the oracle for now";
    return std::nullopt;
  };
  std::optional<Matrix> result =
      TypeSwitch<Operation *, std::optional<Matrix>>(&op)
          .Case([&](ElementwiseOp each) { return lowerElementwise(each); })
          .Case([&](ConstantOp constant) {
            return m.constant(sizesOf(constant), constant.getValue().convertToDouble());
          })
          .Case([&](SizeOp size) { return m.constant({1, 1}, cast<IntegerAttr>(size.getDim()).getInt()); })
          .Case([&](IdentityOp) { return m.diagonal(m.constant({sizesOf(op.getResult(0))[0], 1}, 1)); })
          .Case([&](DiagOp) { return m.diagonal(operand(0)); })
          .Case([&](ExtractOp extract) { return lowerExtract(extract); })
          .Case([&](JoinOp join) { return lowerJoin(join); })
          .Case([&](MatmulOp) { return m.product(operand(0), operand(1)); })
          .Case([&](TransposeOp) { return operand(0).transposed(); })
          .Case([&](ReduceOp reduce) {
            return m.reduce(reduce.getKind(), operand(0), reduce.getRows(), reduce.getCols());
          })
          .Case([&](BroadcastOp) {
            return Matrix{operand(0).value, operand(0).axes, sizesOf(op.getResult(0))};
          })
          .Case([&](RopeOp rope) { return lowerRope(rope); })
          .Case([&](SolveOp solve) {
            if (std::optional<int64_t> iterations = solve.getIterations())
              return solveIteratively(m, operand(0), operand(1), *iterations,
                                      solve.getEps().convertToDouble());
            return solveExactly(m, operand(0), operand(1), vectorWidth);
          })
          .Case<BlockOp, MaskOp, DecayOp>(
              [&](Operation *) { return unsupported("attention forms and block statements"); })
          .Case([&](InverseOp) { return unsupported("inverses of general matrices"); })
          .Default([&](Operation *) { return unsupported("ops of this kind"); });
  if (!result)
    return failure();
  matrices[op.getResult(0)] = *result;
  return success();
}

bool OpLowering::isForAllTokens(Operation &op) {
  return isa<ElementwiseOp, ConstantOp, SizeOp, IdentityOp, DiagOp, ExtractOp, JoinOp, MatmulOp, TransposeOp,
             ReduceOp, BroadcastOp>(op);
}

Matrix OpLowering::lowerElementwise(ElementwiseOp op) {
  MatrixBuilder m(b, op.getLoc(), tokens);
  SmallVector<Matrix> operands;
  for (Value operand : op->getOperands())
    operands.push_back(matrices.lookup(operand));
  // One division for each token, not for each entry.
  auto storesLess = [](const Matrix &x, const Matrix &y) { return x.axes.size() < y.axes.size(); };
  if (tokens > 1 && isa<DivOp>(op.getOperation()) && storesLess(operands[1], operands[0])) {
    auto inverse = [&](ValueRange x) -> Value {
      return arith::DivFOp::create(b, op.getLoc(), m.number(1), x[0]);
    };
    return m.mul(operands[0], m.map(operands[1].sizes, operands[1], inverse));
  }
  return m.map(sizesOf(op->getResult(0)), operands,
               [&](ValueRange entries) { return op.lower(b, op.getLoc(), entries); });
}

Matrix OpLowering::lowerExtract(ExtractOp op) {
  Location loc = op.getLoc();
  Value all = steps.lookup(op.getSteps());
  auto type = cast<RankedTensorType>(all.getType());
  unsigned dim = tokens > 1; // of the micro-steps
  Value first = arith::ConstantIndexOp::create(b, loc, 1);
  Value last = arith::ConstantIndexOp::create(b, loc, type.getDimSize(dim));
  Value counter = integers.lookup(op.getIndex());
  if (!counter) { // an expression: keep it inside whatever its value
    counter = toIndex(b, loc, matrices.lookup(op.getIndex()).value);
    counter = arith::MaxSIOp::create(b, loc, arith::MinSIOp::create(b, loc, counter, last), first);
  }
  Value place = arith::SubIOp::create(b, loc, counter, first);
  MatType step = op.getType();
  SmallVector<unsigned, 2> axes = naturalAxes(step);
  std::array<int64_t, 2> sizes = sizesOf(op);
  if (tokens > 1)
    axes.insert(axes.begin(), tokenAxis);
  if (axes.empty())
    return {tensor::ExtractOp::create(b, loc, all, place), {}, sizes};
  SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)),
      strides(type.getRank(), b.getIndexAttr(1)), lengths;
  for (int64_t length : type.getShape())
    lengths.push_back(b.getIndexAttr(length));
  offsets[dim] = place;
  lengths[dim] = b.getIndexAttr(1);
  auto stored = cast<RankedTensorType>(storageType(b.getContext(), axes, sizes, tokens));
  return {tensor::ExtractSliceOp::create(b, loc, stored, all, offsets, lengths, strides), axes, sizes};
}

Matrix OpLowering::lowerJoin(JoinOp op) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc, tokens);
  SmallVector<Matrix> columns;
  for (Value column : op.getColumns())
    columns.push_back(matrices.lookup(column));
  std::array<int64_t, 2> sizes = sizesOf(op);
  SmallVector<unsigned, 2> axes;
  for (unsigned axis : {tokenAxis, 0u})
    if (llvm::any_of(columns, [&](const Matrix &column) { return column.has(axis); }))
      axes.push_back(axis);
  unsigned place = axes.size();
  axes.push_back(1);
  return m.map(sizes, axes, columns, [&](ValueRange entries) {
    Value index = linalg::IndexOp::create(b, loc, place), chosen = entries[0];
    for (size_t j = 1; j < entries.size(); ++j) {
      Value isIt = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, index,
                                         arith::ConstantIndexOp::create(b, loc, j));
      chosen = arith::SelectOp::create(b, loc, isIt, entries[j], chosen);
    }
    return chosen;
  });
}

Value cpu::ownCopy(OpBuilder &b, Location loc, Value tensor) {
  return bufferization::AllocTensorOp::create(b, loc, cast<RankedTensorType>(tensor.getType()), ValueRange(),
                                              tensor);
}

LogicalResult OpLowering::lowerFor(ForOp op) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc);
  SmallVector<Value> inits;
  for (auto [init, carried] : llvm::zip(op.getInits(), op.getCarried())) {
    Value value = m.stored(matrices.lookup(init), naturalAxes(matType(init)));
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (type && carried.use_empty()) // overwritten before it is read
      value = bufferization::AllocTensorOp::create(b, loc, type, ValueRange());
    else if (type && llvm::is_contained(inits, value))
      value = ownCopy(b, loc, value);
    inits.push_back(value);
  }
  Value zero = arith::ConstantIndexOp::create(b, loc, 0), one = arith::ConstantIndexOp::create(b, loc, 1);
  Value count = arith::ConstantIndexOp::create(b, loc, cast<IntegerAttr>(op.getCount()).getInt());
  auto loop = scf::ForOp::create(b, loc, zero, count, one, inits);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  Value counter = arith::AddIOp::create(b, loc, loop.getInductionVar(), one);
  integers[op.getCounter()] = counter;
  matrices[op.getCounter()] = {toScalar(b, loc, counter), {}, {1, 1}};
  for (auto [argument, carried] : llvm::zip(op.getCarried(), loop.getRegionIterArgs()))
    matrices[argument] = {carried, naturalAxes(matType(argument)), sizesOf(argument)};
  if (failed(lower(op.getBody().front())))
    return failure();
  SmallVector<Matrix> next;
  for (Value value : op.getYield().getValues())
    next.push_back(matrices.lookup(value));
  if (!next.empty()) // else the loop has its terminator
    scf::YieldOp::create(b, loc, storeCarried(m, next, loop.getRegionIterArgs()));
  for (auto [i, result] : llvm::enumerate(op.getResults())) {
    bool isUnchanged = op.getYield().getValues()[i] == op.getCarried()[i];
    matrices[result] = isUnchanged ? matrices.lookup(op.getInits()[i])
                                   : Matrix{loop.getResult(i), naturalAxes(matType(result)), sizesOf(result)};
  }
  rotations.clear();
  return success();
}

// Follows results of loops back to what the outermost of them started from; `first` is the loop that takes
// it.
static Value startOf(Value value, scf::ForOp &first) {
  while (auto loop = value.getDefiningOp<scf::ForOp>()) {
    first = loop;
    value = loop.getInits()[cast<OpResult>(value).getResultNumber()];
  }
  return value;
}

SmallVector<Value> cpu::storeCarried(MatrixBuilder &m, ArrayRef<Matrix> next, ValueRange carried,
                                     ArrayRef<SmallVector<unsigned, 2>> stored) {
  OpBuilder &b = m.builder();
  Location loc = m.location();
  SmallVector<Value> values;
  for (auto [i, matrix] : llvm::enumerate(next)) {
    Value argument = carried[i];
    SmallVector<unsigned, 2> axes;
    for (unsigned axis : {0u, 1u})
      if (matrix.sizes[axis] > 1)
        axes.push_back(axis);
    Value value = m.stored(matrix, stored.empty() ? axes : stored[i]);
    // What another carried value was, or is to become as well, may be overwritten before it is copied here.
    // So may what it was times a number, which may yet be found to be 1.
    auto generic = value.getDefiningOp<linalg::GenericOp>();
    bool isScaled = generic && generic.getNumDpsInputs() == 1 && generic.getInputs()[0] != argument &&
                    llvm::is_contained(carried, generic.getInputs()[0]);
    bool isShared = isa<BlockArgument>(value) || isScaled || llvm::is_contained(values, value);
    if (value != argument && isa<RankedTensorType>(value.getType()) && isShared)
      value = ownCopy(b, loc, value);
    values.push_back(value);
  }
  for (auto [value, argument] : llvm::zip(values, carried)) {
    if (value == argument || !isa<RankedTensorType>(value.getType()))
      continue;
    scf::ForOp first;
    Value start = startOf(value, first);
    if (llvm::is_contained(carried, start)) {
      // An inner loop may update the carried value in place, unless that is another one or its old value is
      // still read.
      bool isReadLater = llvm::any_of(start.getUsers(), [&](Operation *user) {
        Operation *beside = first->getBlock()->findAncestorOpInBlock(*user);
        return beside && first->isBeforeInBlock(beside);
      });
      if (start == argument && !isReadLater)
        continue;
      OpBuilder before(first);
      for (OpOperand &init : first.getInitArgsMutable())
        if (init.get() == start)
          init.set(ownCopy(before, loc, start));
    }
    value = bufferization::MaterializeInDestinationOp::create(b, loc, value, argument)->getResult(0);
  }
  return values;
}

//===----------------------------------------------------------------------===//
// Rotary position embedding
//===----------------------------------------------------------------------===//

// cos and sin of position * base^(-2i/n) for every pair i. The angle is float64: at a position of a million
// an f32 has no correct digit left after the comma.
std::pair<Value, Value> OpLowering::rotation(RopeOp op, int64_t pairs) {
  Value position = op.getPosition();
  auto &known = rotations[{position, matType(op).numElements(), op.getBaseAttr()}];
  if (known.first)
    return known;
  Location loc = op.getLoc();
  Type f64 = b.getF64Type();
  Value place;
  if (Value integer = integers.lookup(position)) {
    place = arith::SIToFPOp::create(b, loc, f64, arith::IndexCastOp::create(b, loc, b.getI64Type(), integer));
  } else {
    place = arith::ExtFOp::create(b, loc, f64, matrices.lookup(position).value);
  }
  SmallVector<double> frequencies;
  double base = op.getBase().convertToDouble(), n = matType(op).numElements();
  for (int64_t i = 0; i < pairs; ++i)
    frequencies.push_back(std::pow(base, -2.0 * i / n));
  auto tableType = RankedTensorType::get(pairs, f64);
  Value table =
      arith::ConstantOp::create(b, loc, DenseElementsAttr::get(tableType, ArrayRef<double>(frequencies)));
  Value empty = tensor::EmptyOp::create(b, loc, pairs, b.getF32Type());
  AffineMap map = b.getMultiDimIdentityMap(1);
  auto generic = linalg::GenericOp::create(
      b, loc, {empty.getType(), empty.getType()}, table, {empty, empty}, {map, map, map},
      {mlir::utils::IteratorType::parallel}, [&](OpBuilder &nested, Location loc, ValueRange entries) {
        Value angle = arith::MulFOp::create(nested, loc, entries[0], place);
        auto [cosine, sine] = cosineAndSine(nested, loc, angle);
        linalg::YieldOp::create(nested, loc, {cosine, sine});
      });
  return known = {generic.getResult(0), generic.getResult(1)};
}

Matrix OpLowering::lowerRope(RopeOp op) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc);
  Matrix x = matrices.lookup(op.getOperand());
  int64_t n = x.sizes[0], pairs = n / 2;
  if (pairs == 0)
    return x;
  auto [cosine, sine] = rotation(op, pairs);
  // Entry (i, s) of the pairs is x[2i + s]; both halves of a pair are read by one loop over the pairs.
  auto bufferType = [&](int64_t length) {
    return MemRefType::get(length, b.getF32Type(),
                           StridedLayoutAttr::get(b.getContext(), ShapedType::kDynamic, {1}));
  };
  auto readOnly = [&](Value tensor, int64_t length) -> Value {
    return bufferization::ToBufferOp::create(b, loc, bufferType(length), tensor, /*read_only=*/true);
  };
  Value source = readOnly(m.stored(x, {0}), n), c = readOnly(cosine, pairs), s = readOnly(sine, pairs);
  Value target = memref::AllocOp::create(b, loc, MemRefType::get(n, b.getF32Type()));
  auto rotate = [&](int64_t width, Value first) {
    auto half = VectorType::get(width, b.getF32Type()), whole = VectorType::get(2 * width, b.getF32Type());
    Value place = arith::MulIOp::create(b, loc, first, arith::ConstantIndexOp::create(b, loc, 2));
    Value both = vector::LoadOp::create(b, loc, whole, source, place);
    auto split = vector::DeinterleaveOp::create(b, loc, both);
    Value cosines = vector::LoadOp::create(b, loc, half, c, first);
    Value sines = vector::LoadOp::create(b, loc, half, s, first);
    auto mul = [&](Value p, Value q) -> Value { return arith::MulFOp::create(b, loc, p, q); };
    Value even = arith::SubFOp::create(b, loc, mul(split.getRes1(), cosines), mul(split.getRes2(), sines));
    Value odd = arith::AddFOp::create(b, loc, mul(split.getRes1(), sines), mul(split.getRes2(), cosines));
    vector::StoreOp::create(b, loc, vector::InterleaveOp::create(b, loc, even, odd), target, place);
  };
  // Strips of a full vector, then of half of it, and so on.
  int64_t start = 0;
  for (int64_t width = vectorWidth; width > 0; width /= 2)
    for (; start + width <= pairs; start += width)
      rotate(width, arith::ConstantIndexOp::create(b, loc, start));
  if (n % 2) { // the last entry of an odd vector stays
    Value last = arith::ConstantIndexOp::create(b, loc, n - 1);
    memref::StoreOp::create(b, loc, memref::LoadOp::create(b, loc, source, last), target, last);
  }
  Type type = storageType(b.getContext(), {0}, x.sizes);
  Value result = bufferization::ToTensorOp::create(b, loc, type, target, /*restrict=*/true);
  return {result, {0}, x.sizes};
}
