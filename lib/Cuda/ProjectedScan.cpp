#include "lib/Cuda/ProjectedScan.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/Roles.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool ProjectedScan::isWanted(Operation *op) const {
  return task == ScanTask::Gather
             ? gatheredOps.contains(op)
             : llvm::any_of(op->getResults(), [&](Value result) { return placement.isNeeded(result); });
}

bool cuda::isShared(Operation *op) {
  auto dot = dyn_cast<MatmulOp>(op);
  return isProduct(op) || isa<ReduceOp>(op) || (dot && matType(dot.getLhs()).numCols() != 1);
}

void ProjectedScan::findLevels() {
  llvm::DenseMap<Value, unsigned> known;
  Block &block = rule.getBody().front();
  auto visit = [&] {
    for (Operation &op : block.without_terminator()) {
      unsigned level = 0;
      for (Value operand : op.getOperands())
        level = std::max(level, known.lookup(operand));
      levels[&op] = level;
      lastLevel = std::max(lastLevel, level + isShared(&op));
      for (Value result : op.getResults())
        known[result] = level + isShared(&op);
    }
  };
  auto valuesOf = [](const ScanGroup &group) {
    SmallVector<Value> values(group.factors);
    llvm::append_range(values, group.writes);
    llvm::erase(values, Value());
    return values;
  };
  for (const auto &groups : form.phases) {
    visit();
    unsigned level = 0;
    for (const ScanGroup &group : groups)
      for (Value value : valuesOf(group))
        level = std::max(level, known.lookup(value));
    begins.push_back(level + 1);
    for (const ScanGroup &group : groups)
      for (unsigned state : group.states)
        known[states[state]] = level + 1;
  }
  visit();
  lastLevel = std::max(lastLevel, begins.back());
  // What the maps follow from, and states that pass.
  SmallVector<Value> open;
  if (task == ScanTask::Gather)
    for (const auto &groups : form.phases)
      for (const ScanGroup &group : groups) {
        llvm::append_range(open, valuesOf(group));
        for (unsigned state : group.states)
          if (!isGathered(group))
            open.push_back(rule.yieldedStates()[state]);
      }
  while (!open.empty())
    if (Operation *op = open.pop_back_val().getDefiningOp(); op && gatheredOps.insert(op).second)
      llvm::append_range(open, op->getOperands());
}

SmallVector<MatmulOp> ProjectedScan::productsOf(unsigned level) {
  SmallVector<MatmulOp> products;
  for (auto op : rule.getBody().getOps<MatmulOp>())
    if (isProduct(op) && levels.lookup(op) == level && isWanted(op))
      products.push_back(op);
  return products;
}

SmallVector<Operation *> ProjectedScan::sumsOf(unsigned level) {
  SmallVector<Operation *> sums;
  for (Operation &op : rule.getBody().front())
    if (isShared(&op) && !isProduct(&op) && levels.lookup(&op) == level && isWanted(&op))
      sums.push_back(&op);
  return sums;
}

// What a lane of the four has, from the one that takes the tokens `distance` runs before; `before`, where
// there is none.
Value ProjectedScan::fromTurn(Value x, Value before, int64_t distance) {
  constexpr int32_t ofFour = 32 - ProjectedShape::turns;
  Value other = NVVM::ShflOp::create(b, b.getF32Type(), threads.constant(-1), x, threads.constant(distance),
                                     threads.constant(ofFour << 8), NVVM::ShflKind::up, UnitAttr());
  Value isOther = arith::CmpIOp::create(b, arith::CmpIPredicate::uge, turn, threads.constant(distance));
  return arith::SelectOp::create(b, isOther, other, before);
}

Value ProjectedScan::fromLast(Value x) {
  constexpr int32_t ofFour = 32 - ProjectedShape::turns;
  return NVVM::ShflOp::create(b, b.getF32Type(), threads.constant(-1), x,
                              threads.constant(ProjectedShape::turns - 1), threads.constant(ofFour << 8 | 31),
                              NVVM::ShflKind::idx, UnitAttr());
}

// Finds the states that each run starts from, and those after the tile.
void ProjectedScan::exchange(const ScanGroup &group, Tokens tokens) {
  size_t n = group.states.size();
  EntryMap none = maps.identity(group);
  forLayouts(states[group.states[0]], [&](Axis axis) {
    Tile shape = threads.shape(matType(states[group.states[0]]), axis);
    SmallVector<Tile> starts(n, shape), ends(n, shape);
    auto *sum = llvm::find_if(
        gathered, [&](const Gathered &own) { return own.group == &group && own.tile.axis == axis; });
    for (int64_t r = 0; r < shape.rows; ++r)
      for (int64_t c = 0; c < shape.cols; ++c) {
        EntryMap all;
        for (BodyEmitter &token : tokens) {
          auto entry = [&](Value value) { return value ? token.like(value, shape).at(r, c) : Value(); };
          EntryMap next;
          next.factors = llvm::map_to_vector<4>(group.factors, entry);
          next.writes = llvm::map_to_vector<2>(group.writes, entry);
          all = all.factors.empty() ? next : maps.compose(group, next, all);
        }
        for (int64_t distance : {1, 2}) {
          all = maps.filled(group, all);
          SmallVector<Value> before;
          for (auto [x, other] : llvm::zip(all.flat(), none.flat()))
            before.push_back(fromTurn(x, other, distance));
          all = maps.compose(group, all, EntryMap::ofFlat(before, n));
        }
        all = maps.filled(group, all);
        if (isGathered(group)) {
          auto ofTile = llvm::map_to_vector(all.flat(), [&](Value x) { return fromLast(x); });
          EntryMap &own = sum->entries[r * shape.cols + c];
          own = maps.filled(group, maps.compose(group, EntryMap::ofFlat(ofTile, n), own));
          continue;
        }
        auto current = llvm::map_to_vector(
            group.states, [&](unsigned state) { return body.get(states[state], axis).at(r, c); });
        SmallVector<Value> end = maps.apply(group, all, current);
        for (size_t i = 0; i < n; ++i) {
          starts[i].entries.push_back(fromTurn(end[i], current[i], 1));
          ends[i].entries.push_back(fromLast(end[i]));
        }
      }
    if (isGathered(group))
      return;
    for (auto [i, state] : llvm::enumerate(group.states)) {
      body.set(states[state], starts[i]);
      after[state].push_back(ends[i]);
    }
  });
}

LogicalResult ProjectedScan::walk(TensorAccess &access, Tokens tokens, Value tile) {
  unsigned levelsWanted =
      task == ScanTask::Gather ? begins[*phaseOfSegments(form, shape.delays)] : lastLevel + 1;
  for (unsigned level = 0; level < levelsWanted; ++level) {
    SmallVector<unsigned> begun;
    for (auto [phase, at] : llvm::enumerate(begins))
      if (at == level)
        for (const ScanGroup &group : form.phases[phase])
          llvm::append_range(begun, group.states);
    for (BodyEmitter &token : tokens) {
      for (unsigned state : begun)
        forLayouts(states[state],
                   [&](Axis axis) { token.set(states[state], body.get(states[state], axis)); });
      if (failed(token.emitBlock(rule.getBody().front(), {}, [&](Operation *op) {
            return levels.lookup(op) == level && !isShared(op) && isWanted(op);
          })))
        return failure();
      for (unsigned state : begun)
        forLayouts(states[state],
                   [&](Axis axis) { body.set(states[state], token.get(rule.yieldedStates()[state], axis)); });
    }
    b.setLoc(rule.getLoc());
    sumUp(sumsOf(level), tokens, tile);
    multiply(productsOf(level), tokens, tile);
    for (auto [phase, at] : llvm::enumerate(begins))
      if (at == level + 1)
        for (const ScanGroup &group : form.phases[phase])
          exchange(group, tokens);
  }
  return success();
}

// Numbers of tokens come to registers, those of the next tile while this one is worked on.
SmallVector<Value> ProjectedScan::fetchNumbers(TensorAccess &access, Value begin) {
  SmallVector<Value> fetched;
  Value last = arith::SubIOp::create(b, tokens, i64(1));
  forFetches([&](unsigned i, Axis axis) {
    for (int64_t token = 0; token < shape.run && !ringed.contains(i); ++token) {
      Value at = arith::MinSIOp::create(b, arith::AddIOp::create(b, begin, i64(token)), last);
      llvm::append_range(fetched, access.fetch(i, axis, at));
    }
  });
  return fetched;
}

void ProjectedScan::setNumbers(TensorAccess &access, Tokens tokens, ValueRange fetched) {
  forFetches([&](unsigned i, Axis axis) {
    for (BodyEmitter &token : tokens)
      if (!ringed.contains(i)) {
        token.set(tensors[i].argument, access.unpack(i, axis, fetched.take_front(1)));
        fetched = fetched.drop_front(1);
      }
  });
}

void ProjectedScan::storeOutputs(TensorAccess &access, Tokens tokens, Value begin, Value first) {
  Value next = arith::AddIOp::create(b, first, i64(shape.tokens()));
  Value isFull = arith::CmpIOp::create(b, arith::CmpIPredicate::sle, next, this->tokens);
  auto branch = scf::IfOp::create(b, isFull, /*withElseRegion=*/true);
  for (bool full : {true, false}) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPoint((full ? branch.thenBlock() : branch.elseBlock())->getTerminator());
    for (auto [i, output] : llvm::enumerate(rule.yieldedOutputs())) {
      Axis axis = placement.anyOf(output);
      SmallVector<Value> places = access.addresses(outputTensor(i), axis, begin);
      for (auto [t, token] : llvm::enumerate(tokens)) {
        if (t)
          places = access.next(outputTensor(i), places);
        Value at = arith::AddIOp::create(b, begin, i64(t));
        Value exists =
            full ? Value()
                 : arith::CmpIOp::create(b, arith::CmpIPredicate::slt, at, this->tokens).getResult();
        threads.when(exists, [&, i = i, output = output, &token = token] {
          access.store(outputTensor(i), token.get(output, axis), places);
        });
      }
    }
  }
  describeRare(*branch.elseBlock());
}

// States after the sequence's last token, by the lanes that take it.
void ProjectedScan::storeFinals(TensorAccess &access, Tokens tokens, Value begin, Value first) {
  if (states.empty())
    return;
  Value next = arith::AddIOp::create(b, first, i64(shape.tokens()));
  Value isLast = arith::CmpIOp::create(b, arith::CmpIPredicate::sge, next, this->tokens);
  auto branch = scf::IfOp::create(b, threads.both(isLast, isLastPart), /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(branch.thenBlock()->getTerminator());
  for (auto [t, token] : llvm::enumerate(tokens)) {
    Value at = arith::AddIOp::create(b, begin, i64(t + 1));
    Value isIt = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, at, this->tokens);
    threads.when(isIt, [&, &token = token] {
      for (unsigned i = 0; i < states.size(); ++i)
        threads.when(access.isGiven(finalTensor(i)), [&] {
          access.store(finalTensor(i), token.get(rule.yieldedStates()[i], placement.anyOf(states[i])),
                       Value());
        });
    });
  }
  describeRare(*branch.thenBlock());
}

void ProjectedScan::runTiles(TensorAccess &access) {
  Ptx ptx(b);
  int64_t tile = shape.tokens();
  if (shape.byWarpgroups) {
    llvm::copy_if(productsOf(0), std::back_inserter(ahead), [&](MatmulOp op) { return isOfInput(op); });
    awaitTile(threads.constant(0));
    if (!ahead.empty())
      aheadSums = ptx.await(0, startProducts(ahead, threads.constant(0)));
  } else {
    for (int64_t i = 0; i + 1 < shape.places; ++i)
      ask(access, i64(i * tile), threads.constant(i));
  }
  Value offset = arith::MulIOp::create(b, turn, threads.constant(shape.run));
  offset = arith::ExtUIOp::create(b, b.getI64Type(), offset);
  auto beginOf = [&](Value first) -> Value { return arith::AddIOp::create(b, first, offset); };
  bool isGather = task == ScanTask::Gather;
  auto carried = [&] {
    SmallVector<Value> values = carriedOf(SmallVector<Value>(states.begin(), states.end()));
    for (const Gathered &own : gathered)
      for (const EntryMap &entry : own.entries)
        llvm::append_range(values, entry.flat());
    return values;
  };
  size_t ofStates = carriedOf(SmallVector<Value>(states.begin(), states.end())).size();
  auto setAll = [&](ValueRange values) {
    setCarried(values.take_front(ofStates));
    values = values.drop_front(ofStates);
    for (Gathered &own : gathered)
      for (EntryMap &entry : own.entries) {
        size_t count = entry.flat().size();
        entry = EntryMap::ofFlat(SmallVector<Value>(values.take_front(count)), own.group->states.size());
        values = values.drop_front(count);
      }
  };
  SmallVector<Value> inits = carried();
  size_t count = inits.size();
  size_t sums = aheadSums.empty() ? 0 : aheadSums.size() * aheadSums.front().size();
  inits.push_back(threads.constant(0));
  for (const Values &sum : aheadSums)
    llvm::append_range(inits, sum);
  llvm::append_range(inits, fetchNumbers(access, beginOf(i64(0))));
  auto loop = threads.forLoop(i64(0), tokens, i64(tile), inits, [&](Value first, ValueRange values) {
    setAll(values.take_front(count));
    Value number = values[count], begin = beginOf(first);
    Value next = arith::AddIOp::create(b, first, i64(tile));
    SmallVector<Value> numbers = fetchNumbers(access, beginOf(next));
    std::vector<BodyEmitter> bodies(shape.run, body);
    ValueRange landed = values.slice(count + 1, sums);
    for (Values &sum : aheadSums) {
      sum.assign(landed.begin(), landed.begin() + sum.size());
      landed = landed.drop_front(sum.size());
    }
    setNumbers(access, bodies, values.drop_front(count + 1 + sums));
    for (auto [t, token] : llvm::enumerate(bodies))
      setBuiltins(token, rule.getBody().front(),
                  arith::AddIOp::create(b, position, arith::AddIOp::create(b, begin, i64(t))));
    SmallVector<Pending> started;
    Value following = ptx.add(number, 1);
    if (shape.byWarpgroups) {
      awaitTile(following);
      started = startProducts(ahead, following);
    } else {
      // The place of the tile before is free as soon as all have come here.
      ptx.awaitPackets(shape.places - 2);
      meet();
      ask(access, arith::AddIOp::create(b, first, i64((shape.places - 1) * tile)),
          ptx.add(number, shape.places - 1));
    }
    take(access, bodies, number);
    after.clear();
    if (succeeded(status))
      status = walk(access, bodies, number);
    if (!isGather && succeeded(status)) {
      storeOutputs(access, bodies, begin, first);
      storeFinals(access, bodies, begin, first);
    }
    for (auto &[state, tiles] : after)
      for (const Tile &own : tiles)
        body.set(states[state], own);
    SmallVector<Value> results = carried();
    results.push_back(following);
    if (!ahead.empty())
      for (const Values &sum : ptx.await(0, started))
        llvm::append_range(results, sum);
    if (shape.byWarpgroups)
      releaseTile(number);
    llvm::append_range(results, numbers);
    return results;
  });
  setAll(loop.getResults().take_front(count));
  if (!shape.byWarpgroups)
    ptx.awaitPackets();
}

void ProjectedScan::walkPart(TensorAccess &access, const Part &part) {
  setParams(access);
  status = setStates(access);
  if (failed(status))
    return;
  loadWeights(access);
  meet();
  if (task != ScanTask::Whole)
    setDelayed(access, part);
  if (task == ScanTask::Segments) {
    beginSegment(part);
    isLastPart = part.isLast;
  }
  if (task == ScanTask::Gather)
    for (const ScanGroup &group : mapped())
      forLayouts(states[group.states[0]], [&](Axis axis) {
        Tile tile = threads.shape(matType(states[group.states[0]]), axis);
        gathered.push_back(
            {&group, tile, SmallVector<EntryMap>(tile.rows * tile.cols, maps.identity(group))});
      });
  // Where there is no token, there is none to bring or to read past the end, either.
  Value isEmpty = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, tokens, i64(0));
  auto choice = scf::IfOp::create(b, isEmpty, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(choice.thenBlock()->getTerminator());
  Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, turn, threads.constant(0));
  if (task == ScanTask::Gather)
    storeMaps(part);
  else
    threads.when(threads.both(isFirst, isLastPart), [&] {
      for (unsigned i = 0; i < states.size(); ++i)
        threads.when(access.isGiven(finalTensor(i)), [&] { storeFinal(access, i); });
    });
  b.setInsertionPoint(choice.elseBlock()->getTerminator());
  runTiles(access);
  if (task == ScanTask::Gather && succeeded(status))
    storeMaps(part);
}

LogicalResult ProjectedScan::run(LLVM::LLVMFuncOp function, int64_t sharedLimit) {
  Ptx ptx(b);
  TensorAccess access(threads, function.getArgument(0), tensors, /*packed=*/true);
  access.statesApart = true;
  auto shared = function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>(
      shape.byWarpgroups ? StringRef(tilesSymbol) : StringRef("recur_shared"));
  Value base = LLVM::AddressOfOp::create(b, shared);
  threads.begin(base, base);
  lane = ptx.bits(threads.threadIndex(), 31);
  warp = ptx.shiftRight(threads.threadIndex(), 5);
  turn = ptx.bits(lane, ProjectedShape::turns - 1);
  Value row = ptx.shiftRight(lane, llvm::Log2_64(ProjectedShape::turns));
  threads.place(threads.constant(0), ptx.add(ptx.mul(warp, 32 / ProjectedShape::turns), row));
  bool segmented = task != ScanTask::Whole;
  Part part = findPart(threads, access, entry.shards, shape.slab, segmented ? shape.tokens() : 0);
  setPart(part);
  findLevels();
  if (!layOut(sharedLimit))
    return failure();
  if (segmented) {
    entry.scratchBytes = bytesOfMaps();
    scratch = access.pointer(TensorAccess::Scratch);
  }
  threads.when(part.isPresent, [&] {
    clearRows();
    if (!shape.byWarpgroups)
      return walkPart(access, part);
    initRing();
    ptx.fenceProxy();
    NVVM::Barrier0Op::create(b);
    // Who brings inputs leaves registers to the others.
    constexpr int64_t registers = 65536, few = 40;
    int64_t all = registers / shape.blocksOfProcessor() / entry.threads / 8 * 8 * entry.threads;
    int64_t many = (all - few * shape.bringers()) / shape.walkers() / 8 * 8;
    Value walks = ptx.below(threads.threadIndex(), ptx.constant(shape.walkers()));
    threads.when(walks, [&] {
      ptx.setRegisters(many, /*more=*/true);
      walkPart(access, part);
    });
    threads.when(arith::XOrIOp::create(b, walks, threads.constant(1, 1)), [&] {
      ptx.setRegisters(few, /*more=*/false);
      Value any = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, tokens, i64(0));
      threads.when(any, [&] { bring(access); });
    });
  });
  describeLoops(function.getBody(), "scan", 1, shape.walkers() / 32);
  LLVM::ReturnOp::create(b, ValueRange());
  entry.sharedBytes = sharedBytes;
  return failure(failed(status) || threads.scratchBytes);
}

LogicalResult cuda::emitProjectedScan(LLVM::LLVMFuncOp function, RuleOp rule, const ScanForm &form,
                                      ArrayRef<TensorArgument> tensors, const ProjectedShape &shape,
                                      ScanTask task, int64_t sharedLimit, Entry &entry) {
  ImplicitLocOpBuilder b(rule.getLoc(), rule.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  Placement placement(rule, shape.grid);
  ProjectedScan emitter(b, rule, form, tensors, shape, placement, task, entry);
  if (failed(emitter.run(function, sharedLimit)))
    return failure();
  relaxMath(function, tensors);
  return success();
}
