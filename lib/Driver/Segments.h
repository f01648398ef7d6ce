// The kernels with which a CPU cuts sequences into segments.
#pragma once

#include "lib/Artifact/ModelInfo.h"
#include "lib/Cpu/Cpu.h"
#include "lib/Schedule/Predict.h"

namespace recur {

/// The kernels for a bound rule, and a module that holds them: their functions' names begin with `main`'s
/// symbol.
struct CompiledSegments {
  SegmentsInfo info;
  llvm::SmallVector<std::unique_ptr<llvm::Module>> modules;
};

/// How the kernels find the state before each segment where `main` are the options of the rule's own kernel
/// and `time` is what that takes for a token, as predicted for `cpu`. Nothing where a segment's map is not
/// known to be worth it. Fails after a diagnostic.
mlir::FailureOr<std::optional<CompiledSegments>> compileSegments(RuleOp rule, const cpu::KernelOptions &main,
                                                                 double time, const CpuModel &cpu,
                                                                 llvm::LLVMContext &context);

} // namespace recur
