// The sweep form of a rule with one matrix state whose columns do not see each other.
//
// With H the transpose of the state as most specs write it, rows x columns:
//
//   y_r = b_r^T H            reads of the state before the token
//   z_w = f_w(y_1, y_2, ..)  column by column
//   H   = decay . H + sum_w e_w z_w^T
//
// The reads b_r, the writes e_w and the decay depend on the token alone. A group of a few tokens passes over
// H in one sweep of its rows, which also adds the writes of the group before; within the group the reads see
// earlier writes through the inner products of b and e, by substitution.
#pragma once

#include "lib/Cpu/VectorBuilder.h"
#include <optional>

namespace recur::cpu {

/// What one token does, apart from the code that computes it. Row vectors (b, e, the decay), columns and
/// scalars are packed, once per token, into numbered slots.
struct SweepShape {
  int64_t rows = 0, columns = 0; // of H
  unsigned rowSlots = 0, columnSlots = 0, scalarSlots = 0;
  llvm::SmallVector<unsigned> reads, writes; // the row slot of each
  std::optional<unsigned> scalarDecay;       // scalar slot
  std::optional<unsigned> rowDecay;          // row slot; then no slot may serve two reads or writes
  bool columnDecay = false;                  // SweepRule::columnDecay gives it
  bool knownWrites = false;                  // no z depends on reads; SweepRule::knownWrites gives them
  int64_t requests = 0;                      // lines that SweepRule::enter asks for, at most
};

/// How the loops are cut.
struct SweepOptions {
  int64_t lanes = 16;     // f32 in a register
  int64_t vectors = 2;    // registers across a block of columns
  int64_t group = 2;      // tokens per sweep
  int64_t chunk = 32;     // tokens packed at a time, a multiple of `group`, or a group of tiles
  int64_t registers = 32; // of vectors

  bool pairs = false; // products of pairs of bf16; see SweepPairs.h
  bool tiles = false; // products of tiles of bf16; see SweepTiles.h. `group` is then of the tokens left over

  /// Requests for lines that are needed later are spread evenly: see SweepRequests.h. Otherwise the pages of
  /// a chunk are looked up together, ahead of such requests.
  bool spread = false;

  int64_t width() const { return lanes * vectors; }
  /// How many sums a read of `group` tokens is split into, over rows that are swept together: each takes one
  /// addition per row, whose latency others have to hide.
  int64_t partialSums(const SweepShape &shape, int64_t group) const;
  /// The best cut for a shape on a machine with `registers` vector registers of `lanes` f32; with products of
  /// `pairs` or `tiles` of bf16 where that is possible.
  static SweepOptions choose(const SweepShape &shape, int64_t lanes, int64_t registers, bool pairs = false,
                             bool tiles = false);
};

/// Where things are in the scratch memory, an f32 memref. All positions count f32. H comes first, column
/// block by column block, each rows x width; columns past the last are padding. With products of pairs, rows
/// 2r and 2r + 1 are interleaved.
struct SweepLayout {
  SweepLayout(const SweepShape &shape, const SweepOptions &options);

  int64_t columns;                   // padded to whole blocks
  int64_t blocks, blockStride;       // of H
  int64_t rowStride, rowSlotStride;  // of packed rows, from token to token and from slot to slot
  int64_t columnSlotStride;          // of packed columns; from token to token it is `columns`
  int64_t rowsBegin, columnsBegin;   // token 0 of slot 0; before it is the last group of the chunk before
  int64_t scalarsBegin, scalarSlots; // the scalars of a token are consecutive
  int64_t coefficientsBegin; // of the group that begins at token 0; before it those of the group before
  int64_t scalesBegin;       // the factor of each row, for a decay by rows
  int64_t pendingBegin, pendingStride; // of what a chunk leaves to the next, and from block to block
  int64_t pairsBegin;                  // of what SweepPairs or SweepTiles packs
  int64_t requestsBegin;               // of the queue of SweepRequests
  int64_t size;                        // f32 in all
};

/// The column blocks of H from `begin` to before `end`.
struct SweepBlocks {
  mlir::Value begin, end;
};

/// What the column code of one token sees: `lanes` columns of H from `column`.
struct ColumnStep {
  mlir::Value token, inChunk, column;
  llvm::SmallVector<mlir::Value> reads; // y
};

class SweepRequests;

/// The parts of the kernel that differ from rule to rule.
class SweepRule {
public:
  virtual ~SweepRule() = default;
  SweepShape shape;

  /// Fills all slots of `count` tokens from `begin`. Rows are padded with zeros to their stride.
  virtual void pack(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch, mlir::Value begin,
                    mlir::Value count) = 0;
  /// Called when a chunk that begins at token `begin` is packed, where requests are not spread: looks up
  /// the pages of the next one.
  virtual void lookAhead(VectorBuilder &b, mlir::Value begin) {}
  /// Called before the column code of a token, for each of the column blocks: asks for lines that are needed
  /// later.
  virtual void enter(VectorBuilder &b, const SweepLayout &layout, SweepRequests &requests,
                     const ColumnStep &at, mlir::Value block) {}
  /// Computes the outputs of some columns, stores them, and returns z.
  virtual llvm::SmallVector<mlir::Value> step(VectorBuilder &b, const SweepLayout &layout,
                                              mlir::Value scratch, const ColumnStep &at) = 0;
  /// Called when that has been done for all columns of a block.
  virtual void leave(VectorBuilder &b) {}
  /// z of some columns, from what does not depend on the state.
  virtual llvm::SmallVector<mlir::Value> knownWrites(VectorBuilder &b, const SweepLayout &layout,
                                                     mlir::Value scratch, const ColumnStep &at) {
    return {};
  }
  /// The decay of some columns.
  virtual mlir::Value columnDecay(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch,
                                  const ColumnStep &at) {
    return {};
  }
  /// Called when all columns of `count` tokens from `begin` are done.
  virtual void finish(VectorBuilder &b, const SweepLayout &layout, mlir::Value scratch, mlir::Value begin,
                      mlir::Value count) {}
};

/// Emits the loop over `tokens` tokens on some blocks of the state in `scratch` (memref<?xf32>). Returns the
/// factor, an f32, that is left to multiply the state by; null for 1.
mlir::Value emitSweep(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, mlir::Value tokens,
                      mlir::Value scratch, SweepBlocks blocks);

} // namespace recur::cpu
