// Who scales the rows of a rule whose keys decay within bounds (RoleScaledKeys.cpp), and what the chain makes
// of it.
#pragma once
#include "lib/Cuda/RoleChain.h"

namespace recur::cuda {

struct RoleEmitter::ScaledTiles {
  explicit ScaledTiles(RoleEmitter &emitter)
      : roles(emitter), plan(emitter.plan), b(emitter.b), ptx(emitter.ptx) {}

  static constexpr int64_t warps = 8; // of both

  /// What decays from a chunk's start to its first reference, between two, and from the last one to its end,
  /// for each key, in f32: behind the tiles of a place in the ring.
  static int64_t bytesOfPart(const RolePlan &plan) { return plan.keys * 4; }
  static int64_t bytesOfParts(const RolePlan &plan) { return (1 + plan.references()) * bytesOfPart(plan); }
  static int64_t bytes(const RolePlan &plan) {
    return plan.scaling ? llvm::alignTo(bytesOfParts(plan), 1024) : 0;
  }

  /// What decays between two references, for each key, as an f32 logarithm.
  static int64_t bytesOfMiddle(const RolePlan &plan) { return plan.references() > 1 ? plan.keys * 4 : 0; }

  /// Whether a kernel may scale rows so: each block its own chunks' alone, where all sums over rows are of
  /// what scaled rows are functions of; with two references, where what is added to the state is at once.
  static bool canScale(const RolePlan &plan, const RoleForm &form);
  /// The inputs that scaled rows are functions of.
  static llvm::SetVector<mlir::BlockArgument> leavesOf(const RolePlan &plan);
  /// Those of the scaled tiles whose later half is there a second time, relative to its own reference: what
  /// is read, with two of these. And the number of a place's tile among them.
  static llvm::SmallVector<const MadeTile *> twinsOf(const RolePlan &plan);
  static int64_t twinIn(const RolePlan &plan, mlir::BlockArgument place);
  static int64_t bytesOfTwin(const RolePlan &plan) { return plan.keys / 64 * halfOfTwin; }
  static constexpr int64_t halfOfTwin = tokensOfChunk / 2 * rowBytes; // of 64 keys
  /// The one that products of the system alone read, if there is one.
  static std::optional<int64_t> twinOfSystem(const RolePlan &plan);
  /// A product between tokens, of rows that are read with rows that are written: of columns that are the
  /// earlier half of the tokens, and of the later half's; each is waited for by itself.
  Pending product(const Stage &stage, mlir::BlockArgument read, mlir::BlockArgument written);

  /// The two warpgroups that make a team's scores, and scale rows before.
  void emit(mlir::Value chunks);
  /// A thread's entries of the state times what decays in such a part of a chunk.
  Values decayed(const Stage &stage, int64_t part, mlir::ValueRange entries);
  /// A chunk of a slab: the state's entries after it.
  mlir::FailureOr<Values> overChunk(ChainState &state, mlir::Value chunk, mlir::ValueRange entries);
  /// All that a chunk adds to the state, whose halves have references of their own.
  Pending overHalves(ChainState &state, int64_t columns);
  /// Where what decays in a part of a chunk is.
  mlir::Value placeOf(const Stage &stage, mlir::Value part) {
    mlir::Value tiles = roles.form.sharesScaled ? stage.walked : stage.tiles;
    return ptx.add(ptx.add(tiles, roles.scalesAt), ptx.mul(part, bytesOfPart(plan)));
  }

private:
  mlir::Value warpOf();
  mlir::Value placeIn(mlir::Value tiles, int64_t halfStride, mlir::Value group, mlir::Value row);
  mlir::Value placeOf(const Stage &stage, mlir::BlockArgument input, mlir::Value group, mlir::Value row);
  Values times(mlir::ValueRange sums, const Values &left, llvm::ArrayRef<mlir::Value> right);
  void sumMiddle(const Stage &stage);
  mlir::Value middleAt(mlir::Value key) {
    return ptx.add(ptx.add(roles.base, roles.middleAt), ptx.mul(key, 4));
  }
  mlir::Value twinAt(int64_t twin) { return ptx.add(roles.base, roles.twinsAt + twin * bytesOfTwin(plan)); }
  void awaitSums(const Stage &stage);
  void scale(mlir::Value chunk, const Stage &stage);
  void clearPastEnd(mlir::Value chunk, const Stage &stage);

  static constexpr int64_t meeting = 7; // a barrier of those who scale

  RoleEmitter &roles;
  const RolePlan &plan;
  mlir::ImplicitLocOpBuilder &b;
  Ptx &ptx;
};

} // namespace recur::cuda
