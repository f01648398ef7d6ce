#include "lib/Cpu/SweepPairs.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// Half as many f32 places for each read; for each pair of writes as many as rows, and once more for the group
// before.
int64_t SweepPairs::size(const SweepShape &shape, const SweepOptions &options) {
  int64_t reads = shape.reads.size() * options.chunk * shape.rows / 2;
  int64_t ofGroup = (options.group * shape.writes.size() + 1) / 2;
  int64_t whole = options.chunk / options.group * ofGroup;
  int64_t single = options.chunk * ((shape.writes.size() + 1) / 2);
  return reads + (std::max(whole, single) + ofGroup) * shape.rows;
}

VectorType SweepPairs::halfType() { return VectorType::get(2 * b.lanes, b.getBF16Type()); }

Value SweepPairs::call(StringRef intrinsic, Type type, ValueRange operands) {
  return LLVM::CallIntrinsicOp::create(b, type, b.getStringAttr(intrinsic), operands).getResult(0);
}

// The entries of two vectors, those of `low` first.
Value SweepPairs::convert(Value low, Value high) {
  return call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", halfType(), {high, low});
}

Value SweepPairs::dot(Value sum, Value x, Value y) {
  return call("llvm.x86.avx512bf16.dpbf16ps.512", b.vector, {sum, x, y});
}

Value SweepPairs::shuffle(Value x, Value y, llvm::function_ref<int64_t(int64_t)> lane) {
  SmallVector<int64_t> lanes;
  for (int64_t i = 0; i < b.lanes; ++i)
    lanes.push_back(lane(i));
  return vector::ShuffleOp::create(b, x, y, lanes);
}

// Two neighbouring f32 of memory, again and again.
Value SweepPairs::splatPair(Value at) {
  Type f64 = b.getF64Type();
  Value pair = vector::LoadOp::create(b, VectorType::get(2, b.getF32Type()), scratch, at);
  pair = vector::ExtractOp::create(b, vector::BitCastOp::create(b, VectorType::get(1, f64), pair), 0);
  pair = vector::BroadcastOp::create(b, VectorType::get(b.lanes / 2, f64), pair);
  return vector::BitCastOp::create(b, b.vector, pair);
}

Value SweepPairs::readsAt(Value token) { return b.add(b.scale(token, shape.rows / 2), layout.pairsBegin); }

Value SweepPairs::writesAt(Value first) {
  Value number = group.group == 1 ? first : Value(arith::DivSIOp::create(b, first, b.index(group.group)));
  return b.add(b.scale(number, pendingSize()), writesBegin());
}

void SweepPairs::keep(Value first) {
  Value from = writesAt(first);
  b.loop(b.index(0), b.index(pendingSize()), b.lanes,
         [&](Value i) { b.store(b.load(scratch, b.add(from, i)), scratch, b.add(i, pendingBegin())); });
}

void SweepPairs::pack(Value from, Value to) {
  int64_t lanes = b.lanes;
  auto place = [&](Value first, int64_t token, unsigned slot, Value i) {
    Value row = b.add(b.add(b.scale(first, layout.rowStride), layout.rowsBegin), i);
    return b.add(row, slot * layout.rowSlotStride + token * layout.rowStride);
  };
  auto put = [&](Value halves, Value at) {
    b.store(vector::BitCastOp::create(b, b.vector, halves), scratch, at);
  };
  Value zero = b.index(0);
  b.loop(from, to, group.group, [&](Value first) {
    b.loop(zero, b.index(shape.rows), 2 * lanes, [&](Value i) {
      Value half = arith::DivUIOp::create(b, i, b.index(2));
      for (int64_t t = 0; t < group.group; ++t)
        for (auto [r, slot] : llvm::enumerate(shape.reads)) {
          Value at = place(first, t, slot, i);
          put(convert(b.load(scratch, at), b.load(scratch, b.add(at, lanes))),
              b.add(b.add(readsAt(first), half), (r * options.chunk + t) * shape.rows / 2));
        }
    });
    b.loop(zero, b.index(shape.rows), lanes, [&](Value i) {
      auto row = [&](int64_t write) {
        write = std::min(write, writeCount() - 1); // beside a lone one anything may stand
        return b.load(scratch, place(first, write / group.writes(), shape.writes[write % group.writes()], i));
      };
      for (int64_t pair = 0; pair < writePairs(); ++pair) {
        Value x = row(2 * pair), y = row(2 * pair + 1);
        Value low = shuffle(x, y, [&](int64_t lane) { return lane / 2 + (lane % 2) * lanes; });
        Value high = shuffle(x, y, [&](int64_t lane) { return lanes / 2 + lane / 2 + (lane % 2) * lanes; });
        put(convert(low, high), b.add(b.add(writesAt(first), i), pair * shape.rows));
      }
    });
  });
}

SmallVector<Value> SweepPairs::operands(ArrayRef<Value> z) {
  int64_t vectors = options.vectors, lanes = b.lanes;
  Values result;
  for (int64_t pair = 0; pair < writePairs(); ++pair)
    for (int64_t x = 0; x < vectors; ++x) {
      Value first = z[2 * pair * vectors + x];
      Value second = 2 * pair + 1 < writeCount() ? z[(2 * pair + 1) * vectors + x] : b.splat(0.0);
      // Each column twice, once for each of two rows.
      for (int64_t part = 0; part < 2; ++part) {
        auto quarter = [&](int64_t n) {
          return shuffle(first, second,
                         [&](int64_t lane) { return n * lanes / 4 + lane / 4 + (lane % 2) * lanes; });
        };
        result.push_back(convert(quarter(2 * part), quarter(2 * part + 1)));
      }
    }
  return result;
}

SmallVector<Value> SweepPairs::rows(Value base, ArrayRef<Value> writes, Value writtenBy, Value reads,
                                    Value factor, Value decayRows) {
  int64_t vectors = options.vectors, lanes = b.lanes, count = group.group * group.reads() * vectors;
  Values sums(reads ? count : 0, reads ? b.splat(0.0) : Value());
  Value readRows = reads ? readsAt(reads) : Value(), writeRows = writesAt(writtenBy);
  return b.loop(b.index(0), b.index(shape.rows), 2, sums, [&](Value i, ValueRange carried) {
    Value row = b.add(base, b.scale(i, options.width())),
          decay = decayRows ? splatPair(b.add(decayRows, i)) : factor;
    Values h, next(carried);
    for (int64_t part = 0; part < 2 * vectors; ++part)
      h.push_back(b.mul(decay, b.load(scratch, b.add(row, part * lanes))));
    auto *write = writes.begin();
    for (int64_t pair = 0; pair < writePairs(); ++pair) {
      Value e = halves(splatPair(b.add(b.add(writeRows, i), pair * shape.rows)));
      for (Value &value : h)
        value = dot(value, e, *write++);
    }
    for (auto [part, value] : llvm::enumerate(h))
      b.store(value, scratch, b.add(row, part * lanes));
    if (!reads)
      return next;
    Value half = b.add(readRows, arith::DivUIOp::create(b, i, b.index(2)));
    for (int64_t x = 0; x < vectors; ++x) {
      Value columns = convert(h[2 * x], h[2 * x + 1]);
      for (int64_t t = 0; t < group.group; ++t)
        for (unsigned r = 0; r < group.reads(); ++r) {
          Value e = b.loadSplat(scratch, b.add(half, (r * options.chunk + t) * shape.rows / 2));
          Value &sum = next[(t * group.reads() + r) * vectors + x];
          sum = dot(sum, vector::BitCastOp::create(b, halfType(), e), columns);
        }
    }
    return next;
  });
}
