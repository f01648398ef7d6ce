// The part of the sweep form that runs once per chunk of tokens.
#pragma once

#include "lib/Cpu/SweepGroup.h"

namespace recur::cpu {

class SweepPacker {
public:
  SweepPacker(VectorBuilder &b, const SweepShape &shape, const SweepLayout &layout, const SweepGroup &group,
              mlir::Value scratch);

  /// Emits the coefficients of the groups of the packed tokens from `from` to `to` of the chunk. `ends` (i1)
  /// says that no token comes after them. `scale` is the factor kept beside the state (null without a scalar
  /// decay); returns it as these groups leave it. Factors kept by rows end as 1.
  mlir::Value coefficients(mlir::Value from, mlir::Value to, mlir::Value ends, mlir::Value scale);

  /// Whether the factors kept by rows stay in a safe range when those of a group are multiplied in, as i1.
  mlir::Value rowsAreSafe(mlir::Value first);
  /// Where such factors begin: most decays are below 1, and the further above it they begin, the longer they
  /// stay in the range.
  static constexpr double freshScale = 0x1p32;

  /// Emits the copying of what the next chunk needs of the group that begins at `first`: it is then the group
  /// before the first of that chunk.
  void keep(mlir::Value first);

  /// The position of row slot 0 of a token of the chunk.
  mlir::Value rowsAt(mlir::Value inChunk);
  /// The position of the coefficients of the group that begins at a token of the chunk.
  mlir::Value coefficientsAt(mlir::Value first);

private:
  using Value = mlir::Value;
  using Values = VectorBuilder::Values;

  void eachGram(llvm::function_ref<void(int64_t t, unsigned r, int64_t j, unsigned w)> body);
  Value row(Value first, Value i, int64_t t, unsigned slot);
  Value rowDecay(Value first, Value i, int64_t from, int64_t to);
  void scaleRows(Value first, Value i, Value safe, Value fresh);
  Values innerProducts(Value first, Value safe, Value fresh);
  void storeProducts(Value at, llvm::ArrayRef<Value> products);
  Value scalarCoefficients(Value first, Value at, llvm::ArrayRef<Value> products, Value scale);

  VectorBuilder &b;
  const SweepShape &shape;
  const SweepLayout &layout;
  const SweepGroup group;
  Value scratch;
};

} // namespace recur::cpu
