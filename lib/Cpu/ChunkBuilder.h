// A builder for vector code on the token matrices of a chunk.
#pragma once
#include "lib/Cpu/Matrices.h"
#include "lib/Cpu/VectorBuilder.h"

namespace recur::cpu {

/// Matrices are row-major f32 memory of two dimensions. They enter from and leave to tensors: what is built
/// here stands between linalg ops on tensors.
class ChunkBuilder : public VectorBuilder {
public:
  ChunkBuilder(mlir::Location loc, mlir::OpBuilder &builder, int64_t lanes)
      : VectorBuilder(loc, builder, lanes) {}

  Value allocate(llvm::ArrayRef<int64_t> shape);
  /// The memory of a tensor, only to be read.
  Value memoryOf(Value tensor);
  /// The memory of a tensor, or of a copy where the tensor is still needed, to be written.
  Value ownMemoryOf(Value tensor);
  /// Memory as a tensor, once it is written for good; where it is `writable`, what is computed with it may
  /// overwrite it.
  Value tensorOf(Value memory, bool writable = false);
  /// A part of memory; dimensions of size 0 are dropped, and one index is meant.
  Value part(Value memory, llvm::ArrayRef<int64_t> offsets, llvm::ArrayRef<int64_t> sizes);

  /// The memory of a matrix of `rows` x `columns`, of two dimensions whatever is stored of it.
  Value memoryOf(const Matrix &matrix);
  /// Two-dimensional memory as a matrix.
  Matrix matrixOf(Value memory);

  /// Memory of its own with the transpose of a matrix, moved in squares of one vector's side.
  Value transposed(Value memory);

  /// How many rows of a product are kept in registers at once.
  int64_t panel() const { return lanes == 16 ? 16 : 8; }

private:
  void transposeSquare(Value from, Value to, Value row, Value column);
};

} // namespace recur::cpu
