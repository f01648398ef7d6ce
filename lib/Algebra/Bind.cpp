// Gives symbolic dimensions their sizes.
#include "lib/Algebra/Passes.h"
#include "mlir/IR/AttrTypeSubElements.h"

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

// Reports a micro-step beyond the last one, where both are numbers.
static LogicalResult checkMicroSteps(RuleOp rule) {
  WalkResult result = rule.walk([](ExtractOp extract) {
    auto index = extract.getIndex().getDefiningOp<ConstantOp>();
    auto count = dyn_cast<IntegerAttr>(cast<StepsType>(extract.getSteps().getType()).getCount());
    if (!index || !count || index.getValue().convertToDouble() <= count.getInt())
      return WalkResult::advance();
    emitError(extract.getLoc()) << "micro-steps count from 1 to " << count.getInt()
                                << ", got: " << int64_t(index.getValue().convertToDouble());
    return WalkResult::interrupt();
  });
  return failure(result.wasInterrupted());
}

LogicalResult recur::bindDimensions(RuleOp rule, const llvm::StringMap<int64_t> &sizes) {
  SmallVector<StringAttr> symbols = rule.symbols();
  for (const auto &entry : sizes) {
    if (!llvm::is_contained(symbols, StringAttr::get(rule.getContext(), entry.getKey()))) {
      std::string known = llvm::join(
          llvm::map_range(symbols, [](StringAttr symbol) { return "'" + symbol.str() + "'"; }), ", ");
      return emitError(rule.getLoc()) << "the rule has no dimension '" << entry.getKey() << "' to bind"
                                      << (known.empty() ? std::string("; all its dimensions are fixed")
                                                        : "; its dimensions are " + known);
    }
    if (entry.getValue() < 1 || entry.getValue() > maxDim)
      return emitError(rule.getLoc()) << "dimension '" << entry.getKey() << "' must be from 1 to " << maxDim
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
    return StepsType::get(type.getContext(), bound(type.getCount()), step);
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
