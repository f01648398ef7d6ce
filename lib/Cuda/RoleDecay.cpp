// A decay of each key, by the scores' warpgroup: each warp has 16 of the chunk's tokens.
//
// Logarithms are summed within the warp's tokens, by a product with a triangle of ones, which is exact as
// they are bf16. All else is relative to them: a token's row on the left of a product is multiplied with what
// has decayed since its block's middle, one on the right divided by that; what decays in between is
// multiplied into the rows on the right, once for each block that they are seen from. Where a block's decay
// is beyond f32's range, references are its start and its end, so that no exponent is positive, and what its
// tokens see of each other is computed apart (RoleWildDecay.cpp).
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

static constexpr double log2e = 1.4426950408889634;

// Tables: two numbers for each channel side by side, or one.
static constexpr int64_t references = 0, scales = 4, nearRights = 8, farRight = 11, pairTables = 12;

BlockArgument RoleEmitter::placeOf(const TokenTile &tile) const {
  return tile.span ? plan.madeOf(tile).place : tile.input;
}

int64_t RoleEmitter::tableBytes() const {
  return plan.decay ? pairTables * 8 * plan.keys + 6 * 4 * plan.keys : 0;
}

int64_t RoleEmitter::sumsAt(int64_t block) const {
  return tablesAt + pairTables * 8 * plan.keys + block * 4 * plan.keys;
}

void RoleEmitter::beginDecayed(ScoreState &state) {
  Value distance = arith::SubIOp::create(b, state.rowLessColumn, ptx.mul(warp, 16));
  auto triangle = [&](int64_t least) {
    auto half = [&](int64_t more, int64_t one) {
      Value holds = ptx.compare(arith::CmpIPredicate::sge, distance, ptx.constant(least + more));
      return ptx.choose(holds, ptx.constant(one), ptx.constant(0));
    };
    constexpr int64_t one = 0x3f80;
    Value ends = ptx.add(half(0, one), half(1, one << 16));
    return Values{ends, ptx.constant(one << 16 | one), ptx.constant(0), ends};
  };
  state.inclusive = triangle(0);
  state.strict = triangle(1);
}

// Of an input, the warp's rows, 16 columns.
Values RoleEmitter::inputPairs(ScoreState &state, BlockArgument input, int64_t block, bool transposed) {
  return ptx.loadMatrices(state.own[block % 4], tileOffset(input) + block / 4 * halfStride(input),
                          transposed);
}

// The logarithms, transposed. What decays by more than 2^-199 counts as that, and sums stay precise.
Values RoleEmitter::logPairs(ScoreState &state, int64_t block) {
  constexpr int32_t least = 0xc30ac30a; // -138 twice
  Values pairs = inputPairs(state, plan.logs(), block, true);
  for (Value &pair : pairs)
    pair = ptx.greaterBf16(pair, ptx.constant(least));
  return {pairs[0], pairs[2], pairs[1], pairs[3]};
}

// Sums of natural logarithms from the first of the warp's tokens, with each token's own or without.
Values RoleEmitter::logSums(ScoreState &state, ValueRange pairs, bool before) {
  return ptx.multiplyBf16(Values(8, ptx.number(0)), before ? state.strict : state.inclusive, pairs);
}

// What each block of 16 tokens takes away from each channel.
void RoleEmitter::storeSums(ScoreState &state) {
  SmallVector<Values> sums;
  Value lowest = ptx.number(0);
  for (int64_t block = 0; block < plan.keys / 16; ++block) {
    sums.push_back(logSums(state, logPairs(state, block), false));
    for (unsigned e : {2, 3, 6, 7})
      lowest = arith::MinNumFOp::create(b, lowest, sums.back()[e]);
  }
  // The last of the rows.
  threads.when(ptx.compare(arith::CmpIPredicate::uge, lane, ptx.constant(28)), [&] {
    Value at = ptx.add(ptx.add(base, ptx.mul(ptx.bits(lane, 3), 8)), ptx.mul(warp, 4 * plan.keys));
    for (auto [block, own] : llvm::enumerate(sums))
      for (unsigned e : {2, 6})
        ptx.store(at, sumsAt(0) + block * 64 + e / 4 * 32, {own[e], own[e + 1]});
  });
  // No channel's table may be that of a wild block where the warp's tokens do not count as such.
  state.wild = plan.isMild() ? Value()
                             : ptx.any(arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, lowest,
                                                             ptx.number(0.1 - mostOfBlock / log2e)));
}

// What all tokens of a block share: a thread takes a channel.
void RoleEmitter::makeTables(ScoreState &state) {
  threads.when(ptx.below(thread, ptx.constant(plan.keys)), [&] {
    Value single = ptx.add(base, ptx.mul(thread, 4));
    Value pair = ptx.add(ptx.add(ptx.add(base, tablesAt), ptx.mul(ptx.shiftRight(thread, 1), 16)),
                         ptx.mul(ptx.bits(thread, 1), 4));
    Values sums, left, right, inside; // a block's decay, its references, what of it the right one leaves
    for (int64_t block = 0; block < 4; ++block) {
      Value sum = ptx.multiply(ptx.loadFloats(single, sumsAt(block), 1)[0], ptx.number(log2e));
      Value half = ptx.multiply(sum, ptx.number(0.5)), zero = ptx.number(0);
      Value isWild = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, sum, ptx.number(-mostOfBlock));
      sums.push_back(sum);
      left.push_back(plan.isMild() ? half : ptx.choose(isWild, zero, half));
      right.push_back(plan.isMild() ? half : ptx.choose(isWild, sum, half));
      inside.push_back(plan.isMild() ? half : ptx.choose(isWild, zero, half));
    }
    auto store = [&](int64_t table, unsigned which, Value number) {
      ptx.store(pair, table * 8 * plan.keys + which * 8, {number});
    };
    Value before = ptx.number(0), rest = ptx.number(0);
    for (int64_t block = 0, back = 3; block < 4; ++block, --back) {
      store(references + block, 0, arith::NegFOp::create(b, left[block]));
      store(references + block, 1, right[block]);
      store(scales + block, 0, ptx.exp2(ptx.sum(before, left[block])));
      store(scales + back, 1, ptx.exp2(ptx.sum(rest, inside[back])));
      before = ptx.sum(before, sums[block]);
      rest = ptx.sum(rest, sums[back]);
    }
    // From a block to those after it. Both numbers of a pair are loaded.
    store(nearRights + 2, 1, ptx.number(0));
    store(farRight, 1, ptx.number(0));
    for (int64_t block = 0; block < 3; ++block) {
      Value between = inside[block];
      for (int64_t seer = block + 1; seer < 4; ++seer) {
        Value number = ptx.exp2(ptx.sum(between, left[seer]));
        if (seer < block + 3)
          store(nearRights + block, seer - block - 1, number);
        else
          store(farRight, 0, number);
        between = ptx.sum(between, sums[seer]);
      }
    }
    ptx.store(ptx.add(single, ptx.mul(state.index, 4 * plan.keys)), sumsAt(4), {ptx.exp2(before)});
  });
}

// Of a table at an address, the first or second numbers of the thread's channels, by entry.
namespace {
struct ChannelPairs {
  Values loaded[2];
  Value of(unsigned which, unsigned entry) const { return loaded[entry / 4][2 * which + entry % 2]; }
};
} // namespace

static ChannelPairs loadChannels(Ptx &ptx, Value at, int64_t offset, int64_t block) {
  return {{ptx.loadFloats(at, offset + block * 128, 4), ptx.loadFloats(at, offset + block * 128 + 64, 4)}};
}

static Values packed(Ptx &ptx, llvm::function_ref<Value(unsigned)> entry) {
  Values pairs;
  for (unsigned e = 0; e < 8; e += 2) {
    Value low = entry(e);
    pairs.push_back(ptx.packBf16(low, entry(e + 1)));
  }
  return pairs;
}

static Values whenOr(ImplicitLocOpBuilder &b, Value condition, ValueRange otherwise,
                     llvm::function_ref<Values()> body) {
  auto choice = scf::IfOp::create(b, otherwise.getTypes(), condition, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  scf::YieldOp::create(b, body());
  b.setInsertionPointToStart(choice.elseBlock());
  scf::YieldOp::create(b, otherwise);
  return Values(choice.getResults());
}

// Where rows on the right lie, as they are seen from a later block: first those of the block right after,
// then those of the next, then those of the last one of the first.
static int64_t rightRows(int64_t block, int64_t seer) {
  int64_t distance = seer - block;
  return (distance == 1 ? block : distance == 2 ? 3 + 2 * block : 4) * 16 * 128;
}

int64_t RoleEmitter::rightOffset(BlockArgument input, int64_t half) const {
  int64_t which = llvm::find(plan.rights, input) - plan.rights.begin();
  return (which * (plan.keys / 64) + half) * rightHalf;
}

// Rows on the right of products, times what decays until the blocks that see them.
void RoleEmitter::storeRights(ScoreState &state, BlockArgument input, ValueRange rows, int64_t block) {
  Value at = ptx.add(ptx.add(base, rightsAt), state.blocks[block % 4]);
  int64_t offset = rightOffset(input, block / 4);
  auto store = [&](Value where, int64_t rowsAt, const ChannelPairs &numbers, unsigned which) {
    Values pairs = packed(ptx, [&](unsigned e) { return ptx.multiply(rows[e], numbers.of(which, e)); });
    ptx.storeMatrices(where, offset + rowsAt, pairs, false);
  };
  auto isBefore = [&](int64_t last) { return ptx.below(warp, ptx.constant(last)); };
  threads.when(isBefore(3), [&] {
    ChannelPairs numbers = loadChannels(ptx, state.ownChannels, nearRights * 8 * plan.keys, block);
    store(ptx.add(at, state.warpRows), 0, numbers, 0);
    threads.when(isBefore(2),
                 [&] { store(ptx.add(at, ptx.mul(state.warpRows, 2)), rightRows(0, 2), numbers, 1); });
    threads.when(ptx.equal(warp, 0), [&] {
      store(at, rightRows(0, 3), loadChannels(ptx, state.channels, farRight * 8 * plan.keys, block), 0);
    });
  });
}

// Sums of a product between tokens, by blocks of 16 columns; those above the diagonal are not looked at. The
// first product stores the rows on the right of all, the last the chain's tiles.
Values RoleEmitter::decayedGram(ScoreState &state, chunk::GramOp gram) {
  bool isFirst = gram == plan.grams.front(), isLast = gram == plan.grams.back();
  TokenTile left = *plan.asTile(gram.getLhs());
  BlockArgument right = plan.asTile(gram.getRhs())->input;
  Span leftSpan = gram.getReach() == Reach::Before && !left.decayed ? Span::Until : Span::Through;
  llvm::SmallSetVector<BlockArgument, 4> inputs;
  inputs.insert(left.input);
  inputs.insert(right);
  if (isFirst)
    inputs.insert(plan.rights.begin(), plan.rights.end());
  if (isLast)
    for (const MadeTile &tile : plan.made)
      inputs.insert(tile.input);
  Values diagonal(8, ptx.number(0));
  if (state.wild)
    diagonal = whenOr(b, state.wild, diagonal, [&] { return wildDiagonal(state, gram); });
  SmallVector<Values> lefts;
  // Logarithms, where it takes longest until they are of use, are loaded ahead.
  Values nextLogs = logPairs(state, 0);
  for (int64_t block = 0; block < plan.keys / 16; ++block) {
    Values logs = nextLogs;
    llvm::DenseMap<BlockArgument, Values> pairs;
    for (BlockArgument input : inputs)
      pairs[input] = inputPairs(state, input, block, false);
    if (block + 1 < plan.keys / 16)
      nextLogs = logPairs(state, block + 1);
    // Rows, relative to their block's reference: of Rest for those on the right.
    llvm::DenseMap<unsigned, Values> weights;
    llvm::DenseMap<std::pair<BlockArgument, unsigned>, Values> rows;
    ChannelPairs reference = loadChannels(ptx, state.ownChannels, references * 8 * plan.keys, block);
    auto weigh = [&](BlockArgument input, Span span) -> Values & {
      Values &own = weights[unsigned(span)];
      if (own.empty()) {
        Values sums = logSums(state, logs, span == Span::Until);
        bool isRight = span == Span::Rest;
        for (unsigned e = 0; e < 8; ++e)
          own.push_back(ptx.exp2(LLVM::FMAOp::create(b, sums[e], ptx.number(isRight ? -log2e : log2e),
                                                     reference.of(isRight, e))));
      }
      Values &result = rows[{input, unsigned(span)}];
      if (result.empty()) {
        for (Value pair : pairs[input])
          llvm::append_range(result, ptx.unpackBf16(pair));
        for (unsigned e = 0; e < 8; ++e)
          result[e] = ptx.multiply(result[e], own[e]);
      }
      return result;
    };
    Values x = weigh(left.input, leftSpan), y = weigh(right, Span::Rest);
    lefts.push_back(packed(ptx, [&](unsigned e) { return x[e]; }));
    Values rights = packed(ptx, [&](unsigned e) { return y[e]; });
    if (state.wild)
      for (Value &pair : rights)
        pair = ptx.choose(state.wild, ptx.constant(0), pair);
    diagonal = ptx.multiplyBf16(diagonal, lefts.back(), rights);
    if (isFirst)
      for (BlockArgument input : plan.rights)
        storeRights(state, input, weigh(input, Span::Rest), block);
    if (!isLast)
      continue;
    // No warp reads another's rows of inputs, so tiles take their place.
    ChannelPairs scale = loadChannels(ptx, state.ownChannels, scales * 8 * plan.keys, block);
    for (const MadeTile &tile : plan.made) {
      Values own = weigh(tile.input, tile.span);
      bool isRight = tile.span == Span::Rest;
      ptx.storeMatrices(state.own[block % 4], tileOffset(tile.place) + block / 4 * halfStride(tile.place),
                        packed(ptx, [&](unsigned e) { return ptx.multiply(own[e], scale.of(isRight, e)); }),
                        false);
    }
  }
  // The rows on the right are read by other warps.
  if (isFirst)
    ptx.meet(ptx.constant(3), 128);
  Values zeros(8, ptx.number(0)), before[3];
  for (int64_t column = 0; column < 3; ++column)
    before[column] =
        whenOr(b, ptx.compare(arith::CmpIPredicate::ugt, warp, ptx.constant(column)), zeros, [&] {
          Values sums(zeros);
          Value rowsAt = ptx.constant(rightRows(column, 3));
          for (int64_t seer = 2; seer > column; --seer)
            rowsAt = ptx.choose(ptx.equal(warp, seer), ptx.constant(rightRows(column, seer)), rowsAt);
          Value at = ptx.add(ptx.add(base, rightsAt), rowsAt);
          for (int64_t block = 0; block < plan.keys / 16; ++block)
            sums = ptx.multiplyBf16(
                sums, lefts[block],
                ptx.loadMatrices(ptx.add(at, state.blocks[block % 4]), rightOffset(right, block / 4), false));
          return sums;
        });
  Values results;
  for (int64_t block = 0; block < 4; ++block)
    for (unsigned e = 0; e < 8; ++e)
      results.push_back(block == 3 ? diagonal[e]
                                   : ptx.choose(ptx.equal(warp, block), diagonal[e], before[block][e]));
  return results;
}

void RoleEmitter::emitDecayed(ScoreState &state) {
  state.own.clear();
  for (Value block : state.blocks)
    state.own.push_back(ptx.add(ptx.add(state.stage.tiles, state.warpRows), block));
  state.channels = ptx.add(ptx.add(base, tablesAt), ptx.mul(ptx.bits(lane, 3), 16));
  state.ownChannels = ptx.add(state.channels, ptx.mul(warp, 8 * plan.keys));
  auto meet = [&] { ptx.meet(ptx.constant(3), 128); };
  storeSums(state);
  meet();
  makeTables(state);
  meet();
  for (chunk::GramOp gram : plan.grams) {
    state.sums.clear();
    Values sums = decayedGram(state, gram);
    state.sums[gram] = sums;
    // The system's blocks lie where the rows on the right did.
    if (plan.system && gram == plan.splitScores(plan.system).second)
      meet();
    storeScores(state, gram);
  }
}

// The state's entries, with what decays in the chunk; `parity` tells which of two tables is its.
Values RoleEmitter::decayedWhole(Value parity, ValueRange entries) {
  Values results(entries);
  Value at = ptx.add(ptx.add(ptx.add(base, sumsAt(4)), ptx.mul(ptx.bits(lane, 3), 8)),
                     ptx.mul(parity, 4 * plan.keys));
  for (size_t e = 0; e < results.size(); e += 4) {
    Values pair = ptx.loadFloats(at, e / 4 * 32, 2);
    for (size_t i = 0; i < 4; ++i)
      results[e + i] = ptx.multiply(results[e + i], pair[i % 2]);
  }
  return results;
}
