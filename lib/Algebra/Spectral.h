// Terms of an update by which a state may grow without bound.
#pragma once

#include "lib/Algebra/NormalForm.h"

namespace recur {

/// A term that the declared ranges let push an eigenvalue of the update out of [-1, 1].
struct UnstableTerm {
  mlir::Location loc;
  std::string text; // names the term and what was found
  std::string fix;
};

/// Looks at every decay and every read that is written back, each by itself. What is not declared is no reason to
/// complain about a decay; a read that is written back needs a vector of known norm and a coefficient of known range.
/// Terms whose factors come from other states are not judged.
std::vector<UnstableTerm> findUnstableTerms(const NormalForm &nf);

} // namespace recur
