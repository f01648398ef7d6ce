// Functions of what is read of a state, which are written to it: a rule without reads that does both.
//
// In S = a*S + tanh(v - S*k)*kT the state is no affine function of what it was, but of S*k, given, it is:
// with an input for each read that the update takes, the rule writes what its token says, and what stood for
// the input is one more output. Where a token's reads come before its writes, a chunk's reads follow from one
// another token by token, each row of the state by itself where the functions are entry by entry
// (chunk.substitute), and all else is products of matrices. (Steps along gradients of losses that are not
// quadratic, of a Huber loss or an l_p norm: Behrouz et al., "It's All Connected", arXiv 2504.13173.)
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// The rule whose last inputs are what its updates read of states, and whose last outputs say what that is,
/// of the same names. `texts` says how the rule writes each. Null where updates read nothing by a vector.
mlir::OwningOpRef<mlir::ModuleOp> takeReadsApart(RuleOp rule, llvm::SmallVectorImpl<std::string> &texts);

} // namespace recur
