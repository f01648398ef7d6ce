// What the warps of a projected scan have in shared memory: tiles of vectors, and matrices.
#include "lib/Cuda/ProjectedScan.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Entries that are copied together: as many as memory is known to have in a row at a multiple of their size.
constexpr int64_t together = 4, depthOfStep = 16, bytesOfLane = 16, bytesOfStep = 32 * bytesOfLane;

ProjectedScan::Rows ProjectedScan::rowsOf(int64_t entries, FloatType element) {
  int64_t entryBytes = element.getWidth() / 8;
  return {0, int64_t(llvm::alignTo(entries * entryBytes, 32)) + 16, entryBytes, element};
}

// Finds a place for all of it.
bool ProjectedScan::layOut(int64_t sharedLimit) {
  forFetches([&](unsigned i, Axis) {
    const TensorArgument &tensor = tensors[i];
    if (tensor.entry().isScalar() || ringed.contains(i))
      return;
    Rows rows = rowsOf(tensor.entry().numElements(), tensor.element);
    rows.at = ringBytes;
    ringBytes += rows.bytes(shape);
    ringed[i] = rows;
  });
  rowsEnd = shape.places * ringBytes;
  for (auto op : rule.getBody().getOps<MatmulOp>()) {
    if (!isDense(op) || !isWanted(op))
      continue;
    ParamProduct product = *paramProductOf(op, tensors);
    auto *input = llvm::find_if(tensors, [&](const auto &t) { return t.argument == product.vector; });
    bool isThere = input != tensors.end() && input->element == product.element;
    if (!isThere && !handed.contains(product.vector)) {
      Rows rows = rowsOf(product.depth, product.element);
      rows.at = rowsEnd;
      rowsEnd += rows.bytes(shape);
      handed[product.vector] = rows;
    }
    if (llvm::any_of(weights, [&](const Weights &known) { return known.of.hasMatrixOf(product); }))
      continue;
    Weights own{product, shape.grid.owned(product.rows, 1) / 2,
                int64_t(llvm::divideCeil(product.depth, depthOfStep))};
    weights.push_back(own);
  }
  rowsEnd = llvm::alignTo(rowsEnd, bytesOfLane);
  rowsBegin = rowsEnd;
  for (Weights &own : weights)
    if (!shape.inRegisters) {
      own.at = rowsBegin;
      rowsBegin += entry.threads / 32 * own.tiles * own.steps * bytesOfStep;
    }
  std::swap(rowsBegin, rowsEnd); // matrices follow
  return rowsEnd <= sharedLimit;
}

// Nothing but zeros behind the vectors' entries, and where no token was yet.
void ProjectedScan::clearRows() {
  Value base = threads.sharedAt(0);
  Value zero = LLVM::ZeroOp::create(b, VectorType::get(4, b.getI32Type()));
  Value first = arith::MulIOp::create(b, threads.threadIndex(), threads.constant(bytesOfLane));
  threads.forLoop(first, threads.constant(rowsBegin), threads.constant(entry.threads * bytesOfLane), {},
                  [&](Value at, ValueRange) -> SmallVector<Value> {
                    Value to = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{at});
                    LLVM::StoreOp::create(b, zero, to, bytesOfLane);
                    return {};
                  });
}

// Asks for the vectors of a tile's tokens. Those past the end are the last one's.
void ProjectedScan::ask(TensorAccess &access, Value first, Value place) {
  Ptx ptx(b);
  Value last = arith::SubIOp::create(b, arith::SubIOp::create(b, tokens, i64(1)), first);
  Value start = arith::MulIOp::create(b, place, threads.constant(ringBytes));
  forFetches([&](unsigned i, Axis) {
    auto own = ringed.find(i);
    if (own == ringed.end())
      return;
    const Rows &rows = own->second;
    int64_t bytes = together * rows.entryBytes, perToken = tensors[i].entry().numElements() / together,
            all = perToken * shape.tokens();
    Value base = access.entryOfToken(i, first, threads.constant(0));
    Value to = LLVM::PtrToIntOp::create(b, b.getI32Type(), threads.sharedAt(rows.at));
    to = arith::AddIOp::create(b, to, start);
    for (int64_t more = 0; more < all; more += entry.threads) {
      Value packet = arith::AddIOp::create(b, threads.threadIndex(), threads.constant(more));
      auto copy = [&] {
        Value token = arith::DivUIOp::create(b, packet, threads.constant(perToken));
        Value within = arith::RemUIOp::create(b, packet, threads.constant(perToken));
        Value run = arith::DivUIOp::create(b, token, threads.constant(shape.run));
        Value at = arith::MulIOp::create(b, token, threads.constant(rows.pitch));
        Value skew = arith::MulIOp::create(b, run, threads.constant(rows.ofRun(0)));
        at = arith::AddIOp::create(b, arith::AddIOp::create(b, at, skew),
                                   arith::MulIOp::create(b, within, threads.constant(bytes)));
        Value there = arith::MinSIOp::create(b, arith::ExtUIOp::create(b, b.getI64Type(), token), last);
        Value offset = arith::MulIOp::create(b, there, access.word(i, TensorAccess::Token));
        Value entry = arith::MulIOp::create(b, within, threads.constant(together));
        offset = arith::AddIOp::create(b, offset, arith::ExtUIOp::create(b, b.getI64Type(), entry));
        Value from = LLVM::GEPOp::create(b, base.getType(), tensors[i].element, base, ValueRange{offset});
        ptx.copyPacket(arith::AddIOp::create(b, to, at), 0, from, bytes);
      };
      if (more + entry.threads <= all)
        copy();
      else
        threads.when(arith::CmpIOp::create(b, arith::CmpIPredicate::ult, packet, threads.constant(all)),
                     copy);
    }
  });
  ptx.commitPackets();
}

// The address of an entry of a token of the thread's run.
Value ProjectedScan::ownRow(Value base, const Rows &rows, int64_t token, Value entry) {
  Value at = arith::MulIOp::create(b, turn, threads.constant(rows.ofRun(shape.run)));
  at = arith::AddIOp::create(b, at, arith::MulIOp::create(b, entry, threads.constant(rows.entryBytes)));
  base = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{at});
  return LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base,
                             ArrayRef<LLVM::GEPArg>{int32_t(rows.at + token * rows.pitch)});
}

// The thread's entries of its tokens.
void ProjectedScan::take(TensorAccess &access, Tokens tokens, Value place) {
  Value base = threads.sharedAt(0);
  Value start = arith::MulIOp::create(b, place, threads.constant(ringBytes));
  base = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{start});
  forFetches([&](unsigned i, Axis axis) {
    auto own = ringed.find(i);
    if (own == ringed.end())
      return;
    int64_t entries = tensors[i].entry().numElements();
    int64_t width = access.bytesOfPacket(i, axis) / own->second.entryBytes;
    SmallVector<Value> places; // what does not exist is read from the first one
    for (int64_t e = 0; e < threads.grid.owned(entries, axis); e += width) {
      Value at = threads.index(axis, entries, e);
      if (Value exists = threads.valid(axis, entries, e))
        at = arith::SelectOp::create(b, exists, at, threads.constant(0));
      places.push_back(at);
    }
    for (auto [t, token] : llvm::enumerate(tokens)) {
      SmallVector<Value> packets;
      for (Value at : places)
        packets.push_back(LLVM::LoadOp::create(
            b, access.packetType(i, axis), ownRow(base, own->second, t, at), access.bytesOfPacket(i, axis)));
      token.set(tensors[i].argument, access.unpack(i, axis, packets));
    }
  });
}

// What a lane reads of 16 rows and 16 of depth: pairs of entries, of its two rows in turn.
Values ProjectedScan::loadWeight(TensorAccess &access, const Weights &weights, int64_t tile, Value step) {
  const ParamProduct &product = weights.of;
  Value depth = arith::AddIOp::create(b, arith::MulIOp::create(b, step, threads.constant(depthOfStep)),
                                      arith::MulIOp::create(b, turn, threads.constant(2)));
  Type pair = VectorType::get(2, Type(product.element));
  Value none = arith::ConstantOp::create(b, b.getFloatAttr(product.element, 0));
  bool inPairs = !product.isTransposed && product.depth % together == 0;
  Values words;
  for (int64_t half : {0, 8})
    for (int64_t i : {0, 1}) {
      Value row = threads.index(1, product.rows, 2 * tile + i);
      Value isRow = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, row, threads.constant(product.rows));
      auto read = [&](Type type, int64_t more, int64_t bytes) -> Value {
        Value at = arith::AddIOp::create(b, depth, threads.constant(half + more));
        Value exists = arith::AndIOp::create(
            b, isRow,
            arith::CmpIOp::create(b, arith::CmpIPredicate::ult, at, threads.constant(product.depth)));
        Value r = arith::SelectOp::create(b, exists, row, threads.constant(0));
        Value c = arith::SelectOp::create(b, exists, at, threads.constant(0));
        if (product.isTransposed)
          std::swap(r, c);
        Value found = LLVM::LoadOp::create(b, type, access.entry(product.tensor, r, c), bytes);
        Value otherwise = type == pair ? LLVM::ZeroOp::create(b, pair).getResult() : none;
        return arith::SelectOp::create(b, exists, found, otherwise);
      };
      Value both;
      if (inPairs) {
        both = read(pair, 0, 4);
      } else {
        both = LLVM::PoisonOp::create(b, pair);
        for (int64_t k : {0, 1})
          both = LLVM::InsertElementOp::create(b, both, read(product.element, k, 2), threads.constant(k));
      }
      words.push_back(LLVM::BitcastOp::create(b, b.getI32Type(), both));
    }
  return words;
}

void ProjectedScan::loadWeights(TensorAccess &access) {
  Type packet = VectorType::get(4, b.getI32Type());
  for (Weights &own : weights)
    for (int64_t tile = 0; tile < own.tiles; ++tile) {
      if (shape.inRegisters) {
        for (int64_t step = 0; step < own.steps; ++step)
          own.fragments.push_back(loadWeight(access, own, tile, threads.constant(step)));
        continue;
      }
      threads.forLoop(
          threads.constant(0), threads.constant(own.steps), threads.constant(1), {},
          [&](Value step, ValueRange) -> SmallVector<Value> {
            Value words = LLVM::PoisonOp::create(b, packet);
            for (auto [i, word] : llvm::enumerate(loadWeight(access, own, tile, step)))
              words = LLVM::InsertElementOp::create(b, words, word, threads.constant(i));
            Value at = arith::MulIOp::create(b, warp, threads.constant(own.tiles));
            at = arith::AddIOp::create(b, at, threads.constant(tile));
            at = arith::AddIOp::create(b, arith::MulIOp::create(b, at, threads.constant(own.steps)), step);
            at = arith::AddIOp::create(b, arith::MulIOp::create(b, at, threads.constant(bytesOfStep)),
                                       arith::MulIOp::create(b, lane, threads.constant(bytesOfLane)));
            Value base = threads.sharedAt(own.at);
            Value to = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{at});
            LLVM::StoreOp::create(b, words, to, bytesOfLane);
            return {};
          });
    }
}

Values ProjectedScan::weight(const Weights &weights, int64_t tile, int64_t step) {
  if (shape.inRegisters)
    return weights.fragments[tile * weights.steps + step];
  Value at = arith::MulIOp::create(b, warp, threads.constant(weights.tiles * weights.steps * bytesOfStep));
  at = arith::AddIOp::create(b, at, arith::MulIOp::create(b, lane, threads.constant(bytesOfLane)));
  Value base = threads.sharedAt(0);
  base = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{at});
  base = LLVM::GEPOp::create(
      b, base.getType(), b.getI8Type(), base,
      ArrayRef<LLVM::GEPArg>{int32_t(weights.at + (tile * weights.steps + step) * bytesOfStep)});
  Value packet = LLVM::LoadOp::create(b, VectorType::get(4, b.getI32Type()), base, bytesOfLane);
  Values words;
  for (int64_t i = 0; i < 4; ++i)
    words.push_back(LLVM::ExtractElementOp::create(b, packet, threads.constant(i)));
  return words;
}

// Leaves a vector of all tokens where products read it.
void ProjectedScan::handOver(Value vector, Tokens tokens) {
  const Rows &rows = handed.find(vector)->second;
  Value base = threads.sharedAt(0);
  MatType type = matType(vector);
  int64_t entries = type.numElements();
  for (auto [t, token] : llvm::enumerate(tokens)) {
    const Tile &tile = token.get(vector, 1);
    // Neighbours lie together, and exist together but for the last one.
    for (size_t e = 0; e < tile.entries.size(); e += 2) {
      auto valid = [&](int64_t i) { return threads.valid(1, entries, e + i); };
      Value pair = LLVM::PoisonOp::create(b, VectorType::get(2, Type(rows.element)));
      for (int64_t i : {0, 1}) {
        Value entry = tile.entries[e + i];
        if (Value exists = valid(i))
          entry = arith::SelectOp::create(b, exists, entry, threads.number(0));
        Value narrow = arith::TruncFOp::create(b, rows.element, entry);
        pair = LLVM::InsertElementOp::create(b, pair, narrow, threads.constant(i));
      }
      Value to = ownRow(base, rows, t, threads.index(1, entries, e));
      threads.when(valid(0), [&] { LLVM::StoreOp::create(b, pair, to, 4); });
    }
  }
}

// All products of a level. Those of one vector share what is read of it.
void ProjectedScan::multiply(ArrayRef<MatmulOp> products, Tokens tokens, Value place) {
  Ptx ptx(b);
  llvm::SmallMapVector<Value, SmallVector<MatmulOp>, 2> byVector;
  bool waits = false;
  for (MatmulOp op : products)
    byVector[paramProductOf(op, tensors)->vector].push_back(op);
  for (const auto &[vector, ops] : byVector)
    if (handed.contains(vector)) {
      handOver(vector, tokens);
      waits = true;
    }
  if (waits)
    NVVM::Barrier0Op::create(b);
  // Four matrices of eight tokens and eight entries: two of depth, of two tiles of tokens.
  auto bit = [&](int64_t of, int64_t worth) -> Value {
    Value on = arith::AndIOp::create(b, lane, threads.constant(of));
    return arith::MulIOp::create(b, arith::DivUIOp::create(b, on, threads.constant(of)),
                                 threads.constant(worth));
  };
  auto plus = [&](Value x, Value y) -> Value { return arith::AddIOp::create(b, x, y); };
  int64_t tiles = shape.run / 2;
  for (auto &entry : byVector) {
    Value vector = entry.first;
    ArrayRef<MatmulOp> ops = entry.second;
    auto *input = llvm::find_if(tensors, [&](const auto &t) { return t.argument == vector; });
    auto own = handed.find(vector);
    const Rows &rows = own != handed.end() ? own->second : ringed.find(input - tensors.begin())->second;
    Value at = LLVM::PtrToIntOp::create(b, b.getI32Type(), threads.sharedAt(rows.at));
    if (own == handed.end())
      at = plus(at, arith::MulIOp::create(b, place, threads.constant(ringBytes)));
    at = plus(at, plus(bit(8, depthOfStep), bit(16, 2 * rows.pitch)));
    at = plus(
        at, plus(bit(1, rows.pitch), plus(bit(2, rows.ofRun(shape.run)), bit(4, 2 * rows.ofRun(shape.run)))));
    SmallVector<const Weights *> of;
    SmallVector<SmallVector<Value>> sums; // of each op and tile of rows, then tiles of tokens
    for (MatmulOp op : ops) {
      ParamProduct product = *paramProductOf(op, tensors);
      of.push_back(llvm::find_if(weights, [&](const Weights &w) { return w.of.hasMatrixOf(product); }));
      sums.emplace_back(of.back()->tiles * tiles * 4, threads.number(0));
    }
    for (int64_t step = 0; step < of.front()->steps; ++step) {
      SmallVector<Values> right;
      for (int64_t tile = 0; tile < tiles; tile += 2)
        right.push_back(ptx.loadMatrices(at, 2 * tile * rows.pitch + step * depthOfStep * 2, false));
      for (auto [matrix, sum] : llvm::zip(of, sums))
        for (int64_t i = 0; i < matrix->tiles; ++i) {
          Values left = weight(*matrix, i, step);
          for (int64_t tile = 0; tile < tiles; ++tile) {
            MutableArrayRef<Value> part = MutableArrayRef(sum).slice((i * tiles + tile) * 4, 4);
            Values pair{right[tile / 2][tile % 2 * 2], right[tile / 2][tile % 2 * 2 + 1]};
            llvm::copy(ptx.multiply16By8(matrix->of.element.isF16() ? "f16" : "bf16", part, left, pair),
                       part.begin());
          }
        }
    }
    // Of a fragment's rows the second ones are the thread's next entries, and its two columns two tokens.
    for (auto [known, matrix, sum] : llvm::zip(ops, of, sums))
      for (auto [t, token] : llvm::enumerate(tokens)) {
        MatmulOp op = known;
        Tile result = threads.shape(op.getType(), 1);
        for (int64_t i = 0; i < matrix->tiles; ++i)
          for (int64_t second : {0, 1})
            result.entries.push_back(sum[(i * tiles + t / 2) * 4 + 2 * second + t % 2]);
        token.set(op, std::move(result));
      }
  }
}
