// The chain of rules whose values decay, as RoleRescaled.cpp has written them: what a chunk computes is
// relative to a reference in its middle, for each value.
//
// A chunk that decays further than f32 reaches is taken in pieces, each with a reference of its own:
// all tokens go through the same products again, but what they are multiplied with is zero outside the piece.
// A piece ends before the first token at which some value of the warpgroup has decayed too far.
#include "lib/Cuda/RolePieces.h"
#include "lib/Cuda/Count.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// How far a chunk, or a piece, may decay, as a binary logarithm: what tokens write is larger by half of that
// than it would be, and what the state was smaller.
static constexpr double mostOfChunk = 180;

bool RolePlan::isMildChunk() const {
  RangeAttr range = rangeOf(rowLogs());
  return range && range.getLo() >= -mostOfChunk / (tokens * llvm::numbers::log2e);
}

// Sums the logarithms of a chunk.
RoleEmitter::Rescaling RoleEmitter::Pieces::sumChunk() {
  Rescaling own;
  Value last = arith::OrIOp::create(b, roles.lane, ptx.constant(3));
  for (int64_t row : {0, 1})
    own.end[row] = ptx.number(0);
  for (int64_t step = 0; step < plan.columns / 16; ++step) {
    Values sums = roles.blockSums(state, step);
    for (int64_t row : {0, 1}) {
      own.before[step][row] = own.end[row];
      own.end[row] = LLVM::FMAOp::create(b, ptx.shuffle(sums[5 + 2 * row], last),
                                         ptx.number(llvm::numbers::log2e), own.end[row]);
    }
  }
  return own;
}

// The same, from another token on than the chunk's first one.
void RoleEmitter::Pieces::refer(Rescaling &own, Value first, Value second) {
  for (int64_t step = 0; step < plan.columns / 16; ++step)
    for (int64_t row : {0, 1})
      own.before[step][row] = ptx.difference(own.before[step][row], row ? second : first);
}

// Binary logarithms of what decays from the reference to each token, or row.
Values RoleEmitter::Pieces::relativeLogs(bool ofTokens) {
  Values tokens, rows;
  for (int64_t step = 0; step < plan.columns / 16; ++step)
    for (auto [e, sum] : llvm::enumerate(roles.blockSums(state, step)))
      tokens.push_back(LLVM::FMAOp::create(b, sum, ptx.number(llvm::numbers::log2e),
                                           state.rescaling->before[step][e / 2 % 2]));
  if (ofTokens || plan.steps == 1)
    return tokens;
  for (int64_t first = 0; first < tokensOfChunk; first += 8) {
    // By eights, the next eight are the same tokens'.
    if (plan.isStacked()) {
      llvm::append_range(rows, ArrayRef(tokens).slice(first / 16 * 4, 4));
      continue;
    }
    // Eight rows are 8 / steps tokens, which other threads of the four may have.
    int64_t token = first / plan.steps;
    for (int64_t row : {0, 1})
      for (int64_t odd : {0, 1}) {
        Value own =
            ptx.shiftRight(ptx.add(ptx.mul(ptx.bits(roles.lane, 3), 2), odd), llvm::Log2_64(plan.steps));
        own = ptx.add(own, token % 8);
        Value source = ptx.add(ptx.bits(roles.lane, 28), ptx.shiftRight(own, 1));
        ArrayRef<Value> two = ArrayRef(tokens).slice(token / 8 * 4 + 2 * row, 2);
        rows.push_back(ptx.choose(ptx.equal(ptx.bits(own, 1), 1), ptx.shuffle(two[1], source),
                                  ptx.shuffle(two[0], source)));
      }
  }
  return rows;
}

// Entries of tokens, or rows, times what decays from the reference to them, or divided by it.
Values RoleEmitter::Pieces::rescaled(ValueRange entries, bool divides) {
  Values results;
  bool ofTokens = roles.isOfTokens(entries);
  for (auto [entry, log] : llvm::zip(entries, relativeLogs(ofTokens)))
    results.push_back(ptx.multiply(entry, ptx.exp2(divides ? ptx.negative(log) : log)));
  return state.isPiece() ? ofPiece(results) : results;
}

// The state's entries, a row's times a power of two.
Values RoleEmitter::Pieces::timesPower(ValueRange entries, Value first, Value second) {
  Value factors[2] = {ptx.exp2(first), ptx.exp2(second)};
  Values results;
  for (auto [e, entry] : llvm::enumerate(entries))
    results.push_back(ptx.multiply(entry, factors[e / 2 % 2]));
  return results;
}

FailureOr<Values> RoleEmitter::Pieces::emit(Value chunk, ValueRange entries) {
  ptx.await(roles.barrier(Full, state.stage.index), state.stage.phase);
  Rescaling own = sumChunk();
  auto whole = [&]() -> FailureOr<Values> {
    state.rescaling = own;
    Value half[2], rest[2];
    for (int64_t row : {0, 1}) {
      half[row] = ptx.multiply(own.end[row], ptx.number(0.5));
      rest[row] = ptx.difference(own.end[row], half[row]);
    }
    refer(*state.rescaling, half[0], half[1]);
    FailureOr<Values> next = roles.emitChunkOf(state, chunk, timesPower(entries, half[0], half[1]));
    return failed(next) ? next : FailureOr<Values>(timesPower(*next, rest[0], rest[1]));
  };
  if (plan.isMildChunk())
    return whole();
  auto isFar = [&](int64_t row) {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, own.end[row], ptx.number(-mostOfChunk));
  };
  Value isWild =
      ptx.meetForAny(roles.outputsMeet(), ptx.constant(128), arith::OrIOp::create(b, isFar(0), isFar(1)));
  SmallVector<Type> types(entries.getTypes());
  types.push_back(b.getI32Type());
  auto choice = scf::IfOp::create(b, types, isWild, true);
  OpBuilder::InsertionGuard guard(b);
  LogicalResult status = success();
  auto fill = [&](Block *block, const FailureOr<Values> &next, Value behind) {
    status = success(succeeded(status) && succeeded(next));
    Values results = succeeded(next) ? *next : Values(entries);
    results.push_back(behind);
    scf::YieldOp::create(b, results);
  };
  b.setInsertionPointToStart(choice.thenBlock());
  describeRare(*choice.thenBlock());
  ChainState piece = state;
  piece.rescaling = own;
  FailureOr<Values> inPart = Pieces(roles, piece).emitPiece(chunk, entries);
  fill(choice.thenBlock(), inPart, piece.rescaling->behind);
  b.setInsertionPointToStart(choice.elseBlock());
  FailureOr<Values> atOnce = whole();
  fill(choice.elseBlock(), atOnce, ptx.constant(plan.columns));
  state.behind = choice.getResults().back();
  if (failed(status))
    return failure();
  return Values(choice.getResults().drop_back());
}

Values RoleEmitter::Pieces::overChunks(RoleEmitter &roles, Value chunks, ValueRange carried, Body body) {
  ImplicitLocOpBuilder &b = roles.b;
  Ptx &ptx = roles.ptx;
  Value zero = ptx.constant(0);
  Values inits{zero, zero, zero, zero};
  llvm::append_range(inits, carried);
  auto loop = scf::WhileOp::create(
      b, ValueRange(inits).getTypes(), inits,
      [&](OpBuilder &, Location, ValueRange values) {
        scf::ConditionOp::create(b, ptx.below(values[0], chunks), values);
      },
      [&](OpBuilder &, Location, ValueRange values) {
        Value chunk = values[0];
        Stage stage = roles.stageAt(values[1], values[2], chunk);
        auto [behind, results] = body(chunk, stage, values[3], values.drop_front(4));
        Value isDone = ptx.compare(arith::CmpIPredicate::uge, behind, ptx.constant(roles.plan.columns));
        Value next = ptx.add(stage.index, 1), wraps = ptx.equal(next, roles.stages);
        Value phase = ptx.choose(wraps, ptx.exclusiveOr(stage.phase, ptx.constant(1)), stage.phase);
        Values yielded{ptx.choose(isDone, ptx.add(chunk, 1), chunk),
                       ptx.choose(isDone, ptx.choose(wraps, zero, next), stage.index),
                       ptx.choose(isDone, phase, stage.phase), ptx.choose(isDone, zero, behind)};
        llvm::append_range(yielded, results);
        scf::YieldOp::create(b, yielded);
      });
  describeAgain(loop);
  return Values(loop.getResults().drop_front(4));
}

//===----------------------------------------------------------------------===//
// Pieces
//===----------------------------------------------------------------------===//

// The token, in its chunk, of one of a thread's entries.
Value RoleEmitter::Pieces::tokenOf(Value lane, size_t entry, bool ofTokens) {
  int64_t block = entry / 8, half = entry / 4 % 2;
  Value two = ptx.mul(ptx.bits(lane, 3), 2);
  if (!ofTokens && plan.isStacked())
    return ptx.add(two, 8 * block + entry % 2);
  Value row = ptx.add(two, 16 * block + 8 * half + entry % 2);
  return ofTokens ? row : ptx.shiftRight(row, llvm::Log2_64(plan.steps));
}

// Which of a thread's entries are tokens of the piece. Asked for anew each time, so that the answers take no
// registers between.
Values RoleEmitter::Pieces::holds(size_t count, bool ofTokens) {
  auto fresh = [&](Value value) { return ptx.assembly("mov.b32 $0, $1;", b.getI32Type(), value)[0]; };
  Value first = fresh(state.first), lane = roles.freshLane();
  Value tokens = arith::SubIOp::create(b, fresh(state.rescaling->behind), first);
  Values results;
  for (size_t e = 0; e < count; ++e)
    results.push_back(ptx.below(arith::SubIOp::create(b, tokenOf(lane, e, ofTokens), first), tokens));
  return results;
}

// Entries, those of other tokens as zeros.
Values RoleEmitter::Pieces::ofPiece(ValueRange entries) {
  Values results;
  Values isHeld = holds(entries.size(), roles.isOfTokens(entries) || plan.steps == 1);
  for (auto [entry, held] : llvm::zip(entries, isHeld))
    results.push_back(ptx.choose(held, entry, ptx.number(0)));
  return results;
}

void RoleEmitter::Pieces::store(Value at, int64_t offset, ValueRange holds, ValueRange pairs) {
  Values merged = ptx.loadMatrices(at, offset, true);
  Value zero = ptx.constant(0);
  for (auto [i, pair] : llvm::enumerate(merged)) {
    Value mask = ptx.add(ptx.choose(holds[2 * i], ptx.constant(0xffff), zero),
                         ptx.choose(holds[2 * i + 1], ptx.constant(int32_t(0xffff0000)), zero));
    Value stays = arith::AndIOp::create(b, pair, ptx.exclusiveOr(mask, ptx.constant(-1)));
    pair = arith::OrIOp::create(b, arith::AndIOp::create(b, pairs[i], mask), stays);
  }
  ptx.storeMatrices(at, offset, merged, true);
}

// A row's entry at a token, of which there is none before the chunk.
Value RoleEmitter::Pieces::entryAt(ValueRange entries, Value token, int64_t row) {
  Value found = ptx.number(0);
  for (auto [e, entry] : llvm::enumerate(entries))
    if (int64_t(e / 2 % 2) == row)
      found = ptx.choose(ptx.compare(arith::CmpIPredicate::eq, tokenOf(roles.lane, e, true), token), entry,
                         found);
  for (int64_t distance : {1, 2})
    found = ptx.sum(found, ptx.exchange(found, distance));
  return found;
}

// The token that is not of a piece any more, for all rows of the warpgroup.
Value RoleEmitter::Pieces::behindPiece(ValueRange logs, Value first, ArrayRef<Value> ofFirst) {
  Value least = ptx.constant(plan.columns);
  auto take = [&](Value token, Value when) { least = ptx.choose(when, token, least); };
  for (auto [e, log] : llvm::enumerate(logs)) {
    Value token = tokenOf(roles.lane, e, true), decayed = ptx.difference(log, ofFirst[e / 2 % 2]);
    Value isFar = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, decayed, ptx.number(-mostOfChunk));
    isFar = arith::AndIOp::create(b, isFar, ptx.below(first, token));
    take(token, arith::AndIOp::create(b, isFar, ptx.below(token, least)));
  }
  for (int64_t distance = 16; distance; distance /= 2) {
    Value other = ptx.exchange(least, distance);
    take(other, ptx.below(other, least));
  }
  // The least of four warps, bit by bit.
  Value result = ptx.constant(0), isLeast = ptx.constant(1, 1);
  for (int64_t bit = tokensOfChunk; bit; bit /= 2) {
    Value isLess = arith::AndIOp::create(b, isLeast, ptx.equal(ptx.bits(least, bit), 0));
    Value any = ptx.meetForAny(roles.outputsMeet(), ptx.constant(128), isLess);
    isLeast = ptx.choose(any, isLess, isLeast);
    result = ptx.add(result, ptx.choose(any, ptx.constant(0), ptx.constant(bit)));
  }
  return result;
}

// One piece of a chunk; the chunk's places are given back after the last one.
FailureOr<Values> RoleEmitter::Pieces::emitPiece(Value chunk, ValueRange entries) {
  Rescaling &own = *state.rescaling;
  Value first = state.first;
  Values logs = relativeLogs(/*ofTokens=*/true);
  Value before[2], middle[2], rest[2], ofFirst[2] = {entryAt(logs, first, 0), entryAt(logs, first, 1)};
  Value behind = behindPiece(logs, first, ofFirst);
  for (int64_t row : {0, 1}) {
    Value last = entryAt(logs, ptx.add(behind, -1), row);
    middle[row] = ptx.multiply(ptx.sum(ofFirst[row], last), ptx.number(0.5));
    before[row] = ptx.difference(middle[row], entryAt(logs, ptx.add(first, -1), row));
    rest[row] = ptx.difference(last, middle[row]);
  }
  refer(own, middle[0], middle[1]);
  own.behind = behind;
  FailureOr<Values> next = roles.emitChunkOf(state, chunk, timesPower(entries, before[0], before[1]));
  if (failed(next))
    return failure();
  roles.threads.when(ptx.compare(arith::CmpIPredicate::uge, behind, ptx.constant(plan.columns)), [&] {
    if (plan.countOutputs())
      roles.leaveOutputs(state);
    if (roles.earlyPlaces && plan.waves > 1)
      ptx.arrive(roles.barrier(EarlyEmpty, roles.earlyOf(chunk).first));
    roles.leaveChunk(state);
  });
  return timesPower(*next, rest[0], rest[1]);
}
