// Instructions of one thread: registers, arithmetic, memory.
#include "lib/Emulate/Machine.h"
#include "lib/Emulate/Numbers.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/bit.h"

#include <cmath>
#include <cstring>

using namespace llvm;
using namespace recur::emulate;

// The size of a type of PTX in bytes; 0 for what is none.
static int64_t bytesOf(StringRef type) {
  if (type == "pred")
    return 1;
  int64_t bits;
  if (type.empty() || !StringRef("bfsu").contains(type[0]) || type.substr(1).getAsInteger(10, bits))
    return 0;
  return bits / 8;
}

static uint64_t lowBytes(uint64_t value, int64_t bytes) {
  return bytes >= 8 ? value : value & ((uint64_t(1) << 8 * bytes) - 1);
}

//===----------------------------------------------------------------------===//
// Registers and arithmetic
//===----------------------------------------------------------------------===//

static void move(Thread &thread, const Statement &s, Slots slots) {
  const OperandGroup &to = s.operands[0], &from = s.operands[1];
  uint64_t value = 0;
  int64_t part = 8 * s.bytes / from.items.size();
  for (auto [i, item] : enumerate(from.items))
    value |= lowBytes(thread.get(item, slots), part / 8) << i * part;
  part = 8 * s.bytes / to.items.size();
  for (auto [i, item] : enumerate(to.items))
    thread.set(item, slots, lowBytes(value >> i * part, part / 8));
}

static void packPair(Thread &thread, const Statement &s, Slots slots) {
  uint16_t (*round)(float) = s.flag ? roundToBf16 : roundToF16;
  auto rounded = [&](unsigned operand) {
    float x = thread.number(s.operands[operand], slots);
    const float most = s.flag ? 0x1.fep127f : 65504;
    return uint32_t(round(s.kind && !std::isnan(x) ? std::clamp(x, -most, most) : x));
  };
  uint32_t high = rounded(1), low = rounded(2);
  thread.set(s.operands[0].items[0], slots, high << 16 | low);
}

static void roundOne(Thread &thread, const Statement &s, Slots slots) {
  uint16_t (*round)(float) = s.flag ? roundToBf16 : roundToF16;
  thread.set(s.operands[0].items[0], slots, round(thread.number(s.operands[1], slots)));
}

static void widenF16(Thread &thread, const Statement &s, Slots slots) {
  thread.set(s.operands[0].items[0], slots, bit_cast<uint32_t>(fromF16(thread.word(s.operands[1], slots))));
}

static float flush(float x, bool flushes) {
  return flushes && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

enum UnitFunction { Power, Logarithm, Reciprocal, ReciprocalRoot, Root, Tangent, Sine, Cosine };

static void unit(Thread &thread, const Statement &s, Slots slots) {
  float x = flush(thread.number(s.operands[1], slots), s.flag), y = 0;
  switch (s.kind) {
  case Power:
    y = std::exp2(x);
    break;
  case Logarithm:
    y = std::log2(x);
    break;
  case Reciprocal:
    y = 1 / x;
    break;
  case ReciprocalRoot:
    y = 1 / std::sqrt(x);
    break;
  case Root:
    y = std::sqrt(x);
    break;
  case Tangent:
    y = bit_cast<float>((bit_cast<uint32_t>(std::tanh(x)) + 0x800) & ~0xfffu); // 11 digits
    break;
  case Sine:
    y = std::sin(x);
    break;
  case Cosine:
    y = std::cos(x);
  }
  thread.set(s.operands[0].items[0], slots, bit_cast<uint32_t>(flush(y, s.flag)));
}

// Of two bf16 or f16 in a register; of a number and none, the number.
static void extremeOfPairs(Thread &thread, const Statement &s, Slots slots) {
  uint32_t x = thread.word(s.operands[1], slots), y = thread.word(s.operands[2], slots), result = 0;
  for (unsigned shift : {0, 16}) {
    float (*widen)(uint16_t) = s.kind ? fromF16 : fromBf16;
    float a = widen(x >> shift), b = widen(y >> shift);
    uint16_t (*round)(float) = s.kind ? roundToF16 : roundToBf16;
    result |= uint32_t(round(s.flag ? std::fmax(a, b) : std::fmin(a, b))) << shift;
  }
  thread.set(s.operands[0].items[0], slots, result);
}

// Of two f16 in a register: products, perhaps with something added, rounded once.
static void multiplyPairs(Thread &thread, const Statement &s, Slots slots) {
  uint32_t x = thread.word(s.operands[1], slots), y = thread.word(s.operands[2], slots), result = 0;
  uint32_t more = s.operands.size() > 3 ? thread.word(s.operands[3], slots) : 0;
  for (unsigned shift : {0, 16}) {
    // Exact in f64 but for sums of very different numbers, of which f16 keeps the larger one.
    double product = double(fromF16(x >> shift)) * fromF16(y >> shift) + fromF16(more >> shift);
    result |= uint32_t(roundToF16(float(product))) << shift;
  }
  thread.set(s.operands[0].items[0], slots, result);
}

static void negate(Thread &thread, const Statement &s, Slots slots) {
  thread.set(s.operands[0].items[0], slots, bit_cast<uint32_t>(-thread.number(s.operands[1], slots)));
}

static void select(Thread &thread, const Statement &s, Slots slots) {
  thread.set(s.operands[0].items[0], slots,
             thread.word(s.operands[thread.word(s.operands[3], slots) & 1 ? 1 : 2], slots));
}

static void fma(Thread &thread, const Statement &s, Slots slots) {
  float y = std::fma(thread.number(s.operands[1], slots), thread.number(s.operands[2], slots),
                     thread.number(s.operands[3], slots));
  thread.set(s.operands[0].items[0], slots, bit_cast<uint32_t>(flush(y, s.flag)));
}

enum Comparison { Eq, Ne, Lt, Le, Gt, Ge };

static void compare(Thread &thread, const Statement &s, Slots slots) {
  // Signed and unsigned ones are told apart by how the words are widened.
  int64_t x = thread.word(s.operands[1], slots), y = thread.word(s.operands[2], slots);
  if (s.flag)
    x = int32_t(x), y = int32_t(y);
  bool results[] = {x == y, x != y, x<y, x <= y, x> y, x >= y};
  thread.set(s.operands[0].items[0], slots, results[s.kind]);
}

bool recur::emulate::decodeScalar(Statement &s) {
  size_t count = s.operands.size();
  if (s.words[0] == "mov" && s.words.size() == 2 && count == 2) {
    s.bytes = bytesOf(s.words[1]);
    s.run = move;
    return s.bytes;
  }
  if (s.words[0] == "cvt" && count >= 2) {
    std::string kind = join(ArrayRef(s.words).drop_front(), ".");
    s.flag = StringRef(kind).contains("bf16");
    s.kind = s.has("satfinite");
    s.run = StringSwitch<decltype(s.run)>(kind)
                .Cases({"rn.bf16x2.f32", "rn.f16x2.f32", "rn.satfinite.bf16x2.f32", "rn.satfinite.f16x2.f32"},
                       packPair)
                .Cases({"rn.bf16.f32", "rn.f16.f32"}, roundOne)
                .Case("f32.f16", widenF16)
                .Default(nullptr);
    return s.run;
  }
  if (s.has("approx") && s.words.back() == "f32" && count == 2) {
    s.kind = StringSwitch<int64_t>(s.words[0])
                 .Case("ex2", Power)
                 .Case("lg2", Logarithm)
                 .Case("rcp", Reciprocal)
                 .Case("rsqrt", ReciprocalRoot)
                 .Case("sqrt", Root)
                 .Case("tanh", Tangent)
                 .Case("sin", Sine)
                 .Case("cos", Cosine)
                 .Default(-1);
    s.flag = s.has("ftz");
    s.run = unit;
    return s.kind >= 0;
  }
  if (s.words[0] == "fma" && s.has("rn") && s.words.back() == "f32" && count == 4) {
    s.flag = s.has("ftz");
    s.run = fma;
    return true;
  }
  if ((s.words[0] == "mul" || s.words[0] == "fma") && s.words.size() == 3 && s.words[1] == "rn" &&
      s.words[2] == "f16x2" && count == (s.words[0] == "mul" ? 3 : 4)) {
    s.run = multiplyPairs;
    return true;
  }
  if ((s.words[0] == "max" || s.words[0] == "min") && s.words.size() == 2 && s.words[1].ends_with("f16x2") &&
      count == 3) {
    s.flag = s.words[0] == "max";
    s.kind = s.words[1] == "f16x2";
    s.run = extremeOfPairs;
    return true;
  }
  if (s.words[0] == "neg" && s.words.size() == 2 && s.words[1] == "f32" && count == 2) {
    s.run = negate;
    return true;
  }
  if (s.words[0] == "selp" && s.words.size() == 2 && bytesOf(s.words[1]) == 4 && count == 4) {
    s.run = select;
    return true;
  }
  if (s.words[0] == "setp" && s.words.size() == 3 && bytesOf(s.words[2]) == 4 && s.words[2] != "f32" &&
      count == 3) {
    s.kind = StringSwitch<int64_t>(s.words[1])
                 .Case("eq", Eq)
                 .Case("ne", Ne)
                 .Case("lt", Lt)
                 .Case("le", Le)
                 .Case("gt", Gt)
                 .Case("ge", Ge)
                 .Default(-1);
    s.flag = s.words[2] == "s32";
    s.run = compare;
    return s.kind >= 0;
  }
  return false;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

static void *locate(Thread &thread, const Statement &s, const OperandGroup &group, Slots slots, bool writes) {
  uint64_t address = thread.address(group, slots);
  int64_t bytes = s.bytes * s.count;
  if (!s.flag) {
    if (address % bytes)
      thread.fail("uses an address that is no multiple of " + Twine(bytes));
    return reinterpret_cast<void *>(address);
  }
  address = uint32_t(address);
  if (address % bytes)
    thread.fail("uses byte " + Twine(address - thread.block->shared.base()) +
                " of shared memory, which is no multiple of " + Twine(bytes));
  bool isAny = writes || s.has("shared::cluster");
  SharedMemory &shared = (isAny ? thread.cluster->blockAt(thread, address) : *thread.block).shared;
  Access access = thread.warp->access();
  access.relaxed = s.has("relaxed");
  thread.expect(writes ? shared.write(address, bytes, access) : shared.read(address, bytes, access));
  return shared.at<void>(address);
}

static void load(Thread &thread, const Statement &s, Slots slots) {
  const char *from = static_cast<const char *>(locate(thread, s, s.operands[1], slots, false));
  for (auto [i, item] : enumerate(s.operands[0].items)) {
    uint64_t value = 0;
    memcpy(&value, from + i * s.bytes, s.bytes);
    thread.set(item, slots, value);
  }
}

static void store(Thread &thread, const Statement &s, Slots slots) {
  char *to = static_cast<char *>(locate(thread, s, s.operands[0], slots, true));
  for (auto [i, item] : enumerate(s.operands[1].items)) {
    uint64_t value = thread.get(item, slots);
    memcpy(to + i * s.bytes, &value, s.bytes);
  }
}

static void fetchAdd(Thread &thread, const Statement &s, Slots slots) {
  auto *at = static_cast<uint32_t *>(locate(thread, s, s.operands[1], slots, true));
  uint32_t more = thread.word(s.operands[2], slots);
  thread.set(s.operands[0].items[0], slots, *at);
  *at += more;
}

static void nothing(Thread &, const Statement &, Slots) {}

bool recur::emulate::decodeMemory(Statement &s) {
  if (s.words[0] == "prefetch") { // a hint
    s.run = nothing;
    return s.has("global") && s.operands.size() == 1;
  }
  if (s.words == ArrayRef<StringRef>{"atom", "global", "add", "u32"} && s.operands.size() == 3) {
    s.bytes = 4;
    s.run = fetchAdd;
    return true;
  }
  if ((s.words[0] != "ld" && s.words[0] != "st") || s.operands.size() != 2 || s.words.size() < 3)
    return false;
  s.flag = any_of(s.words, [](StringRef word) { return word.starts_with("shared"); });
  if (!s.flag && !s.has("global"))
    return false;
  s.bytes = bytesOf(s.words.back());
  for (StringRef word : ArrayRef(s.words).drop_front().drop_back()) {
    bool hint =
        is_contained({"shared", "shared::cta", "shared::cluster", "global", "nc", "cs", "cg", "ca", "lu",
                      "wt", "wb", "volatile", "relaxed", "acquire", "release", "gpu", "cta", "cluster"},
                     word) ||
        word.starts_with("L1::") || word.starts_with("L2::");
    if (!hint && (word.size() != 2 || word[0] != 'v' || word.substr(1).getAsInteger(10, s.count)))
      return false;
  }
  const OperandGroup &values = s.operands[s.words[0] == "st"];
  s.run = s.words[0] == "ld" ? load : store;
  return s.bytes && int64_t(values.items.size()) == s.count;
}
