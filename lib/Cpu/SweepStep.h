// One token on the caller's state, in place.
#pragma once

#include "lib/Cpu/Sweep.h"

namespace recur::cpu {

/// True when emitSweepStep can do it: H is the transpose of the caller's state and fills whole registers.
bool hasSweepStep(const SweepShape &shape, const SweepOptions &options, bool transposed);

/// Asks for the first rows of a state that emitSweepStep is about to read.
void prefetchSweepStep(VectorBuilder &b, const SweepShape &shape, mlir::Value from);

/// Emits one packed token (the chunk's first) on some blocks of states of `columns` x `rows` whose rows are
/// dense. `from` and `to` may be the same memory. The state is read from memory once and written once.
void emitSweepStep(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, mlir::Value scratch,
                   mlir::Value from, mlir::Value to, SweepBlocks blocks);

} // namespace recur::cpu
