// A state's memory in the caller's tensors, and its entries in a thread.
#pragma once
#include "lib/Cuda/ChunkEmitter.h"

namespace recur::cuda {

/// Loads and stores a state, a slab or a column.
class StateTensor {
public:
  StateTensor(Threads &threads, ChunkEmitter &emitter, TensorAccess &access, mlir::Value state);

  /// Entries of a slab: those of the tensor, or `otherwise` where it is not given. Past the end they are 0.
  llvm::SmallVector<mlir::Value> load(unsigned tensor, const FirstState &otherwise, unsigned params);
  void store(unsigned tensor, mlir::ValueRange entries);

  /// The address of an entry of a column, and what it is where none is given.
  mlir::Value address(unsigned tensor, mlir::Value item) {
    return access.entry(tensor, rowOf(item), colOf(item));
  }
  mlir::Value first(const FirstState &state, unsigned params, mlir::Value item) {
    return access.firstEntry(state, params, rowOf(item), colOf(item));
  }

  int64_t size() const { return type.numElements(); }
  /// Entries of a slab that a thread holds.
  int64_t countEntries() const { return padded(keys) / 2; }
  ChunkValue slab(mlir::ValueRange entries) const {
    return ChunkValue::slab(llvm::SmallVector<mlir::Value>(entries), rows, dim);
  }

private:
  mlir::Value rowOf(mlir::Value item) const { return type.numCols() == 1 ? item : threads.constant(0); }
  mlir::Value colOf(mlir::Value item) const { return type.numCols() == 1 ? threads.constant(0) : item; }
  /// Row and key of an entry, and whether they exist; null where they do.
  std::tuple<mlir::Value, mlir::Value, mlir::Value> place(int64_t e);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  ChunkEmitter &emitter;
  TensorAccess &access;
  MatType type;
  int64_t rows, keys;

public:
  const bool isSlab;
  const int dim;
};

} // namespace recur::cuda
