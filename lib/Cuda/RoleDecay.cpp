// A decay of each key, by warpgroups that share out the channels: each warp has 16 of the chunk's tokens, or
// of their micro-steps. Then what a token has is that of all its micro-steps, its decay counts at the first
// one, and what it reads is what the last one does.
//
// Logarithms are summed within the warp's tokens, by a product with a triangle of ones, which is exact as
// they have 16 bits. All else is relative to them: a token's row on the left of a product is multiplied with
// what has decayed since its block's middle, one on the right divided by that; what decays in between is
// multiplied into the rows on the right, once for each block that they are seen from. Where a block's decay
// is beyond f32's range, references are its start and its end, so that no exponent is positive, and what its
// tokens see of each other is computed apart (RoleWildDecay.cpp).
//
// Most of what a token sees is in its own block, where rows are tf32; further away they are bf16, or f16,
// which has no room for powers from the middle of a block on: there rows that see others are relative to its
// start.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleKeyWalk.h"
#include "lib/Cuda/Sequential.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

BlockArgument RoleEmitter::placeOf(const TokenTile &tile) const {
  return tile.span ? plan.madeOf(tile).place : tile.input;
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
    pairs.push_back(ptx.pack(low, entry(e + 1)));
  }
  return pairs;
}

static Values whenOr(ImplicitLocOpBuilder &b, Value condition, ValueRange otherwise,
                     llvm::function_ref<Values()> body) {
  auto choice = scf::IfOp::create(b, otherwise.getTypes(), condition, !otherwise.empty());
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  if (otherwise.empty())
    return body();
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

int64_t RoleEmitter::rightOffset(Value rows) const {
  int64_t which = llvm::find(plan.rights, rows) - plan.rights.begin();
  return which * (plan.keys / 64) * rightHalf;
}

// Rows on the right of products, times what decays until the blocks that see them. All warps compute what the
// first has to: it is what the others wait for, and branches would part what is before them from what
// follows.
void RoleEmitter::storeRights(ScoreState &state, Value right, ValueRange rows, int64_t block) {
  Value at = ptx.add(ownBlock(state, state.blocks, block, rightHalf), base), more = at;
  int64_t offset = rightsAt + rightOffset(right);
  auto store = [&](Value where, int64_t rowsAt, const ChannelPairs &numbers, unsigned which, int64_t last) {
    Values pairs = packed(ptx, [&](unsigned e) { return ptx.multiply(rows[e], numbers.of(which, e)); });
    ptx.storeMatrices(where, offset + rowsAt, pairs, false, ptx.below(warp, ptx.constant(last)));
  };
  ChannelPairs numbers = loadChannels(ptx, state.ownChannels, nearRights * 8 * plan.keys, block);
  store(more = ptx.add(more, state.warpRows), 0, numbers, 0, 3);
  store(ptx.add(more, state.warpRows), rightRows(0, 2), numbers, 1, 2);
  store(at, rightRows(0, 3), loadChannels(ptx, state.channels, farRight * 8 * plan.keys, block), 1, 1);
}

// A thread's entries of rows, in the order of the pairs that it has of the inputs.
Values RoleEmitter::rowsOf(Value rows, llvm::function_ref<ValueRange(BlockArgument)> pairs) {
  llvm::DenseMap<Value, Values> entries;
  for (BlockArgument leaf : RolePlan::leavesOf(rows))
    for (Value pair : pairs(leaf))
      llvm::append_range(entries[leaf], ptx.unpack(pair));
  Values results;
  for (unsigned e = 0; e < 8; ++e)
    results.push_back(vectorEntry(rows, [&](Value leaf) {
      auto known = entries.find(leaf);
      return known == entries.end() ? Value() : known->second[e];
    }));
  return results;
}

// What a block's tokens see of each other; the rows on the right of all products between tokens, and of those
// on the left what other blocks take; and the chain's tiles. One walk over the channels.
void RoleEmitter::weighRows(ScoreState &state) {
  llvm::SmallSetVector<Value, 4> rowsNeeded;
  // What a row on the right has decayed by has its token's own, unless that comes late.
  bool isLate = chunk::isLate(plan.decay), ownNeeded = false;
  Span ownSpan = isLate ? Span::Until : Span::Through;
  bool sumsNeeded[2] = {!isLate, isLate}; // with each token's own decay, and without
  // In blocks of fewer tokens than the warp has, what was at their starts has decayed since the warp's first;
  // in those of more, it has not since the first of them.
  bool isWithin = plan.starts() && *plan.starts() < tokensOfWarp;
  bool startsBefore = plan.starts() && *plan.starts() > tokensOfWarp;
  Value firstChannels;
  if (startsBefore)
    firstChannels = ptx.add(state.channels, ptx.mul(firstWarp(ptx, plan, warp), 8 * plan.keys));
  auto need = [&](Value rows, Span span) {
    rowsNeeded.insert(rows);
    if (span != Span::Rest && (span != Span::Start || isWithin))
      sumsNeeded[span != Span::Through] = true;
    ownNeeded |= span == ownSpan;
  };
  for (chunk::GramOp gram : plan.grams)
    need(plan.asRows(gram.getLhs())->rows(), plan.leftSpan(gram));
  for (const MadeTile &tile : plan.made)
    need(tile.rows, tile.span);
  rowsNeeded.insert(plan.rights.begin(), plan.rights.end());
  llvm::SmallSetVector<BlockArgument, 4> inputs;
  for (Value rows : rowsNeeded)
    for (BlockArgument leaf : RolePlan::leavesOf(rows))
      inputs.insert(leaf);
  SmallVector<Values> rowSums;
  if (walkersSum()) {
    rowSums.assign(plan.reductions.size(), Values(2, ptx.number(0)));
    for (Operation *sum : plan.reductions)
      for (BlockArgument leaf : RolePlan::leavesOf(sum->getOperand(0)))
        if (!plan.isOfParams(leaf))
          inputs.insert(leaf);
  }

  // What takes long until it is of use is loaded a block ahead, before anything of this one is stored.
  struct Fetched {
    llvm::DenseMap<BlockArgument, Values> pairs;
    LogSums sums[2];
  };
  auto pairsOf = [&](int64_t block) {
    llvm::DenseMap<BlockArgument, Values> pairs;
    for (BlockArgument input : inputs)
      pairs[input] = inputPairs(state, input, block, false);
    return pairs;
  };
  // Of many inputs, there are no registers for what is loaded ahead.
  bool isWide = inputs.size() > 3;
  auto fetch = [&](int64_t block) {
    Fetched result;
    LogPairs logs = logPairs(state, block);
    if (!isWide)
      result.pairs = pairsOf(block);
    for (bool before : {false, true})
      if (sumsNeeded[before])
        result.sums[before] = logSums(state, block, logs, before);
    return result;
  };
  Fetched next = fetch(0);
  for (int64_t block = 0; block < blocksOfWalker(); ++block) {
    Fetched now = std::move(next);
    if (isWide)
      now.pairs = pairsOf(block);
    if (!rowSums.empty())
      addToSums(state, block, rowSums, [&](BlockArgument input) { return ValueRange(now.pairs[input]); });
    // Rows, relative to their block's reference: of Rest for those on the right.
    llvm::DenseMap<unsigned, Values> weights;
    llvm::DenseMap<std::pair<Value, unsigned>, Values> known;
    ChannelPairs reference = loadChannels(ptx, state.ownChannels, references * 8 * plan.keys, block);
    ChannelPairs first = reference;
    if (startsBefore)
      first = loadChannels(ptx, firstChannels, references * 8 * plan.keys, block);
    auto powers = [&](Span span) {
      bool isRight = span == Span::Rest;
      LogSums sums = now.sums[(isRight ? ownSpan : span) != Span::Through];
      Values results;
      if (span == Span::Start && isWithin)
        sums = {ofFirstRows(ptx, plan, lane, sums.logs), ofFirstRows(ptx, plan, lane, sums.signs)};
      // (Else all of the warp's tokens have one start.)
      for (unsigned e = 0; e < 8 && span == Span::Start && !isWithin; ++e)
        results.push_back(ptx.exp2(first.of(0, e)));
      for (unsigned e = results.size(); e < 8; ++e) {
        Value log = LLVM::FMAOp::create(b, sums.logs[e],
                                        ptx.number(isRight ? -llvm::numbers::log2e : llvm::numbers::log2e),
                                        reference.of(isRight, e));
        results.push_back(withSign(ptx.exp2(log), sums.signs.empty() ? Value() : sums.signs[e]));
      }
      return results;
    };
    auto weigh = [&](Value rows, Span span) -> Values & {
      // On the right is mostly the inverse of what is on the left.
      bool isRight = span == Span::Rest;
      if (isRight && plan.isMild() && ownNeeded && weights[unsigned(ownSpan)].empty())
        weights[unsigned(ownSpan)] = powers(ownSpan);
      if (weights[unsigned(span)].empty()) {
        Values inverse = weights.lookup(unsigned(ownSpan));
        bool isInverse = isRight && plan.isMild() && !inverse.empty();
        for (Value &weight : inverse)
          weight = isInverse ? ptx.reciprocal(weight) : weight;
        weights[unsigned(span)] = isInverse ? inverse : powers(span);
      }
      Values &result = known[{rows, unsigned(span)}];
      if (result.empty()) {
        result = rowsOf(rows, [&](BlockArgument input) { return ValueRange(now.pairs[input]); });
        for (auto [entry, weight] : llvm::zip(result, weights[unsigned(span)]))
          entry = ptx.multiply(entry, weight);
      }
      return result;
    };
    // In f16 rows on the left are relative to the block's start: from its middle they might be too large.
    llvm::DenseMap<std::pair<unsigned, unsigned>, Value> starts;
    auto fromStart = [&](bool isFirst, unsigned e) {
      Value &start = starts[{isFirst, e}];
      if (!start)
        start = ptx.exp2(ptx.negative((isFirst ? first : reference).of(0, e)));
      return start;
    };
    // No warp reads another's rows of inputs, so tiles take their place.
    ChannelPairs scale = loadChannels(ptx, state.ownChannels, scales * 8 * plan.keys, block),
                 firstScale = scale;
    if (startsBefore)
      firstScale = loadChannels(ptx, firstChannels, scales * 8 * plan.keys, block);
    auto storeTiles = [&](Value rows, Span span) {
      for (const MadeTile &tile : plan.made)
        if (tile.rows == rows && tile.span == span) {
          Values own = weigh(rows, span);
          const ChannelPairs &factors = span == Span::Start ? firstScale : scale;
          Values pairs = packed(
              ptx, [&](unsigned e) { return ptx.multiply(own[e], factors.of(span == Span::Rest, e)); });
          int64_t offset = tileOffset(tile.place) + rowsBefore(tile) * rowBytes,
                  half = halfStride(tile.place);
          if (plan.isOfTokens(tile.rows))
            storeLast(
                state.lastRows, pairs,
                [&](Value place) {
                  return ptx.add(state.stage.tiles, ownBlock(state, blocksFrom(state, place), block, half));
                },
                offset);
          else
            ptx.storeMatrices(ownBlock(state, state.own, block, half), offset, pairs, false);
        }
    };
    for (Value rows : plan.rights)
      storeRights(state, rows, weigh(rows, Span::Rest), block);
    if (block + 1 < blocksOfWalker())
      next = fetch(block + 1);
    for (Value rows : rowsNeeded)
      storeTiles(rows, Span::Rest);
    for (Value rows : rowsNeeded)
      for (Span span : {Span::Until, Span::Through, Span::Start}) {
        for (chunk::GramOp gram : plan.grams) {
          if (plan.asRows(gram.getLhs())->rows() != rows || plan.leftSpan(gram) != span)
            continue;
          Values x = weigh(rows, span), y = weigh(plan.asRows(gram.getRhs())->rows(), Span::Rest);
          Values &lefts = state.lefts[{rows, unsigned(span)}];
          if (lefts.size() / 4 <= size_t(block))
            llvm::append_range(lefts, packed(ptx, [&](unsigned e) {
                                 return plan.isF16 ? ptx.multiply(x[e], fromStart(span == Span::Start, e))
                                                   : x[e];
                               }));
          Values &diagonal = state.diagonals[gram];
          Values start = diagonal.empty() ? Values(8, ptx.number(0)) : diagonal;
          // f16 has as many digits, and rounds.
          diagonal = span == Span::Start && !isWithin ? start
                     : plan.isF16 ? ptx.multiplyTf32(start, ptx.roundTf32(x), ptx.roundTf32(y))
                                  : ptx.multiplyTf32(start, x, y);
        }
        storeTiles(rows, span);
      }
  }
  storeRowSums(state, rowSums);
}

// What a warp's tokens see of the blocks before theirs, and of each other, goes to memory. Beside a chain,
// which waits for it, all warps go through all blocks side by side, as the last one has to: branches would
// part them. Then what a warp makes of blocks that are not before its own lies where what its tokens see of
// each other is stored last.
void RoleEmitter::seeBlocks(ScoreState &state) {
  Value parts = partsOfWarp(state), last = ptx.add(parts, ptx.mul(warp, 1024));
  auto isAfter = [&](int64_t column) { return ptx.below(ptx.constant(column), warp); };
  awaitParts(state);
  // (What looks at the start of a block of several warps sees as the first of them does.)
  auto startsBefore = [&](chunk::GramOp gram) {
    return gram.getReach() == Reach::Start && *plan.starts() > tokensOfWarp;
  };
  auto see = [&](int64_t column) {
    Value place = ptx.add(parts, column * 1024);
    if (form.walksBeside)
      place = ptx.add(parts, ptx.mul(arith::MinUIOp::create(b, warp, ptx.constant(column)), 1024));
    auto rightsOf = [&](Value warp) {
      Value rowsAt = ptx.constant(rightRows(column, 3));
      for (int64_t seer = 2; seer > column; --seer)
        rowsAt = ptx.choose(ptx.equal(warp, seer), ptx.constant(rightRows(column, seer)), rowsAt);
      return ptx.add(ptx.add(base, rightsAt), rowsAt);
    };
    Value at[2];
    for (chunk::GramOp gram : plan.grams)
      if (Value &own = at[startsBefore(gram)]; !own)
        own = rightsOf(startsBefore(gram) ? firstWarp(ptx, plan, warp) : warp);
    llvm::DenseMap<Operation *, Values> sums;
    for (int64_t block = 0; block < blocksOfWalker(); ++block) {
      llvm::DenseMap<Value, Values> rights[2];
      for (bool which : {false, true})
        for (Value rows : at[which] ? ArrayRef<Value>(plan.rights) : ArrayRef<Value>())
          rights[which][rows] = ptx.loadMatrices(
              ptx.add(at[which], ownBlock(state, state.blocks, block, rightHalf)), rightOffset(rows), false);
      for (chunk::GramOp gram : plan.grams) {
        Values &sum = sums[gram];
        ArrayRef<Value> lefts =
            state.lefts[{plan.asRows(gram.getLhs())->rows(), unsigned(plan.leftSpan(gram))}];
        sum = ptx.multiplyPacked(sum.empty() ? Values(8, ptx.number(0)) : sum, lefts.slice(4 * block, 4),
                                 rights[startsBefore(gram)][plan.asRows(gram.getRhs())->rows()]);
      }
    }
    Values results;
    for (chunk::GramOp gram : plan.grams)
      llvm::append_range(results, leavePart(state, gram, place, sums[gram]));
    return results;
  };
  SmallVector<Values> kept(4);
  Values none(4 * plan.grams.size(), ptx.number(0));
  for (int64_t column = 0; column < 3; ++column)
    kept[column] =
        form.walksBeside ? see(column) : whenOr(b, isAfter(column), none, [&] { return see(column); });
  for (chunk::GramOp gram : plan.grams)
    llvm::append_range(kept[3], leavePart(state, gram, last, state.diagonals[gram]));
  meetWalkers();
  if (form.walksBeside)
    return scoreBeside(state, kept);
  for (int64_t column = 0; column < 3; ++column)
    threads.when(isAfter(column), [&] { addPart(state, ptx.add(parts, column * 1024), kept[column]); });
  addPart(state, last, kept[3]);
  ptx.arrive(barrier(PartsFull, ptx.constant(0)));
}

void RoleEmitter::emitDecayed(ScoreState &state) {
  state.own.clear();
  state.rowsAt = form.sharesWalk() ? state.stage.walked : state.stage.tiles;
  for (Value block : state.blocks)
    state.own.push_back(ptx.add(ptx.add(state.rowsAt, state.warpRows), block));
  findTokens(state);
  if (plan.outlastRows())
    countRows(state);
  state.lefts.clear();
  state.diagonals.clear();
  if (tabulatesAhead()) {
    awaitTables(state);
  } else {
    if (plan.haveNumbersInLogs())
      ptx.await(barrier(walkersSum() ? KnownFull : Full, state.stage.index), state.stage.phase);
    state.tables = ptx.add(base, tablesAt);
    storeSums(state);
    ptx.meet(state.meeting, 128);
    makeTables(state);
    ptx.meet(state.meeting, 128);
  }
  state.channels = ptx.add(state.tables, ptx.mul(ptx.bits(lane, 3), 16));
  state.channels = ptx.add(state.channels, ptx.mul(state.walker, 128 * blocksOfWalker()));
  state.ownChannels = ptx.add(state.channels, ptx.mul(warp, 8 * plan.keys));
  // Who sums over rows has read them, so tiles may take their place.
  if (hasSums() || (phase == Phase::Prepare && !walkersSum()))
    ptx.await(barrier(Full, state.stage.index), state.stage.phase);
  // Inputs are read before tiles take their place, and sums that are seldom needed take no registers
  // meanwhile: they lie where the chunk's parts will, when those of the chunk before are of no more use.
  auto wildAt = [&](chunk::GramOp gram) { return partsAt(gram); };
  Value own = ptx.add(ptx.add(base, ptx.mul(thread, 16)), ptx.mul(state.walker, 4096));
  llvm::DenseMap<Operation *, Values> wildSums; // where parts have no place yet
  if (state.wild && partsInTables())
    for (chunk::GramOp gram : plan.grams)
      wildSums[gram] = whenOr(b, state.wild, Values(8, ptx.number(0)), [&] {
        describeRare(*b.getInsertionBlock());
        return wildDiagonal(state, gram);
      });
  else if (state.wild)
    threads.when(state.wild, [&] {
      describeRare(*b.getInsertionBlock());
      awaitParts(state);
      for (chunk::GramOp gram : plan.grams) {
        Values sums = wildDiagonal(state, gram);
        for (int64_t half : {0, 1})
          ptx.store(own, wildAt(gram) + half * 2048, ArrayRef(sums).slice(4 * half, 4));
      }
    });
  weighRows(state);
  if (tabulatesAhead() && !partsInTables())
    ptx.arrive(barrier(TablesEmpty, tablesOf(state.chunk).index));
  if (takesLogsAhead())
    ptx.arrive(barrier(LogsEmpty, ownPlace(state.chunk).first));
  for (chunk::GramOp gram : plan.grams) {
    Values &sums = state.diagonals[gram];
    if (state.wild)
      sums = whenOr(b, state.wild, sums, [&] {
        if (partsInTables())
          return wildSums[gram];
        Values stored = ptx.loadFloats(own, wildAt(gram), 4);
        llvm::append_range(stored, ptx.loadFloats(own, wildAt(gram) + 2048, 4));
        return stored;
      });
    // Bits that were cut off on both sides, on average.
    for (Value &sum : plan.isF16 ? MutableArrayRef<Value>() : MutableArrayRef<Value>(sums))
      sum = ptx.multiply(sum, ptx.number(1 + 0.7 / 1024));
  }
  // The rows on the right are read by other warps, and tiles may leave.
  ptx.fenceProxy();
  meetWalkers();
  threads.when(ptx.equal(ptx.add(ptx.mul(state.walker, 128), thread), 0), [&] {
    ptx.arrive(tilesFull(state.chunk, state.stage).first);
    if (form.sharesWalk())
      giveTiles(state.chunk, state.stage);
  });
  seeBlocks(state);
}

void RoleEmitter::awaitLogs(Value chunk) {
  auto [index, phase] = ownPlace(chunk);
  ptx.await(barrier(LogsFull, index), phase);
}

void RoleEmitter::awaitWalked(Value chunk) {
  auto [index, phase] = ownPlace(chunk);
  ptx.await(barrier(WalkLoaded, index), phase);
}

// Waits for a chunk's inputs, or for the logarithms alone; rows past the end are cleared first.
void RoleEmitter::awaitInputs(Value chunk, Stage stage, bool logsAlone) {
  if (takesLogsAhead())
    awaitLogs(chunk);
  if (!logsAlone || !takesLogsAhead())
    form.sharesWalk() ? awaitWalked(chunk) : ptx.await(barrier(Loaded, stage.index), stage.phase);
  threads.when(ptx.compare(arith::CmpIPredicate::slt, tokensLeft(chunk), ptx.constant(plan.tokens)),
               [&] { ptx.await(barrier(Cleared, ptx.constant(0)), ptx.constant(0)); });
}

// The warpgroups that share out the channels, the same code for all.
void RoleEmitter::emitWalk(Value chunks) {
  ScoreState state;
  Value row = ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2)), pair = ptx.mul(ptx.bits(lane, 3), 2);
  state.rowLessColumn = arith::SubIOp::create(b, row, pair);
  state.warpRows = ptx.mul(warp, 16 * 128);
  state.walker = ptx.add(group, -1);
  state.meeting = ptx.add(state.walker, 1);
  refreshBlocks(state);
  if (plan.abreast == 1)
    beginDecayed(state);
  forOwnChunks(chunks, [&](Value chunk, Stage stage) {
    state.chunk = chunk;
    state.stage = stage;
    awaitInputs(chunk, stage);
    if (plan.abreast > 1)
      KeyWalk(*this, state).emit();
    else
      emitDecayed(state);
  });
  // Rows have 16 bits, or few more, and logarithms are sums of numbers near them.
  for (Operation &op : *b.getInsertionBlock())
    op.walk(relax);
}
