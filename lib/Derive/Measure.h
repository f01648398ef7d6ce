// How far a chunk program in floating point is from the oracle.
#pragma once

#include "dialect/chunk/Chunk.h"

namespace recur {

/// Inputs that a call may well see (tame), or at the edges of what their ranges allow: decays of 1, of nearly
/// 0 and of 0 within one chunk, ends of ranges, correlated, repeated and zero vectors, tiny and huge initial
/// states.
enum class Temper { Tame, Nasty };

/// Relative Frobenius norms of the errors, the largest over outputs and final states.
struct Accuracy {
  double f64 = 0, f32 = 0;
  /// What the oracle itself makes of a rounding to float64 of the states at each token; looked at where `f64`
  /// is more than a few roundings, else 0.
  double rounding = 0;

  /// The error in float64 that is allowed: `limit`, or what roundings are worth to the rule. A rule that
  /// makes much of a rounding has lost all digits by its end, and then there is nothing to compare with.
  double allowed(double limit) const {
    return rounding > 1e-4 ? std::numeric_limits<double>::infinity() : std::max(limit, 16 * rounding);
  }
};

/// Runs rule (oracle, float64) and program (float64 and float32) on random inputs drawn within the declared
/// ranges. All dimensions are bound, the same in both. Fails where the oracle does.
mlir::FailureOr<Accuracy> measure(RuleOp rule, chunk::ProgramOp program, int64_t tokens, int64_t chunk,
                                  Temper temper, uint64_t seed = 1);

} // namespace recur
