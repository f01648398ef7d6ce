// The states of a rule that joinKeys makes one of.
#pragma once

#include "lib/Algebra/JoinedKeys.h"
#include "lib/Algebra/Terms.h"
#include "llvm/ADT/DenseMap.h"

namespace recur {

inline bool isNumber(mlir::Value value) { return matType(value).isScalar(); }
inline bool isOfMatrix(mlir::Value value) { return isMatrix(matType(value)); }
/// A vector that another one is but for its orientation; a matrix itself.
mlir::Value plain(mlir::Value value);

/// The first states that need each other, matrices before vectors, or a matrix and vectors that follow from
/// the same other ones, as what is written to them may be the same.
class JoinedMembers {
public:
  explicit JoinedMembers(RuleOp rule)
      : rule(rule), body(rule.getBody().front()), states(rule.argumentsOf(ArgKind::State)),
        updates(rule.yieldedStates()) {}

  /// Fails where there are none that can be one state.
  mlir::LogicalResult find(bool areAlike);

protected:
  mlir::BlockArgument member(unsigned i) const { return states[members[i]]; }
  mlir::Value update(unsigned i) const { return updates[members[i]]; }
  bool isVector(unsigned i) const { return !isOfMatrix(states[members[i]]); }
  int64_t keysOf(unsigned i) const {
    MatType type = matType(member(i));
    return isVector(i) ? keysOfVector : isTurned ? type.numRows() : type.numCols();
  }
  /// The member that a value is, or whose new state it is.
  std::optional<unsigned> memberOf(mlir::Value value, bool isUpdate) const;
  /// The member that it was at the start of a block.
  std::optional<unsigned> memberAtStart(mlir::Value value) const;
  /// What a member was at the start of a block; null where nothing reads that.
  mlir::BlockArgument startOf(unsigned i) const {
    return RuleOp(rule).findArgument(ArgKind::Stale, RuleOp(rule).getArg(member(i)).getName());
  }
  /// Whether a value of the rule follows from none of them.
  bool isOfToken(mlir::Value value) const { return !(reach.lookup(value) & group); }

  /// Whether it follows from states that are not joined, and from the joined ones through those alone.
  bool isOfOthers(mlir::Value value);
  /// The vector of which each entry is times a key of a state, where a product is that; else null.
  mlir::Value channelsOf(mlir::Value term, mlir::Value state);
  std::optional<unsigned> memberOfChannels(mlir::Value term);
  /// Whether keys that are a number times `entryOfVector` are about that in bf16, if it is a constant.
  static bool isKeyOfVector(mlir::Value number);

  RuleOp rule;
  mlir::Block &body;
  llvm::SmallVector<mlir::BlockArgument> states;
  llvm::SmallVector<mlir::Value> updates;    // the new ones
  llvm::SmallVector<unsigned> members;       // by number among the states
  llvm::SmallVector<int64_t> firsts, params; // of each, where its keys begin, and its param or -1
  bool isTurned = false;                     // matrices have a row for each key
  int64_t rows = 0, keys = 0;

private:
  void findReach();
  bool findGroup(bool areAlike);
  bool areReadOnLeft();
  std::optional<int64_t> paramOf(mlir::Value first);

  llvm::DenseMap<mlir::Value, uint64_t> reach; // the states that values follow from, as bits
  uint64_t group = 0;
};

} // namespace recur
