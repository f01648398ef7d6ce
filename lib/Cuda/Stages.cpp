#include "lib/Cuda/Stages.h"
#include "lib/Algebra/Passes.h"
#include "lib/Cuda/Cores.h"
#include "lib/Derive/Derive.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static Value strip(Value value) { return stripOrientation(value); }

// Whether a vector is one divided by its norm.
static bool isUnit(Value vector) {
  auto quotient = vector.getDefiningOp<DivOp>();
  auto root = quotient ? strip(quotient.getRhs()).getDefiningOp<SqrtOp>() : SqrtOp();
  Value square = root ? strip(root->getOperand(0)) : Value();
  if (auto sum = square ? square.getDefiningOp<AddOp>() : AddOp())
    for (unsigned i : {0, 1})
      if (auto eps = sum->getOperand(i).getDefiningOp<ConstantOp>(); eps && !eps.getValue().isNegative())
        square = strip(sum->getOperand(1 - i));
  auto reduce = square ? square.getDefiningOp<ReduceOp>() : ReduceOp();
  auto product = reduce ? strip(reduce.getOperand()).getDefiningOp<MulOp>() : MulOp();
  return product && reduce.getKind() == Reduction::Sum && strip(product.getLhs()) == strip(quotient.getLhs()) &&
         strip(product.getRhs()) == strip(quotient.getLhs());
}

namespace {
class Cutter {
public:
  /// The rule may be changed.
  explicit Cutter(RuleOp rule) : rule(rule), body(rule.getBody().front()), cores(rule) {}

  std::optional<Stages> run();

private:
  using Names = SmallVector<std::pair<Value, std::string>>;

  bool isInput(Value value) {
    auto argument = dyn_cast<BlockArgument>(strip(value));
    return argument && rule.getArg(argument.getArgNumber()).getKind() == ArgKind::Input;
  }
  /// Whether a vector comes to a core as it is: an input, or what another core gives.
  bool isGiven(Value value) { return isInput(value) || (cores.entrywiseCoreOf(strip(value)) && !isOwn(value)); }
  bool isOwn(Value value) { return cores.reachOf(value) & core->states; }
  bool isPlainNumber(Value value);
  Value base(Value vector);
  void findDecays();
  void takeLogs(Value decay);
  bool take(Value value);
  bool need(Value value);
  bool needOperands(Operation *op);
  bool needNumber(Value value);
  bool needEntries(Value value);
  bool isForRoles(Value value);
  bool findProducts(Value value);
  bool isProduct(Value value);
  bool findOutputs();
  bool findNeeds();
  Stages makeStages();
  OwningOpRef<ModuleOp> stage(const Names &inputs, const Names &outputs, uint64_t states);

  RuleOp rule;
  Block &body;
  Cores cores;
  Core *core = nullptr;               // the one whose needs are looked for
  llvm::DenseSet<Value> seen;         // looked at by need()
  llvm::SetVector<Value> early;       // functions of the token that become temporaries
  llvm::DenseSet<Value> decays;       // vectors that states decay by
  SmallVector<unsigned> late;         // outputs that no core computes
};
} // namespace

// Whether roles compute a number: functions of numbers, and sums of products of two inputs.
bool Cutter::isPlainNumber(Value value) {
  value = strip(value);
  Operation *op = value.getDefiningOp();
  if (!op)
    return !cores.reachOf(value);
  if (auto sum = dyn_cast<ReduceOp>(op)) {
    auto product = strip(sum.getOperand()).getDefiningOp<MulOp>();
    return sum.getKind() == Reduction::Sum && product && isGiven(product.getLhs()) && isGiven(product.getRhs());
  }
  return isa<ConstantOp>(op) || (isa<ElementwiseOp>(op) && llvm::all_of(op->getOperands(), [&](Value operand) {
                                   return isNumber(operand) && isPlainNumber(operand);
                                 }));
}

// What is left of a vector without factors that are plain numbers or decays.
Value Cutter::base(Value vector) {
  for (vector = strip(vector);;) {
    Operation *op = vector.getDefiningOp();
    if (!isa_and_present<MulOp, DivOp>(op))
      return vector;
    Value lhs = op->getOperand(0), rhs = op->getOperand(1);
    auto isFactor = [&](Value x) { return isNumber(x) ? isPlainNumber(x) : decays.contains(strip(x)); };
    if (isFactor(rhs))
      vector = strip(lhs);
    else if (isa<MulOp>(op) && isFactor(lhs))
      vector = strip(rhs);
    else
      return vector;
  }
}

// A value that another stage gives.
bool Cutter::take(Value value) {
  value = strip(value);
  if (!findProducts(value))
    return false;
  if (!isProduct(value))
    early.insert(value);
  return true;
}

bool Cutter::needNumber(Value value) {
  value = strip(value);
  Operation *op = value.getDefiningOp();
  if (auto sum = dyn_cast_if_present<ReduceOp>(op); sum && isPlainNumber(value)) {
    auto product = strip(sum.getOperand()).getDefiningOp<MulOp>();
    return llvm::all_of(product->getOperands(), [&](Value x) { return isInput(x) || take(x); });
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
bool Cutter::need(Value value) {
  value = strip(value);
  if (!seen.insert(value).second)
    return true;
  if (isNumber(value))
    return needNumber(value);
  Operation *op = value.getDefiningOp();
  if (isMatrix(value)) // products of vectors, perhaps with the identity
    return op && isa<MatmulOp, MulOp, DivOp, AddOp, SubOp, NegOp, IdentityOp, ConstantOp>(op) && needOperands(op);
  // A number that it is times or divided by is handed over beside it, in f32, but for the norm that makes it short.
  Value left = base(value);
  for (Operation *factors; !isInput(left) && !isUnit(left); left = base(left)) {
    factors = left.getDefiningOp();
    if (!isa_and_present<MulOp, DivOp>(factors) || isProduct(left))
      break;
    unsigned number = isNumber(factors->getOperand(1)) ? 1 : 0;
    if (!isNumber(factors->getOperand(number)) || (!number && isa<DivOp>(factors)))
      break;
    if (!needNumber(factors->getOperand(number)))
      return false;
    left = factors->getOperand(1 - number);
  }
  return isInput(left) || take(left);
}

// What states that are vectors need: functions of inputs and params entry by entry.
bool Cutter::needEntries(Value value) {
  value = strip(value);
  if (!seen.insert(value).second)
    return true;
  Operation *op = value.getDefiningOp();
  bool isLeaf = !op && !cores.reachOf(value);
  if (cores.entrywiseCoreOf(value) || (!isLeaf && !isa_and_present<ElementwiseOp, BroadcastOp, ConstantOp>(op)))
    return take(value);
  return isLeaf || llvm::all_of(op->getOperands(), [&](Value operand) { return needEntries(operand); });
}

bool Cutter::needOperands(Operation *op) {
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    if (isOwn(operand))
      return true;
    return core->isVector ? needEntries(operand) : decays.contains(strip(operand)) || need(operand);
  });
}

// Vectors that scale the rows or columns of a state.
void Cutter::findDecays() {
  SmallVector<Value> found;
  for (auto product : body.getOps<MulOp>())
    for (unsigned i : {0, 1})
      if (Value state = product->getOperand(i), factor = product->getOperand(1 - i);
          isMatrix(state) && !isMatrix(factor) && !isNumber(factor))
        if (Core *own = cores.coreOf(state); own && !(cores.reachOf(factor) & own->states))
          found.push_back(strip(factor));
  for (Value decay : found)
    takeLogs(decay);
}

// The logarithm of a value between 0 and 1, as a function that loses no digits where there is one.
static Value logarithm(OpBuilder &b, Location loc, Value value) {
  value = strip(value);
  Operation *op = value.getDefiningOp();
  auto isDecay = [](Value x) {
    RangeAttr range = rangeOf(x);
    return range && range.getLo() >= 0 && range.getHi() <= 1;
  };
  if (auto exp = dyn_cast_if_present<ExpOp>(op))
    return strip(exp.getOperand());
  if (auto sigmoid = dyn_cast_if_present<SigmoidOp>(op))
    return NegOp::create(b, loc, SoftplusOp::create(b, loc, NegOp::create(b, loc, sigmoid.getOperand())));
  if (auto power = dyn_cast_if_present<PowOp>(op); power && isDecay(power.getLhs()))
    return MulOp::create(b, loc, power.getRhs(), logarithm(b, loc, power.getLhs()));
  if (!isDecay(value))
    return {};
  constexpr double least = -1000; // its exponential is 0
  return MaxOp::create(b, loc, LogOp::create(b, loc, value), ConstantOp::create(b, loc, least));
}

// Decays of each key or value are handed over as their logarithms: rounded to half precision, those of long memories keep
// their digits.
void Cutter::takeLogs(Value decay) {
  Operation *op = decay.getDefiningOp();
  if (!decays.insert(decay).second || !op)
    return;
  OpBuilder b(op);
  b.setInsertionPointAfter(op);
  Value log = logarithm(b, rule.getLoc(), decay);
  if (!log || isInput(log))
    return;
  if (!isa<ExpOp>(op)) {
    auto exp = ExpOp::create(b, rule.getLoc(), log);
    decays.insert(exp);
    decay.replaceUsesWithIf(exp, [&](OpOperand &use) {
      return use.getOwner()->getBlock() == &body && exp->isBeforeInBlock(use.getOwner());
    });
  }
  early.insert(log);
}

// Whether the chain of roles computes an output.
bool Cutter::isForRoles(Value value) {
  value = strip(value);
  if (!isOwn(value))
    return isNumber(value) || isInput(base(value));
  Operation *op = value.getDefiningOp();
  if (!op || isNumber(value) || isMatrix(value))
    return false;
  return isa<MatmulOp>(op) ||
         (isa<ElementwiseOp>(op) && llvm::all_of(op->getOperands(), [&](Value x) { return isForRoles(x); }));
}

bool Cutter::isProduct(Value value) {
  return llvm::any_of(cores.cores, [&](const Core &other) { return other.products.contains(value); });
}

// What a value takes from cores, where it is a function of that and the token.
bool Cutter::findProducts(Value value) {
  value = strip(value);
  if (!cores.reachOf(value) || isProduct(value))
    return true;
  if (Core *own = cores.entrywiseCoreOf(value))
    return own->products.insert(value), true;
  Operation *op = value.getDefiningOp();
  if (!op || isMatrix(value))
    return false;
  if (isa<MatmulOp>(op))
    for (unsigned i : {0, 1})
      if (Value matrix = op->getOperand(i); isMatrix(matrix) && cores.reachOf(matrix)) {
        Core *own = cores.coreOf(matrix);
        return own && !(cores.reachOf(op->getOperand(1 - i)) & own->states) && own->products.insert(value);
      }
  return op->getNumRegions() == 0 && llvm::all_of(op->getOperands(), [&](Value x) { return findProducts(x); });
}

// Outputs are those of the last core that they depend on, or of the stage after all.
bool Cutter::findOutputs() {
  for (auto [i, output] : llvm::enumerate(rule.yieldedOutputs())) {
    unsigned level = cores.levelOf(output);
    core = level ? &cores.cores[level - 1] : nullptr;
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

// What cores need of others, and of the token. The last ones first, as they say what earlier ones have to give.
bool Cutter::findNeeds() {
  for (Core &own : llvm::reverse(cores.cores)) {
    core = &own;
    seen.clear();
    for (Operation *op : cores.opsOf(own))
      if (!needOperands(op))
        return false;
    for (auto [i, update] : llvm::enumerate(rule.yieldedStates()))
      if (own.states >> i & 1 && !isOwn(update) && !(own.isVector ? needEntries(update) : need(update)))
        return false;
  }
  return true;
}

// A rule with some values of the rule for outputs, some for inputs as far as they are needed, and some of the states;
// null where others are needed, too.
OwningOpRef<ModuleOp> Cutter::stage(const Names &inputs, const Names &outputs, uint64_t states) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
  IRMapping map;
  auto copy = cast<RuleOp>(b.clone(*rule, map));
  Block &block = copy.getBody().front(), &init = copy.getInit().front();
  SmallVector<Value> yields, inits;
  for (auto [i, update] : llvm::enumerate(copy.yieldedStates()))
    if (states >> i & 1) {
      yields.push_back(update);
      inits.push_back(copy.getInitYield()->getOperand(i));
    }
  SmallVector<Attribute> args(copy.getArgs().begin(), copy.getArgs().end()), names;
  size_t known = args.size();
  for (auto &[value, name] : outputs) {
    yields.push_back(map.lookup(value));
    names.push_back(b.getStringAttr(name));
  }
  copy.getBodyYield()->setOperands(yields);
  copy.getInitYield()->setOperands(inits);
  copy.setOutputsAttr(b.getArrayAttr(names));
  for (auto &[value, name] : inputs) {
    BlockArgument argument = block.addArgument(value.getType(), rule.getLoc());
    map.lookup(value).replaceAllUsesWith(argument);
    args.push_back(ArgAttr::get(b.getContext(), ArgKind::Input, b.getStringAttr(name), rangeOf(value), isUnit(value), 0));
  }
  for (Block *region : {&block, &init})
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(*region)))
      if (isOpTriviallyDead(&op))
        op.erase();
  for (unsigned i = args.size(), state = 64; i-- > 0;) {
    auto arg = cast<ArgAttr>(args[i]);
    bool isState = arg.getKind() == ArgKind::State || arg.getKind() == ArgKind::Stale;
    if (isState) {
      auto all = rule.argumentsOf(ArgKind::State);
      state = llvm::find(all, rule.findArgument(ArgKind::State, arg.getName())) - all.begin();
    }
    if (i >= known ? !block.getArgument(i).use_empty() : !isState || states >> state & 1)
      continue;
    if (!block.getArgument(i).use_empty())
      return {};
    block.eraseArgument(i);
    args.erase(args.begin() + i);
  }
  copy.setArgsAttr(b.getArrayAttr(args));
  return module;
}

Stages Cutter::makeStages() {
  Stages stages;
  Names ofTokens, ofCores; // early values and products that are known so far
  auto name = [&](Value value, Names &names) {
    stages.temporaries.push_back({"recur." + std::to_string(stages.temporaries.size()), matType(value)});
    names.push_back({value, stages.temporaries.back().name});
  };
  auto nameOutputs = [&](ArrayRef<unsigned> which, Names &names) {
    for (unsigned i : which)
      names.push_back({rule.yieldedOutputs()[i], cast<StringAttr>(rule.getOutputs()[i]).str()});
  };
  auto add = [&](const Names &inputs, const Names &outputs, uint64_t states, Stages::Kind kind) {
    stages.stages.push_back({stage(inputs, outputs, states), kind});
  };
  for (unsigned level = 0; level <= cores.cores.size(); ++level) {
    Names outputs;
    for (Value value : early)
      if (cores.levelOf(value) == level)
        name(value, outputs);
    size_t between = outputs.size();
    if (level == cores.cores.size())
      nameOutputs(late, outputs);
    if (!outputs.empty())
      add(ofCores, outputs, 0, Stages::Tokens);
    llvm::append_range(ofTokens, ArrayRef(outputs).take_front(between));
    if (level == cores.cores.size())
      break;
    const Core &own = cores.cores[level];
    Names given(ofTokens), products;
    llvm::append_range(given, ofCores);
    for (Value value : own.products)
      name(value, products);
    outputs.clear();
    nameOutputs(own.outputs, outputs);
    llvm::append_range(outputs, products);
    add(given, outputs, own.states, own.isVector ? Stages::Vectors : Stages::Matrices);
    llvm::append_range(ofCores, products);
  }
  return stages;
}

// The rule that stages are together.
static OwningOpRef<ModuleOp> joinStages(const Stages &stages, RuleOp rule) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  auto whole = cast<RuleOp>(OpBuilder::atBlockEnd(module->getBody()).clone(*rule));
  Operation *yield = whole.getBodyYield();
  OpBuilder b(yield);
  llvm::StringMap<Value> named; // temporaries, then outputs and new states
  for (const Stages::Stage &stage : stages.stages) {
    RuleOp part = stage.rule();
    IRMapping map;
    for (BlockArgument argument : part.getBody().getArguments()) {
      ArgAttr arg = part.getArg(argument);
      Value own = whole.findArgument(arg.getKind(), arg.getName());
      map.map(argument, own ? own : named.lookup(arg.getName()));
    }
    for (Operation &op : part.getBody().front().without_terminator())
      b.clone(op, map);
    for (auto [state, value] : llvm::zip(part.argumentsOf(ArgKind::State), part.yieldedStates()))
      named["new " + part.getArg(state).getName().str()] = map.lookup(value);
    for (auto [name, value] : llvm::zip(part.getOutputs().getAsRange<StringAttr>(), part.yieldedOutputs()))
      named[name] = map.lookup(value);
  }
  SmallVector<Value> values;
  for (BlockArgument state : whole.argumentsOf(ArgKind::State))
    values.push_back(named.lookup("new " + whole.getArg(state).getName().str()));
  for (auto name : whole.getOutputs().getAsRange<StringAttr>())
    values.push_back(named.lookup(name));
  yield->setOperands(values);
  return module;
}

// Whether a stage takes exponentials of functions of a temporary: its digits after the point are theirs before it.
static bool isExponent(StringRef name, const Stages &stages) {
  for (const Stages::Stage &stage : stages.stages) {
    Value argument = stage.rule().findArgument(ArgKind::Input, name);
    if (!argument || stage.kind != Stages::Tokens)
      continue;
    llvm::DenseSet<Value> from{argument};
    for (Operation &op : stage.rule().getBody().front().without_terminator())
      if (llvm::any_of(op.getOperands(), [&](Value operand) { return from.contains(operand); })) {
        if (isa<ExpOp>(op))
          return true;
        from.insert(op.result_begin(), op.result_end());
      }
  }
  return false;
}

std::optional<Stages> Cutter::run() {
  if (llvm::any_of(body, [](Operation &op) { return op.getNumRegions() != 0; }) ||
      rule.argumentsOf(ArgKind::State).empty() || rule.argumentsOf(ArgKind::State).size() > 64)
    return std::nullopt;
  findDecays();
  cores.findReach();
  if (!cores.order() || !findOutputs() || !findNeeds() ||
      (early.empty() && late.empty() && cores.cores.size() == 1))
    return std::nullopt;
  Stages stages = makeStages();
  if (llvm::any_of(stages.stages, [](const Stages::Stage &stage) { return !stage.module; }))
    return std::nullopt;
  OwningOpRef<ModuleOp> whole = joinStages(stages, rule);
  std::string where;
  if (!sameRule(rule, *whole->getOps<RuleOp>().begin(), where)) {
    mlir::emitRemark(rule.getLoc()) << "its stages differ from the rule at " << where;
    return std::nullopt;
  }
  for (const Stages::Stage &stage : stages.stages)
    for (Stages::Temporary &temporary : stages.temporaries) {
      bool isRead = stage.kind == Stages::Matrices && stage.rule().findArgument(ArgKind::Input, temporary.name);
      auto names = stage.rule().getOutputs().getAsRange<StringAttr>();
      auto output = llvm::find_if(names, [&](StringAttr name) { return name == temporary.name; });
      bool isWritten = stage.kind == Stages::Matrices && output != names.end();
      if (isRead)
        temporary.digits = Stages::Temporary::Bf16;
      else if (isWritten && temporary.digits == Stages::Temporary::F32)
        temporary.digits = isExponent(temporary.name, stages) ? Stages::Temporary::F16 : Stages::Temporary::Bf16;
    }
  return stages;
}

std::optional<Stages> cuda::cutIntoStages(RuleOp rule) {
  OwningOpRef<ModuleOp> copy = ModuleOp::create(rule.getLoc());
  return Cutter(cast<RuleOp>(OpBuilder::atBlockEnd(copy->getBody()).clone(*rule))).run();
}
