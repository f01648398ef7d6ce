// The entries of the chain's slabs: what is computed from products, tiles and numbers, entry by entry.
#include "lib/Cuda/RoleChain.h"
#include "lib/Cuda/RoleKeyWalk.h"
#include "lib/Cuda/Sequential.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Entries times numbers per column, or less that.
Values RoleEmitter::scaled(ChainState &state, ValueRange entries, RowFactors factors, bool isNegative) {
  Values results(entries);
  if (state.without) {
    factors = RolePlan::flatten(factors);
    if (auto *found = llvm::find(factors, RowFactor{state.without}); found != factors.end())
      factors.erase(found);
  }
  auto signedOf = [&](Value number) { return isNegative ? ptx.negative(number) : number; };
  if (factors.empty()) {
    for (Value &entry : results)
      entry = signedOf(entry);
    return results;
  }
  if (factors.size() == 1 && !factors[0].divides)
    if (auto constant = RolePlan::trace(factors[0].value).getDefiningOp<ConstantOp>()) {
      double number = constant.getValue().convertToDouble();
      Value factor = ptx.number(isNegative ? -number : number);
      for (Value &entry : results)
        entry = ptx.multiply(entry, factor);
      return results;
    }
  int64_t offset = slotOffset({factors, {}, false, isOfTokens(entries)});
  if (llvm::all_of(factors, [](RowFactor f) { return RolePlan::isUniform(f.value); })) {
    Value factor = signedOf(columnNumbers(state, offset, true)[0]);
    for (Value &entry : results)
      entry = ptx.multiply(entry, factor);
    return results;
  }
  // (What follows from reads beside scores is not there ahead.)
  if (!isRoomy || RolePlan::isLate(factors)) {
    for (size_t e = 0, each = entriesOfEight(); e < results.size(); e += each) {
      Values pair = ptx.loadFloats(state.columns, offset + e / each * 32, 2);
      for (size_t i = 0; i < each; ++i)
        results[e + i] = ptx.multiply(results[e + i], signedOf(pair[i % 2]));
    }
    return results;
  }
  Values numbers = columnNumbers(state, offset, false, results.size() / 4);
  for (size_t e = 0; e < results.size(); ++e)
    results[e] = ptx.multiply(results[e], signedOf(numbers[e / 4 * 2 + e % 2]));
  return results;
}

// The numbers of a slot at the thread's columns, or the one that all have. With registers to spare they are
// fetched before the wait that they are first used after.
Values RoleEmitter::columnNumbers(ChainState &state, int64_t offset, bool isUniform, int64_t eighths) {
  if (isUniform && !isRoomy)
    return ptx.loadFloats(state.stage.rows, offset, 1);
  Values &numbers = state.numbers[isUniform ? -1 - offset : offset];
  if (!numbers.empty())
    return numbers;
  if (state.rehearses) {
    state.fetches.resize(std::max<size_t>(state.fetches.size(), state.waits + 1));
    state.fetches[state.waits].push_back({offset, isUniform, eighths});
  }
  if (isUniform)
    numbers = ptx.loadFloats(state.stage.rows, offset, 1);
  else
    for (int64_t e = 0; e < eighths; ++e)
      llvm::append_range(numbers, ptx.loadFloats(state.columns, offset + e * 32, 2));
  return numbers;
}

FailureOr<Values> RoleEmitter::slab(ChainState &state, Value value) {
  value = RolePlan::strip(value);
  auto inner = RolePlan::trace(value);
  for (Value name : {value, inner})
    if (auto known = state.slabs.find(name); known != state.slabs.end())
      return known->second;
  for (const ChainProduct &product : plan.products)
    if (product.result == inner) {
      auto known = state.raw.find(inner);
      if (known == state.raw.end())
        return failure();
      return state.slabs[inner] = scaled(state, known->second, product.resultScale);
    }
  if (KeyWalk::isBegin(plan, inner)) {
    if (failed(KeyWalk::beginStates(*this, state)))
      return failure();
    return state.slabs.lookup(inner);
  }
  FailureOr<Values> entries = entriesOf(state, inner);
  if (succeeded(entries))
    state.slabs[inner] = *entries;
  return entries;
}

// A slab of a tile, transposed, in pairs; with registers to spare fetched ahead like numbers, and kept.
Values RoleEmitter::tilePairs(ChainState &state, BlockArgument input) {
  if (BlockArgument stack = plan.oneRowLater(input)) {
    Values all = tilePairs(state, stack), later;
    for (size_t eight = 0; eight < all.size(); eight += 4)
      llvm::append_range(later, Values{ptx.constant(0), ptx.constant(0), all[eight], all[eight + 1]});
    return later;
  }
  Values &pairs = state.pairs[input];
  if (!isRoomy)
    pairs.clear();
  if (!pairs.empty())
    return pairs;
  if (state.rehearses) {
    state.tileFetches.resize(std::max<size_t>(state.tileFetches.size(), state.waits + 1));
    state.tileFetches[state.waits].push_back(input);
  }
  Value at = ptx.add(ptx.add(tilesOf(state.stage, input), state.matrixLane),
                     ptx.mul(halfOfSlab(), halfStride(input)));
  for (int64_t step = 0; step < plan.rowsOf(input) / 16 / plan.states; ++step)
    llvm::append_range(pairs, ptx.loadMatrices(at, tileOffset(input) + step * 2048 * plan.states, true));
  return mapPairs(input, pairs);
}

bool RoleEmitter::isOfTokens(ValueRange entries) const {
  return plan.steps > 1 && int64_t(entries.size()) == plan.columns / 2;
}

FailureOr<Values> RoleEmitter::entriesOf(ChainState &state, Value value) {
  if (std::optional<TokenTile> tile = plan.asTile(value)) {
    Values entries;
    for (Value pair : tilePairs(state, tile->input))
      llvm::append_range(entries, ptx.unpack(pair));
    // Beside what is of rows, of which tokens' are picked, both rows of a token have what is the token's.
    if (plan.picksOutputs && isOfTokens(entries)) {
      Values ofRows;
      for (size_t e = 0; e < entries.size(); e += 4)
        for (int row = 0; row < 2; ++row)
          llvm::append_range(ofRows, ArrayRef(entries).slice(e, 4));
      entries = ofRows;
    }
    return scaled(state, entries, tile->scale);
  }
  if (plan.rowDecay)
    if (std::optional<FailureOr<Values>> entries = decayedRows(state, value.getDefiningOp()))
      return *entries;
  auto op = value.getDefiningOp<ElementwiseOp>();
  if (!op)
    return failure();
  for (unsigned i : {0, 1})
    if (isa<MulOp>(op) && RolePlan::isWholeOfKeys(op->getOperand(i))) {
      FailureOr<Values> entries = slab(state, op->getOperand(1 - i));
      return failed(entries) ? entries : FailureOr<Values>(decayedWhole(state.chunk, state.stage, *entries));
    }
  // Factors of columns together make one number.
  bool isNegative = isa<NegOp>(op);
  RowFactors factors;
  Value rest = isNegative ? RolePlan::trace(RolePlan::strip(op->getOperand(0))) : value;
  if (isa<MulOp, DivOp, NegOp>(op)) {
    while (Operation *product = rest.getDefiningOp()) {
      bool divides = isa<DivOp>(product);
      if (!divides && !isa<MulOp>(product))
        break;
      unsigned number = !divides && plan.isRow(product->getOperand(0)) ? 0 : 1;
      if (!plan.isRow(product->getOperand(number)))
        break;
      factors.push_back({product->getOperand(number), divides});
      rest = RolePlan::trace(RolePlan::strip(product->getOperand(1 - number)));
    }
    for (const ChainProduct &product : plan.products)
      if (isNegative && product.result == rest && state.raw.count(rest) && !state.slabs.count(rest)) {
        llvm::append_range(factors, product.resultScale);
        return scaled(state, state.raw.lookup(rest), factors, isNegative);
      }
  }
  if (isa<MulOp, DivOp>(op)) {
    bool isNumber =
        factors.size() == 1 && !factors[0].divides && factors[0].value.getDefiningOp<ConstantOp>();
    // Onto a sum's products, which have factors of their own.
    if (auto sum = rest.getDefiningOp<AddOp>(); sum && !factors.empty()) {
      Values sides[2];
      for (unsigned i : {0, 1})
        for (const ChainProduct &product : plan.products)
          if (Value side = RolePlan::strip(sum->getOperand(i));
              product.result == side && state.raw.count(side)) {
            RowFactors all(factors);
            llvm::append_range(all, product.resultScale);
            sides[i] = scaled(state, state.raw.lookup(side), all);
          }
      if (!sides[0].empty() && !sides[1].empty()) {
        for (auto [x, y] : llvm::zip(sides[0], sides[1]))
          x = ptx.sum(x, y);
        return sides[0];
      }
    }
    if (!factors.empty() && !isNumber) {
      for (const ChainProduct &product : plan.products)
        if (product.result == rest && state.raw.count(rest) && !state.slabs.count(rest)) {
          llvm::append_range(factors, product.resultScale);
          return scaled(state, state.raw.lookup(rest), factors);
        }
      FailureOr<Values> entries = slab(state, rest);
      return failed(entries) ? entries : FailureOr<Values>(scaled(state, *entries, factors));
    }
  }
  SmallVector<Values> operands;
  size_t count = 0;
  for (Value operand : op->getOperands()) {
    Value number = RolePlan::trace(operand);
    if (auto constant = number.getDefiningOp<ConstantOp>()) {
      operands.push_back({ptx.number(constant.getValue().convertToDouble())});
      continue;
    }
    if (plan.isRow(operand)) {
      operands.push_back({});
      continue;
    }
    FailureOr<Values> entries = slab(state, operand);
    if (failed(entries))
      return failure();
    count = entries->size();
    operands.push_back(*entries);
  }
  for (auto [operand, entries] : llvm::zip(op->getOperands(), operands))
    if (entries.empty())
      entries = scaled(state, Values(count, ptx.number(1)), {{operand}});
  // What comes of functions is rounded to 16 bits, or two bf16, before anything reads it.
  Relaxing listener;
  OpBuilder relaxed(b.getContext(), &listener);
  relaxed.setInsertionPoint(b.getInsertionBlock(), b.getInsertionPoint());
  Values results;
  for (size_t e = 0; e < count; ++e) {
    Values arguments;
    for (const Values &entries : operands)
      arguments.push_back(entries[entries.size() == 1 ? 0 : e]);
    results.push_back(op.lower(relaxed, b.getLoc(), arguments));
  }
  return results;
}
