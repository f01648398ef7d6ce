// The sweep form against the loop over tokens.
#include "test/Cpu/Kernel.h"

#include <gtest/gtest.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Support/FormatVariadic.h>

using namespace recur;
using namespace recur::test;
using cpu::DType;

namespace {
struct Shape {
  int64_t rows, columns; // of the state's transpose
};

// S = D(S) - b (D(S) k) kT + b v kT, o = S q, with D(S) one of S, a S, S diag(a), diag(a) S.
struct Delta {
  enum Decay { None, Scalar, Rows, Columns } decay = Scalar;
  Shape shape{32, 32};
  std::string epilogue = "";

  int64_t decays() const { return decay == Rows ? shape.rows : decay == Columns ? shape.columns : 1; }

  std::string text() const {
    std::string vector = llvm::formatv("!recur.mat<{0} x 1>", shape.rows), turned = llvm::formatv("!recur.mat<1 x {0}>", shape.rows),
                value = llvm::formatv("!recur.mat<{0} x 1>", shape.columns),
                state = llvm::formatv("!recur.mat<{0} x {1}>", shape.columns, shape.rows), one = "!recur.mat<1 x 1>";
    std::string a = decay == Rows ? turned : decay == Columns ? value : one;
    std::string text = "recur.rule @r(input \"q\" %q: V, input \"k\" %k: V, input \"v\" %v: W, input \"a\" %a: A, "
                       "input \"b\" %b: O, state \"S\" %S: M) -> (\"o\") init {\n"
                       "  %z = recur.constant 0.0 : M\n  recur.yield %z : M\n} body {\n"
                       "  %t = recur.transpose %k : V\n";
    text += decay == None ? "  %d = recur.add %S, %S : M, M\n  %h = recur.constant 0.5 : O\n"
                            "  %D = recur.mul %h, %d : O, M\n"
                          : "  %D = recur.mul %a, %S : A, M\n";
    text += "  %y = recur.matmul %D, %k : M, V\n  %e = recur.sub %v, %y : W, W\n"
            "  %u = recur.mul %b, %e : O, W\n  %w = recur.matmul %u, %t : W, T\n"
            "  %N = recur.add %D, %w : M, M\n  %o = recur.matmul %N, %q : M, V\n";
    text += epilogue.empty() ? "  recur.yield %N, %o : M, W\n}" : epilogue + "  recur.yield %N, %p : M, W\n}";
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
      bool type = i >= 2 && text[i - 1] == ' ' && (text[i - 2] == ':' || text[i - 2] == ',') && llvm::isAlpha(text[i]) &&
                  !llvm::isLower(text[i]);
      if (!type) {
        result += text[i];
        continue;
      }
      switch (text[i]) {
      case 'V': result += vector; break;
      case 'W': result += value; break;
      case 'A': result += a; break;
      case 'O': result += one; break;
      case 'T': result += turned; break;
      default: result += state;
      }
    }
    return result;
  }

  // Both forms on the same tensors, twice in a row on one state; the largest differences of outputs and states.
  void check(int64_t tokens, double least, double tolerance, unsigned width = 16, DType dtype = DType::F32,
             int64_t gap = 1, bool keepsState = true) const {
    cpu::KernelOptions options;
    options.vectorWidth = width;
    for (int i = 0; i < 8; ++i)
      options.tensors.push_back({i == 5 || i == 7 ? DType::F32 : dtype, -1});
    Kernel sweep(text(), options);
    options.sweep = false;
    Kernel loop(text(), options);
    ASSERT_TRUE(sweep.ok()) << sweep.error();
    ASSERT_TRUE(loop.ok()) << loop.error();
    EXPECT_NE(sweep.scratchBytes(), loop.scratchBytes()) << "the rule was not swept";
    double unit = 1 / std::sqrt(double(shape.rows));
    std::vector<int64_t> decayShape = {tokens};
    if (decays() > 1)
      decayShape.push_back(decays());
    Tensor q = Tensor::random({tokens, shape.rows}, -unit, unit, 1, dtype, gap),
           k = Tensor::random({tokens, shape.rows}, -unit, unit, 2, dtype, gap),
           v = Tensor::random({tokens, shape.columns}, -1, 1, 3, dtype, gap),
           a = Tensor::random(decayShape, least, 1, 4, dtype, gap), b = Tensor::random({tokens}, 0, 1.5, 5, dtype);
    for (int64_t t = 0; least == 0 && t < tokens; t += 5)
      for (int64_t i = 0; i < decays(); ++i)
        a.set(decays() > 1 ? std::vector<int64_t>{t, i} : std::vector<int64_t>{t}, t % 2 ? 1e-30 : 0);
    Tensor o({tokens, shape.columns}, dtype, gap), expected({tokens, shape.columns}, dtype, gap);
    Tensor S({shape.columns, shape.rows}, DType::F32, gap), expectedS({shape.columns, shape.rows}, DType::F32, gap);
    Tensor none = Tensor::absent(2);
    for (bool again : {false, true}) {
      Tensor *first = again ? &S : &none, *expectedFirst = again ? &expectedS : &none;
      sweep({&q, &k, &v, &a, &b, first, &o, keepsState ? &S : &none}, {tokens});
      loop({&q, &k, &v, &a, &b, expectedFirst, &expected, keepsState ? &expectedS : &none}, {tokens});
      EXPECT_LE(difference(o, expected), tolerance) << tokens << " tokens";
      EXPECT_LE(difference(S, expectedS), tolerance) << tokens << " tokens";
    }
  }
};
} // namespace

static constexpr double tight = 2e-6;

TEST(Sweep, AnyLength) {
  for (Delta::Decay decay : {Delta::None, Delta::Scalar, Delta::Rows, Delta::Columns})
    for (int64_t tokens : {0, 1, 2, 3, 31, 32, 33, 67})
      Delta{decay}.check(tokens, 0.5, tight);
}
TEST(Sweep, AnyShape) {
  for (Delta::Decay decay : {Delta::Scalar, Delta::Rows, Delta::Columns})
    for (Shape shape : {Shape{16, 16}, Shape{5, 7}, Shape{33, 31}, Shape{48, 80}, Shape{128, 33}})
      for (int64_t tokens : {1, 37})
        Delta{decay, shape}.check(tokens, 0.5, tight);
}
TEST(Sweep, ResetsAndTinyDecays) {
  for (Delta::Decay decay : {Delta::Scalar, Delta::Rows, Delta::Columns})
    Delta{decay}.check(64, 0, tight);
}
TEST(Sweep, NarrowRegisters) {
  for (Delta::Decay decay : {Delta::Scalar, Delta::Rows, Delta::Columns})
    for (int64_t tokens : {1, 37})
      Delta{decay}.check(tokens, 0.5, tight, 8);
}
TEST(Sweep, HalfPrecision) {
  for (int64_t columns : {32, 21})
    for (int64_t tokens : {1, 37}) {
      Delta{Delta::Scalar, {32, columns}}.check(tokens, 0.5, 1e-2, 16, DType::BF16);
      Delta{Delta::Rows, {32, columns}}.check(tokens, 0.5, 1e-3, 16, DType::F16);
    }
}
TEST(Sweep, AnyStride) {
  for (int64_t tokens : {1, 37})
    Delta{}.check(tokens, 0.5, tight, 16, DType::F32, 2);
}
TEST(Sweep, FinalStateMayBeLeftOut) {
  for (int64_t tokens : {1, 37})
    Delta{}.check(tokens, 0.5, tight, 16, DType::F32, 1, /*keepsState=*/false);
}
TEST(Sweep, Epilogue) {
  // By columns, and across them.
  Delta delta;
  delta.epilogue = "  %s = recur.sigmoid %v : W\n  %p = recur.mul %o, %s : W, W\n";
  delta.check(37, 0.5, tight);
  delta.epilogue = "  %n = recur.reduce max %o rows : W\n  %s = recur.mul %b, %n : O, O\n"
                   "  %p = recur.sub %o, %s : W, O\n";
  delta.check(37, 0.5, 4e-6);
  delta.check(1, 0.5, 4e-6);
}
