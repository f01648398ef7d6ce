// What the chain of a rescaled rule (RoleRescaled.cpp) makes of a chunk, whole or in pieces.
#pragma once
#include "lib/Cuda/RoleChain.h"

namespace recur::cuda {

struct RoleEmitter::Pieces {
  Pieces(RoleEmitter &emitter, ChainState &state)
      : roles(emitter), plan(emitter.plan), b(emitter.b), ptx(emitter.ptx), state(state) {}

  /// One chunk, or piece of one, of the state's entries.
  mlir::FailureOr<Values> emit(mlir::Value chunk, mlir::ValueRange entries);
  /// Entries of tokens, or rows, times what decays from the reference to them, or divided by it.
  Values rescaled(mlir::ValueRange entries, bool divides);
  /// Entries, those of tokens that are not of the piece as zeros.
  Values ofPiece(mlir::ValueRange entries);
  /// Which of a thread's entries are of tokens of the piece.
  Values holds(size_t count, bool ofTokens);
  /// Stores 16 tokens of an output, those of the piece: what is there of others stays.
  void store(mlir::Value at, int64_t offset, mlir::ValueRange holds, mlir::ValueRange pairs);

  /// The loop of a chain whose chunks come again until all of their pieces are done: `body` is given a
  /// piece's first token, and tells the one behind it.
  using Body = llvm::function_ref<std::pair<mlir::Value, Values>(
      mlir::Value chunk, Stage stage, mlir::Value first, mlir::ValueRange carried)>;
  static Values overChunks(RoleEmitter &roles, mlir::Value chunks, mlir::ValueRange carried, Body body);

private:
  Rescaling sumChunk();
  void refer(Rescaling &own, mlir::Value first, mlir::Value second);
  Values relativeLogs(bool ofTokens);
  Values timesPower(mlir::ValueRange entries, mlir::Value first, mlir::Value second);
  mlir::Value tokenOf(mlir::Value lane, size_t entry, bool ofTokens);
  mlir::Value entryAt(mlir::ValueRange entries, mlir::Value token, int64_t row);
  mlir::Value behindPiece(mlir::ValueRange logs, mlir::Value first, llvm::ArrayRef<mlir::Value> ofFirst);
  mlir::FailureOr<Values> emitPiece(mlir::Value chunk, mlir::ValueRange entries);

  RoleEmitter &roles;
  const RolePlan &plan;
  mlir::ImplicitLocOpBuilder &b;
  Ptx &ptx;
  ChainState &state;
};

} // namespace recur::cuda
