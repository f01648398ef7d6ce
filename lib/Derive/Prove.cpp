// Derivations tested exactly, on random inputs in F_p.
#include "lib/Algebra/BlockStates.h"
#include "lib/Derive/Derive.h"
#include "lib/Derive/ProofRuns.h"

using namespace mlir;
using namespace recur;

// The states that a program takes to be symmetric: those of inverses.
static SmallVector<bool> symmetricStates(chunk::ProgramOp program) {
  SmallVector<BlockArgument> states = program.argumentsOf(ArgKind::State);
  SmallVector<bool> symmetric(states.size(), false);
  program.getBody().walk([&](chunk::LdlOp op) {
    auto found = llvm::find(states, op.getState());
    if (found != states.end())
      symmetric[found - states.begin()] = true;
  });
  return symmetric;
}

std::string recur::prove(RuleOp rule, chunk::ProgramOp program, unsigned rounds) {
  OwningOpRef<RuleOp> smallRule(rule.clone());
  OwningOpRef<chunk::ProgramOp> smallProgram(program.clone());
  Shrinker shrinker(program.getLengthAttr());
  shrinker.shrink(*smallRule);
  shrinker.shrink(*smallProgram);
  constexpr int64_t tokens = 12;
  SmallVector<bool> symmetric = symmetricStates(program);
  // Chunks of several blocks, or several of one: those begin where the position is a multiple.
  bool hasStarts = program.getStarts().has_value();
  bool holds = !program.getBody().getOps<chunk::HeldOp>().empty();
  auto compare = [&](uint64_t seed) -> std::string {
    Call<Fp> call = randomCall(*smallRule, tokens, seed, symmetric), expected;
    // With and without a ragged end, one chunk, one token.
    SmallVector<int64_t> sizes{4, 5, 12, 1}, sizesOfStarts{10, 5, 15};
    for (int64_t size : hasStarts ? sizesOfStarts : sizes) {
      if (expected.tokens == 0 || program.getBlock() || holds) {
        int64_t block = !hasStarts || holds ? size : 5;
        if (holds)
          size = 5;
        setBlocks(*smallRule, block);
        if (hasStarts)
          smallProgram->setStarts(block);
        expected = call;
        if (failed(runRule(*smallRule, expected)))
          return "the rule cannot be run in F_p";
      }
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
  auto run = [&](Call<Fp> &call) {
    call.states.resize(after->argumentsOf(ArgKind::State).size());
    return runRule(*after, call);
  };
  return compareRuns(*before, /*tokens=*/7, run, runSequence<Fp>);
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
