// The module of a rule while it is made.
#pragma once
#include "lib/Algebra/BlockStates.h"
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Roles.h"
#include "lib/Cuda/Scan.h"
#include "lib/Cuda/Stages.h"

namespace recur::cuda {

/// Why roles refuse what they have a plan for.
constexpr llvm::StringLiteral tooLarge = "one chunk does not fit into shared memory";

/// For fewer tokens, one after the other is as fast as a chunk, and nothing is rounded to half precision
/// between.
constexpr int64_t tokensWorthChunk = 8;

// Has rows of a program that are the same for all tokens follow from params by a map (SharedRows.cpp).
void mapSharedRows(chunk::ProgramOp program);

// The part of a rule that one of a head's blocks computes.
struct SharedOut {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  llvm::SmallVector<TensorArgument> tensors;
  int64_t shards = 1, slab = 0;
  RuleOp rule() { return *module->getOps<RuleOp>().begin(); }
};

// The same of a rule that takes tokens one by one.
struct TokenPart {
  llvm::SmallVector<TensorArgument> tensors;
  int64_t shards = 1, slab = 0;
};

// What a row of a chunk in roles is: a token, one of its micro-steps, or what it does along one of the two,
// or more, vectors that it writes along (stackReads), or the columns of its matrices (ruleOfColumn).
enum class RowKind { Token, MicroStep, Read, Reads, Column };

// What blocks do with indices that are no multiple of a block's: one block takes all; or blocks take fewer,
// in packets of eight; or the last one has some that do not exist, and other dimensions of states, too.
enum class Rest { Whole, Fewer, Padded };

/// As many tensors as fit into a kernel's parameters.
constexpr size_t mostTensors = 62;

// Adds entry points to a module.
class KernelBuilder {
public:
  KernelBuilder(RuleOp rule, RuleOp symbolic, const KernelOptions &options, Kernel &kernel);

  /// Whether kernels of a form are to be made, after those that there are.
  bool isWanted(llvm::StringRef form) const;
  mlir::LogicalResult addSequential(RuleOp bound);
  void addChunked(DeriveFunction derive);
  /// Kernels for states that go on entry by entry; none for other rules.
  void addScan(RuleOp bound);
  /// The same between products with params, in one launch; false where there are none.
  bool addProjectedScan(RuleOp bound);
  mlir::OwningOpRef<mlir::ModuleOp> take() { return std::move(module); }

private:
  mlir::LLVM::LLVMFuncOp makeFunction(const Entry &entry, size_t tensors);
  SharedOut shareOut(int64_t slab, Rest rest);
  TokenPart shareOutTokens(RuleOp bound, int64_t together,
                           int64_t mostRows = std::numeric_limits<int64_t>::max());
  bool addAhead(RuleOp bound, llvm::StringRef name, bool onlyHeld);
  bool addInRoles(DeriveFunction derive);
  bool addInRolesOnce(DeriveFunction derive);
  bool addInRoles(DeriveFunction derive, RowKind rows, bool manyProducts,
                  llvm::SmallVectorImpl<RowKind> &withMany);
  bool addAbreast(DeriveFunction derive);
  bool addStages(DeriveFunction derive, CutOptions cut);
  bool addInStages(DeriveFunction derive, bool keepsSums);
  bool addStepsApart(DeriveFunction derive);
  std::optional<Entry> addTokenStage(RuleOp stage, llvm::StringRef name);
  std::optional<Entry> addTiles(RuleOp bound, llvm::ArrayRef<TensorArgument> tensors, llvm::StringRef name);
  llvm::SmallVector<llvm::SmallVector<Entry>> addCore(const Stages::Stage &core, DeriveFunction derive,
                                                      bool &inRoles);
  void eraseCode(llvm::ArrayRef<Entry> unwanted);
  mlir::FailureOr<RolePlan> planOf(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors,
                                   bool statesOnly = false);
  bool addRoles(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors, int64_t shards,
                llvm::StringRef name, int64_t mostBlocks, Phase phase = Phase::Whole);
  bool addRoles(const RolePlan &plan, Entry entry, RoleForm form);
  std::optional<Entry> addBeside(const RolePlan &plan, int64_t shards, int64_t team);
  std::optional<Entry> addScaled(const RolePlan &plan, int64_t shards, bool mayRepeat);
  bool addPrepared(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors, int64_t shards,
                   std::optional<Entry> ofTeams = std::nullopt);
  Phase addSegments(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors, int64_t shards);
  void addPortable(DeriveFunction derive);
  bool addScan(RuleOp part, const ScanForm &form, llvm::ArrayRef<TensorArgument> tensors,
               const ScanShape &shape, int64_t shards, ScanTask task);
  // With at most so many entries a block, where blocks share them out; nothing where fewer might do.
  std::optional<bool> addProjectedScan(RuleOp bound, int64_t mostRows);
  void makeShared(llvm::StringRef name, int64_t alignment);

  RuleOp rule, symbolic;
  // Whether what exponentials are taken of is handed over in f32, as a core without roles knows of no rests.
  bool wantsDigits = false;
  // Of the stages that are being added.
  RowMaps maps;
  // Whether roles may sum over what functions make, and whether they would have to.
  bool takesDearSums = false, hasDearSums = false;
  // Whether tiles of a few more keys than 128 are that, and whether there are such.
  bool takesFewMore = true, hasFewMore = false;
  KernelOptions options;
  llvm::SmallVectorImpl<Entry> &entries;
  llvm::SmallVectorImpl<Temporary> &temporaries;
  llvm::StringMap<std::string> &refused;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::ImplicitLocOpBuilder b;
};

} // namespace recur::cuda
