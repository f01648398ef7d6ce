// What the warps of a projected scan have in shared memory: tiles of vectors, and matrices.
#include "lib/Cuda/ProjectedScan.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Entries that are copied together: as many as memory is known to have in a row at a multiple of their size.
constexpr int64_t together = 4, bytesOfPacket = 16;

ProjectedScan::Rows ProjectedScan::rowsOf(int64_t entries, FloatType element, bool isFactor) {
  return {0, entries, element, isFactor && shape.byWarpgroups};
}

// Finds a place for all of it.
bool ProjectedScan::layOut(int64_t sharedLimit) {
  constexpr int64_t alignment = 1024; // of swizzled rows
  SmallVector<MatmulOp> products;
  for (auto op : rule.getBody().getOps<MatmulOp>())
    if (isProduct(op) && isWanted(op))
      products.push_back(op);
  forFetches([&](unsigned i, Axis) {
    const TensorArgument &tensor = tensors[i];
    if (tensor.entry().isScalar() || ringed.contains(i))
      return;
    bool isFactor = llvm::any_of(products, [&](MatmulOp op) {
      ParamProduct product = *paramProductOf(op, tensors);
      return product.vector == tensor.argument && product.element == tensor.element;
    });
    Rows rows = rowsOf(tensor.entry().numElements(), tensor.element, isFactor);
    rows.at = ringBytes;
    ringBytes += llvm::alignTo(rows.bytes(shape), shape.byWarpgroups ? alignment : bytesOfPacket);
    ringed[i] = rows;
  });
  rowsEnd = shape.places * ringBytes;
  for (MatmulOp op : products) {
    ParamProduct product = *paramProductOf(op, tensors);
    if (!isOfInput(op) && !handed.contains(product.vector)) {
      Rows rows = rowsOf(product.depth, product.element, /*isFactor=*/true);
      rows.at = rowsEnd + handedBytes;
      handedBytes += llvm::alignTo(rows.bytes(shape), shape.byWarpgroups ? alignment : bytesOfPacket);
      handed[product.vector] = rows;
    }
    if (llvm::any_of(weights, [&](const Weights &known) { return known.of.hasMatrixOf(product); }))
      continue;
    weights.push_back(
        {product, shape.grid.owned(product.rows, 1) / 2, int64_t(llvm::divideCeil(product.depth, 16))});
  }
  rowsEnd += 2 * handedBytes;
  sumsAt = rowsEnd;
  for (Operation &op : rule.getBody().front())
    if (isShared(&op) && !isProduct(&op) && isWanted(&op)) {
      sumPlaces[&op] = sumsAt + sumsBytes;
      sumsBytes += shape.tokens() * shape.walkers() / 32 * 4;
    }
  sharedBytes = llvm::alignTo(sumsAt + 2 * sumsBytes, alignment);
  for (Weights &own : weights)
    if (!shape.inRegisters) {
      own.at = sharedBytes;
      sharedBytes += own.bytes(shape.walkers() / 32, shape.byWarpgroups);
    }
  ringAt = sharedBytes;
  if (shape.byWarpgroups)
    sharedBytes += 2 * shape.places * 8;
  return sharedBytes <= sharedLimit;
}

// The address of a byte of shared memory.
Value ProjectedScan::sharedAt(Value bytes, int64_t more) {
  Value base = threads.sharedAt(0);
  base = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{bytes});
  return LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ArrayRef<LLVM::GEPArg>{int32_t(more)});
}

// Nothing but zeros behind the vectors' entries, and where no token was yet.
void ProjectedScan::clearRows() {
  Value zero = LLVM::ZeroOp::create(b, VectorType::get(4, b.getI32Type()));
  Value first = arith::MulIOp::create(b, threads.threadIndex(), threads.constant(bytesOfPacket));
  threads.forLoop(first, threads.constant(rowsEnd), threads.constant(entry.threads * bytesOfPacket), {},
                  [&](Value at, ValueRange) -> SmallVector<Value> {
                    LLVM::StoreOp::create(b, zero, sharedAt(at), bytesOfPacket);
                    return {};
                  });
}

// Asks for the vectors of a tile's tokens. Those past the end are the last one's.
void ProjectedScan::ask(TensorAccess &access, Value first, Value tile) {
  Ptx ptx(b);
  Value last = arith::SubIOp::create(b, arith::SubIOp::create(b, tokens, i64(1)), first);
  forFetches([&](unsigned i, Axis) {
    auto own = ringed.find(i);
    if (own == ringed.end())
      return;
    const Rows &rows = own->second;
    int64_t bytes = together * rows.entryBytes(), perToken = tensors[i].entry().numElements() / together,
            all = perToken * shape.tokens();
    Value base = access.entryOfToken(i, first, threads.constant(0));
    Value to = LLVM::PtrToIntOp::create(b, b.getI32Type(), threads.sharedAt(rows.at));
    to = ptx.add(to, copyOf(rows, tile));
    int64_t count = shape.byWarpgroups ? shape.bringers() : entry.threads;
    Value thread = ptx.add(threads.threadIndex(), count - entry.threads);
    for (int64_t more = 0; more < all; more += count) {
      Value packet = ptx.add(thread, more);
      auto copy = [&] {
        Value token = arith::DivUIOp::create(b, packet, threads.constant(perToken));
        Value within = arith::RemUIOp::create(b, packet, threads.constant(perToken));
        Value at = packetOf(rows, token, within);
        Value there = arith::MinSIOp::create(b, arith::ExtUIOp::create(b, b.getI64Type(), token), last);
        Value offset = arith::MulIOp::create(b, there, access.word(i, TensorAccess::Token));
        Value entry = arith::MulIOp::create(b, within, threads.constant(together));
        offset = arith::AddIOp::create(b, offset, arith::ExtUIOp::create(b, b.getI64Type(), entry));
        Value from = LLVM::GEPOp::create(b, base.getType(), tensors[i].element, base, ValueRange{offset});
        ptx.copyPacket(arith::AddIOp::create(b, to, at), 0, from, bytes);
      };
      if (more + count <= all)
        copy();
      else
        threads.when(arith::CmpIOp::create(b, arith::CmpIPredicate::ult, packet, threads.constant(all)),
                     copy);
    }
  });
  ptx.commitPackets();
}

// Where in rows the entries of a token lie that are copied together, `packet` of them.
Value ProjectedScan::packetOf(const Rows &rows, Value token, Value packet) {
  Ptx ptx(b);
  Value run = arith::DivUIOp::create(b, token, threads.constant(shape.run));
  int64_t bytes = together * rows.entryBytes();
  if (!rows.isSwizzled)
    return ptx.add(ptx.mul(token, rows.pitch()),
                   ptx.add(ptx.mul(run, rows.ofRun(0)), ptx.mul(packet, bytes)));
  // Columns of a product are those of four lanes, two tokens each.
  Value inRun = arith::RemUIOp::create(b, token, threads.constant(shape.run));
  Value line = ptx.add(ptx.mul(run, 2), ptx.bits(inRun, 1));
  Value row = ptx.add(ptx.mul(ptx.shiftRight(inRun, 1), 8), line);
  Value chunk = ptx.exclusiveOr(ptx.bits(ptx.shiftRight(packet, 1), 7), line);
  Value at = ptx.add(ptx.mul(ptx.shiftRight(packet, 4), rows.ofBlock(shape)), ptx.mul(row, bytesOfLine));
  return ptx.add(at, ptx.add(ptx.mul(chunk, bytesOfPacket), ptx.mul(ptx.bits(packet, 1), bytes)));
}

// The address of an entry of a token of the thread's run.
Value ProjectedScan::ownRow(Value base, const Rows &rows, int64_t token, Value entry) {
  Ptx ptx(b);
  Value at;
  int64_t more = rows.at;
  if (rows.isSwizzled) {
    Value line = ptx.add(ptx.mul(turn, 2), token % 2);
    Value chunk = ptx.exclusiveOr(ptx.bits(ptx.shiftRight(entry, 3), 7), line);
    at = ptx.add(ptx.mul(ptx.shiftRight(entry, 6), rows.ofBlock(shape)), ptx.mul(line, bytesOfLine));
    at = ptx.add(at, ptx.add(ptx.mul(chunk, bytesOfPacket), ptx.mul(ptx.bits(entry, 7), rows.entryBytes())));
    more += token / 2 * 8 * bytesOfLine;
  } else {
    at = ptx.add(ptx.mul(turn, rows.ofRun(shape.run)), ptx.mul(entry, rows.entryBytes()));
    more += token * rows.pitch();
  }
  base = LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ValueRange{at});
  return LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, ArrayRef<LLVM::GEPArg>{int32_t(more)});
}

// The thread's entries of its tokens.
void ProjectedScan::take(TensorAccess &access, Tokens tokens, Value tile) {
  forFetches([&](unsigned i, Axis axis) {
    auto own = ringed.find(i);
    if (own == ringed.end())
      return;
    Value base = sharedAt(copyOf(own->second, tile));
    int64_t entries = tensors[i].entry().numElements();
    int64_t width = access.bytesOfPacket(i, axis) / own->second.entryBytes();
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

// How far behind the first one a tile's copy of rows is: inputs lie in the ring's places; what warps hand
// over in tiles in turn, as one may still read that of the tile before.
Value ProjectedScan::copyOf(const Rows &rows, Value tile) {
  Ptx ptx(b);
  return rows.at < ringBytes ? ptx.mul(placeOf(tile), ringBytes) : ptx.mul(ptx.bits(tile, 1), handedBytes);
}

// Leaves a vector of all tokens where products read it.
void ProjectedScan::handOver(Value vector, Tokens tokens, Value tile) {
  const Rows &rows = handed.find(vector)->second;
  Value base = sharedAt(copyOf(rows, tile));
  MatType type = matType(vector);
  int64_t entries = type.numElements();
  for (auto [t, token] : llvm::enumerate(tokens)) {
    const Tile &own = token.get(vector, 1);
    // Neighbours lie together, and exist together but for the last one.
    for (size_t e = 0; e < own.entries.size(); e += 2) {
      auto valid = [&](int64_t i) { return threads.valid(1, entries, e + i); };
      Value pair = LLVM::PoisonOp::create(b, VectorType::get(2, Type(rows.element)));
      for (int64_t i : {0, 1}) {
        Value entry = own.entries[e + i];
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
