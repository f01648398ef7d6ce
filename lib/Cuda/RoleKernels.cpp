// The entry points in warp roles of a rule: for many heads and for few, in one launch or in two.
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/RolePrograms.h"
#include "lib/Derive/Derive.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

FailureOr<RolePlan> KernelBuilder::planOf(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors,
                                          bool statesOnly) {
  FailureOr<RolePlan> plan = RolePlan::make(program, tensors, statesOnly);
  if (succeeded(plan) && (failed(plan->takeMaps(maps)) || !plan->takesKeys()))
    return failure();
  return plan;
}

// The kernel in roles, where the chip has what it takes and the plan knows the program.
bool KernelBuilder::addRoles(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors, int64_t shards,
                             StringRef name, int64_t mostBlocks, Phase phase) {
  FailureOr<RolePlan> plan = planOf(program, tensors, phase == Phase::Gather);
  if (failed(plan))
    return false;
  // Of more blocks than processors no two segments of a sequence need to go side by side.
  if (phase == Phase::Early && !mostBlocks)
    addRoles(program, tensors, shards, "_early", options.chip.processors, phase);
  bool passes = !mostBlocks && (phase == Phase::Whole || phase == Phase::Early);
  if (passes)
    phase = Phase::Passed;
  // Where a system makes the scores dear, the blocks of a head compute them for one another.
  constexpr int64_t largestTeam = 2;
  RoleForm form;
  form.phase = phase;
  form.team = plan->system && shards % largestTeam == 0 ? largestTeam : 1;
  Entry entry;
  entry.name = options.symbol + name.str();
  entry.mostBlocks = mostBlocks;
  if (passes) {
    entry.mostBlocks = options.chip.processors;
    entry.takesMore = true;
  }
  bool isCut = phase == Phase::Gather || phase == Phase::Segments;
  entry.leastTokens = isCut ? 8 * tokensOfChunk : tokensWorthChunk;
  entry.cut = isCut                    ? Entry::Segments
              : phase == Phase::Early  ? Entry::AnySegments
              : phase == Phase::Passed ? Entry::PassedSegments
                                       : Entry::Whole;
  entry.continues = phase == Phase::Gather;
  entry.shards = shards;
  // Large parts of the state leave a team's scores no registers, and many keys no room for its chunks.
  if (form.team > 1 && addRoles(*plan, entry, form))
    return true;
  form.team = 1;
  return addRoles(*plan, entry, form);
}

// One kernel; the ring gets as many places as go.
bool KernelBuilder::addRoles(const RolePlan &plan, Entry entry, RoleForm form) {
  entry.form = Form::Roles;
  entry.packed = true;
  entry.threads = RoleEmitter::countThreads(plan, form);
  entry.maps = mappedTensors(plan, form);
  if (!module->lookupSymbol(tilesSymbol))
    makeShared(tilesSymbol, 1024);
  for (; form.stages > 0; --form.stages) {
    LLVM::LLVMFuncOp function = makeFunction(entry, plan.tensors.size());
    // Told of one block, the assembler knows in every case how many registers there are to share out; but
    // with a system it then spills some. It knows anyway where each thread's part of them is a whole number.
    constexpr int64_t registers = 65536;
    if (!plan.system || form.team > 1 || form.phase == Phase::Prepare || form.phase == Phase::Chain ||
        registers % entry.threads != 0)
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
      refused["roles"] = emitter.fits() ? "a step of the chain has no code" : tooLarge;
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
  refused["roles"] = tooLarge;
  return false;
}

// Walkers and the chain in one launch, a head a block or, with half of it each, a team of two.
std::optional<Entry> KernelBuilder::addBeside(const RolePlan &plan, int64_t shards, int64_t team) {
  if (team > 1 ? !plan.canShareWalk() || shards % team : !plan.canWalkBeside())
    return std::nullopt;
  // One warpgroup that has all of a head's rows has no registers for those of gates, too.
  auto isOfRows = [&](BlockArgument input) { return plan.isSlab(input) && plan.isForChain(input); };
  if (team == 1 && plan.independent > rowsOfSlab &&
      llvm::count_if(copiedInputs(plan, Phase::Passed), isOfRows) > 1)
    return std::nullopt;
  RoleForm form;
  form.walksBeside = true;
  form.team = team;
  form.phase = Phase::Passed;
  Entry entry;
  entry.name = options.symbol + (team > 1 ? "_teams" : "_beside");
  entry.leastTokens = tokensWorthChunk;
  entry.cut = Entry::PassedSegments;
  entry.mostBlocks = options.chip.processors;
  // Of few keys it is the chain that is waited for, and the two of a team take longer than one of a whole
  // head.
  entry.takesMore = team == 1 || plan.keys > rowsOfSlab;
  entry.shards = shards;
  if (!addRoles(plan, entry, form))
    return std::nullopt;
  return entries.pop_back_val();
}

// A mild decay of each key as what rows are scaled by, in one launch, half of a head a block of a team. Each
// block scales its own chunks' rows for both or, where there is no room for that and it may, all rows.
std::optional<Entry> KernelBuilder::addScaled(const RolePlan &plan, int64_t shards, bool mayRepeat) {
  RoleForm form;
  form.team = 2;
  form.phase = Phase::Passed;
  form.sharesScaled = true;
  Entry entry;
  entry.name = options.symbol + "_scaled";
  entry.leastTokens = tokensWorthChunk;
  entry.cut = Entry::PassedSegments;
  entry.mostBlocks = options.chip.processors;
  entry.takesMore = true;
  entry.shards = shards;
  if (shards % form.team)
    return std::nullopt;
  if (!addRoles(plan, entry, form)) {
    form.sharesScaled = false;
    if (!mayRepeat || !addRoles(plan, entry, form))
      return std::nullopt;
  }
  return entries.pop_back_val();
}

// What does not depend on the state by a launch of its own, over all chunks side by side, and the chain by
// the next: a head's rows go to two blocks where that leaves no processor idle. Or both in one launch, where
// heads are many and a block has room, or one of a team of two, whose kernel is given.
bool KernelBuilder::addPrepared(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors, int64_t shards,
                                std::optional<Entry> ofTeams) {
  FailureOr<RolePlan> plan = planOf(program, tensors);
  if (failed(plan))
    return false;
  size_t first = entries.size();
  auto giveUp = [&] {
    if (ofTeams)
      entries.push_back(*ofTeams);
    eraseCode(ArrayRef(entries).drop_front(first));
    entries.truncate(first);
    return false;
  };
  SmallVector<RowSlot> handedOver;
  RoleForm form;
  form.phase = Phase::Chain;
  form.handedOver = &handedOver;
  Entry chain;
  chain.leastTokens = tokensWorthChunk;
  size_t numbers = 0, chains = 0;
  for (int64_t parts : {2, 1}) {
    bool isCut = parts > 1 && (shards > 1 || plan->rowSums);
    if (parts > plan->independent / rowsOfSlab || isCut || (ofTeams && chains))
      continue;
    form.parts = parts;
    // Smaller blocks would begin several on one processor, on the first that are free.
    chain.overlaps = parts == 1 && plan->independent > rowsOfSlab;
    chain.name = options.symbol + (parts > 1 ? "_halves" : "_roles");
    chain.mostBlocks = parts > 1 ? options.chip.processors : 0;
    // Few heads leave processors idle, too: segments go side by side, where decays forget.
    form.forgets = parts > 1 && plan->forgettingOfKeys() != RolePlan::Forgetting::Never;
    chain.cut = form.forgets ? Entry::SegmentsOrWhole : Entry::Whole;
    chain.shards = parts * shards;
    // All find the same records.
    if (!addRoles(*plan, chain, form) || (chains && handedOver.size() != numbers))
      return giveUp();
    ++chains;
    numbers = handedOver.size();
  }
  // One launch takes as long for one head as for all processors, two take longer for more. They are as fast
  // at so many heads, or more where who walks the channels makes tables, too.
  std::optional<Entry> ofHeads;
  if (!ofTeams || !ofTeams->takesMore)
    ofHeads = addBeside(*plan, shards, /*team=*/1);
  entries.back().forFew = ofTeams && entries.back().cut == Entry::SegmentsOrWhole;
  if ((ofTeams || ofHeads) && !entries.back().forFew)
    entries.back().mostBlocks = options.chip.processors * (plan->leavesTimeForTables() ? 5 : 6) / 8;
  form.phase = Phase::Prepare;
  form.forgets = false;
  form.parts = 1;
  Entry prepare;
  prepare.name = options.symbol + "_prepare";
  prepare.leastTokens = tokensWorthChunk;
  prepare.cut = Entry::Spread;
  prepare.continues = true;
  prepare.mostBlocks = options.chip.processors;
  if (!addRoles(*plan, prepare, form))
    return giveUp();
  prepare = entries.pop_back_val();
  for (size_t i = 0; i < chains; ++i)
    entries.insert(entries.begin() + first + 2 * i, prepare);
  for (const std::optional<Entry> &beside : {ofTeams, ofHeads})
    if (beside)
      entries.push_back(*beside);
  return true;
}

// Where heads are few and what a segment of a sequence makes of the state is its product with a number and a
// sum, segments go side by side. Says how the kernel after that may take sequences.
Phase KernelBuilder::addSegments(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors, int64_t shards) {
  FailureOr<RolePlan> plan = planOf(program, tensors, /*statesOnly=*/true);
  if (failed(plan) || plan->states > 1 || plan->held() || plan->independent != rowsOfSlab ||
      failed(planOf(program, tensors)))
    return Phase::Whole;
  if (!plan->stateScale())
    return plan->forgetting().empty() ? Phase::Whole : Phase::Early;
  addRoles(program, tensors, shards, "_gather", options.chip.processors, Phase::Gather);
  if (!addRoles(program, tensors, shards, "_segments", options.chip.processors, Phase::Segments) &&
      !entries.empty() && entries.back().continues)
    entries.pop_back();
  return Phase::Whole;
}

// Whether there are roles for any number of blocks. Two rows a token cost less than four products.
bool KernelBuilder::addInRolesOnce(DeriveFunction derive) {
  constexpr std::pair<RowKind, bool> tries[] = {{RowKind::MicroStep, false}, {RowKind::Column, false},
                                                {RowKind::Token, false},     {RowKind::Read, false},
                                                {RowKind::Token, true},      {RowKind::Read, true},
                                                {RowKind::Reads, false},     {RowKind::MicroStep, true},
                                                {RowKind::Column, true},     {RowKind::Reads, true}};
  SmallVector<RowKind> withMany;
  for (auto [rows, manyProducts] : tries) {
    size_t before = entries.size();
    if (addInRoles(derive, rows, manyProducts, withMany)) {
      refused.erase("roles");
      return true;
    }
    if (areStacked(rows)) {
      eraseCode(ArrayRef(entries).drop_front(before));
      entries.truncate(before);
    }
  }
  if (!addAbreast(derive))
    return false;
  refused.erase("roles");
  return true;
}

// The same of two states that each key couples. A block's registers hold 64 rows of both, 128 of few keys.
bool KernelBuilder::addAbreast(DeriveFunction derive) {
  if (rule.argumentsOf(ArgKind::State).size() != 2 || blockOf(rule))
    return false;
  for (int64_t slab : {2 * rowsOfSlab, rowsOfSlab}) {
    SharedOut part = shareOut(slab, Rest::Padded);
    part.rule()->setAttr(channelsAttr, b.getUnitAttr());
    chunk::ProgramOp program = derive(part.rule(), /*ofMicroStep=*/false);
    auto isOfKeys = [](chunk::CascadeOp cascade) { return RolePlan::isOfKeys(cascade); };
    if (!program || llvm::none_of(program.getBody().getOps<chunk::CascadeOp>(), isOfKeys))
      return false;
    writeSums(program);
    if (failed(planOf(program, part.tensors)))
      refused["roles"] = RolePlan::refusal(program, part.tensors);
    else if (addPrepared(program, part.tensors, part.shards))
      return true;
  }
  return false;
}

// The same, for one kind of rows; of plans with many products between tokens, as those of `withMany`, or few.
bool KernelBuilder::addInRoles(DeriveFunction derive, RowKind rows, bool manyProducts,
                               SmallVectorImpl<RowKind> &withMany) {
  if (manyProducts && !llvm::is_contained(withMany, rows))
    return false;
  bool isF16 = false; // whose range is too small
  auto derived = [&](RuleOp rule) { return deriveForRoles(derive, rule, rows, isF16); };
  SharedOut part = shareOut(128, Rest::Padded);
  isF16 = llvm::any_of(part.tensors, [](const TensorArgument &tensor) { return tensor.element.isF16(); });
  chunk::ProgramOp program = derived(part.rule());
  FailureOr<RolePlan> plan = failure();
  if (program)
    plan = planOf(program, part.tensors);
  if (program && failed(plan) && !areStacked(rows))
    refused["roles"] = RolePlan::refusal(program, part.tensors);
  if (succeeded(plan) && plan->hasManyProducts() && !manyProducts)
    withMany.push_back(rows);
  if (failed(plan) || plan->hasManyProducts() != manyProducts)
    return false;
  // Who walks the channels has what functions make of them; for two warps that sum over rows they are dearer
  // than in a kernel before, which makes them once for all that read them.
  if (plan->decay && !takesDearSums && plan->sumsFunctions() && !plan->walkersSum()) {
    hasDearSums = true;
    return false;
  }
  // With a decay of each key scores are dearer than the chain.
  if (plan->decay) {
    std::optional<Entry> ofTeams;
    if (plan->independent > rowsOfSlab && !plan->rowSums) {
      SharedOut halves = shareOut(rowsOfSlab, Rest::Padded);
      chunk::ProgramOp own = derived(halves.rule());
      bool isScaled = own && plan->system && !isF16 && !blockOf(rule) && RolePlan::scaleKeys(own);
      FailureOr<RolePlan> half = own ? planOf(own, halves.tensors) : FailureOr<RolePlan>(failure());
      // What functions make of rows is dearer twice, and again for sums, than in a kernel before.
      bool isDear =
          isScaled && succeeded(half) && !takesDearSums && half->sumsFunctions() && half->references() == 1;
      if (succeeded(half))
        ofTeams = isScaled ? addScaled(*half, halves.shards, /*mayRepeat=*/!isDear)
                           : addBeside(*half, halves.shards, /*team=*/2);
      if (isDear && !ofTeams) {
        hasDearSums = true;
        return false;
      }
      program = derived(part.rule());
    }
    return addPrepared(program, part.tensors, part.shards, ofTeams);
  }
  // A block's registers hold 64 rows of two states.
  if (plan->states > 1) {
    SharedOut halves = shareOut(rowsOfSlab, Rest::Padded);
    program = derived(halves.rule());
    FailureOr<RolePlan> half = failure();
    if (program)
      half = planOf(program, halves.tensors);
    if (failed(half))
      return false;
    Phase phase = half->forgetting().empty() ? Phase::Whole : Phase::Early;
    return addRoles(program, halves.tensors, halves.shards, "_roles", 0, phase);
  }
  Phase phase = Phase::Whole;
  // Beside a system functions of rows are a warpgroup's work, which a block of a whole head has no room for.
  bool takesTeams = mapsInPlace(*plan) && plan->system;
  // Few heads leave processors idle, so two blocks share one. Of many products between tokens a block of a
  // whole head has room for one chunk alone, and teams of two share those out.
  if (plan->independent == rowsOfSlab)
    phase = addSegments(program, part.tensors, part.shards);
  else if (SharedOut halves = shareOut(rowsOfSlab, Rest::Padded); halves.shards % 2 == 0)
    if (chunk::ProgramOp half = derived(halves.rule())) {
      phase = addSegments(half, halves.tensors, halves.shards);
      // (Rows with systems of their own have no teams: of these a block takes a whole head.)
      if ((plan->hasManyProducts() || takesTeams) && plan->ownSystem < 0)
        return addRoles(half, halves.tensors, halves.shards, "_halves", 0, phase);
      addRoles(half, halves.tensors, halves.shards, "_halves", options.chip.processors, phase);
    }
  if (takesTeams && plan->independent > rowsOfSlab)
    return false;
  // Else a block takes as many of the state's independent indices as go: it does what is common to them once.
  program = derived(part.rule());
  return addRoles(program, part.tensors, part.shards, "_roles", 0, phase);
}
