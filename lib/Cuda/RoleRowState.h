// What a warp knows while it computes the numbers of a chunk's tokens.
#pragma once
#include "lib/Cuda/Roles.h"

namespace recur::cuda {

/// Products of the transitions of two coupled states, row by row: without an entry it is zero.
using Transition = std::array<mlir::Value, 4>;

/// What a lane knows of them, for its two tokens: what the block of 16 tokens multiplies with until and
/// through the token and after it; and what whole blocks do.
struct RoleEmitter::Transitions {
  std::array<Transition, 2> own, untilInBlock, throughInBlock, restInBlock;
  Transition blocks[4];
};

struct RoleEmitter::RowState {
  RowState(const TensorAccess &access, Stage stage) : access(access), stage(stage) {}
  TensorAccess access;
  Stage stage;
  mlir::Value chunk;
  mlir::Value left; // of the sequence's tokens, from the chunk's first
  // Of the lane's two rows: their tokens, in the chunk and in the sequence, their micro-steps (null where
  // tokens have none), whether they are of the sequence.
  mlir::Value locals[2], tokens[2], steps[2], valid[2];
  llvm::DenseMap<mlir::Value, std::array<mlir::Value, 2>> known, reciprocals;
  /// What is known of the tokens after them.
  llvm::DenseMap<mlir::Value, std::array<mlir::Value, 2>> knownOfNext;
  llvm::DenseMap<mlir::Value, Transitions> transitions;
  llvm::DenseMap<mlir::Value, std::array<mlir::Value, 3>>
      sums; // of a decay's logarithms: both tokens', the chunk's
  /// Of signs, as bits: their products through both tokens, until both, of all.
  llvm::DenseMap<mlir::Value, std::array<mlir::Value, 5>> signs;
};

} // namespace recur::cuda
