#include "lib/Cuda/RuleFrame.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

void RuleFrame::setBuiltins(BodyEmitter &body, Block &block, Value at) {
  bool isBody = &block == &rule.getBody().front();
  unsigned next = 0;
  for (ArgAttr arg : rule.getArgs().getAsRange<ArgAttr>()) {
    ArgKind kind = arg.getKind();
    bool inInit = kind == ArgKind::Param || kind == ArgKind::Head || kind == ArgKind::Heads;
    if (!isBody && !inInit)
      continue;
    Value argument = block.getArgument(next++);
    Value number = kind == ArgKind::Position ? at
                   : kind == ArgKind::Head   ? head
                   : kind == ArgKind::Heads  ? heads
                                             : Value();
    if (!number || !placement.isNeeded(argument))
      continue;
    Tile tile = threads.shape(matType(argument), 0);
    tile.entries.push_back(arith::SIToFPOp::create(b, b.getF32Type(), number));
    body.set(argument, tile);
  }
}

SmallVector<Value> RuleFrame::carriedOf(ValueRange stateValues) {
  SmallVector<Value> entries;
  for (unsigned i = 0; i < states.size(); ++i)
    forLayouts(states[i],
               [&](Axis axis) { llvm::append_range(entries, body.get(stateValues[i], axis).entries); });
  for (BlockArgument argument : stale)
    forLayouts(argument, [&](Axis axis) { llvm::append_range(entries, body.get(argument, axis).entries); });
  return entries;
}

void RuleFrame::setCarried(ValueRange entries) {
  for (ArrayRef<BlockArgument> arguments : {ArrayRef(states), ArrayRef(stale)})
    for (BlockArgument argument : arguments)
      forLayouts(argument, [&](Axis axis) {
        Tile tile = threads.shape(matType(argument), axis);
        size_t count = tile.rows * tile.cols;
        tile.entries.assign(entries.begin(), entries.begin() + count);
        entries = entries.drop_front(count);
        body.set(argument, tile);
      });
}

LogicalResult RuleFrame::setStates(TensorAccess &access) {
  // Params are kept for the whole sequence; the init region has arguments of its own for them.
  unsigned next = 0, param = 0;
  for (BlockArgument argument : rule.getBody().getArguments()) {
    ArgKind kind = rule.getArg(argument).getKind();
    if (kind != ArgKind::Param && kind != ArgKind::Head && kind != ArgKind::Heads)
      continue;
    BlockArgument inInit = rule.getInit().getArgument(next++);
    if (kind != ArgKind::Param)
      continue;
    for (Axis axis : {0, 1})
      if (placement.needs(argument, axis) || placement.needs(inInit, axis)) {
        Tile tile = access.load(inputs + param, axis, {});
        body.set(argument, tile);
        body.set(inInit, tile);
      }
    ++param;
  }
  setBuiltins(body, rule.getInit().front(), {});
  if (failed(body.emitBlock(rule.getInit().front(), {})))
    return failure();
  for (unsigned i = 0; i < states.size(); ++i)
    forLayouts(states[i], [&](Axis axis) {
      const Tile initial = body.get(rule.getInitYield().getValues()[i], axis);
      SmallVector<Type> types(initial.entries.size(), b.getF32Type());
      auto choice = scf::IfOp::create(b, types, access.isGiven(initialTensor(i)), true);
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(choice.thenBlock());
      scf::YieldOp::create(b, access.load(initialTensor(i), axis, {}).entries);
      b.setInsertionPointToStart(choice.elseBlock());
      scf::YieldOp::create(b, initial.entries);
      Tile tile = initial;
      tile.entries.assign(choice.getResults().begin(), choice.getResults().end());
      body.set(states[i], tile);
    });
  for (BlockArgument argument : stale)
    forLayouts(argument, [&](Axis axis) {
      body.set(argument, body.get(rule.findArgument(ArgKind::State, rule.getArg(argument).getName()), axis));
    });
  return success();
}
