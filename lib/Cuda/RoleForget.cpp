// Where a segment of a sequence begins so that all before that is forgotten: its decays, of which each
// multiplies the state or makes it smaller still, leave less than rounding does.
#include "lib/Cuda/Roles.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The binary logarithm of what may be left of a state: less than f32 keeps of one that is 2^16 times larger
// than what came after it.
constexpr double forgotten = -40;
// Chunks that a segment may begin early where processors get several blocks, and of how many segments a block
// can tell.
constexpr int64_t mostFew = 4, mostCuts = 3;

Part RoleEmitter::find(TensorAccess &access) {
  int64_t grain = phase == Phase::Whole || (phase == Phase::Chain && !form.forgets) ? 0 : plan.tokens;
  BlockOrder order = endsWithFirst()                            ? BlockOrder::LastFirst
                     : form.isEarly() || phase == Phase::Passed ? BlockOrder::InTurn
                                                                : BlockOrder::OfSequence;
  Value block = phase == Phase::Passed ? numberOfBlock() : Value();
  if (!hasBegin)
    return findPart(threads, access, shards, plan.independent, grain, order, {}, block);
  // Read from where it was left, so that it takes no registers.
  Values begin = ptx.load(ptx.add(base, beginAt), 0, 2, b.getI32Type());
  Value later = arith::ExtSIOp::create(b, b.getI64Type(), ptx.mul(begin[0], plan.tokens));
  Part found = findPart(threads, access, shards, plan.independent, grain, order, later);
  if (form.isEarly()) {
    Value isWhole = ptx.equal(begin[1], 1), isFirst = ptx.equal(found.segment, 0);
    found.tokens = ptx.choose(isWhole, ptx.choose(isFirst, found.all, ptx.constant(0, 64)), found.tokens);
    found.isLast = ptx.choose(isWhole, isFirst, found.isLast);
  }
  return found;
}

// The sequence from its first token on.
Part RoleEmitter::findFromStart(TensorAccess &access) {
  TensorAccess segment(threads, call, plan.tensors, /*packed=*/true);
  Part own = find(segment);
  Value back = arith::SubIOp::create(b, ptx.constant(0, 64), own.before);
  Part whole = findPart(threads, access, shards, plan.independent, plan.tokens, BlockOrder::InTurn, back);
  whole.tokens = whole.all;
  return whole;
}

// Each warp leaves the logarithm of its chunk's decay in shared memory; 0 for chunks before the first.
void RoleEmitter::sumDecays(TensorAccess &access, Value chunk) {
  Value zero = ptx.constant(0), own = ptx.add(ptx.mul(group, 4), warp);
  Value sum = decayOfChunk(access, arith::MaxSIOp::create(b, chunk, zero));
  sum = ptx.choose(ptx.compare(arith::CmpIPredicate::slt, chunk, zero), ptx.number(0), sum);
  threads.when(ptx.equal(lane, 0),
               [&] { ptx.store(ptx.add(ptx.add(base, slotsAt), ptx.mul(own, 4)), 0, {sum}); });
  NVVM::Barrier0Op::create(b);
}

// The binary logarithm of what a chunk leaves of that value which decays least, of those of a team, whose
// blocks begin together. A lane sums those of each thirty-second pair of values.
Value RoleEmitter::slowestValue(TensorAccess &access, Value chunk) {
  constexpr int64_t together = 8;
  unsigned tensor = plan.tensorOf(plan.rowLogs());
  int64_t inMemory = plan.tensors[tensor].inMemory[0];
  Value first = arith::ExtUIOp::create(b, b.getI64Type(), ptx.mul(numberOf(chunk), plan.tokens));
  Value left = arith::SubIOp::create(b, part.tokens, first), one = ptx.constant(1), zero = ptx.constant(0);
  Value back = ptx.mul(rank(), plan.independent), none = ptx.number(0), most = ptx.number(-3e38);
  Value before = arith::TruncIOp::create(b, b.getI32Type(), part.shard);
  before = arith::SubIOp::create(b, ptx.mul(before, plan.independent), back);
  for (int64_t i = 0; i < team * plan.independent; i += 64) {
    Value pair = ptx.add(ptx.mul(lane, 2), i), exists;
    if (inMemory) {
      exists = ptx.below(ptx.add(before, pair), ptx.constant(inMemory));
      pair = ptx.choose(exists, pair, zero);
    }
    Value rounds = ptx.constant(plan.tokens / together);
    auto loop = threads.forLoop(zero, rounds, one, Values{none, none}, [&](Value round, ValueRange sums) {
      Values next(sums);
      for (int64_t more = 0; more < together; ++more) {
        Value local = ptx.add(ptx.mul(round, together), more);
        local = arith::ExtUIOp::create(b, b.getI64Type(), local);
        // Past the end the chunk's first token is read, and dropped.
        Value isToken = ptx.compare(arith::CmpIPredicate::slt, local, left);
        Value token = ptx.add(first, ptx.choose(isToken, local, ptx.constant(0, 64)));
        Value at = access.entryOfToken(tensor, token, pair);
        at = LLVM::GEPOp::create(b, at.getType(), plan.tensors[tensor].element, at,
                                 ValueRange{arith::SubIOp::create(b, zero, back)});
        Value both = LLVM::LoadOp::create(b, b.getI32Type(), at);
        for (auto [sum, log] : llvm::zip(next, ptx.unpack(ptx.choose(isToken, both, zero))))
          sum = ptx.sum(sum, log);
      }
      return next;
    });
    Value slowest = arith::MaximumFOp::create(b, loop.getResult(0), loop.getResult(1));
    most = arith::MaximumFOp::create(b, most, exists ? ptx.choose(exists, slowest, most) : slowest);
  }
  for (int64_t distance = 1; distance < 32; distance *= 2)
    most = arith::MaximumFOp::create(b, most, ptx.exchange(most, distance));
  return ptx.multiply(most, ptx.number(llvm::numbers::log2e));
}

static Value isForgotten(Ptx &ptx, Value sum) {
  return arith::CmpFOp::create(ptx.b, arith::CmpFPredicate::OLE, sum, ptx.number(forgotten));
}

// Adds up logarithms of chunks, round by round, until all before is forgotten: the sum, and how many they
// are. A round is not begun where nothing is left.
static std::pair<Value, Value> sumRounds(Threads &threads, Ptx &ptx, Value rounds,
                                         llvm::function_ref<Values(Value round)> logsOf) {
  OpBuilder &b = ptx.b;
  Values first{ptx.number(0), ptx.constant(0)};
  auto body = [&](Value round, ValueRange carried) {
    SmallVector<Type> types{b.getF32Type(), b.getI32Type()};
    auto choice = scf::IfOp::create(ptx.b, types, isForgotten(ptx, carried[0]), true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    scf::YieldOp::create(ptx.b, carried);
    b.setInsertionPointToStart(choice.elseBlock());
    Value sum = carried[0], count = carried[1];
    for (Value log : logsOf(round)) {
      Value found = isForgotten(ptx, sum);
      count = ptx.choose(found, count, ptx.add(count, 1));
      sum = ptx.choose(found, sum, ptx.sum(sum, log));
    }
    scf::YieldOp::create(ptx.b, ValueRange{sum, count});
    return Values(choice.getResults());
  };
  auto loop = threads.forLoop(ptx.constant(0), rounds, ptx.constant(1), first, body);
  return {loop.getResult(0), loop.getResult(1)};
}

// How many chunks before `end`, a number of chunks of the part, forget what was before them; more than `most`
// where so many do not. Each warp looks at a chunk; all threads of the block get the answer.
Value RoleEmitter::countToForget(TensorAccess &access, Value end, Value most) {
  int64_t warps = threads.grid.threads / 32;
  Value own = ptx.add(ptx.mul(group, 4), warp), sums = ptx.add(base, slotsAt);
  Value rounds = arith::DivUIOp::create(b, ptx.add(most, warps - 1), ptx.constant(warps));
  auto [sum, count] = sumRounds(threads, ptx, rounds, [&](Value round) {
    sumDecays(access, arith::SubIOp::create(b, ptx.add(end, -1), ptx.add(ptx.mul(round, warps), own)));
    Values logs;
    for (int64_t i = 0; i < warps; ++i)
      logs.push_back(ptx.loadFloats(sums, i * 4, 1)[0]);
    NVVM::Barrier0Op::create(b);
    return logs;
  });
  return ptx.choose(isForgotten(ptx, sum), count, ptx.add(most, 1));
}

// The same where what is added does not depend on the state: each thread looks after a key, and records tell
// what a chunk leaves of it.
Value RoleEmitter::countToForgetKeys(Value end, Value most) {
  constexpr int64_t together = 8;
  // There are no tiles yet.
  Value own = ptx.add(ptx.mul(group, 128), thread), zero = ptx.constant(0), counts = base;
  Value isKey = ptx.below(own, ptx.constant(plan.keysInMemory()));
  Value rounds = ptx.choose(isKey, arith::CeilDivUIOp::create(b, most, ptx.constant(together)), zero);
  auto [sum, found] = sumRounds(threads, ptx, rounds, [&](Value round) {
    Values logs;
    for (int64_t i = 0; i < together; ++i) {
      Value chunk = arith::SubIOp::create(b, end, ptx.add(ptx.mul(round, together), i + 1));
      Value record = recordAt(arith::MaxSIOp::create(b, chunk, zero));
      Value at = LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                                     ValueRange{ptx.add(ptx.mul(own, 4), wholesInRecord())});
      Value whole = LLVM::LoadOp::create(b, b.getF32Type(), at);
      Value isBefore = ptx.compare(arith::CmpIPredicate::slt, chunk, zero);
      if (plan.signedFactors())
        whole = LLVM::FAbsOp::create(b, whole);
      logs.push_back(ptx.log2(ptx.choose(isBefore, ptx.number(1), whole)));
    }
    return logs;
  });
  Value isDone = arith::OrIOp::create(b, isForgotten(ptx, sum), ptx.equal(rounds, 0));
  Value count = ptx.choose(isDone, found, ptx.add(most, 1)), slowest = zero;
  threads.when(isKey, [&] { ptx.store(ptx.add(counts, ptx.mul(own, 4)), 0, {count}); });
  NVVM::Barrier0Op::create(b);
  for (int64_t key = 0; key < plan.keysInMemory(); key += 4)
    for (Value other : ptx.load(counts, key * 4, 4, b.getI32Type()))
      slowest = arith::MaxUIOp::create(b, slowest, other);
  NVVM::Barrier0Op::create(b);
  return slowest;
}

// How many chunks before its segment the block begins, few, and whether there is a segment of the sequence,
// which has `end` chunks, that would need more: then 0. Each segment but the first has `mostFew` of the
// warps.
std::pair<Value, Value> RoleEmitter::countFew(TensorAccess &access, Value each, Value end) {
  Value own = ptx.add(ptx.mul(group, 4), warp), zero = ptx.constant(0), sums = ptx.add(base, slotsAt);
  Value cut = ptx.add(arith::DivUIOp::create(b, own, ptx.constant(mostFew)), 1);
  Value chunk = arith::SubIOp::create(b, ptx.add(ptx.mul(cut, each), -1), ptx.bits(own, mostFew - 1));
  sumDecays(access, arith::MinSIOp::create(b, chunk, ptx.add(end, -1)));
  Value early = zero, isWhole = zero;
  for (int64_t i = 0; i < mostCuts; ++i) {
    Value whole = ptx.number(0), count = zero;
    for (int64_t j = 0; j < mostFew; ++j) {
      Value found = isForgotten(ptx, whole);
      count = ptx.choose(found, count, ptx.add(count, 1));
      whole = ptx.choose(found, whole, ptx.sum(whole, ptx.loadFloats(sums, (i * mostFew + j) * 4, 1)[0]));
    }
    // Segments without tokens do not count.
    Value exists = arith::AndIOp::create(b, ptx.below(ptx.constant(i + 1), part.segments),
                                         ptx.below(ptx.mul(each, i + 1), end));
    Value fails = arith::AndIOp::create(
        b, exists, arith::XOrIOp::create(b, isForgotten(ptx, whole), ptx.equal(zero, 0)));
    isWhole = ptx.choose(fails, ptx.constant(1), isWhole);
    early = ptx.choose(arith::AndIOp::create(b, exists, ptx.equal(part.segment, i + 1)), count, early);
  }
  NVVM::Barrier0Op::create(b);
  return {ptx.choose(ptx.equal(isWhole, 1), zero, early), isWhole};
}

// The same for a chain. Its blocks wait for memory, so what some read twice costs all of them. Looks at the
// segments one after the other.
std::pair<Value, Value> RoleEmitter::countOfEach(TensorAccess &access, Value each, Value end) {
  constexpr int64_t mostEarly = 16;
  bool byKey = plan.forgettingOfKeys() == RolePlan::Forgetting::ByKey;
  Value zero = ptx.constant(0), one = ptx.constant(1);
  Values first{zero, zero};
  auto loop = threads.forLoop(one, part.segments, one, first, [&](Value segment, ValueRange carried) {
    Value before = ptx.mul(each, segment);
    Value counts = arith::AndIOp::create(b, ptx.below(before, end), ptx.equal(carried[1], 0));
    auto choice = scf::IfOp::create(b, SmallVector<Type>(2, b.getI32Type()), counts, true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.elseBlock());
    scf::YieldOp::create(b, carried);
    b.setInsertionPointToStart(choice.thenBlock());
    Value most = arith::MinUIOp::create(b, before, ptx.constant(mostEarly));
    Value count = byKey ? countToForgetKeys(before, most) : countToForget(access, before, most);
    count = arith::MinUIOp::create(b, before, count);
    Value fails = ptx.choose(ptx.below(ptx.constant(mostEarly), count), one, zero);
    Value isOwn = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, part.segment, segment);
    scf::YieldOp::create(b, ValueRange{ptx.choose(isOwn, count, carried[0]), fails});
    b.setInsertionPointAfter(choice);
    return Values(choice.getResults());
  });
  return {ptx.choose(ptx.equal(loop.getResult(1), 1), zero, loop.getResult(0)), loop.getResult(1)};
}

// Finds where the block begins: before its segment or, where it only gathers what the segment leaves, in it.
void RoleEmitter::findBegin() {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  auto chunksOf = [&](Value tokens) -> Value {
    return arith::TruncIOp::create(
        b, b.getI32Type(),
        arith::DivUIOp::create(b, ptx.add(tokens, plan.tokens - 1), ptx.constant(plan.tokens, 64)));
  };
  Value zero = ptx.constant(0), later, isWhole = zero;
  if (phase == Phase::Gather) {
    part = find(access);
    Value all = chunksOf(part.tokens);
    later = arith::SubIOp::create(b, all, arith::MinUIOp::create(b, all, countToForget(access, all, all)));
  } else {
    part = findFromStart(access);
    Value all = chunksOf(part.tokens);
    Value each = arith::CeilDivUIOp::create(b, all, part.segments), before = ptx.mul(each, part.segment);
    // A segment without tokens has nothing to begin with.
    before = ptx.choose(ptx.below(before, all), before, zero);
    if (phase == Phase::Chain) {
      std::tie(early, isWhole) = countOfEach(access, each, all);
    } else {
      Value few = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, access.word(TensorAccess::Few),
                                        ptx.constant(0, 64));
      few = arith::AndIOp::create(b, few, ptx.compare(arith::CmpIPredicate::ne, all, zero));
      auto choice = scf::IfOp::create(b, SmallVector<Type>(2, b.getI32Type()), few, true);
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(choice.thenBlock());
      auto [own, fails] = countFew(access, each, all);
      scf::YieldOp::create(b, ValueRange{own, fails});
      b.setInsertionPointToStart(choice.elseBlock());
      Value any = arith::MinUIOp::create(b, before, countToForget(access, before, before));
      scf::YieldOp::create(b, ValueRange{any, zero});
      early = choice.getResult(0);
      isWhole = choice.getResult(1);
    }
    later = arith::SubIOp::create(b, zero, early);
  }
  threads.when(ptx.equal(ptx.add(ptx.mul(group, 128), thread), 0),
               [&] { ptx.store(ptx.add(base, beginAt), 0, {later, isWhole}); });
  // The copy engine may write to where sums were.
  ptx.fenceProxy();
  NVVM::Barrier0Op::create(b);
  hasBegin = true;
}
