#include "test/runtime/Toy.h"

namespace recur::test {

static std::vector<int64_t> compact(const std::vector<int64_t> &shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * shape[i];
  return strides;
}

Array::Array(DLDataType type, std::vector<int64_t> sizes, std::vector<int64_t> steps, size_t first)
    : shape(std::move(sizes)), strides(std::move(steps)) {
  const bool given = !strides.empty();
  if (!given)
    strides = compact(shape);
  int64_t high = 1, low = 0;
  for (size_t i = 0; i < shape.size(); ++i)
    (strides[i] < 0 ? low : high) += strides[i] * std::max<int64_t>(shape[i] - 1, 0);
  const int64_t element = type.bits / 8;
  storage.resize(static_cast<size_t>((high - low) * element) + first * element);
  tensor.data = storage.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = static_cast<int32_t>(shape.size());
  tensor.dtype = type;
  tensor.shape = shape.data();
  tensor.strides = given ? strides.data() : nullptr;
  tensor.byte_offset = static_cast<uint64_t>((static_cast<int64_t>(first) - low) * element);
}

Indices::Indices(DLDataType type, const std::vector<int64_t> &values)
    : Array(type, {static_cast<int64_t>(values.size())}) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<int32_t>(values[i]);
    if (type.bits == 64)
      std::memcpy(address(static_cast<int64_t>(i)), &values[i], 8);
    else
      std::memcpy(address(static_cast<int64_t>(i)), &narrow, 4);
  }
}

int64_t Array::count() const {
  int64_t count = 1;
  for (const int64_t size : shape)
    count *= size;
  return count;
}

char *Array::address(int64_t index) const {
  int64_t offset = 0;
  for (size_t i = shape.size(); i-- > 0;) {
    offset += index % shape[i] * strides[i];
    index /= shape[i];
  }
  return static_cast<char *>(tensor.data) + tensor.byte_offset + offset * (tensor.dtype.bits / 8);
}

float Array::get(int64_t index) const {
  if (tensor.dtype.bits == 16) {
    uint16_t bits = 0;
    std::memcpy(&bits, address(index), 2);
    return toy_to_float(bits, tensor.dtype.code == kDLBfloat);
  }
  float value = 0;
  std::memcpy(&value, address(index), 4);
  return value;
}

void Array::set(int64_t index, float value) {
  if (tensor.dtype.bits == 16) {
    const uint16_t bits = toy_from_float(value, tensor.dtype.code == kDLBfloat);
    std::memcpy(address(index), &bits, 2);
  } else {
    std::memcpy(address(index), &value, 4);
  }
}

void Array::fill(unsigned seed) {
  for (int64_t i = 0; i < count(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    set(i, static_cast<float>(static_cast<int>(seed >> 24) % 17 - 8) / 8);
  }
}

std::vector<float> values(const Array &array) {
  std::vector<float> result;
  for (int64_t i = 0; i < array.count(); ++i)
    result.push_back(array.get(i));
  return result;
}

Toy::Toy(int64_t batch, int64_t tokens, int64_t heads, int64_t groups, int64_t dk, DLDataType type)
    : batch(batch), tokens(tokens), heads(heads), dk(dk), q(type, {batch, tokens, groups, dk}),
      k(type, {batch, tokens, groups, dk}), v(type, {batch, tokens, heads, dv}),
      g(type, {batch, tokens, heads}), c(type, {batch, tokens, heads, 2}), p(type, {heads, dv}),
      initial(f32, {batch, heads, dv, dk}), o(type, {batch, tokens, heads, dv}),
      final(f32, {batch, heads, dv, dk}) {
  unsigned seed = 0;
  for (Array *array : {&q, &k, &v, &g, &c, &p, &initial})
    array->fill(seed++);
  o.setBytes(0xAB);
  final.setBytes(0xAB);
  args = {&q.tensor,       &k.tensor, &v.tensor, &g.tensor, &c.tensor, &p.tensor,
          &initial.tensor, nullptr,   nullptr,   nullptr,   &o.tensor, &final.tensor};
  stepArgs = {&q.tensor, &k.tensor, &v.tensor, &g.tensor, &c.tensor,
              &p.tensor, nullptr,   nullptr,   &o.tensor, &final.tensor};
}

int32_t Toy::forward(recur_stream *where) {
  const int64_t size = toy_forward_workspace(&args);
  if (size < 0)
    return static_cast<int32_t>(size);
  std::vector<char> workspace(static_cast<size_t>(size));
  return toy_forward(&args, workspace.data(), where);
}

int32_t Toy::step() {
  const int64_t size = toy_step_workspace(&stepArgs);
  if (size < 0)
    return static_cast<int32_t>(size);
  std::vector<char> workspace(static_cast<size_t>(size));
  return toy_step(&stepArgs, workspace.data(), nullptr);
}

std::vector<float> Toy::expected(std::vector<float> &state, const std::vector<int64_t> &ends,
                                 const std::vector<int64_t> &positions) const {
  std::vector<float> result(static_cast<size_t>(batch * tokens * heads * dv));
  const int64_t sequences = ends.empty() ? batch : static_cast<int64_t>(ends.size()) - 1;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t first = ends.empty() ? s * tokens : ends[s],
                  last = ends.empty() ? first + tokens : ends[s + 1];
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t row = first; row < last; ++row) {
        const auto at = [&](const Array &array, int64_t i) {
          const int64_t count = array.shape[2], size = array.shape.size() > 3 ? array.shape[3] : 1;
          return array.get((row * count + h / (heads / count)) * size + i);
        };
        for (int64_t i = 0; i < dv; ++i) {
          float sum = 0;
          for (int64_t j = 0; j < dk; ++j) {
            float &cell = state[((s * heads + h) * dv + i) * dk + j];
            cell = at(g, 0) * cell + at(v, i) * at(k, j);
            sum += cell * at(q, j);
          }
          const auto t = static_cast<float>(row - first + (positions.empty() ? 0 : positions[s]));
          const float param = p.get(h / (heads / p.shape[0]) * dv + i);
          result[(row * heads + h) * dv + i] = (at(c, 0) + at(c, 1)) * sum + t * param;
        }
      }
  }
  return result;
}

} // namespace recur::test
