// Rules tested exactly against what they were made of, a token at a time: the rows of a token are put
// together here as the roles' chunks do.
#include "lib/Derive/ProveRewritten.h"
#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/JoinedKeys.h"
#include "lib/Algebra/MicroSteps.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Derive/ProofRuns.h"

using namespace mlir;
using namespace recur;

static Dense<Fp> asMatrix(Fp number) { return Dense<Fp>(1, 1, number); }

// A call of one token of another call, with its states.
static Call<Fp> callOfToken(const Call<Fp> &whole, int64_t token) {
  Call<Fp> call;
  call.tokens = 1, call.position = whole.position + token, call.head = whole.head, call.heads = whole.heads;
  call.params = whole.params, call.states = whole.states, call.starts = whole.starts;
  return call;
}

// The micro-step of a token that a row takes of an input; of what the token has only one, that.
static const Dense<Fp> &stepOf(const std::vector<Dense<Fp>> &steps, int64_t row) {
  return steps[steps.size() == 1 ? 0 : row];
}

std::string recur::proveMicroStep(RuleOp rule, RuleOp step) {
  OwningOpRef<RuleOp> whole(rule.clone()), single(step.clone());
  int64_t count = 1;
  for (BlockArgument argument : rule.argumentsOf(ArgKind::Input))
    if (auto steps = dyn_cast<StepsType>(argument.getType()))
      count = cast<IntegerAttr>(steps.getCount()).getInt();
  if (failed(unrollSteps(*whole)))
    return "the number of micro-steps is not bound";
  Shrinker shrinker;
  shrinker.shrink(*whole);
  shrinker.shrink(*single);
  constexpr int64_t tokens = 4, block = 2;
  setBlocks(*whole, block);
  setBlocks(*single, block * count);
  return compareRuns(*whole, tokens, [&](Call<Fp> &call) -> LogicalResult {
    Call<Fp> rows = call;
    rows.tokens = tokens * count, rows.position = call.position * count;
    rows.inputs.assign(call.inputs.size() + 1, {});
    for (int64_t row = 0; row < rows.tokens; ++row) {
      for (auto [own, values] : llvm::zip(rows.inputs, call.inputs))
        own.push_back({stepOf(values[row / count], row % count)});
      rows.inputs.back().push_back({asMatrix(Fp(row % count == 0))});
    }
    if (failed(runRule(*single, rows)))
      return failure();
    for (auto &output : rows.outputs) {
      for (int64_t t = 0; t < tokens; ++t)
        output[t] = output[t * count + (step->hasAttr(readsFirstAttr) ? 0 : count - 1)];
      output.resize(tokens);
    }
    call.outputs = rows.outputs;
    call.states = rows.states;
    return success();
  });
}

// Runs the rule of one row for a token's row: its inputs are the token's, or those that stand for them, and
// at last a new state where that is given.
static LogicalResult runStackedRow(RuleOp row, const Call<Fp> &whole, int64_t t, unsigned which,
                                   Call<Fp> &call, const Dense<Fp> *newState = nullptr) {
  SmallVector<BlockArgument> inputs = row.argumentsOf(ArgKind::Input);
  auto numberOf = [&](unsigned argument) {
    return llvm::find_if(inputs, [&](BlockArgument input) { return input.getArgNumber() == argument; }) -
           inputs.begin();
  };
  SmallVector<StackedInput> stacked = stackedInputs(row);
  call.inputs.assign(inputs.size(), std::vector<std::vector<Dense<Fp>>>(1, {asMatrix(Fp(0))}));
  for (auto [own, values] : llvm::zip(call.inputs, whole.inputs))
    own[0] = values[t];
  for (const StackedInput &input : stacked) {
    std::optional<unsigned> from = input.rows[which];
    auto type = cast<MatType>(row.getBody().getArgument(input.argument).getType());
    call.inputs[numberOf(input.argument)][0][0] =
        from ? whole.inputs[numberOf(*from)][t][0] : Dense<Fp>(type.numRows(), type.numCols());
  }
  if (which + 1 < stacked.front().rows.size())
    call.inputs[whole.inputs.size() + stacked.size() + which][0][0] = asMatrix(Fp(1));
  if (newState)
    call.inputs.back()[0][0] = *newState;
  return runRule(row, call);
}

// The rule of one row without what it adds to the state.
static OwningOpRef<RuleOp> withoutRow(RuleOp row) {
  OwningOpRef<RuleOp> none(row.clone());
  Value written = none->yieldedStates()[0];
  written.replaceAllUsesWith(beforeStackedRow(written));
  return none;
}

// The rule of one row, which takes its new state as its last input.
static OwningOpRef<RuleOp> givenNewState(RuleOp row) {
  OwningOpRef<RuleOp> reads(row.clone());
  Value state = reads->yieldedStates()[0];
  state.replaceAllUsesWith(addInput(*reads, "new state", RangeAttr(), /*isUnit=*/false, state.getType()));
  return reads;
}

std::string recur::proveStacked(RuleOp rule, RuleOp stacked) {
  // What a row makes of the state, what the token makes of it without any, and what is read of the sum.
  bool inTurn = stacked->hasAttr(inTurnAttr), readsFirst = stacked->hasAttr(readsFirstAttr);
  OwningOpRef<RuleOp> whole(rule.clone()), row(stacked.clone()), none, reads;
  if (!inTurn)
    none = withoutRow(stacked), reads = givenNewState(stacked);
  Shrinker shrinker;
  shrinker.shrink(*whole);
  shrinker.shrink(*row);
  for (OwningOpRef<RuleOp> *small : {&none, &reads})
    if (*small)
      shrinker.shrink(**small);
  unsigned rows = stackedInputs(stacked).front().rows.size();
  constexpr int64_t tokens = 4, block = 2;
  setBlocks(*whole, block);
  return compareRuns(*whole, tokens, [&](Call<Fp> &call) -> LogicalResult {
    call.outputs.assign(whole->getOutputs().size(), {});
    for (int64_t t = 0; t < tokens; ++t) {
      if (t == 0 || (call.position + t) % block == 0)
        call.starts = call.states;
      // In turn, each row follows the one before. Else what all make of the state, added up, less what it
      // would be without them.
      Call<Fp> without = callOfToken(call, t), read = without;
      if (!inTurn && failed(runStackedRow(*none, call, t, 0, without)))
        return failure();
      Dense<Fp> sum = without.states[0];
      for (unsigned which = 0; which < rows; ++which) {
        Call<Fp> own = callOfToken(call, t);
        if (inTurn && which)
          own.states = read.states;
        if (failed(runStackedRow(*row, call, t, which, own)))
          return failure();
        for (size_t entry = 0; entry < sum.data.size(); ++entry)
          sum.data[entry] = sum.data[entry] + own.states[0].data[entry] - without.states[0].data[entry];
        if (inTurn && !(which && readsFirst))
          read.outputs = own.outputs;
        if (inTurn)
          read.states = own.states;
      }
      if (!inTurn && failed(runStackedRow(*reads, call, t, rows - 1, read, &sum)))
        return failure();
      call.states = inTurn ? read.states : std::vector<Dense<Fp>>{sum};
      for (auto [i, output] : llvm::enumerate(call.outputs))
        output.push_back(read.outputs[i][0]);
    }
    return success();
  });
}

std::string recur::proveRotated(RuleOp rule, RuleOp rotated) {
  OwningOpRef<RuleOp> whole(rule.clone()), turned(rotated.clone());
  Shrinker shrinker;
  shrinker.shrink(*whole);
  shrinker.shrink(*turned);
  RotatedUpdate update = *rotatedUpdate(rotated);
  size_t numbers = update.numbers.size();
  constexpr int64_t tokens = 4;
  return compareRuns(*whole, tokens, [&](Call<Fp> &call) -> LogicalResult {
    Call<Fp> own = call;
    own.inputs.insert(own.inputs.end(), numbers,
                      std::vector<std::vector<Dense<Fp>>>(tokens, {asMatrix(Fp(1))}));
    own.states.clear();
    for (unsigned state : update.states)
      own.states.push_back(call.states[state]);
    // What the numbers are follows from inputs alone.
    Call<Fp> first = own;
    if (failed(runRule(*turned, first)))
      return failure();
    auto numberOf = [&](int number, int64_t t) {
      return number < 0 ? Fp(1) : first.outputs[first.outputs.size() - numbers + number][t].data[0];
    };
    for (size_t number = 0; number < numbers; ++number)
      for (int64_t t = 0; t < tokens; ++t)
        own.inputs[own.inputs.size() - numbers + number][t][0] =
            asMatrix(t + 1 < tokens ? numberOf(number, t + 1) : Fp::fromDouble(update.numbers[number].past));
    for (Dense<Fp> &state : own.states)
      state = Dense<Fp>(state.rows, state.cols);
    for (const RotatedUpdate::Old &old : update.old)
      for (size_t e = 0; e < own.states[old.to].data.size(); ++e)
        own.states[old.to].data[e] += numberOf(old.number, 0) * call.states[update.states[old.from]].data[e];
    for (const RotatedUpdate::Write &write : update.writes) {
      Dense<Fp> &state = own.states[write.to];
      for (int64_t i = 0; i < state.rows; ++i)
        for (int64_t j = 0; j < state.cols; ++j)
          state.at(i, j) += numberOf(write.number, 0) *
                            call.states[update.delays[write.column].state].data[i] *
                            call.states[update.delays[write.row].state].data[j];
    }
    if (failed(runRule(*turned, own)))
      return failure();
    call.outputs.assign(own.outputs.begin(), own.outputs.end() - numbers);
    // Delayed states end as the inputs that they are.
    call.states.resize(update.statesOfRule);
    for (auto [state, last] : llvm::zip(update.states, own.states))
      call.states[state] = last;
    for (const RotatedUpdate::Delay &delay : update.delays)
      call.states[delay.state] = call.inputs[delay.input].back()[0];
    return success();
  });
}

// Whether the columns that an output is joined of are its rows.
static bool areRows(Value output) { return output.getDefiningOp<TransposeOp>() != nullptr; }

std::string recur::proveColumns(RuleOp rule, RuleOp column) {
  // What a row makes of the state, what the token makes of it without any, and what is read of the sum.
  OwningOpRef<RuleOp> whole(rule.clone()), row(column.clone()), none = withoutRow(column),
                                                                reads(column.clone());
  reads->yieldedStates()[0].replaceAllUsesWith(reads->argumentsOf(ArgKind::State)[0]);
  Shrinker shrinker;
  for (RuleOp small : {*whole, *row, *none, *reads})
    shrinker.shrink(small);
  int64_t rows = column->getAttrOfType<IntegerAttr>(rowsAttr).getInt();
  constexpr int64_t tokens = 4;
  return compareRuns(*whole, tokens, [&](Call<Fp> &call) -> LogicalResult {
    call.outputs.clear();
    for (Value output : whole->yieldedOutputs()) {
      auto type = cast<MatType>(output.getType());
      call.outputs.emplace_back(tokens, Dense<Fp>(type.numRows(), type.numCols()));
    }
    for (int64_t t = 0; t < tokens; ++t) {
      auto runRow = [&](RuleOp rowOf, int64_t which) -> FailureOr<Call<Fp>> {
        Call<Fp> own = callOfToken(call, t);
        for (const auto &values : call.inputs)
          own.inputs.push_back({{stepOf(values[t], which)}});
        own.inputs.push_back({{asMatrix(Fp(which == 0))}});
        if (failed(runRule(rowOf, own)))
          return failure();
        return own;
      };
      FailureOr<Call<Fp>> without = runRow(*none, 0);
      if (failed(without))
        return failure();
      Dense<Fp> sum = without->states[0];
      for (int64_t which = 0; which < rows; ++which) {
        FailureOr<Call<Fp>> own = runRow(*row, which);
        if (failed(own))
          return failure();
        for (size_t entry = 0; entry < sum.data.size(); ++entry)
          sum.data[entry] = sum.data[entry] + own->states[0].data[entry] - without->states[0].data[entry];
      }
      call.states[0] = sum;
      for (int64_t which = 0; which < rows; ++which) {
        FailureOr<Call<Fp>> own = runRow(*reads, which);
        if (failed(own))
          return failure();
        for (auto [i, output] : llvm::enumerate(call.outputs)) {
          const Dense<Fp> &vector = own->outputs[i][0];
          Value yielded = rule.yieldedOutputs()[i];
          if (!columnsOf(yielded))
            output[t] = vector;
          else
            for (int64_t entry = 0; entry < vector.rows; ++entry)
              output[t].at(areRows(yielded) ? which : entry, areRows(yielded) ? entry : which) =
                  vector.at(entry, 0);
        }
      }
    }
    return success();
  });
}

bool recur::areColumnsAlike(RuleOp rule) {
  OwningOpRef<RuleOp> whole(rule.clone());
  Shrinker().shrink(*whole);
  auto runTurned = [&](Call<Fp> &call) -> LogicalResult {
    Call<Fp> turned = call;
    for (auto &values : turned.inputs)
      for (auto &steps : values)
        std::rotate(steps.begin(), steps.end() - 1, steps.end());
    if (failed(runRule(*whole, turned)))
      return failure();
    // What came first is now the second of the rows, or of each row's entries.
    for (auto [output, values] : llvm::zip(whole->yieldedOutputs(), turned.outputs))
      if (columnsOf(output))
        for (Dense<Fp> &value : values) {
          int64_t length = areRows(output) ? int64_t(value.data.size()) : value.cols;
          for (auto begin = value.data.begin(); begin != value.data.end(); begin += length)
            std::rotate(begin, begin + (areRows(output) ? value.cols : 1), begin + length);
        }
    call.outputs = turned.outputs;
    call.states = turned.states;
    return success();
  };
  return compareRuns(*whole, /*tokens=*/3, runTurned).empty();
}

std::string recur::proveWidened(RuleOp rule, RuleOp widened) {
  OwningOpRef<RuleOp> whole(rule.clone()), wide(widened.clone());
  if (failed(unrollSteps(*whole)) || failed(unrollSteps(*wide)))
    return "the number of micro-steps is not bound";
  Shrinker shrinker;
  shrinker.shrink(*whole);
  shrinker.shrink(*wide);
  return compareRuns(*whole, /*tokens=*/4, [&](Call<Fp> &call) -> LogicalResult {
    Call<Fp> own = call;
    for (auto [state, argument] : llvm::zip(own.states, wide->argumentsOf(ArgKind::State))) {
      Dense<Fp> vector = state;
      state = Dense<Fp>(vector.rows, matType(argument).numCols());
      for (int64_t i = 0; i < state.rows; ++i)
        for (int64_t j = 0; j < state.cols; ++j)
          state.at(i, j) = vector.at(i, j % vector.cols);
    }
    if (failed(runRule(*wide, own)))
      return failure();
    call.outputs = own.outputs;
    for (auto [vector, state] : llvm::zip(call.states, own.states))
      for (int64_t i = 0; i < vector.rows; ++i)
        for (int64_t j = 0; j < vector.cols; ++j)
          vector.at(i, j) = state.at(i, j);
    return success();
  });
}

std::string recur::proveSame(RuleOp rule, RuleOp other) {
  OwningOpRef<RuleOp> whole(rule.clone()), own(other.clone());
  Shrinker shrinker;
  shrinker.shrink(*whole);
  shrinker.shrink(*own);
  constexpr int64_t tokens = 5, block = 2;
  setBlocks(*whole, block);
  setBlocks(*own, block);
  SmallVector<BlockArgument> inputs = own->argumentsOf(ArgKind::Input);
  return compareRuns(*whole, tokens, [&](Call<Fp> &call) -> LogicalResult {
    Call<Fp> taken = call;
    for (BlockArgument input : ArrayRef(inputs).drop_front(call.inputs.size())) {
      StringRef name = own->getArg(input).getName();
      name.consume_back(lastSuffix);
      auto source = llvm::find(inputs, own->findArgument(ArgKind::Input, name)) - inputs.begin();
      auto &values = taken.inputs.emplace_back();
      for (int64_t t = 0; t < tokens; ++t) {
        int64_t end = t + block - (call.position + t) % block;
        values.push_back(call.inputs[source][std::min(end, tokens) - 1]);
      }
    }
    if (failed(runRule(*own, taken)))
      return failure();
    call.outputs = taken.outputs;
    call.states = taken.states;
    return success();
  });
}

std::string recur::proveJoined(RuleOp rule, RuleOp joined) {
  OwningOpRef<RuleOp> whole(rule.clone()), own(joined.clone());
  Shrinker shrinker;
  shrinker.shrink(*own); // what is joined says how long it is
  shrinker.shrink(*whole);
  SmallVector<BlockArgument> states = whole->argumentsOf(ArgKind::State);
  auto numberOf = [&](StringRef name) {
    return llvm::find(states, whole->findArgument(ArgKind::State, name)) - states.begin();
  };
  return compareRuns(*whole, /*tokens=*/4, [&](Call<Fp> &call) -> LogicalResult {
    Call<Fp> taken = call;
    taken.states.clear();
    // Calls `action` with each entry of the joined rule's states, that of the rule's which it is, and what
    // that one is times.
    auto forEntries = [&](auto action) {
      for (auto [i, state] : llvm::enumerate(own->argumentsOf(ArgKind::State))) {
        StringRef name = own->getArg(state).getName();
        std::optional<JoinedNames> joined = joinedNames(*own, name);
        bool isTurned = joined && joined->isTurned;
        int64_t first = 0; // of a part's keys, between which there are no others here
        for (StringRef part : joined ? joined->names : SmallVector<StringRef>{name}) {
          Dense<Fp> &values = call.states[numberOf(part)];
          bool isVector = joined && values.cols == 1;
          int64_t rows = isTurned && !isVector ? values.cols : values.rows;
          int64_t keys = isVector ? keysOfVector : isTurned ? values.rows : values.cols;
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t key = 0; key < keys; ++key)
              action(isTurned ? taken.states[i].at(first + key, row) : taken.states[i].at(row, first + key),
                     isVector   ? values.at(row, 0)
                     : isTurned ? values.at(key, row)
                                : values.at(row, key),
                     Fp::fromDouble(isVector ? entryOfVector : 1));
          first += keys;
        }
      }
    };
    for (BlockArgument state : own->argumentsOf(ArgKind::State))
      taken.states.emplace_back(matType(state).numRows(), matType(state).numCols());
    forEntries([](Fp &joined, Fp part, Fp entry) { joined = entry * part; });
    if (failed(runRule(*own, taken)))
      return failure();
    forEntries([](Fp joined, Fp &part, Fp entry) { part = joined / entry; });
    call.outputs = taken.outputs;
    return success();
  });
}

std::string recur::proveStepsApart(RuleOp rule, RuleOp apart, ArrayRef<StepOfInput> steps) {
  OwningOpRef<RuleOp> whole(rule.clone()), own(apart.clone());
  if (failed(unrollSteps(*whole)))
    return "the number of micro-steps is not bound";
  Shrinker shrinker;
  shrinker.shrink(*whole);
  shrinker.shrink(*own);
  return compareRuns(*whole, /*tokens=*/4, [&](Call<Fp> &call) -> LogicalResult {
    Call<Fp> taken = call;
    for (const StepOfInput &step : steps) {
      auto &input = taken.inputs.emplace_back();
      for (const std::vector<Dense<Fp>> &ofToken : call.inputs[step.input])
        input.push_back({ofToken[step.step]});
    }
    if (failed(runRule(*own, taken)))
      return failure();
    call.outputs = taken.outputs;
    call.states = taken.states;
    return success();
  });
}
