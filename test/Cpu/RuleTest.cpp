// Rules against plain loops.
#include "test/Cpu/Kernel.h"

#include <cmath>
#include <gtest/gtest.h>

using namespace recur;
using namespace recur::test;

//===----------------------------------------------------------------------===//
// A decayed sum
//===----------------------------------------------------------------------===//

static constexpr int64_t sumLength = 21;
static const char *decayedSum = R"(
recur.rule @sum(input "a" %a: !recur.mat<1 x 1>, input "x" %x: !recur.mat<21 x 1>,
                state "s" %s: !recur.mat<21 x 1>) -> ("o") init {
  %half = recur.constant 0.5 : !recur.mat<21 x 1>
  recur.yield %half : !recur.mat<21 x 1>
} body {
  %0 = recur.mul %a, %s : !recur.mat<1 x 1>, !recur.mat<21 x 1>
  %1 = recur.add %0, %x : !recur.mat<21 x 1>, !recur.mat<21 x 1>
  recur.yield %1, %1 : !recur.mat<21 x 1>, !recur.mat<21 x 1>
})";

// Runs it and compares; returns the kernel's final state.
static Tensor checkSum(int64_t tokens, bool hasInitial, DType dtype, int64_t gap, double tolerance) {
  cpu::KernelOptions options;
  for (int i = 0; i < 5; ++i) // a, x, initial s, o, final s
    options.tensors.push_back({i == 2 || i == 4 ? DType::F32 : dtype, -1});
  Kernel kernel(decayedSum, options);
  EXPECT_TRUE(kernel.ok()) << kernel.error();
  Tensor a = Tensor::random({tokens}, 0, 1, 1, dtype, gap),
         x = Tensor::random({tokens, sumLength}, -1, 1, 2, dtype, gap);
  Tensor initial = hasInitial ? Tensor::random({sumLength}, -1, 1, 3, DType::F32, gap) : Tensor::absent(1);
  Tensor o({tokens, sumLength}, dtype, gap), final({sumLength}, DType::F32, gap);
  kernel({&a, &x, &initial, &o, &final}, {tokens});
  Tensor expected({tokens, sumLength}), state({sumLength});
  for (int64_t i = 0; i < sumLength; ++i) {
    double s = hasInitial ? initial.get({i}) : 0.5;
    for (int64_t t = 0; t < tokens; ++t)
      expected.set({t, i}, s = a.get({t}) * s + x.get({t, i}));
    state.set({i}, s);
  }
  EXPECT_LE(difference(o, expected), tolerance);
  EXPECT_LE(difference(final, state), 1e-6);
  return final;
}

TEST(Sum, AnyLength) {
  for (int64_t tokens : {0, 1, 2, 17})
    checkSum(tokens, true, DType::F32, 1, 1e-6);
}
TEST(Sum, StartsWhereTheRuleSays) {
  Tensor state = checkSum(0, false, DType::F32, 1, 1e-6);
  EXPECT_EQ(state.get({20}), 0.5);
  checkSum(5, false, DType::F32, 1, 1e-6);
}
TEST(Sum, AnyStride) { checkSum(9, true, DType::F32, 3, 1e-6); }
TEST(Sum, Bfloat16) {
  checkSum(9, true, DType::BF16, 1, 4e-3);
  checkSum(9, true, DType::BF16, 2, 4e-3);
}
TEST(Sum, Float16) {
  checkSum(9, true, DType::F16, 1, 5e-4);
  checkSum(9, true, DType::F16, 2, 5e-4);
}
TEST(Sum, FinalStateMayBeLeftOut) {
  Kernel kernel(decayedSum);
  ASSERT_TRUE(kernel.ok()) << kernel.error();
  Tensor a = Tensor::random({3}, 0, 1, 1), x = Tensor::random({3, sumLength}, -1, 1, 2);
  Tensor none = Tensor::absent(1), o({3, sumLength});
  kernel({&a, &x, &none, &o, &none}, {3});
  EXPECT_NE(o.get({2, 3}), 0);
}
TEST(Sum, StepInPlaceEqualsForward) {
  Kernel kernel(decayedSum);
  ASSERT_TRUE(kernel.ok()) << kernel.error();
  Tensor a = Tensor::random({4}, 0, 1, 1), x = Tensor::random({4, sumLength}, -1, 1, 2);
  Tensor none = Tensor::absent(1), o({4, sumLength}), final({sumLength}), state({sumLength});
  kernel({&a, &x, &none, &o, &final}, {4});
  for (int64_t i = 0; i < sumLength; ++i)
    state.set({i}, 0.5);
  for (int64_t t = 0; t < 4; ++t) {
    Tensor at({1}), xt({1, sumLength}), ot({1, sumLength});
    at.set({0}, a.get({t}));
    for (int64_t i = 0; i < sumLength; ++i)
      xt.set({0, i}, x.get({t, i}));
    kernel({&at, &xt, &state, &ot, &state}, {1, t});
    for (int64_t i = 0; i < sumLength; ++i)
      EXPECT_EQ(ot.get({0, i}), o.get({t, i}));
  }
  EXPECT_EQ(difference(state, final), 0);
}

//===----------------------------------------------------------------------===//
// The delta rule
//===----------------------------------------------------------------------===//

static std::string deltaRule(int64_t dv, int64_t dk) {
  std::string text = R"(
recur.rule @delta(input "q" %q: !recur.mat<K x 1>, input "k" %k: !recur.mat<K x 1>, input "v" %v: !recur.mat<V x 1>,
                  input "b" %b: !recur.mat<1 x 1>, state "S" %S: !recur.mat<V x K>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<V x K>
  recur.yield %z : !recur.mat<V x K>
} body {
  %r = recur.matmul %S, %k : !recur.mat<V x K>, !recur.mat<K x 1>
  %e = recur.sub %v, %r : !recur.mat<V x 1>, !recur.mat<V x 1>
  %u = recur.mul %b, %e : !recur.mat<1 x 1>, !recur.mat<V x 1>
  %kT = recur.transpose %k : !recur.mat<K x 1>
  %w = recur.matmul %u, %kT : !recur.mat<V x 1>, !recur.mat<1 x K>
  %n = recur.add %S, %w : !recur.mat<V x K>, !recur.mat<V x K>
  %o = recur.matmul %n, %q : !recur.mat<V x K>, !recur.mat<K x 1>
  recur.yield %n, %o : !recur.mat<V x K>, !recur.mat<V x 1>
})";
  for (auto [letter, size] : {std::pair('V', dv), std::pair('K', dk)})
    for (const char *form : {"<V x", "<K x", "x V>", "x K>"}) {
      std::string from = form;
      size_t at = from.find(letter);
      if (at == std::string::npos)
        continue;
      std::string to = from;
      to.replace(at, 1, std::to_string(size));
      for (size_t place; (place = text.find(from)) != std::string::npos;)
        text.replace(place, from.size(), to);
    }
  return text;
}

static void checkDelta(int64_t dv, int64_t dk, int64_t gap, cpu::KernelOptions options = {}) {
  Kernel kernel(deltaRule(dv, dk), options);
  ASSERT_TRUE(kernel.ok()) << kernel.error();
  int64_t tokens = 11;
  Tensor q = Tensor::random({tokens, dk}, -1, 1, 1, DType::F32, gap),
         k = Tensor::random({tokens, dk}, -1, 1, 2),
         v = Tensor::random({tokens, dv}, -1, 1, 3, DType::F32, gap),
         b = Tensor::random({tokens}, 0, 1.0 / dk, 4);
  bool isWide = !options.tensors.empty();
  std::vector<int64_t> shape = isWide || (dv > 1 && dk > 1) ? std::vector<int64_t>{dv, dk}
                               : dv > 1 || dk > 1           ? std::vector<int64_t>{dv * dk}
                                                            : std::vector<int64_t>{};
  Tensor initial = Tensor::random(shape, -1, 1, 5, DType::F32, gap), final(shape, DType::F32, gap);
  Tensor o(dv > 1 ? std::vector<int64_t>{tokens, dv} : std::vector<int64_t>{tokens}), expected(o.shape());
  auto place = [&](int64_t i, int64_t j) {
    return shape.size() == 2 ? std::vector<int64_t>{i, j} : std::vector<int64_t>(shape.size(), i + j);
  };
  Tensor q1({tokens}), k1({tokens}), v1({tokens}); // without the dimension that is 1
  for (int64_t t = 0; t < tokens; ++t) {
    q1.set({t}, q.get({t, 0}));
    k1.set({t}, k.get({t, 0}));
    v1.set({t}, v.get({t, 0}));
  }
  kernel({dk > 1 ? &q : &q1, dk > 1 ? &k : &k1, dv > 1 ? &v : &v1, &b, &initial, &o, &final}, {tokens});
  std::vector<std::vector<double>> s(dv, std::vector<double>(dk));
  for (int64_t i = 0; i < dv; ++i)
    for (int64_t j = 0; j < dk; ++j)
      s[i][j] = initial.get(place(i, j));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < dv; ++i) {
      double read = 0, out = 0;
      for (int64_t j = 0; j < dk; ++j)
        read += s[i][j] * k.get({t, j});
      for (int64_t j = 0; j < dk; ++j) {
        s[i][j] += b.get({t}) * (v.get({t, i}) - read) * k.get({t, j});
        out += s[i][j] * q.get({t, j});
      }
      expected.set(dv > 1 ? std::vector<int64_t>{t, i} : std::vector<int64_t>{t}, out);
    }
  Tensor state(shape);
  for (int64_t i = 0; i < dv; ++i)
    for (int64_t j = 0; j < dk; ++j)
      state.set(place(i, j), s[i][j]);
  EXPECT_LE(difference(o, expected), 2e-6) << dv << " x " << dk;
  EXPECT_LE(difference(final, state), 2e-6) << dv << " x " << dk;
}

TEST(Delta, AnySize) {
  for (auto [dv, dk] : {std::pair(64, 64), std::pair(128, 32), std::pair(13, 29), std::pair(7, 1),
                        std::pair(1, 5), std::pair(1, 1), std::pair(2, 3)})
    checkDelta(dv, dk, 1);
}
TEST(Delta, AnyStride) { checkDelta(24, 40, 2); }
TEST(Delta, AnyVectorWidth) {
  for (unsigned width : {1, 4, 8}) {
    cpu::KernelOptions options;
    options.vectorWidth = width;
    options.accumulators = 3;
    checkDelta(24, 21, 1, options);
  }
}
TEST(Delta, OneColumnMayBeHeldAsMatrix) {
  cpu::KernelOptions options;
  for (int rank : {-1, -1, -1, -1, 2, -1, 2})
    options.tensors.push_back({DType::F32, rank});
  checkDelta(7, 1, 1, options);
  checkDelta(1, 1, 1, options);
}

//===----------------------------------------------------------------------===//
// More kinds of rules
//===----------------------------------------------------------------------===//

TEST(MicroSteps, UpdateTheStateInTurn) {
  Kernel kernel(R"(
recur.rule @steps(input "k" %k: !recur.steps<3 x 6 x 1>, input "b" %b: !recur.steps<3 x 1 x 1>,
                  state "S" %S: !recur.mat<6 x 1>) -> ("o") init {
  %z = recur.constant 1.0 : !recur.mat<6 x 1>
  recur.yield %z : !recur.mat<6 x 1>
} body {
  %n = recur.for %j = 1 to 3 iter(%s = %S) -> !recur.mat<6 x 1> {
    %kj = recur.extract %k[%j] : !recur.steps<3 x 6 x 1>
    %bj = recur.extract %b[%j] : !recur.steps<3 x 1 x 1>
    %0 = recur.mul %bj, %s : !recur.mat<1 x 1>, !recur.mat<6 x 1>
    %1 = recur.mul %j, %kj : !recur.mat<1 x 1>, !recur.mat<6 x 1>
    %2 = recur.add %0, %1 : !recur.mat<6 x 1>, !recur.mat<6 x 1>
    recur.yield %2 : !recur.mat<6 x 1>
  }
  recur.yield %n, %n : !recur.mat<6 x 1>, !recur.mat<6 x 1>
})");
  ASSERT_TRUE(kernel.ok()) << kernel.error();
  Tensor k = Tensor::random({5, 3, 6}, -1, 1, 1), b = Tensor::random({5, 3}, -1, 1, 2);
  Tensor none = Tensor::absent(1), o({5, 6}), final({6}), expected({5, 6});
  kernel({&k, &b, &none, &o, &final}, {5});
  for (int64_t i = 0; i < 6; ++i) {
    double s = 1;
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t j = 0; j < 3; ++j)
        s = b.get({t, j}) * s + (j + 1) * k.get({t, j, i});
      expected.set({t, i}, s);
    }
  }
  EXPECT_LE(difference(o, expected), 1e-6);
}

TEST(Rope, RotatesByThePosition) {
  for (int64_t n : {2, 7, 64}) {
    std::string size = std::to_string(n), vector = "!recur.mat<" + size + " x 1>";
    Kernel kernel("recur.rule @rope(input \"x\" %x: " + vector +
                  ", position \"t\" %t: !recur.mat<1 x 1>) -> (\"o\") " +
                  "init { recur.yield } body { %0 = recur.rope %x, %t : " + vector +
                  "\n recur.yield %0 : " + vector + " }");
    ASSERT_TRUE(kernel.ok()) << kernel.error();
    int64_t tokens = 5, first = 1000000;
    Tensor x = Tensor::random({tokens, n}, -1, 1, 1), o({tokens, n}), expected({tokens, n});
    kernel({&x, &o}, {tokens, first});
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < n; ++i) {
        double angle = (first + t) * std::pow(10000.0, -2.0 * (i / 2) / n), c = std::cos(angle),
               s = std::sin(angle);
        double own = x.get({t, i});
        if (i + 1 == n && n % 2)
          expected.set({t, i}, own);
        else
          expected.set({t, i}, i % 2 ? c * own + s * x.get({t, i - 1}) : c * own - s * x.get({t, i + 1}));
      }
    EXPECT_LE(difference(o, expected), 1e-6) << n;
  }
}

TEST(Gru, HasDenseWeightsAndGates) {
  constexpr int64_t d = 19;
  Kernel kernel(R"(
recur.rule @gru(input "x" %x: !recur.mat<19 x 1>, param "W" %W: !recur.mat<19 x 19>, param "U" %U: !recur.mat<19 x 19>,
                state "h" %h: !recur.mat<19 x 1>) -> ("o") init {
  %z = recur.constant 0.0 : !recur.mat<19 x 1>
  recur.yield %z : !recur.mat<19 x 1>
} body {
  %0 = recur.matmul %W, %h : !recur.mat<19 x 19>, !recur.mat<19 x 1>
  %1 = recur.add %0, %x : !recur.mat<19 x 1>, !recur.mat<19 x 1>
  %g = recur.sigmoid %1 : !recur.mat<19 x 1>
  %2 = recur.mul %g, %h : !recur.mat<19 x 1>, !recur.mat<19 x 1>
  %UT = recur.transpose %U : !recur.mat<19 x 19>
  %3 = recur.matmul %UT, %2 : !recur.mat<19 x 19>, !recur.mat<19 x 1>
  %4 = recur.add %3, %x : !recur.mat<19 x 1>, !recur.mat<19 x 1>
  %n = recur.tanh %4 : !recur.mat<19 x 1>
  %one = recur.constant 1.0 : !recur.mat<1 x 1>
  %5 = recur.sub %one, %g : !recur.mat<1 x 1>, !recur.mat<19 x 1>
  %6 = recur.mul %5, %n : !recur.mat<19 x 1>, !recur.mat<19 x 1>
  %7 = recur.mul %g, %h : !recur.mat<19 x 1>, !recur.mat<19 x 1>
  %8 = recur.add %6, %7 : !recur.mat<19 x 1>, !recur.mat<19 x 1>
  recur.yield %8, %8 : !recur.mat<19 x 1>, !recur.mat<19 x 1>
})");
  ASSERT_TRUE(kernel.ok()) << kernel.error();
  int64_t tokens = 8;
  Tensor x = Tensor::random({tokens, d}, -2, 2, 1), w = Tensor::random({d, d}, -0.5, 0.5, 2),
         u = Tensor::random({d, d}, -0.5, 0.5, 3);
  Tensor none = Tensor::absent(1), o({tokens, d}), final({d}), expected({tokens, d});
  kernel({&x, &w, &u, &none, &o, &final}, {tokens});
  std::vector<double> h(d, 0), g(d), next(d);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < d; ++i) {
      double sum = x.get({t, i});
      for (int64_t j = 0; j < d; ++j)
        sum += w.get({i, j}) * h[j];
      g[i] = 1 / (1 + std::exp(-sum));
    }
    for (int64_t i = 0; i < d; ++i) {
      double sum = x.get({t, i});
      for (int64_t j = 0; j < d; ++j)
        sum += u.get({j, i}) * g[j] * h[j];
      next[i] = (1 - g[i]) * std::tanh(sum) + g[i] * h[i];
    }
    h = next;
    for (int64_t i = 0; i < d; ++i)
      expected.set({t, i}, h[i]);
  }
  EXPECT_LE(difference(o, expected), 2e-6);
}

// States may take each other's old values, in any order.
TEST(States, AreReadBeforeTheyAreReplaced) {
  Kernel kernel(R"(
recur.rule @swap(input "x" %x: !recur.mat<5 x 1>, state "p" %p: !recur.mat<5 x 1>, state "r" %r: !recur.mat<5 x 1>,
                 state "c" %c: !recur.mat<1 x 1>, head "h" %h: !recur.mat<1 x 1>, heads "n" %n: !recur.mat<1 x 1>)
    -> ("o", "m") init {
  %z = recur.constant 0.0 : !recur.mat<5 x 1>
  recur.yield %z, %z, %h : !recur.mat<5 x 1>, !recur.mat<5 x 1>, !recur.mat<1 x 1>
} body {
  %0 = recur.add %x, %p : !recur.mat<5 x 1>, !recur.mat<5 x 1>
  %1 = recur.add %c, %n : !recur.mat<1 x 1>, !recur.mat<1 x 1>
  recur.yield %r, %0, %1, %p, %1 : !recur.mat<5 x 1>, !recur.mat<5 x 1>, !recur.mat<1 x 1>, !recur.mat<5 x 1>,
                                   !recur.mat<1 x 1>
})");
  ASSERT_TRUE(kernel.ok()) << kernel.error();
  Tensor x = Tensor::random({6, 5}, -1, 1, 1), none = Tensor::absent(1), scalar = Tensor::absent(0);
  Tensor o({6, 5}), m({6}), p({5}), r({5}), c({});
  kernel({&x, &none, &none, &scalar, &o, &m, &p, &r, &c}, {6, 0, 2, 4});
  for (int64_t i = 0; i < 5; ++i) {
    double pi = 0, ri = 0;
    for (int64_t t = 0; t < 6; ++t) {
      EXPECT_NEAR(o.get({t, i}), pi, 1e-6);
      double old = pi;
      pi = ri;
      ri = x.get({t, i}) + old;
    }
    EXPECT_NEAR(p.get({i}), pi, 1e-6);
    EXPECT_NEAR(r.get({i}), ri, 1e-6);
  }
  EXPECT_EQ(c.get({}), 2 + 6 * 4);
  EXPECT_EQ(m.get({0}), 2 + 4);
}

//===----------------------------------------------------------------------===//
// What cannot be compiled
//===----------------------------------------------------------------------===//

TEST(Errors, SayWhatIsMissing) {
  Kernel unbound(R"(recur.rule @r(input "x" %x: !recur.mat<d x 1>) -> ("o") init { recur.yield } body {
    recur.yield %x : !recur.mat<d x 1> })");
  EXPECT_EQ(unbound.error(), "dimension 'd' is not bound");
  cpu::KernelOptions options;
  options.tensors.resize(1);
  Kernel formats(R"(recur.rule @r(input "x" %x: !recur.mat<4 x 1>) -> ("o") init { recur.yield } body {
    recur.yield %x : !recur.mat<4 x 1> })",
                 options);
  EXPECT_EQ(formats.error(), "has 2 tensors, got formats for 1");
}
