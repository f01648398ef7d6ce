// Steps that are divided by their key's squared norm, as steps along keys of norm 1:
//
//     b/s * (v - S*k) * kT, s = |k|^2 + eps,   is   b * (v/n - S*x) * xT, n = sqrt(s), x = k/n,
//
// so that a rule whose keys are as they come (the projection of Kaczmarz and of normalised least mean
// squares) is one of keys that are known to be short: what a token erases is bounded, and scores keep to the
// range of half precision.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/PatternMatch.h"

namespace recur {

/// Rewrites what a rule's states are written along keys, times a number that is divided by the key's squared
/// norm.
void normSteps(RuleOp rule, mlir::IRRewriter &rewriter);

} // namespace recur
