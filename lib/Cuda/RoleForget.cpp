// Where a segment of a sequence begins so that all before that is forgotten: its decays, of which each multiplies the
// state or makes it smaller still, leave less than rounding does.
#include "lib/Cuda/Roles.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The binary logarithm of what may be left of a state: less than f32 keeps of one that is 2^16 times larger than what
// came after it.
constexpr double forgotten = -40;

// How many chunks before `end`, a number of chunks of the part, forget what was before them; more than there are
// where they do not. Each warp looks at a chunk; all threads of the block get the answer.
Value RoleEmitter::countToForget(TensorAccess &access, Value end) {
  int64_t warps = threads.grid.threads / 32;
  Value own = ptx.add(ptx.mul(group, 4), warp), zero = ptx.constant(0), sums = ptx.add(base, slotsAt);
  Value rounds = arith::DivUIOp::create(b, ptx.add(end, warps - 1), ptx.constant(warps));
  auto isFound = [&](Value sum) -> Value {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OLE, sum, ptx.number(forgotten));
  };
  Values first{ptx.number(0), zero};
  auto loop = threads.forLoop(zero, rounds, ptx.constant(1), first, [&](Value round, ValueRange carried) {
    SmallVector<Type> types{b.getF32Type(), b.getI32Type()};
    auto choice = scf::IfOp::create(b, types, isFound(carried[0]), true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    scf::YieldOp::create(b, carried);
    b.setInsertionPointToStart(choice.elseBlock());
    Value chunk = arith::SubIOp::create(b, ptx.add(end, -1), ptx.add(ptx.mul(round, warps), own));
    Value sum = decayOfChunk(access, arith::MaxSIOp::create(b, chunk, zero));
    sum = ptx.choose(ptx.compare(arith::CmpIPredicate::slt, chunk, zero), ptx.number(0), sum);
    threads.when(ptx.equal(lane, 0), [&] { ptx.store(ptx.add(sums, ptx.mul(own, 4)), 0, {sum}); });
    NVVM::Barrier0Op::create(b);
    Value whole = carried[0], count = carried[1];
    for (int64_t i = 0; i < warps; ++i) {
      Value found = isFound(whole);
      count = ptx.choose(found, count, ptx.add(count, 1));
      whole = ptx.choose(found, whole, ptx.sum(whole, ptx.loadFloats(sums, i * 4, 1)[0]));
    }
    NVVM::Barrier0Op::create(b);
    scf::YieldOp::create(b, ValueRange{whole, count});
    b.setInsertionPointAfter(choice);
    return Values(choice.getResults());
  });
  return ptx.choose(isFound(loop.getResult(0)), loop.getResult(1), ptx.add(end, 1));
}

// Sets where the block begins: before its segment or, where it only gathers what the segment leaves, in it.
void RoleEmitter::findBegin() {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  auto chunksOf = [&](Value tokens) -> Value {
    return arith::TruncIOp::create(
        b, b.getI32Type(),
        arith::DivUIOp::create(b, ptx.add(tokens, plan.tokens - 1), ptx.constant(plan.tokens, 64)));
  };
  auto tokensOf = [&](Value chunks) -> Value {
    return ptx.mul(arith::ExtUIOp::create(b, b.getI64Type(), chunks), plan.tokens);
  };
  part = find(access);
  if (phase == Phase::Gather) {
    Value all = chunksOf(part.tokens);
    later = tokensOf(arith::SubIOp::create(b, all, arith::MinUIOp::create(b, all, countToForget(access, all))));
    return;
  }
  // A segment without tokens has nothing to begin with.
  Value isEmpty = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, part.tokens, ptx.constant(0, 64));
  Value before = ptx.choose(isEmpty, ptx.constant(0), chunksOf(part.before)), none = ptx.constant(0, 64);
  later = arith::SubIOp::create(b, none, part.before);
  TensorAccess fromStart(threads, call, plan.tensors, /*packed=*/true);
  part = find(fromStart);
  early = arith::MinUIOp::create(b, before, countToForget(fromStart, before));
  later = arith::SubIOp::create(b, none, tokensOf(early));
}
