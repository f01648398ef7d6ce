// Rules whose tokens read a state twice at one time, or read and write along two vectors, as rules of one
// read with two rows a token.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// An input of a stacked rule: which of its arguments the first of a token's rows is, and the second; or none
/// where that row is zero.
struct StackedInput {
  unsigned argument;
  std::optional<unsigned> rows[2];
};

/// The rule of one row, in a module of its own, or null. The rule must have one matrix state that numbers and
/// factors of its keys decay, and write along two vectors; each time, or one of the times, also what it reads
/// of the state along a vector. A token's rows are simultaneous: it changes the decayed state by the sum of
/// what its two rows each do to it. Or (`inTurnAttr`) the second one reads what the first one has written:
/// they are two steps, and the decay is the first one's (onceOf, in Rewriting.h, of `inLogs`). The rule has
/// the other one's arguments, then the stacked inputs, which stand for two of them, and at last a number that
/// is 1 at the first row and 0 at the second.
mlir::OwningOpRef<mlir::ModuleOp> stackReads(RuleOp rule, bool inLogs);

/// The attribute of such a rule, and of its chunk program, that lists the stacked inputs.
constexpr llvm::StringLiteral stackedAttr = "chunk.stacked";
llvm::SmallVector<StackedInput> stackedInputs(mlir::Operation *op);

constexpr llvm::StringLiteral inTurnAttr = "chunk.in_turn";

/// What a stacked rule's state is before a row is written to it, given the rule's new state.
mlir::Value beforeStackedRow(mlir::Value newState);

} // namespace recur
