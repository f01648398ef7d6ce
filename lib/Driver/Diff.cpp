// Decides whether two specs are the same rule.
#include "lib/Derive/Derive.h"
#include "lib/Driver/Commands.h"
#include "lib/Driver/Pipeline.h"
#include "lib/Driver/Session.h"

using namespace mlir;
using namespace recur;

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
  llvm::outs() << "different rules: " << difference << "\n";
  first.finish();
  return 1;
}
