// Linear algebra of the machine, for each kind of number.
#pragma once

#include "dialect/chunk/Chunk.h"
#include "lib/Derive/Numbers.h"

namespace recur {

/// The elementwise functions and constants of a kind of number.
template <typename F>
F number(double value) {
  if constexpr (std::is_same_v<F, Fp>)
    return Fp::fromDouble(value);
  else
    return F(value);
}
Fp evaluateEntry(ElementwiseOp op, llvm::ArrayRef<Fp> operands);
double evaluateEntry(ElementwiseOp op, llvm::ArrayRef<double> operands);
float evaluateEntry(ElementwiseOp op, llvm::ArrayRef<float> operands);

/// A pseudo-random element that depends on the name and the operands: a cut function.
Fp cut(llvm::StringRef function, llvm::ArrayRef<Fp> operands);

template <typename F>
Dense<F> multiply(const Dense<F> &lhs, const Dense<F> &rhs) {
  Dense<F> result(lhs.rows, rhs.cols);
  for (int64_t i = 0; i < lhs.rows; ++i)
    for (int64_t k = 0; k < lhs.cols; ++k)
      for (int64_t j = 0; j < rhs.cols; ++j)
        result.at(i, j) += lhs.at(i, k) * rhs.at(k, j);
  return result;
}

/// The matrix with these columns.
template <typename F>
Dense<F> joined(llvm::ArrayRef<Dense<F>> columns) {
  Dense<F> result(columns[0].rows, columns.size());
  for (int64_t i = 0; i < result.rows; ++i)
    for (int64_t j = 0; j < result.cols; ++j)
      result.at(i, j) = columns[j].at(i, 0);
  return result;
}

template <typename F>
Dense<F> transpose(const Dense<F> &m) {
  Dense<F> result(m.cols, m.rows);
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.cols; ++j)
      result.at(j, i) = m.at(i, j);
  return result;
}

template <typename F>
Dense<F> diagonal(const Dense<F> &v) {
  Dense<F> result(v.rows, v.rows);
  for (int64_t i = 0; i < v.rows; ++i)
    result.at(i, i) = v.at(i, 0);
  return result;
}

template <typename F>
Dense<F> identity(int64_t n) {
  return diagonal(Dense<F>(n, 1, number<F>(1)));
}

/// How many of a chunk's tokens token t sees, blocks having so many.
inline int64_t seenBy(int64_t t, chunk::Reach reach, int64_t starts) {
  return reach == chunk::Reach::Inclusive ? t + 1 : reach == chunk::Reach::Start ? t - t % starts : t;
}

/// The products of decays over stretches of a chunk, one column per channel; or of n x n transition matrices.
template <typename F>
class Decays {
public:
  Decays() = default;
  Decays(Dense<F> factors, const Dense<F> *log, bool late = false, int64_t starts = 0);
  Decays(std::vector<Dense<F>> entries, int64_t states, int64_t starts = 0);

  /// The product of the factors of tokens begin .. end-1 in a channel.
  F product(int64_t begin, int64_t end, int64_t channel) const;
  Dense<F> mask(chunk::Reach reach, int64_t to, int64_t from) const;
  Dense<F> weights(chunk::Span span, int64_t to, int64_t from) const;
  Dense<F> gram(const Dense<F> &lhs, const Dense<F> &rhs, chunk::Reach reach) const;
  /// The same of a cascade: what is read of one state, of what is written to all, times its weights.
  Dense<F> gram(const Dense<F> &lhs, const Dense<F> &rhs, chunk::Reach reach, int64_t to,
                llvm::ArrayRef<Dense<F>> weights) const;
  Dense<F> mix(const Dense<F> &scores, const Dense<F> &values, chunk::Reach reach) const;
  F between(int64_t j, int64_t t, int64_t channel, chunk::Reach reach) const {
    return product(first(j), last(t, reach), channel);
  }

private:
  F entry(int64_t begin, int64_t end, int64_t to, int64_t from, int64_t channel = 0) const;
  /// The first factor that what token j writes decays by; and that after the last one before token t sees it.
  int64_t first(int64_t j) const { return late ? j : j + 1; }
  int64_t last(int64_t t, chunk::Reach reach) const {
    return reach == chunk::Reach::Start            ? seenBy(t, reach)
           : late || reach == chunk::Reach::Before ? t
                                                   : t + 1;
  }
  int64_t seenBy(int64_t t, chunk::Reach reach) const { return recur::seenBy(t, reach, starts); }

  bool late = false;
  int64_t starts = 0; // tokens of a block, at whose start states are read
  Dense<F> factors;
  Dense<F> logarithms; // empty where the factors have none
  std::vector<Dense<F>> entries;
  int64_t states = 1;
};

/// Forward substitution for (I + N) U = R, blocks ordered by token first; `factors` may be empty.
template <typename F>
std::vector<Dense<F>> triangularSolve(llvm::ArrayRef<Dense<F>> blocks, std::vector<Dense<F>> rhs,
                                      llvm::ArrayRef<Dense<F>> factors, const Decays<F> *decay,
                                      chunk::Reach reach);

/// What chunk.ldl gives. In float32 it is computed in float64, as every lowering does.
template <typename F>
struct Downdates {
  Dense<F> lower, reads, gains, denominators, last;
};
template <typename F>
Downdates<F> downdate(const Dense<F> &state, const Dense<F> &keys, const Dense<F> &decays,
                      const Dense<F> &weights, const Dense<F> &offsets);

/// Conjugate gradients from zero, for every column of `rhs` on its own: in any field the same rational
/// function. `product` multiplies all columns; nothing when it does not.
template <typename F>
std::optional<Dense<F>>
conjugateGradients(const Dense<F> &rhs, int64_t iterations, F eps,
                   llvm::function_ref<std::optional<Dense<F>>(const Dense<F> &)> product) {
  Dense<F> x(rhs.rows, rhs.cols), r = rhs, p = rhs;
  auto dots = [](const Dense<F> &a, const Dense<F> &b) {
    std::vector<F> sums(a.cols);
    for (int64_t i = 0; i < a.rows; ++i)
      for (int64_t j = 0; j < a.cols; ++j)
        sums[j] += a.at(i, j) * b.at(i, j);
    return sums;
  };
  auto quotient = [&](F num, F den) { return den + eps == F() ? F() : num / (den + eps); };
  std::vector<F> rr = dots(r, r);
  for (int64_t step = 0; step < iterations; ++step) {
    std::optional<Dense<F>> ap = product(p);
    if (!ap)
      return std::nullopt;
    std::vector<F> pap = dots(p, *ap);
    for (int64_t j = 0; j < x.cols; ++j) {
      F alpha = quotient(rr[j], pap[j]);
      for (int64_t i = 0; i < x.rows; ++i) {
        x.at(i, j) += alpha * p.at(i, j);
        r.at(i, j) -= alpha * ap->at(i, j);
      }
    }
    std::vector<F> next = dots(r, r);
    for (int64_t j = 0; j < x.cols; ++j) {
      F beta = quotient(next[j], rr[j]);
      for (int64_t i = 0; i < x.rows; ++i)
        p.at(i, j) = r.at(i, j) + beta * p.at(i, j);
    }
    rr = next;
  }
  return x;
}

/// Solves a general system by elimination (exact in F_p).
template <typename F>
Dense<F> eliminate(Dense<F> matrix, Dense<F> rhs);

} // namespace recur
