// Matrices of few columns for each token, as the vectors that they consist of.
#pragma once

#include "dialect/recur/Recur.h"

namespace recur {

/// The most columns that are taken apart: what is derived grows with the square of their number.
constexpr int64_t mostColumns = 8;

/// Takes the rule's values of few columns or rows apart: those along a bound dimension that an input matrix
/// has beside a larger one, and no state has. Inputs become micro-steps, products over the dimension sums,
/// and outputs are joined. Leaves a rule alone in which a value of such a dimension cannot be taken apart.
void splitColumns(RuleOp rule);

/// The symbols that splitColumns would look at, were they bound.
llvm::SmallVector<mlir::StringAttr> openColumns(RuleOp rule);

} // namespace recur
