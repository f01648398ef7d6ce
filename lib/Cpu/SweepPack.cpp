// What the sweep computes once per chunk for all columns: packed rows, inner products, products of decays.
#include "lib/Cpu/SweepPack.h"
#include "mlir/Dialect/Math/IR/Math.h"

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
  Value number = group.group == 1 ? first : Value(arith::DivUIOp::create(b, first, b.index(group.group)));
  return b.add(b.scale(number, group.size()), layout.coefficientsBegin);
}

Value SweepPacker::coefficients(Value from, Value to, Value scale) {
  if (!shape.scalarDecay && !shape.rowDecay && group.group == 1)
    return {};
  Values carried = b.loop(from, to, group.group, scale ? ValueRange(scale) : ValueRange(),
                          [&](Value first, ValueRange carried) {
                            Value at = coefficientsAt(first);
                            Values products = innerProducts(first);
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

// The inner products of a group. A decay by rows enters them, and the packed rows themselves: the reads are
// multiplied by the decay since the group's start, the writes by the decay until its end, and the first
// token's decay becomes that of the whole group.
SmallVector<Value> SweepPacker::innerProducts(Value first) {
  if (group.group == 1)
    return {};
  Value origin = rowsAt(first);
  unsigned count = 0;
  eachGram([&](int64_t, unsigned, int64_t, unsigned) { ++count; });
  Values zeros(count, b.splat(0.0));
  Values sums =
      b.loop(b.index(0), b.index(layout.rowStride), b.lanes, zeros, [&](Value i, ValueRange carried) {
        llvm::DenseMap<std::pair<int64_t, unsigned>, Value> loaded;
        auto place = [&](int64_t t, unsigned slot) {
          return b.add(b.add(origin, i), slot * layout.rowSlotStride + t * layout.rowStride);
        };
        auto row = [&](int64_t t, unsigned slot) {
          Value &value = loaded[{t, slot}];
          if (!value)
            value = b.load(scratch, place(t, slot));
          return value;
        };
        // The decay by rows of the tokens from `from` to before `to`; null for none.
        auto decay = [&](int64_t from, int64_t to) {
          Value product;
          for (int64_t t = from; shape.rowDecay && t < to; ++t)
            product = b.mul(product, row(t, *shape.rowDecay));
          return product;
        };
        Values sums(carried);
        unsigned next = 0;
        eachGram([&](int64_t t, unsigned r, int64_t j, unsigned w) {
          Value read = b.mul(row(t, shape.reads[r]), decay(j + 1, t));
          sums[next] = b.fma(read, row(j, shape.writes[w]), sums[next]);
          ++next;
        });
        if (shape.rowDecay) {
          for (int64_t t = 0; t < group.group; ++t) {
            for (unsigned slot : shape.reads)
              if (t > 0)
                b.store(b.mul(row(t, slot), decay(0, t)), scratch, place(t, slot));
            for (unsigned slot : shape.writes)
              if (t + 1 < group.group)
                b.store(b.mul(row(t, slot), decay(t + 1, group.group)), scratch, place(t, slot));
          }
          b.store(decay(0, group.group), scratch, place(0, *shape.rowDecay));
        }
        return sums;
      });
  for (Value &value : sums)
    value = b.reduce(value);
  return sums;
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
