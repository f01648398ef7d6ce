#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/GrownStates.h"
#include "lib/Algebra/JoinedKeys.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/RotatedUpdate.h"
#include "lib/Algebra/WidenedVectors.h"
#include "lib/Cuda/StageCutter.h"
#include "lib/Derive/ProveRewritten.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/Dominance.h"
#include "mlir/Transforms/CSE.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static Value strip(Value value) { return stripOrientation(value); }

bool cuda::isDividedByNorm(Value vector) {
  while (auto rope = vector.getDefiningOp<RopeOp>()) // turned, it is as long as it was
    vector = strip(rope.getOperand());
  auto quotient = vector.getDefiningOp<DivOp>();
  auto root = quotient ? strip(quotient.getRhs()).getDefiningOp<SqrtOp>() : SqrtOp();
  Value square = root ? strip(root->getOperand(0)) : Value();
  if (auto sum = square ? square.getDefiningOp<AddOp>() : AddOp())
    for (unsigned i : {0, 1})
      if (auto eps = sum->getOperand(i).getDefiningOp<ConstantOp>(); eps && !eps.getValue().isNegative())
        square = strip(sum->getOperand(1 - i));
  auto reduce = square ? square.getDefiningOp<ReduceOp>() : ReduceOp();
  auto product = reduce ? strip(reduce.getOperand()).getDefiningOp<MulOp>() : MulOp();
  return product && reduce.getKind() == Reduction::Sum &&
         strip(product.getLhs()) == strip(quotient.getLhs()) &&
         strip(product.getRhs()) == strip(quotient.getLhs());
}

// Whether roles compute a number: functions of numbers, and sums of products of two inputs.
bool StageCutter::isPlainNumber(Value value) {
  value = strip(value);
  Operation *op = value.getDefiningOp();
  if (!op)
    return !cores.reachOf(value) && !cores.isPassing(value);
  if (isa<ExtractOp>(op))
    return options.ofColumns && isInput(value);
  if (auto sum = dyn_cast<ReduceOp>(op)) {
    auto product = strip(sum.getOperand()).getDefiningOp<MulOp>();
    return sum.getKind() == Reduction::Sum && product && isGiven(product.getLhs()) &&
           isGiven(product.getRhs());
  }
  return isa<ConstantOp>(op) ||
         (isa<ElementwiseOp>(op) && llvm::all_of(op->getOperands(), [&](Value operand) {
            return isNumber(operand) && isPlainNumber(operand);
          }));
}

// What is left of a vector without factors that are plain numbers or, if wanted, decays, or that is handed
// over with them.
Value StageCutter::base(Value vector, bool withoutDecays) {
  for (vector = strip(vector);;) {
    Operation *op = vector.getDefiningOp();
    if (!isa_and_present<MulOp, DivOp>(op) || written.contains(vector))
      return vector;
    if (options.takesNorms && isDividedByNorm(vector)) {
      hasNorms = true;
      return vector;
    }
    Value lhs = op->getOperand(0), rhs = op->getOperand(1);
    auto isFactor = [&](Value x) {
      return isNumber(x) ? isPlainNumber(x) : withoutDecays && decays.contains(strip(x));
    };
    if (isFactor(rhs))
      vector = strip(lhs);
    else if (isa<MulOp>(op) && isFactor(lhs))
      vector = strip(rhs);
    else
      return vector;
  }
}

// A value that another stage gives.
bool StageCutter::take(Value value) {
  value = strip(value);
  if (!findProducts(value))
    return false;
  if (!isProduct(value))
    early.insert(value);
  taken[core].insert(value);
  return true;
}

bool StageCutter::needNumber(Value value) {
  value = strip(value);
  Operation *op = value.getDefiningOp();
  if (auto sum = dyn_cast_if_present<ReduceOp>(op); sum && isPlainNumber(value)) {
    auto product = strip(sum.getOperand()).getDefiningOp<MulOp>();
    return llvm::all_of(product->getOperands(), [&](Value x) { return isInput(x) || keeps(x) || take(x); });
  }
  if (isPlainNumber(value) && !cores.reachOf(value))
    return true;
  bool isFunction = isa_and_present<ElementwiseOp>(op) &&
                    llvm::all_of(op->getOperands(), [](Value operand) { return isNumber(operand); });
  if (!isFunction || cores.entrywiseCoreOf(value))
    return take(value);
  return llvm::all_of(op->getOperands(), [&](Value operand) { return needNumber(operand); });
}

// What states that are matrices need: numbers, and vectors that are inputs but for numbers.
bool StageCutter::need(Value value) {
  value = strip(value);
  if (!seen.insert(value).second)
    return true;
  if (isNumber(value))
    return needNumber(value);
  Operation *op = value.getDefiningOp();
  if (value == anchor) // it goes to the states' kernel as one of them
    return true;
  if (isMatrix(value)) // products of vectors, perhaps with the identity
    return op && isa<MatmulOp, MulOp, DivOp, AddOp, SubOp, NegOp, IdentityOp, ConstantOp>(op) &&
           needOperands(op);
  return needVector(value, /*withoutDecays=*/true);
}

// Whether a stage of matrices has a function of an input's rows in its own rule.
bool StageCutter::keeps(Value vector) {
  bool own = options.rowFunctions == CutOptions::Kept && cores.cores.size() == 1 && RowMap::of(vector);
  keepsAny |= own;
  return own;
}

// What the states of the core follow from, if that is a function of what is read and no sum of it.
void StageCutter::findFunctions() {
  functions.clear();
  BackwardSliceOptions options;
  options.inclusive = true;
  for (auto [i, update] : llvm::enumerate(rule.yieldedStates()))
    if (core->states >> i & 1)
      (void)getBackwardSlice(update, &functions, options);
  auto reads = [&](Value operand) { return isOwn(operand); };
  auto isFunction = [&](Operation *op) { return isFunctionOf(op, reads); };
  if (core->isVector || llvm::none_of(functions, isFunction))
    functions.clear();
}

// Whether an operand is a vector that a function of what is read has in common for all tokens: roles have
// such where they apply the function, while what is handed over would be rows of each token.
bool StageCutter::isParamOfFunction(Operation *op, Value operand) {
  auto argument = dyn_cast<BlockArgument>(strip(operand));
  return argument && isa<ElementwiseOp>(op) && functions.contains(op) && !isNumber(argument) &&
         !isMatrix(argument) && rule.getArg(argument).getKind() == ArgKind::Param;
}

// A number that a vector is times or divided by is handed over beside it, in f32, but for the norm that makes
// it short, and the sum that it is shares of.
bool StageCutter::needVector(Value value, bool withoutDecays) {
  auto baseOf = [&](Value vector) { return base(vector, withoutDecays); };
  auto isMap = [&](Value vector) { return options.rowFunctions && RowMap::of(vector); };
  Value left = baseOf(value);
  for (Operation *factors; !isInput(left) && !isDividedByNorm(left) && !isMap(left); left = baseOf(left)) {
    factors = left.getDefiningOp();
    if (!isa_and_present<MulOp, DivOp>(factors) || isProduct(left) || written.contains(left) ||
        areShares(left))
      break;
    unsigned number = isNumber(factors->getOperand(1)) ? 1 : 0;
    if (!isNumber(factors->getOperand(number)) || (!number && isa<DivOp>(factors)))
      break;
    if (!needNumber(factors->getOperand(number)))
      return false;
    left = factors->getOperand(1 - number);
  }
  return isInput(left) || keeps(left) || take(left);
}

// What states that are vectors need: functions of inputs and params entry by entry, and sums over such.
bool StageCutter::needEntries(Value value) {
  value = strip(value);
  if (!seen.insert(value).second)
    return true;
  Operation *op = value.getDefiningOp();
  bool isLeaf = !op && !cores.reachOf(value) && !cores.isPassing(value);
  bool isSum = isa_and_present<ReduceOp, MatmulOp>(op) && isNumber(value) &&
               llvm::none_of(op->getOperands(), [](Value operand) { return isMatrix(operand); });
  if (cores.entrywiseCoreOf(value) ||
      (!isLeaf && !isSum && !isa_and_present<ElementwiseOp, BroadcastOp, ConstantOp>(op)))
    return take(value);
  return isLeaf || llvm::all_of(op->getOperands(), [&](Value operand) { return needEntries(operand); });
}

bool StageCutter::needOperands(Operation *op) {
  // What reads a state decays on its way; what is written has decayed.
  bool isWrite =
      isa<MatmulOp>(op) && isMatrix(op->getResult(0)) && llvm::none_of(op->getOperands(), isMatrix);
  return llvm::all_of(sourcesOf(op), [&](Value operand) {
    if (isOwn(operand) || isParamOfFunction(op, operand))
      return true;
    if (core->isVector)
      return needEntries(operand);
    if (isWrite && !isNumber(operand))
      return needVector(strip(operand), /*withoutDecays=*/false);
    return decays.contains(strip(operand)) || need(operand);
  });
}

// An input, perhaps with numbers that it is times or divided by, which are handed over.
static Value withoutNumbers(Value vector, llvm::function_ref<bool(Value)> isNumber = cuda::isNumber) {
  for (;;) {
    vector = strip(vector);
    Operation *op = vector.getDefiningOp();
    bool isScaled = isa_and_present<MulOp, DivOp>(op) && isNumber(op->getOperand(1));
    if (!isScaled && !(isa_and_present<MulOp>(op) && isNumber(op->getOperand(0))))
      return vector;
    vector = op->getOperand(isScaled ? 0 : 1);
  }
}

// The states of others that a core's own are written from.
uint64_t StageCutter::feeding(const Core &own) {
  uint64_t states = 0;
  for (auto [i, update] : llvm::enumerate(rule.yieldedStates()))
    if (own.states >> i & 1)
      states |= cores.reachOf(update) & ~own.states;
  return states;
}

// Whether the chain of roles computes an output.
bool StageCutter::isForRoles(Value value) {
  value = strip(value);
  auto isReadOf = [&](Value x) { return isMatrix(x) && cores.reachOf(x); };
  // What an earlier core reads, too, where none feeds this one: its chain would wait for both.
  if (!isOwn(value)) {
    auto isOfToken = [&](Value x) { return isNumber(x) && !cores.reachOf(x); };
    Value vector = withoutNumbers(value, isOfToken);
    auto read = vector.getDefiningOp<MatmulOp>();
    return isNumber(value) || isInput(withoutNumbers(value)) ||
           (read && !feeding(*core) && !isMatrix(vector) && llvm::any_of(read->getOperands(), isReadOf));
  }
  Operation *op = value.getDefiningOp();
  if (!op || isMatrix(value) || (isNumber(value) && cores.reachOf(value) & core->states & ~cores.sums))
    return false;
  if (isa<MatmulOp, ReduceOp>(op) && isNumber(value)) // of a vector that sums keys
    return true;
  if (isa<MatmulOp>(op)) // of a state, not of a param and what was read
    return llvm::any_of(op->getOperands(), isReadOf);
  return isa<ElementwiseOp>(op) && llvm::all_of(op->getOperands(), [&](Value x) { return isForRoles(x); });
}

bool StageCutter::isProduct(Value value) {
  return llvm::any_of(cores.cores, [&](const Core &other) { return other.products.contains(value); });
}

// The core of which an op is what its matrices have grown by, as it is read along one vector: of what is read
// now and what was read before little may be left. Null where it is none.
Core *StageCutter::coreOfGrowth(Operation *op) {
  if (!isa<SubOp>(op))
    return nullptr;
  auto now = strip(op->getOperand(0)).getDefiningOp<MatmulOp>(),
       before = strip(op->getOperand(1)).getDefiningOp<MatmulOp>();
  for (unsigned i : {0, 1})
    if (now && before && isMatrix(now->getOperand(i)) && isMatrix(before->getOperand(i)) &&
        strip(now->getOperand(1 - i)) == strip(before->getOperand(1 - i)))
      if (Core *own = cores.coreOf(now->getOperand(i));
          own && own == cores.coreOf(before->getOperand(i)) &&
          !(cores.reachOf(now->getOperand(1 - i)) & own->states))
        return own;
  return nullptr;
}

// The core whose matrices are written a vector that is a function of what is read of them: who applies it
// gives what comes out. Null where there is none.
Core *StageCutter::coreOfFunction(Value value) {
  for (Core &own : cores.cores) {
    llvm::SaveAndRestore current(core, &own);
    llvm::SaveAndRestore before(functions, {});
    findFunctions();
    bool isWritten = llvm::any_of(value.getUsers(), [&](Operation *user) {
      return isa<MatmulOp>(user) && isMatrix(user->getResult(0)) && functions.contains(user);
    });
    if (isWritten && !(cores.reachOf(value) & ~own.states))
      return &own;
  }
  return nullptr;
}

// What a value takes from cores, where it is a function of that and the token.
bool StageCutter::findProducts(Value value) {
  value = strip(value);
  if (!cores.reachOf(value) || isProduct(value))
    return true;
  if (written.contains(value))
    for (Core &own : cores.cores)
      if (!(cores.reachOf(value) & ~own.states))
        return own.products.insert(value), true;
  if (Core *own = cores.entrywiseCoreOf(value))
    return own->products.insert(value), true;
  // What is divided by what is read of a vector that sums keys is handed over as a whole.
  Operation *op = value.getDefiningOp();
  auto isOfSum = [&](Value x) { return isNumber(x) && cores.reachOf(x) & cores.sums; };
  if (op && !isNumber(value) && llvm::any_of(op->getOperands(), isOfSum)) {
    Core *own = cores.coreOfSums();
    llvm::SaveAndRestore current(core, own);
    if (isForRoles(value))
      return own->products.insert(value), true;
  }
  if (!op || (isMatrix(value) && !isa<JoinOp>(op)))
    return false;
  if (Core *own = coreOfFunction(value)) {
    written.insert(value);
    own->products.insert(value);
    return true;
  }
  if (Core *own = coreOfGrowth(op)) {
    own->products.insert(value);
    return true;
  }
  if (isa<MatmulOp>(op))
    for (unsigned i : {0, 1})
      if (Value matrix = op->getOperand(i); isMatrix(matrix) && cores.reachOf(matrix)) {
        Core *own = cores.coreOf(matrix);
        return own && !(cores.reachOf(op->getOperand(1 - i)) & own->states) && own->products.insert(value);
      }
  return op->getNumRegions() == 0 &&
         llvm::all_of(op->getOperands(), [&](Value x) { return findProducts(x); });
}

// Outputs are those of the last core that they depend on, or of the stage after all.
bool StageCutter::findOutputs() {
  for (auto [i, output] : llvm::enumerate(rule.yieldedOutputs())) {
    unsigned level = cores.levelOf(output);
    core = level ? &cores.cores[level - 1] : nullptr;
    // Rows of vectors that roles make are theirs, too.
    if (JoinOp join = columnsOf(output);
        join && core && options.ofColumns &&
        llvm::all_of(join.getColumns(), [&](Value x) { return isForRoles(x); })) {
      core->outputs.push_back(i);
      continue;
    }
    if (core && (core->isVector ? cores.entrywiseCoreOf(output) == core : isForRoles(output))) {
      core->outputs.push_back(i);
      continue;
    }
    late.push_back(i);
    if (!findProducts(output))
      return false;
  }
  return true;
}

// What cores need of others, and of the token. The last ones first, as they say what earlier ones have to
// give.
bool StageCutter::findNeeds() {
  uint64_t delayed = options.keepsDelayed ? delayedWrites(rule) : 0;
  for (Core &own : llvm::reverse(cores.cores)) {
    core = &own;
    seen.clear();
    findFunctions();
    for (Operation *op : cores.opsOf(own))
      if (!needOperands(op))
        return false;
    for (auto [i, update] : llvm::enumerate(rule.yieldedStates())) {
      if (!(own.states >> i & 1) || isOwn(update))
        continue;
      // A vector of the token before is what it was given.
      bool isKept = !own.isVector && delayed >> i & 1;
      if (!(isKept ? isInput(update) || take(update) : own.isVector ? needEntries(update) : need(update)))
        return false;
    }
  }
  return true;
}

std::optional<Stages> StageCutter::run() {
  auto isUnknown = [](Operation &op) { return op.getNumRegions() != 0 && !isa<ForOp>(op); };
  if (llvm::any_of(body, isUnknown) || rule.argumentsOf(ArgKind::State).empty() ||
      rule.argumentsOf(ArgKind::State).size() > 64)
    return std::nullopt;
  distributeReads();
  splitSides();
  if ((options.splitsTimes && !whole) || (options.keepsSums && !cores.sums))
    return std::nullopt;
  // States of the same value are written along what one kernel rounds for all.
  if (options.rowFunctions && whole)
    return std::nullopt;
  readBeforeUpdates();
  mergeReads();
  distributeDecays();
  findDecays();
  cores.findReach();
  if (!cores.order() || !takeDecays() || !findOutputs() || !findNeeds() ||
      (early.empty() && late.empty() && cores.cores.size() == 1 && !options.keepsSums))
    return std::nullopt;
  if (options.ofColumns && !bundle())
    return std::nullopt;
  if (options.rowFunctions == CutOptions::InPlace)
    findMaps();
  if ((options.rowFunctions == CutOptions::InPlace && inPlace.empty()) ||
      (options.rowFunctions == CutOptions::Kept && !keepsAny) || (options.takesNorms && !hasNorms))
    return std::nullopt;
  findMagnified();
  // Where what is read of it may nearly cancel, nothing that it sums is rounded before.
  auto isVector = [](Value value) { return !isNumber(value); };
  if (Core *own = cores.coreOfSums(); own && magnified & own->states && llvm::any_of(taken[own], isVector))
    return std::nullopt;
  return makeStages();
}

// A rule that was written anew, held to what it was; null where there is none.
static OwningOpRef<ModuleOp> proved(RuleOp rule, OwningOpRef<ModuleOp> module, StringRef what,
                                    std::string (*prove)(RuleOp, RuleOp)) {
  if (!module)
    return {};
  RuleOp anew = *module->getOps<RuleOp>().begin();
  if (std::string defect = prove(rule, anew); !defect.empty()) {
    mlir::emitWarning(rule.getLoc()) << "internal error: the rule of " << what << ": " << defect;
    return {};
  }
  (void)applyPatternsGreedily(anew, FrozenRewritePatternSet()); // sizes are constants
  IRRewriter rewriter(rule.getContext());
  DominanceInfo dominance;
  eliminateCommonSubExpressions(rewriter, dominance, anew); // what is written to two states is one value
  return module;
}

std::optional<Stages> cuda::cutIntoStages(RuleOp rule, CutOptions options) {
  if (options.keepsDelayed && !delayedWrites(rule))
    return std::nullopt;
  OwningOpRef<ModuleOp> grown =
      proved(rule, growStates(rule), "states that are written to is not the rule", proveSame);
  if (grown)
    rule = *grown->getOps<RuleOp>().begin();
  OwningOpRef<ModuleOp> copy =
      options.joinsKeys ? proved(rule, joinKeys(rule), "joined states is not the rule", proveJoined)
                        : proved(rule, widenVectors(rule), "matrices is not that of vectors", proveWidened);
  if (!copy && options.joinsKeys)
    return std::nullopt;
  if (!copy)
    copy = rewritten(rule, [](RuleOp) { return success(); });
  std::optional<Stages> stages = StageCutter(*copy->getOps<RuleOp>().begin(), options).run();
  auto isRotated = [](const Stages::Stage &stage) {
    return stage.kind != Stages::Matrices || !delayedWrites(stage.rule()) ||
           rotateUpdate(stage.rule(), /*inLogs=*/false);
  };
  if (stages && options.keepsDelayed && !llvm::all_of(stages->stages, isRotated))
    return std::nullopt;
  return stages;
}
