#include "lib/Cuda/StateImages.h"
#include "lib/Cuda/Marks.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t StateImages::recordBytes(ArrayRef<MatType> states) {
  int64_t bytes = 0;
  for (MatType state : states)
    bytes += bytesOf(state) + 16;
  return bytes;
}

StateImages::StateImages(Threads &threads, Value shared, ArrayRef<MatType> states, int64_t warps,
                         int64_t &used)
    : threads(threads), b(threads.b), ptx(threads.b), shared(shared), types(states), warps(warps) {
  begin = llvm::alignTo(used, 1024);
  used = begin + bytesOfAll() + llvm::alignTo(states.size() * warps * 4, 16);
  // The record that is being left, an address.
  used += 16;
}

Value StateImages::pending() {
  int64_t offset = begin + bytesOfAll() + llvm::alignTo(types.size() * warps * 4, 16);
  return LLVM::GEPOp::create(b, shared.getType(), b.getI8Type(), shared,
                             ArrayRef<LLVM::GEPArg>{int32_t(offset)});
}

Value StateImages::markOf(Ptx &ptx, ImplicitLocOpBuilder &b, Value record, int64_t bytes) {
  return LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                             ArrayRef<LLVM::GEPArg>{int32_t(bytes - 4)});
}

void StateImages::open(Value chunks, llvm::function_ref<Value(Value)> recordAt) {
  Value thread = threads.threadIndex(), count = threads.constant(threads.grid.threads);
  Value last = arith::TruncIOp::create(b, b.getI32Type(), chunks);
  threads.forLoop(thread, last, count, {}, [&](Value chunk, ValueRange) {
    LLVM::StoreOp::create(b, threads.constant(0), markOf(ptx, b, recordAt(chunk), recordBytes(types)));
    return SmallVector<Value>();
  });
  threads.when(ptx.equal(thread, 0), [&] { LLVM::StoreOp::create(b, threads.constant(0, 64), pending()); });
  fenceDevice(ptx);
  threads.barrier();
  letNextBegin(ptx);
}

// In one thread: waits until its copy is done, and marks the record.
void StateImages::settle() {
  ptx.awaitStores(/*written=*/true);
  Value number = LLVM::LoadOp::create(b, b.getI64Type(), pending());
  Value isThere = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, number, threads.constant(0, 64));
  threads.when(isThere, [&] {
    auto global = LLVM::LLVMPointerType::get(b.getContext(), 1);
    mark(ptx, LLVM::IntToPtrOp::create(b, global, number));
  });
}

int64_t StateImages::bytesOfAll() const {
  int64_t bytes = 0;
  for (MatType type : types)
    bytes += bytesOf(type);
  return bytes;
}

Value StateImages::base() { return ptx.add(LLVM::PtrToIntOp::create(b, b.getI32Type(), shared), begin); }

Value StateImages::placeOf(Value number) {
  Value place = ptx.constant(0);
  int64_t bytes = 0;
  for (auto [i, type] : llvm::enumerate(types)) {
    place = i ? ptx.choose(ptx.equal(number, i), ptx.constant(bytes), place) : place;
    bytes += bytesOf(type);
  }
  return place;
}

// The largest entry of each warp.
void StateImages::measure(ChunkEmitter &emitter, Value number, ValueRange entries) {
  Value warp = arith::RemUIOp::create(b, emitter.fragments.warp, ptx.constant(warps));
  Value place = ptx.mul(ptx.add(ptx.mul(number, warps), warp), 4);
  ptx.store(ptx.add(base(), place), bytesOfAll(), emitter.greatest(entries));
}

// The image, in units of a power of 2 by the largest entry of all.
void StateImages::leave(ChunkEmitter &emitter, const Own &own, ValueRange entries, Value record) {
  Value lane = emitter.fragments.lane, most = ptx.number(0);
  Value parts = ptx.add(base(), ptx.mul(own.number, warps * 4));
  for (int64_t first = 0; first < warps; first += 4)
    for (Value part : ptx.loadFloats(parts, bytesOfAll() + first * 4, 4))
      most = arith::MaximumFOp::create(b, most, part);
  Value unit = emitter.unitOf(most, -8), inverse = emitter.inverseOf(unit);
  threads.when(ptx.equal(arith::OrIOp::create(b, own.first, lane), 0), [&] {
    Value at = ptx.add(ptx.mul(own.number, 16), bytesOfAll());
    LLVM::StoreOp::create(b, unit, LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record, at));
  });
  // Four matrices of 8 x 8: rows from 0 and 8, columns from 0, then from 8 on.
  Value row = ptx.add(own.first, ptx.bits(lane, 15));
  Value line = ptx.add(ptx.add(base(), placeOf(own.number)), ptx.mul(row, 128));
  Value warp = arith::RemUIOp::create(b, emitter.fragments.warp, ptx.constant(warps));
  Value isOwner = ptx.below(ptx.mul(warp, 16), own.rows);
  for (size_t e = 0; e < entries.size(); e += 8) {
    Values packed;
    for (size_t j : {0, 2, 4, 6})
      packed.push_back(
          ptx.packF16(ptx.multiply(entries[e + j], inverse), ptx.multiply(entries[e + j + 1], inverse)));
    Value packet = ptx.exclusiveOr(ptx.add(ptx.shiftRight(lane, 4), e / 4 % 8), ptx.bits(row, 7));
    Value at = ptx.add(line, ptx.add(ptx.mul(packet, 16), ptx.mul(own.rows, e / 32 * 128)));
    ptx.storeMatrices(at, 0, packed, /*transposed=*/false, isOwner);
  }
}

// One thread copies the images that all have left.
void StateImages::copy(Value record) {
  ptx.fenceProxy();
  threads.barrier();
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] {
    ptx.storeBytes(record, base(), bytesOfAll());
    ptx.commitStores();
    Value mark = markOf(ptx, b, record, recordBytes(types));
    LLVM::StoreOp::create(b, LLVM::PtrToIntOp::create(b, b.getI64Type(), mark), pending());
  });
}

void StateImages::store(ChunkEmitter &emitter, ArrayRef<ChunkValue> states, Value record) {
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] { settle(); });
  for (auto [i, state] : llvm::enumerate(states))
    measure(emitter, ptx.constant(i), state.entries);
  threads.barrier();
  for (auto [i, state] : llvm::enumerate(states)) {
    Own own{ptx.constant(i), ptx.constant(state.rows), emitter.slabRow(state.rows)};
    leave(emitter, own, state.entries, record);
  }
  copy(record);
}

void StateImages::measure(ChunkEmitter &emitter, const Own &own, ValueRange entries) {
  // Meanwhile the images before are out of the way.
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] { settle(); });
  measure(emitter, own.number, entries);
}

void StateImages::store(ChunkEmitter &emitter, const Own &own, ValueRange entries, Value record) {
  leave(emitter, own, entries, record);
  copy(record);
}

void StateImages::finish() {
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] { settle(); });
}
