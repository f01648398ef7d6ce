// The oracle over all heads of all sequences.
#include "lib/Driver/Problem.h"
#include "lib/Oracle/Oracle.h"

using namespace mlir;
using namespace recur;

// Copies one matrix out of an array, or into it.
static Matrix slice(const Array &array, int64_t at, MatType type) {
  Matrix matrix(type.numRows(), type.numCols());
  std::copy_n(array.data.begin() + at, matrix.data.size(), matrix.data.begin());
  return matrix;
}

static std::vector<Matrix> slices(const Array &array, int64_t at, Type type) {
  auto steps = dyn_cast<StepsType>(type);
  if (!steps)
    return {slice(array, at, cast<MatType>(type))};
  std::vector<Matrix> result;
  for (int64_t i = 0, n = cast<IntegerAttr>(steps.getCount()).getInt(); i < n; ++i)
    result.push_back(slice(array, at + i * steps.getStep().numElements(), steps.getStep()));
  return result;
}

static int64_t elements(ArrayRef<int64_t> shape, size_t from) { return elementsOf(shape.drop_front(from)); }

static std::vector<int64_t> shapeOf(std::vector<int64_t> leading, Type type) {
  for (Attribute dim : ownDims(type))
    leading.push_back(cast<IntegerAttr>(dim).getInt());
  return leading;
}

LogicalResult recur::runOracle(RuleOp rule, Problem &problem, bool single) {
  SmallVector<BlockArgument> inputs = rule.argumentsOf(ArgKind::Input),
                             params = rule.argumentsOf(ArgKind::Param),
                             states = rule.argumentsOf(ArgKind::State);
  auto nameOf = [&](BlockArgument argument) { return rule.getArg(argument).getName().str(); };
  std::map<std::string, Array> initial = std::move(problem.states);
  problem.states.clear();
  for (auto [name, value] : llvm::zip(rule.getOutputs().getAsRange<StringAttr>(), rule.yieldedOutputs()))
    problem.outputs[name.str()] =
        Array(shapeOf({problem.batch, problem.tokens, problem.heads}, value.getType()));
  for (BlockArgument state : states)
    problem.states[nameOf(state)] = Array(shapeOf({problem.batch, problem.heads}, state.getType()));

  for (int64_t b = 0; b < problem.batch; ++b)
    for (int64_t h = 0; h < problem.heads; ++h) {
      OracleCall call;
      call.tokens = problem.tokens;
      call.position = problem.position;
      call.head = h;
      call.heads = problem.heads;
      call.single = single;
      for (BlockArgument input : inputs) {
        const Array &array = problem.inputs[nameOf(input)];
        int64_t heads = array.shape[2], own = elements(array.shape, 3), group = h / (problem.heads / heads);
        auto &tokens = call.inputs.emplace_back();
        for (int64_t t = 0; t < problem.tokens; ++t)
          tokens.push_back(slices(array, ((b * problem.tokens + t) * heads + group) * own, input.getType()));
      }
      for (BlockArgument param : params) {
        const Array &array = problem.params[nameOf(param)];
        int64_t group = h / (problem.heads / array.shape[0]);
        call.params.push_back(slice(array, group * elements(array.shape, 1), matType(param)));
      }
      int64_t sequence = b * problem.heads + h;
      for (BlockArgument state : states) {
        auto given = initial.find(nameOf(state));
        call.states.push_back(
            given == initial.end()
                ? Matrix()
                : slice(given->second, sequence * matType(state).numElements(), matType(state)));
      }
      if (failed(interpret(rule, call)))
        return failure();
      for (auto [i, name] : llvm::enumerate(rule.getOutputs().getAsRange<StringAttr>())) {
        Array &array = problem.outputs[name.str()];
        int64_t own = elements(array.shape, 3);
        for (int64_t t = 0; t < problem.tokens; ++t)
          llvm::copy(call.outputs[i][t].data,
                     array.data.begin() + ((b * problem.tokens + t) * problem.heads + h) * own);
      }
      for (auto [state, matrix] : llvm::zip(states, call.states))
        llvm::copy(matrix.data, problem.states[nameOf(state)].data.begin() +
                                    sequence * static_cast<int64_t>(matrix.data.size()));
    }
  return success();
}
