// No transition can be divided by, so what a token sees of an earlier one goes through a place between the
// two: the chunk's middle for those in different halves, the middle of a half for those of its quarters, and
// so on down to pairs of tokens. On such a level a row of the later half is what reads the states, times the
// transitions since the middle; a row of the earlier half what is written to them, times those up to it. All
// of them are forward products, whatever the transitions are. The levels have tiles in shared memory, one
// after the other, which the warps multiply: each warpgroup what comes of one state, for all channels.
//
// What the chain multiplies with are the rows of whole blocks of 16 tokens, times the blocks before or after
// them; the threads leave these in the chunk's record.
#include "lib/Cuda/RoleKeyWalk.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

//===----------------------------------------------------------------------===//
// Levels
//===----------------------------------------------------------------------===//

// Where the rows of a tile are that have to do with a state. Those that only see lie without the others.
int64_t RoleEmitter::KeyWalk::offsetOf(size_t tile, int64_t part, int64_t place) const {
  size_t whole = std::min(tile, shape.seen);
  int64_t rowsBefore = (whole + tile) * tokensOfChunk / 2 * 2 + place * shape.rowsOfLevel() * 2;
  int64_t own = isPacked(tile) ? tokensOfChunk / 2 : tokensOfChunk;
  return (rowsBefore + part * own) * 128 * (plan.keys / 64);
}

void RoleEmitter::KeyWalk::storeRows(Level level, size_t tile, const Stacked &own, int64_t token) {
  Value first = block;
  int64_t row = token, bytes = blockBytes;
  if (isPacked(tile) && level.size < tokens) { // half of the block
    row = token / (2 * level.size) * level.size + token % level.size;
    bytes = blockBytes / 2;
  } else if (isPacked(tile)) { // half of the blocks
    int64_t each = level.size / tokens;
    first = ptx.add(ptx.mul(ptx.shiftRight(block, llvm::Log2_64(2 * each)), each), ptx.bits(block, each - 1));
  }
  int64_t halfOfTile = isPacked(tile) ? halfBytes / 2 : halfBytes;
  Value at = ptx.add(ptx.add(roles.base, roles.rightsAt), ptx.mul(half, halfOfTile));
  at = ptx.add(ptx.add(at, ptx.mul(first, bytes)), place);
  at = ptx.exclusiveOr(fresh(at), ptx.constant(row % 8 * 16));
  for (int64_t part : {0, 1}) {
    Value pair = own[part][0] ? ptx.pack(own[part][0], own[part][1]) : ptx.constant(0);
    ptx.store(at, offsetOf(tile, part, level.place) + row * 128, {pair});
  }
}

// What the block's tokens together make of each key, for the other warps.
void RoleEmitter::KeyWalk::storeBlock() {
  Matrix whole = transitionsOf(0);
  for (int64_t token = 1; token < tokens; ++token)
    whole = multiply(transitionsOf(token), whole);
  Value at = ptx.add(blocks, ptx.mul(block, 4 * plan.keys * 4));
  for (int i : {0, 1})
    for (int j : {0, 1})
      if (shape.holds[i][j])
        ptx.store(at, (2 * i + j) * plan.keys * 4, whole.entries[i][j]);
}

RoleEmitter::KeyWalk::Matrix RoleEmitter::KeyWalk::loadBlock(Value block) {
  Matrix result;
  Value at = ptx.add(blocks, ptx.mul(block, 4 * plan.keys * 4));
  for (int i : {0, 1})
    for (int j : {0, 1})
      if (shape.holds[i][j]) {
        Values pair = ptx.loadFloats(at, (2 * i + j) * plan.keys * 4, 2);
        result.entries[i][j] = {pair[0], pair[1]};
      }
  return result;
}

// The rows of a level whose halves are shorter than the warp's tokens: later ones that see, earlier ones that
// are seen. Something beside them is done in turns with tokens.
void RoleEmitter::KeyWalk::makeLevel(Level level, Step beside) {
  int64_t count = tokens / (2 * level.size), steps = 0;
  for (int64_t own = 0; own < count; ++own) {
    Matrix since = identity(), until = since;
    for (int64_t step = 0; step < level.size; ++step) {
      bool isLast = step + 1 == level.size;
      int64_t middle = (2 * own + 1) * level.size, token = middle - 1 - step;
      for (size_t i = 0; i < shape.seen; ++i)
        storeRows(level, i, rightRows(shape.rights[i], until, token), token);
      if (!isLast)
        until = multiply(until, transitionsOf(token));
      beside(steps++);
      token = middle + step;
      Matrix before = since;
      since = multiply(transitionsOf(token), before);
      for (size_t i = 0; i < shape.seers; ++i)
        storeRows(level, i, leftRows(shape.lefts[i], before, since, token), token);
      beside(steps++);
    }
  }
}

// The same where halves are blocks, or several: each sees, with what has been done since the middle, or is
// seen, with what is done until then.
void RoleEmitter::KeyWalk::makeHalves(Level level, llvm::function_ref<Matrix()> sinceMiddle,
                                      llvm::function_ref<Matrix()> untilMiddle) {
  int64_t each = level.size / tokens;
  auto is = scf::IfOp::create(b, ptx.equal(ptx.bits(block, each), 0), /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(is.thenBlock());
  goBack(untilMiddle(), [&](const Matrix &after, int64_t token) {
    for (size_t i = 0; i < shape.seen; ++i)
      storeRows(level, i, rightRows(shape.rights[i], after, token), token);
  });
  b.setInsertionPointToStart(is.elseBlock());
  goOn(sinceMiddle(), [&](const Matrix &before, const Matrix &through, int64_t token) {
    for (size_t i = 0; i < shape.seers; ++i)
      storeRows(level, i, leftRows(shape.lefts[i], before, through, token), token);
  });
}

// From token to token, or back, with the product of the transitions so far.
RoleEmitter::KeyWalk::Matrix
RoleEmitter::KeyWalk::goOn(Matrix before,
                           llvm::function_ref<void(const Matrix &, const Matrix &, int64_t)> body) {
  for (int64_t token = 0; token < tokens; ++token) {
    Matrix through = multiply(transitionsOf(token), before);
    body(before, through, token);
    before = through;
  }
  return before;
}

void RoleEmitter::KeyWalk::goBack(Matrix after, llvm::function_ref<void(const Matrix &, int64_t)> body) {
  for (int64_t token = tokens; token-- > 0;) {
    body(after, token);
    if (token)
      after = multiply(after, transitionsOf(token));
  }
}

// A step of 16 channels, of the state that is the warpgroup's, of all products of what the warp's tokens have
// in a level's tiles with what those of a block have.
void RoleEmitter::KeyWalk::multiplyStep(Level level, Value seen, int64_t step,
                                        SmallVectorImpl<Values> &sums) {
  llvm::SmallDenseMap<unsigned, Values> lefts, rights;
  auto load = [&](Values &known, unsigned tile, Value block) {
    if (!known.empty())
      return;
    bool isShort = isPacked(tile), isWithin = level.size < tokens;
    int64_t stride = (isShort ? tokensOfChunk / 2 : tokensOfChunk) * 128;
    Value row = ptx.bits(roles.lane, 15), at;
    if (isShort && isWithin) {
      // (Of rows that do not see, something that is there.)
      Value high = ptx.mul(ptx.shiftRight(row, llvm::Log2_64(2 * level.size)), level.size);
      row = ptx.add(high, ptx.bits(row, level.size - 1));
      block = ptx.mul(block, blockBytes / 2);
    } else if (isShort) {
      block = ptx.mul(level.size == tokens ? ptx.shiftRight(block, 1) : ptx.bits(block, 1), blockBytes);
    } else {
      block = ptx.mul(block, blockBytes);
    }
    Value unit = ptx.exclusiveOr(ptx.shiftRight(roles.lane, 4), ptx.bits(row, 7));
    at = ptx.exclusiveOr(ptx.add(ptx.mul(row, 128), ptx.mul(unit, 16)), ptx.constant(32 * (step % 4)));
    at = ptx.add(ptx.add(ptx.add(roles.base, roles.rightsAt), block), at);
    at = ptx.add(at, ptx.mul(state.walker, stride * (plan.keys / 64)));
    known = ptx.loadMatrices(at, offsetOf(tile, 0, level.place) + step / 4 * stride, false);
  };
  for (auto [sum, gram] : llvm::zip(sums, shape.grams)) {
    load(lefts[gram.first], gram.first, roles.warp);
    load(rights[gram.second], gram.second, seen);
    sum = ptx.multiplyPacked(sum, lefts[gram.first], rights[gram.second]);
  }
}

SmallVector<Values> RoleEmitter::KeyWalk::noSums() {
  return SmallVector<Values>(shape.grams.size(), Values(8, ptx.number(0)));
}

SmallVector<Values> RoleEmitter::KeyWalk::multiplyRows(Level level, Value seen) {
  SmallVector<Values> sums = noSums();
  for (int64_t step = 0; step < plan.keys / 16; ++step)
    multiplyStep(level, seen, step, sums);
  return sums;
}

SmallVector<Values> RoleEmitter::KeyWalk::whenSums(Value condition,
                                                   llvm::function_ref<SmallVector<Values>()> body) {
  auto flat = [](ArrayRef<Values> sums) {
    Values all;
    for (const Values &own : sums)
      llvm::append_range(all, own);
    return all;
  };
  Values none = flat(noSums());
  auto is = scf::IfOp::create(b, ValueRange(none).getTypes(), condition, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(is.thenBlock());
  scf::YieldOp::create(b, flat(body()));
  b.setInsertionPointToStart(is.elseBlock());
  scf::YieldOp::create(b, none);
  SmallVector<Values> sums;
  for (size_t i = 0; i < shape.grams.size(); ++i)
    sums.emplace_back(is.getResults().slice(8 * i, 8));
  return sums;
}

// What a thread's entries of a block of 16 x 16 are of each other: the bits in which row and column differ.
Values RoleEmitter::KeyWalk::bitsApart() {
  Value lane = roles.freshLane(), row = ptx.shiftRight(lane, 2), column = ptx.mul(ptx.bits(lane, 3), 2);
  Values apart;
  for (int64_t e = 0; e < 8; ++e)
    apart.push_back(ptx.exclusiveOr(ptx.add(row, e / 2 % 2 * 8), ptx.add(column, e % 2 + e / 4 * 8)));
  return apart;
}

// What tokens see of their own writes, which nothing has been done to, of the warpgroup's channels.
Values RoleEmitter::KeyWalk::ownSums(unsigned gram) {
  const Left &left = shape.lefts[shape.grams[gram].first];
  const Right &right = shape.rights[shape.grams[gram].second];
  Values sums(8, ptx.number(0));
  const auto &weight = right.weights[left.to];
  if (chunk::GramOp own = plan.grams[gram]; own.getReach() != Reach::Inclusive || !weight)
    return sums;
  for (int64_t block = 0; block < roles.blocksOfWalker(); ++block) {
    auto rows = [&](Value rows) {
      llvm::DenseMap<BlockArgument, Values> pairs;
      for (BlockArgument leaf : RolePlan::leavesOf(rows))
        pairs[leaf] = roles.inputPairs(state, leaf, block, false);
      return roles.rowsOf(rows, [&](BlockArgument leaf) { return ValueRange(pairs[leaf]); });
    };
    sums = ptx.multiplyTf32(sums, rows(left.rows), rows(right.rows));
  }
  Values factors(2, one);
  Value row = ptx.add(ptx.mul(roles.warp, tokens), ptx.shiftRight(roles.freshLane(), 2));
  for (int64_t eight = 0; eight < 2 && !weight->empty(); ++eight)
    factors[eight] = ptx.loadFloats(ptx.add(state.stage.rows, ptx.mul(row, 4)),
                                    roles.slotOffset({*weight, {}, false}) + eight * 32, 1)[0];
  Values apart = bitsApart();
  for (size_t e = 0; e < 8; ++e)
    sums[e] = ptx.choose(ptx.equal(apart[e], 0), ptx.multiply(sums[e], factors[e / 2 % 2]), ptx.number(0));
  return sums;
}

//===----------------------------------------------------------------------===//
// Tiles and sums
//===----------------------------------------------------------------------===//

void RoleEmitter::KeyWalk::storeMade(Value record, size_t tile, Two entries, int64_t token) {
  Value pair = entries[0] ? ptx.pack(entries[0], entries[1]) : ptx.constant(0);
  Value at = LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                                 ValueRange{ptx.exclusiveOr(fresh(place), ptx.constant(token % 8 * 16))});
  int64_t offset = tile * (plan.keys / 64) * halfBytes + token * 128;
  ptx.assembly(("st.global.b32 [$0+" + Twine(offset) + "], $1;").str(), {}, {at, pair});
}

// The chain's tiles, and the rows of the levels whose halves are 16 tokens and 32.
void RoleEmitter::KeyWalk::makeTiles(Level within, Level across) {
  Value isOdd = ptx.equal(ptx.bits(block, 1), 1), isLater = ptx.equal(ptx.bits(block, 2), 2);
  auto one = [&] { return identity(); };
  auto neighbour = [&] { return loadBlock(ptx.exclusiveOr(block, ptx.constant(1))); };
  auto otherHalf = [&] {
    Value first = ptx.exclusiveOr(ptx.bits(block, 2), ptx.constant(2));
    Matrix before = loadBlock(first);
    return multiply(loadBlock(ptx.add(first, 1)), before);
  };
  // The middle of the chunk, or its start, or its end.
  auto since = [&] { return when(isOdd, neighbour, one); };
  auto until = [&] { return when(isOdd, one, neighbour); };
  // (Another identity than that of before: else the block's products would be kept for this.)
  auto other = [&] {
    Matrix m = one();
    Value unknown = arith::BitcastOp::create(b, b.getF32Type(), roles.opaque(llvm::bit_cast<int32_t>(1.0f)));
    for (int i : {0, 1})
      m.entries[i][i] = {unknown, unknown};
    return m;
  };
  makeHalves(within, other, other);
  makeHalves(across, since, until);
  Value record = roles.recordAt(state.chunk);
  Value offset = ptx.add(ptx.mul(half, halfBytes), ptx.mul(block, blockBytes));
  record = LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record, ValueRange{offset});
  auto forTiles = [&](bool isRead, llvm::function_ref<void(size_t, const MadeTile &)> body) {
    for (auto [i, tile] : llvm::enumerate(plan.made))
      if ((tile.span != Span::Rest) == isRead)
        body(i, tile);
  };
  Matrix before = since();
  before = when(isLater, [&] { return multiply(before, otherHalf()); }, [&] { return before; });
  Matrix whole = goOn(before, [&](const Matrix &before, const Matrix &through, int64_t token) {
    forTiles(true, [&](size_t number, const MadeTile &tile) {
      Left left{tile.rows, tile.coupling->to, tile.span};
      storeMade(record, number, leftRows(left, before, through, token)[tile.coupling->state], token);
    });
  });
  roles.threads.when(ptx.equal(block, blocksOfChunk - 1), [&] {
    Value wholes = roles.wholesOf(state.chunk, state.stage);
    wholes = ptx.add(ptx.add(wholes, ptx.mul(half, 256)), ptx.mul(roles.freshLane(), 8));
    for (int i : {0, 1})
      for (int j : {0, 1}) {
        Two entry = whole.entries[i][j];
        if (!entry[0])
          entry[0] = entry[1] = ptx.number(0);
        ptx.store(wholes, (2 * i + j) * plan.keys * 4, entry);
      }
  });
  Matrix rest = until();
  rest = when(isLater, [&] { return rest; }, [&] { return multiply(otherHalf(), rest); });
  goBack(rest, [&](const Matrix &after, int64_t token) {
    forTiles(false, [&](size_t number, const MadeTile &tile) {
      Right right{tile.rows, tile.coupling->weights};
      storeMade(record, number, rightRows(right, after, token)[tile.coupling->state], token);
    });
  });
}

// Leaves the other warpgroup what is its part of a block's sums to add up; gives what is this one's.
Values RoleEmitter::KeyWalk::leaveColumn(Value place, ArrayRef<Values> sums) {
  Values kept;
  for (auto [gram, own] : llvm::zip(plan.grams, sums))
    llvm::append_range(kept, roles.leavePart(state, gram, place, own));
  return kept;
}

// The levels within the warp's tokens, each made while the one before is multiplied.
void RoleEmitter::KeyWalk::emitLevels(SmallVectorImpl<Values> &sums) {
  std::optional<Level> last;
  for (int64_t size : {8, 4, 2, 1, 0}) {
    Level level{size, last ? 1 - last->place : 0};
    SmallVector<Values> own = noSums();
    int64_t steps = 0;
    auto multiply = [&] {
      if (last && steps < plan.keys / 16)
        multiplyStep(*last, roles.warp, steps++, own);
    };
    auto beside = [&](int64_t step) {
      if (step % 2)
        multiply();
    };
    if (size && plan.keys > 64)
      makeLevel(level, beside);
    else if (size)
      whenWalking([&] { makeLevel(level, [](int64_t) {}); });
    while (last && steps < plan.keys / 16)
      multiply();
    Values apart = bitsApart();
    for (size_t gram = 0; last && gram < sums.size(); ++gram)
      for (size_t e = 0; e < 8; ++e) {
        Value bits = ptx.shiftRight(apart[e], llvm::Log2_64(last->size));
        sums[gram][e] = ptx.choose(ptx.equal(bits, 1), own[gram][e], sums[gram][e]);
      }
    roles.meetWalkers();
    last = level;
  }
}

void RoleEmitter::KeyWalk::emit() {
  const Stage &stage = state.stage;
  ptx.await(roles.barrier(Full, stage.index), stage.phase);
  state.rowsAt = stage.tiles;
  state.own.clear();
  for (Value block : roles.blocksFrom(state, state.blocks.front()))
    state.own.push_back(ptx.add(ptx.add(state.rowsAt, state.warpRows), block));
  findPlaces();
  loadTokens();
  whenWalking([&] { storeBlock(); });
  SmallVector<Values> sums;
  for (unsigned gram = 0; gram < shape.grams.size(); ++gram)
    sums.push_back(ownSums(gram));
  ptx.fenceProxy();
  // (Who is here has done with the levels of the chunk before.)
  roles.meetWalkers();
  roles.threads.when(ptx.equal(ptx.add(ptx.mul(state.walker, 128), roles.thread), 0),
                     [&] { ptx.arrive(roles.barrier(TilesFull, stage.index)); });
  emitLevels(sums);
  Level within{16, 0}, across{32, 1};
  whenWalking([&] { makeTiles(within, across); });
  ptx.fenceProxy();
  roles.meetWalkers();
  // What blocks before the warp's own give; what none of them does lies where its own goes last.
  Value parts = roles.partsOfWarp(state), last = ptx.add(parts, ptx.mul(roles.warp, 1024));
  auto placeOf = [&](int64_t column) {
    return ptx.add(parts, ptx.mul(arith::MinUIOp::create(b, roles.warp, ptx.constant(column)), 1024));
  };
  roles.awaitParts(state);
  SmallVector<Values> kept(3);
  Value isOdd = ptx.equal(ptx.bits(roles.warp, 1), 1), isLater = ptx.below(ptx.constant(1), roles.warp);
  SmallVector<Values> between =
      whenSums(isOdd, [&] { return multiplyRows(within, ptx.bits(roles.warp, -2)); });
  kept[2] = leaveColumn(placeOf(2), between);
  for (int64_t column : {0, 1}) {
    SmallVector<Values> own = whenSums(isLater, [&] { return multiplyRows(across, ptx.constant(column)); });
    for (size_t gram = 0; column == 0 && gram < own.size(); ++gram)
      for (auto [sum, other] : llvm::zip(own[gram], between[gram]))
        sum = ptx.choose(isLater, sum, other);
    kept[column] = leaveColumn(placeOf(column), own);
  }
  Values ofOwn = leaveColumn(last, sums);
  roles.meetWalkers();
  for (int64_t column = 0; column < 3; ++column)
    roles.threads.when(ptx.below(ptx.constant(column), roles.warp),
                       [&] { roles.addPart(state, ptx.add(parts, column * 1024), kept[column]); });
  roles.addPart(state, last, ofOwn);
  ptx.fenceProxy();
  ptx.arrive(roles.barrier(PartsFull, ptx.constant(0)));
}
