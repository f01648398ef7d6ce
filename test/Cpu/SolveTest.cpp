// Linear systems inside rules.
#include "test/Cpu/Kernel.h"

#include <cmath>
#include <gtest/gtest.h>

using namespace recur;
using namespace recur::test;

// o = solve(K*K.T + 0.5*I, R) with K and R given for each token.
static std::string solveRule(int64_t n, int64_t columns, llvm::StringRef how) {
  std::string size = std::to_string(n), matrix = "!recur.mat<" + size + " x " + size + ">",
              rhs = "!recur.mat<" + size + " x " + std::to_string(columns) + ">";
  return "recur.rule @solve(input \"K\" %K: " + matrix + ", input \"R\" %R: " + rhs +
         ") -> (\"o\") init { recur.yield } body {\n  %KT = recur.transpose %K : " + matrix +
         "\n  %G = recur.matmul %K, %KT : " + matrix + ", " + matrix + "\n  %I = recur.identity : " + matrix +
         "\n  %half = recur.constant 0.5 : !recur.mat<1 x 1>" +
         "\n  %D = recur.mul %half, %I : !recur.mat<1 x 1>, " + matrix +
         "\n  %A = recur.add %G, %D : " + matrix + ", " + matrix + "\n  %x = recur.solve %A, %R " +
         how.str() + " : " + matrix + ", " + rhs + "\n  recur.yield %x : " + rhs + "\n}";
}

static std::vector<int64_t> shape(int64_t tokens, int64_t rows, int64_t columns) {
  std::vector<int64_t> result = {tokens};
  for (int64_t size : {rows, columns})
    if (size > 1)
      result.push_back(size);
  return result;
}

// The largest entry of A x - R relative to that of R.
static double residual(int64_t n, int64_t columns, llvm::StringRef how, unsigned width = 16) {
  cpu::KernelOptions options;
  options.vectorWidth = width;
  Kernel kernel(solveRule(n, columns, how), options);
  EXPECT_TRUE(kernel.ok()) << kernel.error();
  int64_t tokens = 2;
  Tensor k = Tensor::random(shape(tokens, n, n), -1, 1, 1),
         r = Tensor::random(shape(tokens, n, columns), -1, 1, 2);
  Tensor x(r.shape());
  kernel({&k, &r, &x}, {tokens});
  auto at = [&](const Tensor &tensor, int64_t t, int64_t i, int64_t j, int64_t rows, int64_t cols) {
    std::vector<int64_t> place = {t};
    if (rows > 1)
      place.push_back(i);
    if (cols > 1)
      place.push_back(j);
    return tensor.get(place);
  };
  double most = 0;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0.5 * at(x, t, i, c, n, columns) - at(r, t, i, c, n, columns);
        for (int64_t j = 0; j < n; ++j)
          for (int64_t l = 0; l < n; ++l)
            sum += at(k, t, i, l, n, n) * at(k, t, j, l, n, n) * at(x, t, j, c, n, columns);
        most = std::isnan(sum) ? sum : std::fmax(most, std::fabs(sum));
      }
  return most;
}

TEST(Solve, ExactlyForAnySize) {
  for (int64_t n : {1, 2, 5, 16, 17, 33})
    EXPECT_LE(residual(n, 1, ""), 1e-4) << n;
}
TEST(Solve, ExactlyForSeveralRightSides) {
  for (int64_t n : {1, 3, 16, 20})
    EXPECT_LE(residual(n, 3, ""), 1e-4) << n;
  EXPECT_LE(residual(20, 20, ""), 1e-4);
}
TEST(Solve, ExactlyForAnyVectorWidth) {
  for (unsigned width : {1, 4, 8})
    EXPECT_LE(residual(13, 2, "", width), 1e-4) << width;
}
TEST(Solve, ByConjugateGradients) {
  for (int64_t n : {1, 2, 5, 17})
    EXPECT_LE(residual(n, 1, "iterations 40"), 1e-3) << n;
}
TEST(Solve, ConjugateGradientsStopAtZero) {
  Kernel kernel(solveRule(4, 1, "iterations 9"));
  ASSERT_TRUE(kernel.ok()) << kernel.error();
  Tensor k = Tensor::random({1, 4, 4}, -1, 1, 1), r({1, 4}), x({1, 4});
  kernel({&k, &r, &x}, {1});
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(x.get({0, i}), 0);
}
