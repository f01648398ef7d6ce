// The commands that call a rule: run, verify, bench.
#include "lib/Driver/Commands.h"
#include "lib/Driver/Compile.h"
#include "lib/Driver/Jit.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"

#include <chrono>
#include <cmath>

using namespace mlir;
using namespace recur;

static LogicalResult fail(Session &session, const Twine &what) {
  session.diags.error(what);
  return failure();
}

// Compiles the loaded rule and brings it into this process.
static FailureOr<std::unique_ptr<LoadedRule>> compileAndLoad(Session &session, const llvm::StringMap<int64_t> &sizes) {
  StageWatcher watcher(session.options, "");
  FailureOr<std::unique_ptr<Compiled>> compiled = compileRule(session, sizes, watcher);
  if (failed(compiled))
    return failure();
  auto loaded = LoadedRule::load((*compiled)->object, (*compiled)->info.name);
  if (loaded)
    return std::move(*loaded);
  return fail(session, "cannot load the compiled rule: " + llvm::toString(loaded.takeError()));
}

static LogicalResult call(Session &session, Call &call) {
  int32_t code = session.options.step ? call.stepAll(session.options.threads) : call.forward(session.options.threads);
  return code == RECUR_OK ? success() : fail(session, recur_last_error());
}

// A bound copy of the rule for the oracle: the text's order of evaluation.
static FailureOr<OwningOpRef<ModuleOp>> oracleModule(Session &session, const llvm::StringMap<int64_t> &sizes) {
  OwningOpRef<ModuleOp> module = cpu::isolateRule(session.rule());
  if (failed(bindRule(*module->getOps<RuleOp>().begin(), sizes)))
    return failure();
  return module;
}

static LogicalResult run(Session &session) {
  const Options &options = session.options;
  if (options.inputs.empty() == !options.seed)
    return fail(session, "run needs either --inputs DIR or --random SEED");
  if (options.seed && !options.tokens)
    return fail(session, "--random needs --tokens N");
  llvm::StringMap<int64_t> sizes = session.sizes();
  Problem problem;
  problem.batch = options.batch;
  problem.heads = options.heads;
  problem.tokens = options.tokens.value_or(0);
  if (!options.inputs.empty()) {
    problem.heads = 1;
    if (failed(readProblem(session.rule(), options.inputs, sizes, problem)))
      return failure();
  }
  FailureOr<OwningOpRef<ModuleOp>> module = oracleModule(session, sizes);
  if (failed(module))
    return failure();
  RuleOp bound = *(*module)->getOps<RuleOp>().begin();
  if (options.seed && failed(drawProblem(bound, *options.seed, problem)))
    return failure();
  if (options.oracle) {
    if (failed(runOracle(bound, problem)))
      return failure();
  } else {
    FailureOr<std::unique_ptr<LoadedRule>> rule = compileAndLoad(session, sizes);
    if (failed(rule))
      return failure();
    Call arrays(**rule, problem);
    if (failed(call(session, arrays)))
      return failure();
    arrays.store(problem);
  }
  if (!options.outputs.empty()) {
    std::string error;
    if (failed(writeProblem(problem, options.outputs, options.oracle, error)))
      return fail(session, error);
    return success();
  }
  for (const auto *arrays : {&problem.outputs, &problem.states})
    for (const auto &[name, array] : *arrays) {
      double square = 0;
      for (double x : array.data)
        square += x * x;
      llvm::outs() << name << " " << array.shapeText() << " norm " << llvm::format("%.9g", std::sqrt(square)) << "\n";
    }
  return success();
}

int recur::runCommand(Session &session) {
  if (succeeded(session.load(session.options.spec())))
    (void)run(session);
  return session.finish();
}

//===----------------------------------------------------------------------===//
// verify
//===----------------------------------------------------------------------===//

// The limit of the relative error for the widest rounding among the tensors.
static double errorLimit(const recur_variant &variant, int32_t tensors) {
  double limit = 2e-6;
  for (int32_t i = 0; i < tensors; ++i)
    if (variant.dtypes[i].bits == 16)
      limit = std::max(limit, variant.dtypes[i].code == kDLBfloat ? 5e-3 : 1e-3);
  return limit;
}

static LogicalResult verify(Session &session) {
  const Options &options = session.options;
  llvm::StringMap<int64_t> sizes = session.sizes();
  FailureOr<OwningOpRef<ModuleOp>> module = oracleModule(session, sizes);
  if (failed(module))
    return failure();
  RuleOp bound = *(*module)->getOps<RuleOp>().begin();
  FailureOr<std::unique_ptr<LoadedRule>> rule = compileAndLoad(session, sizes);
  if (failed(rule))
    return failure();
  const recur_model &model = *(*rule)->metadata->model;
  double least = errorLimit(model.variants[0], model.tensor_count);
  for (unsigned round = 0; round < options.rounds; ++round) {
    Problem problem;
    problem.batch = options.batch;
    problem.heads = options.heads;
    problem.tokens = options.tokens.value_or(67); // no multiple of any block
    if (failed(drawProblem(bound, options.seed.value_or(1) + round, problem)))
      return failure();
    Call forward(**rule, problem), steps(**rule, problem);
    if (forward.forward() != RECUR_OK || steps.stepAll() != RECUR_OK)
      return fail(session, recur_last_error());
    Problem compiled, stepped;
    forward.store(compiled);
    steps.store(stepped);
    // What the rounded inputs mean, and how much of that hangs on the last bits of inputs and states: an unstable rule
    // is not held to more digits than it has.
    forward.round(problem);
    Problem moved = problem;
    perturb(moved, 0x1p-24, round + 1);
    if (failed(runOracle(bound, problem)) || failed(runOracle(bound, moved, /*roundStates=*/true)))
      return failure();
    auto compare = [&](StringRef what, const std::map<std::string, Array> &found,
                       const std::map<std::string, Array> &expected, const std::map<std::string, Array> &shifted) {
      bool good = true;
      for (const auto &[name, array] : expected) {
        double error = relativeError(found.at(name), array);
        double limit = std::max(least, 128 * relativeError(shifted.at(name), array));
        llvm::outs() << "round " << round + 1 << " " << what << " " << name << ": relative error "
                     << llvm::format("%.2e", error) << "\n";
        if (!(error <= limit)) {
          session.diags.error("'" + name + "' of " + what + " differs from the oracle by " +
                              llvm::formatv("{0:e2}", error).str() + ", more than " +
                              llvm::formatv("{0:e1}", limit).str());
          good = false;
        }
      }
      return good;
    };
    bool good = compare("forward", compiled.outputs, problem.outputs, moved.outputs);
    good &= compare("forward", compiled.states, problem.states, moved.states);
    good &= compare("step", stepped.outputs, problem.outputs, moved.outputs);
    good &= compare("step", stepped.states, problem.states, moved.states);
    if (!good)
      return failure();
  }
  return success();
}

int recur::verifyCommand(Session &session) {
  if (succeeded(session.load(session.options.spec())))
    (void)verify(session);
  return session.finish();
}

//===----------------------------------------------------------------------===//
// bench
//===----------------------------------------------------------------------===//

static double seconds(llvm::function_ref<void()> body) {
  auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

static LogicalResult bench(Session &session) {
  const Options &options = session.options;
  llvm::StringMap<int64_t> sizes = session.sizes();
  FailureOr<OwningOpRef<ModuleOp>> module = oracleModule(session, sizes);
  if (failed(module))
    return failure();
  Problem problem;
  problem.batch = options.batch;
  problem.heads = options.heads;
  problem.tokens = options.step ? 1 : options.tokens.value_or(1024);
  if (failed(drawProblem(*(*module)->getOps<RuleOp>().begin(), options.seed.value_or(1), problem)))
    return failure();
  FailureOr<std::unique_ptr<LoadedRule>> rule = compileAndLoad(session, sizes);
  if (failed(rule))
    return failure();
  Call arrays(**rule, problem);
  int32_t code = RECUR_OK;
  auto once = [&] { code = options.step ? arrays.stepAll(options.threads) : arrays.forward(options.threads); };
  double first = seconds(once);
  if (code != RECUR_OK)
    return fail(session, recur_last_error());
  unsigned repeat = options.repeat ? options.repeat : std::clamp<unsigned>(1 / std::max(first, 1e-6), 3, 10000);
  std::vector<double> times;
  for (unsigned i = 0; i < repeat; ++i)
    times.push_back(options.step ? seconds([&] { code = arrays.step(0, options.threads); }) : seconds(once));
  llvm::sort(times);
  double best = times.front(), median = times[times.size() / 2];
  double tokens = static_cast<double>(problem.batch) * problem.tokens;
  double bytes = arrays.tensorBytes() + arrays.stateBytes();
  if (options.json) {
    llvm::json::OStream json(llvm::outs(), 2);
    json.object([&] {
      json.attribute("rule", (*rule)->metadata->name);
      json.attribute("form", (*rule)->metadata->form);
      json.attribute("entry", options.step ? "step" : "forward");
      json.attribute("batch", problem.batch);
      json.attribute("tokens", problem.tokens);
      json.attribute("heads", problem.heads);
      json.attribute("calls", repeat);
      json.attribute("seconds_best", best);
      json.attribute("seconds_median", median);
      json.attribute("tokens_per_second", tokens / median);
      json.attribute("gigabytes_per_second", bytes / median * 1e-9);
    });
    llvm::outs() << "\n";
    return success();
  }
  llvm::outs() << (*rule)->metadata->name << " " << (options.step ? "step" : "forward") << ", "
               << (*rule)->metadata->form << ": batch " << problem.batch << ", tokens " << problem.tokens << ", heads "
               << problem.heads << ", " << repeat << " calls\n"
               << llvm::format("median %.3f ms, best %.3f ms, %.4g tokens/s, %.3g us per token and head, %.3g GB/s of "
                               "tensors and states\n",
                               median * 1e3, best * 1e3, tokens / median,
                               tokens > 0 ? median * 1e6 / (tokens * problem.heads) : 0, bytes / median * 1e-9);
  return success();
}

int recur::benchCommand(Session &session) {
  if (succeeded(session.load(session.options.spec())))
    (void)bench(session);
  return session.finish();
}
