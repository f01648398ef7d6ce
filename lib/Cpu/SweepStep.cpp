// Some rows of the caller's state, one for each lane, are read with every read vector, then updated while
// they are in the first-level cache.
#include "lib/Cpu/SweepStep.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

static void prefetchEntry(VectorBuilder &b, Value state, Value row, Value i) {
  memref::PrefetchOp::create(b, state, ValueRange{row, i}, /*isWrite=*/false, 3, /*isDataCache=*/true);
}

namespace {
class StepEmitter {
public:
  StepEmitter(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, Value scratch, Value from,
              Value to, SweepBlocks blocks)
      : b(b), rule(rule), shape(rule.shape), layout(shape, options), scratch(scratch),
        from(b.denseView(from)), to(b.denseView(to)), begin(b.scale(blocks.begin, options.width())),
        end(b.scale(blocks.end, options.width())), zero(b.index(0)) {}

  void emit() {
    b.loop(begin, end, b.lanes, [&](Value column) {
      ColumnStep step{zero, zero, column, {}};
      for (unsigned slot : shape.reads)
        step.reads.push_back(read(column, slot, step.reads.size()));
      Values writes = rule.step(b, layout, scratch, step);
      // One lane of each is needed at a time: through memory, where H would be.
      if (shape.columnDecay)
        writes.push_back(rule.columnDecay(b, layout, scratch, step));
      for (auto [index, value] : llvm::enumerate(writes))
        b.store(value, scratch, b.index(index * b.lanes));
      update(column, writes.size());
    });
  }

private:
  using Values = VectorBuilder::Values;

  Value packed(unsigned slot, Value i) {
    return b.load(scratch, b.add(i, layout.rowsBegin + slot * layout.rowSlotStride));
  }

  // Asks for a vector of the rows after these, which lie dense, by its first entry's number among theirs:
  // vector after vector, half of them while these rows are read and half while they are updated, as memory is
  // to have something to do all the time and more than can be on their way hold up what comes next. After the
  // last rows there are most often those of the next head.
  void ask(Value column, Value number) { prefetchEntry(b, from, b.add(column, b.lanes), number); }

  // The inner products of a packed row with `lanes` rows of the state, as one of all reads.
  Value read(Value column, unsigned slot, int64_t number) {
    Values sums(b.lanes, b.splat(0.0));
    int64_t reads = shape.reads.size(), together = asksInReads() ? (b.lanes / 2 + reads - 1) / reads : 0;
    sums = b.loop(zero, b.index(shape.rows), b.lanes, sums, [&](Value i, ValueRange carried) {
      Values next(carried);
      Value e = packed(slot, i), first = b.scale(b.add(i, number * shape.rows), together);
      for (int64_t vector = 0; vector < together; ++vector)
        ask(column, b.add(first, vector * b.lanes));
      for (int64_t lane = 0; lane < b.lanes; ++lane) {
        Value row = b.add(column, lane);
        next[lane] = b.fma(e, vector::LoadOp::create(b, b.vector, from, ValueRange{row, i}), next[lane]);
      }
      return next;
    });
    return sumLanes(sums);
  }

  // The vector of the sums over each vector's lanes, by halves.
  Value sumLanes(Values values) {
    for (int64_t half = 1; half < b.lanes; half *= 2) {
      Values next;
      for (size_t pair = 0; pair < values.size(); pair += 2) {
        SmallVector<int64_t> even, odd;
        for (int64_t lane = 0; lane < b.lanes; ++lane) {
          // Lanes with this bit come from the second vector; each is added to its neighbour across the bit.
          int64_t base = lane & half ? b.lanes : 0;
          even.push_back(base + (lane & ~half));
          odd.push_back(base + (lane | half));
        }
        Value x = values[pair], y = values[pair + 1];
        next.push_back(
            b.sum(vector::ShuffleOp::create(b, x, y, even), vector::ShuffleOp::create(b, x, y, odd)));
      }
      values = next;
    }
    return values.front();
  }

  bool asksInReads() const { return shape.rows % (2 * b.lanes) == 0; }

  void update(Value column, size_t stored) {
    Value scalarDecay;
    if (shape.scalarDecay)
      scalarDecay = b.loadSplat(scratch, b.index(layout.scalarsBegin + *shape.scalarDecay));
    b.loop(zero, b.index(b.lanes), 1, [&](Value lane) {
      Value row = b.add(column, lane), decay = scalarDecay;
      if (shape.columnDecay)
        decay = b.mul(decay, b.loadSplat(scratch, b.add(lane, (stored - 1) * b.lanes)));
      Values z;
      for (size_t w = 0; w < shape.writes.size(); ++w)
        z.push_back(b.loadSplat(scratch, b.add(lane, w * b.lanes)));
      int64_t together = asksInReads() ? 2 : 1, asked = asksInReads() ? shape.rows * b.lanes / 2 : 0;
      b.loop(zero, b.index(shape.rows / together), b.lanes, [&](Value place) {
        ask(column, b.add(b.add(b.scale(lane, shape.rows / together), place), asked));
        for (int64_t vector = 0; vector < together; ++vector) {
          Value i = b.add(b.scale(place, together), vector * b.lanes);
          Value h = vector::LoadOp::create(b, b.vector, from, ValueRange{row, i});
          h = b.mul(decay, h);
          if (shape.rowDecay)
            h = b.mul(packed(*shape.rowDecay, i), h);
          for (auto [w, slot] : llvm::enumerate(shape.writes))
            h = b.fma(z[w], packed(slot, i), h);
          vector::StoreOp::create(b, h, to, ValueRange{row, i});
        }
      });
    });
  }

  VectorBuilder &b;
  SweepRule &rule;
  const SweepShape &shape;
  const SweepLayout layout;
  Value scratch, from, to, begin, end, zero;
};
} // namespace

bool cpu::hasSweepStep(const SweepShape &shape, const SweepOptions &options, bool transposed) {
  return transposed && shape.rows % options.lanes == 0 && shape.columns % options.width() == 0;
}

void cpu::prefetchSweepStep(VectorBuilder &b, const SweepShape &shape, Value from) {
  from = b.denseView(from);
  Value zero = b.index(0);
  b.loop(zero, b.index(b.lanes), 1, [&](Value row) {
    b.loop(zero, b.index(shape.rows), b.lanes, [&](Value i) { prefetchEntry(b, from, row, i); });
  });
}

void cpu::emitSweepStep(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, Value scratch,
                        Value from, Value to, SweepBlocks blocks) {
  StepEmitter(b, rule, options, scratch, from, to, blocks).emit();
}
