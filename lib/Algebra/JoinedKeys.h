// States that read each other and have keys of their own, as one state that has the keys of all.
//
// Of `e = S*k + c - v; S = S - b*e*kT; c = c - b*e` neither state is known without the other one, and no
// product of two rows says what both have of a token: a matrix and a vector have none in common. But [S c]
// is one matrix with one key more, `T = T - b*e*[k; 1]T` where `e = T*[k; 1] - v`: a delta rule. So are
// several matrices that follow from errors of all, each along its own key; a vector that is what was read of
// the matrix, and is written to it, changes it along two.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// The keys that a vector becomes: along them 1 is `entryOfVector`, whose square, so many times, is 1. So it
/// is read along what it is written along, and all of that is exact; each is as many times the vector.
constexpr int64_t keysOfVector = 16;
constexpr double entryOfVector = 0.25;
/// The keys of each state begin at a multiple of so many, as what is copied together comes from one tensor.
constexpr int64_t keysTogether = 64;

/// A state of a rule that several states of another one are; or an input that several vectors are, each for
/// the keys of one of them.
struct JoinedNames {
  /// Their names, in the order of their keys; empty for a vector of zeros.
  llvm::SmallVector<llvm::StringRef> names;
  /// Where the keys of each begin, and their number.
  llvm::SmallVector<int64_t> firsts, keys;
  /// The param that each begins with, by number; none for zeros.
  llvm::SmallVector<std::optional<unsigned>> params;
  /// Whether a state has a row for each key.
  bool isTurned = false;

  /// The first name that is one.
  llvm::StringRef front() const {
    return *llvm::find_if(names, [](llvm::StringRef name) { return !name.empty(); });
  }
};

/// A copy of the rule, in a module of its own, in which the first states that need each other, and are no
/// sums of each other's matrices, are one (recur.concat makes its keys); null where there are none, where
/// their updates are not linear in them, or where they begin with anything but zeros and params. Dimensions
/// are bound.
mlir::OwningOpRef<mlir::ModuleOp> joinKeys(RuleOp rule);

/// The attribute of such a rule, and of its parts, that joinedNames reads.
constexpr llvm::StringLiteral joinedKeysAttr = "recur.joined_keys";

/// What the argument of that name is in a rule of joinKeys, or in a part of it; none where it is no such.
std::optional<JoinedNames> joinedNames(RuleOp rule, llvm::StringRef name);
/// The name of an argument that these are.
std::string joinNames(llvm::ArrayRef<std::string> names);

} // namespace recur
