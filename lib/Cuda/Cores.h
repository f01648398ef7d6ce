// The states of a rule in groups, each of which can be updated by a kernel of its own.
#pragma once
#include "dialect/recur/Recur.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

namespace recur::cuda {

/// The value that another one is but for its orientation.
mlir::Value stripOrientation(mlir::Value value);
bool isNumber(mlir::Value value);
/// Whether neither of a value's dimensions is 1.
bool isMatrix(mlir::Value value);

/// What an operation reads, in its region, too: matrices and what is smaller.
llvm::SmallVector<mlir::Value> sourcesOf(mlir::Operation *op);

/// States that pass: vectors and numbers that are what a few tokens before make of them, as convolutions and
/// shifts of tokens keep them. After `memory` tokens nothing is left of what they were.
struct PassingStates {
  uint64_t states = 0; // bits by number
  unsigned memory = 0;
};
PassingStates passingStates(RuleOp rule);

/// A state that is an input of some tokens before.
struct Delay {
  unsigned input = 0;
  int64_t tokens = 0; // 0: it is not
  unsigned from = 0;  // the state that it was a token before, where that was none of the inputs
};
/// Of each state of a rule.
llvm::SmallVector<Delay> delaysOf(RuleOp rule);

/// States that are a vector of the token before, and that matrices are written products of two of; bits by
/// number.
uint64_t delayedWrites(RuleOp rule);

/// States that feed each other's updates, and what is taken from them. Of other states they need vectors and
/// numbers alone: products with those, their entries, functions of both.
struct Core {
  /// Its states, and those of the cores that come before it, as bits by number.
  uint64_t states = 0, needs = 0;
  /// None of its states is a matrix.
  bool isVector = true;
  /// Of such a core whose states follow from products of themselves with matrices, which no scan makes: what
  /// its updates are made of.
  llvm::DenseSet<mlir::Value> made = {};
  /// What other stages take.
  llvm::SetVector<mlir::Value> products;
  /// Outputs of the rule that it computes, by number.
  llvm::SmallVector<unsigned> outputs;
};

/// The cores of a rule in an order in which each needs earlier ones only.
class Cores {
public:
  /// `keepsDelayed`: matrices that are written products of vectors of the token before keep those with them.
  /// `keepsSums`: so does the only matrix keep a vector that sums keys (RoleNormaliser.cpp).
  explicit Cores(RuleOp rule, bool keepsDelayed = false, bool keepsSums = false);

  /// Whether there is such an order. Else the cores are in none.
  bool order();
  /// The states that a value depends on, but for those that pass: what follows from them is a function of the
  /// tokens.
  uint64_t reachOf(mlir::Value value) const { return reach.lookup(value); }
  /// Whether a value is a state that passes.
  bool isPassing(mlir::Value value) const;
  uint64_t allPassing() const { return passing; }
  /// The states that pass and that values and those states themselves follow from, where `given` is known.
  uint64_t passingOf(llvm::ArrayRef<mlir::Value> values, const llvm::DenseSet<mlir::Value> &given) const;
  /// To be called where the rule has new ops.
  void findReach();
  /// The core of the states that a matrix is made of, or null where those of several are.
  Core *coreOf(mlir::Value matrix);
  /// The one with a vector that sums keys, or null.
  Core *coreOfSums();
  /// The vector core that can compute a value, from its states and functions of the token, entry by entry and
  /// by sums over entries, or from what its updates are made of anyway; or null.
  Core *entrywiseCoreOf(mlir::Value value);
  /// How many cores come before a value can be known.
  unsigned levelOf(mlir::Value value) const;
  /// All ops of a core's updates, products and outputs that depend on its states.
  llvm::SetVector<mlir::Operation *> opsOf(const Core &core);

  llvm::SmallVector<Core> cores;
  /// Such a vector, as a bit by number.
  uint64_t sums = 0;

private:
  void joinSums();
  bool isSum(const Core &core);
  void join(unsigned core, uint64_t states);
  bool joinOnce();
  void needForReads();
  llvm::DenseSet<mlir::Value> madeBy(const Core &core);
  bool isEntrywise(mlir::Value value, const Core &core, bool orSums) const;
  bool hasTypeOf(mlir::Value value, const Core &core) const;

  RuleOp rule;
  llvm::SmallVector<mlir::BlockArgument> states;
  uint64_t passing = 0, delayed = 0;
  llvm::DenseMap<mlir::Value, uint64_t> reach;
};

} // namespace recur::cuda
