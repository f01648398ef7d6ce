// Vectors that scale the rows or columns of a state: what they are to the stage that has it.
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Cuda/StageCutter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static Value strip(Value value) { return stripOrientation(value); }

// The terms of a sum times a vector's entries, which an outer product's vector takes; null where that one
// follows from the state.
Value StageCutter::decayedSum(OpBuilder &b, Value value, Value factor) {
  Operation *op = value.getDefiningOp();
  Location loc = value.getLoc();
  auto part = [&](unsigned i) { return decayedSum(b, op->getOperand(i), factor); };
  if (isa_and_present<AddOp, SubOp>(op) && llvm::all_of(op->getOperands(), isMatrix)) {
    Value lhs = part(0), rhs = part(1);
    if (!lhs || !rhs)
      return {};
    return isa<AddOp>(op) ? AddOp::create(b, loc, lhs, rhs).getResult()
                          : SubOp::create(b, loc, lhs, rhs).getResult();
  }
  if (isa_and_present<NegOp>(op)) {
    Value inner = part(0);
    return inner ? NegOp::create(b, loc, inner).getResult() : inner;
  }
  for (unsigned i : {0, 1})
    if (isa_and_present<MulOp>(op) && isNumber(op->getOperand(i))) {
      Value inner = part(1 - i);
      return inner ? MulOp::create(b, loc, op->getOperand(i), inner).getResult() : inner;
    }
  auto outer = dyn_cast_if_present<MatmulOp>(op);
  if (!outer || llvm::any_of(outer->getOperands(), isMatrix))
    return MulOp::create(b, loc, value, factor);
  unsigned side = isOne(matType(factor).getRows()) ? 1 : 0;
  if (cores.reachOf(outer->getOperand(side)))
    return {};
  Value own = MulOp::create(b, loc, outer->getOperand(side), factor);
  return MatmulOp::create(b, loc, side ? outer.getLhs() : own, side ? own : outer.getRhs());
}

// Whether a state is read along the vectors that a factor scales, and along no others; of a number, along
// those of one side.
bool StageCutter::isReadAlong(Core *own, Value factor) {
  std::optional<bool> ofColumns;
  if (!isNumber(factor))
    ofColumns = isOne(matType(factor).getRows());
  return llvm::all_of(body.getOps<MatmulOp>(), [&](MatmulOp read) {
    for (unsigned i : {0, 1}) {
      Value matrix = read->getOperand(i);
      if (!isMatrix(matrix) || isMatrix(read->getOperand(1 - i)) || cores.coreOf(strip(matrix)) != own)
        continue;
      bool onRight = i == 0;
      for (; auto transpose = matrix.getDefiningOp<TransposeOp>(); matrix = transpose.getOperand())
        onRight = !onRight;
      if (onRight != ofColumns.value_or(onRight))
        return false;
      ofColumns = onRight;
    }
    return true;
  });
}

// A sum that decays is one of what has decayed: `(S + v*kT)*diag(a)` writes along a.*k. But what keys decay
// by last may stay that (lib/Derive/GroupDecays.cpp), and then a.*k need not be handed over beside k.
void StageCutter::distributeDecays() {
  bool changed = false;
  for (MulOp product : llvm::make_early_inc_range(body.getOps<MulOp>()))
    for (unsigned i : {0, 1}) {
      Value sum = product->getOperand(i), factor = product->getOperand(1 - i);
      if (!isMatrix(sum) || isMatrix(factor) || isNumber(factor) || !cores.coreOf(sum) ||
          cores.reachOf(factor) || !isa_and_present<AddOp, SubOp>(sum.getDefiningOp()) ||
          (llvm::is_contained(rule.yieldedStates(), product.getResult()) &&
           isReadAlong(cores.coreOf(sum), factor)))
        continue;
      OpBuilder b(product);
      if (Value decayed = decayedSum(b, sum, factor)) {
        product.replaceAllUsesWith(decayed);
        changed = true;
      }
      break;
    }
  if (changed) {
    eraseDead(body);
    cores.findReach();
  }
}

// Vectors that scale the rows or columns of a state.
void StageCutter::findDecays() {
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

Value cuda::logarithmOf(OpBuilder &b, Location loc, Value value,
                        llvm::function_ref<RangeAttr(Value)> rangeOf) {
  value = strip(value);
  Operation *op = value.getDefiningOp();
  auto isDecay = [&](Value x) {
    RangeAttr range = rangeOf(x);
    return range && range.getLo() >= 0 && range.getHi() <= 1;
  };
  if (auto exp = dyn_cast_if_present<ExpOp>(op))
    return strip(exp.getOperand());
  if (auto sigmoid = dyn_cast_if_present<SigmoidOp>(op))
    return NegOp::create(b, loc, SoftplusOp::create(b, loc, NegOp::create(b, loc, sigmoid.getOperand())));
  if (auto concat = dyn_cast_if_present<ConcatOp>(op)) {
    SmallVector<Value> logs;
    for (Value part : concat.getParts())
      if (Value log = logarithmOf(b, loc, part, rangeOf))
        logs.push_back(log);
    return logs.size() == concat.getParts().size()
               ? ConcatOp::create(b, loc, logs, concat.getFirsts()).getResult()
               : Value();
  }
  if (auto power = dyn_cast_if_present<PowOp>(op); power && isDecay(power.getLhs()))
    return MulOp::create(b, loc, power.getRhs(), logarithmOf(b, loc, power.getLhs(), rangeOf));
  if (auto product = dyn_cast_if_present<MulOp>(op)) {
    Value lhs = logarithmOf(b, loc, product.getLhs(), rangeOf);
    Value rhs = lhs ? logarithmOf(b, loc, product.getRhs(), rangeOf) : Value();
    if (rhs)
      return AddOp::create(b, loc, lhs, rhs);
  }
  if (!isDecay(value))
    return {};
  constexpr double least = -1000; // its exponential is 0
  if (op)                         // 1 less a square of a normed vector's entry may round to less than 0
    value = MaxOp::create(b, loc, value, ConstantOp::create(b, loc, 0));
  return MaxOp::create(b, loc, LogOp::create(b, loc, value), ConstantOp::create(b, loc, least));
}

// Whether two rules, of which one may have more states, compute a value in the same way.
static bool isSame(Value x, Value y) {
  auto argument = dyn_cast<BlockArgument>(x), other = dyn_cast<BlockArgument>(y);
  if (argument || other)
    return argument && other && argument.getArgNumber() == other.getArgNumber();
  return cast<OpResult>(x).getResultNumber() == cast<OpResult>(y).getResultNumber() &&
         OperationEquivalence::isEquivalentTo(
             x.getDefiningOp(), y.getDefiningOp(), [](Value a, Value b) { return success(isSame(a, b)); },
             nullptr, OperationEquivalence::IgnoreLocations);
}

// The value of another rule that is computed as this one is, or null.
static Value sameIn(RuleOp other, Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return other.getBody().getArgument(argument.getArgNumber());
  for (Operation &op : other.getBody().front())
    for (Value result : op.getResults())
      if (isSame(value, result))
        return result;
  return {};
}

// Has what comes after take the exponential of a decay's logarithm.
static Value replaceByExp(OpBuilder &b, Value decay, Value log) {
  auto exp = ExpOp::create(b, decay.getLoc(), log);
  decay.replaceUsesWithIf(exp, [&](OpOperand &use) {
    return use.getOwner()->getBlock() == exp->getBlock() && exp->isBeforeInBlock(use.getOwner());
  });
  return exp;
}

// Decays of each key or value are handed over as their logarithms: rounded to half precision, those of long
// memories keep their digits. What may be negative is handed over as it is.
void StageCutter::takeLogs(Value decay) {
  if (!decays.insert(decay).second)
    return;
  Operation *op = decay.getDefiningOp();
  OpBuilder b(rule.getContext());
  if (op)
    b.setInsertionPointAfter(op);
  else
    b.setInsertionPointToStart(&body);
  Value log = logarithmOf(b, rule.getLoc(), decay, [](Value value) { return rangeOf(value); });
  RangeAttr range = rangeOf(decay);
  if (!log && isa_and_present<ElementwiseOp>(op) && range && range.getLo() >= -1 && range.getHi() <= 1) {
    early.insert(decay);
    logs.insert(decay);
  }
  if (!log || isInput(log))
    return;
  if (!isa_and_present<ExpOp>(op)) {
    decays.insert(replaceByExp(b, decay, log));
    if (Value same = whole ? sameIn(*whole->getOps<RuleOp>().begin(), decay) : Value()) {
      b.setInsertionPointAfterValue(same);
      replaceByExp(b, same, logarithmOf(b, rule.getLoc(), same, [](Value value) { return rangeOf(value); }));
    }
  }
  early.insert(log);
  logs.insert(log);
}

// Decays that follow from other states are handed over by who has these, or made of what those give.
bool StageCutter::takeDecays() {
  for (Value given : SmallVector<Value>(early.getArrayRef()))
    if (cores.reachOf(given)) {
      if (!findProducts(given))
        return false;
      if (isProduct(given))
        early.remove(given);
    }
  return true;
}
