// Arrays for a rule, from files and to files.
#include "lib/Driver/Problem.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

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
        return emitError(rule.getLoc())
               << "'" << name << "' must begin with [" << problem.batch << ", " << problem.heads
               << "] sequences and heads, got: " << array.shapeText();
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
      return emitError(argument.getLoc())
             << "'" << rule.getArg(argument).getName().getValue() << "' needs at least 1 for the dimension '"
             << dimText(dim) << "', got: " << size;
    return emitError(argument.getLoc())
           << "'" << rule.getArg(argument).getName().getValue() << "' has " << size << " for the dimension '"
           << dimText(dim) << "', but it is " << expected << " elsewhere";
  }

  LogicalResult agree(BlockArgument argument, StringRef axis, int64_t size, int64_t &known,
                      std::string &from) {
    StringRef name = rule.getArg(argument).getName();
    if (from.empty()) {
      known = size;
      from = name.str();
    }
    if (known == size)
      return success();
    return emitError(argument.getLoc()) << "'" << name << "' has " << size << " along the " << axis
                                        << " axis, but '" << from << "' has " << known;
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

LogicalResult recur::readProblem(RuleOp rule, StringRef folder, llvm::StringMap<int64_t> &sizes,
                                 Problem &problem) {
  return Reader(rule, folder, sizes, problem).run();
}

LogicalResult recur::writeProblem(const Problem &problem, StringRef folder, bool float64,
                                  std::string &error) {
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
