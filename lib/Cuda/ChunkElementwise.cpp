// Elementwise functions of values between and of tokens, wherever their operands lie.
#include "lib/Cuda/ChunkEmitter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A sum takes up a product of which it is the only user: the product begins with what it is added to. Tells
// whether it was so.
FailureOr<bool> ChunkEmitter::addProduct(AddOp op) {
  MatType type = op.getType();
  if (isOne(type.getRows()) || isOne(type.getCols()) ||
      op.getOperand(0).getType() != op.getOperand(1).getType())
    return false;
  auto isTokens = [](Attribute dim) { return isa<StringAttr>(dim); };
  if (isTokens(type.getRows()) && isTokens(type.getCols()))
    return false;
  for (unsigned i : {1, 0}) {
    auto product = op.getOperand(i).getDefiningOp<MatmulOp>();
    if (!product || !product->hasOneUse() || emitted.contains(product))
      continue;
    FailureOr<ChunkValue> other = asSlab(op.getOperand(1 - i));
    if (failed(other) || failed(emitMatmul(product, &*other, op.getResult())))
      return failure();
    emitted.insert(product);
    finish(product);
    return true;
  }
  return false;
}

// Whether a value is only ever the left operand of products.
static bool readByProducts(MulOp op) {
  return llvm::all_of(op->getUses(), [](OpOperand &use) {
    return isa<MatmulOp>(use.getOwner()) && use.getOperandNumber() == 0;
  });
}

LogicalResult ChunkEmitter::emitElementwise(ElementwiseOp op) {
  Value result = op->getResult(0);
  if (auto sum = dyn_cast<AddOp>(op.getOperation())) {
    FailureOr<bool> done = addProduct(sum);
    if (failed(done) || *done)
      return success(succeeded(done));
  }
  // Scaled rows that only products read need no tile of their own, where the rows lie in shared memory.
  if (auto product = dyn_cast<MulOp>(op.getOperation()); product && readByProducts(product))
    for (unsigned i : {0, 1})
      if (auto rows = moved.find(product->getOperand(i)); rows != moved.end()) {
        FailureOr<ChunkValue> weights = need(product->getOperand(1 - i));
        if (failed(weights) || weights->kind != ChunkValue::Rows || weights->dim != 0)
          continue;
        ChunkValue scaled = ChunkValue::tile(rows->second);
        scaled.scale = weights->memory;
        set(result, scaled);
        return success();
      }
  SmallVector<ChunkValue> operands;
  bool has[ChunkValue::Weights + 1] = {};
  for (Value operand : op->getOperands()) {
    FailureOr<ChunkValue> value = need(operand);
    if (failed(value))
      return failure();
    has[value->kind] = true;
    operands.push_back(*value);
  }
  bool isSlab = has[ChunkValue::Slab], isTile = has[ChunkValue::Tile] || has[ChunkValue::Weights];
  if (has[ChunkValue::Scores])
    return isSlab || isTile ? failure() : emitFragments(op, operands, /*isSlab=*/false);
  if (isSlab) {
    for (auto [value, operand] : llvm::zip(operands, op->getOperands()))
      if (value.kind == ChunkValue::Tile || value.kind == ChunkValue::Weights) {
        FailureOr<ChunkValue> slab = asSlab(operand);
        if (failed(slab))
          return failure();
        value = *slab;
      }
    return emitFragments(op, operands, /*isSlab=*/true);
  }
  if (!isTile)
    return emitColumns(op, operands);
  if (isa<MulOp>(op.getOperation()))
    for (unsigned i : {0, 1}) {
      const ChunkValue &tile = operands[i], &other = operands[1 - i];
      if (tile.kind != ChunkValue::Tile || tile.transposed)
        continue;
      if (other.kind == ChunkValue::Weights) {
        auto weights = op->getOperand(1 - i).getDefiningOp<chunk::WeightsOp>();
        if (!weights)
          return failure();
        Decay decay;
        decay.factors = other.memory;
        decay.between = other.scale;
        decay.isLate = chunk::isLate(weights.getDecay());
        set(result,
            ChunkValue::tile(weigh(decay, &tile, weights.getSpan(), /*local=*/false, /*isF32=*/false)));
        return success();
      }
      // Scaled rows of a tile stay a promise.
      if (other.kind == ChunkValue::Rows && other.dim == 0 && !tile.scale.base) {
        ChunkValue scaled = tile;
        scaled.scale = other.memory;
        set(result, scaled);
        return success();
      }
    }
  return has[ChunkValue::Weights] ? failure() : emitTiles(op, operands);
}

// Numbers, and columns of numbers.
LogicalResult ChunkEmitter::emitColumns(ElementwiseOp op, ArrayRef<ChunkValue> operands) {
  auto lower = [&](Value at) {
    SmallVector<Value> entries;
    for (const ChunkValue &operand : operands)
      entries.push_back(entryOf(operand, at));
    return op.lower(b, b.getLoc(), entries);
  };
  ChunkValue result;
  for (const ChunkValue &operand : operands)
    if (operand.kind == ChunkValue::Rows) {
      if (result.kind == ChunkValue::Rows && result.dim != operand.dim)
        return failure();
      result = ChunkValue::column(operand.memory);
      result.dim = operand.dim;
    }
  if (result.kind != ChunkValue::Rows) {
    set(op->getResult(0), ChunkValue::scalar(lower({})));
    return success();
  }
  int64_t n = result.memory.cols;
  result.memory = allocateRows(n);
  syncFor(operands);
  forItems(n, [&](Value item) { storeRow(result.memory, item, lower(item)); });
  dirty = true;
  set(op->getResult(0), result);
  return success();
}

LogicalResult ChunkEmitter::emitTiles(ElementwiseOp op, ArrayRef<ChunkValue> operands) {
  int64_t n = cast<IntegerAttr>(matType(op->getResult(0)).getCols()).getInt();
  for (const ChunkValue &operand : operands)
    if (operand.transposed || (operand.kind == ChunkValue::Tile && operand.memory.cols != n))
      return failure();
  bool isExact = llvm::any_of(op->getUsers(), [](Operation *user) { return isa<chunk::DecayOp>(user); });
  ChunkValue result = ChunkValue::tile(allocateTile(n, isExact));
  syncFor(operands);
  forItems(tokens * n, [&](Value item) {
    Value local = over(item, n), col = modulo(item, n);
    SmallVector<Value> entries;
    for (const ChunkValue &operand : operands) {
      Value entry = operand.kind == ChunkValue::Tile ? load(operand.memory, local, col)
                                                     : entryOf(operand, operand.dim ? col : local);
      entries.push_back(operand.scale.base ? multiply(entry, rowAt(operand.scale, local)) : entry);
    }
    store(result.memory, local, col,
          choose(isValid(local), op.lower(b, b.getLoc(), entries), threads.number(0)));
  });
  dirty = true;
  set(op->getResult(0), result);
  return success();
}

// Entries in registers, of scores or slabs.
LogicalResult ChunkEmitter::emitFragments(ElementwiseOp op, MutableArrayRef<ChunkValue> operands,
                                          bool isSlab) {
  syncFor(operands);
  const ChunkValue *like = llvm::find_if(operands, [&](const ChunkValue &operand) {
    return operand.kind == (isSlab ? ChunkValue::Slab : ChunkValue::Scores);
  });
  ChunkValue result = *like;
  Value first = isSlab ? slabRow(like->rows) : Value();
  auto at = [&](int64_t entry, int dim) {
    if (!isSlab)
      return dim ? scoreColumn(entry) : scoreRow(entry);
    return dim == like->dim ? add(first, fragments.row(entry)) : fragments.column(entry);
  };
  for (auto [e, entry] : llvm::enumerate(result.entries)) {
    SmallVector<Value> entries;
    for (const ChunkValue &operand : operands) {
      if (operand.kind == ChunkValue::Scalar || operand.kind == ChunkValue::Rows) {
        Value index = at(e, operand.dim);
        if (operand.kind == ChunkValue::Rows && operand.memory.cols % 16) // padding reads the last entry
          index = arith::MinSIOp::create(b, index, threads.constant(operand.memory.cols - 1));
        entries.push_back(entryOf(operand, index));
      } else if (operand.entries.size() == like->entries.size() && operand.dim == like->dim &&
                 operand.rows == like->rows) {
        entries.push_back(operand.entries[e]);
      } else {
        return failure();
      }
    }
    entry = op.lower(b, b.getLoc(), entries);
  }
  set(op->getResult(0), result);
  return success();
}
