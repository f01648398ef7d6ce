// The passes of Passes.td.
#include "lib/Derive/Passes.h"
#include "lib/Derive/Derive.h"
#include "lib/Derive/Measure.h"
#include "llvm/Support/FormatVariadic.h"

namespace recur {
#define GEN_PASS_DEF_RECURDERIVE
#define GEN_PASS_DEF_RECURPROVE
#define GEN_PASS_DEF_RECURDIFF
#define GEN_PASS_DEF_RECURMEASURE
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
      if (channels)
        rule->setAttr(channelsAttr, UnitAttr::get(&getContext()));
      Derivation derivation = derive(normalise(rule));
      if (!derivation.program) {
        emitRemark(rule.getLoc()) << "'" << rule.getSymName()
                                  << "' keeps its sequential form: " << derivation.reason;
        continue;
      }
      if (explain)
        llvm::outs() << printDerivation(derivation);
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

struct Prove : recur::impl::RecurProveBase<Prove> {
  using RecurProveBase::RecurProveBase;

  void runOnOperation() override {
    for (RuleOp rule : getOperation().getOps<RuleOp>()) {
      auto program = getOperation().lookupSymbol<chunk::ProgramOp>((rule.getSymName() + "_chunk").str());
      if (!program)
        continue;
      if (std::string where = recur::prove(rule, program, rounds); !where.empty()) {
        emitError(program.getLoc()) << "the chunk form differs from the rule at " << where;
        signalPassFailure();
      }
    }
    markAllAnalysesPreserved();
  }
};

struct Measure : recur::impl::RecurMeasureBase<Measure> {
  using RecurMeasureBase::RecurMeasureBase;

  void runOnOperation() override {
    for (RuleOp rule : getOperation().getOps<RuleOp>()) {
      if (failed(unrollSteps(rule)))
        return signalPassFailure();
      Derivation derivation = derive(normalise(rule));
      if (!derivation.program)
        continue;
      for (Temper temper : {Temper::Tame, Temper::Nasty})
        for (int64_t chunk : {16, 32, 64, 128}) {
          FailureOr<Accuracy> found = measure(rule, *derivation.program, tokens, chunk, temper);
          if (failed(found))
            return signalPassFailure();
          bool isTame = temper == Temper::Tame;
          std::string text =
              llvm::formatv("'{0}' in chunks of {1} on {2} inputs is off by {3:e} in float64 and {4:e} in "
                            "float32",
                            rule.getSymName(), chunk, isTame ? "tame" : "nasty", found->f64, found->f32);
          if (print)
            llvm::outs() << text << "\n";
          if (!(found->f64 <= found->allowed(f64)) || !(found->f32 <= (isTame ? tame : nasty))) {
            emitError(rule.getLoc()) << text;
            signalPassFailure();
          }
        }
    }
  }
};

struct Diff : recur::impl::RecurDiffBase<Diff> {
  void runOnOperation() override {
    SmallVector<RuleOp> rules(getOperation().getOps<RuleOp>());
    if (rules.size() < 2)
      return;
    for (RuleOp rule : rules)
      if (failed(unrollSteps(rule)))
        return signalPassFailure();
    std::string where;
    llvm::outs() << (sameRule(rules[0], rules[1], where) ? "the same rule" : "different rules: " + where)
                 << "\n";
  }
};
} // namespace
