#include "lib/Cuda/SharedArena.h"
#include "llvm/ADT/STLExtras.h"

using namespace recur::cuda;

std::optional<int64_t> SharedArena::tryAllocate(int64_t bytes) {
  // The smallest range that is large enough.
  Range *best = nullptr;
  for (Range &range : free)
    if (range.bytes >= bytes && (!best || range.bytes < best->bytes))
      best = &range;
  if (!best)
    return std::nullopt;
  int64_t offset = best->offset;
  best->offset += bytes;
  best->bytes -= bytes;
  llvm::erase_if(free, [](const Range &range) { return range.bytes == 0; });
  return offset;
}

int64_t SharedArena::grow(int64_t bytes) {
  int64_t offset = end;
  // A free range at the end is part of it.
  if (!free.empty() && free.back().offset + free.back().bytes == end)
    offset = free.pop_back_val().offset;
  end = offset + bytes;
  return offset;
}

std::shared_ptr<const void> SharedArena::own(int64_t offset, int64_t bytes) {
  return {static_cast<const void *>(this),
          [state = state, offset, bytes](const void *) { state->released.push_back({offset, bytes}); }};
}

void SharedArena::passBarrier() {
  llvm::append_range(free, state->released);
  state->released.clear();
  llvm::sort(free, [](const Range &x, const Range &y) { return x.offset < y.offset; });
  llvm::SmallVector<Range> merged;
  for (const Range &range : free) {
    if (!merged.empty() && merged.back().offset + merged.back().bytes == range.offset)
      merged.back().bytes += range.bytes;
    else
      merged.push_back(range);
  }
  free = std::move(merged);
}
