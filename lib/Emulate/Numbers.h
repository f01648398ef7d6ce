// Numbers of 16 bits, and what the matrix units make of f32.
#pragma once
#include "llvm/ADT/bit.h"

#include <cmath>
#include <cstdint>

namespace recur::emulate {

inline float fromBf16(uint16_t bits) { return llvm::bit_cast<float>(uint32_t(bits) << 16); }

/// To the nearest, ties to even.
inline uint16_t roundToBf16(float x) {
  if (std::isnan(x))
    return 0x7fff;
  uint32_t bits = llvm::bit_cast<uint32_t>(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float fromF16(uint16_t bits) { return float(llvm::bit_cast<_Float16>(bits)); }
inline uint16_t roundToF16(float x) { return llvm::bit_cast<uint16_t>(_Float16(x)); }

/// The matrix units read only the upper 19 bits.
inline float cutToTf32(uint32_t bits) { return llvm::bit_cast<float>(bits & 0xffffe000); }

} // namespace recur::emulate
