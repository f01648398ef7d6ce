// Functions of what is read of the state, which are written to it: systems of rows that are not linear. Turns
// are as in RoleSubstitution.cpp, but that a thread tells what its token writes; of two states it has one row
// (RoleTurns.cpp). Where a function takes sums over all rows, as norms do, the chain's warps meet for those
// that wait for no other, a token at a time, if not what is written is a sum of vectors
// (RoleCombinations.cpp). With micro-steps tokens are those.
#include "lib/Cuda/EntryFunctions.h"
#include "lib/Cuda/RoleSubstitution.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

using Join = llvm::function_ref<Value(Value, Value)>;

// Adds up floats, neighbours first.
static Value joined(Values parts, Join join) {
  while (parts.size() > 1) {
    for (size_t part = 0; part < parts.size() / 2; ++part)
      parts[part] = join(parts[2 * part], parts[2 * part + 1]);
    parts.resize(parts.size() / 2);
  }
  return parts.front();
}

// A warp's sum of one of the four tokens that a lane has: it hands those that it does not keep to a lane that
// does, which has the same four. It keeps the one that bits 4 and 3 of its index tell.
static Value keptSum(Ptx &ptx, Values sums, Value lane, Join join) {
  for (int64_t distance : {16, 8}) {
    Value keepsLast = ptx.compare(arith::CmpIPredicate::ne, ptx.bits(lane, distance), ptx.constant(0));
    size_t half = sums.size() / 2;
    for (size_t token = 0; token < half; ++token) {
      Value first = sums[token], last = sums[half + token];
      sums[token] = join(ptx.choose(keepsLast, last, first),
                         ptx.exchange(ptx.choose(keepsLast, first, last), distance));
    }
    sums.resize(half);
  }
  return join(sums.front(), ptx.exchange(sums.front(), 4));
}

// The sums of tokens' entries over the state's rows, those of all of the chain's warps: of the token whose
// turn it is, as others' are no sums of theirs, or, of no turn, of all 16 tokens of a block, of which a
// thread has four. Two places take turns, so that warps meet once for all. Rows that only tiles have do not
// count.
SmallVector<EntriesOfValue> RoleEmitter::Substitution::sumsOfRows(ArrayRef<EntriesOfValue> rows,
                                                                  ArrayRef<bool> areLargest,
                                                                  std::optional<int64_t> turn) {
  constexpr int64_t meeting = 10, most = 4; // a barrier of those who solve a system for all rows
  int64_t groups = roles.form.chainGroups(roles.plan), place = sums++ % 2 * roles.functionBytes() / 2;
  Value at = ptx.add(roles.base, roles.functionsAt + place);
  Value own = ptx.add(ptx.mul(roles.slabIndex, most), roles.warp);
  size_t each = this->rows();
  auto joinOf = [&](size_t i) {
    return [this, isLargest = areLargest[i]](Value x, Value y) -> Value {
      return isLargest ? arith::MaximumFOp::create(b, x, y).getResult() : ptx.sum(x, y);
    };
  };
  auto offsetOf = [&](size_t i) { return int64_t(i) * (turn ? 1 : tokensOfWarp) * sumsOfWarps; };
  int64_t inMemory = roles.plan.rowsInMemory();
  Value first = ptx.add(ptx.mul(own, rowsOfSlab / most / roles.plan.states), ptx.shiftRight(roles.lane, 2));
  Values ofWarp;
  for (auto [i, of] : llvm::enumerate(rows)) {
    EntriesOfValue entries = of;
    Value none = ptx.number(areLargest[i] ? -std::numeric_limits<double>::infinity() : 0);
    for (size_t e = 0; e < entries.size() && inMemory < roles.plan.independent; ++e)
      entries[e] =
          ptx.choose(ptx.below(ptx.add(first, 8 * (e % each)), ptx.constant(inMemory)), entries[e], none);
    Values ofTokens;
    for (size_t e = 0; e < entries.size(); e += each)
      ofTokens.push_back(each > 1 ? joinOf(i)(entries[e], entries[e + 1]) : entries[e]);
    if (!turn) {
      ofWarp.push_back(keptSum(ptx, ofTokens, roles.lane, joinOf(i)));
      continue;
    }
    Value sum = ofTokens.front();
    for (int64_t distance : {4, 8, 16})
      sum = joinOf(i)(sum, ptx.exchange(sum, distance));
    ofWarp.push_back(sum);
  }
  // Lane 8x + 4y + z has token x of lanes z.
  Value slot = ptx.mul(ptx.add(ptx.mul(ptx.shiftRight(roles.lane, 3), 4), pair), sumsOfWarps);
  Value to = ptx.add(turn ? at : ptx.add(at, slot), ptx.mul(own, 4));
  Value stores = turn ? ptx.equal(roles.lane, *turn) : ptx.equal(ptx.bits(roles.lane, 4), 0);
  roles.threads.when(stores, [&] {
    for (auto [i, sum] : llvm::enumerate(ofWarp))
      ptx.store(to, offsetOf(i), {sum});
  });
  ptx.meet(ptx.constant(meeting), 128 * groups);
  SmallVector<EntriesOfValue> all(rows.size());
  if (turn) {
    for (size_t i = 0; i < rows.size(); ++i) {
      Values parts;
      for (int64_t group = 0; group < groups; ++group)
        llvm::append_range(parts, ptx.loadFloats(at, offsetOf(i) + group * 4 * most, most));
      all[i].push_back(joined(parts, joinOf(i)));
    }
    return all;
  }
  // Two lanes add up a token's, as loads of all by all lanes are what warps would wait for.
  Value isSecond = ptx.bits(ptx.shiftRight(roles.lane, 2), 1);
  Value from = ptx.add(ptx.add(at, slot), ptx.mul(isSecond, 2 * most * groups));
  for (size_t i = 0; i < rows.size(); ++i) {
    Value half = joined(ptx.loadFloats(from, offsetOf(i), most / 2 * groups), joinOf(i));
    all[i].push_back(joinOf(i)(half, ptx.exchange(half, 4)));
  }
  return all;
}

// What a thread's four tokens have of a number that two lanes have of each of 16, for each row of theirs.
EntriesOfValue RoleEmitter::Substitution::ofOwnTokens(Value number) {
  EntriesOfValue entries;
  for (int64_t token = 0; token < 4; ++token)
    entries.append(rows(), ptx.shuffleByFours(number, 8 * token));
  return entries;
}

// A thread's entries of rows at a block of 16 tokens, or nothing.
Values RoleEmitter::Substitution::entriesOf(Value rows, int64_t block) {
  if (roles.plan.isRow(rows))
    return roles.columnsOf(state, {{rows}}, block);
  FailureOr<Values> entries = roles.sliceOf(state, rows, block);
  return succeeded(entries) ? *entries : Values();
}

// The same of params, which all tokens have.
Values RoleEmitter::Substitution::entriesOfParam(Value param) {
  if (roles.plan.isRow(param))
    return {};
  int64_t count = rowsOfSlab / roles.plan.states;
  Value slab = ptx.mul(ptx.add(roles.firstSlab, roles.slabIndex), count);
  Value row = ptx.add(ptx.add(slab, ptx.mul(roles.warp, count / 4)), ptx.shiftRight(roles.lane, 2));
  Value at = ptx.add(roles.base, ptx.mul(row, 4));
  Values entries;
  for (size_t own = 0; own < rows(); ++own)
    entries.append(2, ptx.loadFloats(at, roles.vectorAt(param) + 32 * own, 1)[0]);
  entries.append(Values(entries)); // of the second half of a block
  return entries;
}

LogicalResult RoleEmitter::Substitution::substitute(chunk::SubstituteOp op) {
  bool isSystem = roles.plan.ownSystem >= 0;
  if (isSystem)
    roles.awaitScores(state);
  SmallVector<Value> operands(op.getSides());
  llvm::append_range(operands, op.getRows());
  llvm::append_range(operands, op.getShared());
  Value left = roles.tokensLeft(state.chunk);
  if (int64_t steps = roles.plan.steps; steps > 1)
    left = ptx.mul(arith::MinSIOp::create(b, left, ptx.constant(roles.plan.tokens)), steps);
  left = arith::SubIOp::create(b, left, ptx.mul(pair, 2));
  Values known;
  Value reads = op.getReads().front(), writes = op.getWrites().front();
  llvm::MapVector<Value, Values> all;
  // What is an output alone is stored, or waits for the chunk's end in pairs, as registers are few.
  auto keep = [&](Value result, int64_t block, Values entries) {
    Values own = entries;
    if (std::optional<unsigned> output = roles.outputOf(result); output && !entries.empty()) {
      state.slabs[result] = entries;
      own = roles.storedOutput(state, *output, block, *roles.packedOutput(state, *output, result));
    }
    llvm::append_range(all[result], own);
  };
  llvm::DenseMap<Value, Values> ofParams;
  for (Value param : op.getShared())
    ofParams[param] = entriesOfParam(param);
  for (int64_t block = 0; block < 4; ++block) {
    SmallVector<Values> entries;
    for (Value operand : operands) {
      entries.push_back(ofParams.lookup(operand));
      if (entries.back().empty())
        entries.back() = entriesOf(operand, block);
      if (entries.back().empty())
        return failure();
    }
    state.slices.clear();
    Values given = entries.front(), entriesRead;
    if (isSystem)
      given = earlier(roles.plan.ownSystem, block, known, given);
    // The entries that tokens write, of those that are read: entry i of a value is its `place(i)`-th one.
    auto functions = [&](size_t count, std::optional<int64_t> turn, auto place, ValueRange found) {
      auto entryOf = [&](BlockArgument argument, size_t e) -> Value {
        return argument.getArgNumber() ? entries[argument.getArgNumber()][place(e)] : found[e];
      };
      auto ofLanes = [&](Value number) { return ofOwnTokens(number); };
      llvm::function_ref<EntriesOfValue(Value)> spread = nullptr;
      if (!turn)
        spread = ofLanes;
      auto sums = [&](ArrayRef<EntriesOfValue> of, ArrayRef<bool> areLargest) {
        return sumsOfRows(of, areLargest, turn);
      };
      return Values(lowerEntries(b, op, op.getYield().getValues(), roles.plan.isF16 ? 11 : 8, count, entryOf,
                                 sums, KnownEntries(), spread));
    };
    auto ofTurn = [&](size_t first, int64_t turn, ValueRange found) {
      return functions(rows(), turn, [&](size_t row) { return first + 2 * row; }, found);
    };
    Values results;
    if (roles.plan.combination) {
      entries.front() = given;
      results = combine(op, block, entries, left);
    } else if (roles.plan.hasNoLeaves) {
      // A thread's tokens are two of each eight.
      auto place = [&](size_t e) { return e / rows() / 2 * 2 * rows() + e / rows() % 2 + e % rows() * 2; };
      Values found(given.size());
      for (size_t e = 0; e < found.size(); ++e)
        found[e] = given[place(e)];
      entriesRead = given;
      Values entries = functions(found.size(), std::nullopt, place, found);
      for (Value write : llvm::reverse(op.getWrites())) {
        size_t first = write == writes ? 0 : found.size();
        results.resize(found.size());
        for (size_t e = 0; e < found.size(); ++e)
          results[place(e)] = entries[first + e];
        if (write != writes)
          keep(write, block, results);
      }
    } else {
      results = solve(block, {}, {}, given, ofTurn, &entriesRead);
    }
    // What tokens past the end would write may be no number. It comes to those before in products alone.
    for (auto [e, entry] : llvm::enumerate(results)) {
      int64_t token = block * 16 + e / (2 * rows()) * 8 + e % 2;
      Value exists = ptx.compare(arith::CmpIPredicate::sgt, left, ptx.constant(token));
      entry = ptx.choose(exists, entry, ptx.number(0));
    }
    llvm::append_range(known, sideOf(results));
    keep(reads, block, entriesRead);
    keep(writes, block, results);
    if (rows() == 2)
      leave(writes, block, results);
  }
  for (auto &[result, entries] : all)
    if (!entries.empty())
      (roles.outputOf(result) ? state.outputs : state.slabs)[result] = entries;
  return success();
}
