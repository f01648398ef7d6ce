// The chain through the state: 64 independent rows by one warpgroup, in registers. All that depends on the
// state is a slab: independent rows by tokens or keys, in the layout of a product's sums, which packed in
// pairs is that of a left operand.
#include "lib/Cuda/RolePieces.h"
#include "lib/Cuda/RoleScaledTiles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

RowFactors cuda::factorsOfDepth(const RolePlan &plan, const ChainProduct &product) {
  return product.kind == ChainProduct::Depth ? plan.asTile(product.right)->scale : RowFactors();
}

// A product's left side in pairs, those of its rest behind, before they are pinned.
FailureOr<RoleEmitter::PackedLeft> RoleEmitter::packedLeft(ChainState &state, const ChainProduct &product,
                                                           Value left) {
  if (left == plan.held())
    return PackedLeft{state.held, {}};
  RowFactors factors = factorsOfDepth(plan, product);
  std::optional<TokenTile> tile = plan.asTile(left);
  if (tile) // both factors in one
    llvm::append_range(factors, tile->scale);
  state.without = tile ? Value() : product.leftFactor;
  if (failed(solveFor(state, left)))
    return failure();
  Values entries;
  if (auto known = state.solved.find(&product); known != state.solved.end()) {
    if (!plan.isF16)
      return PackedLeft{known->second, {}};
    entries = known->second;
  } else {
    FailureOr<Values> plain = tile ? entriesOf(state, tile->input) : slab(state, left);
    state.without = {};
    if (failed(plain))
      return failure();
    entries = scaled(state, *plain, factors);
  }
  if (state.isPiece() && product.kind != ChainProduct::Rows)
    entries = Pieces(*this, state).ofPiece(entries);
  return packLeft(entries, plan.keepsRest(product) || plan.sumsRows(product));
}

// The left sides of a product's steps.
LogicalResult RoleEmitter::findLeft(ChainState &state, Issue &issue) {
  const ChainProduct &product = *issue.product;
  RowFactors factors = factorsOfDepth(plan, product);
  std::optional<TokenTile> tile = plan.asTile(product.left);
  if (tile && tile->scale.empty() && factors.empty() && plan.states == 1 &&
      !isMapOfChain(plan, tile->input)) {
    // A tile as it is needs no registers.
    issue.byDepth = true;
    Value at = ptx.add(ptx.add(state.stage.tiles, tileOffset(tile->input)),
                       ptx.mul(slabIndex, halfStride(tile->input)));
    Value descriptor = ptx.descriptor(at, 0);
    for (int64_t k = 0; k < tokensOfChunk / 16; ++k)
      issue.steps.push_back({{ptx.advance(descriptor, k * 2048)}, {}});
    return success();
  }
  std::pair<Value, Value> key(product.left, factors.empty() ? Value() : product.right);
  if (plan.stateOf(product.left) < 0 && product.other >= 0)
    key.second = product.result;
  PackedLeft &packed = state.packed[key];
  if (packed.pairs.empty()) {
    FailureOr<PackedLeft> left =
        plan.states > 1 ? leftInTurns(state, product) : packedLeft(state, product, product.left);
    if (failed(left))
      return failure();
    packed = {ptx.pin(left->pairs), left->scale};
  }
  issue.scale = packed.scale;
  for (size_t i = 0; i < packed.pairs.size(); i += 4)
    issue.steps.push_back({Values(ArrayRef(packed.pairs).slice(i, 4)), {}});
  return success();
}

// Whether the rows of scores are what is summed over.
bool RoleEmitter::liesTurned(const ChainProduct &product) const {
  return product.kind == ChainProduct::Inverse ||
         (product.kind == ChainProduct::Scores && plan.scores[product.scores].turned);
}

void RoleEmitter::rightSteps(ChainState &state, const ChainProduct &product, SmallVectorImpl<Step> &steps) {
  Value descriptor;
  size_t count = plan.keepsRest(product) ? steps.size() / 2 : steps.size();
  auto advance = [&](llvm::function_ref<int64_t(int64_t)> bytes) {
    for (auto [k, step] : llvm::enumerate(steps))
      step.right = ptx.advance(descriptor, bytes(k % count));
  };
  if (product.kind == ChainProduct::Rows || product.kind == ChainProduct::Depth) {
    BlockArgument input = placeOf(*plan.asTile(product.right));
    int64_t half = halfStride(input);
    descriptor = ptx.descriptor(tileAt(state.stage, input), product.kind == ChainProduct::Depth ? half : 0);
    if (product.kind == ChainProduct::Depth)
      advance([](int64_t k) { return k * 2048; });
    else
      advance([&](int64_t k) { return k / 4 * half + k % 4 * 32; });
    return;
  }
  bool inverse = product.kind == ChainProduct::Inverse;
  int64_t place = inverse ? plan.scores.size() : product.scores;
  bool turned = liesTurned(product);
  if (inStrips()) {
    descriptor = ptx.descriptor(ptx.add(state.scoresBase, scoreOffset(place)), turned ? stripBytes : 0,
                                /*rowBytes=*/64);
    advance([&](int64_t k) { return turned ? k * 1024 : stripAt(k / 2, turned) + k % 2 * 32; });
    return;
  }
  descriptor = ptx.descriptor(ptx.add(state.scoresBase, scoreOffset(place)), 0);
  advance([&](int64_t k) { return k * (turned ? 2048 : 32); });
  // The inverse's own rest.
  if (inverse && plan.splitsInverse)
    for (size_t k = 0; k < count; ++k)
      steps.push_back({steps[k].left, ptx.advance(steps[k].right, tileBytes)});
}

// Waits for the oldest products.
void RoleEmitter::land(ChainState &state, size_t count) {
  if (!count)
    return;
  ++state.waits;
  if (!state.rehearses && state.waits < state.fetches.size())
    for (auto [offset, isUniform, eighths] : state.fetches[state.waits])
      columnNumbers(state, offset, isUniform, eighths);
  if (!state.rehearses && state.waits < state.tileFetches.size())
    for (BlockArgument input : state.tileFetches[state.waits])
      tilePairs(state, input);
  SmallVector<Pending> pending;
  for (const auto &product : ArrayRef(state.inFlight).take_front(count))
    pending.push_back(product.pending);
  SmallVector<Values> landed = ptx.await(state.inFlight.size() - count, pending);
  for (auto [product, entries] : llvm::zip(state.inFlight, landed)) {
    applyScale(entries, product.scale, /*divides=*/true);
    for (auto [i, own] : llvm::enumerate(product.results)) {
      auto [result, count] = own;
      if (plan.states == 1)
        llvm::append_range(state.raw[result], ArrayRef(entries).take_front(count));
      else
        takeTurns(state, product.ofRows[i], ArrayRef(entries).take_front(count), product.sumsRows);
      entries.erase(entries.begin(), entries.begin() + count);
    }
  }
  state.inFlight.erase(state.inFlight.begin(), state.inFlight.begin() + count);
}

// Waits for the chunk's scores, once, or for the inverse of its system.
void RoleEmitter::awaitScores(ChainState &state, bool systemAlone) {
  if (systemAlone && blocksInScores)
    return ptx.await(barrier(SystemFull, state.buffer), state.bufferPhase);
  if (!state.waitedForScores)
    ptx.await(barrier(ScoresFull, state.buffer), state.bufferPhase);
  state.waitedForScores = true;
}

// Begins a product, and with it those of its stack; others of the stack begin nothing.
LogicalResult RoleEmitter::begin(ChainState &state, Issue &issue, ArrayRef<const ChainProduct *> wave) {
  const ChainProduct &product = *issue.product;
  SpecPlace place(b, product.result.getDefiningOp());
  auto inStack = [&](const ChainProduct *other) {
    return other == &product || (isStacked(product) && other->stack == product.stack);
  };
  if (*llvm::find_if(wave, inStack) != &product)
    return success();
  if (product.kind >= ChainProduct::Scores)
    awaitScores(state, product.kind == ChainProduct::Inverse);
  ChainState::InFlight next;
  next.sumsRows = plan.sumsRows(product);
  next.scale = issue.scale;
  int64_t columns = 0;
  for (const ChainProduct *other : llvm::make_filter_range(wave, inStack)) {
    int64_t own = product.kind == ChainProduct::Depth ? matType(plan.asTile(product.right)->input).numCols()
                  : other->ofTokens                   ? plan.columns
                                                      : tokensOfChunk;
    next.results.push_back({other->result, own / 2});
    auto &rows = next.ofRows.emplace_back();
    rows[other->row] = other->result;
    if (other->other >= 0)
      rows[1 - other->row] = plan.products[other->other].result;
    columns += own;
  }
  if (product.chained) {
    auto isStart = [&](const ChainState::InFlight &x) { return x.results[0].first == product.start; };
    for (const ChainState::InFlight &part : llvm::make_filter_range(state.inFlight, isStart))
      llvm::append_range(issue.start, part.pending.entries);
    llvm::erase_if(state.inFlight, isStart);
  }
  if (isInTurns(product)) {
    // Those of a stack whose rows have rings of their own are several.
    SmallVector<const ChainProduct *> beside;
    if (valuesPlaces)
      llvm::copy_if(wave, std::back_inserter(beside),
                    [&](const ChainProduct *other) { return other != &product && inStack(other); });
    FailureOr<SmallVector<Pending>> sums =
        productInTurns(state, issue, columns / (1 + beside.size()), /*rest=*/false, beside);
    if (failed(sums))
      return failure();
    for (auto [i, own] : llvm::enumerate(*sums)) {
      ChainState::InFlight part = next;
      if (!beside.empty())
        part.results = {next.results[i]};
      part.pending = own;
      state.inFlight.push_back(part);
    }
    return success();
  }
  rightSteps(state, product, issue.steps);
  if (product.kind == ChainProduct::Depth && plan.references() > 1) {
    state.written.push_back(issue);
    if (llvm::any_of(plan.products, [&](auto &x) { return x.chained && x.start == product.result; }))
      return success();
    next.pending = ScaledTiles(*this).overHalves(state, columns);
    state.inFlight.push_back(next);
    return success();
  }
  // The sums of many columns are easier to place in parts.
  ValueRange start = issue.start;
  for (int64_t first = 0; first < columns; first += mostKeysBeside) {
    int64_t own = std::min(columns - first, mostKeysBeside);
    ChainState::InFlight part = next;
    SmallVector<Step> steps = issue.steps;
    if (own < columns)
      part.results[0].second = own / 2;
    if (first)
      for (Step &step : steps)
        step.right = ptx.advance(step.right, first / 64 * halfStride(placeOf(*plan.asTile(product.right))));
    part.pending = ptx.product(own, start.empty() ? start : start.slice(first / 2, own / 2), steps,
                               issue.byDepth, product.kind == ChainProduct::Depth || liesTurned(product));
    state.inFlight.push_back(part);
  }
  return success();
}

LogicalResult RoleEmitter::emitChunk(ChainState &state) {
  auto yielded = plan.program.getBodyYield().getValues().take_front(plan.countStates() + plan.countOutputs());
  SmallVector<SmallVector<const ChainProduct *>> waves(plan.waves + 1);
  for (const ChainProduct &product : plan.products)
    if (!product.isSecond)
      waves[product.wave].push_back(&product);
  for (unsigned wave = 0; wave < plan.waves; ++wave) {
    // What the next wave begins with is computed first, so that the rest lands beside the next.
    auto isNext = [&](Value result) {
      return llvm::any_of(waves[wave + 1], [&](const ChainProduct *next) {
        return RolePlan::dependsOn(next->left, result) ||
               (next->start && RolePlan::dependsOn(next->start, result));
      });
    };
    SmallVector<const ChainProduct *> products;
    for (bool first : {true, false})
      llvm::copy_if(waves[wave], std::back_inserter(products), [&](const ChainProduct *product) {
        return first == (stacks || isNext(product->result));
      });
    bool waited = wave > 0, leavesEarly = wave == 1 && earlyPlaces && !state.isPiece();
    // Of a team: who makes the scores has read it, too, when the inverse is here.
    auto leaveEarly = [&] {
      if (leavesEarly && team > 1)
        awaitScores(state, /*systemAlone=*/true);
      if (leavesEarly)
        ptx.arrive(barrier(EarlyEmpty, earlyOf(state.chunk).first));
      leavesEarly = false;
    };
    if (state.inFlight.empty() && team == 1)
      leaveEarly();
    auto wait = [&] {
      if (waited)
        return;
      ptx.await(barrier(Full, state.stage.index), state.stage.phase);
      if (form.walksBeside)
        awaitTiles(state.chunk, state.stage);
      if (phase == Phase::Chain && earlyPlaces)
        ptx.await(barrier(EarlyFull, earlyOf(state.chunk).first), earlyOf(state.chunk).second);
      if (valuesPlaces)
        awaitValues(state.chunk, state.stage);
      waited = true;
    };
    llvm::DenseMap<const ChainProduct *, Values> rests;
    for (const ChainProduct *product : products) {
      if (!plan.isInParts(*product))
        continue;
      wait();
      Issue issue{product};
      FailureOr<Values> sums = productOfRest(state, issue);
      if (failed(sums))
        return failure();
      rests[product] = *sums;
    }
    auto takeStart = [&](Issue &issue) {
      FailureOr<Values> start =
          rests.count(issue.product) ? rests.lookup(issue.product) : startOf(state, issue);
      if (succeeded(start))
        issue.start = *start;
      return start;
    };
    size_t older = state.inFlight.size();
    // Who reads many keys of a state is done with it before what is added to it begins with it.
    SmallVector<Issue> issues;
    for (const ChainProduct *product : products) {
      Issue issue{product};
      if (!isInTurns(*product)) {
        issues.push_back(issue);
        continue;
      }
      wait();
      if (failed(findScale(state, issue)) || failed(takeStart(issue)) ||
          failed(begin(state, issue, products)))
        return failure();
    }
    // Left sides and what products are summed onto come first: no sum may be touched while a product that
    // it goes into is in flight.
    for (Issue &issue : issues) {
      if (!isa<BlockArgument>(issue.product->left) || plan.asTile(issue.product->left))
        wait();
      if (failed(findLeft(state, issue)))
        return failure();
    }
    wait();
    for (Issue &issue : issues)
      if (failed(takeStart(issue)))
        return failure();
    // What is waited for half-way comes last.
    for (bool isLate : {false, true})
      for (Issue &issue : issues)
        if ((plan.references() > 1 && issue.product->kind == ChainProduct::Depth) == isLate &&
            failed(begin(state, issue, products)))
          return failure();
    if (plan.states > 1 && failed(sumStarts(state, wave)))
      return failure();
    land(state, older);
    leaveEarly();
    if (wave + 1 < plan.waves) {
      // (Of f16 the left side of that product tells what it is multiplied with. One state of many keys is
      // slower.)
      if ((!stacks || (plan.isWide() && plan.states > 1)) && !plan.isF16)
        for (const ChainProduct *next : waves[wave + 1])
          if (next->start && !next->chained && plan.available.lookup(next->start) <= wave &&
              failed(startOf(state, {next})))
            return failure();
      size_t count = state.inFlight.size();
      while (!stacks && count &&
             llvm::none_of(llvm::make_first_range(state.inFlight[count - 1].results), isNext))
        --count;
      land(state, count);
      continue;
    }
    // Outputs are made under the state's product, where that is the last.
    size_t ofState = llvm::count_if(state.inFlight, [&](const ChainState::InFlight &x) {
      return llvm::any_of(yielded.take_front(plan.abreast),
                          [&](Value own) { return x.results[0].first == RolePlan::strip(own); });
    });
    land(state, state.inFlight.size() - ofState);
    Values outputs;
    for (auto [i, output] : llvm::enumerate(yielded.drop_front(plan.countStates()))) {
      FailureOr<Values> pairs = packedOutput(state, i, output);
      if (failed(pairs))
        return failure();
      llvm::append_range(outputs, *pairs);
    }
    // Where they take the place of what a product reads, it waits for that.
    if (outputPlace != plan.outputPlace) {
      land(state, state.inFlight.size());
      ptx.meet(outputsMeet(), 128);
    }
    if (!outputs.empty())
      storeOutputs(state, outputs);
    land(state, state.inFlight.size());
  }
  if (!state.isPiece() && !plan.scaling)
    leaveChunk(state);
  return success();
}

// One chunk of a slab: the state's entries after it.
FailureOr<Values> RoleEmitter::emitSlab(ChainState &state, Value chunk, ValueRange entries) {
  if (plan.rescales())
    return Pieces(*this, state).emit(chunk, entries);
  return plan.scaling ? ScaledTiles(*this).overChunk(state, chunk, entries)
                      : emitChunkOf(state, chunk, entries);
}

// The same, of a state that no decay of values has anything to do with any more.
FailureOr<Values> RoleEmitter::emitChunkOf(ChainState &state, Value chunk, ValueRange entries) {
  auto arguments = plan.program.argumentsOf(ArgKind::State);
  for (auto [i, argument] : llvm::enumerate(arguments))
    state.slabs[argument] = Values(entries.slice(i * entriesOfState(), entriesOfState()));
  // The assembler does not see that the loop's end has waited, and would again, beside the first products.
  if (plan.isWide())
    for (BlockArgument argument : arguments)
      state.slabs[argument] = ptx.await(0, Pending{state.slabs[argument]})[0];
  if (Value held = plan.held()) {
    Value number = ptx.mul(chunk, plan.tokens); // of the first token
    if (part.before)
      number = ptx.add(number, arith::TruncIOp::create(b, b.getI32Type(), part.before));
    Value isStart = ptx.equal(arith::RemUIOp::create(b, number, ptx.constant(plan.tokensOfBlock())), 0);
    Value argument = arguments[plan.stateOf(held.getDefiningOp<chunk::HeldOp>().getState())];
    Values now = packLeft(state.slabs[argument], /*withRest=*/false).pairs;
    for (auto [before, pair] : llvm::zip(entries.drop_front(plan.states * entriesOfState()), now))
      state.held.push_back(ptx.choose(isStart, pair, arith::BitcastOp::create(b, pair.getType(), before)));
  }
  if (isRoomy && !state.isPiece()) {
    // A first go, which is thrown away, finds the numbers.
    auto rehearsal = scf::IfOp::create(b, ptx.equal(chunk, 0), /*withElseRegion=*/false);
    ChainState trial = state;
    trial.rehearses = true;
    {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPoint(rehearsal.thenBlock()->getTerminator());
      if (succeeded(emitChunk(trial)))
        (void)slab(trial, plan.program.getBodyYield().getValues()[0]);
    }
    rehearsal.erase();
    state.fetches = trial.fetches;
    state.tileFetches = trial.tileFetches;
  }
  if (failed(emitChunk(state)))
    return failure();
  Values next;
  for (Value yielded : plan.program.getBodyYield().getValues().take_front(plan.countStates())) {
    FailureOr<Values> own = slab(state, yielded);
    if (failed(own))
      return failure();
    llvm::append_range(next, *own);
  }
  for (Value pair : state.held)
    next.push_back(arith::BitcastOp::create(b, b.getF32Type(), pair));
  return next;
}

LogicalResult RoleEmitter::emitChain(Value chunks) {
  ChainState role;
  slabIndex = arith::SubIOp::create(b, group, ptx.constant(1 + scorers.size()));
  // The only warpgroup has all of the block's slabs, and goes on with one after the other.
  int64_t count = slabs / form.chainGroups(plan);
  auto forSlabs = [&](llvm::function_ref<void(int64_t)> body) {
    for (int64_t own = 0; own < count; ++own) {
      if (form.walksBeside)
        slabIndex = ptx.constant(own);
      body(own);
    }
  };
  Value eighth = ptx.bits(lane, 7), row = ptx.add(eighth, ptx.mul(ptx.shiftRight(lane, 4), 8));
  Value chunkOfRow = ptx.exclusiveOr(ptx.add(ptx.mul(warp, 2), ptx.bits(ptx.shiftRight(lane, 3), 1)), eighth);
  role.matrixLane = ptx.add(ptx.mul(row, 128), ptx.mul(chunkOfRow, 16));
  if (plan.states > 1) {
    // Eight rows a warp: four matrices are 32 tokens of them.
    Value unit = ptx.exclusiveOr(ptx.add(ptx.mul(ptx.bits(slabIndex, 1), 4), warp), eighth);
    role.matrixLane = ptx.add(ptx.mul(lane, 128), ptx.mul(unit, 16));
  }
  Value pair = ptx.mul(ptx.bits(lane, 3), 8);
  LogicalResult status = success();
  Values carried;
  forSlabs([&](int64_t) { llvm::append_range(carried, initialState()); });
  size_t entries = carried.size(), each = entries / count;
  if (phase == Phase::Gather)
    carried.push_back(ptx.number(1));
  Value behind;
  auto body = [&](Value chunk, Stage stage, Value first, ValueRange values) {
    Values next;
    forSlabs([&](int64_t own) {
      ChainState state = role;
      state.stage = stage;
      state.first = first;
      state.chunk = chunk;
      state.isLastSlab = own + 1 == count;
      state.columns = ptx.add(stage.rows, pair);
      std::tie(state.buffer, state.bufferPhase) = bufferOf(chunk, stage);
      state.waitedForScores = phase == Phase::Chain; // they come with the inputs
      state.scoresBase = ptx.add(ptx.add(base, scoresAt), ptx.mul(state.buffer, scoreBytes));
      FailureOr<Values> after = emitSlab(state, chunk, values.slice(own * each, each));
      if (failed(after)) {
        status = failure();
        after = Values(values.slice(own * each, each));
      }
      llvm::append_range(next, *after);
      behind = state.behind;
      if (phase == Phase::Gather && succeeded(status))
        next.push_back(scaled(state, values[entries], *plan.stateScale())[0]);
    });
    return failed(status) ? Values(values) : next;
  };
  Values last;
  if (plan.comesInPieces())
    last = Pieces::overChunks(*this, chunks, carried,
                              [&](Value chunk, Stage stage, Value first, ValueRange values) {
                                Values next = body(chunk, stage, first, values);
                                return std::pair(behind, next);
                              });
  else
    last = forChunks(chunks, carried, [&](Value chunk, Stage stage, ValueRange values) {
      return body(chunk, stage, Value(), values);
    });
  forSlabs([&](int64_t own) {
    ArrayRef<Value> left = ArrayRef(last).slice(own * each, each);
    if (phase == Phase::Gather)
      storeGathered(left, last[entries]);
    else
      storeFinal(left);
    if (phase == Phase::Passed)
      passState(left);
  });
  return status;
}
