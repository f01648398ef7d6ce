// The sweep form against the loop over tokens.
#include "test/Cpu/Kernel.h"

#include <gtest/gtest.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Support/FormatVariadic.h>
#include <llvm/TargetParser/Host.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace recur;
using namespace recur::test;

namespace {
struct Shape {
  int64_t rows, columns; // of the state's transpose
};

// How a rule is compiled and called.
struct Case {
  std::vector<int64_t> tokens;
  double least = 0.5; // decay; 0 puts in zeros and 1e-30
  double tolerance = 2e-6;
  unsigned width = 16;
  DType dtype = DType::F32;
  int64_t gap = 1;
  bool keepsState = true, pairs = false, tiles = false;
  int64_t token = 0; // bytes from one token's outputs to the next's
};

// S = D(S) - b (D(S) k) kT + b v kT, o = S q, with D(S) one of S, a S, S diag(a), diag(a) S.
struct Delta {
  enum Decay { None, Scalar, Rows, Columns } decay = Scalar;
  Shape shape{32, 32};
  std::string epilogue = "";

  int64_t decays() const { return decay == Rows ? shape.rows : decay == Columns ? shape.columns : 1; }

  std::string text() const {
    std::string vector = llvm::formatv("!recur.mat<{0} x 1>", shape.rows),
                turned = llvm::formatv("!recur.mat<1 x {0}>", shape.rows),
                value = llvm::formatv("!recur.mat<{0} x 1>", shape.columns),
                state = llvm::formatv("!recur.mat<{0} x {1}>", shape.columns, shape.rows),
                one = "!recur.mat<1 x 1>";
    std::string a = decay == Rows ? turned : decay == Columns ? value : one;
    std::string text =
        "recur.rule @r(input \"q\" %q: V, input \"k\" %k: V, input \"v\" %v: W, input \"a\" %a: A, "
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
      bool type = i >= 2 && text[i - 1] == ' ' && (text[i - 2] == ':' || text[i - 2] == ',') &&
                  llvm::isAlpha(text[i]) && !llvm::isLower(text[i]);
      if (!type) {
        result += text[i];
        continue;
      }
      switch (text[i]) {
      case 'V':
        result += vector;
        break;
      case 'W':
        result += value;
        break;
      case 'A':
        result += a;
        break;
      case 'O':
        result += one;
        break;
      case 'T':
        result += turned;
        break;
      default:
        result += state;
      }
    }
    return result;
  }

  // Both forms on the same tensors, for each number of tokens; twice in a row on one state.
  void check(const Case &c) const {
    cpu::KernelOptions options;
    options.vectorWidth = c.width;
    options.hasBf16Pairs = c.pairs;
    options.hasBf16Tiles = c.tiles;
    for (int i = 0; i < 8; ++i)
      options.tensors.push_back({i == 5 || i == 7 ? DType::F32 : c.dtype, -1});
    Kernel sweep(text(), options);
    options.sweep = false;
    Kernel loop(text(), options);
    ASSERT_TRUE(sweep.ok()) << sweep.error();
    ASSERT_TRUE(loop.ok()) << loop.error();
    EXPECT_EQ(sweep.form(), "sweep");
    for (int64_t tokens : c.tokens)
      compare(sweep, loop, tokens, c);
  }

  // The parts of a head, one after the other, give what the whole gives, to the last bit. Their states are
  // updated in place: a part that wrote another's columns, or read what another has written, would be seen.
  void checkParts(int64_t tokens, unsigned width) const {
    cpu::KernelOptions options;
    options.vectorWidth = width;
    Kernel sweep(text(), options);
    ASSERT_TRUE(sweep.ok()) << sweep.error();
    ASSERT_EQ(sweep.parts(), shape.columns / (2 * width));
    double unit = 1 / std::sqrt(double(shape.rows));
    Tensor q = Tensor::random({tokens, shape.rows}, -unit, unit, 1),
           k = Tensor::random({tokens, shape.rows}, -unit, unit, 2),
           v = Tensor::random({tokens, shape.columns}, -1, 1, 3), a = Tensor::random({tokens}, 0.5, 1, 4),
           b = Tensor::random({tokens}, 0, 1.5, 5);
    auto state = [&] { return Tensor::random({shape.columns, shape.rows}, -1, 1, 6); };
    Tensor S = state(), o({tokens, shape.columns});
    sweep({&q, &k, &v, &a, &b, &S, &o, &S}, {tokens});
    for (int64_t parts = 2; parts <= sweep.parts(); ++parts) {
      Tensor partS = state(), partO({tokens, shape.columns});
      for (int64_t part = parts; part-- > 0;)
        sweep({&q, &k, &v, &a, &b, &partS, &partO, &partS}, {tokens, 0, 0, 1, part, parts});
      EXPECT_EQ(difference(partO, o), 0) << parts << " parts";
      EXPECT_EQ(difference(partS, S), 0) << parts << " parts";
    }
  }

private:
  void compare(Kernel &sweep, Kernel &loop, int64_t tokens, const Case &c) const {
    double unit = 1 / std::sqrt(double(shape.rows));
    std::vector<int64_t> decayShape = {tokens};
    if (decays() > 1)
      decayShape.push_back(decays());
    Tensor q = Tensor::random({tokens, shape.rows}, -unit, unit, 1, c.dtype, c.gap),
           k = Tensor::random({tokens, shape.rows}, -unit, unit, 2, c.dtype, c.gap),
           v = Tensor::random({tokens, shape.columns}, -1, 1, 3, c.dtype, c.gap),
           a = Tensor::random(decayShape, c.least, 1, 4, c.dtype, c.gap),
           b = Tensor::random({tokens}, 0, 1.5, 5, c.dtype);
    for (int64_t t = 0; c.least == 0 && t < tokens; t += 5)
      for (int64_t i = 0; i < decays(); ++i)
        a.set(decays() > 1 ? std::vector<int64_t>{t, i} : std::vector<int64_t>{t}, t % 2 ? 1e-30 : 0);
    Tensor o({tokens, shape.columns}, c.dtype, c.gap, c.token),
        expected({tokens, shape.columns}, c.dtype, c.gap);
    Tensor S({shape.columns, shape.rows}, DType::F32, c.gap),
        expectedS({shape.columns, shape.rows}, DType::F32, c.gap);
    Tensor none = Tensor::absent(2);
    for (bool again : {false, true}) {
      Tensor *first = again ? &S : &none, *expectedFirst = again ? &expectedS : &none;
      sweep({&q, &k, &v, &a, &b, first, &o, c.keepsState ? &S : &none}, {tokens});
      loop({&q, &k, &v, &a, &b, expectedFirst, &expected, c.keepsState ? &expectedS : &none}, {tokens});
      EXPECT_LE(difference(o, expected), c.tolerance) << tokens << " tokens";
      EXPECT_LE(difference(S, expectedS), c.tolerance) << tokens << " tokens";
    }
  }
};
} // namespace

TEST(Sweep, AnyLength) {
  for (Delta::Decay decay : {Delta::None, Delta::Scalar, Delta::Rows, Delta::Columns})
    Delta{decay}.check({{0, 1, 2, 3, 31, 32, 33, 67}});
}
TEST(Sweep, AnyShape) {
  for (Shape shape : {Shape{16, 16}, Shape{5, 7}, Shape{33, 31}, Shape{48, 80}})
    for (Delta::Decay decay : {Delta::Scalar, Delta::Rows, Delta::Columns})
      Delta{decay, shape}.check({{1, 37}});
}
TEST(Sweep, ResetsAndTinyDecays) {
  for (Delta::Decay decay : {Delta::Scalar, Delta::Rows, Delta::Columns})
    Delta{decay}.check({{64}, /*least=*/0});
}
TEST(Sweep, NarrowRegisters) {
  Case narrow{{1, 37}};
  narrow.width = 8;
  for (Delta::Decay decay : {Delta::Scalar, Delta::Rows, Delta::Columns})
    Delta{decay}.check(narrow);
}
TEST(Sweep, HalfPrecision) {
  Case half{{1, 37}};
  for (int64_t columns : {32, 21}) {
    half.dtype = DType::BF16, half.tolerance = 1e-2;
    Delta{Delta::Scalar, {32, columns}}.check(half);
    half.dtype = DType::F16, half.tolerance = 1e-3;
    Delta{Delta::Rows, {32, columns}}.check(half);
  }
}
TEST(Sweep, PairsOfBfloat16) {
  if (!__builtin_cpu_supports("avx512bf16"))
    GTEST_SKIP() << "this machine has no AVX512-BF16";
  Case pairs{{1, 2, 3, 5, 32, 67}};
  pairs.dtype = DType::BF16, pairs.tolerance = 2e-2, pairs.pairs = true;
  for (double least : {0.5, 0.0})
    for (Delta::Decay decay : {Delta::None, Delta::Scalar, Delta::Rows}) {
      pairs.least = least;
      Delta{decay, {64, 48}}.check(pairs);
    }
}
// Linux hands out the tile registers' memory on request.
static bool hasTiles() {
  enum { RequestPermission = 0x1023, TileData = 18 };
  return llvm::sys::getHostCPUFeatures().lookup("amx-bf16") &&
         syscall(SYS_arch_prctl, RequestPermission, TileData) == 0;
}
TEST(Sweep, TilesOfBfloat16) {
  if (!hasTiles())
    GTEST_SKIP() << "this machine has no AMX";
  Case tiles{{1, 31, 32, 33, 67, 99}};
  tiles.dtype = DType::BF16, tiles.tolerance = 2e-2, tiles.tiles = true;
  for (double least : {0.5, 0.0})
    for (Delta::Decay decay : {Delta::None, Delta::Scalar, Delta::Rows}) {
      tiles.least = least;
      Delta{decay, {64, 48}}.check(tiles);
    }
  // Blocks of one, two and four vectors.
  for (int64_t columns : {16, 21, 128})
    Delta{Delta::Rows, {32, columns}}.check(tiles);
}
// Requests that are spread over rows, of which there are 4 to a share, and none.
TEST(Sweep, SpreadRequests) {
  Case spread{{1, 2, 3, 4, 16, 17, 37, 67}};
  spread.tolerance = 5e-6;
  for (Delta::Decay decay : {Delta::None, Delta::Scalar, Delta::Rows, Delta::Columns})
    for (Shape shape : {Shape{64, 48}, Shape{33, 31}, Shape{20, 80}})
      Delta{decay, shape}.check(spread);
}
// Outputs that no cache holds, here for the gaps between them, pass the caches by: whole lines of them.
TEST(Sweep, OutputsPastTheCaches) {
  Case far{{67}};
  far.token = 64 << 10;
  for (bool halves : {false, true}) {
    far.dtype = halves ? DType::BF16 : DType::F32, far.tolerance = halves ? 2e-2 : 5e-6;
    far.tiles = halves && hasTiles();
    for (Delta::Decay decay : {Delta::Scalar, Delta::Rows})
      Delta{decay, {64, 32}}.check(far);
  }
}
TEST(Sweep, AnyStride) {
  Case strided{{1, 37}};
  strided.gap = 2;
  Delta{}.check(strided);
}
TEST(Sweep, FinalStateMayBeLeftOut) {
  Case lost{{1, 37}};
  lost.keepsState = false;
  Delta{}.check(lost);
}
TEST(Sweep, PartsAreTheWhole) {
  for (int64_t tokens : {0, 1, 2, 37})
    for (unsigned width : {8, 16})
      Delta{Delta::Scalar, {32, 128}}.checkParts(tokens, width);
}
TEST(Sweep, Epilogue) {
  // By columns, and across them.
  Delta delta;
  delta.epilogue = "  %s = recur.sigmoid %v : W\n  %p = recur.mul %o, %s : W, W\n";
  delta.check({{1, 37}});
  delta.epilogue = "  %n = recur.reduce max %o rows : W\n  %s = recur.mul %b, %n : O, O\n"
                   "  %p = recur.sub %o, %s : W, O\n";
  delta.check({{1, 37}, 0.5, 4e-6});
}
