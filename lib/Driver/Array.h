// Arrays of numbers, and the .npy files they are kept in.
#pragma once

#include "mlir/Support/LLVM.h"

#include <string>
#include <vector>

namespace recur {

/// A compact row-major array of reals.
struct Array {
  std::vector<int64_t> shape;
  std::vector<double> data;

  Array() = default;
  explicit Array(std::vector<int64_t> shape, double fill = 0);
  int64_t size() const { return data.size(); }
  /// The shape as numpy writes it: "[2, 3]".
  std::string shapeText() const;
};

/// Number of elements of a shape.
int64_t elementsOf(llvm::ArrayRef<int64_t> shape);

/// Reads a .npy file (versions 1 to 3, float16/32/64, integers or bool, either order). On failure the result
/// is nullopt and `error` says why.
std::optional<Array> readNpy(llvm::StringRef path, std::string &error);

/// Writes a .npy file of float32, or of float64. Returns false and says why on failure; nothing is left half
/// written.
bool writeNpy(llvm::StringRef path, const Array &array, bool float64, std::string &error);

} // namespace recur
