// States whose inverse is affine, for all tokens of a chunk by one chunk.ldl.
#pragma once

#include "lib/Algebra/Inverse.h"
#include "lib/Derive/Group.h"

namespace recur {

/// One such state of a derivation.
class Inverse {
public:
  Inverse(DeriveContext &context, unsigned state) : cx(context), algebra(context.nf, state), state(state) {}

  /// False when the state's inverse is not affine.
  bool recognise();
  /// Appends the factorisation to the program.
  void build();
  /// True when a value of the rule depends on the state.
  bool governs(mlir::Value value) { return algebra.dependsOnState(value); }
  /// The rows of a column that depends on the state; null when they are more than its read by the key,
  /// scaled.
  mlir::Value rows(mlir::Value value);
  /// A key that depends on the state, times what all of the payload has in common and makes gains of it; that
  /// is taken out of the payload.
  mlir::Value absorb(mlir::Value key, llvm::MutableArrayRef<std::pair<Coefficient, Column>> payload);
  /// The inner products of keys with earlier gains, which the factors hold already; null for other vectors.
  mlir::Value gram(mlir::Value vectors, mlir::Value keys);
  /// The state at the chunk's end.
  mlir::Value last() { return factors.getLast(); }

private:
  mlir::Value scaled(const Ratio &c, mlir::Value rows);

  DeriveContext &cx;
  InverseAlgebra algebra;
  unsigned state;
  InverseUpdate update;
  mlir::Value keys, weights;
  chunk::LdlOp factors;
};

} // namespace recur
