// Moves what does not depend on the token before the loop over tokens, and likewise for micro-steps.
#include "lib/Cpu/Passes.h"
#include "mlir/Transforms/LoopInvariantCodeMotionUtils.h"

namespace recur::cpu {
#define GEN_PASS_DEF_HOISTINVARIANTS
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur::cpu;

namespace {
struct HoistInvariants : recur::cpu::impl::HoistInvariantsBase<HoistInvariants> {
  void runOnOperation() override {
    getOperation().walk([&](LoopLikeOpInterface loop) {
      moveLoopInvariantCode(
          loop.getLoopRegions(), [&](Value value, Region *) { return loop.isDefinedOutsideOfLoop(value); },
          [](Operation *op, Region *) {
            return isMemoryEffectFree(op) && isSpeculatable(op) && !isa<tensor::EmptyOp, linalg::FillOp>(op);
          },
          [&](Operation *op, Region *) { loop.moveOutOfLoop(op); });
    });
  }
};
} // namespace
