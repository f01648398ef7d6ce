// States whose inverse is affine.
//
// A symmetric state P that a token changes by its own read, P' = (P - P k (P k)T w / (e + w kT P k)) / a, is
// no affine function of itself; its inverse is: P'^-1 = a (P^-1 + (w / e) k kT). All denominators of a chunk
// then come from one factorisation (chunk.ldl). Found by multiplying out: the spelling does not matter.
#pragma once

#include "lib/Algebra/TokenBuilder.h"

namespace recur {

/// number * product of `up` / product of `down`: token-only scalars, sorted, none in both.
struct Ratio {
  double number = 1;
  llvm::SmallVector<mlir::Value, 2> up, down;
};

/// What a token does to a state whose inverse is affine.
struct InverseUpdate {
  unsigned state = 0;        // index among the rule's states
  mlir::Value key;           // token-only column
  Ratio decay, weight;       // a and w
  std::vector<Ratio> offset; // e, a sum
};

/// coefficient * (kT P k)^inner / (e + w kT P k)^over * (P k, or a token-only column, or 1 where that is
/// null).
struct InverseTerm {
  Ratio c;
  unsigned inner = 0, over = 0;
  bool reads = false;
  mlir::Value column;
};

/// Multiplies out what depends on one state of a rule. Token-only values may be appended to the rule's body.
class InverseAlgebra {
public:
  InverseAlgebra(const NormalForm &nf, unsigned state);

  /// The state's update when it has the form above, and a symmetric initial value.
  std::optional<InverseUpdate> recognise();
  /// A column or scalar as a sum of terms; only after an update was recognised.
  std::optional<std::vector<InverseTerm>> terms(mlir::Value value);
  bool dependsOnState(mlir::Value value);

  void multiply(Ratio &ratio, const Ratio &other, bool inverse = false);
  /// The ratio as a token-only scalar in the rule's body.
  mlir::Value build(const Ratio &ratio);

private:
  using Chain = llvm::SmallVector<Factor, 4>;
  /// c * inner[0] * inner[1] * .. / (over[0] * ..) * chain; what is in `inner` is 1 x 1 and reads the state,
  /// what is in `over` depends on it. An empty chain is the identity, or 1.
  struct Product {
    Ratio c;
    llvm::SmallVector<Chain, 1> inner;
    llvm::SmallVector<mlir::Value, 1> over;
    Chain chain;
  };
  using Products = std::vector<Product>;

  std::optional<Products> expand(mlir::Value value);
  std::optional<Products> expandToken(mlir::Value value);
  std::optional<Products> expandProduct(mlir::Value lhs, mlir::Value rhs, bool transposeLhs);
  void takeScalarsOut(Product &product);
  void scalar(Ratio &ratio, mlir::Value value, bool inverse = false);
  void merge(Products &products);
  bool isQuadratic(const Chain &chain) const;
  /// d as a sum e + w kT P k.
  bool denominator(mlir::Value value, Ratio &weight, std::vector<Ratio> &offset);
  void simplify(std::vector<InverseTerm> &terms);
  unsigned order(mlir::Value value) { return orders.try_emplace(value, orders.size()).first->second; }

  RuleOp rule;
  TokenBuilder tokens;
  mlir::Value state;
  InverseUpdate update;
  llvm::DenseMap<mlir::Value, bool> dependent;
  llvm::DenseMap<mlir::Value, unsigned> orders;
};

} // namespace recur
