// Splits, masks and applies causal operators.
#include "lib/Algebra/CausalOperators.h"

using namespace mlir;
using namespace recur;
using namespace recur::causal;

static bool isTransposed(Value key, MatType row) { return key && !matType(key).isScalar() && row.isScalar(); }

Matrix Tokens::scaleRows(const Matrix &m, Value scale) {
  if (m->kind == Operator::Kernel)
    return kernel(times(scale, m->query), m->key, m->decay, m->reach);
  if (m->kind == Operator::Diagonal)
    return diagonal(times(scale, m->diagonal));
  if (m->kind == Operator::Sum) {
    SmallVector<Matrix> parts;
    for (const Matrix &part : m->parts)
      parts.push_back(scaleRows(part, scale));
    return combine(Operator::Sum, parts);
  }
  return combine(Operator::Product, {diagonal(scale), m});
}

FailureOr<Matrix> Tokens::entrywise(const Matrix &lhs, const Matrix &rhs) {
  if (rhs->kind == Operator::Sum || lhs->kind == Operator::Diagonal)
    if (lhs->kind != Operator::Sum && rhs->kind != Operator::Diagonal)
      return entrywise(rhs, lhs);
  if (lhs->kind == Operator::Sum) {
    SmallVector<Matrix> parts;
    for (const Matrix &part : lhs->parts) {
      FailureOr<Matrix> masked = entrywise(part, rhs);
      if (failed(masked))
        return failure();
      parts.push_back(*masked);
    }
    return combine(Operator::Sum, parts);
  }
  bool kernels = lhs->kind == Operator::Kernel;
  if (rhs->kind == Operator::Diagonal && lhs->kind == Operator::Diagonal)
    return diagonal(times(lhs->diagonal, rhs->diagonal));
  if (rhs->kind == Operator::Diagonal && kernels)
    return lhs->reach == Reach::Strict ? combine(Operator::Sum, {})
                                       : diagonal(times(rhs->diagonal, dot(lhs->query, lhs->key)));
  if (!kernels || rhs->kind != Operator::Kernel)
    return fail("the entrywise product with a product or an inverse of matrices over all pairs of tokens");
  const Operator *wide = lhs.get(), *narrow = rhs.get(); // narrow: of rank 1
  auto rankOne = [](const Operator *m) {
    return (!m->query || matType(m->query).isScalar()) && (!m->key || matType(m->key).isScalar());
  };
  if (!rankOne(narrow))
    std::swap(wide, narrow);
  if (!rankOne(narrow))
    return fail("the entrywise product of two matrices over all pairs of tokens has the rank " +
                dimText(matType(lhs->key).getRows()) + "*" + dimText(matType(rhs->key).getRows()) +
                ", and no state gets as many columns");
  return kernel(times(wide->query, narrow->query), times(wide->key, narrow->key),
                times(wide->decay, narrow->decay), std::max(wide->reach, narrow->reach));
}

FailureOr<Tokens::Split> Tokens::split(const Matrix &m) {
  Split result;
  switch (m->kind) {
  case Operator::Diagonal:
    return Split{m->diagonal, {}};
  case Operator::Kernel:
    if (m->reach == Reach::All)
      return fail("later tokens are read: multiply by M or Mx");
    if (m->reach == Reach::Strict)
      return Split{std::nullopt, m};
    return Split{dot(m->query, m->key), kernel(m->query, m->key, m->decay, Reach::Strict)};
  case Operator::Sum: {
    SmallVector<Matrix> strict;
    for (const Matrix &part : m->parts) {
      FailureOr<Split> one = split(part);
      if (failed(one))
        return failure();
      if (one->strict)
        strict.push_back(one->strict);
      if (one->diagonal)
        result.diagonal =
            result.diagonal ? plus(orOne(*result.diagonal), orOne(*one->diagonal)) : *one->diagonal;
    }
    if (!strict.empty())
      result.strict = strict.size() == 1 ? strict[0] : combine(Operator::Sum, strict);
    return result;
  }
  case Operator::Product: {
    FailureOr<Split> lhs = split(m->parts[0]), rhs = split(m->parts[1]);
    if (failed(lhs) || failed(rhs))
      return failure();
    SmallVector<Matrix> strict;
    if (lhs->diagonal && rhs->diagonal)
      result.diagonal = times(*lhs->diagonal, *rhs->diagonal);
    if (lhs->diagonal && rhs->strict)
      strict.push_back(scaleRows(rhs->strict, *lhs->diagonal));
    if (lhs->strict) // of the whole right side: its diagonal and what is below it
      strict.push_back(combine(Operator::Product, {lhs->strict, m->parts[1]}));
    if (!strict.empty())
      result.strict = strict.size() == 1 ? strict[0] : combine(Operator::Sum, strict);
    return result;
  }
  case Operator::Inverse: {
    FailureOr<Split> inner = split(m->parts[0]);
    if (failed(inner))
      return failure();
    if (!inner->diagonal)
      return fail("the inverse of a matrix without a diagonal");
    Value reciprocal = over({}, *inner->diagonal);
    if (!inner->strict)
      return Split{reciprocal, {}};
    Value minus = times(number(-1), reciprocal);
    return Split{reciprocal, combine(Operator::Product, {scaleRows(inner->strict, minus), m})};
  }
  }
  llvm_unreachable("covered switch");
}

Value Tokens::readState(Value state, Value query, bool transposed) {
  if (!query)
    return state;
  if (transposed || matType(state).getCols() == matType(query).getRows())
    return product(transposed ? flip(state) : state, query);
  return times(state, query); // a key of 1 with a query that is a scalar
}

Tokens::Memory &Tokens::stateOf(const Operator &m, MatType row, unsigned hole) {
  Attribute one = b.getI64IntegerAttr(1);
  Attribute keys = m.key ? matType(m.key).getRows() : one;
  MatType type = isTransposed(m.key, row) ? MatType::get(b.getContext(), keys, one)
                                          : MatType::get(b.getContext(), row.getRows(), keys);
  BlockArgument before = rule.getBody().addArgument(type, loc);
  memories.push_back({m.key, m.decay, {}, hole, before, {}});
  return memories.back();
}

void Tokens::update(Memory &memory, Value x) {
  memory.x = x;
  memory.hole = 0;
  Value write = !memory.key                            ? x
                : isTransposed(memory.key, matType(x)) ? times(memory.key, x)
                : matType(memory.key).isScalar()       ? times(memory.key, x)
                                                       : product(x, flip(memory.key));
  memory.after = plus(times(memory.decay, memory.before), write);
}

FailureOr<Value> Tokens::readStrict(const Matrix &m, MatType row, unsigned hole) {
  switch (m->kind) {
  case Operator::Kernel: {
    Memory *memory = llvm::find_if(
        memories, [&](const Memory &s) { return s.hole == hole && s.key == m->key && s.decay == m->decay; });
    if (memory == memories.end())
      memory = &stateOf(*m, row, hole);
    return times(m->decay, readState(memory->before, m->query, isTransposed(m->key, row)));
  }
  case Operator::Sum: {
    Value sum;
    for (const Matrix &part : m->parts) {
      FailureOr<Value> one = readStrict(part, row, hole);
      if (failed(one))
        return failure();
      sum = plus(sum, *one);
    }
    return sum;
  }
  case Operator::Product: {
    FailureOr<Split> lhs = split(m->parts[0]);
    if (failed(lhs))
      return failure();
    if (!lhs->diagonal) { // strict on the left: it reads what the right side makes of the row
      unsigned inner = ++holes;
      dependents.push_back({inner, hole, m->parts[1]});
      return readStrict(lhs->strict, row, inner);
    }
    FailureOr<Value> read = readStrict(m->parts[1], row, hole);
    return failed(read) ? read : apply(m->parts[0], *read);
  }
  default:
    return fail("an inverse below the diagonal");
  }
}

LogicalResult Tokens::fill(unsigned hole, Value value) {
  for (Memory &memory : memories)
    if (memory.hole == hole)
      update(memory, value);
  for (size_t i = 0; i < dependents.size(); ++i)
    if (dependents[i].of == hole) {
      Dependent dependent = dependents[i];
      FailureOr<Value> inner = apply(dependent.matrix, value);
      if (failed(inner) || failed(fill(dependent.hole, *inner)))
        return failure();
    }
  return success();
}

FailureOr<Value> Tokens::apply(const Matrix &m, Value x) {
  switch (m->kind) {
  case Operator::Diagonal:
    return times(m->diagonal, x);
  case Operator::Kernel: {
    if (m->reach == Reach::All)
      return fail("later tokens are read: multiply by M or Mx");
    Memory *memory = llvm::find_if(
        memories, [&](const Memory &s) { return s.x == x && s.key == m->key && s.decay == m->decay; });
    if (memory == memories.end()) {
      memory = &stateOf(*m, matType(x), 0);
      update(*memory, x);
    }
    bool transposed = isTransposed(m->key, matType(x));
    return m->reach == Reach::Strict ? times(m->decay, readState(memory->before, m->query, transposed))
                                     : readState(memory->after, m->query, transposed);
  }
  case Operator::Sum: {
    Value sum;
    for (const Matrix &part : m->parts) {
      FailureOr<Value> one = apply(part, x);
      if (failed(one))
        return failure();
      sum = plus(sum, *one);
    }
    return sum ? sum : times(number(0), x);
  }
  case Operator::Product: {
    FailureOr<Value> inner = apply(m->parts[1], x);
    return failed(inner) ? inner : apply(m->parts[0], *inner);
  }
  case Operator::Inverse: {
    FailureOr<Split> parts = split(m->parts[0]);
    if (failed(parts))
      return failure();
    if (!parts->diagonal)
      return fail("the inverse of a matrix without a diagonal");
    if (!parts->strict)
      return over(x, *parts->diagonal);
    unsigned hole = ++holes;
    FailureOr<Value> known = readStrict(parts->strict, matType(x), hole);
    if (failed(known))
      return failure();
    Value y = over(SubOp::create(b, loc, x, *known), *parts->diagonal);
    if (failed(fill(hole, y)))
      return failure();
    return y;
  }
  }
  llvm_unreachable("covered switch");
}
