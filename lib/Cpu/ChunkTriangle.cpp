// Products with lower triangular matrices, and their inverse, for panels of rows in registers.
#include "lib/Cpu/ChunkProducts.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;
using chunk::Reach;

static int64_t rowsOf(Value memory) { return cast<MemRefType>(memory.getType()).getDimSize(0); }
static int64_t columnsOf(Value memory) { return cast<MemRefType>(memory.getType()).getDimSize(1); }

void cpu::emitTriangularProduct(ChunkBuilder &b, Value scores, Value values, Value result) {
  int64_t panel = b.panel();
  b.loop(b.index(0), b.index(rowsOf(result)), panel, [&](Value top) {
    b.strips(columnsOf(result), [&](VectorBuilder &v, Value column) {
      SmallVector<Value> rows, sums;
      for (int64_t i = 0; i < panel; ++i) {
        rows.push_back(v.add(top, i));
        sums.push_back(v.load(result, {rows[i], column}));
      }
      sums = v.loop(v.index(0), v.add(top, panel), 1, sums, [&](Value j, ValueRange carried) {
        Value value = v.load(values, {j, column});
        SmallVector<Value> next;
        for (auto [row, sum] : llvm::zip(rows, carried))
          next.push_back(v.fma(v.loadSplat(scores, {row, j}), value, sum));
        return next;
      });
      for (auto [row, sum] : llvm::zip(rows, sums))
        v.store(sum, result, {row, column});
    });
  });
}

// The rows before t, from the nearest back, each with the product of the factors between: `take` gets the
// row, and the product unless it is 1.
static Value overEarlierRows(VectorBuilder &v, Value t, Value column, Value factors, Reach reach, Value start,
                             function_ref<Value(Value j, Value product, Value sum)> take) {
  Value product = reach == Reach::Before ? v.splat(1.0) : v.load(factors, {t, column});
  return v.loop(v.index(0), t, 1, {start, product},
                [&](Value back, ValueRange carried) -> SmallVector<Value> {
                  Value j = v.sub(arith::SubIOp::create(v, t, back), 1);
                  Value sum = take(j, carried[1], carried[0]);
                  return {sum, v.mul(carried[1], v.load(factors, {j, column}))};
                })[0];
}

void cpu::emitMix(ChunkBuilder &b, Value scores, Value values, Value factors, Reach reach, Value result) {
  b.loop(b.index(0), b.index(rowsOf(result)), 1, [&](Value t) {
    b.strips(columnsOf(result), [&](VectorBuilder &v, Value column) {
      Value own = v.splat(0.0);
      if (reach == Reach::Inclusive)
        own = v.mul(v.loadSplat(scores, {t, t}), v.load(values, {t, column}));
      Value sum = overEarlierRows(v, t, column, factors, reach, own, [&](Value j, Value product, Value sum) {
        Value weight = v.mul(v.loadSplat(scores, {t, j}), product);
        return v.fma(weight, v.load(values, {j, column}), sum);
      });
      v.store(sum, result, {t, column});
    });
  });
}

// Token by token: the factor of an entry differs from column to column.
static void solveDecaying(ChunkBuilder &b, ArrayRef<Value> blocks, ArrayRef<Value> sides,
                          ArrayRef<Value> factors, Value decays, Reach reach) {
  size_t streams = sides.size();
  b.loop(b.index(0), b.index(rowsOf(sides[0])), 1, [&](Value t) {
    b.strips(columnsOf(sides[0]), [&](VectorBuilder &v, Value column) {
      auto less = [&](Value x, Value weight, Value value) -> Value {
        return arith::SubFOp::create(v, x, v.mul(weight, value));
      };
      SmallVector<Value> solved;
      for (size_t s = 0; s < streams; ++s) {
        Value row = factors.empty() ? v.load(sides[s], {t, column}) : v.splat(0.0);
        for (size_t other = 0; other < streams; ++other) {
          Value block = blocks[s * streams + other];
          if (!block)
            continue;
          row = overEarlierRows(v, t, column, decays, reach, row, [&](Value j, Value product, Value sum) {
            return less(sum, v.mul(v.loadSplat(block, {t, j}), product), v.load(sides[other], {j, column}));
          });
          if (other < s)
            row = less(row, v.loadSplat(block, {t, t}), solved[other]);
        }
        if (!factors.empty())
          row = v.fma(v.load(factors[s], {t, column}), row, v.load(sides[s], {t, column}));
        v.store(row, sides[s], {t, column});
        solved.push_back(row);
      }
    });
  });
}

// A panel of rows stays in registers: first what earlier panels give to it, then its own triangle.
void cpu::emitTriangularSolve(ChunkBuilder &b, ArrayRef<Value> blocks, ArrayRef<Value> sides,
                              ArrayRef<Value> factors, Value decays, Reach reach) {
  if (decays)
    return solveDecaying(b, blocks, sides, factors, decays, reach);
  int64_t streams = sides.size(),
          panel = llvm::bit_floor<uint64_t>(std::max<int64_t>(1, b.panel() / streams));
  b.loop(b.index(0), b.index(rowsOf(sides[0])), panel, [&](Value top) {
    b.strips(columnsOf(sides[0]), [&](VectorBuilder &v, Value column) {
      SmallVector<Value> rows, x; // x: [stream][row]
      for (int64_t i = 0; i < panel; ++i)
        rows.push_back(v.add(top, i));
      for (Value side : sides)
        for (Value row : rows)
          x.push_back(factors.empty() ? v.load(side, {row, column}) : v.splat(0.0));
      auto eliminate = [&](Value &target, int64_t s, int64_t other, Value row, Value j, Value value) {
        if (Value block = blocks[s * streams + other])
          target = arith::SubFOp::create(v, target, v.mul(v.loadSplat(block, {row, j}), value));
      };
      x = v.loop(v.index(0), top, 1, x, [&](Value j, ValueRange carried) {
        SmallVector<Value> next(carried);
        for (int64_t other = 0; other < streams; ++other) {
          Value known = v.load(sides[other], {j, column});
          for (int64_t s = 0; s < streams; ++s)
            for (int64_t i = 0; i < panel; ++i)
              eliminate(next[s * panel + i], s, other, rows[i], j, known);
        }
        return next;
      });
      for (int64_t i = 0; i < panel; ++i)
        for (int64_t s = 0; s < streams; ++s) {
          Value &own = x[s * panel + i];
          for (int64_t other = 0; other < streams; ++other)
            for (int64_t j = 0; j < i + (other < s); ++j)
              eliminate(own, s, other, rows[i], rows[j], x[other * panel + j]);
          // With factors, what stands here is yet without the right side.
          if (!factors.empty())
            own = v.fma(v.load(factors[s], {rows[i], column}), own, v.load(sides[s], {rows[i], column}));
        }
      for (int64_t s = 0; s < streams; ++s)
        for (int64_t i = 0; i < panel; ++i)
          v.store(x[s * panel + i], sides[s], {rows[i], column});
    });
  });
}
