// The blocks on the diagonal of a system that each row of the state has for itself, as those who substitute
// want them (RoleSubstitution.cpp): in f32, a column together.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t RoleEmitter::ownLeavesBytes() const {
  return plan.ownSystem < 0 || plan.hasNoLeaves
             ? 0
             : 4 * (ownLeafBytes + (plan.invertsOwnLeaves ? wideBytes : 0));
}

// The warp's block.
void RoleEmitter::storeOwnLeaf(ScoreState &state, ValueRange entries) {
  Value lane = freshLane(), row = ptx.shiftRight(lane, 2), pair = ptx.bits(lane, 3);
  Value at = ptx.add(ptx.add(state.buffer, ptx.mul(warp, ownLeafBytes)), ptx.mul(pair, 2 * ownLeafPitch));
  Value inRow = ptx.add(at, ptx.mul(row, 4));
  // Of combinations rows of every second token lie together, from the column's two tokens on.
  Value isOdd = ptx.mul(ptx.bits(row, 1), 8), since = arith::SubIOp::create(b, ptx.shiftRight(row, 1), pair);
  for (auto [e, entry] : llvm::enumerate(entries)) {
    int64_t right = e % 2 + e / 4 * 8, down = e / 2 % 2 * 8, offset = ownLeavesAt() + right * ownLeafPitch;
    Value place = ptx.add(isOdd, ptx.bits(ptx.add(since, down / 2 - right / 2), 7));
    if (plan.combination)
      ptx.store(ptx.add(at, ptx.mul(place, 4)), offset, {entry});
    else
      ptx.store(inRow, offset + 4 * down, {entry});
  }
  if (!plan.invertsOwnLeaves)
    return;
  Values negated;
  for (Value entry : entries)
    negated.push_back(plan.isNegated ? entry : ptx.negative(entry));
  storeLeaf(negated);
}

// The same, inverted, of a system that has the same blocks on the diagonal for all rows.
void RoleEmitter::invertOwnLeaf(ScoreState &state) {
  auto [first, second] = invertLeaf();
  storeWideLeaf(ptx.add(ptx.add(state.buffer, ownInversesAt()), ptx.mul(warp, wideBytes)), first, second);
}
