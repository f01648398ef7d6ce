// The part of a plan that concerns micro-steps: a chunk's rows are those of its tokens, and what only outputs
// follow from has a row for each token.
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

unsigned RolePlan::initialTensor() const {
  return program.argumentsOf(ArgKind::Input).size() + program.argumentsOf(ArgKind::Param).size() -
         (isFirst ? 1 : 0);
}

// Whether a value's rows are all tokens, or all micro-steps. Numbers are known for both.
bool RolePlan::isOf(bool ofTokens, Value value) const {
  value = trace(strip(value));
  if (std::optional<TokenTile> tile = asTile(value))
    return isOf(ofTokens, tile->input);
  Operation *op = value.getDefiningOp();
  if (!op || isRow(value))
    return true;
  if (auto gram = dyn_cast<chunk::GramOp>(op))
    return isOf(ofTokens, gram.getLhs()) && isOf(false, gram.getRhs());
  if (auto product = dyn_cast<MatmulOp>(op)) {
    bool isDepth = product.getLhs().getDefiningOp<TransposeOp>() != nullptr;
    return isOf(ofTokens && !isDepth, product.getLhs()) && isOf(false, product.getRhs());
  }
  return llvm::all_of(op->getOperands(),
                      [&](Value operand) { return isOf(ofTokens && !isa<chunk::TriSolveOp>(op), operand); });
}

// With micro-steps, outputs are those of tokens, and all else is that of micro-steps.
LogicalResult RolePlan::findSteps() {
  if (steps == 1)
    return success();
  auto yielded = program.getBodyYield().getValues().take_front(states + countOutputs());
  if (decay || states > 1 || !isOf(false, yielded[0]) ||
      !llvm::all_of(yielded.drop_front(states), [&](Value output) { return isOf(true, output); }))
    return failure();
  // A sum over two inputs' rows is that of one kind of rows.
  for (Operation *op : reductions)
    if (!isOf(false, op->getOperand(0)) && !isOf(true, op->getOperand(0)))
      return failure();
  for (ScoreTile &tile : scores) {
    tile.ofTokens = isOfTokens(tile.value);
    if (tile.ofTokens && !tile.plainRows)
      return failure();
  }
  for (ChainProduct &product : products)
    product.ofTokens =
        product.kind == ChainProduct::Scores ? scores[product.scores].ofTokens : isOfTokens(product.right);
  return success();
}
