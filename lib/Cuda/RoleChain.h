// What a warpgroup of the chain knows while it works on a chunk.
#pragma once
#include "lib/Cuda/Roles.h"

namespace recur::cuda {

/// Factors of the tokens that a product sums over, as far as its right side has them.
RowFactors factorsOfDepth(const RolePlan &plan, const ChainProduct &product);

/// Entries of both rows in turns, `each` of a row at a time. Who has none gets `zero`.
Values inTurns(llvm::ArrayRef<mlir::Value> first, llvm::ArrayRef<mlir::Value> second, mlir::Value zero,
               size_t each);

/// The sum that a mix goes into, in an output, or null.
AddOp sumWith(chunk::MixOp mix);

/// With a decay of each row, what a thread keeps of it; all else follows from that where it is needed.
struct RoleEmitter::RowDecay {
  // Sums of its entries' natural logarithms, from a block of 16 tokens' first on, with each token's own; or
  // none, and then they are made again where they are needed.
  Values sums;
  mlir::Value sum[4][2]; // of its two rows the binary logarithm of what a block takes away
};

/// What decays in a chunk of a rescaled rule, of a thread's two rows, as binary logarithms.
struct RoleEmitter::Rescaling {
  // From the reference to the start of each 16 tokens; from the chunk's start to its end.
  mlir::Value before[4][2], end[2];
  // Of a piece of the chunk the token after its last one; else null.
  mlir::Value behind;
};

/// A product of the chain about to begin: the steps that have their left sides, what rows of those are
/// multiplied with, and what it is summed onto.
struct RoleEmitter::Issue {
  const ChainProduct *product;
  llvm::SmallVector<Step> steps = {};
  bool byDepth = false;
  RowScale scale = {};
  Values start = {};
};

/// A left side in pairs, and what its rows are multiplied with.
struct RoleEmitter::PackedLeft {
  Values pairs;
  RowScale scale;
};

struct RoleEmitter::ChainState {
  Stage stage;
  mlir::Value chunk, buffer, bufferPhase;
  mlir::Value columns; // address of the stage's numbers at the thread's first column
  // Entries of what is known; raw: before the factors of their columns.
  llvm::DenseMap<mlir::Value, Values> slabs, raw;
  // Slabs that are outputs alone, in pairs, as registers are few while they wait for the chunk's end.
  llvm::DenseMap<mlir::Value, Values> outputs;
  llvm::DenseMap<std::pair<mlir::Value, mlir::Value>, PackedLeft> packed;
  // The state at the start of the block that the chunk is one of, in pairs, where it is read.
  Values held;
  // What products are summed onto, where that was made ready ahead of their wave.
  llvm::DenseMap<const ChainProduct *, Values> starts;
  // Products, oldest first; several results where they are stacked.
  struct InFlight {
    Pending pending;
    llvm::SmallVector<std::pair<mlir::Value, size_t>> results; // and how many entries of a thread are theirs
    // With two states, the result in each of the thread's two rows, or null; or it is the sum of both.
    llvm::SmallVector<std::array<mlir::Value, 2>> ofRows;
    bool sumsRows = false;
    RowScale scale = {}; // what the sums' rows are to be divided by
  };
  llvm::SmallVector<InFlight> inFlight;
  // What is added to a state that goes from one reference to the next, until all of it is known.
  llvm::SmallVector<Issue, 1> written;
  // Numbers per column in registers, and which to fetch before which wait, as a rehearsal found.
  llvm::DenseMap<int64_t, Values> numbers;
  llvm::SmallVector<llvm::SmallVector<std::tuple<int64_t, bool, int64_t>>> fetches;
  // The same of slabs of tiles, in pairs.
  llvm::DenseMap<mlir::Value, Values> pairs;
  llvm::SmallVector<llvm::SmallVector<mlir::BlockArgument>> tileFetches;
  mlir::Value without; // a factor that values are computed without, or null
  unsigned waits = 0;
  bool rehearses = false;
  bool waitedForScores = false;
  bool isLastSlab = true; // of the warpgroup's

  std::optional<RowDecay> rowDecay;
  std::optional<Rescaling> rescaling;
  bool isPiece() const { return rescaling && rescaling->behind; }
  mlir::Value first, behind; // tokens of the chunk that are to be done now: the first, and the one after
  // Left sides of products that are made of the solution of systems that rows have for themselves: pairs or,
  // with f16, entries.
  llvm::DenseMap<const ChainProduct *, Values> solved;
  llvm::DenseMap<mlir::Value, Values> slices; // of inputs, at the block that is being solved for

  // Of the role.
  mlir::Value matrixLane, scoresBase;
};

} // namespace recur::cuda
