// The kernel that takes one token after the other: any rule with a state of fixed size.
#pragma once
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

/// Emits the body of an entry point. The rule is that of one of the entry's shards, which has `slab` indices
/// of the class that blocks share out.
mlir::LogicalResult emitSequential(mlir::LLVM::LLVMFuncOp function, RuleOp rule,
                                   llvm::ArrayRef<TensorArgument> tensors, const Grid &grid,
                                   const Placement &placement, int64_t slab, int64_t sharedLimit,
                                   Entry &entry);

/// The same for sequences of many tokens, of which what the states need is computed ahead. Fails, and says
/// nothing, where shared memory has no room for that.
mlir::LogicalResult emitAhead(mlir::LLVM::LLVMFuncOp function, RuleOp rule,
                              llvm::ArrayRef<TensorArgument> tensors, const Grid &grid,
                              const Placement &placement, int64_t slab, int64_t sharedLimit, Entry &entry);

/// Emits the body of an entry point that takes segments of sequences, for a rule whose states pass.
mlir::LogicalResult emitTokens(mlir::LLVM::LLVMFuncOp function, RuleOp rule,
                               llvm::ArrayRef<TensorArgument> tensors, const Grid &grid,
                               const Placement &placement, int64_t slab, int64_t sharedLimit, Entry &entry);

/// Whether all that a token has, and there are no states, is numbers and vectors of a few entries, for which
/// the lanes of a warp are too many.
bool hasFewNumbers(RuleOp rule);
/// Whether a rule multiplies vectors by params, its states are inputs of tokens before, and a kernel knows
/// all of its products; or it has few numbers.
bool isForTiles(RuleOp rule, llvm::ArrayRef<TensorArgument> tensors);
/// The threads of that kernel.
Grid gridOfTiles();
/// Emits the body of an entry point for it.
mlir::LogicalResult emitTiles(mlir::LLVM::LLVMFuncOp function, RuleOp rule,
                              llvm::ArrayRef<TensorArgument> tensors, const Grid &grid,
                              const Placement &placement, Entry &entry);

/// Whether a rule's vectors, but for what its stages hand over, have 11 bits at most.
bool areNarrow(llvm::ArrayRef<TensorArgument> tensors);
/// Where they do, lets exponentials, quotients and roots have little more than 20.
void relaxMath(mlir::LLVM::LLVMFuncOp function, llvm::ArrayRef<TensorArgument> tensors);
/// The same of one operation.
void relax(mlir::Operation *op);
/// Does so for what a builder makes.
struct Relaxing : mlir::OpBuilder::Listener {
  void notifyOperationInserted(mlir::Operation *op, mlir::OpBuilder::InsertPoint) override { relax(op); }
};
/// Whether a quotient is such a one over one and something, as sigmoids are: never of so small a number that
/// it would leave f32's range, so that nothing need be scaled for it.
bool isReciprocalOnUnit(mlir::arith::DivFOp op);

} // namespace recur::cuda
