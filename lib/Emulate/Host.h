// Kernels of GPUs as code of this machine.
#pragma once
#include "lib/Cuda/Cuda.h"
#include "llvm/Support/Error.h"

#include <functional>

namespace recur::emulate {

/// Compiles a module of entry points for the emulated GPU, which becomes one of the chip with so many
/// processors. What is returned is what a driver loads: a name of the code, for the emulated driver. The code
/// lives as long as the process.
mlir::FailureOr<std::string> compile(mlir::ModuleOp module, const cuda::Chip &chip,
                                     llvm::ArrayRef<cuda::Entry> entries);

/// Has kernels changed before they are compiled, for tests of what the emulator notices; null for none.
void changeKernelsWith(std::function<void(mlir::ModuleOp)> change);

/// The emulated driver's functions by their names in libcuda; null where it has none.
void *findDriverFunction(const char *name);

} // namespace recur::emulate
