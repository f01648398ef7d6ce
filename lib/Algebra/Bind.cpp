// Gives symbolic dimensions their sizes.
#include "lib/Algebra/NormalForm.h"
#include "lib/Algebra/Passes.h"
#include "mlir/IR/AttrTypeSubElements.h"

#include <cmath>

namespace recur {
#define GEN_PASS_DEF_RECURBIND
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

// The largest size of a dimension, and the largest number of elements of a value: no sum of sizes in bytes
// overflows.
static constexpr int64_t maxDim = 1 << 24, maxElements = 1 << 28;

// Reports a value that has too many elements; dimensions without a size count as 1.
static LogicalResult checkValueSizes(RuleOp rule) {
  auto number = [](Attribute dim) {
    auto size = dyn_cast<IntegerAttr>(dim);
    return size ? static_cast<double>(size.getInt()) : 1.0;
  };
  auto check = [&](Value value) {
    auto steps = dyn_cast<StepsType>(value.getType());
    MatType type = steps ? steps.getStep() : cast<MatType>(value.getType());
    if (number(type.getRows()) * number(type.getCols()) * (steps ? number(steps.getCount()) : 1) <=
        maxElements)
      return WalkResult::advance();
    emitError(value.getLoc()) << "a value of " << (steps ? dimText(steps.getCount()) + " x " : std::string())
                              << dimText(type.getRows()) << " x " << dimText(type.getCols())
                              << " has more than " << maxElements << " elements";
    return WalkResult::interrupt();
  };
  WalkResult result = rule.walk([&](Block *block) {
    for (BlockArgument argument : block->getArguments())
      if (check(argument).wasInterrupted())
        return WalkResult::interrupt();
    for (Operation &op : *block)
      for (Value value : op.getResults())
        if (check(value).wasInterrupted())
          return WalkResult::interrupt();
    return WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}

namespace {
// The numbers that the index of a micro-step can be. Nothing but loops, sizes and constants may stand in it:
// which memory a token reads is known when compiling.
class StepIndex {
public:
  explicit StepIndex(ExtractOp extract) : extract(extract) {}

  LogicalResult check() {
    auto count = dyn_cast<IntegerAttr>(cast<StepsType>(extract.getSteps().getType()).getCount());
    if (!isFixed(extract.getIndex()))
      return extract.emitError() << "the number of a micro-step is made of loop counters, dimensions and "
                                    "constants, but this one depends on more";
    if (!count || !isBound)
      return success();
    int64_t turns = 1;
    for (ForOp loop : loops)
      turns = std::min(turns * cast<IntegerAttr>(loop.getCount()).getInt(), 2 * maxTurns);
    if (turns > maxTurns)
      return extract.emitError() << "loops count this micro-step in more than " << maxTurns << " ways";
    for (int64_t turn = 0; turn < turns; ++turn) {
      double number = at(turn);
      if (number >= 1 && number <= count.getInt() && number == std::floor(number))
        continue;
      return extract.emitError() << "micro-steps count from 1 to " << count.getInt()
                                 << ", got: " << numberText(number);
    }
    return success();
  }

private:
  static constexpr int64_t maxTurns = 1 << 20;

  // Collects the loops and the ops that the value is computed by.
  bool isFixed(Value value) {
    if (!seen.insert(value).second)
      return true;
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto loop = dyn_cast<ForOp>(argument.getOwner()->getParentOp());
      if (!loop || loop.getCounter() != argument)
        return false;
      loops.push_back(loop);
      isBound &= isa<IntegerAttr>(loop.getCount());
      return true;
    }
    Operation *op = value.getDefiningOp();
    if (auto size = dyn_cast<SizeOp>(op))
      isBound &= isa<IntegerAttr>(size.getDim());
    if (!isa<ElementwiseOp, AssumeOp, ConstantOp, SizeOp>(op) ||
        !llvm::all_of(op->getOperands(), [&](Value v) { return isFixed(v); }))
      return false;
    ops.push_back(op);
    return true;
  }

  // The index in one turn of all loops together.
  double at(int64_t turn) {
    DenseMap<Value, double> numbers;
    for (ForOp loop : loops) {
      int64_t count = cast<IntegerAttr>(loop.getCount()).getInt();
      numbers[loop.getCounter()] = turn % count + 1;
      turn /= count;
    }
    for (Operation *op : ops) {
      SmallVector<double> operands =
          llvm::map_to_vector(op->getOperands(), [&](Value v) { return numbers[v]; });
      double &number = numbers[op->getResult(0)];
      if (auto constant = dyn_cast<ConstantOp>(op))
        number = constant.getValue().convertToDouble();
      else if (auto size = dyn_cast<SizeOp>(op))
        number = cast<IntegerAttr>(size.getDim()).getInt();
      else
        number = isa<AssumeOp>(op) ? operands[0] : cast<ElementwiseOp>(op).evaluate(operands);
    }
    return numbers[extract.getIndex()];
  }

  ExtractOp extract;
  bool isBound = true;
  DenseSet<Value> seen;
  SmallVector<ForOp> loops;
  SmallVector<Operation *> ops;
};
} // namespace

// Reports a micro-step that an input does not have, as far as sizes are known.
static LogicalResult checkMicroSteps(RuleOp rule) {
  WalkResult result = rule.walk([](ExtractOp extract) {
    return failed(StepIndex(extract).check()) ? WalkResult::interrupt() : WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}

LogicalResult recur::bindDimensions(RuleOp rule, const llvm::StringMap<int64_t> &sizes) {
  SmallVector<StringAttr> symbols = rule.symbols();
  Location given = UnknownLoc::get(rule.getContext()); // sizes are no part of the spec
  for (const auto &entry : sizes) {
    if (!llvm::is_contained(symbols, StringAttr::get(rule.getContext(), entry.getKey()))) {
      std::string known = llvm::join(
          llvm::map_range(symbols, [](StringAttr symbol) { return "'" + symbol.str() + "'"; }), ", ");
      return emitError(given) << "the rule has no dimension '" << entry.getKey() << "' to bind"
                              << (known.empty() ? std::string("; all its dimensions are fixed")
                                                : "; its dimensions are " + known);
    }
    if (entry.getValue() < 1 || entry.getValue() > maxDim)
      return emitError(given) << "dimension '" << entry.getKey() << "' must be from 1 to " << maxDim
                              << ", got: " << entry.getValue();
  }
  auto bound = [&](Attribute dim) -> Attribute {
    auto symbol = dyn_cast<StringAttr>(dim);
    auto entry = symbol ? sizes.find(symbol.getValue()) : sizes.end();
    return entry == sizes.end() ? dim : Builder(rule.getContext()).getI64IntegerAttr(entry->getValue());
  };
  AttrTypeReplacer replacer;
  replacer.addReplacement([&](MatType type) {
    return MatType::get(type.getContext(), bound(type.getRows()), bound(type.getCols()));
  });
  replacer.addReplacement([&](StepsType type) {
    MatType step = type.getStep();
    step = MatType::get(type.getContext(), bound(step.getRows()), bound(step.getCols()));
    return StepsType::get(type.getContext(), bound(type.getCount()), step, type.getColumns());
  });
  replacer.recursivelyReplaceElementsIn(rule, /*replaceAttrs=*/false, /*replaceLocs=*/false,
                                        /*replaceTypes=*/true);
  rule.walk([&](Operation *op) {
    if (auto size = dyn_cast<SizeOp>(op))
      size.setDimAttr(bound(size.getDim()));
    if (auto loop = dyn_cast<ForOp>(op))
      loop.setCountAttr(bound(loop.getCount()));
  });
  if (failed(checkMicroSteps(rule)))
    return failure();
  return checkValueSizes(rule);
}

namespace {
struct Bind : recur::impl::RecurBindBase<Bind> {
  using RecurBindBase::RecurBindBase;
  void runOnOperation() override {
    llvm::StringMap<int64_t> sizes;
    for (const std::string &text : dims) {
      auto [name, value] = StringRef(text).split('=');
      int64_t size;
      if (name.empty() || value.getAsInteger(10, size)) {
        emitError(getOperation().getLoc()) << "a binding is NAME=SIZE, got: '" << text << "'";
        return signalPassFailure();
      }
      sizes[name] = size;
    }
    if (failed(bindDimensions(getOperation(), sizes)))
      signalPassFailure();
  }
};
} // namespace
