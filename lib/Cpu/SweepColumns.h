// The column code of one token: sums of reads and token-only columns, and the outputs computed from them.
#pragma once

#include "lib/Cpu/SweepPlan.h"

namespace recur::cpu {

/// Builds, for `lanes` columns of one token, what a plan describes. Everything is built where it is first
/// asked for.
class SweepColumns {
public:
  using Value = mlir::Value;

  /// `load` gives a token-only column, `scalar` a packed scalar in every lane.
  SweepColumns(VectorBuilder &b, const SweepPlan &plan, llvm::ArrayRef<Value> reads,
               llvm::function_ref<Value(const SweepColumn &)> load,
               llvm::function_ref<Value(unsigned)> scalar)
      : b(b), plan(plan), reads(reads), load(load), scalar(scalar), rows(plan.rows.size()) {}

  Value column(const SweepColumn &column);
  Value sum(const SweepSum &terms);
  /// A value of the rule that is an output or leads to one.
  Value output(Value value);

private:
  Value factor(const SweepFactor &factor);

  VectorBuilder &b;
  const SweepPlan &plan;
  llvm::ArrayRef<Value> reads;
  llvm::function_ref<Value(const SweepColumn &)> load;
  llvm::function_ref<Value(unsigned)> scalar;
  llvm::SmallVector<Value> rows;
  llvm::DenseMap<Value, Value> outputs;
};

} // namespace recur::cpu
