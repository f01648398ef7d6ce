// The proofs of rules that are written anew before they are derived: one whose token's reads are rows of
// their own, one whose update is rotated.
#pragma once
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/RotatedUpdate.h"
#include "lib/Algebra/StackedReads.h"

namespace recur {

/// Compares a rule with that of one of its rows (stackReads) in F_p, on random inputs. Empty when they agree;
/// else the first difference.
std::string proveStacked(RuleOp rule, RuleOp stacked);

/// The same for a rule and its rotated one (rotateUpdate, without logarithms).
std::string proveRotated(RuleOp rule, RuleOp rotated);
/// The same of the rule of one column (ruleOfColumn).
std::string proveColumns(RuleOp rule, RuleOp column);

} // namespace recur
