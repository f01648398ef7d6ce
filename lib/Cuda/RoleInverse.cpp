// The inverse of a unit lower triangular system of 64 tokens, transposed. The 16 x 16 blocks on the diagonal
// are inverted by a warp each, their halves in f32, a column a lane. With D these inverses and N the system's
// part below them, negated, block column c of the result is X_c = D_c, X_r = sum over k < r of (D_r N_rk)
// X_k: transposed, each step's result has the layout of the next one's left operand, so the chain stays in
// registers. Products are f16: entries stay small where the rows of the system are those of unit vectors.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Stores the system, negated, to the tile of blocks. The place of a diagonal block, of 16 rows of 32 bytes,
// holds its diagonal's halves in f32, row by row what are the halves' columns; what is below the first one
// lies apart.
void RoleEmitter::storeSystem(ScoreState &state) {
  // Blocks are wanted below the diagonal, and of a leaf what is below.
  ScoreTile system{plan.system, {}, /*plainRows=*/false, /*anyAbove=*/true};
  Value tile = ptx.add(ptx.add(base, blocksAt), state.warpRows);
  refreshBlocks(state);
  forBlocks(state, system, [&](ValueRange values, Value place, bool onDiagonal) {
    Values entries, packed;
    for (Value value : values)
      entries.push_back(arith::NegFOp::create(b, value));
    if (onDiagonal) {
      Value lane = freshLane();
      Value row = ptx.shiftRight(lane, 2), column = ptx.mul(ptx.bits(lane, 3), 2);
      Value unit = ptx.exclusiveOr(ptx.add(ptx.mul(warp, 2), ptx.shiftRight(row, 2)), column);
      Value even = ptx.add(ptx.add(tile, ptx.mul(column, 128)),
                           ptx.add(ptx.mul(unit, 16), ptx.mul(ptx.bits(row, 3), 4)));
      Value odd = ptx.exclusiveOr(even, ptx.constant(16));
      for (int64_t half : {0, 1}) {
        ptx.store(even, half * 1024, {entries[6 * half]});
        ptx.store(odd, half * 1024 + 128, {entries[6 * half + 1]});
      }
      ptx.store(ptx.add(ptx.add(base, leavesAt), ptx.mul(thread, 4)), 0,
                {ptx.packF16(entries[2], entries[3])});
      return;
    }
    for (unsigned e = 0; e < 8; e += 2)
      packed.push_back(ptx.packF16(entries[e], entries[e + 1]));
    ptx.storeMatrices(ptx.add(tile, place), 0, packed, false);
  });
}

void RoleEmitter::emitInverse(ScoreState &state) {
  Value tile = ptx.add(base, blocksAt);
  Value lane = freshLane(), upper = ptx.shiftRight(lane, 4), eighth = ptx.bits(lane, 7);
  refreshBlocks(state);
  Value unit = ptx.exclusiveOr(ptx.add(upper, ptx.mul(warp, 2)), eighth);
  Value toOwn = ptx.add(ptx.add(ptx.mul(ptx.bits(lane, 15), 128), state.warpRows), ptx.mul(unit, 16));
  Value ownRows = ptx.add(tile, state.warpRows), ownBlock = ptx.add(tile, toOwn);
  // The lane's half of the leaf, and whether its part of a row of the inverse has entries of a half.
  Value ownHalf = ptx.add(ptx.add(ownRows, ptx.mul(ptx.bits(lane, 8), 128)), ptx.mul(warp, 32));
  Value inOwnHalf = ptx.equal(ptx.bits(ptx.exclusiveOr(ptx.shiftRight(lane, 1), lane), 8), 0);
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

  // The leaf's halves: a lane eliminates its column of the identity. Their products with what is below the
  // first one complete the leaf: (second)(below)(first).
  ptx.syncWarp();
  Values x;
  Value column = ptx.bits(lane, 7);
  for (int64_t r = 0; r < 8; ++r)
    x.push_back(ptx.choose(ptx.equal(column, r), ptx.number(1), ptx.number(0)));
  for (int64_t j = 0; j < 7; ++j)
    for (int64_t quad = (j + 1) / 4; quad < 2; ++quad) {
      Values factors = ptx.loadFloats(ptx.exclusiveOr(ownHalf, ptx.constant(16 * (quad ^ j))), 128 * j, 4);
      for (int64_t i = 0; i < 4; ++i)
        if (4 * quad + i > j)
          x[4 * quad + i] = ptx.sum(x[4 * quad + i], ptx.multiply(factors[i], x[j]));
    }
  Value below = ptx.load(ptx.add(ptx.add(base, leavesAt), ptx.mul(thread, 4)), 0, 1, b.getI32Type())[0];
  Value right = ptx.transpose(below), none = ptx.constant(0);
  Values half;
  for (int64_t i = 0; i < 4; ++i)
    half.push_back(ptx.choose(inOwnHalf, ptx.packF16(x[2 * i], x[2 * i + 1]), none));
  // Row c of the transposed inverse is column c.
  ptx.syncWarp();
  ptx.store(ownBlock, 0, half);
  ptx.syncWarp();
  Values transposed = ptx.loadMatrices(ownBlock, 0, false);
  Values diagonal = swapped(ptx.loadMatrices(ownBlock, 0, true));
  Values zero(4, ptx.number(0));
  Values product = ptx.multiplyF16(zero, diagonal, {none, right});
  product =
      ptx.multiplyF16(zero, {none, ptx.packF16(product[2], product[3]), none, none}, {transposed[0], none});
  diagonal[1] = ptx.packF16(product[2], product[3]);
  transposed[2] = ptx.transpose(diagonal[1]);

  // D N in place of N, then the block columns.
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
  store(own, ptx.add(result, toOwn));
}
