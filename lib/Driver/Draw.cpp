// Random arrays for a rule.
#include "lib/Driver/Problem.h"

#include <cmath>
#include <random>

using namespace mlir;
using namespace recur;

// A number within a range: uniform in a bounded one, else normal or exponential from its end. `edges` prefers
// the ends: decays of 1, of exp(-12) and of exp(-69), gates of 0 and 1.
static double draw(RangeAttr range, bool edges, std::mt19937_64 &generator) {
  std::normal_distribution<double> normal;
  if (range && edges) {
    double pick = std::uniform_real_distribution<double>()(generator);
    if (std::isinf(range.getLo()) && std::isfinite(range.getHi()) && pick < 0.5)
      return pick < 0.2 && !range.getHiOpen() ? range.getHi() : range.getHi() - (pick < 0.35 ? 69 : 12);
    if (pick < 0.2 && std::isfinite(range.getLo()) && !range.getLoOpen())
      return range.getLo();
    if (pick > 0.8 && std::isfinite(range.getHi()) && !range.getHiOpen())
      return range.getHi();
  }
  if (!range || (std::isinf(range.getLo()) && std::isinf(range.getHi())))
    return normal(generator);
  // A log decay is mostly near 0, with a tail.
  if (std::isinf(range.getLo()))
    return range.getHi() - std::exp(normal(generator) - 2) - (range.getHiOpen() ? 1e-6 : 0);
  if (std::isinf(range.getHi()))
    return range.getLo() + std::exp(normal(generator)) + (range.getLoOpen() ? 1e-6 : 0);
  double x = std::uniform_real_distribution<double>(range.getLo(), range.getHi())(generator);
  return range.contains(x) ? x : (range.getLo() + range.getHi()) / 2;
}

// The largest number of elements of the arrays of a drawn problem.
static constexpr int64_t maxDrawn = int64_t(1) << 31;

// Reports a problem whose arrays have too many elements.
static LogicalResult checkElements(RuleOp rule, const Problem &problem) {
  auto own = [](Type type) {
    double count = 1;
    for (Attribute dim : ownDims(type))
      count *= cast<IntegerAttr>(dim).getInt();
    return count;
  };
  double token = 0, head = 0, sequence = 0;
  for (BlockArgument argument : rule.argumentsOf(ArgKind::Input))
    token += own(argument.getType());
  for (Value output : rule.yieldedOutputs())
    token += own(output.getType());
  for (BlockArgument argument : rule.argumentsOf(ArgKind::Param))
    head += own(argument.getType());
  for (BlockArgument argument : rule.argumentsOf(ArgKind::State))
    sequence += own(argument.getType());
  double batch = problem.batch,
         elements = problem.heads * (batch * (problem.tokens * token + sequence) + head);
  if (elements <= maxDrawn)
    return success();
  return emitError(rule.getLoc()) << "the arrays of " << problem.batch << " sequences of " << problem.tokens
                                  << " tokens and " << problem.heads << " heads have more than " << maxDrawn
                                  << " elements";
}

namespace {
// Draws the values of one argument after the other.
class Sampler {
public:
  Sampler(uint64_t seed, Inputs kind) : generator(seed), kind(kind) {}

  // The array of an argument whose first `lead` dimensions count values and whose last ones are those of a
  // value.
  Array array(ArgAttr arg, std::vector<int64_t> shape, size_t lead) {
    Array result(shape);
    // Vectors that promise nothing have a norm of about 1, so that products of many tokens stay of one size.
    bool isVector = shape.size() > lead, isFree = isVector && !arg.getRange();
    int64_t n = shape.back(), each = isVector ? n : 1;
    double scale = isFree ? 1 / std::sqrt(double(n)) : 1;
    int64_t token =
        lead == 3 ? elementsOf(llvm::ArrayRef(shape).drop_front(2)) : 0; // from one token to the next
    std::vector<double> common(each);
    for (double &x : common)
      x = normal(generator);
    bool edges = kind == Inputs::Edges || kind == Inputs::Mixed;
    for (int64_t at = 0; at < result.size(); at += each) {
      bool isNext = lead == 3 && at >= token;
      double *value = result.data.data() + at, pick = uniform(generator);
      double shared =
          isFree && (kind == Inputs::Correlated || (kind == Inputs::Mixed && pick < 0.5)) ? 0.95 : 0;
      for (int64_t i = 0; i < each; ++i)
        value[i] = scale * (shared * common[i] +
                            std::sqrt(1 - shared * shared) * draw(arg.getRange(), edges, generator));
      if (isFree && isNext && (kind == Inputs::Repeated || kind == Inputs::Mixed) && pick > 0.5 && pick < 0.9)
        std::copy_n(value - token, each, value);
      if (isFree && !arg.getUnit() &&
          (kind == Inputs::Zeros ? pick < 0.3 : kind == Inputs::Mixed && pick > 0.9))
        std::fill_n(value, each, 0.0);
      if (arg.getUnit())
        normalise(value, each);
      for (int64_t i = 0; i < each; ++i) // float32 holds what is drawn
        value[i] = static_cast<float>(value[i]);
    }
    return result;
  }

  Array state(std::vector<int64_t> shape) {
    Array result(std::move(shape));
    double size = kind == Inputs::LargeState ? 1e3 : 1e-3;
    for (double &x : result.data)
      x = static_cast<float>(size * normal(generator));
    return result;
  }

private:
  static void normalise(double *value, int64_t n) {
    double square = 0;
    for (int64_t i = 0; i < n; ++i)
      square += value[i] * value[i];
    for (int64_t i = 0; i < n; ++i)
      value[i] = value[i] / std::sqrt(square);
  }

  std::mt19937_64 generator;
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  Inputs kind;
};
} // namespace

// A caller may pass any matrix as a state; square ones, vectors and numbers keep what their rule starts them
// with, as they may have to be positive.
static bool isFreeState(Type symbolic) {
  auto type = cast<MatType>(symbolic);
  return !isOne(type.getRows()) && !isOne(type.getCols()) && type.getRows() != type.getCols();
}

LogicalResult recur::drawProblem(RuleOp rule, uint64_t seed, Problem &problem, Inputs kind, RuleOp symbolic) {
  if (failed(checkElements(rule, problem)))
    return failure();
  Sampler sampler(seed, kind);
  for (BlockArgument argument : rule.getBody().getArguments()) {
    ArgAttr arg = rule.getArg(argument);
    bool input = arg.getKind() == ArgKind::Input;
    std::vector<int64_t> shape = {problem.batch, problem.tokens, problem.heads};
    if (!input)
      shape = arg.getKind() == ArgKind::Param ? std::vector<int64_t>{problem.heads}
                                              : std::vector<int64_t>{problem.batch, problem.heads};
    size_t lead = shape.size();
    for (Attribute dim : ownDims(argument.getType()))
      shape.push_back(cast<IntegerAttr>(dim).getInt());
    if (arg.getKind() <= ArgKind::Param)
      (input ? problem.inputs : problem.params)[arg.getName().str()] =
          sampler.array(arg, std::move(shape), lead);
    bool given = kind == Inputs::LargeState || kind == Inputs::SmallState;
    if (arg.getKind() == ArgKind::State && given && symbolic &&
        isFreeState(symbolic.getBody().getArgument(argument.getArgNumber()).getType()))
      problem.states[arg.getName().str()] = sampler.state(std::move(shape));
  }
  return success();
}

void recur::perturb(Problem &problem, double size, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> relative(1 - size, 1 + size);
  for (auto *arrays : {&problem.inputs, &problem.params})
    for (auto &[name, array] : *arrays)
      for (double &x : array.data)
        x *= relative(generator);
}

double recur::relativeError(const Array &x, const Array &reference) {
  double difference = 0, norm = 0;
  for (auto [a, b] : llvm::zip(x.data, reference.data)) {
    if (std::isnan(b) && std::isnan(a))
      continue;
    if (a == b) { // equal infinities too
      norm += std::isfinite(b) ? b * b : 0;
      continue;
    }
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}
