// A chunk program as code of one block of threads: what does not depend on the state first, by all warps and through
// shared memory; then what does, in registers, each warp for 16 of the state's independent rows.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "lib/Cuda/BodyEmitter.h"
#include "lib/Cuda/Fragments.h"
#include "lib/Cuda/Tensors.h"

#include <variant>

namespace recur::cuda {

/// What a value of a chunk program is to the block.
struct ChunkValue {
  enum Kind {
    Scalar, // `entries[0]`
    Rows,   // one f32 per token, in shared memory
    Tile,   // a row per token, bf16, in shared memory; rows perhaps to be scaled
    Scores, // tokens by tokens: each warp 16 rows by a part of the columns
    Slab    // 16 independent rows of the warp; columns are tokens or keys
  } kind = Scalar;
  llvm::SmallVector<mlir::Value> entries; // Scalar, Scores, Slab
  SharedTile memory;                      // Rows, Tile
  mlir::Value scale;                      // of a Tile's rows: the base of Rows, or null
  bool transposed = false;                // of a Tile
};

/// The tokens of a chunk.
constexpr int64_t chunkTokens = 64;

/// Emits the body of a program once, for one chunk.
class ChunkEmitter {
public:
  ChunkEmitter(Threads &threads, chunk::ProgramOp program, TensorAccess &access, llvm::ArrayRef<TensorArgument> tensors,
               int64_t warps);

  /// Whether this emitter knows every op and shape of the program.
  static bool supports(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors);
  /// The dimension of the state, 0 or 1, whose indices are independent.
  static int stateDim(chunk::ProgramOp program);

  /// Emits what is needed once.
  void begin(mlir::Value head, mlir::Value heads, mlir::Value position);
  /// One chunk: tokens from `first`, of which `count` are left. Takes and returns the state's entries.
  mlir::FailureOr<llvm::SmallVector<mlir::Value>> emit(mlir::Value first, mlir::Value count, mlir::ValueRange state);

  Fragments fragments;

private:
  mlir::LogicalResult emitOp(mlir::Operation *op);
  void emitArguments();
  mlir::LogicalResult emitMap(chunk::MapOp op);
  void emitDecay(chunk::DecayOp op);
  void emitWeights(chunk::WeightsOp op);
  mlir::LogicalResult emitGram(chunk::GramOp op);
  /// The part of a solve, or of a product with scores, that does not depend on the state.
  mlir::LogicalResult prepare(mlir::Operation *op);
  void prepareSolve(chunk::TriSolveOp op, const ChunkValue &scores);
  mlir::LogicalResult emitSolve(chunk::TriSolveOp op);
  /// A slab as a row per token, in f32, in shared memory.
  SharedTile moveSlab(const ChunkValue &slab);
  mlir::LogicalResult emitOutput(unsigned output, mlir::Value value);
  mlir::LogicalResult emitMatmul(MatmulOp op, llvm::ArrayRef<mlir::Value> sum, mlir::Value result);
  mlir::LogicalResult emitElementwise(ElementwiseOp op);
  void copyTile(unsigned tensor, const SharedTile &tile);

  /// Runs the body for each token of the chunk: 8 threads a token.
  void forTokens(llvm::function_ref<void(mlir::Value local, mlir::Value token, mlir::Value valid)> body);
  /// Runs the body in one thread for each token.
  void forRows(llvm::function_ref<void(mlir::Value local)> body);
  const ChunkValue *find(mlir::Value value) const;
  /// The value as a slab; a tile is read from shared memory.
  mlir::FailureOr<ChunkValue> asSlab(mlir::Value value);
  /// Scores as a bf16 (or, negated, f32) tile in shared memory.
  SharedTile stage(const ChunkValue &scores, bool negatedF32);
  SharedTile allocate(int64_t rows, int64_t cols, int64_t pitch, bool isF32);
  mlir::Value rowValue(mlir::Value base, mlir::Value at);
  mlir::Value scoreRow(int64_t entry);
  mlir::Value scoreColumn(int64_t entry);
  /// A barrier if shared memory was written since the last one.
  void sync();

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  chunk::ProgramOp program;
  TensorAccess &access;
  llvm::ArrayRef<TensorArgument> tensors;
  int64_t warps, scoreColumns;
  Grid tokenGrid{8, 8};
  Threads tokenThreads;
  llvm::DenseMap<mlir::Value, ChunkValue> values;
  llvm::DenseMap<mlir::Value, mlir::Value> decays; // base of 65 sums of binary logarithms
  llvm::DenseMap<mlir::Value, SharedTile> staged;  // scores in shared memory: bf16 for products
  llvm::DenseMap<mlir::Operation *, std::pair<SharedTile, SharedTile>> solves; // -N, inverses of diagonal blocks
  mlir::Value head, heads, position, first, count;
  bool dirty = false;
};

} // namespace recur::cuda
