// The number systems in which rules and chunk programs are run.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace recur {

/// An element of the field with 2^31 - 1 elements. Identities between polynomials hold here exactly or,
/// almost surely, not at all.
struct Fp {
  static constexpr uint32_t prime = 0x7fffffff;
  uint32_t value = 0;

  Fp() = default;
  explicit Fp(uint64_t x) : value(x % prime) {}
  /// The exact value of a double, a quotient by a power of two.
  static Fp fromDouble(double x) {
    int exponent;
    int64_t mantissa = int64_t(std::ldexp(std::frexp(std::fabs(x), &exponent), 53));
    exponent -= 53;
    Fp result = Fp(mantissa) * (exponent < 0 ? Fp(2).power(-exponent).inverse() : Fp(2).power(exponent));
    return x < 0 ? Fp() - result : result;
  }

  Fp operator+(Fp o) const { return Fp(uint64_t(value) + o.value); }
  Fp operator-(Fp o) const { return Fp(uint64_t(value) + prime - o.value); }
  Fp operator*(Fp o) const { return Fp(uint64_t(value) * o.value); }
  Fp operator/(Fp o) const { return *this * o.inverse(); }
  Fp &operator+=(Fp o) { return *this = *this + o; }
  Fp &operator-=(Fp o) { return *this = *this - o; }
  Fp &operator*=(Fp o) { return *this = *this * o; }
  bool operator==(Fp o) const { return value == o.value; }
  bool operator!=(Fp o) const { return value != o.value; }

  Fp power(uint64_t n) const {
    Fp result(1), base = *this;
    for (; n; n >>= 1, base *= base)
      if (n & 1)
        result *= base;
    return result;
  }
  /// By Fermat's little theorem; 0 for 0.
  Fp inverse() const { return power(prime - 2); }
};

/// A dense matrix, row by row.
template <typename F>
struct Dense {
  int64_t rows = 0, cols = 0;
  std::vector<F> data;

  Dense() = default;
  Dense(int64_t rows, int64_t cols, F fill = F()) : rows(rows), cols(cols), data(rows * cols, fill) {}
  F &at(int64_t i, int64_t j) { return data[i * cols + j]; }
  F at(int64_t i, int64_t j) const { return data[i * cols + j]; }
};

} // namespace recur
