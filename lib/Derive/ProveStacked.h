// The proof of a rule whose token's reads are rows of their own.
#pragma once
#include "lib/Algebra/StackedReads.h"

namespace recur {

/// Compares a rule with that of one of its rows (stackReads) in F_p, on random inputs. Empty when they agree;
/// else the first difference.
std::string proveStacked(RuleOp rule, RuleOp stacked);

} // namespace recur
