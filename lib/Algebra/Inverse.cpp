#include "lib/Algebra/Inverse.h"
#include "lib/Algebra/Symmetry.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;

InverseAlgebra::InverseAlgebra(const NormalForm &nf, unsigned state)
    : rule(nf.rule), tokens(rule), state(nf.states[state]) {
  update.state = state;
}

bool InverseAlgebra::dependsOnState(Value value) {
  if (value == state)
    return true;
  if (auto known = dependent.find(value); known != dependent.end())
    return known->second;
  bool result = false;
  if (Operation *op = value.getDefiningOp())
    result = llvm::any_of(op->getOperands(), [&](Value operand) { return dependsOnState(operand); });
  return dependent[value] = result;
}

//===----------------------------------------------------------------------===//
// Scalars
//===----------------------------------------------------------------------===//

void InverseAlgebra::multiply(Ratio &ratio, const Ratio &other, bool inverse) {
  ratio.number = inverse ? ratio.number / other.number : ratio.number * other.number;
  for (bool up : {true, false})
    for (Value factor : up ? other.up : other.down) {
      auto &same = up != inverse ? ratio.up : ratio.down, &opposite = up != inverse ? ratio.down : ratio.up;
      if (auto *found = llvm::find(opposite, factor); found != opposite.end())
        opposite.erase(found);
      else
        same.insert(llvm::upper_bound(same, factor, [&](Value a, Value b) { return order(a) < order(b); }),
                    factor);
    }
}

void InverseAlgebra::scalar(Ratio &ratio, Value value, bool inverse) {
  FloatAttr number;
  Operation *op = value.getDefiningOp();
  Ratio single;
  if (matchPattern(value, m_Constant(&number)) && number.getValueAsDouble() != 0) {
    single.number = number.getValueAsDouble();
  } else if (isa_and_nonnull<MulOp, DivOp>(op)) {
    scalar(ratio, op->getOperand(0), inverse);
    return scalar(ratio, op->getOperand(1), isa<DivOp>(op) != inverse);
  } else if (isa_and_nonnull<NegOp>(op)) {
    ratio.number = -ratio.number;
    return scalar(ratio, op->getOperand(0), inverse);
  } else {
    single.up.push_back(value);
  }
  multiply(ratio, single, inverse);
}

Value InverseAlgebra::build(const Ratio &ratio) {
  OpBuilder b(rule.getBody().front().getTerminator());
  Location loc = rule.getLoc();
  auto product = [&](double number, ArrayRef<Value> factors) {
    Value result = number == 1 && !factors.empty() ? Value() : ConstantOp::create(b, loc, number).getResult();
    for (Value factor : factors)
      result = result ? MulOp::create(b, loc, result, factor).getResult() : factor;
    return result;
  };
  Value up = product(ratio.number, ratio.up);
  return ratio.down.empty() ? up : DivOp::create(b, loc, up, product(1, ratio.down)).getResult();
}

//===----------------------------------------------------------------------===//
// Multiplying out
//===----------------------------------------------------------------------===//

// Inner products within a chain are scalars.
void InverseAlgebra::takeScalarsOut(Product &product) {
  Chain &chain = product.chain;
  while (auto found = findInnerProduct(chain)) {
    auto [begin, end] = *found;
    Chain inner(chain.begin() + begin, chain.begin() + end + 1);
    chain.erase(chain.begin() + begin, chain.begin() + end + 1);
    if (llvm::any_of(inner, [&](const Factor &factor) { return factor.value == state; }))
      product.inner.push_back(inner);
    else
      scalar(product.c, tokens.chain(rule.getLoc(), MatType::scalar(rule.getContext()), inner));
  }
}

std::optional<InverseAlgebra::Products> InverseAlgebra::expandProduct(Value lhs, Value rhs,
                                                                      bool transposeLhs) {
  std::optional<Products> left = expand(lhs), right = expand(rhs);
  if (!left || !right || left->size() * right->size() > maxTerms)
    return std::nullopt;
  Products result;
  for (const Product &l : *left)
    for (const Product &r : *right) {
      Product product = l;
      if (transposeLhs) {
        std::reverse(product.chain.begin(), product.chain.end());
        for (Factor &factor : product.chain)
          factor = factor.value == state ? factor : factor.flipped();
      }
      multiply(product.c, r.c);
      llvm::append_range(product.inner, r.inner);
      llvm::append_range(product.over, r.over);
      llvm::append_range(product.chain, r.chain);
      takeScalarsOut(product);
      result.push_back(std::move(product));
    }
  return result;
}

static bool isMadeOf(Value value, Value part) {
  Operation *op = value.getDefiningOp();
  return value == part ||
         (op && llvm::any_of(op->getOperands(), [&](Value operand) { return isMadeOf(operand, part); }));
}

// A value without the state: its scalars, and what else it is as one factor. What is divided by its own norm
// stays whole.
std::optional<InverseAlgebra::Products> InverseAlgebra::expandToken(Value value) {
  MatType type = matType(value);
  Product product;
  if (type.isScalar()) {
    scalar(product.c, value);
    return Products{product};
  }
  Operation *op = value.getDefiningOp();
  if (isa_and_nonnull<IdentityOp>(op))
    return Products{product};
  bool scaled = isa_and_nonnull<MulOp, DivOp>(op) &&
                llvm::any_of(op->getOperands(), [](Value operand) { return matType(operand).isScalar(); });
  scaled = scaled && !(isa<DivOp>(op) && isMadeOf(op->getOperand(1), op->getOperand(0)));
  if (isa_and_nonnull<NegOp>(op) || scaled || isa_and_nonnull<TransposeOp>(op) ||
      (isa_and_nonnull<MatmulOp>(op) && isOne(matType(op->getOperand(0)).getCols())))
    return std::nullopt; // by the general cases
  product.chain.push_back({value});
  return Products{product};
}

std::optional<InverseAlgebra::Products> InverseAlgebra::expand(Value value) {
  if (!isa<MatType>(value.getType()))
    return std::nullopt;
  if (value == state) {
    Product product;
    product.chain.push_back({value});
    return Products{product};
  }
  if (!dependsOnState(value))
    if (std::optional<Products> products = expandToken(value))
      return products;
  Operation *op = value.getDefiningOp();
  MatType type = matType(value);
  if (!op)
    return std::nullopt;
  if (isa<AddOp, SubOp>(op)) {
    std::optional<Products> left = expand(op->getOperand(0)), right = expand(op->getOperand(1));
    if (!left || !right || op->getOperand(0).getType() != type || op->getOperand(1).getType() != type)
      return std::nullopt;
    for (Product &product : *right) {
      product.c.number = isa<SubOp>(op) ? -product.c.number : product.c.number;
      left->push_back(std::move(product));
    }
    merge(*left);
    return left;
  }
  if (isa<NegOp>(op)) {
    std::optional<Products> products = expand(op->getOperand(0));
    for (Product &product : products ? *products : Products())
      product.c.number = -product.c.number;
    return products;
  }
  if (auto transpose = dyn_cast<TransposeOp>(op)) {
    std::optional<Products> products = expand(transpose.getOperand());
    if (!products)
      return std::nullopt;
    for (Product &product : *products) {
      std::reverse(product.chain.begin(), product.chain.end());
      for (Factor &factor : product.chain) // the state is symmetric
        factor = factor.value == state ? factor : factor.flipped();
    }
    return products;
  }
  if (auto mul = dyn_cast<MulOp>(op)) {
    if (!matType(mul.getLhs()).isScalar() && !matType(mul.getRhs()).isScalar())
      return std::nullopt;
    return expandProduct(mul.getLhs(), mul.getRhs(), false);
  }
  if (auto div = dyn_cast<DivOp>(op)) {
    std::optional<Products> products = expand(div.getLhs());
    if (!products || !matType(div.getRhs()).isScalar())
      return std::nullopt;
    for (Product &product : *products) {
      if (dependsOnState(div.getRhs()))
        product.over.push_back(div.getRhs());
      else
        scalar(product.c, div.getRhs(), /*inverse=*/true);
    }
    return products;
  }
  if (auto product = dyn_cast<MatmulOp>(op))
    return expandProduct(product.getLhs(), product.getRhs(), false);
  if (auto reduce = dyn_cast<ReduceOp>(op)) {
    auto mul = reduce.getOperand().getDefiningOp<MulOp>();
    if (!mul || !type.isScalar() || reduce.getKind() != Reduction::Sum || !matType(mul.getLhs()).isVector() ||
        mul.getLhs().getType() != mul.getRhs().getType())
      return std::nullopt;
    return expandProduct(mul.getLhs(), mul.getRhs(), true);
  }
  return std::nullopt;
}

void InverseAlgebra::merge(Products &products) {
  Products merged;
  for (Product &product : products) {
    auto same = llvm::find_if(merged, [&](const Product &other) {
      return other.c.up == product.c.up && other.c.down == product.c.down && other.inner == product.inner &&
             other.over == product.over && other.chain == product.chain;
    });
    if (same == merged.end())
      merged.push_back(std::move(product));
    else
      same->c.number += product.c.number;
  }
  llvm::erase_if(merged, [](const Product &product) { return product.c.number == 0; });
  products = std::move(merged);
}

//===----------------------------------------------------------------------===//
// The update
//===----------------------------------------------------------------------===//

bool InverseAlgebra::isQuadratic(const Chain &chain) const {
  return chain.size() == 3 && chain[1].value == state && chain[2] == Factor{update.key} &&
         chain[0] == Factor{update.key}.flipped();
}

bool InverseAlgebra::denominator(Value value, Ratio &weight, std::vector<Ratio> &offset) {
  std::optional<Products> products = expand(value);
  if (!products)
    return false;
  merge(*products);
  unsigned quadratic = 0;
  for (const Product &product : *products) {
    if (!product.over.empty() || !product.chain.empty() || product.inner.size() > 1)
      return false;
    if (product.inner.empty()) {
      offset.push_back(product.c);
      continue;
    }
    if (!isQuadratic(product.inner[0]))
      return false;
    weight = product.c;
    ++quadratic;
  }
  return quadratic == 1 && !offset.empty();
}

static bool sameRatio(const Ratio &a, const Ratio &b) {
  return a.number == b.number && a.up == b.up && a.down == b.down;
}

std::optional<InverseUpdate> InverseAlgebra::recognise() {
  MatType type = matType(state);
  if (!isMatrix(type) || type.getRows() != type.getCols())
    return std::nullopt;
  if (!Symmetry(rule).isSymmetric(rule.getInitYield().getValues()[update.state]))
    return std::nullopt;
  std::optional<Products> products = expand(rule.yieldedStates()[update.state]);
  if (!products)
    return std::nullopt;
  merge(*products);
  const Product *kept = nullptr, *lost = nullptr;
  for (const Product &product : *products)
    (product.chain.size() == 1 ? kept : lost) = &product;
  auto isState = [&](const Factor &factor) { return factor.value == state; };
  if (products->size() != 2 || !kept || !lost || !kept->inner.empty() || !kept->over.empty() ||
      !isState(kept->chain[0]) || !lost->inner.empty() || lost->over.size() != 1 || lost->chain.size() != 4 ||
      !isState(lost->chain[0]) || !isState(lost->chain[3]) || !(lost->chain[1].flipped() == lost->chain[2]))
    return std::nullopt;
  update.key = lost->chain[1].value;
  if (lost->chain[1].transposed || !matType(update.key).isVector() ||
      !denominator(lost->over[0], update.weight, update.offset))
    return std::nullopt;
  // What is lost is the kept part's scale times the weight.
  Ratio expected = kept->c, found = lost->c;
  multiply(expected, update.weight);
  found.number = -found.number;
  bool isPositive = kept->c.number > 0 && update.weight.number > 0 &&
                    llvm::all_of(update.offset, [](const Ratio &ratio) { return ratio.number > 0; });
  if (!sameRatio(expected, found) || !isPositive)
    return std::nullopt;
  multiply(update.decay, kept->c, /*inverse=*/true);
  return update;
}

//===----------------------------------------------------------------------===//
// What is read
//===----------------------------------------------------------------------===//

std::optional<std::vector<InverseTerm>> InverseAlgebra::terms(Value value) {
  std::optional<Products> products = expand(value);
  if (!products || (!matType(value).isScalar() && !matType(value).isVector()))
    return std::nullopt;
  merge(*products);
  std::vector<InverseTerm> result;
  for (const Product &product : *products) {
    InverseTerm term{product.c, unsigned(product.inner.size()), unsigned(product.over.size()), false, {}};
    if (!llvm::all_of(product.inner, [&](const Chain &chain) { return isQuadratic(chain); }))
      return std::nullopt;
    for (Value over : product.over) { // a multiple of the update's
      Ratio weight;
      std::vector<Ratio> offset;
      if (!denominator(over, weight, offset) || offset.size() != update.offset.size())
        return std::nullopt;
      multiply(weight, update.weight, /*inverse=*/true);
      for (auto [mine, its] : llvm::zip(update.offset, offset)) {
        Ratio scaled = mine;
        multiply(scaled, weight);
        if (!sameRatio(scaled, its))
          return std::nullopt;
      }
      multiply(term.c, weight, /*inverse=*/true);
    }
    ArrayRef<Factor> chain = product.chain;
    term.reads = chain.size() == 2 && chain[0].value == state && chain[1] == Factor{update.key};
    if (!term.reads && llvm::any_of(chain, [&](const Factor &factor) { return factor.value == state; }))
      return std::nullopt;
    if (!term.reads && !chain.empty())
      term.column = tokens.chain(rule.getLoc(), matType(value), chain);
    result.push_back(std::move(term));
  }
  simplify(result);
  return result;
}

// x - x w kT P k / d is x e / d: the difference of two nearly equal vectors is a small one.
void InverseAlgebra::simplify(std::vector<InverseTerm> &terms) {
  for (size_t i = 0; i < terms.size(); ++i)
    for (size_t j = 0; j < terms.size(); ++j) {
      Ratio opposite = terms[i].c;
      multiply(opposite, update.weight);
      opposite.number = -opposite.number;
      if (terms[j].inner != terms[i].inner + 1 || terms[j].over != terms[i].over + 1 ||
          terms[j].reads != terms[i].reads || terms[j].column != terms[i].column ||
          !sameRatio(opposite, terms[j].c))
        continue;
      InverseTerm left = terms[i];
      ++left.over;
      terms.erase(terms.begin() + std::max(i, j));
      terms.erase(terms.begin() + std::min(i, j));
      for (const Ratio &offset : update.offset) {
        terms.push_back(left);
        multiply(terms.back().c, offset);
      }
      return simplify(terms);
    }
}
