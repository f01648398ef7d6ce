// Elementwise functions. Everything the compiler knows about one stands together: its value, its derivative,
// its range and its code.
#include "dialect/recur/Recur.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/PatternMatch.h"

#include <cmath>

using namespace mlir;
using namespace recur;

static constexpr double infinity = std::numeric_limits<double>::infinity();

//===----------------------------------------------------------------------===//
// What all of them share
//===----------------------------------------------------------------------===//

static LogicalResult inferElementwise(MLIRContext *context, std::optional<Location> loc, ValueRange operands,
                                      SmallVectorImpl<Type> &results) {
  MatType type = matType(operands[0]);
  for (Value operand : operands.drop_front()) {
    MatType joined = broadcastTypes(type, matType(operand));
    if (!joined) // recur_broadcast_c2
      return emitOptionalError(loc, "operands must have equal dimensions, or 1, got: ", type, " and ",
                               operand.getType());
    type = joined;
  }
  results.push_back(type);
  return success();
}

// Whether a sum, product or quotient of constants is what `value` says to the last bit. Others stay as they
// are: a rule and what is derived from it must remain one rule in exact arithmetic.
template <typename OpT>
static bool isExact(ArrayRef<double> x, double value) {
  if constexpr (std::is_same_v<OpT, AddOp>)
    return value - x[0] == x[1] && value - x[1] == x[0];
  else if constexpr (std::is_same_v<OpT, SubOp>)
    return x[0] - value == x[1] && value + x[1] == x[0];
  else if constexpr (std::is_same_v<OpT, MulOp>)
    return std::fma(x[0], x[1], -value) == 0;
  else if constexpr (std::is_same_v<OpT, DivOp>)
    return std::fma(value, x[1], -x[0]) == 0;
  else
    return true;
}

// Folds constants (an entry that is not finite stays, so that the text of the IR stays readable).
template <typename OpT>
static OpFoldResult foldConstants(OpT op, ArrayRef<Attribute> operands) {
  SmallVector<double, 2> values;
  for (Attribute operand : operands) {
    auto number = dyn_cast_or_null<FloatAttr>(operand);
    if (!number)
      return {};
    values.push_back(number.getValueAsDouble());
  }
  double value = op.evaluate(values);
  return std::isfinite(value) && isExact<OpT>(values, value)
             ? FloatAttr::get(Float64Type::get(op.getContext()), value)
             : FloatAttr();
}

// True when an operand is the constant `value`.
static bool isConstant(Attribute operand, double value) {
  auto number = dyn_cast_or_null<FloatAttr>(operand);
  return number && number.getValueAsDouble() == value;
}

static Value constant(OpBuilder &b, Operation *op, double value) {
  return ConstantOp::create(b, op->getLoc(), value);
}
static Value mulf(OpBuilder &b, Location loc, Value x, Value y) {
  return arith::MulFOp::create(b, loc, x, y);
}
static Value number(OpBuilder &b, Location loc, Type type, double value) {
  FloatAttr attr = FloatAttr::get(cast<FloatType>(getElementTypeOrSelf(type)), value);
  if (auto vector = dyn_cast<VectorType>(type))
    return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(vector, attr));
  return arith::ConstantOp::create(b, loc, attr);
}

// A monotone function's range from its values at the ends.
static RangeAttr monotone(RangeAttr x, function_ref<double(double)> f, RangeAttr whole) {
  if (!x)
    return whole;
  double lo = f(x.getLo()), hi = f(x.getHi());
  if (std::isnan(lo) || std::isnan(hi) || lo > hi)
    return whole;
  bool open = lo != hi;
  return RangeAttr::get(whole.getContext(), lo, hi, x.getLoOpen() && open, x.getHiOpen() && open);
}

static RangeAttr hull(MLIRContext *context, ArrayRef<double> ends) {
  double lo = infinity, hi = -infinity;
  for (double end : ends) {
    if (std::isnan(end))
      return {};
    lo = std::min(lo, end);
    hi = std::max(hi, end);
  }
  return RangeAttr::closed(context, lo, hi);
}

#define ELEMENTWISE(Op)                                                                                      \
  LogicalResult Op::inferReturnTypes(MLIRContext *context, std::optional<Location> loc, ValueRange operands, \
                                     DictionaryAttr, OpaqueProperties, RegionRange,                          \
                                     SmallVectorImpl<Type> &results) {                                       \
    return inferElementwise(context, loc, operands, results);                                                \
  }
#define FOLD_CONSTANTS(Op)                                                                                   \
  OpFoldResult Op::fold(FoldAdaptor adaptor) { return foldConstants(*this, adaptor.getOperands()); }

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

ELEMENTWISE(AddOp)
double AddOp::evaluate(ArrayRef<double> x) { return x[0] + x[1]; }
Value AddOp::buildPartial(OpBuilder &b, unsigned) { return constant(b, *this, 1); }
Value AddOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  return arith::AddFOp::create(b, loc, x[0], x[1]);
}
RangeAttr AddOp::inferRange(ArrayRef<RangeAttr> x) {
  if (!x[0] || !x[1])
    return {};
  double lo = x[0].getLo() + x[1].getLo(), hi = x[0].getHi() + x[1].getHi();
  if (std::isnan(lo) || std::isnan(hi))
    return {};
  return RangeAttr::get(getContext(), lo, hi, x[0].getLoOpen() || x[1].getLoOpen(),
                        x[0].getHiOpen() || x[1].getHiOpen());
}
OpFoldResult AddOp::fold(FoldAdaptor adaptor) {
  if (isConstant(adaptor.getRhs(), 0) && getLhs().getType() == getType())
    return getLhs();
  if (isConstant(adaptor.getLhs(), 0) && getRhs().getType() == getType())
    return getRhs();
  return foldConstants(*this, adaptor.getOperands());
}

ELEMENTWISE(SubOp)
double SubOp::evaluate(ArrayRef<double> x) { return x[0] - x[1]; }
Value SubOp::buildPartial(OpBuilder &b, unsigned index) { return constant(b, *this, index ? -1 : 1); }
Value SubOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  return arith::SubFOp::create(b, loc, x[0], x[1]);
}
RangeAttr SubOp::inferRange(ArrayRef<RangeAttr> x) {
  if (!x[0] || !x[1])
    return {};
  double lo = x[0].getLo() - x[1].getHi(), hi = x[0].getHi() - x[1].getLo();
  if (std::isnan(lo) || std::isnan(hi))
    return {};
  return RangeAttr::get(getContext(), lo, hi, x[0].getLoOpen() || x[1].getHiOpen(),
                        x[0].getHiOpen() || x[1].getLoOpen());
}
OpFoldResult SubOp::fold(FoldAdaptor adaptor) {
  if (isConstant(adaptor.getRhs(), 0) && getLhs().getType() == getType())
    return getLhs();
  // 1 - (1 - x) is x.
  auto rest = getRhs().getDefiningOp<SubOp>();
  Attribute whole;
  if (rest && rest.getRhs().getType() == getType() && adaptor.getLhs() &&
      matchPattern(rest.getLhs(), m_Constant(&whole)) && whole == adaptor.getLhs())
    return rest.getRhs();
  return foldConstants(*this, adaptor.getOperands());
}

ELEMENTWISE(MulOp)
double MulOp::evaluate(ArrayRef<double> x) { return x[0] * x[1]; }
Value MulOp::buildPartial(OpBuilder &, unsigned index) { return index ? getLhs() : getRhs(); }
Value MulOp::lower(OpBuilder &b, Location loc, ValueRange x) { return mulf(b, loc, x[0], x[1]); }
RangeAttr MulOp::inferRange(ArrayRef<RangeAttr> x) {
  bool isSquare = getLhs() == getRhs();
  auto isNegative = [](Value value, Value of) {
    auto negation = value.getDefiningOp<NegOp>();
    return negation && negation.getOperand() == of;
  };
  if (!x[0] || !x[1]) {
    if (isSquare)
      return RangeAttr::get(getContext(), 0, infinity, false, false);
    if (isNegative(getLhs(), getRhs()) || isNegative(getRhs(), getLhs())) // -x.*x
      return RangeAttr::get(getContext(), -infinity, 0, false, false);
    return {};
  }
  if (isSquare) {
    double lo = x[0].getLo(), hi = x[0].getHi(), top = std::max(lo * lo, hi * hi);
    return RangeAttr::closed(getContext(), x[0].contains(0.0) ? 0 : std::min(lo * lo, hi * hi), top);
  }
  // 0 times an infinite end is 0: the end is not attained.
  auto times = [](double p, double q) { return p == 0 || q == 0 ? 0 : p * q; };
  double ll = times(x[0].getLo(), x[1].getLo()), lh = times(x[0].getLo(), x[1].getHi()),
         hl = times(x[0].getHi(), x[1].getLo()), hh = times(x[0].getHi(), x[1].getHi());
  RangeAttr closed = hull(getContext(), {ll, lh, hl, hh});
  // The product of positive numbers is positive.
  bool positive =
      x[0].getLo() == 0 && x[0].getLoOpen() && x[1].getLo() >= 0 && (x[1].getLo() > 0 || x[1].getLoOpen());
  positive |= x[1].getLo() == 0 && x[1].getLoOpen() && x[0].getLo() > 0;
  return RangeAttr::get(getContext(), closed.getLo(), closed.getHi(), positive, false);
}
OpFoldResult MulOp::fold(FoldAdaptor adaptor) {
  if (isConstant(adaptor.getRhs(), 1) && getLhs().getType() == getType())
    return getLhs();
  if (isConstant(adaptor.getLhs(), 1) && getRhs().getType() == getType())
    return getRhs();
  return foldConstants(*this, adaptor.getOperands());
}

ELEMENTWISE(DivOp)
double DivOp::evaluate(ArrayRef<double> x) { return x[0] / x[1]; }
Value DivOp::buildPartial(OpBuilder &b, unsigned index) {
  if (index == 0)
    return DivOp::create(b, getLoc(), constant(b, *this, 1), getRhs());
  return NegOp::create(b, getLoc(), DivOp::create(b, getLoc(), getResult(), getRhs()));
}
Value DivOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  return arith::DivFOp::create(b, loc, x[0], x[1]);
}
RangeAttr DivOp::inferRange(ArrayRef<RangeAttr> x) {
  if (!x[0] || !x[1] || x[1].contains(0.0))
    return {};
  // An infinite end is not attained, nor is a zero: what is divided by the one goes to 0, by the other to
  // infinity.
  double lo = 1 / x[1].getLo(), hi = x[1].getHi() == 0 ? -infinity : 1 / x[1].getHi();
  auto times = [](double p, double inverse, double q) {
    return p == 0 || inverse == 0 ? 0 : std::isinf(inverse) ? p * inverse : p / q;
  };
  double p = x[0].getLo(), q = x[0].getHi();
  return hull(getContext(), {times(p, lo, x[1].getLo()), times(p, hi, x[1].getHi()),
                             times(q, lo, x[1].getLo()), times(q, hi, x[1].getHi())});
}
OpFoldResult DivOp::fold(FoldAdaptor adaptor) {
  if (isConstant(adaptor.getRhs(), 1) && getLhs().getType() == getType())
    return getLhs();
  return foldConstants(*this, adaptor.getOperands());
}

ELEMENTWISE(NegOp)
FOLD_CONSTANTS(NegOp)
double NegOp::evaluate(ArrayRef<double> x) { return -x[0]; }
Value NegOp::buildPartial(OpBuilder &b, unsigned) { return constant(b, *this, -1); }
Value NegOp::lower(OpBuilder &b, Location loc, ValueRange x) { return arith::NegFOp::create(b, loc, x[0]); }
RangeAttr NegOp::inferRange(ArrayRef<RangeAttr> x) {
  return x[0] ? RangeAttr::get(getContext(), -x[0].getHi(), -x[0].getLo(), x[0].getHiOpen(), x[0].getLoOpen())
              : RangeAttr();
}

//===----------------------------------------------------------------------===//
// Comparison
//===----------------------------------------------------------------------===//

// The derivative of max and min goes to the left operand where both are equal.
ELEMENTWISE(MaxOp)
FOLD_CONSTANTS(MaxOp)
double MaxOp::evaluate(ArrayRef<double> x) { return std::isnan(x[0]) || x[0] > x[1] ? x[0] : x[1]; }
Value MaxOp::buildPartial(OpBuilder &b, unsigned index) {
  Value left = GreaterEqualOp::create(b, getLoc(), getLhs(), getRhs());
  return index ? SubOp::create(b, getLoc(), constant(b, *this, 1), left).getResult() : left;
}
Value MaxOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  return arith::MaximumFOp::create(b, loc, x[0], x[1]);
}
RangeAttr MaxOp::inferRange(ArrayRef<RangeAttr> x) {
  RangeAttr l = x[0] ? x[0] : RangeAttr::all(getContext()), r = x[1] ? x[1] : RangeAttr::all(getContext());
  RangeAttr lo = l.getLo() > r.getLo() ? l : r, hi = l.getHi() > r.getHi() ? l : r;
  return RangeAttr::get(getContext(), lo.getLo(), hi.getHi(), lo.getLoOpen(), hi.getHiOpen());
}

ELEMENTWISE(MinOp)
FOLD_CONSTANTS(MinOp)
double MinOp::evaluate(ArrayRef<double> x) { return std::isnan(x[0]) || x[0] < x[1] ? x[0] : x[1]; }
Value MinOp::buildPartial(OpBuilder &b, unsigned index) {
  Value left = GreaterEqualOp::create(b, getLoc(), getRhs(), getLhs());
  return index ? SubOp::create(b, getLoc(), constant(b, *this, 1), left).getResult() : left;
}
Value MinOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  return arith::MinimumFOp::create(b, loc, x[0], x[1]);
}
RangeAttr MinOp::inferRange(ArrayRef<RangeAttr> x) {
  RangeAttr l = x[0] ? x[0] : RangeAttr::all(getContext()), r = x[1] ? x[1] : RangeAttr::all(getContext());
  RangeAttr lo = l.getLo() < r.getLo() ? l : r, hi = l.getHi() < r.getHi() ? l : r;
  return RangeAttr::get(getContext(), lo.getLo(), hi.getHi(), lo.getLoOpen(), hi.getHiOpen());
}

ELEMENTWISE(GreaterEqualOp)
FOLD_CONSTANTS(GreaterEqualOp)
double GreaterEqualOp::evaluate(ArrayRef<double> x) { return x[0] >= x[1]; }
Value GreaterEqualOp::buildPartial(OpBuilder &, unsigned) { return {}; }
Value GreaterEqualOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  Value bit = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGE, x[0], x[1]);
  Type type = x[0].getType();
  return arith::SelectOp::create(b, loc, bit, number(b, loc, type, 1), number(b, loc, type, 0));
}
RangeAttr GreaterEqualOp::inferRange(ArrayRef<RangeAttr>) { return RangeAttr::closed(getContext(), 0, 1); }

ELEMENTWISE(AbsOp)
FOLD_CONSTANTS(AbsOp)
double AbsOp::evaluate(ArrayRef<double> x) { return std::fabs(x[0]); }
Value AbsOp::buildPartial(OpBuilder &b, unsigned) { return SignOp::create(b, getLoc(), getOperand()); }
Value AbsOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::AbsFOp::create(b, loc, x[0]); }
RangeAttr AbsOp::inferRange(ArrayRef<RangeAttr> x) {
  if (!x[0])
    return RangeAttr::get(getContext(), 0, infinity, false, false);
  double lo = std::fabs(x[0].getLo()), hi = std::fabs(x[0].getHi());
  return RangeAttr::closed(getContext(), x[0].contains(0.0) ? 0 : std::min(lo, hi), std::max(lo, hi));
}

ELEMENTWISE(SignOp)
FOLD_CONSTANTS(SignOp)
double SignOp::evaluate(ArrayRef<double> x) { return (x[0] > 0) - (x[0] < 0); }
Value SignOp::buildPartial(OpBuilder &, unsigned) { return {}; }
Value SignOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  Type type = x[0].getType();
  Value zero = number(b, loc, type, 0);
  Value positive = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, x[0], zero);
  Value negative = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, x[0], zero);
  Value below = arith::SelectOp::create(b, loc, negative, number(b, loc, type, -1), zero);
  return arith::SelectOp::create(b, loc, positive, number(b, loc, type, 1), below);
}
RangeAttr SignOp::inferRange(ArrayRef<RangeAttr>) { return RangeAttr::closed(getContext(), -1, 1); }

//===----------------------------------------------------------------------===//
// Powers, exponentials
//===----------------------------------------------------------------------===//

ELEMENTWISE(PowOp)
double PowOp::evaluate(ArrayRef<double> x) { return std::pow(x[0], x[1]); }
Value PowOp::buildPartial(OpBuilder &b, unsigned index) {
  Location loc = getLoc();
  if (index == 1)
    return MulOp::create(b, loc, getResult(), LogOp::create(b, loc, getLhs()));
  Value less = SubOp::create(b, loc, getRhs(), constant(b, *this, 1));
  return MulOp::create(b, loc, getRhs(), PowOp::create(b, loc, getLhs(), less));
}
Value PowOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  return math::PowFOp::create(b, loc, x[0], x[1]);
}
RangeAttr PowOp::inferRange(ArrayRef<RangeAttr> x) {
  if (!x[0] || !x[1] || x[0].getLo() < 0)
    return {};
  RangeAttr ends =
      hull(getContext(), {std::pow(x[0].getLo(), x[1].getLo()), std::pow(x[0].getLo(), x[1].getHi()),
                          std::pow(x[0].getHi(), x[1].getLo()), std::pow(x[0].getHi(), x[1].getHi())});
  return ends;
}
OpFoldResult PowOp::fold(FoldAdaptor adaptor) {
  if (isConstant(adaptor.getRhs(), 1) && getLhs().getType() == getType())
    return getLhs();
  return foldConstants(*this, adaptor.getOperands());
}

ELEMENTWISE(ExpOp)
FOLD_CONSTANTS(ExpOp)
double ExpOp::evaluate(ArrayRef<double> x) { return std::exp(x[0]); }
Value ExpOp::buildPartial(OpBuilder &, unsigned) { return getResult(); }
Value ExpOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::ExpOp::create(b, loc, x[0]); }
RangeAttr ExpOp::inferRange(ArrayRef<RangeAttr> x) {
  return monotone(
      x[0], [](double v) { return std::exp(v); }, RangeAttr::get(getContext(), 0, infinity, false, false));
}

ELEMENTWISE(LogOp)
FOLD_CONSTANTS(LogOp)
double LogOp::evaluate(ArrayRef<double> x) { return std::log(x[0]); }
Value LogOp::buildPartial(OpBuilder &b, unsigned) {
  return DivOp::create(b, getLoc(), constant(b, *this, 1), getOperand());
}
Value LogOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::LogOp::create(b, loc, x[0]); }
RangeAttr LogOp::inferRange(ArrayRef<RangeAttr> x) {
  return x[0] && x[0].getLo() >= 0
             ? monotone(
                   x[0], [](double v) { return std::log(v); }, RangeAttr::all(getContext()))
             : RangeAttr();
}

ELEMENTWISE(SqrtOp)
FOLD_CONSTANTS(SqrtOp)
double SqrtOp::evaluate(ArrayRef<double> x) { return std::sqrt(x[0]); }
Value SqrtOp::buildPartial(OpBuilder &b, unsigned) {
  return DivOp::create(b, getLoc(), constant(b, *this, 0.5), getResult());
}
Value SqrtOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::SqrtOp::create(b, loc, x[0]); }
RangeAttr SqrtOp::inferRange(ArrayRef<RangeAttr> x) {
  return monotone(
      x[0], [](double v) { return std::sqrt(v); }, RangeAttr::get(getContext(), 0, infinity, false, false));
}

//===----------------------------------------------------------------------===//
// Activations
//===----------------------------------------------------------------------===//

ELEMENTWISE(SigmoidOp)
FOLD_CONSTANTS(SigmoidOp)
double SigmoidOp::evaluate(ArrayRef<double> x) { return 1 / (1 + std::exp(-x[0])); }
Value SigmoidOp::buildPartial(OpBuilder &b, unsigned) {
  Value rest = SubOp::create(b, getLoc(), constant(b, *this, 1), getResult());
  return MulOp::create(b, getLoc(), getResult(), rest);
}
Value SigmoidOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  Value one = number(b, loc, x[0].getType(), 1);
  Value e = math::ExpOp::create(b, loc, arith::NegFOp::create(b, loc, x[0]));
  return arith::DivFOp::create(b, loc, one, arith::AddFOp::create(b, loc, one, e));
}
RangeAttr SigmoidOp::inferRange(ArrayRef<RangeAttr> x) {
  return monotone(
      x[0], [](double v) { return 1 / (1 + std::exp(-v)); }, RangeAttr::closed(getContext(), 0, 1));
}

ELEMENTWISE(TanhOp)
FOLD_CONSTANTS(TanhOp)
double TanhOp::evaluate(ArrayRef<double> x) { return std::tanh(x[0]); }
Value TanhOp::buildPartial(OpBuilder &b, unsigned) {
  Value square = MulOp::create(b, getLoc(), getResult(), getResult());
  return SubOp::create(b, getLoc(), constant(b, *this, 1), square);
}
Value TanhOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::TanhOp::create(b, loc, x[0]); }
RangeAttr TanhOp::inferRange(ArrayRef<RangeAttr> x) {
  return monotone(x[0], [](double v) { return std::tanh(v); }, RangeAttr::closed(getContext(), -1, 1));
}

// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), which neither overflows nor cancels.
ELEMENTWISE(SoftplusOp)
FOLD_CONSTANTS(SoftplusOp)
static double softplus(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }
double SoftplusOp::evaluate(ArrayRef<double> x) { return softplus(x[0]); }
Value SoftplusOp::buildPartial(OpBuilder &b, unsigned) {
  return SigmoidOp::create(b, getLoc(), getOperand());
}
Value SoftplusOp::lower(OpBuilder &b, Location loc, ValueRange x) {
  Value zero = number(b, loc, x[0].getType(), 0);
  Value size = math::AbsFOp::create(b, loc, x[0]);
  Value e = math::ExpOp::create(b, loc, arith::NegFOp::create(b, loc, size));
  return arith::AddFOp::create(b, loc, arith::MaximumFOp::create(b, loc, x[0], zero),
                               math::Log1pOp::create(b, loc, e));
}
RangeAttr SoftplusOp::inferRange(ArrayRef<RangeAttr> x) {
  return monotone(x[0], softplus, RangeAttr::get(getContext(), 0, infinity, false, false));
}

ELEMENTWISE(ErfOp)
FOLD_CONSTANTS(ErfOp)
double ErfOp::evaluate(ArrayRef<double> x) { return std::erf(x[0]); }
Value ErfOp::buildPartial(OpBuilder &b, unsigned) {
  Value square = MulOp::create(b, getLoc(), getOperand(), getOperand());
  Value bell = ExpOp::create(b, getLoc(), NegOp::create(b, getLoc(), square));
  return MulOp::create(b, getLoc(), constant(b, *this, 2 / std::sqrt(M_PI)), bell);
}
Value ErfOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::ErfOp::create(b, loc, x[0]); }
RangeAttr ErfOp::inferRange(ArrayRef<RangeAttr> x) {
  return monotone(x[0], [](double v) { return std::erf(v); }, RangeAttr::closed(getContext(), -1, 1));
}

ELEMENTWISE(SinOp)
FOLD_CONSTANTS(SinOp)
double SinOp::evaluate(ArrayRef<double> x) { return std::sin(x[0]); }
Value SinOp::buildPartial(OpBuilder &b, unsigned) { return CosOp::create(b, getLoc(), getOperand()); }
Value SinOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::SinOp::create(b, loc, x[0]); }
RangeAttr SinOp::inferRange(ArrayRef<RangeAttr>) { return RangeAttr::closed(getContext(), -1, 1); }

ELEMENTWISE(CosOp)
FOLD_CONSTANTS(CosOp)
double CosOp::evaluate(ArrayRef<double> x) { return std::cos(x[0]); }
Value CosOp::buildPartial(OpBuilder &b, unsigned) {
  return NegOp::create(b, getLoc(), SinOp::create(b, getLoc(), getOperand()));
}
Value CosOp::lower(OpBuilder &b, Location loc, ValueRange x) { return math::CosOp::create(b, loc, x[0]); }
RangeAttr CosOp::inferRange(ArrayRef<RangeAttr>) { return RangeAttr::closed(getContext(), -1, 1); }
