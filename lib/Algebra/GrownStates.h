// States that take a share of what another one has grown by in a block, as states that are written to.
//
// Of S = S@16 - eta*(G - G@16); G = G + D, as mini-batches of gradient descent have it, no token is written
// to S as it was before: each takes the block's start, and its own eta times what the block has brought. But
// where blocks start and end S is W = W - eta'*D, with the eta of the block's last token for eta', and within
// a block S is W@16 - eta*(G - G@16). So states are sums of what is written to them, which chunks know.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// What the name of an input ends with that is, for each token, the value of the input of that name at the
/// last token of the block of ArgAttr::getBlock() tokens, or at the sequence's last one.
constexpr llvm::StringLiteral lastSuffix = "@last";

/// A copy of the rule, in a module of its own, with such states and inputs; null where there are none.
mlir::OwningOpRef<mlir::ModuleOp> growStates(RuleOp rule);

/// Whether a rule reads what comes later: no kernel but roles knows of that.
bool readsLast(RuleOp rule);

/// Whether an elementwise op is more than a sum, or a multiple, of those of its operands that `reads` is true
/// of: a function of what is read of a state.
bool isFunctionOf(mlir::Operation *op, llvm::function_ref<bool(mlir::Value)> reads);

} // namespace recur
