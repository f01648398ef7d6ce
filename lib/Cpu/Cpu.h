// Sequential code for the CPU: a rule with a fixed-size state becomes one function that runs the tokens of
// one sequence and head, one after the other.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "dialect/recur/Recur.h"
#include "lib/Support/DType.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/IR/Module.h"

#include <memory>
#include <string>

namespace recur::cpu {

/// How the caller holds one tensor.
struct TensorFormat {
  DType dtype = DType::F32;
  /// The number of dimensions without the token's. A matrix with one column may be held with one dimension or
  /// with two. Negative: as few as hold the value.
  int rank = -1;
};

/// What a tensor of a kernel is.
enum class Role { Input, Param, InitialState, Output, FinalState };

/// One tensor argument of a kernel.
struct KernelTensor {
  Role role;
  /// The user's name of the input, param, state or output.
  llvm::StringRef name;
  /// A matrix or steps type, its dimensions bound or not.
  mlir::Type type;
  /// The number of dimensions that are not the literal 1: the rank by which the caller holds the tensor when
  /// this is asked of the rule before its dimensions are bound.
  int rank;
};

/// The tensors of a rule's kernel in the order of its views: inputs, params, initial states, outputs, final
/// states.
llvm::SmallVector<KernelTensor> kernelTensors(RuleOp rule);

/// What is left open by a rule.
struct KernelOptions {
  /// The name of the function.
  std::string symbol = "kernel";
  /// One for each of kernelTensors(), or none: then all are f32 of the least rank. States must be f32.
  llvm::SmallVector<TensorFormat> tensors;
  /// How many f32 fill a vector register: 16 with AVX-512, 8 with AVX2, 4 with SSE.
  unsigned vectorWidth = 16;
  /// How many sums are kept in registers at once, so that they do not wait for each other.
  unsigned accumulators = 8;
  /// Whether the target multiplies pairs of bf16 (AVX512-BF16). Used where all inputs but scalars are bf16.
  bool hasBf16Pairs = false;
  /// Whether a rule may become a sweep, where that fits; otherwise all become a loop over tokens.
  bool sweep = true;
  /// Whether the target multiplies tiles of bf16 (AMX), and converts as AVX512-BF16 does. Used as pairs are,
  /// and instead of them.
  bool hasBf16Tiles = false;
  /// The tokens of a chunk, where the module holds the rule's chunk program beside it.
  int64_t chunk = 16;
};

/// A part of the way from a rule to LLVM. All stages work on a module with one rule (later one function) in
/// it.
struct Stage {
  llvm::StringRef name;
  /// What holds afterwards, in one sentence.
  llvm::StringRef postcondition;
  void (*populate)(mlir::OpPassManager &, const KernelOptions &);
};

/// The stages in order.
llvm::ArrayRef<Stage> stages();

/// A module that holds a copy of the rule alone, ready for the first stage.
mlir::OwningOpRef<mlir::ModuleOp> isolateRule(RuleOp rule);

/// Puts a copy of the chunk program of a module's rule, its dimensions bound, beside it: the rule is then
/// compiled in chunks.
void addChunkProgram(mlir::ModuleOp module, chunk::ProgramOp program);

/// Runs one stage. Fails after a diagnostic.
mlir::LogicalResult runStage(const Stage &stage, mlir::ModuleOp module, const KernelOptions &options);

/// A compiled rule: one function `void SYMBOL(void *const *views, const recur_span *span, void *scratch)`.
struct Kernel {
  std::unique_ptr<llvm::Module> module;
  /// The bytes that the function needs at `scratch`, which must be aligned to 64.
  int64_t scratchBytes = 0;
  /// "sweep", "chunk" or "sequential".
  std::string form;
  /// Why the rule is not a sweep, in the words of a remark that names the term to blame ("the state is not
  /// read"); empty where it is one, or where none was asked for.
  std::string formReason;
  /// The most parts that the state's columns can be cut into, for threads of their own; 1 for none. See
  /// recur_span.
  int64_t parts = 1;
};

/// What the last stage left as an LLVM module, not yet optimised.
mlir::FailureOr<Kernel> translateKernel(mlir::ModuleOp module, llvm::LLVMContext &context);

/// All stages and the translation, in chunks where there is a program. The rule is not changed. Fails after a
/// diagnostic at the op that cannot be compiled.
mlir::FailureOr<Kernel> buildKernel(RuleOp rule, const KernelOptions &options, llvm::LLVMContext &context,
                                    chunk::ProgramOp program = {});

/// Makes everything known that the stages need: dialects, their interfaces and translations.
void registerCpuDialects(mlir::DialectRegistry &registry);

/// Registers the passes of this folder by name, for recur-opt.
void registerCpuPasses();

} // namespace recur::cpu
