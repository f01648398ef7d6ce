#include "lib/Cuda/StateImages.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t StateImages::recordBytes(ArrayRef<MatType> states) {
  int64_t bytes = 0;
  for (MatType state : states)
    bytes += bytesOf(state) + 16;
  return bytes;
}

StateImages::StateImages(Threads &threads, Value shared, ArrayRef<MatType> states, ArrayRef<unsigned> own,
                         int64_t warps, int64_t &used)
    : threads(threads), b(threads.b), ptx(threads.b), shared(shared), types(states), own(own), warps(warps) {
  begin = llvm::alignTo(used, 1024);
  used = begin + llvm::alignTo(own.size() * warps * 4, 16);
  for (unsigned number : own)
    used += bytesOf(types[number]);
}

int64_t StateImages::placeOf(size_t i) const {
  int64_t bytes = 0;
  for (unsigned number : ArrayRef(own).take_front(i))
    bytes += bytesOf(types[number]);
  return bytes;
}

void StateImages::measure(ChunkEmitter &emitter, ArrayRef<ChunkValue> states) {
  Value base = ptx.add(LLVM::PtrToIntOp::create(b, b.getI32Type(), shared), begin);
  // Meanwhile the images before are out of the way.
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] { ptx.awaitStores(/*written=*/false); });
  for (auto [i, state] : llvm::enumerate(states)) {
    Value most = emitter.greatest(state.entries);
    ptx.store(ptx.add(base, ptx.mul(emitter.fragments.warp, 4)), placeOf(own.size()) + i * warps * 4, most);
  }
}

void StateImages::store(ChunkEmitter &emitter, ArrayRef<ChunkValue> states, Value record) {
  Value base = ptx.add(LLVM::PtrToIntOp::create(b, b.getI32Type(), shared), begin);
  Value lane = emitter.fragments.lane, isFirst = ptx.equal(threads.threadIndex(), 0);
  int64_t images = 0;
  SmallVector<int64_t> inRecord;
  for (MatType type : types) {
    inRecord.push_back(images);
    images += bytesOf(type);
  }
  auto recordAt = [&](int64_t bytes) {
    return LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                               ArrayRef<LLVM::GEPArg>{int32_t(bytes)});
  };
  for (auto [i, state] : llvm::enumerate(states)) {
    Value most = ptx.number(0);
    for (int64_t first = 0; first < warps; first += 4)
      for (Value part : ptx.loadFloats(base, placeOf(own.size()) + i * warps * 4 + first * 4, 4))
        most = arith::MaximumFOp::create(b, most, part);
    Value unit = emitter.unitOf(most, -8), inverse = emitter.inverseOf(unit);
    threads.when(isFirst,
                 [&, i = i, unit = unit] { LLVM::StoreOp::create(b, unit, recordAt(images + own[i] * 16)); });
    // Four matrices of 8 x 8: rows from 0 and 8, columns from 0, then from 8 on.
    Value row = ptx.add(emitter.slabRow(state.rows), ptx.bits(lane, 15));
    Value line = ptx.add(base, ptx.mul(row, 128)), isOwner = emitter.isSlabOwner(state.rows);
    for (size_t e = 0; e < state.entries.size(); e += 8) {
      Values packed;
      for (size_t j : {0, 2, 4, 6})
        packed.push_back(ptx.packF16(ptx.multiply(state.entries[e + j], inverse),
                                     ptx.multiply(state.entries[e + j + 1], inverse)));
      Value packet = ptx.exclusiveOr(ptx.add(ptx.shiftRight(lane, 4), e / 4 % 8), ptx.bits(row, 7));
      ptx.storeMatrices(ptx.add(line, ptx.mul(packet, 16)), placeOf(i) + e / 32 * state.rows * 128, packed,
                        /*transposed=*/false, isOwner);
    }
  }
  ptx.fenceProxy();
  threads.barrier();
  threads.when(isFirst, [&] {
    for (auto [i, number] : llvm::enumerate(own))
      ptx.storeBytes(recordAt(inRecord[number]), ptx.add(base, placeOf(i)), bytesOf(types[number]));
    ptx.commitStores();
  });
}

void StateImages::finish() {
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] { ptx.awaitStores(/*written=*/true); });
}
