// What declared ranges and norms tell of values: intervals of reals, and of lengths.
#pragma once

#include "dialect/recur/Recur.h"

namespace recur {

/// What rounding in a spec's constants may add to 1.
constexpr double constantSlack = 1e-6;

/// An interval of reals; what is not known is unbounded.
struct Interval {
  double lo = -std::numeric_limits<double>::infinity(), hi = std::numeric_limits<double>::infinity();

  /// The range of a value's entries, as far as it is known.
  static Interval of(mlir::Value value);
  double magnitude() const;
  Interval operator*(Interval other) const;
  Interval operator-() const { return {-hi, -lo}; }
  bool within(double least, double most) const {
    return lo >= least - constantSlack && hi <= most + constantSlack;
  }
};

/// The range of what lies between two values, as a*x + (1 - a)*y does with a in [0, 1]: that of both; null
/// where a sum is none such. `rangeOf` gives the ranges of values that it is made of, or null.
RangeAttr rangeOfMean(AddOp sum, llvm::function_ref<RangeAttr(mlir::Value)> rangeOf);

/// Of a part of a rule, and its chunk program: a dictionary of what bounds the norms of inputs that are made
/// by others.
constexpr llvm::StringLiteral normsAttr = "recur.norms";

/// Bounds of the Euclidean norm of a vector; operations below `depth` are not looked at.
Interval normOf(mlir::Value value, unsigned depth = 8);

/// Whether a vector is that of positive numbers divided by their sum, as softmax makes them.
bool areShares(mlir::Value vector);

/// Appends the factors of a product of entries.
void flattenProduct(mlir::Value value, llvm::SmallVectorImpl<mlir::Value> &factors);

/// Whether a number is the sum of a vector's squares.
bool isSquareOf(mlir::Value value, mlir::Value vector);

/// Whether a product of numbers is that of an implicit step, b / (p + b |k|^2) with a p above 0: times |k|^2
/// it is less than 1, whatever the key.
bool isImplicitStep(llvm::ArrayRef<mlir::Value> factors, mlir::Value key);

} // namespace recur
