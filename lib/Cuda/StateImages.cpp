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

void StateImages::store(ChunkEmitter &emitter, ArrayRef<ChunkValue> states, Value record) {
  Value base = ptx.add(LLVM::PtrToIntOp::create(b, b.getI32Type(), shared), begin);
  Value lane = emitter.fragments.lane, isFirst = ptx.equal(threads.threadIndex(), 0);
  int64_t parts = 0, images = 0;
  for (unsigned number : own)
    parts += bytesOf(types[number]);
  SmallVector<int64_t> places;
  for (MatType type : types) {
    places.push_back(images);
    images += bytesOf(type);
  }
  auto inRecord = [&](int64_t bytes) {
    return LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                               ArrayRef<LLVM::GEPArg>{int32_t(bytes)});
  };
  // The largest entry of a state, by way of those of the warps. Meanwhile the images before are out of the
  // way.
  threads.when(isFirst, [&] { ptx.awaitStores(/*written=*/false); });
  SmallVector<Value> most;
  for (auto [i, state] : llvm::enumerate(states)) {
    most.push_back(threads.number(0));
    for (Value entry : state.entries)
      most.back() = arith::MaximumFOp::create(b, most.back(), math::AbsFOp::create(b, entry));
    for (int64_t distance : {1, 2, 4, 8, 16})
      most.back() = arith::MaximumFOp::create(b, most.back(), emitter.shuffle(most.back(), distance));
    ptx.store(ptx.add(base, ptx.mul(emitter.fragments.warp, 4)), parts + i * warps * 4, most.back());
  }
  threads.barrier();
  int64_t offset = 0;
  for (auto [i, state] : llvm::enumerate(states)) {
    for (int64_t first = 0; first < warps; first += 4)
      for (Value part : ptx.loadFloats(base, parts + i * warps * 4 + first * 4, 4))
        most[i] = arith::MaximumFOp::create(b, most[i], part);
    Value unit = emitter.unitOf(most[i], -8), inverse = emitter.inverseOf(unit);
    threads.when(isFirst,
                 [&, i = i, unit = unit] { LLVM::StoreOp::create(b, unit, inRecord(images + own[i] * 16)); });
    // Four matrices of 8 x 8: rows from 0 and 8, columns from 0, then from 8 on.
    Value row = ptx.add(emitter.slabRow(state.rows), ptx.bits(lane, 15));
    Value line = ptx.add(base, ptx.mul(row, 128)), isOwner = emitter.isSlabOwner(state.rows);
    for (size_t e = 0; e < state.entries.size(); e += 8) {
      Values packed;
      for (size_t j : {0, 2, 4, 6})
        packed.push_back(ptx.packF16(ptx.multiply(state.entries[e + j], inverse),
                                     ptx.multiply(state.entries[e + j + 1], inverse)));
      Value packet = ptx.exclusiveOr(ptx.add(ptx.shiftRight(lane, 4), e / 4 % 8), ptx.bits(row, 7));
      ptx.storeMatrices(ptx.add(line, ptx.mul(packet, 16)), offset + e / 32 * state.rows * 128, packed,
                        /*transposed=*/false, isOwner);
    }
    offset += bytesOf(types[own[i]]);
  }
  ptx.fenceProxy();
  threads.barrier();
  threads.when(isFirst, [&] {
    int64_t from = 0;
    for (unsigned number : own) {
      ptx.storeBytes(inRecord(places[number]), ptx.add(base, from), bytesOf(types[number]));
      from += bytesOf(types[number]);
    }
    ptx.commitStores();
  });
}

void StateImages::finish() {
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] { ptx.awaitStores(/*written=*/true); });
}
