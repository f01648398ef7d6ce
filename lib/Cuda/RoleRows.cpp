// One number per token: gates, sums of decays, norms. Lanes hold two neighbouring tokens each.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleBesideScores.h"
#include "lib/Cuda/RoleRowState.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

std::array<Value, 2> RoleEmitter::decaySums(RowState &state, Value decay, bool before) {
  auto [it, isNew] = state.sums.try_emplace(decay);
  if (isNew) {
    bool hasLogs = decay.getDefiningOp<chunk::DecayOp>().getLog() != nullptr;
    std::array<Value, 2> logs = row(state, RolePlan::sourceOf(decay));
    for (int i : {0, 1}) {
      // A factor of 0 counts as one of 2^-200; past the end nothing decays.
      Value log = hasLogs ? ptx.multiply(logs[i], ptx.number(llvm::numbers::log2e)) : ptx.log2(logs[i]);
      log = arith::MaximumFOp::create(b, log, ptx.number(-200));
      logs[i] = ptx.choose(state.valid[i], log, ptx.number(0));
    }
    std::array<Value, 2> counted = logs;
    // Rows at one time have one decay: it counts where the first ones are, and the others take it over.
    for (unsigned i : {0, 1})
      if (plan.atOnce)
        counted[i] = ptx.choose(ptx.equal(state.steps[i], 0), logs[i], ptx.number(0));
    Value sum = ptx.sum(counted[0], counted[1]);
    if (plan.isStacked())
      sum = ptx.choose(ptx.equal(state.steps[0], 0), sum, ptx.number(0));
    auto shuffle = [&](Value x, int64_t by, int64_t bound, NVVM::ShflKind kind) -> Value {
      return NVVM::ShflOp::create(b, b.getF32Type(), ptx.constant(-1), x, ptx.constant(by),
                                  ptx.constant(bound), kind, UnitAttr());
    };
    for (int64_t distance = 1; distance < 32; distance *= 2) {
      Value other = shuffle(sum, distance, 0, NVVM::ShflKind::up);
      Value exists = ptx.compare(arith::CmpIPredicate::uge, lane, ptx.constant(distance));
      sum = ptx.choose(exists, ptx.sum(sum, other), sum);
    }
    Value whole = shuffle(sum, 31, 31, NVVM::ShflKind::idx);
    Value first = ptx.difference(sum, counted[1]);
    for (Value *x : {&first, &sum})
      if (plan.isStacked())
        *x = ptx.shuffle(*x, ptx.bits(lane, 27));
    state.sums[decay] = {first, sum, whole};
    state.known[decay] = logs;
  }
  std::array<Value, 3> sums = state.sums.lookup(decay);
  if (!before && !chunk::isLate(decay))
    return {sums[0], sums[1]};
  // The second row's token comes after the first one's, or is the same one; or it is a token's second row in
  // turn, before which the token has decayed.
  std::array<Value, 2> logs = state.known.lookup(decay);
  Value second = plan.atOnce || plan.inTurn ? ptx.difference(sums[1], logs[1]) : sums[0];
  return {ptx.difference(sums[0], logs[0]), second};
}

// What tokens that look at the start of their blocks have, of numbers of those before each token: those of
// the block's first one. Blocks have 2^n tokens, so both of a lane's are in one, or it has no more than one.
std::array<Value, 2> RoleEmitter::atStart(std::array<Value, 2> before) {
  int64_t lanes = *plan.starts() / 2;
  if (!lanes)
    return before;
  Value first = ptx.shuffle(before[0], ptx.bits(lane, 32 - lanes));
  return {first, first};
}

// The binary logarithm of what the decays that the state forgets by leave of it in a chunk.
Value RoleEmitter::decayOfChunk(TensorAccess &access, Value chunk) {
  RowState state(access, {});
  setTokens(state, chunk);
  Value sum = ptx.number(0);
  if (plan.decay) {
    for (unsigned i : {0, 1})
      sum = ptx.sum(sum, slowestKey(state, i));
    for (int64_t distance = 1; distance < 32; distance *= 2)
      sum = ptx.sum(sum, ptx.exchange(sum, distance));
    return sum;
  }
  for (Value decay : plan.forgetting()) {
    if (decay == plan.rowDecay) {
      sum = ptx.sum(sum, slowestValue(access, chunk));
      continue;
    }
    if (!isa<MatType>(decay.getType())) {
      decaySums(state, decay, false);
      sum = ptx.sum(sum, state.sums.lookup(decay)[2]);
      continue;
    }
    // A number that bounds what is left, that of tokens, not of each of their rows.
    std::array<Value, 2> bounds = row(state, decay);
    Value own = ptx.number(0);
    for (unsigned i : {0, 1}) {
      Value log = arith::MaximumFOp::create(b, ptx.log2(bounds[i]), ptx.number(-200));
      own = ptx.sum(own, ptx.choose(state.valid[i], log, ptx.number(0)));
    }
    if (plan.isStacked())
      own = ptx.choose(ptx.equal(state.steps[0], 0), own, ptx.number(0));
    for (int64_t distance = 1; distance < 32; distance *= 2)
      own = ptx.sum(own, ptx.exchange(own, distance));
    sum = ptx.sum(sum, own);
  }
  return sum;
}

// What decays within a token's 16, from their start to the token or from there to their end.
std::array<Value, 2> RoleEmitter::decayWithin(RowState &state, const Slot &slot) {
  // Eight lanes have 16 tokens.
  std::array<Value, 2> results = decaySums(state, slot.decay, slot.before);
  Value last = state.sums.lookup(slot.decay)[1];
  bool toEnd = slot.within == Slot::End;
  Value from =
      toEnd ? arith::OrIOp::create(b, lane, ptx.constant(7)).getResult() : ptx.add(ptx.bits(lane, 24), -1);
  Value edge = ptx.shuffle(last, from);
  if (!toEnd)
    edge = ptx.choose(ptx.below(lane, ptx.constant(8)), ptx.number(0), edge);
  for (Value &x : results)
    x = ptx.exp2(toEnd ? ptx.difference(edge, x) : ptx.difference(x, edge));
  return results;
}

std::array<Value, 2> RoleEmitter::row(RowState &state, Value value) {
  value = RolePlan::trace(value);
  if (auto known = state.known.find(value); known != state.known.end())
    return known->second;
  std::array<Value, 2> result;
  chunk::ProgramOp program = plan.program;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    if (plan.ofToken(argument))
      return state.known[value] = numberOfNext(state, argument);
    ArgKind kind = program.getArg(argument.getArgNumber()).getKind();
    for (int i : {0, 1}) {
      if (kind == ArgKind::Input || kind == ArgKind::Param) {
        if (auto *own = llvm::find(plan.rowNumbers, argument); own != plan.rowNumbers.end()) {
          Value isRow = ptx.equal(state.steps[i], own - plan.rowNumbers.begin());
          result[i] = ptx.choose(isRow, ptx.number(1), ptx.number(0));
          continue;
        }
        Value token = kind == ArgKind::Input ? state.tokens[i] : Value();
        // What is that of a block's last token, or of the last one that there is.
        if (int64_t block = program.getArg(argument.getArgNumber()).getBlock()) {
          Value own = arith::ExtUIOp::create(b, b.getI64Type(), state.locals[i]), none = ptx.constant(0, 64);
          Value end = arith::OrIOp::create(b, own, ptx.constant(block - 1, 64));
          end = arith::MinSIOp::create(b, end, ptx.add(state.left, ptx.constant(-1, 64)));
          Value past = arith::SubIOp::create(b, end, own);
          token = ptx.add(token, ptx.choose(state.valid[i], past, none));
        }
        Value step = state.steps[i];
        if (step)
          step = arith::ExtUIOp::create(b, b.getI64Type(), step);
        result[i] = state.access.load(plan.tensorOf(argument), 0, token, step).entries[0];
      } else {
        Value number = kind == ArgKind::Head    ? part.head
                       : kind == ArgKind::Heads ? part.heads
                                                : ptx.add(part.position, state.tokens[i]);
        result[i] = arith::SIToFPOp::create(b, b.getF32Type(), number);
      }
    }
    return state.known[value] = result;
  }
  Operation *op = value.getDefiningOp();
  SpecPlace place(b, op);
  TypeSwitch<Operation *>(op)
      .Case([&](ConstantOp c) { result.fill(ptx.number(c.getValue().convertToDouble())); })
      .Case([&](BroadcastOp broadcast) { result = row(state, broadcast.getOperand()); })
      .Case([&](chunk::WeightsOp w) {
        using chunk::Span;
        if (isa<chunk::CascadeType>(w.getDecay().getType())) {
          result = cascadeWeights(state, w);
          return;
        }
        if (RolePlan::areSigns(w.getDecay())) {
          result = signWeights(state, w);
          return;
        }
        bool isStart = w.getSpan() == Span::Start;
        std::array<Value, 2> sums = decaySums(state, w.getDecay(), w.getSpan() == Span::Until || isStart);
        if (isStart)
          sums = atStart(sums);
        Value whole = state.sums.lookup(w.getDecay())[2];
        for (int i : {0, 1})
          result[i] = ptx.exp2(w.getSpan() == Span::Whole  ? whole
                               : w.getSpan() == Span::Rest ? ptx.difference(whole, sums[i])
                                                           : sums[i]);
      })
      .Case([&](ReduceOp r) {
        auto [sum, ofStack] = plan.sumsInStacks.lookup(r);
        Value at = sumsOf(state.chunk, sum ? sum : r);
        if (sum) {
          for (int i : {0, 1})
            result[i] =
                ptx.loadFloats(ptx.add(at, ptx.mul(rowInStack(ptx, state.locals[i], ofStack), 4)), 0, 1)[0];
          return;
        }
        if (walkersSum()) {
          Values parts[2];
          for (int64_t walker : {0, 1})
            parts[walker] = ptx.loadFloats(ptx.add(at, ptx.mul(lane, 8)), walker * slotBytes, 2);
          for (int i : {0, 1})
            result[i] = ptx.sum(parts[0][i], parts[1][i]);
          return;
        }
        if (plan.isOfTokens(r.getOperand())) {
          for (int i : {0, 1})
            result[i] = ptx.loadFloats(ptx.add(at, ptx.mul(placeOfSum(r, state.locals[i]), 4)), 0, 1)[0];
          return;
        }
        Values sums = ptx.loadFloats(ptx.add(at, ptx.mul(lane, 8)), 0, 2);
        result = {sums[0], sums[1]};
      })
      .Case([&](ElementwiseOp e) {
        SmallVector<std::array<Value, 2>> operands;
        for (Value operand : op->getOperands())
          operands.push_back(row(state, operand));
        for (int i : {0, 1}) {
          Values entries;
          for (const auto &operand : operands)
            entries.push_back(operand[i]);
          result[i] = e.lower(b, b.getLoc(), entries);
        }
      });
  return state.known[value] = result;
}

std::array<Value, 2> RoleEmitter::reciprocal(RowState &state, Value value) {
  value = RolePlan::trace(value);
  auto [it, isNew] = state.reciprocals.try_emplace(value);
  if (!isNew)
    return it->second;
  auto root = value.getDefiningOp<SqrtOp>();
  std::array<Value, 2> result = row(state, root ? root->getOperand(0) : value);
  for (Value &x : result)
    x = root ? ptx.reciprocalRoot(x) : ptx.reciprocal(x);
  return state.reciprocals[value] = result;
}

void RoleEmitter::setTokens(RowState &state, Value chunk) {
  Value first = arith::ExtUIOp::create(b, b.getI64Type(), ptx.mul(numberOf(chunk), plan.tokens));
  state.left = arith::SubIOp::create(b, part.tokens, first);
  Value own = lane;
  for (int64_t i : {0, 1}) {
    Value row = ptx.add(ptx.mul(own, 2), i);
    state.locals[i] = row;
    if (plan.isStacked()) {
      state.locals[i] = ptx.add(ptx.mul(ptx.shiftRight(row, 4), 8), ptx.bits(row, 7));
      state.steps[i] = ptx.bits(ptx.shiftRight(row, 3), 1);
    } else if (plan.isFirst) {
      state.locals[i] = arith::DivUIOp::create(b, row, ptx.constant(plan.steps));
      state.steps[i] = arith::SubIOp::create(b, row, ptx.mul(state.locals[i], plan.steps));
    }
    Value local = arith::ExtUIOp::create(b, b.getI64Type(), state.locals[i]);
    state.valid[i] = ptx.compare(arith::CmpIPredicate::slt, local, state.left);
    if (plan.tokens * plan.steps < tokensOfChunk)
      state.valid[i] = arith::AndIOp::create(
          b, state.valid[i], ptx.compare(arith::CmpIPredicate::slt, local, ptx.constant(plan.tokens, 64)));
    // Past the end the chunk's first token is read, and dropped.
    state.tokens[i] = ptx.add(first, ptx.choose(state.valid[i], local, ptx.constant(0, 64)));
  }
}

// Clears the rows of inputs after those of a number of tokens.
void RoleEmitter::clearRows(Value chunk, Stage stage, Value tokens) {
  Value zero = ptx.number(0), packet = ptx.mul(ptx.bits(lane, 7), 16);
  auto clear = [&](ArrayRef<BlockArgument> inputs) {
    SmallVector<int64_t> tiles;
    for (BlockArgument input : inputs)
      for (int64_t half = 0; half < halvesOf(input); ++half)
        tiles.push_back(tileOffset(input) + half * halfStride(input));
    llvm::sort(tiles);
    bool hasSteps = plan.hasSteps(inputs.front());
    bool byEights = hasSteps && plan.isStacked(), hasMore = hasSteps && !byEights;
    Value first = ptx.add(ptx.mul(tokens, hasMore ? plan.steps : 1), ptx.shiftRight(lane, 3));
    Value end = ptx.constant(hasMore ? tokensOfChunk : plan.columns);
    threads.forLoop(first, end, ptx.constant(4), {}, [&](Value row, ValueRange) {
      // Eight more for each eight before.
      if (byEights)
        row = ptx.add(row, ptx.mul(ptx.shiftRight(row, 3), 8));
      Value at = ptx.add(ptx.add(tilesOf(stage, inputs.front()), packet), ptx.mul(row, rowBytes));
      for (int64_t tile : tiles)
        for (int64_t more = 0; more < (byEights ? 2 : 1); ++more)
          ptx.store(at, tile + more * 8 * rowBytes, {zero, zero, zero, zero}, /*relaxed=*/true);
      return Values();
    });
  };
  // Those of a chain that are read first are made of rows that are cleared, and so are those that a team's
  // blocks make for one another. The others of a team's chunk that another block walks are not here.
  llvm::MapVector<unsigned, SmallVector<BlockArgument>> alike;
  if (valuesPlaces)
    awaitValues(chunk, stage);
  auto ofScaled = plan.inputsOfScaled(); // those who scale clear them before
  for (BlockArgument input : copiedInputs(plan, phase))
    if (!ofScaled.contains(input) && (!isEarly(input) || phase != Phase::Chain) &&
        !form.sharesMap(plan, input))
      alike[16 * isApart(input) + 8 * isWalked(input) + 4 * plan.hasSteps(input) + 2 * isEarly(input) +
            isLogsAhead(input)]
          .push_back(input);
  for (auto &[kind, inputs] : alike)
    if (isWalked(inputs.front()))
      threads.when(isOwn(chunk), [&, &inputs = inputs] { clear(inputs); });
    else
      clear(inputs);
}

// Whether what is stored in a slot follows from sums over rows.
bool RoleEmitter::waits(const Slot &slot) const {
  return (slot.decay && RolePlan::needsSums(RolePlan::sourceOf(slot.decay))) ||
         llvm::any_of(slot.factors, [](RowFactor factor) { return RolePlan::needsSums(factor.value); });
}

// Stores a part of the masks that need sums, or of the others, in the block that makes the chunk's scores.
void RoleEmitter::fillMasks(const RowState &state, RowPart which, bool late) {
  SmallVector<int> masks;
  for (int mask = 0, count = plan.masks.size(); mask < count; ++mask)
    if (llvm::any_of(plan.masks[mask].numbers(), RolePlan::needsSums) == late)
      masks.push_back(mask);
  auto fill = [&] {
    RowState own = state;
    for (int mask : masks)
      fillMask(own, mask, which);
  };
  if (masks.empty() || team == 1)
    return fill();
  threads.when(ptx.compare(arith::CmpIPredicate::eq, ptx.bits(state.chunk, team - 1), rank()), fill);
}

// Whether a place is free only when the warp that makes numbers has seen it full: walkers, whose sums it
// takes, have done with their tiles before that.
bool RoleEmitter::numbersHoldPlace() const { return phase == Phase::Prepare && walkersSum() && !rowsApart(); }

// Numbers per token or, where there are masks of coupled states, a part of these by each of the warps that
// sum over rows: they take longer than all else.
void RoleEmitter::emitRows(Value chunks, RowPart which) {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  // Of the part that is known: finding it again would keep more in registers. No state is read here.
  access.locate(part.sequence, part.sequence, part.begin, part.head, part.shard, plan.independent);
  // The chain's come with its records.
  size_t count = phase == Phase::Chain ? 0 : slots.size();
  SmallVector<BlockArgument> inputs;
  for (BlockArgument input : plan.program.argumentsOf(ArgKind::Input))
    if (count && plan.isRow(input) && !input.use_empty() && !plan.isForNextAlone(input))
      inputs.push_back(input);
  // Numbers are fetched a chunk ahead.
  auto fetch = [&](Value chunk) {
    RowState state(access, {});
    lane = freshLane();
    setTokens(state, chunk);
    Values fetched;
    for (BlockArgument input : inputs)
      llvm::append_range(fetched, row(state, input));
    return fetched;
  };
  // Registers are few.
  Value sameLane = lane;
  Value last = ptx.add(chunks, -1);
  forChunks(chunks, fetch(ptx.constant(0)), [&](Value chunk, Stage stage, ValueRange fetched) {
    RowState state(access, stage);
    state.chunk = chunk;
    lane = freshLane();
    setTokens(state, chunk);
    Value left = state.left;
    for (auto [i, input] : llvm::enumerate(inputs))
      state.known[input] = {fetched[2 * i], fetched[2 * i + 1]};
    Values next = fetch(arith::MinSIOp::create(b, ptx.add(chunk, 1), last));
    // The place's last numbers are done with: so was the chunk whose place the one before has taken.
    auto await = [&] { ptx.await(barrier(Loaded, stage.index), stage.phase); };
    if (!rowsAhead())
      await();
    if (which != RowPart::Numbers) {
      fillMasks(state, which, /*late=*/false);
      ptx.await(barrier(changesAhead() ? Changed : Loaded, stage.index), stage.phase);
      if (hasSums() || sumsChange())
        sumChunk(chunk, stage);
      if (team > 1 && !plan.reductions.empty())
        awaitSums(chunk, stage);
      fillMasks(state, which, /*late=*/true);
      ptx.arrive(barrier(Full, stage.index));
      return next;
    }
    if (numbersHoldPlace())
      ptx.arrive(barrier(Empty, stage.index));
    auto valuesOf = [&](const Slot &slot) {
      std::array<Value, 2> values{ptx.number(1), ptx.number(1)};
      bool isLog = slot.decay && slot.within == Slot::Nothing;
      if (isLog)
        values = decaySums(state, slot.decay, slot.before);
      else if (slot.decay)
        values = decayWithin(state, slot);
      if (slot.atStart)
        values = atStart(values);
      for (RowFactor factor : slot.factors) {
        std::array<Value, 2> more =
            factor.divides || isLog ? reciprocal(state, factor.value) : row(state, factor.value);
        for (int k : {0, 1}) {
          Value log = isLog ? ptx.log2(more[k]) : Value();
          values[k] = !isLog           ? ptx.multiply(values[k], more[k])
                      : factor.divides ? ptx.difference(values[k], log)
                                       : ptx.sum(values[k], log);
        }
      }
      if (!isLog)
        for (int k : {0, 1})
          values[k] = ptx.choose(state.valid[k], values[k], ptx.number(0));
      return values;
    };
    auto fill = [&](unsigned i) {
      const Slot &slot = slots[i];
      std::array<Value, 2> values = valuesOf(slot);
      if (!slot.ofTokens)
        return ptx.store(ptx.add(stage.rows, ptx.mul(lane, 8)), i * slotPitch(), {values[0], values[1]});
      auto store = [&](Value token, Value value) {
        ptx.store(ptx.add(stage.rows, ptx.mul(token, 4)), i * slotPitch(), {value});
      };
      for (int k : {0, 1})
        threads.when(ptx.equal(state.steps[k], plan.stepOfOutputs()),
                     [&] { store(state.locals[k], values[k]); });
      if (plan.tokens < plan.columns)
        threads.when(
            arith::AndIOp::create(b, ptx.below(lane, ptx.constant(plan.columns)),
                                  ptx.compare(arith::CmpIPredicate::uge, lane, ptx.constant(plan.tokens))),
            [&] { store(lane, ptx.number(0)); });
    };
    // Rows past the end are another sequence's, or none. Scores that are being made of them are not used.
    auto clearPastEnd = [&] {
      threads.when(ptx.compare(arith::CmpIPredicate::slt, left, ptx.constant(plan.tokens, 64)), [&] {
        describeRare(*b.getInsertionBlock());
        auto awaitOthers = [&] {
          if (takesLogsAhead())
            awaitLogs(chunk);
          if (form.sharesWalk())
            awaitWalked(chunk);
        };
        form.sharesWalk() ? threads.when(isOwn(chunk), awaitOthers) : awaitOthers();
        clearRows(chunk, stage, arith::TruncIOp::create(b, b.getI32Type(), left));
        ptx.fenceProxy();
        if (form.walkers())
          ptx.arrive(barrier(Cleared, ptx.constant(0)));
      });
    };
    // What needs no sums is made beside them.
    for (bool late : {false, true}) {
      if (late && rowsAhead())
        await();
      if (late && changesAhead() && !plan.scaling)
        awaitChanged(stage);
      // Walkers, who may make them, walk rows that are cleared.
      if (late && walkersSum())
        clearPastEnd();
      if (late)
        awaitSums(chunk, stage);
      for (unsigned i = 0; i < count; ++i)
        if (waits(slots[i]) == late && !RolePlan::isLate(slots[i].factors))
          fill(i);
      if (!late && walkersSum() && plan.decay && plan.haveNumbersInLogs())
        ptx.arrive(barrier(KnownFull, stage.index));
    }
    if (plan.normaliser && phase != Phase::Chain)
      Normaliser(*this).storeWeights(stage, ValueRange(valuesOf({plan.normaliserWeights(), {}, false})));
    if (!walkersSum())
      clearPastEnd();
    ptx.arrive(barrier(Full, stage.index));
    return next;
  });
  lane = sameLane;
}
