// The descriptor of a tensor for the engine that copies boxes.
#pragma once
#include <cstdint>

namespace recur::emulate {

/// What the emulated driver writes into the 128 bytes of a CUtensorMap. The first dimension is the innermost.
struct TensorMap {
  static constexpr uint32_t magic = 0x54454e53;
  static constexpr unsigned mostDims = 5;

  uint32_t mark, dims, elementBytes, swizzle; // swizzle: 0 none, 1 32 bytes, 2 64, 3 128
  char *data;
  uint64_t sizes[mostDims], strides[mostDims - 1]; // strides in bytes, from the second dimension on
  uint32_t box[mostDims];

  uint32_t boxBytes() const {
    uint32_t bytes = elementBytes;
    for (unsigned i = 0; i < dims; ++i)
      bytes *= box[i];
    return bytes;
  }
};
static_assert(sizeof(TensorMap) <= 128, "a CUtensorMap has 128 bytes");

} // namespace recur::emulate
