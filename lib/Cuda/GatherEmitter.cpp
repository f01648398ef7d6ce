#include "lib/Cuda/GatherEmitter.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/LoadAhead.h"
#include "lib/Cuda/Roles.h"
#include "lib/Cuda/SolvedPlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t chunkTokens = 64;

GatherEmitter::GatherEmitter(Threads &threads, const GatheredState &plan, ChunkEmitter &chunk)
    : b(threads.b), ptx(threads.b), plan(plan), chunk(chunk) {
  SmallVector<Value> parts(plan.weights);
  parts.append({plan.keys, plan.rows});
  if (plan.fade)
    parts.push_back(plan.fade);
  for (BlockArgument argument : chunk.program.getBody().getArguments())
    if (argument == (plan.areInput() ? plan.rows : Value()) ||
        llvm::none_of(parts, [&](Value part) { return dependsOn(part, argument); }))
      without.push_back(argument);
  chunk.swizzled.insert(plan.keys);
}

// The product of each token's weights.
LogicalResult GatherEmitter::prepareWeights() {
  SmallVector<ChunkValue> factors;
  for (Value weight : plan.weights) {
    FailureOr<ChunkValue> known = chunk.need(weight);
    if (failed(known) || (known->kind != ChunkValue::Rows && known->kind != ChunkValue::Scalar))
      return failure();
    factors.push_back(*known);
  }
  weights = chunk.allocateRows(chunkTokens);
  chunk.sync();
  chunk.forItems(chunkTokens, [&](Value local) {
    Value product = ptx.number(1);
    for (const ChunkValue &factor : factors)
      product = ptx.multiply(product, chunk.entryOf(factor, local));
    chunk.storeRow(weights, local, product);
  });
  chunk.dirty = true;
  return success();
}

// Keys as f16 where products read them, and rows; what weighs them.
LogicalResult GatherEmitter::prepare() {
  if (failed(chunk.emitArguments(without)))
    return failure();
  if (plan.areInput()) {
    auto inputs = chunk.program.argumentsOf(ArgKind::Input);
    unsigned tensor = llvm::find(inputs, plan.rows) - inputs.begin();
    rows = chunk.allocate(chunkTokens, plan.countRows(), plan.countRows() + 8, /*isF32=*/false);
    rows.isBf16 = chunk.tensors[tensor].element.isBF16();
    chunk.copyTile(tensor, rows);
  }
  FailureOr<ChunkValue> known = chunk.need(plan.keys);
  if (failed(known) || known->kind != ChunkValue::Tile || !known->memory.isSwizzled || known->scale.base)
    return failure();
  keys = LLVM::PtrToIntOp::create(b, b.getI32Type(), known->memory.base);
  if (!plan.areInput()) {
    FailureOr<ChunkValue> own = chunk.need(plan.rows);
    if (failed(own) || own->kind != ChunkValue::Tile || own->memory.isF32 || own->scale.base)
      return failure();
    rows = own->memory;
  }
  ptx.fenceProxy();
  if (failed(prepareWeights()))
    return failure();
  fade = ptx.number(1);
  if (plan.fade) {
    FailureOr<ChunkValue> number = chunk.need(plan.fade);
    if (failed(number) || (number->kind != ChunkValue::Rows && number->kind != ChunkValue::Scalar))
      return failure();
    chunk.sync();
    fade = chunk.entryOf(*number, ptx.constant(0));
  }
  chunk.sync();
  return success();
}

FailureOr<Values> GatherEmitter::emit(Value first, Value count, ValueRange state,
                                      llvm::function_ref<void(ValueRange)> beforeEnd) {
  chunk.startChunk(first, count);
  if (failed(prepare()))
    return failure();
  // 16 of the rows, tokens across, in units of a power of 2 by the largest.
  SmallVector<Value> entries = chunk.fragments.loadTransposed(rows, chunk.slabRow(plan.countRows())).entries;
  for (size_t e = 0; e < entries.size(); e += 4) {
    std::array<Value, 2> pair = chunk.loadPair(weights, ptx.constant(0), chunk.fragments.column(e));
    for (size_t i = e; i < e + 4; ++i)
      entries[i] = ptx.multiply(entries[i], pair[i % 2]);
  }
  Value unit = chunk.unitOf(chunk.greatest(entries), -8), inverse = chunk.inverseOf(unit);
  SmallVector<Step> steps;
  Value right = ptx.descriptor(keys, chunkTokens * 128);
  for (int64_t i = 0; i < chunkTokens / 16; ++i) {
    Values left;
    for (int64_t e = 8 * i; e < 8 * i + 8; e += 2)
      left.push_back(ptx.packF16(ptx.multiply(entries[e], inverse), ptx.multiply(entries[e + 1], inverse)));
    steps.push_back({left, ptx.advance(right, i * 2048)});
  }
  // The sums take the state's place, in the units of what is added.
  Values next(state);
  Value factor = ptx.multiply(fade, inverse);
  for (Value &entry : next)
    entry = ptx.multiply(entry, factor);
  Pending sums =
      ptx.product(plan.countKeys(), next, steps, /*leftByDepth=*/false, /*rightByDepth=*/true, "f16");
  Operation *last = &*std::prev(b.getInsertionPoint());
  next = ptx.await(0, sums)[0];
  ask = last->getNextNode();
  for (Value &entry : next)
    entry = ptx.multiply(entry, unit);
  beforeEnd(next);
  rows = {};
  weights = {};
  chunk.endChunk();
  return next;
}

std::optional<std::string> cuda::emitGathered(LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                              ArrayRef<TensorArgument> tensors,
                                              ArrayRef<GatheredState> states, Entry &entry) {
  ImplicitLocOpBuilder b(program.getLoc(), program.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  SmallVector<MatType> types;
  int64_t rows = 0;
  for (const GatheredState &state : states) {
    types.push_back(matType(state.state));
    rows = std::max(rows, state.countRows());
  }
  ChunkShape shape{chunkTokens, rows / 16, Precision::Tf32};
  Grid grid{shape.warps * 32, 8}, tokenGrid{8, 8};
  entry.threads = grid.threads;
  entry.shards = states.size();
  entry.recordBytes = StateImages::recordBytes(types);
  Threads threads(b, grid), tokenThreads(b, tokenGrid);
  TensorAccess access(tokenThreads, function.getArgument(0), tensors, /*packed=*/true);
  Value shared = LLVM::AddressOfOp::create(
      b, function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>(tilesSymbol));
  threads.begin(shared, shared);
  tokenThreads.begin({}, {});
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  Part tokens = findPart(threads, access, entry.shards, /*slab=*/0);
  SmallVector<BlockArgument> arguments = program.argumentsOf(ArgKind::State);
  unsigned inputs = program.argumentsOf(ArgKind::Input).size(),
           params = program.argumentsOf(ArgKind::Param).size();
  std::optional<std::string> blame;
  auto emitState = [&](unsigned image) {
    const GatheredState &state = states[image];
    unsigned number = state.state.getArgNumber() - arguments.front().getArgNumber();
    unsigned initial = inputs + params + number, final = tensors.size() - arguments.size() + number;
    int64_t used = 0;
    StateImages stored(threads, shared, types, image, shape.warps, used);
    SharedArena arena(used);
    ChunkEmitter chunk(threads, program, access, tensors, shape, arena);
    chunk.fragments.isNarrow = true;
    chunk.begin(tokens.head, tokens.heads, tokens.position);
    GatherEmitter gather(threads, state, chunk);
    StateTensor memory(threads, chunk, access, state.state);
    Values carried(memory.load(initial, *firstStateOf(program, number), inputs));
    stored.measure(chunk, memory.slab(carried));
    threads.barrier();
    auto loop = threads.forLoop(
        i64(0), tokens.tokens, i64(chunkTokens), carried, [&](Value first, ValueRange entries) {
          Value at =
              arith::TruncIOp::create(b, b.getI32Type(), arith::DivUIOp::create(b, first, i64(chunkTokens)));
          Value record = recordOf(threads, access, tokens, chunkTokens, at, i64(entry.recordBytes));
          stored.store(chunk, memory.slab(entries), record);
          FailureOr<Values> next =
              gather.emit(first, arith::SubIOp::create(b, tokens.tokens, first), entries,
                          [&](ValueRange after) { stored.measure(chunk, memory.slab(after)); });
          if (failed(next))
            blame = chunk.blame();
          return failed(next) ? SmallVector<Value>(entries) : SmallVector<Value>(*next);
        });
    int64_t highest = arena.highest();
    if (!blame)
      loop = loadAhead(threads, loop, gather.askBefore(), grid.threads, highest);
    entry.sharedBytes = std::max(entry.sharedBytes, highest);
    stored.finish();
    threads.when(access.isGiven(final),
                 [&] { memory.store(final, loop.getResults().take_front(carried.size())); });
  };
  Value shard = arith::TruncIOp::create(b, b.getI32Type(), tokens.shard);
  for (unsigned image = 0; image < states.size() && !blame; ++image)
    threads.when(threads.both(tokens.isPresent, arith::CmpIOp::create(b, arith::CmpIPredicate::eq, shard,
                                                                      threads.constant(image))),
                 [&] { emitState(image); });
  describeLoops(function.getBody(), "chunks", 1, entry.threads / 32);
  LLVM::ReturnOp::create(b, ValueRange());
  return blame;
}
