#include "lib/Cuda/RuleFrame.h"
#include "lib/Cuda/Chunked.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

void RuleFrame::begin(LLVM::LLVMFuncOp function, TensorAccess &access) {
  auto shared = function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>("recur_shared");
  Value base = LLVM::AddressOfOp::create(b, shared);
  // The block's part of the workspace; how much that is, is known at the end.
  scratchSize = arith::ConstantIntOp::create(b, 0, 64);
  Value block = arith::ExtUIOp::create(b, b.getI64Type(), NVVM::BlockIdXOp::create(b, b.getI32Type()));
  Value scratch = access.pointer(TensorAccess::Scratch);
  scratch = LLVM::GEPOp::create(b, scratch.getType(), b.getI8Type(), scratch,
                                ValueRange{arith::MulIOp::create(b, block, scratchSize)});
  threads.begin(base, scratch);
}

void RuleFrame::end(Entry &entry) {
  scratchSize.getDefiningOp<arith::ConstantOp>().setValueAttr(b.getI64IntegerAttr(threads.scratchBytes));
  LLVM::ReturnOp::create(b, ValueRange());
  entry.sharedBytes = threads.sharedBytes;
  entry.scratchBytes = threads.scratchBytes;
}

void RuleFrame::setBuiltins(BodyEmitter &body, Block &block, Value at) {
  bool isBody = &block == &rule.getBody().front();
  unsigned next = 0;
  for (ArgAttr arg : rule.getArgs().getAsRange<ArgAttr>()) {
    ArgKind kind = arg.getKind();
    bool inInit = kind == ArgKind::Param || kind == ArgKind::Head || kind == ArgKind::Heads;
    if (!isBody && !inInit)
      continue;
    Value argument = block.getArgument(next++);
    Value number = kind == ArgKind::Position ? at
                   : kind == ArgKind::Head   ? head
                   : kind == ArgKind::Heads  ? heads
                                             : Value();
    if (!number || !placement.isNeeded(argument))
      continue;
    Tile tile = threads.shape(matType(argument), 0);
    tile.entries.push_back(arith::SIToFPOp::create(b, b.getF32Type(), number));
    body.set(argument, tile);
  }
}

SmallVector<Value> RuleFrame::carriedOf(ValueRange stateValues) {
  SmallVector<Value> entries;
  for (unsigned i = 0; i < states.size(); ++i)
    forLayouts(states[i],
               [&](Axis axis) { llvm::append_range(entries, body.get(stateValues[i], axis).entries); });
  for (BlockArgument argument : stale)
    forLayouts(argument, [&](Axis axis) { llvm::append_range(entries, body.get(argument, axis).entries); });
  return entries;
}

void RuleFrame::setCarried(ValueRange entries) {
  for (ArrayRef<BlockArgument> arguments : {ArrayRef(states), ArrayRef(stale)})
    for (BlockArgument argument : arguments)
      forLayouts(argument, [&](Axis axis) {
        Tile tile = threads.shape(matType(argument), axis);
        size_t count = tile.rows * tile.cols;
        tile.entries.assign(entries.begin(), entries.begin() + count);
        entries = entries.drop_front(count);
        body.set(argument, tile);
      });
}

void RuleFrame::setParams(TensorAccess &access, BodyEmitter &body, const Placement &placement) {
  // The init region has arguments of its own for them.
  unsigned next = 0, param = 0;
  for (BlockArgument argument : rule.getBody().getArguments()) {
    ArgKind kind = rule.getArg(argument).getKind();
    if (kind != ArgKind::Param && kind != ArgKind::Head && kind != ArgKind::Heads)
      continue;
    BlockArgument inInit = rule.getInit().getArgument(next++);
    if (kind != ArgKind::Param)
      continue;
    for (Axis axis : {0, 1})
      if (placement.needs(argument, axis) || placement.needs(inInit, axis)) {
        Tile tile = access.load(inputs + param, axis, {});
        body.set(argument, tile);
        body.set(inInit, tile);
      }
    ++param;
  }
}

// Sums over threads are what the optimiser cannot take out of a loop over tokens by itself.
LogicalResult RuleFrame::emitFixed() {
  Block &block = rule.getBody().front();
  auto isFixed = [&](Value value) {
    if (Operation *op = value.getDefiningOp())
      return fixed.contains(op);
    return rule.getArg(cast<BlockArgument>(value)).getKind() == ArgKind::Param;
  };
  fixed.clear();
  for (Operation &op : block.without_terminator())
    if ((!chosen || chosen->contains(&op)) && op.getNumRegions() == 0 &&
        llvm::all_of(op.getOperands(), isFixed))
      fixed.insert(&op);
  LogicalResult status = body.emitBlock(block, {}, [&](Operation *op) { return fixed.contains(op); });
  b.setLoc(rule.getLoc());
  return status;
}

LogicalResult RuleFrame::setStates(TensorAccess &access) {
  setBuiltins(body, rule.getInit().front(), {});
  if (failed(body.emitBlock(rule.getInit().front(), {})))
    return failure();
  for (unsigned i = 0; i < states.size(); ++i)
    forLayouts(states[i], [&](Axis axis) {
      const Tile initial = body.get(rule.getInitYield().getValues()[i], axis);
      // A state may be updated in place, so whoever stores it waits for all who read the same entries.
      threads.communicates |= threads.grid.groups > 1 || threads.hasCopies(initial) ||
                              (placement.needs(states[i], 0) && placement.needs(states[i], 1));
      SmallVector<Type> types(initial.entries.size(), b.getF32Type());
      auto choice = scf::IfOp::create(b, types, access.isGiven(initialTensor(i)), true);
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(choice.thenBlock());
      scf::YieldOp::create(b, access.load(initialTensor(i), axis, {}).entries);
      b.setInsertionPointToStart(choice.elseBlock());
      scf::YieldOp::create(b, initial.entries);
      Tile tile = initial;
      tile.entries.assign(choice.getResults().begin(), choice.getResults().end());
      body.set(states[i], tile);
    });
  for (BlockArgument argument : stale)
    forLayouts(argument, [&](Axis axis) {
      body.set(argument, body.get(rule.findArgument(ArgKind::State, rule.getArg(argument).getName()), axis));
    });
  return success();
}

void RuleFrame::setPart(const Part &part) {
  head = part.head;
  heads = part.heads;
  tokens = part.tokens;
  position = part.position;
}

LogicalResult RuleFrame::beginSequence(TensorAccess &access) {
  setParams(access);
  if (failed(emitFixed()))
    return failure();
  if (threads.grid.heldRegisters || threads.grid.unitsAxis >= 0)
    body.holdMatrices(rule.getBody().front(), tensors);
  if (failed(setStates(access)))
    return failure();
  if (threads.communicates)
    threads.barrier();
  return success();
}

LogicalResult RuleFrame::emitSequence(TensorAccess &access, const Part &part,
                                      llvm::function_ref<LogicalResult()> takeTokens) {
  setPart(part);
  LogicalResult status = success();
  threads.when(part.isPresent, [&] {
    status = beginSequence(access);
    if (failed(status))
      return;
    SmallVector<Value> initial = carriedOf(SmallVector<Value>(states.begin(), states.end()));
    SmallVector<Type> types(initial.size(), b.getF32Type());
    Value any = arith::CmpIOp::create(b, arith::CmpIPredicate::sgt, tokens, threads.constant(0, 64));
    auto guarded = scf::IfOp::create(b, types, any, true);
    auto yield = [&](ValueRange values) { // without values it is there already
      if (!types.empty())
        scf::YieldOp::create(b, values);
    };
    {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(guarded.elseBlock());
      yield(initial);
      b.setInsertionPointToStart(guarded.thenBlock());
      status = takeTokens();
      if (failed(status))
        return;
      yield(carriedOf(SmallVector<Value>(states.begin(), states.end())));
    }
    setCarried(guarded.getResults());
    for (unsigned i = 0; i < states.size(); ++i)
      threads.when(access.isGiven(finalTensor(i)), [&] { storeFinal(access, i); });
  });
  return status;
}

LogicalResult RuleFrame::emitToken(TensorAccess &access, Value token) {
  Value at = arith::AddIOp::create(b, position, token);
  setBuiltins(body, rule.getBody().front(), at);
  // A stale state is renewed where a block begins, and at the first token of the call.
  for (BlockArgument argument : stale) {
    ArgAttr arg = rule.getArg(argument);
    Value phase = arith::RemUIOp::create(b, at, threads.constant(arg.getBlock(), 64));
    Value zero = threads.constant(0, 64);
    Value begins = arith::OrIOp::create(b, arith::CmpIOp::create(b, arith::CmpIPredicate::eq, phase, zero),
                                        arith::CmpIOp::create(b, arith::CmpIPredicate::eq, token, zero));
    forLayouts(argument, [&](Axis axis) {
      Tile tile = body.get(argument, axis);
      const Tile &state = body.get(rule.findArgument(ArgKind::State, arg.getName()), axis);
      for (auto [entry, fresh] : llvm::zip(tile.entries, state.entries))
        entry = arith::SelectOp::create(b, begins, fresh, entry);
      body.set(argument, tile);
    });
  }
  // A few micro-steps are fetched together as the token begins: one way from memory, beside that of the
  // states, instead of one for each.
  constexpr int64_t fewSteps = 4;
  llvm::DenseMap<std::pair<unsigned, Axis>, SmallVector<SmallVector<Value>>> ahead;
  auto loadStep = [&](BlockArgument steps, Value index, Axis axis) {
    unsigned tensor =
        llvm::find_if(tensors, [&](const auto &t) { return t.argument == steps; }) - tensors.begin();
    int64_t count = cast<IntegerAttr>(cast<StepsType>(steps.getType()).getCount()).getInt();
    if (count > fewSteps && !tensors[tensor].stepsLast)
      return access.load(tensor, axis, token, index);
    SmallVector<SmallVector<Value>> &fetched = ahead[{tensor, axis}];
    if (fetched.empty()) {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointAfter(at.getDefiningOp());
      fetched = access.fetchSteps(tensor, axis, token, count);
    }
    SmallVector<Value> chosen = fetched.front();
    for (int64_t step = 1; step < count; ++step) {
      Value isIt = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, index, threads.constant(step, 64));
      for (auto [value, other] : llvm::zip(chosen, fetched[step]))
        value = arith::SelectOp::create(b, isIt, other, value);
    }
    return access.unpack(tensor, axis, chosen);
  };
  LogicalResult status = body.emitBlock(rule.getBody().front(), loadStep, [&](Operation *op) {
    return !fixed.contains(op) && (!chosen || chosen->contains(op));
  });
  b.setLoc(rule.getLoc());
  return status;
}

SmallVector<Tile> RuleFrame::outputTiles() {
  SmallVector<Tile> tiles;
  for (Value output : rule.yieldedOutputs())
    tiles.push_back(body.get(output, placement.anyOf(output)));
  return tiles;
}

void RuleFrame::storeOutputs(TensorAccess &access, ArrayRef<Tile> tiles, Value token) {
  for (auto [i, tile] : llvm::enumerate(tiles))
    access.store(outputTensor(i), tile, token);
}

void RuleFrame::storeFinal(TensorAccess &access, unsigned state) {
  access.store(finalTensor(state), body.get(states[state], placement.anyOf(states[state])), Value());
}
