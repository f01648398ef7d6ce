// What the scores' warpgroup knows while it works on a chunk.
#pragma once
#include "lib/Cuda/Roles.h"

namespace recur::cuda {

struct RoleEmitter::ScoreState {
  const ScoreRole *role = nullptr;
  llvm::DenseMap<mlir::Operation *, Values> sums; // of the products, by gram
  Values &sumsOf(const RolePlan &plan, chunk::GramOp gram) { return sums.find(plan.productOf(gram))->second; }
  mlir::Value index, phase;     // of the buffer that the chunk's scores go to
  mlir::Value buffer;           // where that is
  bool hasPlace = false;        // whether the buffer is known to be free
  mlir::Value numbers, masks;   // addresses of the stage's numbers and of those of masks
  mlir::Value ownRows, columns; // addresses of those at the thread's row and column
  mlir::Value rowLessColumn;    // the place of the thread's row less its column's, within a block
  mlir::Value warpRows;         // how far the warp's rows are into a tile
  Values blocks;                // a lane's place in a row of 16 x 16 blocks, for matrix loads and stores
  int64_t block = 0;            // of sums: that of the columns, or -1 for the one on the diagonal
  int64_t entries = 8;          // of a thread, of each block
  mlir::Value columnBlock;      // the number of the columns'
  llvm::DenseMap<unsigned, std::array<mlir::Value, 2>> rowValues;
  llvm::DenseMap<unsigned, Values> columnValues, ownColumns;
  llvm::DenseMap<int64_t, std::array<mlir::Value, 2>> maskRows; // by offset
  llvm::DenseMap<std::pair<unsigned, unsigned>, mlir::Value> decays;
  // Of scores that a vector is read beside, of the thread's two rows, as far as they are made; and of the
  // vector's own products, those of its queries first; and its entries.
  Values rowSums, ofVector, vector;

  // With a decay of each key: which of the warpgroups that share out the channels this is, and their barrier;
  // whether the warp's tokens decay beyond f32's range; addresses of numbers per channel, of the warp's too,
  // and of its rows of tiles by blocks of 16 columns.
  Stage stage;
  mlir::Value walker, meeting, chunk;
  mlir::Value tables, wild, channels, ownChannels;
  Values own;
  mlir::Value rowsAt;       // the tiles that these are in
  Values inclusive, strict; // left operands that sum over earlier tokens
  // With micro-steps: addresses of the rows of the warp's tokens, and of what these decay by; places of those
  // in a tile whose last micro-steps the thread's rows are. Which rows decay, as bits of pairs, where not all
  // do; or how many up to the thread's rows, and before them.
  Values ofTokens, ofLogs, counted;
  mlir::Value counts[2][2];
  LastRows lastRows;
  // Rows on the left of products, by input and span, packed; what blocks see of themselves, by product.
  llvm::DenseMap<std::pair<mlir::Value, unsigned>, Values> lefts;
  llvm::DenseMap<mlir::Operation *, Values> diagonals;
};

/// The slot of the logarithms, less numbers, of what a token that sees on some terms does see.
inline RowSlot slotOfReach(const RowFactors &less, mlir::Value decay, chunk::Reach reach) {
  RowSlot slot{less, decay};
  slot.atStart = reach == chunk::Reach::Start;
  slot.before = reach == chunk::Reach::Before || slot.atStart;
  return slot;
}

/// What the entries of scores that are a product between tokens times numbers are times.
struct RoleEmitter::PlainScore {
  chunk::GramOp gram;
  mlir::Value decay;         // or null
  RowFactors later, earlier; // numbers of the token that sees and of the one that is seen
  chunk::Reach reach = chunk::Reach::Inclusive;
  // Whether the earlier token's logarithm is less its numbers', and the later one's more by them.
  bool inExponent = false, laterInExponent = false;
  int mask = -1; // what reaches a coupled state

  /// Whether a token looks at the start of its block; whether it does not see its own decay.
  bool atStart() const { return reach == chunk::Reach::Start; }
  bool before() const { return reach == chunk::Reach::Before || atStart(); }

  // The slots of the later and earlier token's logarithms and numbers.
  Slot laterLog() const {
    RowFactors less(laterInExponent ? later : RowFactors());
    for (RowFactor &factor : less)
      factor.divides = !factor.divides;
    return slotOfReach(less, decay, reach);
  }
  Slot earlierLog() const { return {inExponent ? earlier : RowFactors(), decay}; }
  Slot laterNumber() const { return {laterInExponent ? RowFactors() : later, {}}; }
  Slot earlierNumber() const { return {inExponent ? RowFactors() : earlier, {}}; }
};

/// The place of the first token of a token's block, at whose start states are read.
inline mlir::Value firstOfBlock(Ptx &ptx, const RolePlan &plan, mlir::Value token) {
  return ptx.bits(token, -*plan.starts());
}

/// The warp of the first of those tokens, where a block has several warps'.
inline mlir::Value firstWarp(Ptx &ptx, const RolePlan &plan, mlir::Value warp) {
  return ptx.bits(warp, -(*plan.starts() / tokensOfWarp));
}

/// What walkers have of rows (entries of a block of 16) at those that blocks of less rows start with.
inline Values ofFirstRows(Ptx &ptx, const RolePlan &plan, mlir::Value lane, mlir::ValueRange entries) {
  Values results;
  mlir::Value source = ptx.bits(lane, 31 - 4 * (*plan.starts() - 1));
  for (mlir::Value entry : entries)
    results.push_back(ptx.shuffle(entry, source));
  return results;
}

} // namespace recur::cuda
