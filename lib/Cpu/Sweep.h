// The sweep form of a rule with one matrix state whose columns do not see each other.
//
// With H the transpose of the state as most specs write it, rows x columns:
//
//   y_r = b_r^T H            reads of the state before the token
//   z_w = f_w(y_1, y_2, ..)  column by column
//   H   = decay . H + sum_w e_w z_w^T
//
// The reads b_r, the writes e_w and the decay depend on the token alone. A group of a few tokens passes over H in one
// sweep of its rows, which also adds the writes of the group before; within the group the reads see earlier writes
// through the inner products of b and e, by substitution.
#pragma once

#include "lib/Cpu/VectorBuilder.h"
#include <optional>

namespace recur {

/// What one token does, apart from the code that computes it. Row vectors (b, e, the decay) are packed, once per token,
/// into numbered slots; so are scalars.
struct SweepShape {
  int64_t rows = 0, columns = 0; // of H
  unsigned rowSlots = 0;
  unsigned scalarSlots = 0;
  llvm::SmallVector<unsigned> reads, writes; // the row slot of each
  std::optional<unsigned> scalarDecay;       // scalar slot
  std::optional<unsigned> rowDecay;          // row slot; then no slot may serve two reads or writes
  bool columnDecay = false;                  // SweepRule::columnDecay gives it
};

/// How the loops are cut.
struct SweepOptions {
  int64_t lanes = 16;   // f32 in a register
  int64_t vectors = 2;  // registers across a block of columns
  int64_t group = 2;    // tokens per sweep
  int64_t chunk = 32;   // tokens packed at a time, a multiple of `group`
  int64_t fewSums = 4;  // with so few sums in flight each is split in two

  int64_t width() const { return lanes * vectors; }
  /// The best cut for a shape on a machine with `registers` vector registers of `lanes` f32.
  static SweepOptions choose(const SweepShape &shape, int64_t lanes, int64_t registers);
};

/// Where a token's row vectors and scalars go.
struct PackedToken {
  mlir::Value memory;
  mlir::Value rows, scalars; // positions of slot 0
  int64_t rowStride;         // from slot to slot; scalars are consecutive

  mlir::Value row(VectorBuilder &b, unsigned slot, mlir::Value i) const {
    return b.add(b.add(rows, i), slot * rowStride);
  }
};

/// What the column code of one token sees: `lanes` columns of H from `column`.
struct ColumnStep {
  mlir::Value token, column;
  llvm::SmallVector<mlir::Value> reads;                     // y
  llvm::function_ref<mlir::Value(unsigned slot)> scalar;    // a packed scalar in every lane
};

/// The parts of the kernel that differ from rule to rule.
class SweepRule {
public:
  virtual ~SweepRule() = default;
  SweepShape shape;

  /// Writes all row slots (padded with zeros to a multiple of the lanes) and scalar slots of a token.
  virtual void pack(VectorBuilder &b, mlir::Value token, const PackedToken &to) = 0;
  /// Computes the outputs of some columns, stores them, and returns z.
  virtual llvm::SmallVector<mlir::Value> step(VectorBuilder &b, const ColumnStep &at) = 0;
  /// The decay of some columns.
  virtual mlir::Value columnDecay(VectorBuilder &b, mlir::Value token, mlir::Value column) { return {}; }
  /// Asks for part `part` of `parts` of a token that will be packed soon. May lie past the last token.
  virtual void prefetch(VectorBuilder &b, mlir::Value token, mlir::Value block, int64_t blocks) {}
  /// Called when all columns of tokens `begin` to `end` are done.
  virtual void finish(VectorBuilder &b, mlir::Value begin, mlir::Value end) {}
};

/// Bytes of scratch memory that emitSweep's code uses.
int64_t sweepScratch(const SweepShape &shape, const SweepOptions &options);

/// Where emitSweep's code keeps H: column block by column block, each rows x width, at the start of the scratch.
/// Columns past the last are padding.
mlir::Value sweepStateAt(VectorBuilder &b, const SweepShape &shape, const SweepOptions &options, mlir::Value row,
                         mlir::Value column);

/// Emits the loop over `tokens` tokens on the state in `scratch` (memref<?xf32>). Returns the factor, an f32, that is
/// left to multiply the state by; null for 1.
mlir::Value emitSweep(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, mlir::Value tokens,
                      mlir::Value scratch);

} // namespace recur
