#include "lib/Algebra/NormedSteps.h"
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Terms.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace recur;

static bool isVector(Value value) { return !isMatrix(matType(value)) && !matType(value).isScalar(); }

// A value without a number that it is times, which is appended; null where it is times none.
static Value withoutNumber(Value value, SmallVectorImpl<Value> &numbers) {
  auto product = value.getDefiningOp<MulOp>();
  for (unsigned i = 0; product && i < 2; ++i)
    if (matType(product->getOperand(i)).isScalar()) {
      numbers.push_back(product->getOperand(i));
      return product->getOperand(1 - i);
    }
  return {};
}

// The column that a side of an outer product is times numbers.
static Value keyOf(Value side, SmallVectorImpl<Value> &numbers) {
  Value key = withoutTransposes(side);
  while (Value rest = withoutNumber(key, numbers))
    key = withoutTransposes(rest);
  return key;
}

namespace {
// What is written along one key: column * kT, or k * row, times numbers, one of which is divided by the key's
// square, if they are not all together.
struct Step {
  MatmulOp outer;
  Operation *root; // the product with the numbers
  Value column, square;
  SmallVector<Value> numbers;
  std::optional<unsigned> divided; // which number
  unsigned along;                  // the operand that is the key
};

class StepNormer {
public:
  StepNormer(IRRewriter &rewriter, Value key) : b(rewriter), key(key) {}

  // Finds what a product with the key is times; false where that is not divided by the key's square.
  bool find(MatmulOp outer, unsigned along) {
    Step step{outer, outer, outer->getOperand(1 - along), {}, {}, {}, along};
    keyOf(outer->getOperand(along), step.numbers);
    takeNumbers(step, step.column);
    if (!findSquare(step) && outer->hasOneUse() && isa<MulOp, DivOp>(*outer->user_begin())) {
      step.root = *outer->user_begin();
      Value scaled = step.root->getResult(0);
      takeNumbers(step, scaled);
      if (scaled != outer.getResult())
        return false;
    }
    if (!findSquare(step))
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
      for (auto [i, number] : llvm::enumerate(step.numbers))
        written = MulOp::create(b, loc, step.divided == i ? withoutSquare(number) : number, written);
      Value row = step.along ? TransposeOp::create(b, loc, unit).getResult() : written;
      b.replaceOpWithNewOp<MatmulOp>(step.root, step.along ? written : unit, row);
    }
  }

private:
  // |k|^2 + eps of the key.
  bool isSquare(Value value) const {
    auto sum = value.getDefiningOp<AddOp>();
    auto isPositive = [](Value eps) {
      Interval interval = Interval::of(eps);
      RangeAttr range = rangeOf(eps);
      return interval.lo > 0 || (interval.lo == 0 && range && range.getLoOpen());
    };
    // (What follows from the state would make a key of it.)
    for (unsigned i = 0; sum && i < 2; ++i)
      if (Value eps = sum->getOperand(1 - i);
          isSquareOf(sum->getOperand(i), key) && isPositive(eps) && !dependsOnState(eps))
        return true;
    return false;
  }

  // Takes numbers off a value, and the square that all of it is divided by.
  void takeNumbers(Step &step, Value &value) const {
    for (;;) {
      auto quotient = value.getDefiningOp<DivOp>();
      if (!step.square && quotient && isSquare(quotient.getRhs())) {
        step.square = quotient.getRhs();
        value = quotient.getLhs();
      } else if (Value rest = withoutNumber(value, step.numbers)) {
        value = rest;
      } else {
        return;
      }
    }
  }

  // Whether a number, if not all, is divided by the square.
  bool findSquare(Step &step) const {
    for (unsigned i = 0; i < step.numbers.size() && !step.square; ++i)
      if ((step.square = squareUnder(step.numbers[i])))
        step.divided = i;
    return bool(step.square);
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

  // A multiple of the key, by numbers and by vectors, entry by entry, of the shorter one instead; null for
  // others.
  Value shorter(Value along) {
    if (along == key)
      return unit;
    Operation *op = along.getDefiningOp();
    if (isa_and_present<TransposeOp>(op)) {
      Value inner = shorter(op->getOperand(0));
      return inner ? TransposeOp::create(b, loc, inner).getResult() : Value();
    }
    for (unsigned i = 0; isa_and_present<MulOp>(op) && i < 2; ++i)
      if (Value inner = isVector(op->getOperand(i)) ? shorter(op->getOperand(i)) : Value())
        return MulOp::create(b, loc, inner, op->getOperand(1 - i));
    return {};
  }

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
      SmallVector<Value> numbers;
      Value key = keyOf(outer->getOperand(along), numbers);
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
