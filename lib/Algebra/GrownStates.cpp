#include "lib/Algebra/GrownStates.h"
#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/LinearSum.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/Terms.h"
#include "mlir/Analysis/SliceAnalysis.h"

using namespace mlir;
using namespace recur;

namespace {
class GrownStates {
public:
  explicit GrownStates(RuleOp rule) : rule(rule), b(rule.getBodyYield()) {}

  LogicalResult run() {
    constexpr int64_t mostOfBlock = 64; // of which kernels have whole ones at a time
    bool hasAny = false, isWhole = blockOf(rule) <= mostOfBlock && llvm::isPowerOf2_64(blockOf(rule));
    for (unsigned i = 0; isWhole && i < rule.argumentsOf(ArgKind::State).size(); ++i)
      hasAny |= succeeded(grow(i));
    eraseDead(rule);
    return success(hasAny);
  }

private:
  using Term = std::pair<Value, Value>; // a value, and the number that it is times, null for 1

  LogicalResult grow(unsigned state);
  SmallVector<Term> termsOf(Value value, LinearSum::Predicate isLeaf);
  bool follows(Value value, ArrayRef<ArgKind> kinds);
  bool isFunction(Value value);
  Value last(Value number);
  BlockArgument lastOf(BlockArgument input);
  BlockArgument startOf(BlockArgument state) {
    return rule.findArgument(ArgKind::Stale, rule.getArg(state).getName());
  }

  RuleOp rule;
  OpBuilder b;
};
} // namespace

// Whether a value follows from arguments of some kinds.
bool GrownStates::follows(Value value, ArrayRef<ArgKind> kinds) {
  auto isIt = [&](Value x) {
    auto argument = dyn_cast<BlockArgument>(x);
    return argument && llvm::is_contained(kinds, rule.getArg(argument).getKind());
  };
  SetVector<Operation *> slice;
  BackwardSliceOptions options;
  options.inclusive = true;
  (void)getBackwardSlice(value, &slice, options);
  return isIt(value) ||
         llvm::any_of(slice, [&](Operation *op) { return llvm::any_of(op->getOperands(), isIt); });
}

// Whether a value is more than a sum of what is read of states. Such a sum is an error that vanishes, and
// what the other state adds up for ever of it is what roles have rounded: chunks of f32 are more exact.
bool GrownStates::isFunction(Value value) {
  SetVector<Operation *> slice;
  BackwardSliceOptions options;
  options.inclusive = true;
  (void)getBackwardSlice(value, &slice, options);
  auto reads = [&](Value x) { return follows(x, {ArgKind::State, ArgKind::Stale}); };
  return llvm::any_of(slice, [&](Operation *op) { return isFunctionOf(op, reads); });
}

SmallVector<GrownStates::Term> GrownStates::termsOf(Value value, LinearSum::Predicate isLeaf) {
  auto isNumber = [&](Value x) {
    return matType(x).isScalar() && !follows(x, {ArgKind::State, ArgKind::Stale});
  };
  return LinearSum(b, value, isNumber, isLeaf).build();
}

// The input that is what this one is at the last token of a block.
BlockArgument GrownStates::lastOf(BlockArgument input) {
  ArgAttr own = rule.getArg(input);
  std::string name = (own.getName().getValue() + lastSuffix).str();
  if (BlockArgument known = rule.findArgument(ArgKind::Input, StringAttr::get(rule.getContext(), name)))
    return known;
  BlockArgument added = addInput(rule, name, own.getRange(), own.getUnit(), input.getType());
  SmallVector<Attribute> args(rule.getArgs().getValue());
  args.back() = ArgAttr::get(rule.getContext(), ArgKind::Input, StringAttr::get(rule.getContext(), name),
                             own.getRange(), own.getUnit(), blockOf(rule));
  rule.setArgsAttr(ArrayAttr::get(rule.getContext(), args));
  return added;
}

// What a number of the token is at the last token of its block; null where it is no function of numbers.
Value GrownStates::last(Value number) {
  if (auto argument = dyn_cast<BlockArgument>(number)) {
    ArgKind kind = rule.getArg(argument).getKind();
    return kind == ArgKind::Input ? lastOf(argument) : kind == ArgKind::Param ? argument : Value();
  }
  Operation *op = number.getDefiningOp();
  bool ofNumbers = llvm::all_of(op->getOperands(), [](Value x) { return matType(x).isScalar(); });
  if (!isa<ElementwiseOp, ConstantOp>(op) || !ofNumbers)
    return {};
  IRMapping operands;
  for (Value operand : op->getOperands()) {
    Value own = last(operand);
    if (!own)
      return {};
    operands.map(operand, own);
  }
  return b.clone(*op, operands)->getResult(0);
}

LogicalResult GrownStates::grow(unsigned number) {
  BlockArgument state = rule.argumentsOf(ArgKind::State)[number], start = startOf(state);
  Value update = rule.yieldedStates()[number];
  if (!start || !state.use_empty())
    return failure();
  // The start, a share of another new state, and as much less of what that was at the start.
  SmallVector<Term> terms =
      termsOf(update, [&](Value x) { return x != update && llvm::is_contained(rule.yieldedStates(), x); });
  auto *own = llvm::find(terms, Term(start, Value()));
  if (terms.size() != 3 || own == terms.end())
    return failure();
  terms.erase(own);
  auto states = rule.argumentsOf(ArgKind::State);
  for (unsigned i : {0, 1}) {
    auto [grown, share] = terms[i];
    auto updates = rule.yieldedStates();
    auto found = llvm::find(updates, grown);
    if (found == updates.end() || !share || !terms[1 - i].second)
      continue;
    BlockArgument other = states[found - updates.begin()];
    Value opposite = NegOp::create(b, rule.getLoc(), terms[1 - i].second);
    if (other == state || terms[1 - i].first != startOf(other) || !isSameNumber(share, opposite))
      continue;
    Value atLast = last(share), sum = state;
    SmallVector<Term> added = termsOf(grown, [&](Value x) { return !follows(x, {ArgKind::State}); });
    auto *kept = llvm::find(added, Term(other, Value()));
    if (!atLast || kept == added.end())
      return failure();
    added.erase(kept);
    for (auto [value, factor] : added) {
      if (follows(value, {ArgKind::State}) || !isFunction(value))
        return failure();
      Value times = factor ? MulOp::create(b, rule.getLoc(), atLast, factor).getResult() : atLast;
      sum = AddOp::create(b, rule.getLoc(), sum, MulOp::create(b, rule.getLoc(), times, value));
    }
    rule.getBodyYield()->setOperand(number, sum);
    return success();
  }
  return failure();
}

OwningOpRef<ModuleOp> recur::growStates(RuleOp rule) {
  return rewritten(rule, [](RuleOp copy) { return GrownStates(copy).run(); });
}

bool recur::isFunctionOf(Operation *op, llvm::function_ref<bool(Value)> reads) {
  unsigned count = llvm::count_if(op->getOperands(), reads);
  bool isLinear = isa<AddOp, SubOp, NegOp>(op) || (count == 1 && isa<MulOp>(op)) ||
                  (count == 1 && isa<DivOp>(op) && reads(op->getOperand(0)));
  return count && isa<ElementwiseOp>(op) && !isLinear;
}

bool recur::readsLast(RuleOp rule) {
  return llvm::any_of(rule.argumentsOf(ArgKind::Input), [&](BlockArgument input) {
    return !input.use_empty() && rule.getArg(input).getName().getValue().ends_with(lastSuffix);
  });
}
