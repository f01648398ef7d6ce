// Arrays for a rule: from files, or drawn.
#include "lib/Driver/Problem.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cmath>
#include <random>

using namespace mlir;
using namespace recur;

SmallVector<Attribute> recur::ownDims(Type type) {
  SmallVector<Attribute> dims;
  if (auto steps = dyn_cast<StepsType>(type)) {
    dims.push_back(steps.getCount());
    type = steps.getStep();
  }
  for (Attribute dim : {cast<MatType>(type).getRows(), cast<MatType>(type).getCols()})
    if (!isOne(dim))
      dims.push_back(dim);
  return dims;
}

static std::string dimsText(ArrayRef<StringRef> leading, ArrayRef<Attribute> own) {
  SmallVector<std::string> parts(leading.begin(), leading.end());
  for (Attribute dim : own)
    parts.push_back(dimText(dim));
  return "[" + llvm::join(parts, ", ") + "]";
}

namespace {
// Reads and checks the arrays of one rule.
class Reader {
public:
  Reader(RuleOp rule, StringRef folder, llvm::StringMap<int64_t> &sizes, Problem &problem)
      : rule(rule), folder(folder), sizes(sizes), problem(problem) {}

  LogicalResult run() {
    if (!llvm::sys::fs::is_directory(folder))
      return emitError(rule.getLoc()) << "the folder '" << folder << "' does not exist";
    if (failed(readAll()) || failed(decideAxes()))
      return failure();
    for (BlockArgument argument : rule.getBody().getArguments())
      if (found.contains(argument) && failed(check(argument)))
        return failure();
    // A head count divides the largest one.
    for (auto &[name, array] : problem.inputs)
      if (failed(checkHeads(name, array.shape[2])))
        return failure();
    for (auto &[name, array] : problem.params)
      if (failed(checkHeads(name, array.shape[0])))
        return failure();
    for (auto &[name, array] : problem.states)
      if (array.shape[0] != problem.batch || array.shape[1] != problem.heads)
        return emitError(rule.getLoc()) << "'" << name << "' must begin with [" << problem.batch << ", "
                                        << problem.heads << "] sequences and heads, got: " << array.shapeText();
    return success();
  }

private:
  LogicalResult readAll() {
    for (BlockArgument argument : rule.getBody().getArguments()) {
      ArgAttr arg = rule.getArg(argument);
      if (arg.getKind() > ArgKind::State)
        continue;
      SmallString<128> path(folder);
      llvm::sys::path::append(path, arg.getName().getValue() + ".npy");
      if (arg.getKind() == ArgKind::State && !llvm::sys::fs::exists(path))
        continue;
      std::string error;
      std::optional<Array> array = readNpy(path, error);
      if (!array)
        return emitError(argument.getLoc()) << error;
      found[argument] = std::move(*array);
    }
    return success();
  }

  // Arrays have batch and head axes, or none of them has.
  LogicalResult decideAxes() {
    for (auto &[argument, array] : found)
      if (rule.getArg(argument).getKind() == ArgKind::Input)
        problem.single |= array.shape.size() == ownDims(argument.getType()).size() + 1;
    return success();
  }

  LogicalResult check(BlockArgument argument) {
    ArgAttr arg = rule.getArg(argument);
    Array &array = found[argument];
    SmallVector<StringRef, 3> leading;
    if (arg.getKind() == ArgKind::Input)
      leading = {"batch", "token", "head"};
    else if (arg.getKind() == ArgKind::Param)
      leading = {"head"};
    else
      leading = {"sequence", "head"};
    SmallVector<Attribute> own = ownDims(argument.getType());
    std::string given = array.shapeText();
    if (problem.single) {
      bool token = arg.getKind() == ArgKind::Input;
      if (array.shape.size() != own.size() + token)
        return emitError(argument.getLoc())
               << "'" << arg.getName().getValue() << "' must be "
               << dimsText(token ? ArrayRef<StringRef>("token") : ArrayRef<StringRef>(), own)
               << ", as the arrays have no batch and head axes, got: " << given;
      if (token)
        array.shape.insert(array.shape.begin() + 1, 1);
      array.shape.insert(array.shape.begin(), leading.size() - token - token, 1);
    }
    if (array.shape.size() != leading.size() + own.size())
      return emitError(argument.getLoc()) << "'" << arg.getName().getValue() << "' must be "
                                          << dimsText(leading, own) << ", got: " << given;
    for (auto [dim, size] : llvm::zip(own, ArrayRef(array.shape).drop_front(leading.size())))
      if (failed(bind(argument, dim, size)))
        return failure();
    StringRef name = arg.getName();
    if (arg.getKind() == ArgKind::Input) {
      if (failed(agree(argument, "batch", array.shape[0], problem.batch, batchFrom)) ||
          failed(agree(argument, "token", array.shape[1], problem.tokens, tokensFrom)))
        return failure();
      problem.heads = std::max(problem.heads, array.shape[2]);
      problem.inputs[name.str()] = std::move(array);
    } else if (arg.getKind() == ArgKind::Param) {
      problem.heads = std::max(problem.heads, array.shape[0]);
      problem.params[name.str()] = std::move(array);
    } else {
      problem.states[name.str()] = std::move(array);
    }
    return success();
  }

  LogicalResult bind(BlockArgument argument, Attribute dim, int64_t size) {
    int64_t expected = size;
    if (auto number = dyn_cast<IntegerAttr>(dim))
      expected = number.getInt();
    else
      expected = sizes.try_emplace(cast<StringAttr>(dim).getValue(), size).first->second;
    if (size == expected && size > 0)
      return success();
    if (size < 1)
      return emitError(argument.getLoc()) << "'" << rule.getArg(argument).getName().getValue()
                                          << "' needs at least 1 for the dimension '" << dimText(dim)
                                          << "', got: " << size;
    return emitError(argument.getLoc()) << "'" << rule.getArg(argument).getName().getValue() << "' has " << size
                                        << " for the dimension '" << dimText(dim) << "', but it is " << expected
                                        << " elsewhere";
  }

  LogicalResult agree(BlockArgument argument, StringRef axis, int64_t size, int64_t &known, std::string &from) {
    StringRef name = rule.getArg(argument).getName();
    if (from.empty()) {
      known = size;
      from = name.str();
    }
    if (known == size)
      return success();
    return emitError(argument.getLoc()) << "'" << name << "' has " << size << " along the " << axis << " axis, but '"
                                        << from << "' has " << known;
  }

  LogicalResult checkHeads(StringRef name, int64_t heads) {
    if (heads > 0 && problem.heads % heads == 0)
      return success();
    return emitError(rule.getLoc()) << "the head count of '" << name << "' must divide " << problem.heads
                                    << ", got: " << heads;
  }

  RuleOp rule;
  StringRef folder;
  llvm::StringMap<int64_t> &sizes;
  Problem &problem;
  llvm::MapVector<BlockArgument, Array> found;
  std::string batchFrom, tokensFrom;
};
} // namespace

LogicalResult recur::readProblem(RuleOp rule, StringRef folder, llvm::StringMap<int64_t> &sizes, Problem &problem) {
  return Reader(rule, folder, sizes, problem).run();
}

//===----------------------------------------------------------------------===//
// Random problems
//===----------------------------------------------------------------------===//

// A number within a range: uniform in a bounded one (and never past 8 in an unbounded one), else normal.
static double draw(RangeAttr range, std::mt19937_64 &generator) {
  std::normal_distribution<double> normal;
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
  double batch = problem.batch, elements = problem.heads * (batch * (problem.tokens * token + sequence) + head);
  if (elements <= maxDrawn)
    return success();
  return emitError(rule.getLoc()) << "the arrays of " << problem.batch << " sequences of " << problem.tokens
                                  << " tokens and " << problem.heads << " heads have more than " << maxDrawn
                                  << " elements";
}

LogicalResult recur::drawProblem(RuleOp rule, uint64_t seed, Problem &problem) {
  if (failed(checkElements(rule, problem)))
    return failure();
  std::mt19937_64 generator(seed);
  for (BlockArgument argument : rule.getBody().getArguments()) {
    ArgAttr arg = rule.getArg(argument);
    if (arg.getKind() != ArgKind::Input && arg.getKind() != ArgKind::Param)
      continue;
    bool input = arg.getKind() == ArgKind::Input;
    std::vector<int64_t> shape = input ? std::vector<int64_t>{problem.batch, problem.tokens, problem.heads}
                                       : std::vector<int64_t>{problem.heads};
    for (Attribute dim : ownDims(argument.getType()))
      shape.push_back(cast<IntegerAttr>(dim).getInt());
    Array array(shape);
    // Vectors that promise nothing have a norm of about 1, so that products of many tokens stay of one size.
    SmallVector<Attribute> own = ownDims(argument.getType());
    double scale = arg.getRange() || own.empty() ? 1 : 1 / std::sqrt(double(shape.back()));
    for (double &x : array.data) // float32 holds what is drawn
      x = static_cast<float>(scale * draw(arg.getRange(), generator));
    if (arg.getUnit()) {
      int64_t n = shape.back();
      for (int64_t at = 0; at < array.size(); at += n) {
        double square = 0;
        for (int64_t i = 0; i < n; ++i)
          square += array.data[at + i] * array.data[at + i];
        for (int64_t i = 0; i < n; ++i)
          array.data[at + i] = static_cast<float>(array.data[at + i] / std::sqrt(square));
      }
    }
    (input ? problem.inputs : problem.params)[arg.getName().str()] = std::move(array);
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

LogicalResult recur::writeProblem(const Problem &problem, StringRef folder, bool float64, std::string &error) {
  if (std::error_code code = llvm::sys::fs::create_directories(folder)) {
    error = ("cannot make the folder '" + folder + "': " + code.message()).str();
    return failure();
  }
  for (const auto *arrays : {&problem.outputs, &problem.states})
    for (const auto &[name, array] : *arrays) {
      SmallString<128> path(folder);
      llvm::sys::path::append(path, name + ".npy");
      Array written = array;
      if (problem.single) { // drop the axes of length 1 that the files do not have
        bool output = arrays == &problem.outputs;
        written.shape.erase(written.shape.begin());
        written.shape.erase(written.shape.begin() + output);
      }
      if (!writeNpy(path, written, float64, error))
        return failure();
    }
  return success();
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
