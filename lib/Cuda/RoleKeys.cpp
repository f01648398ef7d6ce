// What is read of a state by parts: some of its keys at a time, where there are more than a thread's
// registers hold packed; or what rounding takes away apart.
#include "lib/Cuda/RoleChain.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Whether the left side of a product takes more registers, packed, than there are.
bool RoleEmitter::isInTurns(const ChainProduct &product) const {
  return product.kind == ChainProduct::Rows && plan.keys > mostKeysBeside;
}

// The steps of 16 keys that are packed at a time where there are many: of more the assembler finds registers
// too few, and has each product wait for the one before.
static constexpr size_t stepsOfTurn = 2;

// A product that sums over keys, of which some are packed at a time: those of the turn before the last are
// done with by then.
FailureOr<Pending> RoleEmitter::productInTurns(ChainState &state, const Issue &issue, int64_t columns,
                                               bool ofRest) {
  const ChainProduct &product = *issue.product;
  FailureOr<Values> entries = slab(state, product.left);
  if (failed(entries))
    return failure();
  constexpr size_t entriesOfStep = 8;
  SmallVector<Step> steps(entries->size() / entriesOfStep);
  rightSteps(state, product, steps);
  size_t turn = isInTurns(product) ? stepsOfTurn : steps.size();
  Pending sums{ofRest ? Values() : issue.start};
  for (size_t first = 0; first < steps.size(); first += turn) {
    if (first >= 2 * turn)
      ptx.await(1, {});
    auto own = MutableArrayRef(steps).slice(first, turn);
    Values part(ValueRange(*entries).slice(first * entriesOfStep, turn * entriesOfStep));
    applyScale(part, issue.scale);
    Values pairs = packedPairs(part);
    pairs = ptx.pin(ofRest ? packedPairs(restOf(part, pairs)) : pairs);
    for (auto [i, step] : llvm::enumerate(own))
      step.left = Values(ArrayRef(pairs).slice(i * entriesOfStep / 2, entriesOfStep / 2));
    sums = ptx.product(columns, sums.entries, own, /*leftByDepth=*/false, /*rightByDepth=*/false);
  }
  return sums;
}

// What rounding takes away from entries.
Values RoleEmitter::restOf(ValueRange entries, ValueRange pairs) {
  Values rests;
  for (auto [i, pair] : llvm::enumerate(pairs))
    for (auto [entry, rounded] : llvm::zip(entries.slice(2 * i, 2), ptx.unpack(pair)))
      rests.push_back(ptx.sum(entry, ptx.negative(rounded)));
  return rests;
}

// What a product is summed onto whose left side is in two parts: that of the second. It is waited for here,
// so that its registers are free for the first.
FailureOr<Values> RoleEmitter::productOfRest(ChainState &state, Issue &issue) {
  int64_t columns = issue.product->ofTokens ? plan.columns : tokensOfChunk;
  FailureOr<Pending> sums = failure();
  if (succeeded(findScale(state, issue)))
    sums = productInTurns(state, issue, columns, /*ofRest=*/true);
  if (failed(sums))
    return failure();
  return ptx.await(0, *sums)[0];
}
