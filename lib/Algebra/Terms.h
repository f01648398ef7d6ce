// Values as sums of terms, terms as scalars times a chain of factors: what the algebra of this library works
// on.
#pragma once

#include "dialect/recur/Recur.h"

namespace recur {

/// A factor of a chain: a matrix, or a vector that acts as a diagonal.
struct Factor {
  mlir::Value value;
  bool transposed = false;
  bool diagonal = false;

  mlir::Attribute rows() const;
  mlir::Attribute cols() const;
  Factor flipped() const { return {value, !diagonal && !transposed, diagonal}; }
  bool operator==(const Factor &other) const {
    return value == other.value && transposed == other.transposed && diagonal == other.diagonal;
  }
};

/// The first inner product within a chain of factors that begins at `from` or later: [begin, end] is a row,
/// what stands between, and a column. None: nullopt.
std::optional<std::pair<size_t, size_t>> findInnerProduct(llvm::ArrayRef<Factor> chain, size_t from = 0);

/// The product of a sign, scalars and a chain of matrices.
struct Term {
  bool negative = false;
  llvm::SmallVector<mlir::Value> scalars;
  llvm::SmallVector<Factor> chain; // empty: the identity
};

/// Sums with more terms than this stay as they are.
constexpr size_t maxTerms = 32;

/// True when neither dimension is the literal 1.
bool isMatrix(MatType type);
/// Whether it is the transpose of a vector.
bool isRow(MatType type);
/// Whether one side of a product is a matrix and the other one not.
bool isRead(MatmulOp product);

/// The value that another one is but for transposes.
mlir::Value withoutTransposes(mlir::Value value);
/// Whether a value of a rule follows from a state, within regions, too.
bool dependsOnState(mlir::Value value);
/// Whether a new state of the rule follows from an operation's result.
bool feedsState(RuleOp rule, mlir::Operation *op);

/// The column of a vector that acts as a diagonal, however it is stored.
mlir::Value diagonalColumn(mlir::Value value);

/// The eps of x / sqrt(sum(x .* x) + eps), which is no longer than 1, or no number where it is none that the
/// spec has; of others, and where nothing divides, none.
std::optional<double> addedToNorm(DivOp quotient);
/// x where the value is x / sqrt(sum(x .* x) + 1e-6), which the language calls l2norm(x); null otherwise.
mlir::Value normalisedVector(mlir::Value value);

/// The value as a sum of terms. Sums inside are opened only where their terms are cheaper than the sum:
/// identities, diagonals, products through a dimension of 1.
llvm::SmallVector<Term> expandTerms(mlir::Value value);

/// The product of two values as a sum of terms. Of several terms with a state and several others the side
/// with the state stays one factor: the other one reads what the state has become.
llvm::SmallVector<Term> expandProduct(mlir::Value lhs, mlir::Value rhs);

/// All products of a term of `lhs` with one of `rhs`.
llvm::SmallVector<Term> multiplyTerms(llvm::ArrayRef<Term> lhs, llvm::ArrayRef<Term> rhs);

/// Builds a sum of terms as a value of that type, each product in its cheapest order (unbound dimensions
/// count as 64).
mlir::Value emitTerms(mlir::OpBuilder &builder, mlir::Location loc, MatType type, llvm::ArrayRef<Term> terms);

} // namespace recur
