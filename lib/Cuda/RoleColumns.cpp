// Rows of a chunk that lie in memory as the columns of a token's matrix. The copy engine brings a token's
// entries as they are to where its rows are to lie, as many bytes; some warps then turn them in place. What
// the chain's threads have of outputs lies in pairs of a token's columns already.
#include "lib/Cuda/Roles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool RoleEmitter::turnsColumns() const {
  return llvm::any_of(copiedInputs(plan, phase), [&](BlockArgument input) { return plan.areColumns(input); });
}

// Of eight rows, 1024 bytes, which are whole tokens', a lane takes 32 bytes: some entries of all columns.
// Both what it reads and what it writes lies at the places that swizzled rows of 128 bytes have, and no two
// lanes that go together use the same banks.
void RoleEmitter::turnColumns(Stage stage) {
  constexpr int64_t eightRows = 8 * rowBytes;
  int64_t warps = scoresChange() ? 4 : 2;
  int64_t columns = plan.steps, lanes = 4 * columns; // of a token
  // Tiles that lie one after the other are one.
  struct Run {
    bool early;
    int64_t at, bytes;
  };
  SmallVector<Run> runs;
  SmallVector<std::pair<bool, int64_t>> tiles;
  for (BlockArgument input : copiedInputs(plan, phase))
    for (int64_t half = 0; plan.areColumns(input) && half < halvesOf(input); ++half)
      tiles.push_back({isEarly(input), tileOffset(input) + half * halfStride(input)});
  llvm::sort(tiles);
  for (auto [early, at] : tiles) {
    if (!runs.empty() && runs.back().early == early && runs.back().at + runs.back().bytes == at)
      runs.back().bytes += tileBytes;
    else
      runs.push_back({early, at, tileBytes});
  }
  auto swizzled = [&](Value row, Value packet) {
    return ptx.add(ptx.mul(row, rowBytes), ptx.mul(ptx.exclusiveOr(packet, row), 16));
  };
  Value place = ptx.bits(lane, lanes - 1);
  Value first = ptx.mul(ptx.shiftRight(lane, llvm::Log2_64(lanes)), columns); // the token's, of eight rows
  Value from = swizzled(ptx.shiftRight(lane, 2), ptx.mul(ptx.bits(lane, 3), 2));
  Value to = ptx.add(swizzled(first, ptx.shiftRight(place, llvm::Log2_64(columns) - 1)),
                     ptx.mul(ptx.bits(place, columns / 2 - 1), 32 / columns));
  auto pair = VectorType::get(2, b.getIntegerType(16));
  // All of a column's entries, column by column.
  auto turned = [&](ValueRange words) {
    auto half = [&](int64_t i) { return LLVM::BitcastOp::create(b, pair, words[i / 2]).getResult(); };
    Values entries;
    for (int32_t column = 0; column < columns; ++column)
      for (int64_t entry = 0; entry < 16 / columns; entry += 2) {
        int32_t odd = column % 2;
        Value both = LLVM::ShuffleVectorOp::create(b, half(entry * columns + column),
                                                   half((entry + 1) * columns + column),
                                                   ArrayRef<int32_t>{odd, 2 + odd});
        entries.push_back(LLVM::BitcastOp::create(b, b.getI32Type(), both));
      }
    return entries;
  };
  for (const Run &run : runs) {
    // What is on its way at a time: loads take long where products read as much of shared memory.
    int64_t together = warps == 4 && run.bytes % (16 * eightRows) == 0 ? 4 : 2;
    Value begin = ptx.add(ptx.add(run.early ? stage.early : stage.tiles, run.at),
                          ptx.mul(ptx.bits(warp, warps - 1), eightRows));
    Value end = ptx.add(begin, run.bytes);
    threads.forLoop(begin, end, ptx.constant(together * warps * eightRows), {}, [&](Value at, ValueRange) {
      SmallVector<Values> words(together);
      for (int64_t i = 0; i < together; ++i)
        for (int64_t packet : {0, 1})
          llvm::append_range(words[i], ptx.load(ptx.add(at, ptx.exclusiveOr(from, ptx.constant(packet * 16))),
                                                i * warps * eightRows, 4, b.getI32Type()));
      ptx.syncWarp();
      for (Values &own : words)
        own = turned(own);
      size_t width = 8 / columns;
      for (int64_t column = 0; column < columns; ++column) {
        Value there = ptx.add(at, ptx.exclusiveOr(to, ptx.constant(column * 16)));
        for (int64_t i = 0; i < together; ++i)
          ptx.store(there, column * rowBytes + i * warps * eightRows,
                    ArrayRef(words[i]).slice(column * width, width));
      }
      return Values();
    });
  }
}

// Pairs of 16 rows of an output's tile, as a product's sums lie: a lane's are of one entry, and of
// neighbouring columns of a token.
void RoleEmitter::storeColumns(Value at, ValueRange pairs) {
  int64_t columns = plan.steps;
  Value row = ptx.mul(ptx.bits(lane, 3), 2); // of eight
  Value first = ptx.bits(row, ~(columns - 1) & 7), column = ptx.bits(row, columns - 1);
  for (int64_t lower : {0, 1}) {
    Value entry = ptx.add(ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2)), 8 * lower);
    Value byte = ptx.mul(ptx.add(ptx.mul(entry, columns), column), 2);
    Value own = ptx.add(first, ptx.shiftRight(byte, 7));
    Value to =
        ptx.add(ptx.mul(own, rowBytes), ptx.exclusiveOr(ptx.bits(byte, rowBytes - 1), ptx.mul(own, 16)));
    for (int64_t right : {0, 1})
      ptx.store(ptx.add(at, to), right * 8 * rowBytes, {pairs[2 * right + lower]});
  }
}
