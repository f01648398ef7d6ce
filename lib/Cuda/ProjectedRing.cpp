// Who brings inputs, and who waits for them: barriers of the ring's places.
#include "lib/Cuda/ProjectedScan.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

void ProjectedScan::initRing() {
  Ptx ptx(b);
  threads.when(ptx.equal(threads.threadIndex(), 0), [&] {
    for (int64_t i = 0; i < shape.places; ++i) {
      ptx.initBarrier(barrierOf(true, ptx.constant(i)), shape.bringers());
      ptx.initBarrier(barrierOf(false, ptx.constant(i)), shape.walkers() / 32);
    }
    ptx.fenceBarrierInit();
  });
}

// Tiles are numbered from 0 (i32).
Value ProjectedScan::placeOf(Value tile) {
  return arith::RemUIOp::create(b, tile, threads.constant(shape.places));
}

Value ProjectedScan::barrierOf(bool full, Value tile) {
  Ptx ptx(b);
  Value at = LLVM::PtrToIntOp::create(b, b.getI32Type(), threads.sharedAt(ringAt));
  return ptx.add(ptx.add(at, full ? 0 : 8 * shape.places), ptx.mul(placeOf(tile), 8));
}

// The turn of a tile's place, by its lowest bit.
static Value phaseOf(Ptx &ptx, Value tile, int64_t places) {
  return ptx.bits(arith::DivUIOp::create(ptx.b, tile, ptx.constant(places)), 1);
}

void ProjectedScan::awaitTile(Value tile) {
  Ptx ptx(b);
  ptx.await(barrierOf(true, tile), phaseOf(ptx, tile, shape.places));
}

void ProjectedScan::releaseTile(Value tile) {
  Ptx ptx(b);
  ptx.syncWarp();
  threads.when(ptx.equal(lane, 0), [&] { ptx.arrive(barrierOf(false, tile)); });
}

// Brings all tiles and, as products run ahead, one more.
void ProjectedScan::bring(TensorAccess &access) {
  Ptx ptx(b);
  auto announce = [&](Value tile, int64_t left) {
    ptx.awaitPackets(left);
    ptx.fenceProxy();
    ptx.arrive(barrierOf(true, tile));
  };
  int64_t tokensOfTile = shape.tokens();
  Value end = arith::AddIOp::create(b, tokens, i64(tokensOfTile));
  auto loop = threads.forLoop(
      i64(0), end, i64(tokensOfTile), {threads.constant(0)}, [&](Value first, ValueRange values) {
        Value tile = values[0];
        ptx.await(barrierOf(false, tile), ptx.exclusiveOr(phaseOf(ptx, tile, shape.places), ptx.constant(1)));
        ask(access, first, tile);
        Value isFirst = ptx.equal(tile, 0);
        Value isLater = arith::XOrIOp::create(b, isFirst, threads.constant(1, 1));
        threads.when(isLater, [&] { announce(ptx.add(tile, -1), 1); });
        return SmallVector<Value>{ptx.add(tile, 1)};
      });
  announce(ptx.add(loop.getResult(0), -1), 0);
}
