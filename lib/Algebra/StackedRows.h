// Values of a rule that differ from row to row of a token.
#pragma once

#include "lib/Algebra/StackedReads.h"

namespace recur {

/// Builds them, for the rule of one row (stackReads).
class StackedRows {
public:
  /// Values are built where `b` stands, in the rule's body.
  StackedRows(RuleOp rule, mlir::OpBuilder &b, unsigned count)
      : rule(rule), b(b), loc(rule.getLoc()), rows(count - 1) {}

  /// A value that is one of these at each row, in order; null where there is none.
  mlir::Value of(mlir::ValueRange values);
  /// Says what stands for some values, one for each row.
  void know(mlir::ValueRange values, mlir::Value value) {
    known.push_back({llvm::SmallVector<mlir::Value>(values), value});
  }
  /// The same of vectors, of which some are null: those rows are zero.
  mlir::Value ofSome(llvm::ArrayRef<mlir::Value> vectors);
  /// The same of numbers that such vectors are times.
  mlir::Value numberOf(llvm::ArrayRef<mlir::Value> vectors, llvm::ArrayRef<mlir::Value> numbers);
  /// What a value is at one row, where what is read of some states is read along vectors that are zero at
  /// other rows.
  mlir::Value ofOne(mlir::Value value, unsigned row, llvm::ArrayRef<mlir::Value> states);
  /// A number that counts at the first row; at others it is 1.
  mlir::Value once(mlir::Value number);
  /// The number that is 1 at a row, which is not the last one, and 0 at others: what stands for it until all
  /// inputs are known.
  mlir::Value isRow(unsigned row);
  /// Gives the rule these numbers as its last inputs, and lists the stacked ones. Rows may be filled up to a
  /// power of two: blocks have so many.
  void finish(bool fillsUp);

private:
  bool isInput(mlir::Value value) const;
  mlir::Value inputAt(mlir::Value input, unsigned row);
  bool followsFromVector(mlir::Value value) const;
  mlir::Value one();
  mlir::Value choose(mlir::ValueRange numbers);
  mlir::Value ofOperands(mlir::ValueRange values);
  mlir::Value ofScaled(mlir::ValueRange values);
  mlir::Value inputOf(llvm::ArrayRef<mlir::Value> vectors);

  RuleOp rule;
  mlir::OpBuilder &b;
  mlir::Location loc;
  llvm::SmallVector<mlir::Value> rows;
  llvm::SmallVector<StackedInput> stacked;
  using Known = llvm::SmallVector<std::pair<llvm::SmallVector<mlir::Value>, mlir::Value>>;
  Known known, inputs;
  llvm::DenseMap<std::pair<mlir::Value, unsigned>, mlir::Value> ones;
};

} // namespace recur
