// Functions of chunk.substitute that write a sum of vectors, each times a number.
#pragma once
#include "dialect/chunk/Chunk.h"

#include <optional>

namespace recur::cuda {

/// What is written is a sum of vectors of the region, and of one whose entries are all 1, each times a number
/// that is a function of numbers and of inner products of these vectors. So those numbers follow from the
/// inner products between a block's tokens, however large the vectors are.
struct Combination {
  /// The first is what is read times `factor`, or times a number of the token's, plus what is known; the
  /// others are known.
  llvm::SmallVector<mlir::Value, 2> vectors;
  std::optional<double> factor;
  bool hasOnes = false;
  /// By vector, and of that of ones at last: whether it is part of what is written, and whether its inner
  /// product with the first vector is of any use.
  llvm::SmallVector<bool, 3> isWritten, isAsked;

  size_t count() const { return vectors.size() + hasOnes; }
};

/// Nothing where what is written is no such sum.
std::optional<Combination> combinationOf(chunk::SubstituteOp op);

/// The two vectors whose inner product an op is, of which the second is null where the entries of the first
/// are summed; or nulls.
std::pair<mlir::Value, mlir::Value> factorsOfSum(mlir::Operation *op);

} // namespace recur::cuda
