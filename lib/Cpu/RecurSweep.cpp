// From a rule to its sweep.
#include "lib/Cpu/SweepKernel.h"

namespace recur::cpu {
#define GEN_PASS_DEF_RECURSWEEP
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// The packer reads the rule's inputs and params as the caller holds them; all else is f32.
static SmallVector<TensorFormat> packFormats(RuleOp rule, ArrayRef<TensorFormat> formats) {
  SmallVector<TensorFormat> result(formats);
  result.resize(rule.argumentsOf(ArgKind::Input).size() + rule.argumentsOf(ArgKind::Param).size());
  result.resize(kernelTensors(rule).size());
  return result;
}

// Replaces the rule by functions, if the sweep fits it.
static LogicalResult sweepRule(RuleOp rule, StringRef symbol, ArrayRef<TensorFormat> formats, unsigned vectorWidth) {
  SweepPlanResult result = planSweep(rule);
  if (getenv("WHY")) llvm::errs() << "WHY " << symbol << ": " << (result.plan ? std::string("sweep") : result.reason) << "\n";
  if (!result.plan)
    return success();
  SweepPlan &plan = *result.plan;
  OpBuilder builder(rule);
  SmallVector<Role> roles;
  for (const KernelTensor &tensor : kernelTensors(rule))
    roles.push_back(tensor.role);
  Location loc = rule.getLoc();

  OwningOpRef<ModuleOp> packModule = buildPackRule(plan, rule);
  auto packRule = *packModule->getOps<RuleOp>().begin();
  packRule->moveBefore(rule);
  FailureOr<func::FuncOp> packer =
      lowerTokenLoop(packRule, (symbol + "_pack").str(), packFormats(packRule, formats), vectorWidth);
  if (failed(packer))
    return failure();
  FailureOr<func::FuncOp> tokenLoop = lowerTokenLoop(rule, (symbol + "_tokens").str(), formats, vectorWidth);
  if (failed(tokenLoop))
    return failure();
  packer->setPrivate();
  tokenLoop->setPrivate();

  builder.setInsertionPoint(*tokenLoop);
  auto kernel = func::FuncOp::create(builder, loc, symbol, tokenLoop->getFunctionType());
  builder.setInsertionPointToStart(kernel.addEntryBlock());
  VectorBuilder b(loc, builder, vectorWidth);
  SweepOptions options = SweepOptions::choose(plan.shape, vectorWidth, vectorWidth == 16 ? 32 : 16);
  PlannedRule planned(plan, options, roles, kernel, *packer);
  Value some = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, planned.tokenCount(), b.index(0));
  b.branch(
      arith::AndIOp::create(b, some, planned.isDense(b)), TypeRange(),
      [&] {
        planned.emit(b);
        return SmallVector<Value>();
      },
      [&] {
        func::CallOp::create(b, *tokenLoop, kernel.getArguments());
        return SmallVector<Value>();
      });
  func::ReturnOp::create(b);
  return success();
}

namespace {
struct RecurSweep : recur::cpu::impl::RecurSweepBase<RecurSweep> {
  using RecurSweepBase::RecurSweepBase;

  void runOnOperation() override {
    FailureOr<SmallVector<TensorFormat>> parsed = parseFormats(getOperation(), formats);
    if (failed(parsed))
      return signalPassFailure();
    for (RuleOp rule : llvm::make_early_inc_range(getOperation().getOps<RuleOp>()))
      if (failed(sweepRule(rule, symbol, *parsed, vectorWidth)))
        return signalPassFailure();
  }
};
} // namespace
