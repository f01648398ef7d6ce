// Rows in the range of f16. What follows from a state may be as large as f32 allows, or as small, and
// products of f16 take their left sides from 2^-24 to 65504. So each row of a left side is multiplied with
// the power of two that makes its largest entry 2^14 or a little more, what the product is summed onto with
// the same, and the sums with its inverse. A product's rows are those of its left side, and threads that
// share a row lie side by side: nobody else need know.
//
// (Measured, branches around that for rows within range were as dear as it: tools/bench/NOTES.md.)
#include "lib/Cuda/RoleChain.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Of the two rows of a thread that an entry of a product's sums, or of its left side, belongs to.
static unsigned rowOf(size_t entry) { return entry / 2 % 2; }

// A left side in pairs, `withRest` those of its rest behind, and what its rows are multiplied with.
RoleEmitter::PackedLeft RoleEmitter::packLeft(ValueRange entries, bool withRest) {
  auto packed = [&](ValueRange entries) {
    Values pairs = packedPairs(entries);
    if (withRest)
      llvm::append_range(pairs, packedPairs(restOf(entries, pairs)));
    return pairs;
  };
  RowScale scale = rowScale(entries);
  Values scaled(entries);
  applyScale(scaled, scale);
  return {packed(scaled), scale};
}

// The powers of two for a left side's entries; none where products are not f16.
RoleEmitter::RowScale RoleEmitter::rowScale(ValueRange entries) {
  if (!plan.isF16)
    return {};
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
  RowScale scale;
  for (unsigned row = 0; row < rows; ++row) {
    Value all = most[row][0];
    for (Value more : ArrayRef(most[row]).drop_front())
      if (more)
        all = arith::MaxNumFOp::create(b, all, more);
    for (int64_t distance : {1, 2})
      all = arith::MaxNumFOp::create(b, all, ptx.exchange(all, distance));
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
  FailureOr<SmallVector<Values>> lefts = leftSlabs(state, *issue.product);
  if (failed(lefts))
    return failure();
  issue.scale = rowScale(lefts->front());
  if (lefts->size() > 1)
    issue.scale[1] = rowScale(lefts->back())[1];
  return success();
}

// Multiplies rows with powers of two, or divides them.
void RoleEmitter::applyScale(MutableArrayRef<Value> entries, const RowScale &scale, bool divides) {
  RowScale factors = scale;
  for (Value &factor : factors)
    if (factor && divides) {
      Value bits = arith::BitcastOp::create(b, b.getI32Type(), factor);
      Value inverse = arith::SubIOp::create(b, ptx.constant(int64_t(2 * 127) << 23), bits);
      factor = arith::BitcastOp::create(b, b.getF32Type(), inverse);
    }
  for (auto [e, entry] : llvm::enumerate(entries))
    if (Value factor = factors[rowOf(e)])
      entry = ptx.multiply(entry, factor);
}

// The entries of what a product is summed onto.
FailureOr<Values> RoleEmitter::startEntries(ChainState &state, const ChainProduct &product) {
  FailureOr<Values> start = product.startScale
                                ? scaled(state, state.raw.lookup(product.start), *product.startScale)
                                : slab(state, product.start);
  if (failed(start))
    return failure();
  // A part of a product's sums has the assembler serialise all products, if it sees that this factor is 1.
  for (const ChainProduct &other : plan.products)
    if (other.result == product.start && isStacked(other) &&
        (product.startScale ? *product.startScale : other.resultScale).empty()) {
      Value one = ptx.loadFloats(state.stage.rows, slotOffset({}), 1)[0];
      for (Value &entry : *start)
        entry = ptx.multiply(entry, one);
    }
  return start;
}

// What a product is summed onto, as it may be handed to it.
FailureOr<Values> RoleEmitter::startOf(ChainState &state, const Issue &issue) {
  const ChainProduct &product = *issue.product;
  if (!product.start || product.chained)
    return Values();
  if (auto known = state.starts.find(&product); known != state.starts.end())
    return known->second;
  FailureOr<Values> start = plan.states > 1 ? startInTurns(state, product) : startEntries(state, product);
  if (failed(start))
    return failure();
  applyScale(*start, issue.scale);
  return state.starts[&product] = ptx.pin(*start);
}
