// The part of a plan that concerns states that each key couples by itself, an average beside a decay of each
// key, say. A token's transitions are a 2 x 2 matrix for each key, and what one token writes is to a later
// one a product of those. So what is read of one state comes of both: two tiles for the chain, each with the
// entries that come of one; and so is what is written. The chain holds both states side by side, and goes
// from chunk to chunk by a 2 x 2 matrix for each key.
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Whether a value is one number, or one for each token.
static bool isNumber(Value value) {
  MatType type = matType(value);
  return isOne(type.getCols()) && (isOne(type.getRows()) || isa<StringAttr>(type.getRows()));
}

static std::optional<double> constantOf(Value value) {
  auto constant = RolePlan::trace(value).getDefiningOp<ConstantOp>();
  return constant ? std::optional(constant.getValue().convertToDouble()) : std::nullopt;
}

// An entry of the cascade, or a sum of such that numbers are times.
std::optional<std::pair<chunk::Span, KeyCoupling>> RolePlan::couplingOf(Value factor) const {
  if (abreast == 1)
    return std::nullopt;
  std::optional<std::pair<chunk::Span, KeyCoupling>> result;
  SmallVector<std::pair<Value, RowFactors>> work{{factor, {}}};
  while (!work.empty()) {
    auto [term, factors] = work.pop_back_val();
    Operation *op = trace(term).getDefiningOp();
    if (isa_and_present<AddOp>(op)) {
      for (Value operand : op->getOperands())
        work.push_back({operand, factors});
      continue;
    }
    if (isa_and_present<MulOp>(op)) {
      unsigned number = isNumber(op->getOperand(0)) ? 0 : 1;
      if (!isNumber(op->getOperand(number)))
        return std::nullopt;
      factors.push_back({trace(op->getOperand(number))}); // of several results of a map that are the same
      work.push_back({op->getOperand(1 - number), factors});
      continue;
    }
    auto weights = dyn_cast_if_present<chunk::WeightsOp>(op);
    if (!weights || weights.getDecay() != decay || weights.getSpan() == chunk::Span::Whole)
      return std::nullopt;
    bool isWrite = weights.getSpan() == chunk::Span::Rest;
    KeyCoupling own;
    own.state = isWrite ? weights.getTo() : weights.getFrom();
    own.to = isWrite ? 0 : weights.getTo();
    if (!result) {
      own.weights.resize(isWrite ? abreast : 0);
      result = {weights.getSpan(), own};
    }
    KeyCoupling &sum = result->second;
    bool isMore = isWrite && weights.getSpan() == result->first && own.state == sum.state &&
                  !sum.weights[weights.getFrom()];
    if (isWrite ? !isMore : !factors.empty() || result->first != weights.getSpan() || !(own == sum))
      return std::nullopt;
    if (isWrite)
      sum.weights[weights.getFrom()] = factors;
  }
  return result;
}

FailureOr<std::pair<RowFactors, Value>> RolePlan::splitTransition(Value entry) const {
  RowFactors factors;
  for (entry = trace(entry); !isNumber(entry);) {
    auto product = entry.getDefiningOp<MulOp>();
    unsigned number = product && isNumber(product->getOperand(0)) ? 0 : 1;
    if (!product || !isNumber(product->getOperand(number))) {
      if (isVectorOfTiles(entry, /*withNumbers=*/true))
        return std::pair(factors, entry);
      return failure();
    }
    factors.push_back({product->getOperand(number)});
    entry = trace(product->getOperand(1 - number));
  }
  if (constantOf(entry) != 1)
    factors.push_back({entry});
  return std::pair(factors, Value());
}

LogicalResult RolePlan::needTransitions() {
  for (Value entry : decay.getDefiningOp()->getOperands()) {
    auto parts = splitTransition(entry);
    if (failed(parts))
      return failure();
    for (RowFactor factor : parts->first)
      if (failed(needRow(factor.value)))
        return failure();
  }
  for (Value leaf : leavesOfLogs())
    if (isRow(leaf) && failed(needRow(leaf)))
      return failure();
  for (BlockArgument input : tilesOfLogs())
    if (matType(input).numCols() != keys || failed(needInput(input)))
      return failure();
  return success();
}

SmallVector<std::optional<RowFactors>, 2> RolePlan::weightsOf(chunk::GramOp gram) const {
  SmallVector<std::optional<RowFactors>, 2> weights;
  for (Value weight : gram.getWeights()) {
    std::optional<double> constant = constantOf(weight);
    if (constant == 0)
      weights.push_back(std::nullopt);
    else
      weights.push_back(constant == 1 ? RowFactors() : RowFactors{{trace(weight)}});
  }
  return weights;
}
