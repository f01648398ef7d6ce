// A chunk program as code of one block of threads. Values between tokens and functions of one token are made
// by all warps and lie in shared memory; what depends on the state lies in registers, each warp with 16 of
// the state's independent rows.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "lib/Cuda/BodyEmitter.h"
#include "lib/Cuda/Fragments.h"
#include "lib/Cuda/SharedArena.h"
#include "lib/Cuda/Tensors.h"

#include <optional>

namespace recur::cuda {

/// What a value of a chunk program is to the block.
struct ChunkValue {
  enum Kind {
    Scalar, // `entries[0]`
    Rows,   // a column of numbers, f32, in shared memory: one for each token or channel
    Tile,   // a row per token in shared memory; rows perhaps to be scaled
    Scores, // tokens by tokens: each warp 16 rows by a part of the columns
    Slab,   // 16 independent indices of the warp by tokens or keys
    Weights // weights of channels, to be multiplied with something
  } kind = Scalar;
  llvm::SmallVector<mlir::Value> entries; // Scalar, Scores, Slab
  SharedTile memory;                      // Rows, Tile
  SharedTile scale;        // of a Tile's rows: memory like that of Rows, or none; see Decay for Weights
  bool transposed = false; // of a Tile
  int dim = 0;             // Rows: the dimension they lie along; Slab: that of the independent indices
  int64_t rows = 0;        // independent indices of a Slab

  static ChunkValue scalar(mlir::Value entry) { return {Scalar, {entry}, {}, {}, false, 0, 0}; }
  static ChunkValue column(SharedTile memory) { return {Rows, {}, memory, {}, false, 0, 0}; }
  static ChunkValue tile(SharedTile memory) { return {Tile, {}, memory, {}, false, 0, 0}; }
  static ChunkValue scores(llvm::ArrayRef<mlir::Value> entries) {
    return {Scores, llvm::to_vector(entries), {}, {}, false, 0, 0};
  }
  static ChunkValue slab(llvm::ArrayRef<mlir::Value> entries, int64_t rows, int dim = 1) {
    return {Slab, llvm::to_vector(entries), {}, {}, false, dim, rows};
  }
};

/// A whole number of 16.
inline int64_t padded(int64_t n) { return llvm::alignTo(n, 16); }

/// How the block is set up for a program.
struct ChunkShape {
  int64_t tokens = 64; // of a chunk
  int64_t warps = 8;
  Precision precision = Precision::Bf16;
  /// Whether blocks wait for memory that is free after a barrier, rather than take more.
  bool savesMemory = true;

  /// The threads that share a token's channels: eight, or more where there are fewer tokens than eights.
  Grid tokenGrid() const {
    int64_t lanes = std::clamp<int64_t>(warps * 32 / tokens, 8, 32);
    return {lanes, lanes};
  }
};

/// Emits the body of a program once, for one chunk.
class ChunkEmitter {
public:
  ChunkEmitter(Threads &threads, chunk::ProgramOp program, TensorAccess &access,
               llvm::ArrayRef<TensorArgument> tensors, const ChunkShape &shape, SharedArena &arena);

  /// Why this emitter does not take the program; nothing if it does.
  static std::optional<std::string> refusal(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors);
  /// The dimension of a state, 0 or 1, whose indices are independent.
  static int stateDim(mlir::Value state);
  /// Whether a state lies in registers; else it is a column of numbers in shared memory.
  static bool isSlab(mlir::Value state);
  /// What products of a program read, by the types of the tensors.
  static Precision findPrecision(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors);
  /// The number of warps for a program.
  static int64_t countWarps(chunk::ProgramOp program);

  /// Emits what is needed once.
  void begin(mlir::Value head, mlir::Value heads, mlir::Value position);
  /// One chunk: tokens from `first`, of which `left` are in the sequence. Takes the states at its start; they
  /// become those at its end.
  mlir::LogicalResult emit(mlir::Value first, mlir::Value left, llvm::MutableArrayRef<ChunkValue> states);
  /// What emit() did not know how to compute.
  std::string blame() const;

  /// Whether all products of a program with tokens' rows are such that f16 does where tf32 would.
  static bool fitsHalves(chunk::ProgramOp program);

  /// The warp's first independent index among `rows`; warps past the end repeat others.
  mlir::Value slabRow(int64_t rows);
  /// Whether the warp is the one that writes its rows; null if all are.
  mlir::Value isSlabOwner(int64_t rows);
  /// Runs the body for each index below `count`, shared out to all threads.
  void forItems(int64_t count, llvm::function_ref<void(mlir::Value)> body);

  Fragments fragments;
  /// Warps that share out the rows of a slab; the others have another one.
  int64_t slabWarps;
  /// Whether a chunk asks for the inputs of the next one, which are else waited for.
  bool asksAhead = false;

private:
  friend class GatherEmitter;
  friend class SolvedEmitter;
  friend class StateImages;
  /// What is done before a chunk's values are made, and when they have been used.
  void startChunk(mlir::Value first, mlir::Value left);
  void endChunk();

  // Values. What these find or make stays valid as a copy.
  mlir::FailureOr<ChunkValue> need(mlir::Value value);
  mlir::FailureOr<ChunkValue> asSlab(mlir::Value value);
  mlir::FailureOr<ChunkValue> asTile(mlir::Value value);
  void set(mlir::Value value, ChunkValue known) { values[value] = std::move(known); }
  /// An entry of a scalar or of a column.
  mlir::Value entryOf(const ChunkValue &value, mlir::Value at);
  mlir::LogicalResult emitOp(mlir::Operation *op);
  mlir::LogicalResult emitKind(mlir::Operation *op);
  /// Counts an op's uses of its operands as done.
  void finish(mlir::Operation *op);
  mlir::LogicalResult emitAhead();
  mlir::LogicalResult emitOutput(unsigned output, mlir::Value value);
  /// The tensors of outputs, in order.
  llvm::ArrayRef<TensorArgument> outputs();
  /// How many binary digits of a value can be told from what is computed with it: those of outputs, or f32's.
  unsigned digitsOf(mlir::Value value);

  // Arguments (ChunkArguments.cpp).
  mlir::LogicalResult emitArguments(llvm::ArrayRef<mlir::Value> without = {});
  void copyTile(unsigned tensor, const SharedTile &tile);
  void prefetch(int64_t ahead);
  ChunkValue loadRows(unsigned tensor);

  // Functions of one token (ChunkMap.cpp).
  mlir::LogicalResult emitMap(chunk::MapOp op);
  mlir::FailureOr<llvm::SmallVector<ChunkValue>> emitCarried(chunk::MapOp op);
  /// Whether a map's result is needed in more places than outputs.
  bool isRead(mlir::Value value);
  /// Whether a value is kept as it is.
  static bool isExact(mlir::Value value);
  /// Whether rows may be kept as products read them now: f16 holds those of a norm of 1.
  bool fits(mlir::Value rows);

  // Decays (ChunkDecay.cpp).
  struct Decay {
    SharedTile sums;             // of binary logarithms up to before each token and after the last
    SharedTile factors, between; // with channels: factors; products over whole 16-blocks, see emitChannels
    // Coupled or signed: products from j+1 to t by (to, from), and from 0 to t, and from j+1 to the end.
    llvm::DenseMap<std::pair<int64_t, int64_t>, SharedTile> masks, through, rest;
    bool isLate = false; // then masks and rest have j's own factor, and masks not t's
  };
  /// Makes sure that `decays` has one.
  mlir::LogicalResult emitDecayOf(mlir::Value decay);
  /// Whether it is computed from the logarithms; else from the factors.
  bool readsLog(chunk::DecayOp op);
  mlir::LogicalResult emitDecay(chunk::DecayOp op);
  mlir::LogicalResult emitLogs(chunk::DecayOp op);
  mlir::LogicalResult emitProducts(mlir::Value decay, mlir::ValueRange factors);
  mlir::LogicalResult emitChannels(chunk::DecayOp op);
  mlir::LogicalResult emitWeights(chunk::WeightsOp op);
  mlir::LogicalResult emitMask(chunk::MaskOp op);
  /// The weight of an entry of scores under a decay without channels; null without a decay.
  mlir::Value scoreWeight(mlir::Value decay, chunk::Reach reach, int64_t to, int64_t from, mlir::Value t,
                          mlir::Value j);
  /// The rows of a tile (ones, where `source` is null) times weights of a decay with channels; `local`
  /// weights reach to the ends of a token's own 16-block only.
  SharedTile weigh(const Decay &decay, const ChunkValue *source, chunk::Span span, bool local, bool isF32);
  int64_t blocks() const { return tokens / 16; }

  // Scores (ChunkScores.cpp).
  mlir::LogicalResult emitGram(chunk::GramOp op);
  /// Its decay, and zeros where it is masked, for the warp's part; the decay has no channels.
  llvm::SmallVector<mlir::Value> weighScores(chunk::GramOp op);
  llvm::SmallVector<mlir::Value> multiplyRows(const ChunkValue &lhs, const ChunkValue &rhs);
  llvm::SmallVector<mlir::Value> loadRow(const SharedTile &tile, mlir::Value row);
  llvm::SmallVector<mlir::Value> multiplyDecaying(const ChunkValue &lhs, const ChunkValue &rhs,
                                                  const Decay &decay, chunk::Reach reach);
  SharedTile emitDiagonal(const ChunkValue &lhs, const ChunkValue &rhs, const Decay &decay,
                          chunk::Reach reach);
  mlir::Value scoreRow(int64_t entry);
  mlir::Value scoreColumn(int64_t entry);
  mlir::Value scoreBlock();
  mlir::Value scorePart();
  /// Whether the warp is the one that writes its part; null if all are.
  mlir::Value isScoreOwner();
  mlir::Value maskScore(mlir::Value entry, mlir::Value t, mlir::Value j, chunk::Reach reach);
  /// Scores as a bf16 (or, negated, f32) tile in shared memory.
  SharedTile stage(const ChunkValue &scores, bool negatedF32);
  /// Scores that a product reads, in shared memory.
  mlir::FailureOr<SharedTile> stagedScores(mlir::Value scores);

  // Systems (ChunkSolve.cpp).
  mlir::LogicalResult prepareSolve(chunk::TriSolveOp op);
  mlir::LogicalResult emitSolve(chunk::TriSolveOp op);
  mlir::LogicalResult emitSubstitution(chunk::TriSolveOp op);
  mlir::LogicalResult prepareSubstitute(chunk::SubstituteOp op);
  mlir::LogicalResult emitSubstitute(chunk::SubstituteOp op);

  /// A slab as operands of products, in parts of `unit` (null: 1).
  struct PackedSlab {
    llvm::SmallVector<llvm::SmallVector<mlir::Value, 4>> operands;
    mlir::Value unit;
    int64_t rows = 0;
  };
  /// In units of the power of 2 of a warp's largest entry.
  PackedSlab packInUnits(mlir::ValueRange entries, int64_t rows);

  // Products and elementwise functions (ChunkProducts.cpp, ChunkElementwise.cpp).
  /// A product that begins with a slab, or null.
  mlir::LogicalResult emitMatmul(MatmulOp op, const ChunkValue *start, mlir::Value result);
  mlir::LogicalResult emitAcross(MatmulOp op, const ChunkValue &lhs, const ChunkValue &slab,
                                 const ChunkValue *start, mlir::Value result);
  void scaleProduct(Fragment &sum, const SharedTile &scale, mlir::Value unit, const ChunkValue *start);
  mlir::LogicalResult emitColumnProduct(MatmulOp op);
  mlir::LogicalResult emitRowProduct(MatmulOp op);
  void sumTokens(const ChunkValue &tile, const ChunkValue &numbers, const ChunkValue &result);
  mlir::LogicalResult emitElementwise(ElementwiseOp op);
  mlir::FailureOr<bool> addProduct(AddOp op);
  mlir::LogicalResult emitColumns(ElementwiseOp op, llvm::ArrayRef<ChunkValue> operands);
  mlir::LogicalResult emitTiles(ElementwiseOp op, llvm::ArrayRef<ChunkValue> operands);
  mlir::LogicalResult emitFragments(ElementwiseOp op, llvm::MutableArrayRef<ChunkValue> operands,
                                    bool isSlab);
  mlir::LogicalResult emitMix(chunk::MixOp op);

  // Conjugate gradients (ChunkGradients.cpp).
  mlir::LogicalResult emitConjugateGradients(chunk::ConjugateGradientsOp op);
  /// Makes what the region reads from outside, and lists it.
  mlir::LogicalResult emitOuter(chunk::ConjugateGradientsOp op, llvm::SmallVectorImpl<mlir::Value> &outer);
  /// Makes the operands of the region's products that stay the same, in f16.
  mlir::LogicalResult packOuter(chunk::ConjugateGradientsOp op);
  /// Hands each token's sum over the channels of two slabs' products to one thread.
  void sumRows(const ChunkValue &x, const ChunkValue &y,
               llvm::function_ref<void(mlir::Value at, mlir::Value sum)> body);
  /// 2 to the power of an i32 plus -127.
  mlir::Value powerOf(mlir::Value biased);
  /// Rounded down: the power of 2 (plus 127) in a number that is not negative.
  mlir::Value exponentOf(mlir::Value number);
  /// exponentOf as a number, times 2^`more`, within 2^-40 and 2^40; 1 over such a number.
  mlir::Value unitOf(mlir::Value most, int64_t more);
  mlir::Value inverseOf(mlir::Value power);
  /// A slab as a row per token, or key, in shared memory.
  SharedTile moveSlab(const ChunkValue &slab, bool isF32);

  // Memory and loops.
  void forTokens(llvm::function_ref<void(mlir::Value local, mlir::Value token, mlir::Value valid)> body);
  /// What products read is kept as they want it, all else in f32.
  bool isWide() const { return !fragments.isNarrow; }
  SharedTile allocate(int64_t rows, int64_t cols, int64_t pitch, bool isF32);
  SharedTile allocateRows(int64_t n) { return allocate(1, n, llvm::alignTo(n, 4), true); }
  /// A row per token, columns padded with zeros.
  SharedTile allocateTile(int64_t n, bool isF32);
  /// The same for a value, which may be one of `swizzled`.
  SharedTile allocateTile(mlir::Value value, int64_t n, bool isF32);
  mlir::Value load(const SharedTile &tile, mlir::Value row, mlir::Value col);
  void store(const SharedTile &tile, mlir::Value row, mlir::Value col, mlir::Value entry);
  /// Two neighbours at an even column.
  std::array<mlir::Value, 2> loadPair(const SharedTile &tile, mlir::Value row, mlir::Value col);
  void storePair(const SharedTile &tile, mlir::Value row, mlir::Value col, mlir::Value low, mlir::Value high);
  mlir::Value rowAt(const SharedTile &rows, mlir::Value at) { return load(rows, threads.constant(0), at); }
  void storeRow(const SharedTile &rows, mlir::Value at, mlir::Value entry) {
    store(rows, threads.constant(0), at, entry);
  }
  mlir::Value isValid(mlir::Value local);
  /// A barrier if shared memory was written since the last one.
  void sync();
  /// The same if values that lie in it were.
  void syncFor(llvm::ArrayRef<ChunkValue> read);

  // Numbers of i32 and f32.
  mlir::Value add(mlir::Value x, mlir::Value y) { return mlir::arith::AddIOp::create(b, x, y); }
  mlir::Value add(mlir::Value x, int64_t y) { return y ? add(x, threads.constant(y)) : x; }
  mlir::Value times(mlir::Value x, int64_t y) {
    return mlir::arith::MulIOp::create(b, x, threads.constant(y));
  }
  mlir::Value over(mlir::Value x, int64_t y) {
    return mlir::arith::DivUIOp::create(b, x, threads.constant(y));
  }
  mlir::Value modulo(mlir::Value x, int64_t y) {
    return mlir::arith::RemUIOp::create(b, x, threads.constant(y));
  }
  mlir::Value below(mlir::Value x, mlir::Value y) {
    return mlir::arith::CmpIOp::create(b, mlir::arith::CmpIPredicate::slt, x, y);
  }
  mlir::Value below(mlir::Value x, int64_t y) { return below(x, threads.constant(y)); }
  mlir::Value equal(mlir::Value x, mlir::Value y) {
    return mlir::arith::CmpIOp::create(b, mlir::arith::CmpIPredicate::eq, x, y);
  }
  mlir::Value equal(mlir::Value x, int64_t y) { return equal(x, threads.constant(y)); }
  mlir::Value choose(mlir::Value c, mlir::Value x, mlir::Value y) {
    return mlir::arith::SelectOp::create(b, c, x, y);
  }
  mlir::Value multiply(mlir::Value x, mlir::Value y) { return mlir::arith::MulFOp::create(b, x, y); }
  mlir::Value plus(mlir::Value x, mlir::Value y) { return mlir::arith::AddFOp::create(b, x, y); }
  mlir::Value shuffle(mlir::Value x, int64_t distance);
  /// The largest entry of a warp, whatever its sign.
  mlir::Value greatest(mlir::ValueRange entries);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  chunk::ProgramOp program;
  TensorAccess &access;
  llvm::ArrayRef<TensorArgument> tensors;
  const int64_t tokens, warps;
  const bool savesMemory;
  SharedArena &arena;
  int64_t scoreParts, scoreColumns;
  Grid tokenGrid;
  Threads tokenThreads;
  llvm::DenseMap<mlir::Value, ChunkValue> values;
  llvm::DenseMap<mlir::Value, unsigned> usesLeft;
  llvm::DenseSet<mlir::Operation *> emitted;
  /// Rows that products of warpgroups read: 16 bits wide, of whole blocks of columns.
  llvm::DenseSet<mlir::Value> swizzled;
  llvm::DenseMap<mlir::Value, Decay> decays;
  llvm::DenseMap<mlir::Value, SharedTile> staged; // scores in shared memory: bf16 for products
  llvm::DenseMap<mlir::Value, SharedTile> across; // slabs in shared memory, a row for each key
  // What is made once for all iterations of a region, and slabs that are tiles, too.
  llvm::DenseMap<mlir::Value, PackedSlab> slabsAhead;
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<mlir::Value>> weightsAhead;
  llvm::DenseMap<mlir::Value, SharedTile> moved;
  /// -N and the inverses of its diagonal blocks.
  struct System {
    llvm::SmallVector<SharedTile> blocks;
    SharedTile inverse;
  };
  llvm::DenseMap<mlir::Operation *, System> systems;
  mlir::Value head, heads, position;
  mlir::Value first, count, rest; // of the chunk's tokens, and of those up to the sequence's end
  mlir::Operation *unknown = nullptr;
  bool dirty = false;
  bool iterates = false;               // in a loop, whose next turn may read what is written now
  llvm::DenseSet<mlir::Value> written; // what memory was, since the last barrier
};

} // namespace recur::cuda
