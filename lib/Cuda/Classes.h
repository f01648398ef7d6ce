// Which dimensions of which values are the same index, and which of them are independent.
#pragma once
#include "dialect/recur/Recur.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/EquivalenceClasses.h"

namespace recur::cuda {

/// Sorts the dimensions of all values of a bound rule into classes: `v` of n entries, the rows of S and of
/// `v*kT` are one class in `S = S + v*kT`. A class is independent when no entry of the rule mixes two of its
/// indices, so that parts of it can be computed apart.
class IndexClasses {
public:
  explicit IndexClasses(RuleOp rule);

  /// The largest independent class that every state has as a dimension, or every output where states are
  /// none; 0 if there is none. (A state without it would be computed by every part, and written by one while
  /// another still reads it.)
  unsigned bestIndependent() const;
  /// The class of a dimension (0 rows, 1 columns) of a value; 0 for a dimension of size 1.
  unsigned classOf(mlir::Value value, unsigned dim) const;
  /// The number of indices of a class.
  int64_t sizeOf(unsigned index) const { return sizes.lookup(index); }
  bool isIndependent(unsigned index) const { return index && !mixed.contains(index); }
  /// Whether a matrix lies the other way round than one whose columns are summed over: its columns alone are
  /// independent.
  bool isTurned(mlir::Value matrix) const {
    return isIndependent(classOf(matrix, 1)) && !isIndependent(classOf(matrix, 0));
  }
  /// Whether a state does.
  bool turnsStates() const;
  /// Whether sums alone mix its indices: there may be more of them, of zeros.
  bool canGrow(unsigned index) const { return index && !numbered.contains(index); }

private:
  unsigned node(mlir::Value value, unsigned dim);
  void join(mlir::Value a, unsigned da, mlir::Value b, unsigned db);
  void joinAll(mlir::Value a, mlir::Value b);
  void mix(mlir::Value value, unsigned dim, bool byNumber = false);
  void visit(mlir::Operation *op);

  mutable RuleOp rule;
  llvm::DenseMap<std::pair<mlir::Value, unsigned>, unsigned> nodes;
  llvm::EquivalenceClasses<unsigned> sets;
  llvm::DenseSet<unsigned> mixedNodes, mixed, numberedNodes, numbered;
  llvm::DenseMap<unsigned, int64_t> sizes;
};

/// The matrix type of a value: that of one micro-step for steps.
MatType entryType(mlir::Type type);

} // namespace recur::cuda
