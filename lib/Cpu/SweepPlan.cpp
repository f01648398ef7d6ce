#include "lib/Cpu/SweepPlan.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

namespace {
// Builds the plan; the first thing that does not fit ends it with a reason.
class Planner {
public:
  // The matrix is to be this one of the rule's states.
  Planner(RuleOp rule, unsigned state) {
    plan.state = state;
    plan.module = ModuleOp::create(rule.getLoc());
    OpBuilder builder(plan.module->getBodyRegion());
    builder.clone(*rule);
  }

  SweepPlanResult run() {
    rule = *plan.module->getOps<RuleOp>().begin();
    if (!rule.symbols().empty())
      return {std::nullopt, "a dimension is not bound"};
    if (failed(unrollSteps(rule)))
      return {std::nullopt, "its micro-steps have no number"};
    inputs = rule.argumentsOf(ArgKind::Input);
    outputCount = rule.getOutputs().size();
    if (!checkState())
      return {std::nullopt, reason};
    moveSideStates();
    plan.form = normalise(rule);
    if (!plan.form.affine)
      return {std::nullopt,
              plan.form.blame.empty() ? "its update is not affine" : plan.form.blame.front().text};
    bool fits =
        orient() && collectReads() && collectWrites() && collectDecay() && collectRows() && collectOutputs();
    if (!fits)
      return {std::nullopt, reason};
    plan.shape.rowSlots = plan.rowValues.size();
    plan.shape.columnSlots = plan.columnValues.size() + plan.staged.size();
    plan.shape.scalarSlots = plan.scalarValues.size();
    return {std::move(plan), ""};
  }

private:
  bool fail(const Twine &why) {
    reason = why.str();
    return false;
  }

  // What depends on a value, in the rule's body.
  llvm::DenseSet<Value> dependents(Value source) {
    llvm::DenseSet<Value> result = {source};
    for (Operation &op : rule.getBody().front().without_terminator()) {
      bool depends = false;
      op.walk([&](Operation *inner) {
        depends |=
            llvm::any_of(inner->getOperands(), [&](Value operand) { return result.contains(operand); });
      });
      if (depends)
        result.insert(op.getResults().begin(), op.getResults().end());
    }
    return result;
  }

  // The matrix state is one that no other state depends on; there is no reason to give where another may be
  // it.
  bool checkState() {
    BlockArgument state = rule.argumentsOf(ArgKind::State)[plan.state];
    llvm::DenseSet<Value> depend = dependents(state);
    for (auto [other, next] : llvm::enumerate(rule.yieldedStates()))
      if (!isMatrix(matType(state)) || (other != plan.state && depend.contains(next)))
        return false;
    FloatAttr initial;
    if (!matchPattern(rule.getInitYield().getValues()[plan.state], m_Constant(&initial)))
      return fail("its state does not begin with a number");
    plan.initial = initial.getValueAsDouble();
    return true;
  }

  // Makes inputs of all states but the matrix, and outputs of their new values.
  void moveSideStates() {
    OpBuilder builder(rule);
    SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State);
    SmallVector<Value> yielded = {rule.yieldedStates()[plan.state]};
    llvm::append_range(yielded, rule.yieldedOutputs());
    SmallVector<Attribute> args(rule.getArgs().getValue()), names(rule.getOutputs().getValue());
    for (auto [index, state] : llvm::enumerate(states)) {
      if (index == plan.state)
        continue;
      yielded.push_back(rule.yieldedStates()[index]);
      ArgAttr arg = rule.getArg(state);
      names.push_back(builder.getStringAttr("next " + arg.getName().getValue()));
      args[state.getArgNumber()] =
          ArgAttr::get(builder.getContext(), ArgKind::Input, arg.getName(), arg.getRange(), arg.getUnit(), 0);
      plan.sideArguments.push_back(state.getArgNumber());
    }
    Value init = rule.getInitYield().getValues()[plan.state];
    rule.getInitYield().getValuesMutable().assign(init);
    rule.getBodyYield().getValuesMutable().assign(yielded);
    rule.setArgsAttr(builder.getArrayAttr(args));
    rule.setOutputsAttr(builder.getArrayAttr(names));
  }

  bool orient() {
    if (plan.form.reads.empty() && outputCount)
      return fail("the state is not read");
    Side side = plan.form.reads.empty() ? Side::Right : plan.form.reads.front().side;
    for (const Read &read : plan.form.reads)
      if (read.side != side)
        return fail("the state is read from both sides");
    plan.transposed = side == Side::Right;
    MatType type = matType(plan.form.states.front());
    plan.shape.rows = plan.transposed ? type.numCols() : type.numRows();
    plan.shape.columns = plan.transposed ? type.numRows() : type.numCols();
    return true;
  }

  unsigned rowSlot(Value value) {
    plan.rowValues.push_back(value);
    return plan.rowValues.size() - 1;
  }

  // With a decay by rows the packed reads and writes get the decay multiplied in, each its own; otherwise a
  // vector that is read and written is packed once.
  unsigned sharedRowSlot(Value value) {
    auto found = llvm::find(plan.rowValues, value);
    if (!hasRowDecay() && found != plan.rowValues.end())
      return found - plan.rowValues.begin();
    return rowSlot(value);
  }

  const std::optional<Decay> &decay() {
    if (!cachedDecay)
      cachedDecay = plan.form.decay(0);
    return *cachedDecay;
  }
  ArrayRef<Value> rowFactors() { return plan.transposed ? decay()->right : decay()->left; }
  ArrayRef<Value> columnFactors() { return plan.transposed ? decay()->left : decay()->right; }
  bool hasRowDecay() { return decay() && !rowFactors().empty(); }

  bool collectReads() {
    if (!decay())
      return fail("the state's decay is not diagonal");
    if (!decay()->elementwise.empty())
      return fail("the state's decay has full rank");
    for (const Read &read : plan.form.reads) {
      if (!plan.form.isTokenOnly(read.vector))
        return fail("the state is read along what was read of it");
      plan.shape.reads.push_back(sharedRowSlot(read.vector));
    }
    return true;
  }

  SweepFactor factor(const Coefficient &c) {
    if (c.factors.empty())
      return {c.number, std::nullopt};
    OpBuilder builder(rule.getBodyYield());
    Coefficient product = c;
    product.number = 1;
    Value value = buildCoefficient(builder, rule.getLoc(), product);
    return {c.number, scalarSlot(value)};
  }

  unsigned scalarSlot(Value value) {
    auto found = llvm::find(plan.scalarValues, value);
    if (found == plan.scalarValues.end()) {
      plan.scalarValues.push_back(value);
      return plan.scalarValues.size() - 1;
    }
    return found - plan.scalarValues.begin();
  }

  // An input, or one micro-step of it, can be read in place.
  SweepColumn knownColumn(Value value) {
    Value source = value;
    int64_t step = -1;
    FloatAttr index;
    if (auto extract = value.getDefiningOp<ExtractOp>();
        extract && !cast<StepsType>(extract.getSteps().getType()).getColumns())
      if (matchPattern(extract.getIndex(), m_Constant(&index)))
        source = extract.getSteps(), step = std::llround(index.getValueAsDouble()) - 1;
    auto input = llvm::find(inputs, source);
    if (input != inputs.end())
      return {SweepColumn::Input, unsigned(input - inputs.begin()), step};
    auto found = llvm::find(plan.columnValues, value);
    if (found == plan.columnValues.end())
      found = plan.columnValues.insert(plan.columnValues.end(), value);
    return {SweepColumn::Packed, unsigned(found - plan.columnValues.begin())};
  }

  SweepColumn column(const Column &c) {
    if (c.kind == Column::Known)
      return knownColumn(c.value);
    return {c.kind == Column::OldRead ? SweepColumn::Read : SweepColumn::Row, c.index};
  }

  // Each distinct row vector of the writes becomes one write; what stands on the column side adds up.
  bool collectWrites() {
    llvm::MapVector<Value, SweepSum> sums;
    for (const Write &write : plan.form.update(0).writes) {
      if (write.matrix)
        return fail("a write has full rank");
      const Column &along = plan.transposed ? write.row : write.column;
      const Column &across = plan.transposed ? write.column : write.row;
      if (along.kind != Column::Known)
        return fail("what is written depends on the state in both of its vectors");
      sums[along.value].push_back({factor(write.c), {}, column(across)});
    }
    for (auto &[value, sum] : sums) {
      plan.shape.writes.push_back(sharedRowSlot(value));
      plan.writes.push_back(std::move(sum));
    }
    auto isKnown = [](const SweepTerm &term) {
      return term.column.kind == SweepColumn::Packed || term.column.kind == SweepColumn::Input;
    };
    plan.shape.knownWrites =
        llvm::all_of(plan.writes, [&](const SweepSum &sum) { return llvm::all_of(sum, isKnown); });
    return true;
  }

  // The product of vectors and, unless null, a scalar, as one value of the rule.
  Value product(ArrayRef<Value> vectors, Value scalar) {
    OpBuilder builder(rule.getBodyYield());
    Value result = scalar;
    for (Value vector : vectors)
      result = result ? MulOp::create(builder, rule.getLoc(), result, vector).getResult() : vector;
    return result;
  }

  bool collectDecay() {
    const Coefficient &c = decay()->c;
    OpBuilder builder(rule.getBodyYield());
    Value scalar = c.isOne() ? Value() : buildCoefficient(builder, rule.getLoc(), c);
    if (hasRowDecay()) {
      plan.shape.rowDecay = rowSlot(product(rowFactors(), scalar));
      scalar = {};
    }
    if (scalar)
      plan.shape.scalarDecay = scalarSlot(scalar);
    if (!columnFactors().empty()) {
      plan.columnDecay = knownColumn(product(columnFactors(), {}));
      plan.shape.columnDecay = true;
    }
    return true;
  }

  bool collectRows() {
    for (const Row &row : plan.form.rows) {
      if (row.vector && !plan.form.isTokenOnly(row.vector))
        return fail("the state is read along what was read of it");
      SweepSum sum;
      for (const RowTerm &term : row.terms) {
        SweepTerm result{factor(term.c), {}, column(term.column)};
        for (const Factor &map : term.map) {
          if (!map.diagonal)
            return fail("what was read is mixed across the columns");
          result.maps.push_back(knownColumn(map.value));
        }
        sum.push_back(std::move(result));
      }
      if (row.type.numElements() != plan.shape.columns)
        return fail("what was read is mixed across the columns");
      plan.rows.push_back(std::move(sum));
    }
    return true;
  }

  // Outputs that are elementwise in the columns are computed with them; otherwise all are left to the
  // epilogue.
  bool collectOutputs() {
    for (const Readout &readout : plan.form.readouts)
      plan.columns[readout.value] = {SweepColumn::Row, readout.row};
    size_t columns = plan.columnValues.size(), scalars = plan.scalarValues.size();
    for (Value output : rule.yieldedOutputs().take_front(outputCount)) {
      plan.outputs.push_back(output);
      plan.hasEpilogue |= matType(output).numElements() != plan.shape.columns || !collect(output);
    }
    if (!plan.hasEpilogue)
      return true;
    plan.columnValues.resize(columns);
    plan.scalarValues.resize(scalars);
    llvm::DenseSet<Value> seen;
    return llvm::all_of(plan.outputs, [&](Value output) { return stage(output, seen); });
  }

  // Walks the epilogue from an output to the readouts and to token-only values.
  bool stage(Value value, llvm::DenseSet<Value> &seen) {
    if (!seen.insert(value).second)
      return true;
    if (llvm::any_of(plan.form.readouts, [&](const Readout &readout) { return readout.value == value; })) {
      plan.staged.push_back(value);
      return true;
    }
    if (plan.form.isTokenOnly(value)) {
      auto argument = dyn_cast<BlockArgument>(value);
      bool side = argument && llvm::is_contained(plan.sideArguments, argument.getArgNumber());
      if (!isa<MatType>(value.getType()) || (argument && !side) || matchPattern(value, m_Constant()))
        return true;
      if (isMatrix(matType(value)))
        return fail("an output would need another matrix for each token of a chunk");
      plan.kept.push_back(value);
      return true;
    }
    Operation *op = value.getDefiningOp();
    if (!op || op->getNumRegions())
      return fail("an output is not computed from readouts");
    return llvm::all_of(op->getOperands(), [&](Value operand) { return stage(operand, seen); });
  }

  // Whether computing a token-only column again costs less than packing it: an operation or two on inputs and
  // scalars.
  bool isQuick(Value value) {
    Operation *op = value.getDefiningOp();
    return op && isa<MulOp, AddOp, SubOp, NegOp, BroadcastOp>(op) &&
           llvm::all_of(op->getOperands(), [&](Value operand) {
             return llvm::is_contained(inputs, operand) || matType(operand).numElements() == 1;
           });
  }

  bool collect(Value value) {
    if (plan.columns.count(value) || plan.scalars.count(value))
      return true;
    int64_t size = matType(value).numElements();
    if (plan.form.isTokenOnly(value)) {
      FloatAttr number;
      if (matchPattern(value, m_Constant(&number)))
        plan.scalars[value] = {number.getValueAsDouble(), std::nullopt};
      else if (size == 1)
        plan.scalars[value] = {1, scalarSlot(value)};
      else if (size == plan.shape.columns && isQuick(value))
        return llvm::all_of(value.getDefiningOp()->getOperands(),
                            [&](Value operand) { return collect(operand); });
      else if (size == plan.shape.columns)
        plan.columns[value] = knownColumn(value);
      else
        return false;
      return true;
    }
    Operation *op = value.getDefiningOp();
    if (!op || size != plan.shape.columns || !isa<ElementwiseOp, TransposeOp, BroadcastOp>(op))
      return false;
    return llvm::all_of(op->getOperands(), [&](Value operand) { return collect(operand); });
  }

  SweepPlan plan;
  RuleOp rule; // the plan's copy
  SmallVector<BlockArgument> inputs;
  size_t outputCount = 0;
  std::string reason;
  std::optional<std::optional<Decay>> cachedDecay;
};
} // namespace

SweepPlanResult cpu::planSweep(RuleOp rule) {
  std::string reason = "no state is a matrix that the others do not depend on";
  for (unsigned state = 0; state < rule.argumentsOf(ArgKind::State).size(); ++state) {
    SweepPlanResult result = Planner(rule, state).run();
    if (result.plan)
      return result;
    if (!result.reason.empty())
      reason = result.reason;
  }
  return {std::nullopt, reason};
}
