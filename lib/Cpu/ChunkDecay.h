// Products of decay factors over the stretches of a chunk.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "lib/Cpu/ChunkBuilder.h"

namespace recur::cpu {

/// The products that a decay's users need, in memory. They are built from factors by multiplication alone,
/// later tokens after earlier ones: so a factor may be 0 or negative, and where logarithms would all be
/// negative, no product is ever larger than its factors. A scalar decay is a cascade of one state.
class ChunkDecay {
public:
  ChunkDecay() = default;
  /// The decay of `factors`, a row per token and a column per channel.
  ChunkDecay(ChunkBuilder &b, chunk::DecayOp op, Matrix factors);
  ChunkDecay(ChunkBuilder &b, chunk::CascadeOp op, llvm::ArrayRef<Matrix> entries);

  bool isScalar() const { return channels == 0; }
  Matrix mask(ChunkBuilder &b, chunk::Reach reach, int64_t to, int64_t from) const;
  Matrix weights(ChunkBuilder &b, chunk::Span span, int64_t to, int64_t from) const;

  /// For a scalar decay: row t, column j is the product over j+1 .. t-1 for j < t, else 0; `length` + 1 rows.
  /// Of a late one, that over j .. t-2: the row after it is what its token sees.
  mlir::Value scalarMask(ChunkBuilder &b) const;

  /// For a decay with channels: its factors, `length` x channels.
  Matrix factors;
  /// Whether a token's factor comes after what it writes.
  bool isLate = false;

private:
  void multiplyStates(ChunkBuilder &b, llvm::ArrayRef<Matrix> entries, bool needsMasks);
  void multiplyChannels(ChunkBuilder &b, bool needsRest);

  int64_t length = 0, states = 1, channels = 0;
  mlir::Value masks;   // [to * states + from][t + 1][j]: the product over j+1 .. t, 0 where j > t; late: over
                       // j .. t-1, and a row more
  mlir::Value through; // [to * states + from][t + 1], or [t + 1][channel]: the product over 0 .. t
  mlir::Value rest;    // [t][channel]: the product over t+1 .. length-1; late: over t .. length-1
};

} // namespace recur::cpu
