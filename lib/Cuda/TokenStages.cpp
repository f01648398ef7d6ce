// Kernels for the stages of a rule: what comes before and after its states, around roles.
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/Sequential.h"
#include "llvm/ADT/ScopeExit.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

namespace {
enum class Place { Input, Param, Initial, Output, Final };
using TensorName = std::pair<Place, std::string>;
} // namespace

// What the tensors of a rule are, in the order of listTensors.
static SmallVector<TensorName> namesOf(RuleOp rule) {
  SmallVector<TensorName> names;
  auto add = [&](ArgKind kind, Place place) {
    for (BlockArgument argument : rule.argumentsOf(kind))
      names.push_back({place, rule.getArg(argument).getName().str()});
  };
  add(ArgKind::Input, Place::Input);
  add(ArgKind::Param, Place::Param);
  add(ArgKind::State, Place::Initial);
  for (auto name : rule.getOutputs().getAsRange<StringAttr>())
    names.push_back({Place::Output, name.str()});
  add(ArgKind::State, Place::Final);
  return names;
}

// The tensors of a stage by their numbers in the rule, and temporaries.
static SmallVector<int32_t> numberTensors(RuleOp rule, RuleOp stage, const Stages &stages) {
  SmallVector<TensorName> whole = namesOf(rule);
  SmallVector<int32_t> numbers;
  for (const TensorName &name : namesOf(stage)) {
    auto known = llvm::find(whole, name);
    auto temporary = llvm::find_if(stages.temporaries, [&](const auto &t) { return t.name == name.second; });
    numbers.push_back(known != whole.end() ? known - whole.begin() : -1 - (temporary - stages.temporaries.begin()));
  }
  return numbers;
}

static RuleOp ruleOf(OwningOpRef<ModuleOp> &module) { return *module->getOps<RuleOp>().begin(); }

// A kernel for a rule without states: a warp for each segment of few tokens.
std::optional<Entry> KernelBuilder::addTokenStage(RuleOp stage, StringRef name) {
  FailureOr<OwningOpRef<ModuleOp>> prepared = prepareRule(stage);
  if (failed(prepared))
    return std::nullopt;
  RuleOp bound = ruleOf(*prepared);
  SmallVector<TensorArgument> tensors = listTensors(symbolic, bound, IndexClasses(bound), 0, options);
  Grid grid = chooseGrid(bound);
  Placement placement(bound, grid);
  Entry entry;
  entry.name = options.symbol + name.str();
  entry.packed = true;
  entry.threads = grid.threads;
  entry.cut = Entry::FewTokens;
  LLVM::LLVMFuncOp function = makeFunction(entry, tensors.size());
  if (failed(emitSequential(function, bound, tensors, grid, placement, 0, options.chip.sharedBytes, entry)))
    return std::nullopt;
  return entry;
}

// Whether a caller's vectors are bf16, as what stages hand over is.
static bool isInHalves(RuleOp rule, const KernelOptions &options) {
  auto isHalf = [&](StringRef name, Value value) {
    FloatType element = options.elements.lookup(name);
    return entryType(value.getType()).numElements() == 1 || (element && element.isBF16());
  };
  return llvm::all_of(rule.argumentsOf(ArgKind::Input),
                      [&](BlockArgument input) { return isHalf(rule.getArg(input).getName(), input); }) &&
         llvm::all_of(llvm::zip(rule.getOutputs().getAsRange<StringAttr>(), rule.yieldedOutputs()),
                      [&](const auto &output) { return isHalf(std::get<0>(output), std::get<1>(output)); });
}

// Whether there are roles for any number of blocks with stages around them.
bool KernelBuilder::addStages(DeriveFunction derive) {
  constexpr size_t mostTemporaries = 12;
  std::optional<Stages> stages;
  if (options.chip.hasWarpgroups() && isInHalves(rule, options))
    stages = cutIntoStages(rule);
  if (!stages || stages->temporaries.size() > mostTemporaries)
    return false;
  RuleOp whole = rule, core = ruleOf(stages->core);
  llvm::StringMap<FloatType> elements = options.elements;
  for (const Stages::Temporary &temporary : stages->temporaries)
    if (!temporary.isNumber())
      options.elements[temporary.name] = BFloat16Type::get(b.getContext());
  llvm::scope_exit restore([&] {
    rule = whole;
    options.elements = elements;
  });
  rule = core;
  size_t first = entries.size();
  bool isAny = addInRoles(derive);
  SmallVector<Entry> found(entries.begin() + first, entries.end());
  entries.truncate(first);
  if (found.empty())
    return false;
  std::optional<Entry> before, after;
  if (stages->before && !(before = addTokenStage(ruleOf(stages->before), "_before")))
    return false;
  if (stages->after && !(after = addTokenStage(ruleOf(stages->after), "_after")))
    return false;
  auto add = [&](Entry entry, RuleOp stage, bool continues) {
    entry.tensors = numberTensors(whole, stage, *stages);
    entry.continues = continues;
    entries.push_back(entry);
  };
  for (size_t i = 0; i < found.size(); ++i) {
    if (before && (i == 0 || !found[i - 1].continues))
      add(*before, ruleOf(stages->before), true);
    add(found[i], core, found[i].continues || after);
    if (after && !found[i].continues)
      add(*after, ruleOf(stages->after), false);
  }
  for (const Stages::Temporary &temporary : stages->temporaries)
    temporaries.push_back({temporary.isNumber() ? 0 : temporary.type.numElements(), temporary.isNumber() ? 32 : 16});
  return isAny;
}
