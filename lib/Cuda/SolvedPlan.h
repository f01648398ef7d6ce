// Readouts of what conjugate gradients find, in the form that warpgroups compute: every product is one with a
// state or one with the chunk's own rows.
#pragma once
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

/// Whether rows are divided by their norm, or declared so.
bool areUnitRows(mlir::Value rows);
/// Whether a decay is of a number for each token, and at most 1.
bool onlyDecays(mlir::Value decay);
/// Whether a value is a number for each token.
bool isTokenColumn(mlir::Value value);
/// Whether a value is computed from another one, or is it.
bool dependsOn(mlir::Value value, mlir::Value source);

/// What rows P of tokens are multiplied with: weights .* P * state + (gram of P, weighed) * values +
/// diagonals .* P.
struct SolvedProduct {
  /// The state, whose independent indices are the result's columns.
  mlir::BlockArgument state;
  /// Of each token, a column; null: 1.
  mlir::Value weights;
  chunk::GramOp gram;
  /// Rows of tokens, and a column that they are multiplied with or null.
  mlir::Value values, scale;
  /// Rows and numbers, of which null is 1.
  llvm::SmallVector<mlir::Value> diagonals;
};

/// A program whose only output is a product of what conjugate gradients find.
struct SolvedPlan {
  chunk::ConjugateGradientsOp solve;
  SolvedProduct product, readout;

  /// The plan, if the program is one and its sizes are those of products of warpgroups.
  static std::optional<SolvedPlan> find(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors);
  /// The states that it reads, by number.
  llvm::SmallVector<unsigned> images() const;
  int64_t keys() const { return matType(product.state).numRows(); }
  int64_t rows() const { return mlir::cast<mlir::IntegerAttr>(matType(readout.values).getCols()).getInt(); }
};

} // namespace recur::cuda
