// States as products of warpgroups read them: f16 in swizzled rows of 64 columns, one after the other, and
// behind them 16 bytes for each, with the power of 2 that its entries are multiples of. The last word of a
// record is marked when all of it is there, for readers that do not wait for the whole launch.
#pragma once
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/Ptx.h"

namespace recur::cuda {

/// Leaves images of slabs in device memory, by way of shared memory.
class StateImages {
public:
  /// Each state is `warps` warps' one. Takes shared memory from `used` on, which is then behind it.
  StateImages(Threads &threads, mlir::Value shared, llvm::ArrayRef<MatType> states, int64_t warps,
              int64_t &used);

  /// The bytes of an image, and of a record of images.
  static int64_t bytesOf(MatType state) { return state.numElements() * 2; }
  static int64_t recordBytes(llvm::ArrayRef<MatType> states);
  /// Where a record has the units of its states, and its mark.
  static int64_t placeOfUnits(llvm::ArrayRef<MatType> states) {
    return recordBytes(states) - 16 * int64_t(states.size());
  }
  static mlir::Value markOf(Ptx &ptx, mlir::ImplicitLocOpBuilder &b, mlir::Value record, int64_t bytes);

  /// Unmarks the records of so many chunks (i64), by number (i32), and lets the launch begin that reads them.
  void open(mlir::Value chunks, llvm::function_ref<mlir::Value(mlir::Value)> recordAt);

  /// All threads leave what they have of the states.
  void store(ChunkEmitter &emitter, llvm::ArrayRef<ChunkValue> states, mlir::Value record);

  /// Where each warp has one of the states, by number: all threads say how large what they have of it is, to
  /// leave it after a barrier. `rows` are those of the warp's state, `first` the warp's first one.
  struct Own {
    mlir::Value number, rows, first;
  };
  void measure(ChunkEmitter &emitter, const Own &own, mlir::ValueRange entries);
  void store(ChunkEmitter &emitter, const Own &own, mlir::ValueRange entries, mlir::Value record);
  /// Waits until all is left, and marks the last record.
  void finish();

private:
  void measure(ChunkEmitter &emitter, mlir::Value number, mlir::ValueRange entries);
  void leave(ChunkEmitter &emitter, const Own &own, mlir::ValueRange entries, mlir::Value record);
  void copy(mlir::Value record);
  void settle();
  mlir::Value pending();
  mlir::Value base();
  /// Where a state's image begins, by number (i32), and what all of them take.
  mlir::Value placeOf(mlir::Value number);
  int64_t bytesOfAll() const;

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  mlir::Value shared;
  const llvm::SmallVector<MatType> types;
  const int64_t warps;
  int64_t begin;
};

} // namespace recur::cuda
