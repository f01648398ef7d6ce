// Rules whose tokens read a state several times, or read and write along several vectors, as rules of one
// read with a row for each.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// An input of a stacked rule: which of its arguments each of a token's rows is; none where that row is zero.
struct StackedInput {
  unsigned argument;
  llvm::SmallVector<std::optional<unsigned>, 2> rows;
};

/// The rule of one row, in a module of its own, or null. The rule must have one matrix state that numbers and
/// factors of its keys, or of its values, decay, and write along at least two and at most `mostRows` vectors;
/// each time, or some of the times, also what it reads of the state along a vector. Where these are more than
/// `mostRows`, of which so many read, what is only written stands beside the rows. A token's rows are
/// simultaneous: it changes the decayed state by the sum of what its rows each do to it. More than two, and
/// those of blocks of less than eight tokens, at whose starts states are read, are filled up with rows of
/// zeros to a power of two (`rowsAttr`, in ColumnRows.h). Or (`inTurnAttr`) each row reads what those before
/// it have written: they are steps, and the decay is the first one's (onceOf, in Rewriting.h, of `inLogs`).
/// The rule has the other one's arguments, then the stacked inputs, which stand for several of them, and at
/// last a number for each row but the last one, that is 1 at this row and 0 at others. `outputsInRows`:
/// outputs beside a decay of values have a row for each of a token's, of which one is the token's.
mlir::OwningOpRef<mlir::ModuleOp> stackReads(RuleOp rule, bool inLogs, size_t mostRows, bool outputsInRows);

/// The attribute of such a rule, and of its chunk program, that lists the stacked inputs.
constexpr llvm::StringLiteral stackedAttr = "chunk.stacked";
llvm::SmallVector<StackedInput> stackedInputs(mlir::Operation *op);
/// Sets it, for a rule or program some of whose arguments may have other numbers.
void setStackedInputs(mlir::Operation *op, llvm::ArrayRef<StackedInput> inputs,
                      llvm::function_ref<unsigned(unsigned)> numberOf);

constexpr llvm::StringLiteral inTurnAttr = "chunk.in_turn";

/// What a stacked rule's state is before a row is written to it, given the rule's new state.
mlir::Value beforeStackedRow(mlir::Value newState);

} // namespace recur
