// What the sweep with tiles computes once per chunk for all columns.
#include "lib/Cpu/SweepState.h"
#include "lib/Cpu/SweepTiles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// Decays by rows are multiplied together over so many tokens.
static constexpr int64_t quarter = SweepTiles::part / 4;

Value SweepTiles::packed(Value first, Value i, int64_t token, unsigned slot) {
  Value row = b.add(b.scale(first, layout.rowStride), i);
  return b.add(row, layout.rowsBegin + slot * layout.rowSlotStride + token * layout.rowStride);
}

// What the reads r of the tokens of part p see of the writes w of those of part q: a row for each of them.
Value SweepTiles::square(Value p, Value q, int64_t r, int64_t w) {
  Value pair = b.scale(b.add(b.scale(p, parts), q), reads * writes);
  return b.add(b.scale(pair, part * part), tiles.squaresBegin + (r * writes + w) * part * part);
}

void SweepTiles::coefficients() {
  if (shape.scalarDecay)
    scalarDecays();
  b.loop(zero, b.index(parts), 1, [&](Value p) {
    if (shape.rowDecay)
      decayRows(p);
    turnWrites(p);
    if (shape.rowDecay)
      nearProducts(p);
  });
  if (shape.rowDecay)
    packKeys();
  packReads();
  if (shape.rowDecay)
    packWrites();
  products();
  if (!shape.knownWrites && !shape.rowDecay)
    weigh();
  packScores();
}

// The writes of a part by rows, with a lane for each token. Where no decay by rows has to be multiplied in
// first, packed at once: see packKeys and packWrites.
void SweepTiles::turnWrites(Value p) {
  Value first = b.scale(p, part), ends;
  if (shape.scalarDecay)
    ends = b.load(scratch, b.add(first, tiles.endsBegin + group));
  for (int64_t w = 0; w < writes; ++w)
    b.loop(zero, b.index(shape.rows), b.lanes, [&](Value i) {
      Values square;
      for (int64_t t = 0; t < part; ++t)
        square.push_back(b.load(scratch, packed(first, i, t, shape.writes[w])));
      square = transposeSquare(b, square);
      Value row = b.add(b.scale(b.add(b.scale(p, writes), w), shape.rows), i);
      if (shape.rowDecay) {
        for (auto [n, x] : llvm::enumerate(square))
          b.store(x, scratch, b.add(b.scale(row, part), tiles.turnedBegin + int64_t(n) * part));
        return;
      }
      for (int64_t n = 0; n < part; n += 2)
        storeHalves(interleaved(square[n], square[n + 1]),
                    b.add(b.scale(row, part / 2), tiles.keysBegin + n * part / 2));
      Value to = b.add(b.scale(i, writes * group / 2), b.scale(b.add(b.scale(p, writes), w), part / 2));
      for (int64_t n = 0; n < part; ++n) {
        Value half = call("llvm.x86.avx512bf16.cvtneps2bf16.512", VectorType::get(part, b.getBF16Type()),
                          b.mul(square[n], ends));
        half = vector::BitCastOp::create(b, VectorType::get(part / 2, b.getF32Type()), half);
        vector::StoreOp::create(b, half, scratch, b.add(to, tiles.writeTilesBegin + n * writes * group / 2));
      }
    });
}

// Pairs of tokens of a quarter of a part, and of a read and a write of theirs.
void SweepTiles::eachNear(llvm::function_ref<void(int64_t t, int64_t j, int64_t r, int64_t w)> body) {
  for (int64_t t = 1; t < quarter; ++t)
    for (int64_t j = 0; j < t; ++j)
      for (int64_t r = 0; r < reads; ++r)
        for (int64_t w = 0; w < writes; ++w)
          body(t, j, r, w);
}

// Multiplies a decay by rows into the packed rows, within each quarter of a part: the reads by that since the
// quarter's start, the writes by that until its end. The whole of it becomes the decay of the quarter's first
// token. What the reads of a quarter see of its own writes, for which this is no help, is computed here.
void SweepTiles::decayRows(Value p) {
  b.loop(zero, b.index(part), quarter, [&](Value from) {
    Value first = b.add(b.scale(p, part), from);
    Values sums;
    eachNear([&](int64_t, int64_t, int64_t, int64_t) { sums.push_back(b.splat(0.0)); });
    sums = b.loop(zero, b.index(shape.rows), b.lanes, sums, [&](Value i, ValueRange carried) {
      SmallVector<std::pair<Value, Value>> stored;
      auto place = [&](int64_t t, unsigned slot) { return packed(first, i, t, slot); };
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
    Value corner = b.add(square(p, p, 0, 0), b.scale(from, part + 1));
    auto *sum = sums.begin();
    eachNear([&](int64_t t, int64_t j, int64_t r, int64_t w) {
      int64_t place = ((r * writes + w) * part + t) * part + j;
      b.storeScalar(b.reduce(*sum++), scratch, b.add(corner, place));
    });
  });
}

// With a decay by rows, what the reads of each token see of the writes of its part before its quarter. The
// turned writes are multiplied by that up to each quarter on the way, and end with that up to the part's end.
void SweepTiles::nearProducts(Value p) {
  Value first = b.scale(p, part);
  int64_t most = part;
  while (most > quarter && most * reads > 16)
    most /= 2;
  for (int64_t w = 0; w < writes; ++w)
    for (int64_t begin = 0; begin < part; begin += most) {
      Value turned = b.add(b.scale(p, writes * shape.rows * part), tiles.turnedBegin + w * shape.rows * part);
      Values results(most * reads, b.splat(0.0));
      results = b.loop(zero, b.index(shape.rows), 1, results, [&](Value i, ValueRange carried) {
        Values sums(carried);
        Value place = b.add(turned, b.scale(i, part)), row = b.load(scratch, place);
        for (int64_t t = begin; t < begin + most; ++t) {
          for (int64_t r = 0; t >= quarter && r < reads; ++r) {
            Value &sum = sums[(t - begin) * reads + r];
            sum = b.fma(b.loadSplat(scratch, packed(first, i, t, shape.reads[r])), row, sum);
          }
          int64_t from = t + 1 - quarter; // where t ends a quarter, its start
          if (from > 0 && from % quarter == 0) {
            Value decay = b.loadSplat(scratch, packed(first, i, from, *shape.rowDecay));
            row = arith::SelectOp::create(b, before(from), b.mul(row, decay), row);
          }
        }
        b.store(row, scratch, place);
        return sums;
      });
      for (int64_t t = std::max(begin, quarter); t < begin + most; ++t)
        for (int64_t r = 0; r < reads; ++r)
          vector::MaskedStoreOp::create(b, scratch, b.add(square(p, p, r, w), t * part),
                                        before(t / quarter * quarter), results[(t - begin) * reads + r]);
    }
}

// For each token the decays since its part's and the group's start; for each pair of a part's tokens that
// between them, and to the part's and the group's end.
void SweepTiles::scalarDecays() {
  Value ofParts = b.index(tiles.decaysBegin + 1);
  Value whole = b.loop(zero, b.index(parts), 1, b.number(1), [&](Value p, ValueRange carried) {
                   Value first = b.scale(p, part), whole = carried.front(), local = b.number(1);
                   Value scalars =
                       b.add(b.scale(first, layout.scalarSlots), layout.scalarsBegin + *shape.scalarDecay);
                   Value weights = b.splat(0.0);
                   for (int64_t t = 0; t < part; ++t) {
                     Value decay = b.loadScalar(scratch, b.add(scalars, t * layout.scalarSlots));
                     b.storeScalar(whole, scratch, b.add(first, tiles.carryBegin + t));
                     b.storeScalar(local, scratch, b.add(first, tiles.carryBegin + group + t));
                     b.store(weights, scratch, b.add(b.scale(first, part), tiles.weightsBegin + t * part));
                     whole = b.mul(whole, decay), local = b.mul(local, decay);
                     weights = b.mul(weights, b.splat(decay));
                     Value own = arith::SelectOp::create(b, before(t), weights, b.splat(1.0));
                     weights = arith::SelectOp::create(b, before(t + 1), own, weights);
                   }
                   b.store(weights, scratch, b.add(first, tiles.endsBegin));
                   b.storeScalar(local, scratch, b.add(ofParts, p));
                   return Values{whole};
                 }).front();
  b.storeScalar(whole, scratch, b.index(tiles.decaysBegin));
  Value later;
  for (int64_t p = parts; p-- > 0;) {
    Value ends = b.load(scratch, b.index(tiles.endsBegin + p * part));
    b.store(b.mul(ends, later ? b.splat(later) : later), scratch,
            b.index(tiles.endsBegin + group + p * part));
    later = b.mul(later, b.loadScalar(scratch, b.add(ofParts, p)));
  }
}

// The turned writes as right operands, where tokens of a later part see them.
void SweepTiles::packKeys() {
  b.loop(zero, b.index((parts - 1) * writes * shape.rows), 2, [&](Value i) {
    Value from = b.add(b.scale(i, part), tiles.turnedBegin);
    Value both = interleaved(b.load(scratch, from), b.load(scratch, b.add(from, part)));
    storeHalves(both, b.add(b.scale(i, part / 2), tiles.keysBegin));
  });
}

// The reads in bf16: times the decay since the group's start, for H; since their part's start, for the parts
// before. With a decay by rows what decayRows has left of it.
void SweepTiles::packReads() {
  b.loop(zero, b.index(shape.rows), 2 * b.lanes, [&](Value i) {
    Value half = arith::DivUIOp::create(b, i, b.index(2));
    // Some tokens from `from` of a part, times vectors for H and for the parts before; null for 1.
    auto pack = [&](int64_t p, Value from, int64_t tokens, ArrayRef<Value> forH, ArrayRef<Value> forParts) {
      Value first = b.add(from, p * part), to = b.add(half, b.scale(from, shape.rows / 2));
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t r = 0; r < reads; ++r) {
          Value row[2], carry;
          for (int64_t n = 0; n < 2; ++n)
            row[n] = b.load(scratch, b.add(packed(first, i, t, shape.reads[r]), n * b.lanes));
          auto put = [&](ArrayRef<Value> factors, Value factor, int64_t begin) {
            Value x[2];
            for (int64_t n = 0; n < 2; ++n)
              x[n] = b.mul(row[n], factors.empty() ? factor : factors[n]);
            storeHalves(halves(x[0], x[1]), b.add(to, begin + ((p * reads + r) * part + t) * shape.rows / 2));
          };
          if (shape.scalarDecay)
            carry = b.loadSplat(scratch, b.add(first, tiles.carryBegin + t));
          put(forH, carry, tiles.readTilesBegin);
          if (needsQueries(p) && tiles.queriesBegin != tiles.readTilesBegin)
            put(forParts, {}, tiles.queriesBegin);
        }
    };
    if (!shape.rowDecay) {
      for (int64_t p = 0; p < parts; ++p)
        b.loop(zero, b.index(part), quarter, [&](Value from) { pack(p, from, quarter, {}, {}); });
      return;
    }
    Values whole(2, b.splat(1.0));
    for (int64_t p = 0; p < parts; ++p) {
      Values factors(whole);
      factors.append(2, b.splat(1.0));
      factors = b.loop(zero, b.index(part), quarter, factors, [&](Value from, ValueRange carried) {
        Values next(carried);
        pack(p, from, quarter, ArrayRef(next).take_front(2), ArrayRef(next).drop_front(2));
        for (int64_t n = 0; n < 4; ++n) {
          Value place = packed(b.add(from, p * part), i, 0, *shape.rowDecay);
          next[n] = b.mul(next[n], b.load(scratch, b.add(place, n % 2 * b.lanes)));
        }
        return next;
      });
      whole.assign(factors.begin(), factors.begin() + 2);
      for (int64_t n = 0; n < 2; ++n) {
        Value place = b.add(i, n * b.lanes);
        if (p + 1 == parts)
          b.store(whole[n], scratch, b.add(place, tiles.factorsBegin));
        if (p > 0)
          b.store(factors[2 + n], scratch, b.add(place, tiles.laterBegin + (p - 1) * shape.rows));
      }
    }
  });
}

// The turned writes in bf16: for each row of H those of all tokens, by part, then write.
void SweepTiles::packWrites() {
  b.loop(zero, b.index(shape.rows), 1, [&](Value i) {
    auto row = [&](int64_t column) {
      Value from = b.add(b.scale(i, part), tiles.turnedBegin + column * shape.rows * part);
      Value x = b.load(scratch, from);
      for (int64_t p = column / writes; p < parts - 1; ++p)
        x = b.mul(x, b.loadSplat(scratch, b.add(i, tiles.laterBegin + p * shape.rows)));
      return x;
    };
    for (int64_t k = 0; k < writes; ++k)
      storeHalves(halves(row(2 * k), row(2 * k + 1)),
                  b.add(b.scale(i, writes * group / 2), tiles.writeTilesBegin + k * b.lanes));
  });
}

// What reads see of the writes of a part before, and of their own where nothing decays by rows.
void SweepTiles::products() {
  for (int64_t p = 0; p < parts; ++p)
    for (int64_t q = 0; q < p + !shape.rowDecay; ++q)
      for (int64_t w = 0; w < writes; ++w) {
        for (int64_t r = 0; r < reads; ++r)
          call(amx::clear, {number(r, 8)});
        steps(shape.rows / (2 * b.lanes), [&](Value k) {
          Value right = b.add(b.scale(k, b.lanes * part), tiles.keysBegin);
          tile(amx::load, amx::rights, b.add(right, (q * writes + w) * shape.rows * part / 2), 64);
          for (int64_t r = 0; r < reads; ++r) {
            Value left = b.add(b.scale(k, b.lanes), tiles.queriesBegin);
            tile(amx::load, amx::lefts + r % 2, b.add(left, (p * reads + r) * part * shape.rows / 2),
                 2 * shape.rows);
            product(r, amx::lefts + r % 2, amx::rights);
          }
        });
        for (int64_t r = 0; r < reads; ++r)
          tile(amx::store, r, square(b.index(p), b.index(q), r, w), 64);
      }
}

// Multiplies decays into what tokens see of their own part.
void SweepTiles::weigh() {
  b.loop(zero, b.index(parts), 1, [&](Value p) {
    b.loop(zero, b.index(part), 1, [&](Value t) {
      Value row = b.scale(b.add(b.scale(p, part), t), part);
      Value weights = b.load(scratch, b.add(row, tiles.weightsBegin));
      for (int64_t pair = 0; pair < reads * writes; ++pair) {
        Value at = b.add(b.add(square(p, p, 0, 0), b.scale(t, part)), pair * part * part);
        b.store(b.mul(b.load(scratch, at), weights), scratch, at);
      }
    });
  });
}

// What tokens see of those before them as left operands.
void SweepTiles::packScores() {
  for (int64_t p = shape.knownWrites ? 0 : 1; p < parts; ++p)
    b.loop(zero, b.index(part), 1, [&](Value t) {
      // The row of a part's write; null for one that is not seen here.
      auto row = [&](int64_t column, int64_t r) -> Value {
        int64_t q = column / writes, w = column % writes;
        if (q > p || (q == p && !shape.knownWrites))
          return b.splat(0.0);
        Value x = b.load(scratch, b.add(square(b.index(p), b.index(q), r, w), b.scale(t, part)));
        if (q == p && !shape.rowDecay)
          x = b.mul(x, b.load(scratch, b.add(b.scale(t, part), tiles.weightsBegin + p * part * part)));
        if (q < p && shape.scalarDecay) {
          x = b.mul(x, b.load(scratch, b.index(tiles.endsBegin + q * part)));
          x = b.mul(x, b.loadSplat(scratch, b.add(t, tiles.carryBegin + group + p * part)));
        }
        return x;
      };
      int64_t tilesOfPart = (writes * (shape.knownWrites ? p + 1 : p) + 1) / 2;
      for (int64_t r = 0; r < reads; ++r)
        for (int64_t k = 0; k < tilesOfPart; ++k)
          storeHalves(
              halves(row(2 * k, r), row(2 * k + 1, r)),
              b.add(b.scale(t, writes * group / 2),
                    tiles.scoreTilesBegin + (p * reads + r) * part * writes * group / 2 + k * b.lanes));
    });
}
