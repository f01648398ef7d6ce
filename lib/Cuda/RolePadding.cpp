// Sizes that tiles do not have: a program's tiles are larger than its tensors then, and what memory lacks is
// read as zero and not stored. Independent rows that do not exist change no others. Keys that do not exist
// change nothing where they are zero in all that is summed over them.
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/RolePlan.h"
#include "lib/Cuda/Stages.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

std::optional<int64_t> cuda::sizeOfTile(int64_t size) {
  // The copy engine wants whole packets of 16 bytes.
  if (size % 8)
    return std::nullopt;
  if (size > mostKeysBeside && size <= keysWithVector)
    return keysWithVector;
  return size <= rowsOfSlab ? rowsOfSlab : llvm::alignTo(size, 2 * rowsOfSlab);
}

bool RolePlan::takesKeys() const {
  auto isOfKeys = [&](Operation *sum) { return matType(sum->getOperand(0)).numRows() == keys; };
  return keys != keysWithVector ||
         (countStates() == 1 && !decay && !normaliser && llvm::none_of(reductions, isOfKeys));
}

bool RolePlan::isPadded() const {
  return llvm::any_of(tensors, [](const TensorArgument &t) { return t.inMemory[0] || t.inMemory[1]; });
}

int64_t RolePlan::keysInMemory() const {
  int64_t size = tensors[initialTensor() + stateOfRule(0)].inMemory[1 - independentDim];
  return size ? size : keys;
}

int64_t RolePlan::rowsInMemory() const {
  int64_t size = tensors[initialTensor() + stateOfRule(0)].inMemory[independentDim];
  return size ? size : independent;
}

bool RolePlan::vanishes(Value value, bool withParams) const {
  value = trace(value);
  Operation *op = value.getDefiningOp();
  if (auto constant = dyn_cast_if_present<ConstantOp>(op))
    return constant.getValue().isZero();
  if (isNumber(value))
    return false;
  if (!op)
    return withParams ||
           program.getArg(cast<BlockArgument>(value).getArgNumber()).getKind() != ArgKind::Param;
  auto vanish = [&](Value operand) { return vanishes(operand, withParams); };
  if (isa<MulOp>(op))
    return llvm::any_of(op->getOperands(), vanish);
  if (isa<DivOp>(op))
    return vanish(op->getOperand(0));
  auto function = dyn_cast<ElementwiseOp>(op);
  return function && llvm::all_of(op->getOperands(), vanish) &&
         function.evaluate(SmallVector<double>(op->getNumOperands(), 0)) == 0;
}

// A system of more tokens than keys, whose states nothing makes smaller, is off by more than half precision
// is in other programs (64 tokens, rates up to 1: 4.9e-3 with 96 keys, 5.4e-3 with 64, 6.3e-3 with 32; with
// rests 3.3e-3). With more keys it is off by too much where what follows adds to that, and for f16 where keys
// are alike: 128 keys, 1000 tokens 1.7e-3, with the inverse in two parts 6.0e-4.
void RolePlan::keepDigits() {
  chunk::GramOp gram = system ? splitScores(system).second : chunk::GramOp();
  bool staysAsItWas = gram && states == 1 && !gram.getDecay() && !rescales();
  int64_t left = keysInMemory() - tokensOfChunk;
  keepsRests |= staysAsItWas && (left < 0 || (left == 0 && program->hasAttr(followedAttr)) ||
                                 program->hasAttr(magnifiedAttr));
  // A vector's columns (WidenedVectors.h) are all off by the same, which those of others do not outweigh.
  // (Records of chunks have no room for more digits.)
  // Those of a vector that is part of a state, along which all tokens are alike, are that, too.
  const TensorArgument &ofState = tensors[initialTensor() + stateOfRule(0)];
  bool isVector = !ofState.own[1 + independentDim];
  bool hasVector = llvm::any_of(ofState.parts, [](const auto &part) { return part.isVector; });
  keepsRests |= gram && states == 1 && isVector && !decay && !rescales();
  keepsRests |= staysAsItWas && hasVector;
  splitsInverse = keepsRests || (staysAsItWas && (left == 0 || isF16));
  refinesInverse |= isF16 && staysAsItWas && isTame();
}

bool RolePlan::endsInZeros() const {
  // The run-time library tells rows from columns by which are more.
  auto areSteps = [&](const TensorArgument &tensor) {
    return tensor.stepsLast || (tensor.own[0] && tensor.inMemory[0] && tensor.inMemory[0] < steps);
  };
  if (llvm::any_of(tensors, areSteps))
    return false;
  for (Operation *sum : reductions)
    if (!vanishes(cast<ReduceOp>(sum).getOperand(), /*withParams=*/true))
      return false;
  auto vanish = [&](Value rows) { return vanishes(rows, /*withParams=*/true); };
  for (chunk::GramOp gram : grams)
    for (Value side : {gram.getLhs(), gram.getRhs()})
      if (std::optional<TokenTile> tile = asRows(side); !tile || !vanish(tile->rows()))
        return false;
  return llvm::all_of(made, [&](const MadeTile &tile) { return vanish(tile.rows); });
}
