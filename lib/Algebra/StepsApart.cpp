// Micro-steps beside other reads and writes of a token, as Householder products that end with a write are:
// the rule of one micro-step (MicroSteps.cpp) has no place for what the token does once.
#include "lib/Algebra/StepsApart.h"
#include "lib/Algebra/Rewriting.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;

OwningOpRef<ModuleOp> recur::takeStepsApart(RuleOp rule, size_t most, SmallVectorImpl<StepOfInput> &steps) {
  return rewritten(rule, [&](RuleOp copy) {
    if (failed(unrollSteps(copy)))
      return failure();
    SmallVector<BlockArgument> inputs = copy.argumentsOf(ArgKind::Input);
    llvm::DenseMap<std::pair<Value, int64_t>, Value> known;
    for (ExtractOp extract : llvm::make_early_inc_range(copy.getBody().getOps<ExtractOp>())) {
      FloatAttr index;
      auto *input = llvm::find(inputs, extract.getSteps());
      // The entries of a column lie apart in memory, and are no vector of their own.
      if (input == inputs.end() || cast<StepsType>(input->getType()).getColumns() ||
          !matchPattern(extract.getIndex(), m_Constant(&index)))
        return failure();
      int64_t step = int64_t(index.getValueAsDouble()) - 1;
      Value &own = known[{extract.getSteps(), step}];
      if (!own) {
        ArgAttr arg = copy.getArg(*input);
        own = addInput(copy, arg.getName().getValue() + "." + Twine(step + 1), arg.getRange(), arg.getUnit(),
                       extract.getType());
        steps.push_back({unsigned(input - inputs.begin()), step});
      }
      extract.replaceAllUsesWith(own);
      extract.erase();
    }
    eraseDead(copy);
    return success(!steps.empty() && steps.size() <= most);
  });
}
