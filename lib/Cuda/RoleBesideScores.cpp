// A vector that sums keys, kept by the warpgroup of scores (RoleNormaliser.cpp has what it is, and why).
//
// What divides by it may nearly cancel. So a chunk's own part is the sums over rows of the scores in f32; and
// what is rounded to be multiplied, the vector and the weights of keys, is two bf16, what one holds of it and
// what the other holds of the rest, as where states are read in two parts. They are columns of a right side
// of eight, so that one product of the least size has both:
//
//   queries (64 x keys) * vector (keys x 8), keysT (64 x tokens) * weights (tokens x 8).
//
// The eight are four times the same two: each of a row's four lanes has both sums. They run beside the
// chunk's scores or, where no registers are left, behind them.
#include "lib/Cuda/RoleBesideScores.h"
#include "lib/Cuda/Marks.h"
#include "lib/Cuda/Sequential.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t RoleEmitter::Normaliser::bytes() const {
  return plan.normaliser ? (2 * tiles() + roles.stages) * partsBytes : 0;
}

// A pair in two parts, and where it lies in the row of a column; `number` is that of the pair.
std::array<Value, 2> RoleEmitter::Normaliser::inParts(ValueRange pair) {
  Value high = ptx.pack(pair[0], pair[1]);
  Values rounded = ptx.unpack(high);
  return {high, ptx.pack(ptx.difference(pair[0], rounded[0]), ptx.difference(pair[1], rounded[1]))};
}

Value RoleEmitter::Normaliser::placeOf(Value tile, Value number, Value column) {
  Value unit = ptx.exclusiveOr(ptx.shiftRight(number, 2), column);
  return ptx.add(ptx.add(tile, ptx.mul(column, rowBytes)),
                 ptx.add(ptx.mul(unit, 16), ptx.mul(ptx.bits(number, 3), 4)));
}

void RoleEmitter::Normaliser::storeWeights(const Stage &stage, ValueRange pair) {
  std::array<Value, 2> packed = inParts(pair);
  for (int64_t column = 0; column < columns; ++column)
    ptx.store(placeOf(weightTile(stage), lane, ptx.constant(column)), 0, {packed[column % 2]});
  ptx.fenceProxy();
}

// The vector that a chunk finds, as products read it. Lanes of two neighbouring rows have a pair of entries
// each: of their first rows and of their second ones. Each of a row's four lanes stores two columns.
void RoleEmitter::Normaliser::storeVector(Value chunk, ValueRange vector) {
  Value isOdd = ptx.equal(ptx.bits(ptx.shiftRight(lane, 2), 1), 1);
  Value neighbour = ptx.exclusiveOr(lane, ptx.constant(4));
  Value number = ptx.add(ptx.add(ptx.mul(warp, 8), ptx.shiftRight(lane, 3)), ptx.bits(lane, 4));
  Value column = ptx.mul(ptx.bits(lane, 3), 2), places[2];
  for (int64_t i : {0, 1})
    places[i] = placeOf(readTile(chunk), number, ptx.add(column, i));
  for (int64_t tile = 0; tile < tiles(); ++tile) {
    Value first = vector[2 * tile], second = vector[2 * tile + 1];
    Value other = ptx.shuffle(ptx.choose(isOdd, first, second), neighbour);
    std::array<Value, 2> packed =
        inParts({ptx.choose(isOdd, other, first), ptx.choose(isOdd, second, other)});
    for (int i : {0, 1})
      ptx.store(places[i], tile * partsBytes, {packed[i]});
  }
}

void RoleEmitter::Normaliser::publish(ValueRange vector, unsigned which) {
  storeVector(ptx.constant(0), vector.take_front(2 * tiles()));
  ptx.fenceProxy();
  ptx.meet(ptx.constant(5 + which), 128);
}

// The keys of a thread's entries.
Values RoleEmitter::Normaliser::ownKeys() {
  Value first = ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2));
  Values keys;
  for (int64_t i = 0; i < 2 * tiles(); ++i)
    keys.push_back(ptx.add(first, i / 2 * 64 + i % 2 * 8));
  return keys;
}

Values RoleEmitter::Normaliser::given() {
  TensorAccess access(roles.threads, roles.call, plan.tensors, /*packed=*/true);
  roles.find(access);
  unsigned initial = plan.initialTensor() + plan.normaliser.getState();
  Value zero = ptx.constant(0);
  Values keys = ownKeys(), entries;
  auto is =
      scf::IfOp::create(b, SmallVector<Type>(keys.size(), b.getF32Type()), access.isGiven(initial), true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(is.thenBlock());
  for (Value key : keys)
    entries.push_back(access.loadEntry(initial, key, zero));
  scf::YieldOp::create(b, entries);
  b.setInsertionPointToStart(is.elseBlock());
  for (auto [key, entry] : llvm::zip(keys, entries)) {
    entry = ptx.number(plan.normaliser.getFirst().convertToDouble());
    if (Value exists = access.exists(initial, key, zero))
      entry = ptx.choose(exists, entry, ptx.number(0));
  }
  scf::YieldOp::create(b, entries);
  return Values(is.getResults());
}

static Value entryAt(ImplicitLocOpBuilder &b, Ptx &ptx, Value vector, Value key) {
  return LLVM::GEPOp::create(b, vector.getType(), b.getI8Type(), vector, ValueRange{ptx.mul(key, 4)});
}

// Of what is passed on, those of some keys.
Values RoleEmitter::Normaliser::loadPassed(Value vector, ValueRange keys) {
  Values entries;
  for (Value key : keys)
    entries.push_back(
        ptx.assembly("ld.global.f32 $0, [$1];", b.getF32Type(), entryAt(b, ptx, vector, key))[0]);
  return entries;
}

void RoleEmitter::Normaliser::pass(Value vector, ValueRange entries) {
  auto store = [&](Value key, Value entry) {
    ptx.assembly("st.global.f32 [$0], $1;", {}, {entryAt(b, ptx, vector, key), entry});
  };
  roles.threads.when(ptx.equal(ptx.bits(lane, 3), 0), [&] {
    for (auto [key, entry] : llvm::zip(ownKeys(), entries))
      store(key, entry);
  });
  // What a segment multiplies it with.
  if (entries.size() > size_t(2 * tiles()))
    roles.threads.when(ptx.equal(roles.thread, 0), [&] { store(ptx.constant(plan.keys), entries.back()); });
}

// What the segments before this one make of it: factor after factor, and what each adds.
Values RoleEmitter::Normaliser::gathered() {
  Value back = ptx.mul(roles.part.segment, roles.shards),
        first = arith::SubIOp::create(b, roles.part.block, back);
  auto body = [&](Value segment, ValueRange carried) {
    Value from = roles.gathered(ptx.add(first, ptx.mul(segment, roles.shards)), /*ofNormaliser=*/true);
    Value factor = loadPassed(from, ptx.constant(plan.keys))[0];
    Values results;
    for (auto [entry, more] : llvm::zip(carried, loadPassed(from, ownKeys())))
      results.push_back(ptx.sum(ptx.multiply(entry, factor), more));
    return results;
  };
  auto loop = roles.threads.forLoop(ptx.constant(0), roles.part.segment, ptx.constant(1),
                                    Values(2 * tiles(), ptx.number(0)), body);
  return Values(loop.getResults());
}

// What the segment before leaves.
Values RoleEmitter::Normaliser::passed() {
  TensorAccess access(roles.threads, roles.call, plan.tensors, /*packed=*/true);
  Value pairs = arith::TruncIOp::create(b, b.getI32Type(), access.word(TensorAccess::Pairs));
  Value before = arith::SubIOp::create(b, roles.numberOfBlock(), ptx.mul(pairs, roles.shards));
  auto [vector, word] = roles.passed(before, /*ofNormaliser=*/true);
  awaitMark(ptx, word);
  return loadPassed(vector, ownKeys());
}

Values RoleEmitter::Normaliser::load() {
  if (roles.phase == Phase::Whole)
    return given();
  // Who begins with the sequence begins with what was given.
  SmallVector<Type> types(2 * tiles(), b.getF32Type());
  auto isFirst = scf::IfOp::create(b, types, ptx.equal(roles.part.before, 0), true);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(isFirst.thenBlock());
    scf::YieldOp::create(b, given());
    b.setInsertionPointToStart(isFirst.elseBlock());
    scf::YieldOp::create(b, roles.phase == Phase::Segments ? gathered()
                            : roles.phase == Phase::Passed ? passed()
                                                           : Values(2 * tiles(), ptx.number(0)));
  }
  Values vector(isFirst.getResults());
  if (roles.phase == Phase::Gather)
    vector.push_back(ptx.number(1));
  return vector;
}

void RoleEmitter::Normaliser::store(ValueRange vector, unsigned which) {
  Value isNotLast;
  if (roles.phase == Phase::Gather || roles.phase == Phase::Passed)
    isNotLast = ptx.compare(arith::CmpIPredicate::ult, ptx.add(roles.part.segment, 1), roles.part.segments);
  if (roles.phase == Phase::Gather)
    return roles.threads.when(isNotLast,
                              [&] { pass(roles.gathered(roles.part.block, /*ofNormaliser=*/true), vector); });
  // The blocks of a head have the same.
  TensorAccess access(roles.threads, roles.launderedCall(), plan.tensors, /*packed=*/true);
  Part own = roles.find(access);
  unsigned final = plan.finalTensor(plan.normaliser.getState());
  Value isWanted = arith::AndIOp::create(b, access.isGiven(final), ptx.equal(own.shard, 0));
  isWanted = arith::AndIOp::create(b, isWanted, ptx.equal(ptx.bits(lane, 3), 0));
  if (roles.part.isLast)
    isWanted = arith::AndIOp::create(b, isWanted, own.isLast);
  roles.threads.when(isWanted, [&] {
    for (auto [key, entry] : llvm::zip(ownKeys(), vector))
      access.storeEntry(final, key, ptx.constant(0), entry);
  });
  if (roles.phase == Phase::Passed)
    roles.threads.when(isNotLast, [&] {
      auto [to, word] = roles.passed(roles.numberOfBlock(), /*ofNormaliser=*/true);
      pass(to, vector);
      ptx.meet(ptx.constant(5 + which), 128);
      roles.threads.when(ptx.equal(roles.thread, 0), [&, word = word] { mark(ptx, word); });
    });
}

void RoleEmitter::Normaliser::addScores(ScoreState &state, ValueRange entries) {
  RowFactors columns = plan.normaliserScale().columns;
  for (auto [e, entry] : llvm::enumerate(entries)) {
    Value x = entry;
    if (!columns.empty())
      x = ptx.multiply(x, roles.columnValue(state, {columns, {}, false}, e));
    Value &sum = state.rowSums[e / 2 % 2];
    sum = ptx.sum(sum, x);
  }
}

// A number that follows from what is read, of the thread's two rows.
std::array<Value, 2> RoleEmitter::Normaliser::number(ScoreState &state, Value value) {
  value = RolePlan::trace(value);
  Operation *op = value.getDefiningOp();
  if (isa_and_present<chunk::NormaliserOp>(op))
    return {state.rowSums[0], state.rowSums[1]};
  if (auto constant = dyn_cast_if_present<ConstantOp>(op)) {
    Value same = ptx.number(constant.getValue().convertToDouble());
    return {same, same};
  }
  if (!RolePlan::isLate(value))
    return roles.rowNumbers(state, {{{value}}, {}, false});
  if (auto broadcast = dyn_cast<BroadcastOp>(op))
    return number(state, broadcast.getOperand());
  SmallVector<std::array<Value, 2>> operands;
  for (Value operand : op->getOperands())
    operands.push_back(number(state, operand));
  std::array<Value, 2> results;
  for (int i : {0, 1}) {
    Values own;
    for (const auto &operand : operands)
      own.push_back(operand[i]);
    results[i] = cast<ElementwiseOp>(op).lower(b, b.getLoc(), own);
  }
  return results;
}

// Fills the slots that nobody else can.
void RoleEmitter::Normaliser::storeLate(ScoreState &state) {
  Value isFirst = ptx.equal(ptx.bits(lane, 3), 0);
  for (unsigned i = 0; i < roles.slots.size(); ++i) {
    RowFactors factors = roles.slots[i].factors;
    if (!RolePlan::isLate(factors))
      continue;
    std::array<Value, 2> values;
    for (RowFactor factor : factors) {
      std::array<Value, 2> more = number(state, factor.value);
      for (int k : {0, 1}) {
        Value x = factor.divides ? ptx.reciprocal(more[k]) : more[k];
        values[k] = values[k] ? ptx.multiply(values[k], x) : x;
      }
    }
    for (int64_t k : {0, 1})
      ptx.store(state.ownRows, i * roles.slotPitch() + 32 * k, {values[k]}, /*relaxed=*/false, isFirst);
  }
}

SmallVector<Pending> RoleEmitter::Normaliser::begin(Value chunk, const Stage &stage, bool reads) {
  chunk::NormaliserOp op = plan.normaliser;
  SpecPlace place(b, op);
  SmallVector<Pending> pending;
  if (reads) {
    BlockArgument queries = plan.asTile(op.getQueries())->input;
    Value left = ptx.descriptor(roles.tileAt(stage, queries), 0),
          right = ptx.descriptor(readTile(roles.team > 1 ? ptx.constant(0) : chunk), 0);
    SmallVector<Step> steps;
    for (int64_t k = 0; k < plan.keys / 16; ++k)
      steps.push_back({{ptx.advance(left, k / 4 * roles.halfStride(queries) + k % 4 * 32)},
                       ptx.advance(right, k / 4 * partsBytes + k % 4 * 32)});
    pending.push_back(ptx.product(8, {}, steps, false, false));
  }
  BlockArgument keys = plan.asTile(op.getKeys())->input;
  Value weights = ptx.descriptor(weightTile(stage), 0);
  for (int64_t tile = 0; tile < tiles(); ++tile) {
    Value left = ptx.descriptor(ptx.add(roles.tileAt(stage, keys), tile * roles.halfStride(keys)), 0);
    SmallVector<Step> steps;
    for (int64_t k = 0; k < tokensOfChunk / 16; ++k)
      steps.push_back({{ptx.advance(left, k * 2048)}, ptx.advance(weights, k * 32)});
    pending.push_back(ptx.product(8, {}, steps, /*leftByDepth=*/true, false));
  }
  return pending;
}

void RoleEmitter::Normaliser::land(ScoreState &state, ArrayRef<Values> landed) {
  for (const Values &entries : landed)
    for (int row : {0, 1})
      state.ofVector.push_back(ptx.sum(entries[2 * row], entries[2 * row + 1]));
}

void RoleEmitter::Normaliser::finish(ScoreState &state, Value chunk, const Stage &stage) {
  chunk::NormaliserOp op = plan.normaliser;
  SpecPlace place(b, op);
  ArrayRef<Value> sums = state.ofVector;
  if (!plan.statesOnly) {
    auto timesRows = [&](Value x, const RowFactors &factors, int row) {
      return factors.empty() ? x : ptx.multiply(x, roles.rowNumbers(state, {factors, {}, false})[row]);
    };
    // Shuffles that do not wait for one another.
    for (int64_t distance : {1, 2}) {
      Values others;
      for (Value sum : state.rowSums)
        others.push_back(ptx.exchange(sum, distance));
      for (auto [sum, other] : llvm::zip(state.rowSums, others))
        sum = ptx.sum(sum, other);
    }
    for (int row : {0, 1})
      state.rowSums[row] = ptx.sum(timesRows(sums[row], plan.asTile(op.getQueries())->scale, row),
                                   timesRows(state.rowSums[row], plan.normaliserScale().rows, row));
    sums = sums.drop_front(2);
  }
  advance(state, stage, sums);
  if (roles.team == 1)
    storeVector(ptx.add(chunk, 1), ArrayRef(state.vector).take_front(2 * tiles()));
  if (!plan.statesOnly)
    storeLate(state);
}

// What a chunk makes of the vector: its keys' sums are given.
void RoleEmitter::Normaliser::advance(ScoreState &state, const Stage &stage, ValueRange sums) {
  if (Value factor = plan.normaliser.getWhole()) {
    Value whole = ptx.loadFloats(stage.rows, roles.slotOffset({{{factor}}, {}, false}), 1)[0];
    for (Value &entry : state.vector)
      entry = ptx.multiply(entry, whole);
  }
  for (auto [entry, sum] : llvm::zip(state.vector, sums))
    entry = ptx.sum(entry, sum);
}

// A chunk whose scores another block of the team makes.
void RoleEmitter::Normaliser::follow(ScoreState &state, Value chunk) {
  Stage stage = roles.stageOf(chunk);
  ptx.await(roles.barrier(Full, stage.index), stage.phase);
  if (roles.form.sharesMaps(plan))
    ptx.await(roles.barrier(MapsFull, stage.index), stage.phase);
  state.ofVector.clear();
  land(state, ptx.await(0, begin(chunk, stage, /*reads=*/false)));
  advance(state, stage, state.ofVector);
  ptx.arrive(roles.barrier(Empty, stage.index));
}

Values RoleEmitter::Normaliser::overChunks(ScoreState &state, Value chunks, ValueRange first,
                                           llvm::function_ref<void(Value chunk, Stage stage)> body) {
  if (roles.team == 1)
    return roles.forChunks(chunks, first, [&](Value chunk, Stage stage, ValueRange vector) {
      state.vector = vector;
      body(chunk, stage);
      return state.vector;
    });
  // Before each own chunk those that come between.
  auto followAt = [&](Value chunk, Value exists) {
    Values before = state.vector;
    auto is = scf::IfOp::create(b, ValueRange(before).getTypes(), exists, true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(is.thenBlock());
    follow(state, chunk);
    scf::YieldOp::create(b, state.vector);
    b.setInsertionPointToStart(is.elseBlock());
    scf::YieldOp::create(b, before);
    state.vector = is.getResults();
  };
  Value step = ptx.constant(roles.team);
  auto loop = roles.threads.forLoop(roles.rank(), chunks, step, first, [&](Value chunk, ValueRange vector) {
    state.vector = vector;
    for (int64_t back = roles.team - 1; back > 0; --back)
      followAt(ptx.add(chunk, -back), ptx.compare(arith::CmpIPredicate::uge, chunk, ptx.constant(back)));
    body(chunk, roles.stageOf(chunk));
    return state.vector;
  });
  // And those behind the last one.
  state.vector = Values(loop.getResults());
  Value others = ptx.bits(ptx.add(arith::SubIOp::create(b, chunks, roles.rank()), -1), roles.team - 1);
  for (int64_t behind = roles.team - 1; behind > 0; --behind)
    followAt(ptx.add(chunks, -behind),
             ptx.compare(arith::CmpIPredicate::uge, arith::MinUIOp::create(b, others, chunks),
                         ptx.constant(behind)));
  return state.vector;
}
