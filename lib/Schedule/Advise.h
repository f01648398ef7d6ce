// What would make a rule faster, from what its derivation found.
#pragma once

#include "lib/Derive/Derive.h"

namespace recur {

/// Sentences, each about one thing that the spec could say or change; none for a rule that has nothing to
/// gain. `program` may be null.
std::vector<std::string> adviseOn(const NormalForm &form, chunk::ProgramOp program);

} // namespace recur
