#include "lib/Algebra/WidenedVectors.h"
#include "lib/Algebra/Rewriting.h"
#include "mlir/Analysis/SliceAnalysis.h"

using namespace mlir;
using namespace recur;

static bool isNumber(Value value) { return matType(value).isScalar(); }
static bool isColumn(Value value) { return isOne(matType(value).getCols()) && !isNumber(value); }

namespace {
// Makes a matrix of one state. Of what follows from it, each number becomes a row of numbers, each column a
// matrix of such columns, and each row the transposed.
class Widener {
public:
  Widener(RuleOp rule, unsigned number)
      : rule(rule), body(rule.getBody().front()), b(rule.getContext()), loc(rule.getLoc()), number(number),
        state(rule.argumentsOf(ArgKind::State)[number]) {}

  LogicalResult run() {
    Value first = rule.getInitYield()->getOperand(number);
    auto constant = first.getDefiningOp<ConstantOp>();
    if (!isColumn(state) || !constant || !readsItself())
      return failure();
    MatType type = wideType(state);
    b.setInsertionPoint(constant);
    rule.getInitYield()->setOperand(
        number, ConstantOp::create(b, loc, constant.getValue().convertToDouble(), type).getResult());
    wide[state] = body.insertArgument(state.getArgNumber() + 1, type, loc);
    for (Operation &op : llvm::make_early_inc_range(body.without_terminator()))
      if (op.getNumResults() == 1 && llvm::any_of(op.getOperands(), [&](Value x) { return isWide(x); })) {
        b.setInsertionPoint(&op);
        if (Value own = widened(&op))
          wide[op.getResult(0)] = own;
      }
    Operation *yield = body.getTerminator();
    if (Value next = wide.lookup(yield->getOperand(number)))
      yield->setOperand(number, next);
    for (Operation &op : body)
      if (op.getNumResults() != 1 || !isWide(op.getResult(0)))
        for (OpOperand &operand : op.getOpOperands())
          if (isWide(operand.get()) && failed(narrow(operand)))
            return failure();
    eraseDead(body);
    unsigned old = state.getArgNumber();
    if (!body.getArgument(old).use_empty())
      return failure();
    body.eraseArgument(old);
    return success();
  }

private:
  bool isWide(Value value) const { return wide.contains(value); }

  // Whether the vector's update follows from a number that follows from it.
  bool readsItself() {
    SetVector<Operation *> from, to;
    getForwardSlice(state, &from);
    for (Operation *op : from) {
      if (!isa<ReduceOp, MatmulOp>(op) || !isNumber(op->getResult(0)))
        continue;
      to.clear();
      getForwardSlice(op, &to);
      if (to.contains(rule.yieldedStates()[number].getDefiningOp()))
        return true;
    }
    return false;
  }

  MatType wideType(Value like) {
    MatType type = matType(like);
    Attribute columns = Builder(rule.getContext()).getI64IntegerAttr(columnsOfVector);
    return isOne(type.getCols()) ? MatType::get(rule.getContext(), type.getRows(), columns)
                                 : MatType::get(rule.getContext(), columns, type.getCols());
  }

  Value turned(Value value) { return TransposeOp::create(b, loc, value); }

  // The same of a value that does not follow from the state: numbers times ones, and columns times such rows.
  Value known(Value value) {
    if (isNumber(value)) {
      MatType row = wideType(value);
      return MulOp::create(b, loc, row, value, ConstantOp::create(b, loc, 1.0, row));
    }
    if (!isColumn(value))
      return turned(known(turned(value)));
    Value factor = ConstantOp::create(b, loc, 1.0);
    while (auto product = value.getDefiningOp<MulOp>()) {
      unsigned at = isNumber(product.getLhs()) ? 0 : 1;
      if (!isNumber(product->getOperand(at)))
        break;
      factor = MulOp::create(b, loc, factor, product->getOperand(at));
      value = product->getOperand(1 - at);
    }
    return MatmulOp::create(b, loc, value, known(factor));
  }

  // What an operation's result becomes; null where it is no sum, no product with what does not follow from
  // the state, and no read of it.
  Value widened(Operation *op) {
    auto own = [&](unsigned i) { return wide.lookup(op->getOperand(i)); };
    Value result = op->getResult(0);
    if (isa<TransposeOp>(op))
      return isNumber(result) ? own(0) : turned(own(0));
    if (isa<NegOp>(op))
      return NegOp::create(b, loc, own(0));
    if (auto sum = dyn_cast<ReduceOp>(op))
      return sum.getKind() == Reduction::Sum && isNumber(result) ? sumOf(sum.getOperand()) : Value();
    if (op->getNumOperands() != 2)
      return {};
    Value lhs = op->getOperand(0), rhs = op->getOperand(1);
    if (isa<AddOp, SubOp>(op)) {
      if (lhs.getType() != rhs.getType())
        return {};
      Value x = isWide(lhs) ? own(0) : known(lhs), y = isWide(rhs) ? own(1) : known(rhs);
      return isa<AddOp>(op) ? AddOp::create(b, loc, x, y).getResult() : SubOp::create(b, loc, x, y);
    }
    if (isWide(lhs) && isWide(rhs))
      return {};
    if (isa<DivOp>(op))
      return isWide(lhs) && isNumber(rhs) ? DivOp::create(b, loc, own(0).getType(), own(0), rhs) : Value();
    unsigned at = isWide(lhs) ? 0 : 1;
    Value of = op->getOperand(at), other = op->getOperand(1 - at), from = own(at);
    bool isProduct = isa<MatmulOp>(op);
    if (!isProduct && !isa<MulOp>(op))
      return {};
    if (isNumber(other))
      return MulOp::create(b, loc, from.getType(), other, from);
    if (isNumber(of)) // an outer product
      return isColumn(other) ? MatmulOp::create(b, loc, other, from)
                             : MatmulOp::create(b, loc, turned(from), other);
    if (!isProduct)
      return of.getType() == other.getType() ? MulOp::create(b, loc, from.getType(), from, other) : Value();
    if (!isNumber(result))
      return {};
    return at ? MatmulOp::create(b, loc, other, from).getResult()
              : turned(MatmulOp::create(b, loc, from, other));
  }

  // The sum of a vector's entries: what is read along ones, or along what its entries are times.
  Value sumOf(Value vector) {
    Value along, from = vector;
    if (auto product = vector.getDefiningOp<MulOp>())
      for (unsigned i : {0, 1})
        if (isWide(product->getOperand(i)) && product->getOperand(0).getType() == vector.getType() &&
            product->getOperand(1).getType() == vector.getType())
          from = product->getOperand(i), along = product->getOperand(1 - i);
    if (!along)
      along = ConstantOp::create(b, loc, 1.0, vector.getType());
    if (isWide(along))
      return {};
    Value matrix = wide.lookup(from);
    return isColumn(from) ? MatmulOp::create(b, loc, turned(along), matrix).getResult()
                          : turned(MatmulOp::create(b, loc, matrix, turned(along)));
  }

  // Gives an operation that is left the number itself.
  LogicalResult narrow(OpOperand &operand) {
    Value value = operand.get();
    if (!isNumber(value))
      return failure();
    Value &mean = means[value];
    if (!mean) {
      Value row = wide.lookup(value);
      b.setInsertionPointAfterValue(row);
      Value sum = ReduceOp::create(b, loc, Reduction::Sum, row, /*rows=*/false, /*cols=*/true);
      mean = DivOp::create(b, loc, sum, SizeOp::create(b, loc, matType(row).getCols()));
    }
    operand.set(mean);
    return success();
  }

  RuleOp rule;
  Block &body;
  OpBuilder b;
  Location loc;
  unsigned number;
  BlockArgument state;
  llvm::DenseMap<Value, Value> wide, means;
};
} // namespace

OwningOpRef<ModuleOp> recur::widenVectors(RuleOp rule) {
  OwningOpRef<ModuleOp> module;
  for (unsigned i = 0; i < rule.argumentsOf(ArgKind::State).size(); ++i) {
    RuleOp known = module ? *module->getOps<RuleOp>().begin() : rule;
    if (auto more = rewritten(known, [&](RuleOp copy) { return Widener(copy, i).run(); }))
      module = std::move(more);
  }
  return module;
}
