// Equations in the plain notation of derivations as MathML.
#pragma once

#include "llvm/ADT/StringSet.h"

#include <string>

namespace recur {

/// Replaces what HTML would read as markup.
std::string escapeHtml(llvm::StringRef text);

/// A line such as "N = diag(b) stril(K Kᵀ ⊙ Γ1⁻)" as the content of a <math> element. Words that are neither
/// in `names` nor followed by a bracket are text.
std::string toMathMl(llvm::StringRef line, const llvm::StringSet<> &names);

} // namespace recur
