// What the sweep with tiles computes once per chunk for all columns.
#include "lib/Cpu/SweepState.h"
#include "lib/Cpu/SweepTiles.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

Value SweepTiles::packed(Value first, Value i, int64_t token, unsigned slot) {
  Value row = b.add(b.scale(first, layout.rowStride), i);
  return b.add(row, layout.rowsBegin + slot * layout.rowSlotStride + token * layout.rowStride);
}

// Decays by rows are multiplied together over so many tokens.
static constexpr int64_t quarter = SweepTiles::group / 4;

// The lanes of the tokens before one.
Value SweepTiles::before(int64_t token) {
  SmallVector<bool> lanes(b.lanes, false);
  std::fill_n(lanes.begin(), token, true);
  auto type = VectorType::get(b.lanes, b.getI1Type());
  return arith::ConstantOp::create(b, DenseElementsAttr::get(type, ArrayRef<bool>(lanes)));
}

Value SweepTiles::coefficients(Value from, Value to, Value ends, Value scale) {
  Values carried =
      b.loop(from, to, group, scale ? ValueRange(scale) : ValueRange(), [&](Value first, ValueRange carried) {
        Value at = groupAt(first), safe, fresh;
        Values next;
        if (shape.scalarDecay)
          next.push_back(scalarDecays(first, at, carried.front()));
        if (shape.rowDecay) {
          Value more = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, b.add(first, group), to);
          more = arith::OrIOp::create(b, more, arith::XOrIOp::create(b, ends, b.flag(true)));
          safe = arith::AndIOp::create(b, packer.rowsAreSafe(first), more);
          fresh = b.splat(arith::SelectOp::create(b, more, b.number(SweepPacker::freshScale), b.number(1)));
          Value usual = arith::SelectOp::create(b, safe, b.number(1), b.number(0));
          b.storeScalar(usual, scratch, b.add(at, tiles.rescale));
          decayRows(first, at);
        }
        turnWrites(first);
        products(first, at);
        packReads(first, at, safe, fresh);
        packWrites(at);
        return next;
      });
  return scale ? carried.front() : Value();
}

// The writes of a group by rows, with a lane for each token.
void SweepTiles::turnWrites(Value first) {
  for (int64_t w = 0; w < writes; ++w)
    b.loop(zero, b.index(shape.rows), b.lanes, [&](Value i) {
      Values square;
      for (int64_t t = 0; t < group; ++t)
        square.push_back(b.load(scratch, packed(first, i, t, shape.writes[w])));
      Value to = b.add(b.scale(i, group), tiles.turnedBegin + w * shape.rows * group);
      for (auto [row, x] : llvm::enumerate(transposeSquare(b, square)))
        b.store(x, scratch, b.add(to, int64_t(row) * group));
    });
}

// Pairs of tokens of a quarter of the group, and of a read and a write of theirs.
void SweepTiles::eachNear(llvm::function_ref<void(int64_t t, int64_t j, int64_t r, int64_t w)> body) {
  for (int64_t t = 1; t < quarter; ++t)
    for (int64_t j = 0; j < t; ++j)
      for (int64_t r = 0; r < reads; ++r)
        for (int64_t w = 0; w < writes; ++w)
          body(t, j, r, w);
}

// Multiplies a decay by rows into the packed rows, within each quarter of the group: the reads by that since
// the quarter's start, the writes by that until its end. The whole of it becomes the decay of the quarter's
// first token. What the reads of a quarter see of its own writes, for which this is no help, is computed
// here.
void SweepTiles::decayRows(Value first, Value at) {
  b.loop(zero, b.index(group), quarter, [&](Value from) {
    Values sums;
    eachNear([&](int64_t, int64_t, int64_t, int64_t) { sums.push_back(b.splat(0.0)); });
    sums = b.loop(zero, b.index(shape.rows), b.lanes, sums, [&](Value i, ValueRange carried) {
      SmallVector<std::pair<Value, Value>> stored;
      auto place = [&](int64_t t, unsigned slot) { return packed(b.add(first, from), i, t, slot); };
      auto load = [&](int64_t t, unsigned slot) { return b.load(scratch, place(t, slot)); };
      // The decay of the tokens from `begin` to before `end` of the quarter.
      auto decay = [&](int64_t begin, int64_t end) {
        Value product;
        for (int64_t t = begin; t < end; ++t)
          product = b.mul(product, load(t, *shape.rowDecay));
        return product;
      };
      auto multiply = [&](int64_t t, unsigned slot, Value factor) {
        if (factor)
          stored.push_back({b.mul(load(t, slot), factor), place(t, slot)});
      };
      Values next(carried);
      auto *sum = next.begin();
      eachNear([&](int64_t t, int64_t j, int64_t r, int64_t w) {
        Value read = b.mul(load(t, shape.reads[r]), decay(j + 1, t));
        *sum = b.fma(read, load(j, shape.writes[w]), *sum);
        ++sum;
      });
      for (int64_t t = 0; t < quarter; ++t) {
        for (unsigned slot : shape.reads)
          multiply(t, slot, decay(0, t));
        for (unsigned slot : shape.writes)
          multiply(t, slot, decay(t + 1, quarter));
      }
      stored.push_back({decay(0, quarter), place(0, *shape.rowDecay)});
      for (auto [value, where] : stored)
        b.store(value, scratch, where);
      return next;
    });
    Value square = b.add(b.add(at, b.scale(from, group + 1)), tiles.products);
    auto *sum = sums.begin();
    eachNear([&](int64_t t, int64_t j, int64_t r, int64_t w) {
      int64_t place = ((r * writes + w) * group + t) * group + j;
      b.storeScalar(b.reduce(*sum++), scratch, b.add(square, place));
    });
  });
}

// What the reads of each token see of the writes before it; with a decay by rows, before its quarter of the
// group. The turned writes are multiplied by that up to each quarter on the way, and end with that up to the
// group's end.
void SweepTiles::products(Value first, Value at) {
  int64_t most = group;
  while (most > quarter && most * reads > 16)
    most /= 2;
  for (int64_t w = 0; w < writes; ++w)
    for (int64_t begin = 0; begin < group; begin += most) {
      Value turned = b.index(tiles.turnedBegin + w * shape.rows * group);
      Values results(most * reads, b.splat(0.0));
      results = b.loop(zero, b.index(shape.rows), 1, results, [&](Value i, ValueRange carried) {
        Values sums(carried);
        Value place = b.add(turned, b.scale(i, group)), row = b.load(scratch, place);
        for (int64_t t = begin; t < begin + most; ++t) {
          for (int64_t r = 0; t >= (shape.rowDecay ? quarter : 1) && r < reads; ++r) {
            Value &sum = sums[(t - begin) * reads + r];
            sum = b.fma(b.loadSplat(scratch, packed(first, i, t, shape.reads[r])), row, sum);
          }
          int64_t from = t + 1 - quarter; // where t ends a quarter, its start
          if (shape.rowDecay && from > 0 && from % quarter == 0) {
            Value decay = b.loadSplat(scratch, packed(first, i, from, *shape.rowDecay));
            row = arith::SelectOp::create(b, before(from), b.mul(row, decay), row);
          }
        }
        if (shape.rowDecay)
          b.store(row, scratch, place);
        return sums;
      });
      for (int64_t t = begin; t < begin + most; ++t)
        for (int64_t r = 0; r < reads; ++r) {
          Value value = results[(t - begin) * reads + r];
          if (shape.scalarDecay)
            value = b.mul(value, b.load(scratch, b.index(tiles.weightsBegin + t * group)));
          Value to = b.add(at, tiles.products + ((r * writes + w) * group + t) * group);
          if (shape.rowDecay) // its own quarter is there
            vector::MaskedStoreOp::create(b, scratch, to, before(t / quarter * quarter), value);
          else
            b.store(value, scratch, to);
        }
    }
}

// As SweepPacker::scalarCoefficients. The decays between tokens, too: a row for each token, and one for the
// group's end.
Value SweepTiles::scalarDecays(Value first, Value at, Value scale) {
  Value scalars = b.add(b.scale(first, layout.scalarSlots), layout.scalarsBegin + *shape.scalarDecay);
  Value whole = scale, weights = b.splat(1.0);
  for (int64_t t = 0; t < group; ++t) {
    Value decay = b.loadScalar(scratch, b.add(scalars, t * layout.scalarSlots));
    b.storeScalar(whole, scratch, b.add(at, tiles.carry + t));
    b.store(weights, scratch, b.index(tiles.weightsBegin + t * group));
    whole = b.mul(whole, decay);
    weights = arith::SelectOp::create(b, before(t), b.mul(weights, b.splat(decay)), weights);
  }
  Value size = math::AbsFOp::create(b, whole);
  Value safe =
      arith::AndIOp::create(b, arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, size, b.number(0x1p-40)),
                            arith::CmpFOp::create(b, arith::CmpFPredicate::OLE, size, b.number(0x1p40)));
  Value one = b.number(1), next = arith::SelectOp::create(b, safe, whole, one);
  Value inverse = arith::DivFOp::create(b, one, next);
  b.storeScalar(arith::SelectOp::create(b, safe, one, whole), scratch, b.add(at, tiles.rescale));
  b.store(b.mul(weights, b.splat(inverse)), scratch, b.add(at, tiles.leave));
  return next;
}

// The reads in bf16, with a decay by rows multiplied by the scales and the decay up to their quarter.
void SweepTiles::packReads(Value first, Value at, Value safe, Value fresh) {
  Value number = arith::DivUIOp::create(b, first, b.index(group)), one = b.splat(1.0);
  Value factors = b.add(b.scale(number, shape.rows), tiles.factorsBegin);
  b.loop(zero, b.index(shape.rows), 2 * b.lanes, [&](Value i) {
    Value half = arith::DivUIOp::create(b, i, b.index(2));
    Values scales;
    if (shape.rowDecay)
      for (int64_t part = 0; part < 2; ++part)
        scales.push_back(b.load(scratch, b.add(i, layout.scalesBegin + part * b.lanes)));
    scales = b.loop(zero, b.index(group), quarter, scales, [&](Value from, ValueRange carried) {
      Values next(carried);
      for (int64_t t = 0; t < quarter; ++t)
        for (int64_t r = 0; r < reads; ++r) {
          Value row[2];
          for (int64_t part = 0; part < 2; ++part) {
            Value place = packed(b.add(first, from), i, t, shape.reads[r]);
            row[part] = b.load(scratch, b.add(place, part * b.lanes));
            if (shape.rowDecay)
              row[part] = b.mul(row[part], next[part]);
          }
          Value to = b.add(b.add(at, half), b.scale(from, shape.rows / 2));
          b.store(vector::BitCastOp::create(b, b.vector, halves(row[0], row[1])), scratch,
                  b.add(to, tiles.readTiles + (r * group + t) * shape.rows / 2));
        }
      for (auto [part, scale] : llvm::enumerate(next)) {
        Value place = packed(b.add(first, from), i, 0, *shape.rowDecay);
        scale = b.mul(scale, b.load(scratch, b.add(place, int64_t(part) * b.lanes)));
      }
      return next;
    });
    for (auto [part, whole] : llvm::enumerate(scales)) {
      Value place = b.add(i, int64_t(part) * b.lanes);
      Value next = arith::SelectOp::create(b, safe, whole, fresh);
      Value inverse = arith::DivFOp::create(b, one, next);
      b.store(next, scratch, b.add(place, layout.scalesBegin));
      b.store(inverse, scratch, b.add(place, tiles.inversesBegin));
      b.store(b.mul(whole, inverse), scratch, b.add(factors, place));
    }
  });
}

// The turned writes in bf16: rows of two writes, or two rows of one.
void SweepTiles::packWrites(Value at) {
  bool two = tiles.depth > group;
  for (int64_t w = 0; w < writes; w += two ? 2 : 1)
    b.loop(zero, b.index(shape.rows), two ? 1 : 2, [&](Value i) {
      Value row[2];
      for (int64_t part = 0; part < 2; ++part) {
        Value from = b.add(b.scale(i, group), tiles.turnedBegin + w * shape.rows * group);
        row[part] = b.load(scratch, b.add(from, part * (two ? shape.rows * group : group)));
        if (shape.rowDecay)
          row[part] =
              b.mul(row[part], b.loadSplat(scratch, b.add(i, tiles.inversesBegin + (two ? 0 : part))));
      }
      Value to = b.add(b.add(at, b.scale(i, tiles.depth / 2)), tiles.writeTiles + w * shape.rows * group / 2);
      b.store(vector::BitCastOp::create(b, b.vector, halves(row[0], row[1])), scratch, to);
    });
}
