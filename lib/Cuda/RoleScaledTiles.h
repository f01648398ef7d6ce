// Who scales the rows of a rule whose keys decay mildly (RoleScaledKeys.cpp), and what the chain makes of it.
#pragma once
#include "lib/Cuda/RoleChain.h"

namespace recur::cuda {

struct RoleEmitter::ScaledTiles {
  explicit ScaledTiles(RoleEmitter &emitter)
      : roles(emitter), plan(emitter.plan), b(emitter.b), ptx(emitter.ptx) {}

  static constexpr int64_t warps = 8; // of both

  /// What decays in either half of a chunk, for each key, in f32: behind the tiles of a place in the ring.
  static int64_t bytesOfHalf(const RolePlan &plan) { return plan.keys * 4; }
  static int64_t bytesOfHalves(const RolePlan &plan) { return 2 * bytesOfHalf(plan); }
  static int64_t bytes(const RolePlan &plan) {
    return plan.scaling ? llvm::alignTo(bytesOfHalves(plan), 1024) : 0;
  }

  /// The two warpgroups that make a team's scores, and scale rows before.
  void emit(mlir::Value chunks);
  /// A thread's entries of the state times what decays in half of a chunk.
  Values decayed(const Stage &stage, int64_t half, mlir::ValueRange entries);
  /// Where what decays in half of a chunk is.
  mlir::Value placeOf(const Stage &stage, mlir::Value half) {
    mlir::Value tiles = roles.form.sharesScaled ? stage.walked : stage.tiles;
    return ptx.add(ptx.add(tiles, roles.scalesAt), ptx.mul(half, bytesOfHalf(plan)));
  }

private:
  mlir::Value warpOf();
  /// The inputs that scaled rows are functions of.
  llvm::SetVector<mlir::BlockArgument> leaves() const;
  void awaitSums(mlir::Value chunk, const Stage &stage);
  void scale(mlir::Value chunk, const Stage &stage);
  void clearPastEnd(mlir::Value chunk, const Stage &stage);

  static constexpr int64_t meeting = 7; // a barrier of those who scale

  RoleEmitter &roles;
  const RolePlan &plan;
  mlir::ImplicitLocOpBuilder &b;
  Ptx &ptx;
};

} // namespace recur::cuda
