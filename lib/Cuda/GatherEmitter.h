// States that gather (GatherPlan.h) and leave images of what they are at the start of each chunk. One block
// has all states of a head, each warp 16 rows of one of them, and the next chunk's inputs are on their way
// while one is worked on.
#pragma once
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/GatherPlan.h"
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/StateImages.h"

namespace recur::cuda {

/// Emits what becomes of the states.
class GatherEmitter {
public:
  GatherEmitter(Threads &threads, llvm::ArrayRef<GatheredState> plans, ChunkEmitter &chunk);

  /// Emits what is needed once.
  void begin();
  /// The warp's state.
  StateImages::Own own();
  /// Emits for each state what its warps compute, and gives that.
  Values forOwn(mlir::TypeRange types, llvm::function_ref<Values(size_t)> body);
  /// One chunk: tokens from `first`, of which `count` are left. Takes the state at its start and gives that
  /// at its end; what is to be done with that before a barrier is `beforeEnd`.
  mlir::FailureOr<Values> emit(mlir::Value first, mlir::Value count, mlir::ValueRange state,
                               llvm::function_ref<void(mlir::ValueRange)> beforeEnd);

  /// The op of the last chunk before which the next one's inputs are best asked for.
  mlir::Operation *askBefore() const { return ask; }

private:
  mlir::LogicalResult prepare();
  mlir::FailureOr<SharedTile> rowsOf(const GatheredState &plan);
  mlir::LogicalResult prepareWeights();

  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  llvm::ArrayRef<GatheredState> plans;
  ChunkEmitter &chunk;
  /// Arguments of the program that no state needs, or not as values.
  Values without;
  mlir::Value number; // of the warp's state
  // Of the chunk; weights of each token and, behind them, what the state fades by.
  llvm::SmallVector<SharedTile> rows, weights;
  mlir::Value keys;
  mlir::Operation *ask = nullptr;
};

/// Emits the body of an entry point for the states, in the order of a record's images. Where the emitter does
/// not know how, it says of what.
std::optional<std::string> emitGathered(mlir::LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                        llvm::ArrayRef<TensorArgument> tensors,
                                        llvm::ArrayRef<GatheredState> states, Entry &entry);

} // namespace recur::cuda
