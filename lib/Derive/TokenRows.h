// Token-only values of a rule as matrices of a chunk program: one row per token.
#pragma once

#include "dialect/chunk/Chunk.h"
#include "lib/Algebra/NormalForm.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"

#include <functional>

namespace recur {

/// Asks for values of the rule while the body of the program is being built; `finish` then puts the functions
/// that compute them (chunk.map) at the body's start.
class TokenRows {
public:
  TokenRows(const NormalForm &nf, chunk::ProgramOp program);

  /// A token-only column as the C x n matrix of its rows; any other value as `!chunk.tokens`.
  mlir::Value rows(mlir::Value value);
  /// True when the value is the same for all tokens.
  bool isShared(mlir::Value value);
  /// Such a value, in the program's body.
  mlir::Value shared(mlir::Value value);
  /// The new value of a state that runs ahead.
  mlir::Value aheadState(unsigned state);
  /// The rows of `values` of the rule, which may be any function of those in `known` (and of token-only
  /// ones).
  llvm::SmallVector<mlir::Value> epilogue(llvm::ArrayRef<mlir::Value> values,
                                          llvm::ArrayRef<std::pair<Readout, mlir::Value>> known);
  /// Lets `rows` stand for a value that depends on states.
  void define(mlir::Value value, mlir::Value rows) { defined[value] = rows; }
  /// Takes a state that runs ahead out of the tokens' order: `governs` says which values depend on it, and
  /// `rows` gives these, or null, and then `missing` is set.
  void solve(unsigned state, std::function<bool(mlir::Value)> governs,
             std::function<mlir::Value(mlir::Value)> rows) {
    solved.push_back({state, std::move(governs), std::move(rows)});
  }
  bool isMissing() const { return missing; }
  void finish();

  /// Builds at the end of the program's body.
  mlir::OpBuilder builder;
  mlir::StringAttr length;

private:
  /// What a value depends on within the token.
  enum Source { Shared, Token, Ahead };
  Source source(mlir::Value value);
  mlir::Value placeholder(mlir::Value value);
  /// The program's argument that one of the rule is; null for a state at the start of a block.
  mlir::Value argumentOf(mlir::BlockArgument argument);
  void buildMap(llvm::ArrayRef<std::pair<mlir::Value, mlir::Value>> requests, bool ahead);
  /// True when the state is passed from token to token.
  bool isCarried(unsigned state) const;
  /// Clones what `values` are computed from, up to mapped values; block arguments and `stop`s become leaves.
  struct Leaves {
    llvm::SmallVector<mlir::Value> rows, shared;
  };
  void collect(mlir::Value value, Leaves &leaves, llvm::DenseSet<mlir::Value> &seen,
               llvm::function_ref<bool(mlir::Value)> isLeaf);
  static mlir::Value clone(mlir::OpBuilder &builder, mlir::Value value, mlir::IRMapping &map);

  const NormalForm &nf;
  chunk::ProgramOp program;
  mlir::Operation *sharedEnd; // shared values stand before it
  mlir::Operation *anchor;    // maps stand between the two
  llvm::DenseMap<mlir::Value, Source> sources;
  llvm::MapVector<mlir::Value, mlir::Value> plain, ahead; // requested values and what stands for them
  llvm::DenseMap<unsigned, mlir::Value> aheadStates;
  llvm::DenseMap<mlir::Value, mlir::Value> defined;
  struct Solved {
    unsigned state;
    std::function<bool(mlir::Value)> governs;
    std::function<mlir::Value(mlir::Value)> rows;
  };
  std::vector<Solved> solved;
  bool missing = false;
  mlir::IRMapping sharedMap;
};

} // namespace recur
