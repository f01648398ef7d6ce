#include "lib/Cpu/ChunkDecay.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;
using chunk::Reach;
using chunk::Span;

// Whether any user needs products between two tokens, or from a token to the end.
static bool needsPairs(Value decay) {
  return llvm::any_of(decay.getUsers(), [](Operation *user) {
    auto weights = dyn_cast<chunk::WeightsOp>(user);
    return !weights || weights.getSpan() == Span::Rest;
  });
}

ChunkDecay::ChunkDecay(ChunkBuilder &b, chunk::DecayOp op, Matrix given)
    : isLate(op.getLate()), length(given.sizes[0]) {
  if (given.sizes[1] == 1) {
    multiplyStates(b, given, needsPairs(op));
    return;
  }
  channels = given.sizes[1];
  factors = given;
  multiplyChannels(b, needsPairs(op));
}

ChunkDecay::ChunkDecay(ChunkBuilder &b, chunk::CascadeOp op, ArrayRef<Matrix> entries)
    : length(entries[0].sizes[0]), states(op.getType().getStates()) {
  multiplyStates(b, entries, needsPairs(op));
}

//===----------------------------------------------------------------------===//
// Forming the products
//===----------------------------------------------------------------------===//

// The matrix of token t times what there is of the product of earlier ones.
void ChunkDecay::multiplyStates(ChunkBuilder &b, ArrayRef<Matrix> entries, bool needsMasks) {
  SmallVector<Value> memory;
  for (const Matrix &entry : entries)
    memory.push_back(entry.isUniform() ? entry.value : b.memoryOf(entry.value));
  auto isZero = [&](Value factor) { return matchPattern(factor, m_AnyZeroFloat()); };
  auto factor = [&](int64_t i, Value t) {
    return isa<MemRefType>(memory[i].getType()) ? b.loadScalar(memory[i], t) : memory[i];
  };
  auto multiply = [&](VectorBuilder &v, int64_t to, int64_t from, Value t,
                      function_ref<Value(int64_t)> earlier, function_ref<Value(Value)> spread) {
    Value sum;
    for (int64_t k = 0; k < states; ++k) {
      if (isZero(memory[to * states + k]))
        continue;
      Value term = v.mul(spread(factor(to * states + k, t)), earlier(k * states + from));
      sum = sum ? v.sum(sum, term) : term;
    }
    return sum;
  };
  Value first = b.index(0), last = b.index(length);
  int64_t pairs = states * states;
  if (needsMasks) {
    masks = b.allocate({pairs, length + 1 + isLate, length});
    b.strips(length, [&](VectorBuilder &v, Value column) {
      SmallVector<Value> zeros(pairs, v.splat(0.0));
      for (int64_t i = 0; i < pairs; ++i)
        v.store(zeros[i], masks, {v.index(i), first, column});
      v.loop(first, b.index(length + isLate), 1, zeros, [&](Value t, ValueRange row) {
        SmallVector<Value> next;
        Value after = v.add(t, 1), factorAt = t;
        if (isLate) // the token before has decayed; of the first one nothing is there to do so
          factorAt = arith::SubIOp::create(v, arith::MaxUIOp::create(v, t, v.index(1)), v.index(1));
        for (int64_t i = 0; i < pairs; ++i) {
          Value product = multiply(
              v, i / states, i % states, factorAt, [&](int64_t k) { return row[k]; },
              [&](Value scalar) { return v.splat(scalar); });
          next.push_back(product ? product : v.splat(0.0));
        }
        // What token t itself wrote has not decayed yet.
        SmallVector<int64_t> lanes = llvm::to_vector(llvm::seq<int64_t>(0, v.lanes));
        auto indices = VectorType::get(v.lanes, v.getIndexType());
        Value own = vector::BroadcastOp::create(v, indices, arith::SubIOp::create(v, t, column));
        own = arith::CmpIOp::create(
            v, arith::CmpIPredicate::eq, own,
            arith::ConstantOp::create(v, DenseElementsAttr::get(indices, ArrayRef<int64_t>(lanes))));
        for (int64_t i = 0; i < states; ++i)
          next[i * states + i] = arith::SelectOp::create(v, own, v.splat(1.0), next[i * states + i]);
        for (int64_t i = 0; i < pairs; ++i)
          v.store(next[i], masks, {v.index(i), after, column});
        return next;
      });
    });
  }
  through = b.allocate({pairs, length + 1});
  SmallVector<Value> identity;
  for (int64_t i = 0; i < pairs; ++i) {
    identity.push_back(b.number(i / states == i % states));
    b.storeScalar(identity[i], through, {b.index(i), first});
  }
  b.loop(first, last, 1, identity, [&](Value t, ValueRange row) {
    SmallVector<Value> next;
    for (int64_t i = 0; i < pairs; ++i) {
      Value product = multiply(
          b, i / states, i % states, t, [&](int64_t k) { return row[k]; },
          [](Value scalar) { return scalar; });
      next.push_back(product ? product : b.number(0));
      b.storeScalar(next[i], through, {b.index(i), b.add(t, 1)});
    }
    return next;
  });
}

void ChunkDecay::multiplyChannels(ChunkBuilder &b, bool needsRest) {
  through = b.allocate({length + 1, channels});
  if (needsRest)
    rest = b.allocate({length, channels});
  Value memory = b.memoryOf(factors);
  Value first = b.index(0), last = b.index(length);
  b.strips(channels, [&](VectorBuilder &v, Value column) {
    Value one = v.splat(1.0);
    v.store(one, through, {first, column});
    v.loop(first, last, 1, one, [&](Value t, ValueRange product) -> SmallVector<Value> {
      Value next = v.mul(product[0], v.load(memory, {t, column}));
      v.store(next, through, {v.add(t, 1), column});
      return {next};
    });
    if (!rest)
      return;
    v.loop(first, last, 1, one, [&](Value up, ValueRange product) -> SmallVector<Value> {
      Value t = arith::SubIOp::create(v, v.index(length - 1), up);
      Value next = v.mul(product[0], v.load(memory, {t, column}));
      v.store(isLate ? next : product[0], rest, {t, column});
      return {next};
    });
  });
}

//===----------------------------------------------------------------------===//
// Using them
//===----------------------------------------------------------------------===//

Value ChunkDecay::scalarMask(ChunkBuilder &b) const {
  return b.part(masks, {0, 0, 0}, {0, length + 1, length});
}

Matrix ChunkDecay::mask(ChunkBuilder &b, Reach reach, int64_t to, int64_t from) const {
  Value memory =
      b.part(masks, {to * states + from, isLate || reach != Reach::Before, 0}, {0, length, length});
  Matrix result{b.tensorOf(memory), {0, 1}, {length, length}};
  if (reach != Reach::Strict && !(isLate && reach == Reach::Before))
    return result;
  Location loc = b.getLoc();
  return MatrixBuilder(b, loc).map(result.sizes, result, [&](ValueRange entries) -> Value {
    Value row = linalg::IndexOp::create(b, 0), column = linalg::IndexOp::create(b, 1);
    Value earlier = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, column, row);
    return arith::SelectOp::create(b, earlier, entries[0], b.number(0));
  });
}

Matrix ChunkDecay::weights(ChunkBuilder &b, Span span, int64_t to, int64_t from) const {
  int64_t pair = to * states + from, begin = span != Span::Until && !isLate;
  if (!isScalar()) {
    if (span == Span::Whole)
      return {b.tensorOf(b.part(through, {length, 0}, {0, channels})), {0}, {channels, 1}};
    return b.matrixOf(span == Span::Rest ? rest : b.part(through, {begin, 0}, {length, channels}));
  }
  if (span == Span::Whole)
    return {b.loadScalar(through, {b.index(pair), b.index(length)}), {}, {1, 1}};
  Value memory = span == Span::Rest ? b.part(masks, {pair, length + isLate, 0}, {0, 0, length})
                                    : b.part(through, {pair, begin}, {0, length});
  return {b.tensorOf(memory), {0}, {length, 1}};
}
