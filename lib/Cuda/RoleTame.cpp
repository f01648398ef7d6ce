// Whether the inverse of a plan's system keeps within the range of half precision.
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Whether rows have a norm of at most 1, as the spec declares or because they are divided by theirs.
bool RolePlan::hasShortRows(const TokenTile &tile) const {
  // What rows are multiplied with, entry by entry, may shorten them.
  Value rows = tile.rows();
  while (auto product = trace(rows).getDefiningOp<MulOp>()) {
    unsigned other = isWithinOne(product->getOperand(1)) ? 0 : 1;
    if (!isWithinOne(product->getOperand(1 - other)))
      return false;
    rows = product->getOperand(other);
  }
  auto input = dyn_cast<BlockArgument>(trace(rows));
  if (!input)
    return false;
  // Signs lengthen nothing.
  RowFactors scale = tile.scale;
  llvm::erase_if(scale, [](RowFactor factor) {
    auto weights = trace(factor.value).getDefiningOp<chunk::WeightsOp>();
    return weights && areSigns(weights.getDecay());
  });
  if (scale.empty())
    return program.getArg(input.getArgNumber()).getUnit();
  if (scale.size() != 1 || !scale[0].divides)
    return false;
  auto root = trace(scale[0].value).getDefiningOp<SqrtOp>();
  Value square = root ? trace(root->getOperand(0)) : Value();
  if (auto sum = square ? square.getDefiningOp<AddOp>() : AddOp())
    for (unsigned i : {0, 1})
      if (auto eps = sum->getOperand(i).getDefiningOp<ConstantOp>(); eps && !eps.getValue().isNegative())
        square = trace(sum->getOperand(1 - i));
  auto reduce = square ? square.getDefiningOp<ReduceOp>() : ReduceOp();
  auto product = reduce ? trace(reduce.getOperand()).getDefiningOp<MulOp>() : MulOp();
  return product && trace(product->getOperand(0)) == input && trace(product->getOperand(1)) == input;
}

// Whether all products between tokens that scores consist of are those of short rows.
bool RolePlan::isTame(Value scores) const {
  scores = trace(scores);
  if (auto gram = scores.getDefiningOp<chunk::GramOp>())
    return hasShortRows(*asRows(gram.getLhs())) && hasShortRows(*asRows(gram.getRhs()));
  return llvm::all_of(scores.getDefiningOp()->getOperands(),
                      [&](Value operand) { return !isScores(operand) || isTame(operand); });
}
