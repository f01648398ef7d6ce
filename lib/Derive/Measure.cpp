// Random inputs within declared ranges, and errors on them.
#include "lib/Derive/Measure.h"
#include "lib/Derive/Machine.h"
#include "lib/Oracle/Oracle.h"

#include <random>

using namespace mlir;
using namespace recur;

namespace {
class Sampler {
public:
  Sampler(Temper temper, uint64_t seed) : nasty(temper == Temper::Nasty), engine(seed) {}

  // The values of one argument, a matrix per token and micro-step, that share what they have in common.
  Matrix next(ArgAttr arg, MatType type, Matrix &common) {
    Matrix matrix(type.numRows(), type.numCols());
    if (common.data.empty()) {
      common = matrix;
      for (double &entry : common.data)
        entry = normal(engine);
    }
    // Nasty vectors point the same way, are the last one again, or vanish.
    double pick = uniform(0, 1), shared = !nasty ? 0 : pick < 0.4 ? 0.95 : pick < 0.6 ? 1 : 0;
    bool zero = nasty && pick > 0.9 && !arg.getUnit() && !arg.getRange();
    for (size_t i = 0; i < matrix.data.size(); ++i) {
      double entry = shared * common.data[i] + std::sqrt(1 - shared * shared) * normal(engine);
      matrix.data[i] = zero ? 0 : arg.getRange() ? within(arg.getRange()) : entry;
    }
    double norm = 0;
    for (double entry : matrix.data)
      norm += entry * entry;
    if ((arg.getUnit() || !arg.getRange()) && norm > 0 && !type.isScalar())
      for (double &entry : matrix.data)
        entry /= std::sqrt(norm);
    // Exactly representable in float32, so that all runs see the same numbers.
    for (double &entry : matrix.data)
      entry = float(entry);
    return matrix;
  }

  Matrix state(MatType type) {
    Matrix matrix(type.numRows(), type.numCols());
    double size = nasty ? std::pow(10, uniform(-3, 3)) : 1;
    for (double &entry : matrix.data)
      entry = float(size * normal(engine));
    return matrix;
  }

private:
  double uniform(double lo, double hi) { return std::uniform_real_distribution<double>(lo, hi)(engine); }

  double within(RangeAttr range) {
    double lo = range.getLo(), hi = range.getHi(), pick = uniform(0, 1);
    bool below = std::isinf(lo), above = std::isinf(hi);
    if (below && above)
      return normal(engine);
    if (below) {
      if (nasty && pick < 0.5)
        return pick < 0.2 && !range.getHiOpen() ? hi : pick < 0.35 ? hi - 69 : hi - 12;
      return hi - 0.3 * std::fabs(normal(engine));
    }
    if (above)
      return lo + (nasty && pick < 0.2 && !range.getLoOpen() ? 0 : std::fabs(normal(engine)));
    if (nasty && pick < 0.2 && !range.getLoOpen())
      return lo;
    if (nasty && pick < 0.4 && !range.getHiOpen())
      return hi;
    return uniform(lo, hi);
  }

  bool nasty;
  std::mt19937_64 engine;
  std::normal_distribution<double> normal;
};

OracleCall sample(RuleOp rule, int64_t tokens, Temper temper, uint64_t seed) {
  Sampler sampler(temper, seed);
  OracleCall call;
  call.tokens = tokens;
  call.heads = 4;
  call.head = 1;
  for (BlockArgument argument : rule.getBody().getArguments()) {
    ArgAttr arg = rule.getArg(argument);
    auto steps = dyn_cast<StepsType>(argument.getType());
    MatType type = steps ? steps.getStep() : cast<MatType>(argument.getType());
    Matrix common;
    if (arg.getKind() == ArgKind::Input) {
      auto &values = call.inputs.emplace_back(tokens);
      int64_t count = steps ? cast<IntegerAttr>(steps.getCount()).getInt() : 1;
      for (auto &token : values)
        for (int64_t step = 0; step < count; ++step)
          token.push_back(sampler.next(arg, type, common));
    } else if (arg.getKind() == ArgKind::Param) {
      call.params.push_back(sampler.next(arg, type, common));
    } else if (arg.getKind() == ArgKind::State) {
      call.states.push_back(Matrix()); // the rule's own
    }
  }
  // The states that a caller may pass are matrices; others keep what their rule starts them with.
  for (auto [state, argument] : llvm::zip(call.states, rule.argumentsOf(ArgKind::State)))
    if (MatType type = matType(argument);
        !isOne(type.getRows()) && !isOne(type.getCols()) && type.getRows() != type.getCols())
      state = sampler.state(type);
  return call;
}

template <typename F>
Dense<F> convert(const Matrix &matrix) {
  Dense<F> result(matrix.rows, matrix.cols);
  std::copy(matrix.data.begin(), matrix.data.end(), result.data.begin());
  return result;
}

template <typename F>
Call<F> convert(const OracleCall &call) {
  Call<F> result;
  result.tokens = call.tokens;
  result.head = call.head;
  result.heads = call.heads;
  for (const auto &input : call.inputs) {
    auto &tokens = result.inputs.emplace_back();
    for (const auto &token : input) {
      auto &steps = tokens.emplace_back();
      for (const Matrix &step : token)
        steps.push_back(convert<F>(step));
    }
  }
  for (const Matrix &param : call.params)
    result.params.push_back(convert<F>(param));
  for (const Matrix &state : call.states)
    result.states.push_back(convert<F>(state));
  return result;
}

// Norms of a difference and of what is expected.
class Error {
public:
  template <typename F>
  void add(const Matrix &expected, const Dense<F> &found) {
    for (size_t i = 0; i < expected.data.size(); ++i) {
      if (!std::isfinite(expected.data[i])) // the rule itself overflows: there is nothing to compare with
        continue;
      double wrong = found.data[i] - expected.data[i];
      error += wrong * wrong;
      size += expected.data[i] * expected.data[i];
    }
  }
  /// The error is taken relative to `floor` where less than that is expected.
  double relative(double floor = 0) const {
    return error == 0 ? 0 : std::sqrt(error / std::max(size, floor * floor));
  }

private:
  double error = 0, size = 0;
};

template <typename F>
double worstError(const Call<F> &call, const OracleCall &start, const OracleCall &expected) {
  double worst = 0;
  auto note = [&](double error) { worst = error <= worst ? worst : error; };
  for (size_t output = 0; output < expected.outputs.size(); ++output) {
    Error error;
    for (int64_t t = 0; t < expected.tokens; ++t)
      error.add(expected.outputs[output][t], call.outputs[output][t]);
    note(error.relative());
  }
  for (size_t state = 0; state < expected.states.size(); ++state) {
    Error error;
    error.add(expected.states[state], call.states[state]);
    // A state that was erased is a difference of numbers as large as it was at first.
    double first = 0;
    for (double entry : start.states[state].data)
      first += entry * entry;
    note(error.relative(1e-3 * std::sqrt(first)));
  }
  return worst;
}

template <typename F>
FailureOr<double> errorOf(chunk::ProgramOp program, const OracleCall &start, const OracleCall &expected,
                          int64_t size) {
  Call<F> call = convert<F>(start);
  if (failed(runProgram(program, call, size)))
    return failure();
  return worstError(call, start, expected);
}
} // namespace

// The oracle with every entry of a state moved by a last bit, or not, after each so many tokens.
static FailureOr<double> errorOfRounding(RuleOp rule, const OracleCall &start, const OracleCall &expected,
                                         int64_t step) {
  std::mt19937_64 engine(1);
  OracleCall token = start;
  Call<double> found = convert<double>(expected);
  found.outputs.assign(expected.outputs.size(), {});
  for (int64_t t = 0, end = 0; t < start.tokens; t = end) {
    end = std::min(start.tokens, t + step);
    token.tokens = end - t;
    token.position = start.position + t;
    for (auto [all, some] : llvm::zip(start.inputs, token.inputs))
      some.assign(all.begin() + t, all.begin() + end);
    token.outputs.clear();
    if (failed(interpret(rule, token)))
      return failure();
    for (Matrix &state : token.states)
      for (double &entry : state.data)
        entry *= 1 + double(int(engine() % 3) - 1) * 0x1p-52;
    for (auto [output, values] : llvm::zip(token.outputs, found.outputs))
      for (const Matrix &value : output)
        values.push_back(convert<double>(value));
  }
  for (auto [state, final] : llvm::zip(token.states, found.states))
    final = convert<double>(state);
  return worstError(found, start, expected);
}

FailureOr<Accuracy> recur::measure(RuleOp rule, chunk::ProgramOp program, int64_t tokens, int64_t size,
                                   Temper temper, uint64_t seed) {
  OracleCall start = sample(rule, tokens, temper, seed), expected = start;
  std::optional<int64_t> block = program.getBlock();
  size = block.value_or(size);
  if (failed(interpret(rule, expected)))
    return failure();
  FailureOr<double> wide = errorOf<double>(program, start, expected, size),
                    narrow = errorOf<float>(program, start, expected, size);
  if (failed(wide) || failed(narrow))
    return failure();
  Accuracy result{*wide, *narrow, 0};
  if (!(*wide <= 1e-13)) {
    FailureOr<double> rounding = errorOfRounding(rule, start, expected, block.value_or(1));
    if (failed(rounding))
      return failure();
    result.rounding = std::isnan(*rounding) ? std::numeric_limits<double>::infinity() : *rounding;
  }
  return result;
}
