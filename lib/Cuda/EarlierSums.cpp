// Sums over the rows of the state, taken before others that they need not wait for.
//
// All warps meet for a sum over the state's rows, and once for all sums that wait for no other. A gradient
// through a layer norm has four that follow from one another: the mean; with it the square of what is left;
// with its root the inner product of that and the loss' gradient; with that the mean of what comes out. But a
// number that comes late is often a factor of what is summed,
//     sum((n*x + y).*z) = n*sum(x.*z) + sum(y.*z),
// so that it need not wait for that number. Sums more are instructions more, so each has to save a meeting.
// Only what is linear is taken apart, of a product one factor: a square of x - n*y is not x*x - 2*n*x*y +
// n*n*y*y, whose digits cancel out.
#include "lib/Cuda/EntryCombinations.h"
#include "lib/Cuda/EntryFunctions.h"
#include "mlir/IR/Dominance.h"
#include "mlir/Transforms/CSE.h"
#include "mlir/Transforms/RegionUtils.h"

#include "llvm/ADT/ScopeExit.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

namespace {
class EarlierSums {
public:
  explicit EarlierSums(chunk::SubstituteOp op) : op(op), rewriter(op.getContext()) {}

  /// Takes sums no later than behind `most` others, or leaves all as it is.
  bool run(int64_t most);

private:
  /// A vector, null for that of ones, times numbers that may come later.
  struct Term {
    Value number, vector;
  };
  using Terms = SmallVector<Term, 4>;

  int64_t depthOf(Value value);
  Value times(Value x, Value y);
  std::optional<Terms> termsOf(Value vector), findTerms(Value vector);
  Terms joined(const Terms &all);
  std::optional<Terms> productOf(const Terms &left, const Terms &right);
  Value sumOf(Value vector, MatType type);
  void multiplyNumbersFirst();

  chunk::SubstituteOp op;
  IRRewriter rewriter;
  Location loc = op.getLoc();
  int64_t most = 0;
  DenseMap<Value, int64_t> depths;
  DenseMap<Value, std::optional<Terms>> known;
  DenseMap<std::pair<Value, Value>, Value> products; // of one sum: equal vectors are one
};
} // namespace

// How many sums that follow from one another a value follows from.
int64_t EarlierSums::depthOf(Value value) {
  Operation *own = value.getDefiningOp();
  if (!own)
    return 0;
  if (auto found = depths.find(value); found != depths.end())
    return found->second;
  int64_t depth = 0;
  for (Value operand : own->getOperands())
    depth = std::max(depth, depthOf(operand));
  return depths[value] = depth + isSum(own);
}

// The product of two values, of which none is 1.
Value EarlierSums::times(Value x, Value y) {
  if (!x || !y)
    return x ? x : y;
  Value &product = products[{x, y}];
  if (!product)
    product = MulOp::create(rewriter, loc, x, y);
  return product;
}

std::optional<EarlierSums::Terms> EarlierSums::productOf(const Terms &left, const Terms &right) {
  if (left.size() > 1 && right.size() > 1)
    return std::nullopt;
  Terms terms;
  for (const Term &x : left)
    for (const Term &y : right)
      terms.push_back({times(x.number, y.number), times(x.vector, y.vector)});
  return terms;
}

// Fewer terms: what has no late number is one vector, and what one vector is multiplied by one number.
EarlierSums::Terms EarlierSums::joined(const Terms &all) {
  auto add = [&](Value x, Value y) { return x ? AddOp::create(rewriter, loc, x, y).getResult() : y; };
  Term early;
  Terms terms;
  for (const Term &term : all) {
    if (term.vector && (!term.number || depthOf(term.number) <= most)) {
      early.vector = add(early.vector, times(term.number, term.vector));
      continue;
    }
    auto *same = llvm::find_if(terms, [&](const Term &other) { return other.vector == term.vector; });
    if (same == terms.end())
      terms.push_back(term);
    else
      same->number = add(same->number, term.number);
  }
  if (early.vector)
    terms.push_back(early);
  return terms;
}

// What a vector is a sum of: vectors that follow from no more than `most` sums, and numbers of theirs.
std::optional<EarlierSums::Terms> EarlierSums::termsOf(Value vector) {
  auto [found, isNew] = known.try_emplace(vector);
  if (isNew) {
    std::optional<Terms> terms = findTerms(vector);
    return known[vector] = terms;
  }
  return found->second;
}

std::optional<EarlierSums::Terms> EarlierSums::findTerms(Value vector) {
  if (matType(vector).isScalar())
    return Terms{{vector, Value()}};
  Operation *own = vector.getDefiningOp();
  auto ofOperand = [&](unsigned i) { return termsOf(own->getOperand(i)); };
  bool isLate = depthOf(vector) > most;
  if (isa_and_present<BroadcastOp, AssumeOp>(own) && (isLate || isa<BroadcastOp>(own)))
    return ofOperand(0);
  if (isa_and_present<NegOp>(own)) {
    std::optional<Terms> x = ofOperand(0);
    return x ? productOf({{ConstantOp::create(rewriter, loc, -1.0), Value()}}, *x) : std::nullopt;
  }
  if (isa_and_present<MulOp, DivOp>(own) &&
      (isLate || matType(own->getOperand(1)).isScalar() || matType(own->getOperand(0)).isScalar())) {
    std::optional<Terms> x = ofOperand(0);
    if (isa<MulOp>(own)) {
      std::optional<Terms> y = ofOperand(1);
      return x && y ? productOf(*x, *y) : std::nullopt;
    }
    Value divisor = own->getOperand(1);
    if (x && matType(divisor).isScalar()) {
      for (Term &term : *x) {
        Value number = term.number ? term.number : ConstantOp::create(rewriter, loc, 1.0);
        term.number = DivOp::create(rewriter, loc, number, divisor);
      }
      return x;
    }
  }
  if (!isLate)
    return Terms{{Value(), vector}};
  if (!isa<AddOp, SubOp>(own))
    return std::nullopt;
  std::optional<Terms> x = ofOperand(0), y = ofOperand(1);
  if (y && isa<SubOp>(own))
    y = productOf({{ConstantOp::create(rewriter, loc, -1.0), Value()}}, *y);
  if (!x || !y)
    return std::nullopt;
  x->append(*y);
  return joined(*x);
}

// The sum of a vector's entries.
Value EarlierSums::sumOf(Value vector, MatType type) {
  if (!vector)
    return ConstantOp::create(rewriter, loc, double(type.numRows()));
  return ReduceOp::create(rewriter, loc, Reduction::Sum, vector, /*rows=*/true, /*cols=*/false);
}

// m*(n*x) as (m*n)*x: a lane has numbers of one token, but entries of several.
void EarlierSums::multiplyNumbersFirst() {
  auto isNumber = [](Value value) { return matType(value).isScalar(); };
  for (auto outer : llvm::make_early_inc_range(op.getBody().front().getOps<MulOp>()))
    for (unsigned i : {0, 1}) {
      auto inner = outer->getOperand(1 - i).getDefiningOp<MulOp>();
      if (!isNumber(outer->getOperand(i)) || !inner || isNumber(inner.getResult()))
        continue;
      for (unsigned j : {0, 1})
        if (isNumber(inner->getOperand(j)) && !isNumber(inner->getOperand(1 - j))) {
          rewriter.setInsertionPoint(outer);
          Value number = MulOp::create(rewriter, loc, outer->getOperand(i), inner->getOperand(j));
          Value vector = inner->getOperand(1 - j);
          rewriter.modifyOpInPlace(outer, [&] { outer->setOperands({number, vector}); });
          break;
        }
    }
}

bool EarlierSums::run(int64_t most) {
  this->most = most;
  multiplyNumbersFirst();
  Block &body = op.getBody().front();
  for (Operation &own : llvm::make_early_inc_range(body.without_terminator())) {
    auto [left, right] = factorsOfSum(&own);
    bool isLate = isSum(&own) && depthOf(own.getResult(0)) > most + 1;
    if (!left && isLate)
      return false;
    if (!left)
      continue;
    rewriter.setInsertionPoint(&own);
    std::optional<Terms> x = left ? termsOf(left) : std::nullopt, y = right ? termsOf(right) : std::nullopt;
    std::optional<Terms> terms = x && y ? productOf(*x, *y) : right ? std::nullopt : x;
    if (!isLate && (!terms || terms->size() > 1 || !terms->front().number))
      continue;
    if (!terms)
      return false;
    Value sum;
    for (const Term &term : *terms) {
      Value part = times(term.number, sumOf(term.vector, matType(left)));
      sum = sum ? AddOp::create(rewriter, loc, sum, part) : part;
    }
    rewriter.replaceOp(&own, sum);
    depths.clear();
    known.clear(); // of values that are no more
    products.clear();
  }
  return true;
}

void cuda::takeSumsEarlier(chunk::SubstituteOp op) {
  constexpr int64_t worth = 1; // sums more, for meeting once less
  if (combinationOf(op))       // inner products of vectors, which are known as it is
    return;
  int64_t depth = depthOfSums(op), count = countSums(op);
  for (int64_t most = 0; most < depth; ++most) {
    auto copy = cast<chunk::SubstituteOp>(op->clone());
    llvm::scope_exit erase([&] { copy->erase(); });
    IRRewriter rewriter(op.getContext());
    DominanceInfo dominance;
    bool isEarlier = EarlierSums(copy).run(most);
    eliminateCommonSubExpressions(rewriter, dominance, copy);
    (void)runRegionDCE(rewriter, copy->getRegions());
    if (!isEarlier || countSums(copy) > count + worth * (depth - most - 1))
      continue;
    op.getBody().takeBody(copy.getBody());
    return;
  }
}
