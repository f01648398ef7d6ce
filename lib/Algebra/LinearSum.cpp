#include "lib/Algebra/LinearSum.h"

using namespace mlir;
using namespace recur;

LinearSum::LinearSum(OpBuilder &b, Value sum, function_ref<bool(Value)> isNumber)
    : b(b), loc(sum.getLoc()), isNumber(isNumber) {
  add(sum, {}, false);
}

bool LinearSum::hasLikeTerms() const {
  return llvm::any_of(terms, [](const auto &term) { return term.second.size() > 1; });
}

void LinearSum::add(Value value, Value number, bool isNegative) {
  Operation *op = value.getDefiningOp();
  if (isa_and_present<AddOp, SubOp>(op) && op->getOperand(0).getType() == op->getOperand(1).getType()) {
    add(op->getOperand(0), number, isNegative);
    return add(op->getOperand(1), number, isNegative ^ isa<SubOp>(op));
  }
  if (isa_and_present<NegOp>(op))
    return add(op->getOperand(0), number, !isNegative);
  for (unsigned i : {0, 1})
    if (isa_and_present<MulOp>(op) && isNumber(op->getOperand(i)) &&
        op->getOperand(1 - i).getType() == value.getType()) {
      Value own = op->getOperand(i);
      return add(op->getOperand(1 - i), number ? MulOp::create(b, loc, number, own).getResult() : own,
                 isNegative);
    }
  terms[value].push_back({number, isNegative});
}

Value LinearSum::build() {
  // Adds to a sum, which is null at first.
  auto plus = [&](Value sum, Value value, bool isNegative) -> Value {
    if (!sum)
      return isNegative ? NegOp::create(b, loc, value).getResult() : value;
    return isNegative ? SubOp::create(b, loc, sum, value).getResult() : AddOp::create(b, loc, sum, value);
  };
  Value sum;
  for (auto &[value, numbers] : terms) {
    auto [number, isNegative] = numbers.front();
    if (numbers.size() > 1) {
      Value all;
      for (auto [own, negative] : numbers)
        all = plus(all, own ? own : ConstantOp::create(b, loc, 1.0).getResult(), negative);
      number = all;
      isNegative = false;
    }
    Value term = number ? MulOp::create(b, loc, value.getType(), number, value).getResult() : value;
    sum = plus(sum, term, isNegative);
  }
  return sum;
}
