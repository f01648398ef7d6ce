#include "lib/Algebra/Symmetry.h"

using namespace mlir;
using namespace recur;

Symmetry::Symmetry(RuleOp rule) {
  // All states are, until one is found that is not; then those that are made of it may not be, either.
  auto all = rule.argumentsOf(ArgKind::State);
  states.insert(all.begin(), all.end());
  for (bool changed = true; changed;) {
    changed = false;
    for (auto [state, first, last] : llvm::zip(all, rule.getInitYield().getValues(), rule.yieldedStates()))
      if (states.contains(state) && !(isSymmetric(first) && isSymmetric(last))) {
        states.erase(state);
        known.clear();
        changed = true;
      }
  }
}

bool Symmetry::isSymmetric(Value value) {
  if (auto found = known.find(value); found != known.end())
    return found->second;
  known[value] = false; // until it is found
  bool result = find(value);
  return known[value] = result;
}

// Makes a term its transpose.
static void flip(Term &term) {
  std::reverse(term.chain.begin(), term.chain.end());
  for (Factor &factor : term.chain)
    factor = factor.flipped();
}

// The terms of a sum, multiplied out whatever that would cost. What a polynomial is of stands in it many
// times.
SmallVector<Term> Symmetry::summands(Value value) {
  if (auto found = sums.find(value); found != sums.end())
    return found->second;
  SmallVector<Term> terms = findSummands(value);
  return sums[value] = std::move(terms);
}

SmallVector<Term> Symmetry::findSummands(Value value) {
  Operation *op = value.getDefiningOp();
  if (isa_and_nonnull<AddOp, SubOp>(op)) {
    SmallVector<Term> terms = summands(op->getOperand(0));
    for (Term term : summands(op->getOperand(1))) {
      term.negative ^= isa<SubOp>(op);
      terms.push_back(term);
    }
    return terms;
  }
  for (unsigned i : {0, 1})
    if (isa_and_nonnull<MulOp>(op) && matType(op->getOperand(i)).isScalar()) {
      SmallVector<Term> terms = summands(op->getOperand(1 - i));
      for (Term &term : terms)
        term.scalars.push_back(op->getOperand(i));
      return terms;
    }
  if (auto transpose = dyn_cast_if_present<TransposeOp>(op)) {
    SmallVector<Term> terms = summands(transpose.getOperand());
    llvm::for_each(terms, flip);
    return terms;
  }
  if (auto product = dyn_cast_if_present<MatmulOp>(op)) {
    SmallVector<Term> lhs = summands(product.getLhs()), rhs = summands(product.getRhs());
    if (lhs.size() * rhs.size() <= maxTerms)
      return multiplyTerms(lhs, rhs);
  }
  return expandTerms(value);
}

bool Symmetry::find(Value value) {
  auto type = dyn_cast<MatType>(value.getType());
  if (!type || type.getRows() != type.getCols())
    return false;
  Operation *op = value.getDefiningOp();
  if (type.isScalar() || states.contains(value) || isa_and_nonnull<IdentityOp, DiagOp, ConstantOp>(op))
    return true;
  if (!op)
    return false;
  bool ofEntries = isa<ElementwiseOp, TransposeOp, AssumeOp, BroadcastOp>(op);
  if (ofEntries && llvm::all_of(op->getOperands(), [&](Value operand) { return isSymmetric(operand); }))
    return true;
  return isPalindrome(summands(value));
}

bool Symmetry::isPalindrome(ArrayRef<Term> terms) {
  SmallVector<bool> used(terms.size(), false);
  return llvm::all_of(terms, [&](Term term) {
    flip(term);
    for (auto [other, isUsed] : llvm::zip(terms, used))
      if (!isUsed && areEqual(term, other))
        return isUsed = true;
    return false;
  });
}

bool Symmetry::areEqual(const Term &a, const Term &b) {
  auto sameFactor = [&](const Factor &x, const Factor &y) {
    if (x.diagonal || y.diagonal) // however it is stored
      return x.diagonal == y.diagonal && diagonalColumn(x.value) == diagonalColumn(y.value);
    return x.value == y.value && (x.transposed == y.transposed || isSymmetric(x.value));
  };
  return a.negative == b.negative &&
         std::is_permutation(a.scalars.begin(), a.scalars.end(), b.scalars.begin(), b.scalars.end()) &&
         llvm::equal(a.chain, b.chain, sameFactor);
}

SmallVector<SolveOp> recur::findUnsymmetricSystems(RuleOp rule) {
  SmallVector<SolveOp> systems;
  rule.getBody().walk([&](SolveOp solve) { systems.push_back(solve); });
  if (systems.empty())
    return systems;
  Symmetry symmetry(rule);
  llvm::erase_if(systems, [&](SolveOp solve) { return symmetry.isSymmetric(solve.getMatrix()); });
  return systems;
}
