// The kernel of long sequences for any rule with a state of fixed size: one token after the other, like that
// of Sequential.cpp, but for what follows from tokens alone.
//
// That, norms and exponentials and the widening of what memory holds among it, all threads of a block would
// compute alike. Here each warp does it for tokens of its own, some ahead, and leaves the vectors and numbers
// that the states need in shared memory, in f32. There are two places for such a batch: one is read while the
// next one's inputs are on their way, and a barrier for each batch is all that threads wait for.
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RuleFrame.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr int64_t warpSize = 32, alignmentOfValues = 16;

namespace {
// The ops of a rule by what they follow from.
struct Sides {
  Sides(RuleOp rule, bool holdsMatrices);

  // What follows from tokens alone and is made of vectors and numbers; all else; what is neither dear nor
  // kept, constants and other views of a vector, may be on both sides.
  llvm::DenseSet<Operation *> early, late;
  // What the one side leaves for the other.
  SetVector<Value> handedOver;
};

class AheadEmitter : RuleFrame {
public:
  AheadEmitter(ImplicitLocOpBuilder &b, RuleOp rule, ArrayRef<TensorArgument> tensors, const Grid &grid,
               const Placement &placement, int64_t slab, Entry &entry)
      : RuleFrame(b, rule, tensors, grid, placement), slab(slab), entry(entry),
        warpGrid{warpSize, warpSize, grid.threads / warpSize}, sides(rule, grid.heldRegisters),
        warpPlacement(rule.getBody().front(), sides.handedOver.getArrayRef(), warpGrid), warp(b, warpGrid),
        tokenBody(warp, warpPlacement) {
    chosen = &sides.late;
  }

  LogicalResult run(LLVM::LLVMFuncOp function, int64_t sharedLimit);

private:
  using Fetched = SmallVector<SmallVector<Value>>;
  struct Carried;

  bool layOut();
  template <typename Action>
  void forTokenInputs(Action action);
  std::vector<Fetched> fetchBatch(TensorAccess &access, Value token);
  LogicalResult computeBatch(TensorAccess &access, ArrayRef<Fetched> fetched, Value token, Value place);
  Staged staged(Value value, Value place);
  LogicalResult emitRound(TensorAccess &access, Carried &carried, Value first, int64_t count);
  LogicalResult emitRounds(TensorAccess &access, Carried &carried, Value first, Value begin, Value end,
                           int64_t count);
  LogicalResult runTokens(TensorAccess &access, TensorAccess &ofTokens);
  Value ownToken(Value token, int64_t turn);
  Value plus(Value x, Value y) { return arith::AddIOp::create(b, x, y); }
  int64_t batch() const { return turns * warpGrid.groups; }
  // Loops keep tokens apart, and matrices that come out of them take the registers.
  int64_t tokensOfRound() {
    bool areApart = !rule.getBody().getOps<ForOp>().empty() || llvm::any_of(rule.yieldedOutputs(), isMatrix);
    return areApart ? 1 : std::min<int64_t>(2, batch());
  }
  Axis outputAxis(unsigned output) { return placement.anyOf(rule.yieldedOutputs()[output]); }

  int64_t slab;
  Entry &entry;
  Grid warpGrid;
  Sides sides;
  Placement warpPlacement;
  Threads warp;
  BodyEmitter tokenBody;
  SmallVector<scf::ForOp> rounds;         // the loops over tokens
  int64_t turns = 0;                      // a warp's tokens of a batch
  int64_t bytes = 0;                      // of a token
  llvm::DenseMap<Value, int64_t> offsets; // of what is handed over, among them
};
} // namespace

Sides::Sides(RuleOp rule, bool holdsMatrices) {
  Block &body = rule.getBody().front();
  llvm::DenseSet<Value> ofLate;
  for (BlockArgument argument : body.getArguments()) {
    ArgKind kind = rule.getArg(argument).getKind();
    bool isPlain = isa<MatType>(argument.getType()) && !isMatrix(argument);
    if (!isPlain || kind == ArgKind::State || kind == ArgKind::Stale)
      ofLate.insert(argument);
  }
  auto isLight = [](Operation *op) {
    return isa<ConstantOp, SizeOp, TransposeOp, AssumeOp, BroadcastOp>(op);
  };
  auto isOfVectors = [&](Operation *op) {
    return isa<ElementwiseOp, MatmulOp, ReduceOp, RopeOp, ConstantOp, SizeOp, TransposeOp, AssumeOp,
               BroadcastOp>(op) &&
           !isMatrix(op->getResult(0)) && !(holdsMatrices && isHeldProduct(op));
  };
  for (Operation &op : body.without_terminator())
    if (!isOfVectors(&op) || llvm::any_of(op.getOperands(), [&](Value x) { return ofLate.contains(x); })) {
      late.insert(&op);
      ofLate.insert(op.getResults().begin(), op.getResults().end());
    }
  // From the end, what the late ones and the results take of the others.
  auto isInput = [&](Value value) {
    auto argument = dyn_cast<BlockArgument>(value);
    return argument && argument.getOwner() == &body && rule.getArg(argument).getKind() == ArgKind::Input;
  };
  std::function<void(Value)> need = [&](Value value) {
    Operation *op = value.getDefiningOp();
    if (ofLate.contains(value) || (op && op->getBlock() != &body) || (!op && !isInput(value)))
      return;
    if (!op || !isLight(op)) {
      handedOver.insert(value);
      return;
    }
    if (late.insert(op).second)
      for (Value operand : op->getOperands())
        need(operand);
  };
  SmallVector<Operation *> roots;
  for (Operation &op : body)
    if (late.contains(&op) || &op == body.getTerminator())
      roots.push_back(&op);
  for (Operation *root : roots)
    root->walk([&](Operation *op) {
      for (Value operand : op->getOperands())
        need(operand);
    });
  std::function<void(Value)> compute = [&](Value value) {
    Operation *op = value.getDefiningOp();
    if (op && early.insert(op).second)
      for (Value operand : op->getOperands())
        compute(operand);
  };
  for (Value value : handedOver)
    compute(value);
}

// Gives what is handed over its place, and each warp as many tokens as registers and shared memory are for.
bool AheadEmitter::layOut() {
  constexpr int64_t mostRegisters = 40, mostBytes = 48 << 10;
  for (Value value : sides.handedOver) {
    offsets[value] = bytes;
    bytes += llvm::alignTo(matType(value).numElements() * 4, alignmentOfValues);
  }
  int64_t registers = 0;
  for (unsigned i = 0; i < inputs; ++i)
    if (warpPlacement.isNeeded(tensors[i].argument))
      registers += llvm::divideCeil(
          tensors[i].entry().numElements() * FloatType(tensors[i].element).getWidth(), warpSize * 32);
  turns = 4;
  while (turns > 1 && (turns * registers > mostRegisters || 2 * batch() * bytes > mostBytes))
    turns /= 2;
  return 2 * batch() * bytes <= threads.sharedLimit / 2;
}

template <typename Action>
void AheadEmitter::forTokenInputs(Action action) {
  for (unsigned i = 0; i < inputs; ++i)
    for (Axis axis : {0, 1})
      if (warpPlacement.needs(tensors[i].argument, axis))
        action(i, axis);
}

// A warp's token of a batch; of what is past the end, the last one.
Value AheadEmitter::ownToken(Value token, int64_t turn) {
  Value group = arith::DivUIOp::create(b, threads.threadIndex(), threads.constant(warpSize));
  group = arith::AddIOp::create(b, group, threads.constant(turn * warpGrid.groups));
  Value own = plus(token, arith::ExtUIOp::create(b, b.getI64Type(), group));
  return arith::MinSIOp::create(b, own, arith::SubIOp::create(b, tokens, threads.constant(1, 64)));
}

std::vector<AheadEmitter::Fetched> AheadEmitter::fetchBatch(TensorAccess &access, Value token) {
  std::vector<Fetched> batch(turns);
  for (int64_t turn = 0; turn < turns; ++turn)
    forTokenInputs(
        [&](unsigned i, Axis axis) { batch[turn].push_back(access.fetch(i, axis, ownToken(token, turn))); });
  return batch;
}

// A value's place in shared memory, of a token whose values lie there.
Staged AheadEmitter::staged(Value value, Value place) {
  Value base = LLVM::GEPOp::create(b, place.getType(), b.getI8Type(), place,
                                   ArrayRef<LLVM::GEPArg>{int32_t(offsets[value])});
  return {base, matType(value).numRows(), matType(value).numCols(), alignmentOfValues};
}

// What follows from a batch's tokens alone, each warp of its own, into one of the two places.
LogicalResult AheadEmitter::computeBatch(TensorAccess &access, ArrayRef<Fetched> batch, Value token,
                                         Value place) {
  Value group = arith::DivUIOp::create(b, threads.threadIndex(), threads.constant(warpSize));
  for (int64_t turn = 0; turn < turns; ++turn) {
    auto *next = batch[turn].begin();
    forTokenInputs(
        [&](unsigned i, Axis axis) { tokenBody.set(tensors[i].argument, access.unpack(i, axis, *next++)); });
    setBuiltins(tokenBody, rule.getBody().front(), plus(position, ownToken(token, turn)));
    if (failed(tokenBody.emitBlock(rule.getBody().front(), {},
                                   [&](Operation *op) { return sides.early.contains(op); })))
      return failure();
    Value own = arith::AddIOp::create(b, group, threads.constant(turn * warpGrid.groups));
    Value at = LLVM::GEPOp::create(b, place.getType(), b.getI8Type(), place,
                                   ValueRange{arith::MulIOp::create(b, own, threads.constant(bytes))});
    if (warp.communicates) // warps are not in step
      return failure();
    for (Value value : sides.handedOver)
      warp.store(staged(value, at), tokenBody.get(value, warpPlacement.anyOf(value)));
    warp.communicates = false;
  }
  b.setLoc(rule.getLoc());
  return success();
}

// What the loops over tokens carry: states, where outputs lie, and where the token's vectors do.
struct AheadEmitter::Carried {
  SmallVector<Value> states, outputs;
  Value place;

  SmallVector<Value> values() const {
    SmallVector<Value> all(states);
    llvm::append_range(all, outputs);
    all.push_back(place);
    return all;
  }
  // Values of the same in their order.
  void take(ValueRange values) {
    llvm::copy(values.take_front(states.size()), states.begin());
    llvm::copy(values.drop_front(states.size()).drop_back(), outputs.begin());
    place = values.back();
  }
};

// One or some tokens, from `first` on. Of some, sums over threads for the one are made beside the other's
// products; so outputs are stored at the end, as branches would keep them apart.
LogicalResult AheadEmitter::emitRound(TensorAccess &access, Carried &carried, Value first, int64_t count) {
  std::vector<SmallVector<Tile>> outputTilesOf;
  for (int64_t i = 0; i < count; ++i) {
    Value token = plus(first, threads.constant(i, 64));
    setCarried(carried.states);
    for (Value value : sides.handedOver)
      forLayouts(value, [&](Axis axis) {
        body.set(value, threads.load(staged(value, carried.place), matType(value), axis));
      });
    forFetches([&](unsigned input, Axis axis) {
      if (isMatrix(tensors[input].argument))
        body.set(tensors[input].argument, access.load(input, axis, token));
    });
    if (StateProducts *units = body.unitsOfTokens())
      units->beginToken(access, token, arith::SubIOp::create(b, tokens, threads.constant(1, 64)));
    threads.communicates = false;
    if (failed(emitToken(access, token)))
      return failure();
    outputTilesOf.push_back(outputTiles());
    carried.states = carriedOf(rule.yieldedStates());
    carried.place = LLVM::GEPOp::create(b, carried.place.getType(), b.getI8Type(), carried.place,
                                        ArrayRef<LLVM::GEPArg>{int32_t(bytes)});
    // Tokens of a round have memory of their own for what they exchange: who writes the one's anew has
    // waited for all others in the token between.
    if (threads.communicates && count == 1)
      threads.barrier();
  }
  MutableArrayRef<Value> places(carried.outputs);
  for (unsigned i = 0; i < outputs; ++i) {
    MutableArrayRef<Value> own = places.take_front(access.countPackets(outputTensor(i), outputAxis(i)));
    places = places.drop_front(own.size());
    for (const SmallVector<Tile> &tiles : outputTilesOf) {
      access.store(outputTensor(i), tiles[i], ArrayRef<Value>(own));
      llvm::copy(access.next(outputTensor(i), own), own.begin());
    }
  }
  return success();
}

// A loop of rounds from `begin` to `end`.
LogicalResult AheadEmitter::emitRounds(TensorAccess &access, Carried &carried, Value first, Value begin,
                                       Value end, int64_t count) {
  LogicalResult status = success();
  auto loop = threads.forLoop(begin, end, threads.constant(count, 64), carried.values(),
                              [&](Value at, ValueRange entries) {
                                carried.take(entries);
                                status = emitRound(access, carried, plus(first, at), count);
                                return carried.values();
                              });
  carried.take(loop.getResults());
  rounds.push_back(loop);
  describeTrips(loop, count == tokensOfRound() ? batch() / count : 0);
  return status;
}

LogicalResult AheadEmitter::runTokens(TensorAccess &access, TensorAccess &ofTokens) {
  LogicalResult status = success();
  Value base = threads.allocate(2 * batch(), bytes / 4).base;
  Value zero = threads.constant(0, 64), all = threads.constant(batch(), 64);
  auto placeOf = [&](Value offset) -> Value {
    return LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{offset});
  };
  Carried carried;
  carried.states = carriedOf(SmallVector<Value>(states.begin(), states.end()));
  for (unsigned i = 0; i < outputs; ++i)
    llvm::append_range(carried.outputs, access.addresses(outputTensor(i), outputAxis(i), zero));
  if (StateProducts *units = body.unitsOfTokens())
    units->fetch(access, zero, threads.constant(0));
  if (failed(computeBatch(ofTokens, fetchBatch(ofTokens, zero), zero, placeOf(threads.constant(0)))))
    return failure();
  threads.barrier();
  carried.place = threads.constant(0); // between batches which of the two
  auto loop = threads.forLoop(zero, tokens, all, carried.values(), [&](Value first, ValueRange given) {
    carried.take(given);
    Value offset = carried.place, next = plus(first, all);
    std::vector<Fetched> fetched = fetchBatch(ofTokens, next);
    Value count = arith::MinSIOp::create(b, arith::SubIOp::create(b, tokens, first), all);
    carried.place = placeOf(offset);
    Value whole = arith::AndIOp::create(b, count, threads.constant(-tokensOfRound(), 64));
    status = emitRounds(access, carried, first, zero, whole, tokensOfRound());
    if (succeeded(status) && tokensOfRound() > 1)
      status = emitRounds(access, carried, first, whole, count, 1);
    carried.place = arith::SubIOp::create(b, threads.constant(batch() * bytes), offset);
    threads.when(arith::CmpIOp::create(b, arith::CmpIPredicate::slt, next, tokens), [&] {
      if (succeeded(status))
        status = computeBatch(ofTokens, fetched, next, placeOf(carried.place));
    });
    threads.barrier();
    return carried.values();
  });
  setCarried(loop.getResults().take_front(carried.states.size()));
  return status;
}

LogicalResult AheadEmitter::run(LLVM::LLVMFuncOp function, int64_t sharedLimit) {
  threads.sharedLimit = sharedLimit;
  if (!layOut())
    return failure();
  TensorAccess access(threads, function.getArgument(0), tensors, entry.packed);
  begin(function, access);
  warp.begin(threads.sharedAt(0), access.pointer(TensorAccess::Scratch));
  Part part = findPart(threads, access, entry.shards, slab);
  TensorAccess ofTokens(warp, access);
  LogicalResult status = emitSequence(access, part, [&] {
    setParams(ofTokens, tokenBody, warpPlacement);
    return runTokens(access, ofTokens);
  });
  if (threads.grid.blocks > 1 && threads.scratchBytes) // which is no block's own
    return failure();
  describeLoops(function.getBody(), threads.grid.heldRegisters ? "held" : "ahead", 1, entry.threads / 32);
  end(entry);
  relaxMath(function, tensors);
  // What states are divided by counts from token to token, as in recursive least squares; not so what a
  // sigmoid divides by.
  for (scf::ForOp loop : rounds)
    loop.walk([](Operation *op) {
      auto quotient = dyn_cast<arith::DivFOp>(op);
      if (quotient ? !isReciprocalOnUnit(quotient) : isa<math::SqrtOp>(op))
        op->removeAttr("fastmath");
    });
  return status;
}

LogicalResult cuda::emitAhead(LLVM::LLVMFuncOp function, RuleOp rule, ArrayRef<TensorArgument> tensors,
                              const Grid &grid, const Placement &placement, int64_t slab, int64_t sharedLimit,
                              Entry &entry) {
  ImplicitLocOpBuilder b(rule.getLoc(), rule.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  AheadEmitter emitter(b, rule, tensors, grid, placement, slab, entry);
  return emitter.run(function, sharedLimit);
}
