// Kernels that take the tokens in chunks.
#pragma once
#include "lib/Cuda/ChunkEmitter.h"

namespace recur::cuda {

/// Which tokens a block of threads works on.
struct Part {
  // i64; `begin` is the first token's place in its batch.
  mlir::Value shard, sequence, begin, head, heads, tokens, position;
  /// False where the sequence's state does not exist.
  mlir::Value isPresent;
  /// Of a sequence that is cut into segments: i32, the block, its segment and their number; i64, the sequence's tokens
  /// before the first one, and all of them; and whether the part's tokens are the sequence's last.
  mlir::Value block, segment, segments, before, all, isLast;
};

/// Finds a block's part and points the tensors at it. Where the call's segments count, they are whole numbers
/// of `grain` tokens, the last ones shorter; the block then begins `later` tokens (i64, or null) after its segment, or
/// before it. Blocks of a sequence's segments stand together or, `inTurn`, all first segments before the second ones.
Part findPart(Threads &threads, TensorAccess &access, int64_t shards, int64_t slab, int64_t grain = 0,
              mlir::Value later = {}, bool inTurn = false);

/// Emits the body of an entry point that walks the chunks, each of the entry's shards with `slab` rows. Where
/// the emitter does not know how, it says of what.
std::optional<std::string> emitChunked(mlir::LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                       llvm::ArrayRef<TensorArgument> tensors, const ChunkShape &shape,
                                       int64_t slab, Entry &entry);

} // namespace recur::cuda
