#include "lib/Cpu/ChunkBuilder.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

Value ChunkBuilder::allocate(ArrayRef<int64_t> shape) {
  return memref::AllocOp::create(*this, MemRefType::get(shape, getF32Type()));
}

static Value bufferOf(OpBuilder &b, Location loc, Value tensor, bool readOnly) {
  auto type = cast<RankedTensorType>(tensor.getType());
  return bufferization::ToBufferOp::create(b, loc, MemRefType::get(type.getShape(), type.getElementType()),
                                           tensor, readOnly);
}
Value ChunkBuilder::memoryOf(Value tensor) { return bufferOf(*this, getLoc(), tensor, /*readOnly=*/true); }
Value ChunkBuilder::ownMemoryOf(Value tensor) {
  return bufferOf(*this, getLoc(), tensor, /*readOnly=*/false);
}

Value ChunkBuilder::tensorOf(Value memory, bool writable) {
  auto type = cast<MemRefType>(memory.getType());
  return bufferization::ToTensorOp::create(
      *this, RankedTensorType::get(type.getShape(), type.getElementType()), memory,
      /*restrict=*/true, writable);
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
  auto type = memref::SubViewOp::inferRankReducedResultType(shape, cast<MemRefType>(memory.getType()), places,
                                                            lengths, strides);
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

Value ChunkBuilder::transposed(Value memory) {
  ArrayRef<int64_t> shape = cast<MemRefType>(memory.getType()).getShape();
  int64_t rows = shape[0], columns = shape[1];
  Value result = allocate({columns, rows});
  int64_t wholeRows = rows / lanes * lanes, wholeColumns = columns / lanes * lanes;
  auto entries = [&](int64_t top, int64_t left) { // one by one, from a corner to the end
    loop(index(top), index(rows), 1, [&](Value row) {
      loop(index(left), index(columns), 1,
           [&](Value column) { storeScalar(loadScalar(memory, {row, column}), result, {column, row}); });
    });
  };
  if (wholeRows && wholeColumns) {
    loop(index(0), index(wholeRows), lanes, [&](Value row) {
      loop(index(0), index(wholeColumns), lanes,
           [&](Value column) { transposeSquare(memory, result, row, column); });
      loop(index(wholeColumns), index(columns), 1, [&](Value column) {
        for (int64_t i = 0; i < lanes; ++i)
          storeScalar(loadScalar(memory, {add(row, i), column}), result, {column, add(row, i)});
      });
    });
    entries(wholeRows, 0);
  } else {
    entries(0, 0);
  }
  return result;
}

// Exchanges blocks across the diagonal: single entries first, then pairs, and so on.
void ChunkBuilder::transposeSquare(Value from, Value to, Value row, Value column) {
  Values x;
  for (int64_t i = 0; i < lanes; ++i)
    x.push_back(load(from, {add(row, i), column}));
  for (int64_t side = 1; side < lanes; side *= 2) {
    SmallVector<int64_t> low, high;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      low.push_back(lane & side ? lanes + lane - side : lane);
      high.push_back(lane & side ? lanes + lane : lane + side);
    }
    for (int64_t i = 0; i < lanes; ++i)
      if (!(i & side)) {
        Value a = x[i], b = x[i + side];
        x[i] = vector::ShuffleOp::create(*this, a, b, low);
        x[i + side] = vector::ShuffleOp::create(*this, a, b, high);
      }
  }
  for (int64_t i = 0; i < lanes; ++i)
    store(x[i], to, {add(column, i), row});
}
