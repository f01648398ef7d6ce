// Values of the recur dialect as tensors, and the linear algebra on them as linalg.
#pragma once
#include "dialect/recur/Recur.h"
#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"

#include <array>

namespace recur::cpu {

/// The axis along which the matrices of the tokens of a chunk follow each other; see Matrix.
constexpr unsigned tokenAxis = 2;

/// A matrix of f32. An axis (0: down the rows, 1: along the columns) along which the entries are known to be
/// equal is not stored; transposing, repeating and filling therefore cost nothing. Where one matrix for each
/// token of a chunk is meant, the tokens are an axis more: what is done with the matrix is done for each
/// token.
struct Matrix {
  /// An f32 when no axis is stored, else a tensor of f32 with one dimension for each of `axes`.
  mlir::Value value;
  /// The axis along each dimension of the tensor.
  llvm::SmallVector<unsigned, 2> axes;
  std::array<int64_t, 2> sizes;

  bool isUniform() const { return axes.empty(); }
  bool has(unsigned axis) const { return llvm::is_contained(axes, axis); }
  Matrix transposed() const;
};

/// The axes of a bound type that are longer than 1, rows first.
llvm::SmallVector<unsigned, 2> naturalAxes(MatType type);

/// The f32 tensor that stores all of `axes` of a matrix; for no axes, f32 itself.
mlir::Type storageType(mlir::MLIRContext *context, llvm::ArrayRef<unsigned> axes,
                       std::array<int64_t, 2> sizes, int64_t tokens = 1);

/// Builds linalg on matrices at one place; `tokens` is the length of the token axis.
class MatrixBuilder {
public:
  MatrixBuilder(mlir::OpBuilder &b, mlir::Location loc, int64_t tokens = 1)
      : b(b), loc(loc), tokens(tokens) {}

  using Body = llvm::function_ref<mlir::Value(mlir::ValueRange entries)>;

  mlir::Value number(double value);
  Matrix constant(std::array<int64_t, 2> sizes, double value);

  /// Applies `body` to the entries of the operands, which are repeated where their size is 1. The result
  /// stores the axes that an operand stores.
  Matrix map(std::array<int64_t, 2> sizes, llvm::ArrayRef<Matrix> operands, Body body);
  /// The same with the axes that the result stores given; loop i of the op that is built runs along axis i of
  /// them.
  Matrix map(std::array<int64_t, 2> sizes, llvm::ArrayRef<unsigned> axes, llvm::ArrayRef<Matrix> operands,
             Body body);
  Matrix product(Matrix lhs, Matrix rhs) { return product(lhs, rhs, nullptr); }
  /// added + lhs * rhs, in the place of what is added where that is its last use.
  Matrix addProduct(const Matrix &added, const Matrix &lhs, const Matrix &rhs) {
    return product(lhs, rhs, &added);
  }
  Matrix reduce(Reduction kind, Matrix operand, bool rows, bool cols);

  /// The matrix with the entries of a vector on its diagonal and zeros elsewhere.
  Matrix diagonal(Matrix vector);

  Matrix add(Matrix x, Matrix y);
  Matrix sub(Matrix x, Matrix y);
  Matrix mul(Matrix x, Matrix y);

  /// The matrix stored along exactly these axes: f32 or a tensor.
  mlir::Value stored(Matrix matrix, llvm::ArrayRef<unsigned> axes);

  mlir::OpBuilder &builder() { return b; }
  mlir::Location location() { return loc; }

private:
  Matrix product(const Matrix &lhs, const Matrix &rhs, const Matrix *added);
  Matrix fold(Reduction kind, std::array<int64_t, 2> sizes, llvm::ArrayRef<unsigned> axes, unsigned loops,
              llvm::ArrayRef<std::pair<mlir::Value, mlir::AffineMap>> operands, Body body,
              mlir::Value init = {});

  mlir::OpBuilder &b;
  mlir::Location loc;
  int64_t tokens;
};

} // namespace recur::cpu
