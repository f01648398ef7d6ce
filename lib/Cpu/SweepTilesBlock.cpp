// What the sweep with tiles does for each column block.
#include "lib/Cpu/SweepTiles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

void SweepTiles::columnBlock(Value begin, Value block) {
  if (shape.knownWrites) {
    knownWrites(begin, block);
    b.loop(zero, b.index(parts), partsAtOnce(shape), [&](Value p) { read(p, block); });
    outputs(begin, block);
  } else {
    // A tile of what a part sees may reach past the writes that are known by then.
    for (int64_t row = writes * part / 2; row < roundUp(writes, 2) * part / 2; ++row)
      for (int64_t x = 0; x < options.vectors; ++x)
        b.store(b.splat(0.0), scratch, b.index(tiles.operandBegin + row * width() + x * b.lanes));
    b.loop(zero, b.index(parts), 1, [&](Value p) {
      read(p, block);
      solve(begin, p, block);
    });
  }
  update(block);
}

// Columns, in vectors, that are read at once: as many as there are registers for their sums.
static int64_t vectorsAtOnce(const SweepShape &shape, const SweepOptions &options) {
  int64_t most = 1, sums = shape.reads.size() * SweepTiles::partsAtOnce(shape);
  while (2 * most * sums <= amx::sums && 2 * most <= options.vectors)
    most *= 2;
  return most;
}

// How many steps a loop of a column block has, and the shares of requests in each of them, about as the time
// that it takes.
static std::pair<int64_t, int64_t> sharesOf(const SweepShape &shape, const SweepOptions &options,
                                            int64_t loop) {
  const int64_t strips = shape.rows / SweepTiles::part;
  const int64_t passes =
      SweepTiles::parts / SweepTiles::partsAtOnce(shape) * options.vectors / vectorsAtOnce(shape, options);
  switch (loop) {
  case SweepTiles::Reads:
    return {passes * strips / 2, 2};
  case SweepTiles::Outputs:
    return {SweepTiles::group / 2, 1};
  default:
    return {strips, 1 + options.vectors + (options.vectors + 1) / 2};
  }
}

int64_t SweepTiles::sharesOfRequests(const SweepShape &shape, const SweepOptions &options) {
  int64_t shares = 0;
  if (!shape.knownWrites)
    return 0;
  for (int64_t loop : {Reads, Outputs, Updates}) {
    auto [steps, each] = sharesOf(shape, options, loop);
    shares += steps * each;
  }
  return shares;
}

void SweepTiles::makeRequests(Loop loop, Value step) {
  if (!requests.isQueue())
    return;
  int64_t before = 0;
  for (int64_t earlier = 0; earlier < loop; ++earlier) {
    auto [steps, each] = sharesOf(shape, options, earlier);
    before += steps * each;
  }
  int64_t each = sharesOf(shape, options, loop).second;
  for (int64_t i = 0; i < each; ++i)
    requests.make(b.add(b.scale(step, each), before + i));
}

// Asks for the lines of some tokens, which are requested at once or in shares from here to the block's end.
void SweepTiles::askFor(Value begin, Value inChunk, int64_t count, Value block) {
  requests.restart(inChunk);
  for (int64_t i = 0; i < count; ++i) {
    Value own = b.add(inChunk, i);
    rule.enter(b, layout, requests, {b.add(begin, own), own, b.scale(block, width()), {}}, block);
  }
}

// Of how many tiles the left operand is that has what the tokens of a part see of writes that are known.
Value SweepTiles::scoreTiles(Value p) {
  Value known = b.scale(shape.knownWrites ? b.add(p, 1) : p, writes);
  return arith::DivUIOp::create(b, b.add(known, 1), b.index(2));
}

// The reads of as many parts at once as partsAtOnce says, from part `first`.
void SweepTiles::read(Value first, Value block) {
  const int64_t count = partsAtOnce(shape), lefts = count * reads, most = vectorsAtOnce(shape, options);
  // With the operands of one side loaded, each of the other side is multiplied by all of them.
  auto step = [&](int64_t lefts, llvm::function_ref<void(int64_t reg, int64_t n)> loadLeft,
                  llvm::function_ref<void(int64_t reg, int64_t n)> loadRight,
                  llvm::function_ref<int64_t(int64_t left, int64_t right)> sum) {
    bool leftStays = lefts <= most;
    for (int64_t n = 0; n < (leftStays ? lefts : most); ++n)
      leftStays ? loadLeft(amx::lefts + n, n) : loadRight(amx::rights + n, n);
    for (int64_t m = 0; m < (leftStays ? most : lefts); ++m) {
      leftStays ? loadRight(amx::rights + m % 2, m) : loadLeft(amx::lefts + m % 2, m);
      for (int64_t n = 0; n < (leftStays ? lefts : most); ++n)
        if (leftStays)
          product(sum(n, m), amx::lefts + n, amx::rights + m % 2);
        else
          product(sum(m, n), amx::lefts + m % 2, amx::rights + n);
    }
  };
  Value halvesAt = b.add(b.scale(block, tiles.halvesStride), tiles.halvesBegin);
  Value readsAt = b.add(b.scale(first, reads * part * shape.rows / 2), tiles.readTilesBegin);
  for (int64_t x = 0; x < options.vectors; x += most) {
    for (int64_t sum = 0; sum < most * lefts; ++sum)
      call(amx::clear, {number(sum, 8)});
    steps(shape.rows / (2 * b.lanes), [&](Value k) {
      Value left = b.add(readsAt, b.scale(k, b.lanes));
      Value right = b.add(b.add(halvesAt, b.scale(k, b.lanes * width())), x * b.lanes);
      step(
          lefts,
          [&](int64_t reg, int64_t n) {
            tile(amx::load, reg, b.add(left, n * part * shape.rows / 2), 2 * shape.rows);
          },
          [&](int64_t reg, int64_t n) { tile(amx::load, reg, b.add(right, n * b.lanes), 4 * width()); },
          [&](int64_t left, int64_t right) { return left * most + right; });
      Value passes = b.add(b.scale(first, options.vectors / count), x);
      passes = arith::DivUIOp::create(b, passes, b.index(most));
      makeRequests(Reads, b.add(b.scale(passes, shape.rows / (2 * b.lanes)), k));
    });
    for (int64_t i = 0; i < count; ++i) {
      Value p = b.add(first, i);
      Value scores = b.add(b.scale(p, reads * part * writes * group / 2), tiles.scoreTilesBegin);
      b.loop(zero, scoreTiles(p), 1, [&](Value k) {
        Value left = b.add(scores, b.scale(k, b.lanes));
        Value right = b.add(b.scale(k, b.lanes * width()), tiles.operandBegin + x * b.lanes);
        step(
            reads,
            [&](int64_t reg, int64_t n) {
              tile(amx::load, reg, b.add(left, n * part * writes * group / 2), 2 * writes * group);
            },
            [&](int64_t reg, int64_t n) { tile(amx::load, reg, b.add(right, n * b.lanes), 4 * width()); },
            [&](int64_t left, int64_t right) { return (i * reads + left) * most + right; });
      });
    }
    Value to = b.add(b.scale(shape.knownWrites ? first : zero, reads * part * width()), tiles.readsBegin);
    for (int64_t left = 0; left < lefts; ++left)
      for (int64_t n = 0; n < most; ++n)
        tile(amx::store, left * most + n, b.add(to, left * part * width() + (x + n) * b.lanes), 4 * width());
  }
}

// Two tokens' z, from token t of a part, in the right operand: a row for two tokens, by part, then write.
void SweepTiles::storeOperand(Value p, Value t, int64_t w, int64_t x, Value low, Value high) {
  Value row = b.add(b.scale(p, writes * part / 2), arith::DivUIOp::create(b, t, b.index(2)));
  storeHalves(interleaved(low, high),
              b.add(b.scale(row, width()), tiles.operandBegin + w * part / 2 * width() + x * b.lanes));
}

void SweepTiles::knownWrites(Value begin, Value block) {
  Value column = b.scale(block, width());
  b.loop(zero, b.index(parts), 1, [&](Value p) {
    b.loop(zero, b.index(part), 2, [&](Value t) {
      Value inChunk = b.add(b.scale(p, part), t);
      askFor(begin, inChunk, 2, block);
      for (int64_t x = 0; x < options.vectors; ++x) {
        SmallVector<Value> z[2];
        for (int64_t i = 0; i < 2; ++i) {
          Value own = b.add(inChunk, i);
          z[i] =
              rule.knownWrites(b, layout, scratch, {b.add(begin, own), own, b.add(column, x * b.lanes), {}});
        }
        for (int64_t w = 0; w < writes; ++w)
          storeOperand(p, t, w, x, z[0][w], z[1][w]);
      }
    });
  });
}

// What is left where nothing is solved for.
void SweepTiles::outputs(Value begin, Value block) {
  Value column = b.scale(block, width());
  b.loop(zero, b.index(parts), 1, [&](Value p) {
    b.loop(zero, b.index(part), 2, [&](Value t) {
      Value first = b.add(b.scale(p, part), t);
      for (int64_t i = 0; i < 2; ++i) {
        Value inChunk = b.add(first, i), token = b.add(begin, inChunk);
        for (int64_t x = 0; x < options.vectors; ++x) {
          ColumnStep step{token, inChunk, b.add(column, x * b.lanes), {}};
          for (int64_t r = 0; r < reads; ++r) {
            Value row = b.add(b.add(b.scale(p, reads * part), t), r * part + i);
            step.reads.push_back(
                b.load(scratch, b.add(b.scale(row, width()), tiles.readsBegin + x * b.lanes)));
          }
          rule.step(b, layout, scratch, step);
        }
        rule.leave(b);
      }
      makeRequests(Outputs, arith::DivUIOp::create(b, first, b.index(2)));
    });
  });
}

// Some tokens at once, first with what they see of the tokens of the part before these, then one after the
// other by substitution: as many as keep their sums in registers.
void SweepTiles::solve(Value begin, Value p, Value block) {
  const int64_t vectors = options.vectors;
  int64_t count = 4;
  while (count > 2 && count * reads * vectors > 24)
    count /= 2;
  Value column = b.scale(block, width());
  auto earlier = [&](Value token, int64_t w, int64_t x) {
    return b.load(scratch,
                  b.add(b.scale(token, width()), tiles.writesBegin + w * part * width() + x * b.lanes));
  };
  b.loop(zero, b.index(part), count, [&](Value from) {
    Value rows = b.scale(from, width()), products = b.add(square(p, p, 0, 0), b.scale(from, part));
    auto seen = [&](int64_t t, int64_t r, Value j, int64_t w) {
      return b.loadSplat(scratch, b.add(b.add(products, j), ((r * writes + w) * part + t) * part));
    };
    Values sums;
    for (int64_t t = 0; t < count; ++t)
      for (int64_t r = 0; r < reads; ++r)
        for (int64_t x = 0; x < vectors; ++x)
          sums.push_back(
              b.load(scratch, b.add(rows, tiles.readsBegin + (r * part + t) * width() + x * b.lanes)));
    auto sum = [&](MutableArrayRef<Value> sums, int64_t t, int64_t r, int64_t x) -> Value & {
      return sums[(t * reads + r) * vectors + x];
    };
    sums = b.loop(zero, from, 1, sums, [&](Value j, ValueRange carried) {
      Values next(carried);
      for (int64_t w = 0; w < writes; ++w) {
        Values z;
        for (int64_t x = 0; x < vectors; ++x)
          z.push_back(earlier(j, w, x));
        for (int64_t t = 0; t < count; ++t)
          for (int64_t r = 0; r < reads; ++r) {
            Value factor = seen(t, r, j, w);
            for (int64_t x = 0; x < vectors; ++x)
              sum(next, t, r, x) = b.fma(factor, z[x], sum(next, t, r, x));
          }
      }
      return next;
    });
    Values z(count * writes * vectors);
    Value first = b.add(b.scale(p, part), from);
    for (int64_t t = 0; t < count; ++t) {
      Value inChunk = b.add(first, t), token = b.add(begin, inChunk);
      askFor(begin, inChunk, 1, block);
      for (int64_t r = 0; r < reads; ++r)
        for (int64_t j = 0; j < t; ++j)
          for (int64_t w = 0; w < writes; ++w) {
            Value factor = seen(t, r, b.add(from, j), w);
            for (int64_t x = 0; x < vectors; ++x)
              sum(sums, t, r, x) = b.fma(factor, z[(j * writes + w) * vectors + x], sum(sums, t, r, x));
          }
      for (int64_t x = 0; x < vectors; ++x) {
        ColumnStep step{token, inChunk, b.add(column, x * b.lanes), {}};
        for (int64_t r = 0; r < reads; ++r)
          step.reads.push_back(sum(sums, t, r, x));
        for (auto [w, value] : llvm::enumerate(rule.step(b, layout, scratch, step))) {
          z[(t * writes + w) * vectors + x] = value;
          Value place = b.add(rows, tiles.writesBegin + (w * part + t) * width() + x * b.lanes);
          b.store(value, scratch, place);
          if (t % 2)
            storeOperand(p, b.add(from, t - 1), w, x, z[((t - 1) * writes + w) * vectors + x], value);
        }
      }
      rule.leave(b);
    }
  });
}

// Strip by strip, what the group adds to some rows of H as a product of tiles, then that of these rows.
void SweepTiles::update(Value block) {
  b.loop(zero, b.index(shape.rows), b.lanes, [&](Value row) {
    Value left = b.add(b.scale(row, writes * group / 2), tiles.writeTilesBegin);
    Value strip = arith::RemUIOp::create(b, row, b.index(2 * b.lanes));
    Value to = b.add(b.scale(strip, width()), tiles.readsBegin);
    for (int64_t x = 0; x < options.vectors; ++x)
      call(amx::clear, {number(x, 8)});
    for (int64_t k = 0; k < writes; ++k) {
      tile(amx::load, amx::lefts + k % 2, b.add(left, k * b.lanes), 2 * writes * group);
      for (int64_t x = 0; x < options.vectors; ++x) {
        tile(amx::load, amx::rights + x % 2,
             b.index(tiles.operandBegin + k * b.lanes * width() + x * b.lanes), 4 * width());
        product(x, amx::lefts + k % 2, amx::rights + x % 2);
      }
    }
    for (int64_t x = 0; x < options.vectors; ++x)
      tile(amx::store, x, b.add(to, x * b.lanes), 4 * width());
    addProduct(row, to, block);
    makeRequests(Updates, arith::DivUIOp::create(b, row, b.index(b.lanes)));
  });
}

// Multiplies the decay into a strip of rows of H, adds the product to them, and makes their copy.
void SweepTiles::addProduct(Value row, Value product, Value block) {
  Value base = b.scale(block, layout.blockStride), whole;
  Value halvesAt = b.add(b.scale(block, tiles.halvesStride), tiles.halvesBegin);
  if (shape.scalarDecay)
    whole = b.loadSplat(scratch, b.index(tiles.decaysBegin));
  b.loop(zero, b.index(b.lanes), 4, [&](Value first) {
    for (int64_t i = 0; i < 4; i += 2) {
      Value here = b.add(first, i), own = b.add(row, here), decays[2] = {whole, whole};
      for (int64_t n = 0; shape.rowDecay && n < 2; ++n)
        decays[n] = b.loadSplat(scratch, b.add(own, tiles.factorsBegin + n));
      for (int64_t x = 0; x < options.vectors; ++x) {
        Value h[2];
        for (int64_t n = 0; n < 2; ++n) {
          Value place = b.add(b.add(base, b.scale(own, width())), n * width() + x * b.lanes);
          Value more =
              b.load(scratch, b.add(b.add(product, b.scale(here, width())), n * width() + x * b.lanes));
          Value old = b.load(scratch, place);
          h[n] = decays[n] ? b.fma(decays[n], old, more) : b.sum(old, more);
          b.store(h[n], scratch, place);
        }
        storeHalves(interleaved(h[0], h[1]), b.add(b.add(halvesAt, b.scale(own, width() / 2)), x * b.lanes));
      }
    }
  });
}

// The copy in bf16 of some rows of H.
void SweepTiles::convertRows(Value row, int64_t count, Value block) {
  Value from = b.add(b.scale(block, layout.blockStride), b.scale(row, width()));
  Value to = b.add(b.add(b.scale(block, tiles.halvesStride), tiles.halvesBegin), b.scale(row, width() / 2));
  for (int64_t i = 0; i < count; i += 2)
    for (int64_t x = 0; x < options.vectors; ++x) {
      Value low = b.load(scratch, b.add(from, i * width() + x * b.lanes));
      Value high = b.load(scratch, b.add(from, (i + 1) * width() + x * b.lanes));
      storeHalves(interleaved(low, high), b.add(to, i * width() / 2 + x * b.lanes));
    }
}
