// Rules whose tokens change the state by like steps, one after the other, as rules of one step.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// The rule of one step, in a module of its own, or null: what stackReads (StackedReads.h) makes of rows in
/// turn, whatever functions their steps are of what they find. The rule must have one matrix state, which
/// only scaled makes what the first of at least two and at most `mostRows` steps finds; the steps differ in
/// vectors and numbers alone, and outputs are of what the last one leaves. `inLogs` is as in onceOf
/// (Rewriting.h).
mlir::OwningOpRef<mlir::ModuleOp> stackSteps(RuleOp rule, bool inLogs, size_t mostRows);

} // namespace recur
