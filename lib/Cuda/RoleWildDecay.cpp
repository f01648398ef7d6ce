// Scores within 16 tokens whose decay of a key is out of f32's range. Halves of 8, 4, 2 and 1 tokens in turn:
// what the later half of a pair of halves sees of the earlier one is a product whose rows are relative to the
// end of the earlier, so no exponent is positive. Rows by eights are those of 8 tokens; other simultaneous
// ones are of one half.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;

Values RoleEmitter::wildDiagonal(ScoreState &state, chunk::GramOp gram) {
  Value left = plan.asRows(gram.getLhs())->rows(), right = plan.asRows(gram.getRhs())->rows();
  bool before = plan.leftSpan(gram) != chunk::Span::Through, isLate = chunk::isLate(plan.decay);
  bool atStart = gram.getReach() == Reach::Start;
  if (atStart && *plan.starts() >= tokensOfWarp) // the warp's tokens see nothing of one another
    return Values(8, ptx.number(0));
  Value zero = ptx.number(0), row = ptx.shiftRight(lane, 2), pair = ptx.mul(ptx.bits(lane, 3), 2);
  bool byEights = plan.isStacked();
  auto rowOf = [&](unsigned e) { return ptx.add(row, byEights ? 0 : e / 2 % 2 * 8); };
  auto columnOf = [&](unsigned e) { return ptx.add(pair, e % 2 + (byEights ? 0 : e / 4 * 8)); };
  auto rows = [&](Value rows, int64_t block) {
    llvm::DenseMap<BlockArgument, Values> pairs;
    for (BlockArgument leaf : RolePlan::leavesOf(rows))
      pairs[leaf] = inputPairs(state, leaf, block, false);
    return rowsOf(rows, [&](BlockArgument leaf) { return ValueRange(pairs[leaf]); });
  };
  auto power = [&](Value log) { return ptx.exp2(ptx.multiply(log, ptx.number(llvm::numbers::log2e))); };
  auto isSet = [&](Value x) { return ptx.compare(arith::CmpIPredicate::ne, x, ptx.constant(0)); };
  int64_t halvings = plan.decaysByToken() ? 4 - llvm::Log2_64(plan.steps) : 4;
  if (atStart)
    halvings = std::min<int64_t>(halvings, 4 - llvm::Log2_64(*plan.starts()));
  std::string count = "mov.b32 $0, " + std::to_string(halvings) + ";";
  Value levels = ptx.assembly(count, b.getI32Type(), {})[0];
  auto loop = threads.forLoop(
      ptx.constant(0), levels, ptx.constant(1), Values(8, zero), [&](Value level, ValueRange carried) {
        Value size = arith::ShRUIOp::create(b, ptx.constant(byEights ? 4 : 8), level);
        // The bits of a token's number that tell the pair of halves.
        Value others = arith::SubIOp::create(b, ptx.constant(0), ptx.mul(size, 2));
        Value middle = arith::OrIOp::create(b, arith::AndIOp::create(b, row, others), ptx.add(size, -1));
        Value source = ptx.add(ptx.mul(ptx.bits(middle, 7), 4), ptx.bits(lane, 3));
        Value isLargest = ptx.equal(size, 8);
        Values sums(8, zero);
        for (int64_t block = 0; block < blocksOfWalker(); ++block) {
          LogPairs pairs = logPairs(state, block);
          auto [logs, signs] = logSums(state, block, pairs, isLate);
          LogSums since = before != isLate ? logSums(state, block, pairs, before) : LogSums{logs, signs};
          if (atStart)
            since = {ofFirstRows(ptx, plan, lane, since.logs), ofFirstRows(ptx, plan, lane, since.signs)};
          Values x = rows(left, block), y = rows(right, block);
          for (unsigned e = 0; e < 8; ++e) {
            // Of halves of 8 the middle is the upper row's for both.
            Value from = e / 2 % 2 && !byEights ? ptx.choose(isLargest, logs[e - 2], logs[e]) : logs[e];
            Value end = ptx.shuffle(from, source);
            Value isLater = isSet(arith::AndIOp::create(b, rowOf(e), size));
            Value later = ptx.multiply(x[e], power(ptx.difference(since.logs[e], end)));
            Value earlier = ptx.multiply(y[e], power(ptx.difference(end, logs[e])));
            if (!signs.empty())
              later = withSign(later, since.signs[e]), earlier = withSign(earlier, signs[e]);
            x[e] = ptx.choose(isLater, later, zero);
            y[e] = ptx.choose(isLater, zero, earlier);
          }
          sums = ptx.multiplyTf32(sums, x, y);
        }
        for (unsigned e = 0; e < 8; ++e) {
          Value apart = arith::AndIOp::create(b, ptx.exclusiveOr(rowOf(e), columnOf(e)), others);
          sums[e] = ptx.sum(carried[e], ptx.choose(isSet(apart), zero, sums[e]));
        }
        return sums;
      });
  Values results(loop.getResults());
  if (atStart || (gram.getReach() != Reach::Inclusive && !plan.inTurn))
    return results;
  // A token's own write has not decayed, nor has what its second row sees of its first one in turn; but for
  // what is read after a late decay.
  Values own(8, zero);
  for (int64_t block = 0; block < blocksOfWalker(); ++block) {
    Values x = rows(left, block);
    if (isLate && !before) {
      LogPairs pairs = logPairs(state, block);
      LogSums with = logSums(state, block, pairs, false), without = logSums(state, block, pairs, true);
      for (unsigned e = 0; e < 8; ++e) {
        x[e] = ptx.multiply(x[e], power(ptx.difference(with.logs[e], without.logs[e])));
        if (!with.signs.empty())
          x[e] = withSign(withSign(x[e], with.signs[e]), without.signs[e]);
      }
    }
    own = ptx.multiplyTf32(own, x, rows(right, block));
  }
  for (unsigned e = 0; e < 8; ++e) {
    Value isOwn = ptx.compare(arith::CmpIPredicate::eq, placeInEight(rowOf(e)), placeInEight(columnOf(e)));
    results[e] = ptx.choose(isOwn, own[e], results[e]);
  }
  return results;
}
