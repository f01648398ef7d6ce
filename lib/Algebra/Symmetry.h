// Which matrices equal their transposes, as far as their form tells.
#pragma once

#include "lib/Algebra/Terms.h"

namespace recur {

/// Knows the states of a rule that start symmetric and that every token leaves so, and what is made of them.
class Symmetry {
public:
  explicit Symmetry(RuleOp rule);

  /// True for scalars, too.
  bool isSymmetric(mlir::Value value);

private:
  bool find(mlir::Value value);
  llvm::SmallVector<Term> summands(mlir::Value value);
  llvm::SmallVector<Term> findSummands(mlir::Value value);
  /// Whether a sum of products is the same one when it is read from right to left.
  bool isPalindrome(llvm::ArrayRef<Term> terms);
  bool areEqual(const Term &a, const Term &b);

  llvm::DenseSet<mlir::Value> states; // that are symmetric
  llvm::DenseMap<mlir::Value, bool> known;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<Term>> sums;
};

/// The linear systems of a rule whose matrices are not seen to be symmetric; their solvers take them for it.
llvm::SmallVector<SolveOp> findUnsymmetricSystems(RuleOp rule);

} // namespace recur
