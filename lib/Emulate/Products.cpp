// Products of matrices: of one warp, and of a warpgroup, whose warps do 16 rows each.
//
// A product of a warpgroup has no result before it is waited for. Until then a sum is a number that is none,
// which says in its lower bits which product's and which of its sums it is; the wait puts the sum in its
// place. What is in shared memory is read at the wait, as late as a device may, and checked against what was
// known when the product was issued.
#include "lib/Emulate/Machine.h"
#include "lib/Emulate/Matrices.h"
#include "lib/Emulate/Numbers.h"

using namespace llvm;
using namespace recur::emulate;

static float (*const widen[])(uint16_t) = {fromBf16, fromF16};

// The left operand's 16 x 16 from four registers of each lane.
static void unpackLeft(const uint32_t (*registers)[4], bool isF16, float (&left)[16][16]) {
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 4; ++i)
      for (unsigned half = 0; half < 2; ++half)
        left[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] =
            widen[isF16](registers[lane][i] >> 16 * half);
}

//===----------------------------------------------------------------------===//
// Of one warp
//===----------------------------------------------------------------------===//

enum Kind { Bf16, F16, Tf32 };

static void multiply(Thread &thread, const Statement &s, const Slots *slots) {
  float left[16][16], right[16][8];
  uint32_t registers[32][4];
  bool isTf32 = s.kind == Tf32;
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < 4; ++i)
      registers[lane][i] = thread.get(s.operands[1].items[i], slots[lane]);
    for (unsigned i = 0; i < 2; ++i) {
      uint32_t word = thread.get(s.operands[2].items[i], slots[lane]);
      if (isTf32)
        right[lane % 4 + 4 * i][lane / 4] = cutToTf32(word);
      for (unsigned half = 0; half < 2 && !isTf32; ++half)
        right[lane % 4 * 2 + 8 * i + half][lane / 4] = widen[s.kind](word >> 16 * half);
    }
    for (unsigned i = 0; i < 4 && isTf32; ++i)
      left[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = cutToTf32(registers[lane][i]);
  }
  if (!isTf32)
    unpackLeft(registers, s.kind == F16, left);
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 4; ++i) {
      unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = bit_cast<float>(uint32_t(thread.get(s.operands[3].items[i], slots[lane])));
      for (unsigned k = 0; k < (isTf32 ? 8 : 16); ++k)
        sum += double(left[row][k]) * right[k][column];
      // All lanes' operands were read before.
      thread.set(s.operands[0].items[i], slots[lane], bit_cast<uint32_t>(float(sum)));
    }
}

//===----------------------------------------------------------------------===//
// Of a warpgroup
//===----------------------------------------------------------------------===//

// Sums of a product under way: 13 bits for the product, 7 for the sum.
static constexpr uint32_t pendingMark = 0xffe00000, productBits = 13, sumBits = 7;

static bool isPending(uint32_t bits) { return (bits & 0xfff00000) == pendingMark; }
static uint32_t pendingSum(uint32_t product, uint32_t sum) { return pendingMark | product << sumBits | sum; }
static uint32_t productOf(uint32_t bits) { return bits >> sumBits & ((1 << productBits) - 1); }
static uint32_t sumOf(uint32_t bits) { return bits & ((1 << sumBits) - 1); }

static Product *findProduct(Warp &warp, uint32_t id) {
  for (Product &product : warp.products)
    if (product.id == id)
      return &product;
  return nullptr;
}

// The product that a statement goes on with, or a new one.
static Product &productFor(Thread &thread, const Statement &s, const Slots *slots) {
  Warp &warp = *thread.warp;
  const OperandGroup &sums = s.operands[0];
  bool starts = !thread.word(s.operands[3], slots[0]);
  uint32_t first = thread.get(sums.items[0], slots[0]);
  bool goesOn = !starts && isPending(first);
  Product *product = goesOn ? findProduct(warp, productOf(first)) : nullptr;
  if (goesOn && !product)
    thread.fail("adds to a product that is long done");
  if (!product) {
    // A product is forgotten when nothing can still ask for its sums.
    constexpr size_t remembered = 64;
    if (warp.products.size() == remembered)
      warp.products.pop_front();
    product = &warp.products.emplace_back();
    product->id = warp.nextProduct++ % (1 << productBits);
    product->columns = s.count;
    product->sums.resize(32 * sums.items.size());
  }
  for (unsigned lane = 0; lane < 32; ++lane)
    for (auto [i, item] : enumerate(sums.items)) {
      uint32_t bits = thread.get(item, slots[lane]);
      if (goesOn ? bits != pendingSum(product->id, i) : !starts && isPending(bits))
        thread.fail("adds to sums of a product under way that were touched");
      if (!goesOn)
        product->sums[lane * sums.items.size() + i] = starts ? 0 : bit_cast<float>(bits);
      thread.set(item, slots[lane], pendingSum(product->id, i));
    }
  return *product;
}

static void issue(Thread &thread, const Statement &s, const Slots *slots) {
  Product &product = productFor(thread, s, slots);
  if (product.columns != s.count)
    thread.fail("adds to a product of other columns");
  Product::Step &step = product.steps.emplace_back();
  const OperandGroup &left = s.operands[1];
  step.leftInRegisters = left.items.size() == 4;
  step.isF16 = s.kind == F16;
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 4 && step.leftInRegisters; ++i)
      step.left[lane][i] = thread.get(left.items[i], slots[lane]);
  step.leftDescriptor = thread.get(left.items[0], slots[0]);
  step.rightDescriptor = thread.get(s.operands[2].items[0], slots[0]);
  step.rightByDepth = thread.word(s.operands.back(), slots[0]);
  step.leftByDepth = !step.leftInRegisters && thread.word(s.operands[6], slots[0]);
  step.order = thread.warp->order;
  thread.warp->tick();
}

static void commit(Thread &thread, const Statement &, const Slots *) {
  Warp &warp = *thread.warp;
  ++warp.group;
  for (Product &product : warp.products)
    for (Product::Step &step : product.steps)
      if (!step.group)
        step.group = warp.group;
}

static void land(Thread &thread, Product &product, const Product::Step &step) {
  Warp &warp = *thread.warp;
  float left[16][16], right[256][16];
  Access access{warp.actor, warp.now(), &step.order, /*engine=*/true};
  auto readChunk = [&](uint32_t address, float *to, size_t stride) {
    SharedMemory &shared = thread.block->shared;
    thread.expect(shared.read(address, 16, access));
    for (unsigned i = 0; i < 8; ++i)
      to[i * stride] = widen[step.isF16](shared.at<uint16_t>(address)[i]);
  };
  uint32_t base = thread.block->shared.base();
  if (step.leftInRegisters)
    unpackLeft(step.left, step.isF16, left);
  else
    readMatrix(base, step.leftDescriptor, step.leftByDepth, warp.index % 4 * 16, 16, &left[0][0], readChunk);
  readMatrix(base, step.rightDescriptor, step.rightByDepth, 0, product.columns, &right[0][0], readChunk);
  size_t count = product.columns / 2;
  for (unsigned lane = 0; lane < 32; ++lane)
    for (size_t i = 0; i < count; ++i) {
      unsigned row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float &sum = product.sums[lane * count + i], part = 0;
      for (unsigned k = 0; k < 16; ++k)
        part += left[row][k] * right[column][k];
      sum += part;
    }
}

static void await(Thread &thread, const Statement &s, const Slots *slots) {
  Warp &warp = *thread.warp;
  uint32_t left = thread.word(s.operands[0], slots[0]);
  for (Product &product : warp.products)
    erase_if(product.steps, [&](const Product::Step &step) {
      if (!step.group || step.group + left > warp.group)
        return false;
      land(thread, product, step);
      return true;
    });
  warp.tick();
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < s.outputs; ++i) {
      uint32_t bits = slots[lane][i];
      Product *product = isPending(bits) ? findProduct(warp, productOf(bits)) : nullptr;
      if (!product || !product->steps.empty())
        continue;
      slots[lane][i] = bit_cast<uint32_t>(product->sums[lane * product->columns / 2 + sumOf(bits)]);
    }
}

static void nothing(Thread &, const Statement &, const Slots *) {}

bool recur::emulate::decodeProduct(Statement &s) {
  s.scope = Scope::Warp;
  auto operandTypes = [&](StringRef type) { return llvm::count(s.words, type) == 2; };
  s.kind = operandTypes("bf16") ? Bf16 : operandTypes("f16") ? F16 : operandTypes("tf32") ? Tf32 : -1;
  if (s.words[0] == "mma" && s.operands.size() == 4) {
    s.runWarp = multiply;
    return s.has("row") && s.has("col") && s.words.back() == "f32" && s.kind >= 0 &&
           s.has(s.kind == Tf32 ? "m16n8k8" : "m16n8k16");
  }
  if (s.words[0] != "wgmma" || s.words.size() < 2)
    return false;
  if (s.words[1] == "mma_async" && s.operands.size() >= 7 && s.words.size() == 8) {
    s.runWarp = issue;
    // Sums in f32 of products of m64nNk16.
    StringRef shape = s.words[4];
    bool known = shape.consume_front("m64n") && shape.consume_back("k16") && !shape.getAsInteger(10, s.count);
    return known && s.words[5] == "f32" && (s.kind == Bf16 || s.kind == F16) &&
           int64_t(s.operands[0].items.size()) == s.count / 2 &&
           s.operands.size() == (s.operands[1].items.size() == 4 ? 7u : 8u);
  }
  s.runWarp = s.words[1] == "fence" ? nothing : s.words[1] == "commit_group" ? commit : await;
  return s.words[1] == "fence" || s.words[1] == "commit_group" ||
         (s.words[1] == "wait_group" && s.operands.size() == 1);
}
