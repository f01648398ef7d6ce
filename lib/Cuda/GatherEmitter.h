// States that gather (GatherPlan.h) and leave images of what they are at the start of each chunk: a state is
// a block's, 64 of its rows a warpgroup's, and the next chunk's inputs are on their way while one is worked
// on.
#pragma once
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/GatherPlan.h"
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/StateImages.h"
#include "lib/Cuda/StateTensor.h"

namespace recur::cuda {

/// Emits what becomes of a state.
class GatherEmitter {
public:
  GatherEmitter(Threads &threads, const GatheredState &plan, ChunkEmitter &chunk);

  /// One chunk: tokens from `first`, of which `count` are left. Takes the state at its start and gives that
  /// at its end; what is to be done with that before a barrier is `beforeEnd`.
  mlir::FailureOr<Values> emit(mlir::Value first, mlir::Value count, mlir::ValueRange state,
                               llvm::function_ref<void(mlir::ValueRange)> beforeEnd);
  /// The op of the last chunk before which the next one's inputs are best asked for.
  mlir::Operation *askBefore() const { return ask; }

private:
  mlir::LogicalResult prepare();
  mlir::LogicalResult prepareWeights();

  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  const GatheredState &plan;
  ChunkEmitter &chunk;
  /// Arguments of the program that the state does not need, or not as values.
  Values without;
  // Of the chunk.
  SharedTile rows, weights;
  mlir::Value fade, keys;
  mlir::Operation *ask = nullptr;
};

/// Emits the body of an entry point for the states, shard by shard, as a record has them. Where the emitter
/// does not know how, it says of what.
std::optional<std::string> emitGathered(mlir::LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                        llvm::ArrayRef<TensorArgument> tensors,
                                        llvm::ArrayRef<GatheredState> states, Entry &entry);

} // namespace recur::cuda
