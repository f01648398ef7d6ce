// What a rule costs, whatever the form that it is compiled to.
#pragma once

#include "lib/Algebra/NormalForm.h"

namespace recur {

/// The cost of one token of one head. The rule's dimensions are bound.
struct TokenCost {
  /// The floating-point operations that any form needs: two for each entry of a state and each vector that
  /// reads it, is written to it, or reads it out. Decays can be folded into those, and functions of the token
  /// alone are not counted.
  double flops = 0;
  /// Numbers that come in and go out.
  double values = 0;
  /// Numbers that are carried.
  double state = 0;
  /// True when `flops` was counted op by op, because the rule is not affine.
  bool byOps = false;
};

/// The least cost of a rule; `form` is the normal form of the rule or of a copy with its micro-steps
/// unrolled.
TokenCost leastCost(RuleOp rule, const NormalForm &form);

/// Floating-point operations of one run of the ops of a region, multiplications and additions counted apart.
double flopsOf(mlir::Region &region);

/// How many outer products a state's writes come down to: those with one side in common are added first.
size_t outerProducts(const Version &version);

/// Numbers in a value: entries, times micro-steps.
double elementsOf(mlir::Type type);

} // namespace recur
