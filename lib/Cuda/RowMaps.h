// Functions of an input's rows that roles apply where the copy engine brings these (RoleMaps.cpp): of a
// token's query, say, its silu divided by its norm.
#pragma once
#include "dialect/recur/Recur.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"

namespace recur::cuda {

/// A vector that follows from one input of the token and params alone, entry by entry and by sums and maxima
/// over it.
struct RowMap {
  mlir::Value result;
  mlir::BlockArgument source;
  llvm::SmallVector<mlir::BlockArgument> params;
  /// Whether no entry depends on another one.
  bool isEntrywise = true;

  /// What a vector is as such, or nothing where it is none, or where the special function unit has more of it
  /// to compute than the few warps that apply it have time for.
  static std::optional<RowMap> of(mlir::Value vector);
  /// The function itself, whatever its input, but not its params, is called.
  std::string text() const;
};

/// Such functions by the names that a rule has for their results, which are inputs of it.
using RowMaps = llvm::StringMap<RowMap>;

} // namespace recur::cuda
