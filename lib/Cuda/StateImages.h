// States as products of warpgroups read them: f16 in swizzled rows of 64 columns, one after the other, and
// behind them 16 bytes for each, with the power of 2 that its entries are multiples of.
#pragma once
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/Ptx.h"

namespace recur::cuda {

/// Leaves images of slabs in device memory, by way of shared memory.
class StateImages {
public:
  /// The block leaves `own` of a record's states, by number. Takes shared memory from `used` on, which is
  /// then behind it.
  StateImages(Threads &threads, mlir::Value shared, llvm::ArrayRef<MatType> states,
              llvm::ArrayRef<unsigned> own, int64_t warps, int64_t &used);

  /// The bytes of an image, and of a record of images.
  static int64_t bytesOf(MatType state) { return state.numElements() * 2; }
  static int64_t recordBytes(llvm::ArrayRef<MatType> states);

  /// All threads say how large what they have of the block's states is; a barrier has to follow.
  void measure(ChunkEmitter &emitter, llvm::ArrayRef<ChunkValue> states);
  /// All threads leave what they have of them.
  void store(ChunkEmitter &emitter, llvm::ArrayRef<ChunkValue> states, mlir::Value record);
  /// Waits until all is left.
  void finish();

private:
  /// Where the image of the block's i-th state lies in shared memory; past the last, what measure() leaves.
  int64_t placeOf(size_t i) const;

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  mlir::Value shared;
  const llvm::SmallVector<MatType> types;
  const llvm::SmallVector<unsigned> own;
  const int64_t warps;
  int64_t begin;
};

} // namespace recur::cuda
