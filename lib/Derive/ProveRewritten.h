// The proofs of rules that are written anew before they are derived. Each compares, in F_p and on random
// inputs, a rule with what it became: empty when they agree; else the first difference.
#pragma once
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/GrownStates.h"
#include "lib/Algebra/RotatedUpdate.h"
#include "lib/Algebra/StackedReads.h"
#include "lib/Algebra/StepsApart.h"

namespace recur {

/// With the rule of its micro-step (ruleOfMicroStep).
std::string proveMicroStep(RuleOp rule, RuleOp step);

/// With the rule of one of its rows (stackReads, without logarithms).
std::string proveStacked(RuleOp rule, RuleOp stacked);

/// With its rotated one (rotateUpdate, without logarithms).
std::string proveRotated(RuleOp rule, RuleOp rotated);

/// With the rule of one column (ruleOfColumn), where a token does the same with all its columns.
std::string proveColumns(RuleOp rule, RuleOp column);

/// Whether it does: whether a rule stays the same when the columns of its inputs and outputs change places.
bool areColumnsAlike(RuleOp rule);

/// With the one whose micro-steps are inputs (takeStepsApart).
std::string proveStepsApart(RuleOp rule, RuleOp apart, llvm::ArrayRef<StepOfInput> steps);

/// With the one whose vectors are matrices of like columns (widenVectors).
std::string proveWidened(RuleOp rule, RuleOp widened);

/// With one of the same states. Inputs that it has besides (growStates) are those of a block's last token.
std::string proveSame(RuleOp rule, RuleOp other);

/// With the one that has several states as one (joinKeys).
std::string proveJoined(RuleOp rule, RuleOp joined);

} // namespace recur
