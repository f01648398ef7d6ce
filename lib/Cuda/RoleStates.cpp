// What the chain writes: outputs through shared memory, and states from and to its registers.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleBesideScores.h"
#include "lib/Cuda/RolePieces.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

Value RoleEmitter::tokensLeft(Value chunk) {
  Value tokens = arith::TruncIOp::create(b, b.getI32Type(), part.tokens);
  return arith::SubIOp::create(b, tokens, ptx.mul(numberOf(chunk), plan.tokens));
}

// The output that a value is, if it is nothing else, entry by entry.
std::optional<unsigned> RoleEmitter::outputOf(Value value) const {
  if (plan.picksOutputs || !value.hasOneUse())
    return std::nullopt;
  OpOperand &use = *value.use_begin();
  unsigned output = use.getOperandNumber() - plan.countStates();
  bool isOutput = use.getOwner() == plan.program.getBodyYield() && output < plan.countOutputs();
  return isOutput ? std::optional<unsigned>(output) : std::nullopt;
}

// An output's entries in pairs of what its tensor is.
FailureOr<Values> RoleEmitter::packedOutput(ChainState &state, unsigned output, Value value) {
  if (auto known = state.outputs.find(value); known != state.outputs.end())
    return known->second;
  FailureOr<Values> entries = slab(state, value);
  if (failed(entries))
    return failure();
  Ptx own(b, plan.tensors[plan.outputTensor(output)].element.isF16());
  Values picked, pairs;
  for (size_t e = 4 * plan.stepOfOutputs(); plan.picksOutputs && e < entries->size(); e += 8)
    llvm::append_range(picked, ArrayRef(*entries).slice(e, 4));
  if (plan.picksOutputs)
    entries = picked;
  for (size_t e = 0; e < entries->size(); e += 2) {
    Value first = (*entries)[e], second = (*entries)[e + 1], pair = own.pack(first, second, false);
    if (plan.isRest(output)) {
      Values rounded = own.unpack(pair);
      pair = own.pack(own.difference(first, rounded[0]), own.difference(second, rounded[1]));
    }
    pairs.push_back(pair);
  }
  return pairs;
}

// Stores an output's tokens of a block of 16 as soon as they are known, where that goes: null pairs for what
// waits for the chunk's end then.
Values RoleEmitter::storedOutput(ChainState &state, unsigned output, int64_t block, Values pairs) {
  if (outputPlace || state.isPiece() || plan.states > 1 || plan.areColumns(output) ||
      plan.rowsOfOutput() != tokensOfChunk)
    return pairs;
  if (!block)
    ptx.await(barrier(OutputsEmpty, ptx.constant(0)),
              ptx.exclusiveOr(ptx.bits(state.chunk, 1), ptx.constant(1)));
  Value at = ptx.add(outputAt(state.stage, output, halfOfSlab()), state.matrixLane);
  ptx.storeMatrices(at, block * 2048 * plan.states, pairs, true);
  return Values(pairs.size());
}

// Hands a chunk's outputs to the warp that copies. Rows of a chunk that is not whole are stored here.
void RoleEmitter::storeOutputs(ChainState &state, ArrayRef<Value> packed) {
  int64_t steps = plan.rowsOfOutput() / 16 / plan.states;
  Value phase = ptx.bits(state.chunk, 1);
  // In place of an input each thread overwrites what it has read.
  if (!outputPlace)
    ptx.await(barrier(OutputsEmpty, ptx.constant(0)), ptx.exclusiveOr(phase, ptx.constant(1)));
  Values holds;
  if (state.isPiece())
    holds = Pieces(*this, state).holds(8 * steps, /*ofTokens=*/true);
  for (int64_t step = 0; step < int64_t(packed.size()) / 4; ++step) {
    Value at = outputAt(state.stage, step / steps, halfOfSlab());
    ArrayRef<Value> pairs = packed.slice(4 * step, 4);
    if (!pairs.front()) // stored before
      continue;
    int64_t offset = step % steps * 2048 * plan.states;
    if (plan.areColumns(unsigned(step / steps)))
      storeColumns(ptx.add(at, offset), pairs);
    else if (state.isPiece())
      Pieces(*this, state)
          .store(ptx.add(at, state.matrixLane), offset, ArrayRef(holds).slice(8 * (step % steps), 8), pairs);
    else
      ptx.storeMatrices(ptx.add(at, state.matrixLane), offset, pairs, true);
  }
  if (!state.isPiece())
    leaveOutputs(state);
}

// Hands the outputs that are stored over.
void RoleEmitter::leaveOutputs(const ChainState &state) {
  int64_t outputs = plan.countOutputs();
  Value left = tokensLeft(state.chunk);
  threads.when(ptx.compare(arith::CmpIPredicate::slt, left, ptx.constant(plan.tokens)), [&] {
    describeRare(*b.getInsertionBlock());
    ptx.meet(outputsMeet(), 128 * plan.states);
    for (int64_t output = 0; output < outputs; ++output)
      storeRowsOfOutput(output, state.chunk, outputAt(state.stage, output, halfOfSlab()), left);
  });
  if (state.isLastSlab)
    ptx.arrive(barrier(OutputsFull, outputsOf(state.chunk, state.stage).first));
}

// Gives a chunk's places back.
void RoleEmitter::leaveChunk(ChainState &state) {
  if (!state.isLastSlab)
    return;
  // Who makes scores reads keys, too, for a vector that is read beside them.
  if (plan.normaliser) {
    awaitScores(state);
    ptx.syncWarp(); // one lane speaks for all below
  }
  ptx.arrive(barrier(Empty, state.stage.index));
  if (form.sharesMaps(plan)) {
    ptx.syncWarp();
    threads.when(ptx.equal(lane, 0), [&] {
      forPeers(
          [&](Value rank) { ptx.arriveThere(ptx.inBlock(barrier(MapsEmpty, state.stage.index), rank)); });
    });
  }
  if (form.sharesWalk()) {
    ptx.syncWarp();
    threads.when(ptx.equal(lane, 0), [&] {
      Value done = barrier(WalkedEmpty, ownPlace(state.chunk).first);
      ptx.arriveThere(ptx.inBlock(done, ptx.bits(state.chunk, team - 1)));
    });
  }
  // Products alone have read the scores, and each warp has waited for its own.
  if (state.waitedForScores && phase != Phase::Chain)
    threads.when(ptx.equal(lane, 0), [&] {
      Value done = barrier(ScoresEmpty, state.buffer);
      if (team == 1)
        ptx.arrive(done);
      else
        ptx.arriveThere(ptx.inBlock(done, ptx.bits(ptx.add(state.chunk, nextMaker()), team - 1)));
    });
}

// The barrier of those who store outputs together.
Value RoleEmitter::outputsMeet() {
  constexpr int64_t beside = 3; // walkers have the first two
  return form.walksBeside ? ptx.constant(beside) : ptx.add(halfOfSlab(), 1);
}

// A box would reach past the sequence's end: rows one by one.
void RoleEmitter::storeRowsOfOutput(unsigned output, Value chunk, Value buffer, Value left) {
  unsigned tensor = plan.outputTensor(output);
  TensorAccess access(threads, launderedCall(), plan.tensors, /*packed=*/true);
  find(access);
  Value eighth = ptx.bits(thread, 7);
  // Warpgroups that have the same 64 columns share out the rows.
  Value first = ptx.shiftRight(thread, 3);
  if (plan.states > 1)
    first = ptx.add(first, ptx.mul(ptx.bits(slabIndex, 1), 16));
  Value end = plan.rowOutputs ? ptx.mul(left, plan.steps) : left;
  threads.forLoop(first, end, ptx.constant(16 * plan.states), {}, [&](Value row, ValueRange) {
    Value from =
        ptx.add(ptx.add(buffer, ptx.mul(row, 128)), ptx.mul(ptx.exclusiveOr(eighth, ptx.bits(row, 7)), 16));
    Values packet = ptx.load(from, 0, 4, b.getI32Type());
    Value token = row, step;
    if (plan.rowOutputs) {
      token = ptx.shiftRight(row, llvm::Log2_64(plan.steps));
      step = ptx.bits(row, plan.steps - 1);
    }
    Value at = ptx.add(ptx.mul(chunk, plan.tokens), token);
    Value slab = ptx.add(firstSlab, halfOfSlab());
    if (plan.areColumns(output)) {
      slab = ptx.add(ptx.mul(slab, plan.steps), step);
      step = {};
    }
    Value column = ptx.add(ptx.mul(slab, rowsOfSlab), ptx.mul(eighth, 8));
    Value to = access.entryOfToken(tensor, arith::ExtUIOp::create(b, b.getI64Type(), at), column, step);
    Values operands{to};
    llvm::append_range(operands, packet);
    threads.when(access.exists(tensor, column, column),
                 [&] { ptx.assembly("st.global.v4.b32 [$0], {$1,$2,$3,$4};", {}, operands); });
    return Values();
  });
}

// Where a slab of an output is in shared memory.
Value RoleEmitter::outputAt(const Stage &stage, unsigned output, Value slab) {
  if (outputPlace)
    return ptx.add(tileAt(stage, outputPlace), ptx.mul(slab, halfStride(outputPlace)));
  int64_t bytes = outputTileBytes();
  return ptx.add(ptx.add(base, outputsAt + output * slabHalves() * bytes), ptx.mul(slab, bytes));
}

// The place of a chunk's outputs, by number, and its phase.
std::pair<Value, Value> RoleEmitter::outputsOf(Value chunk, const Stage &stage) {
  if (valuesPlaces)
    return {ptx.bits(chunk, 1), ptx.bits(ptx.shiftRight(chunk, 1), 1)};
  return outputPlace ? std::pair(stage.index, stage.phase) : std::pair(ptx.constant(0), ptx.bits(chunk, 1));
}

// Waits for what the chain alone reads, where that has a ring of its own.
void RoleEmitter::awaitValues(Value chunk, const Stage &stage) {
  auto [place, phase] = outputsOf(chunk, stage);
  ptx.await(barrier(ValuesFull, place), phase);
}

// Copies a chunk's outputs to their tensors, in the thread that loads, when the chain has stored them.
// One warpgroup of the chain may be some chunks ahead of the other: a barrier of one place for all of them
// would take its next chunk for the other's.
void RoleEmitter::copyOutputs(Value chunk, Stage stage) {
  auto [place, phase] = outputsOf(chunk, stage);
  ptx.await(barrier(OutputsFull, place), phase);
  ptx.fenceProxy();
  auto narrow = [&](Value x) -> Value { return arith::TruncIOp::create(b, b.getI32Type(), x); };
  TensorAccess plain(threads, call, plan.tensors, /*packed=*/true);
  Value isPacked = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, plain.word(TensorAccess::CuSeqlens + 2),
                                         ptx.constant(0, 64));
  Value batch = ptx.choose(isPacked, ptx.constant(0), narrow(part.sequence));
  Value token = ptx.add(narrow(part.begin), ptx.mul(chunk, plan.tokens));
  Value whole = ptx.compare(arith::CmpIPredicate::sge, tokensLeft(chunk), ptx.constant(plan.tokens));
  if (form.isEarly()) // chunks before the segment's own are other blocks'
    whole = arith::AndIOp::create(b, whole, ptx.compare(arith::CmpIPredicate::uge, chunk, early));
  for (unsigned output = 0; output < plan.countOutputs(); ++output) {
    unsigned map = entry.maps.size() - plan.countOutputs() + output;
    Value address = LLVM::GEPOp::create(b, maps.getType(), b.getI8Type(), maps,
                                        ArrayRef<LLVM::GEPArg>{int32_t(map * 128)});
    Value first = form.parts > 1 ? firstSlab : shardHalves(tensorOfMap(map));
    Value zero = ptx.constant(0), head = narrow(part.head);
    for (int64_t slab = 0; slab < slabHalves(); ++slab) {
      Value half = ptx.add(first, slab);
      Values at = plan.areColumns(output) ? Values{zero, ptx.mul(half, plan.steps), token, head, batch}
                  : plan.rowOutputs       ? Values{ptx.mul(half, 64), zero, token, head, batch}
                                          : Values{ptx.mul(half, 64), token, zero, head, batch};
      ptx.storeBox(address, outputAt(stage, output, ptx.constant(slab)), at, whole);
    }
  }
}

// A call that the optimiser does not know for the kernel's own, so that nothing computed from it stays in
// registers during the loop.
Value RoleEmitter::launderedCall() {
  Value none = ptx.assembly("mov.b64 $0, 0;", b.getI64Type(), {})[0];
  return LLVM::GEPOp::create(b, call.getType(), b.getI8Type(), call, ValueRange{none});
}

void RoleEmitter::forStateEntries(llvm::function_ref<void(Value row, Value col)> body) {
  int64_t rows = rowsOfSlab / plan.states, each = entriesOfEight();
  Value first = ptx.add(ptx.mul(ptx.add(firstSlab, slabIndex), rows), ptx.mul(warp, rows / 4));
  Value row = ptx.add(first, ptx.shiftRight(lane, 2)), pair = ptx.mul(ptx.bits(lane, 3), 2);
  for (int64_t e = 0; e < entriesOfState(); ++e) {
    // Of many entries the assembler would keep all addresses.
    if (plan.isWide() && e % 8 == 0)
      ptx.syncWarp();
    Value own = ptx.add(row, e % each / 2 * 8), key = ptx.add(pair, e / each * 8 + e % 2);
    body(plan.independentDim ? key : own, plan.independentDim ? own : key);
  }
}

Values RoleEmitter::initialState() {
  if (phase == Phase::Whole || (phase == Phase::Chain && !form.forgets))
    return givenStates();
  // Who begins with the sequence begins with what was given.
  SmallVector<Type> types(plan.countStates() * entriesOfState() + plan.heldPairs(), b.getF32Type());
  auto isFirst = scf::IfOp::create(b, types, ptx.equal(part.before, 0), true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(isFirst.thenBlock());
  scf::YieldOp::create(b, givenStates());
  b.setInsertionPointToStart(isFirst.elseBlock());
  auto forgotten = [&] {
    Values entries(entriesOfState() * (plan.states - plan.isAnchored), ptx.number(0));
    if (plan.isAnchored)
      llvm::append_range(entries, givenState(plan.states - 1));
    return entries;
  };
  scf::YieldOp::create(b, phase == Phase::Segments ? gatheredState()
                          : phase == Phase::Passed ? passedState()
                                                   : forgotten());
  return Values(isFirst.getResults());
}

// Where a block's warpgroup leaves what it gathers: 16 bytes a thread, entry by entry. Behind those of the
// chain is that of a vector that is read beside scores.
Value RoleEmitter::gathered(Value block, bool ofNormaliser) {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  int64_t bytes = slabs * gatheredBytes() + Normaliser::bytesToPass(plan);
  auto wide = [&](Value x) { return arith::ExtUIOp::create(b, b.getI64Type(), x); };
  Value which = ofNormaliser ? ptx.constant(slabs) : slabIndex;
  Value offset = ptx.add(ptx.mul(wide(block), bytes), ptx.mul(wide(which), gatheredBytes()));
  Value scratch = access.pointer(TensorAccess::Scratch);
  return LLVM::GEPOp::create(b, scratch.getType(), b.getI8Type(), scratch, offset);
}

// The state that the segments before this one make: factor after factor, and what each adds.
Values RoleEmitter::gatheredState() {
  Value back = ptx.mul(part.segment, shards), first = arith::SubIOp::create(b, part.block, back);
  auto loop = threads.forLoop(ptx.constant(0), part.segment, ptx.constant(1),
                              Values(plan.keys / 2, ptx.number(0)), [&](Value segment, ValueRange carried) {
                                Value from = gathered(ptx.add(first, ptx.mul(segment, shards)));
                                Value factor = ptx.assembly(
                                    ("ld.global.f32 $0, [$1+" + Twine(stateBytes()) + "];").str(),
                                    b.getF32Type(), from)[0];
                                Values results;
                                for (auto [entry, more] : llvm::zip(carried, loadEntries(from)))
                                  results.push_back(ptx.sum(ptx.multiply(entry, factor), more));
                                return results;
                              });
  return Values(loop.getResults());
}

void RoleEmitter::storeGathered(ValueRange entries, Value scale) {
  threads.when(ptx.compare(arith::CmpIPredicate::ult, ptx.add(part.segment, 1), part.segments), [&] {
    Value to = gathered(part.block);
    storeEntries(to, entries);
    threads.when(ptx.equal(thread, 0), [&] {
      ptx.assembly(("st.global.f32 [$0+" + Twine(stateBytes()) + "], $1;").str(), {}, {to, scale});
    });
  });
}

// The entries of a warpgroup's state, 16 bytes a thread at a time.
Values RoleEmitter::loadEntries(Value from) {
  Value own = LLVM::GEPOp::create(b, from.getType(), b.getI8Type(), from, ValueRange{ptx.mul(thread, 16)});
  Values entries;
  for (int64_t e = 0; e < plan.keys / 2 + plan.heldPairs(); e += 4)
    llvm::append_range(entries,
                       ptx.assembly(("ld.global.v4.f32 {$0,$1,$2,$3}, [$4+" + Twine(e * 512) + "];").str(),
                                    SmallVector<Type>(4, b.getF32Type()), own));
  return entries;
}

void RoleEmitter::storeEntries(Value to, ValueRange entries) {
  Value own = LLVM::GEPOp::create(b, to.getType(), b.getI8Type(), to, ValueRange{ptx.mul(thread, 16)});
  for (size_t e = 0; e < entries.size(); e += 4)
    ptx.assembly(("st.global.v4.f32 [$0+" + Twine(e * 512) + "], {$1,$2,$3,$4};").str(), {},
                 Values{own, entries[e], entries[e + 1], entries[e + 2], entries[e + 3]});
}

Values RoleEmitter::givenStates() {
  Values entries;
  for (int64_t state = 0; state < plan.countStates(); ++state)
    llvm::append_range(entries, givenState(state));
  entries.append(plan.heldPairs(), ptx.number(0)); // the first chunk begins a block
  return plan.rotated ? rotatedStates(entries) : entries;
}

Values RoleEmitter::givenState(unsigned state) {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  find(access);
  FirstState first = *firstStateOf(plan.program, state);
  unsigned params = plan.initialTensor() - plan.program.argumentsOf(ArgKind::Param).size();
  if (plan.stateOfRule(state) == plan.statesOfRule()) { // a param
    Values entries;
    forStateEntries(
        [&](Value row, Value col) { entries.push_back(access.firstEntry(first, params, row, col)); });
    return entries;
  }
  unsigned initial = plan.initialTensor() + plan.stateOfRule(state);
  SmallVector<Type> types(entriesOfState(), b.getF32Type());
  auto given = scf::IfOp::create(b, types, access.isGiven(initial), true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(given.thenBlock());
  Values entries;
  forStateEntries([&](Value row, Value col) { entries.push_back(access.loadEntry(initial, row, col)); });
  scf::YieldOp::create(b, entries);
  b.setInsertionPointToStart(given.elseBlock());
  entries.clear();
  forStateEntries([&](Value row, Value col) {
    Value entry = access.firstEntry(first, params, row, col);
    Value exists = access.exists(initial, row, col);
    entries.push_back(exists ? ptx.choose(exists, entry, ptx.number(0)) : entry);
  });
  scf::YieldOp::create(b, entries);
  return Values(given.getResults());
}

void RoleEmitter::storeFinal(ValueRange entries) {
  TensorAccess access(threads, launderedCall(), plan.tensors, /*packed=*/true);
  Part own = find(access);
  for (int64_t state = 0; state < plan.countStates() - plan.isAnchored; ++state) {
    unsigned final = plan.finalTensor(plan.stateOfRule(state));
    Value isWanted = access.isGiven(final);
    if (part.isLast)
      isWanted = arith::AndIOp::create(b, isWanted, own.isLast);
    threads.when(isWanted, [&] {
      ValueRange own = entries.drop_front(state * entriesOfState());
      forStateEntries([&](Value row, Value col) {
        access.storeEntry(final, row, col, own.front());
        own = own.drop_front();
      });
    });
  }
  if (plan.rotated)
    storeDelayed(access, own);
}
