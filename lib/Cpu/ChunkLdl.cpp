// Everything here is a product of panels: a few rows by one vector, in registers, over all columns in
// between.
#include "lib/Cpu/ChunkLdl.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

static int64_t rowsOf(Value memory) { return cast<MemRefType>(memory.getType()).getDimSize(0); }
static int64_t columnsOf(Value memory) { return cast<MemRefType>(memory.getType()).getDimSize(1); }
static Type entryOf(Value memory) { return cast<MemRefType>(memory.getType()).getElementType(); }

// A scalar or vector with entries of the builder's type.
static Value convertTo(VectorBuilder &v, Value x) {
  Type entry = v.vector.getElementType(), type = x.getType();
  Type to = isa<VectorType>(type) ? Type(cast<VectorType>(type).clone(entry)) : entry;
  if (to == type)
    return x;
  if (entry.isF64())
    return arith::ExtFOp::create(v, to, x);
  return arith::TruncFOp::create(v, to, x);
}

// Copies what `of` makes of the rows of one matrix to another of any type.
static void copyRows(VectorBuilder &b, Value from, Value to,
                     function_ref<Value(VectorBuilder &, Value, Value row)> of) {
  Type entry = entryOf(from);
  b.loop(b.index(0), b.index(rowsOf(from)), 1, [&](Value row) {
    VectorBuilder rows(b.getLoc(), b, b.lanes, entry);
    rows.strips(columnsOf(from), [&](VectorBuilder &v, Value column) {
      VectorBuilder target(v.getLoc(), v, v.lanes, entryOf(to));
      target.store(convertTo(target, of(v, v.load(from, {row, column}), row)), to, {row, column});
    });
  });
}

Value cpu::emitConverted(ChunkBuilder &b, Value memory, Type entry) {
  ArrayRef<int64_t> shape = cast<MemRefType>(memory.getType()).getShape();
  Value result = memref::AllocOp::create(b, MemRefType::get(shape, entry));
  VectorBuilder half(b.getLoc(), b, std::max<int64_t>(1, b.lanes / 2));
  copyRows(half, memory, result, [](VectorBuilder &, Value x, Value) { return x; });
  return result;
}

namespace {
class LdlEmitter {
public:
  LdlEmitter(ChunkBuilder &b, const LdlMemory &memory)
      : b(b), v(b.getLoc(), b, std::max<int64_t>(1, b.lanes / 2), b.getF64Type()), memory(memory),
        length(rowsOf(memory.keys)), size(columnsOf(memory.keys)), panel(b.panel()) {}

  void run() {
    Value keys = emitConverted(b, b.transposed(memory.keys), v.getF64Type()); // size x length
    rows = allocate({length, size});
    panels(length, [&](Value top, int64_t count) {
      products(rows, top, count, v.index(0), size, v.index(size), /*adds=*/true, /*fresh=*/true, memory.state,
               [&](VectorBuilder &w, Value j, int64_t i) { return w.loadScalar(keys, {j, w.add(top, i)}); });
    });
    schur = allocate({length, length});
    panels(length, [&](Value top, int64_t count) {
      products(schur, top, count, top, length, v.index(size), /*adds=*/true, /*fresh=*/true, keys,
               [&](VectorBuilder &w, Value j, int64_t i) { return w.loadScalar(rows, {w.add(top, i), j}); });
    });
    factorise();
    panels(length, [&](Value top, int64_t count) { solvePanel(top, count); });
    Value gained = allocate({length, size});
    copyRows(v, rows, gained, [&](VectorBuilder &w, Value x, Value row) {
      return w.mul(x, w.splat(w.loadScalar(gains, {row})));
    });
    give(gained);
    updateState(gained);
  }

private:
  Value allocate(ArrayRef<int64_t> shape) {
    return memref::AllocOp::create(v, MemRefType::get(shape, v.getF64Type()));
  }

  // Rows in panels, the last ones in a smaller panel.
  void panels(int64_t count, function_ref<void(Value top, int64_t count)> body) {
    int64_t whole = count / panel * panel;
    if (whole)
      v.loop(v.index(0), v.index(whole), panel, [&](Value top) { body(top, panel); });
    if (whole < count)
      body(v.index(whole), count - whole);
  }

  // From a column on that is a multiple of the panel.
  void strips(Value from, int64_t columns, function_ref<void(VectorBuilder &, Value column)> body) {
    if (matchPattern(from, m_Zero()))
      return v.strips(columns, body);
    v.loop(from, v.index(columns), v.lanes, [&](Value column) { body(v, column); });
  }

  // result[top + i] +-= sum over j < terms of score(j, i) * values[j], a strip of columns at a time.
  void products(Value result, Value top, int64_t count, Value from, int64_t columns, Value terms, bool adds,
                bool fresh, Value values, function_ref<Value(VectorBuilder &, Value j, int64_t i)> score,
                function_ref<void(VectorBuilder &, Value column, SmallVectorImpl<Value> &)> then = {}) {
    strips(from, columns, [&](VectorBuilder &w, Value column) {
      SmallVector<Value> sums;
      for (int64_t i = 0; i < count; ++i)
        sums.push_back(fresh ? w.splat(0.0) : w.load(result, {w.add(top, i), column}));
      sums = w.loop(w.index(0), terms, 1, sums, [&](Value j, ValueRange carried) {
        Value value = w.load(values, {j, column});
        if (!adds)
          value = arith::NegFOp::create(w, value);
        SmallVector<Value> next;
        for (int64_t i = 0; i < count; ++i)
          next.push_back(w.fma(w.splat(score(w, j, i)), value, carried[i]));
        return next;
      });
      if (then)
        then(w, column, sums);
      for (int64_t i = 0; i < count; ++i)
        w.store(sums[i], result, {w.add(top, i), column});
    });
  }

  // Above the diagonal `schur` becomes D LT for the weights' sake, row by row, and `factors` LT. Also the
  // gains w / pivot and the products of decays before each token.
  void factorise() {
    factors = allocate({length, length});
    gains = allocate({length});
    before = allocate({length});
    pivots = allocate({length});
    auto number = [&](Value from, Value row) {
      VectorBuilder &w = v;
      return convertTo(w, w.loadScalar(from, {row, w.index(0)}));
    };
    whole = v.loop(v.index(0), v.index(length), 1, v.number(1),
                   [&](Value t, ValueRange product) -> SmallVector<Value> {
                     v.storeScalar(product[0], before, t);
                     return {v.mul(product[0], number(memory.decays, t))};
                   })[0];
    v.loop(v.index(0), v.index(length), panel, [&](Value top) {
      products(
          schur, top, panel, top, length, top, /*adds=*/false, /*fresh=*/false, schur,
          [&](VectorBuilder &w, Value j, int64_t i) { return w.loadScalar(factors, {j, w.add(top, i)}); });
      Value end = v.add(top, panel);
      v.loop(top, end, 1, [&](Value row) {
        Value weight = number(memory.weights, row);
        Value pivot = v.sum(v.mul(v.loadScalar(before, row), number(memory.offsets, row)),
                            v.mul(weight, v.loadScalar(schur, {row, row})));
        Value gain = arith::DivFOp::create(v, weight, pivot);
        v.storeScalar(pivot, pivots, row);
        v.storeScalar(gain, gains, row);
        strips(top, length, [&](VectorBuilder &w, Value column) {
          Value own = w.load(schur, {row, column});
          w.store(w.mul(own, w.splat(gain)), factors, {row, column});
        });
        v.loop(v.add(row, 1), end, 1, [&](Value later) {
          Value factor = arith::NegFOp::create(v, v.loadScalar(factors, {row, later}));
          strips(top, length, [&](VectorBuilder &w, Value column) {
            Value rest = w.fma(w.splat(factor), w.load(schur, {row, column}), w.load(schur, {later, column}));
            w.store(rest, schur, {later, column});
          });
        });
      });
    });
  }

  // L X = K P_0 in place, for a panel of rows.
  void solvePanel(Value top, int64_t count) {
    auto factor = [&](VectorBuilder &w, Value j, int64_t i) {
      return w.loadScalar(factors, {j, w.add(top, i)});
    };
    products(rows, top, count, v.index(0), size, top, /*adds=*/false, /*fresh=*/false, rows, factor,
             [&](VectorBuilder &w, Value, SmallVectorImpl<Value> &x) {
               for (int64_t i = 1; i < count; ++i)
                 for (int64_t j = 0; j < i; ++j) {
                   Value negated = arith::NegFOp::create(w, x[j]);
                   x[i] = w.fma(w.splat(factor(w, w.add(top, j), i)), negated, x[i]);
                 }
             });
  }

  // The results that are wanted, in f32.
  void give(Value gained) {
    if (memory.gains)
      copyRows(v, gained, memory.gains, [](VectorBuilder &, Value x, Value) { return x; });
    if (memory.reads)
      copyRows(v, rows, memory.reads, [&](VectorBuilder &w, Value x, Value row) {
        return arith::DivFOp::create(w, x, w.splat(w.loadScalar(before, row))).getResult();
      });
    auto narrow = [&](Value x) -> Value { return arith::TruncFOp::create(v, v.getF32Type(), x); };
    if (memory.denominators)
      v.loop(v.index(0), v.index(length), 1, [&](Value row) {
        Value value = arith::DivFOp::create(v, v.loadScalar(pivots, row), v.loadScalar(before, row));
        v.storeScalar(narrow(value), memory.denominators, {row, v.index(0)});
      });
    if (memory.lower)
      v.loop(v.index(0), v.index(length), 1, [&](Value row) {
        v.loop(v.index(0), v.index(length), 1, [&](Value column) {
          Value isBelow = arith::CmpIOp::create(v, arith::CmpIPredicate::ult, column, row);
          Value entry =
              arith::SelectOp::create(v, isBelow, v.loadScalar(factors, {column, row}), v.number(0));
          v.storeScalar(narrow(entry), memory.lower, {row, column});
        });
      });
  }

  // P_C = (P_0 - XT D^-1 X) / A_C.
  void updateState(Value gained) {
    Value inverse = arith::DivFOp::create(v, v.number(1), whole);
    panels(size, [&](Value top, int64_t count) {
      products(
          memory.state, top, count, v.index(0), size, v.index(length), /*adds=*/false, /*fresh=*/false,
          gained,
          [&](VectorBuilder &w, Value j, int64_t i) { return w.loadScalar(rows, {j, w.add(top, i)}); },
          [&](VectorBuilder &w, Value, SmallVectorImpl<Value> &sums) {
            for (Value &sum : sums)
              sum = w.mul(sum, w.splat(inverse));
          });
    });
  }

  ChunkBuilder &b;
  VectorBuilder v; // of f64
  LdlMemory memory;
  int64_t length, size, panel;
  Value rows;                         // K P_0, then X
  Value schur, factors;               // length x length
  Value gains, before, pivots, whole; // for each token; of all decays
};
} // namespace

void cpu::emitLdl(ChunkBuilder &b, const LdlMemory &memory) { LdlEmitter(b, memory).run(); }
