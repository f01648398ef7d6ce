// One column of many: what a token does with its first one.
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/Rewriting.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;

JoinOp recur::columnsOf(Value output) {
  auto transpose = output.getDefiningOp<TransposeOp>();
  return (transpose ? transpose.getOperand() : output).getDefiningOp<JoinOp>();
}

std::optional<int64_t> recur::microStepOf(ExtractOp extract) {
  FloatAttr index;
  if (!matchPattern(extract.getIndex(), m_Constant(&index)))
    return std::nullopt;
  return int64_t(index.getValueAsDouble());
}

// The row or column of a param that a value is, where recur-split-columns took it apart: a sum over it, times
// zeros and a one.
static std::optional<std::pair<Value, int64_t>> paramPart(Value value) {
  auto sum = value.getDefiningOp<ReduceOp>();
  auto product = sum ? sum.getOperand().getDefiningOp<MulOp>() : MulOp();
  if (!product)
    return std::nullopt;
  for (unsigned i : {0, 1}) {
    JoinOp unit = columnsOf(product->getOperand(i));
    if (!unit || !isa<BlockArgument>(product->getOperand(1 - i)))
      continue;
    std::optional<int64_t> place;
    for (auto [j, column] : llvm::enumerate(unit.getColumns())) {
      FloatAttr number;
      if (!matchPattern(column, m_Constant(&number)) || (number.getValueAsDouble() != 0 && place))
        return std::nullopt;
      if (number.getValueAsDouble() != 0)
        place = j + 1;
    }
    if (place)
      return std::pair(product->getOperand(1 - i), *place);
  }
  return std::nullopt;
}

FailureOr<int64_t> LookedAt::both(FailureOr<int64_t> x, FailureOr<int64_t> y) {
  if (failed(x) || failed(y) || (*x && *y && *x != *y))
    return failure();
  return *x ? x : y;
}

FailureOr<int64_t> LookedAt::of(Value value) {
  if (auto known = found.find(value); known != found.end())
    return known->second;
  FailureOr<int64_t> own = int64_t(0);
  Operation *op = value.getDefiningOp();
  if (auto extract = dyn_cast_if_present<ExtractOp>(op)) {
    std::optional<int64_t> step = microStepOf(extract);
    own = step ? FailureOr<int64_t>(*step) : FailureOr<int64_t>(failure());
  } else if (auto part = paramPart(value)) {
    own = part->second;
  } else if (op && !(isOpaque && isOpaque(value))) {
    for (Value operand : op->getOperands())
      own = both(own, of(operand));
  }
  found.try_emplace(value, own);
  return own;
}

bool LookedAt::areAlike(Value first, Value other, int64_t step) {
  if (first == other) {
    FailureOr<int64_t> own = of(first);
    return succeeded(own) && *own == 0;
  }
  if (auto part = paramPart(first)) {
    auto second = paramPart(other);
    return second && part->first == second->first && part->second == 1 && second->second == step;
  }
  Operation *op = first.getDefiningOp(), *second = other.getDefiningOp();
  if (!op || !second || op->getName() != second->getName() || op->getNumRegions() ||
      op->getNumOperands() != second->getNumOperands() || first.getType() != other.getType() ||
      (isOpaque && isOpaque(first)))
    return false;
  if (auto extract = dyn_cast<ExtractOp>(op))
    return extract.getSteps() == cast<ExtractOp>(second).getSteps() && microStepOf(extract) == 1 &&
           microStepOf(cast<ExtractOp>(second)) == step;
  return op->getAttrDictionary() == second->getAttrDictionary() && op->getNumOperands() &&
         llvm::all_of(llvm::zip(op->getOperands(), second->getOperands()),
                      [&](const auto &pair) { return areAlike(std::get<0>(pair), std::get<1>(pair), step); });
}

namespace {
class ColumnFinder {
public:
  explicit ColumnFinder(RuleOp rule)
      : rule(rule), body(rule.getBody().front()), b(body.getTerminator()), loc(rule.getLoc()) {}

  LogicalResult run() {
    if (!rule.getBody().getOps<ForOp>().empty() || !rule.argumentsOf(ArgKind::Stale).empty())
      return failure();
    for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
      if (auto steps = dyn_cast<StepsType>(input.getType()); steps && !input.use_empty()) {
        int64_t own = cast<IntegerAttr>(steps.getCount()).getInt();
        if (count && own != count)
          return failure();
        count = own;
      }
    if (!count)
      return failure();
    SmallVector<Value> outputs;
    for (Value output : rule.yieldedOutputs()) {
      JoinOp join = columnsOf(output);
      if (join && int64_t(join.getColumns().size()) != count)
        return failure();
      outputs.push_back(join ? join.getColumns()[0] : output);
    }
    nf = normalise(rule);
    if (!nf.affine || nf.states.size() != 1 || nf.updates[0] == Row::none)
      return failure();
    std::optional<Decay> decay = nf.decay(0);
    if (!decay || decay->c.number == 0 || !decay->elementwise.empty() || nf.update(0).old.size() != 1)
      return failure();
    Value old = scaled(decay->c, nf.states[0]);
    for (Value factors : decay->left)
      old = recur::scaled(b, loc, diagonalColumn(factors), old);
    for (Value factors : decay->right)
      old = recur::scaled(b, loc, TransposeOp::create(b, loc, diagonalColumn(factors)), old);
    Value update;
    for (const Write &write : nf.update(0).writes) {
      if (write.matrix)
        return failure();
      FailureOr<int64_t> which = columnOf(write);
      if (failed(which) || *which == 0) // of no column: of none of the rows
        return failure();
      if (*which != 1)
        continue;
      Value own = valueOf(write);
      if (!own)
        return failure();
      update = update ? AddOp::create(b, loc, update, own).getResult() : own;
    }
    if (!update)
      return failure();
    Value next = AddOp::create(b, loc, old, update), ofRule = rule.yieldedStates()[0];
    Rebuilder rebuilder(b, nf,
                        [&](Value value) { return value == ofRule ? std::optional(next) : std::nullopt; });
    SmallVector<Value> yielded{next};
    for (Value output : outputs) {
      yielded.push_back(rebuilder.of(output));
      if (!yielded.back())
        return failure();
    }
    body.getTerminator()->setOperands(yielded);
    eraseDead(body);
    return takeRow();
  }

private:
  FailureOr<int64_t> columnOf(Value value) { return columns.of(value); }
  static FailureOr<int64_t> both(FailureOr<int64_t> x, FailureOr<int64_t> y) { return LookedAt::both(x, y); }
  FailureOr<int64_t> columnOf(const Coefficient &c) {
    FailureOr<int64_t> found = int64_t(0);
    for (Value factor : c.factors)
      found = both(found, columnOf(factor));
    return found;
  }
  FailureOr<int64_t> columnOf(const Column &column) {
    if (column.kind == Column::Known)
      return columnOf(column.value);
    if (column.kind == Column::OldRead)
      return columnOf(nf.reads[column.index].vector);
    const Row &row = nf.rows[column.index];
    if (row.solution ||
        (row.version != Row::none && !(row.inOldReads && nf.versions[row.version].writes.empty())))
      return failure();
    if (row.version != Row::none)
      return columnOf(row.vector);
    FailureOr<int64_t> found = int64_t(0);
    for (const RowTerm &term : row.terms) {
      found = both(found, both(columnOf(term.c), columnOf(term.column)));
      if (!term.map.empty())
        return failure();
    }
    return found;
  }
  FailureOr<int64_t> columnOf(const Write &write) {
    return both(columnOf(write.c), both(columnOf(write.column), columnOf(write.row)));
  }

  Value scaled(const Coefficient &c, Value value) {
    return recur::scaled(b, loc, buildCoefficient(b, loc, c), value);
  }
  Value valueOf(const Column &column) {
    if (column.kind == Column::Known)
      return column.value;
    if (column.kind == Column::OldRead) {
      const Read &read = nf.reads[column.index];
      return readOf(b, loc, nf.states[read.state], read.side, read.vector);
    }
    const Row &row = nf.rows[column.index];
    if (row.version != Row::none)
      return readOf(b, loc, nf.versions[row.version].value, row.side, row.vector);
    Value sum;
    for (const RowTerm &term : row.terms) {
      Value own = scaled(term.c, valueOf(term.column));
      sum = sum ? AddOp::create(b, loc, sum, own).getResult() : own;
    }
    return sum;
  }
  Value valueOf(const Write &write) {
    Value column = valueOf(write.column), row = valueOf(write.row);
    if (!column || !row)
      return {};
    return MatmulOp::create(b, loc, scaled(write.c, column), TransposeOp::create(b, loc, row));
  }

  // What is looked at is the first micro-step, which becomes the row's.
  LogicalResult takeRow() {
    MLIRContext *context = rule.getContext();
    for (BlockArgument argument : body.getArguments()) {
      auto steps = dyn_cast<StepsType>(argument.getType());
      if (!steps)
        continue;
      for (Operation *user : llvm::make_early_inc_range(argument.getUsers())) {
        if (microStepOf(cast<ExtractOp>(user)) != 1)
          return failure();
        user->replaceAllUsesWith(ValueRange(argument));
        user->erase();
      }
      argument.setType(steps.getStep());
    }
    addInput(rule, "first row", RangeAttr::closed(context, 0, 1), /*isUnit=*/false, MatType::scalar(context));
    rule->setAttr(rowsAttr, b.getI64IntegerAttr(count));
    return success();
  }

  RuleOp rule;
  Block &body;
  OpBuilder b;
  Location loc;
  NormalForm nf;
  int64_t count = 0;
  LookedAt columns;
};
} // namespace

OwningOpRef<ModuleOp> recur::ruleOfColumn(RuleOp rule) {
  return rewritten(rule, [](RuleOp copy) { return ColumnFinder(copy).run(); });
}
