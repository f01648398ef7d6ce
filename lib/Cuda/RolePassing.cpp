// Segments that pass the state on. Where there are more blocks than processors, but not several times as
// many, the last round of blocks leaves processors idle; of segments, which are shorter, less. A block waits
// for the state that the segment before leaves, while its other roles work ahead.
//
// Nothing orders the blocks of a launch, so a block's number is how many have begun before it: all that it
// waits for is in blocks that have begun. Blocks of all first segments come before those of the second ones.
#include "lib/Cuda/Marks.h"
#include "lib/Cuda/RoleBesideScores.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Bytes of the workspace's beginning, where the blocks are counted, and of a block's words behind it, which
// are marked when its warpgroups' states are there (RECUR_CUDA_PASSES); the first of the barriers of those
// who pass them; and where the block's number is kept, behind `beginAt`.
static constexpr int64_t countBytes = 16, wordsBytes = 16, firstBarrier = 8, numberAt = 8;

static Value at(ImplicitLocOpBuilder &b, Value from, Value offset) {
  Value wide = arith::ExtUIOp::create(b, b.getI64Type(), offset);
  return LLVM::GEPOp::create(b, from.getType(), b.getI8Type(), from, ValueRange{wide});
}

Value RoleEmitter::scratch() {
  return TensorAccess(threads, call, plan.tensors, /*packed=*/true).pointer(TensorAccess::Scratch);
}

static Value rankInCluster(Ptx &ptx) {
  return ptx.assembly("mov.u32 $0, %cluster_ctarank;", ptx.b.getI32Type(), {})[0];
}

Value RoleEmitter::isCut() {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  Value segments = arith::TruncIOp::create(b, b.getI32Type(), access.word(TensorAccess::Segments));
  return ptx.compare(arith::CmpIPredicate::ugt, segments, ptx.constant(1));
}

// In one thread, before all meet: the number of a team's first block.
void RoleEmitter::takeNumber() {
  Value counts = isCut();
  if (team > 1)
    counts = arith::AndIOp::create(b, counts, ptx.equal(rankInCluster(ptx), 0));
  auto number = scf::IfOp::create(b, b.getI32Type(), counts, true);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(number.thenBlock());
    scf::YieldOp::create(b, ptx.mul(takeTicket(ptx, scratch()), team));
    b.setInsertionPointToStart(number.elseBlock());
    scf::YieldOp::create(b, NVVM::BlockIdXOp::create(b, b.getI32Type()).getResult());
  }
  ptx.store(ptx.add(base, beginAt), numberAt, {number.getResult(0)});
}

// When a team has met, its other blocks ask the first one.
void RoleEmitter::shareNumber() {
  threads.when(isCut(), [&] {
    Value tid = NVVM::ThreadIdXOp::create(b, b.getI32Type()), rank = rankInCluster(ptx);
    Value own = ptx.add(base, beginAt);
    Value asks = arith::AndIOp::create(b, ptx.equal(tid, 0),
                                       ptx.compare(arith::CmpIPredicate::ne, rank, ptx.constant(0)));
    threads.when(asks, [&] {
      Value first = ptx.loadThere(ptx.inBlock(own, ptx.constant(0)), numberAt);
      ptx.store(own, numberAt, {ptx.add(first, rank)});
    });
    NVVM::Barrier0Op::create(b);
  });
}

Value RoleEmitter::numberOfBlock() {
  return ptx.load(ptx.add(base, beginAt), numberAt, 1, b.getI32Type())[0];
}

int64_t RoleEmitter::passedBytes() const {
  return slabs * stateBytes() + Normaliser::bytesToPass(plan) + wordsBytes;
}

std::pair<Value, Value> RoleEmitter::passed(Value block, bool ofNormaliser) {
  Value words = at(b, scratch(), ptx.constant(countBytes));
  Value blocks = NVVM::GridDimXOp::create(b, b.getI32Type());
  Value states = at(b, words, ptx.mul(blocks, wordsBytes));
  auto wide = [&](Value x) { return arith::ExtUIOp::create(b, b.getI64Type(), x); };
  Value which = ofNormaliser ? ptx.constant(slabs) : slabIndex;
  Value offset =
      ptx.add(ptx.mul(wide(block), passedBytes() - wordsBytes), ptx.mul(wide(which), stateBytes()));
  return {LLVM::GEPOp::create(b, states.getType(), b.getI8Type(), states, ValueRange{offset}),
          at(b, words, ptx.add(ptx.mul(block, wordsBytes), ptx.mul(which, 4)))};
}

Values RoleEmitter::passedState() {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  Value pairs = arith::TruncIOp::create(b, b.getI32Type(), access.word(TensorAccess::Pairs));
  auto [state, word] = passed(arith::SubIOp::create(b, numberOfBlock(), ptx.mul(pairs, shards)));
  awaitMark(ptx, word);
  return loadEntries(state);
}

// Also behind a sequence's last token, as segments of none may follow.
void RoleEmitter::passState(ValueRange entries) {
  threads.when(ptx.compare(arith::CmpIPredicate::ult, ptx.add(part.segment, 1), part.segments), [&] {
    // Read again, so that it takes no register meanwhile.
    auto [state, word] = passed(numberOfBlock());
    storeEntries(state, entries);
    ptx.meet(ptx.add(slabIndex, firstBarrier), 128);
    threads.when(ptx.equal(thread, 0), [&, word = word] { mark(ptx, word); });
  });
}
