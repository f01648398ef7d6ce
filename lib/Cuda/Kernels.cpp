// The module of a rule: its entry points, best first.
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/GatherEmitter.h"
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/Sequential.h"
#include "lib/Cuda/SolvedEmitter.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/Support/FormatVariadic.h"

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

// The largest part of a class such that a block's states stay within a number of entries.
static int64_t chooseSlab(RuleOp rule, const IndexClasses &classes, unsigned index) {
  constexpr int64_t blockEntries = 8192, smallest = 16;
  int64_t size = classes.sizeOf(index), entries = 0;
  for (Value state : rule.argumentsOf(ArgKind::State))
    entries += matType(state).numElements();
  int64_t slab = size;
  while (entries / size * slab > blockEntries && slab % 8 == 0 && slab / 2 >= smallest)
    slab /= 2;
  return slab;
}

LogicalResult KernelBuilder::addSequential(RuleOp bound) {
  IndexClasses classes(bound);
  unsigned shared = classes.bestIndependent();
  int64_t shards = 1, slab = 0;
  if (shared) {
    slab = chooseSlab(bound, classes, shared);
    shards = classes.sizeOf(shared) / slab;
  }
  if (shards == 1)
    shared = 0;
  else
    takePart(bound, classes, shared, slab);
  SmallVector<TensorArgument> tensors = listTensors(symbolic, bound, classes, shared, options);
  constexpr size_t maxTensors = 62; // as many as fit into a kernel's parameters
  if (tensors.size() > maxTensors)
    return rule.emitError() << "a rule for a GPU has at most " << maxTensors
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
    // Two blocks on a processor, so that while one computes the other's states are on their way.
    if (packed && grid.threads == 256)
      function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(), b.getI32IntegerAttr(2));
    if (failed(
            emitSequential(function, bound, tensors, grid, placement, slab, options.chip.sharedBytes, entry)))
      return failure();
    entries.push_back(entry);
  }
  return success();
}

// Writes inner products in maps as the sums that they are.
static void writeSums(chunk::ProgramOp program) {
  program.getBody().walk([](MatmulOp product) {
    if (!isa<chunk::MapOp>(product->getParentOp()) || !isOne(matType(product).getRows()) ||
        !isOne(matType(product).getCols()))
      return;
    OpBuilder b(product);
    Value row = product.getLhs();
    auto transpose = row.getDefiningOp<TransposeOp>();
    if (!transpose)
      return;
    Value column = transpose.getOperand();
    Value entries = MulOp::create(b, product.getLoc(), column.getType(), column, product.getRhs());
    Value sum = ReduceOp::create(b, product.getLoc(), Reduction::Sum, entries, /*rows=*/true, /*cols=*/false);
    product.replaceAllUsesWith(sum);
    product.erase();
  });
}

// Takes numbers that divide a factor of a vector, entry by entry, out of the product.
static void takeOutNumbers(chunk::ProgramOp program) {
  program.getBody().walk([](MulOp product) {
    if (!isa<chunk::MapOp>(product->getParentOp()))
      return;
    for (unsigned i : {0, 1}) {
      auto quotient = product->getOperand(i).getDefiningOp<DivOp>();
      Value other = product->getOperand(1 - i);
      if (!quotient || !matType(quotient.getRhs()).isScalar() || product.getType().isScalar() ||
          matType(other) != product.getType() || matType(quotient.getLhs()) != product.getType())
        continue;
      OpBuilder b(product);
      Value entries = MulOp::create(b, product.getLoc(), quotient.getLhs(), other);
      product.replaceAllUsesWith(DivOp::create(b, product.getLoc(), entries, quotient.getRhs()).getResult());
      product.erase();
      return;
    }
  });
}

// The kernel in roles, where the chip has what it takes and the plan knows the program.
bool KernelBuilder::addRoles(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors, int64_t shards,
                             StringRef name, int64_t mostBlocks, Phase phase) {
  FailureOr<RolePlan> plan = RolePlan::make(program, tensors, phase == Phase::Gather);
  if (failed(plan))
    return false;
  // Where a system makes the scores dear, the blocks of a head compute them for one another.
  constexpr int64_t largestTeam = 2;
  RoleForm form;
  form.phase = phase;
  form.team = plan->system && shards == largestTeam ? shards : 1;
  Entry entry;
  entry.name = options.symbol + name.str();
  entry.mostBlocks = mostBlocks;
  if (phase == Phase::Early && !mostBlocks) {
    entry.mostBlocks = options.chip.processors;
    entry.takesMore = true;
  }
  bool isCut = phase == Phase::Gather || phase == Phase::Segments;
  entry.leastTokens = isCut ? 8 * tokensOfChunk : tokensWorthChunk;
  entry.cut = isCut ? Entry::Segments : phase == Phase::Early ? Entry::AnySegments : Entry::Whole;
  entry.continues = phase == Phase::Gather;
  entry.shards = shards;
  return addRoles(*plan, entry, form);
}

// One kernel; the ring gets as many places as go.
bool KernelBuilder::addRoles(const RolePlan &plan, Entry entry, RoleForm form) {
  entry.form = Form::Roles;
  entry.packed = true;
  entry.threads = RoleEmitter::countThreads(plan, form);
  entry.maps = mappedTensors(plan, form.phase);
  if (!module->lookupSymbol(tilesSymbol))
    makeShared(tilesSymbol, 1024);
  for (; form.stages > 0; --form.stages) {
    LLVM::LLVMFuncOp function = makeFunction(entry, plan.tensors.size());
    // Told of one block, the assembler knows in every case how many registers there are to share out; but
    // with a system it then spills some.
    if (!plan.system || form.team > 1 || form.phase == Phase::Prepare || form.phase == Phase::Chain)
      function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(), b.getI32IntegerAttr(1));
    if (form.team > 1)
      function->setAttr(NVVM::NVVMDialect::getClusterDimAttrName(),
                        b.getDenseI32ArrayAttr({int32_t(form.team), 1, 1}));
    b.setInsertionPointToStart(&function.getBody().front());
    Grid grid{entry.threads, 8};
    Threads threads(b, grid);
    threads.sharedLimit = options.chip.sharedBytes;
    Value shared = LLVM::AddressOfOp::create(b, module->lookupSymbol<LLVM::GlobalOp>(tilesSymbol));
    threads.begin(shared, shared);
    Entry made = entry;
    RoleEmitter emitter(threads, plan, function.getArgument(0), function.getArgument(1), shared, made, form);
    if (failed(emitter.emit())) {
      function.erase();
      refused["roles"] = "a step of the chain has no code";
      return false;
    }
    if (made.sharedBytes > options.chip.sharedBytes) {
      function.erase();
      continue;
    }
    LLVM::ReturnOp::create(b, ValueRange());
    entries.push_back(made);
    return true;
  }
  refused["roles"] = "one chunk does not fit into shared memory";
  return false;
}

// What does not depend on the state by a launch of its own, over all chunks side by side, and the chain by
// the next. A head's rows go to two blocks where that leaves no processor idle.
bool KernelBuilder::addPrepared(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors, int64_t shards) {
  FailureOr<RolePlan> plan = RolePlan::make(program, tensors);
  if (failed(plan))
    return false;
  size_t first = entries.size();
  SmallVector<RowSlot> handedOver;
  RoleForm form;
  form.phase = Phase::Chain;
  form.handedOver = &handedOver;
  Entry chain;
  chain.leastTokens = tokensWorthChunk;
  size_t numbers = 0;
  for (int64_t parts : {2, 1}) {
    if (parts > plan->independent / rowsOfSlab || (parts > 1 && shards > 1))
      continue;
    form.parts = parts;
    chain.name = options.symbol + (parts > 1 ? "_halves" : "_roles");
    chain.mostBlocks = parts > 1 ? options.chip.processors : 0;
    // Few heads leave processors idle, too: segments go side by side, where decays forget.
    form.forgets = parts > 1 && plan->forgettingOfKeys() != RolePlan::Forgetting::Never;
    chain.cut = form.forgets ? Entry::SegmentsOrWhole : Entry::Whole;
    chain.shards = parts * shards;
    bool isFirst = entries.size() == first;
    // All find the same records.
    if (!addRoles(*plan, chain, form) || (!isFirst && handedOver.size() != numbers)) {
      entries.truncate(first);
      return false;
    }
    numbers = handedOver.size();
  }
  form.phase = Phase::Prepare;
  form.forgets = false;
  form.parts = 1;
  Entry prepare;
  prepare.name = options.symbol + "_prepare";
  prepare.leastTokens = tokensWorthChunk;
  prepare.cut = Entry::Spread;
  prepare.continues = true;
  prepare.mostBlocks = options.chip.processors;
  if (!addRoles(*plan, prepare, form)) {
    entries.truncate(first);
    return false;
  }
  prepare = entries.pop_back_val();
  for (size_t i = first; i < entries.size(); i += 2)
    entries.insert(entries.begin() + i, prepare);
  return true;
}

// Where heads are few and what a segment of a sequence makes of the state is its product with a number and a
// sum, segments go side by side. Says how the kernel after that may take sequences.
Phase KernelBuilder::addSegments(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors, int64_t shards) {
  FailureOr<RolePlan> plan = RolePlan::make(program, tensors, /*statesOnly=*/true);
  if (failed(plan) || plan->states > 1 || plan->independent != rowsOfSlab ||
      failed(RolePlan::make(program, tensors)))
    return Phase::Whole;
  if (!plan->stateScale())
    return plan->forgetting().empty() ? Phase::Whole : Phase::Early;
  addRoles(program, tensors, shards, "_gather", options.chip.processors, Phase::Gather);
  if (!addRoles(program, tensors, shards, "_segments", options.chip.processors, Phase::Segments) &&
      !entries.empty() && entries.back().continues)
    entries.pop_back();
  return Phase::Whole;
}

bool KernelBuilder::isWanted(StringRef form) const { return options.form == form || options.form == "auto"; }

void KernelBuilder::addChunked(DeriveFunction derive) {
  auto inStages = [&] {
    return addStages(derive, /*withRests=*/true) || addStages(derive, /*withRests=*/false);
  };
  if (!options.chip.hasWarpgroups())
    refused["roles"] = "the chip has no products of warpgroups";
  // States that do not feed one another are faster one after the other than as two of one chain.
  else if (isWanted("roles") && !(Cores(rule).cores.size() > 1 && inStages()) && !addInRoles(derive))
    inStages();
  if (isWanted("chunk"))
    addPortable(derive);
}

// The rule for blocks that share out `slab` of the state's independent indices each, or, `fewer`, where the
// size is no multiple of that, fewer in packets of eight.
SharedOut KernelBuilder::shareOut(int64_t slab, bool fewer) {
  SharedOut part;
  part.module = ModuleOp::create(rule.getLoc());
  auto partRule = cast<RuleOp>(OpBuilder::atBlockEnd(part.module->getBody()).clone(*rule));
  IndexClasses classes(partRule);
  unsigned shared = classes.bestIndependent();
  int64_t size = shared ? classes.sizeOf(shared) : 0;
  part.slab = slab;
  for (int64_t less = slab; shared && fewer && less >= 16; less -= 8)
    if (size > slab && size % less == 0) {
      part.slab = less;
      break;
    }
  part.shards = shared && size % part.slab == 0 ? size / part.slab : 1;
  if (part.shards == 1)
    shared = 0;
  else
    takePart(partRule, classes, shared, part.slab);
  part.tensors = listTensors(symbolic, partRule, classes, shared, options);
  return part;
}

// Whether there are roles for any number of blocks.
bool KernelBuilder::addInRoles(DeriveFunction derive) {
  return addInRoles(derive, /*ofMicroStep=*/true) || addInRoles(derive, /*ofMicroStep=*/false);
}

// The same, for micro-steps as tokens of their own, or for tokens.
bool KernelBuilder::addInRoles(DeriveFunction derive, bool ofMicroStep) {
  auto derived = [&](RuleOp rule) {
    chunk::ProgramOp program = derive(rule, ofMicroStep);
    if (program) {
      writeSums(program);
      takeOutNumbers(program);
      RolePlan::findMasks(program);
      if (rule->hasAttr(magnifiedAttr))
        program->setAttr(magnifiedAttr, b.getUnitAttr());
    }
    return program;
  };
  SharedOut part = shareOut(128, /*fewer=*/true);
  chunk::ProgramOp program = derived(part.rule());
  FailureOr<RolePlan> plan = failure();
  if (program)
    plan = RolePlan::make(program, part.tensors);
  if (program && failed(plan))
    refused["roles"] = RolePlan::refusal(program, part.tensors);
  if (failed(plan))
    return false;
  // With a decay of each key scores are dearer than the chain.
  if (plan->decay)
    return addPrepared(program, part.tensors, part.shards);
  // A block's registers hold 64 rows of two states.
  if (plan->states > 1) {
    SharedOut halves = shareOut(rowsOfSlab, /*fewer=*/false);
    program = derived(halves.rule());
    return program && addRoles(program, halves.tensors, halves.shards, "_roles", 0);
  }
  Phase phase = Phase::Whole;
  // Few heads leave processors idle, so two blocks share one. Of many products between tokens a block of a
  // whole head has room for one chunk alone, and teams of two share those out.
  if (SharedOut halves = shareOut(64, /*fewer=*/false); halves.shards == 2)
    if (chunk::ProgramOp half = derived(halves.rule())) {
      phase = addSegments(half, halves.tensors, halves.shards);
      if (plan->hasManyProducts())
        return addRoles(half, halves.tensors, halves.shards, "_halves", 0, phase);
      addRoles(half, halves.tensors, halves.shards, "_halves", options.chip.processors, phase);
    }
  // Else a block takes as many of the state's independent indices as go: it does what is common to them once.
  program = derived(part.rule());
  if (part.shards == 1 && phase == Phase::Whole)
    phase = addSegments(program, part.tensors, part.shards);
  return addRoles(program, part.tensors, part.shards, "_roles", 0, phase);
}

// Whether a program's outputs take iterations, beside which its states cost next to nothing.
static bool iterates(chunk::ProgramOp program) {
  auto found = [](chunk::ConjugateGradientsOp) { return WalkResult::interrupt(); };
  return program.getBody().walk(found).wasInterrupted();
}

// The same program without outputs, beside it.
static chunk::ProgramOp statesOf(chunk::ProgramOp program) {
  OpBuilder b(program);
  auto states = cast<chunk::ProgramOp>(b.clone(*program));
  Operation *yield = states.getBody().front().getTerminator();
  yield->setOperands(yield->getOperands().take_front(states.argumentsOf(ArgKind::State).size()));
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(states.getBody().front())))
    if (op.use_empty() && &op != yield)
      op.erase();
  return states;
}

// The kernel for all chips, with chunks as long as fit into shared memory. Where outputs take long, one for
// the states first, so that those of all chunks are made side by side.
void KernelBuilder::addPortable(DeriveFunction derive) {
  SharedOut part = shareOut(128, /*fewer=*/true);
  chunk::ProgramOp program = derive(part.rule(), /*ofMicroStep=*/false);
  if (!program)
    return;
  ArrayRef<TensorArgument> tensors = part.tensors;
  if (std::optional<std::string> reason = ChunkEmitter::refusal(program, tensors)) {
    refused["chunk"] = *reason;
    return;
  }
  auto solved = options.chip.hasWarpgroups() ? SolvedPlan::find(program, tensors) : std::nullopt;
  if (solved && !module->lookupSymbol(tilesSymbol))
    makeShared(tilesSymbol, 1024);
  for (int64_t tokens : {64, 32}) {
    ChunkShape shape{tokens, ChunkEmitter::countWarps(program),
                     ChunkEmitter::findPrecision(program, tensors)};
    auto add = [&](chunk::ProgramOp program, ChunkTask task) {
      Entry entry;
      entry.name = options.symbol + (task == ChunkTask::States ? "_states" : "_chunked");
      entry.form = Form::Chunk;
      entry.packed = true;
      entry.leastTokens = tokensWorthChunk;
      entry.shards = part.shards;
      entry.continues = task == ChunkTask::States;
      if (task == ChunkTask::Outputs) {
        entry.cut = Entry::Spread;
        entry.mostBlocks = options.chip.processors * (solved ? 2 : 1);
      }
      LLVM::LLVMFuncOp function = makeFunction(entry, tensors.size());
      refused.erase("chunk");
      bool isSolved = solved && task == ChunkTask::Outputs;
      auto images = solved ? solved->images() : SmallVector<unsigned>();
      SmallVector<GatheredState> gathered;
      if (!isSolved && part.shards == 1)
        gathered = findGathered(program, images, tensors);
      if (isSolved)
        function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(), b.getI32IntegerAttr(2));
      if (auto reason = isSolved ? emitSolved(function, program, tensors, *solved, part.slab, entry)
                        : !gathered.empty()
                            ? emitGathered(function, program, tensors, gathered, entry)
                            : emitChunked(function, program, tensors, shape, part.slab, task, entry, images))
        refused["chunk"] = *reason;
      else if (entry.sharedBytes > options.chip.sharedBytes)
        refused["chunk"] = llvm::formatv("a chunk takes {0} bytes of shared memory, and there are {1}",
                                         entry.sharedBytes, options.chip.sharedBytes);
      if (refused.contains("chunk")) {
        function.erase();
        return false;
      }
      function->setAttr(NVVM::NVVMDialect::getMaxntidAttrName(),
                        b.getDenseI32ArrayAttr({int32_t(entry.threads), 1, 1}));
      entries.push_back(entry);
      return true;
    };
    auto addApart = [&] {
      size_t before = entries.size();
      chunk::ProgramOp states = statesOf(program);
      bool areApart = add(states, ChunkTask::States) && add(program, ChunkTask::Outputs);
      states.erase();
      if (!areApart) {
        eraseCode(ArrayRef(entries).drop_front(before));
        entries.truncate(before);
      }
      return areApart;
    };
    if (solved && addApart())
      return;
    solved.reset();
    if (iterates(program) && addApart())
      return;
    if (add(program, ChunkTask::All))
      return;
  }
}

FailureOr<OwningOpRef<ModuleOp>> cuda::emitKernels(RuleOp rule, RuleOp symbolic, DeriveFunction derive,
                                                   const KernelOptions &options, Kernel &kernel) {
  FailureOr<OwningOpRef<ModuleOp>> prepared = prepareRule(rule);
  if (failed(prepared))
    return failure();
  rule.getContext()
      ->loadDialect<arith::ArithDialect, LLVM::LLVMDialect, math::MathDialect, NVVM::NVVMDialect,
                    scf::SCFDialect>();
  KernelBuilder builder(rule, symbolic, options, kernel);
  RuleOp bound = *(*prepared)->getOps<RuleOp>().begin();
  builder.addChunked(derive);
  if (builder.isWanted("scan") && (kernel.entries.empty() || options.everyForm))
    builder.addScan(bound);
  if (auto reason = kernel.refused.find("chunk"); kernel.entries.empty() && reason != kernel.refused.end())
    mlir::emitRemark(rule.getLoc()) << "no chunks of tokens on " << options.chip.name << ": "
                                    << reason->second;
  if (failed(builder.addSequential(bound)))
    return failure();
  OwningOpRef<ModuleOp> module = builder.take();
  for (const Entry &entry : kernel.entries)
    kernel.parts[entry.name] = countParts(module->lookupSymbol(entry.name));
  if (options.everyForm)
    return module;
  StringRef best = fastestForm(kernel, options.chip.name);
  llvm::erase_if(kernel.entries, [&](const Entry &entry) {
    bool isLeft = formName(entry.form) == best || entry.form == Form::Sequential;
    // One function may be part of several ways to launch.
    if (Operation *function = module->lookupSymbol(entry.name); function && !isLeft)
      function->erase();
    return !isLeft;
  });
  if (llvm::all_of(kernel.entries, [](const Entry &entry) { return entry.tensors.empty(); }))
    kernel.temporaries.clear();
  return module;
}
