// From a rule to the code of one GPU.
#pragma once

#include "lib/Artifact/ModelInfo.h"
#include "lib/Cuda/Cuda.h"
#include "lib/Driver/Session.h"

namespace recur {

/// The code of a bound and simplified rule for one GPU, in one of its forms; `kernel` says what is in it.
/// Fails after a diagnostic.
mlir::FailureOr<GpuCode> compileForGpu(Session &session, RuleOp rule, const ModelInfo &info,
                                       llvm::ArrayRef<DType> types, const Target &target,
                                       llvm::StringRef form, cuda::Kernel &kernel);

/// The kernels of all forms that a bound and simplified rule has on one GPU, without their code. Fails after
/// a diagnostic.
mlir::FailureOr<cuda::Kernel> planForGpu(Session &session, RuleOp rule, const ModelInfo &info,
                                         llvm::ArrayRef<DType> types, const Target &target);

} // namespace recur
