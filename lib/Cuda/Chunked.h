// Kernels that take the tokens in chunks, and how they share out a program's work: states first, then the
// outputs of all chunks side by side.
#pragma once
#include "lib/Cuda/ChunkEmitter.h"

namespace recur::cuda {

/// Tokens that a kernel of tokens apart takes at a time.
constexpr int64_t tokensTogether = 4;

/// Which tokens a block of threads works on.
struct Part {
  // i64; `begin` is the first token's place in its batch.
  mlir::Value shard, sequence, begin, head, heads, tokens, position;
  /// False where the sequence's state does not exist.
  mlir::Value isPresent;
  /// Of a sequence that is cut into segments: i32, the block, its segment and their number; i64, the
  /// sequence's tokens before the first one, and all of them; and whether the part's tokens are the
  /// sequence's last.
  mlir::Value block, segment, segments, before, all, isLast;
};

/// Which blocks stand together: those of a sequence's segments; those of all first segments, before those of
/// the second ones or, `LastFirst`, after them; or those of all heads.
enum class BlockOrder { OfSequence, InTurn, LastFirst, HeadsFirst };

/// Finds a block's part and points the tensors at it. Where the call's segments count, they are whole numbers
/// of `grain` tokens, the last ones shorter; the block then begins `later` tokens (i64, or null) after its
/// segment, or before it. `block` is the block's number where that is not the launch's.
Part findPart(Threads &threads, TensorAccess &access, int64_t shards, int64_t slab, int64_t grain = 0,
              BlockOrder order = BlockOrder::OfSequence, mlir::Value later = {}, mlir::Value block = {});

/// The tokens that the workspace has a record for (recur_cuda_entry).
constexpr int64_t tokensOfRecord = 64;

/// Where in the workspace a part's chunk (i32, from 0) of `grain` tokens has a record of so many bytes (i64).
/// Chunks of fewer tokens than 64 share one, which is that much larger.
mlir::Value recordOf(Threads &threads, TensorAccess &access, const Part &part, int64_t grain,
                     mlir::Value chunk, mlir::Value bytes);

/// What a kernel in chunks does: all; or it leaves the states at the start of each chunk in the workspace; or
/// it begins segments of sequences, side by side, with those.
enum class ChunkTask { All, States, Outputs };

/// Emits the body of an entry point that walks the chunks for a task, each of the entry's shards with `slab`
/// rows. States are left in f32 or, those listed by number, as images (StateImages.h). Where the emitter does
/// not know how, it says of what.
std::optional<std::string> emitChunked(mlir::LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                       llvm::ArrayRef<TensorArgument> tensors, const ChunkShape &shape,
                                       int64_t slab, ChunkTask task, Entry &entry,
                                       llvm::ArrayRef<unsigned> images = {});

} // namespace recur::cuda
