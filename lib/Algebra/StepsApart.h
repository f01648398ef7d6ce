// Rules whose micro-steps are inputs of their own.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// A micro-step, from 0, of one of a rule's inputs, by number among these.
struct StepOfInput {
  unsigned input;
  int64_t step;
};

/// The rule with its loops unrolled and an input for each micro-step that a token takes: what a loop does is
/// then one of the token's reads and writes among others. The new inputs follow the rule's own, which nothing
/// uses any more where they have micro-steps; `steps` says what they are. Null where nothing takes
/// micro-steps, where they are columns of a matrix, or where there would be more than `most` of them.
mlir::OwningOpRef<mlir::ModuleOp> takeStepsApart(RuleOp rule, size_t most,
                                                 llvm::SmallVectorImpl<StepOfInput> &steps);

} // namespace recur
