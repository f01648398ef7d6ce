// Kernels in chunks that share out a program's work: states first, then the outputs of all chunks side by side.
#pragma once
#include "lib/Cuda/Chunked.h"

namespace recur::cuda {

/// Where in the workspace a part's chunk (i32, from 0) of `grain` tokens has a record of so many bytes (i64); see
/// recur_cuda_entry.
mlir::Value recordOf(Threads &threads, TensorAccess &access, const Part &part, int64_t grain, mlir::Value chunk,
                     mlir::Value bytes);

/// What a kernel in chunks does: all; or it leaves the states at the start of each chunk in the workspace; or it begins
/// segments of sequences, side by side, with those.
enum class ChunkTask { All, States, Outputs };

/// As emitChunked, which does all, for one task.
std::optional<std::string> emitChunkTask(mlir::LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                         llvm::ArrayRef<TensorArgument> tensors, const ChunkShape &shape,
                                         int64_t slab, ChunkTask task, Entry &entry);

} // namespace recur::cuda
