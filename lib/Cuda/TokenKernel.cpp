// The kernel of a rule whose states pass, as convolutions keep them: what a token gives follows from itself
// and a few before it, so segments of a sequence go side by side.
//
// A segment takes its tokens in groups, whose inputs are on their way while the group before is computed, and
// what is computed of one token fills the gaps of the others. A state that is an input of some tokens ago
// needs no work: that input, as it came from memory, stays in registers. What is not so regular, the first
// tokens of a sequence, whose states the caller gives, and those left after the last group, goes one by one.
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RuleFrame.h"
#include "lib/Cuda/Sequential.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

namespace {
class TokenEmitter : RuleFrame {
public:
  TokenEmitter(ImplicitLocOpBuilder &b, RuleOp rule, ArrayRef<TensorArgument> tensors, const Grid &grid,
               const Placement &placement, int64_t slab, Entry &entry)
      : RuleFrame(b, rule, tensors, grid, placement), slab(slab), entry(entry),
        memory(passingStates(rule).memory), delays(delaysOf(rule)) {}

  LogicalResult run(LLVM::LLVMFuncOp function, int64_t sharedLimit);

private:
  // What memory holds of one token's inputs, in the order of forFetches.
  using Fetched = SmallVector<SmallVector<Value>>;

  void setInputs(TensorAccess &access, const Fetched &fetched);
  void setDelayed(TensorAccess &access, ArrayRef<Fetched> before);
  template <typename Action>
  void forKept(Action action);
  SmallVector<Value> keptOf(ValueRange stateValues);
  void setKept(ValueRange entries);
  LogicalResult emitOneByOne(TensorAccess &access, Value begin, Value end, Value firstWanted);
  LogicalResult emitEnds(TensorAccess &access, const Part &part, Value first, Value last);
  LogicalResult emitGroups(TensorAccess &access, Value first, Value last);
  Value i64(int64_t n) { return threads.constant(n, 64); }
  Value atLeast(Value x, Value y) { return arith::MaxSIOp::create(b, x, y); }
  Value minus(Value x, Value y) { return arith::SubIOp::create(b, x, y); }
  Value isLess(Value x, Value y) { return arith::CmpIOp::create(b, arith::CmpIPredicate::slt, x, y); }

  int64_t slab;
  Entry &entry;
  int64_t memory;
  SmallVector<Delay> delays; // of each state
};
} // namespace

void TokenEmitter::setInputs(TensorAccess &access, const Fetched &fetched) {
  auto *next = fetched.begin();
  forFetches([&](unsigned i, Axis axis) { body.set(tensors[i].argument, access.unpack(i, axis, *next++)); });
}

// Sets states that are inputs of tokens before, as far back as those are known; the last one is the last
// token.
void TokenEmitter::setDelayed(TensorAccess &access, ArrayRef<Fetched> before) {
  for (unsigned state = 0; state < states.size(); ++state) {
    Delay delay = delays[state];
    if (!delay.tokens || delay.tokens > int64_t(before.size()))
      continue;
    auto *next = before[before.size() - delay.tokens].begin();
    forFetches([&](unsigned i, Axis axis) {
      if (i == delay.input && placement.needs(states[state], axis))
        body.set(states[state], access.unpack(i, axis, *next));
      ++next;
    });
  }
}

// States that are computed, in all their layouts.
template <typename Action>
void TokenEmitter::forKept(Action action) {
  for (unsigned i = 0; i < states.size(); ++i)
    if (!delays[i].tokens)
      forLayouts(states[i], [&](Axis axis) { action(i, axis); });
}

SmallVector<Value> TokenEmitter::keptOf(ValueRange stateValues) {
  SmallVector<Value> entries;
  forKept(
      [&](unsigned i, Axis axis) { llvm::append_range(entries, body.get(stateValues[i], axis).entries); });
  return entries;
}

void TokenEmitter::setKept(ValueRange entries) {
  forKept([&](unsigned i, Axis axis) {
    Tile tile = threads.shape(matType(states[i]), axis);
    size_t count = tile.rows * tile.cols;
    tile.entries.assign(entries.begin(), entries.begin() + count);
    entries = entries.drop_front(count);
    body.set(states[i], tile);
  });
}

// Tokens one after the other, from the states as they are set; outputs from `firstWanted` on.
LogicalResult TokenEmitter::emitOneByOne(TensorAccess &access, Value begin, Value end, Value firstWanted) {
  LogicalResult status = success();
  SmallVector<Value> initial = carriedOf(SmallVector<Value>(states.begin(), states.end()));
  auto loop = threads.forLoop(begin, end, i64(1), initial, [&](Value token, ValueRange entries) {
    setCarried(entries);
    Fetched fetched;
    forFetches([&](unsigned i, Axis axis) { fetched.push_back(access.fetch(i, axis, token)); });
    setInputs(access, fetched);
    threads.communicates = false;
    status = emitToken(access, token);
    if (failed(status))
      return SmallVector<Value>(entries);
    Value isWanted = arith::CmpIOp::create(b, arith::CmpIPredicate::sge, token, firstWanted);
    threads.when(isWanted, [&] { storeOutputs(access, outputTiles(), token); });
    if (threads.communicates)
      threads.barrier();
    return carriedOf(rule.yieldedStates());
  });
  setCarried(loop.getResults());
  return status;
}

// Tokens before `first`, where the sequence begins, and from `last` on, and final states. One piece of code
// for both, as it seldom runs.
LogicalResult TokenEmitter::emitEnds(TensorAccess &access, const Part &part, Value first, Value last) {
  LogicalResult status = success();
  Value none = threads.constant(0, 1), givenAny = none;
  for (unsigned i = 0; i < states.size(); ++i)
    givenAny = arith::OrIOp::create(b, givenAny, access.isGiven(finalTensor(i)));
  Value wantsFinal = arith::AndIOp::create(b, givenAny, part.isLast);
  Value isBegin = isLess(i64(0), first);
  Value isEnd = arith::OrIOp::create(b, isLess(last, tokens), wantsFinal);
  Value start = minus(i64(0), part.before);
  // Of tokens before those that are wanted as many as states last.
  Value early = atLeast(minus(last, i64(memory)), start);
  threads.forLoop(
      threads.constant(0), threads.constant(2), threads.constant(1), {},
      [&](Value turn, ValueRange) -> SmallVector<Value> {
        Value isSecond = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, turn, threads.constant(0));
        auto choose = [&](Value second, Value one) -> Value {
          return arith::SelectOp::create(b, isSecond, second, one);
        };
        threads.when(choose(isEnd, isBegin), [&] {
          status = beginSequence(access);
          if (succeeded(status))
            status = emitOneByOne(access, choose(early, start), choose(tokens, first), choose(last, i64(0)));
          if (failed(status))
            return;
          Value isFinal = arith::AndIOp::create(b, isSecond, wantsFinal);
          for (unsigned i = 0; i < states.size(); ++i)
            threads.when(threads.both(isFinal, access.isGiven(finalTensor(i))),
                         [&] { storeFinal(access, i); });
        });
        return {};
      });
  return status;
}

// Tokens from `first`, before which there are as many as states last, to `last`, in whole groups.
LogicalResult TokenEmitter::emitGroups(TensorAccess &access, Value first, Value last) {
  LogicalResult status = success();
  threads.communicates = false;
  setParams(access);
  if (failed(emitFixed()))
    return failure();
  if (threads.communicates)
    threads.barrier();
  SmallVector<Fetched> window; // inputs of the tokens before a group, and of its own
  for (int64_t i = -memory; i < tokensTogether; ++i) {
    Fetched &fetched = window.emplace_back();
    Value token = arith::AddIOp::create(b, first, i64(i));
    forFetches([&](unsigned i, Axis axis) { fetched.push_back(access.fetch(i, axis, token)); });
  }
  // Nothing is left of the first states where it counts.
  for (BlockArgument state : states)
    forLayouts(state, [&](Axis axis) {
      Tile tile = threads.shape(matType(state), axis);
      tile.entries.assign(tile.rows * tile.cols, threads.number(0));
      body.set(state, tile);
    });
  for (int64_t i = 0; i < memory; ++i) {
    setInputs(access, window[i]);
    if (failed(emitToken(access, minus(first, i64(memory - i)))))
      return failure();
    setCarried(carriedOf(rule.yieldedStates()));
  }
  SmallVector<Value> carried;
  forFetches([&](unsigned i, Axis axis) { llvm::append_range(carried, access.addresses(i, axis, first)); });
  SmallVector<Tile> shapes;
  for (Value output : rule.yieldedOutputs())
    shapes.push_back(threads.shape(matType(output), placement.anyOf(output)));
  for (auto [i, shape] : llvm::enumerate(shapes))
    llvm::append_range(carried, access.addresses(outputTensor(i), shape.axis, first));
  for (const Fetched &fetched : window)
    for (const auto &packets : fetched)
      llvm::append_range(carried, packets);
  llvm::append_range(carried, keptOf(SmallVector<Value>(states.begin(), states.end())));
  threads.forLoop(first, last, i64(tokensTogether), carried, [&](Value token, ValueRange given) {
    ValueRange rest = given;
    auto take = [&](size_t count) {
      SmallVector<Value> taken(rest.take_front(count));
      rest = rest.drop_front(count);
      return taken;
    };
    SmallVector<SmallVector<Value>> inputPlaces, outputPlaces;
    forFetches([&](unsigned i, Axis axis) { inputPlaces.push_back(take(access.countPackets(i, axis))); });
    for (auto [i, shape] : llvm::enumerate(shapes))
      outputPlaces.push_back(take(access.countPackets(outputTensor(i), shape.axis)));
    SmallVector<Fetched> inputs(window);
    for (Fetched &fetched : inputs)
      for (auto &packets : fetched)
        packets = take(packets.size());
    setKept(rest);
    // Inputs of the next group are fetched as soon as those of this one are used up; of the last group,
    // again.
    Value isMore = isLess(arith::AddIOp::create(b, token, i64(tokensTogether)), last);
    SmallVector<SmallVector<Value>> nextPlaces;
    auto *place = inputPlaces.begin();
    forFetches([&](unsigned i, Axis axis) {
      SmallVector<Value> moved(*place);
      for (int64_t more = 0; more < tokensTogether; ++more)
        moved = access.next(i, moved);
      for (auto [there, here] : llvm::zip(moved, *place++))
        there = arith::SelectOp::create(b, isMore, there, here);
      nextPlaces.push_back(moved);
    });
    inputPlaces = nextPlaces;
    SmallVector<SmallVector<Tile>> outputs;
    threads.communicates = false;
    for (int64_t more = 0; more < tokensTogether; ++more) {
      setDelayed(access, ArrayRef(inputs).take_front(memory + more));
      setInputs(access, inputs[memory + more]);
      if (succeeded(status))
        status = emitToken(access, arith::AddIOp::create(b, token, i64(more)));
      if (failed(status))
        return SmallVector<Value>(given);
      outputs.push_back(outputTiles());
      setKept(keptOf(rule.yieldedStates()));
      Fetched &ahead = inputs.emplace_back();
      auto *place = inputPlaces.begin();
      forFetches([&](unsigned i, Axis axis) {
        ahead.push_back(access.fetch(i, axis, ArrayRef(*place)));
        *place = access.next(i, *place);
        ++place;
      });
    }
    if (threads.communicates)
      threads.barrier();
    for (const auto &tiles : outputs)
      for (auto [i, tile] : llvm::enumerate(tiles)) {
        access.store(outputTensor(i), tile, ArrayRef(outputPlaces[i]));
        outputPlaces[i] = access.next(outputTensor(i), outputPlaces[i]);
      }
    SmallVector<Value> next;
    for (const auto *places : {&nextPlaces, &outputPlaces})
      for (const auto &packets : *places)
        llvm::append_range(next, packets);
    for (const Fetched &fetched : ArrayRef(inputs).take_back(window.size()))
      for (const auto &packets : fetched)
        llvm::append_range(next, packets);
    llvm::append_range(next, keptOf(SmallVector<Value>(states.begin(), states.end())));
    return next;
  });
  return status;
}

LogicalResult TokenEmitter::run(LLVM::LLVMFuncOp function, int64_t sharedLimit) {
  threads.sharedLimit = sharedLimit;
  TensorAccess access(threads, function.getArgument(0), tensors, entry.packed);
  access.statesApart = true;
  begin(function, access);
  // Blocks that run together take all heads: what those read of few tokens lies together.
  Part part = findPart(threads, access, entry.shards, slab, tokensTogether, BlockOrder::HeadsFirst);
  setPart(part);
  LogicalResult status = success();
  threads.when(part.isPresent, [&] {
    // The first tokens of a sequence, then groups, then what is left of a segment.
    Value first = arith::MinSIOp::create(b, atLeast(minus(i64(memory), part.before), i64(0)), tokens);
    Value left = arith::AndIOp::create(b, minus(tokens, first), i64(tokensTogether - 1));
    Value last = minus(tokens, left);
    status = emitEnds(access, part, first, last);
    if (succeeded(status))
      threads.when(isLess(first, last), [&] { status = emitGroups(access, first, last); });
  });
  describeLoops(function.getBody(), "tokens", 1, entry.threads / 32);
  end(entry);
  return status;
}

LogicalResult cuda::emitTokens(LLVM::LLVMFuncOp function, RuleOp rule, ArrayRef<TensorArgument> tensors,
                               const Grid &grid, const Placement &placement, int64_t slab,
                               int64_t sharedLimit, Entry &entry) {
  ImplicitLocOpBuilder b(rule.getLoc(), rule.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  TokenEmitter emitter(b, rule, tensors, grid, placement, slab, entry);
  if (failed(emitter.run(function, sharedLimit)))
    return failure();
  relaxMath(function, tensors);
  return success();
}
