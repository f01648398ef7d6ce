// A loop over micro-steps as a rule of its own: its body runs once, and what comes before it counts at the
// first micro-step alone.
#include "lib/Algebra/MicroSteps.h"
#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/Rewriting.h"

using namespace mlir;
using namespace recur;

// The loop, if it carries the states and nothing else; null if there are others, or tokens are numbered.
static ForOp loopOf(RuleOp rule) {
  for (BlockArgument position : rule.argumentsOf(ArgKind::Position))
    if (!position.use_empty())
      return {};
  SmallVector<ForOp> loops;
  rule.getBody().walk([&](ForOp loop) { loops.push_back(loop); });
  if (loops.size() != 1 || loops[0]->getParentRegion() != &rule.getBody() ||
      !llvm::equal(loops[0].getResults(), rule.yieldedStates()))
    return {};
  return loops[0];
}

// What multiplies a state until it is `value`, the last one first: numbers, and vectors along its rows or
// columns. False if anything else is done to it.
static bool findScales(Value value, Value state, SmallVectorImpl<Value> &scales) {
  auto isScale = [&](Value x) {
    return matType(x).isScalar() || (isMatrix(matType(state)) && !isMatrix(matType(x)));
  };
  while (value != state) {
    auto product = value.getDefiningOp<MulOp>();
    unsigned scale = product && isScale(product.getLhs()) ? 0 : 1;
    if (!product || !isScale(product->getOperand(scale)))
      return false;
    scales.push_back(product->getOperand(scale));
    value = product->getOperand(1 - scale);
  }
  return true;
}

// Whether micro-steps are looked at by the loop's counter alone.
static bool readsOwnStep(RuleOp rule, ForOp loop) {
  for (Operation *user : loop.getCounter().getUsers())
    if (!isa<ExtractOp>(user))
      return false;
  for (BlockArgument argument : rule.getBody().getArguments())
    if (isa<StepsType>(argument.getType()))
      for (Operation *user : argument.getUsers())
        if (auto extract = dyn_cast<ExtractOp>(user); !extract || extract.getIndex() != loop.getCounter())
          return false;
  return true;
}

// Whether outputs are read of the states before the loop; nothing where some are, and others of those behind.
static std::optional<bool> readsFirst(RuleOp rule, ForOp loop) {
  bool before = false, behind = false;
  SmallVector<Value> work(rule.yieldedOutputs());
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value value = work.pop_back_val();
    if (!seen.insert(value).second)
      continue;
    auto argument = dyn_cast<BlockArgument>(value);
    before |= argument && rule.getArg(argument).getKind() == ArgKind::State;
    behind |= value.getDefiningOp() == loop.getOperation();
    if (Operation *op = value.getDefiningOp(); op && op != loop)
      llvm::append_range(work, op->getOperands());
  }
  return before && behind ? std::nullopt : std::optional(before);
}

OwningOpRef<ModuleOp> recur::ruleOfMicroStep(RuleOp rule, bool inLogs) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  auto copy = cast<RuleOp>(OpBuilder::atBlockEnd(module->getBody()).clone(*rule));
  ForOp loop = loopOf(copy);
  if (!loop || !readsOwnStep(copy, loop))
    return {};
  std::optional<bool> isFirstRead = readsFirst(copy, loop);
  if (!isFirstRead)
    return {};
  MLIRContext *context = copy.getContext();
  if (*isFirstRead)
    copy->setAttr(readsFirstAttr, UnitAttr::get(context));
  Location loc = loop.getLoc();
  Block &body = copy.getBody().front();
  Value isFirst = addInput(copy, "first micro-step", RangeAttr::closed(context, 0, 1), /*isUnit=*/false,
                           MatType::scalar(context));

  OpBuilder b(loop);
  for (auto [init, carried, state] :
       llvm::zip(loop.getInits(), loop.getCarried(), copy.argumentsOf(ArgKind::State))) {
    SmallVector<Value> scales;
    if (!findScales(init, state, scales))
      return {};
    Value scaled = state;
    b.setInsertionPointAfterValue(init);
    for (Value scale : llvm::reverse(scales))
      scaled = MulOp::create(b, loc, onceOf(b, loc, scale, isFirst, inLogs), scaled);
    carried.replaceAllUsesWith(scaled);
    // At the first micro-step that is the same.
    if (init != state)
      init.replaceAllUsesExcept(scaled, scaled.getDefiningOp());
  }
  SmallVector<Value> yielded(loop.getYield().getValues());
  loop.getYield().erase();
  body.getOperations().splice(loop->getIterator(), loop.getBody().front().getOperations());
  loop.replaceAllUsesWith(yielded);
  Attribute count;
  for (BlockArgument argument : body.getArguments()) {
    auto steps = dyn_cast<StepsType>(argument.getType());
    if (!steps)
      continue;
    for (Operation *user : llvm::make_early_inc_range(argument.getUsers())) {
      user->replaceAllUsesWith(ValueRange(argument));
      user->erase();
    }
    argument.setType(steps.getStep());
    count = steps.getCount();
  }
  if (int64_t block = blockOf(copy)) { // of so many micro-steps
    auto number = dyn_cast_if_present<IntegerAttr>(count);
    if (!number)
      return {};
    setBlocks(copy, block * number.getInt());
  }
  loop.erase();
  return module;
}
