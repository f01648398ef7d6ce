// Rules whose tokens do the same with each of a few columns, as rules of one column with a row for each.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/DenseMap.h"

#include <functional>
#include <optional>

namespace recur {

/// The rule of one row, in a module of its own, or null. The rule must have one matrix state that numbers,
/// and factors of its rows and columns, decay, and change it by a sum of as many parts as its inputs have
/// micro-steps, of which each looks at one. A token's rows are simultaneous: it changes the decayed state by
/// the sum of what its rows each do to it, and what is read of the new state is read of the sum. The rule's
/// inputs are those of a row or, where the token has only one, of the token; its last input, a number, is 1
/// at a token's first row and else 0. An output of one row for each micro-step (a joined one) is that of the
/// row; others are those of the token.
///
/// That all parts are alike is not looked at: areColumnsAlike and proveColumns tell.
mlir::OwningOpRef<mlir::ModuleOp> ruleOfColumn(RuleOp rule);

/// The attribute of such a rule, and of its chunk program: the number of a token's rows.
constexpr llvm::StringLiteral rowsAttr = "chunk.rows";

/// The columns of an output that has one for each micro-step; null where it is no such.
JoinOp columnsOf(mlir::Value output);

/// The number of the micro-step that is extracted, where it is a constant.
std::optional<int64_t> microStepOf(ExtractOp extract);

/// Which micro-steps values look at.
class LookedAt {
public:
  /// `isOpaque` says what is not looked into.
  explicit LookedAt(std::function<bool(mlir::Value)> isOpaque = {}) : isOpaque(std::move(isOpaque)) {}

  /// The one that a value looks at, 0 for none, and failure for several.
  mlir::FailureOr<int64_t> of(mlir::Value value);
  static mlir::FailureOr<int64_t> both(mlir::FailureOr<int64_t> x, mlir::FailureOr<int64_t> y);
  /// Whether `other` is of micro-step `step` what `first` is of the first one.
  bool areAlike(mlir::Value first, mlir::Value other, int64_t step);

private:
  std::function<bool(mlir::Value)> isOpaque;
  llvm::DenseMap<mlir::Value, mlir::FailureOr<int64_t>> found;
};

} // namespace recur
