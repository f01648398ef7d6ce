// Readouts that are more than products: sums on decaying channels.
#include "lib/Cuda/ChunkEmitter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

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
      fragments.multiply(part, packed[from], *scores, threads.constant(block * 16),
                         threads.constant(from * 16),
                         /*byDepth=*/false);
    }
    for (int64_t e = 0; e < 8; ++e) {
      Value token = fragments.column(block * 8 + e), channel = add(first, fragments.row(e));
      part[e] = plus(multiply(part[e], load(weights, token, channel)), load(own, token, channel));
    }
  }
  set(op, ChunkValue::slab(sum.entries, n));
  return success();
}
