// Why a program has no roles: what a user can change comes first.
#include "lib/Cuda/RolePlan.h"
#include "llvm/ADT/Twine.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Whether what is written back was read of a sum of states: then so are the scores of the system.
static bool readsSum(chunk::ProgramOp program) {
  bool found = false;
  program.getBody().walk([&](chunk::TriSolveOp solve) {
    for (Value block : solve.getBlocks()) {
      SmallVector<Value> work{block};
      while (!work.empty()) {
        Operation *op = work.pop_back_val().getDefiningOp();
        if (!isa_and_present<MulOp, AddOp, SubOp, NegOp>(op))
          continue;
        auto isScores = [](Value value) {
          return RolePlan::isScores(value) && !value.getDefiningOp<chunk::MaskOp>();
        };
        found |= isa<AddOp, SubOp>(op) && llvm::all_of(op->getOperands(), isScores);
        for (Value operand : op->getOperands())
          if (isScores(operand))
            work.push_back(operand);
      }
    }
  });
  return found;
}

std::string RolePlan::refusal(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors) {
  RolePlan plan;
  plan.program = program;
  plan.tensors = tensors;
  (void)plan.check(); // as far as it gets
  for (BlockArgument input : program.argumentsOf(ArgKind::Input)) {
    auto type = dyn_cast<MatType>(input.getType());
    if (!type || isOne(type.getCols()))
      continue;
    std::string name = program.getArg(input.getArgNumber()).getName().str();
    if (!plan.isPacked(plan.tensorOf(input)))
      return "'" + name + "' is no " + (plan.isF16 ? "f16" : "bf16");
    if (int64_t size = type.numCols(); !isSizeOfTile(size))
      return "'" + name + "' has " + std::to_string(size) + " entries, " +
             (size % 8 || size > mostKeys
                  ? "and roles take multiples of 8 up to " + std::to_string(mostKeys)
                  : std::string("64, 128 and 256 fit, and a function knows how many they are"));
  }
  if (plan.keys && !(isSizeOfTile(plan.independent) && isSizeOfTile(plan.keys)))
    return "a block has " + std::to_string(plan.independent) + " independent rows of the state by " +
           std::to_string(plan.keys) + " keys, and roles take multiples of 8 up to 128 rows and " +
           std::to_string(mostKeys) + " keys";
  if (plan.keys > mostKeysBeside && plan.abreast > 1)
    return "there are " + std::to_string(plan.keysInMemory()) +
           " keys, and beside a second state that each key couples roles take up to " +
           std::to_string(mostKeysBeside);
  if (plan.abreast > 1 && plan.isF16)
    return "states that each key couples are multiplied in bf16 alone";
  if (plan.abreast > 1 && swings(program))
    return "what is read and written back of a state comes of another one, key by key, and bf16 is off by "
           "too "
           "much of what swings";
  if (plan.isPadded() && !plan.endsInZeros())
    return "sizes are not 64, 128 or 256, and what follows from zeros past their end is not 0, or columns of "
           "a matrix lie there";
  if (auto states = program.argumentsOf(ArgKind::State); states.size() > 2)
    return "there are " + std::to_string(states.size()) + " coupled states, and a chain holds two";
  if (program.argumentsOf(ArgKind::State).size() == 2 && readsSum(program))
    return "what is read and written back is of a sum of two coupled states, and a chain reads one";
  return "a value of the chunk program is neither a product, nor a number for each token, nor scores between "
         "tokens";
}
