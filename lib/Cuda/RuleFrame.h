// What kernels that run a rule's body token by token have in common: params, initial states, builtins.
#pragma once
#include "lib/Cuda/BodyEmitter.h"
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

struct Part;

/// The rule of one block of threads and what it keeps for a whole sequence.
class RuleFrame {
public:
  RuleFrame(mlir::ImplicitLocOpBuilder &b, RuleOp rule, llvm::ArrayRef<TensorArgument> tensors,
            const Grid &grid, const Placement &placement)
      : b(b), rule(rule), tensors(tensors), placement(placement), threads(b, grid), body(threads, placement),
        inputs(rule.argumentsOf(ArgKind::Input).size()), params(rule.argumentsOf(ArgKind::Param).size()),
        states(rule.argumentsOf(ArgKind::State)), stale(rule.argumentsOf(ArgKind::Stale)),
        outputs(rule.getOutputs().size()) {}

protected:
  unsigned initialTensor(unsigned state) const { return inputs + params + state; }
  unsigned outputTensor(unsigned output) const { return inputs + params + states.size() + output; }
  unsigned finalTensor(unsigned state) const { return inputs + params + states.size() + outputs + state; }

  /// Which part the block has.
  void setPart(const Part &part);
  /// The first ops of an entry point, and the last.
  void begin(mlir::LLVM::LLVMFuncOp function, TensorAccess &access);
  void end(Entry &entry);

  /// Sets params, which are kept for all tokens.
  void setParams(TensorAccess &access) { setParams(access, body, placement); }
  void setParams(TensorAccess &access, BodyEmitter &body, const Placement &placement);
  /// Emits the ops of the body that follow from params alone, which emitToken then leaves out.
  mlir::LogicalResult emitFixed();
  /// Sets the states before the first token.
  mlir::LogicalResult setStates(TensorAccess &access);
  /// Sets params, what follows from them, and those states, and waits for threads that have stored what
  /// others read of them.
  mlir::LogicalResult beginSequence(TensorAccess &access);
  /// Emits what a block does with a part's sequence: params and states, what `takeTokens` has them become
  /// where there are tokens, and final states.
  mlir::LogicalResult emitSequence(TensorAccess &access, const Part &part,
                                   llvm::function_ref<mlir::LogicalResult()> takeTokens);
  /// Emits the body for a token (i64), whose inputs are set but for micro-steps, or the `chosen` ops of it.
  mlir::LogicalResult emitToken(TensorAccess &access, mlir::Value token);
  llvm::SmallVector<Tile> outputTiles();
  void storeOutputs(TensorAccess &access, llvm::ArrayRef<Tile> tiles, mlir::Value token);
  void storeFinal(TensorAccess &access, unsigned state);
  void setBuiltins(BodyEmitter &body, mlir::Block &block, mlir::Value position);
  /// What is carried from token to token: states and stale states in all their layouts.
  llvm::SmallVector<mlir::Value> carriedOf(mlir::ValueRange stateValues);
  void setCarried(mlir::ValueRange entries);
  template <typename Action>
  void forLayouts(mlir::Value value, Action action) {
    for (Axis axis : {0, 1})
      if (placement.needs(value, axis))
        action(axis);
  }
  /// The inputs that are fetched ahead.
  template <typename Action>
  void forFetches(Action action) {
    for (unsigned i = 0; i < inputs; ++i)
      if (!mlir::isa<StepsType>(tensors[i].type))
        forLayouts(tensors[i].argument, [&](Axis axis) { action(i, axis); });
  }

  mlir::ImplicitLocOpBuilder &b;
  RuleOp rule;
  llvm::ArrayRef<TensorArgument> tensors;
  const Placement &placement;
  Threads threads;
  BodyEmitter body;
  unsigned inputs, params;
  llvm::SmallVector<mlir::BlockArgument> states, stale;
  unsigned outputs;
  const llvm::DenseSet<mlir::Operation *> *chosen = nullptr; // all
  // Of this block: i64.
  mlir::Value head, heads, tokens, position;

private:
  llvm::DenseSet<mlir::Operation *> fixed; // what emitFixed has emitted
  mlir::Value scratchSize;
};

} // namespace recur::cuda
