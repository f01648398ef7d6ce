// The passes of the CPU code generator.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "lib/Cpu/Cpu.h"
#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/Pass.h"

namespace recur::cpu {
#define GEN_PASS_DECL
#include "lib/Cpu/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "lib/Cpu/Passes.h.inc"

/// A tensor's format as pass options write it: "bf16", or "bf16:2" where the rank is given.
std::string formatText(TensorFormat format);
/// The inverse for several tensors. Fails after a diagnostic at `op`.
mlir::FailureOr<llvm::SmallVector<TensorFormat>> parseFormats(mlir::Operation *op,
                                                              llvm::ArrayRef<std::string> texts);

/// The attribute of a function that says how many bytes of scratch memory it needs.
constexpr llvm::StringLiteral scratchBytesAttr = "recur.scratch_bytes";

/// On the module: the form that its rule was given, when it is not the loop over tokens.
constexpr llvm::StringLiteral formAttr = "recur.form";

/// On the module: why the rule is no sweep, and into how many parts a head may be cut. See Kernel.
constexpr llvm::StringLiteral formReasonAttr = "recur.form_reason", partsAttr = "recur.parts";

/// The attribute of a linalg op on buffers that promises that the entries of each row of its operands are
/// neighbours, where their types do not say so.
constexpr llvm::StringLiteral denseAttr = "recur.dense";

/// Replaces a rule by a function of that name that loops over tokens; see the pass recur-to-linalg. `formats`
/// is as in KernelOptions. `isDirect`: the caller promises that the entries along the last dimension of
/// inputs and outputs are neighbours and that outputs overlap nothing; they are then read and written where
/// they are. Fails after a diagnostic.
mlir::FailureOr<mlir::func::FuncOp> lowerTokenLoop(RuleOp rule, llvm::StringRef symbol,
                                                   llvm::ArrayRef<TensorFormat> formats, unsigned vectorWidth,
                                                   bool isDirect = false);

/// What is added to a rule's name for the chunk program beside it.
constexpr llvm::StringLiteral chunkSuffix = "_chunk";

/// The chunk program that stands beside a rule; null when there is none.
chunk::ProgramOp chunkProgramOf(RuleOp rule);

/// The same with a loop over the whole chunks of `length` tokens before it, by the rule's chunk program,
/// which is erased.
mlir::FailureOr<mlir::func::FuncOp> lowerChunkLoop(RuleOp rule, chunk::ProgramOp program, int64_t length,
                                                   llvm::StringRef symbol,
                                                   llvm::ArrayRef<TensorFormat> formats,
                                                   unsigned vectorWidth);

/// Lets products and sums of floats under `op` contract to fused operations; nothing else about them is
/// relaxed.
void allowContraction(mlir::Operation *op);

} // namespace recur::cpu
