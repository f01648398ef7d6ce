// The accuracy of functions, and their values where floats end.
#include "test/Cpu/Kernel.h"

#include <cmath>
#include <gtest/gtest.h>

using namespace recur;
using namespace recur::test;

static constexpr double infinity = std::numeric_limits<double>::infinity();
static constexpr int64_t length = 64;

namespace {
struct Case {
  const char *op;
  double (*function)(double);
  double lo, hi;
  /// The largest error in units of the last place.
  double tolerance;
};
} // namespace

static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
static double softplus(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }

static Kernel compile(const std::string &op) {
  return Kernel("recur.rule @f(input \"x\" %x: !recur.mat<64 x 1>) -> (\"o\") init { recur.yield } body {\n" +
                op + "\n  recur.yield %0 : !recur.mat<64 x 1>\n}");
}
static Kernel compileUnary(const char *op) {
  return compile(std::string("  %0 = recur.") + op + " %x : !recur.mat<64 x 1>");
}

// The error of a float in units of the last place of the exact value, which are at least those of the least
// normal.
static double ulps(double actual, double exact) {
  if (actual == exact || (std::isnan(actual) && std::isnan(exact)))
    return 0;
  int exponent;
  std::frexp(exact, &exponent);
  return std::fabs(actual - exact) / std::ldexp(1, std::max(exponent - 24, -149));
}

TEST(Functions, AreExactToAFewUnits) {
  const Case cases[] = {
      {"exp", [](double x) { return std::exp(x); }, -87, 88, 2},
      {"exp", [](double x) { return std::exp(x); }, -103, -87, 2},
      {"exp", [](double x) { return std::exp(x); }, -1e-3, 1e-3, 2},
      {"log", [](double x) { return std::log(x); }, 1e-30, 10, 2},
      {"log", [](double x) { return std::log(x); }, 0.9, 1.1, 2},
      {"log", [](double x) { return std::log(x); }, 0, 1e-38, 2},
      {"log", [](double x) { return std::log(x); }, 1, 3e38, 2},
      {"tanh", [](double x) { return std::tanh(x); }, -10, 10, 3},
      {"tanh", [](double x) { return std::tanh(x); }, -1e-3, 1e-3, 2},
      {"tanh", [](double x) { return std::tanh(x); }, 0.6, 0.65, 3},
      {"erf", [](double x) { return std::erf(x); }, -5, 5, 3},
      {"erf", [](double x) { return std::erf(x); }, -1e-3, 1e-3, 2},
      {"erf", [](double x) { return std::erf(x); }, 0.9, 0.95, 3},
      {"sin", [](double x) { return std::sin(x); }, -10, 10, 2},
      {"sin", [](double x) { return std::sin(x); }, -1e6, 1e6, 2},
      {"cos", [](double x) { return std::cos(x); }, -10, 10, 2},
      {"cos", [](double x) { return std::cos(x); }, -1e6, 1e6, 2},
      {"sigmoid", sigmoid, -80, 80, 3},
      {"softplus", softplus, -80, 80, 3},
      {"sqrt", [](double x) { return std::sqrt(x); }, 0, 1e9, 0.5},
  };
  for (const Case &each : cases) {
    Kernel kernel = compileUnary(each.op);
    ASSERT_TRUE(kernel.ok()) << kernel.error();
    int64_t tokens = 1000;
    Tensor x = Tensor::random({tokens, length}, each.lo, each.hi, 7), o({tokens, length});
    kernel({&x, &o}, {tokens});
    double worst = 0, where = 0;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < length; ++i) {
        double error = ulps(o.get({t, i}), each.function(x.get({t, i})));
        if (!(error <= worst)) {
          worst = error;
          where = x.get({t, i});
        }
      }
    EXPECT_LE(worst, each.tolerance) << each.op << " at " << where;
  }
}

TEST(Functions, AreRightWhereFloatsEnd) {
  const Case cases[] = {
      {"exp", [](double x) { return std::exp(x); }, 0, 0, 2},
      {"log", [](double x) { return std::log(x); }, 0, 0, 2},
      {"tanh", [](double x) { return std::tanh(x); }, 0, 0, 2},
      {"erf", [](double x) { return std::erf(x); }, 0, 0, 2},
      {"sin", [](double x) { return std::sin(x); }, 0, 0, 2},
      {"cos", [](double x) { return std::cos(x); }, 0, 0, 2},
      {"sigmoid", sigmoid, 0, 0, 30},
      {"softplus", softplus, 0, 0, 2},
      {"neg", [](double x) { return -x; }, 0, 0, 0},
      {"abs", [](double x) { return std::fabs(x); }, 0, 0, 0},
      {"sign", [](double x) { return double((x > 0) - (x < 0)); }, 0, 0, 0},
  };
  const double points[] = {0.0,   -0.0,   1,     -1,  infinity, -infinity, std::nan(""),
                           1e-40, -1e-40, 1e-20, 100, -100,     200,       -200};
  for (const Case &each : cases) {
    Kernel kernel = compileUnary(each.op);
    ASSERT_TRUE(kernel.ok()) << kernel.error();
    Tensor x({1, length}), o({1, length});
    for (auto [i, point] : llvm::enumerate(points))
      x.set({0, static_cast<int64_t>(i)}, point);
    kernel({&x, &o}, {1});
    for (int64_t i = 0; i < static_cast<int64_t>(std::size(points)); ++i) {
      double exact = static_cast<float>(each.function(x.get({0, i}))), actual = o.get({0, i});
      if (std::isfinite(exact))
        EXPECT_LE(ulps(actual, exact), each.tolerance) << each.op << " of " << points[i] << " is " << actual;
      else
        EXPECT_TRUE(actual == exact || (std::isnan(actual) && std::isnan(exact)))
            << each.op << " of " << points[i] << " is " << actual;
    }
  }
}

TEST(Functions, PowersHaveTheirUsualValues) {
  for (double exponent : {2.0, 3.0, -1.0, 0.5, -0.5, 1.5, 0.3}) {
    std::string number = std::to_string(exponent);
    Kernel kernel =
        compile("  %c = recur.constant " + number +
                " : !recur.mat<1 x 1>\n  %0 = recur.pow %x, %c : !recur.mat<64 x 1>, !recur.mat<1 x 1>");
    ASSERT_TRUE(kernel.ok()) << kernel.error();
    Tensor x = Tensor::random({1, length}, 0.1, 10, 3), o({1, length});
    kernel({&x, &o}, {1});
    for (int64_t i = 0; i < length; ++i)
      EXPECT_LE(ulps(o.get({0, i}), std::pow(x.get({0, i}), exponent)), 3) << exponent;
  }
}
