// What a kernel does, counted in its code.
#pragma once
#include "lib/Cuda/Cuda.h"

namespace recur::cuda {

/// Says of the loops over tokens in a region, those that stand in no other, which part of the block they are:
/// so many warps; one step of the loop's variable is `unit` tokens.
void describeLoops(mlir::Region &region, llvm::StringRef part, int64_t unit, int64_t warps);
void describeLoops(mlir::Block &block, llvm::StringRef part, int64_t unit, int64_t warps);

/// Says how often the body of a loop runs where its bounds do not.
void describeTrips(mlir::Operation *loop, int64_t trips);
/// Says that the branch which the block is is seldom taken, or once in so many times.
void describeRare(mlir::Block &block);
void describeEach(mlir::Block &block, int64_t times);

/// Says that a loop, which is not counted, goes over the tokens as one that is.
void describeAgain(mlir::Operation *op);

/// Says that nothing waits for an operation, as many of its kind stand side by side.
void describeBeside(mlir::Operation *op);

/// The parts of a kernel before it is lowered, those of most work for a token first.
std::vector<GpuPart> countParts(mlir::Operation *function);

} // namespace recur::cuda
