// What the front end knows of a value: its shape and the interval it lies in.
#pragma once
#include "llvm/ADT/StringRef.h"
#include <limits>
#include <string>

namespace recur::frontend {

/// One extent of a value: an integer, or a symbol that --bind gives a value.
struct Dim {
  llvm::StringRef symbol; // empty: the extent is `value`
  int64_t value = 1;

  bool isOne() const { return symbol.empty() && value == 1; }
  bool isSymbol() const { return !symbol.empty(); }
  std::string str() const { return isSymbol() ? symbol.str() : std::to_string(value); }
  bool operator==(const Dim &other) const {
    return symbol == other.symbol && (isSymbol() || value == other.value);
  }
  bool operator!=(const Dim &other) const { return !(*this == other); }
};

/// The name of the extent "tokens of the sequence", or of the block: rows of Q, both extents of M.
inline constexpr llvm::StringLiteral tokenDim = "T";

/// Every value is a matrix: a scalar is 1 x 1, a vector n x 1. A diag is n x n with n entries stored.
struct Shape {
  Dim rows, cols;
  bool diag = false;

  bool isScalar() const { return rows.isOne() && cols.isOne(); }
  bool isVector() const { return !rows.isOne() && cols.isOne(); }
  bool operator==(const Shape &o) const { return rows == o.rows && cols == o.cols && diag == o.diag; }
  bool operator!=(const Shape &o) const { return !(*this == o); }
  /// As a declaration writes it: "scalar", "vector(dk)", "matrix(dv, dk)", "diag(n)".
  std::string str() const;
};

/// A set of numbers, written "[0, 1)". The whole line by default.
struct Interval {
  double lo = -std::numeric_limits<double>::infinity();
  double hi = std::numeric_limits<double>::infinity();
  bool loOpen = false;
  bool hiOpen = false;

  bool isEverything() const;
  bool isEmpty() const { return lo > hi || (lo == hi && (loOpen || hiOpen)); }
  bool contains(double x) const { return (loOpen ? x > lo : x >= lo) && (hiOpen ? x < hi : x <= hi); }
  bool operator==(const Interval &o) const {
    return lo == o.lo && hi == o.hi && loOpen == o.loOpen && hiOpen == o.hiOpen;
  }
  std::string str() const;
};

/// A number as a person would write it: "0.5", "1e-06", "inf".
std::string formatNumber(double value);

} // namespace recur::frontend
