// Decides whether two specs are the same rule.
#include "lib/Derive/Derive.h"
#include "lib/Driver/Commands.h"
#include "lib/Driver/Compile.h"
#include "lib/Driver/Pipeline.h"
#include "lib/Driver/Problem.h"
#include "lib/Driver/Session.h"

using namespace mlir;
using namespace recur;

// Whether two rules that have the same arguments and outputs agree in float64. Over the prime field functions
// such as exp stand for any function, so rules that are equal by an identity of theirs differ there.
static bool agreeInFloat64(Session &first, Session &second) {
  llvm::StringMap<int64_t> all;
  Problem problems[2];
  problems[0].tokens = 6;
  problems[0].heads = 2;
  for (auto [session, problem] : {std::pair(&first, &problems[0]), std::pair(&second, &problems[1])}) {
    llvm::StringMap<int64_t> sizes;
    for (StringAttr symbol : session->rule().symbols())
      sizes[symbol] = all.try_emplace(symbol, 4 + 2 * all.size()).first->second;
    FailureOr<OwningOpRef<ModuleOp>> module = oracleModule(*session, sizes);
    if (failed(module))
      return false;
    RuleOp rule = *(*module)->getOps<RuleOp>().begin();
    if (session == &first) {
      if (failed(drawProblem(rule, /*seed=*/1, problems[0])))
        return false;
      problems[1] = problems[0];
    }
    if (failed(runOracle(rule, *problem)))
      return false;
  }
  for (auto arrays : {&Problem::outputs, &Problem::states})
    for (const auto &[name, expected] : problems[0].*arrays)
      if (!(relativeError((problems[1].*arrays).at(name), expected) <= 1e-9))
        return false;
  return true;
}

int recur::diffCommand(Session &first) {
  Session second(first.options, first.context);
  const std::vector<std::string> &specs = first.options.specs;
  if (failed(second.load(specs[1])))
    return second.finish();
  if (failed(first.load(specs[0])))
    return first.finish();
  for (Session *session : {&first, &second})
    if (failed(simplifyRule(session->module())))
      return session->finish();
  std::string difference;
  if (sameRule(first.rule(), second.rule(), difference)) {
    llvm::outs() << "same rule\n";
    return first.finish();
  }
  StringRef where = difference;
  bool isValue = where.starts_with("output '") || where.starts_with("final state '");
  if (isValue && agreeInFloat64(first, second))
    llvm::outs()
        << "not decided: the rules agree in float64, but over the prime field, where functions such as "
           "exp stand for any function, they differ: ";
  else
    llvm::outs() << "different rules: ";
  llvm::outs() << difference << "\n";
  first.finish();
  return 1;
}
