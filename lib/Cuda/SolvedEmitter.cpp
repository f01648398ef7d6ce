#include "lib/Cuda/SolvedEmitter.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/LoadAhead.h"
#include "lib/Cuda/Marks.h"
#include "lib/Cuda/Roles.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t tokensOfBlock = 64;
// Of both states, in shared memory.
static constexpr int64_t unitBytes = 32;

SolvedEmitter::SolvedEmitter(Threads &threads, const SolvedPlan &plan, ChunkEmitter &chunk,
                             TensorAccess &access, ArrayRef<TensorArgument> tensors, Value shared)
    : threads(threads), b(threads.b), ptx(threads.b), plan(plan),
      convergence(b, this->plan.solve.getEps().convertToDouble(), this->plan.solve.getIterations(),
                  chunk.digitsOf(this->plan.solve)),
      chunk(chunk), access(access), tensors(tensors), shared(shared), entries(plan.keys() / 2) {}

void SolvedEmitter::begin() {
  base = LLVM::PtrToIntOp::create(b, b.getI32Type(), shared);
  thread = threads.threadIndex();
  chunk.fragments.isNarrow = true;
  constexpr int64_t bytes = 16 + unitBytes;
  int64_t offset = chunk.arena.grow(bytes);
  barrierOwner = chunk.arena.own(offset, bytes);
  barrier = ptx.add(base, offset);
  units = ptx.add(barrier, 16);
  chunk.swizzled.insert(plan.product.gram.getRhs());
  // A state's place is kept, large enough for the larger one.
  state = allocate(std::max(plan.keys(), plan.rows()), plan.keys());
  state.rows = plan.keys();
  threads.when(ptx.equal(thread, 0), [&] {
    ptx.initBarrier(barrier, 1);
    ptx.fenceBarrierInit();
  });
  chunk.dirty = true;
  chunk.sync();
}

//===----------------------------------------------------------------------===//
// Operands of products
//===----------------------------------------------------------------------===//

SolvedEmitter::Image SolvedEmitter::allocate(int64_t rows, int64_t cols) {
  constexpr int64_t alignment = 1024;
  int64_t bytes = rows * cols * 2 + alignment - 16;
  std::optional<int64_t> offset = chunk.arena.tryAllocate(bytes);
  if (!offset)
    offset = chunk.arena.grow(bytes);
  return {ptx.add(base, llvm::alignTo(*offset, alignment)), rows, cols, chunk.arena.own(*offset, bytes)};
}

void SolvedEmitter::inOneThread(llvm::function_ref<void()> body) {
  threads.when(ptx.below(thread, ptx.constant(32)), [&] { threads.when(ptx.isElected(), body); });
}

// One thread asks for a state. All have done with the one before.
void SolvedEmitter::loadImage(const Image &image, Value record, int64_t offset) {
  inOneThread([&] {
    int64_t bytes = image.rows * image.cols * 2;
    ptx.arriveExpecting(barrier, bytes);
    ptx.loadBytes(image.base,
                  LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                                      ArrayRef<LLVM::GEPArg>{int32_t(offset)}),
                  bytes, barrier);
  });
}

// The record's first state, and the units of both, as soon as they are there.
void SolvedEmitter::loadRecord(Value record) {
  std::array<MatType, 2> states{matType(plan.product.state), matType(plan.readout.state)};
  int64_t bytes = StateImages::bytesOf(states[0]);
  auto at = [&](int64_t offset) {
    return LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                               ArrayRef<LLVM::GEPArg>{int32_t(offset)});
  };
  inOneThread([&] {
    awaitMark(ptx, StateImages::markOf(ptx, b, record, recordBytes(plan)));
    ptx.arriveExpecting(barrier, bytes + unitBytes);
    ptx.loadBytes(state.base, record, bytes, barrier);
    ptx.loadBytes(units, at(StateImages::placeOfUnits(states)), unitBytes, barrier);
  });
}

// What a state's image is multiples of, once it is there.
Value SolvedEmitter::unitOf(size_t state) { return ptx.loadFloats(units, 16 * state, 1)[0]; }

// The address of an entry at an even column.
Value SolvedEmitter::swizzled(const Image &image, Value row, Value col) {
  Value line = ptx.add(ptx.mul(ptx.shiftRight(col, 6), image.rows), row);
  Value packet = ptx.exclusiveOr(ptx.bits(ptx.shiftRight(col, 3), 7), ptx.bits(row, 7));
  Value within = ptx.add(ptx.mul(packet, 16), ptx.mul(ptx.bits(col, 7), 2));
  return ptx.add(image.base, ptx.add(ptx.mul(line, 128), within));
}

SmallVector<Step> SolvedEmitter::steps(ValueRange left, const Image &right, bool byDepth) {
  // Made here and not before a loop, where they would take registers.
  Value first = ptx.pin(ptx.descriptor(right.base, right.rows * 128))[0];
  SmallVector<Step> steps;
  for (int64_t i = 0; i < int64_t(left.size()) / 4; ++i) {
    int64_t bytes = byDepth ? i * 2048 : i / 4 * right.rows * 128 + i % 4 * 32;
    steps.push_back({Values(left.slice(4 * i, 4)), ptx.advance(first, bytes)});
  }
  return steps;
}

Values SolvedEmitter::multiply(const Image &right, ValueRange left, bool byDepth, ValueRange start) {
  int64_t columns = byDepth ? right.cols : right.rows;
  return ptx.await(0, ptx.product(columns, start, steps(left, right, byDepth), false, byDepth, "f16"))[0];
}

Values SolvedEmitter::product(ValueRange rows, const Image &state, const Image &values, const Pair &weights) {
  // The scores go through the functions of a thread while the state's product runs.
  Pending ofKeys = ptx.product(keys.rows, {}, steps(rows, keys, false), false, false, "f16");
  Pending ofState = ptx.product(state.rows, {}, steps(rows, state, false), false, false, "f16");
  Values scores = ptx.await(1, ofKeys)[0], packed;
  Value place = ptx.add(ptx.mul(thread, 16), LLVM::PtrToIntOp::create(b, b.getI32Type(), this->weights.base));
  for (size_t i = 0; i < scores.size() / 2; i += 4)
    for (auto [j, weight] : llvm::enumerate(ptx.load(place, i / 4 * 2048, 4, b.getI32Type())))
      packed.push_back(ptx.multiplyPairs(ptx.packF16(scores[2 * (i + j)], scores[2 * (i + j) + 1]), weight));
  Values sums = ptx.await(0, ofState)[0];
  for (auto [e, sum] : llvm::enumerate(sums))
    sum = ptx.multiply(sum, weights[half(e)]);
  return multiply(values, packed, /*byDepth=*/true, sums);
}

//===----------------------------------------------------------------------===//
// A chunk's own part
//===----------------------------------------------------------------------===//

void SolvedEmitter::storeKeys(const ChunkValue &rows) {
  int64_t packets = keys.cols / 8;
  chunk.forItems(keys.rows * packets, [&](Value item) {
    Value row = chunk.over(item, packets), col = chunk.times(chunk.modulo(item, packets), 8);
    Values packed;
    for (int64_t i : {0, 2, 4, 6}) {
      std::array<Value, 2> pair = chunk.loadPair(rows.memory, row, chunk.add(col, i));
      for (Value &entry : pair)
        if (rows.scale.base)
          entry = ptx.multiply(entry, chunk.rowAt(rows.scale, row));
      packed.push_back(ptx.packF16(pair[0], pair[1]));
    }
    ptx.store(swizzled(keys, row, col), 0, packed);
  });
}

// Weights of scores, in multiples of a power of 2.
void SolvedEmitter::storeWeights(const SolvedProduct &product) {
  SmallVector<Value> all = chunk.weighScores(product.gram);
  ownUnit = number(1);
  if (product.scale) {
    ChunkValue scale = *chunk.need(product.scale);
    Value most = number(0);
    for (int64_t first : {0, 32})
      most = arith::MaximumFOp::create(
          b, most, math::AbsFOp::create(b, chunk.entryOf(scale, ptx.add(chunk.fragments.lane, first))));
    for (int64_t distance : {1, 2, 4, 8, 16})
      most = arith::MaximumFOp::create(b, most, chunk.shuffle(most, distance));
    ownUnit = chunk.unitOf(most, 0);
    Value inverse = chunk.inverseOf(ownUnit);
    for (auto [e, weight] : llvm::enumerate(all))
      weight = ptx.multiply(weight, ptx.multiply(chunk.entryOf(scale, chunk.scoreColumn(e)), inverse));
  }
  Value place = ptx.add(ptx.mul(thread, 16), LLVM::PtrToIntOp::create(b, b.getI32Type(), weights.base));
  for (size_t e = 0; e < all.size(); e += 8) {
    Values packed;
    for (int64_t i : {0, 2, 4, 6})
      packed.push_back(ptx.packF16(all[e + i], all[e + i + 1]));
    ptx.store(place, e / 8 * 2048, packed);
  }
}

// A number for each of the thread's tokens.
FailureOr<SolvedEmitter::Pair> SolvedEmitter::rowsOf(Value column) {
  if (!column)
    return Pair{number(1), number(1)};
  FailureOr<ChunkValue> known = chunk.need(column);
  if (failed(known) || (known->kind != ChunkValue::Scalar && (known->kind != ChunkValue::Rows || known->dim)))
    return failure();
  chunk.sync();
  return Pair{chunk.entryOf(*known, chunk.scoreRow(0)), chunk.entryOf(*known, chunk.scoreRow(2))};
}

// The diagonals' sums, of channels and of tokens, as multiples of what scores are.
LogicalResult SolvedEmitter::prepareDiagonal() {
  Value inverse = chunk.inverseOf(ownUnit);
  SmallVector<ChunkValue> channels;
  ownDiagonal = {};
  diagonal = {};
  for (Value factor : plan.product.diagonals) {
    FailureOr<ChunkValue> known = ChunkValue::scalar(number(1));
    if (factor && failed(known = chunk.need(factor)))
      return failure();
    if (known->kind == ChunkValue::Rows && known->dim) {
      channels.push_back(*known);
      continue;
    }
    if (known->kind != ChunkValue::Scalar && known->kind != ChunkValue::Rows)
      return failure();
    chunk.sync();
    for (unsigned h : {0, 1}) {
      Value own = ptx.multiply(chunk.entryOf(*known, chunk.scoreRow(2 * h)), inverse);
      ownDiagonal[h] = ownDiagonal[h] ? ptx.sum(ownDiagonal[h], own) : own;
    }
  }
  if (channels.empty())
    return success();
  diagonal = chunk.allocateRows(plan.keys());
  chunk.sync();
  chunk.forItems(plan.keys(), [&](Value item) {
    Value sum = number(0);
    for (const ChunkValue &rows : channels)
      sum = ptx.sum(sum, chunk.entryOf(rows, item));
    chunk.storeRow(diagonal, item, ptx.multiply(sum, inverse));
  });
  chunk.dirty = true;
  return success();
}

LogicalResult SolvedEmitter::prepare(Steps &start) {
  Value rhs = plan.solve.getRhs(), rows = plan.product.gram.getRhs();
  FailureOr<ChunkValue> right = chunk.need(rhs), known = chunk.need(rows);
  for (Value needed : {plan.product.scale, plan.readout.scale})
    if (needed && failed(chunk.need(needed)))
      return failure();
  if (Value decay = plan.product.gram.getDecay(); decay && failed(chunk.emitDecayOf(decay)))
    return failure();
  for (const ChunkValue *tile : {&*right, &*known})
    if (failed(right) || failed(known) || tile->kind != ChunkValue::Tile || tile->transposed)
      return failure();
  bool isImage = known->memory.isSwizzled && !known->scale.base;
  if (isImage)
    keys = {LLVM::PtrToIntOp::create(b, b.getI32Type(), known->memory.base), tokensOfBlock, plan.keys(),
            known->memory.owner};
  else
    keys = allocate(tokensOfBlock, plan.keys());
  weights =
      chunk.allocate(1, tokensOfBlock * tokensOfBlock / 2, tokensOfBlock * tokensOfBlock / 2, /*isF32=*/true);
  chunk.sync();
  if (!isImage)
    storeKeys(*known);
  storeWeights(plan.product);
  for (int64_t e = 0; e < entries; e += 2) {
    std::array<Value, 2> pair = chunk.loadPair(right->memory, chunk.scoreRow(e), chunk.fragments.column(e));
    for (Value entry : pair)
      start.residual.push_back(
          right->scale.base ? ptx.multiply(entry, chunk.rowAt(right->scale, chunk.scoreRow(e))) : entry);
  }
  FailureOr<Pair> own = rowsOf(plan.product.weights);
  if (failed(own) || failed(prepareDiagonal()))
    return failure();
  for (unsigned h : {0, 1})
    stateWeights[h] = ptx.multiply((*own)[h], chunk.inverseOf(ownUnit));
  ptx.fenceProxy();
  chunk.dirty = true;
  if (rhs != rows)
    chunk.values.erase(rhs);
  chunk.values.erase(rows);
  for (FailureOr<ChunkValue> *held : {&right, &known})
    *held = failure();
  chunk.sync();
  return success();
}

FailureOr<Values> SolvedEmitter::iterate() {
  Steps start;
  if (failed(prepare(start)))
    return failure();
  solution = chunk.allocate(1, entries * 128, entries * 128, /*isF32=*/true);
  Value place = ptx.add(ptx.mul(thread, 16), LLVM::PtrToIntOp::create(b, b.getI32Type(), solution.base));
  for (int64_t e = 0; e < entries; e += 4)
    ptx.store(place, e / 4 * 2048, Values(4, number(0)));
  Pair square = {number(0), number(0)};
  for (auto [e, entry] : llvm::enumerate(start.residual))
    square[half(e)] = ptx.sum(square[half(e)], ptx.multiply(entry, entry));
  for (unsigned h : {0, 1}) {
    Value size = sumOfFour(square[h]);
    Value twice = arith::SubIOp::create(b, chunk.exponentOf(size), ptx.constant(127));
    Value power =
        arith::SubIOp::create(b, ptx.constant(6), arith::ShRSIOp::create(b, twice, ptx.constant(1)));
    power = arith::MinSIOp::create(b, arith::MaxSIOp::create(b, power, ptx.constant(-40)), ptx.constant(40));
    start.scale[h] = chunk.powerOf(ptx.add(power, 127));
    start.size[h] = ptx.multiply(ptx.multiply(size, start.scale[h]), start.scale[h]);
    start.unit[h] = number(1);
    start.goal[h] = number(0);
  }
  for (auto [e, entry] : llvm::enumerate(start.residual))
    entry = ptx.multiply(entry, start.scale[half(e)]);
  for (int64_t e = 0; e < entries; e += 2)
    start.direction.push_back(ptx.packF16(start.residual[e], start.residual[e + 1]));
  start.found.assign(entries / 2, ptx.constant(0));
  askForValues();
  ptx.await(barrier, ptx.constant(0));
  Value unit = unitOf(0);
  for (Value &weight : stateWeights)
    weight = ptx.multiply(weight, unit);
  bool canEnd = Convergence::canEnd(plan.solve.getEps().convertToDouble(), chunk.digitsOf(plan.solve));
  Values last = runSteps(b, plan.solve.getIterations(), start.all(), [&](Value number, ValueRange carried) {
    Steps next = step(number, Steps::of(carried, entries));
    return std::pair(next.all(), canEnd ? isOpen(number, next) : Value());
  });
  return addFound(Steps::of(last, entries), /*store=*/false);
}

//===----------------------------------------------------------------------===//
// What a state gives for the solution
//===----------------------------------------------------------------------===//

static unsigned tensorOf(chunk::ProgramOp program, Value input) {
  auto inputs = program.argumentsOf(ArgKind::Input);
  return llvm::find(inputs, input) - inputs.begin();
}

// They arrive beside the steps, at places of the threads' own.
void SolvedEmitter::askForValues() {
  unsigned tensor = tensorOf(chunk.program, plan.readout.values);
  int64_t bytes = tokensOfBlock * plan.rows() * 2, all = chunk.warps * 32;
  packets = chunk.allocate(1, bytes / 4, bytes / 4, /*isF32=*/true);
  Value own = LLVM::PtrToIntOp::create(b, b.getI32Type(), packets.base);
  int64_t count = chunk.tokens / (chunk.warps * 4) * access.countPackets(tensor, 1), next = 0;
  own = ptx.add(own, ptx.mul(thread, bytes / all / count));
  chunk.forTokens([&](Value, Value token, Value) {
    for (Value address : access.addresses(tensor, 1, token))
      ptx.copyPacket(own, next++ * (bytes / count), address, bytes / all / count);
  });
}

// The values, as multiples of a power of 2.
LogicalResult SolvedEmitter::loadValues() {
  unsigned tensor = tensorOf(chunk.program, plan.readout.values);
  int64_t n = plan.rows(), bytes = tokensOfBlock * n * 2, all = chunk.warps * 32;
  SmallVector<SmallVector<Value>> rounds;
  SmallVector<Value> tokens;
  Value most = number(0);
  SmallVector<SmallVector<Value>> fetched;
  ptx.awaitPackets();
  int64_t count = chunk.tokens / (chunk.warps * 4) * access.countPackets(tensor, 1), next = 0;
  int64_t width = bytes / all / count / 2;
  FloatType element = tensors[tensor].element;
  Value own =
      LLVM::GEPOp::create(b, packets.base.getType(), b.getI8Type(), packets.base, ptx.mul(thread, 2 * width));
  chunk.forTokens([&](Value, Value, Value) {
    fetched.emplace_back();
    for (size_t i = 0; i < access.countPackets(tensor, 1); ++i) {
      Value at = LLVM::GEPOp::create(b, own.getType(), b.getI8Type(), own,
                                     ArrayRef<LLVM::GEPArg>{int32_t(next++ * (bytes / count))});
      fetched.back().push_back(LLVM::LoadOp::create(b, VectorType::get(width, element), at, 2 * width));
    }
  });
  packets = {};
  chunk.forTokens([&](Value local, Value, Value valid) {
    rounds.push_back(access.unpack(tensor, 1, fetched[rounds.size()]).entries);
    tokens.push_back(local);
    for (Value &entry : rounds.back()) {
      entry = ptx.choose(valid, entry, number(0));
      most = arith::MaximumFOp::create(b, most, math::AbsFOp::create(b, entry));
    }
  });
  for (int64_t distance : {1, 2, 4, 8, 16})
    most = arith::MaximumFOp::create(b, most, chunk.shuffle(most, distance));
  SharedTile parts = chunk.allocateRows(4);
  chunk.storeRow(parts, chunk.fragments.warp, most);
  chunk.dirty = true;
  chunk.sync();
  for (int64_t warp = 0; warp < 4; ++warp)
    most = arith::MaximumFOp::create(b, most, chunk.rowAt(parts, ptx.constant(warp)));
  valueUnit = chunk.unitOf(most, -8);
  Value inverse = chunk.inverseOf(valueUnit);
  for (auto [local, round] : llvm::zip(tokens, rounds))
    for (size_t e = 0; e < round.size(); e += 2)
      ptx.store(swizzled(values, local, chunk.tokenThreads.index(1, n, e)), 0,
                ptx.packF16(ptx.multiply(round[e], inverse), ptx.multiply(round[e + 1], inverse)));
  ptx.fenceProxy();
  chunk.dirty = true;
  return success();
}

LogicalResult SolvedEmitter::read(Values found, Value record) {
  // Solutions as f16, each row as multiples of a power of 2.
  Pair most = {number(0), number(0)}, units;
  for (auto [e, entry] : llvm::enumerate(found))
    most[half(e)] = arith::MaximumFOp::create(b, most[half(e)], math::AbsFOp::create(b, entry));
  for (unsigned h : {0, 1})
    units[h] = chunk.unitOf(greatest(most[h]), -8);
  Values rows;
  for (int64_t e = 0; e < entries; e += 2) {
    Value inverse = chunk.inverseOf(units[half(e)]);
    rows.push_back(ptx.packF16(ptx.multiply(found[e], inverse), ptx.multiply(found[e + 1], inverse)));
  }
  values = allocate(tokensOfBlock, plan.rows());
  FailureOr<Pair> own = rowsOf(plan.readout.weights);
  if (failed(own) || failed(loadValues()))
    return failure();
  if (plan.readout.scale != plan.product.scale)
    storeWeights(plan.readout);
  chunk.sync();
  ownUnit = ptx.multiply(ownUnit, valueUnit);
  ask = ownUnit.getDefiningOp();
  ptx.await(barrier, ptx.constant(1));
  Value unit = ptx.multiply(unitOf(1), chunk.inverseOf(ownUnit));
  Pair scale{ptx.multiply((*own)[0], unit), ptx.multiply((*own)[1], unit)};
  Image image{state.base, plan.rows(), plan.keys()};
  Values sums = product(rows, image, values, scale);
  values = {};
  weights = {};
  keys = {};
  chunk.dirty = true;
  chunk.sync();
  SharedTile tile = chunk.allocateTile(plan.rows(), /*isF32=*/true);
  for (size_t e = 0; e < sums.size(); e += 2) {
    Value factor = ptx.multiply(units[half(e)], ownUnit);
    chunk.storePair(tile, chunk.scoreRow(e), chunk.fragments.column(e), ptx.multiply(sums[e], factor),
                    ptx.multiply(sums[e + 1], factor));
  }
  chunk.dirty = true;
  Value output = chunk.program.getBodyYield().getValues().back();
  chunk.set(output, ChunkValue::tile(tile));
  return chunk.emitOutput(0, output);
}

LogicalResult SolvedEmitter::emit(Value first, Value count, Value record) {
  loadRecord(record);
  chunk.startChunk(first, count);
  chunk.prefetch(tokensOfBlock);
  if (failed(chunk.emitArguments({plan.readout.values})))
    return failure();
  FailureOr<Values> found = iterate();
  if (failed(found))
    return failure();
  solution = {};
  diagonal = {};
  chunk.dirty = true;
  chunk.sync();
  loadImage({state.base, plan.rows(), plan.keys()}, record,
            StateImages::bytesOf(matType(plan.product.state)));
  if (failed(read(*found, record)))
    return failure();
  chunk.endChunk();
  return success();
}

std::optional<std::string> cuda::emitSolved(LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                            ArrayRef<TensorArgument> tensors, const SolvedPlan &plan,
                                            int64_t part, Entry &entry) {
  ImplicitLocOpBuilder b(program.getLoc(), program.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  ChunkShape shape{tokensOfBlock, 4, Precision::Tf32};
  Grid grid{shape.warps * 32, 8}, tokenGrid{8, 8};
  entry.threads = grid.threads;
  Threads threads(b, grid), tokenThreads(b, tokenGrid);
  TensorAccess access(tokenThreads, function.getArgument(0), tensors, /*packed=*/true);
  Value shared = LLVM::AddressOfOp::create(
      b, function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>(tilesSymbol));
  threads.begin(shared, shared);
  tokenThreads.begin({}, {});
  auto i64 = [&](int64_t n) { return threads.constant(n, 64); };
  // All first segments before the second ones: states come one after the other.
  Part tokens = findPart(threads, access, entry.shards, part, tokensOfBlock, BlockOrder::InTurn);
  SharedArena arena(0);
  ChunkEmitter chunk(threads, program, access, tensors, shape, arena);
  SolvedEmitter solved(threads, plan, chunk, access, tensors, shared);
  LogicalResult status = success();
  // Where a sequence has fewer chunks than segments, some have none.
  tokens.isPresent = threads.both(tokens.isPresent,
                                  arith::CmpIOp::create(b, arith::CmpIPredicate::ne, tokens.tokens, i64(0)));
  threads.when(tokens.isPresent, [&] {
    chunk.begin(tokens.head, tokens.heads, tokens.position);
    solved.begin();
    auto loop = threads.forLoop(i64(0), tokens.tokens, i64(tokensOfBlock), {}, [&](Value first, ValueRange) {
      Value number = arith::DivUIOp::create(b, arith::TruncIOp::create(b, b.getI32Type(), first),
                                            threads.constant(tokensOfBlock));
      int64_t bytes = SolvedEmitter::recordBytes(plan);
      Value record = recordOf(threads, access, tokens, tokensOfBlock, number, i64(bytes * entry.shards));
      record = LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                                   ValueRange{arith::MulIOp::create(b, tokens.shard, i64(bytes))});
      status = solved.emit(first, arith::SubIOp::create(b, tokens.tokens, first), record);
      return SmallVector<Value>();
    });
    if (succeeded(status))
      loadAhead(threads, loop, solved.askBefore());
  });
  // What follows this launch follows the one before. Blocks of last segments wait for that, and no others,
  // which would keep their places until then.
  Ptx ptx(b);
  threads.when(tokens.isLast, [&] { awaitLaunch(ptx); });
  describeLoops(function.getBody(), "chunks", 1, entry.threads / 32);
  LLVM::ReturnOp::create(b, ValueRange());
  entry.sharedBytes = arena.highest();
  return failed(status) ? std::optional(chunk.blame()) : std::nullopt;
}
