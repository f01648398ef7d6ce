#include "lib/Algebra/AnchoredState.h"
#include "lib/Algebra/Rewriting.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recur;

BlockArgument recur::anchorOf(RuleOp rule) {
  auto states = rule.argumentsOf(ArgKind::State);
  if (states.size() != 1 || !isMatrix(matType(states.front())))
    return {};
  llvm::SetVector<Value> terms;
  terms.insert(rule.yieldedStates()[0]);
  SmallVector<BlockArgument> params;
  for (size_t i = 0; i < terms.size(); ++i) { // which grow
    auto argument = dyn_cast<BlockArgument>(terms[i]);
    if (argument && rule.getArg(argument).getKind() == ArgKind::Param)
      params.push_back(argument);
    if (Operation *op = terms[i].getDefiningOp(); isa_and_present<AddOp, SubOp, NegOp, MulOp>(op))
      for (Value operand : op->getOperands())
        if (operand.getType() == states.front().getType())
          terms.insert(operand);
  }
  return params.size() == 1 ? params.front() : BlockArgument();
}

// What stands for a param where initial states are made: arguments are those of the body that no token has.
static BlockArgument ofInit(RuleOp rule, BlockArgument param) {
  unsigned number = 0;
  for (BlockArgument argument : rule.getBody().getArguments().take_front(param.getArgNumber()))
    number +=
        llvm::is_contained({ArgKind::Param, ArgKind::Head, ArgKind::Heads}, rule.getArg(argument).getKind());
  return rule.getInit().getArgument(number);
}

static LogicalResult write(RuleOp rule) {
  BlockArgument anchor = anchorOf(rule);
  if (!anchor)
    return failure();
  MLIRContext *context = rule.getContext();
  SmallVector<Attribute> args(rule.getArgs().getValue());
  // No name of the language's.
  auto name = StringAttr::get(context, rule.getArg(anchor).getName().str() + " as a state");
  args.push_back(ArgAttr::get(context, ArgKind::State, name, RangeAttr(), /*isUnit=*/false, /*block=*/0));
  rule.setArgsAttr(ArrayAttr::get(context, args));
  BlockArgument state = rule.getBody().addArgument(anchor.getType(), rule.getLoc());
  anchor.replaceAllUsesWith(state);
  rule.getBodyYield()->insertOperands(1, ValueRange(state));
  rule.getInitYield()->insertOperands(1, ValueRange(ofInit(rule, anchor)));
  rule->setAttr(anchoredAttr, UnitAttr::get(context));
  return success();
}

OwningOpRef<ModuleOp> recur::anchorState(RuleOp rule) { return rewritten(rule, write); }
