// When conjugate gradients have done all that outputs can tell.
//
// With eps in the denominators a step is at most size / eps times its direction, where size is the residual's
// squared norm. Once that is small against eps, a direction is about the residual and does not grow again: n
// steps that are left move the solution by at most n size^(3/2) / eps. The solution is not shorter than the
// first step, by Cauchy and Schwarz. Where n steps move it by less than half of what outputs are rounded by,
// they are left out. For f32 that hardly ever comes before the last step: then, and without eps, all are
// done.
#pragma once
#include "lib/Cuda/Ptx.h"

namespace recur::cuda {

/// Emits steps 0, 1, .. with what they carry, `steps` of them or up to the first that says not to go on,
/// which all threads do alike. A null answer goes on.
Values runSteps(mlir::ImplicitLocOpBuilder &b, int64_t steps, mlir::ValueRange start,
                llvm::function_ref<std::pair<Values, mlir::Value>(mlir::Value, mlir::ValueRange)> step);

class Convergence {
public:
  static constexpr unsigned digitsOfF32 = 24;

  /// `digits`: how many binary digits of solutions can be told.
  Convergence(mlir::ImplicitLocOpBuilder &b, double eps, int64_t steps, unsigned digits)
      : ptx(b), eps(eps), part(negligible(digits)), steps(steps) {}

  /// The part of a number that is half of what rounding it to so many digits may change.
  static double negligible(unsigned digits) { return std::ldexp(0.5, -int(digits)); }
  /// The least squared norm of what is to be solved at which goals can be told from nothing.
  static constexpr double leastSize = 0x1p-60;

  /// Whether steps can end before the last one at all.
  static bool canEnd(double eps, unsigned digits) { return eps > 0 && digits < digitsOfF32; }
  /// For one system, from the squared norm of what is to be solved and the first step's length: what ends the
  /// steps when size^(3/2), times the steps that are left, does not exceed it.
  mlir::Value goalOf(mlir::Value size, mlir::Value length);
  /// Whether the steps after step `number` may still count, or there is no number to tell by.
  mlir::Value isOpen(mlir::Value number, mlir::Value size, mlir::Value goal);

private:
  mlir::Value root(mlir::Value x);

  Ptx ptx;
  const double eps, part;
  const int64_t steps;
};

} // namespace recur::cuda
