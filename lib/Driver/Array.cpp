// Arrays and .npy files (format: numpy.lib.format in NumPy's documentation).
#include "lib/Driver/Array.h"
#include "lib/Driver/Output.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

#include <numeric>

using namespace recur;
using llvm::StringRef;

Array::Array(std::vector<int64_t> shape, double fill) : shape(std::move(shape)) {
  data.assign(elementsOf(this->shape), fill);
}

int64_t recur::elementsOf(llvm::ArrayRef<int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
}

std::string Array::shapeText() const {
  return "[" + llvm::join(llvm::map_range(shape, [](int64_t n) { return std::to_string(n); }), ", ") + "]";
}

// The text after a key in the header's dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4),
// }
static StringRef entry(StringRef header, StringRef key) {
  size_t at = header.find(("'" + key + "':").str());
  if (at == StringRef::npos)
    return {};
  return header.drop_front(at + key.size() + 3).ltrim();
}

// One element of a numpy type such as "<f4"; nullopt for a type that is not read.
static std::optional<double> element(StringRef type, const char *p) {
  using namespace llvm::support::endian;
  if (type == "<f4")
    return llvm::bit_cast<float>(read32le(p));
  if (type == "<f8")
    return llvm::bit_cast<double>(read64le(p));
  if (type == "<f2") {
    llvm::APFloat half(llvm::APFloat::IEEEhalf(), llvm::APInt(16, read16le(p)));
    return half.convertToDouble();
  }
  if (type == "<i8")
    return static_cast<int64_t>(read64le(p));
  if (type == "<u8")
    return read64le(p);
  if (type == "<i4")
    return static_cast<int32_t>(read32le(p));
  if (type == "<u4")
    return read32le(p);
  if (type == "<i2")
    return static_cast<int16_t>(read16le(p));
  if (type == "<u2")
    return read16le(p);
  if (type == "|i1")
    return static_cast<int8_t>(*p);
  if (type == "|u1" || type == "|b1")
    return static_cast<uint8_t>(*p);
  return std::nullopt;
}

// Visits the elements of a column-major file in row-major order.
static int64_t fortranOffset(int64_t index, llvm::ArrayRef<int64_t> shape) {
  int64_t offset = 0, stride = elementsOf(shape);
  for (int64_t n : llvm::reverse(shape)) {
    stride /= n;
    offset += index % n * stride;
    index /= n;
  }
  return offset;
}

std::optional<Array> recur::readNpy(StringRef path, std::string &error) {
  auto fail = [&](const llvm::Twine &why) {
    error = ("cannot read '" + path + "': " + why).str();
    return std::nullopt;
  };
  auto buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!buffer)
    return fail(buffer.getError().message());
  StringRef bytes = (*buffer)->getBuffer();
  if (!bytes.starts_with("\x93NUMPY") || bytes.size() < 12)
    return fail("not a .npy file");
  bool old = bytes[6] == 1;
  size_t headerSize = old ? llvm::support::endian::read16le(bytes.data() + 8)
                          : llvm::support::endian::read32le(bytes.data() + 8);
  size_t begin = old ? 10 : 12;
  if (bytes.size() - begin < headerSize)
    return fail("the file ends within its header");
  StringRef header = bytes.substr(begin, headerSize), body = bytes.drop_front(begin + headerSize);

  StringRef type = entry(header, "descr"), shapeText = entry(header, "shape").split(')').first;
  bool named = type.consume_front("'");
  type = type.split('\'').first;
  if (!named || type.empty() || !shapeText.consume_front("("))
    return fail("its header names no type or no shape");
  Array array;
  for (StringRef part : llvm::split(shapeText, ',')) {
    int64_t n;
    if (part.trim().empty())
      continue;
    if (part.trim().getAsInteger(10, n) || n < 0)
      return fail("its shape is broken: (" + shapeText + ")");
    array.shape.push_back(n);
  }
  int64_t count = 1;
  for (int64_t n : array.shape)
    if (llvm::MulOverflow(count, n, count))
      return fail("its shape is too large: (" + shapeText + ")");
  unsigned width = 0;
  char zeros[8] = {};
  if (type.size() < 3 || type.drop_front(2).getAsInteger(10, width) || !element(type, zeros))
    return fail("elements of type '" + type + "' are not read; use float32, float64, float16 or an integer");
  if (body.size() / width < static_cast<uint64_t>(count))
    return fail("the file ends within its data");
  bool fortran = entry(header, "fortran_order").starts_with("True");
  array.data.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    array.data.push_back(*element(type, body.data() + width * (fortran ? fortranOffset(i, array.shape) : i)));
  return array;
}

bool recur::writeNpy(StringRef path, const Array &array, bool float64, std::string &error) {
  std::string shape;
  for (int64_t n : array.shape)
    shape += std::to_string(n) + ", ";
  if (array.shape.size() > 1)
    shape.resize(shape.size() - 2);
  std::string header = (llvm::Twine("{'descr': '") + (float64 ? "<f8" : "<f4") +
                        "', 'fortran_order': False, 'shape': (" + llvm::StringRef(shape).rtrim() + "), }")
                           .str();
  header.resize(llvm::alignTo(header.size() + 11, 64) - 11, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  for (double x : array.data) {
    float single = x;
    bytes.append(float64 ? reinterpret_cast<const char *>(&x) : reinterpret_cast<const char *>(&single),
                 float64 ? 8 : 4);
  }
  return writeFile(path, bytes, error);
}
