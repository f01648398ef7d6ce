#include "lib/Cpu/Sweep.h"
#include "lib/Cpu/SweepPack.h"
#include "lib/Cpu/SweepPairs.h"
#include "lib/Cpu/SweepRequests.h"
#include "lib/Cpu/SweepTiles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

namespace {
// The loops over column blocks, groups and rows.
class SweepEmitter {
public:
  // `isRest`: for the few tokens that are left over.
  SweepEmitter(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, int64_t group, bool isRest,
               Value tokens, Value scratch, SweepBlocks blocks)
      : b(b), rule(rule), shape(rule.shape), options(options), layout(shape, options), group{shape, group},
        packer(b, rule.shape, layout, this->group, scratch),
        requests(b, shape, options, layout, group,
                 options.pairs || isRest ? 0 : SweepRequests::sharesOfRows(shape), scratch),
        tokens(tokens), scratch(scratch), blocks(blocks), vectors(options.vectors), zero(b.index(0)) {
    if (options.pairs)
      pairs.emplace(b, shape, options, layout, this->group, scratch);
  }

  // What has to be there before the first group: writes of zeros that are pending.
  void begin() {
    b.loop(b.index(0), b.index(shape.rowSlots), 1, [&](Value slot) {
      Value row =
          b.add(b.scale(slot, layout.rowSlotStride), layout.rowsBegin - group.group * layout.rowStride);
      fill(row, group.group * layout.rowStride, 0);
    });
    if (pairs)
      fill(b.index(pairs->pendingBegin()), pairs->pendingSize(), 0);
    requests.begin();
    clear();
  }

  // Tokens `from` to `to` of a chunk that is packed and begins at token `begin`: a positive multiple of the
  // group. The writes of the last group stay pending. Returns the new scale.
  Value run(Value begin, Value from, Value to, Value scale) {
    Value ends = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, b.add(begin, to), tokens);
    Value next = packer.coefficients(from, to, ends, scale);
    if (pairs)
      pairs->pack(from, to);
    b.loop(blocks.begin, blocks.end, 1, [&](Value block) { columnBlock(begin, from, to, block); });
    packer.keep(b.sub(to, group.group));
    if (pairs)
      pairs->keep(b.sub(to, group.group));
    return next;
  }

  // Applies what is pending.
  void flush() {
    b.loop(blocks.begin, blocks.end, 1, [&](Value block) {
      Values pending = load(block);
      Pending last = unpack(pending, b.index(-group.group));
      sweep(b.scale(block, layout.blockStride), last, {});
    });
  }

  // Forgets what was pending.
  void clear() {
    b.loop(blocks.begin, blocks.end, 1, [&](Value block) {
      Value at = pendingAt(block);
      int64_t writes = pendingWrites() * lanes();
      fill(at, writes, 0);
      if (shape.columnDecay)
        fill(b.add(at, writes), width(), 1);
    });
    b.storeScalar(b.number(1), scratch, b.add(packer.coefficientsAt(b.index(-group.group)), group.rescale()));
  }

private:
  using Values = VectorBuilder::Values;

  // What a group leaves for the sweep after it: z, and the decay by columns.
  struct Pending {
    ArrayRef<Value> writes; // [token][write][vector], or as SweepPairs has them
    ArrayRef<Value> decay;  // [vector], for a decay by columns
    Value first;            // the group's first token in the chunk; before 0: of the chunk before
  };

  int64_t lanes() const { return b.lanes; }
  int64_t width() const { return b.lanes * vectors; }
  size_t pendingWrites() const {
    return pairs ? pairs->operandCount() : group.group * group.writes() * vectors;
  }

  void fill(Value at, int64_t size, double value) {
    b.loop(b.index(0), b.index(size), lanes(),
           [&](Value i) { b.store(b.splat(value), scratch, b.add(at, i)); });
  }

  Pending unpack(ArrayRef<Value> pending, Value first) {
    return {pending.take_front(pendingWrites()), pending.drop_front(pendingWrites()), first};
  }

  Value pendingAt(Value block) { return b.add(b.scale(block, layout.pendingStride), layout.pendingBegin); }

  Values load(Value block) {
    Values pending;
    Value at = pendingAt(block);
    for (size_t i = 0; i < pendingWrites() + (shape.columnDecay ? vectors : 0); ++i) {
      Value x = b.load(scratch, b.add(at, i * lanes()));
      pending.push_back(pairs ? pairs->halves(x) : x);
    }
    return pending;
  }

  void store(ArrayRef<Value> pending, Value block) {
    Value at = pendingAt(block);
    for (auto [i, x] : llvm::enumerate(pending))
      b.store(vector::BitCastOp::create(b, b.vector, x), scratch, b.add(at, i * lanes()));
  }

  void columnBlock(Value begin, Value from, Value to, Value block) {
    Value base = b.scale(block, layout.blockStride), column = b.scale(block, width());
    Values pending = load(block);
    pending.push_back(b.index(-group.group));
    pending = b.loop(from, to, group.group, pending, [&](Value first, ValueRange carried) {
      Values storage(carried.drop_back());
      Pending before = unpack(storage, carried.back());
      Values next = solve(begin, first, block, column, sweep(base, before, first));
      next.push_back(first);
      return next;
    });
    store(ArrayRef(pending).drop_back(), block);
  }

  // One pass over the rows of a column block: applies what is pending, and reads for the group that begins at
  // `reads` unless that is null. Returns the sums [token][read][vector].
  Values sweep(Value base, const Pending &pending, Value reads) {
    if (!shape.scalarDecay && !shape.rowDecay)
      return rows(base, pending, reads, {});
    Value factor = b.loadScalar(scratch, b.add(packer.coefficientsAt(pending.first), group.rescale()));
    Value usual = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, factor, b.number(1));
    SmallVector<Type> types(reads ? group.group * group.reads() * vectors : 0, b.vector);
    return b.branch(
        usual, types, [&] { return rows(base, pending, reads, {}); },
        [&] { return rows(base, pending, reads, factor); });
  }

  // With a `factor` the rows are multiplied: by that, or each by its own where the decay is by rows.
  Values rows(Value base, const Pending &pending, Value reads, Value factor) {
    Value factors;
    if (factor && shape.rowDecay)
      factors = b.add(packer.rowsAt(pending.first), *shape.rowDecay * layout.rowSlotStride), factor = {};
    else if (factor)
      factor = b.splat(factor);
    if (pairs)
      return pairs->rows(base, pending.writes, pending.first, reads, factor, factors);
    int64_t count = reads ? group.group * group.reads() * vectors : 0,
            partials = options.partialSums(shape, group.group);
    int64_t atOnce = reads && requests.isQueue() ? SweepRequests::rowsOfShare : partials;
    Values sums(count * partials, reads ? b.splat(0.0) : Value());
    Value packedReads = reads ? packer.rowsAt(reads) : Value();
    Value packedWrites = packer.rowsAt(pending.first);
    sums = b.loop(zero, b.index(shape.rows), atOnce, sums, [&](Value i, ValueRange carried) {
      Values next(carried);
      for (int64_t part = 0; part < atOnce; ++part) {
        Value row = b.add(b.add(base, b.scale(i, width())), part * width());
        Values h;
        for (int64_t x = 0; x < vectors; ++x)
          h.push_back(b.load(scratch, b.add(row, x * lanes())));
        if (factors)
          factor = b.loadSplat(scratch, b.add(b.add(factors, i), part));
        update(h, pending, b.add(b.add(packedWrites, i), part), factor, row);
        if (reads)
          read(h, b.add(b.add(packedReads, i), part),
               MutableArrayRef(next).slice(part % partials * count, count));
      }
      if (reads)
        requests.make(arith::DivUIOp::create(b, i, b.index(atOnce)));
      return next;
    });
    for (int64_t n = 0; n < count; ++n)
      for (int64_t part = 1; part < partials; ++part)
        sums[n] = b.sum(sums[n], sums[part * count + n]);
    sums.resize(count);
    return sums;
  }

  Value packed(Value rows, int64_t token, unsigned slot) {
    return b.loadSplat(scratch, b.add(rows, slot * layout.rowSlotStride + token * layout.rowStride));
  }

  void update(Values &h, const Pending &pending, Value packedRows, Value factor, Value row) {
    for (int64_t x = 0; x < vectors; ++x) {
      h[x] = b.mul(factor, h[x]);
      if (shape.columnDecay)
        h[x] = b.mul(pending.decay[x], h[x]);
    }
    auto write = pending.writes.begin();
    for (int64_t t = 0; t < group.group; ++t)
      for (unsigned slot : shape.writes) {
        Value e = packed(packedRows, t, slot);
        for (Value &value : h)
          value = b.fma(e, *write++, value);
      }
    for (auto [x, value] : llvm::enumerate(h))
      b.store(value, scratch, b.add(row, x * lanes()));
  }

  void read(ArrayRef<Value> h, Value packedRows, MutableArrayRef<Value> sums) {
    auto *sum = sums.begin();
    for (int64_t t = 0; t < group.group; ++t)
      for (unsigned slot : shape.reads) {
        Value e = packed(packedRows, t, slot);
        for (Value value : h) {
          *sum = b.fma(e, value, *sum);
          ++sum;
        }
      }
  }

  // From the sums over H as it was before the group: the reads of each token, by substitution, its outputs
  // and its writes. Returns what Pending holds.
  Values solve(Value begin, Value first, Value block, Value column, ArrayRef<Value> sums) {
    Value at = packer.coefficientsAt(first);
    auto coefficient = [&](int64_t slot) { return b.loadSplat(scratch, b.add(at, slot)); };
    unsigned reads = group.reads(), writes = group.writes();
    auto index = [&](int64_t t, unsigned n, unsigned count, int64_t x) {
      return (t * count + n) * vectors + x;
    };
    Values z(group.group * writes * vectors), decays(group.group * vectors);
    requests.restart(zero);
    // The decay of columns x by the tokens from `from` to before `to`; null for none.
    auto columnDecay = [&](int64_t from, int64_t to, int64_t x) {
      Value product;
      for (int64_t t = from; shape.columnDecay && t < to; ++t)
        product = b.mul(product, decays[t * vectors + x]);
      return product;
    };
    for (int64_t t = 0; t < group.group; ++t) {
      Value inChunk = b.add(first, t), token = b.add(begin, inChunk);
      rule.enter(b, layout, requests, {token, inChunk, column, {}}, block);
      for (int64_t x = 0; x < vectors; ++x) {
        ColumnStep step{token, inChunk, b.add(column, x * lanes()), {}};
        for (unsigned r = 0; r < reads; ++r) {
          Value y = b.mul(sums[index(t, r, reads, x)], columnDecay(0, t, x));
          if (shape.scalarDecay)
            y = b.mul(y, coefficient(group.carry(t)));
          for (int64_t j = 0; j < t; ++j)
            for (unsigned w = 0; w < writes; ++w)
              y = b.fma(coefficient(group.gram(t, r, j, w)),
                        b.mul(z[index(j, w, writes, x)], columnDecay(j + 1, t, x)), y);
          step.reads.push_back(y);
        }
        if (shape.columnDecay)
          decays[t * vectors + x] = rule.columnDecay(b, layout, scratch, step);
        for (auto [w, value] : llvm::enumerate(rule.step(b, layout, scratch, step)))
          z[index(t, w, writes, x)] = value;
      }
      rule.leave(b);
    }
    for (int64_t t = 0; t < group.group; ++t)
      for (unsigned w = 0; w < writes; ++w)
        for (int64_t x = 0; x < vectors; ++x) {
          Value &value = z[index(t, w, writes, x)];
          value = b.mul(value, columnDecay(t + 1, group.group, x));
          if (shape.scalarDecay)
            value = b.mul(value, coefficient(group.leave(t)));
        }
    if (pairs)
      return pairs->operands(z);
    for (int64_t x = 0; shape.columnDecay && x < vectors; ++x)
      z.push_back(columnDecay(0, group.group, x));
    return z;
  }

  VectorBuilder &b;
  SweepRule &rule;
  const SweepShape &shape;
  const SweepOptions &options;
  const SweepLayout layout;
  const SweepGroup group;
  SweepPacker packer;
  std::optional<SweepPairs> pairs;
  SweepRequests requests;
  Value tokens, scratch;
  SweepBlocks blocks;
  int64_t vectors;
  Value zero;
};
} // namespace

SweepLayout::SweepLayout(const SweepShape &shape, const SweepOptions &options)
    : columns(roundUp(shape.columns, options.width())), blocks(columns / options.width()),
      blockStride(shape.rows * options.width()), rowStride(roundUp(shape.rows, options.lanes)),
      rowSlotStride((options.group + options.chunk) * rowStride), columnSlotStride(options.chunk * columns),
      rowsBegin(roundUp(blocks * blockStride, 16) + options.group * rowStride),
      columnsBegin(roundUp(blocks * blockStride, 16) + shape.rowSlots * rowSlotStride),
      scalarsBegin(columnsBegin + shape.columnSlots * columnSlotStride), scalarSlots(shape.scalarSlots),
      coefficientsBegin(scalarsBegin + roundUp(options.chunk * scalarSlots, 16) +
                        SweepGroup{shape, options.group}.size()) {
  SweepGroup whole{shape, options.group}, single{shape, 1};
  int64_t coefficients =
      std::max(options.chunk / options.group * whole.size(), options.chunk * single.size());
  scalesBegin = coefficientsBegin + coefficients;
  pendingBegin = scalesBegin + (shape.rowDecay ? rowStride : 0);
  int64_t writes = options.group * whole.writes();
  if (options.pairs)
    writes = roundUp(writes, 2);
  pendingStride = (writes + shape.columnDecay) * options.width();
  pairsBegin = pendingBegin + blocks * pendingStride;
  size = pairsBegin + (options.pairs ? SweepPairs::size(shape, options) : 0);
  if (options.tiles)
    size += TileLayout(shape, options, *this).size;
  requestsBegin = std::exchange(size, size + SweepRequests::size(shape, options));
}

Value cpu::emitSweep(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, Value tokens,
                     Value scratch, SweepBlocks blocks) {
  using Values = VectorBuilder::Values;
  SweepLayout layout(rule.shape, options);
  SweepEmitter grouped(b, rule, options, options.group, options.tiles, tokens, scratch, blocks),
      single(b, rule, options, 1, true, tokens, scratch, blocks);
  bool scaled = rule.shape.scalarDecay.has_value();
  auto carry = [](Value value) { return value ? Values{value} : Values(); };
  auto front = [](ValueRange values) { return values.empty() ? Value() : values.front(); };
  Value zero = b.index(0);
  if (rule.shape.rowDecay)
    b.loop(b.index(layout.scalesBegin), b.index(layout.scalesBegin + layout.rowStride), b.lanes,
           [&](Value i) { b.store(b.splat(1.0), scratch, i); });
  // Runs the groups from `from` to `to`, if there are any, and returns the new scale.
  auto some = [&](Value from, Value to, Value scale, llvm::function_ref<Value(Value)> run) {
    Value any = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, from, to);
    SmallVector<Type> types(scaled ? 1 : 0, b.getF32Type());
    return front(b.branch(any, types, [&] { return carry(run(scale)); }, [&] { return carry(scale); }));
  };
  auto when = [&](Value condition, llvm::function_ref<void()> body) {
    b.branch(condition, TypeRange(), [&] { return body(), Values(); }, [] { return Values(); });
  };
  Values scale = scaled ? Values{b.number(1)} : Values();
  std::optional<SweepTiles> tiles;
  if (options.tiles)
    tiles.emplace(b, rule, options, scratch, blocks);
  int64_t group = tiles ? SweepTiles::group : options.group;
  grouped.begin();
  if (tiles)
    tiles->begin();
  Values last = b.loop(zero, tokens, options.chunk, scale, [&](Value begin, ValueRange carried) {
    Value left = arith::SubIOp::create(b, tokens, begin);
    Value count = arith::MinUIOp::create(b, left, b.index(options.chunk));
    rule.pack(b, layout, scratch, begin, count);
    if (!options.spread)
      rule.lookAhead(b, begin);
    // The few tokens after the last whole group go one by one.
    Value rest = arith::RemUIOp::create(b, count, b.index(group));
    Value whole = arith::SubIOp::create(b, count, rest);
    Value scale = some(zero, whole, front(carried), [&](Value scale) {
      if (!tiles)
        return grouped.run(begin, zero, whole, scale);
      tiles->run(begin);
      return scale;
    });
    Value ends = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, left, count);
    Value pending = arith::CmpIOp::create(b, arith::CmpIPredicate::uge, tokens, b.index(group));
    if (!tiles)
      when(arith::AndIOp::create(b, ends, pending), [&] { grouped.flush(); });
    if (group > 1)
      scale = some(whole, count, scale, [&](Value scale) {
        single.clear();
        Value next = single.run(begin, whole, count, scale);
        single.flush();
        return next;
      });
    rule.finish(b, layout, scratch, begin, count);
    return carry(scale);
  });
  if (tiles)
    tiles->end();
  return front(last);
}

// What a sweep of the rows keeps in registers: sums, writes, the decay of the columns, a row of the state,
// and an entry of a packed row.
static int64_t registersOf(const SweepShape &shape, int64_t group, int64_t vectors, int64_t partials) {
  int64_t perToken = partials * shape.reads.size() + shape.writes.size();
  return vectors * (group * perToken + shape.columnDecay + 1) + 1;
}

int64_t SweepOptions::partialSums(const SweepShape &shape, int64_t group) const {
  // Two products begin in a cycle, and end four later.
  int64_t cyclesOfRow = group * vectors * (shape.reads.size() + shape.writes.size()) / 2;
  bool fits = registersOf(shape, group, vectors, 2) <= registers;
  return shape.rows % 2 == 0 && cyclesOfRow < 4 && fits ? 2 : 1;
}

SweepOptions SweepOptions::choose(const SweepShape &shape, int64_t lanes, int64_t registers, bool pairs,
                                  bool tiles) {
  SweepOptions best;
  best.lanes = lanes;
  best.registers = registers;
  // Few lines can be on their way from memory at once, and a request beyond these holds up what comes after
  // it: a Xeon with AMX and Zen 4 gain up to a sixth. Zen 3 waits for pages instead and, looking them up
  // together, gains up to a tenth, which the others would lose.
  best.spread = registers > 16;
  int64_t perVector = shape.reads.size() + shape.writes.size();
  int64_t most = (shape.columns + lanes - 1) / lanes;
  // Where there are many registers some are left to the scheduler.
  auto fits = [&](int64_t group, int64_t vectors) {
    return vectors <= most && registersOf(shape, group, vectors, 1) <= registers - (registers > 16 ? 3 : 0);
  };
  if (tiles && SweepTiles::fit(shape, lanes)) {
    best.tiles = true;
    best.group = 1, best.chunk = SweepTiles::group;
    // Wide enough for several sums of a token at once, and two blocks for two threads. Where little is solved
    // for, so narrow that the first-level cache holds a block, its copy and operands.
    best.vectors = most % 8 == 0 && perVector > 2 ? 4 : most % 2 == 0 ? 2 : 1;
    return best;
  }
  if (pairs && !shape.columnDecay && shape.rows % (2 * lanes) == 0) {
    // Sums, the operands of an update, two rows, and what is loaded.
    auto fitsPairs = [&](int64_t group, int64_t vectors, int64_t spare) {
      int64_t sums = group * shape.reads.size(), writes = (group * shape.writes.size() + 1) / 2 * 2;
      return vectors <= most && vectors * (sums + writes + 2) <= registers - spare;
    };
    best.vectors = fitsPairs(2, 2, 4) ? 2 : 1;
    best.group = fitsPairs(4, best.vectors, 8) ? 4 : 2; // four only where nothing is spilled
    best.pairs = fitsPairs(best.group, best.vectors, 4);
  }
  if (!best.pairs) {
    best.vectors = fits(1, 2) ? 2 : 1;
    best.group = fits(2, best.vectors) ? 2 : 1;
    if (shape.reads.empty() && fits(4, best.vectors)) // nothing is solved for
      best.group = 4;
    if (best.spread && perVector == 2 && !shape.rowDecay && fits(4, best.vectors)) // little is
      best.group = 4;
  }
  // Packed rows share the first-level cache with a block of columns, but few rows are in use at a time. Lines
  // that are on their way from memory hold up those of the second level, so that where few can be all packed
  // rows are to stay in the first.
  int64_t slots = 2 * std::max(shape.rowSlots, 1u) + (best.pairs ? perVector : 0);
  int64_t bytes = 2 * roundUp(shape.rows, lanes) * slots;
  int64_t room = (registers > 16 ? 48 : 36) << 10; // cores without AVX-512 have less
  best.chunk = best.spread ? 16 : std::clamp<int64_t>(room / bytes / 8 * 8, 16, 32);
  return best;
}
