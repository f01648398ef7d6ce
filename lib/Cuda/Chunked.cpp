// The kernel around a chunk program: one block of threads walks the chunks of one head of one sequence.
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/Roles.h"
#include "lib/Cuda/Sequential.h"
#include "lib/Cuda/StateImages.h"
#include "lib/Cuda/StateTensor.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

std::optional<std::string> cuda::emitChunked(LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                             ArrayRef<TensorArgument> tensors, const ChunkShape &shape,
                                             int64_t part, ChunkTask task, Entry &entry,
                                             ArrayRef<unsigned> images) {
  ImplicitLocOpBuilder b(program.getLoc(), program.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  Grid grid{shape.warps * 32, 8}, tokenGrid = shape.tokenGrid();
  entry.threads = grid.threads;
  Threads threads(b, grid), tokenThreads(b, tokenGrid);
  TensorAccess access(tokenThreads, function.getArgument(0), tensors, /*packed=*/true);
  Value shared =
      LLVM::AddressOfOp::create(b, function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>(
                                       images.empty() ? StringRef("recur_shared") : StringRef(tilesSymbol)));
  threads.begin(shared, shared);
  tokenThreads.begin({}, {});
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  Part tokens =
      findPart(threads, access, entry.shards, part, task == ChunkTask::Outputs ? tokensOfRecord : 0);
  SmallVector<BlockArgument> arguments = program.argumentsOf(ArgKind::State);
  unsigned inputs = program.argumentsOf(ArgKind::Input).size(),
           params = program.argumentsOf(ArgKind::Param).size();
  unsigned initial = inputs + params, final = tensors.size() - arguments.size();
  SmallVector<FirstState> inits;
  for (size_t i = 0; i < arguments.size(); ++i)
    inits.push_back(*firstStateOf(program, i));
  if (task != ChunkTask::All && !llvm::all_of(arguments, ChunkEmitter::isSlab))
    return std::string("a state of few entries stays with its block, and takes no place in the workspace");
  // Columns of numbers stay in shared memory, before all else.
  SmallVector<SharedTile> columns;
  int64_t used = 0;
  for (Value state : arguments) {
    SharedTile column;
    if (!ChunkEmitter::isSlab(state)) {
      column.rows = 1;
      column.cols = matType(state).numElements();
      column.pitch = llvm::alignTo(column.cols, 4);
      column.isF32 = true;
      column.base = threads.sharedAt(used);
      used += column.bytes();
    }
    columns.push_back(column);
  }
  SmallVector<MatType> imageTypes;
  for (unsigned state : images)
    imageTypes.push_back(matType(arguments[state]));
  std::optional<StateImages> stored;
  if (!images.empty())
    stored.emplace(threads, shared, imageTypes, shape.warps, used);
  SharedArena arena(used);
  ChunkEmitter emitter(threads, program, access, tensors, shape, arena);
  emitter.asksAhead = stored || program.getBlock();
  if (stored && ChunkEmitter::fitsHalves(program))
    emitter.fragments.isNarrow = true;
  LogicalResult status = success();
  // Where a sequence has fewer chunks than segments, some have no record.
  if (task == ChunkTask::Outputs)
    tokens.isPresent = threads.both(
        tokens.isPresent, arith::CmpIOp::create(b, arith::CmpIPredicate::ne, tokens.tokens, i64(0)));
  threads.when(tokens.isPresent, [&] {
    emitter.begin(tokens.head, tokens.heads, tokens.position);
    SmallVector<StateTensor> states;
    SmallVector<Value> carried;
    for (auto [i, argument] : llvm::enumerate(arguments)) {
      states.emplace_back(threads, emitter, access, argument);
      if (states[i].isSlab) {
        if (task == ChunkTask::Outputs)
          carried.append(states[i].countEntries(), Value());
        else
          llvm::append_range(carried, states[i].load(initial + i, inits[i], inputs));
        continue;
      }
      auto given = scf::IfOp::create(b, access.isGiven(initial + i), true);
      OpBuilder::InsertionGuard guard(b);
      for (Block *block : {given.thenBlock(), given.elseBlock()}) {
        b.setInsertionPoint(block->getTerminator());
        emitter.forItems(states[i].size(), [&, i = i](Value item) {
          Value entry =
              block == given.thenBlock()
                  ? LLVM::LoadOp::create(b, b.getF32Type(), states[i].address(initial + i, item)).getResult()
                  : states[i].first(inits[i], inputs, item);
          LLVM::StoreOp::create(b, entry, emitter.fragments.address(columns[i], threads.constant(0), item));
        });
      }
    }
    auto recordAt = [&](Value first, int64_t bytes) {
      if (task == ChunkTask::States)
        entry.recordBytes = bytes;
      Value chunk = arith::DivUIOp::create(b, first, i64(tokensOfRecord));
      return recordOf(threads, access, tokens, tokensOfRecord,
                      arith::TruncIOp::create(b, b.getI32Type(), chunk), i64(bytes));
    };
    // A record is what the threads have of all states, number by number.
    auto forRecord = [&](Value first, llvm::function_ref<void(size_t, Value)> body) {
      Value record = recordAt(first, carried.size() * grid.threads * 4 * entry.shards);
      Value own = arith::AddIOp::create(
          b, NVVM::ThreadIdXOp::create(b, b.getI32Type()),
          arith::MulIOp::create(b, arith::TruncIOp::create(b, b.getI32Type(), tokens.shard),
                                threads.constant(carried.size() * grid.threads)));
      for (size_t e = 0; e < carried.size(); ++e) {
        Value at = arith::AddIOp::create(b, own, threads.constant(e * grid.threads));
        body(e, LLVM::GEPOp::create(b, record.getType(), b.getF32Type(), record, at));
      }
    };
    if (task == ChunkTask::Outputs)
      forRecord(i64(0),
                [&](size_t e, Value at) { carried[e] = LLVM::LoadOp::create(b, b.getF32Type(), at); });
    auto imagesAt = [&](Value first) -> Value {
      int64_t bytes = StateImages::recordBytes(imageTypes);
      Value record = recordAt(first, bytes * entry.shards);
      return LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                                 ValueRange{arith::MulIOp::create(b, tokens.shard, i64(bytes))});
    };
    if (stored)
      stored->open(arith::CeilDivUIOp::create(b, tokens.tokens, i64(tokensOfRecord)), [&](Value chunk) {
        Value wide = arith::ExtUIOp::create(b, b.getI64Type(), chunk);
        return imagesAt(arith::MulIOp::create(b, wide, i64(tokensOfRecord)));
      });
    threads.barrier();
    auto split = [&](ValueRange entries) {
      SmallVector<ChunkValue> parts;
      for (auto [i, argument] : llvm::enumerate(arguments)) {
        if (!states[i].isSlab) {
          parts.push_back(ChunkValue::column(columns[i]));
          parts.back().dim = isOne(matType(argument).getRows()) && !isOne(matType(argument).getCols());
          continue;
        }
        parts.push_back(states[i].slab(entries.take_front(states[i].countEntries())));
        entries = entries.drop_front(states[i].countEntries());
      }
      return parts;
    };
    auto storeImages = [&](Value first, ArrayRef<ChunkValue> parts) {
      SmallVector<ChunkValue> chosen;
      for (unsigned state : images)
        chosen.push_back(parts[state]);
      stored->store(emitter, chosen, imagesAt(first));
    };
    auto startsRecord = [&](Value first) -> Value {
      Value within = arith::RemUIOp::create(b, first, i64(tokensOfRecord));
      return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, within, i64(0));
    };
    // Chunks that are blocks begin where the position is a multiple of their size: the first is what is left.
    Value passed, end = tokens.tokens;
    int64_t step = program.getBlock().value_or(shape.tokens);
    if (program.getBlock()) {
      passed = arith::RemUIOp::create(b, tokens.position, i64(step));
      end = arith::AddIOp::create(b, end, passed);
    }
    auto loop = threads.forLoop(i64(0), end, i64(step), carried, [&](Value first, ValueRange state) {
      if (passed)
        first = arith::SubIOp::create(b, arith::MaxSIOp::create(b, first, passed), passed);
      Value left = arith::SubIOp::create(b, tokens.tokens, first);
      SmallVector<ChunkValue> parts = split(state);
      if (task == ChunkTask::States)
        threads.when(startsRecord(first), [&] {
          if (stored)
            return storeImages(first, parts);
          forRecord(first, [&](size_t e, Value at) { LLVM::StoreOp::create(b, state[e], at); });
        });
      status = emitter.emit(first, left, parts);
      SmallVector<Value> next;
      for (const ChunkValue &value : parts)
        llvm::append_range(next, value.entries);
      return failed(status) ? SmallVector<Value>(state) : next;
    });
    SmallVector<ChunkValue> last = split(loop.getResults());
    if (stored)
      stored->finish();
    if (task == ChunkTask::Outputs)
      return;
    for (auto [i, state] : llvm::enumerate(states))
      threads.when(access.isGiven(final + i), [&, i = i, &state = state] {
        if (state.isSlab)
          return state.store(final + i, last[i].entries);
        emitter.forItems(state.size(), [&](Value item) {
          Value entry = LLVM::LoadOp::create(
              b, b.getF32Type(), emitter.fragments.address(columns[i], threads.constant(0), item));
          LLVM::StoreOp::create(b, entry, state.address(final + i, item));
        });
      });
  });
  describeLoops(function.getBody(), "chunks", 1, entry.threads / 32);
  LLVM::ReturnOp::create(b, ValueRange());
  entry.sharedBytes = arena.highest();
  if (program.getBlock()) // functions of tokens are most of what their few tokens wait for
    relaxMath(function, tensors);
  return failed(status) ? std::optional(emitter.blame()) : std::nullopt;
}
