// Writes linalg ops on buffers as loops over vectors: the innermost loop runs along neighbouring entries,
// several rows or strips at once when there are sums to keep in registers.
#include "lib/Cpu/LoopEmitter.h"
#include "lib/Cpu/Passes.h"

namespace recur::cpu {
#define GEN_PASS_DEF_LINALGTOVECTORS
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur::cpu;

// memref.copy as a linalg op, so that it becomes a loop like all others.
static void expandCopy(memref::CopyOp copy) {
  OpBuilder b(copy);
  linalg::CopyOp::create(b, copy.getLoc(), copy.getSource(), copy.getTarget());
  copy.erase();
}

// Writes what the op promises about its operands into their types.
static void assumeDense(linalg::LinalgOp op) {
  if (!op->removeAttr(denseAttr))
    return;
  OpBuilder b(op);
  for (OpOperand &operand : op->getOpOperands()) {
    auto type = cast<MemRefType>(operand.get().getType());
    auto layout = dyn_cast<StridedLayoutAttr>(type.getLayout());
    if (!layout || layout.getStrides().back() == 1)
      continue;
    SmallVector<int64_t> strides(layout.getStrides());
    strides.back() = 1;
    auto dense = MemRefType::get(type.getShape(), type.getElementType(),
                                 StridedLayoutAttr::get(b.getContext(), layout.getOffset(), strides));
    operand.set(memref::CastOp::create(b, op.getLoc(), dense, operand.get()));
  }
}

namespace {
struct LinalgToVectors : recur::cpu::impl::LinalgToVectorsBase<LinalgToVectors> {
  using LinalgToVectorsBase::LinalgToVectorsBase;

  void runOnOperation() override {
    getOperation().walk(expandCopy);
    SmallVector<linalg::LinalgOp> ops;
    getOperation().walk([&](linalg::LinalgOp op) { ops.push_back(op); });
    for (linalg::LinalgOp op : ops) {
      assumeDense(op);
      LoopEmitter(op, vectorWidth, accumulators).emit();
      op->erase();
    }
    allowContraction(getOperation());
  }
};
} // namespace
