#include "lib/Cuda/GatherPlan.h"
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/SolvedPlan.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static Value transposed(Value value) {
  auto transpose = value.getDefiningOp<TransposeOp>();
  return transpose ? transpose.getOperand() : Value();
}

// Takes columns of weights off a product of them with rows.
static Value takeWeights(Value rows, SmallVectorImpl<Value> &weights) {
  while (auto scaled = rows.getDefiningOp<MulOp>()) {
    unsigned i = 0;
    while (i < 2 && !isTokenColumn(scaled->getOperand(i)))
      ++i;
    if (i == 2)
      break;
    weights.push_back(scaled->getOperand(i));
    rows = scaled->getOperand(1 - i);
  }
  return rows;
}

std::optional<GatheredState> GatheredState::find(chunk::ProgramOp program, unsigned state,
                                                 ArrayRef<TensorArgument> tensors) {
  GatheredState found;
  found.state = program.argumentsOf(ArgKind::State)[state];
  // Programs hold a row for each key: where the state's own are the independent ones, its transposed.
  bool isTurned = ChunkEmitter::stateDim(found.state) == 0;
  Value next = program.getBodyYield().getValues()[state];
  if (isTurned)
    next = transposed(next);
  auto sum = next ? next.getDefiningOp<AddOp>() : AddOp();
  if (!sum)
    return std::nullopt;
  auto isState = [&](Value value) { return (isTurned ? transposed(value) : value) == found.state; };
  MatmulOp product;
  for (unsigned i : {0, 1}) {
    Value faded = sum->getOperand(i);
    auto scaled = faded.getDefiningOp<MulOp>();
    for (unsigned j : {0, 1})
      if (scaled && isState(scaled->getOperand(j)) && matType(scaled->getOperand(1 - j)).numElements() == 1)
        found.fade = scaled->getOperand(1 - j);
    if (found.fade || isState(faded)) {
      product = sum->getOperand(1 - i).getDefiningOp<MatmulOp>();
      break;
    }
  }
  Value left = product ? transposed(product.getLhs()) : Value();
  if (!left)
    return std::nullopt;
  found.keys = takeWeights(left, found.weights);
  found.rows = takeWeights(product.getRhs(), found.weights);
  SmallVector<Value> parts(found.weights);
  parts.append({found.keys, found.rows});
  if (found.fade)
    parts.push_back(found.fade);
  for (Value state : program.argumentsOf(ArgKind::State))
    if (llvm::any_of(parts, [&](Value part) { return dependsOn(part, state); }))
      return std::nullopt;
  auto isTokens = [](Value value) { return isa<StringAttr>(matType(value).getRows()); };
  if (!isTokens(found.keys) || !isTokens(found.rows) || !areUnitRows(found.keys))
    return std::nullopt;
  auto fits = [](int64_t n) { return n == 64 || n == 128; };
  if (!fits(found.countRows()) || !fits(found.countKeys()))
    return std::nullopt;
  if (!found.areInput())
    return areUnitRows(found.rows) ? std::optional(found) : std::nullopt;
  auto inputs = program.argumentsOf(ArgKind::Input);
  auto input = llvm::find(inputs, found.rows);
  if (input == inputs.end())
    return std::nullopt;
  FloatType element = tensors[input - inputs.begin()].element;
  return element.getWidth() == 16 ? std::optional(found) : std::nullopt;
}

SmallVector<GatheredState> cuda::findGathered(chunk::ProgramOp program, ArrayRef<unsigned> numbers,
                                              ArrayRef<TensorArgument> tensors) {
  llvm::SmallSetVector<unsigned, 4> once(numbers.begin(), numbers.end());
  if (once.size() != numbers.size() || once.size() != program.argumentsOf(ArgKind::State).size())
    return {};
  SmallVector<GatheredState> states;
  for (unsigned state : numbers) {
    std::optional<GatheredState> found = GatheredState::find(program, state, tensors);
    if (!found || (!states.empty() && found->keys != states.front().keys))
      return {};
    states.push_back(*found);
  }
  return states;
}
