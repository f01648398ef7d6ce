// Functions of one token: some threads a token, mostly eight, or one token after the other.
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/SolvedPlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool ChunkEmitter::isRead(Value value) {
  return llvm::any_of(value.getUses(), [&](OpOperand &use) {
    auto decay = dyn_cast<chunk::DecayOp>(use.getOwner());
    if (!decay)
      return !isa<chunk::YieldOp>(use.getOwner());
    return (use.getOperandNumber() == 1) == readsLog(decay);
  });
}

// Products round what they read; decays and systems do not.
bool ChunkEmitter::isExact(Value value) {
  auto isExact = [](Operation *user) {
    return isa<chunk::DecayOp, chunk::SubstituteOp, chunk::ConjugateGradientsOp>(user);
  };
  return llvm::any_of(value.getUsers(), isExact);
}

bool ChunkEmitter::fits(Value rows) {
  return !fragments.isNarrow || fragments.precision == Precision::Bf16 || areUnitRows(rows);
}

// Whether what is carried on are numbers of the last token as they are.
static bool isLastToken(chunk::MapOp op) {
  unsigned states = op.getCarried().size();
  return llvm::all_of(op.getYield().getValues().take_front(states), [&](Value value) {
    auto argument = dyn_cast<BlockArgument>(value);
    return argument && argument.getArgNumber() >= states;
  });
}

// The carried values before each token, and after the last one. Numbers only.
FailureOr<SmallVector<ChunkValue>> ChunkEmitter::emitCarried(chunk::MapOp op) {
  Block &block = op.getBody().front();
  unsigned states = op.getCarried().size();
  SmallVector<ChunkValue> operands, before;
  for (Value operand : op->getOperands()) {
    FailureOr<ChunkValue> value = need(operand);
    if (failed(value) || (value->kind != ChunkValue::Scalar && value->kind != ChunkValue::Rows))
      return failure();
    operands.push_back(*value);
  }
  if (op.getResults().empty() && isLastToken(op)) {
    Value length = threads.constant(tokens, 64), one = threads.constant(1, 64);
    Value at = arith::SubIOp::create(b, arith::MinSIOp::create(b, count, length), one);
    at = arith::TruncIOp::create(b, b.getI32Type(), at);
    syncFor(operands);
    for (auto [last, value] : llvm::zip(op.getLast(), op.getYield().getValues()))
      set(last, ChunkValue::scalar(entryOf(operands[cast<BlockArgument>(value).getArgNumber()], at)));
    return before;
  }
  for (unsigned i = 0; i < states; ++i)
    before.push_back(ChunkValue::column(allocateRows(tokens)));
  for (const ChunkValue &rows : before) // also past the end
    forItems(tokens, [&](Value item) { storeRow(rows.memory, item, threads.number(0)); });
  dirty = true;
  SharedTile after = allocateRows(states);
  sync();
  SmallVector<Value> yielded(op.getYield().getValues().take_front(states)), inits;
  Placement placement(block, yielded, tokenGrid);
  for (unsigned i = 0; i < states; ++i)
    inits.push_back(entryOf(operands[i], threads.constant(0)));
  LogicalResult status = success();
  threads.when(equal(fragments.warp, 0), [&] {
    Value isFirst = equal(fragments.lane, 0);
    Value length = threads.constant(tokens, 64);
    Value last = arith::TruncIOp::create(b, b.getI32Type(), arith::MinSIOp::create(b, count, length));
    auto loop = threads.forLoop(
        threads.constant(0), last, threads.constant(1), inits, [&](Value token, ValueRange carried) {
          BodyEmitter body(tokenThreads, placement);
          for (auto [i, argument] : llvm::enumerate(block.getArguments())) {
            if (i < states)
              threads.when(isFirst, [&, i = i] { storeRow(before[i].memory, token, carried[i]); });
            if (!placement.isNeeded(argument))
              continue;
            Tile tile = tokenThreads.shape(matType(argument), 0);
            tile.entries.push_back(i < states ? carried[i] : entryOf(operands[i], token));
            body.set(argument, tile);
          }
          status = body.emitBlock(block, {});
          SmallVector<Value> next;
          for (Value value : yielded)
            next.push_back(failed(status) ? carried[0] : body.get(value, 0).entries[0]);
          return next;
        });
    describeTrips(loop, tokens);
    for (unsigned i = 0; i < states; ++i)
      threads.when(isFirst, [&] { storeRow(after, threads.constant(i), loop.getResult(i)); });
  });
  dirty = true;
  sync();
  for (auto [i, last] : llvm::enumerate(op.getLast()))
    set(last, ChunkValue::scalar(rowAt(after, threads.constant(i))));
  if (failed(status))
    return failure();
  return before;
}

LogicalResult ChunkEmitter::emitMap(chunk::MapOp op) {
  Block &block = op.getBody().front();
  unsigned states = op.getCarried().size();
  // What the region reads: known values, or inputs and params, which it loads.
  llvm::DenseMap<BlockArgument, ChunkValue> known;
  if (states) {
    FailureOr<SmallVector<ChunkValue>> before = emitCarried(op);
    if (failed(before))
      return failure();
    if (op.getResults().empty())
      return success();
    for (unsigned i = 0; i < states; ++i)
      known[block.getArgument(i)] = (*before)[i];
  }
  auto inputs = program.argumentsOf(ArgKind::Input), params = program.argumentsOf(ArgKind::Param);
  llvm::DenseMap<BlockArgument, unsigned> read;
  SmallVector<std::pair<BlockArgument, Value>> others;
  for (auto [operand, argument] :
       llvm::zip(op->getOperands().drop_front(states), block.getArguments().drop_front(states))) {
    auto input = llvm::find(inputs, operand), param = llvm::find(params, operand);
    if (!values.count(operand) && (input != inputs.end() || param != params.end()))
      read[argument] =
          input != inputs.end() ? input - inputs.begin() : inputs.size() + (param - params.begin());
    else
      others.push_back({argument, operand});
  }
  auto yielded = program.getBodyYield().getValues();
  unsigned programStates = program.argumentsOf(ArgKind::State).size(),
           outputs = yielded.size() - programStates;
  SmallVector<chunk::OutputPart> parts = chunk::outputParts(program);
  SmallVector<Value> wanted;
  SmallVector<unsigned> results;
  for (auto [i, result] : llvm::enumerate(op.getResults()))
    if (!result.use_empty() &&
        (isRead(result) || llvm::is_contained(yielded.drop_front(programStates), result))) {
      wanted.push_back(op.getYield().getValues()[states + i]);
      results.push_back(i);
    }
  Placement placement(block, wanted, tokenGrid);
  LogicalResult status = success();
  // What tokens read is on its way before the first is waited for.
  SmallVector<SmallVector<SmallVector<Value>>> fetched;
  auto forFetched = [&](llvm::function_ref<void(BlockArgument, unsigned, Axis)> body) {
    for (BlockArgument argument : block.getArguments())
      if (auto at = read.find(argument); at != read.end() && isa<MatType>(argument.getType()))
        for (Axis axis : {0, 1})
          if (placement.needs(argument, axis))
            body(argument, at->second, axis);
  };
  auto fetch = [&] {
    forTokens([&](Value, Value token, Value) {
      fetched.emplace_back();
      forFetched([&](BlockArgument, unsigned tensor, Axis axis) {
        fetched.back().push_back(access.fetch(tensor, axis, tensor < inputs.size() ? token : Value()));
      });
    });
  };
  // Of blocks of few tokens before what else is read is computed: it takes few registers.
  if (program.getBlock())
    fetch();
  for (auto [argument, operand] : others) {
    FailureOr<ChunkValue> value = need(operand);
    if (failed(value) || value->transposed || value->kind == ChunkValue::Scores ||
        value->kind == ChunkValue::Weights)
      return failure();
    if (value->kind == ChunkValue::Slab) // goes through shared memory
      value = ChunkValue::tile(moveSlab(*value, /*isF32=*/true));
    known[argument] = *value;
  }
  for (auto [i, value] : llvm::zip(results, wanted)) {
    Value result = op.getResults()[i];
    if (!isRead(result))
      continue;
    int64_t n = matType(value).numElements();
    set(result, n == 1 ? ChunkValue::column(allocateRows(tokens))
                       : ChunkValue::tile(allocateTile(result, n, isExact(result))));
  }
  SmallVector<ChunkValue> touched =
      llvm::map_to_vector(known, [](const auto &entry) { return entry.second; });
  for (unsigned i : results) // whose padding may be written once more
    if (auto own = values.find(op.getResults()[i]); own != values.end())
      touched.push_back(own->second);
  syncFor(touched);
  if (!program.getBlock())
    fetch();
  auto round = fetched.begin();
  forTokens([&](Value local, Value token, Value valid) {
    llvm::DenseMap<std::pair<BlockArgument, Axis>, Tile> tiles;
    auto next = round++->begin();
    forFetched([&](BlockArgument argument, unsigned tensor, Axis axis) {
      tiles[{argument, axis}] = access.unpack(tensor, axis, *next++);
    });
    BodyEmitter body(tokenThreads, placement);
    for (BlockArgument argument : block.getArguments()) {
      if (!placement.isNeeded(argument) || isa<chunk::TokensType, StepsType>(argument.getType()))
        continue;
      for (Axis axis : {0, 1}) {
        if (!placement.needs(argument, axis))
          continue;
        Tile tile = tokenThreads.shape(matType(argument), axis);
        if (read.count(argument)) {
          tile = tiles[{argument, axis}];
        } else {
          const ChunkValue &value = known[argument];
          bool isVector = value.kind == ChunkValue::Tile || !matType(argument).isScalar();
          for (int64_t e = 0; e < tile.rows * tile.cols; ++e) {
            Value at = isVector ? tokenThreads.index(axis, matType(argument).numElements(), e) : local, entry;
            Value exists = isVector ? tokenThreads.valid(axis, matType(argument).numElements(), e) : Value();
            if (exists)
              at = choose(exists, at, threads.constant(0));
            entry = value.kind == ChunkValue::Tile ? load(value.memory, local, at) : entryOf(value, at);
            if (value.scale.base)
              entry = multiply(entry, rowAt(value.scale, local));
            tile.entries.push_back(exists ? choose(exists, entry, threads.number(0)) : entry);
          }
        }
        body.set(argument, tile);
      }
    }
    auto loadStep = [&](BlockArgument steps, Value index, Axis axis) {
      return access.load(read.lookup(steps), axis, token, index);
    };
    if (failed(body.emitBlock(block, loadStep)))
      return void(status = failure());
    for (unsigned i : results) {
      Value result = op.getResults()[i], inner = op.getYield().getValues()[states + i];
      const Tile &tile = body.get(inner, placement.anyOf(inner));
      for (unsigned o = 0; o < outputs; ++o)
        if (yielded[programStates + o] == result)
          threads.when(valid, [&] {
            access.store(inputs.size() + params.size() + programStates + parts[o].output, parts[o], tile,
                         token);
          });
      auto value = values.find(result);
      if (value == values.end())
        continue;
      const SharedTile &memory = value->second.memory;
      auto kept = [&](Value entry) { return choose(valid, entry, threads.number(0)); };
      if (value->second.kind == ChunkValue::Rows) {
        threads.when(tokenThreads.isWriter(tile), [&] { storeRow(memory, local, kept(tile.entries[0])); });
        continue;
      }
      for (size_t e = 0; e < tile.entries.size(); e += 2)
        threads.when(tokenThreads.valid(tile.axis, memory.cols, e), [&] {
          Value at = tokenThreads.index(tile.axis, memory.cols, e), low = kept(tile.entries[e]);
          Value high = kept(tile.entries[e + 1]);
          if (Value exists = tokenThreads.valid(tile.axis, memory.cols, e + 1))
            high = choose(exists, high, threads.number(0));
          storePair(memory, local, at, low, high);
        });
    }
  });
  dirty = true;
  return status;
}
