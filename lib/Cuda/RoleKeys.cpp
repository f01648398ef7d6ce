// What is read of a state by parts: some of its keys at a time, where there are more than a thread's
// registers hold packed; or what rounding takes away apart.
#include "lib/Cuda/RoleChain.h"
#include "lib/Cuda/RoleKeyWalk.h"
#include "llvm/ADT/BitVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Two states of many keys leave no registers for the sums of all that is read of them: what outputs alone
// read is read when what is written is known, in a wave of its own.
void RolePlan::delayReads() {
  auto next = program.getBodyYield().getValues().take_front(countStates());
  auto isLate = [&](const ChainProduct &product) {
    return product.kind == ChainProduct::Rows &&
           llvm::none_of(next, [&](Value state) { return dependsOn(state, product.result); });
  };
  unsigned writes = waves;
  for (const ChainProduct &product : products)
    if (product.kind == ChainProduct::Depth)
      writes = std::min(writes, product.wave);
  bool hasEarlier = llvm::any_of(
      products, [&](const ChainProduct &product) { return product.wave < writes && !isLate(product); });
  if (!isWide() || states == 1 || !hasEarlier || llvm::none_of(products, isLate))
    return;
  SmallVector<Value> late;
  for (const ChainProduct &product : products)
    if (isLate(product))
      late.push_back(product.result);
  auto follows = [&](Value value) {
    return value && llvm::any_of(late, [&](Value read) { return dependsOn(value, read); });
  };
  // What follows from such reads, which were the first wave, comes as many waves later, and the rest with it.
  auto move = [&](unsigned wave, bool isAfter) { return isAfter || wave > writes ? wave + writes : wave; };
  llvm::BitVector isUsed(waves + writes);
  for (ChainProduct &product : products) {
    bool isAfter = isLate(product) || follows(product.start) || follows(product.left);
    product.wave = move(product.wave, isAfter || product.wave == writes);
    isUsed.set(product.wave);
  }
  auto withoutEmpty = [&](unsigned wave) {
    return llvm::count_if(isUsed.set_bits(), [&](unsigned used) { return used < wave; });
  };
  for (ChainProduct &product : products)
    product.wave = withoutEmpty(product.wave);
  for (auto &known : available)
    known.second = withoutEmpty(move(known.second, follows(known.first)));
  waves = isUsed.count();
}

// Whether the left side of a product takes more registers, packed, than there are.
bool RoleEmitter::isInTurns(const ChainProduct &product) const {
  return product.kind == ChainProduct::Rows && plan.isWide();
}

// The steps of 16 keys that are packed at a time where there are many: of more the assembler finds registers
// too few, and has each product wait for the one before.
static constexpr size_t stepsOfTurn = 2;

// The entries of a product's left side; of two states those of each, a row of a thread's.
FailureOr<SmallVector<Values>> RoleEmitter::leftSlabs(ChainState &state, const ChainProduct &product) {
  SmallVector<Value> lefts{product.left};
  if (plan.states > 1 && plan.stateOf(product.left) >= 0)
    lefts = llvm::to_vector_of<Value>(plan.program.argumentsOf(ArgKind::State));
  SmallVector<Values> all;
  for (Value left : lefts) {
    FailureOr<Values> entries = slab(state, left);
    if (failed(entries))
      return failure();
    all.push_back(*entries);
  }
  return all;
}

// A product that sums over keys, of which some are packed at a time: those of the turn before the last are
// done with by then. Others of the same left side are made with it.
FailureOr<SmallVector<Pending>> RoleEmitter::productInTurns(ChainState &state, const Issue &issue,
                                                            int64_t columns, bool rest,
                                                            ArrayRef<const ChainProduct *> beside) {
  const ChainProduct &product = *issue.product;
  FailureOr<SmallVector<Values>> lefts = leftSlabs(state, product);
  if (failed(lefts))
    return failure();
  constexpr size_t pairsOfStep = 4;
  size_t entriesOfStep = 2 * pairsOfStep / lefts->size();
  SmallVector<SmallVector<Step>> all(1 + beside.size(),
                                     SmallVector<Step>(lefts->front().size() / entriesOfStep));
  rightSteps(state, product, all[0]);
  for (auto [own, steps] : llvm::zip(beside, llvm::drop_begin(all)))
    rightSteps(state, *own, steps);
  size_t count = all[0].size(), turn = isInTurns(product) ? stepsOfTurn : count;
  SmallVector<Pending> sums(all.size());
  sums[0].entries = rest ? Values() : issue.start;
  // What is packed once more the assembler would keep from the first time, if it saw that it is the same.
  Value one;
  if (plan.states > 1 && product.wave > 0)
    one = ptx.loadFloats(state.stage.rows, slotOffset({}), 1)[0];
  for (size_t first = 0; first < count; first += turn) {
    if (first >= 2 * turn)
      ptx.await(all.size(), {});
    SmallVector<Values> rows;
    for (auto [i, entries] : llvm::enumerate(*lefts)) {
      Values part(ValueRange(entries).slice(first * entriesOfStep, turn * entriesOfStep));
      applyScale(part, lefts->size() == 1 ? issue.scale : RowScale{issue.scale[i], issue.scale[i]});
      for (Value &entry : part)
        entry = one ? ptx.multiply(entry, one) : entry;
      Values pairs = packedPairs(part);
      rows.push_back(rest ? packedPairs(restOf(part, pairs)) : pairs);
    }
    Values pairs = ptx.pin(rows.size() == 1 ? rows[0] : inTurns(rows[0], rows[1], Value(), 1));
    for (auto [sum, steps] : llvm::zip(sums, all)) {
      auto own = MutableArrayRef(steps).slice(first, turn);
      for (auto [i, step] : llvm::enumerate(own))
        step.left = Values(ArrayRef(pairs).slice(i * pairsOfStep, pairsOfStep));
      sum = ptx.product(columns, sum.entries, own, /*leftByDepth=*/false, /*rightByDepth=*/false);
    }
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
  FailureOr<SmallVector<Pending>> sums = failure();
  if (succeeded(findScale(state, issue)))
    sums = productInTurns(state, issue, columns, /*rest=*/true);
  if (failed(sums))
    return failure();
  return ptx.await(0, sums->front())[0];
}

// What a sum of products that make a state begins with, where that is no product.
static Value beginOf(const RolePlan &plan, Value state) {
  for (Value value = RolePlan::strip(state);;) {
    auto *product = llvm::find_if(plan.products, [&](const ChainProduct &p) { return p.result == value; });
    if (product == plan.products.end() || !product->start)
      return product == plan.products.end() ? value : Value();
    value = RolePlan::strip(product->start);
  }
}

bool RoleEmitter::KeyWalk::isBegin(const RolePlan &plan, Value value) {
  return plan.abreast > 1 &&
         llvm::any_of(plan.program.getBodyYield().getValues().take_front(plan.abreast),
                      [&](Value state) { return RolePlan::trace(beginOf(plan, state)) == value; });
}

// What states that each key couples leave for the next chunk, of all at once, entry by entry: each needs the
// old ones, and there are no registers for those beside the new ones.
LogicalResult RoleEmitter::KeyWalk::beginStates(RoleEmitter &roles, ChainState &state) {
  const RolePlan &plan = roles.plan;
  Ptx &ptx = roles.ptx;
  struct Term {
    int64_t table;
    ArrayRef<Value> old;
  };
  auto yielded = plan.program.getBodyYield().getValues().take_front(plan.abreast);
  SmallVector<SmallVector<Term>> sums(plan.abreast);
  for (auto [terms, next] : llvm::zip(sums, yielded)) {
    SmallVector<Value> work{beginOf(plan, next)};
    while (!work.empty()) {
      Operation *op = RolePlan::trace(RolePlan::strip(work.pop_back_val())).getDefiningOp();
      if (isa_and_present<AddOp>(op)) {
        llvm::append_range(work, op->getOperands());
        continue;
      }
      unsigned whole = op && RolePlan::isWholeOfKeys(op->getOperand(0)) ? 0 : 1;
      if (!isa_and_present<MulOp>(op) || !RolePlan::isWholeOfKeys(op->getOperand(whole)))
        return failure();
      auto weights = RolePlan::trace(op->getOperand(whole)).getDefiningOp<chunk::WeightsOp>();
      auto old = state.slabs.find(RolePlan::strip(op->getOperand(1 - whole)));
      if (old == state.slabs.end() || plan.stateOf(old->first) < 0)
        return failure();
      terms.push_back({int64_t(weights.getTo() * plan.abreast + weights.getFrom()), old->second});
    }
  }
  SmallVector<Values> results(plan.abreast);
  Value at = ptx.add(roles.wholesOf(state.chunk, state.stage), ptx.mul(ptx.bits(roles.lane, 3), 8));
  for (int64_t e = 0; e < roles.entriesOfState(); e += 4) {
    SmallVector<Values> pairs;
    for (ArrayRef<Term> terms : sums)
      for (const Term &term : terms)
        pairs.push_back(ptx.loadFloats(at, term.table * 4 * plan.keys + e / 4 * 32, 2));
    for (int64_t i = e; i < e + 4; ++i) {
      auto *pair = pairs.begin();
      for (auto [result, terms] : llvm::zip(results, sums)) {
        Value sum;
        for (const Term &term : terms) {
          Value part = ptx.multiply(term.old[i], (*pair++)[i % 2]);
          sum = sum ? ptx.sum(sum, part) : part;
        }
        result.push_back(sum);
      }
    }
  }
  for (auto [result, next] : llvm::zip(results, yielded))
    state.slabs[RolePlan::trace(beginOf(plan, next))] = result;
  return success();
}
