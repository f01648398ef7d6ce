// Products of a token's vectors and params on the matrix units.
#pragma once
#include "lib/Cuda/Tensors.h"

namespace recur::cuda {

/// A product of a param, perhaps transposed, and a vector, perhaps as rows.
struct ParamProduct {
  unsigned tensor = 0;
  mlir::FloatType element;   // of both sides: bf16 or f16
  bool isTransposed = false; // the param's rows are summed over
  int64_t rows = 0, depth = 0;
  mlir::Value vector;

  /// Whether the other product is of the same matrix.
  bool hasMatrixOf(const ParamProduct &other) const {
    return tensor == other.tensor && isTransposed == other.isTransposed;
  }
};

/// Whether a product is one of a matrix.
bool isDense(MatmulOp op);
bool isProduct(mlir::Operation *op);
/// What such a product is, or nothing where it is none that the matrix units make.
std::optional<ParamProduct> paramProductOf(MatmulOp op, llvm::ArrayRef<TensorArgument> tensors);

/// Whether an operation has matrices to do with only as one that transposes params for such products.
bool usesNoMatrix(mlir::Operation &op);

} // namespace recur::cuda
