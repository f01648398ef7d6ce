#include "lib/Cuda/EntryCombinations.h"
#include "dialect/recur/Recur.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

namespace {
// Finds the vectors that a region's sums, and what it yields, are made of.
class VectorFinder {
public:
  explicit VectorFinder(chunk::SubstituteOp op, bool apart)
      : op(op), read(op.getBody().getArgument(0)), apart(apart) {}

  std::optional<Combination> find();

private:
  using Vectors = llvm::SmallSetVector<Value, 4>; // null is that of ones
  bool collect(Value value, Vectors &of);
  bool hasFactor(Value value, std::optional<double> &factor);
  // Whether a value follows from what is read, or from sums of that.
  bool follows(Value value, bool fromSums) {
    Operation *own = value.getDefiningOp();
    if (!own)
      return !fromSums && value == read;
    auto [it, isNew] = known[fromSums].try_emplace(value, false);
    if (isNew) {
      bool found = fromSums && factorsOfSum(own).first;
      for (Value operand : own->getOperands())
        found = found || follows(operand, fromSums);
      known[fromSums][value] = found;
    }
    return known[fromSums][value];
  }

  chunk::SubstituteOp op;
  Value read;
  bool apart; // whether sums of what is read and known vectors are vectors of their own
  DenseMap<Value, bool> known[2];
};
} // namespace

std::pair<Value, Value> cuda::factorsOfSum(Operation *op) {
  auto isColumn = [](Value value) {
    MatType type = matType(value);
    return isOne(type.getCols()) && !type.isScalar();
  };
  if (auto sum = dyn_cast<ReduceOp>(op)) {
    Value of = sum.getOperand();
    if (sum.getKind() != Reduction::Sum || !sum.getType().isScalar() || !isColumn(of))
      return {};
    if (auto product = of.getDefiningOp<MulOp>())
      if (isColumn(product.getOperand(0)) && isColumn(product.getOperand(1)))
        return {product.getOperand(0), product.getOperand(1)};
    return {of, {}};
  }
  if (auto product = dyn_cast<MatmulOp>(op))
    if (auto turned = product.getLhs().getDefiningOp<TransposeOp>();
        turned && product.getType().isScalar() && isColumn(turned.getOperand()))
      return {turned.getOperand(), product.getRhs()};
  return {};
}

// Adds the vectors that a vector is a sum of, or false where it is none.
bool VectorFinder::collect(Value value, Vectors &of) {
  if (!value || matType(value).isScalar()) {
    of.insert(Value());
    return true;
  }
  Operation *own = value.getDefiningOp();
  if (isa_and_present<NegOp, AssumeOp, BroadcastOp>(own))
    return collect(own->getOperand(0), of);
  if (isa_and_present<MulOp, DivOp>(own))
    for (unsigned number : {0, 1})
      if (matType(own->getOperand(number)).isScalar() && (number || isa<MulOp>(own)))
        return collect(own->getOperand(1 - number), of);
  if (isa_and_present<AddOp, SubOp>(own) &&
      (follows(value, /*fromSums=*/true) || (apart && follows(value, /*fromSums=*/false))))
    return collect(own->getOperand(0), of) && collect(own->getOperand(1), of);
  of.insert(value);
  return !follows(value, /*fromSums=*/true);
}

// Whether a vector is what is read times a number, plus what is known; the number, if it is constant.
bool VectorFinder::hasFactor(Value value, std::optional<double> &factor) {
  factor = value == read ? 1 : 0;
  if (value == read || !follows(value, /*fromSums=*/false))
    return true;
  Operation *own = value.getDefiningOp();
  bool isLinear = isa<AssumeOp, NegOp, AddOp, SubOp>(own);
  std::optional<double> first, second;
  if (isLinear && own->getNumOperands() == 2) {
    if (!hasFactor(own->getOperand(0), first) || !hasFactor(own->getOperand(1), second))
      return false;
    factor = std::nullopt;
    if (first && second)
      factor = isa<SubOp>(own) ? *first - *second : *first + *second;
    return true;
  }
  if (isLinear) {
    if (!hasFactor(own->getOperand(0), first))
      return false;
    factor = first && isa<NegOp>(own) ? std::optional<double>(-*first) : first;
    return true;
  }
  factor = std::nullopt;
  for (unsigned number : {0, 1})
    if (isa<MulOp, DivOp>(own) && matType(own->getOperand(number)).isScalar() && (number || isa<MulOp>(own)))
      return !follows(own->getOperand(number), /*fromSums=*/true) &&
             hasFactor(own->getOperand(1 - number), first);
  return false;
}

std::optional<Combination> VectorFinder::find() {
  Vectors written, all;
  SmallVector<std::pair<Vectors, Vectors>> products;
  if (!collect(op.getYield().getValues().front(), written))
    return std::nullopt;
  products.push_back({written, written}); // its own square
  for (Operation &inner : op.getBody().front().without_terminator()) {
    auto [first, second] = factorsOfSum(&inner);
    if (!first)
      continue;
    auto &[left, right] = products.emplace_back();
    if (!collect(first, left) || !collect(second, right))
      return std::nullopt;
  }
  for (auto &[left, right] : products)
    for (Vectors *own : {&left, &right})
      all.insert_range(*own);
  auto followsRead = [&](Value value) { return value && follows(value, /*fromSums=*/false); };
  if (llvm::count_if(all, followsRead) != 1)
    return std::nullopt;
  Value first = *llvm::find_if(all, followsRead);
  Combination found;
  if (!hasFactor(first, found.factor))
    return std::nullopt;
  found.hasOnes = all.contains(Value());
  found.vectors = {first};
  for (Value vector : all)
    if (vector && vector != first)
      found.vectors.push_back(vector);
  SmallVector<Value> inOrder(found.vectors.begin(), found.vectors.end());
  if (found.hasOnes)
    inOrder.push_back(Value());
  for (Value vector : inOrder) {
    found.isWritten.push_back(written.contains(vector));
    found.isAsked.push_back(llvm::any_of(products, [&](auto &product) {
      auto &[left, right] = product;
      return (left.contains(first) && right.contains(vector)) ||
             (left.contains(vector) && right.contains(first));
    }));
  }
  return found;
}

std::optional<Combination> cuda::combinationOf(chunk::SubstituteOp op) {
  constexpr size_t most = 2; // vectors of a token that there is room for
  for (bool apart : {false, true})
    if (std::optional<Combination> found = VectorFinder(op, apart).find();
        found && found->vectors.size() <= most)
      return found;
  return std::nullopt;
}
