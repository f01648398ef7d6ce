// Chunk programs whose chunks are the blocks at whose starts a rule reads states, or parts of one.
#pragma once

#include "lib/Derive/Derive.h"

namespace recur {

/// Derives the program of a rule that reads states at the start of a block: that of the block's tokens
/// (lib/Algebra/BlockStates.h), which begins with those states and ends with what has become of them. Or,
/// `inParts`, of a part of a block, for which those states are held (chunk.held).
Derivation deriveBlocks(RuleOp rule, bool inParts);

/// Has products of what is the same for all tokens and a vector of each one, inside the maps of a program, be
/// products of matrices between two maps.
void splitMaps(chunk::ProgramOp program);

/// Simplifies a rule or a program that has been put together.
mlir::LogicalResult simplify(RuleOp rule);
mlir::LogicalResult simplify(chunk::ProgramOp program);

} // namespace recur
