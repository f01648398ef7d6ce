// The ops of a rule as code of one thread.
#pragma once
#include "lib/Cuda/HeldProducts.h"
#include "lib/Cuda/StateProducts.h"

namespace recur::cuda {

/// Emits regions of a rule. Values are tiles in the layouts that the placement asks for.
class BodyEmitter {
public:
  /// Reads micro-step `index` (an i64, from 0) of a steps argument.
  using LoadStep = llvm::function_ref<Tile(mlir::BlockArgument, mlir::Value index, Axis)>;

  /// Says of a sine or cosine that it is of an angle of at most a turn.
  static constexpr llvm::StringLiteral withinTurnAttr = "recur.within_turn";

  BodyEmitter(Threads &threads, const Placement &placement)
      : threads(threads), b(threads.b), placement(placement) {}

  /// Gives a value its tile along the tile's axis.
  void set(mlir::Value value, Tile tile);
  const Tile &get(mlir::Value value, Axis axis);
  bool has(mlir::Value value, Axis axis) const { return tiles[axis].count(value); }

  /// Keeps the matrices of products whose tiles are set for all tokens, in a grid that holds them.
  void holdMatrices(mlir::Block &block, llvm::ArrayRef<TensorArgument> tensors);
  /// Where matrices are a token's own: the kernel has them copied.
  StateProducts *unitsOfTokens() { return threads.grid.unitsTakeInputs ? &*units : nullptr; }

  /// The tile that elementwise functions of a result's tile read of an operand.
  const Tile &like(mlir::Value operand, const Tile &result);

  /// Emits the needed ops of a block but its terminator, of those only the `chosen` ones if there is a
  /// choice.
  mlir::LogicalResult emitBlock(mlir::Block &block, LoadStep loadStep,
                                llvm::function_ref<bool(mlir::Operation *)> chosen = {});

private:
  mlir::LogicalResult emit(mlir::Operation *op, LoadStep loadStep);
  mlir::LogicalResult emitLoop(ForOp op, LoadStep loadStep);
  void emitElementwise(ElementwiseOp op);
  void emitMatmul(MatmulOp op);
  void emitMatrixProduct(MatmulOp op);
  void emitHeldProduct(MatmulOp op);
  void emitReduce(ReduceOp op);
  void emitRope(RopeOp op);
  void emitSolve(mlir::Operation *op, mlir::Value matrix, mlir::Value rhs, bool pivot);
  /// Sums or compares a tile's entries over rows, columns or both.
  Tile reduce(const Tile &tile, bool rows, bool cols, Reduction kind, MatType type);
  /// Sets a result in all needed layouts; where an axis is not the tile's, entries move through shared
  /// memory.
  void setMoved(mlir::Value value, const Tile &tile);
  /// Makes the result's tile in each needed layout from its entries.
  void build(mlir::Value result, llvm::function_ref<mlir::Value(const Tile &, int64_t, int64_t)> entry);
  Staged stage(mlir::Value value);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  const Placement &placement;
  llvm::DenseMap<mlir::Value, Tile> tiles[2];
  std::optional<HeldProducts> held;
  std::optional<StateProducts> units;
};

} // namespace recur::cuda
