// Where the entries of a matrix in shared memory are that a product of a warpgroup reads.
#pragma once
#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>

namespace recur::emulate {

/// A descriptor of a matrix, taken apart.
struct MatrixDescriptor {
  uint32_t address;         // within the memory that 18 bits name
  uint32_t leading, stride; // bytes between blocks
  unsigned swizzle;         // 0 none, 1 128 bytes, 2 64, 3 32

  explicit MatrixDescriptor(uint64_t bits)
      : address((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4),
        stride((bits >> 32 & 0x3fff) << 4), swizzle(bits >> 62) {}
};

/// Exchanges parts of 16 bytes of an address's row of 128 (64, 32) bytes by the row's number.
inline uint32_t swizzled(uint32_t address, unsigned swizzle) {
  constexpr uint32_t masks[] = {0, 7, 3, 1};
  return address ^ (address >> 7 & masks[swizzle]) << 4;
}

/// Reads 8 entries from 16 bytes at an address to every `stride`-th float.
using ReadChunk = llvm::function_ref<void(uint32_t address, float *to, size_t stride)>;

/// Reads `rows` rows from `first` of a matrix whose rows have 16 entries of depth: to[row][depth]. In memory
/// a row's entries lie side by side, or, `byDepth`, those of one depth. The memory of a block starts at
/// `base`.
inline void readMatrix(uint32_t base, uint64_t bits, bool byDepth, unsigned first, unsigned rows, float *to,
                       ReadChunk read) {
  MatrixDescriptor matrix(bits);
  uint32_t rowBytes = matrix.swizzle ? 256 >> matrix.swizzle : 128, inRow = rowBytes / 2;
  auto place = [&](uint32_t offset) { return base + swizzled(matrix.address + offset, matrix.swizzle); };
  for (unsigned i = 0; i < rows; i += byDepth ? 8 : 1)
    for (unsigned k = 0; k < 16; k += byDepth ? 1 : 8) {
      unsigned row = first + i;
      if (byDepth) // blocks of 64 rows, or fewer, by 8 of the depth
        read(place(row / inRow * matrix.leading + k / 8 * matrix.stride + k % 8 * rowBytes + row % inRow * 2),
             to + i * 16 + k, 16);
      else // blocks of 8 rows
        read(place(row / 8 * matrix.stride + row % 8 * rowBytes + k * 2), to + i * 16 + k, 1);
    }
}

} // namespace recur::emulate
