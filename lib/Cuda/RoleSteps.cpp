// The part of a plan that concerns micro-steps, and reads at one time: a chunk's rows are those of its
// tokens, and what only outputs follow from has a row for each token.
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/MicroSteps.h"
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

unsigned RolePlan::initialTensor() const {
  return program.argumentsOf(ArgKind::Input).size() + program.argumentsOf(ArgKind::Param).size() -
         rowNumbers.size() - stacked.size() - nextNumbers();
}

Value RolePlan::ofToken(BlockArgument input) const {
  auto inputs = program.argumentsOf(ArgKind::Input);
  size_t count = nextNumbers(), at = llvm::find(inputs, input) - inputs.begin();
  if (at == inputs.size() || at + count < inputs.size())
    return {};
  return program.getBodyYield().getValues().take_back(inputs.size() - at)[0];
}

bool RolePlan::isForNextAlone(BlockArgument input) const {
  auto isLast = [&](OpOperand &use) {
    Operation *yield = program.getBodyYield();
    return use.getOwner() == yield && use.getOperandNumber() + nextNumbers() >= yield->getNumOperands();
  };
  return rotated && llvm::all_of(input.getUses(), [&](OpOperand &use) {
           auto map = dyn_cast<chunk::MapOp>(use.getOwner());
           return isLast(use) || (map && llvm::all_of(map->getUses(), isLast));
         });
}

// What a chunk's rows are: tokens, or the micro-steps of some, or their reads.
LogicalResult RolePlan::findRows() {
  // A program of micro-steps has an input more than the rule.
  auto inputs = program.argumentsOf(ArgKind::Input);
  stacked = stackedInputs(program);
  rotated = rotatedUpdate(program);
  readsFirst = program->hasAttr(readsFirstAttr);
  if (!stacked.empty()) {
    size_t rows = stacked.front().rows.size();
    llvm::append_range(rowNumbers, ArrayRef(inputs).take_back(rows - 1));
    atOnce = program->hasAttr(rowsAttr);
    inTurn = isStacked() && program->hasAttr(inTurnAttr);
    steps = atOnce ? llvm::PowerOf2Ceil(rows) : rows;
  } else if (inputs.size() - nextNumbers() > size_t(llvm::count_if(tensors, [](const TensorArgument &tensor) {
               return tensor.argument && tensor.hasToken;
             }))) {
    rowNumbers.push_back(inputs.back());
    atOnce = program->hasAttr(rowsAttr);
    for (BlockArgument input : ArrayRef(inputs).drop_back(1 + nextNumbers()))
      if (auto type = dyn_cast<StepsType>(tensors[tensorOf(input)].type); type && !input.use_empty())
        steps = cast<IntegerAttr>(type.getCount()).getInt();
  }
  // Blocks of eight rows are whole tokens'.
  if (atOnce && 8 % steps)
    return failure();
  if (!rowNumbers.empty())
    isFirst = rowNumbers.front();
  if (steps > tokensOfChunk)
    return failure();
  tokens = tokensOfChunk / steps;
  columns = llvm::alignTo(tokens, 16);
  return success();
}

const StackedInput *RolePlan::stackedOf(BlockArgument input) const {
  auto *found =
      llvm::find_if(stacked, [&](const StackedInput &own) { return own.argument == input.getArgNumber(); });
  return found == stacked.end() ? nullptr : found;
}

SmallVector<std::optional<unsigned>, 2> RolePlan::tensorsOf(BlockArgument input) const {
  const StackedInput *own = stackedOf(input);
  if (!own)
    return {tensorOf(input)};
  SmallVector<std::optional<unsigned>, 2> tensors(own->rows.size());
  for (auto [tensor, row] : llvm::zip(tensors, own->rows))
    if (row)
      tensor = tensorOf(program.getBody().getArgument(*row));
  return tensors;
}

BlockArgument RolePlan::oneRowLater(BlockArgument input) const {
  const StackedInput *own = stackedOf(input);
  bool isShared = isStacked() && own && !own->rows[0] && !neededInputs.contains(input);
  for (BlockArgument other : isShared ? neededInputs.getArrayRef() : ArrayRef<BlockArgument>())
    if (const StackedInput *stack = stackedOf(other); stack && stack->rows[0] == own->rows[1])
      return other;
  return {};
}

// What is written along a token's second vector may have what is written along the first one for a part,
// which the chain has beside it.
void RolePlan::shareRows() {
  if (!isStacked() || states > 1 || decay || rowDecay || ownSystem >= 0)
    return;
  auto isOf = [&](Value value, BlockArgument input) {
    std::optional<TokenTile> tile = value ? asTile(value) : std::nullopt;
    return tile && tile->input == input;
  };
  for (BlockArgument input : llvm::to_vector(neededInputs)) {
    bool isMultiplied = isForScores(input) || llvm::any_of(products, [&](const ChainProduct &product) {
                          return isOf(product.left, input) || isOf(product.right, input);
                        });
    neededInputs.remove(input);
    if (isMultiplied || summedInputs.contains(input) || !oneRowLater(input))
      neededInputs.insert(input);
  }
}

int64_t RolePlan::filledRows(BlockArgument input) const {
  if (stackedOf(input))
    return tokens * llvm::count_if(tensorsOf(input), [](auto tensor) { return tensor.has_value(); });
  return hasSteps(input) ? tokens * steps : tokens;
}

// Whether a value's rows are all tokens, or all micro-steps. Numbers are known for both.
bool RolePlan::isOf(bool ofTokens, Value value) const {
  value = trace(strip(value));
  if (std::optional<TokenTile> tile = asTile(value))
    return isOf(ofTokens, tile->input);
  Operation *op = value.getDefiningOp();
  if (!op || isa<chunk::DecayOp>(op) || isRow(value) || isOfDecay(value) || isWholeOfKeys(value) ||
      isOfRows(value))
    return true;
  if (auto gram = dyn_cast<chunk::GramOp>(op))
    return isOf(ofTokens, gram.getLhs()) && isOf(false, gram.getRhs());
  if (auto product = dyn_cast<MatmulOp>(op)) {
    bool isDepth = product.getLhs().getDefiningOp<TransposeOp>() != nullptr;
    return isOf(ofTokens && !isDepth, product.getLhs()) && isOf(false, product.getRhs());
  }
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    return isOf(ofTokens && !isa<chunk::TriSolveOp, chunk::SubstituteOp>(op), operand);
  });
}

// Whether an output follows from values of rows, and from tiles of tokens.
bool RolePlan::isPicked(Value value) const {
  value = trace(strip(value));
  Operation *op = value.getDefiningOp();
  return isOf(false, value) || asTile(value) ||
         (isa_and_present<ElementwiseOp>(op) &&
          llvm::all_of(op->getOperands(), [&](Value operand) { return isPicked(operand); }));
}

// With micro-steps, outputs are those of tokens, and all else is that of micro-steps.
LogicalResult RolePlan::findSteps() {
  if (steps == 1)
    return success();
  auto yielded = program.getBodyYield().getValues().take_front(countStates() + countOutputs());
  auto outputs = yielded.drop_front(countStates());
  rowOutputs = atOnce && !outputs.empty() && tensors[outputTensor(0)].own[2];
  picksOutputs = isStacked() && rowDecay && !rescales() && !outputs.empty();
  for (unsigned output = 0; output < countOutputs(); ++output)
    if (!(picksOutputs ? isPicked(outputs[output]) : isOf(!rowOutputs, outputs[output])) ||
        tensors[outputTensor(output)].own[2] != rowOutputs)
      return failure();
  if (states > 1 || (rowOutputs && rescales()) || !isOf(false, yielded[0]))
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
