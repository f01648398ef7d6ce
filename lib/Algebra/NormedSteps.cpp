#include "lib/Algebra/NormedSteps.h"
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/Terms.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace recur;

static bool isVector(Value value) { return !isMatrix(matType(value)) && !matType(value).isScalar(); }

namespace {
// What is written along one key: column * kT, or k * row, times a number that is divided by the key's square.
struct Step {
  MatmulOp outer;
  Operation *root; // the product with the number
  Value column, number, square;
  unsigned along; // the operand that is the key
};

class StepNormer {
public:
  StepNormer(IRRewriter &rewriter, Value key) : b(rewriter), key(key) {}

  // Finds what a product with the key is times; false where that is not divided by the key's square.
  bool find(MatmulOp outer, unsigned along) {
    Step step{outer, outer, outer->getOperand(1 - along), {}, {}, along};
    if (takeNumber(step, step.column)) {
      steps.push_back(step);
      return true;
    }
    if (!outer->hasOneUse() || !isa<MulOp, DivOp>(*outer->user_begin()))
      return false;
    step.root = *outer->user_begin();
    Value scaled = step.root->getResult(0);
    if (!takeNumber(step, scaled) || scaled != outer.getResult())
      return false;
    steps.push_back(step);
    return true;
  }

  void rewrite() {
    for (Step &step : steps) {
      b.setInsertionPoint(step.root);
      loc = step.root->getLoc();
      norm = SqrtOp::create(b, loc, step.square);
      unit = DivOp::create(b, loc, key, norm);
      Value written = divided(step.column);
      if (Value number = step.number ? withoutSquare(step.number) : Value())
        written = MulOp::create(b, loc, number, written);
      Value along = asKey(step.outer->getOperand(step.along));
      b.replaceOpWithNewOp<MatmulOp>(step.root, step.along ? written : along, step.along ? along : written);
    }
  }

private:
  // |k|^2 + eps of the key.
  bool isSquare(Value value) const {
    auto sum = value.getDefiningOp<AddOp>();
    FloatAttr eps;
    for (unsigned i = 0; sum && i < 2; ++i)
      if (isSquareOf(sum->getOperand(i), key) && matchPattern(sum->getOperand(1 - i), m_Constant(&eps)) &&
          eps.getValueAsDouble() > 0)
        return true;
    return false;
  }

  // Takes what divides by the square off a value: a number that has it as a factor, or the quotient.
  bool takeNumber(Step &step, Value &value) {
    auto quotient = value.getDefiningOp<DivOp>();
    if (quotient && isSquare(quotient.getRhs())) {
      step.square = quotient.getRhs();
      value = quotient.getLhs();
      return true;
    }
    auto product = value.getDefiningOp<MulOp>();
    for (unsigned i = 0; product && i < 2; ++i)
      if (Value number = product->getOperand(i); matType(number).isScalar())
        if (Value square = squareUnder(number)) {
          step.square = square;
          step.number = number;
          value = product->getOperand(1 - i);
          return true;
        }
    return false;
  }

  // The square that a product of numbers is divided by; null where it is not.
  Value squareUnder(Value number) const {
    if (auto quotient = number.getDefiningOp<DivOp>())
      return isSquare(quotient.getRhs()) ? quotient.getRhs() : Value();
    auto product = number.getDefiningOp<MulOp>();
    for (unsigned i = 0; product && i < 2; ++i)
      if (Value square = squareUnder(product->getOperand(i)))
        return square;
    return {};
  }

  // Such a product without the division.
  Value withoutSquare(Value number) {
    if (auto quotient = number.getDefiningOp<DivOp>())
      return quotient.getLhs();
    auto product = number.getDefiningOp<MulOp>();
    for (unsigned i : {0, 1})
      if (squareUnder(product->getOperand(i)))
        return MulOp::create(b, loc, withoutSquare(product->getOperand(i)), product->getOperand(1 - i));
    return number;
  }

  // What is written, divided by the key's norm: what of it is read along the key is read along the shorter
  // one.
  Value divided(Value value) {
    Operation *op = value.getDefiningOp();
    if (isa_and_present<AddOp, SubOp>(op) && op->getOperand(0).getType() == op->getOperand(1).getType()) {
      Value lhs = divided(op->getOperand(0)), rhs = divided(op->getOperand(1));
      return isa<AddOp>(op) ? AddOp::create(b, loc, lhs, rhs).getResult()
                            : SubOp::create(b, loc, lhs, rhs).getResult();
    }
    if (isa_and_present<NegOp, TransposeOp>(op)) {
      Value inner = divided(op->getOperand(0));
      return isa<NegOp>(op) ? NegOp::create(b, loc, inner).getResult()
                            : TransposeOp::create(b, loc, inner).getResult();
    }
    for (unsigned i : {0, 1})
      if (isa_and_present<MulOp>(op) && matType(op->getOperand(i)).isScalar())
        return MulOp::create(b, loc, op->getOperand(i), divided(op->getOperand(1 - i)));
    if (auto read = dyn_cast_if_present<MatmulOp>(op); read && isRead(read))
      for (unsigned i : {0, 1})
        if (Value along = shorter(read->getOperand(i)))
          return MatmulOp::create(b, loc, i ? read.getLhs() : along, i ? along : read.getRhs());
    return DivOp::create(b, loc, value, norm);
  }

  // A key divided by its norm, perhaps times a vector, entry by entry, that stands for what has decayed; null
  // for others.
  Value shorter(Value along) {
    Value column = withoutTransposes(along);
    if (column == key)
      return asKey(along);
    auto product = column.getDefiningOp<MulOp>();
    for (unsigned i = 0; product && i < 2; ++i)
      if (product->getOperand(i) == key && product->getOperand(1 - i).getType() == key.getType()) {
        Value decayed = MulOp::create(b, loc, unit, product->getOperand(1 - i));
        return along == column ? decayed : TransposeOp::create(b, loc, decayed).getResult();
      }
    return {};
  }

  // The shorter key, as the key itself lies.
  Value asKey(Value like) { return like == key ? unit : TransposeOp::create(b, loc, unit).getResult(); }

  IRRewriter &b;
  Location loc = b.getUnknownLoc();
  Value key, norm, unit;
  SmallVector<Step> steps;
};
} // namespace

void recur::normSteps(RuleOp rule, IRRewriter &rewriter) {
  // By key, those who find its square under all that is written along it; none where it is not.
  llvm::MapVector<Value, std::optional<StepNormer>> found;
  for (MatmulOp outer : rule.getBody().getOps<MatmulOp>())
    for (unsigned along : {0, 1}) {
      Value key = withoutTransposes(outer->getOperand(along));
      if (!isMatrix(outer.getType()) || !isVector(key) || dependsOnState(key) || !std::isinf(normOf(key).hi))
        continue;
      auto [own, isNew] = found.insert({key, StepNormer(rewriter, key)});
      if (own->second && !own->second->find(outer, along))
        own->second.reset();
    }
  for (auto &[key, normer] : found)
    if (normer)
      normer->rewrite();
}
