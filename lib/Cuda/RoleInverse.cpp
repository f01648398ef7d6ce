// The inverse of a unit lower triangular system of 64 tokens, transposed. The 16 x 16 blocks on the diagonal
// are inverted by a warp each, a column a lane, in f32. With D these inverses and N the system's part below
// them, negated, block column c of the result is X_c = D_c, X_r = sum over k < r of (D_r N_rk) X_k:
// transposed, each step's result has the layout of the next one's left operand, so the chain stays in
// registers. Products are f16: entries stay small where the rows of the system are those of unit vectors.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t pitch = 80; // bytes of a leaf's column

void RoleEmitter::beginInverse(ScoreState &state) {
  state.leaves = ptx.add(ptx.add(base, leavesAt), ptx.mul(warp, leafBytes));
  state.leafEntry = ptx.add(
      state.leaves, ptx.add(ptx.mul(ptx.shiftRight(lane, 2), 4), ptx.mul(ptx.bits(lane, 3), 2 * pitch)));
  Value upper = ptx.shiftRight(lane, 4), eighth = ptx.bits(lane, 7);
  Value column = ptx.mul(ptx.exclusiveOr(ptx.add(upper, ptx.mul(warp, 2)), eighth), 16);
  state.ownBlock = ptx.add(ptx.add(ptx.mul(ptx.bits(lane, 15), 128), state.warpRows), column);
  state.inLowerHalf = ptx.below(lane, ptx.constant(16));
}

// A block of 16 columns of the system, negated: the warp's diagonal one to its leaf, those before it to the
// tile of blocks.
void RoleEmitter::storeSystem(ScoreState &state) {
  Values entries;
  // Blocks are wanted below the diagonal, and of a leaf what is below.
  ScoreTile system{plan.system, {}, /*plainRows=*/false, /*anyAbove=*/true};
  for (unsigned e = 0; e < 8; ++e)
    entries.push_back(arith::NegFOp::create(b, score(state, system, e)));
  Value tile = ptx.add(base, blocksAt);
  if (state.block < 3)
    threads.when(ptx.compare(arith::CmpIPredicate::ugt, warp, ptx.constant(state.block)), [&] {
      Values packed;
      for (unsigned e = 0; e < 8; e += 2)
        packed.push_back(ptx.packF16(entries[e], entries[e + 1]));
      ptx.storeMatrices(ptx.add(ptx.add(tile, state.warpRows), state.blocks[state.block]), 0, packed, false);
    });
  threads.when(ptx.equal(warp, state.block), [&] {
    for (unsigned e = 0; e < 8; ++e)
      ptx.store(state.leafEntry, pitch * (e % 2 + e / 4 * 8) + 32 * (e / 2 % 2), entries[e]);
  });
}

void RoleEmitter::emitInverse(ScoreState &state) {
  Value tile = ptx.add(base, blocksAt);
  Value ownRows = ptx.add(tile, state.warpRows), ownBlock = ptx.add(tile, state.ownBlock);
  Value result = ptx.add(state.buffer, inverseAt - scoresAt);
  auto packed = [&](ValueRange block) {
    Values pairs;
    for (unsigned e = 0; e < 8; e += 2)
      pairs.push_back(ptx.packF16(block[e], block[e + 1]));
    return pairs;
  };
  // The middle registers change places where rows and columns do.
  auto swapped = [](ValueRange r) { return Values{r[0], r[2], r[1], r[3]}; };
  auto multiply = [&](ValueRange sum, ValueRange left, ValueRange right) {
    Values zero(8, ptx.number(0)), results;
    ValueRange start = sum.empty() ? ValueRange(zero) : sum;
    for (unsigned half : {0, 1})
      llvm::append_range(results, ptx.multiplyF16(start.slice(4 * half, 4), left, right.slice(2 * half, 2)));
    return results;
  };

  // The leaf: lane c eliminates column c of the identity.
  ptx.syncWarp();
  Values x;
  Value column = ptx.bits(lane, 15);
  for (int64_t r = 0; r < 16; ++r)
    x.push_back(ptx.choose(ptx.equal(column, r), ptx.number(1), ptx.number(0)));
  for (int64_t j = 0; j < 15; ++j)
    for (int64_t quad = (j + 1) / 4; quad < 4; ++quad) {
      Values factors = ptx.loadFloats(state.leaves, pitch * j + 16 * quad, 4);
      for (int64_t i = 0; i < 4; ++i)
        if (4 * quad + i > j)
          x[4 * quad + i] = ptx.sum(x[4 * quad + i], ptx.multiply(factors[i], x[j]));
    }
  Values pairs, quarter;
  for (int64_t i = 0; i < 8; ++i)
    pairs.push_back(ptx.packF16(x[2 * i], x[2 * i + 1]));
  for (int64_t i = 0; i < 4; ++i)
    quarter.push_back(ptx.choose(state.inLowerHalf, pairs[i], pairs[4 + i]));
  // Lane c has column c, which is row c of the transposed inverse.
  ptx.store(ownBlock, 0, quarter);
  ptx.syncWarp();

  // D N in place of N, then the block columns.
  Values transposed = ptx.loadMatrices(ownBlock, 0, false);
  Values diagonal = swapped(ptx.loadMatrices(ownBlock, 0, true));
  for (int64_t k = 0; k < 3; ++k)
    threads.when(ptx.compare(arith::CmpIPredicate::ugt, warp, ptx.constant(k)), [&] {
      Value at = ptx.add(ownRows, state.blocks[k]);
      ptx.storeMatrices(at, 0, packed(multiply({}, diagonal, ptx.loadMatrices(at, 0, true))), false);
    });
  ptx.meet(ptx.constant(3), 128);
  awaitPlace(state);
  auto store = [&](ValueRange block, Value address) {
    Values out;
    for (unsigned e = 0; e < 8; e += 2)
      out.push_back(ptx.packBf16(block[e], block[e + 1]));
    ptx.storeMatrices(address, 0, out, false);
  };
  Values own;
  for (Value pair : transposed)
    llvm::append_range(own, ptx.unpackF16(pair));
  auto block = [&](int64_t r, int64_t k) {
    return swapped(ptx.loadMatrices(ptx.add(tile, state.blocks[k]), 16 * 128 * r, false));
  };
  for (int64_t c = 0; c < 3; ++c)
    threads.when(ptx.equal(warp, c), [&] {
      Values sums[4];
      for (int64_t r = c + 1; r < 4; ++r)
        sums[r] = multiply({}, transposed, block(r, c));
      for (int64_t k = c + 1; k < 4; ++k) {
        if (k < 3) {
          Values left = packed(sums[k]);
          for (int64_t r = k + 1; r < 4; ++r)
            sums[r] = multiply(sums[r], left, block(r, k));
        }
        store(sums[k], ptx.add(ptx.add(result, state.blocks[k]), 16 * 128 * c));
      }
    });
  store(own, ptx.add(result, state.ownBlock));
}
