// The inverse of a unit lower triangular system of 64 tokens, transposed. The 16 x 16 blocks on the diagonal
// are inverted by a warp each, in f32, a column a lane. With D these inverses and N the system's
// part below them, negated, block column c of the result is X_c = D_c, X_r = sum over k < r of (D_r N_rk)
// X_k: transposed, each step's result has the layout of the next one's left operand, so the chain stays in
// registers. Products are f16: entries stay small where the rows of the system are those of unit vectors.
// Where what they are off by is magnified, blocks are two parts, and products three of those. With
// two reads at one time a block has those of eight tokens, and is inverted token by token, all else alike.
// Where nothing says so they are another way (RoleWideInverse.cpp).
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Stores what is to be inverted, negated, of the warp's block on the diagonal: three of its quarters, in f32,
// column by column.
void RoleEmitter::storeLeaf(ValueRange entries) {
  Value lane = freshLane();
  Value row = ptx.shiftRight(lane, 2), column = ptx.mul(ptx.bits(lane, 3), 2);
  Value leaf = ptx.add(ptx.add(ptx.add(base, leavesAt), ptx.mul(warp, leafBytes())),
                       ptx.add(ptx.mul(column, 32), ptx.mul(row, 4)));
  for (auto [quarter, entry] : {std::pair<int64_t, unsigned>{0, 0}, {1, 2}, {2, 6}})
    for (int64_t odd : {0, 1})
      ptx.store(leaf, quarter * quarterBytes + odd * 32, {entries[entry + odd]});
  for (int64_t odd = 0; plan.isStacked() && odd < 2; ++odd)
    ptx.store(leaf, 3 * quarterBytes + odd * 32, {entries[4 + odd]});
}

// Where the system's blocks lie: in a tile of their own or, until scores do, in theirs.
Value RoleEmitter::blocksOf(const ScoreState &state) {
  if (!blocksInScores)
    return ptx.add(base, blocksAt);
  auto *tile = llvm::find_if(plan.scores, [](const ScoreTile &own) { return !own.ofTokens; });
  return ptx.add(state.buffer, scoreOffset(tile - plan.scores.begin()));
}

// Scores that lie turned are zero there.
void RoleEmitter::clearBlocks(ScoreState &state) {
  auto *tile = llvm::find_if(plan.scores, [](const ScoreTile &own) { return !own.ofTokens; });
  refreshBlocks(state);
  for (int64_t k = 0; tile->turned && k < 3; ++k)
    ptx.storeMatrices(ptx.add(blocksOf(state), ptx.add(state.warpRows, state.blocks[k])), 0,
                      Values(4, ptx.constant(0)), false,
                      ptx.compare(arith::CmpIPredicate::ugt, warp, ptx.constant(k)));
}

// Stores the system, negated, to the tile of blocks, and of those on the diagonal to the warps' leaves.
void RoleEmitter::storeSystem(ScoreState &state) {
  // Blocks are wanted below the diagonal, and of a leaf what is below; of rows at one time less than that.
  ScoreTile system;
  system.value = plan.system;
  system.anyAbove = !plan.atOnce;
  Value tile = ptx.add(blocksOf(state), state.warpRows);
  if (plan.references() > 1) // blocks may lie where the products' rows do
    ptx.meet(ptx.constant(5 + (state.role - scorers.data())), 128);
  refreshBlocks(state);
  forBlocks(state, system, [&](ValueRange values, Value place, bool onDiagonal) {
    Values entries;
    for (Value value : values)
      entries.push_back(plan.isNegated ? value : ptx.negative(value));
    if (onDiagonal)
      return storeLeaf(entries);
    if (!plan.invertsInHalves())
      return storeWide(wideBlock(warp, state.columnBlock), entries);
    storeBlock(ptx.add(tile, place), 0, inHalves(entries));
  });
}

// Entries in f16 or, where the inverse is refined, as all else is packed with what that leaves of them.
RoleEmitter::Halves RoleEmitter::inHalves(ValueRange entries) {
  if (plan.refinesInverse) {
    Values high = packedPairs(entries);
    return {high, packedPairs(restOf(entries, high))};
  }
  Halves block;
  for (size_t e = 0; e < entries.size(); e += 2)
    block.high.push_back(ptx.packF16(entries[e], entries[e + 1]));
  return block;
}

// A block of the tile that the inverse is made in, and of the one of rests behind it.
RoleEmitter::Halves RoleEmitter::loadBlock(Value at, int64_t offset, bool turned) {
  Halves block{ptx.loadMatrices(at, offset, turned), {}};
  if (plan.refinesInverse)
    block.low = ptx.loadMatrices(at, offset + tileBytes, turned);
  return block;
}

// The middle registers change places where rows and columns do.
RoleEmitter::Halves RoleEmitter::swapped(Halves block) {
  for (Values *r : {&block.high, &block.low})
    if (!r->empty())
      std::swap((*r)[1], (*r)[2]);
  return block;
}

void RoleEmitter::storeBlock(Value at, int64_t offset, const Halves &block, Value when) {
  ptx.storeMatrices(at, offset, block.high, false, when);
  if (plan.refinesInverse)
    ptx.storeMatrices(at, offset + tileBytes, block.low, false, when);
}

// The inverse of a leaf of two reads a token, of eight tokens: none sees the other of its token, or the
// second one sees the first. A lane has the rows of eight reads of a column, and the other lane of that
// column those of the others.
Values RoleEmitter::invertStackedLeaf(Value lane, Value leaf) {
  Values x;
  Value upper = ptx.shiftRight(lane, 4), column = ptx.bits(lane, 15);
  for (int64_t r = 0; r < 8; ++r) {
    Value isOwn = ptx.equal(arith::SubIOp::create(b, column, ptx.add(ptx.mul(upper, 8), r)), 0);
    x.push_back(ptx.choose(isOwn, ptx.number(1), ptx.number(0)));
  }
  Value ofOwn = ptx.add(leaf, ptx.mul(upper, 2 * quarterBytes));
  Value ofOther = ptx.add(
      leaf, ptx.choose(ptx.equal(upper, 0), ptx.constant(3 * quarterBytes), ptx.constant(quarterBytes)));
  auto exchanged = [&](Value value) { return ptx.exchange(value, 16); };
  for (int64_t j = 0; j < (plan.inTurn ? 8 : 7); ++j) {
    if (plan.inTurn) {
      Value before = ptx.multiply(ptx.loadFloats(leaf, quarterBytes + j * 36, 1)[0], exchanged(x[j]));
      x[j] = ptx.choose(ptx.equal(upper, 0), x[j], ptx.sum(x[j], before));
    }
    if (j == 7)
      break;
    Value other = exchanged(x[j]);
    for (int64_t quad = (j + 1) / 4; quad < 2; ++quad) {
      Values own = ptx.loadFloats(ofOwn, j * 32 + quad * 16, 4);
      Values others = ptx.loadFloats(ofOther, j * 32 + quad * 16, 4);
      for (int64_t i = 0; i < 4; ++i)
        if (Value &sum = x[4 * quad + i]; 4 * quad + i > j)
          sum = ptx.sum(ptx.sum(sum, ptx.multiply(own[i], x[j])), ptx.multiply(others[i], other));
    }
  }
  return x;
}

// The inverse of the warp's leaf: a lane eliminates its column of the identity, eight rows and then the other
// eight. What the first add to the others is shared out between the two lanes of a column; the upper one has
// those. Of reads at one time both are what the lane has.
std::array<Values, 2> RoleEmitter::invertLeaf() {
  Value lane = freshLane(), upper = ptx.shiftRight(lane, 4);
  ptx.syncWarp();
  Values first, second, others;
  Value column = ptx.bits(lane, 15), leaf = ptx.add(ptx.add(base, leavesAt), ptx.mul(warp, leafBytes()));
  if (plan.isStacked()) {
    Values own = invertStackedLeaf(lane, leaf);
    return {own, own};
  }
  auto identity = [&](Value row) { return ptx.choose(ptx.equal(row, 0), ptx.number(1), ptx.number(0)); };
  auto eliminate = [&](Values &x, int64_t half) {
    for (int64_t j = 0; j < 7; ++j)
      for (int64_t quad = (j + 1) / 4; quad < 2; ++quad) {
        Values factors = ptx.loadFloats(leaf, half * 2 * quarterBytes + j * 32 + quad * 16, 4);
        for (int64_t i = 0; i < 4; ++i)
          if (4 * quad + i > j)
            x[4 * quad + i] = ptx.sum(x[4 * quad + i], ptx.multiply(factors[i], x[j]));
      }
  };
  for (int64_t r = 0; r < 8; ++r)
    first.push_back(identity(ptx.add(column, -r)));
  eliminate(first, 0);
  Value lower = ptx.mul(ptx.exclusiveOr(upper, ptx.constant(1)), 4);
  Value below = ptx.add(leaf, ptx.mul(lower, 4));
  for (int64_t r = 0; r < 4; ++r)
    second.push_back(identity(arith::SubIOp::create(b, ptx.add(column, -8 - r), lower)));
  for (int64_t j = 0; j < 8; ++j)
    for (auto [x, factor] : llvm::zip(second, ptx.loadFloats(below, quarterBytes + 32 * j, 4)))
      x = ptx.sum(x, ptx.multiply(factor, first[j]));
  for (Value x : second)
    others.push_back(ptx.exchange(x, 16));
  llvm::append_range(second, others);
  eliminate(second, 1);
  return {first, second};
}

// Warps meet at the rows of what they leave for one another: a row's own warp arrives, those of the columns
// before wait.
Value RoleEmitter::barrierOfRow(Value row) {
  constexpr int64_t first = 10; // the one of row 0, for which nobody waits
  return ptx.add(row, first);
}

// Products of blocks, summed onto what is there. What their rests add is summed beside it, so that it waits
// for none of these.
Values RoleEmitter::multiplyBlocks(Values sum, ArrayRef<Halves> lefts, ArrayRef<Halves> rights) {
  Values rest(8, ptx.number(0));
  if (sum.empty())
    sum = rest;
  auto add = [&](Values &start, ValueRange x, ValueRange y) {
    Values entries;
    for (unsigned half : {0, 1})
      llvm::append_range(entries,
                         ptx.multiply16By8(plan.refinesInverse ? ptx.half() : "f16",
                                           ValueRange(start).slice(4 * half, 4), x, y.slice(2 * half, 2)));
    start = entries;
  };
  for (auto [x, y] : llvm::zip(lefts, rights)) {
    add(sum, x.high, y.high);
    if (!plan.refinesInverse)
      continue;
    add(rest, x.high, y.low);
    add(rest, x.low, y.high);
  }
  for (unsigned e = 0; e < 8 && plan.refinesInverse; ++e)
    sum[e] = ptx.sum(sum[e], rest[e]);
  return sum;
}

void RoleEmitter::emitInverse(ScoreState &state) {
  Value tile = blocksOf(state);
  Value lane = freshLane(), upper = ptx.shiftRight(lane, 4), eighth = ptx.bits(lane, 7);
  refreshBlocks(state);
  Value unit = ptx.exclusiveOr(ptx.add(upper, ptx.mul(warp, 2)), eighth);
  Value toOwn = ptx.add(ptx.add(ptx.mul(ptx.bits(lane, 15), 128), state.warpRows), ptx.mul(unit, 16));
  Value ownRows = ptx.add(tile, state.warpRows), ownBlock = ptx.add(tile, toOwn);
  Value result = ptx.add(state.buffer, inverseAt - scoresAt);
  auto [first, second] = invertLeaf();
  Values half;
  for (auto [x, y] : llvm::zip(first, second))
    half.push_back(ptx.choose(ptx.equal(upper, 0), x, y));
  Halves leaf = inHalves(half);
  // Row c of the transposed inverse is column c.
  ptx.syncWarp();
  ptx.store(ownBlock, 0, leaf.high);
  if (plan.refinesInverse)
    ptx.store(ownBlock, tileBytes, leaf.low);
  ptx.syncWarp();
  Halves transposed = loadBlock(ownBlock, 0, false);
  Halves diagonal = swapped(loadBlock(ownBlock, 0, true));

  // D N in place of N. All warps compute three blocks side by side, so that the last one waits once, and
  // store those that there are; or one after the other, in a loop, where blocks are two parts: what a quarter
  // of the processor runs of all roles is to fit into its cache of 32 KB.
  if (plan.refinesInverse && team > 1) {
    auto made = threads.forLoop(ptx.constant(0), warp, ptx.constant(1), {}, [&](Value k, ValueRange) {
      Value at = ptx.add(ownRows, ptx.exclusiveOr(state.blocks[0], ptx.mul(k, 32)));
      storeBlock(at, 0, inHalves(multiplyBlocks({}, diagonal, loadBlock(at, 0, true))));
      return Values();
    });
    describeTrips(made, 3);
  } else {
    SmallVector<Halves> made;
    for (int64_t k = 0; k < 3; ++k)
      made.push_back(loadBlock(ptx.add(ownRows, state.blocks[k]), 0, true));
    for (Halves &block : made)
      block = inHalves(multiplyBlocks({}, diagonal, block));
    for (int64_t k = 0; k < 3; ++k)
      storeBlock(ptx.add(ownRows, state.blocks[k]), 0, made[k],
                 ptx.compare(arith::CmpIPredicate::ugt, warp, ptx.constant(k)));
  }
  // With two states rows are there at times far apart: a column waits for one after the other, and ends soon
  // after the last one. (It is less code, too.) Else it waits for all, and its chain of products is shorter.
  bool byRows = plan.states > 1 || (plan.refinesInverse && team > 1);
  auto threadsOf = [&](Value row) { return ptx.mul(ptx.add(row, 1), 32); };
  if (byRows)
    threads.when(ptx.compare(arith::CmpIPredicate::ne, warp, ptx.constant(0)),
                 [&] { ptx.announce(barrierOfRow(warp), threadsOf(warp)); });
  // Rows of what is stored are the inverse's columns.
  std::array<Value, 2> scale;
  if (plan.inverseScale)
    scale = rowNumbers(state, {{{plan.inverseScale}}, {}, false});
  if (!byRows)
    ptx.meet(ptx.constant(3), 128);
  awaitPlace(state);
  auto store = [&](Values block, Value address) {
    if (plan.refinesInverse)
      return storeBlock(address, 0, inHalves(block));
    Values out;
    for (unsigned e = 0; e < 8; e += 2) {
      for (unsigned i = 0; plan.inverseScale && i < 2; ++i)
        block[e + i] = ptx.multiply(block[e + i], scale[e / 2 % 2]);
      out.push_back(ptx.pack(block[e], block[e + 1]));
    }
    ptx.storeMatrices(address, 0, out, false);
    if (plan.splitsInverse)
      ptx.storeMatrices(address, tileBytes, packedPairs(restOf(block, out)), false);
  };
  Value laneAt = inStrips() ? laneInStrip() : Value();
  auto columnAt = [&](Value column) { return ptx.exclusiveOr(state.blocks[0], ptx.mul(column, 32)); };
  auto at = [&](Value row, Value column, Value otherwise) {
    return ptx.add(result, laneAt ? blockInStrip(laneAt, row, column, /*ofInverse=*/true) : otherwise);
  };
  // The warp's column, block after block: each follows from those above and from a row that its warp has
  // left. Rows of what is stored are columns.
  SmallVector<Halves> above{transposed};
  auto solveBelow = [&](auto &&again) -> void {
    int64_t step = above.size();
    Value row = ptx.add(warp, step);
    threads.when(ptx.below(row, ptx.constant(4)), [&] {
      ptx.meet(barrierOfRow(row), threadsOf(row));
      Value blocksOfRow = ptx.add(tile, ptx.mul(row, 16 * 128));
      SmallVector<Halves> blocks;
      for (int64_t j = 0; j < step; ++j)
        blocks.push_back(swapped(loadBlock(ptx.add(blocksOfRow, columnAt(ptx.add(warp, j))), 0, false)));
      Values sum = multiplyBlocks({}, above, blocks);
      store(sum, at(warp, row, ptx.add(columnAt(row), state.warpRows)));
      if (step == 3)
        return;
      above.push_back(inHalves(sum));
      again(again);
    });
  };
  if (byRows)
    solveBelow(solveBelow);
  auto block = [&](int64_t r, int64_t k) {
    return swapped(loadBlock(ptx.add(tile, state.blocks[k]), 16 * 128 * r, false));
  };
  for (int64_t c = 0; c < 3 && !byRows; ++c)
    threads.when(ptx.equal(warp, c), [&] {
      Values sums[4];
      for (int64_t r = c + 1; r < 4; ++r)
        sums[r] = multiplyBlocks({}, transposed, block(r, c));
      for (int64_t k = c + 1; k < 4; ++k) {
        if (Halves left = k < 3 ? inHalves(sums[k]) : Halves(); k < 3)
          for (int64_t r = k + 1; r < 4; ++r)
            sums[r] = multiplyBlocks(sums[r], left, block(r, k));
        store(sums[k], at(ptx.constant(c), ptx.constant(k), ptx.add(state.blocks[k], 16 * 128 * c)));
      }
    });
  if (plan.refinesInverse)
    return storeBlock(at(warp, warp, toOwn), 0, transposed);
  Values own;
  for (Value pair : transposed.high)
    llvm::append_range(own, ptx.unpackF16(pair));
  store(own, at(warp, warp, toOwn));
}
