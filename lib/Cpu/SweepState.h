// Between the caller's layout of a state and the sweep's.
#pragma once

#include "lib/Cpu/Sweep.h"

namespace recur::cpu {

/// Copies between `state`, a strided memref of f32 of rank 2, and some blocks of H in `scratch`.
/// `transposed`: H is the transpose of `state`.
class SweepState {
public:
  SweepState(VectorBuilder &b, const SweepShape &shape, const SweepOptions &options, mlir::Value scratch,
             bool transposed, SweepBlocks blocks)
      : b(b), shape(shape), options(options), layout(shape, options), scratch(scratch),
        transposed(transposed), blocks(blocks) {}

  void load(mlir::Value state);
  /// Stores H times `scale` (null for 1).
  void store(mlir::Value state, mlir::Value scale);
  /// Sets every entry of H, padding too.
  void fill(double value);

private:
  using Value = mlir::Value;
  using Values = VectorBuilder::Values;

  void copy(Value state, Value scale, bool isLoad);
  void copyEntries(Value state, Value scale, bool isLoad);
  void copyTiles(Value state, Value scale, bool isLoad);
  Value endColumn();
  Value at(Value row, Value column);
  void interleave(llvm::MutableArrayRef<Value> rows, bool undo);

  VectorBuilder &b;
  const SweepShape &shape;
  const SweepOptions &options;
  SweepLayout layout;
  Value scratch;
  bool transposed;
  SweepBlocks blocks;
};

/// The columns of as many vectors as these have lanes.
VectorBuilder::Values transposeSquare(VectorBuilder &b, llvm::ArrayRef<mlir::Value> rows);

} // namespace recur::cpu
