// Functions of f32 as arithmetic. The polynomials are our own fits (least maximum error relative to the
// function, by reweighted least squares on Chebyshev nodes); the largest error of each over its interval
// stands beside it.
#include "lib/Cpu/LowerOps.h"
#include "lib/Cpu/Passes.h"
#include "mlir/IR/Matchers.h"

#include <cmath>

namespace recur::cpu {
#define GEN_PASS_DEF_APPROXIMATEMATH
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur;
using namespace recur::cpu;
using arith::CmpFPredicate;

namespace {

/// Builds f32 arithmetic at one place.
struct Arithmetic {
  OpBuilder &b;
  Location loc;
  bool hasScaling = false; // the target multiplies by powers of two

  Value number(double v) {
    return arith::ConstantOp::create(b, loc, b.getF32FloatAttr(static_cast<float>(v)));
  }
  Value integer(int64_t v) { return arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(v)); }
  Value add(Value x, Value y) { return arith::AddFOp::create(b, loc, x, y); }
  Value sub(Value x, Value y) { return arith::SubFOp::create(b, loc, x, y); }
  Value mul(Value x, Value y) { return arith::MulFOp::create(b, loc, x, y); }
  Value div(Value x, Value y) { return arith::DivFOp::create(b, loc, x, y); }
  Value abs(Value x) { return math::AbsFOp::create(b, loc, x); }
  Value withSign(Value x, Value sign) { return math::CopySignOp::create(b, loc, x, sign); }
  Value addI(Value x, Value y) { return arith::AddIOp::create(b, loc, x, y); }
  Value subI(Value x, Value y) { return arith::SubIOp::create(b, loc, x, y); }
  Value bits(Value x) { return arith::BitcastOp::create(b, loc, b.getI32Type(), x); }
  Value float_(Value bits) { return arith::BitcastOp::create(b, loc, b.getF32Type(), bits); }
  Value compare(CmpFPredicate predicate, Value x, Value y) {
    return arith::CmpFOp::create(b, loc, predicate, x, y);
  }
  Value select(Value condition, Value yes, Value no) {
    return arith::SelectOp::create(b, loc, condition, yes, no);
  }
  /// x, but not below or above a bound; NaN stays.
  Value atLeast(Value x, Value low) { return select(compare(CmpFPredicate::OLT, x, low), low, x); }
  Value atMost(Value x, Value high) { return select(compare(CmpFPredicate::OGT, x, high), high, x); }
  /// The polynomial with these coefficients, lowest first.
  Value polynomial(Value x, ArrayRef<double> coefficients) {
    Value sum = number(coefficients.back());
    for (double c : llvm::reverse(coefficients.drop_back()))
      sum = add(mul(sum, x), number(c));
    return sum;
  }

  Value exp(Value x);
  Value log(Value x);
  Value log1p(Value x);
  Value tanh(Value x);
  Value erf(Value x);
};

constexpr double infinity = std::numeric_limits<double>::infinity();
// ln 2 in two parts; the first has so few bits that its products with exponents are exact.
constexpr double ln2High = 0.693359375, ln2Low = M_LN2 - ln2High;

// e^x = 2^k e^r with k the integer nearest to x / ln 2. Adding 1.5 * 2^23 leaves k in the low bits of the
// sum, without a conversion that would be undefined for NaN. 2^k is applied in two factors, so that results
// may be subnormal, where there is no instruction for it.
Value Arithmetic::exp(Value x) {
  x = atMost(atLeast(x, number(-104)), number(89));
  Value shift = number(12582912);
  Value shifted = add(mul(x, number(M_LOG2E)), shift);
  Value k = sub(shifted, shift);
  Value r = sub(sub(x, mul(k, number(ln2High))), mul(k, number(ln2Low)));
  Value rest = polynomial(
      r, {4.999999305e-01, 1.666651479e-01, 4.166845683e-02, 8.369419044e-03, 1.381314237e-03}); // 3.3e-9
  Value p = add(add(mul(mul(rest, r), r), r), number(1));
  Value n = subI(bits(shifted), bits(shift));
  if (hasScaling)
    return LLVM::CallIntrinsicOp::create(b, loc, b.getF32Type(), b.getStringAttr("llvm.ldexp"),
                                         ValueRange{p, n})
        .getResult(0);
  Value half = arith::ShRSIOp::create(b, loc, n, integer(1));
  auto power = [&](Value exponent) {
    return float_(arith::ShLIOp::create(b, loc, addI(exponent, integer(127)), integer(23)));
  };
  return mul(mul(p, power(half)), power(subI(n, half)));
}

// x = 2^e m with m in [sqrt(1/2), sqrt(2)), then with f = m - 1 and s = f / (2 + f):
// log(1 + f) = f - f^2/2 + s (f^2/2 + 2/3 s^2 + 2/5 s^4 + ..).
Value Arithmetic::log(Value x) {
  Value zero = number(0);
  Value isTiny = compare(CmpFPredicate::OLT, x, number(std::numeric_limits<float>::min()));
  Value scaled = select(isTiny, mul(x, number(8388608)), x);
  Value extra = select(isTiny, number(-23), zero);
  Value root = integer(0x3f3504f3); // sqrt(1/2)
  Value above = subI(bits(scaled), root);
  Value exponent = arith::ShRSIOp::create(b, loc, above, integer(23));
  Value e = add(arith::SIToFPOp::create(b, loc, b.getF32Type(), exponent), extra);
  Value mantissa = arith::AndIOp::create(b, loc, above, integer(0x7fffff));
  Value f = sub(float_(addI(mantissa, root)), number(1));
  Value s = div(f, add(f, number(2)));
  Value z = mul(s, s);
  Value rest = mul(z, polynomial(z, {6.666678322e-01, 3.997661215e-01, 2.989865889e-01})); // 8.8e-10
  Value half = mul(mul(f, f), number(0.5));
  Value low = add(mul(s, add(half, rest)), mul(e, number(ln2Low)));
  Value result = sub(mul(e, number(ln2High)), sub(sub(half, low), f));
  Value top = number(infinity);
  result = select(compare(CmpFPredicate::OEQ, x, top), top, result);
  result = select(compare(CmpFPredicate::OEQ, x, zero), number(-infinity), result);
  return select(compare(CmpFPredicate::ULT, x, zero), number(std::nan("")), result);
}

// log(1 + x) from u = 1 + x rounded, corrected to first order for what the rounding lost.
Value Arithmetic::log1p(Value x) {
  Value one = number(1), u = add(x, one);
  Value correction = div(sub(x, sub(u, one)), u);
  Value positive = compare(CmpFPredicate::OGT, u, number(0));
  Value finite = compare(CmpFPredicate::OLT, u, number(infinity));
  Value applies = arith::AndIOp::create(b, loc, positive, finite);
  return add(log(u), select(applies, correction, number(0)));
}

Value Arithmetic::tanh(Value x) {
  Value size = abs(x), one = number(1);
  Value far = sub(one, div(number(2), add(exp(add(size, size)), one)));
  Value z = mul(x, x);
  Value near = polynomial(
      z, {-3.333328392e-01, 1.333149125e-01, -5.374349526e-02, 2.065057899e-02, -5.717036548e-03}); // 4.1e-9
  near = add(mul(mul(near, z), x), x);
  return select(compare(CmpFPredicate::OLT, size, number(0.625)), near, withSign(far, x));
}

Value Arithmetic::erf(Value x) {
  Value size = atMost(abs(x), number(4)); // from there on 1 to all digits
  Value exponent = polynomial(size, {2.070084933e-04, 1.127627401e+00, 6.372657522e-01, 1.038563746e-01,
                                     -2.218977689e-02, 3.033692453e-03, -1.949467633e-04}); // 1.5e-9
  Value far = sub(number(1), exp(sub(number(0), exponent)));
  Value near = polynomial(mul(x, x), {1.283791477e-01, -3.761248110e-01, 1.128168253e-01, -2.676171946e-02,
                                      4.985940065e-03, -5.953739238e-04}); // 1.7e-8
  near = add(mul(near, x), x);
  return select(compare(CmpFPredicate::OLT, size, number(0.925)), near, withSign(far, x));
}

// A power with a constant exponent; null if it has no simpler form.
Value constantPower(OpBuilder &b, math::PowFOp op) {
  FloatAttr attr;
  if (!matchPattern(op.getRhs(), m_Constant(&attr)))
    return {};
  Arithmetic a{b, op.getLoc()};
  double exponent = attr.getValueAsDouble(), twice = std::fabs(2 * exponent);
  if (twice != std::floor(twice) || twice > 16)
    return {};
  Value result, square = op.getLhs();
  auto multiply = [&](Value factor) { result = result ? a.mul(result, factor) : factor; };
  unsigned whole = static_cast<unsigned>(twice) / 2;
  for (unsigned rest = whole; rest; rest /= 2) {
    if (rest & 1)
      multiply(square);
    if (rest > 1)
      square = a.mul(square, square);
  }
  if (static_cast<unsigned>(twice) % 2)
    multiply(math::SqrtOp::create(b, op.getLoc(), op.getLhs()));
  if (!result)
    return a.number(1);
  return exponent < 0 ? a.div(a.number(1), result) : result;
}

} // namespace

// The angle is brought to [-pi/4, pi/4] in float64; the quarter turn taken off decides which polynomial is
// which.
std::pair<Value, Value> cpu::cosineAndSine(OpBuilder &b, Location loc, Value angle) {
  Type i32 = b.getI32Type();
  Arithmetic a{b, loc};
  auto wide = [&](double v) -> Value { return arith::ConstantOp::create(b, loc, b.getF64FloatAttr(v)); };
  Value shift = wide(6755399441055744.0); // 1.5 * 2^52, as in exp
  Value shifted = a.add(a.mul(angle, wide(M_2_PI)), shift);
  Value turns = a.sub(shifted, shift);
  // pi/2 in two float64.
  Value r64 = a.sub(a.sub(angle, a.mul(turns, wide(M_PI_2))), a.mul(turns, wide(6.123233995736766e-17)));
  Value r = arith::TruncFOp::create(b, loc, b.getF32Type(), r64);
  Value z = a.mul(r, r);
  Value sine = a.polynomial(z, {-1.666665423e-01, 8.332131488e-03, -1.951083813e-04});  // 3.9e-9
  Value cosine = a.polynomial(z, {4.166664565e-02, -1.388730602e-03, 2.443120314e-05}); // 1.1e-10
  sine = a.add(a.mul(a.mul(sine, z), r), r);
  cosine = a.add(a.mul(a.mul(cosine, z), z), a.sub(a.number(1), a.mul(z, a.number(0.5))));
  Value bits = arith::BitcastOp::create(b, loc, b.getI64Type(), shifted);
  Value quarter = arith::TruncIOp::create(b, loc, i32, bits);
  auto hasBit = [&](Value value, int64_t bit) -> Value {
    Value masked = arith::AndIOp::create(b, loc, value, a.integer(bit));
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, masked, a.integer(0));
  };
  Value swaps = hasBit(quarter, 1);
  auto negatedIf = [&](Value condition, Value x) {
    return a.select(condition, arith::NegFOp::create(b, loc, x), x);
  };
  Value c = negatedIf(hasBit(a.addI(quarter, a.integer(1)), 2), a.select(swaps, sine, cosine));
  Value s = negatedIf(hasBit(quarter, 2), a.select(swaps, cosine, sine));
  return {c, s};
}

void cpu::allowContraction(Operation *op) {
  op->walk([](arith::ArithFastMathInterface each) {
    each->setAttr(each.getFastMathAttrName(),
                  arith::FastMathFlagsAttr::get(each->getContext(), arith::FastMathFlags::contract));
  });
}

namespace {
struct ApproximateMath : recur::cpu::impl::ApproximateMathBase<ApproximateMath> {
  using ApproximateMathBase::ApproximateMathBase;

  void runOnOperation() override {
    getOperation().walk([&](Operation *op) {
      if (!isa_and_present<math::MathDialect>(op->getDialect()) || !op->getResult(0).getType().isF32())
        return;
      OpBuilder b(op);
      Arithmetic a{b, op->getLoc(), hasScaling};
      Value x = op->getOperand(0);
      auto turn = [&] {
        return cosineAndSine(b, op->getLoc(), arith::ExtFOp::create(b, op->getLoc(), b.getF64Type(), x));
      };
      Value result = llvm::TypeSwitch<Operation *, Value>(op)
                         .Case([&](math::ExpOp) { return a.exp(x); })
                         .Case([&](math::LogOp) { return a.log(x); })
                         .Case([&](math::Log1pOp) { return a.log1p(x); })
                         .Case([&](math::TanhOp) { return a.tanh(x); })
                         .Case([&](math::ErfOp) { return a.erf(x); })
                         .Case([&](math::CosOp) { return turn().first; })
                         .Case([&](math::SinOp) { return turn().second; })
                         .Case([&](math::PowFOp power) { return constantPower(b, power); })
                         .Default([](Operation *) { return Value(); });
      if (!result)
        return;
      op->getResult(0).replaceAllUsesWith(result);
      op->erase();
    });
    allowContraction(getOperation());
  }
};
} // namespace
