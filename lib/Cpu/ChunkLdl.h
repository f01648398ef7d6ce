// The factors of an inverse, for the tokens of a chunk: see chunk.ldl.
#pragma once
#include "lib/Cpu/ChunkBuilder.h"

namespace recur::cpu {

/// The memory of one chunk.ldl, all f32 but the state. Results that are null are not wanted.
struct LdlMemory {
  mlir::Value state;                    // n x n of f64, replaced by P_C
  mlir::Value keys;                     // length x n
  mlir::Value decays, weights, offsets; // length x 1
  mlir::Value lower;                    // length x length
  mlir::Value reads, gains;             // length x n
  mlir::Value denominators;             // length x 1
};

/// Everything in f64. `length` is a multiple of the builder's panel.
void emitLdl(ChunkBuilder &b, const LdlMemory &memory);

/// Two-dimensional memory of its own with the entries as f64, or as f32.
mlir::Value emitConverted(ChunkBuilder &b, mlir::Value memory, mlir::Type entry);

} // namespace recur::cpu
