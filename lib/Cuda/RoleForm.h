// What a kernel in roles is to be: which part of a program it takes, in how many blocks and warpgroups.
#pragma once
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/RolePlan.h"

namespace recur::cuda {

/// The scores that one warpgroup computes: some of the plan's tiles, the inverse of its system, or both.
struct ScoreRole {
  llvm::SmallVector<unsigned> tiles;
  bool system = false;
};

/// Whether the chain applies the function that makes an input's rows (RolePlan::maps) where it reads them,
/// instead of other warps in shared memory; and whether there is one that those apply.
bool isMapOfChain(const RolePlan &plan, mlir::BlockArgument input);
bool mapsInPlace(const RolePlan &plan);

/// How a kernel takes sequences: whole, or in segments side by side. Then one kernel gathers what each
/// segment adds to the state and what it multiplies it with, and the next begins every segment with what the
/// ones before it make of the first state. Or, `Passed`, where there are more blocks than processors, a
/// segment waits for the state that the one before it leaves, so that all processors end together. Or,
/// `Early`, where decays bound what is left of a state, a segment
/// begins with zero as many chunks before its own as it takes to forget all before them. Where processors get
/// several blocks, that may be few chunks, or the sequence's first block takes it whole. Or one kernel
/// prepares, for all chunks side by side, what does not depend on the state, and leaves it in the workspace,
/// a record for each chunk; and the next is the chain.
enum class Phase { Whole, Gather, Segments, Passed, Early, Prepare, Chain };

/// A number for each token in shared memory: a product of factors, or the sums of a decay's binary
/// logarithms, less the factors'; or the factors times what decays within the token's 16, from their start
/// or to their end.
struct RowSlot {
  enum Within { Nothing, Start, End };
  RowFactors factors;
  mlir::Value decay;
  bool before = false;   // without the token's own factor of the decay, as a late one always is
  bool ofTokens = false; // that of each token's last micro-step
  Within within = Nothing;
  bool atStart = false; // those of the tokens before the block, at whose start states are read
};

/// What a kernel is to be.
struct RoleForm {
  Phase phase = Phase::Whole;
  /// Blocks that are a cluster; those that share out the chain's warpgroups; the most places of the ring.
  int64_t team = 1, parts = 1, stages = 4;
  /// Of a chain: it begins segments where what was before them is forgotten, too.
  bool forgets = false;
  bool isEarly() const { return phase == Phase::Early || (phase == Phase::Chain && forgets); }
  /// Whether the channels of a decay of each key are walked beside the chain, in one launch: by who then has
  /// no system to solve, and beside one warpgroup that has all of the chain.
  bool walksBeside = false;
  /// Whether each of a team's blocks scales rows (RoleScaledKeys.cpp) of its own chunks alone, for all.
  bool sharesScaled = false;
  /// Whether each of a team's blocks makes, of its own chunks, for all what lies in the place of their
  /// inputs.
  bool sharesWalk() const { return (walksBeside || sharesScaled) && team > 1; }
  /// The warpgroups that share out these channels.
  int64_t walkers() const { return phase == Phase::Prepare || walksBeside ? 2 : 0; }
  /// Whether sums over rows are a warpgroup's work, the last one's: many keys take two warps longer than the
  /// ring is deep.
  bool sumsApart(const RolePlan &plan) const;
  /// Whether functions of rows are one's work.
  bool mapsApart(const RolePlan &plan) const;
  /// Whether each of a team's blocks copies its part of an input's rows, applies a function to them, and
  /// gives them to the others (RoleMaps.cpp); and whether there is such an input.
  bool sharesMap(const RolePlan &plan, mlir::BlockArgument input) const;
  bool sharesMaps(const RolePlan &plan) const;
  /// The numbers per token of a record: a chain adds those that it needs, and what prepares them comes after.
  llvm::SmallVectorImpl<RowSlot> *handedOver = nullptr;

  /// The slabs of a block, and the chain's warpgroups, each of which has one of them, or the only one all.
  int64_t slabs(const RolePlan &plan) const {
    return phase == Phase::Prepare ? 0 : plan.independent * plan.states / rowsOfSlab / parts;
  }
  int64_t chainGroups(const RolePlan &plan) const { return walksBeside ? 1 : slabs(plan); }
};

/// Writes what the maps of a program sum over entries as sums of products of vectors, divided by numbers.
void writeSums(chunk::ProgramOp program);

/// Of a tensor in an entry's list, what the tokens of a box are times (RECUR_MAP_BOX).
constexpr int32_t mapBox = 1 << 16;

/// The inputs that the copy engine brings to shared memory, in its order; and their tensors, then those that
/// it writes, as recur_cuda_entry lists them.
llvm::SmallVector<mlir::BlockArgument> copiedInputs(const RolePlan &plan, Phase phase);
/// Those of an input's tensor: it, or all that it is joined of (TensorArgument::parts).
llvm::SmallVector<unsigned> mapsOf(const RolePlan &plan, unsigned tensor);
llvm::SmallVector<int32_t> mappedTensors(const RolePlan &plan, const RoleForm &form);

/// Which warpgroups compute scores: one, or in a team that has a system, one for that and one for the rest.
llvm::SmallVector<ScoreRole> scoreRoles(const RolePlan &plan, const RoleForm &form);

} // namespace recur::cuda
