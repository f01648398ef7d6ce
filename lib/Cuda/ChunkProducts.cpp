// Products with what depends on the state: in registers, each warp for 16 independent indices.
#include "lib/Cuda/ChunkEmitter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

//===----------------------------------------------------------------------===//
// From shared memory to registers and back
//===----------------------------------------------------------------------===//

FailureOr<ChunkValue> ChunkEmitter::asSlab(Value value) {
  FailureOr<ChunkValue> known = need(value);
  if (failed(known) || known->kind == ChunkValue::Slab)
    return known;
  if (known->kind == ChunkValue::Weights) {
    auto weights = value.getDefiningOp<chunk::WeightsOp>();
    if (!weights)
      return failure();
    Decay decay;
    decay.factors = known->memory;
    decay.between = known->scale;
    decay.isLate = chunk::isLate(weights.getDecay());
    known = ChunkValue::tile(weigh(decay, nullptr, weights.getSpan(), /*local=*/false, /*isF32=*/true));
  }
  if (known->kind != ChunkValue::Tile || known->memory.cols > warps * 16)
    return failure();
  syncFor(*known);
  const SharedTile &tile = known->memory;
  Value first = slabRow(tile.cols);
  SmallVector<Value> entries = fragments.loadTransposed(tile, first).entries;
  if (known->scale.base)
    for (auto [e, entry] : llvm::enumerate(entries))
      entry = multiply(entry, rowAt(known->scale, fragments.column(e)));
  return ChunkValue::slab(entries, tile.cols, known->transposed ? 0 : 1);
}

SharedTile ChunkEmitter::moveSlab(const ChunkValue &slab, bool isF32) {
  SharedTile tile = allocate(slab.entries.size() * 2, slab.rows, padded(slab.rows) + 8, isF32);
  Value first = slabRow(slab.rows);
  threads.when(isSlabOwner(slab.rows), [&] {
    for (size_t e = 0; e < slab.entries.size(); ++e)
      store(tile, fragments.column(e), add(first, fragments.row(e)), slab.entries[e]);
  });
  dirty = true;
  return tile;
}

FailureOr<ChunkValue> ChunkEmitter::asTile(Value value) {
  FailureOr<ChunkValue> known = need(value);
  if (failed(known))
    return failure();
  if (auto it = moved.find(value); it != moved.end())
    return ChunkValue::tile(it->second);
  if (known->kind == ChunkValue::Slab && known->dim == 1 && int64_t(known->entries.size()) == tokens / 2)
    return ChunkValue::tile(moveSlab(*known, /*isF32=*/false));
  if (known->kind != ChunkValue::Tile)
    return failure();
  if (known->memory.isF32 && !isWide()) { // products read bf16
    SharedTile narrow = allocateTile(known->memory.cols, false);
    syncFor({*known, ChunkValue::tile(narrow)}); // whose padding is written once more
    int64_t pairs = padded(narrow.cols) / 2;
    forItems(tokens * pairs, [&](Value item) {
      Value row = over(item, pairs), col = times(modulo(item, pairs), 2);
      std::array<Value, 2> entries = loadPair(known->memory, row, col);
      storePair(narrow, row, col, entries[0], entries[1]);
    });
    dirty = true;
    known->memory = narrow;
  }
  return known;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

ChunkEmitter::PackedSlab ChunkEmitter::packInUnits(ValueRange entries, int64_t rows) {
  Value most = greatest(entries);
  Value exponent = arith::MinSIOp::create(b, exponentOf(most), threads.constant(253));
  Value inverse = powerOf(arith::SubIOp::create(b, threads.constant(254), exponent));
  Fragment left{int64_t(entries.size()) * 2, {}};
  for (Value entry : entries)
    left.entries.push_back(multiply(entry, inverse));
  PackedSlab packed;
  packed.operands = fragments.packed(left);
  packed.unit = powerOf(exponent);
  packed.rows = rows;
  return packed;
}

// Multiplies a product by a factor for each token and a unit, and then adds what it is to begin with.
void ChunkEmitter::scaleProduct(Fragment &sum, const SharedTile &scale, Value unit, const ChunkValue *start) {
  for (auto [e, entry] : llvm::enumerate(sum.entries)) {
    Value factor = scale.base ? rowAt(scale, fragments.column(e)) : unit;
    if (scale.base && unit)
      factor = multiply(factor, unit);
    entry = multiply(entry, factor);
    if (start)
      entry = plus(entry, start->entries[e]);
  }
}

// Rows of tokens times a state whose independent rows are summed over, which lie with all warps: through
// shared memory.
LogicalResult ChunkEmitter::emitAcross(MatmulOp op, const ChunkValue &lhs, const ChunkValue &slab,
                                       const ChunkValue *start, Value result) {
  bool isInUnits = fragments.isNarrow && fragments.precision != Precision::Bf16;
  int64_t keys = op.getType().numCols(), depth = padded(slab.rows);
  if (lhs.transposed || isInUnits || keys > warps * 16 || padded(lhs.memory.cols) != depth)
    return failure();
  SharedTile turned = across.lookup(op.getRhs());
  if (!turned.base)
    turned = moveSlab(slab, /*isF32=*/false);
  if (!savesMemory)
    across[op.getRhs()] = turned;
  syncFor({lhs, ChunkValue::tile(turned)});
  Fragment sum = fragments.zero(lhs.memory.rows);
  bool isScaled = bool(lhs.scale.base);
  if (start && !isScaled)
    sum.entries = start->entries;
  Value first = slabRow(keys);
  fragments.forDepth(depth, {}, sum.entries, [&](Value at, ValueRange, MutableArrayRef<Value> sums) {
    SmallVector<Value, 4> left = fragments.loadLeft(turned, first, at);
    for (int64_t col = 0; col < lhs.memory.rows; col += 16)
      fragments.multiply(sums.slice(col / 2, 8), left, lhs.memory, threads.constant(col), at,
                         /*byDepth=*/false);
  });
  if (isScaled)
    scaleProduct(sum, lhs.scale, {}, start);
  set(result, ChunkValue::slab(sum.entries, keys));
  return success();
}

LogicalResult ChunkEmitter::emitMatmul(MatmulOp op, const ChunkValue *start, Value result) {
  if (isOne(op.getType().getCols()))
    return emitColumnProduct(op);
  if (isOne(op.getType().getRows()))
    return emitRowProduct(op);
  auto isTokens = [](Attribute dim) { return isa<StringAttr>(dim); };
  bool betweenTokens = isTokens(op.getType().getRows()) && isTokens(op.getType().getCols());
  bool hasScores = isTokens(op.getLhs().getType().getRows()) && isTokens(op.getLhs().getType().getCols());
  if (betweenTokens) { // inner products without a mask
    FailureOr<ChunkValue> lhs = asTile(op.getLhs()), rhs = asTile(op.getRhs());
    if (failed(lhs) || failed(rhs) || lhs->transposed || !rhs->transposed)
      return failure();
    syncFor({*lhs, *rhs});
    set(result, ChunkValue::scores(multiplyRows(*lhs, *rhs)));
    return success();
  }
  // What is summed over tokens has the independent rows of what it is added to: those of its right operand,
  // or of its left one.
  bool overTokens = !hasScores && isTokens(op.getLhs().getType().getCols());
  bool isTurned = start && start->dim == 0;
  if (isTurned && !overTokens)
    return failure();
  Value leftRows = isTurned ? op.getRhs() : op.getLhs(), rightSlab = isTurned ? op.getLhs() : op.getRhs();
  ChunkValue lhs;
  if (hasScores) {
    FailureOr<SharedTile> scores = stagedScores(leftRows);
    if (failed(scores))
      return failure();
    lhs = ChunkValue::tile(*scores);
  } else {
    FailureOr<ChunkValue> tile = asTile(leftRows);
    if (failed(tile))
      return failure();
    lhs = *tile;
    if (isTurned)
      lhs.transposed = !lhs.transposed;
  }
  const SharedTile &tile = lhs.memory;
  bool byDepth = lhs.transposed;
  PackedSlab slab = slabsAhead.lookup(rightSlab);
  if (slab.operands.empty()) {
    FailureOr<ChunkValue> rhs = asSlab(rightSlab);
    if (failed(rhs))
      return failure();
    if (rhs->dim != (isTurned ? 0 : 1))
      return hasScores || isTurned ? failure() : emitAcross(op, lhs, *rhs, start, result);
    syncFor(lhs);
    Fragment left{int64_t(rhs->entries.size()) * 2, rhs->entries};
    // A scale on the contracted tokens belongs to the left operand, one on the result's tokens to the result.
    if (lhs.scale.base && byDepth)
      for (auto [e, entry] : llvm::enumerate(left.entries))
        entry = multiply(entry, rowAt(lhs.scale, fragments.column(e)));
    if (fragments.isNarrow && fragments.precision != Precision::Bf16) {
      slab = packInUnits(left.entries, rhs->rows);
    } else {
      slab.operands = fragments.packed(left);
      slab.rows = rhs->rows;
    }
  }
  syncFor(lhs);
  auto &packed = slab.operands;
  int64_t columns = padded(byDepth ? tile.cols : tile.rows);
  if (int64_t(packed.size()) * 16 != padded(byDepth ? tile.rows : tile.cols))
    return failure();
  Fragment sum = fragments.zero(columns);
  SharedTile scale = byDepth ? SharedTile() : lhs.scale;
  bool scaled = scale.base || slab.unit;
  if (start && !scaled)
    sum.entries = start->entries;
  auto multiply16 = [&](Value at, ValueRange left, int64_t col, MutableArrayRef<Value> sums) {
    fragments.multiply(sums.slice(col / 2, 8), left, tile, threads.constant(col), at, byDepth);
  };
  if (hasScores) { // they are zero where the column's token comes before the row's
    for (auto [step, operand] : llvm::enumerate(packed))
      for (int64_t col = step * 16; col < columns; col += 16)
        multiply16(threads.constant(step * 16), operand, col, sum.entries);
  } else {
    SmallVector<Value> left;
    for (ArrayRef<Value> operand : packed)
      llvm::append_range(left, operand);
    fragments.forDepth(packed.size() * 16, left, sum.entries,
                       [&](Value at, ValueRange operand, MutableArrayRef<Value> sums) {
                         for (int64_t col = 0; col < columns; col += 16)
                           multiply16(at, operand, col, sums);
                       });
  }
  if (scaled)
    scaleProduct(sum, scale, slab.unit, start);
  set(result, ChunkValue::slab(sum.entries, slab.rows, isTurned ? 0 : 1));
  return success();
}

// Numbers of all tokens times rows: sums over tokens.
LogicalResult ChunkEmitter::emitRowProduct(MatmulOp op) {
  FailureOr<ChunkValue> lhs = need(op.getLhs()), rhs = asTile(op.getRhs());
  if (failed(lhs) || failed(rhs) || rhs->transposed ||
      (lhs->kind != ChunkValue::Scalar && lhs->kind != ChunkValue::Rows))
    return failure();
  ChunkValue result = ChunkValue::column(allocateRows(rhs->memory.cols));
  sumTokens(*rhs, *lhs, result);
  result.transposed = true;
  result.dim = 1;
  set(op, result);
  return success();
}

// The sums over tokens of a tile's channels times the tokens' numbers.
void ChunkEmitter::sumTokens(const ChunkValue &tile, const ChunkValue &numbers, const ChunkValue &result) {
  syncFor({tile, numbers});
  forItems(tile.memory.cols, [&](Value channel) {
    Value sum = threads.number(0);
    for (int64_t t = 0; t < tokens; ++t) {
      Value local = threads.constant(t),
            entry = multiply(load(tile.memory, local, channel), entryOf(numbers, local));
      sum = plus(sum, tile.scale.base ? multiply(entry, rowAt(tile.scale, local)) : entry);
    }
    storeRow(result.memory, channel, sum);
  });
  dirty = true;
}

// A matrix times a column of numbers.
LogicalResult ChunkEmitter::emitColumnProduct(MatmulOp op) {
  FailureOr<ChunkValue> lhs = need(op.getLhs()), rhs = need(op.getRhs());
  if (failed(lhs) || failed(rhs) || (rhs->kind != ChunkValue::Scalar && rhs->kind != ChunkValue::Rows))
    return failure();
  auto numberOf = [&](Attribute dim) {
    return isa<StringAttr>(dim) ? tokens : cast<IntegerAttr>(dim).getInt();
  };
  ChunkValue result = ChunkValue::column(allocateRows(numberOf(op.getType().getRows())));
  if (lhs->kind == ChunkValue::Scores) {
    SharedTile parts = allocate(scoreParts, tokens, tokens, true);
    syncFor(*rhs);
    for (int64_t upper : {0, 1}) {
      Value sum = threads.number(0);
      for (size_t e = 2 * upper; e < lhs->entries.size(); e += 4)
        for (size_t i : {e, e + 1})
          sum = plus(sum, multiply(lhs->entries[i], entryOf(*rhs, scoreColumn(i))));
      for (int64_t distance : {1, 2})
        sum = plus(sum, shuffle(sum, distance));
      threads.when(threads.both(equal(modulo(fragments.lane, 4), 0), isScoreOwner()),
                   [&] { store(parts, scorePart(), scoreRow(2 * upper), sum); });
    }
    dirty = true;
    sync();
    forItems(tokens, [&](Value local) {
      Value sum = load(parts, threads.constant(0), local);
      for (int64_t part = 1; part < scoreParts; ++part)
        sum = plus(sum, load(parts, threads.constant(part), local));
      storeRow(result.memory, local, sum);
    });
  } else if (lhs->kind == ChunkValue::Tile && lhs->transposed) {
    sumTokens(*lhs, *rhs, result);
  } else if (lhs->kind == ChunkValue::Tile) {
    syncFor({*lhs, *rhs});
    int64_t n = lhs->memory.cols;
    forTokens([&](Value local, Value, Value) {
      Value sum = threads.number(0);
      for (int64_t e = 0; e < tokenGrid.owned(n, 1); ++e) {
        Value col = tokenThreads.index(1, n, e), exists = tokenThreads.valid(1, n, e);
        if (exists)
          col = choose(exists, col, threads.constant(0));
        Value entry = multiply(load(lhs->memory, local, col), entryOf(*rhs, col));
        sum = plus(sum, exists ? choose(exists, entry, threads.number(0)) : entry);
      }
      tokenThreads.allReduce(sum, 1, Reduction::Sum);
      if (lhs->scale.base)
        sum = multiply(sum, rowAt(lhs->scale, local));
      threads.when(equal(tokenThreads.coordinate(1), 0), [&] { storeRow(result.memory, local, sum); });
    });
  } else {
    return failure();
  }
  dirty = true;
  set(op, result);
  return success();
}
