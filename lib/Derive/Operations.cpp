// Functions, decays and systems for each kind of number.
#include "lib/Derive/Operations.h"

using namespace mlir;
using namespace recur;
using chunk::Reach;
using chunk::Span;

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

Fp recur::cut(StringRef function, ArrayRef<Fp> operands) {
  auto mix = [](uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  uint64_t state = 0;
  for (char c : function)
    state = mix(state ^ uint8_t(c));
  for (Fp operand : operands)
    state = mix(state ^ operand.value);
  return Fp(1 + state % (Fp::prime - 1));
}

Fp recur::evaluateEntry(ElementwiseOp op, ArrayRef<Fp> x) {
  Operation *operation = op;
  if (isa<AddOp>(operation))
    return x[0] + x[1];
  if (isa<SubOp>(operation))
    return x[0] - x[1];
  if (isa<MulOp>(operation))
    return x[0] * x[1];
  if (isa<DivOp>(operation))
    return x[0] / x[1];
  if (isa<NegOp>(operation))
    return Fp() - x[0];
  if (operation->hasTrait<OpTrait::IsCommutative>() && x[0].value > x[1].value)
    return cut(operation->getName().getStringRef(), {x[1], x[0]});
  return cut(operation->getName().getStringRef(), x);
}
double recur::evaluateEntry(ElementwiseOp op, ArrayRef<double> x) { return op.evaluate(x); }
float recur::evaluateEntry(ElementwiseOp op, ArrayRef<float> x) {
  SmallVector<double> wide(x);
  return op.evaluate(wide);
}

//===----------------------------------------------------------------------===//
// Decays
//===----------------------------------------------------------------------===//

template <typename F>
Decays<F>::Decays(Dense<F> given, const Dense<F> *log, bool late, int64_t starts)
    : late(late), starts(starts), factors(std::move(given)) {
  if (log && !std::is_same_v<F, Fp>)
    logarithms = *log;
}

template <typename F>
Decays<F>::Decays(std::vector<Dense<F>> entries, int64_t states, int64_t starts)
    : starts(starts), entries(std::move(entries)), states(states) {
  factors.rows = this->entries.front().rows;
  for (const Dense<F> &entry : this->entries)
    factors.cols = std::max(factors.cols, entry.cols);
}

// Sums of logarithms are formed over the stretch itself: differences of running sums would lose what is small
// after a strong decay, and a logarithm of -inf.
template <typename F>
F Decays<F>::product(int64_t begin, int64_t end, int64_t channel) const {
  if constexpr (!std::is_same_v<F, Fp>) {
    if (logarithms.rows) {
      F sum = 0;
      for (int64_t t = begin; t < end; ++t)
        sum += logarithms.at(t, channel);
      return std::exp(sum);
    }
  }
  F result = number<F>(1);
  for (int64_t t = begin; t < end; ++t)
    result *= factors.at(t, channel);
  return result;
}

template <typename F>
F Decays<F>::entry(int64_t begin, int64_t end, int64_t to, int64_t from, int64_t channel) const {
  if (entries.empty())
    return product(begin, end, channel);
  // Column `from` of the product of the matrices, later ones on the left.
  std::vector<F> column(states);
  column[from] = number<F>(1);
  for (int64_t t = begin; t < end; ++t) {
    std::vector<F> next(states);
    for (int64_t i = 0; i < states; ++i)
      for (int64_t j = 0; j < states; ++j) {
        const Dense<F> &own = entries[i * states + j];
        next[i] += own.at(t, own.cols == 1 ? 0 : channel) * column[j];
      }
    column = std::move(next);
  }
  return column[to];
}

template <typename F>
Dense<F> Decays<F>::mask(Reach reach, int64_t to, int64_t from) const {
  Dense<F> result(factors.rows, factors.rows);
  for (int64_t t = 0; t < factors.rows; ++t)
    for (int64_t j = 0; j < seenBy(t, reach); ++j)
      result.at(t, j) = entry(first(j), last(t, reach), to, from);
  return result;
}

template <typename F>
Dense<F> Decays<F>::weights(Span span, int64_t to, int64_t from) const {
  int64_t tokens = factors.rows;
  Dense<F> result(span == Span::Whole ? factors.cols : tokens, span == Span::Whole ? 1 : factors.cols);
  for (int64_t c = 0; c < factors.cols; ++c) {
    auto stretch = [&](int64_t begin, int64_t end) { return entry(begin, end, to, from, c); };
    if (span == Span::Whole)
      result.at(c, 0) = stretch(0, tokens);
    else
      for (int64_t t = 0; t < tokens; ++t)
        result.at(t, c) = span == Span::Rest ? stretch(first(t), tokens)
                                             : stretch(0, last(t, span == Span::Until   ? Reach::Before
                                                                  : span == Span::Start ? Reach::Start
                                                                                        : Reach::Inclusive));
  }
  return result;
}

template <typename F>
Dense<F> Decays<F>::gram(const Dense<F> &lhs, const Dense<F> &rhs, Reach reach) const {
  constexpr int64_t block = std::is_same_v<F, Fp> ? 1 : 16;
  int64_t tokens = lhs.rows;
  auto channel = [&](int64_t c) { return factors.cols == 1 ? 0 : c; };
  Dense<F> result(tokens, tokens);
  auto seeExactly = [&](int64_t t, int64_t from) {
    for (int64_t j = from; j < seenBy(t, reach); ++j)
      for (int64_t c = 0; c < lhs.cols; ++c)
        result.at(t, j) += lhs.at(t, c) * rhs.at(j, c) * product(first(j), last(t, reach), channel(c));
  };
  if (reach == Reach::Start) { // what is between the block's start and its token does not count
    for (int64_t t = 0; t < tokens; ++t)
      seeExactly(t, 0);
    return result;
  }
  for (int64_t r = 0; r < tokens; r += block) {
    // Tokens before the block meet it at its first token: both exponents are at most 0.
    int64_t end = std::min(tokens, r + block);
    Dense<F> rows(end - r, lhs.cols), cols(r, lhs.cols);
    for (int64_t c = 0; c < lhs.cols; ++c) {
      for (int64_t t = r; t < end; ++t)
        rows.at(t - r, c) = lhs.at(t, c) * product(r, last(t, reach), channel(c));
      for (int64_t j = 0; j < r; ++j)
        cols.at(j, c) = rhs.at(j, c) * product(first(j), r, channel(c));
    }
    for (int64_t t = r; t < end; ++t) {
      for (int64_t j = 0; j < r; ++j)
        for (int64_t c = 0; c < lhs.cols; ++c)
          result.at(t, j) += rows.at(t - r, c) * cols.at(j, c);
      seeExactly(t, r);
    }
  }
  return result;
}

template <typename F>
Dense<F> Decays<F>::gram(const Dense<F> &lhs, const Dense<F> &rhs, Reach reach, int64_t to,
                         ArrayRef<Dense<F>> weights) const {
  Dense<F> result(lhs.rows, lhs.rows);
  for (int64_t t = 0; t < lhs.rows; ++t)
    for (int64_t j = 0; j < seenBy(t, reach); ++j)
      for (int64_t c = 0; c < lhs.cols; ++c)
        for (int64_t from = 0; from < states; ++from)
          result.at(t, j) += lhs.at(t, c) * rhs.at(j, c) * weights[from].at(j, 0) *
                             entry(first(j), last(t, reach), to, from, c);
  return result;
}

template <typename F>
Dense<F> Decays<F>::mix(const Dense<F> &scores, const Dense<F> &values, Reach reach) const {
  Dense<F> result(values.rows, values.cols);
  for (int64_t t = 0; t < values.rows; ++t)
    for (int64_t j = 0; j < t + (reach == Reach::Inclusive); ++j)
      for (int64_t c = 0; c < values.cols; ++c)
        result.at(t, c) += scores.at(t, j) * values.at(j, c) * between(j, t, c, reach);
  return result;
}

//===----------------------------------------------------------------------===//
// Systems
//===----------------------------------------------------------------------===//

template <typename F>
std::vector<Dense<F>> recur::triangularSolve(ArrayRef<Dense<F>> blocks, std::vector<Dense<F>> rhs,
                                             ArrayRef<Dense<F>> factors, const Decays<F> *decay,
                                             Reach reach) {
  size_t streams = rhs.size();
  for (int64_t t = 0; t < rhs[0].rows; ++t)
    for (size_t s = 0; s < streams; ++s)
      for (size_t other = 0; other < streams; ++other) {
        const Dense<F> &block = blocks[s * streams + other];
        for (int64_t j = 0; j < t + (other < s); ++j)
          for (int64_t c = 0; c < rhs[s].cols; ++c) {
            F factor = block.at(t, j);
            if (decay)
              factor *= decay->between(j, t, c, reach);
            if (!factors.empty())
              factor *= factors[s].at(t, c);
            rhs[s].at(t, c) -= factor * rhs[other].at(j, c);
          }
      }
  return rhs;
}

template <typename To, typename From>
static Dense<To> converted(const Dense<From> &m) {
  Dense<To> result(m.rows, m.cols);
  std::copy(m.data.begin(), m.data.end(), result.data.begin());
  return result;
}

template <typename F>
Downdates<F> recur::downdate(const Dense<F> &state, const Dense<F> &keys, const Dense<F> &decays,
                             const Dense<F> &weights, const Dense<F> &offsets) {
  if constexpr (std::is_same_v<F, float>) {
    auto wide = [](const Dense<F> &m) { return converted<double>(m); };
    Downdates<double> d =
        downdate<double>(wide(state), wide(keys), wide(decays), wide(weights), wide(offsets));
    return {converted<F>(d.lower), converted<F>(d.reads), converted<F>(d.gains), converted<F>(d.denominators),
            converted<F>(d.last)};
  } else {
    int64_t tokens = keys.rows, n = keys.cols;
    Dense<F> x = multiply(keys, state), schur = multiply(x, transpose(keys));
    Downdates<F> d{Dense<F>(tokens, tokens), x, x, Dense<F>(tokens, 1), state};
    F decay = number<F>(1); // up to the token before
    for (int64_t t = 0; t < tokens; ++t) {
      F pivot = decay * offsets.at(t, 0) + weights.at(t, 0) * schur.at(t, t), gain = weights.at(t, 0) / pivot;
      for (int64_t i = t + 1; i < tokens; ++i) {
        d.lower.at(i, t) = gain * schur.at(i, t);
        for (int64_t j = t + 1; j <= i; ++j)
          schur.at(i, j) -= d.lower.at(i, t) * schur.at(j, t);
      }
      for (int64_t c = 0; c < n; ++c) {
        for (int64_t j = 0; j < t; ++j)
          x.at(t, c) -= d.lower.at(t, j) * x.at(j, c);
        d.reads.at(t, c) = x.at(t, c) / decay;
        d.gains.at(t, c) = gain * x.at(t, c);
      }
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
          d.last.at(i, j) -= d.gains.at(t, i) * x.at(t, j);
      d.denominators.at(t, 0) = pivot / decay;
      decay *= decays.at(t, 0);
    }
    for (F &entry : d.last.data)
      entry = entry / decay;
    return d;
  }
}

template <typename F>
Dense<F> recur::eliminate(Dense<F> a, Dense<F> x) {
  for (int64_t p = 0; p < a.rows; ++p) {
    int64_t pivot = p;
    for (int64_t i = p + 1; i < a.rows; ++i) {
      if constexpr (std::is_same_v<F, Fp>)
        pivot = a.at(pivot, p) == Fp() ? i : pivot;
      else
        pivot = std::fabs(a.at(i, p)) > std::fabs(a.at(pivot, p)) ? i : pivot;
    }
    for (Dense<F> *m : {&a, &x})
      for (int64_t j = 0; j < m->cols; ++j)
        std::swap(m->at(p, j), m->at(pivot, j));
    F scale = number<F>(1) / a.at(p, p);
    for (Dense<F> *m : {&a, &x})
      for (int64_t j = 0; j < m->cols; ++j)
        m->at(p, j) *= scale;
    for (int64_t i = 0; i < a.rows; ++i) {
      F factor = a.at(i, p);
      if (i == p)
        continue;
      for (Dense<F> *m : {&a, &x})
        for (int64_t j = 0; j < m->cols; ++j)
          m->at(i, j) -= factor * m->at(p, j);
    }
  }
  return x;
}

#define INSTANTIATE(F)                                                                                       \
  template class recur::Decays<F>;                                                                           \
  template std::vector<Dense<F>> recur::triangularSolve(ArrayRef<Dense<F>>, std::vector<Dense<F>>,           \
                                                        ArrayRef<Dense<F>>, const Decays<F> *, Reach);       \
  template Downdates<F> recur::downdate(const Dense<F> &, const Dense<F> &, const Dense<F> &,                \
                                        const Dense<F> &, const Dense<F> &);                                 \
  template Dense<F> recur::eliminate(Dense<F>, Dense<F>);
INSTANTIATE(Fp)
INSTANTIATE(double)
INSTANTIATE(float)
