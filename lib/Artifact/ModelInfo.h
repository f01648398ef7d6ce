//===- ModelInfo.h - all that is known about a compiled rule
//-----------------------------------------------===//
//
// One structure feeds the header, the JSON, the descriptor in the object and the tools' reports.
//
//===-------------------------------------------------------------------------------------------------------===//
#pragma once

#include "lib/Artifact/Target.h"
#include "lib/Support/DType.h"

#include <optional>
#include <string>
#include <vector>

namespace recur {

/// "float32", "bfloat16", "float16": as in headers and run-time errors.
llvm::StringRef dtypeLongName(DType type);

/// What a tensor is to its rule; values are those of recur_role.
enum class Role { Input = 0, Param = 1, State = 2, Output = 3 };

/// "input", "param", "state", "output".
llvm::StringRef roleName(Role role);

/// One tensor of a rule.
struct TensorInfo {
  /// Its name in the spec.
  std::string name;
  Role role = Role::Input;
  /// Own dimensions, after batch, token and head: symbols as in ModelInfo::dims, or decimal numbers.
  /// Dimensions of vectors and scalars that are 1 are left out.
  std::vector<std::string> shape;
  /// What the spec says about it, for people: "vector(dk), unit", "scalar in (-inf, 0]".
  std::string doc;
};

/// One entry point of a GPU's module, as recur_cuda_entry.
struct GpuEntry {
  std::string name;
  /// Which of GpuCode::cubins has it.
  size_t cubin = 0;
  int64_t threads = 0, shards = 1, shared = 0, scratch = 0;
  /// Needs tensors that are aligned and contiguous in their last dimension.
  bool packed = false;
  /// For sequences of this many tokens and more.
  int64_t leastTokens = 0;
  /// Tensors, in the kernel's order, that it copies in boxes.
  std::vector<int32_t> maps;
  /// For launches of at most so many blocks; 0: of any number.
  int64_t mostBlocks = 0;
  /// Bits of recur_cuda_entry.flags but for `packed`.
  int64_t flags = 0;
  /// What the kernel's tensors are, where they are not the rule's in order.
  std::vector<int32_t> tensors;
  /// Bytes of the workspace of a chunk and head.
  int64_t record = 0;
};

/// What an entry leaves for each token and head, as recur_cuda_temporary.
struct GpuTemporary {
  int64_t rows = 0, entries = 0, bits = 16;
};

/// The code of a variant for a GPU, as recur_cuda_kernel.
struct GpuCode {
  /// Machine code, each of some entries.
  std::vector<std::string> cubins;
  /// For later chips; may be empty.
  std::string ptx;
  /// Ten times the compute capability, and whether nothing else runs it.
  int capability = 0;
  bool exact = false;
  /// Best first.
  std::vector<GpuEntry> entries;
  /// What one entry leaves for the next.
  std::vector<GpuTemporary> temporaries;
};

/// How a variant cuts sequences, as recur_segments. Kernels are named by their functions in the LLVM module.
struct SegmentsInfo {
  struct Gather {
    std::string kernel;
    std::vector<int32_t> states;
  };
  struct Round {
    std::vector<Gather> gathers;
    std::string stitch;
    std::vector<int32_t> inputs, states;
  };
  /// The sizes of each; at most two.
  std::vector<std::vector<int64_t>> arrays;
  std::vector<Round> rounds;
  int64_t scratch = 0, cost = 0;
};

/// One kernel of a rule and what it was compiled for.
struct VariantInfo {
  Target target;
  /// A size for each of ModelInfo::dims.
  std::vector<int64_t> dims;
  /// A type for each of ModelInfo::tensors; states are F32.
  std::vector<DType> dtypes;
  /// Bytes of scratch memory of one worker.
  int64_t scratch = 0;
  /// The most parts that the kernel can cut a head into; 1 for none.
  int64_t parts = 1;
  /// The kernel's function in the LLVM module: void(ptr views, ptr span, ptr scratch).
  std::string kernel;
  /// Where sequences can be cut.
  std::optional<SegmentsInfo> segments;
  /// All functions that the descriptor names.
  std::vector<llvm::StringRef> kernels() const;
  /// Instead of a kernel, where the target is a GPU.
  std::optional<GpuCode> gpu;
};

/// A compiled rule.
struct ModelInfo {
  /// Prefix of its functions, a C identifier.
  std::string name;
  /// Text of the spec file, and its SHA-256 in hexadecimal (set by finalize).
  std::string spec, specHash;
  /// The class the rule was sorted into, the form it was compiled to, and its numerics: words for people.
  std::string ruleClass, form, precision;
  /// Version of the compiler.
  std::string compiler;
  /// Results depend on the tokens' positions (`t`, rope, blocks).
  bool usesPosition = false;
  bool hasStep = true; // not where the state of a block's start is read
  /// Symbolic dimensions in the order of the spec.
  std::vector<std::string> dims;
  /// Inputs, then params, then states, then outputs; each group in the order of the spec.
  std::vector<TensorInfo> tensors;
  /// One per combination of target, dimensions and types; best first (sorted by finalize); none before code
  /// is made.
  std::vector<VariantInfo> variants;
};

/// Completes a model: hashes the spec, sorts the variants, and checks that everything fits together and into
/// the runtime's limits.
llvm::Error finalize(ModelInfo &info);

/// Names of all dimensions as the runtime counts them: the symbols, then the numbers that shapes contain.
std::vector<std::string> allDims(const ModelInfo &info);

/// The leading dimensions of a role: {"batch", "token", "head"} for inputs.
llvm::ArrayRef<llvm::StringRef> leadingDims(Role role);

} // namespace recur
