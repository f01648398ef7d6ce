// Factors that are kept beside H.
//
// A decay is not multiplied into H but into a factor beside it: one for all of H, or one for each row. What
// leaves a safe range is multiplied into H and begins anew; by rows these are few at a time, so that they are
// listed once for all column blocks.
#pragma once

#include "lib/Cpu/SweepPack.h"

namespace recur::cpu {

class SweepRescale {
public:
  using Value = mlir::Value;

  SweepRescale(VectorBuilder &b, const SweepShape &shape, const SweepOptions &options, Value scratch)
      : b(b), shape(shape), options(options), scratch(scratch) {}

  /// The f32 that a list takes: the number of its entries, and these.
  static int64_t listSize(const SweepShape &shape) { return shape.rowDecay ? 1 + shape.rows : 0; }

  /// Whether the factor of all rows is to be kept as it is, as i1.
  Value isSafe(Value factor);
  /// Which lanes hold factors of rows that are.
  Value areSafe(Value factors);
  /// Where those begin.
  static constexpr double freshScale = SweepPacker::freshScale;

  /// Appends the rows from `i` whose lanes are not `safe` to the list, which holds `count`; returns how many
  /// it holds then. For the last of them `end` writes the number.
  Value collect(Value safe, Value i, Value list, Value count);
  void end(Value list, Value count);

  /// Multiplies the rows of the block at `base`: all by `factor`, unless that is 1.
  void multiply(Value base, Value factor);
  /// The listed ones, each by its own of `factors`.
  void multiplyListed(Value base, Value list, Value factors);

private:
  void multiplyRow(Value base, Value row, Value own);
  Value integer(Value at);
  void storeInteger(Value x, Value at);
  Value word(int32_t value) { return mlir::arith::ConstantIntOp::create(b, value, 32); }

  VectorBuilder &b;
  const SweepShape &shape;
  const SweepOptions &options;
  Value scratch;
};

} // namespace recur::cpu
