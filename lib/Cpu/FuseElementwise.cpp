// Merges elementwise linalg ops on tensors into the op that uses them.
#include "lib/Cpu/Passes.h"
#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace recur::cpu {
#define GEN_PASS_DEF_FUSEELEMENTWISE
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur::cpu;

static int64_t iterations(linalg::LinalgOp op) {
  int64_t count = 1;
  for (int64_t length : op.getStaticLoopRanges())
    count *= length;
  return count;
}

// Whether the op that makes this operand may move into its user.
static bool mayFuse(OpOperand *operand) {
  auto producer = operand->get().getDefiningOp<linalg::LinalgOp>();
  auto consumer = cast<linalg::LinalgOp>(operand->getOwner());
  if (!producer || producer->getBlock() != consumer->getBlock())
    return false;
  if (producer.getNumDpsInputs() == 0) // constants and the like: nothing to compute
    return true;
  bool isOnlyUser = llvm::all_of(producer->getUsers(), [&](Operation *user) { return user == consumer; });
  return isOnlyUser && iterations(producer) == iterations(consumer);
}

namespace {
struct FuseElementwise : recur::cpu::impl::FuseElementwiseBase<FuseElementwise> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    linalg::populateElementwiseOpsFusionPatterns(patterns, mayFuse);
    GreedyRewriteConfig config;
    config.setRegionSimplificationLevel(GreedySimplifyRegionLevel::Disabled).enableConstantCSE(false);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns), config)))
      signalPassFailure();
  }
};
} // namespace
