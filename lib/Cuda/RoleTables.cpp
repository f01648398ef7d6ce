// What the decay of each key leaves from block to block of 16 tokens, in tables by channel.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleKeyWalk.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t RoleEmitter::bytesOfTables() const { return pairTables * 8 * plan.keys; }

int64_t RoleEmitter::tableBytes() const {
  return plan.decay ? wholesAt() - tablesAt + placesOfWholes() * plan.wholeBytes() : 0;
}

// Of tables that are made ahead one such place has what tells of wild blocks.
int64_t RoleEmitter::sumsAt(int64_t block) const {
  return tablesAt + tablePlaces() * bytesOfTables() + block * 4 * plan.keys;
}

// What decays in a chunk, for each place of numbers.
int64_t RoleEmitter::wholesAt() const {
  return phase == Phase::Chain ? tablesAt
         : plan.abreast > 1    ? tablesAt + KeyWalk::bytesOfTables(plan)
                               : sumsAt(tabulatesAhead() ? 1 : 4);
}

int64_t RoleEmitter::placesOfWholes() const {
  return form.sharesWalk() ? ownPlaces + 2 : phase == Phase::Chain ? stages : rowPlaces();
}

// Where a chunk's are: with its numbers, or its tiles. Walkers of a team make them earlier, when two of their
// chunks may be on their way to the chains.
Value RoleEmitter::wholesOf(Value chunk, Stage stage) {
  Value place = stage.place;
  if (form.sharesWalk()) {
    Value own = arith::DivUIOp::create(b, chunk, ptx.constant(team));
    own = arith::RemUIOp::create(b, own, ptx.constant(ownPlaces + 1));
    place = ptx.choose(isOwn(chunk), own, ptx.constant(ownPlaces + 1));
  }
  return ptx.add(ptx.add(base, wholesAt()), ptx.mul(place, plan.wholeBytes()));
}

// The left sides that sum over a warp's rows: those up to a row, or before it. Of simultaneous rows the first
// of each token count, and what is before them is so for all; by eights, these are the first eight. What the
// second one of a token finds in turn has decayed.
void RoleEmitter::beginDecayed(ScoreState &state) {
  Value row = ptx.shiftRight(lane, 2), pair = ptx.mul(ptx.bits(lane, 3), 2), zero = ptx.constant(0);
  auto ones = [&](llvm::function_ref<Value(Value column)> holds) -> Value {
    Value lower = ptx.choose(holds(pair), ptx.constant(ptx.bitsOf(1)), zero);
    return ptx.add(lower, ptx.choose(holds(ptx.add(pair, 1)), ptx.constant(ptx.bitsOf(1) << 16), zero));
  };
  auto counts = [&](Value column) {
    return ptx.equal(ptx.bits(column, plan.atOnce ? plan.steps - 1 : 0), 0);
  };
  auto upTo = [&](int64_t least) {
    return ones([&](Value column) -> Value {
      Value distance = arith::SubIOp::create(b, placeInEight(row), placeInEight(column));
      Value reaches = ptx.compare(arith::CmpIPredicate::sge, distance, ptx.constant(least));
      return arith::AndIOp::create(b, reaches, counts(column));
    });
  };
  Value all = ones(counts), through = upTo(0), until = upTo(1);
  if (plan.isStacked()) {
    state.inclusive = {through, through, zero, zero};
    state.strict = {until, plan.inTurn ? through : until, zero, zero};
  } else {
    state.inclusive = {through, all, zero, through};
    state.strict = {until, all, zero, until};
  }
  state.blocks = blocksFrom(state, state.blocks.front());
  if (plan.masksLogs() && !plan.outlastRows())
    countRows(state);
}

// Finds which of the warp's rows decay: those of tokens that there are or, of micro-steps, their first ones;
// and, for each of the thread's rows, how many do up to it, and before it. By eights, both count tokens.
void RoleEmitter::countRows(ScoreState &state) {
  bool byEights = plan.isStacked();
  int64_t every = !byEights && (plan.atOnce || plan.decaysAtFirst()) ? plan.steps : 1;
  Value first = ptx.mul(warp, byEights ? 8 : 16), end;
  if (plan.outlastRows())
    end = ptx.mul(arith::MinSIOp::create(b, tokensLeft(state.chunk), ptx.constant(plan.tokens)),
                  byEights ? 1 : plan.steps);
  if (plan.isOfParams(plan.logs())) {
    auto countTo = [&](Value row) {
      row = arith::MaxSIOp::create(b, first, arith::MinSIOp::create(b, row, end));
      return arith::DivUIOp::create(b, ptx.add(row, every - 1), ptx.constant(every));
    };
    for (int64_t eight : {0, 8})
      for (bool before : {false, true}) {
        bool withOwn = !before || (eight && plan.inTurn);
        Value row = ptx.shiftRight(lane, 2);
        if (before && plan.atOnce)
          row = ptx.bits(row, -plan.steps);
        row = ptx.add(ptx.add(first, row), (byEights ? 0 : eight) + (withOwn ? 1 : 0));
        Value count = arith::SubIOp::create(b, countTo(row), countTo(first));
        state.counts[before][eight / 8] = arith::SIToFPOp::create(b, b.getF32Type(), count);
      }
    return;
  }
  auto counts = [&](Value row) {
    Value holds = end ? ptx.compare(arith::CmpIPredicate::slt, row, end) : Value();
    if (every == 1 || plan.atOnce)
      return holds;
    Value token = arith::DivUIOp::create(b, row, ptx.constant(every));
    Value isFirst = ptx.compare(arith::CmpIPredicate::eq, row, ptx.mul(token, every));
    return holds ? arith::AndIOp::create(b, holds, isFirst).getResult() : isFirst;
  };
  state.counted.clear();
  for (int64_t eight : {0, 8}) {
    Value mask = ptx.constant(0), row = ptx.add(first, ptx.mul(ptx.bits(lane, 3), 2));
    row = ptx.add(row, byEights ? 0 : eight);
    for (int64_t i : {0, 1})
      mask = ptx.add(
          mask, ptx.choose(counts(ptx.add(row, i)), ptx.constant(i ? 0xffff0000 : 0xffff), ptx.constant(0)));
    state.counted.push_back(mask);
  }
}

// The places of the warpgroup's four blocks of 16 columns in a row of 128 bytes, by that of the first.
Values RoleEmitter::blocksFrom(const ScoreState &state, Value first) {
  // With few channels two warpgroups share such a row.
  if (blocksOfWalker() < 4)
    first = ptx.exclusiveOr(first, ptx.mul(state.walker, 32 * blocksOfWalker()));
  Values blocks;
  for (int64_t block = 0; block < 4; ++block)
    blocks.push_back(ptx.exclusiveOr(first, ptx.constant(32 * block)));
  return blocks;
}

// Where a block of the warpgroup's channels is in a tile, whose rows of 64 channels are `stride` apart, by
// the places of the four in such a row.
Value RoleEmitter::ownBlock(const ScoreState &state, ValueRange places, int64_t block, int64_t stride) {
  Value at = places[block % 4];
  if (blocksOfWalker() < 4)
    return at;
  Value first = ptx.mul(state.walker, blocksOfWalker() / 4 * stride);
  return ptx.add(ptx.add(at, first), block / 4 * stride);
}

// Where the rows of the warp's tokens are. What decays is that of all, else that of those whose last
// micro-step is the warp's, as tiles take the place of others: for these there is a row that is none's.
void RoleEmitter::findTokens(ScoreState &state) {
  if (plan.steps == 1)
    return;
  Value lane = freshLane(), row = ptx.add(ptx.mul(warp, 16), ptx.bits(lane, 15));
  Value token = plan.isStacked() ? ptx.add(ptx.mul(warp, 8), ptx.bits(lane, 7))
                                 : arith::DivUIOp::create(b, row, ptx.constant(plan.steps)).getResult();
  auto placesOf = [&](Value token) {
    Value unit = ptx.exclusiveOr(ptx.shiftRight(lane, 4), ptx.bits(token, 7));
    Values places = blocksFrom(state, ptx.add(ptx.mul(token, rowBytes), ptx.mul(unit, 16)));
    for (Value &place : places)
      place = ptx.add(state.stage.tiles, place);
    return places;
  };
  state.ofLogs = state.ofTokens = placesOf(token);
  state.lastRows = lastRows();
  if (16 % plan.steps == 0)
    return;
  Value step = arith::SubIOp::create(b, row, ptx.mul(token, plan.steps));
  Value isOutputs = ptx.equal(step, plan.stepOfOutputs());
  state.ofTokens = placesOf(ptx.choose(isOutputs, token, ptx.constant(plan.columns - 1)));
}

// Of an input, the warp's rows, or those of their tokens, 16 columns; transposed, those of logarithms.
Values RoleEmitter::inputPairs(ScoreState &state, BlockArgument input, int64_t block, bool transposed) {
  bool ofTokens = plan.steps > 1 && !plan.hasSteps(input);
  const Values &rows = !ofTokens ? state.own : transposed ? state.ofLogs : state.ofTokens;
  Value at = ownBlock(state, rows, block, halfStride(input));
  if (isLogsAhead(input))
    at = ptx.add(at, arith::SubIOp::create(b, state.stage.logs, state.rowsAt));
  return ptx.loadMatrices(at, tileOffset(input), transposed);
}

// What each block of 16 tokens takes away from each channel.
void RoleEmitter::storeSums(ScoreState &state) {
  SmallVector<Values> sums;
  Value lowest = ptx.number(0);
  for (int64_t block = 0; block < blocksOfWalker(); ++block) {
    LogSums own = logSums(state, block, logPairs(state, block), false);
    Values &stored = sums.emplace_back(8);
    for (unsigned e : {2, 3, 6, 7}) {
      stored[e] = marked(own.logs[e], own.signs.empty() ? Value() : own.signs[e]);
      lowest = arith::MinNumFOp::create(b, lowest, own.logs[e]);
    }
  }
  // The last of the rows.
  threads.when(ptx.compare(arith::CmpIPredicate::uge, lane, ptx.constant(28)), [&] {
    Value at = ptx.add(ptx.add(base, ptx.mul(ptx.bits(lane, 3), 8)), ptx.mul(warp, 4 * plan.keys));
    at = ptx.add(at, ptx.mul(state.walker, 64 * blocksOfWalker()));
    for (auto [block, own] : llvm::enumerate(sums))
      for (unsigned e : {2, 6})
        ptx.store(at, sumsAt(0) + block * 64 + e / 4 * 32, {own[e], own[e + 1]});
  });
  state.wild = plan.isMild() ? Value() : ptx.any(isWild(lowest));
}

// Whether a channel decays by too much in a block: no table may be that of a wild block where the warp's
// tokens do not count as such.
Value RoleEmitter::isWild(Value lowest) {
  return arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, lowest,
                               ptx.number(0.1 - mostOfBlock / llvm::numbers::log2e));
}

// What all tokens of a block share: a thread takes a channel.
void RoleEmitter::makeTables(ScoreState &state) {
  threads.when(ptx.below(thread, ptx.constant(16 * blocksOfWalker())), [&] {
    Value channel = ptx.add(thread, ptx.mul(state.walker, 16 * blocksOfWalker()));
    Value single = ptx.add(base, ptx.mul(channel, 4));
    Values sums;
    for (int64_t block = 0; block < 4; ++block)
      sums.push_back(ptx.loadFloats(single, sumsAt(block), 1)[0]);
    storeTables(channel, sums, state.tables, wholesOf(state.chunk, state.stage));
  });
}

// The tables of one channel, or of two that stand together, from what the blocks of 16 tokens take away of
// each: of the channels of the first block, then of the next.
void RoleEmitter::storeTables(Value channel, ValueRange sumsOfBlocks, Value tables, Value wholes) {
  size_t count = sumsOfBlocks.size() / 4;
  Value pair =
      ptx.add(ptx.add(tables, ptx.mul(ptx.shiftRight(channel, 1), 16)), ptx.mul(ptx.bits(channel, 1), 4));
  // A number of each channel.
  using Numbers = SmallVector<Value, 2>;
  auto ofEach = [&](llvm::function_ref<Value(size_t)> number) {
    Numbers numbers;
    for (size_t i = 0; i < count; ++i)
      numbers.push_back(number(i));
    return numbers;
  };
  auto sum = [&](const Numbers &x, const Numbers &y) {
    return ofEach([&](size_t i) { return ptx.sum(x[i], y[i]); });
  };
  auto both = [&](const Numbers &x, const Numbers &y) {
    return ofEach([&](size_t i) -> Value { return x[i] ? ptx.exclusiveOr(x[i], y[i]) : y[i]; });
  };
  auto power = [&](const Numbers &x, const Numbers &signs) {
    return ofEach([&](size_t i) { return withSign(ptx.exp2(x[i]), signs[i]); });
  };
  // A block's decay, its references, of which the left one is what the right one leaves; and the decay's
  // sign.
  SmallVector<Numbers> sums(4), left(4), right(4), signs(4);
  Numbers zero(count, ptx.number(0)), none(count);
  for (int64_t block = 0; block < 4; ++block)
    for (size_t i = 0; i < count; ++i) {
      auto [natural, sign] = takeMark(sumsOfBlocks[block * count + i]);
      Value own = ptx.multiply(natural, ptx.number(llvm::numbers::log2e));
      signs[block].push_back(sign);
      Value half = ptx.multiply(own, ptx.number(0.5));
      Value isWild = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, own, ptx.number(-mostOfBlock));
      sums[block].push_back(own);
      left[block].push_back(plan.isMild() ? half : ptx.choose(isWild, zero[0], half));
      right[block].push_back(plan.isMild() ? half : ptx.choose(isWild, own, half));
    }
  auto store = [&](int64_t table, unsigned which, const Numbers &numbers) {
    ptx.store(pair, table * 8 * plan.keys + which * 8, numbers);
  };
  // Signs are those from a block's start to a token, so what is on the right has those of all its block.
  Numbers before = zero, rest = zero, signBefore = none, signOfRest = none;
  for (int64_t block = 0, back = 3; block < 4; ++block, --back) {
    store(references + block, 0, ofEach([&](size_t i) { return ptx.negative(left[block][i]); }));
    store(references + block, 1, right[block]);
    store(scales + block, 0, power(sum(before, left[block]), signBefore));
    signBefore = both(signBefore, signs[block]), signOfRest = both(signOfRest, signs[back]);
    store(scales + back, 1, power(sum(rest, left[back]), signOfRest));
    before = sum(before, sums[block]);
    rest = sum(rest, sums[back]);
  }
  // From a block to those after it.
  for (int64_t block = 0; block < 3; ++block) {
    Numbers between = left[block], sign = signs[block];
    for (int64_t seer = block + 1; seer < 4; ++seer) {
      Numbers number = power(plan.isF16 ? between : sum(between, left[seer]), sign);
      if (seer < block + 3)
        store(nearRights + block, seer - block - 1, number);
      else
        store(farRight, 1, number);
      between = sum(between, sums[seer]);
      sign = both(sign, signs[seer]);
    }
  }
  ptx.store(ptx.add(wholes, ptx.mul(channel, 4)), 0, power(before, signBefore));
}

// Whether logarithms come to their place as soon as who walks the channels has done with those before, and
// not when the chain has done with all of the chunk: so that the tables do not keep the walkers waiting.
bool RoleEmitter::takesLogsAhead() const {
  auto logs = tabulatesAhead() ? cast<BlockArgument>(plan.logs()) : BlockArgument();
  return logs && !plan.isPlace(logs) && !plan.isForChain(logs) && logs != plan.outputPlace;
}

// The place of a chunk's tables, its phase, and where they and what tells of wild blocks are: of each warp
// that makes tables a word for each block.
RoleEmitter::Tables RoleEmitter::tablesOf(Value chunk) {
  auto [index, phase] = ownPlace(chunk);
  return {index, phase, ptx.add(ptx.add(base, tablesAt), ptx.mul(index, bytesOfTables())),
          ptx.add(ptx.add(base, sumsAt(0)), ptx.mul(index, tableWarps() * 16))};
}

// What the blocks of 16 tokens take away of two channels each, as storeTables wants it. A product with ones
// in one row sums over a block's tokens, and leaves the sums of eight channels to the lanes that have that
// row.
Values RoleEmitter::sumBlocks(const Stage &stage) {
  auto logs = cast<BlockArgument>(plan.logs());
  Value lane = freshLane(), row = ptx.shiftRight(lane, 2), zero = ptx.constant(0);
  Value first = ptx.add(tileAt(stage, logs), ptx.mul(warp, halfStride(logs)));
  first = ptx.add(first, ptx.add(ptx.mul(lane, rowBytes), ptx.mul(ptx.bits(lane, 7), 16)));
  Values sums(8, ptx.number(0));
  for (int64_t eight = 0; eight < 8; ++eight) {
    Value ones = ptx.choose(ptx.equal(row, eight), ptx.constant(ptx.bitsOf(1) * 0x10001), zero);
    Value at = ptx.exclusiveOr(first, ptx.constant(eight * 16));
    for (int64_t pair : {0, 1}) {
      Values rows = ptx.loadMatrices(at, pair * 32 * rowBytes, true);
      for (Value &log : rows)
        log = leastOf(log);
      sums = ptx.multiplyPacked(sums, pair ? Values{zero, ones, zero, ones} : Values{ones, zero, ones, zero},
                                {rows[0], rows[2], rows[1], rows[3]});
    }
  }
  // Of the first block and the third, then of the others.
  return {sums[0], sums[1], sums[4], sums[5], sums[2], sums[3], sums[6], sums[7]};
}

// Makes the tables of all chunks: a thread takes two channels.
void RoleEmitter::emitTables(Value chunks) {
  forOwnChunks(chunks, [&](Value chunk, Stage stage) {
    awaitInputs(chunk, stage, /*logsAlone=*/true);
    Values sums = sumBlocks(stage);
    Tables tables = tablesOf(chunk);
    ptx.await(barrier(TablesEmpty, tables.index), ptx.exclusiveOr(tables.phase, ptx.constant(1)));
    storeTables(ptx.add(ptx.mul(warp, 64), ptx.mul(lane, 2)), sums, tables.numbers, wholesOf(chunk, stage));
    Values wild;
    for (int64_t block = 0; block < 4 && !plan.isMild(); ++block) {
      Value lowest = arith::MinNumFOp::create(b, sums[2 * block], sums[2 * block + 1]);
      wild.push_back(ptx.choose(ptx.any(isWild(lowest)), ptx.constant(1), ptx.constant(0)));
    }
    if (!wild.empty())
      threads.when(ptx.equal(lane, 0), [&] { ptx.store(ptx.add(tables.wild, ptx.mul(warp, 16)), 0, wild); });
    if (form.sharesWalk()) // what decays in the chunk is copied to the team's other blocks
      ptx.fenceProxy();
    ptx.arrive(barrier(TablesFull, tables.index));
  });
}

// Waits for them: tables of the warp's own tokens, and whether these are wild.
void RoleEmitter::awaitTables(ScoreState &state) {
  Tables tables = tablesOf(state.chunk);
  ptx.await(barrier(TablesFull, tables.index), tables.phase);
  state.tables = tables.numbers;
  if (plan.isMild())
    return;
  Value wild = ptx.constant(0);
  for (int64_t other = 0; other < tableWarps(); ++other)
    wild = arith::OrIOp::create(
        b, wild, ptx.load(ptx.add(tables.wild, ptx.mul(warp, 4)), other * 16, 1, b.getI32Type())[0]);
  state.wild = ptx.compare(arith::CmpIPredicate::ne, wild, ptx.constant(0));
}

// The state's entries, with what decays in the chunk.
Values RoleEmitter::decayedWhole(Value chunk, const Stage &stage, ValueRange entries) {
  Values results(entries);
  Value at = ptx.add(wholesOf(chunk, stage), ptx.mul(ptx.bits(lane, 3), 8));
  for (size_t e = 0; e < results.size(); e += 4) {
    Values pair = ptx.loadFloats(at, e / 4 * 32, 2);
    for (size_t i = 0; i < 4; ++i)
      results[e + i] = ptx.multiply(results[e + i], pair[i % 2]);
  }
  return results;
}
