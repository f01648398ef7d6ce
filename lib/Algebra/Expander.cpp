// The sums of values; rows and versions are made in Rows.cpp.
#include "lib/Algebra/Expander.h"

using namespace mlir;
using namespace recur;

const Sum *Expander::expand(Value value) {
  if (auto known = sums.find(value); known != sums.end())
    return known->second.get();
  MaybeSum sum = compute(value);
  if (sum && sum->size() > maxTerms)
    sum = fail(value.getDefiningOp(), "the sum '" + notation(value) + "' has too many terms");
  auto &known = sums[value];
  known = sum ? std::make_unique<Sum>(std::move(*sum)) : nullptr;
  return known.get();
}

bool Expander::carriesState(Value value) {
  const Sum *sum = expand(value);
  return sum && llvm::any_of(*sum, [](const Monomial &m) { return m.leaf == Monomial::State; });
}

Expander::MaybeSum Expander::fail(Operation *op, std::string text) {
  if (blame.text.empty()) {
    blame.text = std::move(text);
    if (op)
      blame.loc = op->getLoc();
  }
  return std::nullopt;
}

Sum Expander::tokenSum(Value value, Location loc) {
  Sum sum;
  for (const Term &term : expandTerms(value)) {
    Monomial m{{}, {}, {}, Monomial::None, 0, false, {}, loc};
    m.c.number = term.negative ? -1 : 1;
    for (Value scalar : term.scalars)
      tokens.multiply(m.c, scalar);
    m.left.assign(term.chain.begin(), term.chain.end());
    simplify(m);
    sum.push_back(std::move(m));
  }
  return sum;
}

Expander::MaybeSum Expander::compute(Value value) {
  if (nf.isTokenOnly(value))
    return tokenSum(value, value.getLoc());
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    unsigned state = llvm::find(nf.states, argument) - nf.states.begin();
    return Sum{Monomial{{}, {}, {}, Monomial::State, state, false, {}, value.getLoc()}};
  }
  Operation *op = value.getDefiningOp();
  auto dependent = [&](unsigned i) { return !nf.isTokenOnly(op->getOperand(i)); };
  if (auto neg = dyn_cast<NegOp>(op)) {
    const Sum *inner = expand(neg.getOperand());
    if (!inner)
      return std::nullopt;
    Sum sum = *inner;
    for (Monomial &m : sum)
      m.c.number = -m.c.number;
    return sum;
  }
  if (isa<AddOp, SubOp>(op)) {
    MaybeSum lhs = broadcast(op->getOperand(0), matType(value)),
             rhs = broadcast(op->getOperand(1), matType(value));
    if (!lhs || !rhs)
      return std::nullopt;
    for (Monomial &m : *rhs) {
      m.c.number = isa<SubOp>(op) ? -m.c.number : m.c.number;
      lhs->push_back(m);
    }
    return lhs;
  }
  if (isa<MulOp>(op) && dependent(0) != dependent(1))
    return scaled(op->getOperand(dependent(0) ? 0 : 1), op->getOperand(dependent(0) ? 1 : 0), op);
  if (isa<DivOp>(op) && !dependent(1))
    return scaled(op->getOperand(0), tokens.reciprocal(op->getLoc(), op->getOperand(1)), op);
  if (auto product = dyn_cast<MatmulOp>(op))
    return matmul(product.getLhs(), product.getRhs(), op);
  if (auto reduce = dyn_cast<ReduceOp>(op); reduce && reduce.getKind() == Reduction::Sum)
    return reduced(reduce);
  if (auto repeat = dyn_cast<BroadcastOp>(op))
    return broadcast(repeat.getOperand(), repeat.getType());
  if (auto transposed = dyn_cast<TransposeOp>(op)) {
    const Sum *inner = expand(transposed.getOperand());
    if (!inner)
      return std::nullopt;
    Sum sum;
    for (const Monomial &m : *inner)
      sum.push_back(transpose(m));
    return sum;
  }
  if (isa<MulOp>(op))
    return fail(op, "'" + notation(value) + "' multiplies functions of states: not affine");
  return fail(op, "'" + notation(value) + "' is a nonlinear function of a state");
}

Expander::MaybeSum Expander::broadcast(Value value, MatType type) {
  const Sum *inner = expand(value);
  if (!inner)
    return std::nullopt;
  Sum sum = *inner;
  MatType from = matType(value);
  for (Monomial &m : sum) {
    if (isOne(from.getRows()) && !isOne(type.getRows())) {
      m.left.insert(m.left.begin(), Factor{tokens.ones(m.loc, type.getRows())});
      if (m.leaf == Monomial::None && m.left.size() == 1 && !isOne(from.getCols()))
        return fail(value.getDefiningOp(), "'" + notation(value) + "' is repeated");
    }
    if (isOne(from.getCols()) && !isOne(type.getCols()))
      (m.leaf == Monomial::None ? m.left : m.right)
          .push_back(Factor{tokens.ones(m.loc, type.getCols()), true});
  }
  return sum;
}

// The product of entries with a token-only factor: a scalar, a diagonal, or a decay of full rank.
Expander::MaybeSum Expander::scaled(Value dependent, Value factor, Operation *op) {
  const Sum *inner = expand(dependent);
  if (!inner)
    return std::nullopt;
  Sum sum = *inner;
  MatType type = matType(factor), to = matType(dependent);
  if (type.isScalar()) {
    for (Monomial &m : sum)
      tokens.multiply(m.c, factor);
    return sum;
  }
  if (isOne(to.getCols()) && isOne(type.getRows()))
    return multiply(sum, tokenSum(factor, op->getLoc()), op->getLoc());
  if (isOne(to.getRows()) && isOne(type.getCols()))
    return multiply(tokenSum(factor, op->getLoc()), sum, op->getLoc());
  // Vectors strip to a scale and a direction, so that equal directions are equal values.
  if (isOne(type.getCols()) || isOne(type.getRows())) {
    bool left = isOne(type.getCols());
    for (Monomial &m : sum) {
      Factor diagonal{factor, false, true};
      if (left)
        m.left.insert(m.left.begin(), diagonal);
      else
        (m.leaf == Monomial::None ? m.left : m.right).push_back(diagonal);
    }
    return sum;
  }
  // An outer product scales rows and columns.
  if (SmallVector<Term> terms = expandTerms(factor); terms.size() == 1) {
    ArrayRef<Factor> chain = terms[0].chain;
    auto cut = llvm::find_if(chain, [](const Factor &f) { return isOne(f.rows()); });
    if (cut != chain.begin() && cut != chain.end()) {
      Coefficient c;
      c.number = terms[0].negative ? -1 : 1;
      for (Value scalar : terms[0].scalars)
        tokens.multiply(c, scalar);
      Value rows = column(ArrayRef(chain.begin(), cut), c, op->getLoc());
      Value columns = columnOfRow(ArrayRef(cut, chain.end()), c, op->getLoc());
      for (Monomial &m : sum) {
        tokens.multiply(m.c, c);
        m.left.insert(m.left.begin(), Factor{rows, false, true});
        (m.leaf == Monomial::None ? m.left : m.right).push_back(Factor{columns, false, true});
      }
      return sum;
    }
  }
  for (Monomial &m : sum) {
    auto isDiagonal = [](const Factor &f) { return f.diagonal; };
    if (type == to && m.leaf == Monomial::State && llvm::all_of(m.left, isDiagonal) &&
        llvm::all_of(m.right, isDiagonal)) {
      m.elementwise.push_back(m.transposed ? tokens.transpose(m.loc, factor) : factor);
    } else if (type == to && m.leaf == Monomial::None) {
      Value matrix = tokens.chain(m.loc, to, m.left);
      m.left.assign(1, Factor{tokens.multiply(m.loc, factor, matrix)});
    } else {
      return fail(op,
                  "'" + notation(op->getResult(0)) + "' scales the entries of what was read from a state");
    }
  }
  return sum;
}

Expander::MaybeSum Expander::reduced(ReduceOp op) {
  // A sum of products of entries is an inner product.
  Value operand = op.getOperand();
  Location loc = op.getLoc();
  if (auto mul = operand.getDefiningOp<MulOp>(); mul && matType(operand).isVector() && op.getRows()) {
    for (unsigned i : {0, 1}) {
      Value token = mul->getOperand(i), other = mul->getOperand(1 - i);
      if (nf.isTokenOnly(token) && token.getType() == operand.getType() &&
          other.getType() == operand.getType())
        return matmul(tokens.transpose(loc, token), other, op);
    }
  }
  MatType type = matType(operand);
  const Sum *inner = expand(operand);
  if (!inner)
    return std::nullopt;
  if (carriesState(operand)) {
    // A state is read along ones, a matrix on its right.
    Value rows = tokens.ones(loc, type.getRows()), columns = tokens.ones(loc, type.getCols());
    if (!op.getCols() || isOne(type.getCols()))
      return matmul(tokens.transpose(loc, rows), operand, op);
    MaybeSum sum = matmul(operand, columns, op);
    return sum && op.getRows() ? multiply(tokenSum(tokens.transpose(loc, rows), loc), *sum, loc) : sum;
  }
  Sum sum = *inner;
  for (Monomial &m : sum) {
    if (m.leaf == Monomial::State)
      return fail(op, "'" + notation(op.getResult()) + "' sums over a state");
    if (op.getRows() && !isOne(type.getRows()))
      m.left.insert(m.left.begin(), Factor{tokens.ones(loc, type.getRows()), true});
    if (op.getCols() && !isOne(type.getCols()))
      (m.leaf == Monomial::None ? m.left : m.right).push_back(Factor{tokens.ones(loc, type.getCols())});
    simplify(m);
  }
  return sum;
}

Expander::MaybeSum Expander::matmul(Value lhs, Value rhs, Operation *op) {
  Location loc = op->getLoc();
  bool leftToken = nf.isTokenOnly(lhs), rightToken = nf.isTokenOnly(rhs);
  const Sum *left = expand(lhs), *right = expand(rhs);
  if (!left || !right)
    return std::nullopt;
  if (!leftToken && !rightToken)
    return fail(op, "'" + notation(op->getResult(0)) + "' multiplies functions of states: not affine");
  Value dependent = leftToken ? rhs : lhs;
  if (!carriesState(dependent))
    return multiply(*left, *right, loc);
  Coefficient scale;
  dependent = unscaledNewState(dependent, scale);
  // A factor that passes through a dimension of 1 reads the state; the rest of it is written back.
  Sum sum;
  for (const Monomial &token : leftToken ? *left : *right) {
    ArrayRef<Factor> chain = token.left;
    auto isCut = [&](size_t p) { return isOne(p == 0 ? chain.front().rows() : chain[p - 1].cols()); };
    size_t cut = leftToken ? chain.size() : 0; // the cut next to the state
    bool reads = !chain.empty() && isCut(cut);
    while (!reads && cut != (leftToken ? 0 : chain.size())) {
      cut += leftToken ? -1 : 1;
      reads = isCut(cut);
    }
    if (!reads) {
      MaybeSum part = leftToken ? multiply({token}, *right, loc) : multiply(*left, {token}, loc);
      llvm::append_range(sum, *part);
      continue;
    }
    Monomial m{token.c, {}, {}, Monomial::RowOf, 0, leftToken, {}, loc};
    tokens.multiply(m.c, scale);
    Value vector =
        leftToken ? columnOfRow(chain.drop_front(cut), m.c, loc) : column(chain.take_front(cut), m.c, loc);
    std::optional<unsigned> row = rowOf(dependent, leftToken ? Side::Left : Side::Right, vector, loc);
    if (!row)
      return std::nullopt;
    m.index = *row;
    if (leftToken)
      m.left.assign(chain.begin(), chain.begin() + cut);
    else
      m.right.assign(chain.begin() + cut, chain.end());
    simplify(m);
    sum.push_back(std::move(m));
  }
  return sum;
}

// A multiple of a new state is read as the new state.
Value Expander::unscaledNewState(Value value, Coefficient &scale) {
  Value inner = value;
  Coefficient c;
  while (!llvm::is_contained(nf.rule.yieldedStates(), inner)) {
    auto mul = inner.getDefiningOp<MulOp>();
    if (!mul)
      return value;
    bool left = matType(mul.getLhs()).isScalar() && nf.isTokenOnly(mul.getLhs());
    if (!left && !(matType(mul.getRhs()).isScalar() && nf.isTokenOnly(mul.getRhs())))
      return value;
    tokens.multiply(c, left ? mul.getLhs() : mul.getRhs());
    inner = left ? mul.getRhs() : mul.getLhs();
  }
  scale = c;
  return inner;
}

Expander::MaybeSum Expander::multiply(const Sum &lhs, const Sum &rhs, Location loc) {
  Sum sum;
  for (const Monomial &l : lhs)
    for (const Monomial &r : rhs) {
      Monomial m = l.leaf != Monomial::None ? l : r;
      if (l.leaf != Monomial::None)
        m.right.append(r.left.begin(), r.left.end());
      else
        m.left.insert(m.left.begin(), l.left.begin(), l.left.end());
      tokens.multiply(m.c, l.leaf != Monomial::None ? r.c : l.c);
      m.loc = loc;
      simplify(m);
      sum.push_back(std::move(m));
    }
  return sum;
}

//===----------------------------------------------------------------------===//
// Chains
//===----------------------------------------------------------------------===//

// Inner products within a chain become scalar factors.
void Expander::simplify(SmallVectorImpl<Factor> &chain, Coefficient &c, Location loc) {
  MatType scalar = MatType::scalar(nf.rule.getContext());
  size_t from = 0;
  while (auto inner = findInnerProduct(chain, from)) {
    auto [begin, end] = *inner;
    Value product = tokens.chain(loc, scalar, ArrayRef(chain).slice(begin, end + 1 - begin));
    chain.erase(chain.begin() + begin, chain.begin() + end + 1);
    tokens.multiply(c, product);
    from = begin;
  }
}

void Expander::simplify(Monomial &m) {
  simplify(m.left, m.c, m.loc);
  simplify(m.right, m.c, m.loc);
}

MatType Expander::leafType(const Monomial &m) {
  MatType type = m.leaf == Monomial::State ? matType(nf.states[m.index]) : nf.rows[m.index].type;
  return m.transposed ? type.transposed() : type;
}
Monomial Expander::transpose(const Monomial &m) {
  Monomial result = m;
  auto flip = [](ArrayRef<Factor> chain) {
    return llvm::to_vector<2>(
        llvm::map_range(llvm::reverse(chain), [](const Factor &f) { return f.flipped(); }));
  };
  result.left = flip(m.leaf == Monomial::None ? m.left : m.right);
  result.right = m.leaf == Monomial::None ? decltype(m.right)() : flip(m.left);
  result.transposed = m.leaf != Monomial::None && !m.transposed;
  return result;
}

Value Expander::column(ArrayRef<Factor> chain, Coefficient &c, Location loc) {
  if (chain.empty())
    return tokens.one(loc);
  Builder b(nf.rule.getContext());
  Value value =
      tokens.chain(loc, MatType::get(b.getContext(), chain.front().rows(), b.getI64IntegerAttr(1)), chain);
  // Its scale goes to the coefficient: equal directions are to be equal values.
  SmallVector<Term> terms = expandTerms(value);
  if (terms.size() == 1 && terms[0].chain.size() == 1 && !terms[0].chain[0].diagonal &&
      matType(terms[0].chain[0].value) == matType(value)) {
    c.number = terms[0].negative ? -c.number : c.number;
    for (Value scalar : terms[0].scalars)
      tokens.multiply(c, scalar);
    return terms[0].chain[0].transposed ? value : terms[0].chain[0].value;
  }
  return value;
}

Value Expander::columnOfRow(ArrayRef<Factor> chain, Coefficient &c, Location loc) {
  SmallVector<Factor> flipped;
  for (const Factor &factor : llvm::reverse(chain))
    flipped.push_back(factor.flipped());
  return column(flipped, c, loc);
}
