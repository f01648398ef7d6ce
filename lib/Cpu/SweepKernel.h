// The sweep of a planned rule as a kernel function.
#pragma once

#include "lib/Cpu/Passes.h"
#include "lib/Cpu/SweepPlan.h"

namespace recur::cpu {

/// The code of a plan on the arguments of a kernel function (see the pass recur-to-linalg for their order).
class PlannedRule : public SweepRule {
public:
  using Value = mlir::Value;

  /// `tensors` are the kernel's, whose arguments are looked at from `b` on; `isPacked` says which inputs the
  /// packer reads; `packer` and `epilogue` (null without one) are the functions made from buildPackRule's and
  /// buildEpilogue's rules.
  PlannedRule(VectorBuilder &b, const SweepPlan &plan, const SweepOptions &options,
              llvm::ArrayRef<KernelTensor> tensors, llvm::ArrayRef<bool> isPacked, mlir::func::FuncOp kernel,
              mlir::func::FuncOp packer, mlir::func::FuncOp epilogue);

  /// True, as i1, when there is a token to run.
  Value hasTokens(VectorBuilder &b);
  /// Emits the body: from initial to final states, for the part of the columns that the kernel is called for.
  void emit(VectorBuilder &b);
  /// Whether the rule has no outputs: then it gathers what a segment makes of states. Its matrix begins with
  /// the rule's number whatever is given, there are tokens, and entries of all columns are neighbours.
  bool isGather() { return views(Role::Output).empty(); }
  /// Emits the call of a function that does all parts at once; it is made for the first of them.
  void callWhole(VectorBuilder &b, mlir::func::FuncOp function);
  /// True, as i1, when the entries of all columns that are read or written in place are neighbours.
  Value isDense(VectorBuilder &b);

  void pack(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch, mlir::Value begin,
            mlir::Value count) override;
  void lookAhead(VectorBuilder &b, mlir::Value begin) override;
  void enter(VectorBuilder &b, const SweepLayout &layout, SweepRequests &requests, const ColumnStep &at,
             mlir::Value block) override;
  llvm::SmallVector<mlir::Value> step(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch,
                                      const ColumnStep &at) override;
  void leave(VectorBuilder &b) override;
  llvm::SmallVector<mlir::Value> knownWrites(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch,
                                             const ColumnStep &at) override;
  mlir::Value columnDecay(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch,
                          const ColumnStep &at) override;
  void finish(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch, mlir::Value begin,
              mlir::Value count) override;

private:
  using Values = VectorBuilder::Values;

  mlir::ValueRange views(Role role);
  void sweep(VectorBuilder &b, Value scratch, Value initial, Value final);
  Values tokens(VectorBuilder &b, Role role, Value begin, Value count);
  // One of the caller's tensors as it is asked for: whether the packer or the epilogue uses its rows, and how
  // many lines and entries a token's share has for each column block.
  struct Rows {
    Value view;
    bool packed, write;
    int64_t steps, share, lines, line;
  };
  llvm::SmallVector<Rows> rowsToAskFor();

  Value mask(VectorBuilder &b, Value column);
  Value loadColumn(VectorBuilder &b, const SweepLayout &layout, Value scratch, const SweepColumn &column,
                   const ColumnStep &at);
  Value loadScalar(VectorBuilder &b, const SweepLayout &layout, Value scratch, unsigned slot,
                   const ColumnStep &at);
  Value loadInput(VectorBuilder &b, const SweepColumn &column, const ColumnStep &at);
  void storeOutput(VectorBuilder &b, Value x, Value view, const ColumnStep &at);
  // Some columns of an output, in f32.
  struct Output {
    Value x, view;
    Values place;
  };
  void store(VectorBuilder &b, const Output &output);
  void storeLine(VectorBuilder &b, llvm::ArrayRef<Output> line);
  Value passesCaches(VectorBuilder &b);

  const SweepPlan &plan;
  SweepOptions options;
  mlir::func::FuncOp kernel, packer, epilogue;
  llvm::SmallVector<Role> roles;
  Values given;                     // the caller's tensors; those of tokens without dimensions of 1
  llvm::SmallVector<bool> isPacked; // by input
  Value tokenCount, position, head, heads;
  Value part, parts; // null where the kernel does all columns
  SweepBlocks blocks;
  Values sideBuffers; // the states that the packer carries from chunk to chunk
  Values keptBuffers; // what the epilogue needs of each token of a chunk
  // Whether outputs are stored past the caches, as i1; null where they never are. Then those of a token are
  // stored together.
  Value streams;
  llvm::SmallVector<Output> waiting;
};

} // namespace recur::cpu
