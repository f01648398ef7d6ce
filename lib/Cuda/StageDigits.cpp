// What stages hand over, and how many digits of it.
//
// A product of bf16 is off by a part in 500 of the terms that it adds up. Few functions make more of that: an
// exponential, whose operand is large where the state is, and a quotient whose divisor is a sum that may
// nearly cancel, as then what it divides does; but not where the divisor has a floor and the state is
// corrected, and so is no larger than what it is to give. There the state is read in two parts, what bf16
// holds of it and what it holds of the rest; and what an exponential is taken of is handed over in two such
// parts.
#include "lib/Algebra/Bounds.h"
#include "lib/Cuda/StageCutter.h"
#include "mlir/Analysis/SliceAnalysis.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// What a value follows from by sums, factors and the like, itself included.
llvm::SetVector<Value> StageCutter::linearSources(Value value) {
  llvm::SetVector<Value> sources;
  sources.insert(stripOrientation(value));
  for (size_t i = 0; i < sources.size(); ++i)
    if (Operation *op = sources[i].getDefiningOp();
        isa_and_present<AddOp, SubOp, NegOp, MulOp, DivOp, MaxOp, BroadcastOp, AssumeOp>(op))
      for (Value operand : op->getOperands())
        sources.insert(stripOrientation(operand));
  return sources;
}

// Whether a sum of products with states may cancel: it is a difference, or what it or a state follows from
// may have entries below 0. (Of a feature map none are.)
static bool mayCancel(RuleOp rule, Value sum) {
  auto states = rule.argumentsOf(ArgKind::State);
  SetVector<Operation *> follow; // from states
  for (Value state : states)
    getForwardSlice(state, &follow);
  llvm::SetVector<Value> open;
  open.insert(sum);
  for (size_t i = 0; i < open.size(); ++i) {
    Operation *op = open[i].getDefiningOp();
    bool isOfState = follow.contains(op) || llvm::is_contained(states, open[i]);
    if ((!isOfState && Interval::of(open[i]).lo >= 0) || isa_and_present<ExpOp>(op))
      continue;
    if (isOfState && isa_and_present<SubOp, NegOp>(op))
      return true;
    if (op) {
      open.insert_range(op->getOperands());
      continue;
    }
    ArgKind kind = rule.getArg(cast<BlockArgument>(open[i])).getKind();
    if (kind == ArgKind::State)
      open.insert(rule.yieldedStates()[llvm::find(states, open[i]) - states.begin()]);
    else if (kind == ArgKind::Input && !isNumber(open[i]))
      return true;
  }
  return false;
}

// Whether what is read of a core's matrices is written back to them: so they give what they were written, and
// do not grow with all that was.
static bool isCorrected(RuleOp rule, Cores &cores, const Core &own) {
  llvm::SetVector<Value> open;
  for (auto [number, value] : llvm::enumerate(rule.yieldedStates()))
    if (own.states >> number & 1)
      open.insert(value);
  for (size_t i = 0; i < open.size(); ++i) {
    Operation *op = open[i].getDefiningOp();
    if (!op)
      continue;
    if (isa<MatmulOp>(op) && llvm::any_of(op->getOperands(), [&](Value side) {
          return isMatrix(side) && cores.coreOf(side) == &own;
        }))
      return true;
    open.insert_range(op->getOperands());
  }
  return false;
}

void StageCutter::findMagnified() {
  for (Operation &op : body) {
    llvm::SetVector<Value> sources;
    bool hasFloor = false;
    if (isa<ExpOp>(op)) {
      sources = linearSources(op.getOperand(0));
    } else if (auto quotient = dyn_cast<DivOp>(op)) {
      // Not by a norm of its own.
      uint64_t others = cores.reachOf(quotient.getRhs()) & ~cores.reachOf(quotient.getLhs());
      if (others && mayCancel(rule, quotient.getRhs()))
        sources = linearSources(quotient.getLhs());
      hasFloor = Interval::of(quotient.getRhs()).lo > 0;
    }
    for (Value source : sources)
      if (auto product = source.getDefiningOp<MatmulOp>())
        for (Value side : product->getOperands())
          if (Core *own = isMatrix(side) ? cores.coreOf(side) : nullptr) {
            if (hasFloor && isCorrected(rule, cores, *own))
              continue;
            magnified |= own->states;
            if (isa<ExpOp>(op))
              exponents.insert_range(sources);
          }
  }
}

// Gives values that are wanted with their rest another output and, in stages of tokens, another input.
void StageCutter::addRests(Stages &stages) {
  MLIRContext *context = rule->getContext();
  for (const std::string &name : wanted) {
    std::string rest = name + restSuffix.str();
    auto *temporary = llvm::find_if(stages.temporaries, [&](const auto &t) { return t.name == name; });
    Stages::Temporary added{rest, temporary->type, /*isWide=*/false};
    added.isInParts = true;
    for (const Stages::Stage &stage : stages.stages) {
      RuleOp part = stage.rule();
      SmallVector<Attribute> names(part.getOutputs().begin(), part.getOutputs().end());
      if (auto *at = llvm::find(names, StringAttr::get(context, name)); at != names.end()) {
        Value whole = part.yieldedOutputs()[at - names.begin()];
        names.push_back(StringAttr::get(context, rest));
        part.getBodyYield()->insertOperands(part.getBodyYield()->getNumOperands(), whole);
        part.setOutputsAttr(ArrayAttr::get(context, names));
      }
      Value known = part.findArgument(ArgKind::Input, name);
      if (!known || stage.kind != Stages::Tokens)
        continue;
      Block &block = part.getBody().front();
      SmallVector<Attribute> args(part.getArgs().begin(), part.getArgs().end());
      auto restAttr = StringAttr::get(context, rest);
      args.push_back(ArgAttr::get(context, ArgKind::Input, restAttr, RangeAttr(), false, 0));
      part.setArgsAttr(ArrayAttr::get(context, args));
      OpBuilder b = OpBuilder::atBlockBegin(&block);
      auto sum = AddOp::create(b, rule.getLoc(), known, block.addArgument(known.getType(), rule.getLoc()));
      known.replaceAllUsesExcept(sum, sum);
    }
    stages.temporaries.push_back(added);
  }
}
