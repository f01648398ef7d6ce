#include "lib/Schedule/Cost.h"
#include "llvm/ADT/TypeSwitch.h"

#include <set>

using namespace mlir;
using namespace recur;

double recur::elementsOf(Type type) {
  if (auto steps = dyn_cast<StepsType>(type))
    return cast<IntegerAttr>(steps.getCount()).getInt() * elementsOf(steps.getStep());
  return cast<MatType>(type).numElements();
}

static double flopsOf(Operation *op) {
  return TypeSwitch<Operation *, double>(op)
      .Case<ForOp>([](ForOp loop) {
        return cast<IntegerAttr>(loop.getCount()).getInt() * recur::flopsOf(loop.getBody());
      })
      .Case<MatmulOp>([](MatmulOp product) {
        return 2.0 * matType(product.getLhs()).numCols() * product.getType().numElements();
      })
      .Case<SolveOp>([](SolveOp solve) {
        double n = solve.getType().numRows();
        double once = solve.getIterations() ? *solve.getIterations() * (2 * n * n + 10 * n) : n * n * n / 3;
        return once + 2 * n * n;
      })
      .Case<ElementwiseOp>([](ElementwiseOp op) { return elementsOf(op->getResult(0).getType()); })
      .Case<ReduceOp>([](ReduceOp op) { return elementsOf(op.getOperand().getType()); })
      .Default(0.0);
}

double recur::flopsOf(Region &region) {
  double sum = 0;
  for (Operation &op : region.front().without_terminator())
    sum += ::flopsOf(&op);
  return sum;
}

// The ops of the rule that depend on one of `states`, op by op.
static double flopsThatDependOn(RuleOp rule, ArrayRef<BlockArgument> states) {
  llvm::DenseSet<Value> known(states.begin(), states.end());
  double sum = 0;
  for (Operation &op : rule.getBody().front().without_terminator()) {
    bool depends = false;
    op.walk([&](Operation *inner) {
      depends |= llvm::any_of(inner->getOperands(), [&](Value operand) { return known.contains(operand); });
    });
    if (!depends)
      continue;
    known.insert(op.result_begin(), op.result_end());
    sum += flopsOf(&op);
  }
  return sum;
}

size_t recur::outerProducts(const Version &version) {
  auto key = [](const Column &column) {
    return std::tuple(unsigned(column.kind), column.value.getAsOpaquePointer(), column.index);
  };
  std::set<std::tuple<unsigned, void *, unsigned>> rows, columns;
  for (const Write &write : version.writes)
    if (!write.matrix) {
      rows.insert(key(write.row));
      columns.insert(key(write.column));
    }
  return std::min(rows.size(), columns.size());
}

// The multiplications by which a term of an update is more than a sum of outer products.
static double flopsOfTerm(const OldTerm &term, MatType type, bool own) {
  double flops = own ? 0 : 2.0 * type.numElements(); // scaled and added, unless the decay is folded away
  for (const Factor &factor : term.left)
    flops += factor.diagonal ? 0 : 2.0 * type.numRows() * type.numElements();
  for (const Factor &factor : term.right)
    flops += factor.diagonal ? 0 : 2.0 * type.numCols() * type.numElements();
  return flops + term.elementwise.size() * type.numElements();
}

static double flopsOfAffine(const NormalForm &form) {
  double flops = 0;
  auto elements = [](Value value) { return double(matType(value).numElements()); };
  for (const Read &read : form.reads)
    flops += 2 * elements(form.states[read.state]);
  for (const Row &row : form.rows)
    if (row.solution)
      flops += *row.solution.getDefiningOp<SolveOp>().getIterations() * 2 *
               elements(form.versions[row.version].value);
    else if (!row.inOldReads && row.version != Row::none)
      flops += 2 * elements(form.versions[row.version].value);
  for (auto [state, index] : llvm::enumerate(form.updates)) {
    if (index == Row::none)
      continue;
    const Version &version = form.versions[index];
    MatType type = matType(form.states[state]);
    flops += 2.0 * outerProducts(version) * type.numElements();
    for (const Write &write : version.writes)
      flops += write.matrix ? 2.0 * type.numElements() : 0;
    bool own = false; // a second term of its own is added like any other
    for (const OldTerm &term : version.old)
      flops +=
          flopsOfTerm(term, type, term.state == state && !std::exchange(own, own || term.state == state));
  }
  return flops;
}

TokenCost recur::leastCost(RuleOp rule, const NormalForm &form) {
  TokenCost cost;
  for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
    cost.values += elementsOf(input.getType());
  for (Value output : rule.yieldedOutputs())
    cost.values += elementsOf(output.getType());
  SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State), ahead;
  for (auto [index, state] : llvm::enumerate(states)) {
    cost.state += elementsOf(state.getType());
    if (form.affine && form.ahead[index])
      ahead.push_back(state);
  }
  if (form.affine) {
    cost.flops = flopsOfAffine(form);
    // States that run ahead are no part of the normal form; scalars and vectors cost next to nothing.
    llvm::erase_if(ahead, [](BlockArgument state) { return !isMatrix(matType(state)); });
    cost.byOps = !ahead.empty();
  }
  if (!form.affine || cost.byOps) {
    cost.byOps = true;
    cost.flops = states.empty() ? flopsOf(rule.getBody()) : flopsThatDependOn(rule, states);
  }
  return cost;
}
