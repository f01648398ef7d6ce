#include "lib/Cuda/GatherEmitter.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/LoadAhead.h"
#include "lib/Cuda/Roles.h"
#include "lib/Cuda/SolvedPlan.h"
#include "lib/Cuda/StateTensor.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t chunkTokens = 64;

GatherEmitter::GatherEmitter(Threads &threads, ArrayRef<GatheredState> plans, ChunkEmitter &chunk)
    : b(threads.b), ptx(threads.b), plans(plans), chunk(chunk) {
  SmallVector<Value> parts{plans.front().keys};
  for (const GatheredState &plan : plans) {
    llvm::append_range(parts, plan.weights);
    if (plan.fade)
      parts.push_back(plan.fade);
    if (!plan.areInput())
      parts.push_back(plan.rows);
  }
  for (BlockArgument argument : chunk.program.getBody().getArguments())
    if (llvm::none_of(parts, [&](Value part) { return dependsOn(part, argument); }))
      without.push_back(argument);
  chunk.swizzled.insert(plans.front().keys);
}

void GatherEmitter::begin() {
  number = arith::DivUIOp::create(b, chunk.fragments.warp, ptx.constant(chunk.slabWarps));
}

StateImages::Own GatherEmitter::own() {
  StateImages::Own own{number, ptx.constant(plans.front().countRows()),
                       chunk.slabRow(plans.front().countRows())};
  for (size_t i = 1; i < plans.size(); ++i) {
    Value is = ptx.equal(number, i);
    own.rows = ptx.choose(is, ptx.constant(plans[i].countRows()), own.rows);
    own.first = ptx.choose(is, chunk.slabRow(plans[i].countRows()), own.first);
  }
  return own;
}

Values GatherEmitter::forOwn(TypeRange types, llvm::function_ref<Values(size_t)> body) {
  auto emitFrom = [&](auto &&emitFrom, size_t i) -> Values {
    if (i + 1 == plans.size())
      return body(i);
    auto branch = scf::IfOp::create(b, types, ptx.equal(number, i), /*withElseRegion=*/true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(branch.thenBlock());
    scf::YieldOp::create(b, body(i));
    b.setInsertionPointToStart(branch.elseBlock());
    scf::YieldOp::create(b, emitFrom(emitFrom, i + 1));
    return Values(branch.getResults());
  };
  return emitFrom(emitFrom, 0);
}

// The product of each token's weights, and what is left of the state.
LogicalResult GatherEmitter::prepareWeights() {
  SmallVector<SmallVector<ChunkValue>> factors;
  for (const GatheredState &plan : plans) {
    SmallVector<Value> needed(plan.weights);
    if (plan.fade)
      needed.push_back(plan.fade);
    factors.emplace_back();
    for (Value value : needed) {
      FailureOr<ChunkValue> known = chunk.need(value);
      if (failed(known) || (known->kind != ChunkValue::Rows && known->kind != ChunkValue::Scalar))
        return failure();
      factors.back().push_back(*known);
    }
    weights.push_back(chunk.allocateRows(chunkTokens + 1));
  }
  chunk.sync();
  for (auto [plan, known, column] : llvm::zip(plans, factors, weights)) {
    ArrayRef<ChunkValue> each = known;
    Value fade = plan.fade ? chunk.entryOf(each.back(), ptx.constant(0)) : ptx.number(1);
    if (plan.fade)
      each = each.drop_back();
    chunk.forItems(chunkTokens, [&, column = column](Value local) {
      Value product = ptx.number(1);
      for (const ChunkValue &factor : each)
        product = ptx.multiply(product, chunk.entryOf(factor, local));
      chunk.storeRow(column, local, product);
      chunk.threads.when(ptx.equal(local, 0),
                         [&] { chunk.storeRow(column, ptx.constant(chunkTokens), fade); });
    });
  }
  chunk.dirty = true;
  return success();
}

FailureOr<SharedTile> GatherEmitter::rowsOf(const GatheredState &plan) {
  if (plan.areInput()) {
    auto inputs = chunk.program.argumentsOf(ArgKind::Input);
    unsigned tensor = llvm::find(inputs, plan.rows) - inputs.begin();
    SharedTile tile = chunk.allocate(chunkTokens, plan.countRows(), plan.countRows() + 8, /*isF32=*/false);
    tile.isBf16 = chunk.tensors[tensor].element.isBF16();
    chunk.copyTile(tensor, tile);
    return tile;
  }
  FailureOr<ChunkValue> known = chunk.need(plan.rows);
  if (failed(known) || known->kind != ChunkValue::Tile || known->memory.isF32 || known->scale.base)
    return failure();
  return known->memory;
}

// Keys as f16 where products read them, and rows; what weighs them.
LogicalResult GatherEmitter::prepare() {
  if (failed(chunk.emitArguments(without)))
    return failure();
  for (const GatheredState &plan : plans)
    if (plan.areInput())
      rows.push_back(*rowsOf(plan));
    else
      rows.emplace_back();
  FailureOr<ChunkValue> known = chunk.need(plans.front().keys);
  if (failed(known) || known->kind != ChunkValue::Tile || !known->memory.isSwizzled || known->scale.base)
    return failure();
  keys = LLVM::PtrToIntOp::create(b, b.getI32Type(), known->memory.base);
  for (auto [plan, tile] : llvm::zip(plans, rows)) {
    if (plan.areInput())
      continue;
    FailureOr<SharedTile> own = rowsOf(plan);
    if (failed(own))
      return failure();
    tile = *own;
  }
  ptx.fenceProxy();
  if (failed(prepareWeights()))
    return failure();
  chunk.sync();
  return success();
}

FailureOr<Values> GatherEmitter::emit(Value first, Value count, ValueRange state,
                                      llvm::function_ref<void(ValueRange)> beforeEnd) {
  chunk.startChunk(first, count);
  if (failed(prepare()))
    return failure();
  // 16 of the rows, tokens across, in units of a power of 2 by the largest; last what the state fades by.
  SmallVector<Type> types(chunkTokens / 2 + 1, b.getF32Type());
  Values entries = forOwn(types, [&](size_t i) {
    Values own(chunk.fragments.loadTransposed(rows[i], chunk.slabRow(plans[i].countRows())).entries);
    for (size_t e = 0; e < own.size(); e += 4) {
      std::array<Value, 2> pair = chunk.loadPair(weights[i], ptx.constant(0), chunk.fragments.column(e));
      for (size_t j = e; j < e + 4; ++j)
        own[j] = ptx.multiply(own[j], pair[j % 2]);
    }
    own.push_back(chunk.rowAt(weights[i], ptx.constant(chunkTokens)));
    return own;
  });
  Value fade = entries.pop_back_val();
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
  Pending sums = ptx.product(plans.front().countKeys(), next, steps, /*leftByDepth=*/false,
                             /*rightByDepth=*/true, "f16");
  Operation *last = &*std::prev(b.getInsertionPoint());
  next = ptx.await(0, sums)[0];
  ask = last->getNextNode();
  for (Value &entry : next)
    entry = ptx.multiply(entry, unit);
  beforeEnd(next);
  rows.clear();
  weights.clear();
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
  int64_t warps = rows / 16;
  ChunkShape shape{chunkTokens, warps * int64_t(states.size()), Precision::Tf32};
  Grid grid{shape.warps * 32, 8}, tokenGrid{8, 8};
  entry.threads = grid.threads;
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
  int64_t used = 0;
  StateImages stored(threads, shared, types, warps, used);
  SharedArena arena(used);
  ChunkEmitter chunk(threads, program, access, tensors, shape, arena);
  chunk.fragments.isNarrow = true;
  chunk.slabWarps = warps;
  GatherEmitter gather(threads, states, chunk);
  threads.when(tokens.isPresent, [&] {
    chunk.begin(tokens.head, tokens.heads, tokens.position);
    gather.begin();
    StateImages::Own own = gather.own();
    SmallVector<StateTensor> memory;
    SmallVector<unsigned> numbers;
    for (const GatheredState &state : states) {
      memory.emplace_back(threads, chunk, access, state.state);
      numbers.push_back(llvm::find(arguments, state.state) - arguments.begin());
    }
    SmallVector<Type> entries(memory.front().countEntries(), b.getF32Type());
    Values carried = gather.forOwn(entries, [&](size_t i) {
      return Values(memory[i].load(inputs + params + numbers[i], *firstStateOf(program, numbers[i]), inputs));
    });
    auto recordAt = [&](Value number) {
      return recordOf(threads, access, tokens, chunkTokens, number, i64(entry.recordBytes));
    };
    stored.open(arith::CeilDivUIOp::create(b, tokens.tokens, i64(chunkTokens)), recordAt);
    stored.measure(chunk, own, carried);
    threads.barrier();
    auto loop =
        threads.forLoop(i64(0), tokens.tokens, i64(chunkTokens), carried, [&](Value first, ValueRange state) {
          Value at =
              arith::TruncIOp::create(b, b.getI32Type(), arith::DivUIOp::create(b, first, i64(chunkTokens)));
          stored.store(chunk, own, state, recordAt(at));
          FailureOr<Values> next = gather.emit(first, arith::SubIOp::create(b, tokens.tokens, first), state,
                                               [&](ValueRange after) { stored.measure(chunk, own, after); });
          if (failed(next))
            blame = chunk.blame();
          return failed(next) ? SmallVector<Value>(state) : SmallVector<Value>(*next);
        });
    entry.sharedBytes = arena.highest();
    if (!blame)
      loop = loadAhead(threads, loop, gather.askBefore(), grid.threads, entry.sharedBytes);
    stored.finish();
    ValueRange last = loop.getResults().take_front(carried.size());
    for (auto [i, number] : llvm::enumerate(numbers)) {
      unsigned tensor = tensors.size() - arguments.size() + number;
      Value isOwn = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, own.number, threads.constant(i));
      threads.when(threads.both(isOwn, access.isGiven(tensor)),
                   [&, i = i] { memory[i].store(tensor, last); });
    }
  });
  describeLoops(function.getBody(), "chunks", 1, entry.threads / 32);
  LLVM::ReturnOp::create(b, ValueRange());
  return blame;
}
