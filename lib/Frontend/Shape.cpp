#include "lib/Frontend/Shape.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include <cmath>

using namespace llvm;

namespace recur::frontend {

std::string Shape::str() const {
  if (diag)
    return "diag(" + rows.str() + ")";
  if (isScalar())
    return "scalar";
  if (isVector())
    return "vector(" + rows.str() + ")";
  return "matrix(" + rows.str() + ", " + cols.str() + ")";
}

bool Interval::isEverything() const { return std::isinf(lo) && lo < 0 && std::isinf(hi) && hi > 0; }

std::string Interval::str() const {
  return (loOpen ? "(" : "[") + formatNumber(lo) + ", " + formatNumber(hi) + (hiOpen ? ")" : "]");
}

std::string formatNumber(double value) {
  if (std::isinf(value))
    return value < 0 ? "-inf" : "inf";
  // The shortest of the usual precisions that reads back as the same number.
  for (int precision : {6, 9, 12, 15, 17}) {
    std::string text;
    raw_string_ostream os(text);
    os << format("%.*g", precision, value);
    double back = 0;
    if (!StringRef(text).getAsDouble(back) && back == value)
      return text;
  }
  return "nan";
}

} // namespace recur::frontend
