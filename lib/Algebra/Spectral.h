// How large an update can make a state: terms by which one may grow without bound, and updates that make it
// no larger than its decay does.
#pragma once

#include "lib/Algebra/NormalForm.h"

namespace recur {

/// A term that the declared ranges let push an eigenvalue of the update out of [-1, 1].
struct UnstableTerm {
  mlir::Location loc;
  std::string text; // names the term and what was found
  std::string fix;
};

/// Looks at every decay and every read that is written back, each by itself. What is not declared is no
/// reason to complain about a decay; a read that is written back needs a vector of known norm and a
/// coefficient of known range. Of a product of such steps only the steps are looked at, not the inner
/// products that multiplying them out leaves. Terms whose factors come from other states are not judged.
std::vector<UnstableTerm> findUnstableTerms(const NormalForm &nf);

/// Whether the rule's one state is multiplied, each token, with a map of at most its decay's norm, as the
/// declared ranges tell: a decay alone, or one followed by S - b*(S*k)*kT with b*|k|^2 in [0, 2], b a number
/// or one for each value, or by several such at one time, of which these add up to 2 at most. Two states then
/// differ, some tokens later, by no more than the product of the decays (of several numbers, of the largest)
/// leaves.
bool isContraction(const NormalForm &nf);

/// A number of the token that bounds the norm of that map, for a state that may be read before it decays, a*S
/// - b*(S*k)*kT with keys of known norm: built before the body's end. Null where none is known.
mlir::Value buildNormBound(const NormalForm &nf);
/// The same of two states that numbers couple, together, read and written along one key (CoupledNorm.cpp).
mlir::Value buildCoupledNormBound(const NormalForm &nf);

/// The attribute of an op of a chunk program whose result is such a number.
constexpr llvm::StringLiteral normBoundAttr = "chunk.norm_bound";

/// The attribute of a chunk program whose rule's update is such.
constexpr llvm::StringLiteral contractionAttr = "chunk.contraction";

} // namespace recur
