// Readouts that are more than products: sums on decaying channels, and a system for each token.
#include "lib/Cuda/ChunkEmitter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

//===----------------------------------------------------------------------===//
// Decaying values
//===----------------------------------------------------------------------===//

// Blocks of 16 tokens: what earlier blocks give decays over whole blocks and then over the tokens up to t.
// Within a block every product is formed as it is, by a thread for each channel.
LogicalResult ChunkEmitter::emitMix(chunk::MixOp op) {
  if (failed(emitDecayOf(op.getDecay())))
    return failure();
  FailureOr<SharedTile> scores = stagedScores(op.getScores());
  FailureOr<ChunkValue> rows = asTile(op.getValues());
  if (failed(scores) || failed(rows) || rows->transposed || rows->memory.cols > warps * 16)
    return failure();
  const Decay &decay = decays[op.getDecay()];
  int64_t n = rows->memory.cols;
  bool isBefore = op.getReach() == Reach::Before;
  SharedTile earlier = weigh(decay, &*rows, Span::Rest, /*local=*/true, /*isF32=*/false);
  SharedTile weights =
      weigh(decay, nullptr, isBefore ? Span::Until : Span::Through, /*local=*/true, /*isF32=*/true);
  SharedTile own = allocateTile(n, /*isF32=*/true);
  sync();
  forItems(n * blocks(), [&](Value item) {
    Value channel = modulo(item, n), begin = times(over(item, n), 16);
    SmallVector<Value> factors, entries;
    for (int64_t i = 0; i < 16; ++i) {
      Value token = add(begin, i), entry = load(rows->memory, token, channel);
      factors.push_back(load(decay.factors, token, channel));
      entries.push_back(rows->scale.base ? multiply(entry, rowAt(rows->scale, token)) : entry);
    }
    for (int64_t t = 0; t < 16; ++t) {
      Value sum = threads.number(0), product = threads.number(1);
      if (op.getReach() == Reach::Strict)
        product = factors[t];
      for (int64_t j = op.getReach() == Reach::Inclusive ? t : t - 1; j >= 0; --j) {
        Value score = load(*scores, add(begin, t), add(begin, j));
        sum = plus(sum, multiply(multiply(score, product), entries[j]));
        product = multiply(product, factors[j]);
      }
      store(own, add(begin, t), channel, sum);
    }
  });
  dirty = true;
  sync();
  Value first = slabRow(n);
  Fragment left = fragments.loadTransposed(earlier, first), sum = fragments.zero(tokens);
  auto packed = fragments.packed(left);
  for (int64_t block = 0; block < blocks(); ++block) {
    MutableArrayRef<Value> part = MutableArrayRef(sum.entries).slice(block * 8, 8);
    for (int64_t from = 0; from < block; ++from) {
      Value row = threads.constant((from + 1) * (blocks() + 1) + from);
      for (int64_t e = 0; from && e < 8; ++e)
        part[e] = multiply(part[e], load(decay.between, row, add(first, fragments.row(e))));
      auto right = fragments.loadRight(*scores, threads.constant(block * 16), from * 16, false);
      for (int64_t i : {0, 1})
        fragments.multiply(part.slice(4 * i, 4), packed[from], Fragments::half(right, i));
    }
    for (int64_t e = 0; e < 8; ++e) {
      Value token = fragments.column(block * 8 + e), channel = add(first, fragments.row(e));
      part[e] = plus(multiply(part[e], load(weights, token, channel)), load(own, token, channel));
    }
  }
  set(op, ChunkValue::slab(sum.entries, n));
  return success();
}

//===----------------------------------------------------------------------===//
// Conjugate gradients
//===----------------------------------------------------------------------===//

ChunkValue ChunkEmitter::dotRows(const ChunkValue &x, const ChunkValue &y) {
  int64_t slabs = padded(x.rows) / 16;
  SharedTile parts = allocate(warps, tokens, tokens, true);
  ChunkValue result = ChunkValue::column(allocateRows(tokens));
  SmallVector<Value> sums(tokens / 4, threads.number(0));
  for (size_t e = 0; e < x.entries.size(); ++e) {
    Value &sum = sums[e / 4 * 2 + e % 2];
    sum = plus(sum, multiply(x.entries[e], y.entries[e]));
  }
  for (auto [i, sum] : llvm::enumerate(sums)) {
    for (int64_t distance : {4, 8, 16})
      sum = plus(sum, shuffle(sum, distance));
    Value token = fragments.column(i / 2 * 4 + i % 2);
    threads.when(below(fragments.lane, 4), [&, sum = sum] { store(parts, fragments.warp, token, sum); });
  }
  dirty = true;
  sync();
  forItems(tokens, [&](Value local) {
    Value sum = load(parts, threads.constant(0), local);
    for (int64_t warp = 1; warp < std::min(slabs, warps); ++warp)
      sum = plus(sum, load(parts, threads.constant(warp), local));
    storeRow(result.memory, local, sum);
  });
  dirty = true;
  sync();
  return result;
}

// All tokens at once: what is a number for one system is a column here.
LogicalResult ChunkEmitter::emitConjugateGradients(chunk::ConjugateGradientsOp op) {
  FailureOr<ChunkValue> rhs = asSlab(op.getRhs());
  if (failed(rhs) || rhs->dim != 1)
    return failure();
  // What the region reads from outside is made before the loop, and lives until after it.
  Block &region = op.getProduct().front();
  SmallVector<Value> outer;
  WalkResult walked = op.getProduct().walk([&](Operation *inner) {
    for (Value operand : inner->getOperands()) {
      if (operand.getParentBlock() == &region)
        continue;
      bool isDecay = !isa<MatType>(operand.getType());
      if (isDecay ? failed(emitDecayOf(operand)) : failed(need(operand)))
        return WalkResult::interrupt();
      ++usesLeft[operand];
      outer.push_back(operand);
    }
    return WalkResult::advance();
  });
  if (walked.wasInterrupted())
    return failure();
  size_t n = rhs->entries.size();
  ChunkValue size = dotRows(*rhs, *rhs), step = ChunkValue::column(allocateRows(tokens)), ratio = step;
  ratio.memory = allocateRows(tokens);
  auto quotient = [&](const ChunkValue &num, const ChunkValue &den, const ChunkValue &to, Value at) {
    Value sum = plus(entryOf(den, at), threads.number(op.getEps().convertToDouble())),
          zero = threads.number(0);
    Value isZero = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, zero);
    storeRow(to.memory, at, choose(isZero, zero, arith::DivFOp::create(b, entryOf(num, at), sum)));
  };
  // The solution, the residual, the direction.
  SmallVector<Value> inits(n, threads.number(0));
  llvm::append_range(inits, rhs->entries);
  llvm::append_range(inits, rhs->entries);
  LogicalResult status = success();
  auto loop = threads.forLoop(threads.constant(0), threads.constant(op.getIterations()), threads.constant(1),
                              inits, [&](Value, ValueRange carried) {
                                SmallVector<Value> next(carried);
                                MutableArrayRef<Value> x = MutableArrayRef(next).take_front(n),
                                                       r = MutableArrayRef(next).slice(n, n),
                                                       p = MutableArrayRef(next).take_back(n);
                                ChunkValue direction = ChunkValue::slab(p, rhs->rows);
                                set(region.getArgument(0), direction);
                                FailureOr<ChunkValue> image = asSlab(region.getTerminator()->getOperand(0));
                                if (failed(image) || image->entries.size() != n) {
                                  status = failure();
                                  return next;
                                }
                                ChunkValue slope = dotRows(direction, *image);
                                forItems(tokens, [&](Value at) { quotient(size, slope, step, at); });
                                dirty = true;
                                sync();
                                for (size_t e = 0; e < n; ++e) {
                                  Value length = entryOf(step, fragments.column(e));
                                  x[e] = plus(x[e], multiply(length, p[e]));
                                  r[e] = arith::SubFOp::create(b, r[e], multiply(length, image->entries[e]));
                                }
                                ChunkValue residual = ChunkValue::slab(r, rhs->rows),
                                           nextSize = dotRows(residual, residual);
                                forItems(tokens, [&](Value at) {
                                  quotient(nextSize, size, ratio, at);
                                  storeRow(size.memory, at, entryOf(nextSize, at));
                                });
                                dirty = true;
                                sync();
                                for (size_t e = 0; e < n; ++e)
                                  p[e] = plus(r[e], multiply(entryOf(ratio, fragments.column(e)), p[e]));
                                for (Operation &inner : region)
                                  for (Value made : inner.getResults()) {
                                    values.erase(made);
                                    staged.erase(made);
                                  }
                                values.erase(region.getArgument(0));
                                image = slope = nextSize = ChunkValue();
                                dirty = true;
                                sync();
                                return next;
                              });
  for (Value operand : outer)
    if (--usesLeft[operand] == 0) {
      values.erase(operand);
      staged.erase(operand);
      decays.erase(operand);
    }
  set(op, ChunkValue::slab(SmallVector<Value>(loop.getResults().take_front(n)), rhs->rows));
  return status;
}
