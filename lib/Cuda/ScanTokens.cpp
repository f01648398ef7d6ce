// What a scan does with some tokens in a row.
#include "lib/Cuda/ScanEmitter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// An op's stage is the number of phases whose states must be known before it.
void ScanEmitter::findStages() {
  llvm::DenseMap<Value, unsigned> known;
  for (auto [phase, groups] : llvm::enumerate(form.phases))
    for (const ScanGroup &group : groups)
      for (unsigned state : group.states)
        known[states[state]] = phase + 1;
  for (Operation &op : rule.getBody().front()) {
    unsigned stage = 0;
    op.walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        stage = std::max(stage, known.lookup(operand));
    });
    stages[&op] = stage;
    for (Value result : op.getResults())
      known[result] = stage;
  }
}

SmallVector<Value> ScanEmitter::fetchRun(TensorAccess &access, Value begin, int64_t count) {
  SmallVector<Value> fetched;
  forFetches([&](unsigned i, Axis axis) {
    SmallVector<Value> places = access.addresses(i, axis, begin);
    for (int64_t token = 0; token < count; ++token) {
      if (token)
        places = access.next(i, places);
      llvm::append_range(fetched, access.fetch(i, axis, places));
    }
  });
  return fetched;
}

ScanEmitter::Run ScanEmitter::startRun(TensorAccess &access, ValueRange fetched, Value begin, int64_t count) {
  Run run;
  run.begin = begin;
  for (int64_t i = 0; i < count; ++i)
    run.bodies.push_back(body);
  run.valid.assign(count, Value());
  forFetches([&](unsigned i, Axis axis) {
    size_t packets = access.countPackets(i, axis);
    for (BodyEmitter &token : run.bodies) {
      token.set(tensors[i].argument, access.unpack(i, axis, fetched.take_front(packets)));
      fetched = fetched.drop_front(packets);
    }
  });
  for (auto [i, token] : llvm::enumerate(run.bodies)) {
    Value at = arith::AddIOp::create(b, arith::AddIOp::create(b, position, begin), i64(i));
    setBuiltins(token, rule.getBody().front(), at);
  }
  return run;
}

LogicalResult ScanEmitter::emitOps(BodyEmitter &token, std::optional<unsigned> stage) {
  threads.communicates = false;
  auto chosen = [&](Operation *op) { return !stage || stages.lookup(op) == *stage; };
  LogicalResult status = token.emitBlock(rule.getBody().front(), {}, chosen);
  b.setLoc(rule.getLoc());
  if (threads.communicates && isGrouped())
    return failure();
  if (threads.communicates)
    threads.barrier();
  return status;
}

// Sets a state to what it is after the token.
void ScanEmitter::advance(unsigned state, BodyEmitter &token, Value valid) {
  forLayouts(states[state], [&](Axis axis) {
    Tile next = token.get(rule.yieldedStates()[state], axis);
    if (valid)
      for (auto [entry, old] : llvm::zip(next.entries, body.get(states[state], axis).entries))
        entry = arith::SelectOp::create(b, valid, entry, old);
    body.set(states[state], next);
  });
}

// Stores come after all tokens, since what has to branch keeps instructions of one token from mixing with
// those of the next.
void ScanEmitter::storeOutputs(TensorAccess &access, Run &run, Value writes) {
  for (auto [i, output] : llvm::enumerate(rule.yieldedOutputs())) {
    Axis axis = placement.anyOf(output);
    SmallVector<Value> places = access.addresses(outputTensor(i), axis, run.begin);
    for (size_t t = 0; t < run.bodies.size(); ++t) {
      if (t)
        places = access.next(outputTensor(i), places);
      threads.when(threads.both(run.valid[t], writes), [&, i = i, output = output] {
        access.store(outputTensor(i), run.bodies[t].get(output, axis), places);
      });
    }
  }
}

// Each thread by itself: the run follows what it has seen.
LogicalResult ScanEmitter::walkAlone(TensorAccess &access, Run &run, Value writes) {
  for (size_t i = 0; i < run.bodies.size(); ++i) {
    BodyEmitter &token = run.bodies[i];
    Value valid = run.valid[i];
    for (Value state : states)
      forLayouts(state, [&](Axis axis) { token.set(state, body.get(state, axis)); });
    if (task == ScanTask::Gather) {
      if (failed(emitOps(token, 0)))
        return failure();
      addToken(gathered, token, valid);
      continue;
    }
    if (failed(emitOps(token, std::nullopt)))
      return failure();
    for (unsigned state = 0; state < states.size(); ++state)
      advance(state, token, valid);
  }
  if (task != ScanTask::Gather)
    storeOutputs(access, run, writes);
  return success();
}

// All groups together: for one phase after the other the maps of their runs, then the states that they start
// from.
LogicalResult ScanEmitter::walkGroups(TensorAccess &access, Run &run) {
  unsigned phases = task == ScanTask::Gather ? 1 : form.phases.size() + 1;
  for (unsigned phase = 0; phase < phases; ++phase) {
    bool isLast = phase == form.phases.size();
    SmallVector<TileMaps> maps;
    if (!isLast)
      maps = makeMaps(phase);
    for (size_t i = 0; i < run.bodies.size(); ++i) {
      BodyEmitter &token = run.bodies[i];
      Value valid = run.valid[i];
      if (phase)
        for (const ScanGroup &group : form.phases[phase - 1])
          for (unsigned state : group.states)
            forLayouts(states[state],
                       [&](Axis axis) { token.set(states[state], body.get(states[state], axis)); });
      if (failed(emitOps(token, phase)))
        return failure();
      if (phase)
        for (const ScanGroup &group : form.phases[phase - 1])
          for (unsigned state : group.states)
            advance(state, token, valid);
      if (!isLast)
        addToken(maps, token, valid);
    }
    if (isLast)
      storeOutputs(access, run, {});
    else
      exchange(maps, task == ScanTask::Gather);
  }
  return success();
}
