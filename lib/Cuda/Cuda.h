// Kernels for NVIDIA GPUs: a rule with a fixed-size state becomes PTX, and with NVIDIA's ptxas machine code
// of a chip.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "lib/Schedule/Gpu.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/Error.h"

#include <string>

namespace llvm {
class Module;
class OptimizationLevel;
class TargetMachine;
} // namespace llvm

namespace recur::cuda {

/// A chip to generate code for.
struct Chip {
  /// Its name to LLVM and ptxas: "sm_90a".
  llvm::StringRef name;
  /// The PTX version that it is given, as a feature of LLVM's target.
  llvm::StringRef features;
  /// The compute capability, 80 for 8.0, and whether only that one runs the code.
  int capability;
  bool exact;
  /// Bytes of shared memory that one block may have.
  int64_t sharedBytes;
  /// Processors of the usual board.
  int64_t processors;

  /// Whether it has products of warpgroups and bulk tensor copies, in the form of Hopper.
  bool hasWarpgroups() const { return capability == 90 && exact; }
};

/// Finds a chip by name; the error names what there is.
llvm::Expected<Chip> lookupChip(llvm::StringRef name);

/// How the caller holds the tensors of a rule.
struct KernelOptions {
  /// Prefix of the entry points.
  std::string symbol = "kernel";
  /// The element type of each input, param and output by name; f32 where nothing is said. States are f32.
  llvm::StringMap<mlir::FloatType> elements;
  Chip chip;
  /// The form that is wanted: one of gpuForms, or auto. There is a kernel that goes token by token in any
  /// case.
  std::string form = "auto";
  /// Keeps all forms that there are, not only the fastest one.
  bool everyForm = false;
};

/// The forms of kernels: warp roles, chunks on any chip's matrix units, scans of elementwise states, token by
/// token.
enum class Form : uint8_t { Roles, Chunk, Scan, Sequential };
inline constexpr llvm::StringLiteral gpuForms[] = {"roles", "chunk", "scan", "sequential"};
inline llvm::StringRef formName(Form form) { return gpuForms[unsigned(form)]; }

/// One entry point of a module and how it is launched.
struct Entry {
  std::string name;
  /// Threads of a block.
  int64_t threads = 0;
  /// Blocks for one head of one sequence.
  int64_t shards = 1;
  /// Bytes of shared memory, and of the workspace, of a block; and of the workspace of a chunk and head.
  int64_t sharedBytes = 0, scratchBytes = 0, recordBytes = 0;
  /// Tensors must start at a multiple of 16 bytes, their innermost stride be 1 and the others multiples of 4.
  bool packed = false;
  Form form = Form::Sequential;
  /// For sequences of this many tokens and more.
  int64_t leastTokens = 0;
  /// Tensors that the kernel copies in boxes, whose descriptors are its second parameter.
  llvm::SmallVector<int32_t> maps;
  /// For launches of at most so many blocks; 0: of any number. Or, `takesMore`, of any number on so many
  /// processors.
  int64_t mostBlocks = 0;
  bool takesMore = false;
  /// With segments or one: for heads whose blocks are at most five eighths of `mostBlocks`.
  bool forFew = false;
  /// Works on segments of sequences: as many as `mostBlocks` lets be, at least two; as many as take those
  /// processors the least time; short ones whatever their number; such that blocks, of which `mostBlocks` run
  /// at a time, end together; as many as `mostBlocks` lets be, of which there may be one; such that blocks
  /// end together, of which the first ones read initial states; as many as take those processors the least
  /// time, each of which waits for the state that the one before leaves; or as many as `mostBlocks` lets be,
  /// at least three.
  enum Cut {
    Whole,
    Segments,
    AnySegments,
    FewTokens,
    Spread,
    SegmentsOrWhole,
    SpreadTokens,
    PassedSegments,
    SeveralSegments
  } cut = Whole;
  /// The next entry is launched after this one, and finds the workspace as this one left it.
  bool continues = false;
  /// May begin while the entry before it still runs, and waits itself for what that one leaves.
  bool overlaps = false;
  /// For sequences whose first token has position 0, as chunks begin where blocks of the rule do.
  bool atStart = false;
  /// What the kernel's tensors are, where they are not the rule's in their order: those by number, temporary
  /// t as -1 - t, micro-step m of tensor t, from 1, as t + tensorStep * m.
  llvm::SmallVector<int32_t> tensors;
};

/// RECUR_TENSOR_STEP.
constexpr int32_t tensorStep = 1 << 16;

/// A vector or number per token and head, or some of them, that one entry leaves in the workspace for the
/// next.
struct Temporary {
  /// 0 for a vector or a number.
  int64_t rows = 0;
  /// Of a vector, or each row; 0 for a number.
  int64_t entries = 0;
  /// Of an entry.
  int64_t bits = 16;
};

/// The kernels of a rule.
struct Kernel {
  /// Best first.
  llvm::SmallVector<Entry> entries;
  llvm::SmallVector<Temporary> temporaries;
  /// What the code of each entry does, by its name.
  llvm::StringMap<std::vector<GpuPart>> parts;
  /// Why there is none of a form that was looked for.
  llvm::StringMap<std::string> refused;
};

/// The chunk program of a bound rule or, `ofMicroStep`, of the rule of its micro-step (ruleOfMicroStep); null
/// if there is none. What it returns lives until the next call.
using DeriveFunction = llvm::function_ref<chunk::ProgramOp(RuleOp, bool ofMicroStep)>;

/// The kernels of a bound and simplified rule, before they are translated: a module of llvm, nvvm, scf, arith
/// and math ops. Sets all of `kernel`. Those that take the tokens in chunks, where `derive` gives a program
/// of a kind that is known, or as scans, come first; then the sequential one, for every rule: one block of
/// threads for each sequence, head and slab of independent rows, one token after the other, states in
/// registers. `symbolic` is the rule before its dimensions were bound, which tells a vector of one entry from
/// a scalar. None is changed. Fails after a diagnostic at the op that cannot be compiled.
mlir::FailureOr<mlir::OwningOpRef<mlir::ModuleOp>> emitKernels(RuleOp rule, RuleOp symbolic,
                                                               DeriveFunction derive,
                                                               const KernelOptions &options, Kernel &kernel);

/// The ways to launch a rule's kernels, best first. Their bytes are those of temporaries alone. `symbol` is
/// what their names begin with.
std::vector<GpuCandidate> listCandidates(const Kernel &kernel, llvm::StringRef symbol);

/// The form that the model finds fastest for a large call, of those that there are kernels of.
llvm::StringRef fastestForm(const Kernel &kernel, llvm::StringRef chip);

/// Lowers a module of entry points to ops of llvm and nvvm.
mlir::LogicalResult lowerToLlvm(mlir::ModuleOp module);

/// Runs LLVM's passes of a level.
void optimize(llvm::Module &module, llvm::TargetMachine &machine, llvm::OptimizationLevel level);

/// What ptxas made of some kernels.
struct Cubin {
  /// Their names.
  llvm::SmallVector<std::string> kernels;
  std::string code;
  /// ptxas' report: registers, spills, warnings.
  std::string report;

  /// The most bytes of registers that an entry point had to keep in memory.
  int64_t spilledBytes() const;
  /// Whether the assembler put waits between products of warpgroups that should run one beside the other.
  bool serialisesProducts() const;
};

/// The code of a module's kernels: for one chip, and all of it as PTX.
struct Code {
  std::vector<Cubin> cubins;
  std::string ptx;
};

/// Lowers a module of entry points and assembles them side by side, always optimised: kernels are planned for
/// the registers that takes. With `lines`, the code says which places of the spec instructions come from.
llvm::Expected<Code> generateCode(mlir::ModuleOp module, const Chip &chip, bool lines = false);

/// Looks for ptxas in CUDA_HOME/bin, then CUDA_PATH/bin, then PATH, then /usr/local/cuda/bin.
llvm::Expected<std::string> findPtxas();

/// Runs ptxas, which sets the code and the report.
llvm::Error assemble(llvm::StringRef ptxas, llvm::StringRef ptx, const Chip &chip, bool lineInfo,
                     Cubin &cubin);

/// Makes everything known that this folder needs: dialects, their interfaces and translations.
void registerCudaDialects(mlir::DialectRegistry &registry);

} // namespace recur::cuda
