// What the emulator must notice: each kernel here is wrong in one way, and right without it.
#include "lib/Emulate/Numbers.h"
#include "test/Emulate/Kit.h"
#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace recur;
using namespace recur::test;

static bool says(const std::string &found, const char *expected) {
  if (found.find(expected) != std::string::npos)
    return true;
  return found.empty() && !*expected;
}
#define EXPECT_SAYS(found, expected)                                                                         \
  {                                                                                                          \
    std::string text = found;                                                                                \
    EXPECT_TRUE(says(text, expected)) << "said: " << text;                                                   \
    if (!*expected)                                                                                          \
      EXPECT_EQ(text, "");                                                                                   \
  }

// Warp 0 writes, warp 1 reads.
static std::string handOver(bool writes, bool meets) {
  return launch(64, 1024, [&](Kit &kit) {
    Value at = kit.ptx.add(kit.shared, kit.ptx.mul(kit.lane, 4));
    if (writes)
      kit.inWarp(0, [&] { kit.ptx.store(at, 0, kit.ptx.number(1)); });
    if (meets)
      kit.ptx.meet(kit.ptx.constant(1), 64);
    kit.inWarp(1, [&] { kit.ptx.loadFloats(at, 0, 1); });
  });
}

TEST(Order, aReadOfAWriteNeedsABarrier) {
  EXPECT_SAYS(handOver(true, true), "");
  EXPECT_SAYS(handOver(true, false), "warp 0 wrote with nothing that orders the two");
  EXPECT_SAYS(handOver(false, true), "which nothing wrote");
}

TEST(Order, overwritingWhatIsReadNeedsABarrier) {
  auto run = [](bool meetsAgain) {
    return launch(64, 1024, [&](Kit &kit) {
      Value at = kit.ptx.add(kit.shared, kit.ptx.mul(kit.lane, 4)), one = kit.ptx.number(1);
      kit.inWarp(0, [&] { kit.ptx.store(at, 0, one); });
      kit.ptx.meet(kit.ptx.constant(1), 64);
      kit.inWarp(1, [&] { kit.ptx.loadFloats(at, 0, 1); });
      if (meetsAgain)
        kit.ptx.meet(kit.ptx.constant(1), 64);
      kit.inWarp(0, [&] { kit.ptx.store(at, 0, one); });
    });
  };
  EXPECT_SAYS(run(true), "");
  // Whichever comes first finds the other unordered.
  std::string wrong = run(false);
  EXPECT_TRUE(says(wrong, "may still read") || says(wrong, "nothing that orders the two")) << wrong;
}

TEST(Order, memoryHasBounds) {
  auto run = [](int64_t offset) {
    return launch(32, 256, [&](Kit &kit) { kit.ptx.store(kit.shared, offset, kit.ptx.number(1)); });
  };
  EXPECT_SAYS(run(252), "");
  EXPECT_SAYS(run(256), "writes 4 bytes at byte 256 of 256 bytes of shared memory");
  EXPECT_SAYS(run(254), "no multiple of 4");
}

TEST(Order, aDeadlockNamesWhoWaitsForWhat) {
  EXPECT_SAYS(launch(64, 0, [](Kit &kit) { kit.inWarp(0, [&] { kit.ptx.meet(kit.ptx.constant(1), 64); }); }),
              "threads 0 to 31 of block 0 wait at 'bar.sync $0, $1', where 32 of 64 threads are");
  auto phases = [](int64_t arrivals, int64_t parity) {
    return launch(64, 64, [&](Kit &kit) {
      kit.when(kit.ptx.equal(kit.thread, 0), [&] { kit.ptx.initBarrier(kit.shared, 32); });
      kit.ptx.meet(kit.ptx.constant(0), 64);
      for (int64_t i = 0; i < arrivals; ++i)
        kit.inWarp(0, [&] { kit.ptx.arrive(kit.shared); });
      kit.inWarp(1, [&] { kit.ptx.await(kit.shared, kit.ptx.constant(parity)); });
    });
  };
  EXPECT_SAYS(phases(1, 0), "");
  EXPECT_SAYS(phases(0, 1), "");
  EXPECT_SAYS(phases(0, 0),
              "has completed 0 phases and lacks 32 of 32 arrivals and 0 bytes; awaited is parity 0");
  EXPECT_SAYS(phases(1, 1), "may still wait for the one before");
}

TEST(Order, anArrivalKnowsOfTheOneBefore) {
  auto run = [](bool awaits) {
    return launch(64, 64, [&](Kit &kit) {
      kit.when(kit.ptx.equal(kit.thread, 0), [&] { kit.ptx.initBarrier(kit.shared, 64); });
      kit.ptx.meet(kit.ptx.constant(0), 64);
      for (int64_t warp : {0, 1})
        kit.inWarp(warp, [&] {
          kit.ptx.arrive(kit.shared);
          if (awaits || warp == 1)
            kit.ptx.await(kit.shared, kit.ptx.constant(0));
          kit.ptx.arrive(kit.shared);
        });
    });
  };
  EXPECT_SAYS(run(true), "");
  EXPECT_SAYS(run(false), "does not know that the phase before is complete");
}

// Warp 0 completes four phases, as fast as it may; warp 1 waits for the second, or for all of them.
static std::string countPhases(bool holdsBack, bool skips) {
  return launch(64, 64, [&](Kit &kit) {
    Value full = kit.shared, empty = kit.ptx.add(kit.shared, 8);
    kit.when(kit.ptx.equal(kit.thread, 0), [&] {
      for (Value barrier : {full, empty})
        kit.ptx.initBarrier(barrier, 32);
    });
    kit.ptx.meet(kit.ptx.constant(0), 64);
    for (int64_t phase = 0; phase < 4; ++phase) {
      Value parity = kit.ptx.constant(phase & 1), before = kit.ptx.constant(~phase & 1);
      kit.inWarp(0, [&] {
        if (holdsBack)
          kit.ptx.await(empty, before);
        kit.ptx.arrive(full);
        kit.ptx.await(full, parity);
      });
      kit.inWarp(1, [&] {
        if (!skips || phase & 1)
          kit.ptx.await(full, parity);
        kit.ptx.arrive(empty);
      });
    }
  });
}

TEST(Order, aWaitFindsItsPhase) {
  EXPECT_SAYS(countPhases(true, false), "");
  EXPECT_SAYS(countPhases(false, false), "may still wait for the one before");
  // An arrival without a wait before it tells nothing of the phase.
  std::string wrong = countPhases(true, true);
  EXPECT_TRUE(says(wrong, "may take phase") || says(wrong, "does not know that the phase before")) << wrong;
}

TEST(Order, aWarpStaysTogether) {
  std::string wrong = launch(32, 0, [](Kit &kit) {
    Value low = kit.ptx.below(kit.lane, kit.ptx.constant(16));
    kit.when(low, [&] { kit.ptx.syncWarp(); });
    kit.when(kit.ptx.equal(kit.ptx.shiftRight(kit.lane, 4), 1), [&] { kit.ptx.shuffle(kit.lane, kit.lane); });
  });
  EXPECT_SAYS(wrong, "parts from its warp");
}

TEST(Order, unknownInstructionsAreNamed) {
  std::string text;
  std::string wrong = launch(32, 0, [](Kit &kit) {
    kit.b.getContext()->getDiagEngine().registerHandler([](Diagnostic &diagnostic) {
      EXPECT_EQ(diagnostic.str(),
                "a kernel cannot be emulated: the emulator does not know 'brev.b32 $0, $1'");
      return success();
    });
    kit.ptx.assembly("brev.b32 $0, $1;", kit.b.getI32Type(), kit.thread);
  });
  EXPECT_EQ(wrong, "not compiled");
}

// A box of 64 x 64 entries, of which the tensor has 40 rows; each thread adds one row.
static std::string copyBox(bool waits, std::vector<float> &sums) {
  std::vector<uint16_t> entries(40 * 64, emulate::roundToBf16(1));
  auto *aligned = static_cast<uint16_t *>(aligned_alloc(64, entries.size() * 2));
  std::copy(entries.begin(), entries.end(), aligned);
  Map map(aligned, 40, 64);
  std::string wrong = launch(
      64, 8192 + 64,
      [&](Kit &kit) {
        Value barrier = kit.ptx.add(kit.shared, 8192), zero = kit.ptx.constant(0);
        kit.when(kit.ptx.equal(kit.thread, 0), [&] {
          kit.ptx.initBarrier(barrier, 1);
          kit.ptx.fenceBarrierInit();
        });
        kit.ptx.meet(zero, 64);
        kit.when(kit.ptx.equal(kit.thread, 0), [&] {
          kit.ptx.arriveExpecting(barrier, 8192);
          kit.ptx.loadBox(kit.shared, kit.maps, barrier, {zero, zero});
        });
        if (waits)
          kit.ptx.await(barrier, zero);
        Value row = kit.ptx.add(kit.shared, kit.ptx.mul(kit.thread, 128)), sum = kit.ptx.number(0);
        for (int64_t i = 0; i < 128; i += 16)
          for (Value pair : kit.ptx.load(row, i, 4, kit.b.getI32Type()))
            for (Value x : kit.ptx.unpack(pair))
              sum = kit.ptx.sum(sum, x);
        kit.storeFloat(kit.thread, sum);
      },
      sums.data(), &map);
  free(aligned);
  return wrong;
}

TEST(Order, aCopyIsWaitedFor) {
  std::vector<float> sums(64, -1);
  EXPECT_SAYS(copyBox(true, sums), "");
  for (int row = 0; row < 64; ++row)
    EXPECT_EQ(sums[row], row < 40 ? 64 : 0) << row;
  std::string wrong = copyBox(false, sums);
  EXPECT_TRUE(says(wrong, "a copy wrote with nothing that orders") || says(wrong, "which nothing wrote"))
      << wrong;
}

TEST(Order, aStoredBoxEndsWhereTheTensorDoes) {
  alignas(64) static uint16_t entries[64 * 64];
  Map map(entries, 64, 64);
  for (int64_t column : {32, 0}) {
    std::fill(std::begin(entries), std::end(entries), 7);
    std::string wrong = launch(
        32, 8192,
        [&](Kit &kit) {
          Value zero = kit.ptx.constant(0), yes = kit.ptx.equal(zero, 0);
          for (int64_t row = 0; row < 64; row += 32)
            for (int64_t at = 0; at < 128; at += 16)
              kit.ptx.store(kit.ptx.add(kit.shared, kit.ptx.mul(kit.ptx.add(kit.thread, row), 128)), at,
                            {zero, zero, zero, zero});
          kit.ptx.fenceProxy();
          kit.ptx.syncWarp();
          kit.when(kit.ptx.equal(kit.thread, 0), [&] {
            kit.ptx.storeBox(kit.maps, kit.shared, {kit.ptx.constant(column), zero}, yes);
            kit.ptx.awaitStores(/*written=*/true);
          });
        },
        nullptr, &map);
    EXPECT_SAYS(wrong, "");
    for (int64_t at = 0; at < 64 * 64; ++at)
      EXPECT_EQ(entries[at], at % 64 < column ? 7 : 0) << column << " " << at;
  }
}

// The product of a zero tile with itself.
static std::string square(bool fences, bool waits, std::vector<float> &sums) {
  return launch(
      128, 8192,
      [&](Kit &kit) {
        Value zero = kit.ptx.number(0);
        for (int64_t i = 0; i < 4; ++i)
          kit.ptx.store(kit.ptx.add(kit.shared, kit.ptx.mul(kit.thread, 64)), i * 16,
                        {zero, zero, zero, zero});
        if (fences)
          kit.ptx.fenceProxy();
        kit.ptx.meet(kit.ptx.constant(0), 128);
        Value tile = kit.ptx.descriptor(kit.shared, 0);
        cuda::Pending product = kit.ptx.product(64, {}, {{{tile}, tile}}, false, false);
        Value first = product.entries[0];
        if (waits)
          first = kit.ptx.await(0, product)[0][0];
        kit.storeFloat(kit.thread, first);
      },
      sums.data());
}

TEST(Order, productsNeedFencesAndWaits) {
  std::vector<float> sums(128, -1);
  EXPECT_SAYS(square(true, true, sums), "");
  for (float sum : sums)
    EXPECT_EQ(sum, 0);
  EXPECT_SAYS(square(false, true, sums), "without a proxy fence in between");
  EXPECT_SAYS(square(true, false, sums), "ends before its products are done");
  for (float sum : sums)
    EXPECT_TRUE(std::isnan(sum) || sum == 0);
}
