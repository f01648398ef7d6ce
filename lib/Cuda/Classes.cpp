#include "lib/Cuda/Classes.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

MatType cuda::entryType(Type type) {
  auto steps = dyn_cast<StepsType>(type);
  return steps ? steps.getStep() : cast<MatType>(type);
}

static int64_t extent(Value value, unsigned dim) {
  MatType type = entryType(value.getType());
  return dim ? type.numCols() : type.numRows();
}

unsigned IndexClasses::node(Value value, unsigned dim) {
  auto [it, isNew] = nodes.try_emplace({value, dim}, nodes.size() + 1);
  if (isNew)
    sets.insert(it->second);
  return it->second;
}

void IndexClasses::join(Value a, unsigned da, Value b, unsigned db) {
  if (extent(a, da) != 1 && extent(b, db) != 1)
    sets.unionSets(node(a, da), node(b, db));
}

void IndexClasses::joinAll(Value a, Value b) {
  join(a, 0, b, 0);
  join(a, 1, b, 1);
}

void IndexClasses::mix(Value value, unsigned dim, bool byNumber) {
  if (extent(value, dim) == 1)
    return;
  mixedNodes.insert(node(value, dim));
  if (byNumber)
    numberedNodes.insert(node(value, dim));
}

void IndexClasses::visit(Operation *op) {
  TypeSwitch<Operation *>(op)
      .Case([&](MatmulOp m) {
        join(m.getLhs(), 0, m, 0);
        join(m.getRhs(), 1, m, 1);
        join(m.getLhs(), 1, m.getRhs(), 0);
        mix(m.getLhs(), 1);
      })
      .Case([&](TransposeOp t) {
        join(t.getOperand(), 0, t, 1);
        join(t.getOperand(), 1, t, 0);
      })
      .Case([&](ReduceOp r) {
        joinAll(r.getOperand(), r);
        if (r.getRows())
          mix(r.getOperand(), 0);
        if (r.getCols())
          mix(r.getOperand(), 1);
      })
      .Case([&](ExtractOp e) { joinAll(e.getSteps(), e); })
      .Case([&](JoinOp j) {
        for (Value column : j.getColumns())
          join(column, 0, j, 0);
        mix(j, 1);
      })
      .Case([&](ConcatOp c) { mix(c, 0); })
      .Case<ElementwiseOp, BroadcastOp, AssumeOp>([&](auto e) {
        for (Value operand : e->getOperands())
          joinAll(operand, e->getResult(0));
      })
      .Case([&](ForOp loop) {
        for (auto [init, argument, yielded, result] :
             llvm::zip(loop.getInits(), loop.getCarried(), loop.getYield().getValues(), loop.getResults())) {
          joinAll(init, argument);
          joinAll(argument, yielded);
          joinAll(yielded, result);
        }
      })
      .Case<ConstantOp, SizeOp, YieldOp>([](auto) {})
      // Everything else knows its indices by number.
      .Default([&](Operation *other) {
        for (ValueRange values : {ValueRange(other->getOperands()), ValueRange(other->getResults())})
          for (Value value : values)
            if (isa<MatType, StepsType>(value.getType())) {
              mix(value, 0, /*byNumber=*/true);
              mix(value, 1, /*byNumber=*/true);
            }
      });
}

IndexClasses::IndexClasses(RuleOp rule) : rule(rule) {
  unsigned shared = 0; // arguments that both regions have
  for (BlockArgument argument : rule.getBody().getArguments()) {
    ArgKind kind = rule.getArg(argument).getKind();
    if (kind == ArgKind::Param || kind == ArgKind::Head || kind == ArgKind::Heads)
      joinAll(argument, rule.getInit().getArgument(shared++));
    if (kind == ArgKind::Stale)
      joinAll(argument, rule.findArgument(ArgKind::State, rule.getArg(argument).getName()));
  }
  for (auto [state, init, yielded] :
       llvm::zip(rule.argumentsOf(ArgKind::State), rule.getInitYield().getValues(), rule.yieldedStates())) {
    joinAll(state, init);
    joinAll(state, yielded);
  }
  rule->walk([&](Operation *op) {
    if (op != rule)
      visit(op);
  });
  for (unsigned bad : mixedNodes)
    mixed.insert(sets.getLeaderValue(bad));
  for (unsigned bad : numberedNodes)
    numbered.insert(sets.getLeaderValue(bad));
  for (auto &[where, index] : nodes)
    sizes[sets.getLeaderValue(index)] = extent(where.first, where.second);
}

unsigned IndexClasses::classOf(Value value, unsigned dim) const {
  auto it = nodes.find({value, dim});
  return it == nodes.end() ? 0 : sets.getLeaderValue(it->second);
}

bool IndexClasses::turnsStates() const {
  return llvm::any_of(rule.argumentsOf(ArgKind::State), [&](Value state) {
    MatType type = matType(state);
    return type.numRows() != 1 && type.numCols() != 1 && isTurned(state);
  });
}

unsigned IndexClasses::bestIndependent() const {
  unsigned best = 0;
  SmallVector<Value> shared;
  llvm::append_range(shared, rule.argumentsOf(ArgKind::State));
  if (shared.empty())
    llvm::append_range(shared, rule.yieldedOutputs());
  for (unsigned dim : {0, 1}) {
    unsigned index = shared.empty() ? 0 : classOf(shared.front(), dim);
    bool everywhere = llvm::all_of(
        shared, [&](Value value) { return classOf(value, 0) == index || classOf(value, 1) == index; });
    if (isIndependent(index) && everywhere && (!best || sizeOf(index) > sizeOf(best)))
      best = index;
  }
  return best;
}
