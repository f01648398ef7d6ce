// The ops of a rule's regions as linalg on tensors.
#pragma once
#include "lib/Cpu/Matrices.h"

namespace recur::cpu {

/// Lowers the ops of one region at a builder's place. Values of the recur dialect are looked up and entered
/// in `matrices`, inputs with micro-steps in `steps`. With `tokens`, matrices may have a token axis and
/// micro-steps have the token first: then the region is done for all tokens at once, as far as
/// isForAllTokens() goes.
class OpLowering {
public:
  OpLowering(mlir::OpBuilder &b, unsigned vectorWidth, int64_t tokens = 1)
      : b(b), vectorWidth(vectorWidth), tokens(tokens) {}

  llvm::DenseMap<mlir::Value, Matrix> matrices;
  /// Tensors with the micro-step first.
  llvm::DenseMap<mlir::Value, mlir::Value> steps;
  /// The scalars that are known to be integers: positions and counters, as index.
  llvm::DenseMap<mlir::Value, mlir::Value> integers;

  /// Lowers a block up to its terminator. Fails after a diagnostic at the op that has no sequential code.
  mlir::LogicalResult lower(mlir::Block &block);
  mlir::LogicalResult lower(mlir::Operation &op);

  /// Whether an op can be lowered for all tokens at once.
  static bool isForAllTokens(mlir::Operation &op);

private:
  Matrix lowerElementwise(ElementwiseOp op);
  Matrix lowerExtract(ExtractOp op);
  Matrix lowerJoin(JoinOp op);
  Matrix lowerRope(RopeOp op);
  mlir::LogicalResult lowerFor(ForOp op);
  std::pair<mlir::Value, mlir::Value> rotation(RopeOp op, int64_t pairs);

  mlir::OpBuilder &b;
  unsigned vectorWidth;
  int64_t tokens;
  /// The cosines and sines already computed for a position, by position, number of pairs and base.
  llvm::DenseMap<std::tuple<mlir::Value, int64_t, mlir::Attribute>, std::pair<mlir::Value, mlir::Value>>
      rotations;
};

/// The x with matrix * x = rhs for a symmetric positive definite matrix, by elimination without pivoting.
Matrix solveExactly(MatrixBuilder &m, Matrix matrix, Matrix rhs, unsigned vectorWidth);

/// The result of that many conjugate gradient steps from zero.
Matrix solveIteratively(MatrixBuilder &m, Matrix matrix, Matrix rhs, int64_t iterations, double eps);

/// What a loop yields: each matrix, computed in the place of the carried value of the same position. `stored`
/// says along which axes each is stored; without it, along all that are longer than 1, rows first.
llvm::SmallVector<mlir::Value> storeCarried(MatrixBuilder &m, llvm::ArrayRef<Matrix> next,
                                            mlir::ValueRange carried,
                                            llvm::ArrayRef<llvm::SmallVector<unsigned, 2>> stored = {});

/// The sizes of a bound matrix value.
std::array<int64_t, 2> sizesOf(mlir::Value value);

/// A tensor in memory of its own.
mlir::Value ownCopy(mlir::OpBuilder &b, mlir::Location loc, mlir::Value tensor);

/// The cosine and sine of a float64, each as f32.
std::pair<mlir::Value, mlir::Value> cosineAndSine(mlir::OpBuilder &b, mlir::Location loc, mlir::Value angle);

/// A f32 scalar as index, towards zero.
mlir::Value toIndex(mlir::OpBuilder &b, mlir::Location loc, mlir::Value scalar);
/// An index as f32.
mlir::Value toScalar(mlir::OpBuilder &b, mlir::Location loc, mlir::Value index);

} // namespace recur::cpu
