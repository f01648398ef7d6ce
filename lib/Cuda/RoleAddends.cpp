// Sums of the chain: a product goes on with the registers of what it is added to, so that neither has sums of
// its own.
//
// Numbers that a product's columns are times come behind it. So what is summed without them has the same
// ones, or they are left to the sum: k.T*S and scores times values are both times what k is divided by.
#include "lib/Cuda/RolePlan.h"
#include "lib/Cuda/Stages.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

std::optional<RowFactors> cuda::without(RowFactors factors, ArrayRef<RowFactor> others) {
  for (RowFactor other : others) {
    auto *found = llvm::find(factors, other);
    if (found == factors.end())
      return std::nullopt;
    factors.erase(found);
  }
  return factors;
}

static bool areSame(const RowFactors &x, const RowFactors &y) {
  return x.size() == y.size() && without(x, y).has_value();
}

// The factors of a product's columns that follow it.
RowFactors RolePlan::resultScaleOf(MatmulOp product) const {
  Value lhs = product.getLhs();
  if (isScores(lhs))
    return splitScores(lhs).first;
  auto tile = lhs.getDefiningOp<TransposeOp>() ? std::nullopt : asTile(lhs);
  return tile ? tile->scale : RowFactors();
}

// Those of a product, or of all products that a sum consists of, each of which is for nothing else.
std::optional<RowFactors> RolePlan::scaleOfSum(Value value) const {
  Operation *op = value.getDefiningOp();
  if (!op || !op->hasOneUse())
    return std::nullopt;
  if (auto product = dyn_cast<MatmulOp>(op))
    return resultScaleOf(product);
  if (!isa<AddOp>(op))
    return std::nullopt;
  std::optional<RowFactors> first = scaleOfSum(op->getOperand(0)), second = scaleOfSum(op->getOperand(1));
  return first && second && areSame(*first, *second) ? first : std::nullopt;
}

// The wave that a sum can be used in, where one of its addends is a product that goes on with the other.
std::optional<FailureOr<unsigned>> RolePlan::visitSum(AddOp sum, Value value) {
  MatmulOp best;
  unsigned bestWave = 0, at = 0;
  for (unsigned i : {1, 0}) {
    auto product = sum->getOperand(i).getDefiningOp<MatmulOp>();
    // What is read of two states is made at once, and summed where it has been.
    if (!product || !product->hasOneUse() ||
        ((states > 1 || program->hasAttr(magnifiedAttr)) && stateOf(leftOf(product)) >= 0))
      continue;
    FailureOr<unsigned> wave = visit(leftOf(product));
    if (failed(wave))
      return failure();
    RowFactors factors = resultScaleOf(product);
    std::optional<RowFactors> other = scaleOfSum(sum->getOperand(1 - i));
    if ((factors.empty() || (other && without(*other, factors))) && (!best || *wave > bestWave)) {
      best = product;
      bestWave = *wave;
      at = i;
    }
  }
  if (!best)
    return std::nullopt;
  Value other = strip(sum->getOperand(1 - at));
  FailureOr<unsigned> when = visit(other);
  if (failed(when))
    return failure();
  RowFactors factors = resultScaleOf(best), rest;
  if (!factors.empty()) {
    auto *start = llvm::find_if(products, [&](const ChainProduct &p) { return p.result == other; });
    std::optional<RowFactors> left =
        start == products.end() ? std::nullopt : without(start->resultScale, factors);
    if (!left)
      return std::nullopt;
    rest = *left;
  }
  // It may wait for what it is summed onto.
  bool isWhole = rest.empty();
  if (isWhole && *when > bestWave + 1)
    bestWave = *when - 1;
  // What is written beside what a system says waits, too: sums of its own would take their registers.
  bool solves = !program.getBody().getOps<chunk::TriSolveOp>().empty() ||
                !program.getBody().getOps<chunk::SubstituteOp>().empty();
  if (!decay && states == 1 && solves && asTile(leftOf(best)))
    bestWave = std::max(bestWave, *when);
  // Of many keys no second copy of the state has room beside what reads it.
  if (isWide() && !statesOnly && best.getLhs().getDefiningOp<TransposeOp>())
    bestWave = std::max(bestWave, 1u);
  // What two states take in waits for what is read of them.
  if (states > 1)
    bestWave = std::max({bestWave, *when, 1u});
  // Sums that are on their way have the scale of another left side's rows.
  if (isF16)
    bestWave = std::max(bestWave, *when);
  bool chained = isWhole && *when == bestWave + 1 && !products.empty() && products.back().result == other &&
                 areSame(products.back().resultScale, factors) && other.hasOneUse() &&
                 (states == 1 || stateOf(products.back().left) < 0);
  if (*when > bestWave && !chained)
    return std::nullopt;
  FailureOr<unsigned> done = visitProduct(best, value, other, chained, bestWave);
  if (succeeded(done) && !factors.empty() && !chained)
    products.back().startScale = rest;
  return done;
}
