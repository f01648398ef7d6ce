// Products of matrices that follow from states with matrices that all tokens share, or that are a token's
// own, S*R or R*S, token by token on the matrix units of warpgroups.
//
// In a grid of four lanes a warpgroup's thread has two rows of a matrix of 64, and of each sixteen columns
// four neighbours: but for the order of rows and columns that is where the units leave sums, and packed in
// pairs it is a left operand. Any order of rows does, as each is by itself; any of columns, where the shared
// matrix has the same on both of its sides. So that lies in shared memory, ordered so and swizzled, for as
// long as there are tokens, and a state never leaves its registers. With the shared matrix at the left all
// lies transposed: rows across lanes. A token's own is copied while the one before is computed.
//
// Both sides are parts of bf16 whose sum they are. As a state goes through a product for each token, what
// rounding takes away adds up: two parts have 16 bits, three, which rules with tensors in f32 get, those of
// f32. The units cut sums off where f32 would round them: of a state that nothing forgets 3.5e-7 a token
// (H200).
#pragma once
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

/// The axis along which a matrix that follows from states lies where the units can multiply it with one that
/// follows from params alone, or is an input, or -1 where a rule's op is no such product.
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
  /// Takes room for one that is each token's own, of which there are two places, and has that of a token
  /// copied to one.
  bool take(MatmulOp op);
  void fetch(TensorAccess &access, mlir::Value token, mlir::Value to);
  /// Begins a token, of which `last` is the sequence's last one: its own matrices are there, the next one's
  /// are asked for beside its first product.
  void beginToken(TensorAccess &access, mlir::Value token, mlir::Value last);
  /// The product with that matrix.
  Tile multiply(MatmulOp op, const Tile &tile);

  /// The side that follows from states, and the shared one.
  static std::pair<mlir::Value, mlir::Value> sidesOf(MatmulOp op);

private:
  // A shared matrix: its first part's address, and rows and columns with those that fill up sixteen. Of a
  // token's own there are two places, and each lies with its rows as rows, which are the columns `byColumns`.
  struct Matrix {
    mlir::Value at;
    int64_t depth = 0, columns = 0, parts = 0;
    std::optional<unsigned> tensor = std::nullopt;
    bool byColumns = false;
    int64_t halfBytes() const;
    int64_t partBytes() const;
    int64_t bytes() const { return (tensor ? 2 : parts) * partBytes(); }
  };
  static std::optional<Matrix> shapeOf(MatmulOp op, llvm::ArrayRef<TensorArgument> tensors);
  friend std::optional<Grid> gridOfStateProducts(RuleOp, llvm::ArrayRef<TensorArgument>, const Chip &);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  llvm::ArrayRef<TensorArgument> tensors;
  llvm::MapVector<mlir::Value, Matrix> matrices;
  mlir::Value place;               // that of the token's own, 0 or 1
  std::function<void()> fetchNext; // the next token's, if that is still to be done
};

} // namespace recur::cuda
