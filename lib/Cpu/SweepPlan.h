// From a rule's normal form to the sweep: which values a token packs, and the column code as sums of known terms.
#pragma once

#include "lib/Algebra/NormalForm.h"
#include "lib/Cpu/Sweep.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/MapVector.h"

namespace recur::cpu {

/// A number times packed scalars.
struct SweepFactor {
  double number = 1;
  std::optional<unsigned> scalar; // slot
};

/// A column of the column code. Token-only columns are read from the caller's input where they are one (`value` is then
/// an argument of the rule, or one micro-step of it) and from a packed slot otherwise.
struct SweepColumn {
  enum Kind { Packed, Input, Read, Row } kind;
  unsigned index = 0; // Packed: slot; Input: which of the inputs; Read, Row
  int64_t step = -1;  // Input: the micro-step, from 0; negative for none
};

/// factor * maps[0] .* maps[1] .* .. .* column
struct SweepTerm {
  SweepFactor factor;
  llvm::SmallVector<SweepColumn, 1> maps;
  SweepColumn column;
};
using SweepSum = llvm::SmallVector<SweepTerm, 2>;

/// What the sweep form of a rule is made of.
struct SweepPlan {
  /// Holds `form.rule`: a copy of the rule in which all states but the matrix are inputs. They do not depend on the
  /// matrix and run ahead of it; their new values are the copy's last outputs.
  mlir::OwningOpRef<mlir::ModuleOp> module;
  NormalForm form;
  SweepShape shape;
  unsigned state = 0;      // the matrix state, among the rule's states
  llvm::SmallVector<unsigned> sideArguments; // which arguments of the copy were states
  bool transposed = false; // H is the state's transpose
  double initial = 0;      // every entry of the state, where the caller gives none
  /// Token-only values by slot, in `form.rule`.
  llvm::SmallVector<mlir::Value> rowValues, columnValues, scalarValues;
  llvm::SmallVector<SweepSum> rows;   // by row of the normal form
  llvm::SmallVector<SweepSum> writes; // z, by write
  std::optional<SweepColumn> columnDecay;
  llvm::SmallVector<mlir::Value> outputs;
  /// What the outputs are computed from, by value: readouts as rows of the normal form, token-only columns and scalars.
  llvm::DenseMap<mlir::Value, SweepColumn> columns;
  llvm::DenseMap<mlir::Value, SweepFactor> scalars;
  /// Outputs that are not computed column by column (a norm of a readout, say) are left to a rule of its own, without
  /// states, which runs once all columns of a chunk are done. It has the rule's inputs and, after them, the readouts
  /// (`staged`, in column slots after those of `columnValues`) and what else it needs of a token (`kept`).
  bool hasEpilogue = false;
  llvm::SmallVector<mlir::Value> staged, kept;
};

/// The plan for a rule whose dimensions are bound, or why the sweep does not fit it.
struct SweepPlanResult {
  std::optional<SweepPlan> plan;
  std::string reason;
};
SweepPlanResult planSweep(RuleOp rule);

/// The rule that packs: the part of `rule` that does not depend on the matrix, with all other states. Its outputs are the
/// row slots, the column slots, the scalar slots and what the epilogue keeps, in order. Built into a module of its own.
mlir::OwningOpRef<mlir::ModuleOp> buildPackRule(const SweepPlan &plan, RuleOp rule);

/// The epilogue as a rule, in a module of its own.
mlir::OwningOpRef<mlir::ModuleOp> buildEpilogue(const SweepPlan &plan);

} // namespace recur::cpu
