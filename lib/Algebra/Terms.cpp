// Terms of values, and values from terms.
//
// Expanding a sum inside a product pays only when its terms are cheaper than their sum: identities,
// diagonals, products through a dimension of 1. A sum with a dense term stays one factor, but for what is
// read of a sum with a product of matrices: (M*C - G)*q is M*(C*q) - G*q.
#include "lib/Algebra/Terms.h"
#include "lib/Algebra/Bounds.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Matchers.h"

#include <cmath>
#include <limits>

using namespace mlir;
using namespace recur;

// A diagonal may be given as a column or as a row.
static Attribute diagonalLength(MatType type) {
  return isOne(type.getCols()) ? type.getRows() : type.getCols();
}
Attribute Factor::rows() const {
  MatType type = matType(value);
  return diagonal ? diagonalLength(type) : transposed ? type.getCols() : type.getRows();
}
Attribute Factor::cols() const {
  MatType type = matType(value);
  return diagonal ? diagonalLength(type) : transposed ? type.getRows() : type.getCols();
}

std::optional<std::pair<size_t, size_t>> recur::findInnerProduct(ArrayRef<Factor> chain, size_t from) {
  for (size_t begin = from; begin < chain.size(); ++begin) {
    if (!isOne(chain[begin].rows()))
      continue;
    for (size_t end = begin; end < chain.size(); ++end)
      if (isOne(chain[end].cols()))
        return std::pair(begin, end);
  }
  return std::nullopt;
}

bool recur::isMatrix(MatType type) { return !isOne(type.getRows()) && !isOne(type.getCols()); }

bool recur::isRow(MatType type) { return isOne(type.getRows()) && !isOne(type.getCols()); }

bool recur::isRead(MatmulOp product) {
  return isMatrix(matType(product.getLhs())) != isMatrix(matType(product.getRhs()));
}

Value recur::withoutTransposes(Value value) {
  while (auto turned = value.getDefiningOp<TransposeOp>())
    value = turned.getOperand();
  return value;
}

bool recur::feedsState(RuleOp rule, Operation *op) {
  SetVector<Operation *> slice;
  getForwardSlice(op, &slice);
  slice.insert(op);
  return llvm::any_of(rule.yieldedStates(), [&](Value next) { return slice.contains(next.getDefiningOp()); });
}

bool recur::dependsOnState(Value value) {
  auto rule = value.getParentRegion()->getParentOfType<RuleOp>();
  llvm::SetVector<Value> open;
  open.insert(value);
  for (size_t i = 0; rule && i < open.size(); ++i) {
    if (auto argument = dyn_cast<BlockArgument>(open[i])) {
      bool isOfRule = argument.getOwner()->getParentOp() == rule.getOperation();
      if (isOfRule && rule.getArg(argument).getKind() == ArgKind::State)
        return true;
      continue;
    }
    // What its regions read, too.
    open[i].getDefiningOp()->walk([&](Operation *inner) { open.insert_range(inner->getOperands()); });
  }
  return false;
}

SmallVector<Term> recur::multiplyTerms(ArrayRef<Term> lhs, ArrayRef<Term> rhs) {
  SmallVector<Term> result;
  for (const Term &l : lhs)
    for (const Term &r : rhs) {
      Term term = l;
      term.negative ^= r.negative;
      llvm::append_range(term.scalars, r.scalars);
      llvm::append_range(term.chain, r.chain);
      result.push_back(term);
    }
  return result;
}

Value recur::diagonalColumn(Value value) {
  auto transposed = value.getDefiningOp<TransposeOp>();
  return transposed && isOne(matType(value).getRows()) ? transposed.getOperand() : value;
}

std::optional<double> recur::addedToNorm(DivOp quotient) {
  auto isSquare = [&](Value value) { return isSquareOf(value, quotient.getLhs()); };
  auto root = quotient ? quotient.getRhs().getDefiningOp<SqrtOp>() : SqrtOp();
  if (root && isSquare(root.getOperand()))
    return 0;
  auto sum = root ? root.getOperand().getDefiningOp<AddOp>() : AddOp();
  for (unsigned i = 0; sum && i < 2; ++i) {
    Value eps = sum->getOperand(1 - i);
    FloatAttr number;
    if (isSquare(sum->getOperand(i)) && Interval::of(eps).lo >= 0)
      return matchPattern(eps, m_Constant(&number)) ? number.getValueAsDouble()
                                                    : std::numeric_limits<double>::quiet_NaN();
  }
  return std::nullopt;
}

Value recur::normalisedVector(Value value) {
  auto quotient = value.getDefiningOp<DivOp>();
  std::optional<double> eps = addedToNorm(quotient);
  return eps && std::fabs(*eps - 1e-6) < 1e-12 ? quotient.getLhs() : Value();
}

namespace {
double sizeOf(Attribute dim) {
  auto number = dyn_cast<IntegerAttr>(dim);
  return number ? number.getInt() : 64;
}

// True when the term is cheaper as a chain than as a matrix.
bool isCheap(const Term &term) {
  bool diagonal = llvm::all_of(term.chain, [](const Factor &f) { return f.diagonal; });
  return diagonal ||
         llvm::any_of(llvm::drop_begin(term.chain), [](const Factor &f) { return isOne(f.rows()); });
}

bool isMatrixProduct(const Term &term) {
  return llvm::count_if(term.chain,
                        [](const Factor &f) { return !f.diagonal && isMatrix(matType(f.value)); }) > 1;
}

// Whether nothing sees a matrix but what is read of it.
bool isOnlyRead(Value matrix) {
  return llvm::all_of(matrix.getUsers(), [](Operation *user) {
    auto product = dyn_cast<MatmulOp>(user);
    return product ? isRead(product) : isa<TransposeOp>(user) && isOnlyRead(user->getResult(0));
  });
}

bool areCheap(ArrayRef<Term> terms) { return terms.size() <= maxTerms && llvm::all_of(terms, isCheap); }

SmallVector<Term> leaf(Value value) {
  Term term;
  term.chain.push_back({value});
  return {term};
}

// Whether a matrix is what a state becomes. Reads of it see all that the token does with the state, decays
// after the last write among them: they are no factors of what is read.
bool isNewState(Value value) {
  auto rule = dyn_cast_if_present<RuleOp>(value.getParentBlock()->getParentOp());
  return rule && isMatrix(matType(value)) && llvm::is_contained(rule.yieldedStates(), value) &&
         dependsOnState(value);
}

// Finds the terms of values, each once: what a polynomial is of stands in it many times.
class Expansion {
public:
  SmallVector<Term> of(Value value) {
    if (auto found = known.find(value); found != known.end())
      return found->second;
    SmallVector<Term> terms = expand(value);
    return known[value] = terms;
  }
  SmallVector<Term> ofProduct(Value lhs, Value rhs);

private:
  SmallVector<Term> ofRead(Value matrix);
  SmallVector<Term> expandScaled(MulOp op, Value scale, Value scaled);
  SmallVector<Term> expand(Value value);

  llvm::DenseMap<Value, SmallVector<Term>> known;
  Value openSum; // one whose terms may be dense
};

// The terms of a product with an entrywise factor: a scalar, or a vector along one side of a matrix.
SmallVector<Term> Expansion::expandScaled(MulOp op, Value scale, Value scaled) {
  MatType type = matType(scale), to = matType(scaled);
  SmallVector<Term> terms = of(scaled);
  if (type.isScalar()) {
    for (Term &term : terms)
      term.scalars.push_back(scale);
    return terms;
  }
  if (!isMatrix(to) || isMatrix(type))
    return leaf(op);
  bool left = type.isVector();
  for (Term &term : terms)
    term.chain.insert(left ? term.chain.begin() : term.chain.end(), Factor{scale, false, true});
  return terms;
}

// The value as a sum of terms.
SmallVector<Term> Expansion::expand(Value value) {
  Operation *op = value.getDefiningOp();
  if (!op || isNewState(value))
    return leaf(value);
  if (isa<IdentityOp>(op))
    return {Term()};
  if (auto diag = dyn_cast<DiagOp>(op)) {
    Term term;
    term.chain.push_back({diag.getOperand(), false, true});
    return {term};
  }
  if (auto neg = dyn_cast<NegOp>(op)) {
    SmallVector<Term> terms = of(neg.getOperand());
    for (Term &term : terms)
      term.negative ^= true;
    return terms;
  }
  if (auto transpose = dyn_cast<TransposeOp>(op)) {
    SmallVector<Term> terms = of(transpose.getOperand());
    for (Term &term : terms) {
      std::reverse(term.chain.begin(), term.chain.end());
      for (Factor &factor : term.chain)
        factor = factor.flipped();
    }
    return terms;
  }
  if (auto mul = dyn_cast<MulOp>(op)) {
    MatType lhs = matType(mul.getLhs()), rhs = matType(mul.getRhs()), type = mul.getType();
    if (type.isScalar() || (lhs == type && rhs == type))
      return leaf(value);
    if (rhs == type)
      return expandScaled(mul, mul.getLhs(), mul.getRhs());
    if (lhs == type)
      return expandScaled(mul, mul.getRhs(), mul.getLhs());
    return leaf(value);
  }
  if (isa<AddOp, SubOp>(op)) {
    // Sums of vectors are as cheap as their terms.
    if (!isMatrix(matType(value)) || op->getOperand(0).getType() != value.getType() ||
        op->getOperand(1).getType() != value.getType())
      return leaf(value);
    SmallVector<Term> terms = of(op->getOperand(0)), right = of(op->getOperand(1));
    for (Term &term : right) {
      term.negative ^= isa<SubOp>(op);
      terms.push_back(term);
    }
    bool isOpen = openSum && (value == openSum || op->hasOneUse()) && terms.size() <= maxTerms;
    return isOpen || areCheap(terms) ? terms : leaf(value);
  }
  if (auto matmul = dyn_cast<MatmulOp>(op)) {
    SmallVector<Term> terms = ofProduct(matmul.getLhs(), matmul.getRhs());
    // A vector or a matrix that others use too is computed once, unless the chain is cheaper.
    if (matmul->hasOneUse() || (isMatrix(matmul.getType()) && areCheap(terms)))
      return terms.size() <= maxTerms ? terms : leaf(value);
  }
  return leaf(value);
}

// The terms of a matrix that is read.
SmallVector<Term> Expansion::ofRead(Value matrix) {
  Value sum = withoutTransposes(matrix);
  if (isa_and_present<AddOp, SubOp>(sum.getDefiningOp()) && isOnlyRead(sum) && dependsOnState(sum)) {
    Expansion open;
    open.openSum = sum;
    SmallVector<Term> terms = open.of(matrix);
    if (llvm::any_of(terms, isMatrixProduct))
      return terms;
  }
  return of(matrix);
}

SmallVector<Term> Expansion::ofProduct(Value lhs, Value rhs) {
  bool readsLeft = isMatrix(matType(lhs)) && !isMatrix(matType(rhs));
  bool readsRight = isMatrix(matType(rhs)) && !isMatrix(matType(lhs));
  SmallVector<Term> left = readsLeft ? ofRead(lhs) : of(lhs), right = readsRight ? ofRead(rhs) : of(rhs);
  if (left.size() > 1 && right.size() > 1 && isMatrix(matType(lhs)) && isMatrix(matType(rhs))) {
    if (dependsOnState(lhs))
      left = leaf(lhs);
    else if (dependsOnState(rhs))
      right = leaf(rhs);
  }
  return multiplyTerms(left, right);
}

// Numbers that are multiplied, with what a root is of for the root twice.
SmallVector<Value> withoutRoots(SmallVector<Value> numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    auto root = numbers[i].getDefiningOp<SqrtOp>();
    auto *same = std::find(numbers.begin() + i + 1, numbers.end(), numbers[i]);
    if (!root || same == numbers.end() || Interval::of(root.getOperand()).lo < 0)
      continue;
    numbers[i] = root.getOperand();
    numbers.erase(same);
  }
  return numbers;
}

// Builds values from terms.
class Emitter {
public:
  Emitter(OpBuilder &builder, Location loc, MatType type) : builder(builder), loc(loc), type(type) {}

  Value sum(ArrayRef<Term> terms) {
    Value result;
    // Positive terms first, so that a negation is rarely needed.
    for (bool negative : {false, true})
      for (const Term &term : terms) {
        if (term.negative != negative)
          continue;
        Value value = chain(term);
        if (!result)
          result = negative ? NegOp::create(builder, loc, value).getResult() : value;
        else
          result = negative ? SubOp::create(builder, loc, result, value).getResult()
                            : AddOp::create(builder, loc, result, value).getResult();
      }
    return result;
  }

private:
  // Scalars go to the factor or partial product with the fewest entries; of an outer product to the vector
  // that follows from a state, so that what is written along one vector of the token stays that.
  Value chain(const Term &term) {
    factors = term.chain;
    Value scale;
    for (Value scalar : withoutRoots(term.scalars))
      scale = scale ? MulOp::create(builder, loc, scale, scalar).getResult() : scalar;
    if (factors.empty()) {
      Value unit = IdentityOp::create(builder, loc, type);
      return scale ? MulOp::create(builder, loc, scale, unit).getResult() : unit;
    }
    plan();
    pendingScale = scale;
    smallest = std::numeric_limits<double>::infinity();
    findSmallest(0, factors.size());
    Value result = build(0, factors.size());
    if (pendingScale)
      result = MulOp::create(builder, loc, pendingScale, result);
    return result;
  }

  // The cheapest order of the products, by dynamic programming over intervals of factors.
  void plan() {
    size_t n = factors.size();
    cost.assign(n + 1, SmallVector<double>(n + 1, 0));
    split.assign(n + 1, SmallVector<size_t>(n + 1, 0));
    for (size_t length = 2; length <= n; ++length)
      for (size_t begin = 0; begin + length <= n; ++begin) {
        size_t end = begin + length;
        cost[begin][end] = std::numeric_limits<double>::infinity();
        for (size_t middle = begin + 1; middle < end; ++middle) {
          double flops = sizeOf(factors[begin].rows()) * sizeOf(factors[end - 1].cols());
          if (!isDiagonal(begin, middle) && !isDiagonal(middle, end))
            flops *= sizeOf(factors[middle].rows());
          flops += cost[begin][middle] + cost[middle][end];
          if (flops < cost[begin][end]) {
            cost[begin][end] = flops;
            split[begin][end] = middle;
          }
        }
      }
  }

  bool isDiagonal(size_t begin, size_t end) const {
    return llvm::all_of(ArrayRef(factors).slice(begin, end - begin),
                        [](const Factor &f) { return f.diagonal; });
  }

  double entries(size_t begin, size_t end) const {
    double rows = sizeOf(factors[begin].rows());
    return isDiagonal(begin, end) ? rows : rows * sizeOf(factors[end - 1].cols());
  }

  bool isPayload(size_t begin, size_t end) const {
    return isMatrix(type) && isOne(factors[begin].rows()) != isOne(factors[end - 1].cols()) &&
           llvm::any_of(ArrayRef(factors).slice(begin, end - begin),
                        [](const Factor &factor) { return dependsOnState(factor.value); });
  }

  void findSmallest(size_t begin, size_t end) {
    if (double n = isPayload(begin, end) ? 1.5 : entries(begin, end); n < smallest) {
      smallest = n;
      scaleAt = {begin, end};
    }
    if (end - begin > 1) {
      findSmallest(begin, split[begin][end]);
      findSmallest(split[begin][end], end);
    }
  }

  Value build(size_t begin, size_t end) {
    Value result = end - begin == 1 ? single(factors[begin]) : join(begin, split[begin][end], end);
    if (pendingScale && scaleAt == std::pair(begin, end))
      result = MulOp::create(builder, loc, std::exchange(pendingScale, {}), result);
    return result;
  }

  // A diagonal as a column, anything else as its matrix.
  Value single(const Factor &factor) {
    bool row = factor.diagonal && !isOne(matType(factor.value).getCols());
    return factor.transposed || row ? builder.createOrFold<TransposeOp>(loc, factor.value) : factor.value;
  }

  Value join(size_t begin, size_t middle, size_t end) {
    bool left = isDiagonal(begin, middle), right = isDiagonal(middle, end);
    Value lhs = build(begin, middle), rhs = build(middle, end);
    if (left)
      return MulOp::create(builder, loc, lhs, rhs);
    if (right)
      return MulOp::create(builder, loc, lhs, builder.createOrFold<TransposeOp>(loc, rhs));
    return MatmulOp::create(builder, loc, lhs, rhs);
  }

  OpBuilder &builder;
  Location loc;
  MatType type;
  SmallVector<Factor> factors;
  SmallVector<SmallVector<double>> cost;
  SmallVector<SmallVector<size_t>> split;
  Value pendingScale;
  double smallest = 0;
  std::pair<size_t, size_t> scaleAt;
};
} // namespace

SmallVector<Term> recur::expandProduct(Value lhs, Value rhs) { return Expansion().ofProduct(lhs, rhs); }

SmallVector<Term> recur::expandTerms(Value value) { return Expansion().of(value); }

Value recur::emitTerms(OpBuilder &builder, Location loc, MatType type, ArrayRef<Term> terms) {
  return Emitter(builder, loc, type).sum(terms);
}
