// Builds small kernels and runs them on the emulated GPU.
#pragma once
#include "lib/Cuda/Ptx.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

#include <string>

namespace recur::test {

/// What a kernel is built with.
struct Kit {
  mlir::ImplicitLocOpBuilder &b;
  cuda::Ptx ptx;
  mlir::Value memory, maps;       // pointers that the launch gives
  mlir::Value shared;             // i32: the address of shared memory
  mlir::Value thread, warp, lane; // i32

  /// Emits the body for threads where the condition holds.
  void when(mlir::Value condition, llvm::function_ref<void()> body);
  void inWarp(int64_t which, llvm::function_ref<void()> body) { when(ptx.equal(warp, which), body); }
  /// memory[index] = value.
  void storeFloat(mlir::Value index, mlir::Value value);
};

/// Runs one block of the kernel that `build` builds. What went wrong, or "".
std::string launch(unsigned threads, unsigned sharedBytes, llvm::function_ref<void(Kit &)> build,
                   void *memory = nullptr, void *maps = nullptr);

/// A descriptor of a row-major matrix of 16-bit entries in boxes of 64 x 64, rows swizzled.
struct alignas(64) Map {
  Map(uint16_t *data, uint64_t rows, uint64_t cols);
  uint64_t words[16];
};

} // namespace recur::test
