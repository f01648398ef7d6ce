#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/SolvedPlan.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

ChunkEmitter::ChunkEmitter(Threads &threads, chunk::ProgramOp program, TensorAccess &access,
                           ArrayRef<TensorArgument> tensors, const ChunkShape &shape, SharedArena &arena)
    : fragments(threads, shape.precision), slabWarps(shape.warps), threads(threads), b(threads.b),
      program(program), access(access), tensors(tensors), tokens(shape.tokens), warps(shape.warps),
      savesMemory(shape.savesMemory), arena(arena),
      scoreParts(std::min(shape.warps * 16 / shape.tokens, shape.tokens / 16)),
      scoreColumns(shape.tokens / scoreParts), tokenGrid(shape.tokenGrid()),
      tokenThreads(threads.b, tokenGrid) {}

void ChunkEmitter::begin(Value h, Value n, Value at) {
  head = h;
  heads = n;
  position = at;
  fragments.begin();
  tokenThreads.begin({}, {});
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

void ChunkEmitter::sync() {
  if (!dirty)
    return;
  threads.barrier();
  arena.passBarrier();
  dirty = false;
  written.clear();
}

void ChunkEmitter::syncFor(ArrayRef<ChunkValue> read) {
  if (iterates || llvm::any_of(read, [&](const ChunkValue &value) {
        return written.contains(value.memory.base) || written.contains(value.scale.base);
      }))
    sync();
}

SharedTile ChunkEmitter::allocate(int64_t rows, int64_t cols, int64_t pitch, bool isF32) {
  SharedTile tile;
  tile.rows = rows;
  tile.cols = cols;
  tile.pitch = pitch;
  tile.isF32 = isF32 || isWide();
  int64_t bytes = llvm::alignTo(tile.bytes(), 16);
  std::optional<int64_t> offset = arena.tryAllocate(bytes);
  if (!offset && arena.hasReleased() && savesMemory) {
    dirty = true;
    sync();
    offset = arena.tryAllocate(bytes);
  }
  if (!offset)
    offset = arena.grow(bytes);
  tile.owner = arena.own(*offset, bytes);
  tile.base = threads.sharedAt(*offset);
  return tile;
}

SharedTile ChunkEmitter::allocateTile(int64_t n, bool isF32) {
  SharedTile tile = allocate(tokens, n, padded(n) + 8, isF32);
  if (int64_t extra = padded(n) - n) {
    forItems(tokens * extra, [&](Value item) {
      store(tile, over(item, extra), add(modulo(item, extra), n), threads.number(0));
    });
    dirty = true;
  }
  return tile;
}

SharedTile ChunkEmitter::allocateTile(Value value, int64_t n, bool isF32) {
  if (!swizzled.contains(value))
    return allocateTile(n, isF32);
  constexpr int64_t alignment = 1024;
  int64_t bytes = tokens * n * 2 + alignment - 16;
  std::optional<int64_t> offset = arena.tryAllocate(bytes);
  if (!offset)
    offset = arena.grow(bytes);
  SharedTile tile;
  tile.base = threads.sharedAt(llvm::alignTo(*offset, alignment));
  tile.rows = tokens;
  tile.cols = tile.pitch = n;
  tile.isSwizzled = true;
  tile.owner = arena.own(*offset, bytes);
  return tile;
}

// In f32. A bf16 is the upper half of one: the hardware's conversion is slower where small numbers count as
// 0.
static Value widen(ImplicitLocOpBuilder &b, Value entry) {
  if (!entry.getType().isBF16())
    return arith::ExtFOp::create(b, b.getF32Type(), entry);
  Value bits = arith::BitcastOp::create(b, b.getIntegerType(16), entry);
  Value upper = arith::ShLIOp::create(b, arith::ExtUIOp::create(b, b.getI32Type(), bits),
                                      arith::ConstantIntOp::create(b, 16, 32));
  return arith::BitcastOp::create(b, b.getF32Type(), upper);
}

Value ChunkEmitter::load(const SharedTile &tile, Value row, Value col) {
  Value at = fragments.address(tile, row, col);
  if (tile.isF32)
    return LLVM::LoadOp::create(b, b.getF32Type(), at);
  return widen(b, LLVM::LoadOp::create(b, fragments.narrow(), at));
}

void ChunkEmitter::store(const SharedTile &tile, Value row, Value col, Value entry) {
  written.insert(tile.base);
  if (!tile.isF32)
    entry = arith::TruncFOp::create(b, fragments.narrow(), entry);
  LLVM::StoreOp::create(b, entry, fragments.address(tile, row, col));
}

std::array<Value, 2> ChunkEmitter::loadPair(const SharedTile &tile, Value row, Value col) {
  Type element = tile.isF32 ? b.getF32Type() : fragments.narrow();
  Value both = LLVM::LoadOp::create(b, VectorType::get(2, element), fragments.address(tile, row, col),
                                    tile.isF32 ? 8 : 4);
  std::array<Value, 2> pair;
  for (int64_t i : {0, 1}) {
    pair[i] = LLVM::ExtractElementOp::create(b, both, threads.constant(i));
    if (!tile.isF32)
      pair[i] = widen(b, pair[i]);
  }
  return pair;
}

void ChunkEmitter::storePair(const SharedTile &tile, Value row, Value col, Value low, Value high) {
  written.insert(tile.base);
  Value at = fragments.address(tile, row, col);
  if (!tile.isF32)
    return void(LLVM::StoreOp::create(b, fragments.pack(low, high), at));
  Value both = LLVM::PoisonOp::create(b, VectorType::get(2, b.getF32Type()));
  both = LLVM::InsertElementOp::create(b, both, low, threads.constant(0));
  both = LLVM::InsertElementOp::create(b, both, high, threads.constant(1));
  LLVM::StoreOp::create(b, both, at, 8);
}

Value ChunkEmitter::entryOf(const ChunkValue &value, Value at) {
  return value.kind == ChunkValue::Rows ? rowAt(value.memory, at) : value.entries[0];
}

Value ChunkEmitter::isValid(Value local) {
  return below(arith::ExtUIOp::create(b, b.getI64Type(), local), count);
}

Value ChunkEmitter::slabRow(int64_t rows) {
  Value row = times(fragments.warp, 16);
  return std::min(padded(rows), slabWarps * 16) < warps * 16
             ? modulo(row, std::min(padded(rows), slabWarps * 16))
             : row;
}

Value ChunkEmitter::isSlabOwner(int64_t rows) {
  Value warp = slabWarps < warps ? modulo(fragments.warp, slabWarps) : fragments.warp;
  return padded(rows) < slabWarps * 16 ? below(warp, padded(rows) / 16) : Value();
}

Value ChunkEmitter::shuffle(Value x, int64_t distance) {
  return NVVM::ShflOp::create(b, b.getF32Type(), threads.constant(-1), x, threads.constant(distance),
                              threads.constant(31), NVVM::ShflKind::bfly, UnitAttr());
}

Value ChunkEmitter::greatest(ValueRange entries) {
  SmallVector<Value> most(4, threads.number(0));
  for (auto [e, entry] : llvm::enumerate(entries))
    most[e % 4] = arith::MaximumFOp::create(b, most[e % 4], math::AbsFOp::create(b, entry));
  Value all = arith::MaximumFOp::create(b, arith::MaximumFOp::create(b, most[0], most[1]),
                                        arith::MaximumFOp::create(b, most[2], most[3]));
  for (int64_t distance : {1, 2, 4, 8, 16})
    all = arith::MaximumFOp::create(b, all, shuffle(all, distance));
  return all;
}

void ChunkEmitter::forTokens(llvm::function_ref<void(Value, Value, Value)> body) {
  int64_t groups = warps * 32 / tokenGrid.lanes;
  for (int64_t round = 0; round < tokens; round += groups) {
    Value local = add(tokenThreads.coordinate(0), round);
    Value wide = arith::ExtUIOp::create(b, b.getI64Type(), local);
    Value valid = below(wide, count);
    // Past the end the first token is read, and dropped.
    Value token = arith::AddIOp::create(b, first, choose(valid, wide, threads.constant(0, 64)));
    if (groups > tokens) // threads past the chunk repeat another token
      local = modulo(local, tokens);
    body(local, token, valid);
  }
}

void ChunkEmitter::forItems(int64_t items, llvm::function_ref<void(Value)> body) {
  int64_t all = warps * 32;
  for (int64_t round = 0; round < items; round += all) {
    Value item = add(threads.threadIndex(), round);
    if (round + all <= items)
      body(item);
    else
      threads.when(below(item, items), [&] { body(item); });
  }
}

//===----------------------------------------------------------------------===//
// The program
//===----------------------------------------------------------------------===//

std::string ChunkEmitter::blame() const {
  if (!unknown)
    return "a value of its chunk program is stored in an order that has no code";
  return "a '" + unknown->getName().getStringRef().str() +
         "' of its chunk program has operands that it has no code for";
}

FailureOr<ChunkValue> ChunkEmitter::need(Value value) {
  auto it = values.find(value);
  if (it != values.end())
    return it->second;
  if (!value.getDefiningOp() || failed(emitOp(value.getDefiningOp())))
    return failure();
  it = values.find(value);
  if (it == values.end())
    return failure();
  return it->second;
}

void ChunkEmitter::finish(Operation *op) {
  for (Value operand : op->getOperands())
    if (--usesLeft[operand] == 0) {
      values.erase(operand);
      staged.erase(operand);
      across.erase(operand);
      decays.erase(operand);
    }
}

LogicalResult ChunkEmitter::emitOp(Operation *op) {
  b.setLoc(op->getLoc());
  if (failed(emitKind(op))) {
    if (!unknown)
      unknown = op;
    return failure();
  }
  emitted.insert(op);
  finish(op);
  return success();
}

LogicalResult ChunkEmitter::emitKind(Operation *op) {
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](chunk::MapOp m) { return emitMap(m); })
      .Case([&](chunk::DecayOp d) { return emitDecay(d); })
      .Case([&](chunk::CascadeOp c) { return emitProducts(c, c.getFactors()); })
      .Case([&](chunk::WeightsOp w) { return emitWeights(w); })
      .Case([&](chunk::MaskOp m) { return emitMask(m); })
      .Case([&](chunk::GramOp g) { return emitGram(g); })
      .Case([&](chunk::MixOp m) { return emitMix(m); })
      .Case([&](chunk::TriSolveOp s) { return emitSolve(s); })
      .Case([&](chunk::SubstituteOp s) { return emitSubstitute(s); })
      .Case([&](chunk::ConjugateGradientsOp c) { return emitConjugateGradients(c); })
      .Case([&](MatmulOp m) { return emitMatmul(m, nullptr, m); })
      .Case([&](ElementwiseOp e) { return emitElementwise(e); })
      .Case([&](ConstantOp c) {
        set(c, ChunkValue::scalar(threads.number(c.getValue().convertToDouble())));
        return success();
      })
      .Case([&](SizeOp s) {
        set(s, ChunkValue::scalar(threads.number(double(cast<IntegerAttr>(s.getDim()).getInt()))));
        return success();
      })
      .Case<BroadcastOp, AssumeOp>([&](auto e) {
        FailureOr<ChunkValue> value = need(e.getOperand());
        if (succeeded(value))
          set(e.getResult(), *value);
        return success(succeeded(value));
      })
      .Case([&](TransposeOp t) {
        FailureOr<ChunkValue> value = need(t.getOperand());
        if (failed(value) || value->kind == ChunkValue::Scores || value->kind == ChunkValue::Weights)
          return failure();
        value->transposed = !value->transposed;
        value->dim = 1 - value->dim;
        set(t, *value);
        return success();
      })
      .Default([](Operation *) { return failure(); });
}

// What does not depend on the state, and is more than a few numbers: functions of tokens, scores, systems.
LogicalResult ChunkEmitter::emitAhead() {
  llvm::DenseSet<Value> dependent;
  for (Value state : program.argumentsOf(ArgKind::State))
    dependent.insert(state);
  SmallVector<chunk::TriSolveOp> solves;
  SmallVector<chunk::SubstituteOp> substitutes;
  for (Operation &op : program.getBody().front().without_terminator()) {
    bool depends = llvm::any_of(op.getOperands(), [&](Value operand) { return dependent.contains(operand); });
    op.walk([&](Operation *inner) {
      depends |=
          inner != &op && llvm::any_of(inner->getOperands(), [&](Value v) { return dependent.contains(v); });
    });
    if (auto solve = dyn_cast<chunk::TriSolveOp>(op))
      solves.push_back(solve);
    if (auto substitute = dyn_cast<chunk::SubstituteOp>(op))
      substitutes.push_back(substitute);
    if (depends) {
      dependent.insert(op.result_begin(), op.result_end());
      continue;
    }
    if (op.getNumResults() == 0 || emitted.contains(&op))
      continue;
    auto type = dyn_cast<MatType>(op.getResult(0).getType());
    bool isScores = type && isa<StringAttr>(type.getRows()) && isa<StringAttr>(type.getCols());
    if (!isScores && !isa<chunk::MapOp>(op))
      continue;
    if (failed(emitOp(&op)))
      return failure();
    auto readsScores = [&](Operation *user) {
      auto product = dyn_cast<MatmulOp>(user);
      return product && product.getLhs() == op.getResult(0) && !isOne(product.getType().getCols());
    };
    if (isScores && llvm::any_of(op.getUsers(), readsScores) && failed(stagedScores(op.getResult(0))))
      return failure();
  }
  for (chunk::TriSolveOp solve : solves)
    if (llvm::none_of(solve.getBlocks(), [&](Value block) { return dependent.contains(block); }) &&
        failed(prepareSolve(solve)))
      return failure();
  for (chunk::SubstituteOp op : substitutes)
    if (llvm::none_of(op.getBlocks(), [&](Value block) { return dependent.contains(block); }) &&
        failed(prepareSubstitute(op)))
      return failure();
  return success();
}

ArrayRef<TensorArgument> ChunkEmitter::outputs() {
  return tensors.drop_back(program.argumentsOf(ArgKind::State).size()).take_back(chunk::numOutputs(program));
}

unsigned ChunkEmitter::digitsOf(Value value) {
  unsigned digits = 0;
  for (TensorArgument output : outputs())
    digits = std::max(digits, output.element.getFPMantissaWidth());
  ValueRange yielded = program.getBodyYield().getValues();
  yielded = yielded.take_front(program.argumentsOf(ArgKind::State).size());
  bool isKept = llvm::any_of(yielded, [&](Value state) { return dependsOn(state, value); });
  return isKept ? b.getF32Type().getFPMantissaWidth() : digits;
}

// An output that no map makes.
LogicalResult ChunkEmitter::emitOutput(unsigned output, Value value) {
  FailureOr<ChunkValue> known = need(value);
  if (failed(known))
    return failure();
  chunk::OutputPart part = chunk::outputParts(program)[output];
  unsigned tensor = outputs().data() - tensors.data() + part.output;
  SharedTile memory = known->memory;
  if (known->kind == ChunkValue::Slab)
    memory = moveSlab(*known, /*isF32=*/true);
  else if (known->kind == ChunkValue::Scores || known->kind == ChunkValue::Weights || known->transposed)
    return failure();
  syncFor({ChunkValue::tile(memory), *known});
  forTokens([&](Value local, Value token, Value valid) {
    MatType type = tensors[tensor].entry();
    if (part.count > 1)
      type = MatType::get(type.getContext(), part.isRow ? type.numCols() : type.numRows(), 1);
    Tile tile = tokenThreads.shape(type, 1);
    for (int64_t e = 0; e < tile.rows * tile.cols; ++e) {
      if (known->kind == ChunkValue::Scalar || known->kind == ChunkValue::Rows) {
        tile.entries.push_back(entryOf(*known, local));
        continue;
      }
      Value col = tokenThreads.index(1, memory.cols, e);
      if (Value exists = tokenThreads.valid(1, memory.cols, e))
        col = choose(exists, col, threads.constant(0));
      Value entry = load(memory, local, col);
      tile.entries.push_back(known->scale.base ? multiply(entry, rowAt(known->scale, local)) : entry);
    }
    threads.when(valid, [&] { access.store(tensor, part, tile, token); });
  });
  return success();
}

void ChunkEmitter::startChunk(Value from, Value left) {
  first = from;
  count = rest = left;
  // Of a chunk that is a block, until the next one begins.
  if (std::optional<int64_t> block = program.getBlock()) {
    Value size = threads.constant(*block, 64);
    Value passed = arith::RemUIOp::create(b, arith::AddIOp::create(b, position, from), size);
    count = arith::MinSIOp::create(b, left, arith::SubIOp::create(b, size, passed));
  }
  usesLeft.clear();
  emitted.clear();
  program.getBody().walk([&](Operation *op) {
    for (Value operand : op->getOperands())
      ++usesLeft[operand];
  });
}

// The next chunk writes what this one read.
void ChunkEmitter::endChunk() {
  values.clear();
  decays.clear();
  staged.clear();
  across.clear();
  systems.clear();
  dirty = true;
  sync();
}

LogicalResult ChunkEmitter::emit(Value from, Value left, MutableArrayRef<ChunkValue> states) {
  startChunk(from, left);
  for (auto [argument, state] : llvm::zip(program.argumentsOf(ArgKind::State), states))
    set(argument,
        matType(argument).isScalar() ? ChunkValue::scalar(rowAt(state.memory, threads.constant(0))) : state);
  if (asksAhead)
    prefetch(tokens);
  if (failed(emitArguments()) || failed(emitAhead()))
    return failure();
  auto yielded = program.getBodyYield().getValues();
  for (auto [i, output] : llvm::enumerate(yielded.drop_front(states.size()))) {
    auto map = output.getDefiningOp<chunk::MapOp>(); // stores it
    if (map ? !emitted.contains(map) && failed(emitOp(map)) : failed(emitOutput(i, output)))
      return failure();
  }
  SmallVector<ChunkValue> last;
  for (auto [value, state] : llvm::zip(yielded, states)) {
    FailureOr<ChunkValue> next = state.kind == ChunkValue::Slab ? asSlab(value) : need(value);
    bool isOther =
        succeeded(next) && next->kind == ChunkValue::Rows && next->memory.base != state.memory.base &&
        llvm::any_of(states, [&](const ChunkValue &s) { return s.memory.base == next->memory.base; });
    bool isTurned = succeeded(next) && next->kind == ChunkValue::Slab && next->dim != state.dim;
    if (failed(next) || isOther || isTurned)
      return failure();
    last.push_back(*next);
  }
  sync();
  // States in shared memory are written when all have been computed.
  for (auto [state, next] : llvm::zip(states, last)) {
    if (state.kind == ChunkValue::Slab) {
      state = next;
      continue;
    }
    forItems(state.memory.cols,
             [&, &to = state.memory, &from = next](Value item) { storeRow(to, item, entryOf(from, item)); });
  }
  last.clear();
  endChunk();
  return success();
}
