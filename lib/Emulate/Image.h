// Loaded code, between the compiler and the driver of the emulated GPU.
#pragma once
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"

namespace recur::emulate {

/// One kernel.
struct Function {
  void (*code)(void *call, void *maps) = nullptr;
  unsigned threads = 0;
  unsigned cluster = 1; // blocks that run together
};

/// A module's kernels by name.
using Image = llvm::StringMap<Function>;

/// What the emulated GPU says of itself.
struct DeviceTraits {
  int capability = 0;
  int64_t processors = 0, sharedBytes = 0;
};

/// The image of a name that compile() gave; null where there is none.
Image *findImage(llvm::StringRef name);
DeviceTraits &deviceTraits();

} // namespace recur::emulate
