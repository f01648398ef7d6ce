// Intervals of values: what declarations promise and what follows from it.
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
      if (RangeAttr mean = ofMean(sum))
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

  // The factors of a product.
  static SmallVector<Value> factorsOf(Value value) {
    SmallVector<Value> factors, work{value};
    while (!work.empty()) {
      Value next = work.pop_back_val();
      if (auto product = next.getDefiningOp<MulOp>())
        llvm::append_range(work, product->getOperands());
      else
        factors.push_back(next);
    }
    return factors;
  }

  RangeAttr ofProduct(ArrayRef<Value> factors, MLIRContext *context) {
    double lo = 1, hi = 1;
    for (Value factor : factors) {
      RangeAttr range = of(factor);
      if (!range || !std::isfinite(range.getLo()) || !std::isfinite(range.getHi()))
        return {};
      double ends[] = {lo * range.getLo(), lo * range.getHi(), hi * range.getLo(), hi * range.getHi()};
      lo = *llvm::min_element(ends);
      hi = *llvm::max_element(ends);
    }
    return RangeAttr::closed(context, lo, hi);
  }

  // What lies between two values, as a*x + (1 - a)*y does, lies in the range of both.
  RangeAttr ofMean(AddOp sum) {
    MLIRContext *context = sum.getContext();
    for (unsigned side : {0, 1}) {
      SmallVector<Value> own = factorsOf(sum->getOperand(side));
      SmallVector<Value> others = factorsOf(sum->getOperand(1 - side));
      for (auto *rest = own.begin(); rest != own.end(); ++rest) {
        auto difference = rest->getDefiningOp<SubOp>();
        auto one = difference ? difference.getLhs().getDefiningOp<ConstantOp>() : ConstantOp();
        if (!one || one.getValue().convertToDouble() != 1)
          continue;
        Value weight = difference.getRhs();
        RangeAttr range = of(weight);
        auto *same = llvm::find(others, weight);
        if (same == others.end() || !range || range.getLo() < 0 || range.getHi() > 1)
          continue;
        own.erase(rest);
        others.erase(same);
        RangeAttr x = ofProduct(own, context), y = ofProduct(others, context);
        if (!x || !y)
          return {};
        return RangeAttr::closed(context, std::min(x.getLo(), y.getLo()), std::max(x.getHi(), y.getHi()));
      }
    }
    return {};
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
