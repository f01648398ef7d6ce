// Products between the tokens of a chunk.
//
// With a decay for each channel the rows of a block of 16 tokens meet the columns of earlier blocks at the
// block's first token: rows times the factors from there on, columns times those up to the end of their own
// block and of all between. Within a block every product is formed as it is.
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/Count.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

Value ChunkEmitter::scoreBlock() { return modulo(fragments.warp, blocks()); }
Value ChunkEmitter::scorePart() { return modulo(over(fragments.warp, blocks()), scoreParts); }
Value ChunkEmitter::isScoreOwner() {
  return blocks() * scoreParts < warps ? below(fragments.warp, blocks() * scoreParts) : Value();
}
Value ChunkEmitter::scoreRow(int64_t entry) { return add(times(scoreBlock(), 16), fragments.row(entry)); }
Value ChunkEmitter::scoreColumn(int64_t entry) {
  return add(times(scorePart(), scoreColumns), fragments.column(entry));
}

Value ChunkEmitter::maskScore(Value entry, Value t, Value j, Reach reach) {
  auto order = reach == Reach::Inclusive ? arith::CmpIPredicate::ule : arith::CmpIPredicate::ult;
  return choose(arith::CmpIOp::create(b, order, j, t), entry, threads.number(0));
}

// The inner products of all rows, for the warp's part of the scores.
SmallVector<Value> ChunkEmitter::multiplyRows(const ChunkValue &lhs, const ChunkValue &rhs) {
  Value block = times(scoreBlock(), 16), part = times(scorePart(), scoreColumns);
  Fragment sum = fragments.zero(scoreColumns);
  fragments.forDepth(padded(lhs.memory.cols), {}, sum.entries,
                     [&](Value depth, ValueRange, MutableArrayRef<Value> sums) {
                       auto left = fragments.loadLeft(lhs.memory, block, depth);
                       for (int64_t col = 0; col < scoreColumns; col += 16)
                         fragments.multiply(sums.slice(col / 2, 8), left, rhs.memory, add(part, col), depth,
                                            /*byDepth=*/false);
                     });
  for (auto [e, entry] : llvm::enumerate(sum.entries)) {
    if (lhs.scale.base)
      entry = multiply(entry, rowAt(lhs.scale, scoreRow(e)));
    if (rhs.scale.base)
      entry = multiply(entry, rowAt(rhs.scale, scoreColumn(e)));
  }
  return sum.entries;
}

SmallVector<Value> ChunkEmitter::multiplyDecaying(const ChunkValue &lhs, const ChunkValue &rhs,
                                                  const Decay &decay, Reach reach) {
  SharedTile rows =
      weigh(decay, &lhs, reach == Reach::Before ? Span::Until : Span::Through, /*local=*/true, false);
  SharedTile columns = weigh(decay, &rhs, Span::Rest, /*local=*/true, false);
  SharedTile diagonal = emitDiagonal(lhs, rhs, decay, reach);
  sync();
  Value block = scoreBlock(), part = times(scorePart(), scoreColumns / 16);
  Value pair = times(modulo(fragments.lane, 4), 2);
  Fragment sum = fragments.zero(scoreColumns);
  auto weighLeft = [&](ValueRange left, Value row, Value depth) {
    SmallVector<Value> weighed(left);
    for (int64_t half : {0, 1}) {
      std::array<Value, 2> weight = loadPair(decay.between, row, add(add(pair, depth), 8 * half));
      if (rows.isF32) {
        for (int64_t i = 0; i < 4; ++i)
          weighed[4 * half + i] = multiply(left[4 * half + i], weight[i / 2]);
        continue;
      }
      for (Value &both : MutableArrayRef(weighed).slice(2 * half, 2)) {
        std::array<Value, 2> entries = fragments.unpack(both);
        both = fragments.pack(multiply(entries[0], weight[0]), multiply(entries[1], weight[1]));
      }
    }
    return weighed;
  };
  fragments.forDepth(padded(rows.cols), {}, sum.entries,
                     [&](Value depth, ValueRange, MutableArrayRef<Value> sums) {
                       auto left = fragments.loadLeft(rows, times(block, 16), depth);
                       for (int64_t col = 0; col < scoreColumns; col += 16) {
                         Value column = add(part, col / 16);
                         Value row = add(add(times(block, blocks() + 1), column), 1);
                         fragments.multiply(sums.slice(col / 2, 8), weighLeft(left, row, depth), columns,
                                            times(column, 16), depth, /*byDepth=*/false);
                       }
                     });
  for (int64_t col = 0; col < scoreColumns; col += 16) {
    Value isDiagonal = equal(add(part, col / 16), block);
    for (int64_t e = col / 2; e < col / 2 + 8; ++e)
      sum.entries[e] =
          choose(isDiagonal, load(diagonal, scoreRow(e), fragments.column(e - col / 2)), sum.entries[e]);
  }
  return sum.entries;
}

// A thread's part of a row, one of eight.
SmallVector<Value> ChunkEmitter::loadRow(const SharedTile &tile, Value row) {
  int64_t n = tile.cols, packet = tokenGrid.packet(n, 1);
  Type element = tile.isF32 ? b.getF32Type() : fragments.narrow();
  SmallVector<Value> entries;
  for (int64_t e = 0; e < tokenGrid.owned(n, 1); e += packet) {
    Value col = tokenThreads.index(1, n, e), exists = tokenThreads.valid(1, n, e);
    if (exists)
      col = choose(exists, col, threads.constant(0));
    // Padding belongs to the row, too.
    Value all = LLVM::LoadOp::create(b, VectorType::get(packet, element), fragments.address(tile, row, col),
                                     packet * (tile.isF32 ? 4 : 2));
    for (int64_t i = 0; i < packet; ++i) {
      Value entry = LLVM::ExtractElementOp::create(b, all, threads.constant(i));
      if (!tile.isF32)
        entry = arith::ExtFOp::create(b, b.getF32Type(), entry);
      entries.push_back(exists ? choose(exists, entry, threads.number(0)) : entry);
    }
  }
  return entries;
}

// Row t holds the products with the tokens of its own block of 16: from t back, the rows of lhs times one
// factor more each time. Some threads, mostly eight, share a token's channels.
SharedTile ChunkEmitter::emitDiagonal(const ChunkValue &lhs, const ChunkValue &rhs, const Decay &decay,
                                      Reach reach) {
  SharedTile result = allocate(tokens, 16, 20, true);
  forItems(tokens * 16,
           [&](Value item) { store(result, over(item, 16), modulo(item, 16), threads.number(0)); });
  dirty = true;
  sync();
  forTokens([&](Value local, Value, Value) {
    Value place = modulo(local, 16), begin = arith::SubIOp::create(b, local, place);
    SmallVector<Value> row = loadRow(lhs.memory, local);
    if (lhs.scale.base)
      for (Value &entry : row)
        entry = multiply(entry, rowAt(lhs.scale, local));
    if (reach == Reach::Strict && !decay.isLate)
      for (auto [entry, factor] : llvm::zip(row, loadRow(decay.factors, local)))
        entry = multiply(entry, factor);
    // The tokens of a warp take as many steps as the last of them.
    Value others = threads.constant(32 / tokenGrid.lanes - 1);
    Value steps = add(arith::OrIOp::create(b, place, others), 1);
    auto loop = threads.forLoop(
        threads.constant(reach != Reach::Inclusive), steps, threads.constant(1), row,
        [&](Value back, ValueRange product) {
          Value isPast = arith::CmpIOp::create(b, arith::CmpIPredicate::ugt, back, place);
          Value column = choose(isPast, threads.constant(0), arith::SubIOp::create(b, place, back));
          Value token = add(begin, column);
          SmallVector<Value> seen(product), next;
          auto decayMore = [&] {
            for (auto [x, factor] : llvm::zip(product, loadRow(decay.factors, token)))
              next.push_back(multiply(x, factor));
          };
          // Late, what a token writes decays by its own factor, but not for itself.
          if (decay.isLate) {
            decayMore();
            for (auto [x, own] : llvm::zip(next, product))
              x = choose(equal(back, 0), own, x);
            seen = next;
          }
          SmallVector<Value, 4> sums(4, threads.number(0)); // one after the other would wait for itself
          for (auto [i, y] : llvm::enumerate(loadRow(rhs.memory, token)))
            sums[i % 4] = plus(sums[i % 4], multiply(seen[i], y));
          Value sum = plus(plus(sums[0], sums[1]), plus(sums[2], sums[3]));
          tokenThreads.allReduce(sum, 1, Reduction::Sum);
          if (rhs.scale.base)
            sum = multiply(sum, rowAt(rhs.scale, token));
          Value isWriter = arith::AndIOp::create(b, equal(tokenThreads.coordinate(1), 0),
                                                 arith::XOrIOp::create(b, isPast, threads.constant(1, 1)));
          threads.when(isWriter, [&] { store(result, local, column, sum); });
          if (!decay.isLate)
            decayMore();
          return next;
        });
    describeTrips(loop, 10); // on average
  });
  dirty = true;
  return result;
}

SmallVector<Value> ChunkEmitter::weighScores(chunk::GramOp op) {
  SmallVector<Value> weights;
  for (int64_t e = 0; e < scoreColumns / 2; ++e) {
    Value t = scoreRow(e), j = scoreColumn(e), weight = threads.number(1);
    if (op.getDecay())
      weight = scoreWeight(op.getDecay(), op.getReach(), 0, 0, t, j);
    weights.push_back(maskScore(weight, t, j, op.getReach()));
  }
  return weights;
}

LogicalResult ChunkEmitter::emitGram(chunk::GramOp op) {
  if (op.getDecay() && failed(emitDecayOf(op.getDecay())))
    return failure();
  bool areNumbers = isOne(matType(op.getLhs()).getCols());
  auto rowsOf = [&](Value value) { return areNumbers ? need(value) : asTile(value); };
  FailureOr<ChunkValue> lhs = rowsOf(op.getLhs()), rhs = rowsOf(op.getRhs());
  if (failed(lhs) || failed(rhs) || lhs->transposed || rhs->transposed)
    return failure();
  op.getDecay() ? sync() : syncFor({*lhs, *rhs});
  Decay *decay = op.getDecay() ? &decays[op.getDecay()] : nullptr;
  bool hasChannels = decay && decay->factors.base;
  SmallVector<Value> entries;
  for (int64_t e = 0; areNumbers && e < scoreColumns / 2; ++e)
    entries.push_back(multiply(entryOf(*lhs, scoreRow(e)), entryOf(*rhs, scoreColumn(e))));
  if (!areNumbers)
    entries = hasChannels ? multiplyDecaying(*lhs, *rhs, *decay, op.getReach()) : multiplyRows(*lhs, *rhs);
  auto weights = weightsAhead.find(op);
  for (auto [e, entry] : llvm::enumerate(entries)) {
    if (weights != weightsAhead.end()) {
      entry = multiply(entry, weights->second[e]);
      continue;
    }
    Value t = scoreRow(e), j = scoreColumn(e);
    if (decay && !hasChannels)
      entry = multiply(entry, scoreWeight(op.getDecay(), op.getReach(), 0, 0, t, j));
    entry = maskScore(entry, t, j, op.getReach());
  }
  set(op, ChunkValue::scores(entries));
  return success();
}

SharedTile ChunkEmitter::stage(const ChunkValue &scores, bool negatedF32) {
  SharedTile tile = allocate(tokens, tokens, tokens + 8, negatedF32);
  threads.when(isScoreOwner(), [&] {
    for (size_t e = 0; e < scores.entries.size(); e += 2) {
      Value low = scores.entries[e], high = scores.entries[e + 1];
      if (negatedF32) {
        low = arith::NegFOp::create(b, low);
        high = arith::NegFOp::create(b, high);
      }
      storePair(tile, scoreRow(e), scoreColumn(e), low, high);
    }
  });
  dirty = true;
  return tile;
}

FailureOr<SharedTile> ChunkEmitter::stagedScores(Value scores) {
  auto it = staged.find(scores);
  if (it != staged.end())
    return it->second;
  FailureOr<ChunkValue> value = need(scores);
  if (failed(value) || value->kind != ChunkValue::Scores)
    return failure();
  SharedTile tile = stage(*value, /*negatedF32=*/false);
  staged[scores] = tile;
  return tile;
}
