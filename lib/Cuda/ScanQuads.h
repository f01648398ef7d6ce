// Scans of one vector that numbers multiply from token to token, and that numbers are read of along vectors:
// a normaliser, the sum of the keys.
//
// Entry by entry each read is a sum over a warp's lanes for each token. Here a warp has 16 tokens in a row,
// of which four lanes have one and the one eight later, as fragments of mma.sync come from memory
// (TileKernel.cpp). What those tokens read of one another is products between tokens, times products of
// factors from one to the other, which a table in shared memory has: factors may be zero, or negative. What
// was there before them is read of the state itself. All of that is as exact as entry by entry: operands are
// what memory holds in 16 bits, or two bf16, and the state is f32.
//
// Vectors come through shared memory, as rows of memory, while the tile before is worked on: each lane asking
// for its packets takes as long as all else.
#pragma once
#include "lib/Cuda/Fragments.h"
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/ScanEmitter.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/MathExtras.h"

namespace recur::cuda {

/// A warp's tokens, and the entries of a token that its four lanes have together, a packet each.
constexpr int64_t tokensOfWarp = 16, entriesOfStep = 16, entriesOfPacket = 4;

/// A vector as numbers times another one.
struct ScaledVector {
  mlir::Value vector;
  llvm::SmallVector<std::pair<mlir::Value, bool>> numbers; // and whether they divide

  explicit ScaledVector(mlir::Value value);
};

/// A vector's entries in pairs as products read them, of both tokens of a lane: in one part where memory has
/// them in 16 bits, else in two.
struct PairedVector {
  llvm::SmallVector<llvm::SmallVector<mlir::Value>> parts[2];
};

/// What the four lanes of a token have, and of the token eight later.
struct ScanEmitter::Quads {
  Quads(ScanEmitter &scan, const TensorAccess &access);

  mlir::Value constant(int64_t n) { return threads.constant(n); }
  mlir::Value number(mlir::Value value, int64_t which) { return bodies[which].get(value, 0).entries[0]; }
  /// The product of a vector's numbers.
  mlir::Value scaleOf(const ScaledVector &scaled, int64_t which);
  /// A vector's entries, zero where there are none.
  llvm::SmallVector<mlir::Value> entriesOf(mlir::Value vector, int64_t which);
  /// What memory has of a vector in 16 bits, or null.
  mlir::FloatType elementOf(mlir::Value vector) const;
  PairedVector paired(mlir::Value vector, mlir::FloatType element);
  /// Products between a warp's tokens, rows of the later ones: four numbers for each eight columns.
  llvm::SmallVector<mlir::Value> multiply(mlir::Value later, mlir::Value earlier);
  mlir::Value exchange(mlir::Value x, int64_t distance);
  void meet() { mlir::NVVM::SyncWarpOp::create(b, constant(-1)); }
  mlir::Value packPair(mlir::FloatType element, mlir::Value low, mlir::Value high);
  /// Two numbers of 32 bits as three pairs of bf16 that add up to them.
  llvm::SmallVector<mlir::Value> digitsOf(mlir::Value low, mlir::Value high);

  /// Sets up the ring's two places for vectors that can be copied, if there is room. Others wait in
  /// registers.
  void makeRing(int64_t tokens);
  /// Whether all of a vector's entries are in the ring, in bf16, as products read them.
  bool isInPlace(mlir::Value vector) const;
  /// Of such a vector 16 entries at a time of the warp's tokens: as left operands, and as right ones of both
  /// eights of tokens.
  llvm::ArrayRef<Values> leftsOf(mlir::Value vector) { return operandsOf(vector, /*areLeft=*/true); }
  llvm::ArrayRef<Values> rightsOf(mlir::Value vector) { return operandsOf(vector, /*areLeft=*/false); }
  /// Asks for the vectors of a tile, if there is such a tile.
  void ask(mlir::Value first, mlir::Value place);
  /// Inputs of both tokens that wait in registers.
  llvm::SmallVector<mlir::Value> fetch(mlir::Value first);
  /// Sets a tile's inputs.
  void take(mlir::ValueRange fetched, mlir::Value first, mlir::Value place);

  /// Makes room for a vector of the warp in three bf16 parts, and zeros for what products read beside them;
  /// stores four entries of a part, and loads a right operand, whose columns are parts.
  void makeDigits();
  void storeDigits(mlir::Value entry, mlir::ValueRange entries);
  Values loadDigits(int64_t step);

  /// The address of a row's entry of the warp's table, `column` and as many as `more` says.
  mlir::Value tableAt(mlir::Value row, int64_t column, mlir::Value more = {});

  /// A row for what each token sees after it, before them one for what the first one finds: of each token
  /// what it writes is times, and behind those what the state from before is times. Then rows of the tokens'
  /// factors, and of what they write is times at first.
  static constexpr int64_t factorsRow = tokensOfWarp + 1, weightsRow = factorsRow + 1,
                           tableRows = weightsRow + 1, tablePitch = tokensOfWarp + 4;

  ScanEmitter &scan;
  mlir::ImplicitLocOpBuilder &b;
  Grid grid;
  Placement placement;
  Threads threads;
  TensorAccess access;
  BodyEmitter bodies[2]; // of a token and the one eight later
  Fragments fragments, ofF16;
  mlir::Value lane, column, row; // the lane's place: of four, and which four
  mlir::Value table;
  mlir::Value places[2], isToken[2];  // of a tile's tokens
  llvm::DenseSet<mlir::Value> needed; // values that what the task makes follows from

private:
  struct Ringed {
    unsigned tensor;
    int64_t at, pitch; // bytes
  };
  mlir::Value placeOf(mlir::Value first, int64_t which);
  mlir::Value digitsAt(mlir::Value part, mlir::Value entry);
  mlir::Value matricesOf(mlir::Value vector, bool tokensFirst);
  llvm::ArrayRef<Values> operandsOf(mlir::Value vector, bool areLeft);
  llvm::SmallVector<mlir::Value> multiplyInPlace(mlir::Value later, mlir::Value earlier);
  const Ringed *ringedOf(unsigned tensor) const;
  int64_t entriesIn(const Ringed &own) const { return scan.tensors[own.tensor].entry().numElements(); }
  /// The bytes from a row of so many entries of 16 bits to the next: eight of them, sixteen bytes each, lie
  /// in banks of their own.
  static int64_t pitchOf(int64_t entries) { return llvm::alignTo(2 * entries, 32) + 16; }
  template <typename Action>
  void forInputs(Action action);

  mlir::Value ofWarp, last; // i64: the first token's place in a tile, and the sequence's last one
  llvm::SmallVector<Ringed> ringed;
  Staged ring;
  mlir::Value digits;
  mlir::Value tilePlace; // of the tile whose inputs are set
  int64_t placeBytes = 0, tileTokens = 0, digitPitch = 0;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<mlir::Value>> packets[2];
  llvm::DenseMap<mlir::Value, llvm::SmallVector<Values>> lefts, rights; // of a tile
};

} // namespace recur::cuda
