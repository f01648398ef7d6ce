// Sums whose like terms stand once.
#pragma once

#include "dialect/recur/Recur.h"
#include "llvm/ADT/MapVector.h"

namespace recur {

/// A value as a sum of other ones, each times a number.
class LinearSum {
public:
  /// Opens sums, negations and products with what `isNumber` says is a number.
  LinearSum(mlir::OpBuilder &b, mlir::Value sum, llvm::function_ref<bool(mlir::Value)> isNumber);

  /// Whether a value stands in it more than once.
  bool hasLikeTerms() const;
  /// The sum in which each value stands once, times a sum of numbers.
  mlir::Value build();

private:
  void add(mlir::Value value, mlir::Value number, bool isNegative);

  mlir::OpBuilder &b;
  mlir::Location loc;
  llvm::function_ref<bool(mlir::Value)> isNumber;
  // By value its numbers, null for 1, and whether they are subtracted.
  llvm::MapVector<mlir::Value, llvm::SmallVector<std::pair<mlir::Value, bool>>> terms;
};

} // namespace recur
