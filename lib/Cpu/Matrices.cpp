// Values of the recur dialect as tensors, and the linear algebra on them as linalg.
#include "lib/Cpu/Matrices.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <limits>

using namespace mlir;
using namespace recur;
using namespace recur::cpu;
using mlir::utils::IteratorType;

Matrix Matrix::transposed() const {
  Matrix result{value, {}, {sizes[1], sizes[0]}};
  for (unsigned axis : axes)
    result.axes.push_back(axis == tokenAxis ? axis : 1 - axis);
  return result;
}

SmallVector<unsigned, 2> cpu::naturalAxes(MatType type) {
  SmallVector<unsigned, 2> axes;
  if (type.numRows() > 1)
    axes.push_back(0);
  if (type.numCols() > 1)
    axes.push_back(1);
  return axes;
}

static SmallVector<int64_t> shapeOf(ArrayRef<unsigned> axes, std::array<int64_t, 2> sizes, int64_t tokens) {
  return llvm::map_to_vector(axes, [&](unsigned axis) { return axis == tokenAxis ? tokens : sizes[axis]; });
}

Type cpu::storageType(MLIRContext *context, ArrayRef<unsigned> axes, std::array<int64_t, 2> sizes,
                      int64_t tokens) {
  Type f32 = Float32Type::get(context);
  return axes.empty() ? f32 : RankedTensorType::get(shapeOf(axes, sizes, tokens), f32);
}

Value MatrixBuilder::number(double value) {
  return arith::ConstantOp::create(b, loc, b.getF32FloatAttr(static_cast<float>(value)));
}
Matrix MatrixBuilder::constant(std::array<int64_t, 2> sizes, double value) {
  return {number(value), {}, sizes};
}

// The map from loops, one for each of `loopAxes`, to the stored dimensions of an operand.
static AffineMap accessMap(MLIRContext *context, ArrayRef<unsigned> loopAxes, ArrayRef<unsigned> axes) {
  SmallVector<AffineExpr> results;
  for (unsigned axis : axes)
    results.push_back(getAffineDimExpr(llvm::find(loopAxes, axis) - loopAxes.begin(), context));
  return AffineMap::get(loopAxes.size(), 0, results, context);
}

// Inputs without duplicates; uniform operands are not inputs, the body uses their f32 directly.
namespace {
struct Inputs {
  SmallVector<Value> values;
  SmallVector<AffineMap> maps;
  SmallVector<int> positions; // for each operand its place among `values`, -1 when it is uniform
  SmallVector<Value> uniform; // for each operand its f32 when it is uniform

  void add(Value value, AffineMap map, bool isUniform) {
    uniform.push_back(isUniform ? value : Value());
    if (isUniform) {
      positions.push_back(-1);
      return;
    }
    for (auto [i, known] : llvm::enumerate(values))
      if (known == value && maps[i] == map) {
        positions.push_back(i);
        return;
      }
    positions.push_back(values.size());
    values.push_back(value);
    maps.push_back(map);
  }
};
} // namespace

// linalg.generic with the inputs and one init; the operands of `body` are the entries of the inputs' operands
// and the entry of the init.
static Value generic(OpBuilder &b, Location loc, const Inputs &inputs, Value init, AffineMap initMap,
                     ArrayRef<IteratorType> iterators, MatrixBuilder::Body body) {
  SmallVector<AffineMap> maps = inputs.maps;
  maps.push_back(initMap);
  auto op =
      linalg::GenericOp::create(b, loc, TypeRange(init.getType()), inputs.values, init, maps, iterators);
  OpBuilder::InsertionGuard guard(b);
  Block *block = b.createBlock(&op.getRegion());
  for (Value operand : op->getOperands())
    block->addArgument(getElementTypeOrSelf(operand), loc);
  SmallVector<Value> entries;
  for (auto [position, uniform] : llvm::zip(inputs.positions, inputs.uniform))
    entries.push_back(position < 0 ? uniform : block->getArgument(position));
  entries.push_back(block->getArguments().back());
  Value result = body(entries);
  linalg::YieldOp::create(b, loc, result);
  return op.getResult(0);
}

Matrix MatrixBuilder::map(std::array<int64_t, 2> sizes, ArrayRef<Matrix> operands, Body body) {
  // The order of the operand that stores most decides, so that whole matrices are read as they lie.
  SmallVector<unsigned, 2> axes;
  for (size_t rank : {3, 2, 1})
    for (const Matrix &operand : operands)
      if (operand.axes.size() == rank)
        for (unsigned axis : operand.axes)
          if (!llvm::is_contained(axes, axis))
            axes.push_back(axis);
  bool isRowsAndColumns =
      llvm::none_of(operands, [](const Matrix &operand) { return operand.axes.size() >= 2; });
  if (isRowsAndColumns) // tokens, rows, columns
    llvm::sort(axes, [](unsigned x, unsigned y) { return (x + 1) % 3 < (y + 1) % 3; });
  return map(sizes, axes, operands, body);
}

Matrix MatrixBuilder::map(std::array<int64_t, 2> sizes, ArrayRef<unsigned> axes, ArrayRef<Matrix> operands,
                          Body body) {
  if (axes.empty()) {
    SmallVector<Value> entries =
        llvm::map_to_vector(operands, [](const Matrix &operand) { return operand.value; });
    return {body(entries), {}, sizes};
  }
  Inputs inputs;
  for (const Matrix &operand : operands)
    inputs.add(operand.value, accessMap(b.getContext(), axes, operand.axes), operand.isUniform());
  Value init = tensor::EmptyOp::create(b, loc, shapeOf(axes, sizes, tokens), b.getF32Type());
  SmallVector<IteratorType> iterators(axes.size(), IteratorType::parallel);
  Value result = generic(b, loc, inputs, init, b.getMultiDimIdentityMap(axes.size()), iterators,
                         [&](ValueRange entries) { return body(entries.drop_back()); });
  return {result, SmallVector<unsigned, 2>(axes), sizes};
}

// Combines what `body` makes of the operands over the loops behind those of the result, beginning with `init`
// if that is given: a tensor of the result's type.
Matrix MatrixBuilder::fold(Reduction kind, std::array<int64_t, 2> sizes, ArrayRef<unsigned> axes,
                           unsigned loops, ArrayRef<std::pair<Value, AffineMap>> operands, Body body,
                           Value init) {
  Inputs inputs;
  for (auto &[value, map] : operands)
    inputs.add(value, map, isa<FloatType>(value.getType()));
  bool isSum = kind == Reduction::Sum;
  if (!init) {
    Value empty = tensor::EmptyOp::create(b, loc, shapeOf(axes, sizes, tokens), b.getF32Type());
    Value neutral = number(isSum ? 0 : -std::numeric_limits<double>::infinity());
    init = linalg::FillOp::create(b, loc, neutral, empty).getResult(0);
  }
  SmallVector<IteratorType> iterators(axes.size(), IteratorType::parallel);
  iterators.resize(loops, IteratorType::reduction);
  AffineMap initMap = AffineMap::getFilteredIdentityMap(
      b.getContext(), loops, [&](AffineDimExpr dim) { return dim.getPosition() < axes.size(); });
  Value result = generic(b, loc, inputs, init, initMap, iterators, [&](ValueRange entries) -> Value {
    Value entry = body(entries.drop_back());
    if (isSum)
      return arith::AddFOp::create(b, loc, entries.back(), entry);
    return arith::MaximumFOp::create(b, loc, entries.back(), entry);
  });
  if (axes.empty())
    result = tensor::ExtractOp::create(b, loc, result, ValueRange());
  return {result, SmallVector<unsigned, 2>(axes), sizes};
}

Matrix MatrixBuilder::product(const Matrix &lhs, const Matrix &rhs, const Matrix *added) {
  std::array<int64_t, 2> sizes = {lhs.sizes[0], rhs.sizes[1]};
  auto times = [&](ValueRange entries) -> Value {
    return arith::MulFOp::create(b, loc, entries[0], entries[1]);
  };
  if (!lhs.has(1) && !rhs.has(0)) { // the sum has equal terms; for one term this is the outer product
    Matrix term = map(sizes, {lhs, rhs}, times);
    term = lhs.sizes[1] == 1 ? term : mul(term, constant(sizes, lhs.sizes[1]));
    return added ? add(*added, term) : term;
  }
  SmallVector<unsigned, 2> axes;
  if (lhs.has(tokenAxis) || rhs.has(tokenAxis))
    axes.push_back(tokenAxis);
  if (lhs.has(0))
    axes.push_back(0);
  if (rhs.has(1))
    axes.push_back(1);
  bool coversAll = added && !axes.empty() &&
                   llvm::all_of(added->axes, [&](unsigned axis) { return llvm::is_contained(axes, axis); });
  if (added && !coversAll)
    return add(*added, product(lhs, rhs));
  unsigned loops = axes.size() + 1;
  constexpr unsigned summed = 3; // the axis that is summed over
  SmallVector<unsigned, 3> loopAxes(axes.begin(), axes.end()), lhsAxes, rhsAxes;
  loopAxes.push_back(summed);
  for (unsigned axis : lhs.axes)
    lhsAxes.push_back(axis == 1 ? summed : axis);
  for (unsigned axis : rhs.axes)
    rhsAxes.push_back(axis == 0 ? summed : axis);
  return fold(Reduction::Sum, sizes, axes, loops,
              {{lhs.value, accessMap(b.getContext(), loopAxes, lhsAxes)},
               {rhs.value, accessMap(b.getContext(), loopAxes, rhsAxes)}},
              times, added ? stored(*added, axes) : Value());
}

Matrix MatrixBuilder::reduce(Reduction kind, Matrix operand, bool rows, bool cols) {
  std::array<bool, 3> gone = {rows, cols, false};
  std::array<int64_t, 2> sizes = operand.sizes;
  double copies = 1; // equal entries along an axis that is not stored
  SmallVector<unsigned, 2> kept, loopAxes;
  for (unsigned axis : operand.axes)
    if (!gone[axis])
      kept.push_back(axis);
  loopAxes = kept;
  for (unsigned axis : {0u, 1u}) {
    if (!gone[axis])
      continue;
    if (operand.has(axis))
      loopAxes.push_back(axis);
    else
      copies *= sizes[axis];
    sizes[axis] = 1;
  }
  Matrix result = {operand.value, operand.axes, sizes};
  if (loopAxes.size() > kept.size())
    result = fold(kind, sizes, kept, loopAxes.size(),
                  {{operand.value, accessMap(b.getContext(), loopAxes, operand.axes)}},
                  [](ValueRange entries) { return entries[0]; });
  return copies == 1 || kind == Reduction::Max ? result : mul(result, constant(sizes, copies));
}

Matrix MatrixBuilder::diagonal(Matrix vector) {
  int64_t n = vector.sizes[0];
  if (n == 1)
    return vector;
  SmallVector<unsigned, 3> axes = {0, 1};
  if (vector.has(tokenAxis))
    axes.insert(axes.begin(), tokenAxis);
  return map({n, n}, axes, vector, [&](ValueRange entries) -> Value {
    Value row = linalg::IndexOp::create(b, loc, axes.size() - 2);
    Value column = linalg::IndexOp::create(b, loc, axes.size() - 1);
    Value onDiagonal = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, row, column);
    return arith::SelectOp::create(b, loc, onDiagonal, entries[0], number(0));
  });
}

static std::array<int64_t, 2> joined(const Matrix &x, const Matrix &y) {
  return {std::max(x.sizes[0], y.sizes[0]), std::max(x.sizes[1], y.sizes[1])};
}
Matrix MatrixBuilder::add(Matrix x, Matrix y) {
  return map(joined(x, y), {x, y}, [&](ValueRange e) { return arith::AddFOp::create(b, loc, e[0], e[1]); });
}
Matrix MatrixBuilder::sub(Matrix x, Matrix y) {
  return map(joined(x, y), {x, y}, [&](ValueRange e) { return arith::SubFOp::create(b, loc, e[0], e[1]); });
}
Matrix MatrixBuilder::mul(Matrix x, Matrix y) {
  return map(joined(x, y), {x, y}, [&](ValueRange e) { return arith::MulFOp::create(b, loc, e[0], e[1]); });
}

Value MatrixBuilder::stored(Matrix matrix, ArrayRef<unsigned> axes) {
  if (ArrayRef<unsigned>(matrix.axes) == axes)
    return matrix.value;
  return map(matrix.sizes, axes, matrix, [](ValueRange entries) { return entries[0]; }).value;
}
