// Kernels for the stages of a rule: what comes before and after its states, around roles.
#include "lib/Algebra/GrownStates.h"
#include "lib/Algebra/JoinedKeys.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
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
  auto nameOf = [&](BlockArgument argument) { return rule.getArg(argument).getName(); };
  auto add = [&](ArgKind kind, Place place) {
    for (BlockArgument argument : rule.argumentsOf(kind)) {
      std::optional<JoinedNames> joined = joinedNames(rule, nameOf(argument));
      names.push_back({place, (joined ? joined->front() : nameOf(argument)).str()});
    }
  };
  auto addOthers = [&](ArgKind kind, ArrayRef<Place> places) {
    for (BlockArgument argument : rule.argumentsOf(kind))
      if (std::optional<JoinedNames> joined = joinedNames(rule, nameOf(argument)))
        for (StringRef other : joined->names)
          for (Place place : places)
            if (!other.empty() && other.data() != joined->front().data())
              names.push_back({place, other.str()});
  };
  add(ArgKind::Input, Place::Input);
  add(ArgKind::Param, Place::Param);
  add(ArgKind::State, Place::Initial);
  addOthers(ArgKind::Input, {Place::Input});
  addOthers(ArgKind::State, {Place::Initial, Place::Final});
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
    // What a stage makes of an input it reads there.
    auto map = llvm::find_if(stages.maps, [&](const auto &map) { return map.name == name.second; });
    std::string source = map == stages.maps.end() ? name.second : map->source;
    auto known = llvm::find(whole, TensorName(name.first, StringRef(source).split(lastSuffix).first.str()));
    auto temporary = llvm::find_if(stages.temporaries, [&](const auto &t) { return t.name == name.second; });
    numbers.push_back(known != whole.end() ? known - whole.begin()
                                           : -1 - (temporary - stages.temporaries.begin()));
  }
  return numbers;
}

static RuleOp ruleOf(OwningOpRef<ModuleOp> &module) { return *module->getOps<RuleOp>().begin(); }

// A kernel for a rule whose states pass: a warp for each segment of few tokens, or a block that keeps
// matrices for each of many.
std::optional<Entry> KernelBuilder::addTokenStage(RuleOp stage, StringRef name) {
  if (readsLast(stage))
    return std::nullopt;
  FailureOr<OwningOpRef<ModuleOp>> prepared = prepareRule(stage, options);
  if (failed(prepared))
    return std::nullopt;
  RuleOp bound = ruleOf(*prepared);
  SmallVector<TensorArgument> tensors = listTensors(symbolic, bound, IndexClasses(bound), 0, options);
  if (isForTiles(bound, tensors))
    if (std::optional<Entry> entry = addTiles(bound, tensors, name))
      return entry;
  TokenPart part{std::move(tensors)};
  if (bound.argumentsOf(ArgKind::State).empty())
    part = shareOutTokens(bound, tokensTogether);
  Grid grid = chooseGrid(bound, tokensTogether);
  Placement placement(bound, grid);
  Entry entry;
  entry.name = options.symbol + name.str();
  entry.form = Form::Roles;
  entry.packed = true;
  entry.threads = grid.threads;
  entry.shards = part.shards;
  entry.cut = Entry::FewTokens;
  // They wait for memory: rather a few registers in memory than few warps. What states hold takes more.
  int32_t leastWarps = bound.argumentsOf(ArgKind::State).empty() ? 16 : 12;
  int32_t together = std::max<int32_t>(1, leastWarps * 32 / entry.threads);
  constexpr int64_t manyWarps = 48; // of a processor one after the other
  entry.mostBlocks = options.chip.processors * std::max<int64_t>(1, manyWarps * 32 / entry.threads);
  LLVM::LLVMFuncOp function = makeFunction(entry, part.tensors.size());
  if (failed(emitTokens(function, bound, part.tensors, grid, placement, part.slab, options.chip.sharedBytes,
                        entry)))
    return std::nullopt;
  function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(), b.getI32IntegerAttr(together));
  return entry;
}

// The same by products of tiles, where the matrices fit into shared memory, or a token has few numbers.
std::optional<Entry> KernelBuilder::addTiles(RuleOp bound, ArrayRef<TensorArgument> tensors, StringRef name) {
  constexpr int64_t bytesOfBlock = 1024; // beside its own
  Grid grid = gridOfTiles();
  Placement placement(bound, grid);
  Entry entry;
  entry.name = options.symbol + name.str();
  entry.form = Form::Roles;
  entry.packed = true;
  entry.threads = grid.threads * grid.groups;
  entry.cut = Entry::SpreadTokens;
  LLVM::LLVMFuncOp function = makeFunction(entry, tensors.size());
  if (failed(emitTiles(function, bound, tensors, grid, placement, entry)) ||
      entry.sharedBytes > options.chip.sharedBytes) {
    function.erase();
    return std::nullopt;
  }
  // Inputs of other tokens take registers.
  bool isSmall = bound.argumentsOf(ArgKind::State).empty();
  int32_t together = hasFewNumbers(bound)                                                            ? 4
                     : isSmall && 2 * (entry.sharedBytes + bytesOfBlock) <= options.chip.sharedBytes ? 2
                                                                                                     : 1;
  function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(), b.getI32IntegerAttr(together));
  entry.mostBlocks = options.chip.processors * together;
  return entry;
}

// What a caller's vectors are, bf16 or f16, and so what stages hand over; null where they differ.
static FloatType halvesOf(RuleOp rule, const KernelOptions &options) {
  llvm::SetVector<FloatType> found;
  auto add = [&](StringRef name, Value value) {
    if (entryType(value.getType()).numElements() > 1)
      found.insert(options.elements.lookup(name));
  };
  for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
    add(rule.getArg(input).getName(), input);
  for (auto [name, output] : llvm::zip(rule.getOutputs().getAsRange<StringAttr>(), rule.yieldedOutputs()))
    add(name, output);
  FloatType half = found.size() == 1 ? found[0] : FloatType();
  return half && half.getWidth() == 16 ? half : FloatType();
}

// The launches of a stage with states, best first: groups of entries that continue one another.
SmallVector<SmallVector<Entry>> KernelBuilder::addCore(const Stages::Stage &core, DeriveFunction derive,
                                                       bool &inRoles) {
  RuleOp whole = rule;
  rule = core.rule();
  llvm::scope_exit restore([&] { rule = whole; });
  size_t first = entries.size();
  auto isAny = [&] { return entries.size() > first; };
  if (core.kind == Stages::Matrices) {
    bool hadDearSums = std::exchange(takesDearSums, true);
    inRoles = addInRoles(derive);
    takesDearSums = hadDearSums;
    if (!inRoles) {
      eraseCode(ArrayRef(entries).drop_front(first));
      entries.truncate(first);
    }
  }
  // No other form knows of joined states, or of what comes later.
  if (!inRoles && (core.rule()->hasAttr(joinedKeysAttr) || readsLast(core.rule())))
    return {};
  if (!isAny())
    if (FailureOr<OwningOpRef<ModuleOp>> prepared = prepareRule(rule, options); succeeded(prepared)) {
      addScan(ruleOf(*prepared));
      if (!isAny() && core.kind == Stages::Vectors)
        addAhead(ruleOf(*prepared), "_held", /*onlyHeld=*/true);
    }
  if (!isAny())
    addPortable(derive);
  SmallVector<SmallVector<Entry>> groups;
  bool continues = false;
  for (const Entry &entry : ArrayRef(entries).drop_front(first)) {
    if (!continues)
      groups.emplace_back();
    groups.back().push_back(entry);
    continues = entry.continues;
  }
  entries.truncate(first);
  return groups;
}

// The rows of what holds several vectors; 0 for one.
static int64_t rowsOf(const Stages::Temporary &temporary) {
  MatType type = temporary.type;
  return type.numRows() != 1 && type.numCols() != 1 ? type.numRows() : 0;
}

// Forgets the code of entry points, of which some may be there twice.
void KernelBuilder::eraseCode(ArrayRef<Entry> unwanted) {
  for (const Entry &entry : unwanted)
    if (Operation *function = module->lookupSymbol(entry.name))
      function->erase();
}

// Stages of tokens whose matrices shared memory has no room for together become several, each with some of
// the outputs.
static void splitByMatrices(Stages &stages, int64_t sharedBytes) {
  std::vector<Stages::Stage> all;
  auto bytesOf = [](const llvm::SetVector<Value> &matrices) {
    int64_t bytes = 0;
    for (Value matrix : matrices)
      bytes += 2 * matType(matrix).numElements();
    return bytes;
  };
  for (Stages::Stage &stage : stages.stages) {
    RuleOp whole = stage.rule();
    std::vector<SmallVector<unsigned>> groups(1);
    llvm::SetVector<Value> together;
    for (auto [i, output] : llvm::enumerate(whole.yieldedOutputs())) {
      llvm::SetVector<Operation *> ops;
      BackwardSliceOptions options;
      options.inclusive = true;
      (void)getBackwardSlice(output, &ops, options);
      llvm::SetVector<Value> own;
      for (Operation *op : ops)
        for (Value operand : op->getOperands())
          if (isa<BlockArgument>(operand) && isa<MatType>(operand.getType()) && isMatrix(operand))
            own.insert(operand);
      llvm::SetVector<Value> more(together);
      more.insert_range(own);
      if (!groups.back().empty() && bytesOf(more) > sharedBytes) {
        groups.emplace_back();
        more = own;
      }
      groups.back().push_back(i);
      together = more;
    }
    if (stage.kind != Stages::Tokens || groups.size() == 1 || !whole.argumentsOf(ArgKind::State).empty()) {
      all.push_back(std::move(stage));
      continue;
    }
    for (ArrayRef<unsigned> group : groups) {
      OwningOpRef<ModuleOp> module = stage.module->clone();
      RuleOp part = ruleOf(module);
      SmallVector<Value> outputs;
      SmallVector<Attribute> names;
      for (unsigned i : group) {
        outputs.push_back(part.yieldedOutputs()[i]);
        names.push_back(part.getOutputs()[i]);
      }
      part.getBodyYield()->setOperands(outputs);
      part.setOutputsAttr(ArrayAttr::get(part.getContext(), names));
      eraseDead(part);
      all.push_back({std::move(module), Stages::Tokens});
    }
  }
  stages.stages.clear();
  for (Stages::Stage &stage : all)
    stages.stages.push_back(std::move(stage));
}

static bool hasRests(RuleOp rule) {
  return llvm::any_of(rule.getOutputs().getAsRange<StringAttr>(),
                      [](StringAttr name) { return name.getValue().ends_with(restSuffix); });
}

// The most heads that a stage's launches are for.
static double mostHeads(ArrayRef<Entry> group) {
  double most = std::numeric_limits<double>::infinity();
  for (const Entry &entry : group)
    if (entry.mostBlocks && !entry.takesMore && entry.cut != Entry::Spread && entry.cut != Entry::FewTokens &&
        entry.cut != Entry::SpreadTokens)
      most = std::min(most, std::floor(entry.mostBlocks * (entry.forFew ? 0.625 : 1) / entry.shards));
  return most;
}

// Which launches of each stage, of groups best first, go together. Forms for few heads stand first, and the
// last ones take any number. For as many heads as a launch of some stage is for, each has its first one.
static SmallVector<SmallVector<size_t>> combine(ArrayRef<SmallVector<SmallVector<Entry>>> launches) {
  size_t forms = 1;
  for (const auto &own : launches)
    forms = std::max(forms, own.size());
  auto headsOf = [&](ArrayRef<size_t> choice) {
    double most = std::numeric_limits<double>::infinity();
    for (auto [own, which] : llvm::zip(launches, choice))
      most = std::min(most, mostHeads(own[which]));
    return most;
  };
  SmallVector<SmallVector<size_t>> choices(forms);
  for (size_t form = 0; form < forms; ++form)
    for (const auto &own : launches)
      choices[form].push_back(std::min(form, own.size() - 1));
  for (const auto &own : launches)
    for (const auto &group : own) {
      if (group.size() > 1)
        continue;
      double heads = mostHeads(group);
      SmallVector<size_t> choice;
      for (const auto &other : launches) {
        auto *first = llvm::find_if(other, [&](const auto &x) { return mostHeads(x) >= heads; });
        choice.push_back(std::min<size_t>(first - other.begin(), other.size() - 1));
      }
      if (!llvm::is_contained(choices, choice))
        choices.insert(llvm::find_if(choices, [&](const auto &x) { return headsOf(x) >= heads; }), choice);
    }
  return choices;
}

// Whether there are kernels in stages, that of a matrix in roles among them, or those of vectors alone.
bool KernelBuilder::addStages(DeriveFunction derive, CutOptions cut) {
  constexpr size_t mostTemporaries = 12, mostEntries = 22; // two that take token by token follow
  wantsDigits &= !cut.withRests;
  std::optional<Stages> stages;
  FloatType half = halvesOf(rule, options);
  cut.withAllRests = half && half.isF16();
  if (options.chip.hasWarpgroups() && half)
    stages = cutIntoStages(rule, cut);
  if (!stages || stages->temporaries.size() > mostTemporaries)
    return false;
  splitByMatrices(*stages, options.chip.sharedBytes * 3 / 4); // and tokens a fourth
  llvm::StringMap<FloatType> elements = options.elements;
  std::string symbol = options.symbol;
  llvm::scope_exit restore([&] {
    options.elements = elements;
    options.symbol = symbol;
    maps.clear();
  });
  for (const Stages::Map &map : stages->maps) {
    options.elements[map.name] = half;
    maps[map.name] = *RowMap::of(map.rule().yieldedOutputs()[0]);
  }
  for (Stages::Temporary &temporary : stages->temporaries)
    temporary.isWide |= wantsDigits && temporary.isExponent;
  for (const Stages::Temporary &temporary : stages->temporaries)
    if (!temporary.isWide && !temporary.isNumber() && !temporary.areNumbers)
      options.elements[temporary.name] = temporary.isInParts ? b.getBF16Type() : half;
  for (const Stages::Stage &stage : stages->stages)
    for (BlockArgument input : stage.rule().argumentsOf(ArgKind::Input))
      if (auto [source, suffix] = stage.rule().getArg(input).getName().getValue().split(lastSuffix);
          suffix.data())
        options.elements[(source + lastSuffix).str()] = options.elements.lookup(source);
  auto isCore = [](const Stages::Stage &stage) { return stage.kind != Stages::Tokens; };
  bool isSingle = llvm::count_if(stages->stages, isCore) == 1, anyInRoles = false, areVectors = true;
  Form form = Form::Scan;
  size_t number = 0;
  std::vector<SmallVector<SmallVector<Entry>>> launches;
  for (const Stages::Stage &stage : stages->stages) {
    SmallVector<SmallVector<Entry>> own;
    bool isFirst = launches.empty(), isLast = launches.size() + 1 == stages->stages.size(), inRoles = false;
    if (isCore(stage)) {
      options.symbol = symbol + (isSingle ? "" : "_core" + std::to_string(number++));
      own = addCore(stage, derive, inRoles);
      anyInRoles |= inRoles;
      areVectors &= stage.kind == Stages::Vectors && !own.empty() && own.front().front().form != Form::Chunk;
      if (!own.empty() && own.front().front().form == Form::Sequential)
        form = Form::Sequential;
      // Roles alone know of rests, of functions of rows, of joined states, and of states that another one has
      // to be the same as; and two states for one cost less in roles alone.
      bool needsRests = hasRests(stage.rule());
      bool isSplit = (cut.splitsTimes || cut.joinsKeys) && stage.kind == Stages::Matrices;
      bool takesMaps = llvm::any_of(stages->maps, [&](const Stages::Map &map) {
        return stage.rule().findArgument(ArgKind::Input, map.name) != nullptr;
      });
      bool isKept = cut.rowFunctions == CutOptions::Kept && stage.kind == Stages::Matrices;
      if (!inRoles && (needsRests || isSplit || takesMaps || isKept || stage.rule()->hasAttr(followedAttr))) {
        wantsDigits |= needsRests;
        for (const auto &group : own)
          eraseCode(group);
        own.clear();
      }
    } else {
      options.symbol = symbol;
      std::string name = isFirst ? "_before" : isLast ? "_after" : "_between" + std::to_string(number);
      if (module->lookupSymbol(symbol + name))
        name += "_" + std::to_string(launches.size());
      if (std::optional<Entry> entry = addTokenStage(stage.rule(), name))
        own.push_back({*entry});
    }
    launches.push_back(own);
    if (own.empty())
      break;
  }
  if (anyInRoles)
    form = Form::Roles;
  if (launches.back().empty() || !(anyInRoles || areVectors) || !isWanted(formName(form))) {
    for (const auto &own : launches)
      for (const auto &group : own)
        eraseCode(group);
    return false;
  }
  SmallVector<SmallVector<size_t>> choices = combine(launches);
  size_t following = 0;
  auto each = [&](ArrayRef<size_t> choice, auto body) {
    for (auto [own, which, stage] : llvm::zip(launches, choice, stages->stages))
      for (const Entry &entry : own[which])
        body(entry, stage);
  };
  for (ArrayRef<size_t> choice : choices)
    each(choice, [&](const Entry &, const Stages::Stage &) { ++following; });
  for (const auto &choice : choices) {
    SmallVector<Entry> group;
    each(choice, [&](Entry entry, const Stages::Stage &stage) {
      entry.tensors = numberTensors(rule, stage.rule(), *stages);
      entry.continues = true;
      entry.form = form; // whatever else stands beside them
      group.push_back(entry);
    });
    group.back().continues = false;
    if (&choice == &choices.back() || entries.size() + following <= mostEntries)
      llvm::append_range(entries, group);
    following -= group.size();
  }
  for (const Stages::Temporary &temporary : stages->temporaries)
    temporaries.push_back({rowsOf(temporary),
                           temporary.isNumber() ? 0
                           : rowsOf(temporary)  ? temporary.type.numCols()
                                                : temporary.type.numElements(),
                           temporary.isNumber() || temporary.isWide ? 32 : 16});
  return true;
}
