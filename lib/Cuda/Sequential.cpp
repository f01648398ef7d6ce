// The kernel around a rule's body: which tokens, states in, the loop over tokens, states out.
#include "lib/Cuda/Sequential.h"
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RuleFrame.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

namespace {
// Emits one entry point.
class SequentialEmitter : RuleFrame {
public:
  SequentialEmitter(ImplicitLocOpBuilder &b, RuleOp rule, ArrayRef<TensorArgument> tensors, const Grid &grid,
                    const Placement &placement, int64_t slab, Entry &entry)
      : RuleFrame(b, rule, tensors, grid, placement), slab(slab), entry(entry) {}

  LogicalResult run(LLVM::LLVMFuncOp function, int64_t sharedLimit);

private:
  LogicalResult runTokens(TensorAccess &access);

  int64_t slab;
  Entry &entry;
};
} // namespace

Part cuda::findPart(Threads &threads, TensorAccess &access, int64_t shards, int64_t slab, int64_t grain,
                    BlockOrder order, Value later, Value block) {
  ImplicitLocOpBuilder &b = threads.b;
  Part part;
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  if (!block)
    block = NVVM::BlockIdXOp::create(b, b.getI32Type());
  Value shard = arith::RemUIOp::create(b, block, threads.constant(shards));
  Value pair = arith::DivUIOp::create(b, block, threads.constant(shards));
  part.heads = access.word(TensorAccess::Heads);
  part.tokens = access.word(TensorAccess::Tokens);
  auto take = [&](Value count) -> Value {
    Value own = arith::RemUIOp::create(b, pair, count);
    pair = arith::DivUIOp::create(b, pair, count);
    return own;
  };
  auto takeHead = [&] {
    Value head = take(arith::TruncIOp::create(b, b.getI32Type(), part.heads));
    part.head = arith::ExtUIOp::create(b, b.getI64Type(), head);
  };
  if (order == BlockOrder::HeadsFirst)
    takeHead();
  if (grain) {
    part.block = block;
    part.segments = arith::TruncIOp::create(b, b.getI32Type(), access.word(TensorAccess::Segments));
    if (order == BlockOrder::InTurn || order == BlockOrder::LastFirst) {
      Value own = take(arith::TruncIOp::create(b, b.getI32Type(), access.word(TensorAccess::Pairs)));
      part.segment = pair;
      if (order == BlockOrder::LastFirst)
        part.segment =
            arith::SubIOp::create(b, threads.constant(-1), arith::SubIOp::create(b, pair, part.segments));
      pair = own;
    } else {
      part.segment = take(part.segments);
    }
  }
  if (order != BlockOrder::HeadsFirst)
    takeHead();
  Value sequence = arith::ExtUIOp::create(b, b.getI64Type(), pair);
  // Index tensors are in device memory, so nobody has looked at them: a sequence stays within the tokens, and
  // one whose slot does not exist is left alone.
  auto within = [&](Value x, Value low) -> Value {
    return arith::MinSIOp::create(b, arith::MaxSIOp::create(b, x, low), part.tokens);
  };
  Value next = arith::AddIOp::create(b, sequence, i64(1));
  Value begin = within(access.index(TensorAccess::CuSeqlens, sequence, i64(0)), i64(0));
  Value end = within(access.index(TensorAccess::CuSeqlens, next, part.tokens), begin);
  part.shard = arith::ExtUIOp::create(b, b.getI64Type(), shard);
  part.sequence = sequence;
  part.begin = begin;
  part.tokens = arith::SubIOp::create(b, end, begin);
  part.position = access.index(TensorAccess::Positions, sequence, i64(0));
  if (grain) {
    auto wide = [&](Value x) -> Value { return arith::ExtUIOp::create(b, b.getI64Type(), x); };
    Value grains = arith::CeilDivUIOp::create(b, part.tokens, i64(grain));
    // In 32 bits, as a division of 64 is a call.
    Value few =
        arith::CeilDivUIOp::create(b, arith::TruncIOp::create(b, b.getI32Type(), grains), part.segments);
    Value each = arith::MulIOp::create(b, wide(few), i64(grain));
    Value before = arith::MulIOp::create(b, each, wide(part.segment));
    before = arith::MinSIOp::create(b, before, part.tokens);
    part.all = part.tokens;
    Value rest = arith::SubIOp::create(b, part.tokens, before);
    part.tokens = arith::MinSIOp::create(b, each, rest);
    auto equal = [&](Value x, Value y) -> Value {
      return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, x, y);
    };
    // Of an empty sequence, the first segment.
    Value isFirst = equal(part.segment, threads.constant(0));
    Value isSome = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, part.tokens, i64(0));
    part.isLast =
        arith::AndIOp::create(b, equal(part.tokens, rest), arith::OrIOp::create(b, isFirst, isSome));
    if (later) {
      before = arith::AddIOp::create(b, before, later);
      part.tokens = arith::SubIOp::create(b, part.tokens, later);
    }
    part.before = before;
    part.position = arith::AddIOp::create(b, part.position, before);
    part.begin = begin = arith::AddIOp::create(b, begin, before);
  }
  Value slot = access.index(TensorAccess::StateIndex, sequence, sequence);
  part.isPresent =
      arith::CmpIOp::create(b, arith::CmpIPredicate::ult, slot, access.word(TensorAccess::Slots));
  access.locate(sequence, slot, begin, part.head, part.shard, slab);
  return part;
}

Value cuda::recordOf(Threads &threads, TensorAccess &access, const Part &part, int64_t tokens, Value chunk,
                     Value bytes) {
  ImplicitLocOpBuilder &b = threads.b;
  Value zero = threads.constant(0, 64), whole = threads.constant(tokensOfRecord, 64);
  Value isPacked =
      arith::CmpIOp::create(b, arith::CmpIPredicate::ne, access.word(TensorAccess::CuSeqlens + 2), zero);
  Value before = part.before ? part.before : zero;
  Value begin = arith::SubIOp::create(b, part.begin, before);
  Value packed = arith::AddIOp::create(b, arith::DivUIOp::create(b, begin, whole), part.sequence);
  Value each = arith::CeilDivUIOp::create(b, access.word(TensorAccess::Tokens), whole);
  Value first = arith::SelectOp::create(b, isPacked, packed, arith::MulIOp::create(b, part.sequence, each));
  // Smaller chunks have parts of such a record.
  first = arith::MulIOp::create(b, first, threads.constant(llvm::divideCeil(tokensOfRecord, tokens), 64));
  first = arith::AddIOp::create(b, first, arith::DivUIOp::create(b, before, threads.constant(tokens, 64)));
  Value number = arith::AddIOp::create(b, first, arith::ExtUIOp::create(b, b.getI64Type(), chunk));
  number = arith::AddIOp::create(b, arith::MulIOp::create(b, number, part.heads), part.head);
  Value scratch = access.pointer(TensorAccess::Scratch);
  return LLVM::GEPOp::create(b, scratch.getType(), b.getI8Type(), scratch,
                             ValueRange{arith::MulIOp::create(b, number, bytes)});
}

LogicalResult SequentialEmitter::runTokens(TensorAccess &access) {
  LogicalResult status = success();
  SmallVector<Value> initial = carriedOf(SmallVector<Value>(states.begin(), states.end()));
  Value zero = threads.constant(0, 64), one = threads.constant(1, 64);
  // Inputs are fetched one token ahead, so that their way from memory hides behind a token's work.
  SmallVector<Value> carried = initial;
  forFetches([&](unsigned i, Axis axis) { llvm::append_range(carried, access.fetch(i, axis, zero)); });
  Value last = arith::SubIOp::create(b, tokens, one);
  auto loop = threads.forLoop(zero, tokens, one, carried, [&](Value token, ValueRange entries) {
    setCarried(entries.take_front(initial.size()));
    ValueRange fetched = entries.drop_front(initial.size());
    SmallVector<Value> ahead;
    Value next = arith::MinSIOp::create(b, arith::AddIOp::create(b, token, one), last);
    forFetches([&](unsigned i, Axis axis) {
      SmallVector<Value> values = access.fetch(i, axis, next);
      body.set(tensors[i].argument, access.unpack(i, axis, fetched.take_front(values.size())));
      fetched = fetched.drop_front(values.size());
      llvm::append_range(ahead, values);
    });
    threads.communicates = false;
    status = emitToken(access, token);
    if (failed(status))
      return SmallVector<Value>(entries);
    storeOutputs(access, outputTiles(), token);
    if (threads.communicates)
      threads.barrier();
    SmallVector<Value> results = carriedOf(rule.yieldedStates());
    llvm::append_range(results, ahead);
    return results;
  });
  setCarried(loop.getResults().take_front(initial.size()));
  return status;
}

LogicalResult SequentialEmitter::run(LLVM::LLVMFuncOp function, int64_t sharedLimit) {
  threads.sharedLimit = sharedLimit;
  TensorAccess access(threads, function.getArgument(0), tensors, entry.packed);
  begin(function, access);
  Part part = findPart(threads, access, entry.shards, slab);
  LogicalResult status = emitSequence(access, part, [&] { return runTokens(access); });
  describeLoops(function.getBody(), "tokens", 1, entry.threads / 32);
  end(entry);
  return status;
}

LogicalResult cuda::emitSequential(LLVM::LLVMFuncOp function, RuleOp rule, ArrayRef<TensorArgument> tensors,
                                   const Grid &grid, const Placement &placement, int64_t slab,
                                   int64_t sharedLimit, Entry &entry) {
  ImplicitLocOpBuilder b(rule.getLoc(), rule.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  SequentialEmitter emitter(b, rule, tensors, grid, placement, slab, entry);
  return emitter.run(function, sharedLimit);
}

bool cuda::areNarrow(ArrayRef<TensorArgument> tensors) {
  bool isNarrow = false;
  for (const TensorArgument &tensor : tensors) {
    bool isWide = FloatType(tensor.element).isF32();
    if (isWide && tensor.hasToken && !tensor.isTemporary && tensor.entry().numElements() > 1)
      return false;
    isNarrow |= !isWide;
  }
  return isNarrow;
}

void cuda::relaxMath(LLVM::LLVMFuncOp function, ArrayRef<TensorArgument> tensors) {
  if (!areNarrow(tensors))
    return;
  function.setDenormalFpMathF32("preserve-sign,preserve-sign");
  function.walk(relax);
}

void cuda::relax(Operation *op) {
  if (op->hasAttr(BodyEmitter::withinTurnAttr) ||
      isa<math::ExpOp, math::LogOp, math::Log1pOp, math::TanhOp, math::SqrtOp, arith::DivFOp>(op))
    op->setAttr("fastmath", arith::FastMathFlagsAttr::get(op->getContext(), arith::FastMathFlags::afn));
}

bool cuda::isReciprocalOnUnit(arith::DivFOp op) {
  auto isOne = [](Value x) { return matchPattern(x, m_OneFloat()); };
  auto sum = op.getRhs().getDefiningOp<arith::AddFOp>();
  arith::FastMathFlagsAttr flags = op.getFastmathAttr();
  return op.getType().isF32() && flags && bitEnumContainsAll(flags.getValue(), arith::FastMathFlags::afn) &&
         isOne(op.getLhs()) && sum && (isOne(sum.getLhs()) || isOne(sum.getRhs()));
}
