// Tables of a decay of each key: two numbers for each channel side by side, or one.
#pragma once
#include "lib/Cuda/RoleScores.h"

namespace recur::cuda {

/// What decays from a block's reference to those of the next two; in f16, to the starts of those blocks. The
/// third has but one after it: beside that, what decays from the first block's to the last one's. (The last
/// block has none; what its warp loads in their place is not used.)
constexpr int64_t nearRights = 0, farRight = 2;
/// Binary logarithms of the references of a block of 16 tokens, negated for what is on the left of products,
/// and as they are for what is on the right.
constexpr int64_t references = 3;
/// What has decayed from the chunk's start to a block's reference, and from there to the chunk's end.
constexpr int64_t scales = 7;
constexpr int64_t pairTables = 11;

} // namespace recur::cuda
