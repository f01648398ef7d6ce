// Runs a rule on arrays.
#include "lib/Driver/Commands.h"
#include "lib/Driver/Compile.h"
#include "llvm/Support/Format.h"

#include <cmath>

using namespace mlir;
using namespace recur;

static LogicalResult call(Session &session, Call &call) {
  int32_t code =
      session.options.step ? call.stepAll(session.options.threads) : call.forward(session.options.threads);
  return code == RECUR_OK ? success() : session.fail(recur_last_error());
}

static LogicalResult run(Session &session) {
  const Options &options = session.options;
  if (options.inputs.empty() == !options.seed)
    return session.fail("run needs either --inputs DIR or --random SEED");
  if (options.seed && !options.tokens)
    return session.fail("--random needs --tokens N");
  llvm::StringMap<int64_t> sizes = session.sizes();
  Problem problem;
  problem.batch = options.batch.value_or(1);
  problem.heads = options.heads.value_or(1);
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
    FailureOr<std::unique_ptr<LoadedRule>> rule = compileAndLoad(session, sizes, options.form);
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
      return session.fail(error);
    return success();
  }
  for (const auto *arrays : {&problem.outputs, &problem.states})
    for (const auto &[name, array] : *arrays) {
      double square = 0;
      for (double x : array.data)
        square += x * x;
      llvm::outs() << name << " " << array.shapeText() << " norm " << llvm::format("%.9g", std::sqrt(square))
                   << "\n";
    }
  return success();
}

int recur::runCommand(Session &session) {
  if (succeeded(session.load(session.options.spec())))
    (void)run(session);
  return session.finish();
}
