// A value of few columns or rows is a grid of parts, with one part where a dimension stays whole.
#include "lib/Algebra/SplitColumns.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Terms.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"

namespace recur {
#define GEN_PASS_DEF_RECURSPLITCOLUMNS
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

static bool isConstantValue(Value value, double expected) {
  auto constant = value.getDefiningOp<ConstantOp>();
  return constant && constant.getValue().isExactlyValue(expected);
}

// Dimensions that no state has, which an input matrix has beside one that a state has.
static llvm::SetVector<Attribute> narrowDims(RuleOp rule) {
  llvm::SmallDenseSet<Attribute> ofStates;
  for (ArgKind kind : {ArgKind::State, ArgKind::Stale})
    for (BlockArgument state : rule.argumentsOf(kind))
      ofStates.insert(matType(state).getRows()), ofStates.insert(matType(state).getCols());
  llvm::SetVector<Attribute> dims;
  for (BlockArgument input : rule.argumentsOf(ArgKind::Input)) {
    auto type = dyn_cast<MatType>(input.getType());
    if (!type || isOne(type.getRows()) || isOne(type.getCols()))
      continue;
    bool hasRows = ofStates.contains(type.getRows()), hasCols = ofStates.contains(type.getCols());
    if (hasRows != hasCols)
      dims.insert(hasRows ? type.getCols() : type.getRows());
  }
  return dims;
}

SmallVector<StringAttr> recur::openColumns(RuleOp rule) {
  SmallVector<StringAttr> symbols;
  for (Attribute dim : narrowDims(rule))
    if (auto symbol = dyn_cast<StringAttr>(dim))
      symbols.push_back(symbol);
  return symbols;
}

namespace {
// The parts of a value, rows first.
struct Parts {
  int64_t rows = 1, cols = 1;
  SmallVector<Value> values;
  Value at(int64_t i, int64_t j) const { return values[(rows == 1 ? 0 : i) * cols + (cols == 1 ? 0 : j)]; }
};

class Splitter {
public:
  explicit Splitter(RuleOp rule) : rule(rule), b(rule.getContext()) {}

  void run() {
    for (Attribute dim : narrowDims(rule))
      if (auto size = dyn_cast<IntegerAttr>(dim); size && size.getInt() > 1 && size.getInt() <= mostColumns)
        few.insert(dim);
    if (few.empty() || !canSplit())
      return;
    Block &body = rule.getBody().front();
    SmallVector<Operation *> old;
    for (Operation &op : body.without_terminator())
      if (isSplitOp(&op))
        old.push_back(&op);
    b.setInsertionPointToStart(&body);
    for (BlockArgument argument : body.getArguments())
      if (isSplit(argument))
        splitArgument(argument);
    for (Operation *op : old) {
      b.setInsertionPoint(op);
      split(op);
    }
    Operation *yield = body.getTerminator();
    b.setInsertionPoint(yield);
    for (OpOperand &operand : yield->getOpOperands())
      if (auto known = parts.find(operand.get()); known != parts.end())
        operand.set(joined(known->second));
    for (Operation *op : llvm::reverse(old))
      op->erase();
    SmallVector<Attribute> args(rule.getArgs().getValue());
    for (auto [argument, type] : steps) {
      argument.setType(type);
      ArgAttr arg = rule.getArg(argument);
      if (arg.getUnit() && type.getColumns())
        args[argument.getArgNumber()] =
            ArgAttr::get(b.getContext(), arg.getKind(), arg.getName(), arg.getRange(), /*unit=*/false, 0);
    }
    rule.setArgsAttr(b.getArrayAttr(args));
  }

private:
  bool isFew(Attribute dim) const { return few.contains(dim); }
  bool isSplit(Value value) const {
    auto type = dyn_cast<MatType>(value.getType());
    return type && (isFew(type.getRows()) || isFew(type.getCols()));
  }
  bool isSplitOp(Operation *op) const {
    auto is = [&](Value value) { return isSplit(value); };
    return llvm::any_of(op->getOperands(), is) || llvm::any_of(op->getResults(), is);
  }
  int64_t countOf(Attribute dim) const { return isFew(dim) ? cast<IntegerAttr>(dim).getInt() : 1; }
  Attribute partOf(Attribute dim) const { return isFew(dim) ? Attribute(b.getI64IntegerAttr(1)) : dim; }
  MatType partOf(MatType type) const {
    return MatType::get(type.getContext(), partOf(type.getRows()), partOf(type.getCols()));
  }

  // Whether every op on such values is one that its parts can take the place of.
  bool canSplit() {
    for (BlockArgument argument : rule.getBody().getArguments()) {
      auto steps = dyn_cast<StepsType>(argument.getType());
      if (steps && (isFew(steps.getStep().getRows()) || isFew(steps.getStep().getCols())))
        return false;
    }
    for (Operation &op : rule.getBody().front().without_terminator()) {
      if (op.getNumRegions()) {
        bool hasFew = false;
        op.walk([&](Operation *inner) { hasFew |= isSplitOp(inner); });
        if (hasFew)
          return false;
      }
      if (isSplitOp(&op) && !isa<ElementwiseOp, MatmulOp, TransposeOp, ReduceOp, BroadcastOp, ConstantOp,
                                 IdentityOp, DiagOp, AssumeOp, JoinOp>(op))
        return false;
    }
    return true;
  }

  // 1 x n, with a 1 at `place`.
  Value unitRow(int64_t place, int64_t n) {
    SmallVector<Value> entries;
    for (int64_t i = 0; i < n; ++i)
      entries.push_back(ConstantOp::create(b, rule.getLoc(), i == place ? 1.0 : 0.0));
    return JoinOp::create(b, rule.getLoc(), entries);
  }

  // An input of few rows or columns becomes micro-steps. Parts of what has few of both, and of params, are
  // sums over it with all other entries zero.
  void splitArgument(BlockArgument argument) {
    MatType type = matType(argument);
    Location loc = argument.getLoc();
    Parts own{countOf(type.getRows()), countOf(type.getCols()), {}};
    bool isInput = rule.getArg(argument).getKind() == ArgKind::Input;
    if (isInput && (own.rows == 1 || own.cols == 1)) {
      bool columns = own.rows == 1;
      auto step =
          MatType::get(b.getContext(), columns ? type.getRows() : type.getCols(), b.getI64IntegerAttr(1));
      Attribute count = columns ? type.getCols() : type.getRows();
      steps.push_back({argument, StepsType::get(b.getContext(), count, step, columns)});
      for (int64_t j = 0; j < own.rows * own.cols; ++j) {
        Value place = ConstantOp::create(b, loc, double(j + 1));
        Value vector = ExtractOp::create(b, loc, TypeRange(step), ValueRange{argument, place});
        own.values.push_back(columns ? vector : b.createOrFold<TransposeOp>(loc, vector));
      }
    } else {
      for (int64_t i = 0; i < own.rows; ++i)
        for (int64_t j = 0; j < own.cols; ++j) {
          Value part = argument;
          if (own.cols > 1)
            part = ReduceOp::create(b, loc, Reduction::Sum, MulOp::create(b, loc, part, unitRow(j, own.cols)),
                                    /*rows=*/false, /*cols=*/true);
          if (own.rows > 1) {
            Value unit = TransposeOp::create(b, loc, unitRow(i, own.rows));
            part = ReduceOp::create(b, loc, Reduction::Sum, MulOp::create(b, loc, part, unit), /*rows=*/true,
                                    /*cols=*/false);
          }
          own.values.push_back(part);
        }
    }
    parts[argument] = own;
  }

  Parts partsOf(Value value) {
    auto known = parts.find(value);
    return known == parts.end() ? Parts{1, 1, {value}} : known->second;
  }

  Value number(double value, MatType type) { return ConstantOp::create(b, rule.getLoc(), value, type); }
  Value added(Location loc, Value x, Value y) { return x ? AddOp::create(b, loc, x, y).getResult() : y; }

  Value product(Location loc, Value x, Value y) {
    if (matType(x).isScalar() || matType(y).isScalar())
      return isConstantValue(x, 1) ? y : isConstantValue(y, 1) ? x : MulOp::create(b, loc, x, y).getResult();
    return b.createOrFold<MatmulOp>(loc, x, y);
  }

  Value transposed(Location loc, Value value) { return b.createOrFold<TransposeOp>(loc, value); }
  // A row as a column. What is done to rows entry by entry, and sums over them, are made of columns, as those
  // of vectors are.
  Value upright(Location loc, Value value) { return isRow(matType(value)) ? transposed(loc, value) : value; }

  // The part of an op's result in some row and column.
  Value part(Operation *op, int64_t i, int64_t j) {
    Location loc = op->getLoc();
    MatType type = partOf(matType(op->getResult(0)));
    auto operand = [&](unsigned n) { return partsOf(op->getOperand(n)); };
    if (auto product = dyn_cast<MatmulOp>(op)) {
      Parts x = operand(0), y = operand(1);
      Value sum;
      for (int64_t k = 0; k < x.cols; ++k)
        if (Value left = x.at(i, k), right = y.at(k, j);
            !isConstantValue(left, 0) && !isConstantValue(right, 0))
          sum = added(loc, sum, this->product(loc, left, right));
      return sum ? sum : number(0, type);
    }
    if (isa<TransposeOp>(op))
      return transposed(loc, operand(0).at(j, i));
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      Parts x = operand(0);
      Value result;
      for (int64_t k = 0; k < (reduce.getRows() ? x.rows : 1); ++k)
        for (int64_t l = 0; l < (reduce.getCols() ? x.cols : 1); ++l) {
          Value own = x.at(reduce.getRows() ? k : i, reduce.getCols() ? l : j);
          if (bool turns = isRow(matType(own)); matType(own) != type)
            own = ReduceOp::create(b, loc, reduce.getKind(), upright(loc, own),
                                   turns ? reduce.getCols() : reduce.getRows(),
                                   turns ? reduce.getRows() : reduce.getCols());
          result = !result                              ? own
                   : reduce.getKind() == Reduction::Sum ? AddOp::create(b, loc, result, own).getResult()
                                                        : MaxOp::create(b, loc, result, own).getResult();
        }
      return result;
    }
    if (isa<BroadcastOp>(op)) {
      Value own = operand(0).at(i, j);
      if (matType(own) == type)
        return own;
      Value entries = BroadcastOp::create(b, loc, isRow(type) ? type.transposed() : type, upright(loc, own));
      return isRow(type) ? transposed(loc, entries) : entries;
    }
    if (auto constant = dyn_cast<ConstantOp>(op))
      return number(constant.getValue().convertToDouble(), type);
    if (isa<IdentityOp>(op))
      return number(i == j, type);
    if (isa<DiagOp>(op))
      return i == j ? operand(0).at(i, 0) : number(0, type);
    if (isa<JoinOp>(op))
      return operand(j).at(i, 0);
    // Norms are those of rows.
    if (auto assume = dyn_cast<AssumeOp>(op)) {
      Value own = operand(0).at(i, j);
      bool unit = assume.getUnit() && operand(0).cols == 1;
      if (!assume.getRange() && !unit)
        return own;
      Value known = AssumeOp::create(b, loc, upright(loc, own), assume.getRangeAttr(), unit);
      return isRow(type) ? transposed(loc, known) : known;
    }
    IRMapping map;
    for (Value value : op->getOperands())
      map.map(value, isRow(type) ? upright(loc, partsOf(value).at(i, j)) : partsOf(value).at(i, j));
    Operation *copy = b.clone(*op, map);
    copy->getResult(0).setType(isRow(type) ? type.transposed() : type);
    return isRow(type) ? transposed(loc, copy->getResult(0)) : copy->getResult(0);
  }

  void split(Operation *op) {
    Value result = op->getResult(0);
    MatType type = matType(result);
    Parts own{countOf(type.getRows()), countOf(type.getCols()), {}};
    for (int64_t i = 0; i < own.rows; ++i)
      for (int64_t j = 0; j < own.cols; ++j)
        own.values.push_back(part(op, i, j));
    if (isSplit(result))
      parts[result] = own;
    else
      result.replaceAllUsesWith(own.values.front());
  }

  // A value of its parts, for an output.
  Value joined(const Parts &own) {
    Location loc = rule.getLoc();
    SmallVector<Value> columns;
    for (int64_t j = 0; j < own.cols; ++j) {
      SmallVector<Value> rows;
      for (int64_t i = 0; i < own.rows; ++i)
        rows.push_back(transposed(loc, own.at(i, j)));
      columns.push_back(own.rows == 1 ? own.at(0, j) : transposed(loc, JoinOp::create(b, loc, rows)));
    }
    if (own.cols == 1)
      return columns.front();
    return JoinOp::create(b, loc, columns);
  }

  RuleOp rule;
  mutable OpBuilder b;
  llvm::SmallDenseSet<Attribute> few;
  DenseMap<Value, Parts> parts;
  SmallVector<std::pair<BlockArgument, StepsType>> steps;
};

struct SplitColumns : recur::impl::RecurSplitColumnsBase<SplitColumns> {
  void runOnOperation() override { splitColumns(getOperation()); }
};
} // namespace

void recur::splitColumns(RuleOp rule) { Splitter(rule).run(); }
