// The entry points of states that go on entry by entry between products with params.
#include "lib/Algebra/Rewriting.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/ProjectedScan.h"
#include "lib/Derive/Derive.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/ADT/ScopeExit.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Ends the name of an input that is another one once more.
static constexpr llvm::StringLiteral wholeSuffix = ".whole";

// Has products with params read copies of inputs that are read entry by entry, too: a block may have all
// entries of the one and a part of the other.
static void readApart(RuleOp rule) {
  auto isSummed = [](OpOperand &use) { return isProduct(use.getOwner()); };
  for (BlockArgument input : rule.argumentsOf(ArgKind::Input)) {
    if (llvm::all_of(input.getUses(), isSummed) || llvm::none_of(input.getUses(), isSummed))
      continue;
    ArgAttr arg = rule.getArg(input);
    BlockArgument whole = addInput(rule, arg.getName().getValue() + wholeSuffix, arg.getRange(),
                                   arg.getUnit(), input.getType());
    input.replaceUsesWithIf(whole, isSummed);
  }
}

// Multiplies inputs with params as they are, and what that gives by the numbers that they were times or
// divided by: such products need not wait for a norm.
static bool scaleProducts(RuleOp rule) {
  bool any = false;
  SmallVector<MatmulOp> products;
  for (auto op : rule.getBody().getOps<MatmulOp>())
    if (isDense(op))
      products.push_back(op);
  for (MatmulOp op : products) {
    OpOperand &vector = op->getOpOperand(isMatrix(op.getRhs()) ? 0 : 1);
    SmallVector<Operation *> factors;
    Value base = vector.get();
    auto numberOf = [](Operation *factor) { return isNumber(factor->getOperand(1)) ? 1 : 0; };
    while (Operation *factor = base.getDefiningOp()) {
      bool isScaling = isa<MulOp, DivOp>(factor) && isNumber(factor->getOperand(numberOf(factor)));
      if (!isScaling || (isa<DivOp>(factor) && numberOf(factor) == 0))
        break;
      factors.push_back(factor);
      base = factor->getOperand(1 - numberOf(factor));
    }
    auto input = dyn_cast<BlockArgument>(base);
    if (factors.empty() || !input || rule.getArg(input).getKind() != ArgKind::Input)
      continue;
    OpBuilder b(op->getContext());
    b.setInsertionPointAfter(op);
    Value result = b.clone(*op)->getResult(0);
    result.getDefiningOp()->setOperand(vector.getOperandNumber(), base);
    for (Operation *factor : llvm::reverse(factors)) {
      Value number = factor->getOperand(numberOf(factor));
      if (isa<DivOp>(factor))
        result = DivOp::create(b, op.getLoc(), result, number);
      else
        result = MulOp::create(b, op.getLoc(), result, number);
    }
    op.getResult().replaceAllUsesWith(result);
    op.erase();
    any = true;
  }
  return any;
}

// The tensors of a rule whose inputs were read apart, by their numbers in the rule.
static SmallVector<int32_t> numberTensors(RuleOp rule, unsigned count) {
  SmallVector<int32_t> numbers;
  auto inputs = rule.argumentsOf(ArgKind::Input);
  for (BlockArgument input : inputs) {
    StringRef name = rule.getArg(input).getName();
    name.consume_back(wholeSuffix);
    numbers.push_back(llvm::find(inputs, rule.findArgument(ArgKind::Input, name)) - inputs.begin());
  }
  int32_t known = llvm::max_element(numbers)[0] + 1;
  while (numbers.size() < count)
    numbers.push_back(known++);
  return numbers;
}

// The largest part of an index, of at most so many entries, that blocks can share it out by; 0: none.
static int64_t partOf(int64_t size, int64_t most) {
  constexpr int64_t step = 16;
  for (int64_t part = most; part > 0; part -= step)
    if (size > most && size % part == 0)
      return part;
  return 0;
}

bool KernelBuilder::addProjectedScan(RuleOp bound) {
  // Fewer rows of matrices fit into shared memory where all of them do not.
  for (int64_t rows = 128; rows >= 32; rows /= 2)
    if (std::optional<bool> added = addProjectedScan(bound, rows))
      return *added;
  return false;
}

std::optional<bool> KernelBuilder::addProjectedScan(RuleOp bound, int64_t mostRows) {
  if (!bound.getBody().getOps<ForOp>().empty())
    return false;
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  auto part = cast<RuleOp>(OpBuilder::atBlockEnd(module->getBody()).clone(*bound));
  std::string why;
  if (scaleProducts(part) && !sameRule(bound, part, why)) {
    mlir::emitRemark(rule.getLoc()) << "its products, scaled afterwards, differ from the rule at " << why;
    return false;
  }
  std::optional<ScanForm> form = findScan(part, why);
  if (!form)
    return false;
  SmallVector<TensorArgument> tensors = listTensors(symbolic, part, IndexClasses(part), 0, options);
  std::optional<ProjectedShape> shape = chooseProjectedShape(part, tensors, options.chip.hasWarpgroups());
  if (!shape)
    return false;
  KernelOptions known = options;
  llvm::scope_exit restore([&] { options = known; });
  int64_t shards = 1;
  SmallVector<int32_t> numbers;
  if (shape->isLarge) {
    unsigned inputs = part.argumentsOf(ArgKind::Input).size();
    readApart(part);
    for (BlockArgument input : part.argumentsOf(ArgKind::Input))
      if (StringRef name = part.getArg(input).getName(), own = name; own.consume_back(wholeSuffix))
        if (auto element = known.elements.find(own); element != known.elements.end())
          options.elements[name] = element->second;
    IndexClasses classes(part);
    unsigned shared = classes.bestIndependent();
    int64_t slab = shared ? partOf(classes.sizeOf(shared), mostRows) : 0;
    if (slab) {
      shards = classes.sizeOf(shared) / slab;
      takePart(part, classes, shared, slab);
    }
    tensors = listTensors(symbolic, part, classes, slab ? shared : 0, options);
    if (part.argumentsOf(ArgKind::Input).size() > inputs)
      numbers = numberTensors(part, tensors.size());
    shape = chooseProjectedShape(part, tensors, options.chip.hasWarpgroups());
    if (!shape)
      return false;
    shape->slab = slab;
  }
  shape->delays = delaysOf(bound);
  if (shape->byWarpgroups && !this->module->lookupSymbol(tilesSymbol))
    makeShared(tilesSymbol, 1024);
  auto add = [&](ScanTask task) {
    Entry entry = entryOf(options.symbol + "_projected", task);
    entry.shards = shards;
    entry.tensors = numbers;
    entry.threads = shape->walkers() + shape->bringers();
    entry.leastTokens = task == ScanTask::Whole ? tokensWorthChunk : 8 * shape->tokens();
    if (task != ScanTask::Whole)
      entry.mostBlocks = options.chip.processors * shape->blocksOfProcessor();
    LLVM::LLVMFuncOp function = makeFunction(entry, tensors.size());
    if (failed(emitProjectedScan(function, part, *form, tensors, *shape, task, options.chip.sharedBytes,
                                 entry))) {
      function.erase();
      return false;
    }
    function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                      b.getI32IntegerAttr(shape->blocksOfProcessor()));
    entries.push_back(entry);
    return true;
  };
  size_t first = entries.size();
  while (!add(ScanTask::Whole))
    if (!shape->shrink())
      return shards > 1 ? std::nullopt : std::optional(false);
  if (phaseOfSegments(*form, shape->delays) && add(ScanTask::Gather) && !add(ScanTask::Segments)) {
    eraseCode(ArrayRef(entries).drop_front(first + 1));
    entries.truncate(first + 1);
  }
  std::rotate(entries.begin() + first, entries.begin() + first + 1, entries.end());
  return true;
}
