// Steps end where none that is left counts for any thread, and not before.
#include "lib/Cuda/Convergence.h"
#include "test/Emulate/Kit.h"
#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace recur;
using namespace recur::test;

static constexpr int64_t all = 40;

// How many steps run where those of a thread leave an eighth of the squared residual, and those of thread 77
// `rate` of it.
static float countSteps(double eps, double rate) {
  float counts[128];
  std::string wrong = launch(
      128, 0,
      [&](Kit &kit) {
        cuda::Convergence convergence(kit.b, eps, all, 8);
        Value one = kit.ptx.number(1), isIt = kit.ptx.equal(kit.thread, 77);
        Value factor = kit.ptx.choose(isIt, kit.ptx.number(rate), kit.ptx.number(0.125));
        // Some threads have nothing to solve.
        Value size = kit.ptx.choose(kit.ptx.equal(kit.lane, 3), kit.ptx.number(0), one);
        Value goal = convergence.goalOf(size, kit.ptx.number(0.5));
        cuda::Values last =
            cuda::runSteps(kit.b, all, {kit.ptx.number(0), size}, [&](Value number, ValueRange carried) {
              cuda::Values next{kit.ptx.sum(carried[0], one), kit.ptx.multiply(carried[1], factor)};
              Value isOpen = kit.ptx.meetForAny(convergence.isOpen(number, next[1], goal));
              return std::pair(next, isOpen);
            });
        kit.storeFloat(kit.thread, last[0]);
      },
      counts);
  EXPECT_EQ(wrong, "");
  for (float count : counts)
    EXPECT_EQ(count, counts[0]);
  return counts[0];
}

// By the rule in Convergence.h, for right sides of norm 1 and a first step of 0.5.
static float expectedSteps(double eps, double rate) {
  double size = 1, part = std::ldexp(1, -9);
  for (int64_t left = all - 1; left > 0; --left) {
    size *= rate;
    double moves = left * std::pow(size, 1.5);
    if (moves / eps <= part * 0.5 && moves <= std::pow(eps, 1.5))
      return all - left;
  }
  return all;
}

TEST(Convergence, theSlowestThreadSaysWhenStepsEnd) {
  for (double eps : {1e-5, 1e-3})
    for (double rate : {0.125, 0.25, 0.5})
      EXPECT_EQ(countSteps(eps, rate), expectedSteps(eps, rate)) << eps << " " << rate;
  EXPECT_LT(expectedSteps(1e-5, 0.5), all);
}

TEST(Convergence, allStepsRunWhereNothingIsKnown) {
  EXPECT_EQ(countSteps(1e-5, 1), all);
  EXPECT_EQ(countSteps(1e-5, NAN), all);
}

TEST(Convergence, neverEndsWithoutEpsOrInFullPrecision) {
  EXPECT_TRUE(cuda::Convergence::canEnd(1e-5, 8));
  EXPECT_FALSE(cuda::Convergence::canEnd(0, 8));
  EXPECT_FALSE(cuda::Convergence::canEnd(1e-5, 24));
}
