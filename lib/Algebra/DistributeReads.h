// What is read of sums of matrices, as what is read of their parts.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/PatternMatch.h"

namespace recur {

/// Rewrites reads of a rule's matrices where that leaves less to derive: what a change reads along a vector
/// that was just written along is read as it was before that, so that changes along one vector are one; and
/// outputs that are read of a sum of states are sums of what is read of each.
void distributeReads(RuleOp rule, mlir::IRRewriter &rewriter);

} // namespace recur
