// A rule in three: what comes before its states, the states, and what comes after them.
//
// Roles take inputs as they are and outputs as products leave them. Where a key is a function of an input (a
// feature map, a rotation, a norm of what has become of it), or an output is more than products, sums and
// numbers (a norm, a weight of each entry), that is left to kernels before and after: one token apart from the
// other, at the speed of memory, through temporaries in the workspace.
#pragma once
#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <optional>

namespace recur::cuda {

/// The stages of a rule, each a rule in a module of its own. Each has the inputs, params and builtins of the rule,
/// and `core` its states. Temporaries are outputs of one stage and inputs of a later one.
struct Stages {
  mlir::OwningOpRef<mlir::ModuleOp> before, core, after; // before and after may be null
  struct Temporary {
    std::string name;
    MatType type;
    bool isNumber() const { return isOne(type.getRows()) && isOne(type.getCols()); }
  };
  llvm::SmallVector<Temporary> temporaries;
};

/// Cuts a bound and simplified rule into stages, or nothing where there is nothing to cut off, or where a
/// function of the token cannot be told from the rest.
std::optional<Stages> cutIntoStages(RuleOp rule);

} // namespace recur::cuda
