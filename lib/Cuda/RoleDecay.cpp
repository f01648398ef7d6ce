// A decay of each key, by the scores' warpgroup: each warp has the chunk's tokens 16 by 16.
//
// Logarithms are summed within 16 tokens, by a product with a triangle of ones, which is exact as they are
// bf16. All else is relative to the ends of these blocks, so that no exponent is positive: a token's row on
// the left of a product is multiplied with what has decayed since its block's start, one on the right with
// what decays until its block's end, and what decays in the blocks between is multiplied in where there are
// such. Within a block the row on the right is divided by what has decayed since the start, as long as that
// is within f32's range; what to do where it is not is in RoleWildDecay.cpp.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

static constexpr int64_t rowBytes = 128, blockRows = 16 * rowBytes, halfNumbers = 64 * 4;

BlockArgument RoleEmitter::placeOf(const TokenTile &tile) const {
  return tile.span ? plan.madeOf(tile).place : tile.input;
}

void RoleEmitter::beginDecayed(ScoreState &state) {
  state.channels = ptx.add(ptx.add(base, tablesAt), ptx.mul(ptx.bits(lane, 3), 8));
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

// A loop over blocks of 64 channels that stays one: all roles' code shares one small cache.
Values RoleEmitter::forHalves(ValueRange carried, llvm::function_ref<Values(Value, ValueRange)> body) {
  if (plan.keys == 64)
    return body(ptx.constant(0), carried);
  Value count = ptx.assembly("mov.b32 $0, 2;", b.getI32Type(), {})[0];
  return Values(threads.forLoop(ptx.constant(0), count, ptx.constant(1), carried, body).getResults());
}

// Of a table, the numbers of the thread's four channels in a block of 16.
Values RoleEmitter::channelNumbers(ScoreState &state, Value table, Value half, int64_t block) {
  Value at = ptx.add(ptx.add(state.channels, ptx.mul(table, tableBytes)), ptx.mul(half, halfNumbers));
  Values numbers = ptx.loadFloats(at, block * 64, 2);
  llvm::append_range(numbers, ptx.loadFloats(at, block * 64 + 32, 2));
  return numbers;
}

static unsigned channelOf(unsigned entry) { return entry / 4 * 2 + entry % 2; }

static Values packed(Ptx &ptx, ValueRange entries) {
  Values pairs;
  for (unsigned e = 0; e < 8; e += 2)
    pairs.push_back(ptx.packBf16(entries[e], entries[e + 1]));
  return pairs;
}

// Sums of binary logarithms from the start of the warp's 16 tokens, with each token's own or without.
Values RoleEmitter::logSums(ScoreState &state, Value half, int64_t block, bool before) {
  BlockArgument logs = plan.logs();
  Value at = ptx.add(ptx.add(state.stage.tiles, ptx.mul(half, halfStride(logs))),
                     ptx.add(state.warpRows, state.blocks[block]));
  Values factors = ptx.loadMatrices(at, tileOffset(logs), true);
  // Less than 2^-199 is zero, and sums stay precise.
  constexpr int32_t least = 0xc30ac30a; // -138 twice
  for (Value &pair : factors)
    pair = ptx.greaterBf16(pair, ptx.constant(least));
  Values zero(8, ptx.number(0));
  Values sums = ptx.multiplyBf16(zero, before ? state.strict : state.inclusive,
                                 Values{factors[0], factors[2], factors[1], factors[3]});
  for (Value &sum : sums)
    sum = ptx.multiply(sum, ptx.number(1.4426950408889634));
  return sums;
}

// The warp's rows of an input, 16 columns.
Values RoleEmitter::inputBlock(ScoreState &state, BlockArgument input, Value half, int64_t block) {
  Value at = ptx.add(ptx.add(state.stage.tiles, ptx.mul(half, halfStride(input))),
                     ptx.add(state.warpRows, state.blocks[block]));
  Values entries;
  for (Value pair : ptx.loadMatrices(at, tileOffset(input), false))
    llvm::append_range(entries, ptx.unpackBf16(pair));
  return entries;
}

// What each block of 16 tokens takes away from each channel.
void RoleEmitter::storeSums(ScoreState &state) {
  Value own = ptx.add(ptx.add(state.channels, ptx.mul(warp, tableBytes)), Sums * tableBytes);
  Values least = forHalves(Values{ptx.number(0)}, [&](Value half, ValueRange carried) {
    Value lowest = carried[0];
    SmallVector<Values> sums;
    for (int64_t block = 0; block < 4; ++block) {
      sums.push_back(logSums(state, half, block, false));
      for (unsigned e : {2, 3, 6, 7})
        lowest = arith::MinNumFOp::create(b, lowest, sums.back()[e]);
    }
    // The last of the rows.
    threads.when(ptx.compare(arith::CmpIPredicate::uge, lane, ptx.constant(28)), [&] {
      Value at = ptx.add(own, ptx.mul(half, halfNumbers));
      for (int64_t block = 0; block < 4; ++block)
        for (unsigned e : {2, 6})
          ptx.store(at, block * 64 + e / 4 * 32, {sums[block][e], sums[block][e + 1]});
    });
    return Values{lowest};
  });
  state.wild =
      plan.isMild()
          ? Value()
          : ptx.any(arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, least[0], ptx.number(-mostOfBlock)));
}

// What decays before each block, after it, and in the chunk: a thread takes a channel.
void RoleEmitter::makeTables(ScoreState &state) {
  threads.when(ptx.below(thread, ptx.constant(plan.keys)), [&] {
    Value at = ptx.add(ptx.add(base, tablesAt), ptx.mul(thread, 4));
    Values sums;
    for (int64_t block = 0; block < 4; ++block)
      sums.push_back(ptx.loadFloats(at, (Sums + block) * tableBytes, 1)[0]);
    Value before = ptx.number(0), rest = ptx.number(0);
    for (int64_t block = 0; block < 4; ++block) {
      ptx.store(at, (Befores + block) * tableBytes, {ptx.exp2(before)});
      ptx.store(at, (Rests + 3 - block) * tableBytes, {ptx.exp2(rest)});
      before = ptx.sum(before, sums[block]);
      rest = ptx.sum(rest, sums[3 - block]);
    }
    ptx.store(ptx.add(at, ptx.mul(state.index, tableBytes)), Whole * tableBytes, {ptx.exp2(before)});
  });
}

// Rows on the right of products, with what decays until their block's end. The last block is on no block's
// right; in its place is the first one with what decays until the second one's end.
void RoleEmitter::storeRights(ScoreState &state) {
  threads.when(ptx.below(warp, ptx.constant(3)), [&] {
    forHalves({}, [&](Value half, ValueRange) {
      for (int64_t block = 0; block < 4; ++block) {
        Values sums = logSums(state, half, block, false), ends = channelNumbers(state, warp, half, block);
        for (unsigned e = 0; e < 8; ++e)
          sums[e] = ptx.exp2(ptx.difference(ends[channelOf(e)], sums[e]));
        for (auto [i, input] : llvm::enumerate(plan.rights)) {
          Values rows = inputBlock(state, input, half, block);
          for (unsigned e = 0; e < 8; ++e)
            rows[e] = ptx.multiply(rows[e], sums[e]);
          Value at = ptx.add(ptx.add(ptx.add(base, rightsAt), ptx.mul(half, tileBytes)), state.blocks[block]);
          int64_t tile = i * (plan.keys / 64) * tileBytes;
          ptx.storeMatrices(ptx.add(at, state.warpRows), tile, packed(ptx, rows), false);
          threads.when(ptx.equal(warp, 0), [&] {
            Values next = channelNumbers(state, ptx.constant(Sums + 1), half, block), more;
            for (Value sum : next)
              more.push_back(ptx.exp2(sum));
            for (unsigned e = 0; e < 8; ++e)
              rows[e] = ptx.multiply(rows[e], more[channelOf(e)]);
            ptx.storeMatrices(at, tile + 3 * blockRows, packed(ptx, rows), false);
          });
        }
      }
      return Values();
    });
  });
}

// Sums of a product between tokens, by blocks of 16 columns; those above the diagonal are not looked at.
Values RoleEmitter::decayedGram(ScoreState &state, chunk::GramOp gram) {
  BlockArgument left = plan.asTile(gram.getLhs())->input, right = plan.asTile(gram.getRhs())->input;
  bool before = gram.getReach() == Reach::Before && !plan.asTile(gram.getLhs())->decayed;
  int64_t tile = (llvm::find(plan.rights, right) - plan.rights.begin()) * (plan.keys / 64) * tileBytes;
  auto whenOr = [&](Value condition, ValueRange otherwise, llvm::function_ref<Values()> body) {
    auto choice = scf::IfOp::create(b, otherwise.getTypes(), condition, true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    scf::YieldOp::create(b, body());
    b.setInsertionPointToStart(choice.elseBlock());
    scf::YieldOp::create(b, otherwise);
    return Values(choice.getResults());
  };
  auto isFrom = [&](int64_t first) {
    return ptx.compare(arith::CmpIPredicate::uge, warp, ptx.constant(first));
  };
  // Of the diagonal block first, then of those before it.
  Values sums = forHalves(Values(32, ptx.number(0)), [&](Value half, ValueRange carried) {
    SmallVector<Values> lefts, fartherLefts;
    Values diagonal(carried.take_front(8));
    for (int64_t block = 0; block < 4; ++block) {
      Values logs = logSums(state, half, block, false);
      Values since = before ? logSums(state, half, block, true) : logs;
      Values x = inputBlock(state, left, half, block), y = inputBlock(state, right, half, block);
      for (unsigned e = 0; e < 8; ++e) {
        x[e] = ptx.multiply(x[e], ptx.exp2(since[e]));
        y[e] = ptx.multiply(y[e], ptx.exp2(arith::NegFOp::create(b, logs[e])));
      }
      lefts.push_back(packed(ptx, x));
      diagonal = ptx.multiplyBf16(diagonal, lefts.back(), packed(ptx, y));
      // Between the last block and the first two there is the third.
      fartherLefts.push_back(whenOr(isFrom(3), lefts.back(), [&] {
        Values between = channelNumbers(state, ptx.constant(Sums + 2), half, block), farther(x);
        for (Value &sum : between)
          sum = ptx.exp2(sum);
        for (unsigned e = 0; e < 8; ++e)
          farther[e] = ptx.multiply(x[e], between[channelOf(e)]);
        return packed(ptx, farther);
      }));
    }
    Value rights = ptx.add(ptx.add(base, rightsAt), ptx.mul(half, tileBytes));
    auto multiply = [&](ValueRange start, ArrayRef<Values> lefts, Value row) {
      Values sums(start);
      for (int64_t block = 0; block < 4; ++block)
        sums = ptx.multiplyBf16(
            sums, lefts[block],
            ptx.loadMatrices(ptx.add(ptx.add(rights, row), state.blocks[block]), tile, false));
      return sums;
    };
    auto join = [](ValueRange first, ValueRange second) {
      Values all(first);
      llvm::append_range(all, second);
      return all;
    };
    ValueRange first = carried.slice(8, 8), second = carried.slice(16, 8), third = carried.slice(24, 8);
    Values others = whenOr(isFrom(1), carried.drop_front(8), [&] {
      Value row = ptx.choose(ptx.equal(warp, 1), ptx.constant(0), ptx.constant(3 * blockRows));
      Values one = multiply(first, fartherLefts, row);
      Values rest = whenOr(isFrom(2), carried.drop_front(16), [&] {
        Values two = multiply(second, fartherLefts, ptx.constant(blockRows));
        Values three =
            whenOr(isFrom(3), third, [&] { return multiply(third, lefts, ptx.constant(2 * blockRows)); });
        return join(two, three);
      });
      return join(one, rest);
    });
    return join(diagonal, others);
  });
  Values diagonal(ArrayRef(sums).take_front(8));
  if (state.wild)
    diagonal = whenOr(state.wild, diagonal, [&] { return wildDiagonal(state, gram); });
  Values results;
  for (int64_t block = 0; block < 4; ++block)
    for (unsigned e = 0; e < 8; ++e)
      results.push_back(block == 3
                            ? diagonal[e]
                            : ptx.choose(ptx.equal(warp, block), diagonal[e], sums[8 + 8 * block + e]));
  return results;
}

// The chain's tiles, in place of inputs: no warp reads another's rows of those.
void RoleEmitter::storeMade(ScoreState &state) {
  auto has = [&](Span span) {
    return llvm::any_of(plan.made, [&](const MadeTile &tile) { return tile.span == span; });
  };
  forHalves({}, [&](Value half, ValueRange) {
    for (int64_t block = 0; block < 4; ++block) {
      llvm::DenseMap<BlockArgument, Values> inputs;
      for (const MadeTile &tile : plan.made)
        if (Values &rows = inputs[tile.input]; rows.empty())
          rows = inputBlock(state, tile.input, half, block);
      auto weigh = [&](Table table, llvm::function_ref<Value(unsigned)> log) {
        Values outside = channelNumbers(state, ptx.add(warp, table), half, block), weights;
        for (unsigned e = 0; e < 8; ++e)
          weights.push_back(ptx.multiply(ptx.exp2(log(e)), outside[channelOf(e)]));
        return weights;
      };
      llvm::DenseMap<unsigned, Values> weights;
      Values logs = logSums(state, half, block, false);
      if (has(Span::Through))
        weights[unsigned(Span::Through)] = weigh(Befores, [&](unsigned e) { return logs[e]; });
      if (has(Span::Until)) {
        Values before = logSums(state, half, block, true);
        weights[unsigned(Span::Until)] = weigh(Befores, [&](unsigned e) { return before[e]; });
      }
      if (has(Span::Rest)) {
        Values ends = channelNumbers(state, warp, half, block);
        weights[unsigned(Span::Rest)] =
            weigh(Rests, [&](unsigned e) { return ptx.difference(ends[channelOf(e)], logs[e]); });
      }
      SmallVector<Values> results;
      for (const MadeTile &tile : plan.made) {
        Values rows = inputs.lookup(tile.input), own = weights.lookup(unsigned(tile.span));
        for (unsigned e = 0; e < 8; ++e)
          rows[e] = ptx.multiply(rows[e], own[e]);
        results.push_back(packed(ptx, rows));
      }
      ptx.syncWarp();
      for (auto [tile, result] : llvm::zip(plan.made, results))
        ptx.storeMatrices(ptx.add(ptx.add(state.stage.tiles, ptx.mul(half, halfStride(tile.place))),
                                  ptx.add(state.warpRows, state.blocks[block])),
                          tileOffset(tile.place), result, false);
    }
    return Values();
  });
}

void RoleEmitter::emitDecayed(ScoreState &state) {
  auto meet = [&] { ptx.meet(ptx.constant(3), 128); };
  storeSums(state);
  meet();
  makeTables(state);
  storeRights(state);
  meet();
  for (chunk::GramOp gram : plan.grams) {
    state.sums.clear();
    Values sums = decayedGram(state, gram);
    state.sums[gram] = sums;
    // The system's blocks lie where the tiles on the right did.
    if (plan.system && gram == plan.splitScores(plan.system).second)
      meet();
    storeScores(state, gram);
  }
  storeMade(state);
}

// The state's entries, with what decays in the chunk; `parity` tells which of two tables is its.
Values RoleEmitter::decayedWhole(Value parity, ValueRange entries) {
  Values results(entries);
  Value at = ptx.add(ptx.add(ptx.add(base, tablesAt + Whole * tableBytes), ptx.mul(ptx.bits(lane, 3), 8)),
                     ptx.mul(parity, tableBytes));
  for (size_t e = 0; e < results.size(); e += 4) {
    Values pair = ptx.loadFloats(at, e / 4 * 32, 2);
    for (size_t i = 0; i < 4; ++i)
      results[e + i] = ptx.multiply(results[e + i], pair[i % 2]);
  }
  return results;
}
