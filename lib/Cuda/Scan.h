// The kernel of rules whose states go on entry by entry: stretches of the sequence side by side.
#pragma once
#include "lib/Cuda/Tensors.h"
#include "lib/Derive/Elementwise.h"
#include "llvm/ADT/DenseSet.h"

namespace recur::cuda {

/// A vector that numbers multiply from token to token and that is read along others, so that products between
/// tokens can be made of both (ScanQuads.h): s' = factor*s + written.
struct SumReads {
  struct Read {
    ReduceOp result;   // the number that is read
    mlir::Value along; // the vector
    bool isNew;        // of the state after the token, else before
  };
  mlir::Value factor, written;
  double constant = 0; // the factor where that is null
  llvm::SmallVector<Read> reads;
  /// What has the state's entries: those ops are not needed.
  llvm::DenseSet<mlir::Operation *> ofEntries;
};

/// Finds them, or nothing where more than that is done with the state.
std::optional<SumReads> findSumReads(RuleOp rule, const ScanForm &form,
                                     llvm::ArrayRef<TensorArgument> tensors);

/// How a scan's block works: each of the grid's groups takes `run` tokens in a row, all together a tile.
struct ScanShape {
  Grid grid;
  int64_t run = 8;
  /// Independent indices of a block.
  int64_t slab = 0;
  /// The groups' tokens are 16, for products of a warp.
  std::optional<SumReads> sums = std::nullopt;

  int64_t tokens() const { return grid.groups * run; }
};

/// What a kernel makes of segments of sequences.
enum class ScanTask {
  Whole,   // knows of none
  Gather,  // the map of each segment, into the workspace
  Segments // all else, each segment from what those before it make of the state
};

/// What entry points of a task have in common.
Entry entryOf(llvm::StringRef name, ScanTask task);

/// The shape for a bound rule whose independent indices, `index` of `classes`, are the rows of all states, or
/// 0 where all states are numbers; nothing where a thread would have too many entries.
std::optional<ScanShape> chooseScanShape(RuleOp rule, const ScanForm &form,
                                         llvm::ArrayRef<TensorArgument> tensors, const IndexClasses &classes,
                                         unsigned index);

/// The same where nothing is known of the updates but that states are vectors of these indices, or numbers: a
/// group of threads walks all tokens in turn. Its form has no phases.
std::optional<ScanShape> chooseTurnsShape(RuleOp rule, const IndexClasses &classes, unsigned index);

/// Emits the body of an entry point. The rule, that of one of the entry's shards, is as findScan left it.
/// Fails where threads would have to exchange values within a token while groups of them are at different
/// ones.
mlir::LogicalResult emitScan(mlir::LLVM::LLVMFuncOp function, RuleOp rule, const ScanForm &form,
                             llvm::ArrayRef<TensorArgument> tensors, const ScanShape &shape, ScanTask task,
                             int64_t sharedLimit, Entry &entry);

} // namespace recur::cuda
