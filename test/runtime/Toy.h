//===- Toy.h - tensors and calls of the handwritten rule
//---------------------------------------------------===//
#pragma once

#include "test/runtime/toy_rule.h"

#include <cstring>
#include <string>
#include <vector>

namespace recur::test {

constexpr DLDataType f32 = {kDLFloat, 32, 1}, bf16 = {kDLBfloat, 16, 1}, f16 = {kDLFloat, 16, 1};
constexpr DLDataType i32 = {kDLInt, 32, 1}, i64 = {kDLInt, 64, 1};

/// An array with its DLTensor. Elements are read and written as float or integer, whatever their type.
class Array {
public:
  Array(DLDataType type, std::vector<int64_t> shape, std::vector<int64_t> strides = {}, size_t first = 0);
  Array(const Array &) = delete;

  /// Number of elements.
  int64_t count() const;
  /// Element by its position in row-major order.
  float get(int64_t index) const;
  void set(int64_t index, float value);
  /// Deterministic numbers, multiples of 1/8 between -1 and 1.
  void fill(unsigned seed);
  /// Every byte of the storage.
  std::vector<unsigned char> bytes() const { return storage; }
  void setBytes(unsigned char value) { std::memset(storage.data(), value, storage.size()); }

  std::vector<int64_t> shape, strides;
  DLTensor tensor = {};

protected:
  char *address(int64_t index) const;
  std::vector<unsigned char> storage;
};

/// A 1-D integer array.
struct Indices : Array {
  Indices(DLDataType type, const std::vector<int64_t> &values);
};

/// All arguments of one call of the rule, valid as built; tests then break one thing.
struct Toy {
  /// `heads` of the output, `groups` of q and k.
  Toy(int64_t batch, int64_t tokens, int64_t heads, int64_t groups = 1, int64_t dk = 4,
      DLDataType type = f32);

  int32_t forward(recur_stream *where = nullptr);
  int32_t step();
  /// What the rule means, for a plain batch or `ends`; returns the output in row-major order. `state` is
  /// [sequence, head, dv, dk] and is updated; `positions` may be empty.
  std::vector<float> expected(std::vector<float> &state, const std::vector<int64_t> &ends = {},
                              const std::vector<int64_t> &positions = {}) const;

  int64_t batch, tokens, heads, dk, dv = 3;
  Array q, k, v, g, c, p, initial, o, final;
  toy_forward_args args = {};
  toy_step_args stepArgs = {};
};

/// All elements as float, in row-major order.
std::vector<float> values(const Array &array);

} // namespace recur::test
