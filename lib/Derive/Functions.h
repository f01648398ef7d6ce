// The program of a rule that writes functions of what it reads.
#pragma once

#include "lib/Derive/Derive.h"

namespace recur {

/// Derives it of the rule whose reads are inputs (lib/Algebra/ReadFunctions.h). No program where that has
/// none, or a token reads what it has written.
Derivation deriveFunctions(RuleOp rule);

} // namespace recur
