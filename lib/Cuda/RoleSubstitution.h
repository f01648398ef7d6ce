// Substitution, by the chain, in systems that each row of the state has for itself.
#pragma once
#include "lib/Cuda/EntryFunctions.h"
#include "lib/Cuda/RoleChain.h"

namespace recur::cuda {

/// Substitution by one warp.
struct RoleEmitter::Substitution {
  using Value = mlir::Value;
  /// What is written of a token that has its turn, in a thread's rows of it, of what is read; `entry` is the
  /// first row's in the block.
  using Function = llvm::function_ref<Values(size_t entry, int64_t turn, mlir::ValueRange reads)>;

  Substitution(RoleEmitter &emitter, ChainState &state)
      : roles(emitter), b(emitter.b), ptx(emitter.ptx), state(state) {
    pair = ptx.bits(roles.lane, 3);
    quad = ptx.bits(roles.lane, 28);
    leaves = ptx.add(state.scoresBase, ptx.mul(pair, 8));
    diagonals = ptx.add(state.scoresBase, ptx.mul(pair, 2 * ownLeafPitch + 8));
  }

  /// x - factor * y, what is given to a token taken from its right side; without a factor it is 1. Of a
  /// system that is less the scores it is a sum.
  Value less(Value x, Value factor, Value y) {
    bool isNegated = roles.plan.isNegated;
    if (!factor)
      return isNegated ? ptx.sum(x, y) : ptx.difference(x, y);
    return mlir::LLVM::FMAOp::create(b, isNegated ? factor : ptx.negative(factor), y, x);
  }
  Values less(mlir::ValueRange x, mlir::ValueRange factors, mlir::ValueRange y) {
    Values results;
    for (size_t e = 0; e < x.size(); ++e)
      results.push_back(less(x[e], factors.empty() ? Value() : factors[e], y[e]));
    return results;
  }
  /// Entries times others; none are ones.
  Values times(mlir::ValueRange x, mlir::ValueRange y) {
    Values results(x.empty() ? y : x);
    for (size_t e = 0; e < results.size() && !x.empty() && !y.empty(); ++e)
      results[e] = ptx.multiply(results[e], y[e]);
    return results;
  }
  /// A thread's entries, each times the number of its row.
  Values scaled(mlir::ValueRange entries, llvm::function_ref<Value(int64_t row)> ofRow) {
    Values factors{ofRow(0), ofRow(1)}, results(entries);
    for (auto [e, entry] : llvm::enumerate(results))
      entry = ptx.multiply(entry, factors[e / 2 % 2]);
    return results;
  }

  /// The rows that a thread has of a block: two, or one of each of two states.
  size_t rows() const { return roles.plan.states > 1 ? 1 : 2; }
  /// Entries of a block, or of its first half, as the left side of a product. Beside one row lies what
  /// rounding takes from it (RoleTurns.cpp).
  Values sideOf(mlir::ValueRange entries);
  /// The rows of such a product's sums.
  Values ownOf(mlir::ValueRange sums);

  /// What blocks before give to a block's tokens, by rows that are solved: onto sums that are relative to the
  /// block's reference on the left.
  Values earlier(unsigned tile, int64_t block, llvm::ArrayRef<Value> solved, mlir::ValueRange start);

  /// Solves for 16 tokens: right sides, less factors (or none) times what they are given by tokens before.
  /// All threads compute what their tokens would be now, and the one whose turn it is tells its own; of what
  /// is `written` that, which is a function of what is read, and to be known, too, of all `reads`.
  Values solve(int64_t block, mlir::ValueRange sides, mlir::ValueRange factors, Values given,
               Function written = nullptr, Values *reads = nullptr);

  /// The same of rows by eights: a turn is that of a thread's two tokens, first and second rows of one and
  /// then of the other. An entry's place among those four is 2 for the second token and 1 for the second row.
  Values solveByEights(int64_t block, mlir::ValueRange sides, mlir::ValueRange factors, Values given);

  /// The same with decays that no reference serves, token by token, and what the block's tokens see of the
  /// solution by other scores (or none). `logs` are binary ones from the block's start, with each token's
  /// own, as the system's reads know them, and as the mix does.
  std::pair<Values, Values> solveWild(int64_t block, mlir::ValueRange sides, mlir::ValueRange factors,
                                      const Values (&logs)[3], std::optional<unsigned> mixed);

  /// A score of a block on the diagonal, from its tile of pairs.
  Value score(unsigned tile, int64_t block, Value seer, Value seen);

  /// Two neighbours of a row of such a block: the half of the row, and which of its four pairs.
  Value pairOfScores(unsigned tile, int64_t block, Value row, Value half, Value pair);

  /// Solves for what is written, as functions of what is read have it (RoleFunctions.cpp).
  mlir::LogicalResult substitute(chunk::SubstituteOp op);
  Values entriesOf(Value rows, int64_t block), entriesOfParam(Value param);
  llvm::SmallVector<EntriesOfValue> sumsOfRows(llvm::ArrayRef<EntriesOfValue> rows,
                                               llvm::ArrayRef<bool> areLargest, std::optional<int64_t> turn);
  EntriesOfValue ofOwnTokens(Value number);
  /// The same of a block of tokens whose writes are combinations of vectors (RoleCombinations.cpp), of a
  /// thread's entries of the region's arguments, the first of which are of what is read without what the
  /// block's tokens write.
  Values combine(chunk::SubstituteOp op, int64_t block, llvm::ArrayRef<Values> entries, Value left);

  /// Leaves a block's part of the left sides of products that are made of a solution.
  void leave(Value solution, int64_t block, mlir::ValueRange entries);

  RoleEmitter &roles;
  mlir::ImplicitLocOpBuilder &b;
  Ptx &ptx;
  ChainState &state;
  Value pair, quad, leaves, diagonals;
  int64_t sums = 0; // over rows, that functions have asked for
};

} // namespace recur::cuda
