// Intervals of values: what declarations promise and what follows from it.
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Terms.h"

#include <cmath>

namespace recur {
#define GEN_PASS_DEF_RECURCHECKRANGES
#define GEN_PASS_DEF_RECURDROPASSUMPTIONS
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

namespace {
// Ranges of a rule's values, each computed once.
class Ranges {
public:
  RangeAttr of(Value value) {
    if (auto known = ranges.find(value); known != ranges.end())
      return known->second;
    RangeAttr range = compute(value);
    ranges[value] = range;
    return range;
  }

private:
  RangeAttr compute(Value value) {
    MLIRContext *context = value.getContext();
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto rule = dyn_cast<RuleOp>(argument.getOwner()->getParentOp());
      if (!rule || argument.getOwner()->getParent() != &rule.getBody())
        return {};
      ArgAttr arg = rule.getArg(argument);
      if (arg.getKind() >= ArgKind::Position)
        return RangeAttr::get(context, arg.getKind() == ArgKind::Heads ? 1 : 0,
                              std::numeric_limits<double>::infinity(), false, false);
      if (arg.getUnit() && !arg.getRange())
        return RangeAttr::closed(context, -1, 1);
      return arg.getRange();
    }
    Operation *op = value.getDefiningOp();
    // The norm of a unit vector bounds its entries.
    if (auto extract = dyn_cast<ExtractOp>(op))
      return of(extract.getSteps());
    auto known = dyn_cast<RangeOp>(op);
    if (!known)
      return {};
    SmallVector<RangeAttr> operands;
    for (Value operand : op->getOperands())
      operands.push_back(of(operand));
    RangeAttr range = known.inferRange(operands);
    if (auto sum = dyn_cast<AddOp>(op))
      if (RangeAttr mean = rangeOfMean(sum, [&](Value value) { return of(value); }))
        range = mean;
    if (auto product = dyn_cast<MulOp>(op))
      range = narrowed(range, powersOf(product), context);
    if (auto quotient = dyn_cast<DivOp>(op); quotient && isShare(quotient, operands[0]))
      range = RangeAttr::closed(context, 0, 1);
    else if (quotient && normalisedVector(quotient))
      range = narrowed(range, {-1, 1}, context);
    if (auto assume = dyn_cast<AssumeOp>(op); assume && assume.getUnit() && !range)
      return RangeAttr::closed(context, -1, 1);
    return range;
  }

  // The range of a product of which like factors do not stand beside one another: (b*k)*k has a square.
  Interval powersOf(MulOp product) {
    SmallVector<Value> factors;
    addFactors(product, 3, factors);
    Interval all = {1, 1};
    while (!factors.empty()) {
      Value factor = factors.front();
      auto others = std::remove(factors.begin(), factors.end(), factor);
      RangeAttr range = of(factor);
      Interval one = range ? Interval{range.getLo(), range.getHi()} : Interval(), square = one * one;
      square.lo = std::max(square.lo, 0.);
      for (auto left = factors.end() - others; left > 0; left -= 2)
        all = all * (left > 1 ? square : one);
      factors.erase(others, factors.end());
    }
    return all;
  }

  static RangeAttr narrowed(RangeAttr range, Interval by, MLIRContext *context) {
    if (!range)
      return std::isinf(by.lo) && std::isinf(by.hi) ? range : RangeAttr::closed(context, by.lo, by.hi);
    bool below = by.lo > range.getLo(), above = by.hi < range.getHi();
    return RangeAttr::get(context, below ? by.lo : range.getLo(), above ? by.hi : range.getHi(),
                          range.getLoOpen() && !below, range.getHiOpen() && !above);
  }

  static void addFactors(Value value, unsigned depth, SmallVectorImpl<Value> &factors) {
    auto product = value.getDefiningOp<MulOp>();
    if (!product || depth == 0)
      return factors.push_back(value);
    for (Value operand : product->getOperands())
      addFactors(operand, depth - 1, factors);
  }

  // Whether entries that are not negative are divided by their sum, or more, as softmax does.
  static bool isShare(DivOp quotient, RangeAttr numerator) {
    auto isSum = [&](Value value) {
      auto sum = value.getDefiningOp<ReduceOp>();
      return sum && sum.getKind() == Reduction::Sum && sum.getOperand() == quotient.getLhs();
    };
    auto most = quotient.getRhs().getDefiningOp<MaxOp>();
    return numerator && numerator.getLo() >= 0 &&
           (isSum(quotient.getRhs()) || (most && llvm::any_of(most->getOperands(), isSum)));
  }

  DenseMap<Value, RangeAttr> ranges;
};

struct CheckRanges : recur::impl::RecurCheckRangesBase<CheckRanges> {
  void runOnOperation() override {
    Ranges ranges;
    getOperation().walk([&](Operation *op) {
      if (auto assume = dyn_cast<AssumeOp>(op)) {
        RangeAttr found = ranges.of(assume.getOperand());
        if (assume.getRangeAttr() && found && found.disjoint(assume.getRangeAttr())) {
          emitError(op->getLoc()) << "the declared range is " << assume.getRangeAttr().str()
                                  << ", but the value lies in " << found.str();
          signalPassFailure();
        }
      }
      if (!isa<LogOp, SqrtOp>(op))
        return;
      RangeAttr found = ranges.of(op->getOperand(0));
      if (found && found.getHi() < 0) {
        emitError(op->getLoc()) << "'" << op->getName().stripDialect()
                                << "' needs a value that is not negative, but it lies in " << found.str();
        signalPassFailure();
      }
    });
    markAllAnalysesPreserved();
  }
};

struct DropAssumptions : recur::impl::RecurDropAssumptionsBase<DropAssumptions> {
  void runOnOperation() override {
    getOperation().walk([](AssumeOp op) {
      op.replaceAllUsesWith(op.getOperand());
      op.erase();
    });
  }
};
} // namespace

RangeAttr recur::rangeOf(Value value) { return Ranges().of(value); }
