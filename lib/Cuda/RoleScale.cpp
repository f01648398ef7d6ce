// Rows in the range of f16. What follows from a state may be as large as f32 allows, or as small, and
// products of f16 take their left sides from 2^-24 to 65504. Where a row's largest entry is not well within,
// the row is multiplied with the power of two that makes it 2^14 or a little more, what the product is summed
// onto with the same, and the sums with its inverse. A product's rows are those of its left side, a warp has
// 16 of them, and threads that share a row lie side by side: nobody else need know.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleChain.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Of the two rows of a thread that an entry of a product's sums, or of its left side, belongs to.
static unsigned rowOf(size_t entry) { return entry / 2 % 2; }

// Of a thread's rows the largest numbers of a quad's threads.
template <typename Greater>
static Value greatestOfQuad(Ptx &ptx, Value lane, Value own, Greater greater) {
  for (int64_t distance : {1, 2})
    own = greater(own, ptx.shuffle(own, ptx.exclusiveOr(lane, ptx.constant(distance))));
  return own;
}

// Whether a left side, in pairs of f16, has rows whose largest entries are not well within its range: for any
// thread of the warp.
Value RoleEmitter::leavesRange(ValueRange pairs) {
  constexpr int64_t sizes = 0x7fff7fff, least = 0x1400, most = 0x7bff; // 2^-10, and the largest number
  constexpr size_t together = 8;
  Value greatest[together];
  for (auto [i, pair] : llvm::enumerate(pairs)) {
    Value &own = greatest[i % together], size = ptx.bits(pair, sizes);
    own = own ? ptx.greater(own, size) : size;
  }
  // Pairs are of a thread's two rows in turn.
  for (size_t half = together / 2; half > 1; half /= 2)
    for (size_t i = 0; i < half; ++i)
      greatest[i] = ptx.greater(greatest[i], greatest[i + half]);
  // One half for each of the rows.
  Value low = arith::OrIOp::create(b, ptx.bits(greatest[0], 0xffff), ptx.shiftLeft(greatest[1], 16));
  Value high =
      arith::OrIOp::create(b, ptx.shiftRight(greatest[0], 16), ptx.bits(greatest[1], int32_t(0xffff0000)));
  Value all =
      greatestOfQuad(ptx, lane, ptx.greater(low, high), [&](Value x, Value y) { return ptx.greater(x, y); });
  auto isInside = [&](Value x) { return ptx.below(ptx.add(x, -least), ptx.constant(most - least)); };
  Value inside = arith::AndIOp::create(b, isInside(ptx.bits(all, 0xffff)), isInside(ptx.shiftRight(all, 16)));
  return ptx.any(arith::XOrIOp::create(b, inside, ptx.constant(1, 1)));
}

// A left side in pairs, `withRest` those of its rest behind, and what its rows are multiplied with.
RoleEmitter::PackedLeft RoleEmitter::packLeft(ValueRange entries, bool withRest) {
  auto packed = [&](ValueRange entries) {
    Values pairs = packedPairs(entries);
    if (withRest)
      llvm::append_range(pairs, packedPairs(restOf(entries, pairs)));
    return pairs;
  };
  if (!plan.isF16)
    return {packed(entries), {}};
  RowScale scale = scaleFor(entries);
  auto rescaled = [&] {
    Values scaled(entries);
    applyScale(scaled, {scale.rows, {}});
    return packed(scaled);
  };
  return {scale.isNeeded ? whenRare(scale.isNeeded, packed(entries), rescaled) : rescaled(), scale};
}

// What a left side's rows are multiplied with. Of two states, and of many keys, there are no registers for
// what is the case and what might be: they always are.
RoleEmitter::RowScale RoleEmitter::scaleFor(ValueRange entries) {
  auto both = [](ValueRange rows) { return std::array<Value, 2>{rows[0], rows[1]}; };
  if (plan.states > 1 || plan.keys > mostKeysBeside)
    return {both(rowScale(entries)), {}};
  Value isNeeded = leavesRange(packedPairs(entries)), one = ptx.number(1);
  return {both(whenRare(isNeeded, {one, one}, [&] { return rowScale(entries); })), isNeeded};
}

// What a condition seldom asks for, else other values.
Values RoleEmitter::whenRare(Value condition, ValueRange otherwise, llvm::function_ref<Values()> body) {
  auto choice = scf::IfOp::create(b, otherwise.getTypes(), condition, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.elseBlock());
  scf::YieldOp::create(b, otherwise);
  b.setInsertionPointToStart(choice.thenBlock());
  describeRare(*choice.thenBlock());
  scf::YieldOp::create(b, body());
  return Values(choice.getResults());
}

// The powers of two for a left side's entries.
Values RoleEmitter::rowScale(ValueRange entries) {
  // Of coupled states all entries are of one row.
  unsigned rows = plan.states > 1 ? 1 : 2;
  // Four at a time, as each waits for the one before.
  constexpr size_t together = 4;
  Value most[2][together];
  for (auto [e, entry] : llvm::enumerate(entries)) {
    Value &own = most[rows == 1 ? 0 : rowOf(e)][(e / 4 * 2 + e % 2) % together];
    Value size = LLVM::FAbsOp::create(b, entry);
    own = own ? Value(arith::MaxNumFOp::create(b, own, size)) : size;
  }
  Values scale(2);
  for (unsigned row = 0; row < rows; ++row) {
    Value all = most[row][0];
    for (Value more : ArrayRef(most[row]).drop_front())
      if (more)
        all = arith::MaxNumFOp::create(b, all, more);
    for (int64_t distance : {1, 2})
      all = arith::MaxNumFOp::create(b, all, ptx.shuffle(all, ptx.exclusiveOr(lane, ptx.constant(distance))));
    // 2^14 over the power of two that is in the number: f32's exponents count from 127. Rows of nothing stay,
    // and those of next to nothing are multiplied with no more than leaves sums in f32's range.
    constexpr int64_t exponentBits = 23, bias = 127, top = 14, mostPower = 110;
    Value power = ptx.bits(arith::BitcastOp::create(b, b.getI32Type(), all), int64_t(0xff) << exponentBits);
    Value quotient =
        arith::SubIOp::create(b, ptx.constant(int32_t(uint32_t(2 * bias + top) << exponentBits)), power);
    Value bits = arith::MinUIOp::create(b, quotient, ptx.constant((bias + mostPower) << exponentBits));
    scale[row] =
        ptx.choose(ptx.equal(power, 0), ptx.number(1), arith::BitcastOp::create(b, b.getF32Type(), bits));
  }
  if (rows == 1)
    scale[1] = scale[0];
  return scale;
}

// The powers of two for a product whose left side is a slab as it is, packed part by part.
LogicalResult RoleEmitter::findScale(ChainState &state, Issue &issue) {
  FailureOr<Values> entries = slab(state, issue.product->left);
  if (succeeded(entries) && plan.isF16)
    issue.scale = scaleFor(*entries);
  return entries;
}

// Multiplies rows with powers of two, where that is needed, or divides them.
void RoleEmitter::applyScale(MutableArrayRef<Value> entries, const RowScale &scale, bool divides) {
  if (!scale.rows[0] && !scale.rows[1])
    return;
  auto apply = [&] {
    std::array<Value, 2> factors = scale.rows;
    for (Value &factor : factors)
      if (factor && divides) {
        Value bits = arith::BitcastOp::create(b, b.getI32Type(), factor);
        Value inverse = arith::SubIOp::create(b, ptx.constant(int64_t(2 * 127) << 23), bits);
        factor = arith::BitcastOp::create(b, b.getF32Type(), inverse);
      }
    Values results(entries);
    for (auto [e, entry] : llvm::enumerate(results))
      if (Value factor = factors[rowOf(e)])
        entry = ptx.multiply(entry, factor);
    return results;
  };
  llvm::copy(scale.isNeeded ? whenRare(scale.isNeeded, entries, apply) : apply(), entries.begin());
}
