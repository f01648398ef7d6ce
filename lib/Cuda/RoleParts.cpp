// What the warpgroups that share out the channels hand to the one that goes on with scores: sums over all
// channels.
//
// Of a warp, for each 16 tokens up to its own, 8 numbers a lane: parts lie in the order of its blocks, the
// last is what its tokens see of each other. Of two warpgroups each adds up one half of the numbers, and
// leaves the other what it has of the other half, where the totals will lie.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t RoleEmitter::partsAt(Operation *gram) const {
  return exchangeAt + (llvm::find(plan.grams, gram) - plan.grams.begin()) * partBytes;
}

Value RoleEmitter::partsOfWarp(const ScoreState &state) {
  Value before = ptx.shiftRight(ptx.mul(warp, ptx.add(warp, 1)), 1);
  Value first = partsInTables() ? ptx.add(state.tables, -tablesAt) : base;
  return ptx.add(ptx.add(first, ptx.mul(lane, 16)), ptx.mul(before, 1024));
}

// Waits until who goes on with the sums of the chunk before has done with them.
void RoleEmitter::awaitParts(const ScoreState &state) {
  if (form.walksBeside) // they have met since
    return;
  ptx.await(barrier(PartsEmpty, ptx.constant(0)), ptx.exclusiveOr(ptx.bits(state.chunk, 1), ptx.constant(1)));
}

void RoleEmitter::meetWalkers() { ptx.meet(ptx.constant(15), 128 * form.walkers()); }

// Leaves what is not this warpgroup's to add up; gives what is.
Values RoleEmitter::leavePart(ScoreState &state, Operation *gram, Value at, ValueRange sums) {
  Value isFirst = ptx.equal(state.walker, 0);
  Values kept, left;
  for (unsigned e = 0; e < 4; ++e) {
    kept.push_back(ptx.choose(isFirst, sums[e], sums[4 + e]));
    left.push_back(ptx.choose(isFirst, sums[4 + e], sums[e]));
  }
  ptx.store(ptx.add(at, ptx.choose(isFirst, ptx.constant(512), ptx.constant(0))), partsAt(gram), left);
  return kept;
}

// Adds what was kept of all products to what the other warpgroup has left.
void RoleEmitter::addPart(ScoreState &state, Value at, ValueRange kept) {
  Value own = ptx.add(at, ptx.mul(state.walker, 512));
  for (auto [i, gram] : llvm::enumerate(plan.grams)) {
    Values sums = ptx.loadFloats(own, partsAt(gram), 4);
    for (auto [sum, part] : llvm::zip(sums, kept.slice(4 * i, 4)))
      sum = ptx.sum(sum, part);
    ptx.store(own, partsAt(gram), sums);
  }
}

// Takes the sums of the products that scores consist of. There is nothing of a warp's blocks after the last
// one.
void RoleEmitter::takeParts(ScoreState &state, Value scores) {
  Value parts = partsOfWarp(state);
  state.sums.clear();
  for (Operation *gram : plan.gramsOf(scores))
    for (int64_t block = 0; block < 4; ++block) {
      Value which = arith::MinUIOp::create(b, warp, ptx.constant(block));
      for (int64_t half : {0, 1})
        llvm::append_range(state.sums[gram], ptx.loadFloats(ptx.add(parts, ptx.mul(which, 1024)),
                                                            partsAt(gram) + 512 * half, 4));
    }
}

// Adds what rows have in a block of the warp's channels to the sums over rows, of a thread's two rows each.
void RoleEmitter::addToSums(const ScoreState &state, int64_t block, MutableArrayRef<Values> sums,
                            llvm::function_ref<ValueRange(BlockArgument)> pairs) {
  Value channels =
      ptx.add(ptx.add(base, ptx.mul(ptx.bits(lane, 3), 8)), ptx.mul(state.walker, 64 * blocksOfWalker()));
  llvm::DenseMap<Value, Values> known;
  auto entriesOf = [&](BlockArgument leaf) -> Values & {
    Values &entries = known[leaf];
    if (!entries.empty())
      return entries;
    if (!plan.isOfParams(leaf)) {
      for (Value pair : pairs(leaf))
        llvm::append_range(entries, ptx.unpack(pair));
    } else if (matType(leaf).isScalar()) {
      entries.assign(8, ptx.loadFloats(base, vectorAt(leaf), 1)[0]);
    } else { // the same for both rows
      for (int64_t eight : {0, 1})
        for (int64_t row = 0; row < 2; ++row)
          llvm::append_range(entries, ptx.loadFloats(channels, vectorAt(leaf) + block * 64 + eight * 32, 2));
    }
    return entries;
  };
  for (auto [op, sum] : llvm::zip(plan.reductions, sums))
    for (unsigned e = 0; e < 8; ++e) {
      Value entry = vectorEntry(op->getOperand(0), [&](Value value) {
        auto leaf = dyn_cast<BlockArgument>(value);
        return leaf ? entriesOf(leaf)[e] : Value();
      });
      sum[e / 2 % 2] = ptx.sum(sum[e / 2 % 2], entry);
    }
}

// Stores what a walker has of its channels: the warp that makes numbers adds both.
void RoleEmitter::storeRowSums(const ScoreState &state, ArrayRef<Values> sums) {
  for (auto [op, sum] : llvm::zip(plan.reductions, sums)) {
    Value at = ptx.add(sumsOf(state.chunk, op), ptx.mul(state.walker, slotBytes));
    at = ptx.add(at, ptx.mul(ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2)), 4));
    for (int64_t eight : {0, 1}) {
      Value whole = sum[eight];
      for (int64_t distance : {1, 2})
        whole = ptx.sum(whole, ptx.exchange(whole, distance));
      threads.when(ptx.equal(ptx.bits(lane, 3), 0), [&] { ptx.store(at, eight * 32, {whole}); });
    }
  }
}
