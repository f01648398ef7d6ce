#include "lib/Derive/Passes.h"
#include "lib/Derive/Derive.h"

namespace recur {
#define GEN_PASS_DEF_RECURDERIVE
#include "lib/Derive/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

namespace {
struct Derive : recur::impl::RecurDeriveBase<Derive> {
  using RecurDeriveBase::RecurDeriveBase;

  void runOnOperation() override {
    for (RuleOp rule : llvm::make_early_inc_range(getOperation().getOps<RuleOp>())) {
      if (failed(unrollSteps(rule)))
        return signalPassFailure();
      Derivation derivation = derive(normalise(rule));
      if (!derivation.program) {
        emitRemark(rule.getLoc()) << "'" << rule.getSymName() << "' keeps its sequential form: " << derivation.reason;
        continue;
      }
      chunk::ProgramOp program = derivation.program.release();
      program.setSymName((rule.getSymName() + "_chunk").str());
      getOperation().push_back(program);
      if (std::string where = prove ? recur::prove(rule, program) : ""; !where.empty()) {
        program.emitError() << "internal error: the chunk form differs from the rule at " << where;
        return signalPassFailure();
      }
    }
  }
};
} // namespace
