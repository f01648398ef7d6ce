// What the scores' warpgroup does for a vector that is read beside them (RoleNormaliser.cpp).
#pragma once
#include "lib/Cuda/RoleScores.h"

namespace recur::cuda {

struct RoleEmitter::Normaliser {
  explicit Normaliser(RoleEmitter &emitter)
      : roles(emitter), plan(emitter.plan), b(emitter.b), ptx(emitter.ptx), lane(emitter.lane),
        warp(emitter.warp) {}

  /// What it takes of shared memory, and of the workspace where it is passed on or gathered.
  int64_t bytes() const;
  static int64_t bytesToPass(const RolePlan &plan) { return plan.normaliser ? plan.keys * 4 + 16 : 0; }

  /// A thread's entries before the first chunk; where segments gather what they make of it, the factor that
  /// they multiply it with follows. And what becomes of them after the last one.
  Values load();
  void store(mlir::ValueRange vector, unsigned which);
  /// Has the first chunk's products read them or, in a team, those of the next own one.
  void publish(mlir::ValueRange vector, unsigned which);
  /// Of who makes numbers: the weights of a chunk's keys, of a lane's two tokens.
  void storeWeights(const Stage &stage, mlir::ValueRange pair);
  /// Begins a chunk's products, of what it finds, if that is to be read, and of its keys.
  llvm::SmallVector<Pending> begin(mlir::Value chunk, const Stage &stage, bool reads);
  /// Keeps of what has landed what is of a thread's rows.
  void land(ScoreState &state, llvm::ArrayRef<Values> landed);
  /// Before the scores are handed over: what the chunk reads, the numbers that follow from it, and the vector
  /// after the chunk.
  void finish(ScoreState &state, mlir::Value chunk, const Stage &stage);
  /// Adds a block's scores to the sums of a thread's two rows.
  void addScores(ScoreState &state, mlir::ValueRange entries);

  /// The loop over the chunks whose scores this block makes, which are `body`'s. Of those that others of its
  /// team make it sums the keys, too.
  Values overChunks(ScoreState &state, mlir::Value chunks, mlir::ValueRange first,
                    llvm::function_ref<void(mlir::Value chunk, Stage stage)> body);

private:
  int64_t tiles() const { return plan.keys / 64; }
  mlir::Value readTile(mlir::Value chunk) {
    return ptx.add(ptx.add(roles.base, roles.normaliserAt),
                   ptx.mul(ptx.bits(chunk, 1), tiles() * partsBytes));
  }
  mlir::Value weightTile(const Stage &stage) {
    return ptx.add(ptx.add(roles.base, roles.normaliserAt + 2 * tiles() * partsBytes),
                   ptx.mul(stage.index, partsBytes));
  }
  void storeVector(mlir::Value chunk, mlir::ValueRange vector);
  std::array<mlir::Value, 2> inParts(mlir::ValueRange pair);
  mlir::Value placeOf(mlir::Value tile, mlir::Value number, mlir::Value column);
  Values ownKeys();
  Values given();
  Values gathered();
  Values passed();
  Values loadPassed(mlir::Value vector, mlir::ValueRange keys);
  void pass(mlir::Value vector, mlir::ValueRange entries);
  void advance(ScoreState &state, const Stage &stage, mlir::ValueRange sums);
  void follow(ScoreState &state, mlir::Value chunk);
  std::array<mlir::Value, 2> number(ScoreState &state, mlir::Value value);
  void storeLate(ScoreState &state);

  // The columns of a right side, which lie in rows of 64 entries.
  static constexpr int64_t columns = 8, partsBytes = columns * rowBytes;

  RoleEmitter &roles;
  const RolePlan &plan;
  mlir::ImplicitLocOpBuilder &b;
  Ptx &ptx;
  mlir::Value lane, warp;
};

} // namespace recur::cuda
