// Derivations tested exactly, on random inputs in F_p.
#include "lib/Derive/Derive.h"
#include "lib/Derive/Machine.h"
#include "lib/Derive/ProveStacked.h"
#include "mlir/IR/AttrTypeSubElements.h"

#include <random>

using namespace mlir;
using namespace recur;

namespace {
// Replaces every dimension but 1 by a small one: equal ones by equal ones.
class Shrinker {
public:
  explicit Shrinker(StringAttr length = {}) : length(length) {}

  void shrink(Operation *op) {
    // There are as many columns as are joined.
    op->walk([&](JoinOp join) {
      Attribute count = Builder(op->getContext()).getI64IntegerAttr(join.getColumns().size());
      sizes.try_emplace(count, count);
    });
    AttrTypeReplacer replacer;
    replacer.addReplacement([&](MatType type) {
      return MatType::get(type.getContext(), small(type.getRows()), small(type.getCols()));
    });
    replacer.recursivelyReplaceElementsIn(op, /*replaceAttrs=*/false, /*replaceLocs=*/false,
                                          /*replaceTypes=*/true);
    op->walk([&](SizeOp size) { size.setDimAttr(small(size.getDim())); });
  }

  Attribute small(Attribute dim) {
    if (isOne(dim) || dim == length)
      return dim;
    auto [entry, inserted] = sizes.try_emplace(dim, Attribute());
    if (inserted) // 3, 2, 4, 5, 6, ..
      entry->second = Builder(dim.getContext())
                          .getI64IntegerAttr(sizes.size() == 1   ? 3
                                             : sizes.size() == 2 ? 2
                                                                 : sizes.size() + 1);
    return entry->second;
  }

private:
  StringAttr length;
  DenseMap<Attribute, Attribute> sizes;
};

class Random {
public:
  explicit Random(uint64_t seed) : engine(seed) {}
  Fp next() { return Fp(1 + engine() % (Fp::prime - 1)); }
  Dense<Fp> matrix(Type type) {
    auto mat = cast<MatType>(type);
    Dense<Fp> result(mat.numRows(), mat.numCols());
    for (Fp &entry : result.data)
      entry = next();
    return result;
  }

private:
  std::mt19937_64 engine;
};

// The states that a program takes to be symmetric: those of inverses.
SmallVector<bool> symmetricStates(chunk::ProgramOp program) {
  SmallVector<BlockArgument> states = program.argumentsOf(ArgKind::State);
  SmallVector<bool> symmetric(states.size(), false);
  program.getBody().walk([&](chunk::LdlOp op) {
    auto found = llvm::find(states, op.getState());
    if (found != states.end())
      symmetric[found - states.begin()] = true;
  });
  return symmetric;
}

// Random arguments of a rule with bound dimensions.
Call<Fp> randomCall(RuleOp rule, int64_t tokens, uint64_t seed, ArrayRef<bool> symmetric = {}) {
  Random random(seed);
  Call<Fp> call;
  call.tokens = tokens;
  call.heads = 2;
  call.position = 5;
  for (BlockArgument argument : rule.getBody().getArguments()) {
    Type type = argument.getType();
    switch (rule.getArg(argument).getKind()) {
    case ArgKind::Input: {
      auto &values = call.inputs.emplace_back(tokens);
      auto steps = dyn_cast<StepsType>(type);
      int64_t count = steps ? cast<IntegerAttr>(steps.getCount()).getInt() : 1;
      for (auto &token : values)
        for (int64_t step = 0; step < count; ++step)
          token.push_back(random.matrix(steps ? steps.getStep() : type));
      break;
    }
    case ArgKind::Param:
      call.params.push_back(random.matrix(type));
      break;
    case ArgKind::State:
      call.states.push_back(random.matrix(type));
      if (call.states.size() <= symmetric.size() && symmetric[call.states.size() - 1])
        for (int64_t i = 0; i < call.states.back().rows; ++i)
          for (int64_t j = 0; j < i; ++j)
            call.states.back().at(i, j) = call.states.back().at(j, i);
      break;
    default:
      break;
    }
  }
  return call;
}

std::string entryText(const Twine &what, size_t entry) { return (what + ", entry " + Twine(entry)).str(); }

// Where two runs differ first.
std::string difference(RuleOp rule, const Call<Fp> &a, const Call<Fp> &b) {
  for (int64_t t = 0; t < a.tokens; ++t)
    for (auto [index, name] : llvm::enumerate(rule.getOutputs().getAsRange<StringAttr>()))
      for (size_t i = 0; i < a.outputs[index][t].data.size(); ++i)
        if (a.outputs[index][t].data[i] != b.outputs[index][t].data[i])
          return entryText("output '" + name.getValue() + "', token " + Twine(t), i);
  for (auto [index, state] : llvm::enumerate(rule.argumentsOf(ArgKind::State)))
    for (size_t i = 0; i < a.states[index].data.size(); ++i)
      if (a.states[index].data[i] != b.states[index].data[i])
        return entryText("final state '" + rule.getArg(state).getName().getValue() + "'", i);
  return {};
}
} // namespace

std::string recur::prove(RuleOp rule, chunk::ProgramOp program, unsigned rounds) {
  OwningOpRef<RuleOp> smallRule(rule.clone());
  OwningOpRef<chunk::ProgramOp> smallProgram(program.clone());
  Shrinker shrinker(program.getLengthAttr());
  shrinker.shrink(*smallRule);
  shrinker.shrink(*smallProgram);
  constexpr int64_t tokens = 12;
  SmallVector<bool> symmetric = symmetricStates(program);
  auto compare = [&](uint64_t seed) -> std::string {
    Call<Fp> call = randomCall(*smallRule, tokens, seed, symmetric), expected = call;
    if (failed(runRule(*smallRule, expected)))
      return "the rule cannot be run in F_p";
    for (int64_t size : {4, 5, 12, 1}) { // with and without a ragged end, one chunk, one token
      Call<Fp> found = call;
      if (failed(runProgram(*smallProgram, found, size)))
        return "the program cannot be run in F_p";
      if (std::string where = difference(*smallRule, expected, found); !where.empty())
        return where + ", in chunks of " + std::to_string(size);
    }
    return {};
  };
  for (unsigned round = 0; round < rounds; ++round) {
    std::string where = compare(2 * round + 1);
    // A division by zero may spoil one draw, not two.
    if (!where.empty() && !compare(2 * round + 2).empty())
      return where;
  }
  return {};
}

std::string recur::proveRecurrence(RuleOp sequence, RuleOp recurrence) {
  OwningOpRef<RuleOp> before(sequence.clone()), after(recurrence.clone());
  BlockOp block = *before->getBody().getOps<BlockOp>().begin();
  Shrinker shrinker(block.getLengthAttr());
  shrinker.shrink(*before);
  shrinker.shrink(*after);
  constexpr int64_t tokens = 7;
  std::string where;
  for (uint64_t seed : {1, 2}) { // a division by zero may spoil one draw, not two
    Call<Fp> expected = randomCall(*before, tokens, seed), found = expected;
    found.states.resize(after->argumentsOf(ArgKind::State).size());
    if (failed(runSequence(*before, expected)) || failed(runRule(*after, found)))
      return "one of the two cannot be run in F_p";
    if (where = difference(*before, expected, found); where.empty())
      break;
  }
  return where;
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
  constexpr int64_t tokens = 4;
  std::string where;
  for (uint64_t seed : {1, 2}) { // a division by zero may spoil one draw, not two
    Call<Fp> expected = randomCall(*whole, tokens, seed), found = expected;
    found.tokens = tokens * count;
    found.inputs.assign(expected.inputs.size() + 1, {});
    for (int64_t row = 0; row < found.tokens; ++row) {
      for (auto [input, values] : llvm::enumerate(expected.inputs)) {
        const auto &token = values[row / count];
        found.inputs[input].push_back({token[token.size() == 1 ? 0 : row % count]});
      }
      found.inputs.back().push_back({Dense<Fp>(1, 1, Fp(row % count == 0))});
    }
    if (failed(runRule(*whole, expected)) || failed(runRule(*single, found)))
      return "one of the two cannot be run in F_p";
    for (auto &rows : found.outputs) {
      for (int64_t t = 0; t < tokens; ++t)
        rows[t] = rows[t * count + count - 1];
      rows.resize(tokens);
    }
    found.tokens = tokens;
    if (where = difference(*whole, expected, found); where.empty())
      break;
  }
  return where;
}

// Runs the rule of one row for a token's row: its inputs are the token's, or those that stand for them.
static LogicalResult runStackedRow(RuleOp row, const Call<Fp> &whole, int64_t t, unsigned which,
                                   Call<Fp> &call) {
  SmallVector<BlockArgument> inputs = row.argumentsOf(ArgKind::Input);
  auto numberOf = [&](unsigned argument) {
    return llvm::find_if(inputs, [&](BlockArgument input) { return input.getArgNumber() == argument; }) -
           inputs.begin();
  };
  call.tokens = 1, call.position = whole.position + t, call.head = whole.head, call.heads = whole.heads;
  call.params = whole.params;
  std::vector<Dense<Fp>> isFirst{Dense<Fp>(1, 1, Fp(which == 0))};
  call.inputs.assign(inputs.size(), std::vector<std::vector<Dense<Fp>>>(1, isFirst));
  for (auto [own, values] : llvm::zip(call.inputs, whole.inputs))
    own[0] = values[t];
  for (const StackedInput &input : stackedInputs(row)) {
    std::optional<unsigned> from = input.rows[which];
    auto type = cast<MatType>(row.getBody().getArgument(input.argument).getType());
    call.inputs[numberOf(input.argument)][0][0] =
        from ? whole.inputs[numberOf(*from)][t][0] : Dense<Fp>(type.numRows(), type.numCols());
  }
  return runRule(row, call);
}

std::string recur::proveStacked(RuleOp rule, RuleOp stacked) {
  OwningOpRef<RuleOp> whole(rule.clone()), row(stacked.clone()), none(stacked.clone());
  Value written = none->yieldedStates()[0];
  written.replaceAllUsesWith(beforeStackedRow(written));
  Shrinker shrinker;
  for (RuleOp small : {*whole, *row, *none})
    shrinker.shrink(small);
  bool inTurn = stacked->hasAttr(inTurnAttr);
  constexpr int64_t tokens = 4;
  std::string where;
  for (uint64_t seed : {1, 2}) { // a division by zero may spoil one draw, not two
    Call<Fp> expected = randomCall(*whole, tokens, seed), found = expected;
    if (failed(runRule(*whole, expected)))
      return "the rule cannot be run in F_p";
    found.outputs = expected.outputs;
    for (int64_t t = 0; t < tokens; ++t) {
      // In turn, the second row follows the first. Else what both make of the state, added up, less what it
      // would be without them.
      Call<Fp> first, second, without;
      first.states = second.states = without.states = found.states;
      LogicalResult done = runStackedRow(*row, found, t, 0, first);
      if (inTurn)
        second.states = first.states;
      if (failed(done) || failed(runStackedRow(*row, found, t, 1, second)) ||
          failed(runStackedRow(*none, found, t, 0, without)))
        return "the rule of one row cannot be run in F_p";
      auto total = [&](size_t entry, const Dense<Fp> &x, const Dense<Fp> &y, const Dense<Fp> &z) {
        return inTurn ? y.data[entry] : x.data[entry] + y.data[entry] - z.data[entry];
      };
      for (auto [i, state] : llvm::enumerate(found.states)) {
        state = second.states[i];
        for (size_t entry = 0; entry < state.data.size(); ++entry)
          state.data[entry] = total(entry, first.states[i], second.states[i], without.states[i]);
      }
      for (auto [i, output] : llvm::enumerate(found.outputs))
        for (size_t entry = 0; entry < output[t].data.size(); ++entry)
          output[t].data[entry] =
              total(entry, first.outputs[i][0], second.outputs[i][0], without.outputs[i][0]);
    }
    if (where = difference(*whole, expected, found); where.empty())
      break;
  }
  return where;
}

std::string recur::proveRotated(RuleOp rule, RuleOp rotated) {
  OwningOpRef<RuleOp> whole(rule.clone()), turned(rotated.clone());
  Shrinker shrinker;
  shrinker.shrink(*whole);
  shrinker.shrink(*turned);
  RotatedUpdate update = *rotatedUpdate(rotated);
  size_t numbers = update.numbers.size();
  constexpr int64_t tokens = 4;
  std::string where;
  for (uint64_t seed : {1, 2}) { // a division by zero may spoil one draw, not two
    Call<Fp> expected = randomCall(*whole, tokens, seed), found = expected;
    auto isNumber = [](const auto &number) { return Dense<Fp>(1, 1, number); };
    found.inputs.insert(found.inputs.end(), numbers,
                        std::vector<std::vector<Dense<Fp>>>(tokens, {isNumber(Fp(1))}));
    found.states.clear();
    for (unsigned state : update.states)
      found.states.push_back(expected.states[state]);
    // What the numbers are follows from inputs alone.
    Call<Fp> first = found;
    if (failed(runRule(*turned, first)))
      return "the rotated rule cannot be run in F_p";
    auto numberOf = [&](int number, int64_t t) {
      return number < 0 ? Fp(1) : first.outputs[first.outputs.size() - numbers + number][t].data[0];
    };
    for (size_t number = 0; number < numbers; ++number)
      for (int64_t t = 0; t < tokens; ++t)
        found.inputs[found.inputs.size() - numbers + number][t][0] =
            isNumber(t + 1 < tokens ? numberOf(number, t + 1) : Fp::fromDouble(update.numbers[number].past));
    for (Dense<Fp> &state : found.states)
      state = Dense<Fp>(state.rows, state.cols);
    for (const RotatedUpdate::Old &old : update.old)
      for (size_t e = 0; e < found.states[old.to].data.size(); ++e)
        found.states[old.to].data[e] +=
            numberOf(old.number, 0) * expected.states[update.states[old.from]].data[e];
    for (const RotatedUpdate::Write &write : update.writes) {
      Dense<Fp> &state = found.states[write.to];
      for (int64_t i = 0; i < state.rows; ++i)
        for (int64_t j = 0; j < state.cols; ++j)
          state.at(i, j) += numberOf(write.number, 0) *
                            expected.states[update.delays[write.column].state].data[i] *
                            expected.states[update.delays[write.row].state].data[j];
    }
    if (failed(runRule(*whole, expected)) || failed(runRule(*turned, found)))
      return "one of the two cannot be run in F_p";
    found.outputs.resize(expected.outputs.size());
    // Delayed states end as the inputs that they are.
    std::vector<Dense<Fp>> last(update.statesOfRule);
    for (auto [state, own] : llvm::zip(update.states, found.states))
      last[state] = own;
    for (const RotatedUpdate::Delay &delay : update.delays)
      last[delay.state] = expected.inputs[delay.input].back()[0];
    found.states = last;
    if (where = difference(*whole, expected, found); where.empty())
      break;
  }
  return where;
}

std::string recur::proveColumns(RuleOp rule, RuleOp column) {
  // What a row makes of the state, what the token makes of it without any, and what is read of the sum.
  OwningOpRef<RuleOp> whole(rule.clone()), row(column.clone()), none(column.clone()), reads(column.clone());
  Value written = none->yieldedStates()[0];
  written.replaceAllUsesWith(beforeStackedRow(written));
  reads->yieldedStates()[0].replaceAllUsesWith(reads->argumentsOf(ArgKind::State)[0]);
  Shrinker shrinker;
  for (RuleOp small : {*whole, *row, *none, *reads})
    shrinker.shrink(small);
  int64_t rows = column->getAttrOfType<IntegerAttr>(rowsAttr).getInt();
  constexpr int64_t tokens = 4;
  std::string where;
  for (uint64_t seed : {1, 2}) { // a division by zero may spoil one draw, not two
    Call<Fp> expected = randomCall(*whole, tokens, seed), found = expected;
    if (failed(runRule(*whole, expected)))
      return "the rule cannot be run in F_p";
    found.outputs = expected.outputs;
    for (int64_t t = 0; t < tokens; ++t) {
      auto runRow = [&](RuleOp own, int64_t which, const std::vector<Dense<Fp>> &states, Call<Fp> &call) {
        call.tokens = 1, call.position = found.position + t, call.head = found.head, call.heads = found.heads;
        call.params = found.params;
        call.states = states;
        for (const auto &values : found.inputs)
          call.inputs.push_back({{values[t][values[t].size() == 1 ? 0 : which]}});
        call.inputs.push_back({{Dense<Fp>(1, 1, Fp(which == 0))}});
        return runRule(own, call);
      };
      Call<Fp> without;
      if (failed(runRow(*none, 0, found.states, without)))
        return "the rule of one column cannot be run in F_p";
      std::vector<Dense<Fp>> sums = without.states;
      for (int64_t which = 0; which < rows; ++which) {
        Call<Fp> own;
        if (failed(runRow(*row, which, found.states, own)))
          return "the rule of one column cannot be run in F_p";
        for (size_t entry = 0; entry < sums[0].data.size(); ++entry)
          sums[0].data[entry] =
              sums[0].data[entry] + own.states[0].data[entry] - without.states[0].data[entry];
      }
      found.states = sums;
      for (int64_t which = 0; which < rows; ++which) {
        Call<Fp> own;
        if (failed(runRow(*reads, which, found.states, own)))
          return "the rule of one column cannot be run in F_p";
        for (auto [i, output] : llvm::enumerate(found.outputs)) {
          Value yielded = rule.yieldedOutputs()[i];
          const Dense<Fp> &vector = own.outputs[i][0];
          bool isRow = yielded.getDefiningOp<TransposeOp>() != nullptr;
          if (!columnsOf(yielded))
            output[t] = vector;
          else
            for (int64_t entry = 0; entry < vector.rows; ++entry)
              output[t].at(isRow ? which : entry, isRow ? entry : which) = vector.at(entry, 0);
        }
      }
    }
    if (where = difference(*whole, expected, found); where.empty())
      break;
  }
  return where;
}

bool recur::sameRule(RuleOp a, RuleOp b, std::string &where) {
  OwningOpRef<RuleOp> smallA(a.clone()), smallB(b.clone());
  Shrinker shrinker;
  shrinker.shrink(*smallA);
  shrinker.shrink(*smallB);
  // Arguments are matched by kind and name.
  auto indexIn = [](RuleOp rule, ArgAttr arg) -> std::optional<unsigned> {
    unsigned index = 0;
    for (BlockArgument argument : rule.argumentsOf(arg.getKind())) {
      if (rule.getArg(argument).getName() == arg.getName())
        return index;
      ++index;
    }
    return std::nullopt;
  };
  constexpr int64_t tokens = 6;
  Call<Fp> callA = randomCall(*smallA, tokens, 1), callB = randomCall(*smallB, tokens, 1);
  for (auto [from, to] : {std::pair(&smallA, &smallB), std::pair(&smallB, &smallA)})
    for (BlockArgument argument : (*from)->getBody().getArguments()) {
      ArgAttr arg = (*from)->getArg(argument);
      if (arg.getKind() >= ArgKind::Position)
        continue;
      BlockArgument other = (*to)->findArgument(arg.getKind(), arg.getName());
      if (!other || other.getType() != argument.getType()) {
        where = "argument '" + arg.getName().str() + "' is not in both rules with one shape";
        return false;
      }
      if (from == &smallB)
        continue;
      unsigned i = *indexIn(*smallA, arg), j = *indexIn(*smallB, arg);
      if (arg.getKind() == ArgKind::Input)
        callB.inputs[j] = callA.inputs[i];
      else if (arg.getKind() == ArgKind::Param)
        callB.params[j] = callA.params[i];
      else
        callB.states[j] = callA.states[i];
    }
  if (a.getOutputs() != b.getOutputs()) {
    where = "the outputs have different names";
    return false;
  }
  if (failed(runRule(*smallA, callA)) || failed(runRule(*smallB, callB))) {
    where = "one of the rules cannot be run in F_p";
    return false;
  }
  std::vector<Dense<Fp>> ordered;
  for (BlockArgument state : smallA->argumentsOf(ArgKind::State))
    ordered.push_back(callB.states[*indexIn(*smallB, smallA->getArg(state))]);
  callB.states = ordered;
  where = difference(*smallA, callA, callB);
  return where.empty();
}
