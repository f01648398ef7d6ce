#include "lib/Algebra/AnchoredState.h"
#include "lib/Algebra/Rewriting.h"

using namespace mlir;
using namespace recur;

// The param that may be added to the state, if it is the only one.
static BlockArgument anchorOf(RuleOp rule) {
  auto states = rule.argumentsOf(ArgKind::State);
  BlockArgument found;
  if (states.size() != 1 || !isMatrix(matType(states.front())))
    return found;
  for (BlockArgument param : rule.argumentsOf(ArgKind::Param)) {
    if (param.getType() != states.front().getType() || param.use_empty())
      continue;
    if (found)
      return {};
    found = param;
  }
  return found;
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
