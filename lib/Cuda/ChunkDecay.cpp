// Products of decays over stretches of a chunk.
//
// Numbers with logarithms: sums, of which differences are exponentiated. Numbers without, and coupled states:
// running products. A decay with channels: running products within 16 tokens, and products of whole blocks of
// 16, so that what is multiplied is never larger than the factors themselves, which may be 0 or negative.
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/Count.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

// Sums of logarithms have too few digits for f32.
bool ChunkEmitter::readsLog(chunk::DecayOp op) {
  return op.getLog() && isOne(matType(op.getFactors()).getCols()) && fragments.precision != Precision::Split;
}

LogicalResult ChunkEmitter::emitDecay(chunk::DecayOp op) {
  if (!isOne(matType(op.getFactors()).getCols()))
    return emitChannels(op);
  return readsLog(op) ? emitLogs(op) : emitProducts(op, op.getFactors());
}

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

LogicalResult ChunkEmitter::emitLogs(chunk::DecayOp op) {
  FailureOr<ChunkValue> log = need(op.getLog());
  if (failed(log))
    return failure();
  SharedTile sums = allocateRows(tokens + 1);
  sync();
  // One warp, two tokens a lane. A factor of 0 counts as one of 2^-200.
  threads.when(equal(fragments.warp, 0), [&] {
    Value twice = times(fragments.lane, 2);
    Value pair[2];
    for (int64_t i : {0, 1}) {
      Value at = add(twice, i), exists = isValid(at);
      if (tokens < 64)
        exists = arith::AndIOp::create(b, exists, below(at, tokens));
      Value entry = multiply(entryOf(*log, modulo(at, tokens)), threads.number(llvm::numbers::log2e));
      entry = arith::MaximumFOp::create(b, entry, threads.number(-200));
      pair[i] = choose(exists, entry, threads.number(0));
    }
    Value both = plus(pair[0], pair[1]), sum = both;
    for (int64_t distance = 1; distance < 32; distance *= 2) {
      Value other =
          NVVM::ShflOp::create(b, b.getF32Type(), threads.constant(-1), sum, threads.constant(distance),
                               threads.constant(0), NVVM::ShflKind::up, UnitAttr());
      Value exists =
          arith::CmpIOp::create(b, arith::CmpIPredicate::uge, fragments.lane, threads.constant(distance));
      sum = choose(exists, plus(sum, other), sum);
    }
    threads.when(tokens < 64 ? below(twice, tokens) : Value(), [&] {
      storeRow(sums, add(twice, 1), plus(arith::SubFOp::create(b, sum, both), pair[0]));
      storeRow(sums, add(twice, 2), sum);
    });
    threads.when(equal(fragments.lane, 0), [&] { storeRow(sums, threads.constant(0), threads.number(0)); });
  });
  dirty = true;
  decays[op].sums = sums;
  decays[op].isLate = op.getLate();
  return success();
}

// A thread for each token t multiplies a row of the matrix of states from t back to the first token.
LogicalResult ChunkEmitter::emitProducts(Value decay, ValueRange factors) {
  SmallVector<ChunkValue> entries;
  for (Value factor : factors) {
    FailureOr<ChunkValue> entry = need(factor);
    if (failed(entry))
      return failure();
    entries.push_back(*entry);
  }
  int64_t states = 1;
  while (states * states < int64_t(entries.size()))
    ++states;
  Decay known;
  known.isLate = chunk::isLate(decay);
  for (Operation *user : decay.getUsers()) {
    if (auto mask = dyn_cast<chunk::MaskOp>(user))
      known.masks[{mask.getTo(), mask.getFrom()}];
    if (isa<chunk::GramOp>(user))
      known.masks[{0, 0}];
    if (auto weights = dyn_cast<chunk::WeightsOp>(user))
      (weights.getSpan() == Span::Rest ? known.rest : known.through)[{weights.getTo(), weights.getFrom()}];
  }
  for (auto &mask : known.masks)
    mask.second = allocate(tokens, tokens, tokens + 1, true);
  for (auto *rows : {&known.through, &known.rest})
    for (auto &row : *rows)
      row.second = allocateRows(tokens);
  sync();
  int64_t groups = warps * 32 / tokens;
  Value group = over(threads.threadIndex(), tokens), t = modulo(threads.threadIndex(), tokens);
  for (int64_t to = 0; to < states; ++to)
    threads.when(equal(group, to % groups), [&] {
      auto forPairs = [&](llvm::DenseMap<std::pair<int64_t, int64_t>, SharedTile> &tiles,
                          llvm::function_ref<void(const SharedTile &, int64_t)> body) {
        for (auto &tile : tiles)
          if (tile.first.first == to)
            body(tile.second, tile.first.second);
      };
      SmallVector<Value> row;
      for (int64_t from = 0; from < states; ++from)
        row.push_back(threads.number(from == to));
      Value isLast = equal(t, tokens - 1);
      if (known.isLate) // own writes have not decayed
        forPairs(known.masks, [&](const SharedTile &mask, int64_t from) { store(mask, t, t, row[from]); });
      auto loop = threads.forLoop(
          threads.constant(0), add(t, 1), threads.constant(1), row, [&](Value back, ValueRange product) {
            Value j = arith::SubIOp::create(b, t, back), exists = isValid(j);
            SmallVector<Value> next;
            // What is known at step j, late: to the token after this one, and to the end, by the next.
            auto put = [&](ValueRange entries, Value to) {
              forPairs(known.masks,
                       [&](const SharedTile &mask, int64_t from) { store(mask, to, j, entries[from]); });
            };
            auto putRest = [&](ValueRange entries) {
              threads.when(isLast, [&] {
                forPairs(known.rest,
                         [&](const SharedTile &rest, int64_t from) { storeRow(rest, j, entries[from]); });
              });
            };
            if (!known.isLate) {
              put(product, t);
              putRest(product);
            }
            for (int64_t from = 0; from < states; ++from) {
              Value sum;
              for (int64_t k = 0; k < states; ++k) {
                Value term = multiply(product[k], entryOf(entries[k * states + from], j));
                sum = sum ? plus(sum, term) : term;
              }
              next.push_back(choose(exists, sum, product[from]));
            }
            if (known.isLate) {
              threads.when(below(t, tokens - 1), [&] { put(next, add(t, 1)); });
              putRest(next);
            }
            return next;
          });
      describeTrips(loop, tokens / 2);
      forPairs(known.through,
               [&](const SharedTile &through, int64_t from) { storeRow(through, t, loop.getResult(from)); });
    });
  dirty = true;
  decays[decay] = std::move(known);
  return success();
}

LogicalResult ChunkEmitter::emitWeights(chunk::WeightsOp op) {
  if (failed(emitDecayOf(op.getDecay())))
    return failure();
  Decay &decay = decays[op.getDecay()];
  Span span = op.getSpan();
  if (decay.factors.base) {
    if (span != Span::Whole) { // multiplied with rows where they are used
      ChunkValue weights{ChunkValue::Weights, {}, decay.factors, decay.between, false, 0, 0};
      set(op, weights);
      return success();
    }
    SharedTile row = decay.between;
    row.rows = 1;
    bool wasWritten = written.contains(row.base);
    row.base = fragments.address(row, threads.constant(blocks() * (blocks() + 1)), threads.constant(0));
    if (wasWritten)
      written.insert(row.base);
    set(op, ChunkValue::column(row));
    return success();
  }
  sync();
  std::pair<int64_t, int64_t> pair(op.getTo(), op.getFrom());
  if (decay.sums.base) {
    // Of a late decay what is behind a token's writes is before its own.
    auto at = [&](Value token, int64_t more) {
      return rowAt(decay.sums, add(token, decay.isLate ? 0 : more));
    };
    Value end = rowAt(decay.sums, threads.constant(tokens));
    if (span == Span::Whole) {
      set(op, ChunkValue::scalar(fragments.exp2(end)));
      return success();
    }
    ChunkValue rows = ChunkValue::column(allocateRows(tokens));
    forItems(tokens, [&](Value local) {
      Value exponent = span == Span::Through ? at(local, 1)
                       : span == Span::Until ? at(local, 0)
                                             : arith::SubFOp::create(b, end, at(local, 1)).getResult();
      storeRow(rows.memory, local, fragments.exp2(exponent));
    });
    dirty = true;
    set(op, rows);
  } else if (span == Span::Whole) {
    set(op, ChunkValue::scalar(rowAt(decay.through[pair], threads.constant(tokens - 1))));
  } else if (span == Span::Until || (decay.isLate && span == Span::Through)) {
    ChunkValue rows = ChunkValue::column(allocateRows(tokens));
    SharedTile through = decay.through[pair];
    forItems(tokens, [&](Value local) {
      Value isFirst = equal(local, 0), before = add(local, -1);
      Value entry = rowAt(through, choose(isFirst, local, before));
      storeRow(rows.memory, local, choose(isFirst, threads.number(pair.first == pair.second), entry));
    });
    dirty = true;
    set(op, rows);
  } else {
    set(op, ChunkValue::column(span == Span::Rest ? decay.rest[pair] : decay.through[pair]));
  }
  return success();
}

LogicalResult ChunkEmitter::emitDecayOf(Value decay) {
  return decays.count(decay) ? success() : emitOp(decay.getDefiningOp());
}

Value ChunkEmitter::scoreWeight(Value decay, Reach reach, int64_t to, int64_t from, Value t, Value j) {
  Decay &known = decays[decay];
  bool isBefore = reach == Reach::Before;
  if (known.sums.base)
    return fragments.exp2(arith::SubFOp::create(b,
                                                rowAt(known.sums, isBefore || known.isLate ? t : add(t, 1)),
                                                rowAt(known.sums, known.isLate ? j : add(j, 1))));
  Value row = isBefore && !known.isLate ? choose(equal(t, 0), t, add(t, -1)) : t;
  return load(known.masks[{to, from}], row, arith::MinSIOp::create(b, j, row)); // what is past will be masked
}

LogicalResult ChunkEmitter::emitMask(chunk::MaskOp op) {
  if (failed(emitDecayOf(op.getDecay())))
    return failure();
  sync();
  SmallVector<Value> entries;
  for (int64_t e = 0; e < scoreColumns / 2; ++e) {
    Value t = scoreRow(e), j = scoreColumn(e);
    Value weight = scoreWeight(op.getDecay(), op.getReach(), op.getTo(), op.getFrom(), t, j);
    entries.push_back(maskScore(weight, t, j, op.getReach()));
  }
  set(op, ChunkValue::scores(entries));
  return success();
}

//===----------------------------------------------------------------------===//
// Channels
//===----------------------------------------------------------------------===//

// `between` holds for blocks I and J, from row I * (blocks + 1) + J + 1 on, the product over the blocks after
// J and before I; J = -1 begins at the first block, I = blocks ends with the last.
LogicalResult ChunkEmitter::emitChannels(chunk::DecayOp op) {
  int64_t n = cast<IntegerAttr>(matType(op.getFactors()).getCols()).getInt();
  FailureOr<ChunkValue> factors = need(op.getFactors());
  if (failed(factors) || factors->transposed)
    return failure();
  bool isOwn = factors->kind == ChunkValue::Tile && factors->memory.isF32 && usesLeft[op.getFactors()] == 1;
  Decay decay;
  decay.isLate = op.getLate();
  decay.factors = isOwn ? factors->memory : allocateTile(n, true);
  sync();
  forTokens([&](Value local, Value, Value valid) {
    for (int64_t e = 0; e < tokenGrid.owned(n, 1); ++e)
      threads.when(tokenThreads.valid(1, n, e), [&] {
        Value col = tokenThreads.index(1, n, e), entry = threads.number(1);
        auto put = [&] { store(decay.factors, local, col, entry); };
        if (isOwn)
          return threads.when(arith::XOrIOp::create(b, valid, threads.constant(1, 1)), put);
        Value known = factors->kind == ChunkValue::Tile   ? load(factors->memory, local, col)
                      : factors->kind == ChunkValue::Rows ? entryOf(*factors, factors->dim ? col : local)
                                                          : factors->entries[0];
        if (factors->scale.base)
          known = multiply(known, rowAt(factors->scale, local));
        entry = choose(valid, known, entry);
        put();
      });
  });
  int64_t width = padded(n), rows = (blocks() + 1) * (blocks() + 1);
  decay.between = allocate(rows, n, width, true);
  dirty = true;
  sync();
  forItems(width, [&](Value channel) {
    SmallVector<Value> totals;
    for (int64_t t = 0; t < tokens; ++t) {
      Value factor = load(decay.factors, threads.constant(t), channel);
      if (t % 16 == 0)
        totals.push_back(factor);
      else
        totals.back() = multiply(totals.back(), factor);
    }
    for (int64_t j = -1; j < blocks(); ++j) {
      Value product = threads.number(1);
      for (int64_t i = 0; i <= blocks(); ++i) {
        store(decay.between, threads.constant(i * (blocks() + 1) + j + 1), channel, product);
        if (i > j && i < blocks())
          product = multiply(product, totals[i]);
      }
    }
  });
  dirty = true;
  decays[op] = std::move(decay);
  return success();
}

SharedTile ChunkEmitter::weigh(const Decay &decay, const ChunkValue *source, Span span, bool local,
                               bool isF32) {
  int64_t n = decay.factors.cols, pairs = padded(n) / 2;
  SharedTile result = allocate(tokens, n, padded(n) + 8, isF32);
  sync();
  bool isRest = span == Span::Rest;
  forItems(pairs * blocks(), [&](Value item) {
    Value col = times(modulo(item, pairs), 2), block = over(item, pairs), begin = times(block, 16);
    std::array<Value, 2> product{threads.number(1), threads.number(1)};
    if (!local) {
      Value row = isRest ? add(block, blocks() * (blocks() + 1) + 1) : times(block, blocks() + 1);
      product = loadPair(decay.between, row, col);
    }
    for (int64_t step = 0; step < 16; ++step) {
      Value t = add(begin, isRest ? 15 - step : step);
      std::array<Value, 2> factor = loadPair(decay.factors, t, col), weight = product;
      for (int64_t i : {0, 1}) {
        product[i] = multiply(product[i], factor[i]);
        if (span == (decay.isLate ? Span::Rest : Span::Through))
          weight[i] = product[i];
      }
      if (source) {
        std::array<Value, 2> entry = loadPair(source->memory, t, col);
        for (int64_t i : {0, 1}) {
          weight[i] = multiply(weight[i], entry[i]);
          if (source->scale.base)
            weight[i] = multiply(weight[i], rowAt(source->scale, t));
        }
      }
      storePair(result, t, col, weight[0], weight[1]);
    }
  });
  dirty = true;
  return result;
}
