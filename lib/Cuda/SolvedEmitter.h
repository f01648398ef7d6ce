// What conjugate gradients find for the tokens of a chunk, and what a state gives for that: one warpgroup, 64
// tokens.
//
// Directions and residuals stay in registers, as the matrix units leave and take them: a thread has parts of
// two tokens' rows, and four threads that stand together have all of them, so that sums over channels need no
// shared memory. There lie the state and the keys, which all steps read; the solution, to which some steps
// are added at a time; and weights.
#pragma once
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Convergence.h"
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/SolvedPlan.h"
#include "lib/Cuda/StateImages.h"

namespace recur::cuda {

/// Emits the solution and the readout of chunks.
class SolvedEmitter {
public:
  SolvedEmitter(Threads &threads, const SolvedPlan &plan, ChunkEmitter &chunk, TensorAccess &access,
                llvm::ArrayRef<TensorArgument> tensors, mlir::Value shared);

  /// Emits what is needed once.
  void begin();
  /// One chunk: tokens from `first`, of which `count` are left, with what the states kernel left at its
  /// start.
  mlir::LogicalResult emit(mlir::Value first, mlir::Value count, mlir::Value record);

  /// The op of the last chunk before which the next one's inputs are best asked for.
  mlir::Operation *askBefore() const { return ask; }

  static int64_t recordBytes(const SolvedPlan &plan) {
    return StateImages::recordBytes({matType(plan.product.state), matType(plan.readout.state)});
  }

private:
  // f16 in rows of 64 columns, 128 bytes, swizzled.
  struct Image {
    mlir::Value base; // i32
    int64_t rows = 0, cols = 0;
    std::shared_ptr<const void> owner = nullptr;
  };
  // Rows of a thread: two tokens.
  using Pair = std::array<mlir::Value, 2>;
  // What carries over from step to step; `found` and `direction` in pairs of f16.
  struct Steps {
    Values found, residual, direction;
    // Of each token: the residual's squared norm, what it and the direction are multiples of the true ones,
    // what those of `found` are multiples of, and the goal (Convergence.h).
    Pair size, scale, unit, goal;
    Values all() const;
    static Steps of(mlir::ValueRange values, size_t entries);
  };

  Image allocate(int64_t rows, int64_t cols);
  void inOneThread(llvm::function_ref<void()> body);
  void loadImage(const Image &image, mlir::Value record, int64_t offset);
  void loadRecord(mlir::Value record);
  mlir::Value unitOf(size_t state);
  mlir::Value swizzled(const Image &image, mlir::Value row, mlir::Value col);
  llvm::SmallVector<Step> steps(mlir::ValueRange left, const Image &right, bool byDepth);
  Values multiply(const Image &right, mlir::ValueRange left, bool byDepth, mlir::ValueRange start = {});

  mlir::LogicalResult prepare(Steps &start);
  mlir::LogicalResult prepareDiagonal();
  void storeKeys(const ChunkValue &rows);
  void storeWeights(const SolvedProduct &product);
  mlir::FailureOr<Pair> rowsOf(mlir::Value column);
  /// The product of packed rows but for diagonals.
  Values product(mlir::ValueRange rows, const Image &state, const Image &values, const Pair &weights);
  Steps step(mlir::Value number, Steps at);
  Steps settle(mlir::Value number, Steps at, const Pair &length, Pair &change);
  mlir::Value isOpen(mlir::Value number, const Steps &at);
  Values addFound(const Steps &at, bool store);
  mlir::FailureOr<Values> iterate();
  void askForValues();
  mlir::LogicalResult loadValues();
  mlir::LogicalResult read(Values found, mlir::Value record);

  mlir::Value greatest(mlir::Value number);
  mlir::Value sumOfFour(mlir::Value number);
  mlir::Value quotient(mlir::Value num, mlir::Value den);
  mlir::Value number(double value) { return ptx.number(value); }
  static unsigned half(size_t entry) { return entry / 2 % 2; }

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  SolvedPlan plan;
  Convergence convergence;
  ChunkEmitter &chunk;
  TensorAccess &access;
  llvm::ArrayRef<TensorArgument> tensors;
  mlir::Value shared, base, thread, barrier, units;
  const int64_t entries; // of a row of keys, in a thread
  std::shared_ptr<const void> barrierOwner;
  // Of the chunk.
  Image state, keys, values;
  SharedTile solution, weights, diagonal, packets;
  Pair stateWeights, ownDiagonal;
  mlir::Value ownUnit, valueUnit;
  mlir::Operation *ask = nullptr;
};

/// Emits the body of an entry point for the outputs of segments of sequences, side by side.
std::optional<std::string> emitSolved(mlir::LLVM::LLVMFuncOp function, chunk::ProgramOp program,
                                      llvm::ArrayRef<TensorArgument> tensors, const SolvedPlan &plan,
                                      int64_t part, Entry &entry);

} // namespace recur::cuda
