// The forms that a rule can take on a machine, and which one it takes when none is asked for.
#pragma once

#include "lib/Driver/Compile.h"
#include "lib/Schedule/Gpu.h"
#include "lib/Schedule/Predict.h"

namespace recur {

/// The names of the forms, as --form takes them.
inline constexpr llvm::StringLiteral cpuForms[] = {"sequential", "sweep", "chunk"};

/// One form of a rule.
struct FormEntry {
  std::string form;
  /// Of one token of one head on a CPU, of a call on a GPU; where there is code for it.
  std::optional<double> microseconds;
  std::string bound;    // what takes longest
  std::string launches; // on a GPU
  std::string why;      // where there is no code
  bool chosen = false;
};

/// A core of a target, as the model of the forms' times sees it.
CpuModel cpuModelOf(llvm::ArrayRef<DType> types, const Target &target);

/// Why a CPU does not take a rule in chunks; empty where it does.
std::string whyNoChunks(const Derivation &derivation);

/// All forms of a bound and simplified rule, the one with the least predicted time first, those without code
/// last.
std::vector<FormEntry> compareForms(RuleOp rule, const Analysis &analysis, llvm::ArrayRef<DType> types,
                                    const Target &target);

/// The same for the kernels that planForGpu has found, a row for each way to launch them, for a call of that
/// shape, where the compiler takes the form `chosen`.
std::vector<FormEntry> compareGpuForms(RuleOp rule, const ModelInfo &info, llvm::ArrayRef<DType> types,
                                       const cuda::Kernel &kernel, llvm::StringRef chosen,
                                       const GpuShape &shape, const GpuModel &gpu);

/// Bytes of the inputs and outputs of one token of one head.
double bytesOfToken(RuleOp rule, const ModelInfo &info, llvm::ArrayRef<DType> types);

} // namespace recur
