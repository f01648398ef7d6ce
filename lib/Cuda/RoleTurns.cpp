// Two states in one chain: of the two rows that a thread has of a product's sums, one is a row of the first
// state and the other the same row of the second. So one product reads both along the same keys, and one
// writes to both; what numbers take from the one state to the other stays in the thread. What belongs to
// neither is in one of the rows. Where it is a left side, the other one is zero, or has what rounding to bf16
// takes away where the plan keeps rests, and the product is the sum of both.
#include "lib/Cuda/RoleChain.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

Values cuda::inTurns(ArrayRef<Value> first, ArrayRef<Value> second, Value zero, size_t each) {
  Values all;
  for (size_t at = 0, count = std::max(first.size(), second.size()); at < count; at += each)
    for (ArrayRef<Value> own : {first, second})
      if (own.empty())
        all.append(each, zero);
      else
        llvm::append_range(all, own.slice(at, each));
  return all;
}

FailureOr<RoleEmitter::PackedLeft> RoleEmitter::leftInTurns(ChainState &state, const ChainProduct &product) {
  Values rows[2];
  RowScale scale;
  // What is written to the other state alone is times 0 here.
  auto isNothing = [&](const ChainProduct &own) {
    return llvm::any_of(factorsOfDepth(plan, own), [](RowFactor factor) {
      auto number = RolePlan::trace(factor.value).getDefiningOp<ConstantOp>();
      return number && number.getValue().isZero();
    });
  };
  auto set = [&](unsigned row, const ChainProduct &own, Value left) {
    if (isNothing(own))
      return true;
    FailureOr<PackedLeft> packed = packedLeft(state, own, left);
    if (failed(packed))
      return false;
    rows[row] = packed->pairs;
    scale[row] = packed->scale[0];
    return true;
  };
  bool done;
  if (plan.stateOf(product.left) >= 0) {
    auto states = plan.program.argumentsOf(ArgKind::State);
    done = set(0, product, states[0]) && set(1, product, states[1]);
  } else {
    done = set(product.row, product, product.left);
    if (done && plan.sumsRows(product)) {
      Values &both = rows[product.row];
      rows[1 - product.row] = Values(ArrayRef(both).take_back(both.size() / 2));
      both.truncate(both.size() / 2);
      scale[1 - product.row] = scale[product.row];
    }
    if (product.other >= 0) {
      const ChainProduct &other = plan.products[product.other];
      done = done && set(other.row, other, other.left);
    }
  }
  if (!done)
    return failure();
  return PackedLeft{inTurns(rows[0], rows[1], ptx.constant(0), 1), scale};
}

FailureOr<Values> RoleEmitter::startInTurns(ChainState &state, const ChainProduct &product) {
  Values rows[2];
  SmallVector<const ChainProduct *> both{&product};
  if (product.other >= 0)
    both.push_back(&plan.products[product.other]);
  for (const ChainProduct *own : both)
    if (own->start) {
      FailureOr<Values> start = startEntries(state, *own);
      if (failed(start))
        return failure();
      rows[own->row] = *start;
    }
  return inTurns(rows[0], rows[1], ptx.number(0), 2);
}

// Makes what later products are summed onto where that is known, beside those in flight: what was read of two
// states is twice as many registers as its sum.
LogicalResult RoleEmitter::sumStarts(ChainState &state, unsigned wave) {
  for (const ChainProduct &product : plan.products) {
    Value start = product.start ? RolePlan::trace(RolePlan::strip(product.start)) : Value();
    if (!start || product.chained || product.startScale || product.wave <= wave ||
        (product.kind == ChainProduct::Depth) || state.slabs.count(start) ||
        plan.available.lookup(product.start) > wave || wave == 0)
      continue;
    FailureOr<Values> entries = slab(state, start);
    if (failed(entries))
      return failure();
    state.slabs[start] = ptx.pin(*entries);
  }
  return success();
}

// Gives the entries of a product's sums to its results.
void RoleEmitter::takeTurns(ChainState &state, std::array<Value, 2> results, ValueRange entries, bool sums) {
  for (unsigned row : {0, 1}) {
    if (!results[row])
      continue;
    Values &own = state.raw[results[row]];
    for (size_t e = 0; e < entries.size(); e += 4)
      for (size_t i : {e + 2 * row, e + 2 * row + 1})
        own.push_back(sums ? ptx.sum(entries[i], entries[i ^ 2]) : entries[i]);
  }
}
