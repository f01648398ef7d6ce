// Decayed inner products between the tokens of a chunk.
//
// A tile of the result, a few rows by `block` columns, is summed over the channels a vector at a time; the
// lanes of its sums meet at the end. With a decay for each channel the tokens before a block of rows meet it
// at its first token: their keys are kept multiplied by the factors up to there. Within a block every product
// is formed as it is. With a late decay what is written decays by its token's own factor, and a token sees
// the state before its own, whether it sees its own write or not.
#include "lib/Cpu/ChunkProducts.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;
using chunk::Reach;

namespace {
class GramEmitter {
public:
  GramEmitter(ChunkBuilder &b, Value lhs, Value rhs, Reach reach, bool isLate)
      : b(b), lhs(lhs), rhs(rhs), reach(reach), isLate(isLate), block(std::min<int64_t>(8, b.lanes)),
        tileRows(std::max<int64_t>(1, b.lanes / block)) {
    ArrayRef<int64_t> shape = cast<MemRefType>(lhs.getType()).getShape();
    length = shape[0];
    columns = shape[1];
    result = b.allocate({length, length});
  }

  // All rows; `mask` holds what each entry is multiplied by, null for none.
  void plain(Value mask) {
    blocks([&](Value top) {
      for (int64_t i = 0; i < block; i += tileRows)
        b.loop(b.index(0), b.add(top, block), block, [&](Value left) {
          tile(lhs, b.add(top, i), rhs, left, [&](VectorBuilder &v, Value entries, int64_t row) {
            Value t = v.add(top, i + row);
            entries = mask ? v.mul(entries, v.load(mask, {isBefore() && !isLate ? t : v.add(t, 1), left}))
                           : inReach(v, entries, t, left);
            v.store(entries, result, {t, left});
          });
        });
      if (mask && (reach == Reach::Strict || (isLate && isBefore())))
        for (int64_t i = 0; i < block; ++i)
          b.storeScalar(b.number(0), result, {b.add(top, i), b.add(top, i)});
    });
  }

  void decaying(Value factors) {
    Value earlier = b.allocate({length, columns}), own = b.allocate({block, columns});
    blocks([&](Value top) {
      decayRows(top, factors, own);
      for (int64_t i = 0; i < block; i += tileRows)
        b.loop(b.index(0), top, block, [&](Value left) {
          tile(own, b.index(i), earlier, left, [&](VectorBuilder &v, Value entries, int64_t row) {
            v.store(entries, result, {v.add(top, i + row), left});
          });
        });
      for (int64_t i = 0; i < block; ++i)
        withinBlock(top, i, factors);
      moveOn(top, factors, earlier);
    });
  }

  Value result;

private:
  bool isBefore() const { return reach == Reach::Before; }

  using Sink = llvm::function_ref<void(VectorBuilder &, Value entries, int64_t row)>;

  // Rows in blocks; what lies right of a block is 0.
  void blocks(function_ref<void(Value top)> body) {
    b.loop(b.index(0), b.index(length), block, [&](Value top) {
      body(top);
      VectorBuilder v(b.getLoc(), b, block);
      Value zero = v.splat(0.0);
      v.loop(v.add(top, block), v.index(length), block, [&](Value left) {
        for (int64_t i = 0; i < block; ++i)
          v.store(zero, result, {v.add(top, i), left});
      });
    });
  }

  // Sums over all channels, a vector at a time. `body` takes the first channel and how many count there.
  SmallVector<Value> overChannels(int64_t sums,
                                  function_ref<SmallVector<Value>(Value, int64_t, ValueRange)> body) {
    SmallVector<Value> carried(sums, b.splat(0.0));
    int64_t full = columns / b.lanes * b.lanes;
    if (full)
      carried = b.loop(b.index(0), b.index(full), b.lanes, carried,
                       [&](Value channel, ValueRange inner) { return body(channel, b.lanes, inner); });
    if (full < columns)
      carried = body(b.index(full), columns - full, carried);
    return carried;
  }

  Value sumLanes(ArrayRef<Value> sums) {
    return foldLanes(b, b.getLoc(), sums, [&](Value x, Value y) { return b.sum(x, y); });
  }

  void tile(Value x, Value row, Value z, Value left, Sink sink) {
    SmallVector<Value> sums = overChannels(
        tileRows * block, [&](Value channel, int64_t count, ValueRange carried) -> SmallVector<Value> {
          SmallVector<Value> next(carried), rows;
          for (int64_t i = 0; i < tileRows; ++i)
            rows.push_back(b.loadPart(x, {b.add(row, i), channel}, count));
          for (int64_t j = 0; j < block; ++j) {
            Value column = b.loadPart(z, {b.add(left, j), channel}, count);
            for (int64_t i = 0; i < tileRows; ++i)
              next[i * block + j] = b.fma(rows[i], column, next[i * block + j]);
          }
          return next;
        });
    Value all = sumLanes(sums);
    VectorBuilder v(b.getLoc(), b, block);
    for (int64_t i = 0; i < tileRows; ++i) {
      Value entries = all;
      if (tileRows > 1)
        entries = vector::ExtractStridedSliceOp::create(v, all, i * block, block, 1);
      sink(v, entries, i);
    }
  }

  // Zero where column left + lane is out of the reach of token t.
  Value inReach(VectorBuilder &v, Value entries, Value t, Value left) {
    auto indices = VectorType::get(v.lanes, v.getIndexType());
    SmallVector<int64_t> lanes = llvm::to_vector(llvm::seq<int64_t>(0, v.lanes));
    Value offsets = arith::ConstantOp::create(v, DenseElementsAttr::get(indices, ArrayRef<int64_t>(lanes)));
    Value column = arith::AddIOp::create(v, vector::BroadcastOp::create(v, indices, left), offsets);
    Value seen = arith::CmpIOp::create(
        v, reach == Reach::Inclusive ? arith::CmpIPredicate::ule : arith::CmpIPredicate::ult, column,
        vector::BroadcastOp::create(v, indices, t));
    return arith::SelectOp::create(v, seen, entries, v.splat(0.0));
  }

  // The block's rows of lhs, times the factors from its first token on.
  void decayRows(Value top, Value factors, Value own) {
    b.strips(columns, [&](VectorBuilder &v, Value channel) {
      Value product;
      for (int64_t i = 0; i < block; ++i) {
        Value row = v.load(lhs, {v.add(top, i), channel}), factor = v.load(factors, {v.add(top, i), channel});
        bool isAfter = !isLate && !isBefore();
        if (isAfter)
          product = v.mul(product, factor);
        v.store(v.mul(product, row), own, {v.index(i), channel});
        if (!isAfter)
          product = v.mul(product, factor);
      }
    });
  }

  // Row i of a block and the tokens before it there, from the nearest back.
  void withinBlock(Value top, int64_t i, Value factors) {
    Value t = b.add(top, i);
    int64_t last = reach == Reach::Inclusive ? i : i - 1;
    VectorBuilder v(b.getLoc(), b, block);
    if (last < 0)
      return v.store(v.splat(0.0), result, {t, top});
    SmallVector<Value> sums =
        overChannels(last + 1, [&](Value channel, int64_t count, ValueRange carried) -> SmallVector<Value> {
          SmallVector<Value> next(carried);
          Value x = b.loadPart(lhs, {t, channel}, count);
          auto decay = [&](Value token) { x = b.mul(x, b.loadPart(factors, {token, channel}, count)); };
          if (reach == Reach::Strict && !isLate)
            decay(t);
          for (int64_t j = last; j >= 0; --j) {
            if (isLate && j < i)
              decay(b.add(top, j));
            next[j] = b.fma(x, b.loadPart(rhs, {b.add(top, j), channel}, count), next[j]);
            if (!isLate && j > 0)
              decay(b.add(top, j));
          }
          return next;
        });
    sums.resize(block, b.splat(0.0));
    v.store(sumLanes(sums), result, {t, top});
  }

  // Brings `earlier` from the first token of this block to that of the next.
  void moveOn(Value top, Value factors, Value earlier) {
    b.strips(columns, [&](VectorBuilder &v, Value channel) {
      Value product;
      for (int64_t i = block - 1; i >= 0; --i) {
        Value t = v.add(top, i), next = v.mul(product, v.load(factors, {t, channel}));
        v.store(v.mul(isLate ? next : product, v.load(rhs, {t, channel})), earlier, {t, channel});
        product = next;
      }
      v.loop(v.index(0), top, 1,
             [&](Value j) { v.store(v.mul(product, v.load(earlier, {j, channel})), earlier, {j, channel}); });
    });
  }

  ChunkBuilder &b;
  Value lhs, rhs;
  Reach reach;
  bool isLate;
  int64_t length, columns, block, tileRows;
};
} // namespace

Value cpu::emitGram(ChunkBuilder &b, const Matrix &lhs, const Matrix &rhs, const ChunkDecay *decay,
                    Reach reach) {
  GramEmitter gram(b, b.memoryOf(lhs), b.memoryOf(rhs), reach, decay && decay->isLate);
  if (decay && !decay->isScalar())
    gram.decaying(b.memoryOf(decay->factors));
  else
    gram.plain(decay ? decay->scalarMask(b) : Value());
  return gram.result;
}
