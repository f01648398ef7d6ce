// The shared memory of a block, and who wrote and read what of it when.
//
// Warps do things one after another; barriers and copies order what different warps do. A clock has for each warp (and
// each transaction barrier, in whose name the copy engine writes) how far its doings are known. An access is in order if
// its warp's clock knows of the accesses before it that it must follow: a read of the last write, a write of that and
// of all reads since. Lanes of a warp count as one.
#pragma once
#include "llvm/ADT/StringRef.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace recur::emulate {

constexpr unsigned maxWarps = 32, maxBarriers = 64, maxActors = maxWarps + maxBarriers;

/// What one actor knows of the others.
struct Order {
  std::array<uint32_t, maxActors> seen{};
  /// The same of what was written by threads and is visible to the copy engine and the matrix units.
  std::array<uint32_t, maxActors> fenced{};

  void join(const Order &other);
};

/// One access: by whom, and what is known.
struct Access {
  unsigned actor = 0; // who it counts as
  uint32_t clock = 0; // when, on the actor's own clock
  const Order *order = nullptr;
  bool engine = false; // by the copy engine or the matrix units, which need fences
  bool relaxed = false; // a write that says that others may read meanwhile
};

class SharedMemory {
public:
  /// Memory whose addresses have 32 bits. There is one, as one block runs at a time.
  static SharedMemory &get();

  /// Empties it for a block.
  void begin(uint32_t bytes, unsigned warps);
  uint32_t base() const { return address; }
  uint32_t size() const { return bytes; }
  template <typename T> T *at(uint32_t where) const {
    return reinterpret_cast<T *>(static_cast<uintptr_t>(where));
  }

  /// Notes an access. What is wrong with it, or "".
  std::string read(uint32_t where, uint32_t count, const Access &access);
  std::string write(uint32_t where, uint32_t count, const Access &access);
  /// Whether a write would be in order, without doing it.
  std::string mayWrite(uint32_t where, uint32_t count, const Access &access) const;

private:
  SharedMemory();
  std::string checkBounds(uint32_t where, uint32_t count, llvm::StringRef what) const;

  struct Writer {
    uint32_t clock = 0; // 0: nobody
    uint16_t actor = 0;
    bool relaxed = false;
  };
  static constexpr uint32_t granule = 2; // bytes

  uint32_t address = 0, bytes = 0;
  unsigned warps = 0;
  std::vector<Writer> writers;
  std::vector<uint32_t> readers; // of each granule, by warp
};

} // namespace recur::emulate
