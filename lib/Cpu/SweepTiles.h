// The sweep with products of tiles of bf16 (AMX): groups of 16 tokens.
//
// With E a group's writes, B its reads and H a column block of the state, f32 in memory and bf16 beside it:
//
//   Y = B H                      tiles
//   y_t = Y_t + sum_{j<t} (b_t . e_j) z_j, and z_t of y_t, token after token, in vectors of f32
//   H = H + E^T Z                tiles
//
// The left operands, B as it is and E^T, are packed once for all column blocks; what a token sees of those
// before it, in f32, is made in registers that have a lane for each of these.
#pragma once

#include "lib/Cpu/SweepPack.h"
#include "lib/Cpu/SweepRequests.h"

namespace recur::cpu {

/// Where things are, in f32 from `layout.pairsBegin`.
struct TileLayout {
  TileLayout(const SweepShape &shape, const SweepOptions &options, const SweepLayout &layout);

  int64_t depth;                    // tokens and writes that one product sums over: 16, or 32 of two writes
  int64_t configBegin;              // of the tile registers
  int64_t groupsBegin, groupStride; // of what is packed for a group
  // From a group's begin. Of inner products there are 16 x 16 for each read and write of the two tokens.
  int64_t carry, leave, rescale, products, readTiles, writeTiles;
  // Of the group that is packed: its writes by rows, a lane for each token; decays between tokens; factors.
  int64_t turnedBegin, weightsBegin, inversesBegin, factorsBegin;
  // Of the group that is worked on: reads, writes, the right operand of the update.
  int64_t readsBegin, writesBegin, operandBegin;
  int64_t halvesBegin, halvesStride; // H in bf16, block by block: rows 2r and 2r + 1 interleaved
  int64_t size;
};

class SweepTiles {
public:
  static constexpr int64_t group = 16;

  SweepTiles(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, mlir::Value tokens,
             mlir::Value scratch, SweepBlocks blocks);

  static bool fit(const SweepShape &shape, int64_t lanes);
  /// See SweepRequests.
  static int64_t sharesOfRequests(const SweepShape &shape);

  /// Configures the tile registers, and makes the state's copy.
  void begin();
  /// As SweepEmitter::run; nothing stays pending.
  mlir::Value run(mlir::Value begin, mlir::Value from, mlir::Value to, mlir::Value scale);
  /// Gives the tile registers back.
  void end();

private:
  using Value = mlir::Value;
  using Values = VectorBuilder::Values;

  // Packing: SweepTilesPack.cpp.
  Value coefficients(Value from, Value to, Value ends, Value scale);
  Value scalarDecays(Value first, Value at, Value scale);
  void packReads(Value first, Value at, Value safe, Value fresh);
  void eachNear(llvm::function_ref<void(int64_t t, int64_t j, int64_t r, int64_t w)> body);
  void decayRows(Value first, Value at);
  void turnWrites(Value first);
  void products(Value first, Value at);
  void packWrites(Value at);

  void columnBlock(Value begin, Value from, Value to, Value block);
  void read(Value at, Value block);
  void solve(Value begin, Value first, Value at, Value block);
  void turnOperand(Value at);
  void multiplyRows(Value at, Value block);
  void update(Value at, Value block);
  void convertRows(Value row, int64_t count, Value block);

  Value groupAt(Value first);
  Value packed(Value first, Value i, int64_t token, unsigned slot);
  Value before(int64_t token);
  void call(llvm::StringRef intrinsic, mlir::ValueRange operands);
  void tile(llvm::StringRef intrinsic, int64_t tile, Value at, int64_t bytesOfRow);
  void product(int64_t sum, int64_t left, int64_t right);
  Value address(Value at);
  Value number(int64_t value, unsigned bits);
  Value halves(Value low, Value high);
  void steps(int64_t count, llvm::function_ref<void(Value)> body);

  int64_t width() const { return b.lanes * options.vectors; }

  VectorBuilder &b;
  SweepRule &rule;
  const SweepShape &shape;
  const SweepOptions &options;
  const SweepLayout layout;
  const TileLayout tiles;
  SweepPacker packer;
  SweepRequests requests;
  Value tokens, scratch, memory;
  SweepBlocks blocks;
  int64_t reads, writes;
  Value zero;
};

} // namespace recur::cpu
