// Kernels whose inputs are micro-steps of the rule's: a loop in a token, beside what the token does once, is
// some of its reads and writes.
#include "lib/Algebra/StepsApart.h"
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Derive/ProveRewritten.h"
#include "llvm/ADT/ScopeExit.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool KernelBuilder::addStepsApart(DeriveFunction derive) {
  constexpr size_t most = 16;
  SmallVector<StepOfInput> steps;
  OwningOpRef<ModuleOp> apart = takeStepsApart(rule, most, steps);
  if (!apart)
    return false;
  RuleOp whole = rule, own = *apart->getOps<RuleOp>().begin();
  if (std::string defect = proveStepsApart(whole, own, steps); !defect.empty()) {
    mlir::emitWarning(rule.getLoc()) << "internal error: the rule with micro-steps apart is not the rule: "
                                     << defect;
    return false;
  }
  SmallVector<BlockArgument> inputs = own.argumentsOf(ArgKind::Input);
  size_t given = inputs.size() - steps.size(), first = entries.size();
  size_t tensors = inputs.size() + own.argumentsOf(ArgKind::Param).size() +
                   2 * own.argumentsOf(ArgKind::State).size() + own.getOutputs().size();
  if (tensors > mostTensors)
    return false;
  llvm::StringMap<FloatType> elements = options.elements;
  llvm::StringMap<std::string> reasons = refused;
  llvm::scope_exit restore([&] {
    rule = whole;
    options.elements = elements;
  });
  rule = own;
  for (auto [input, step] : llvm::zip(ArrayRef(inputs).drop_front(given), steps))
    if (auto element = elements.find(own.getArg(inputs[step.input]).getName()); element != elements.end())
      options.elements[own.getArg(input).getName()] = element->second;
  if (!addInRoles(derive) && !addInStages(derive, false)) {
    refused = reasons;
    return false;
  }
  // What the kernels' tensors are of the rule's.
  auto numberOf = [&](int32_t tensor) -> int32_t {
    if (tensor < int32_t(given))
      return tensor;
    if (tensor >= int32_t(inputs.size()))
      return tensor - int32_t(steps.size());
    const StepOfInput &step = steps[tensor - given];
    return step.input + tensorStep * (step.step + 1);
  };
  for (Entry &entry : MutableArrayRef(entries).drop_front(first)) {
    if (entry.tensors.empty())
      llvm::append_range(entry.tensors, llvm::seq<int32_t>(0, tensors));
    for (int32_t &tensor : entry.tensors)
      tensor = numberOf(tensor);
  }
  return true;
}
