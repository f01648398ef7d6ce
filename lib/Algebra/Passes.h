// Passes on recur IR: differentiate, bind, check, reassociate.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/Pass/Pass.h"
#include "llvm/ADT/StringMap.h"

namespace recur {
#define GEN_PASS_DECL
#include "lib/Algebra/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "lib/Algebra/Passes.h.inc"

/// Gives the named symbolic dimensions of a rule their sizes, everywhere. A name that the rule does not have,
/// or a size below 1, is an error at the rule.
mlir::LogicalResult bindDimensions(RuleOp rule, const llvm::StringMap<int64_t> &sizes);

/// The derivative of the scalar `of` by `wrt`, built at the builder's insertion point. Null, with an error at
/// the op that cannot be differentiated, on failure.
mlir::Value buildGradient(mlir::OpBuilder &builder, mlir::Location loc, mlir::Value of, mlir::Value wrt);

/// Replaces a block over the whole sequence by states that start at zero, where its matrices over pairs of
/// tokens have finite rank. Empty when it did, or when there is no block; else why not, and the rule is
/// unchanged.
std::string findRecurrence(RuleOp rule);

/// An interval that holds every entry of the value, from declarations and from what ops know; null if nothing
/// is known.
RangeAttr rangeOf(mlir::Value value);
} // namespace recur
