// The module of a rule: its entry points, best first.
#include "lib/Algebra/RotatedUpdate.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/HeldProducts.h"
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/Sequential.h"
#include "lib/Cuda/StateProducts.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

KernelBuilder::KernelBuilder(RuleOp rule, RuleOp symbolic, const KernelOptions &options, Kernel &kernel)
    : rule(rule), symbolic(symbolic), options(options), entries(kernel.entries),
      temporaries(kernel.temporaries), refused(kernel.refused), module(ModuleOp::create(rule.getLoc())),
      b(rule.getLoc(), rule.getContext()) {
  makeShared("recur_shared", 16);
}

// The block's shared memory under a name.
void KernelBuilder::makeShared(StringRef name, int64_t alignment) {
  b.setInsertionPointToStart(module->getBody());
  LLVM::GlobalOp::create(b, LLVM::LLVMArrayType::get(b.getI8Type(), 0), /*isConstant=*/false,
                         LLVM::Linkage::External, name, Attribute(), alignment, /*addrSpace=*/3);
}

// An entry point with an empty block. Its parameters are the call and, where the kernel copies boxes, their
// descriptors.
LLVM::LLVMFuncOp KernelBuilder::makeFunction(const Entry &entry, size_t tensors) {
  MLIRContext *context = b.getContext();
  b.setInsertionPointToEnd(module->getBody());
  SmallVector<Type> parameters(entry.maps.empty() ? 1 : 2, LLVM::LLVMPointerType::get(context));
  auto type = LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(context), parameters);
  auto function = LLVM::LLVMFuncOp::create(b, entry.name, type);
  function->setAttr(NVVM::NVVMDialect::getKernelFuncAttrName(), b.getUnitAttr());
  function->setAttr(NVVM::NVVMDialect::getMaxntidAttrName(),
                    b.getDenseI32ArrayAttr({int32_t(entry.threads), 1, 1}));
  auto setParameter = [&](unsigned i, int64_t words, int64_t alignment) {
    function.setArgAttr(i, LLVM::LLVMDialect::getByValAttrName(),
                        TypeAttr::get(LLVM::LLVMArrayType::get(b.getI64Type(), words)));
    function.setArgAttr(i, LLVM::LLVMDialect::getAlignAttrName(), b.getI64IntegerAttr(alignment));
    function.setArgAttr(i, NVVM::NVVMDialect::getGridConstantAttrName(), b.getUnitAttr());
  };
  setParameter(0, TensorAccess::TensorsBegin + int64_t(tensors) * TensorAccess::TensorWords, 8);
  if (!entry.maps.empty())
    setParameter(1, entry.maps.size() * 16, 64);
  function.addEntryBlock(b);
  return function;
}

// The largest part of a class such that what a block holds, states or else the outputs of `together` tokens,
// stays within a number of entries, and the part within `most`.
static int64_t chooseSlab(RuleOp rule, const IndexClasses &classes, unsigned index, int64_t together,
                          int64_t most) {
  constexpr int64_t blockEntries = 8192, smallest = 16;
  int64_t size = classes.sizeOf(index), entries = 0;
  for (Value state : rule.argumentsOf(ArgKind::State))
    entries += matType(state).numElements();
  if (rule.argumentsOf(ArgKind::State).empty())
    for (Value output : rule.yieldedOutputs())
      entries += matType(output).numElements() * together;
  int64_t slab = size;
  while ((entries / size * slab > blockEntries || slab > most) && slab % 8 == 0 && slab / 2 >= smallest)
    slab /= 2;
  return slab;
}

TokenPart KernelBuilder::shareOutTokens(RuleOp bound, int64_t together, int64_t mostRows) {
  IndexClasses classes(bound);
  TokenPart part;
  unsigned shared = classes.bestIndependent();
  if (shared) {
    part.slab = chooseSlab(bound, classes, shared, together, mostRows);
    part.shards = classes.sizeOf(shared) / part.slab;
  }
  if (part.shards == 1)
    shared = 0;
  else
    takePart(bound, classes, shared, part.slab);
  part.tensors = listTensors(symbolic, bound, classes, shared, options);
  return part;
}

// A kernel for long sequences, whose warps share out what follows from tokens alone: for any rule, or for
// those alone that multiply by matrices in registers.
bool KernelBuilder::addAhead(RuleOp bound, StringRef name, bool onlyHeld) {
  constexpr int64_t tokensWorthBatch = 64, rowsOfBlock = 32, rowsOfUnits = 64, aWarp = 32;
  OwningOpRef<RuleOp> copy(bound.clone());
  readStateProducts(*copy);
  TokenPart part = shareOutTokens(*copy, /*together=*/1, rowsOfUnits);
  std::optional<Grid> ofUnits = gridOfStateProducts(*copy, part.tensors, options.chip);
  if (!ofUnits) {
    copy = bound.clone();
    part = shareOutTokens(*copy, /*together=*/1, rowsOfBlock);
  }
  std::optional<Grid> held = gridOfHeld(*copy, part.tensors, options.chip);
  Grid grid = held ? *held : ofUnits ? *ofUnits : gridAhead(*copy);
  // Each thread, or the one warp, has all of it to compute.
  if (!held && (onlyHeld || grid.lanes == 1 || grid.threads == aWarp))
    return false;
  Placement placement(*copy, grid);
  Entry entry;
  entry.name = options.symbol + name.str();
  entry.packed = true;
  entry.threads = grid.threads;
  entry.shards = part.shards * grid.blocks;
  entry.leastTokens = tokensWorthBatch;
  LLVM::LLVMFuncOp function = makeFunction(entry, part.tensors.size());
  if (grid.blocks > 1)
    function->setAttr(NVVM::NVVMDialect::getClusterDimAttrName(),
                      b.getDenseI32ArrayAttr({int32_t(grid.blocks), 1, 1}));
  if (failed(emitAhead(function, *copy, part.tensors, grid, placement, part.slab, options.chip.sharedBytes,
                       entry))) {
    function.erase();
    return false;
  }
  function->setAttr(
      NVVM::NVVMDialect::getMinctasmAttrName(),
      b.getI32IntegerAttr(held ? 1 : std::max<int64_t>(1, (ofUnits ? 256 : 384) / grid.threads)));
  entries.push_back(entry);
  return true;
}

LogicalResult KernelBuilder::addSequential(RuleOp bound) {
  // (Beside roles it would never be taken.)
  if (options.everyForm || entries.empty() || entries.front().form != Form::Roles)
    addAhead(bound, "_ahead", /*onlyHeld=*/false);
  auto [tensors, shards, slab] = shareOutTokens(bound, /*together=*/1);
  if (tensors.size() > mostTensors)
    return rule.emitError() << "a rule for a GPU has at most " << mostTensors
                            << " inputs, params, outputs and twice its states, got: " << tensors.size();
  Grid grid = chooseGrid(bound);
  Placement placement(bound, grid);
  for (bool packed : {true, false}) {
    Entry entry;
    entry.name = options.symbol + (packed ? "_packed" : "_strided");
    entry.packed = packed;
    entry.threads = grid.threads;
    entry.shards = shards;
    LLVM::LLVMFuncOp function = makeFunction(entry, tensors.size());
    // Two blocks on a processor, so that while one computes the other's states are on their way. (Where
    // nothing is said ptxas keeps large blocks to 64 registers, and the rest in memory.)
    function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                      b.getI32IntegerAttr(packed && grid.threads == 256 ? 2 : 1));
    if (failed(
            emitSequential(function, bound, tensors, grid, placement, slab, options.chip.sharedBytes, entry)))
      return failure();
    entries.push_back(entry);
  }
  return success();
}

bool KernelBuilder::isWanted(StringRef form) const { return options.form == form || options.form == "auto"; }

// In stages, cut as they cost least.
bool KernelBuilder::addInStages(DeriveFunction derive, bool keepsSums) {
  for (bool keepsDelayed : {true, false})
    for (bool ofColumns : {true, false})
      for (bool withRests : {true, false})
        for (auto functions : {CutOptions::InPlace, CutOptions::Kept, CutOptions::HandedOver}) {
          CutOptions cut{withRests, ofColumns, keepsDelayed};
          cut.rowFunctions = functions;
          cut.keepsSums = keepsSums;
          if (!(keepsDelayed && ofColumns) && addStages(derive, cut))
            return true;
        }
  CutOptions split;
  split.splitsTimes = true;
  if (keepsSums || addStages(derive, split))
    return !keepsSums;
  CutOptions normed, joined;
  normed.takesNorms = true;
  if (refused.lookup("roles") == tooLarge && addStages(derive, normed))
    return true;
  joined.joinsKeys = true;
  return addStages(derive, joined);
}

// In roles whose tiles have a few more keys than 128, where there are such and that goes, or 256.
bool KernelBuilder::addInRoles(DeriveFunction derive) {
  hasFewMore = false;
  if (addInRolesOnce(derive))
    return true;
  takesFewMore = false;
  bool isAdded = hasFewMore && addInRolesOnce(derive);
  takesFewMore = true;
  return isAdded;
}

void KernelBuilder::addChunked(DeriveFunction derive) {
  // A vector that sums keys costs least where the scores are that it is read with.
  auto besideScores = [&] {
    return Cores(rule, /*keepsDelayed=*/false, /*keepsSums=*/true).sums && addInStages(derive, true);
  };
  if (!options.chip.hasWarpgroups())
    refused["roles"] = "the chip has no products of warpgroups";
  else if (int64_t block = blockOf(rule); block && tokensOfChunk % block != 0 && block % tokensOfChunk != 0)
    refused["roles"] = "a state at the start of a block of " + std::to_string(block) +
                       " tokens is read, and a chunk of roles has " + std::to_string(tokensOfChunk);
  // States that do not feed one another are faster one after the other than as two of one chain.
  else if (isWanted("roles") && !besideScores() &&
           !(Cores(rule).cores.size() > 1 && addInStages(derive, false)) && !addInRoles(derive) &&
           !addInStages(derive, false) && !addStepsApart(derive) && hasDearSums) {
    takesDearSums = true;
    addInRoles(derive);
  } else if (options.form == "scan") { // of those in stages; addScan has the others
    addInStages(derive, false);
  }
  if (isWanted("chunk"))
    addPortable(derive);
}

// The largest class that a head's blocks can share out. A vector of the token before, which a rotated rule
// reads before its first token alone, each of them may read; and in roles each may keep one that sums keys.
static unsigned findShared(RuleOp rule, const IndexClasses &classes, bool inRoles) {
  unsigned best = classes.bestIndependent();
  uint64_t common = best ? 0 : delayedWrites(rule);
  if (common && !rotateUpdate(rule, /*inLogs=*/false))
    common = 0;
  if (!best && !common && inRoles)
    common = Cores(rule, /*keepsDelayed=*/false, /*keepsSums=*/true).sums;
  if (!common)
    return best;
  SmallVector<Value> others;
  for (auto [i, state] : llvm::enumerate(rule.argumentsOf(ArgKind::State)))
    if (!(common >> i & 1))
      others.push_back(state);
  for (unsigned dim : {0, 1}) {
    unsigned index = classes.classOf(others.front(), dim);
    auto has = [&](Value state) {
      return classes.classOf(state, 0) == index || classes.classOf(state, 1) == index;
    };
    if (classes.isIndependent(index) && llvm::all_of(others, has) &&
        (!best || classes.sizeOf(index) > classes.sizeOf(best)))
      best = index;
  }
  return best;
}

// The rule for blocks that share out `slab` of the state's independent indices each.
SharedOut KernelBuilder::shareOut(int64_t slab, Rest rest) {
  SharedOut part;
  part.module = ModuleOp::create(rule.getLoc());
  auto partRule = cast<RuleOp>(OpBuilder::atBlockEnd(part.module->getBody()).clone(*rule));
  // States of one size may begin with the same constant, and have no index in common for that.
  for (OpOperand &first : partRule.getInitYield()->getOpOperands())
    if (auto constant = first.get().getDefiningOp<ConstantOp>())
      first.set(OpBuilder(constant).clone(*constant)->getResult(0));
  IndexClasses classes(partRule);
  unsigned shared = findShared(partRule, classes, rest == Rest::Padded);
  // Of a state that nothing reads both dimensions are independent: derived programs take the rows.
  auto states = partRule.argumentsOf(ArgKind::State);
  if (unsigned rows = states.size() == 1 ? classes.classOf(states[0], 0) : 0;
      rest == Rest::Padded && rows && classes.isIndependent(rows))
    shared = rows;
  int64_t size = shared ? classes.sizeOf(shared) : 0;
  // The tiles' size of each other dimension of a state that can grow.
  llvm::MapVector<unsigned, int64_t> tiles;
  for (Value state : partRule.argumentsOf(ArgKind::State))
    for (unsigned dim : {0, 1})
      if (unsigned index = classes.classOf(state, dim);
          rest == Rest::Padded && index != shared && classes.canGrow(index))
        if (std::optional<int64_t> tile = sizeOfTile(classes.sizeOf(index)); tile && *tile <= mostKeys) {
          if (*tile == keysWithVector)
            hasFewMore = true;
          tiles[index] = *tile == keysWithVector && !takesFewMore ? mostKeys : *tile;
        }
  if (llvm::any_of(tiles, [](auto tile) { return tile.second > mostKeysBeside; }))
    slab = std::min(slab, rowsOfSlab);
  part.slab = slab;
  for (int64_t less = slab; shared && rest == Rest::Fewer && less >= 16; less -= 8)
    if (size > slab && size % less == 0) {
      part.slab = less;
      break;
    }
  bool isPadded = rest == Rest::Padded && classes.canGrow(shared) && sizeOfTile(size);
  if (isPadded)
    part.slab = std::min(slab, *sizeOfTile(size));
  part.shards = isPadded || (shared && size % part.slab == 0) ? llvm::divideCeil(size, part.slab) : 1;
  if (part.shards > 1 || isPadded)
    takePart(partRule, classes, shared, part.slab);
  for (auto [index, tile] : tiles)
    takePart(partRule, classes, index, tile);
  if (part.shards == 1)
    shared = 0;
  part.tensors = listTensors(symbolic, partRule, classes, shared, options);
  return part;
}

// The least time that the model has for launches of a shape that begin with an entry, of those that are
// chosen.
static std::optional<double> timeOf(const Kernel &kernel, const Chip &chip, const GpuShape &shape,
                                    llvm::function_ref<bool(const GpuCandidate &)> isChosen) {
  std::optional<double> best;
  for (const GpuCandidate &candidate : listCandidates(kernel, "")) {
    GpuTime time = predict(candidate, shape, GpuModel::of(chip.name));
    if (time.why.empty() && isChosen(candidate))
      best = std::min(best.value_or(time.microseconds), time.microseconds);
  }
  return best;
}

// Whether the kernel that computes ahead takes less than `share` of what a form's other kernels do.
static bool isAheadFaster(const Kernel &kernel, const Entry &ahead, Form form, const Chip &chip,
                          const GpuShape &shape, double share) {
  auto isAhead = [&](const GpuCandidate &candidate) { return candidate.launches.front().name == ahead.name; };
  std::optional<double> own = timeOf(kernel, chip, shape, isAhead);
  std::optional<double> other = timeOf(kernel, chip, shape, [&](const GpuCandidate &candidate) {
    return candidate.form == formName(form) && !isAhead(candidate);
  });
  return own && other && *own < share * *other;
}

// Has tokens in turn be part of the best form, where they are clearly faster: before chunks, whose blocks
// take whole heads, where heads are so few that each of the smaller blocks has a processor; and instead of a
// scan, not in stages, that walks all of a sequence, which is for many heads. Of kernels in turn, and of such
// in stages, the slower ones go.
static void placeAhead(Kernel &kernel, StringRef best, const Chip &chip) {
  constexpr double clearly = 0.7;
  auto *ahead = llvm::find_if(kernel.entries, [](const Entry &entry) {
    return entry.form == Form::Sequential && entry.tensors.empty() && entry.leastTokens > 0;
  });
  if (ahead == kernel.entries.end())
    return;
  if (!isAheadFaster(kernel, *ahead, Form::Sequential, chip, GpuShape(), 1)) {
    kernel.entries.erase(ahead);
    return;
  }
  Entry entry = *ahead;
  llvm::erase_if(kernel.entries,
                 [](const Entry &other) { return other.form == Form::Sequential && !other.tensors.empty(); });
  if (best == formName(Form::Chunk) && entry.shards <= chip.processors) {
    GpuShape few;
    few.heads = chip.processors / entry.shards;
    entry.form = Form::Chunk;
    entry.mostBlocks = chip.processors;
    if (isAheadFaster(kernel, entry, Form::Chunk, chip, few, clearly))
      kernel.entries.insert(kernel.entries.begin(), entry);
  } else if (best == formName(Form::Scan)) {
    entry.form = Form::Scan;
    auto *whole = llvm::find_if(
        kernel.entries, [](const Entry &own) { return own.form == Form::Scan && own.cut == Entry::Whole; });
    if ((whole == kernel.entries.end() || whole->tensors.empty()) &&
        isAheadFaster(kernel, entry, Form::Scan, chip, GpuShape(), clearly))
      kernel.entries.insert(whole, entry);
  }
}

FailureOr<OwningOpRef<ModuleOp>> cuda::emitKernels(RuleOp rule, RuleOp symbolic, DeriveFunction derive,
                                                   const KernelOptions &options, Kernel &kernel) {
  FailureOr<OwningOpRef<ModuleOp>> prepared = prepareRule(rule, options);
  if (failed(prepared))
    return failure();
  rule.getContext()
      ->loadDialect<arith::ArithDialect, LLVM::LLVMDialect, math::MathDialect, NVVM::NVVMDialect,
                    scf::SCFDialect>();
  KernelBuilder builder(rule, symbolic, options, kernel);
  RuleOp bound = *(*prepared)->getOps<RuleOp>().begin();
  bool isProjected = builder.isWanted("scan") && builder.addProjectedScan(bound);
  if (!isProjected)
    builder.addChunked([&](RuleOp part, bool ofMicroStep) {
      chunk::ProgramOp program = derive(part, ofMicroStep);
      if (program)
        mapSharedRows(program);
      return program;
    });
  if (!isProjected && builder.isWanted("scan") && (kernel.entries.empty() || options.everyForm))
    builder.addScan(bound);
  if (auto reason = kernel.refused.find("chunk"); kernel.entries.empty() && reason != kernel.refused.end())
    mlir::emitRemark(rule.getLoc()) << "no chunks of tokens on " << options.chip.name << ": "
                                    << reason->second;
  if (failed(builder.addSequential(bound)))
    return failure();
  OwningOpRef<ModuleOp> module = builder.take();
  for (const Entry &entry : kernel.entries)
    kernel.parts[entry.name] = countParts(module->lookupSymbol(entry.name));
  StringRef best =
      options.form == "auto" ? fastestForm(kernel, options.chip.name) : formName(kernel.entries.front().form);
  // (A form that was asked for is that alone.)
  placeAhead(kernel, options.form == "auto" ? best : StringRef(), options.chip);
  if (options.everyForm)
    return module;
  // Chunks of roles begin where blocks do; those of other sequences are the others' work.
  bool readsStarts = blockOf(rule) != 0;
  for (Entry &entry : kernel.entries)
    entry.atStart = readsStarts && entry.form == Form::Roles;
  auto isLeft = [&](const Entry &entry) {
    bool isForAny = entry.form == Form::Sequential && !entry.leastTokens && entry.tensors.empty();
    return formName(entry.form) == best || isForAny || (entry.form == Form::Chunk && readsStarts);
  };
  // One function may be part of several ways to launch.
  llvm::DenseSet<StringRef> left;
  for (const Entry &entry : kernel.entries)
    if (isLeft(entry))
      left.insert(entry.name);
  for (auto function : llvm::make_early_inc_range(module->getOps<LLVM::LLVMFuncOp>()))
    if (function->hasAttr(NVVM::NVVMDialect::getKernelFuncAttrName()) && !left.contains(function.getName()))
      function.erase();
  llvm::erase_if(kernel.entries, [&](const Entry &entry) { return !isLeft(entry); });
  if (llvm::all_of(kernel.entries, [](const Entry &entry) { return entry.tensors.empty(); }))
    kernel.temporaries.clear();
  return module;
}
