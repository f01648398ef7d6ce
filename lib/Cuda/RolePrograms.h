// The chunk programs of a rule that roles may take.
#pragma once
#include "lib/Cuda/KernelBuilder.h"

namespace recur::cuda {

/// Whether rows are several of one token.
bool areStacked(RowKind rows);

/// The program of a rule with such rows, as RolePlan reads it; null where there is none. f16's range is too
/// small for some of what is written otherwise.
chunk::ProgramOp deriveForRoles(DeriveFunction derive, RuleOp rule, RowKind rows, bool isF16);

} // namespace recur::cuda
