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
  /// The fraction that a double stands for to within its rounding, such as 1/10 or 1/42: constants are
  /// folded, so that one rule has them rounded once where another has none. A double that is near none is
  /// taken as it is.
  static Fp fromDouble(double x) {
    // Continued fraction: the best approximations p/q, q ascending.
    double magnitude = std::fabs(x), rest = magnitude;
    int64_t p0 = 0, q0 = 1, p1 = 1, q1 = 0;
    while (rest < 0x1p52) {
      auto whole = int64_t(rest);
      if (double(whole) * double(q1) > 0x1p20 || double(whole) * double(p1) > 0x1p52)
        break;
      int64_t p = whole * p1 + p0, q = whole * q1 + q0;
      if (std::fabs(magnitude - double(p) / double(q)) <= magnitude * 0x1p-50)
        return signedAs(x, Fp(p) / Fp(q));
      p0 = p1, q0 = q1, p1 = p, q1 = q;
      rest = 1 / (rest - double(whole));
    }
    int exponent;
    auto mantissa = int64_t(std::ldexp(std::frexp(magnitude, &exponent), 53));
    exponent -= 53;
    return signedAs(x,
                    Fp(mantissa) * (exponent < 0 ? Fp(2).power(-exponent).inverse() : Fp(2).power(exponent)));
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

private:
  static Fp signedAs(double x, Fp magnitude) { return x < 0 ? Fp() - magnitude : magnitude; }
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
