// Sums whose like terms stand once.
#pragma once

#include "dialect/recur/Recur.h"
#include "llvm/ADT/MapVector.h"

namespace recur {

/// Whether two numbers, null for 1, are products of the same factors, in any order.
bool isSameNumber(mlir::Value x, mlir::Value y);
/// What a number that has all factors of another one is times that, null for 1; failure where it lacks some.
mlir::FailureOr<mlir::Value> quotientOf(mlir::OpBuilder &b, mlir::Location loc, mlir::Value number,
                                        mlir::Value by);

/// A value as a sum of other ones, each times a number.
class LinearSum {
public:
  using Predicate = llvm::function_ref<bool(mlir::Value)>;

  /// Opens sums, negations and products with what `isNumber` says is a number, but no `isLeaf`. Terms that
  /// cancel are gone.
  LinearSum(mlir::OpBuilder &b, mlir::Value sum, Predicate isNumber, Predicate isLeaf = nullptr);

  /// Whether a value stood in it more than once.
  bool hasLikeTerms() const { return likeTerms; }
  bool isTerm(mlir::Value value) const { return terms.contains(value); }
  /// The values, each with the number that it is times, null for 1.
  llvm::SmallVector<std::pair<mlir::Value, mlir::Value>> build();
  /// The sum in which each value stands once, times a sum of numbers.
  mlir::Value buildSum();

private:
  void add(mlir::Value value, mlir::Value number, bool isNegative, Predicate isNumber, Predicate isLeaf);

  mlir::Value sumOf(llvm::ArrayRef<std::pair<mlir::Value, bool>> numbers);

  mlir::OpBuilder &b;
  mlir::Value sum;
  bool likeTerms = false;
  // By value its numbers, null for 1, and whether they are subtracted.
  llvm::MapVector<mlir::Value, llvm::SmallVector<std::pair<mlir::Value, bool>>> terms;
  llvm::DenseMap<std::pair<mlir::Value, mlir::Value>, mlir::Value> products; // of two numbers
};

} // namespace recur
