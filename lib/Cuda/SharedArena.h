// Shared memory whose parts are used again once nothing refers to them.
#pragma once
#include "mlir/IR/Value.h"
#include "llvm/ADT/SmallVector.h"

#include <memory>
#include <optional>

namespace recur::cuda {

/// Hands out parts of the block's shared memory. What is released may still be read by other warps: it is
/// handed out again only after a barrier.
class SharedArena {
public:
  explicit SharedArena(int64_t begin) : end(begin) {}

  /// A part, held as long as the owner lives: its offset. None where only released memory would do that no
  /// barrier has freed yet.
  std::optional<int64_t> tryAllocate(int64_t bytes);
  /// The same at the end of what is in use.
  int64_t grow(int64_t bytes);
  /// Who keeps the part at an offset.
  std::shared_ptr<const void> own(int64_t offset, int64_t bytes);
  /// All threads have met.
  void passBarrier();
  /// Whether a barrier would free something.
  bool hasReleased() const { return !state->released.empty(); }

  /// Bytes that were ever in use, with what came before.
  int64_t highest() const { return end; }

private:
  struct Range {
    int64_t offset, bytes;
  };
  struct State {
    llvm::SmallVector<Range> released;
  };

  int64_t end;
  llvm::SmallVector<Range> free;
  std::shared_ptr<State> state = std::make_shared<State>();
};

} // namespace recur::cuda
