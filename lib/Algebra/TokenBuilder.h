// Builds token-only values and finds equal ones: two equal expressions are one SSA value.
#pragma once

#include "lib/Algebra/NormalForm.h"

namespace recur {

/// Appends ops to a rule's body, each only if the body does not have it yet.
class TokenBuilder {
public:
  explicit TokenBuilder(RuleOp rule);

  /// The product of a chain of factors as a value of that type.
  mlir::Value chain(mlir::Location loc, MatType type, llvm::ArrayRef<Factor> factors);
  /// The scalar 1, a column of ones.
  mlir::Value one(mlir::Location loc);
  mlir::Value ones(mlir::Location loc, mlir::Attribute size);
  /// The coefficient as a scalar; null when it is 1.
  mlir::Value scalar(mlir::Location loc, const Coefficient &c);
  /// The sum of values of one type, each with its coefficient.
  mlir::Value sum(mlir::Location loc, llvm::ArrayRef<std::pair<Coefficient, mlir::Value>> parts);
  mlir::Value transpose(mlir::Location loc, mlir::Value value);
  mlir::Value multiply(mlir::Location loc, mlir::Value lhs, mlir::Value rhs);
  mlir::Value reciprocal(mlir::Location loc, mlir::Value value);

  /// Multiplies `c` by a token-only scalar, taken apart into factors.
  void multiply(Coefficient &c, mlir::Value scalar);
  void multiply(Coefficient &c, const Coefficient &other);

private:
  // Runs `make`, which appends ops, and replaces those that the body has already; returns what stands for its
  // value.
  template <typename MakeFn>
  mlir::Value intern(MakeFn make);
  unsigned order(mlir::Value value) { return orders.try_emplace(value, orders.size()).first->second; }

  struct OpInfo : llvm::DenseMapInfo<mlir::Operation *> {
    static unsigned getHashValue(const mlir::Operation *op);
    static bool isEqual(const mlir::Operation *lhs, const mlir::Operation *rhs);
  };

  mlir::OpBuilder builder;
  mlir::Operation *terminator;
  llvm::DenseSet<mlir::Operation *, OpInfo> known;
  llvm::DenseMap<mlir::Value, unsigned> orders;
};

} // namespace recur
