// The entry points of rules whose states go on entry by entry.
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/Scan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Whether a token is multiplied by a matrix that no thread has room for.
static bool hasLargeProducts(RuleOp bound) {
  constexpr int64_t mostEntries = 1024;
  for (MatmulOp product : bound.getBody().getOps<MatmulOp>())
    for (Value matrix : product->getOperands())
      if (auto param = dyn_cast<BlockArgument>(stripOrientation(matrix));
          param && bound.getArg(param).getKind() == ArgKind::Param &&
          matType(product.getLhs()).numCols() != 1 && matType(param).numElements() > mostEntries)
        return true;
  return false;
}

// Whether what a token reads of a matrix is not for one group of threads.
static bool readsMatrices(RuleOp bound) {
  return llvm::any_of(bound.getBody().getOps<MatmulOp>(),
                      [](MatmulOp product) { return llvm::any_of(product->getOperands(), isMatrix); });
}

Entry cuda::entryOf(StringRef name, ScanTask task) {
  Entry entry;
  entry.name = (name + (task == ScanTask::Whole    ? ""
                        : task == ScanTask::Gather ? "_gather"
                                                   : "_segments"))
                   .str();
  entry.form = Form::Scan;
  entry.packed = true;
  // Of two segments, each of which is walked twice, not much is gained.
  entry.cut = task == ScanTask::Whole ? Entry::Whole : Entry::SeveralSegments;
  entry.continues = task == ScanTask::Gather;
  return entry;
}

// Kernels for states that go on entry by entry.
void KernelBuilder::addScan(RuleOp bound) {
  if (!bound.getBody().getOps<ForOp>().empty()) {
    refused["scan"] = "it has a loop in a token";
    return;
  }
  if (hasLargeProducts(bound)) {
    refused["scan"] = "it multiplies tokens by a large matrix";
    return;
  }
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  auto part = cast<RuleOp>(OpBuilder::atBlockEnd(module->getBody()).clone(*bound));
  std::string why;
  std::optional<ScanForm> form = findScan(part, why);
  refused["scan"] = form ? "its maps take more registers than a thread has" : why;
  // (Of a stage, inputs that others take are not read.)
  auto hasSteps = [](Value input) { return isa<StepsType>(input.getType()) && !input.use_empty(); };
  if (llvm::any_of(part.argumentsOf(ArgKind::Input), hasSteps) || part.argumentsOf(ArgKind::State).empty() ||
      !part.argumentsOf(ArgKind::Stale).empty())
    return;
  IndexClasses classes(part);
  unsigned shared = classes.bestIndependent();
  unsigned index = shared;
  for (BlockArgument state : part.argumentsOf(ArgKind::State)) // of numbers there is none
    index = index ? index : classes.classOf(state, 0);
  std::optional<ScanShape> shape;
  if (form)
    shape = chooseScanShape(part, *form, listTensors(symbolic, part, classes, 0, options), classes, index);
  else if (!readsMatrices(part))
    shape = chooseTurnsShape(part, classes, index);
  if (!shape)
    return;
  if (!form)
    form.emplace();
  int64_t shards = shared ? classes.sizeOf(shared) / shape->slab : 1;
  if (shards > 1)
    takePart(part, classes, shared, shape->slab);
  SmallVector<TensorArgument> tensors =
      listTensors(symbolic, part, classes, shards > 1 ? shared : 0, options);
  if (form->phases.size() == 1 && addScan(part, *form, tensors, *shape, shards, ScanTask::Gather) &&
      !addScan(part, *form, tensors, *shape, shards, ScanTask::Segments))
    entries.pop_back();
  addScan(part, *form, tensors, *shape, shards, ScanTask::Whole);
}

bool KernelBuilder::addScan(RuleOp part, const ScanForm &form, ArrayRef<TensorArgument> tensors,
                            const ScanShape &shape, int64_t shards, ScanTask task) {
  // Of few threads more blocks than two are busy on a processor.
  constexpr int64_t fewest = 2, threadsOfProcessor = 256;
  Entry entry = entryOf(options.symbol + "_scan", task);
  entry.leastTokens = task == ScanTask::Whole ? 2 * shape.run : 8 * shape.tokens();
  entry.shards = shards;
  entry.threads = shape.grid.threads * shape.grid.groups;
  if (task != ScanTask::Whole)
    entry.mostBlocks = std::max(fewest, threadsOfProcessor / entry.threads) * options.chip.processors;
  LLVM::LLVMFuncOp function = makeFunction(entry, tensors.size());
  if (failed(emitScan(function, part, form, tensors, shape, task, options.chip.sharedBytes, entry))) {
    function.erase();
    return false;
  }
  entries.push_back(entry);
  refused.erase("scan");
  return true;
}
