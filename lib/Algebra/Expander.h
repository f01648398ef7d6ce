// Expands values that depend on states into sums of monomials with one state factor.
#pragma once

#include "lib/Algebra/TokenBuilder.h"

namespace recur {

/// c * left * X * right, where X is nothing (the chain is `left`), an old state or a row, maybe transposed.
struct Monomial {
  enum Leaf { None, State, RowOf };
  Coefficient c;
  llvm::SmallVector<Factor, 2> left, right;
  Leaf leaf = None;
  unsigned index = 0;
  bool transposed = false;
  llvm::SmallVector<mlir::Value, 1> elementwise;
  mlir::Location loc;
};
using Sum = std::vector<Monomial>;

/// Fills the reads, rows and versions of a normal form whose `states`, `ahead` and `stateDependent` are set.
class Expander {
public:
  Expander(NormalForm &nf, TokenBuilder &tokens) : nf(nf), tokens(tokens) {}

  /// The value as a sum, or null when it is not affine in the states; then `blame` says why.
  const Sum *expand(mlir::Value value);
  /// The version of a state that a matrix value is; nothing when it is not affine.
  std::optional<unsigned> versionOf(mlir::Value value);
  /// The row: `version` read with `vector`.
  std::optional<unsigned> rowOf(mlir::Value version, Side side, mlir::Value vector, mlir::Location loc);
  /// The row that equals a sum of rows and token-only columns, for values that are no plain read.
  /// With `flipped` the sum is a row vector and the result its transpose. `type` is the sum's.
  std::optional<unsigned> rowOf(const Sum &sum, bool flipped, MatType type, mlir::Location loc);
  /// The row `version` * `vector`, where the vector depends on rows that were read out before.
  /// With a `solution` it is the solution of version * x = vector.
  std::optional<unsigned> laterRow(mlir::Value version, mlir::Value vector, mlir::Location loc,
                                   mlir::Value solution = {});
  /// True when a term of the value's sum is an old state and not a row.
  bool carriesState(mlir::Value value);

  Blame blame;

private:
  using MaybeSum = std::optional<Sum>;
  MaybeSum compute(mlir::Value value);
  mlir::Value unscaledNewState(mlir::Value value, Coefficient &scale);
  MaybeSum matmul(mlir::Value lhs, mlir::Value rhs, mlir::Operation *op);
  MaybeSum scaled(mlir::Value dependent, mlir::Value factor, mlir::Operation *op);
  MaybeSum reduced(ReduceOp op);
  MaybeSum broadcast(mlir::Value value, MatType type);
  Sum tokenSum(mlir::Value value, mlir::Location loc);
  MaybeSum multiply(const Sum &lhs, const Sum &rhs, mlir::Location loc);
  MaybeSum fail(mlir::Operation *op, std::string text);

  void simplify(Monomial &m);
  void simplify(llvm::SmallVectorImpl<Factor> &chain, Coefficient &c, mlir::Location loc);
  Monomial transpose(const Monomial &m);
  MatType leafType(const Monomial &m);
  /// A chain of factors that is a column, as a value; its scalar factors go to `c`.
  mlir::Value column(llvm::ArrayRef<Factor> chain, Coefficient &c, mlir::Location loc);
  mlir::Value columnOfRow(llvm::ArrayRef<Factor> chain, Coefficient &c, mlir::Location loc);
  /// Turns a state that is read within a chain into a row.
  mlir::LogicalResult cutReads(Monomial &m);

  /// Adds m * vector to the row's terms.
  bool addTo(Row &row, const Monomial &m, mlir::Value vector);
  bool addTo(Version &version, Monomial m);
  /// The row c * left * row, as a column that `left` is no part of any more.
  Column mapped(llvm::ArrayRef<Factor> left, unsigned row, mlir::Location loc);
  template <typename TermT, typename EqualFn>
  void mergeEqual(std::vector<TermT> &terms, EqualFn equal);
  void mergeDiagonals(Version &version);
  unsigned readOf(unsigned state, Side side, mlir::Value vector);

  NormalForm &nf;
  TokenBuilder &tokens;
  llvm::DenseMap<mlir::Value, std::unique_ptr<Sum>> sums; // null: not affine
  llvm::DenseMap<mlir::Value, unsigned> versionIndex;
  llvm::DenseMap<std::tuple<mlir::Value, unsigned, mlir::Value>, unsigned> rowIndex;
};

} // namespace recur
