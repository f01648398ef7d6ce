// The kernel around a rule's body: which tokens, states in, the loop over tokens, states out.
#include "lib/Cuda/Sequential.h"
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RuleFrame.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"

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
  LogicalResult runApart(TensorAccess &access, Value early);
  LogicalResult runTokens(TensorAccess &access);
  LogicalResult emitToken(TensorAccess &access, Value token);
  SmallVector<Tile> outputTiles();
  void storeOutputs(TensorAccess &access, ArrayRef<Tile> tiles, Value token);
  SmallVector<Value> passedOn(ValueRange old, Value isNew);

  int64_t slab;
  Entry &entry;
};
} // namespace

Part cuda::findPart(Threads &threads, TensorAccess &access, int64_t shards, int64_t slab, int64_t grain,
                    Value later, bool inTurn, int64_t early) {
  ImplicitLocOpBuilder &b = threads.b;
  Part part;
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  Value block = NVVM::BlockIdXOp::create(b, b.getI32Type());
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
  // Of single tokens, blocks that run together take all heads: what those read lies together.
  bool headsFirst = grain == 1;
  if (headsFirst)
    takeHead();
  if (grain) {
    part.block = block;
    part.segments = arith::TruncIOp::create(b, b.getI32Type(), access.word(TensorAccess::Segments));
    if (inTurn) {
      Value own = take(arith::TruncIOp::create(b, b.getI32Type(), access.word(TensorAccess::Pairs)));
      part.segment = pair;
      pair = own;
    } else {
      part.segment = take(part.segments);
    }
  }
  if (!headsFirst)
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
    if (early) {
      part.early = arith::MinSIOp::create(b, before, i64(early));
      later = arith::SubIOp::create(b, i64(0), part.early);
    }
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
  access.locate(sequence, slot, begin, part.head, shard, slab);
  return part;
}

Value cuda::recordOf(Threads &threads, TensorAccess &access, const Part &part, int64_t tokens, Value chunk,
                     Value bytes) {
  ImplicitLocOpBuilder &b = threads.b;
  Value zero = threads.constant(0, 64), grain = threads.constant(tokens, 64);
  Value isPacked =
      arith::CmpIOp::create(b, arith::CmpIPredicate::ne, access.word(TensorAccess::CuSeqlens + 2), zero);
  Value before = part.before ? part.before : zero;
  Value begin = arith::SubIOp::create(b, part.begin, before);
  Value packed = arith::AddIOp::create(b, arith::DivUIOp::create(b, begin, grain), part.sequence);
  Value each = arith::CeilDivUIOp::create(b, access.word(TensorAccess::Tokens), grain);
  Value first = arith::SelectOp::create(b, isPacked, packed, arith::MulIOp::create(b, part.sequence, each));
  first = arith::AddIOp::create(b, first, arith::DivUIOp::create(b, before, grain));
  Value number = arith::AddIOp::create(b, first, arith::ExtUIOp::create(b, b.getI64Type(), chunk));
  number = arith::AddIOp::create(b, arith::MulIOp::create(b, number, part.heads), part.head);
  Value scratch = access.pointer(TensorAccess::Scratch);
  return LLVM::GEPOp::create(b, scratch.getType(), b.getI8Type(), scratch,
                             ValueRange{arith::MulIOp::create(b, number, bytes)});
}

LogicalResult SequentialEmitter::emitToken(TensorAccess &access, Value token) {
  Value at = arith::AddIOp::create(b, position, token);
  setBuiltins(body, rule.getBody().front(), at);
  // A stale state is renewed where a block begins, and at the first token of the call.
  for (BlockArgument argument : stale) {
    ArgAttr arg = rule.getArg(argument);
    Value phase = arith::RemUIOp::create(b, at, threads.constant(arg.getBlock(), 64));
    Value zero = threads.constant(0, 64);
    Value begins = arith::OrIOp::create(b, arith::CmpIOp::create(b, arith::CmpIPredicate::eq, phase, zero),
                                        arith::CmpIOp::create(b, arith::CmpIPredicate::eq, token, zero));
    forLayouts(argument, [&](Axis axis) {
      Tile tile = body.get(argument, axis);
      const Tile &state = body.get(rule.findArgument(ArgKind::State, arg.getName()), axis);
      for (auto [entry, fresh] : llvm::zip(tile.entries, state.entries))
        entry = arith::SelectOp::create(b, begins, fresh, entry);
      body.set(argument, tile);
    });
  }
  // A few micro-steps are fetched together as the token begins: one way from memory, beside that of the
  // states, instead of one for each.
  constexpr int64_t fewSteps = 4;
  llvm::DenseMap<std::pair<unsigned, Axis>, SmallVector<SmallVector<Value>>> ahead;
  auto loadStep = [&](BlockArgument steps, Value index, Axis axis) {
    unsigned tensor =
        llvm::find_if(tensors, [&](const auto &t) { return t.argument == steps; }) - tensors.begin();
    int64_t count = cast<IntegerAttr>(cast<StepsType>(steps.getType()).getCount()).getInt();
    if (count > fewSteps)
      return access.load(tensor, axis, token, index);
    SmallVector<SmallVector<Value>> &fetched = ahead[{tensor, axis}];
    if (fetched.empty()) {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointAfter(at.getDefiningOp());
      for (int64_t step = 0; step < count; ++step)
        fetched.push_back(access.fetch(tensor, axis, token, threads.constant(step, 64)));
    }
    SmallVector<Value> chosen = fetched.front();
    for (int64_t step = 1; step < count; ++step) {
      Value isIt = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, index, threads.constant(step, 64));
      for (auto [value, other] : llvm::zip(chosen, fetched[step]))
        value = arith::SelectOp::create(b, isIt, other, value);
    }
    return access.unpack(tensor, axis, chosen);
  };
  LogicalResult status = body.emitBlock(rule.getBody().front(), loadStep);
  b.setLoc(rule.getLoc());
  return status;
}

SmallVector<Tile> SequentialEmitter::outputTiles() {
  SmallVector<Tile> tiles;
  for (Value output : rule.yieldedOutputs())
    tiles.push_back(body.get(output, placement.anyOf(output)));
  return tiles;
}

void SequentialEmitter::storeOutputs(TensorAccess &access, ArrayRef<Tile> tiles, Value token) {
  for (auto [i, tile] : llvm::enumerate(tiles))
    access.store(outputTensor(i), tile, token);
}

// What states are after a token; past the end they stay.
SmallVector<Value> SequentialEmitter::passedOn(ValueRange old, Value isNew) {
  SmallVector<Value> entries = carriedOf(rule.yieldedStates());
  for (auto [entry, before] : llvm::zip(entries, old))
    entry = arith::SelectOp::create(b, isNew, entry, before);
  setCarried(entries);
  return entries;
}

// Without states but those that pass, several tokens at a time: their inputs are on their way together, and
// what is computed of one fills the gaps of the others. Past the end that is the last one again. Of the first
// `early` ones states alone are wanted.
LogicalResult SequentialEmitter::runApart(TensorAccess &access, Value early) {
  // Beside states two fit into the registers that leave room for other blocks.
  const int64_t together = states.empty() ? 4 : 2;
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  Value last = arith::SubIOp::create(b, tokens, i64(1));
  LogicalResult status = success();
  SmallVector<Value> initial = carriedOf(SmallVector<Value>(states.begin(), states.end()));
  auto loop = threads.forLoop(i64(0), tokens, i64(together), initial, [&](Value first, ValueRange given) {
    SmallVector<Value> carried(given), places, wanted;
    setCarried(carried);
    SmallVector<SmallVector<Value>> fetched;
    for (int64_t more = 0; more < together; ++more) {
      places.push_back(arith::MinSIOp::create(b, arith::AddIOp::create(b, first, i64(more)), last));
      forFetches([&](unsigned i, Axis axis) { fetched.push_back(access.fetch(i, axis, places.back())); });
    }
    auto *next = fetched.begin();
    SmallVector<SmallVector<Tile>> outputs;
    threads.communicates = false;
    for (Value token : places) {
      forFetches(
          [&](unsigned i, Axis axis) { body.set(tensors[i].argument, access.unpack(i, axis, *next++)); });
      if (succeeded(status))
        status = emitToken(access, token);
      if (failed(status))
        return carried;
      outputs.push_back(outputTiles());
      wanted.emplace_back();
      if (states.empty())
        continue;
      Value own = arith::AddIOp::create(b, first, i64(wanted.size() - 1));
      Value isNew = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, own, tokens);
      wanted.back() = threads.both(isNew, arith::CmpIOp::create(b, arith::CmpIPredicate::sge, own, early));
      carried = passedOn(carried, isNew);
    }
    if (threads.communicates)
      threads.barrier();
    for (auto [tiles, token, isWanted] : llvm::zip(outputs, places, wanted))
      threads.when(isWanted,
                   [&, tiles = ArrayRef(tiles), token = token] { storeOutputs(access, tiles, token); });
    return carried;
  });
  setCarried(loop.getResults());
  return status;
}

LogicalResult SequentialEmitter::runTokens(TensorAccess &access) {
  SmallVector<Value> initial = carriedOf(SmallVector<Value>(states.begin(), states.end()));
  SmallVector<Type> types(initial.size(), b.getF32Type());
  Value zero = threads.constant(0, 64), one = threads.constant(1, 64);
  Value any = arith::CmpIOp::create(b, arith::CmpIPredicate::sgt, tokens, zero);
  auto guarded = scf::IfOp::create(b, types, any, true);
  LogicalResult status = success();
  {
    OpBuilder::InsertionGuard guard(b);
    auto yield = [&](ValueRange values) { // without values it is there already
      if (!types.empty())
        scf::YieldOp::create(b, values);
    };
    b.setInsertionPointToStart(guarded.elseBlock());
    yield(initial);
    b.setInsertionPointToStart(guarded.thenBlock());
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
    yield(loop.getResults().take_front(initial.size()));
  }
  if (succeeded(status))
    setCarried(guarded.getResults());
  return status;
}

LogicalResult SequentialEmitter::run(LLVM::LLVMFuncOp function, int64_t sharedLimit) {
  threads.sharedLimit = sharedLimit;
  TensorAccess access(threads, function.getArgument(0), tensors, entry.packed);
  auto shared = function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>("recur_shared");
  Value base = LLVM::AddressOfOp::create(b, shared);
  // The block's part of the workspace; how much that is, is known at the end.
  Value size = arith::ConstantIntOp::create(b, 0, 64);
  Value block = arith::ExtUIOp::create(b, b.getI64Type(), NVVM::BlockIdXOp::create(b, b.getI32Type()));
  Value scratch = access.pointer(TensorAccess::Scratch);
  scratch = LLVM::GEPOp::create(b, scratch.getType(), b.getI8Type(), scratch,
                                ValueRange{arith::MulIOp::create(b, block, size)});
  threads.begin(base, scratch);
  bool isCut = entry.cut != Entry::Whole;
  int64_t memory = isCut ? passingStates(rule).memory : 0;
  Part part = findPart(threads, access, entry.shards, slab, /*grain=*/isCut, {}, /*inTurn=*/false, memory);
  head = part.head;
  heads = part.heads;
  tokens = part.tokens;
  position = part.position;
  LogicalResult status = success();
  threads.when(part.isPresent, [&] {
    status = setStates(access);
    if (succeeded(status) && threads.communicates)
      threads.barrier();
    if (succeeded(status))
      status = entry.cut == Entry::FewTokens ? runApart(access, part.early) : runTokens(access);
    if (failed(status))
      return;
    for (unsigned i = 0; i < states.size(); ++i)
      threads.when(threads.both(access.isGiven(finalTensor(i)), part.isLast), [&] {
        access.store(finalTensor(i), body.get(states[i], placement.anyOf(states[i])), Value());
      });
  });
  describeLoops(function.getBody(), "tokens", 1, entry.threads / 32);
  size.getDefiningOp<arith::ConstantOp>().setValueAttr(b.getI64IntegerAttr(threads.scratchBytes));
  LLVM::ReturnOp::create(b, ValueRange());
  entry.sharedBytes = threads.sharedBytes;
  entry.scratchBytes = threads.scratchBytes;
  return status;
}

LogicalResult cuda::emitSequential(LLVM::LLVMFuncOp function, RuleOp rule, ArrayRef<TensorArgument> tensors,
                                   const Grid &grid, const Placement &placement, int64_t slab,
                                   int64_t sharedLimit, Entry &entry) {
  ImplicitLocOpBuilder b(rule.getLoc(), rule.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  SequentialEmitter emitter(b, rule, tensors, grid, placement, slab, entry);
  if (failed(emitter.run(function, sharedLimit)))
    return failure();
  if (entry.cut == Entry::FewTokens)
    relaxMath(function, tensors);
  return success();
}

void cuda::relaxMath(LLVM::LLVMFuncOp function, ArrayRef<TensorArgument> tensors) {
  bool isNarrow = false;
  for (const TensorArgument &tensor : tensors) {
    bool isWide = FloatType(tensor.element).isF32();
    if (isWide && tensor.hasToken && tensor.entry().numElements() > 1)
      return;
    isNarrow |= !isWide;
  }
  if (!isNarrow)
    return;
  auto relaxed = arith::FastMathFlagsAttr::get(function.getContext(), arith::FastMathFlags::afn);
  function.walk([&](Operation *op) {
    if (auto exp = dyn_cast<math::ExpOp>(op))
      exp.setFastmathAttr(relaxed);
    if (auto div = dyn_cast<arith::DivFOp>(op))
      div.setFastmathAttr(relaxed);
    if (auto root = dyn_cast<math::SqrtOp>(op))
      root.setFastmathAttr(relaxed);
  });
}
