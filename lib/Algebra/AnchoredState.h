// Rules that add a matrix of params to a state, as one that decays to what was learned:
//
//   S = a*S + (1 - a)*W.
//
// W is of full rank and no sum of writes, but it may be a state that begins as W and that nothing is written
// to. The two are coupled by numbers, as states are that feed one another.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// The param that is a term of a rule's one state, a matrix, perhaps times numbers; null where there is none,
/// or more than one.
mlir::BlockArgument anchorOf(RuleOp rule);

/// The rule, in a module of its own, with that param as a second state, its last; null where it has none. No
/// caller gives that state, or is given it.
mlir::OwningOpRef<mlir::ModuleOp> anchorState(RuleOp rule);

/// The attribute of such a rule, and of its chunk program.
constexpr llvm::StringLiteral anchoredAttr = "chunk.anchored";

} // namespace recur
