// What the terms of a sum have in common, taken out of them. Outer products with a vector in common are added
// before they are outer products: S - p*kT + w*kT is S + (w - p)*kT. So is what is read of one matrix,
// whatever number it is times: b*(v - S*k) + c*(S*p) is b*v + S*(c*p - b*k), and h.*(S*p) - h.*(S*k) is
// h.*(S*(p - k)). A state is read once then, and what is written along one vector is one stream.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/PatternMatch.h"

namespace recur {

/// Rewrites the sum of vectors or matrices that ends in an operation if its terms have outer products, reads
/// of a matrix, or, where a matrix is read along it, entries to share.
void factorSum(mlir::IRRewriter &rewriter, mlir::Operation *root);

} // namespace recur
