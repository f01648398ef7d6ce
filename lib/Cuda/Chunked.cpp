// The kernel around a chunk program: one block of threads walks the chunks of one head of one sequence.
#include "lib/Cuda/Chunked.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The addresses of a thread's entries of the state, in the order of its fragment.
static SmallVector<Value> stateAddresses(Threads &threads, Fragments &fragments, TensorAccess &access, unsigned tensor,
                                         int dim, int64_t keys) {
  ImplicitLocOpBuilder &b = threads.b;
  SmallVector<Value> addresses;
  for (int64_t e = 0; e < keys / 2; ++e) {
    Value row = arith::AddIOp::create(b, fragments.row(e),
                                      arith::MulIOp::create(b, fragments.warp, threads.constant(16)));
    Value key = fragments.column(e);
    addresses.push_back(access.entry(tensor, dim ? key : row, dim ? row : key));
  }
  return addresses;
}

LogicalResult cuda::emitChunked(LLVM::LLVMFuncOp function, chunk::ProgramOp program, ArrayRef<TensorArgument> tensors,
                                int64_t sharedLimit, int64_t part, Entry &entry) {
  ImplicitLocOpBuilder b(program.getLoc(), program.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  int dim = ChunkEmitter::stateDim(program);
  MatType stateType = matType(program.argumentsOf(ArgKind::State).front());
  int64_t slab = dim ? stateType.numCols() : stateType.numRows(), keys = stateType.numElements() / slab;
  int64_t warps = slab / 16;
  Grid grid{warps * 32, 8}, tokenGrid{8, 8};
  entry.threads = grid.threads;
  Threads threads(b, grid), tokenThreads(b, tokenGrid);
  threads.sharedLimit = sharedLimit;
  TensorAccess access(tokenThreads, function.getArgument(0), tensors, /*packed=*/true);
  Value shared = LLVM::AddressOfOp::create(
      b, function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>("recur_shared"));
  threads.begin(shared, shared);
  tokenThreads.begin({}, {});
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  Part tokens = findPart(threads, access, entry.shards, part);
  ChunkEmitter emitter(threads, program, access, tensors, warps);
  unsigned inputs = program.argumentsOf(ArgKind::Input).size(), params = program.argumentsOf(ArgKind::Param).size();
  unsigned initial = inputs + params, final = tensors.size() - 1;
  double init = program.getInit().front().getTerminator()->getOperand(0).getDefiningOp<ConstantOp>().getValue()
                    .convertToDouble();
  LogicalResult status = success();
  threads.when(tokens.isPresent, [&] {
    emitter.begin(tokens.head, tokens.heads, tokens.position);
    SmallVector<Type> types(keys / 2, b.getF32Type());
    auto given = scf::IfOp::create(b, types, access.isGiven(initial), true);
    {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(given.thenBlock());
      SmallVector<Value> entries;
      for (Value address : stateAddresses(threads, emitter.fragments, access, initial, dim, keys))
        entries.push_back(LLVM::LoadOp::create(b, b.getF32Type(), address));
      scf::YieldOp::create(b, entries);
      b.setInsertionPointToStart(given.elseBlock());
      scf::YieldOp::create(b, SmallVector<Value>(keys / 2, threads.number(init)));
    }
    auto loop = threads.forLoop(i64(0), tokens.tokens, i64(chunkTokens), given.getResults(),
                                [&](Value first, ValueRange state) {
                                  Value left = arith::SubIOp::create(b, tokens.tokens, first);
                                  FailureOr<SmallVector<Value>> next = emitter.emit(first, left, state);
                                  if (succeeded(next))
                                    return *next;
                                  status = failure();
                                  return SmallVector<Value>(state);
                                });
    threads.when(access.isGiven(final), [&] {
      auto addresses = stateAddresses(threads, emitter.fragments, access, final, dim, keys);
      for (auto [address, value] : llvm::zip(addresses, loop.getResults()))
        LLVM::StoreOp::create(b, value, address);
    });
  });
  LLVM::ReturnOp::create(b, ValueRange());
  entry.sharedBytes = threads.sharedBytes;
  return threads.scratchBytes ? failure() : status;
}
