// Matrices over pairs of tokens, as operators that run token by token with a state of fixed size.
//
// A T x T matrix that weighs earlier tokens only is a causal operator: it makes a row per token from rows per
// token. Three kinds run token by token with a state of fixed size, and sums, products and inverses of such
// do too:
//
//   diagonal   y_t = d_t x_t
//   kernel     y_t = sum over j <= t (strict: j < t) of a_{j+1} .. a_t (q_t . k_j) x_j
//              = S_t q_t  with  S_t = a_t S_{t-1} + x_t k_tT   (strict: a_t S_{t-1} q_t)
//   inverse    y = (D + N)^-1 x, N strict: y_t = (x_t - (N y)_t) / d_t, where (N y)_t needs earlier y only
//
// So `((Q*K.T).*M)*inv(I + (W*W.T).*Mx)*V` is a delta rule without decay, found by the same three lines (the
// algebra of semiseparable matrices: Dao and Gu, "Transformers are SSMs", arXiv 2405.21060, section 3).
// Functions of scores, exp above all, have no finite rank: the block stays as it is.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/Builders.h"

#include <memory>

namespace recur::causal {

/// Which tokens j a token t weighs: all, j <= t, j < t.
enum class Reach { All, Inclusive, Strict };

/// A T x T matrix. Values are those of one token; a null one is the scalar 1.
struct Operator;
using Matrix = std::shared_ptr<const Operator>;
struct Operator {
  enum Kind { Diagonal, Kernel, Sum, Product, Inverse } kind;
  mlir::Value diagonal = {};                    // Diagonal: 1 x 1
  mlir::Value query = {}, key = {}, decay = {}; // Kernel: n x 1, n x 1, 1 x 1
  Reach reach = Reach::All;
  std::vector<Matrix> parts = {}; // Sum, Product (two), Inverse (one)
};

inline Matrix diagonal(mlir::Value value) {
  return std::make_shared<Operator>(Operator{Operator::Diagonal, value});
}
inline Matrix kernel(mlir::Value query, mlir::Value key, mlir::Value decay, Reach reach) {
  return std::make_shared<Operator>(Operator{Operator::Kernel, {}, query, key, decay, reach});
}
inline Matrix combine(Operator::Kind kind, llvm::ArrayRef<Matrix> parts) {
  return std::make_shared<Operator>(Operator{kind, {}, {}, {}, {}, Reach::All, parts.vec()});
}

/// Builds one token's work in the body of a rule.
class Tokens {
public:
  /// A state of a kernel: sum of x k^T, decayed. While x is not known yet, `hole` says which unknown it is.
  struct Memory {
    mlir::Value key, decay, x;
    unsigned hole;
    mlir::BlockArgument before;
    mlir::Value after;
  };

  Tokens(RuleOp rule, mlir::OpBuilder builder, mlir::Location loc) : rule(rule), b(builder), loc(loc) {}

  /// diag(scale) * m.
  Matrix scaleRows(const Matrix &m, mlir::Value scale);
  /// The product of entries.
  mlir::FailureOr<Matrix> entrywise(const Matrix &lhs, const Matrix &rhs);
  /// The token's row of m * X, where `x` is the token's row of X, as a column. Adds states to the rule's
  /// body.
  mlir::FailureOr<mlir::Value> apply(const Matrix &m, mlir::Value x);

  // One token's arithmetic; null is 1.
  mlir::Value number(double value) { return ConstantOp::create(b, loc, value); }
  mlir::Value orOne(mlir::Value value) { return value ? value : number(1); }
  mlir::Value times(mlir::Value lhs, mlir::Value rhs) {
    return !lhs ? rhs : !rhs ? lhs : MulOp::create(b, loc, lhs, rhs).getResult();
  }
  mlir::Value plus(mlir::Value lhs, mlir::Value rhs) {
    return !lhs ? rhs : !rhs ? lhs : AddOp::create(b, loc, lhs, rhs).getResult();
  }
  mlir::Value over(mlir::Value lhs, mlir::Value rhs) {
    return rhs ? DivOp::create(b, loc, orOne(lhs), rhs).getResult() : lhs;
  }
  mlir::Value flip(mlir::Value value) { return TransposeOp::create(b, loc, value); }
  mlir::Value product(mlir::Value lhs, mlir::Value rhs) { return MatmulOp::create(b, loc, lhs, rhs); }
  mlir::Value dot(mlir::Value lhs, mlir::Value rhs) { // a null one is a scalar, so the other is too
    return lhs && rhs ? product(flip(lhs), rhs) : lhs ? lhs : rhs;
  }

  mlir::LogicalResult fail(const llvm::Twine &why) {
    if (reason.empty())
      reason = why.str();
    return mlir::failure();
  }

  RuleOp rule;
  mlir::OpBuilder b;
  mlir::Location loc;
  llvm::SmallVector<Memory> memories;
  std::string reason; // why something failed

private:
  // The diagonal (none: null optional) and the part below it.
  struct Split {
    std::optional<mlir::Value> diagonal;
    Matrix strict;
  };
  // What `hole` is once `of` is known.
  struct Dependent {
    unsigned hole, of;
    Matrix matrix;
  };

  mlir::FailureOr<Split> split(const Matrix &m);
  /// S and its product with the query. S is m x n; n x 1 where the row is a scalar, so that it is a vector.
  mlir::Value readState(mlir::Value state, mlir::Value query, bool transposed);
  Memory &stateOf(const Operator &m, MatType row, unsigned hole);
  void update(Memory &memory, mlir::Value x);
  /// The product of a strict operator with a row that is not known yet: the value of `hole`, of type `row`.
  mlir::FailureOr<mlir::Value> readStrict(const Matrix &m, MatType row, unsigned hole);
  /// Gives a hole its value.
  mlir::LogicalResult fill(unsigned hole, mlir::Value value);

  llvm::SmallVector<Dependent> dependents;
  unsigned holes = 0;
};

} // namespace recur::causal
