// Maps of states whose entries go on by themselves, and what a block's threads exchange of them.
#pragma once
#include "lib/Cuda/Threads.h"
#include "lib/Derive/Elementwise.h"

namespace recur::cuda {

/// The map of one entry of a group's states: n*n factors and n writes. Null stands for 0, in (max, +) for
/// -inf.
struct EntryMap {
  llvm::SmallVector<mlir::Value, 4> factors;
  llvm::SmallVector<mlir::Value, 2> writes;

  llvm::SmallVector<mlir::Value> flat() const;
  static EntryMap ofFlat(llvm::ArrayRef<mlir::Value> values, size_t states);
};

/// Builds what entries go through.
class MapBuilder {
public:
  explicit MapBuilder(Threads &threads) : threads(threads), b(threads.b) {}

  /// The map that changes nothing.
  EntryMap identity(const ScanGroup &group);
  /// First `before`, then `after`.
  EntryMap compose(const ScanGroup &group, const EntryMap &after, const EntryMap &before);
  llvm::SmallVector<mlir::Value> apply(const ScanGroup &group, const EntryMap &map,
                                       llvm::ArrayRef<mlir::Value> states);
  /// `map` where the condition holds, else the identity.
  EntryMap where(const ScanGroup &group, mlir::Value condition, const EntryMap &map);
  /// The same with numbers for nulls.
  EntryMap filled(const ScanGroup &group, const EntryMap &map);

private:
  mlir::Value multiply(mlir::Value x, mlir::Value y);
  mlir::Value add(mlir::Value x, mlir::Value y);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
};

/// One group's place in shared memory: a map for each group of threads, and the states or the map that are
/// carried on from tile to tile. Rows of `size` numbers, one for each entry of a state.
struct MapBoard {
  const ScanGroup *group;
  MatType type;         // of its states
  Staged maps, carried; // rows: factors, then writes; of `maps` for each group of threads in turn

  int64_t size() const { return type.numElements(); }
  size_t components() const { return group->factors.size() + group->writes.size(); }
};

} // namespace recur::cuda
