// Products of matrices that follow from states with matrices that all tokens share, S*R or R*S, token by
// token on the matrix units of warpgroups.
//
// In a grid of four lanes a warpgroup's thread has two rows of a matrix of 64, and of each sixteen columns
// four neighbours: but for the order of rows and columns that is where the units leave sums, and packed in
// pairs it is a left operand. Any order of rows does, as each is by itself; any of columns, where the shared
// matrix has the same on both of its sides. So that lies in shared memory, ordered so and swizzled, for as
// long as there are tokens, and a state never leaves its registers. With the shared matrix at the left all
// lies transposed: rows across lanes.
//
// Both sides are parts of bf16 whose sum they are. As a state goes through a product for each token, what
// rounding takes away adds up: two parts, or three of tensors in f32, have what f32 has of those.
#pragma once
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

/// The axis along which a matrix that follows from states lies where the units can multiply it with one that
/// follows from params alone, or -1 where a rule's op is no such product.
int axisOfStateProduct(mlir::Operation *op);

/// Reads such products where the rule reads the state along a product of the shared matrix, S*(R*k), as is
/// cheaper where S*R is not made anyway.
void readStateProducts(RuleOp rule);

/// The grid of a rule with such products, a warpgroup for each 64 rows (or columns), and as a block has room
/// for their matrices.
std::optional<Grid> gridOfStateProducts(RuleOp rule, llvm::ArrayRef<TensorArgument> tensors,
                                        const Chip &chip);

/// Builds such products.
class StateProducts {
public:
  StateProducts(Threads &threads, llvm::ArrayRef<TensorArgument> tensors)
      : threads(threads), b(threads.b), ptx(threads.b), tensors(tensors) {}

  /// Whether an op is made here.
  bool makes(mlir::Operation *op) const;
  /// Puts a product's shared matrix, of which that is the thread's part, where the units read it; a barrier
  /// must follow.
  void hold(MatmulOp op, const Tile &shared);
  /// The product with that matrix.
  Tile multiply(MatmulOp op, const Tile &tile);

  /// The side that follows from states, and the shared one.
  static std::pair<mlir::Value, mlir::Value> sidesOf(MatmulOp op);

private:
  // A shared matrix: its first part's address, and rows and columns with those that fill up sixteen.
  struct Matrix {
    mlir::Value at;
    int64_t depth = 0, columns = 0, parts = 0;
    int64_t halfBytes() const;
    int64_t partBytes() const;
  };
  static Matrix shapeOf(MatmulOp op, llvm::ArrayRef<TensorArgument> tensors);
  friend std::optional<Grid> gridOfStateProducts(RuleOp, llvm::ArrayRef<TensorArgument>, const Chip &);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  llvm::ArrayRef<TensorArgument> tensors;
  llvm::DenseMap<mlir::Value, Matrix> matrices;
};

} // namespace recur::cuda
