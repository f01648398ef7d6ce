// Loops whose rounds ask for what the next round loads.
#pragma once
#include "lib/Cuda/Threads.h"

namespace recur::cuda {

/// Loads from device memory at the top of a loop's body, at addresses that depend on its counter alone, are
/// made a round before: entries of 4 bytes and more wait in shared memory, at a place of the thread's own,
/// the others in registers. They are asked for `before` an op of the body that comes after all of them. The
/// last round asks for what it has itself. Takes shared memory from `used` on, for `count` threads, which is
/// then behind it; without, all wait in registers. Gives the loop that takes the place of the other, with
/// more results.
mlir::scf::ForOp loadAhead(Threads &threads, mlir::scf::ForOp loop, mlir::Operation *before, int64_t count,
                           int64_t &used);
mlir::scf::ForOp loadAhead(Threads &threads, mlir::scf::ForOp loop, mlir::Operation *before);

} // namespace recur::cuda
