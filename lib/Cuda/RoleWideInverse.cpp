// The inverse of a system that nothing bounds, as that of RoleInverse.cpp but in tf32, which has f32's range;
// beside f16, which has as many digits, in two parts each.
// A block lies as a thread has the entries of sums, two pieces of four, so that any block is either side of a
// product, the right one transposed. With N the system's part below the diagonal, negated, and D the inverses
// of the blocks on it, block column c of the result is X_c = D_c, X_r = D_r (sum over k < r of N_rk X_k);
// transposed, each sum and each X is the next product's left side.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Where a lane has its entries of a block.
Value RoleEmitter::wideBlock(Value row, Value column) {
  Value before = ptx.shiftRight(ptx.mul(row, ptx.add(row, 1)), 1);
  Value block = ptx.add(ptx.add(base, blocksAt), ptx.mul(ptx.add(before, column), wideBytes));
  return ptx.add(block, ptx.mul(lane, 16));
}

// Entries as products read them; where those are of two parts each, as they are.
Values RoleEmitter::inTf32(ValueRange entries) {
  return plan.isF16 ? Values(entries) : ptx.roundTf32(entries);
}

void RoleEmitter::storeWide(Value at, ValueRange entries) {
  for (int64_t half : {0, 1})
    ptx.store(at, 512 * half, inTf32(entries.slice(4 * half, 4)));
}

// Where a column of such a block begins.
Value RoleEmitter::wideColumn(Value column) {
  Value eighth = ptx.mul(ptx.shiftRight(column, 3), 512), pair = ptx.bits(ptx.shiftRight(column, 1), 3);
  return ptx.add(ptx.add(eighth, ptx.mul(pair, 16)), ptx.mul(ptx.bits(column, 1), 4));
}

// Stores an inverted leaf as such a block. A lane has half of a column.
void RoleEmitter::storeWideLeaf(Value block, const Values &first, const Values &second) {
  Value lane = freshLane(), upper = ptx.shiftRight(lane, 4);
  Value at = ptx.add(ptx.add(block, wideColumn(ptx.bits(lane, 15))), ptx.mul(upper, 8));
  for (int64_t i = 0; i < 8; ++i)
    ptx.store(at, 64 * i, inTf32({ptx.choose(ptx.equal(upper, 0), first[i], second[i])}));
}

void RoleEmitter::emitWideInverse(ScoreState &state) {
  Value lane = freshLane();
  refreshBlocks(state);
  auto [first, second] = invertLeaf();
  // The block is read transposed.
  Value diagonal = arith::SubIOp::create(b, wideBlock(warp, warp), ptx.mul(this->lane, 16));
  storeWideLeaf(diagonal, first, second);
  ptx.syncWarp();
  Value row = ptx.mul(ptx.bits(lane, 3), 128), column = ptx.shiftRight(lane, 2);
  Value turned = ptx.add(ptx.add(diagonal, wideColumn(column)), row);
  Values own;
  for (int64_t e = 0; e < 8; ++e)
    own.push_back(ptx.loadFloats(turned, e % 2 * 64 + e / 2 % 2 * 512 + e / 4 * 8, 1)[0]);

  // Rows of what is stored are the inverse's columns.
  std::array<Value, 2> scale;
  if (plan.inverseScale)
    scale = rowNumbers(state, {{{plan.inverseScale}}, {}, false});
  ptx.meet(ptx.constant(3), 128);
  awaitPlace(state);
  Value result = ptx.add(state.buffer, inverseAt - scoresAt);
  Value laneAt = inStrips() ? laneInStrip() : Value();
  auto store = [&](Values block, Value row, Value column, Value otherwise) {
    Value at = laneAt ? blockInStrip(laneAt, row, column, /*ofInverse=*/true) : otherwise;
    Values packed;
    for (unsigned e = 0; e < 8; e += 2) {
      for (unsigned i = 0; plan.inverseScale && i < 2; ++i)
        block[e + i] = ptx.multiply(block[e + i], scale[e / 2 % 2]);
      packed.push_back(ptx.pack(block[e], block[e + 1]));
    }
    ptx.storeMatrices(ptx.add(result, at), 0, packed, false);
    if (plan.splitsInverse)
      ptx.storeMatrices(ptx.add(result, at), tileBytes, packedPairs(restOf(block, packed)), false);
  };
  auto block = [&](int64_t r, int64_t k) {
    Value at = wideBlock(ptx.constant(r), ptx.constant(k));
    Values entries = ptx.loadFloats(at, 0, 4);
    llvm::append_range(entries, ptx.loadFloats(at, 512, 4));
    return entries;
  };
  Values zero(8, ptx.number(0));
  // What tf32 holds of entries, and what it leaves.
  auto cut = [&](ValueRange entries, bool isRest) {
    Values results;
    for (Value entry : entries) {
      Value bits = ptx.bits(arith::BitcastOp::create(b, b.getI32Type(), entry), int32_t(0xffffe000));
      Value held = arith::BitcastOp::create(b, b.getF32Type(), bits);
      results.push_back(isRest ? ptx.difference(entry, held) : held);
    }
    return results;
  };
  auto multiply = [&](Values sum, ValueRange x, ValueRange y) {
    if (!plan.isF16)
      return ptx.multiplyTf32(sum, x, y);
    Values left = cut(x, false), right = cut(y, false);
    sum = ptx.multiplyTf32(ptx.multiplyTf32(sum, cut(x, true), right), left, cut(y, true));
    return ptx.multiplyTf32(sum, left, right);
  };
  for (int64_t c = 0; c < 3; ++c)
    threads.when(ptx.equal(warp, c), [&] {
      Values x[4];
      x[c] = own;
      for (int64_t r = c + 1; r < 4; ++r) {
        Values sum = zero;
        for (int64_t k = c; k < r; ++k)
          sum = multiply(sum, x[k], block(r, k));
        x[r] = inTf32(multiply(zero, inTf32(sum), block(r, r)));
        store(x[r], ptx.constant(c), ptx.constant(r), ptx.add(state.blocks[r], 16 * 128 * c));
      }
    });
  store(own, warp, warp, ptx.add(ptx.exclusiveOr(state.blocks[0], ptx.mul(warp, 32)), state.warpRows));
}
