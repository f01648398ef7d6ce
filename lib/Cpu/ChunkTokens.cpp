// The ops of a chunk program that are functions of one token, or run over the tokens in order.
#include "lib/Cpu/Chunk.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// A matrix of rows as a column for each token, and back.
static Matrix asColumns(const Matrix &rows) {
  Matrix result{rows.value, {}, {rows.sizes[1], 1}};
  for (unsigned axis : rows.axes)
    result.axes.push_back(axis == 0 ? tokenAxis : 0);
  return result;
}
static Matrix asRows(const Matrix &columns, int64_t length) {
  Matrix result{columns.value, {}, {length, columns.sizes[0]}};
  for (unsigned axis : columns.axes)
    result.axes.push_back(axis == tokenAxis ? 0 : 1);
  return result;
}

LogicalResult ChunkLowering::lowerMap(chunk::MapOp op) {
  bool atOnce = op.getCarried().empty() &&
                llvm::all_of(op.getBody().front().without_terminator(),
                             [](Operation &inner) { return OpLowering::isForAllTokens(inner); });
  return atOnce ? mapAtOnce(op) : mapInOrder(op);
}

//===----------------------------------------------------------------------===//
// All tokens at once
//===----------------------------------------------------------------------===//

LogicalResult ChunkLowering::mapAtOnce(chunk::MapOp op) {
  OpLowering inner(b, vectorWidth, length);
  unsigned next = 0;
  for (Value rows : op.getRows()) {
    BlockArgument argument = op.getBody().getArgument(next++);
    if (Value steps = ops.steps.lookup(rows))
      inner.steps[argument] = steps;
    else
      inner.matrices[argument] =
          isa<chunk::TokensType>(rows.getType()) ? matrix(rows) : asColumns(matrix(rows));
  }
  for (Value shared : op.getShared())
    inner.matrices[op.getBody().getArgument(next++)] = matrix(shared);
  if (failed(inner.lower(op.getBody().front())))
    return failure();
  for (auto [result, yielded] : llvm::zip(op.getResults(), op.getYield().getValues())) {
    Matrix value = inner.matrices.lookup(yielded);
    ops.matrices[result] = isa<chunk::TokensType>(result.getType()) ? value : asRows(value, length);
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Token by token
//===----------------------------------------------------------------------===//

// A part of a tensor at a token, without the token's dimension `dim`.
static Value sliceAt(OpBuilder &b, Location loc, Value tensor, int64_t dim, Value token) {
  auto type = cast<RankedTensorType>(tensor.getType());
  if (type.getRank() == 1)
    return tensor::ExtractOp::create(b, loc, tensor, token);
  SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)),
      strides(type.getRank(), b.getIndexAttr(1)), lengths;
  SmallVector<int64_t> shape;
  for (auto [i, size] : llvm::enumerate(type.getShape())) {
    lengths.push_back(b.getIndexAttr(static_cast<int64_t>(i) == dim ? 1 : size));
    if (static_cast<int64_t>(i) != dim)
      shape.push_back(size);
  }
  offsets[dim] = token;
  return tensor::ExtractSliceOp::create(b, loc, RankedTensorType::get(shape, type.getElementType()), tensor,
                                        offsets, lengths, strides);
}

// One token of a value, as a plain matrix.
Matrix ChunkLowering::tokenOf(Value rows, Value token) {
  Matrix all = isa<chunk::TokensType>(rows.getType()) ? matrix(rows) : asColumns(matrix(rows));
  Matrix result{all.value, {}, all.sizes};
  for (auto [dim, axis] : llvm::enumerate(all.axes)) {
    if (axis == tokenAxis)
      result.value = sliceAt(b, rows.getLoc(), all.value, dim, token);
    else
      result.axes.push_back(axis);
  }
  return result;
}

void ChunkLowering::enterTokens(OpLowering &inner, BlockArgument argument, Value rows, Value token) {
  if (Value steps = ops.steps.lookup(rows)) {
    inner.steps[argument] = sliceAt(b, rows.getLoc(), steps, 0, token);
    return;
  }
  inner.matrices[argument] = tokenOf(rows, token);
  if (Value first = positions.lookup(rows))
    inner.integers[argument] = arith::AddIOp::create(b, rows.getLoc(), first, token);
}

// One token of rows, and what is the same for all, as arguments of a region.
void ChunkLowering::enterToken(OpLowering &inner, ArrayRef<BlockArgument> arguments, ValueRange rows,
                               ValueRange shared, Value token) {
  for (auto [argument, value] : llvm::zip(arguments, rows))
    enterTokens(inner, argument, value, token);
  for (auto [argument, value] : llvm::zip(arguments.drop_front(rows.size()), shared))
    inner.matrices[argument] = matrix(value);
}

// The memory for a value of one token after the other: tokens first, then what is longer than 1.
static SmallVector<unsigned, 3> rowAxes(Type type) {
  SmallVector<unsigned, 3> axes = {tokenAxis};
  llvm::append_range(axes, naturalAxes(cast<MatType>(chunk::MapOp::tokenType(type))));
  return axes;
}

Value ChunkLowering::emptyRows(Type type) {
  auto token = cast<MatType>(chunk::MapOp::tokenType(type));
  Type storage = storageType(b.getContext(), rowAxes(type), {token.numRows(), token.numCols()}, length);
  return bufferization::AllocTensorOp::create(b, b.getUnknownLoc(), cast<RankedTensorType>(storage),
                                              ValueRange());
}

Value ChunkLowering::insertToken(MatrixBuilder &m, const Matrix &token, Value rows, Value at) {
  Location loc = m.location();
  auto type = cast<RankedTensorType>(rows.getType());
  SmallVector<unsigned, 2> axes;
  for (unsigned axis : {0u, 1u})
    if (token.sizes[axis] > 1)
      axes.push_back(axis);
  Value value = m.stored(token, axes);
  if (axes.empty())
    return tensor::InsertOp::create(b, loc, value, rows, at);
  SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)),
      strides(type.getRank(), b.getIndexAttr(1)), lengths;
  for (int64_t size : type.getShape())
    lengths.push_back(b.getIndexAttr(size));
  offsets[0] = at;
  lengths[0] = b.getIndexAttr(1);
  return tensor::InsertSliceOp::create(b, loc, value, rows, offsets, lengths, strides);
}

Matrix ChunkLowering::rowsFrom(Value tensor, Type type) {
  auto token = cast<MatType>(chunk::MapOp::tokenType(type));
  Matrix result{tensor, {}, {token.numRows(), token.numCols()}};
  result.axes.assign(rowAxes(type));
  return isa<chunk::TokensType>(type) ? result : asRows(result, length);
}

// A loop over the tokens that carries values and fills rows for results.
scf::ForOp ChunkLowering::tokenLoop(Location loc, ValueRange carried, TypeRange results) {
  MatrixBuilder m(b, loc);
  SmallVector<Value> inits;
  for (Value value : carried) {
    Value start = m.stored(matrix(value), naturalAxes(matType(value)));
    inits.push_back(isa<RankedTensorType>(start.getType()) ? ownCopy(b, loc, start) : start);
  }
  for (Type type : results)
    inits.push_back(emptyRows(type));
  auto index = [&](int64_t value) -> Value { return arith::ConstantIndexOp::create(b, loc, value); };
  return scf::ForOp::create(b, loc, index(0), index(length), index(1), inits);
}

// What such a loop leaves.
void ChunkLowering::setResults(scf::ForOp loop, ValueRange last, ValueRange results) {
  for (auto [value, found] : llvm::zip(last, loop.getResults()))
    ops.matrices[value] = {found, naturalAxes(matType(value)), sizesOf(value)};
  for (auto [value, found] : llvm::zip(results, loop.getResults().drop_front(last.size())))
    ops.matrices[value] = rowsFrom(found, value.getType());
}

LogicalResult ChunkLowering::mapInOrder(chunk::MapOp op) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc);
  Block &body = op.getBody().front();
  unsigned states = op.getCarried().size();
  scf::ForOp loop = tokenLoop(loc, op.getCarried(), op.getResults().getTypes());
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(loop.getBody());
    Value token = loop.getInductionVar();
    OpLowering inner(b, vectorWidth);
    unsigned next = 0;
    for (Value carried : op.getCarried()) {
      BlockArgument argument = body.getArgument(next);
      inner.matrices[argument] = {loop.getRegionIterArg(next++), naturalAxes(matType(carried)),
                                  sizesOf(carried)};
    }
    enterToken(inner, body.getArguments().drop_front(next), op.getRows(), op.getShared(), token);
    if (failed(inner.lower(body)))
      return failure();
    SmallVector<Matrix> yielded = llvm::map_to_vector(
        op.getYield().getValues(), [&](Value value) { return inner.matrices.lookup(value); });
    // What is given out for a token may be the old carried value: it is put away before that is overwritten.
    SmallVector<Value> results;
    for (auto [value, rows] :
         llvm::zip(ArrayRef(yielded).drop_front(states), loop.getRegionIterArgs().drop_front(states)))
      results.push_back(insertToken(m, value, rows, token));
    SmallVector<Value> all =
        storeCarried(m, ArrayRef(yielded).take_front(states), loop.getRegionIterArgs().take_front(states));
    llvm::append_range(all, results);
    scf::YieldOp::create(b, loc, all);
  }
  setResults(loop, op.getLast(), op.getResults());
  return success();
}

void ChunkLowering::lowerScan(chunk::ScanOp op) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc);
  unsigned states = op.getInit().size();
  scf::ForOp loop = tokenLoop(loc, op.getInit(), op.getResults().getTypes());
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(loop.getBody());
    Value token = loop.getInductionVar();
    SmallVector<Matrix> old, next;
    for (auto [i, init] : llvm::enumerate(op.getInit()))
      old.push_back({loop.getRegionIterArg(i), naturalAxes(matType(init)), sizesOf(init)});
    for (unsigned i = 0; i < states; ++i) {
      Matrix sum = tokenOf(op.getWrites()[i], token);
      for (unsigned j = 0; j < states; ++j)
        sum = m.add(sum, m.mul(tokenOf(op.getFactors()[i * states + j], token), old[j]));
      next.push_back(sum);
    }
    SmallVector<Value> results;
    for (unsigned i = 0; i < states; ++i)
      results.push_back(
          insertToken(m, op.getBefore() ? old[i] : next[i], loop.getRegionIterArg(states + i), token));
    SmallVector<Value> all = storeCarried(m, next, loop.getRegionIterArgs().take_front(states));
    llvm::append_range(all, results);
    scf::YieldOp::create(b, loc, all);
  }
  setResults(loop, op.getLast(), op.getResults());
}

// What has been written lies with a row for each token, zeros for those to come, so that a token's scores
// with all of them give what it reads.
LogicalResult ChunkLowering::lowerSubstitute(chunk::SubstituteOp op) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc);
  Block &body = op.getBody().front();
  unsigned reads = op.getReads().size(), writes = op.getWrites().size();
  SmallVector<Value> inits;
  for (Value write : op.getWrites())
    inits.push_back(ownCopy(b, loc, m.stored(m.constant(sizesOf(write), 0), {0, 1})));
  for (Value read : op.getReads())
    inits.push_back(emptyRows(read.getType()));
  SmallVector<Matrix> blocks;
  for (Value block : op.getBlocks())
    blocks.push_back({m.stored(matrix(block), {0, 1}), {0, 1}, sizesOf(block)});
  auto index = [&](int64_t value) -> Value { return arith::ConstantIndexOp::create(b, loc, value); };
  auto loop = scf::ForOp::create(b, loc, index(0), index(length), index(1), inits);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(loop.getBody());
    Value token = loop.getInductionVar();
    OpLowering inner(b, vectorWidth);
    SmallVector<Value> results;
    for (unsigned i = 0; i < reads; ++i) {
      Matrix sum = tokenOf(op.getSides()[i], token);
      for (unsigned s = 0; s < writes; ++s) {
        Matrix scores{sliceAt(b, loc, blocks[i * writes + s].value, 0, token), {0}, {length, 1}};
        Matrix written{loop.getRegionIterArg(s), {1, 0}, {sum.sizes[0], length}};
        sum = m.add(sum, m.product(written, scores));
      }
      inner.matrices[body.getArgument(i)] = sum;
      results.push_back(insertToken(m, sum, loop.getRegionIterArg(writes + i), token));
    }
    unsigned next = reads;
    enterToken(inner, body.getArguments().drop_front(next), op.getRows(), op.getShared(), token);
    if (failed(inner.lower(body)))
      return failure();
    SmallVector<Value> all;
    for (auto [s, value] : llvm::enumerate(op.getYield().getValues()))
      all.push_back(insertToken(m, inner.matrices.lookup(value), loop.getRegionIterArg(s), token));
    llvm::append_range(all, results);
    scf::YieldOp::create(b, loc, all);
  }
  for (auto [value, found] : llvm::zip(op.getWrites(), loop.getResults()))
    ops.matrices[value] = {found, {0, 1}, sizesOf(value)};
  for (auto [value, found] : llvm::zip(op.getReads(), loop.getResults().drop_front(writes)))
    ops.matrices[value] = rowsFrom(found, value.getType());
  return success();
}
