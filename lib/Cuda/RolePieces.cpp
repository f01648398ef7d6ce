// The chain of rules whose values decay, as RoleRescaled.cpp has written them: what a chunk computes is
// relative to a reference in its middle, for each value.
//
// A chunk that decays further than f32 reaches is taken in pieces, each with its first token for a reference.
// All tokens before a piece's end go through the same products again, those before the piece as what is left
// of them by then, and tokens behind it count as zeros. A piece ends before the first token at which some
// value of the warpgroup has decayed too far; the last piece leaves the state.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleChain.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// How far a chunk may decay, and how far a piece, as binary logarithms: what tokens write is larger by half
// of that, or all of it, than it would be, and what the state was smaller.
static constexpr double mostOfChunk = 160, mostOfPiece = 100;

bool RolePlan::isMildChunk() const {
  RangeAttr range = rangeOf(rowLogs());
  return range && range.getLo() >= -mostOfChunk / (tokens * llvm::numbers::log2e);
}

// Sums the logarithms of a chunk.
RoleEmitter::Rescaling RoleEmitter::sumChunk(ChainState &state) {
  Rescaling own;
  Value last = arith::OrIOp::create(b, lane, ptx.constant(3));
  for (int64_t row : {0, 1})
    own.end[row] = ptx.number(0);
  for (int64_t step = 0; step < plan.columns / 16; ++step) {
    Values sums = blockSums(state, step);
    for (int64_t row : {0, 1}) {
      own.before[step][row] = own.end[row];
      own.end[row] = LLVM::FMAOp::create(b, ptx.shuffle(sums[5 + 2 * row], last),
                                         ptx.number(llvm::numbers::log2e), own.end[row]);
    }
  }
  return own;
}

// The same, from another token on than the chunk's first one.
void RoleEmitter::refer(Rescaling &own, Value first, Value second) {
  own.reference[0] = first, own.reference[1] = second;
  for (int64_t step = 0; step < plan.columns / 16; ++step)
    for (int64_t row : {0, 1})
      own.before[step][row] = ptx.difference(own.before[step][row], own.reference[row]);
}

// Binary logarithms of what decays from the reference to each token, or row.
Values RoleEmitter::relativeLogs(ChainState &state, bool ofTokens) {
  Values tokens, rows;
  for (int64_t step = 0; step < plan.columns / 16; ++step)
    for (auto [e, sum] : llvm::enumerate(blockSums(state, step)))
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
        Value own = ptx.shiftRight(ptx.add(ptx.mul(ptx.bits(lane, 3), 2), odd), llvm::Log2_64(plan.steps));
        own = ptx.add(own, token % 8);
        Value source = ptx.add(ptx.bits(lane, 28), ptx.shiftRight(own, 1));
        ArrayRef<Value> two = ArrayRef(tokens).slice(token / 8 * 4 + 2 * row, 2);
        rows.push_back(ptx.choose(ptx.equal(ptx.bits(own, 1), 1), ptx.shuffle(two[1], source),
                                  ptx.shuffle(two[0], source)));
      }
  }
  return rows;
}

// Entries of tokens, or rows, times what decays from the reference to them, or divided by it.
Values RoleEmitter::rescaled(ChainState &state, ValueRange entries, bool divides) {
  Values results;
  bool ofTokens = isOfTokens(entries);
  for (auto [e, log] : llvm::enumerate(relativeLogs(state, ofTokens))) {
    Value weight = ptx.exp2(divides ? ptx.negative(log) : log);
    if (state.isPiece())
      weight = ptx.choose(divides ? isBefore(state, e, ofTokens) : isOfPiece(state, e, ofTokens), weight,
                          ptx.number(0));
    results.push_back(ptx.multiply(entries[e], weight));
  }
  return results;
}

// The state's entries, a row's times a power of two.
Values RoleEmitter::timesPower(ValueRange entries, Value first, Value second) {
  Value factors[2] = {ptx.exp2(first), ptx.exp2(second)};
  Values results;
  for (auto [e, entry] : llvm::enumerate(entries))
    results.push_back(ptx.multiply(entry, factors[e / 2 % 2]));
  return results;
}

FailureOr<Values> RoleEmitter::emitRescaled(ChainState &state, Value chunk, ValueRange entries) {
  ptx.await(barrier(Full, state.stage.index), state.stage.phase);
  Rescaling own = sumChunk(state);
  auto whole = [&]() -> FailureOr<Values> {
    state.rescaling = own;
    Value half[2], rest[2];
    for (int64_t row : {0, 1}) {
      half[row] = ptx.multiply(own.end[row], ptx.number(0.5));
      rest[row] = ptx.difference(own.end[row], half[row]);
    }
    refer(*state.rescaling, half[0], half[1]);
    FailureOr<Values> next = emitChunkOf(state, chunk, timesPower(entries, half[0], half[1]));
    return failed(next) ? next : FailureOr<Values>(timesPower(*next, rest[0], rest[1]));
  };
  if (plan.isMildChunk())
    return whole();
  auto isFar = [&](int64_t row) {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, own.end[row], ptx.number(-mostOfChunk));
  };
  Value isWild =
      ptx.meetForAny(outputsMeet(), ptx.constant(128), arith::OrIOp::create(b, isFar(0), isFar(1)));
  auto choice = scf::IfOp::create(b, entries.getTypes(), isWild, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  describeRare(*choice.thenBlock());
  FailureOr<Values> inPieces = emitPieces(state, own, chunk, entries);
  scf::YieldOp::create(b, failed(inPieces) ? Values(entries) : *inPieces);
  b.setInsertionPointToStart(choice.elseBlock());
  FailureOr<Values> atOnce = whole();
  scf::YieldOp::create(b, failed(atOnce) ? Values(entries) : *atOnce);
  if (failed(inPieces) || failed(atOnce))
    return failure();
  return Values(choice.getResults());
}

//===----------------------------------------------------------------------===//
// Pieces
//===----------------------------------------------------------------------===//

// The token, in its chunk, of one of a thread's entries.
Value RoleEmitter::tokenOf(size_t entry, bool ofTokens) {
  int64_t block = entry / 8, half = entry / 4 % 2;
  Value two = ptx.add(ptx.mul(ptx.bits(lane, 3), 2), entry % 2);
  if (!ofTokens && plan.isStacked())
    return ptx.add(two, 8 * block);
  Value row = ptx.add(two, 16 * block + 8 * half);
  return ofTokens ? row : ptx.shiftRight(row, llvm::Log2_64(plan.steps));
}

Value RoleEmitter::isOfPiece(const ChainState &state, size_t entry, bool ofTokens) {
  const Rescaling &own = *state.rescaling;
  auto since = [&](Value token) { return arith::SubIOp::create(b, token, own.first); };
  return ptx.below(since(tokenOf(entry, ofTokens)), since(own.behind));
}

// Whether its token comes before the piece's end.
Value RoleEmitter::isBefore(const ChainState &state, size_t entry, bool ofTokens) {
  return ptx.below(tokenOf(entry, ofTokens), state.rescaling->behind);
}

// Entries of a left side whose tokens are summed over.
Values RoleEmitter::ofPiece(const ChainState &state, ValueRange entries) {
  Values results;
  for (auto [e, entry] : llvm::enumerate(entries))
    results.push_back(ptx.choose(isBefore(state, e, isOfTokens(entries)), entry, ptx.number(0)));
  return results;
}

// A row's entry at a token.
Value RoleEmitter::entryAt(ValueRange entries, Value token, int64_t row) {
  Value found = ptx.number(0);
  for (auto [e, entry] : llvm::enumerate(entries))
    if (int64_t(e / 2 % 2) == row)
      found = ptx.choose(arith::CmpIOp::create(b, arith::CmpIPredicate::eq, tokenOf(e, true), token), entry,
                         found);
  for (int64_t distance : {1, 2})
    found = ptx.sum(found, ptx.shuffle(found, ptx.exclusiveOr(lane, ptx.constant(distance))));
  return found;
}

// The token that is not of a piece any more, for all rows of the warpgroup.
Value RoleEmitter::behindPiece(ValueRange logs, Value first, ArrayRef<Value> ofFirst) {
  Value least = ptx.constant(plan.columns);
  auto take = [&](Value token, Value when) { least = ptx.choose(when, token, least); };
  for (auto [e, log] : llvm::enumerate(logs)) {
    Value token = tokenOf(e, true), decayed = ptx.difference(log, ofFirst[e / 2 % 2]);
    Value isFar = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, decayed, ptx.number(-mostOfPiece));
    isFar = arith::AndIOp::create(b, isFar, ptx.below(first, token));
    take(token, arith::AndIOp::create(b, isFar, ptx.below(token, least)));
  }
  for (int64_t distance = 16; distance; distance /= 2) {
    Value other = ptx.shuffle(least, ptx.exclusiveOr(lane, ptx.constant(distance)));
    take(other, ptx.below(other, least));
  }
  // The least of four warps, bit by bit.
  Value result = ptx.constant(0), isLeast = ptx.constant(1, 1);
  for (int64_t bit = tokensOfChunk; bit; bit /= 2) {
    Value isLess = arith::AndIOp::create(b, isLeast, ptx.equal(ptx.bits(least, bit), 0));
    Value any = ptx.meetForAny(outputsMeet(), ptx.constant(128), isLess);
    isLeast = ptx.choose(any, isLess, isLeast);
    result = ptx.add(result, ptx.choose(any, ptx.constant(0), ptx.constant(bit)));
  }
  return result;
}

FailureOr<Values> RoleEmitter::emitPieces(const ChainState &given, const Rescaling &own, Value chunk,
                                          ValueRange entries) {
  int64_t pairs = plan.rowsOfOutput() / 4;
  Values inits{ptx.constant(0)};
  llvm::append_range(inits, entries);
  inits.append(plan.countOutputs() * pairs, ptx.constant(0));
  ChainState after = given;
  LogicalResult status = success();
  auto piece = [&](Value first, ValueRange outputs) {
    ChainState state = given;
    state.rescaling = own;
    Values logs = relativeLogs(state, /*ofTokens=*/true);
    Value ofFirst[2] = {entryAt(logs, first, 0), entryAt(logs, first, 1)}, rest[2];
    Value behind = behindPiece(logs, first, ofFirst);
    for (int64_t row : {0, 1})
      rest[row] = ptx.difference(own.end[row], ofFirst[row]);
    refer(*state.rescaling, ofFirst[0], ofFirst[1]);
    state.rescaling->first = first, state.rescaling->behind = behind;
    FailureOr<Values> next = emitChunkOf(state, chunk, timesPower(entries, ofFirst[0], ofFirst[1]));
    if (failed(next)) {
      status = failure();
      next = Values(entries);
    }
    after.waitedForScores = state.waitedForScores;
    Values results{behind};
    llvm::append_range(results, timesPower(*next, rest[0], rest[1]));
    for (auto [i, output] : llvm::enumerate(outputs)) {
      Value mask = ptx.constant(0);
      for (int64_t odd : {0, 1})
        mask = ptx.add(mask, ptx.choose(isOfPiece(state, i % pairs * 2 + odd, !plan.rowOutputs),
                                        ptx.constant(odd ? int32_t(0xffff0000) : 0xffff), ptx.constant(0)));
      Value made = arith::AndIOp::create(b, failed(status) ? output : state.outputs[i], mask);
      Value others = arith::AndIOp::create(b, output, ptx.exclusiveOr(mask, ptx.constant(-1)));
      results.push_back(arith::OrIOp::create(b, made, others));
    }
    return results;
  };
  auto loop = scf::WhileOp::create(
      b, ValueRange(inits).getTypes(), inits,
      [&](OpBuilder &, Location, ValueRange values) {
        scf::ConditionOp::create(b, ptx.below(values[0], ptx.constant(plan.columns)), values);
      },
      [&](OpBuilder &, Location, ValueRange values) {
        scf::YieldOp::create(b, piece(values[0], values.drop_front(1 + entries.size())));
      });
  if (failed(status))
    return failure();
  Values results(loop.getResults());
  if (plan.countOutputs())
    storeOutputs(after, ArrayRef(results).drop_front(1 + entries.size()));
  if (earlyPlaces && plan.waves > 1)
    ptx.arrive(barrier(EarlyEmpty, earlyOf(chunk).first));
  leaveChunk(after);
  return Values(ArrayRef(results).slice(1, entries.size()));
}
