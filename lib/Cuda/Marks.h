// Launches of which one begins while the one before still runs, and words of device memory by which the first
// says what is there already. A word is unmarked where it is 0.
#pragma once
#include "lib/Cuda/Ptx.h"

namespace recur::cuda {

/// All blocks have come here, or have ended, before the next launch begins.
void letNextBegin(Ptx &ptx);
/// Waits until the launch before has ended.
void awaitLaunch(Ptx &ptx);
/// Makes what the thread has written known to all blocks.
void fenceDevice(Ptx &ptx);
/// Marks a word, behind all that the thread and its copies have written, or that a barrier has made known to
/// it.
void mark(Ptx &ptx, mlir::Value address);
/// Adds one to a word, and says what it was.
mlir::Value takeTicket(Ptx &ptx, mlir::Value address);
/// Waits until a word is marked; what it stands for may be read by copies, too.
void awaitMark(Ptx &ptx, mlir::Value address);

} // namespace recur::cuda
