// What the sweep computes once per chunk for all columns: packed rows, inner products, products of decays.
#include "lib/Cpu/SweepPack.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

SweepPacker::SweepPacker(VectorBuilder &b, const SweepShape &shape, const SweepLayout &layout,
                         const SweepGroup &group, Value scratch)
    : b(b), shape(shape), layout(layout), group(group), scratch(scratch) {}

Value SweepPacker::rowsAt(Value inChunk) {
  return b.add(b.scale(inChunk, layout.rowStride), layout.rowsBegin);
}

Value SweepPacker::coefficientsAt(Value first) {
  Value number = group.group == 1 ? first : Value(arith::DivSIOp::create(b, first, b.index(group.group)));
  return b.add(b.scale(number, group.size()), layout.coefficientsBegin);
}

void SweepPacker::keep(Value first) {
  Value before = b.index(-group.group), from = rowsAt(first), to = rowsAt(before);
  llvm::SmallSetVector<unsigned, 4> slots(shape.writes.begin(), shape.writes.end());
  if (shape.rowDecay)
    slots.insert(*shape.rowDecay);
  b.loop(b.index(0), b.index(group.group * layout.rowStride), b.lanes, [&](Value i) {
    for (unsigned slot : slots) {
      Value at = b.add(i, slot * layout.rowSlotStride);
      b.store(b.load(scratch, b.add(from, at)), scratch, b.add(to, at));
    }
  });
  auto rescale = [&](Value token) { return b.add(coefficientsAt(token), group.rescale()); };
  if (shape.scalarDecay || shape.rowDecay)
    b.storeScalar(b.loadScalar(scratch, rescale(first)), scratch, rescale(before));
}

Value SweepPacker::coefficients(Value from, Value to, Value ends, Value scale) {
  if (!shape.scalarDecay && !shape.rowDecay && group.group == 1)
    return {};
  Values carried = b.loop(
      from, to, group.group, scale ? ValueRange(scale) : ValueRange(), [&](Value first, ValueRange carried) {
        Value at = coefficientsAt(first), safe, fresh;
        if (shape.rowDecay) {
          Value more = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, b.add(first, group.group), to);
          more = arith::OrIOp::create(b, more, arith::XOrIOp::create(b, ends, b.flag(true)));
          safe = arith::AndIOp::create(b, rowsAreSafe(first), more);
          fresh = b.splat(arith::SelectOp::create(b, more, b.number(freshScale), b.number(1)));
          Value usual = arith::SelectOp::create(b, safe, b.number(1), b.number(0));
          b.storeScalar(usual, scratch, b.add(at, group.rescale()));
        }
        Values products = innerProducts(first, safe, fresh);
        if (shape.scalarDecay)
          return Values{scalarCoefficients(first, at, products, carried.front())};
        storeProducts(at, products);
        return Values();
      });
  return scale ? carried.front() : Value();
}

void SweepPacker::storeProducts(Value at, ArrayRef<Value> products) {
  unsigned next = 0;
  eachGram([&](int64_t t, unsigned r, int64_t j, unsigned w) {
    b.storeScalar(products[next++], scratch, b.add(at, group.gram(t, r, j, w)));
  });
}

void SweepPacker::eachGram(llvm::function_ref<void(int64_t, unsigned, int64_t, unsigned)> body) {
  for (int64_t t = 1; t < group.group; ++t)
    for (int64_t j = 0; j < t; ++j)
      for (unsigned r = 0; r < group.reads(); ++r)
        for (unsigned w = 0; w < group.writes(); ++w)
          body(t, r, j, w);
}

// Entries of a packed row, `lanes` of them from i.
Value SweepPacker::row(Value first, Value i, int64_t t, unsigned slot) {
  return b.add(b.add(rowsAt(first), i), slot * layout.rowSlotStride + t * layout.rowStride);
}

// The decay by rows of the tokens from `from` to before `to`; null for none.
Value SweepPacker::rowDecay(Value first, Value i, int64_t from, int64_t to) {
  Value product;
  for (int64_t t = from; shape.rowDecay && t < to; ++t)
    product = b.mul(product, b.load(scratch, row(first, i, t, *shape.rowDecay)));
  return product;
}

// The inner products of a group. A decay by rows enters them, and then the packed rows themselves.
SmallVector<Value> SweepPacker::innerProducts(Value first, Value safe, Value fresh) {
  if (group.group == 1 && !shape.rowDecay)
    return {};
  unsigned count = 0;
  eachGram([&](int64_t, unsigned, int64_t, unsigned) { ++count; });
  Values zeros(count, b.splat(0.0));
  Values sums =
      b.loop(b.index(0), b.index(layout.rowStride), b.lanes, zeros, [&](Value i, ValueRange carried) {
        Values sums(carried);
        unsigned next = 0;
        eachGram([&](int64_t t, unsigned r, int64_t j, unsigned w) {
          Value read = b.mul(b.load(scratch, row(first, i, t, shape.reads[r])), rowDecay(first, i, j + 1, t));
          sums[next] = b.fma(read, b.load(scratch, row(first, i, j, shape.writes[w])), sums[next]);
          ++next;
        });
        if (shape.rowDecay)
          scaleRows(first, i, safe, fresh);
        return sums;
      });
  for (Value &value : sums)
    value = b.reduce(value);
  return sums;
}

// As below, for each row of H a scale of its own. All rows are multiplied by theirs when that of one leaves
// the safe range, and after the last token.
Value SweepPacker::rowsAreSafe(Value first) {
  VectorType bits = VectorType::get(b.lanes, b.getI32Type());
  auto splat = [&](int32_t x) {
    return arith::ConstantOp::create(b, DenseElementsAttr::get(bits, x)).getResult();
  };
  // Of positive numbers the bits are in order.
  const int32_t lowest = llvm::bit_cast<int32_t>(0x1p-64f), highest = llvm::bit_cast<int32_t>(0x1p64f);
  Value least = splat(lowest), sign = splat(std::numeric_limits<int32_t>::max());
  Values most =
      b.loop(b.index(0), b.index(layout.rowStride), b.lanes, splat(0), [&](Value i, ValueRange carried) {
        Value whole =
            b.mul(b.load(scratch, b.add(i, layout.scalesBegin)), rowDecay(first, i, 0, group.group));
        Value size = arith::AndIOp::create(b, vector::BitCastOp::create(b, bits, whole), sign);
        Value above = arith::SubIOp::create(b, size, least);
        return Values{arith::MaxUIOp::create(b, carried.front(), above)};
      });
  Value above = vector::ReductionOp::create(b, vector::CombiningKind::MAXUI, most.front());
  Value room = arith::ConstantIntOp::create(b, highest - lowest, 32);
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ule, above, room);
}

// The reads are multiplied by the scale and the decay since the group's start, the writes by the decay until
// its end over the new scale. What is left to multiply the rows by becomes the decay of the group's first
// token.
void SweepPacker::scaleRows(Value first, Value i, Value safe, Value fresh) {
  Value one = b.splat(1.0), scale = b.load(scratch, b.add(i, layout.scalesBegin));
  Value whole = b.mul(scale, rowDecay(first, i, 0, group.group));
  Value next = arith::SelectOp::create(b, safe, whole, fresh), inverse = arith::DivFOp::create(b, one, next);
  llvm::SmallVector<std::pair<Value, Value>> scaled;
  auto multiply = [&](int64_t t, unsigned slot, Value factor) {
    Value at = row(first, i, t, slot);
    scaled.push_back({b.mul(b.load(scratch, at), factor), at});
  };
  for (int64_t t = 0; t < group.group; ++t) {
    for (unsigned slot : shape.reads)
      multiply(t, slot, b.mul(scale, rowDecay(first, i, 0, t)));
    for (unsigned slot : shape.writes)
      multiply(t, slot, b.mul(inverse, rowDecay(first, i, t + 1, group.group)));
  }
  scaled.push_back({b.mul(whole, inverse), row(first, i, 0, *shape.rowDecay)});
  scaled.push_back({next, b.add(i, layout.scalesBegin)});
  for (auto [value, at] : scaled)
    b.store(value, scratch, at);
}

// A scalar decay is kept beside the state: H = scale * (what is stored). Products only, no quotient of
// decays, so that a decay of 0 is exact. When the scale leaves a safe range the stored state is multiplied by
// it once.
Value SweepPacker::scalarCoefficients(Value first, Value at, ArrayRef<Value> products, Value scale) {
  Value scalars = b.add(b.scale(first, layout.scalarSlots), layout.scalarsBegin);
  Values decays;
  for (int64_t t = 0; t < group.group; ++t)
    decays.push_back(b.loadScalar(scratch, b.add(scalars, t * shape.scalarSlots + *shape.scalarDecay)));
  auto decay = [&](int64_t from, int64_t to) {
    Value product;
    for (int64_t t = from; t < to; ++t)
      product = b.mul(product, decays[t]);
    return product;
  };
  auto put = [&](int64_t slot, Value x) { b.storeScalar(x, scratch, b.add(at, slot)); };

  Value one = b.number(1), whole = b.mul(scale, decay(0, group.group));
  Value size = math::AbsFOp::create(b, whole);
  Value safe =
      arith::AndIOp::create(b, arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, size, b.number(0x1p-40)),
                            arith::CmpFOp::create(b, arith::CmpFPredicate::OLE, size, b.number(0x1p40)));
  Value next = arith::SelectOp::create(b, safe, whole, one);
  Value inverse = arith::DivFOp::create(b, one, next);
  put(group.rescale(), arith::SelectOp::create(b, safe, one, whole));
  for (int64_t t = 0; t < group.group; ++t) {
    put(group.carry(t), b.mul(scale, decay(0, t)));
    put(group.leave(t), b.mul(inverse, decay(t + 1, group.group)));
  }
  unsigned number = 0;
  eachGram([&](int64_t t, unsigned r, int64_t j, unsigned w) {
    put(group.gram(t, r, j, w), b.mul(products[number++], decay(j + 1, t)));
  });
  return next;
}
