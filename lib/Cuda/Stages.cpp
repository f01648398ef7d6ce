#include "lib/Cuda/Stages.h"
#include "lib/Algebra/Passes.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static bool isNumber(MatType type) { return isOne(type.getRows()) && isOne(type.getCols()); }
static bool isNumber(Value value) { return isNumber(matType(value)); }
static bool isMatrix(Value value) {
  return !isOne(matType(value).getRows()) && !isOne(matType(value).getCols());
}

// The value that another one is but for its orientation.
static Value strip(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<TransposeOp, AssumeOp>(op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

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
  explicit Cutter(RuleOp rule) : rule(rule), body(rule.getBody().front()) {}

  std::optional<Stages> run();

private:
  bool isInput(Value value) {
    auto argument = dyn_cast<BlockArgument>(strip(value));
    return argument && rule.getArg(argument.getArgNumber()).getKind() == ArgKind::Input;
  }
  bool isPlainNumber(Value value);
  Value base(Value vector);
  void findDependent();
  void findDecays();
  void takeLogs(Value decay);
  bool need(Value value);
  bool needOperands(Operation *op);
  void needNumber(Value value);
  bool isForRoles(Value value);
  bool findProducts(Value value);
  using Names = SmallVector<std::pair<Value, std::string>>;
  OwningOpRef<ModuleOp> stage(const Names &inputs, const Names &outputs, bool withStates);

  RuleOp rule;
  Block &body;
  llvm::DenseSet<Value> dependent, seen; // on states; looked at by need()
  llvm::SetVector<Value> early;          // functions of the token that become temporaries
  llvm::DenseSet<Value> logs, decays;    // of these, logarithms of vectors that states decay by; those vectors
  llvm::SetVector<Value> products;       // of states, that outputs follow from in the stage after
};
} // namespace

void Cutter::findDependent() {
  for (ArgKind kind : {ArgKind::State, ArgKind::Stale})
    for (BlockArgument argument : rule.argumentsOf(kind))
      dependent.insert(argument);
  for (Operation &op : body.without_terminator())
    if (llvm::any_of(op.getOperands(), [&](Value operand) { return dependent.contains(operand); }))
      dependent.insert(op.result_begin(), op.result_end());
}

// Whether roles compute a number: functions of numbers, and sums of products of two inputs.
bool Cutter::isPlainNumber(Value value) {
  value = strip(value);
  Operation *op = value.getDefiningOp();
  if (!op)
    return true;
  if (auto sum = dyn_cast<ReduceOp>(op)) {
    auto product = strip(sum.getOperand()).getDefiningOp<MulOp>();
    return sum.getKind() == Reduction::Sum && product && isInput(product.getLhs()) && isInput(product.getRhs());
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

void Cutter::needNumber(Value value) {
  if (isPlainNumber(value))
    return;
  Operation *op = strip(value).getDefiningOp();
  if (!isa<ElementwiseOp>(op) || !llvm::all_of(op->getOperands(), [](Value operand) { return isNumber(operand); })) {
    early.insert(strip(value));
    return;
  }
  for (Value operand : op->getOperands())
    needNumber(operand);
}

// A function of the token that the states need.
bool Cutter::need(Value value) {
  value = strip(value);
  if (!seen.insert(value).second)
    return true;
  if (isNumber(value))
    return needNumber(value), true;
  Operation *op = value.getDefiningOp();
  if (isMatrix(value)) // products of vectors, perhaps with the identity
    return op && isa<MatmulOp, MulOp, DivOp, AddOp, SubOp, NegOp, IdentityOp, ConstantOp>(op) && needOperands(op);
  if (Value left = base(value); !isInput(left))
    early.insert(left);
  return true;
}

bool Cutter::needOperands(Operation *op) {
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    return dependent.contains(operand) || decays.contains(strip(operand)) || need(operand);
  });
}

// Vectors that scale the rows or columns of a state.
void Cutter::findDecays() {
  SmallVector<Value> found;
  for (auto product : body.getOps<MulOp>())
    for (unsigned i : {0, 1})
      if (Value factor = product->getOperand(1 - i);
          dependent.contains(product->getOperand(i)) && isMatrix(product->getOperand(i)) && !isMatrix(factor) &&
          !isNumber(factor) && !dependent.contains(factor))
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
  logs.insert(log);
}

// Whether the chain of roles computes an output.
bool Cutter::isForRoles(Value value) {
  value = strip(value);
  if (!dependent.contains(value))
    return isNumber(value) ? isPlainNumber(value) : isInput(base(value));
  Operation *op = value.getDefiningOp();
  if (!op || isNumber(value) || isMatrix(value))
    return false;
  return isa<MatmulOp>(op) ||
         (isa<ElementwiseOp>(op) && llvm::all_of(op->getOperands(), [&](Value x) { return isForRoles(x); }));
}

// The products with states that an output follows from, as a function of the token.
bool Cutter::findProducts(Value value) {
  value = strip(value);
  if (!dependent.contains(value))
    return true;
  Operation *op = value.getDefiningOp();
  if (!op || isMatrix(value))
    return false;
  if (isa<MatmulOp>(op) && !isNumber(value))
    return products.insert(value), true;
  return op->getNumRegions() == 0 && llvm::all_of(op->getOperands(), [&](Value x) { return findProducts(x); });
}

// A rule with some values of the rule for outputs, and some for inputs.
OwningOpRef<ModuleOp> Cutter::stage(const Names &inputs, const Names &outputs, bool withStates) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
  IRMapping map;
  auto copy = cast<RuleOp>(b.clone(*rule, map));
  Block &block = copy.getBody().front();
  SmallVector<Value> yields;
  if (withStates)
    llvm::append_range(yields, copy.yieldedStates());
  SmallVector<Attribute> args(copy.getArgs().begin(), copy.getArgs().end());
  for (auto &[value, name] : inputs) {
    BlockArgument argument = block.addArgument(value.getType(), rule.getLoc());
    map.lookup(value).replaceAllUsesWith(argument);
    RangeAttr range = logs.contains(value) ? rangeOf(value) : RangeAttr();
    args.push_back(ArgAttr::get(b.getContext(), ArgKind::Input, b.getStringAttr(name), range, isUnit(value), 0));
  }
  SmallVector<Attribute> names;
  for (auto &[value, name] : outputs) {
    yields.push_back(map.lookup(value));
    names.push_back(b.getStringAttr(name));
  }
  copy.getBodyYield()->setOperands(yields);
  copy.setOutputsAttr(b.getArrayAttr(names));
  auto removeDead = [](Block &block) {
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
      if (isOpTriviallyDead(&op))
        op.erase();
  };
  removeDead(block);
  if (!withStates) {
    copy.getInitYield()->setOperands({});
    removeDead(copy.getInit().front());
    for (unsigned i = args.size(); i-- > 0;)
      if (ArgKind kind = cast<ArgAttr>(args[i]).getKind(); kind == ArgKind::State || kind == ArgKind::Stale) {
        block.eraseArgument(i);
        args.erase(args.begin() + i);
      }
  }
  copy.setArgsAttr(b.getArrayAttr(args));
  return module;
}

std::optional<Stages> Cutter::run() {
  if (llvm::any_of(body, [](Operation &op) { return op.getNumRegions() != 0; }))
    return std::nullopt;
  findDependent();
  findDecays();
  Names ofCore, ofAfter;
  for (auto [name, output] : llvm::zip(rule.getOutputs().getAsRange<StringAttr>(), rule.yieldedOutputs())) {
    bool inCore = dependent.contains(output) && isForRoles(output);
    (inCore ? ofCore : ofAfter).push_back({output, name.str()});
    if (!inCore && !findProducts(output))
      return std::nullopt;
  }
  // What the states and the core's outputs are made of.
  llvm::SetVector<Operation *> core;
  SmallVector<Value> work(rule.yieldedStates());
  llvm::append_range(work, products);
  llvm::append_range(work, llvm::make_first_range(ofCore));
  while (!work.empty())
    if (Operation *op = work.pop_back_val().getDefiningOp();
        op && dependent.contains(op->getResult(0)) && core.insert(op)) {
      if (!needOperands(op))
        return std::nullopt;
      llvm::append_range(work, op->getOperands());
    }
  if (early.empty() && ofAfter.empty())
    return std::nullopt;
  Stages stages;
  Names before, between;
  auto name = [&](Value value, Names &names) {
    stages.temporaries.push_back({"recur." + std::to_string(stages.temporaries.size()), matType(value)});
    names.push_back({value, stages.temporaries.back().name});
  };
  for (Value value : early)
    name(value, before);
  for (Value value : products)
    name(value, between);
  Names outputs = ofCore;
  llvm::append_range(outputs, between);
  if (!before.empty())
    stages.before = stage({}, before, /*withStates=*/false);
  stages.core = stage(before, outputs, /*withStates=*/true);
  if (!ofAfter.empty())
    stages.after = stage(between, ofAfter, /*withStates=*/false);
  return stages;
}

std::optional<Stages> cuda::cutIntoStages(RuleOp rule) {
  OwningOpRef<ModuleOp> copy = ModuleOp::create(rule.getLoc());
  return Cutter(cast<RuleOp>(OpBuilder::atBlockEnd(copy->getBody()).clone(*rule))).run();
}
