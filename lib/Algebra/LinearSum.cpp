#include "lib/Algebra/LinearSum.h"
#include "lib/Algebra/Rewriting.h"

using namespace mlir;
using namespace recur;

// The factors of a number, null for 1, and the constant that they are times.
static double findFactors(Value number, SmallVectorImpl<Value> &factors) {
  Operation *op = number ? number.getDefiningOp() : nullptr;
  if (auto constant = dyn_cast_if_present<ConstantOp>(op))
    return constant.getValue().convertToDouble();
  if (isa_and_present<NegOp>(op))
    return -findFactors(op->getOperand(0), factors);
  if (isa_and_present<MulOp>(op)) {
    double left = findFactors(op->getOperand(0), factors);
    return left * findFactors(op->getOperand(1), factors);
  }
  if (number)
    factors.push_back(number);
  return 1;
}

// Leaves of a number's factors those that are no factors of another; nothing where that one has more. Returns
// the constants that both are times.
static std::optional<std::pair<double, double>> takeFactors(Value number, Value by,
                                                            SmallVectorImpl<Value> &left) {
  SmallVector<Value> others;
  double constant = findFactors(number, left), other = findFactors(by, others);
  for (Value factor : others) {
    auto *same = llvm::find_if(left, [&](Value own) { return isEqual(factor, own); });
    if (same == left.end())
      return std::nullopt;
    left.erase(same);
  }
  return other == 0 ? std::nullopt : std::optional(std::pair(constant, other));
}

bool recur::isSameNumber(Value x, Value y) {
  SmallVector<Value> left;
  auto constants = takeFactors(x, y, left);
  return constants && constants->first == constants->second && left.empty();
}

FailureOr<Value> recur::quotientOf(OpBuilder &b, Location loc, Value number, Value by) {
  SmallVector<Value> left;
  auto constants = takeFactors(number, by, left);
  if (!constants)
    return failure();
  Value product;
  // A quotient of constants stays one, which a proof in F_p takes as it is; equal ones look alike.
  auto [constant, other] = *constants;
  double common = std::copysign(std::ldexp(1.0, std::ilogb(other)), other);
  constant /= common, other /= common;
  if (constant != other) {
    left.push_back(ConstantOp::create(b, loc, constant));
    if (other != 1)
      left.back() = DivOp::create(b, loc, left.back(), ConstantOp::create(b, loc, other));
  }
  for (Value factor : left)
    product = product ? MulOp::create(b, loc, product, factor).getResult() : factor;
  return product;
}

LinearSum::LinearSum(OpBuilder &b, Value sum, Predicate isNumber, Predicate isLeaf) : b(b), sum(sum) {
  add(sum, {}, false, isNumber, isLeaf);
  terms.remove_if([](const auto &term) { return term.second.empty(); });
}

void LinearSum::add(Value value, Value number, bool isNegative, Predicate isNumber, Predicate isLeaf) {
  Operation *op = isLeaf && isLeaf(value) ? nullptr : value.getDefiningOp();
  auto addPart = [&](unsigned i, Value times, bool negative) {
    add(op->getOperand(i), times, negative, isNumber, isLeaf);
  };
  if (isa_and_present<AddOp, SubOp>(op) && op->getOperand(0).getType() == op->getOperand(1).getType()) {
    addPart(0, number, isNegative);
    return addPart(1, number, isNegative ^ isa<SubOp>(op));
  }
  if (isa_and_present<NegOp>(op))
    return addPart(0, number, !isNegative);
  for (unsigned i : {0, 1})
    if (isa_and_present<MulOp>(op) && isNumber(op->getOperand(i)) &&
        op->getOperand(1 - i).getType() == value.getType()) {
      Value own = op->getOperand(i);
      if (number) {
        Value &product = products[{number, own}];
        own = product ? product : product = MulOp::create(b, sum.getLoc(), number, own);
      }
      return addPart(1 - i, own, isNegative);
    }
  auto &numbers = terms[value];
  likeTerms |= !numbers.empty();
  auto *opposite = llvm::find(numbers, std::pair(number, !isNegative));
  if (opposite != numbers.end())
    numbers.erase(opposite);
  else
    numbers.push_back({number, isNegative});
}

// Adds to a sum, which is null at first.
static Value plus(OpBuilder &b, Location loc, Value sum, Value value, bool isNegative) {
  if (!sum)
    return isNegative ? NegOp::create(b, loc, value).getResult() : value;
  return isNegative ? SubOp::create(b, loc, sum, value).getResult() : AddOp::create(b, loc, sum, value);
}

// The sum of a value's numbers.
Value LinearSum::sumOf(ArrayRef<std::pair<Value, bool>> numbers) {
  Location loc = sum.getLoc();
  Value total;
  for (auto [own, isNegative] : numbers)
    total = plus(b, loc, total, own ? own : ConstantOp::create(b, loc, 1.0).getResult(), isNegative);
  return total;
}

SmallVector<std::pair<Value, Value>> LinearSum::build() {
  SmallVector<std::pair<Value, Value>> result;
  for (auto &[value, numbers] : terms) {
    auto [number, isNegative] = numbers.front();
    result.push_back({value, numbers.size() > 1 || isNegative ? sumOf(numbers) : number});
  }
  return result;
}

Value LinearSum::buildSum() {
  Location loc = sum.getLoc();
  Value total;
  for (auto &[value, numbers] : terms) {
    auto [number, isNegative] = numbers.front();
    if (numbers.size() > 1)
      std::tie(number, isNegative) = std::pair(sumOf(numbers), false);
    Value term = number ? MulOp::create(b, loc, value.getType(), number, value).getResult() : value;
    total = plus(b, loc, total, term, isNegative);
  }
  return total ? total : ConstantOp::create(b, loc, 0.0, cast<MatType>(sum.getType())).getResult();
}
