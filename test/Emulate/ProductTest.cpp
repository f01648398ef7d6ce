// Products of a warpgroup of tiles that the copy engine put into shared memory: what descriptors, swizzles
// and fragments mean, against plain loops.
#include "lib/Emulate/Matrices.h"
#include "lib/Emulate/Numbers.h"
#include "test/Emulate/Kit.h"
#include "gtest/gtest.h"

#include <random>
#include <set>

using namespace mlir;
using namespace recur;
using namespace recur::test;

namespace {
// A matrix of small whole numbers, whose products are exact.
struct Matrix {
  Matrix(int64_t rows, int64_t cols, unsigned seed)
      : rows(rows), cols(cols), data(static_cast<uint16_t *>(aligned_alloc(64, rows * cols * 2)), &free) {
    std::mt19937 generator(seed);
    for (int64_t i = 0; i < rows * cols; ++i)
      data.get()[i] = emulate::roundToBf16(int(generator() % 9) - 4);
  }
  float at(int64_t row, int64_t col) const { return emulate::fromBf16(data.get()[row * cols + col]); }

  int64_t rows, cols;
  std::unique_ptr<uint16_t, decltype(&free)> data;
};

// Copies left (64 rows) and right (`columns` rows) of 64 entries of depth, or their transposes, and
// multiplies them.
void checkProduct(int64_t columns, bool leftByDepth, bool rightByDepth, bool leftInRegisters) {
  SCOPED_TRACE(std::to_string(columns) + (leftByDepth ? " left by depth" : "") +
               (rightByDepth ? " right by depth" : "") + (leftInRegisters ? " left in registers" : ""));
  Matrix left(64, 64, 1), right(rightByDepth ? 64 : columns, rightByDepth ? columns : 64, 2);
  Map maps[] = {Map(left.data.get(), left.rows, left.cols), Map(right.data.get(), right.rows, right.cols)};
  std::vector<float> found(64 * columns, -1);
  constexpr int64_t tile = 8192;
  int64_t tiles = 1 + columns / 64, barrierAt = tiles * tile;
  auto build = [&](Kit &kit) {
    cuda::Ptx &ptx = kit.ptx;
    Value barrier = ptx.add(kit.shared, barrierAt), zero = ptx.constant(0);
    kit.when(ptx.equal(kit.thread, 0), [&] {
      ptx.initBarrier(barrier, 1);
      ptx.fenceBarrierInit();
    });
    ptx.meet(zero, 128);
    kit.when(ptx.equal(kit.thread, 0), [&] {
      ptx.arriveExpecting(barrier, tiles * tile);
      ptx.loadBox(kit.shared, kit.maps, barrier, {zero, zero});
      Value second = LLVM::GEPOp::create(kit.b, kit.maps.getType(), kit.b.getI8Type(), kit.maps,
                                         ArrayRef<LLVM::GEPArg>{int32_t(sizeof(Map))});
      for (int64_t i = 0; i < columns / 64; ++i) {
        Value part = ptx.constant(64 * i);
        ptx.loadBox(ptx.add(kit.shared, (1 + i) * tile), second, barrier,
                    rightByDepth ? cuda::Values{part, zero} : cuda::Values{zero, part});
      }
    });
    ptx.await(barrier, zero);
    SmallVector<cuda::Step> steps;
    Value warpOfGroup = kit.warp, eighth = ptx.bits(kit.lane, 7);
    for (int64_t k = 0; k < 4; ++k) {
      cuda::Step step;
      if (leftInRegisters) {
        // A lane names row lane % 16 of the warp's, 8 entries further for the upper lanes.
        Value row = ptx.add(ptx.mul(warpOfGroup, 16), ptx.bits(kit.lane, 15));
        Value packet = ptx.exclusiveOr(ptx.add(ptx.shiftRight(kit.lane, 4), 2 * k), eighth);
        step.left =
            ptx.loadMatrices(ptx.add(ptx.add(kit.shared, ptx.mul(row, 128)), ptx.mul(packet, 16)), 0, false);
      } else {
        step.left = {ptx.advance(ptx.descriptor(kit.shared, 0), k * (leftByDepth ? 2048 : 32))};
      }
      step.right =
          ptx.advance(ptx.descriptor(ptx.add(kit.shared, tile), tile), k * (rightByDepth ? 2048 : 32));
      steps.push_back(step);
    }
    cuda::Pending product = ptx.product(columns, {}, steps, leftByDepth, rightByDepth);
    cuda::Values sums = ptx.await(0, product)[0];
    Value row = ptx.add(ptx.mul(kit.warp, 16), ptx.shiftRight(kit.lane, 2)),
          pair = ptx.mul(ptx.bits(kit.lane, 3), 2);
    for (auto [e, sum] : llvm::enumerate(sums)) {
      Value at = ptx.add(ptx.mul(ptx.add(row, e / 2 % 2 * 8), columns), ptx.add(pair, e / 4 * 8 + e % 2));
      kit.storeFloat(at, sum);
    }
  };
  ASSERT_EQ(launch(128, barrierAt + 8, build, found.data(), maps), "");
  for (int64_t i = 0; i < 64; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float expected = 0;
      for (int64_t k = 0; k < 64; ++k)
        expected +=
            (leftByDepth ? left.at(k, i) : left.at(i, k)) * (rightByDepth ? right.at(k, j) : right.at(j, k));
      ASSERT_EQ(found[i * columns + j], expected) << i << ", " << j;
    }
}
} // namespace

TEST(Product, ofTilesInSharedMemory) {
  for (int64_t columns : {64, 128})
    for (bool left : {false, true})
      for (bool right : {false, true})
        checkProduct(columns, left, right, false);
}

TEST(Product, ofRegistersAndATile) {
  checkProduct(64, false, false, true);
  checkProduct(128, false, true, true);
}

TEST(Product, swizzlesKeepRowsAndMeetEachPlaceOnce) {
  for (auto [swizzle, bytes] :
       {std::pair(0u, 16u), std::pair(3u, 32u), std::pair(2u, 64u), std::pair(1u, 128u)}) {
    std::set<uint32_t> places;
    for (uint32_t at = 0; at < 2048; at += 16) {
      uint32_t to = emulate::swizzled(at, swizzle);
      EXPECT_EQ(to / bytes, at / bytes);
      EXPECT_EQ(emulate::swizzled(to, swizzle), at);
      places.insert(to);
    }
    EXPECT_EQ(places.size(), 128u);
  }
  // The second row of 128 bytes has its parts exchanged in pairs.
  EXPECT_EQ(emulate::swizzled(128, 1), 128u + 16);
  EXPECT_EQ(emulate::swizzled(1024, 1), 1024u);
}
