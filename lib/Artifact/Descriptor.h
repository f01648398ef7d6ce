//===- Descriptor.h - the constants and functions that make kernels callable
//-------------------------------===//
#pragma once

#include "lib/Artifact/ModelInfo.h"
#include "llvm/IR/Module.h"

namespace recur {

/// The functions that the object of a rule defines, and the only symbols of it that can be seen from outside.
std::vector<std::string> publicSymbols(const ModelInfo &info);

/// Adds to a module with the kernels of all variants the constant recur_model and the five functions, and
/// hides everything else. Fails when a kernel is missing or has another signature.
llvm::Error emitDescriptor(llvm::Module &module, const ModelInfo &info);

} // namespace recur
