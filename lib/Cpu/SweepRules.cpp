// The parts of a planned rule that run token by token around the sweep, as rules of their own.
#include "lib/Algebra/Rewriting.h"
#include "lib/Cpu/SweepPlan.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

static ArgAttr withKind(ArgAttr arg, ArgKind kind) {
  return ArgAttr::get(arg.getContext(), kind, arg.getName(), arg.getRange(), arg.getUnit(), 0);
}

OwningOpRef<ModuleOp> cpu::buildPackRule(const SweepPlan &plan, RuleOp original) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(original.getLoc());
  OpBuilder builder(module->getBodyRegion());
  IRMapping mapping;
  RuleOp whole = plan.form.rule;
  auto rule = cast<RuleOp>(builder.clone(*whole.getOperation(), mapping));
  BlockArgument matrix = rule.argumentsOf(ArgKind::State).front();

  SmallVector<Attribute> args(rule.getArgs().getValue()), names;
  for (unsigned index : plan.sideArguments)
    args[index] = withKind(cast<ArgAttr>(args[index]), ArgKind::State);
  args.erase(args.begin() + matrix.getArgNumber());
  SmallVector<Value> yielded(rule.yieldedOutputs().take_back(plan.sideArguments.size()));
  auto yield = [&](ArrayRef<Value> values, StringRef name) {
    for (auto [slot, value] : llvm::enumerate(values)) {
      yielded.push_back(mapping.lookup(value));
      names.push_back(builder.getStringAttr(name + " " + Twine(slot)));
    }
  };
  yield(plan.rowValues, "row");
  yield(plan.columnValues, "column");
  yield(plan.scalarValues, "scalar");
  yield(plan.kept, "kept");
  rule.getBodyYield().getValuesMutable().assign(yielded);

  rule.getInit().getBlocks().clear();
  IRMapping initMapping;
  original.getInit().cloneInto(&rule.getInit(), initMapping);
  SmallVector<Value> inits(rule.getInitYield().getValues());
  inits.erase(inits.begin() + plan.state);
  rule.getInitYield().getValuesMutable().assign(inits);

  eraseDead(rule);
  rule.getBody().eraseArgument(matrix.getArgNumber());
  rule.setArgsAttr(builder.getArrayAttr(args));
  rule.setOutputsAttr(builder.getArrayAttr(names));
  return module;
}

OwningOpRef<ModuleOp> cpu::buildEpilogue(const SweepPlan &plan) {
  RuleOp whole = plan.form.rule;
  OwningOpRef<ModuleOp> module = ModuleOp::create(whole.getLoc());
  OpBuilder builder(module->getBodyRegion());
  IRMapping mapping;
  auto rule = cast<RuleOp>(builder.clone(*whole.getOperation(), mapping));
  SmallVector<unsigned> states = plan.sideArguments;
  states.push_back(rule.argumentsOf(ArgKind::State).front().getArgNumber());
  llvm::sort(states);
  SmallVector<Attribute> args(rule.getArgs().getValue()), names(rule.getOutputs().getValue());
  names.resize(plan.outputs.size());
  SmallVector<Value> outputs(rule.yieldedOutputs().take_front(plan.outputs.size()));
  rule.getBodyYield().getValuesMutable().assign(outputs);
  rule.getInitYield().getValuesMutable().clear();
  auto enter = [&](ArrayRef<Value> values, StringRef name) {
    for (auto [slot, value] : llvm::enumerate(values)) {
      Value known = mapping.lookup(value);
      known.replaceAllUsesWith(rule.getBody().addArgument(known.getType(), known.getLoc()));
      args.push_back(ArgAttr::get(builder.getContext(), ArgKind::Input,
                                  builder.getStringAttr(name + " " + Twine(slot)), {}, false, 0));
    }
  };
  enter(plan.staged, "read");
  enter(plan.kept, "kept");
  eraseDead(rule);

  for (unsigned index : llvm::reverse(states)) {
    rule.getBody().eraseArgument(index);
    args.erase(args.begin() + index);
  }
  rule.setArgsAttr(builder.getArrayAttr(args));
  rule.setOutputsAttr(builder.getArrayAttr(names));
  return module;
}
