// States whose entries go on by themselves: what many tokens make of such an entry is one map, so that
// stretches of a sequence can be worked on side by side.
#pragma once

#include "dialect/recur/Recur.h"

namespace recur {

/// States that are updated together, entry by entry. All values are of the rule's body.
struct ScanGroup {
  enum Kind {
    Affine, // s_i' = sum over j of factors[i*n + j] .* s_j + writes[i]
    Max     // s' = max(s + factors[0], writes[0]), of one state
  } kind = Affine;
  llvm::SmallVector<unsigned> states; // indices among the rule's states
  /// Null stands for 0 in an affine map. They need not have the states' shape: dimensions of 1 are repeated.
  llvm::SmallVector<mlir::Value> factors, writes;
};

/// A rule whose states are all of that kind. What a group's maps are made of depends on states of earlier
/// phases at most, so those are known before.
struct ScanForm {
  llvm::SmallVector<llvm::SmallVector<ScanGroup>> phases;
};

/// Finds the form and writes the rule's updates as what the groups say, which is checked in F_p. Without a
/// form, `reason` names the state that is not updated entry by entry.
std::optional<ScanForm> findScan(RuleOp rule, std::string &reason);

} // namespace recur
