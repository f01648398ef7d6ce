// What one thread computes, as ops: its place in the grid, arithmetic, memory, and what threads do together.
#pragma once
#include "lib/Cuda/Placement.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace recur::cuda {

/// The entries of a value that one thread holds, row by row.
struct Tile {
  MatType type;
  Axis axis = 0;
  int64_t rows = 1, cols = 1; // owned
  llvm::SmallVector<mlir::Value> entries;

  mlir::Value at(int64_t r, int64_t c) const {
    return entries[(rows == 1 ? 0 : r) * cols + (cols == 1 ? 0 : c)];
  }
};

/// A row-major f32 matrix that all threads of the block see.
struct Staged {
  mlir::Value base; // a pointer
  int64_t rows = 0, cols = 0;
  int64_t alignment = 4; // bytes
};

/// Builds code for the threads of a block.
class Threads {
public:
  Threads(mlir::ImplicitLocOpBuilder &b, const Grid &grid) : b(b), grid(grid) {}

  /// Emits what everything else uses; call once, at the start of the kernel.
  void begin(mlir::Value shared, mlir::Value scratch);

  /// Gives the thread another place than the grid does, in a block whose threads stand in another order.
  void place(mlir::Value row, mlir::Value column) {
    coordinates[0] = row;
    coordinates[1] = column;
  }

  mlir::Value constant(int64_t value, unsigned bits = 32);
  mlir::Value number(double value);
  /// A thread's place along an axis.
  mlir::Value coordinate(int axis) const { return coordinates[axis]; }
  mlir::Value threadIndex() const { return thread; }

  /// An empty tile of a type held along an axis.
  Tile shape(MatType type, Axis axis) const;
  /// The index of an owned entry of a dimension of `n` on an axis (-1: the only one).
  mlir::Value index(int axis, int64_t n, int64_t owned);
  /// How far that index is past the thread's first one.
  int64_t ownedOffset(int axis, int64_t n, int64_t owned) const;
  /// Whether that index is below `n`; null where it always is.
  mlir::Value valid(int axis, int64_t n, int64_t owned);
  /// Whether an entry of a tile exists; null where it always does.
  mlir::Value valid(const Tile &tile, int64_t r, int64_t c);
  mlir::Value both(mlir::Value a, mlir::Value b);
  /// Whether threads along an unused axis hold copies of a tile's entries.
  bool hasCopies(const Tile &tile) const;
  /// Whether this thread is the one of them that writes the entries; null where all do.
  mlir::Value isWriter(const Tile &tile);

  void barrier();
  /// Combines entries of all threads along an axis; every thread gets the results.
  void allReduce(llvm::MutableArrayRef<mlir::Value> entries, int axis, Reduction kind);
  mlir::Value combine(mlir::Value x, mlir::Value y, Reduction kind);
  mlir::Value identity(Reduction kind);

  /// The address of a byte of shared memory.
  mlir::Value sharedAt(int64_t offset);
  /// Memory for a matrix that all threads see, in shared memory as long as there is some.
  Staged allocate(int64_t rows, int64_t cols);
  /// Writes a tile to memory; a barrier must follow before others read it.
  void store(const Staged &to, const Tile &tile);
  Tile load(const Staged &from, MatType type, Axis axis);
  mlir::Value element(const Staged &m, mlir::Value row, mlir::Value col);
  /// The entries of a tile that lie together there.
  int64_t widthIn(const Staged &m, const Tile &tile) const;
  mlir::Value loadElement(const Staged &m, mlir::Value row, mlir::Value col);
  void storeElement(const Staged &m, mlir::Value row, mlir::Value col, mlir::Value value);
  /// Stores 32 bits in shared memory, of a cluster in that of all its blocks; where the lanes have the same,
  /// each in that of some.
  void give(mlir::Value place, mlir::Value value, bool areCopies);

  /// A loop from `begin` by `step` while below `end`, all i32.
  mlir::scf::ForOp
  forLoop(mlir::Value begin, mlir::Value end, mlir::Value step, mlir::ValueRange carried,
          llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::Value, mlir::ValueRange)> body);
  /// Runs the body in threads where the condition holds (all, where it is null).
  void when(mlir::Value condition, llvm::function_ref<void()> body);

  mlir::ImplicitLocOpBuilder &b;
  const Grid &grid;
  /// Bytes allocated so far, and how much shared memory there may be.
  int64_t sharedBytes = 0, scratchBytes = 0, sharedLimit = 0;
  /// Set by everything that writes memory that others read: the token must end with a barrier.
  bool communicates = false;

private:
  mlir::Value thread, lane, rank, coordinates[2], shared, scratch;
};

} // namespace recur::cuda
