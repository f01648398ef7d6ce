// The sweep with products of tiles of bf16 (AMX): groups of 32 tokens, in two parts of 16.
//
// With E a group's writes, B its reads and H a column block of the state, f32 in memory and bf16 beside it:
//
//   Y = B H + P Z                    tiles; P: what a token sees of the part before
//   y_t = Y_t + sum_{j<t} (b_t . e_j) z_j, and z_t of y_t, token after token of a part, in vectors of f32
//   H = decay . H + E^T Z            the product in tiles, its sum with H in vectors
//
// What is added to H goes through a buffer of a few strips of rows: a tile of H would be loaded and stored by
// instructions that overlap with nothing, whereas vectors multiply the decay in and make the copy on the way.
//
// Where writes do not depend on reads, P has what a token sees of its own part, too, and nothing is solved
// for. The left operands, B, P and E^T, are packed once for all column blocks; a chunk is one group.
#pragma once

#include "lib/Cpu/SweepGroup.h"
#include "lib/Cpu/SweepRequests.h"

namespace recur::cpu {

/// Where things are, in f32 from `layout.pairsBegin`.
struct TileLayout {
  TileLayout(const SweepShape &shape, const SweepOptions &options, const SweepLayout &layout);

  int64_t configBegin;  // of the tile registers
  int64_t controlBegin; // the caller's floating-point control word, and ours
  int64_t decaysBegin;  // of the group, then of its parts; by rows: laterBegin, factorsBegin
  // Packed for all column blocks: the left operands of the tiles, and what a token sees of those before it,
  // in f32: for each pair of parts, read and write 16 x 16, of the part itself and of one before.
  int64_t readTilesBegin, scoreTilesBegin, writeTilesBegin, squaresBegin;
  // On the way there. The writes of a part by rows, a lane for each token, in f32 and, for inner products, in
  // bf16; the reads for these; decays between the tokens of a part and to its end; those of each row after
  // the first part, and of the group.
  int64_t turnedBegin, keysBegin, queriesBegin, weightsBegin, endsBegin, carryBegin, laterBegin, factorsBegin;
  // Of the column block that is worked on: reads, and after these what is added to H; a part's writes; the
  // right operand of those of the group.
  int64_t readsBegin, writesBegin, operandBegin;
  int64_t halvesBegin, halvesStride; // H in bf16, block by block: rows 2r and 2r + 1 interleaved
  int64_t size;
};

class SweepTiles {
public:
  static constexpr int64_t part = 16, parts = 2, group = parts * part;

  SweepTiles(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, mlir::Value scratch,
             SweepBlocks blocks);

  static bool fit(const SweepShape &shape, int64_t lanes);
  /// How many parts are read at once.
  static int64_t partsAtOnce(const SweepShape &shape);
  /// See SweepRequests. Where writes are solved for, that spreads requests enough; else these loops of a
  /// column block do.
  static int64_t sharesOfRequests(const SweepShape &shape, const SweepOptions &options);
  enum Loop { Reads, Outputs, Updates };

  /// Configures the tile registers, makes the state's copy, and takes subnormal numbers for zeros, as
  /// products of tiles do: decays multiplied together over a group would be many, each of which takes 150
  /// cycles.
  void begin();
  /// Runs the packed group that begins at token `begin`. Nothing stays pending.
  void run(mlir::Value begin);
  /// Gives the tile registers and the control word back.
  void end();

private:
  using Value = mlir::Value;
  using Values = VectorBuilder::Values;

  // Packing: SweepTilesPack.cpp.
  void coefficients();
  void scalarDecays();
  void eachNear(llvm::function_ref<void(int64_t t, int64_t j, int64_t r, int64_t w)> body);
  void decayRows(Value p);
  void turnWrites(Value p);
  void nearProducts(Value p);
  void packKeys();
  void packReads();
  void packWrites();
  void products();
  void weigh();
  void packScores();

  // A column block: SweepTilesBlock.cpp.
  void askFor(Value begin, Value inChunk, int64_t count, Value block);
  void makeRequests(Loop loop, Value step);
  void columnBlock(Value begin, Value block);
  void read(Value first, Value block);
  void knownWrites(Value begin, Value block);
  void outputs(Value begin, Value block);
  void solve(Value begin, Value p, Value block);
  void storeOperand(Value p, Value t, int64_t w, int64_t x, Value low, Value high);
  void update(Value block);
  void addProduct(Value row, Value product, Value block);
  void convertRows(Value row, int64_t count, Value block);

  Value packed(Value first, Value i, int64_t token, unsigned slot);
  Value square(Value p, Value q, int64_t r, int64_t w);
  Value before(int64_t token);
  Value scoreTiles(Value p);
  bool needsQueries(int64_t p) { return p > 0 || !shape.rowDecay; }
  void call(llvm::StringRef intrinsic, mlir::ValueRange operands);
  Value call(llvm::StringRef intrinsic, mlir::Type type, mlir::ValueRange operands);
  void tile(llvm::StringRef intrinsic, int64_t tile, Value at, int64_t bytesOfRow);
  void product(int64_t sum, int64_t left, int64_t right);
  Value address(Value at);
  Value number(int64_t value, unsigned bits);
  Value halves(Value low, Value high);
  Value interleaved(Value low, Value high);
  void storeHalves(Value halves, Value at);
  void steps(int64_t count, llvm::function_ref<void(Value)> body);

  int64_t width() const { return b.lanes * options.vectors; }

  VectorBuilder &b;
  SweepRule &rule;
  const SweepShape &shape;
  const SweepOptions &options;
  const SweepLayout layout;
  const TileLayout tiles;
  SweepRequests requests;
  Value scratch, memory;
  SweepBlocks blocks;
  int64_t reads, writes;
  Value zero;
};

// Tile registers, all of 16 rows of 64 bytes: sums, and right and left operands.
namespace amx {
inline constexpr int64_t sums = 4, rights = 4, lefts = 6;
inline constexpr llvm::StringLiteral load = "llvm.x86.tileloadd64", store = "llvm.x86.tilestored64",
                                     clear = "llvm.x86.tilezero";
} // namespace amx

} // namespace recur::cpu
