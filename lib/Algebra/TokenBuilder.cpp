// Equal expressions as one value.
#include "lib/Algebra/TokenBuilder.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;

unsigned TokenBuilder::OpInfo::getHashValue(const Operation *op) {
  return OperationEquivalence::computeHash(const_cast<Operation *>(op), OperationEquivalence::directHashValue,
                                           OperationEquivalence::ignoreHashValue,
                                           OperationEquivalence::IgnoreLocations);
}

bool TokenBuilder::OpInfo::isEqual(const Operation *lhs, const Operation *rhs) {
  if (lhs == rhs)
    return true;
  if (lhs == getEmptyKey() || lhs == getTombstoneKey() || rhs == getEmptyKey() || rhs == getTombstoneKey())
    return false;
  return OperationEquivalence::isEquivalentTo(const_cast<Operation *>(lhs), const_cast<Operation *>(rhs),
                                              OperationEquivalence::IgnoreLocations);
}

TokenBuilder::TokenBuilder(RuleOp rule)
    : builder(rule.getContext()), terminator(rule.getBody().front().getTerminator()) {
  builder.setInsertionPoint(terminator);
  for (Operation &op : rule.getBody().front().without_terminator())
    if (op.getNumRegions() == 0)
      known.insert(&op);
}

template <typename MakeFn>
Value TokenBuilder::intern(MakeFn make) {
  Operation *last = terminator->getPrevNode();
  Value value = make();
  for (Operation *op = last ? last->getNextNode() : &terminator->getBlock()->front(); op != terminator;) {
    Operation *next = op->getNextNode();
    auto [equal, inserted] = known.insert(op);
    if (!inserted) {
      if (value == op->getResult(0))
        value = (*equal)->getResult(0);
      op->replaceAllUsesWith(*equal);
      op->erase();
    }
    op = next;
  }
  return value;
}

Value TokenBuilder::chain(Location loc, MatType type, ArrayRef<Factor> factors) {
  if (factors.size() == 1 && !factors[0].diagonal && !factors[0].transposed)
    return factors[0].value;
  Term term;
  term.chain.assign(factors.begin(), factors.end());
  return intern([&] {
    Value value = emitTerms(builder, loc, type, term);
    // A product of diagonals comes as a column.
    return value.getType() == type ? value : DiagOp::create(builder, loc, value).getResult();
  });
}

Value TokenBuilder::one(Location loc) {
  return intern([&] { return ConstantOp::create(builder, loc, 1.0).getResult(); });
}

Value TokenBuilder::ones(Location loc, Attribute size) {
  Attribute single = builder.getI64IntegerAttr(1);
  return intern([&] {
    return ConstantOp::create(builder, loc, 1.0, MatType::get(builder.getContext(), size, single));
  });
}

Value TokenBuilder::transpose(Location loc, Value value) {
  return intern([&] { return builder.createOrFold<TransposeOp>(loc, value); });
}

Value TokenBuilder::multiply(Location loc, Value lhs, Value rhs) {
  return intern([&] { return MulOp::create(builder, loc, lhs, rhs).getResult(); });
}

Value TokenBuilder::reciprocal(Location loc, Value value) {
  return intern(
      [&] { return DivOp::create(builder, loc, ConstantOp::create(builder, loc, 1.0), value).getResult(); });
}

Value TokenBuilder::scalar(Location loc, const Coefficient &c) {
  return c.isOne() ? Value() : intern([&] { return buildCoefficient(builder, loc, c); });
}

Value TokenBuilder::sum(Location loc, ArrayRef<std::pair<Coefficient, Value>> parts) {
  return intern([&] {
    Value result;
    for (const auto &[c, part] : parts) {
      Value scale = buildCoefficient(builder, loc, c);
      Value value = scale ? MulOp::create(builder, loc, scale, part).getResult() : part;
      result = result ? AddOp::create(builder, loc, result, value).getResult() : value;
    }
    return result;
  });
}

// Multiplies where that rounds nothing: normal forms hold in exact arithmetic.
static bool scale(double &number, double by) {
  double product = number * by;
  bool isExact = std::fma(number, by, -product) == 0;
  number = isExact ? product : number;
  return isExact;
}

void TokenBuilder::multiply(Coefficient &c, Value scalar) {
  FloatAttr number;
  if (matchPattern(scalar, m_Constant(&number)) && scale(c.number, number.getValueAsDouble()))
    return;
  Operation *op = scalar.getDefiningOp();
  if (isa_and_nonnull<MulOp>(op)) {
    multiply(c, op->getOperand(0));
    multiply(c, op->getOperand(1));
  } else if (isa_and_nonnull<NegOp>(op)) {
    c.number = -c.number;
    multiply(c, op->getOperand(0));
  } else if (auto div = dyn_cast_or_null<DivOp>(op);
             div && matchPattern(div.getRhs(), m_Constant(&number)) &&
             std::fma(1 / number.getValueAsDouble(), number.getValueAsDouble(), -1) == 0 &&
             scale(c.number, 1 / number.getValueAsDouble())) {
    multiply(c, div.getLhs());
  } else if (div && !(matchPattern(div.getLhs(), m_Constant(&number)) && number.getValueAsDouble() == 1)) {
    multiply(c, div.getLhs());
    multiply(c, reciprocal(scalar.getLoc(), div.getRhs()));
  } else {
    Coefficient single;
    single.factors.push_back(scalar);
    multiply(c, single);
  }
}

void TokenBuilder::multiply(Coefficient &c, const Coefficient &other) {
  auto insert = [&](Value factor) {
    c.factors.insert(
        llvm::upper_bound(c.factors, factor, [&](Value a, Value b) { return order(a) < order(b); }), factor);
  };
  if (!scale(c.number, other.number)) {
    Location loc = builder.getUnknownLoc();
    insert(intern([&] { return ConstantOp::create(builder, loc, other.number).getResult(); }));
  }
  llvm::for_each(other.factors, insert);
}

Value recur::buildCoefficient(OpBuilder &builder, Location loc, const Coefficient &c) {
  Value result;
  if (c.number != 1)
    result = ConstantOp::create(builder, loc, c.number);
  for (Value factor : c.factors)
    result = result ? MulOp::create(builder, loc, result, factor).getResult() : factor;
  return result;
}
