// Rules whose tokens change the states by micro-steps alone.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// The rule of one micro-step, in a module of its own, or null. Every state must be carried by one loop, and
/// only scaled before it, by numbers and vectors. Then n micro-steps are n tokens of the rule that is
/// returned: its inputs are those of the micro-step or, where the token has only one, of the token; its last
/// input, a number, is 1 at a token's first micro-step and else 0; and the outputs of a token's last
/// micro-step are the token's, or those of the first one (`readsFirstAttr`), where they are read of the
/// states before the loop. `inLogs` is as in onceOf (Rewriting.h).
mlir::OwningOpRef<mlir::ModuleOp> ruleOfMicroStep(RuleOp rule, bool inLogs);

/// The attribute of such a rule, and of its chunk program, whose outputs are those of first micro-steps.
constexpr llvm::StringLiteral readsFirstAttr = "chunk.reads_first";

} // namespace recur
