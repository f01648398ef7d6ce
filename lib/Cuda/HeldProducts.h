// Products of matrices that all tokens share with vectors that follow from a state, as recurrent networks
// have them, token by token on the matrix units.
//
// In a grid of four lanes the threads of a warp hold a matrix as its units take a left operand of m16n8k16,
// but for the order of rows and columns: a quad has packets of neighbouring rows, two of which are a thread's
// rows g and g + 8, and each of its lanes packets of four neighbouring columns, which are columns 2l, 2l + 1,
// 2l + 8 and 2l + 9. Any order does where the vector's entries have the same one. So a matrix stays in the
// registers that hold it, packed, for as long as there are tokens, and what comes out of a product lies where
// vectors do. What registers have no room for each thread keeps in shared memory, for itself; and where that
// is too little blocks of a cluster have some of the rows each, and give each other what they make of
// vectors.
//
// A right operand has eight columns, and a vector is one. It is f32, so its columns are parts of 16 bits
// whose sum it is, high and low in turn: the products are as exact as vectors in f32 want them, and cost what
// one of bf16 does. Lanes hold two neighbouring columns each, so every one of a quad's has the sum.
#pragma once
#include "lib/Cuda/Fragments.h"
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

/// Whether a value of a rule's body follows from params alone.
bool followsFromParams(mlir::Value value);
/// How many parts of bf16 such a matrix is the sum of, and those of what follows from states.
int64_t partsOfMatrix(mlir::Value matrix, llvm::ArrayRef<TensorArgument> tensors);
int64_t partsOfVectors(llvm::ArrayRef<TensorArgument> tensors);
/// Two numbers as pairs of bf16 whose sum they are, the largest first.
llvm::SmallVector<mlir::Value> partsOf(Threads &threads, mlir::Value low, mlir::Value high, int64_t parts);

/// Whether an op of a rule's body is a product of a matrix that follows from params alone and a vector that
/// does not.
bool isHeldProduct(mlir::Operation *op);

/// The grid of a rule whose states are vectors, if it has such products and room for their matrices.
std::optional<Grid> gridOfHeld(RuleOp rule, llvm::ArrayRef<TensorArgument> tensors, const Chip &chip);

/// Builds such products.
class HeldProducts {
public:
  /// Those of a rule's body.
  HeldProducts(Threads &threads, llvm::ArrayRef<TensorArgument> tensors, mlir::Block &body);

  /// Keeps a product's matrix, of which that is the thread's part.
  void hold(MatmulOp op, const Tile &matrix);
  bool holds(MatmulOp op) const { return matrices.contains(matrixOf(op)); }
  /// Gives all threads a vector that lies along axis 0; a barrier must follow.
  void share(mlir::Value vector, const Tile &tile);
  /// Whether that has been done for a token.
  bool isShared(mlir::Value vector) const { return vectors.contains(vector); }
  /// Makes all products of matrices with such a vector.
  void multiply(mlir::Value vector, mlir::Block &body);
  /// One of them, along axis 0.
  const Tile &productOf(MatmulOp op) const { return products.find(op)->second; }
  /// Forgets the vectors of the token before.
  void beginToken() { vectors.clear(); }

  static mlir::Value vectorOf(MatmulOp op);
  /// The matrix, and which of its dimensions is summed over.
  using Side = std::pair<mlir::Value, unsigned>;
  static Side matrixOf(MatmulOp op);

private:
  using Operand = llvm::SmallVector<mlir::Value, 4>;
  // Left operands by pairs of the thread's rows, sixteen columns and parts. Of those that lie in shared
  // memory, the place.
  struct Matrix {
    int64_t pairs = 0, steps = 0, parts = 0;
    std::vector<Operand> operands;
  };
  // Where a vector lies, and the distance of its parts.
  struct Vector {
    mlir::Value base;
    int64_t entries = 0, stride = 0;
  };
  std::vector<Operand> read(const Vector &vector);
  mlir::Value sumOf(llvm::SmallVector<mlir::Value> all);
  mlir::Value leave(const Operand &operand);
  Operand fetch(const Operand &operand);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  Fragments fragments;
  llvm::ArrayRef<TensorArgument> tensors;
  int64_t all, held;          // operands, and those in registers
  int64_t seen = 0, left = 0; // so far, and of these in shared memory
  mlir::Value others;         // which lie there
  llvm::DenseMap<Side, Matrix> matrices;
  llvm::DenseMap<mlir::Value, Vector> vectors;
  llvm::DenseMap<mlir::Operation *, Tile> products;
};

} // namespace recur::cuda
