// Intervals of values: what declarations promise and what follows from it.
#include "lib/Algebra/Bounds.h"
#include "lib/Algebra/Passes.h"

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
    if (auto quotient = dyn_cast<DivOp>(op); quotient && isShare(quotient, operands[0]))
      range = RangeAttr::closed(context, 0, 1);
    if (auto assume = dyn_cast<AssumeOp>(op); assume && assume.getUnit() && !range)
      return RangeAttr::closed(context, -1, 1);
    return range;
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
