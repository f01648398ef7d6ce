// The sweep's pass over the rows with products of pairs of bf16 (AVX512-BF16), twice as many as with f32.
//
// The dot product instruction adds the products of two neighbours. For the reads these are two rows of H, for
// the update two writes. H stays f32, two rows interleaved, so that one conversion gives the operand of the
// reads.
#pragma once

#include "lib/Cpu/SweepGroup.h"

namespace recur::cpu {

class SweepPairs {
public:
  SweepPairs(VectorBuilder &b, const SweepShape &shape, const SweepOptions &options,
             const SweepLayout &layout, const SweepGroup &group, mlir::Value scratch)
      : b(b), shape(shape), options(options), layout(layout), group(group), scratch(scratch) {}

  /// f32 of scratch memory that packed operands take, from `layout.pairsBegin`.
  static int64_t size(const SweepShape &shape, const SweepOptions &options);

  /// Emits the packing of the operands of the tokens from `from` to `to` of the chunk.
  void pack(mlir::Value from, mlir::Value to);
  /// The operands of the update for z [token][write][vector].
  llvm::SmallVector<mlir::Value> operands(llvm::ArrayRef<mlir::Value> z);
  size_t operandCount() const { return writePairs() * 2 * options.vectors; }
  /// Emits the copying of the operands of the group that begins at `first` to before those of the chunk.
  void keep(mlir::Value first);
  /// Where they are then, in f32, and how many f32 they take.
  int64_t pendingBegin() const { return writesBegin() - pendingSize(); }
  int64_t pendingSize() const { return writePairs() * shape.rows; }
  /// The bf16 in a vector.
  mlir::Value halves(mlir::Value x) { return mlir::vector::BitCastOp::create(b, halfType(), x); }
  /// As SweepEmitter::rows.
  llvm::SmallVector<mlir::Value> rows(mlir::Value base, llvm::ArrayRef<mlir::Value> writes,
                                      mlir::Value writtenBy, mlir::Value reads, mlir::Value factor,
                                      mlir::Value decayRows);

private:
  using Value = mlir::Value;
  using Values = VectorBuilder::Values;

  int64_t writeCount() const { return group.group * group.writes(); }
  int64_t writePairs() const { return (writeCount() + 1) / 2; }
  mlir::VectorType halfType();
  Value call(llvm::StringRef intrinsic, mlir::Type type, mlir::ValueRange operands);
  Value convert(Value low, Value high);
  Value dot(Value sum, Value x, Value y);
  Value shuffle(Value x, Value y, llvm::function_ref<int64_t(int64_t)> lane);
  Value splatPair(Value at);
  Value readsAt(Value token);
  Value writesAt(Value first);
  // Of the operands of the chunk's first group; before them there is room for those of a whole group.
  int64_t writesBegin() const {
    int64_t pairs = (options.group * group.writes() + 1) / 2;
    return layout.pairsBegin + shape.reads.size() * options.chunk * shape.rows / 2 + pairs * shape.rows;
  }

  VectorBuilder &b;
  const SweepShape &shape;
  const SweepOptions &options;
  const SweepLayout &layout;
  const SweepGroup &group;
  Value scratch;
};

} // namespace recur::cpu
