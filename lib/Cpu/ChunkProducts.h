// Products between the tokens of a chunk, of which only one triangle is wanted.
#pragma once
#include "lib/Cpu/ChunkDecay.h"

namespace recur::cpu {

/// Inner products of the rows of `lhs` and `rhs` (length x columns) through a decay, null for none: see
/// chunk.gram. Returns length x length memory.
mlir::Value emitGram(ChunkBuilder &b, const Matrix &lhs, const Matrix &rhs, const ChunkDecay *decay,
                     chunk::Reach reach);

/// Adds scores * values to the rows of `result`; `scores` are 0 above the diagonal.
void emitTriangularProduct(ChunkBuilder &b, mlir::Value scores, mlir::Value values, mlir::Value result);

/// The same with the values decaying between the tokens, channel by channel: see chunk.mix. Overwrites
/// `result`.
void emitMix(ChunkBuilder &b, mlir::Value scores, mlir::Value values, mlir::Value factors, chunk::Reach reach,
             mlir::Value result);

/// Solves the system of chunk.tri_solve in place of its right sides, by substitution. Blocks that are null
/// are 0; `factors` is empty or has one for each side, `decays` is null where the values do not decay.
void emitTriangularSolve(ChunkBuilder &b, llvm::ArrayRef<mlir::Value> blocks,
                         llvm::ArrayRef<mlir::Value> sides, llvm::ArrayRef<mlir::Value> factors,
                         mlir::Value decays, chunk::Reach reach);

} // namespace recur::cpu
