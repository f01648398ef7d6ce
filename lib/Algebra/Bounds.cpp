// Ranges of entries and norms of vectors.
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Terms.h"
#include "mlir/IR/Matchers.h"

#include <cmath>

using namespace mlir;
using namespace recur;

static constexpr double infinity = std::numeric_limits<double>::infinity();

Interval Interval::of(Value value) {
  FloatAttr number;
  if (matchPattern(value, m_Constant(&number)))
    return {number.getValueAsDouble(), number.getValueAsDouble()};
  RangeAttr range = rangeOf(value);
  bool usable = range && !std::isnan(range.getLo()) && !std::isnan(range.getHi());
  return usable ? Interval{range.getLo(), range.getHi()} : Interval();
}

double Interval::magnitude() const { return std::max(std::fabs(lo), std::fabs(hi)); }

Interval Interval::operator*(Interval other) const {
  auto times = [](double a, double b) { return a == 0 || b == 0 ? 0 : a * b; };
  double ends[] = {times(lo, other.lo), times(lo, other.hi), times(hi, other.lo), times(hi, other.hi)};
  return {*llvm::min_element(ends), *llvm::max_element(ends)};
}

bool recur::areShares(Value vector) {
  auto quotient = vector.getDefiningOp<DivOp>();
  auto least = quotient ? quotient.getRhs().getDefiningOp<MaxOp>() : MaxOp(); // of the sum and a small number
  auto sum = quotient ? quotient.getRhs().getDefiningOp<ReduceOp>() : ReduceOp();
  for (unsigned i = 0; least && !sum && i < 2; ++i)
    sum = least->getOperand(i).getDefiningOp<ReduceOp>();
  return sum && sum.getKind() == Reduction::Sum && sum.getOperand() == quotient.getLhs() &&
         Interval::of(quotient.getLhs()).lo >= 0;
}

Interval recur::normOf(Value value, unsigned depth) {
  auto type = dyn_cast<MatType>(value.getType());
  if (type && type.isScalar()) {
    Interval range = Interval::of(value);
    return {0, range.magnitude()};
  }
  auto fromRange = [&]() -> Interval {
    double most = Interval::of(value).magnitude();
    auto rows = type ? dyn_cast<IntegerAttr>(type.getRows()) : IntegerAttr(),
         cols = type ? dyn_cast<IntegerAttr>(type.getCols()) : IntegerAttr();
    return {0, rows && cols ? most * std::sqrt(double(rows.getInt()) * cols.getInt())
               : most == 0  ? 0
                            : infinity};
  };
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    auto rule = dyn_cast<RuleOp>(argument.getOwner()->getParentOp());
    if (rule && rule.getArg(argument).getUnit())
      return {1, 1};
    if (auto norms = rule ? rule->getAttrOfType<DictionaryAttr>(normsAttr) : DictionaryAttr())
      if (auto norm = norms.getAs<FloatAttr>(rule.getArg(argument).getName()))
        return {0, norm.getValueAsDouble()};
    return fromRange();
  }
  Operation *op = value.getDefiningOp();
  if (depth == 0)
    return {0, infinity};
  auto operand = [&](unsigned i) { return normOf(op->getOperand(i), depth - 1); };
  if (isa<TransposeOp, RopeOp, NegOp>(op))
    return operand(0);
  if (auto extract = dyn_cast<ExtractOp>(op))
    return normOf(extract.getSteps(), depth - 1);
  if (auto concat = dyn_cast<ConcatOp>(op)) {
    double square = 0;
    for (Value part : concat.getParts())
      square += std::pow(normOf(part, depth - 1).hi, 2);
    return {0, std::sqrt(square)};
  }
  if (auto mul = dyn_cast<MulOp>(op)) {
    auto scaled = [&](unsigned scale, unsigned vector) {
      return Interval::of(op->getOperand(scale)).magnitude() * operand(vector).hi;
    };
    double left = scaled(0, 1), right = scaled(1, 0);
    return {0, std::fmin(left, right)}; // infinity * 0 is no number
  }
  if (auto quotient = dyn_cast<DivOp>(op)) {
    if (addedToNorm(quotient))
      return {0, 1};
    if (areShares(value))
      return {0, 1};
    Interval by = Interval::of(quotient.getRhs());
    return matType(quotient.getRhs()).isScalar() && by.lo > 0 ? Interval{0, operand(0).hi / by.lo}
                                                              : fromRange();
  }
  if (isa<AddOp, SubOp>(op))
    return {0, std::min(operand(0).hi + operand(1).hi, fromRange().hi)};
  return fromRange();
}

bool recur::isSquareOf(Value value, Value vector) {
  if (auto reduce = value.getDefiningOp<ReduceOp>()) {
    auto square = reduce.getOperand().getDefiningOp<MulOp>();
    return reduce.getKind() == Reduction::Sum && square && square.getLhs() == square.getRhs() &&
           square.getLhs() == vector;
  }
  auto product = value.getDefiningOp<MatmulOp>();
  auto transposed = product ? product.getLhs().getDefiningOp<TransposeOp>() : TransposeOp();
  return transposed && transposed.getOperand() == vector && product.getRhs() == vector;
}

// The factors of a product of entries that stand where its own do.
static SmallVector<Value> factorsInPlace(Value value) {
  SmallVector<Value> factors, work{value};
  while (!work.empty()) {
    Value next = work.pop_back_val();
    if (auto product = next.getDefiningOp<MulOp>())
      llvm::append_range(work, product->getOperands());
    else
      factors.push_back(next);
  }
  return factors;
}

RangeAttr recur::rangeOfMean(AddOp sum, llvm::function_ref<RangeAttr(Value)> rangeOf) {
  auto ofProduct = [&](ArrayRef<Value> factors) -> std::optional<Interval> {
    Interval product{1, 1};
    for (Value factor : factors) {
      RangeAttr range = rangeOf(factor);
      if (!range || !std::isfinite(range.getLo()) || !std::isfinite(range.getHi()))
        return std::nullopt;
      product = product * Interval{range.getLo(), range.getHi()};
    }
    return product;
  };
  for (unsigned side : {0, 1}) {
    SmallVector<Value> own = factorsInPlace(sum->getOperand(side));
    SmallVector<Value> others = factorsInPlace(sum->getOperand(1 - side));
    for (auto *rest = own.begin(); rest != own.end(); ++rest) {
      auto difference = rest->getDefiningOp<SubOp>();
      auto one = difference ? difference.getLhs().getDefiningOp<ConstantOp>() : ConstantOp();
      if (!one || one.getValue().convertToDouble() != 1)
        continue;
      Value weight = difference.getRhs();
      auto *same = llvm::find(others, weight);
      RangeAttr range = same == others.end() ? RangeAttr() : rangeOf(weight);
      if (!range || range.getLo() < 0 || range.getHi() > 1)
        continue;
      own.erase(rest);
      others.erase(same);
      std::optional<Interval> x = ofProduct(own), y = ofProduct(others);
      if (!x || !y)
        return {};
      return RangeAttr::closed(sum.getContext(), std::min(x->lo, y->lo), std::max(x->hi, y->hi));
    }
  }
  return {};
}

void recur::flattenProduct(Value value, SmallVectorImpl<Value> &factors) {
  Operation *op = value.getDefiningOp();
  if (isa_and_nonnull<TransposeOp, BroadcastOp>(op))
    return flattenProduct(op->getOperand(0), factors);
  if (!isa_and_nonnull<MulOp>(op))
    return factors.push_back(value);
  for (Value operand : op->getOperands())
    flattenProduct(operand, factors);
}

bool recur::isImplicitStep(ArrayRef<Value> factors, Value key) {
  for (Value factor : factors) {
    auto quotient = factor.getDefiningOp<DivOp>();
    auto sum = quotient ? quotient.getRhs().getDefiningOp<AddOp>() : AddOp();
    for (unsigned i = 0; sum && i < 2; ++i) {
      SmallVector<Value> parts = {sum->getOperand(i)}, scale;
      bool square = false;
      while (!parts.empty()) {
        Value part = parts.pop_back_val();
        auto mul = part.getDefiningOp<MulOp>();
        if (isSquareOf(part, key))
          square = true;
        else if (mul && mul.getType().isScalar())
          parts.append({mul.getLhs(), mul.getRhs()});
        else
          scale.push_back(part);
      }
      SmallVector<Value> numerator;
      FloatAttr one;
      if (!matchPattern(quotient.getLhs(), m_Constant(&one)) || one.getValueAsDouble() != 1)
        numerator.push_back(quotient.getLhs());
      for (Value other : factors)
        if (other != factor)
          numerator.push_back(other);
      bool positive = Interval::of(sum->getOperand(1 - i)).lo > 0 &&
                      llvm::all_of(scale, [](Value value) { return Interval::of(value).lo >= 0; });
      if (square && positive &&
          std::is_permutation(numerator.begin(), numerator.end(), scale.begin(), scale.end()))
        return true;
    }
  }
  return false;
}
