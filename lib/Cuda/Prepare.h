// What is done to a rule before it becomes a kernel.
#pragma once
#include "lib/Cuda/Classes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur::cuda {

/// A rule taken apart for a kernel.
struct PreparedRule {
  /// Holds a copy of the rule as it was and one whose dimensions are bound.
  mlir::OwningOpRef<mlir::ModuleOp> module;
  RuleOp unbound, bound;
};

/// Copies the rule, writes conjugate gradients with the dialect's other ops and binds the dimensions. Fails after a
/// diagnostic when a dimension stays open.
mlir::FailureOr<PreparedRule> prepareRule(RuleOp rule, const llvm::StringMap<int64_t> &sizes);

/// Makes the rule compute a part of `slab` indices of an independent class.
void takePart(RuleOp rule, const IndexClasses &classes, unsigned index, int64_t slab);

} // namespace recur::cuda
