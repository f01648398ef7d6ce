// From a rule to its sweep.
#include "lib/Cpu/SweepKernel.h"
#include "mlir/IR/Matchers.h"

namespace recur::cpu {
#define GEN_PASS_DEF_RECURSWEEP
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// Formats of a rule made from another: tensors that the other has too are held alike (outputs only where the
// rule `writes` them), all else is f32. Those of tokens come without dimensions of 1.
static SmallVector<TensorFormat> formatsOf(RuleOp rule, RuleOp original, ArrayRef<TensorFormat> formats,
                                           bool writes) {
  SmallVector<TensorFormat> result;
  if (formats.empty())
    return result;
  auto originals = kernelTensors(original);
  for (const KernelTensor &tensor : kernelTensors(rule)) {
    bool same = writes || tensor.role != Role::Output;
    auto found = llvm::find_if(originals, [&](const KernelTensor &other) {
      return same && other.role == tensor.role && other.name == tensor.name;
    });
    result.push_back(found == originals.end() ? TensorFormat() : formats[found - originals.begin()]);
    if (tensor.role == Role::Input || tensor.role == Role::Output)
      result.back().rank = -1;
  }
  return result;
}

// Whether something that depends on the matrix is divided by more than a constant: by another state's number,
// which may be small, or by its own norm, which makes as much of what nearly cancels as of all else.
static bool dividesReads(const NormalForm &form) {
  return llvm::any_of(RuleOp(form.rule).getBody().getOps<DivOp>(), [&](DivOp div) {
    return !form.isTokenOnly(div.getLhs()) && !matchPattern(div.getRhs(), m_Constant());
  });
}

// Replaces the rule by functions, if the sweep fits it.
static LogicalResult sweepRule(RuleOp rule, StringRef symbol, ArrayRef<TensorFormat> formats,
                               unsigned vectorWidth, bool hasBf16Pairs, bool hasBf16Tiles) {
  SweepPlanResult result = planSweep(rule);
  OpBuilder builder(rule);
  if (!result.plan) {
    rule->getParentOp()->setAttr(formReasonAttr, builder.getStringAttr(result.reason));
    return success();
  }
  SweepPlan &plan = *result.plan;
  SmallVector<KernelTensor> tensors = kernelTensors(rule);
  Location loc = rule.getLoc();

  // Products of bf16 cost no more accuracy than the inputs have lost, unless what is read is divided.
  bool pairs =
      (hasBf16Pairs || hasBf16Tiles) && vectorWidth == 16 && !formats.empty() && !dividesReads(plan.form);
  for (auto [tensor, format] : llvm::zip(tensors, formats))
    pairs &= tensor.role != Role::Input || tensor.rank == 0 || format.dtype == DType::BF16;

  auto lower = [&](OwningOpRef<ModuleOp> module, StringRef name, bool writes) {
    auto part = *module->getOps<RuleOp>().begin();
    part->moveBefore(rule);
    return lowerTokenLoop(part, (symbol + name).str(), formatsOf(part, rule, formats, writes), vectorWidth,
                          /*isDirect=*/true);
  };
  OwningOpRef<ModuleOp> packRule = buildPackRule(plan, rule);
  SmallVector<bool> isPacked;
  for (BlockArgument input : (*packRule->getOps<RuleOp>().begin()).argumentsOf(ArgKind::Input))
    isPacked.push_back(!input.use_empty());
  FailureOr<func::FuncOp> packer = lower(std::move(packRule), "_pack", /*writes=*/false);
  FailureOr<func::FuncOp> epilogue = func::FuncOp();
  if (plan.hasEpilogue)
    epilogue = lower(buildEpilogue(plan), "_epilogue", /*writes=*/true);
  if (failed(packer) || failed(epilogue))
    return failure();
  FailureOr<func::FuncOp> tokenLoop = lowerTokenLoop(rule, (symbol + "_tokens").str(), formats, vectorWidth);
  if (failed(tokenLoop))
    return failure();
  packer->setPrivate();
  if (*epilogue)
    epilogue->setPrivate();
  tokenLoop->setPrivate();

  // Column blocks may be cut into parts, unless one part needs what another writes: readouts of all columns,
  // or the other states, whose initial values may lie where the final ones go.
  SweepOptions options = SweepOptions::choose(plan.shape, vectorWidth, vectorWidth == 16 ? 32 : 16,
                                              pairs && hasBf16Pairs, pairs && hasBf16Tiles);
  bool isWhole = plan.hasEpilogue || !plan.sideArguments.empty();
  int64_t parts = isWhole ? 1 : SweepLayout(plan.shape, options).blocks;
  builder.setInsertionPoint(*tokenLoop);
  SmallVector<Type> types(tokenLoop->getArgumentTypes());
  if (parts > 1)
    types.insert(types.end() - 1, 2, builder.getIndexType());
  auto kernel = func::FuncOp::create(builder, loc, symbol, builder.getFunctionType(types, {}));
  builder.setInsertionPointToStart(kernel.addEntryBlock());
  VectorBuilder b(loc, builder, vectorWidth);
  PlannedRule planned(b, plan, options, tensors, isPacked, kernel, *packer, *epilogue);
  if (planned.isGather()) {
    planned.emit(b);
    tokenLoop->erase();
  } else {
    b.branch(
        arith::AndIOp::create(b, planned.hasTokens(b), planned.isDense(b)), TypeRange(),
        [&] {
          planned.emit(b);
          return SmallVector<Value>();
        },
        [&] { return planned.callWhole(b, *tokenLoop), SmallVector<Value>(); });
  }
  kernel->getParentOp()->setAttr(formAttr, b.getStringAttr("sweep"));
  kernel->getParentOp()->setAttr(partsAttr, b.getI64IntegerAttr(parts));
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
      if (!chunkProgramOf(rule) &&
          failed(sweepRule(rule, symbol, *parsed, vectorWidth, hasBf16Pairs, hasBf16Tiles)))
        return signalPassFailure();
  }
};
} // namespace
