// Tables of a decay of each key: two numbers for each channel side by side, or one.
#pragma once
#include "lib/Cuda/RoleScores.h"

namespace recur::cuda {

/// Binary logarithms of the references of a block of 16 tokens, negated for what is on the left of products,
/// and as they are for what is on the right.
constexpr int64_t references = 0;
/// What has decayed from the chunk's start to a block's reference, and from there to the chunk's end.
constexpr int64_t scales = 4;
/// What decays from a block's reference to those of the next two, and to that of the third; in f16, to the
/// starts of those blocks.
constexpr int64_t nearRights = 8, farRight = 11;
constexpr int64_t pairTables = 12;

} // namespace recur::cuda
