// States that fade by a number a token and gather products of rows: what one has at a chunk's end takes one
// product of what the chunk's tokens have, and nothing of other states.
#pragma once
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

/// A state S that becomes fade * S + (weights .* rows)^T * keys, where `rows` has its independent indices.
struct GatheredState {
  mlir::BlockArgument state;
  /// Rows of a norm of at most 1; and such, or an input.
  mlir::Value keys, rows;
  /// Columns of tokens.
  llvm::SmallVector<mlir::Value> weights;
  /// A number; null: 1.
  mlir::Value fade;

  /// What a program's state is, if that is all that becomes of it and sizes are those of products of
  /// warpgroups.
  static std::optional<GatheredState> find(chunk::ProgramOp program, unsigned state,
                                           llvm::ArrayRef<TensorArgument> tensors);
  /// The state's independent indices, and the others.
  int64_t countRows() const { return countColumns(rows); }
  int64_t countKeys() const { return countColumns(keys); }
  /// Whether the rows are an input as it is.
  bool areInput() const { return mlir::isa<mlir::BlockArgument>(rows) && rows != keys; }

private:
  static int64_t countColumns(mlir::Value tokens) {
    return mlir::cast<mlir::IntegerAttr>(matType(tokens).getCols()).getInt();
  }
};

/// All states of a program in the order of `numbers`; none if one is not of this kind, or has other keys than
/// the others.
llvm::SmallVector<GatheredState> findGathered(chunk::ProgramOp program, llvm::ArrayRef<unsigned> numbers,
                                              llvm::ArrayRef<TensorArgument> tensors);

} // namespace recur::cuda
