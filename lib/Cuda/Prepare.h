// What is done to a rule before it becomes a kernel.
#pragma once
#include "lib/Cuda/Classes.h"
#include "lib/Cuda/Cuda.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur::cuda {

/// A module with a copy of a bound rule, conjugate gradients written with the dialect's other ops. Fails
/// after a diagnostic at what no kernel is made for.
mlir::FailureOr<mlir::OwningOpRef<mlir::ModuleOp>> prepareRule(RuleOp rule, const KernelOptions &options);

/// Makes the rule compute a part of `slab` indices of an independent class.
void takePart(RuleOp rule, const IndexClasses &classes, unsigned index, int64_t slab);

} // namespace recur::cuda
