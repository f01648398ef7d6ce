// A sequence cut into segments that are worked on side by side: what a segment makes of the state that it
// begins with is a map that is known without that state. It is gathered from the segment's tokens, and the
// maps of all segments are then applied one after the other, which gives each segment its state.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// A rule whose states, after a segment's tokens, are parts of the segment's map. It has the inputs and
/// params of the rule that it was made from, and no outputs.
struct SegmentGather {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  struct State {
    /// A state of the original rule, or none: the part of a map that multiplies states.
    std::optional<unsigned> original;
    /// It begins as the original does, from the state of the segment; its end is of no use.
    bool isKnown = false;
    MatType type;
  };
  llvm::SmallVector<State> states;
};

/// What can be done at once: the states of later rounds need those of earlier ones.
struct SegmentRound {
  llvm::SmallVector<SegmentGather> gathers;
  /// A rule with a segment for a token. Inputs: the states of all gathers that are not known, in order;
  /// states: those of `states`, which begin as in the original; outputs: the same after the token.
  mlir::OwningOpRef<mlir::ModuleOp> stitch;
  llvm::SmallVector<unsigned> states;
};

/// The rounds for a bound rule, or none and why. The rule is not changed.
llvm::SmallVector<SegmentRound> planSegments(RuleOp rule, std::string &reason);

} // namespace recur
