#include "lib/Cpu/ChunkBuilder.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

Value ChunkBuilder::allocate(ArrayRef<int64_t> shape) {
  return memref::AllocOp::create(*this, MemRefType::get(shape, getF32Type()));
}

Value ChunkBuilder::memoryOf(Value tensor) {
  auto type = cast<RankedTensorType>(tensor.getType());
  return bufferization::ToBufferOp::create(*this, MemRefType::get(type.getShape(), type.getElementType()), tensor,
                                           /*read_only=*/true);
}

Value ChunkBuilder::copyOf(Value tensor) {
  Value memory = allocate(cast<RankedTensorType>(tensor.getType()).getShape());
  bufferization::MaterializeInDestinationOp::create(*this, TypeRange(), tensor, memory, /*restrict=*/true,
                                                    /*writable=*/true);
  return memory;
}

Value ChunkBuilder::tensorOf(Value memory) {
  auto type = cast<MemRefType>(memory.getType());
  return bufferization::ToTensorOp::create(*this, RankedTensorType::get(type.getShape(), type.getElementType()), memory,
                                           /*restrict=*/true);
}

Value ChunkBuilder::part(Value memory, ArrayRef<int64_t> offsets, ArrayRef<int64_t> sizes) {
  SmallVector<OpFoldResult> places, lengths, strides(sizes.size(), getIndexAttr(1));
  SmallVector<int64_t> shape;
  for (auto [offset, size] : llvm::zip(offsets, sizes)) {
    places.push_back(getIndexAttr(offset));
    lengths.push_back(getIndexAttr(std::max<int64_t>(size, 1)));
    if (size)
      shape.push_back(size);
  }
  auto type = memref::SubViewOp::inferRankReducedResultType(shape, cast<MemRefType>(memory.getType()), places, lengths,
                                                            strides);
  return memref::SubViewOp::create(*this, type, memory, places, lengths, strides);
}

Value ChunkBuilder::memoryOf(const Matrix &matrix) {
  return memoryOf(MatrixBuilder(*this, getLoc()).stored(matrix, {0, 1}));
}

Matrix ChunkBuilder::matrixOf(Value memory) {
  ArrayRef<int64_t> shape = cast<MemRefType>(memory.getType()).getShape();
  std::array<int64_t, 2> sizes = {shape[0], shape[1]};
  SmallVector<unsigned, 2> axes;
  SmallVector<int64_t> kept;
  for (unsigned axis : {0u, 1u}) {
    kept.push_back(sizes[axis] > 1 ? sizes[axis] : 0);
    if (sizes[axis] > 1)
      axes.push_back(axis);
  }
  if (axes.size() < 2)
    memory = part(memory, {0, 0}, kept);
  return {tensorOf(memory), axes, sizes};
}
