// The shared memory of a block, and who wrote and read what of it when.
//
// Warps do things one after another; barriers and copies order what different warps do. A clock has for each
// warp (and each transaction barrier, in whose name the copy engine writes) how far its doings are known. An
// access is in order if its warp's clock knows of the accesses before it that it must follow: a read of the
// last write, a write of that and of all reads since. Lanes of a warp count as one.
#pragma once
#include "llvm/ADT/StringRef.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace recur::emulate {

constexpr unsigned maxWarps = 128, maxBarriers = 192, maxActors = maxWarps + maxBarriers;

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
  bool engine = false;  // by the copy engine or the matrix units, which need fences
  bool relaxed = false; // a write that says that others may read meanwhile
};

class SharedMemory {
public:
  /// Memory whose addresses have 32 bits, one for each block of a cluster. They lie one after the other.
  static constexpr unsigned most = 8;
  static constexpr uint32_t range = 1 << 18; // descriptors of matrices have so many bits of an address
  static SharedMemory &get(unsigned rank);

  /// Empties it for a block, whose warps count from `firstWarp` in the cluster.
  void begin(uint32_t bytes, unsigned firstWarp, unsigned warps);
  uint32_t base() const { return address; }
  uint32_t size() const { return bytes; }
  template <typename T>
  static T *at(uint32_t where) {
    return reinterpret_cast<T *>(static_cast<uintptr_t>(where));
  }

  /// Notes an access. What is wrong with it, or "". Who reads is a warp of the block, or a barrier, for a
  /// copy.
  std::string read(uint32_t where, uint32_t count, const Access &access);
  std::string write(uint32_t where, uint32_t count, const Access &access);
  /// Whether a write would be in order, without doing it.
  std::string mayWrite(uint32_t where, uint32_t count, const Access &access) const;

private:
  std::string checkBounds(uint32_t where, uint32_t count, llvm::StringRef what) const;

  struct Mark {
    uint32_t clock = 0; // 0: nobody
    uint16_t actor = 0;
    bool relaxed = false;
  };
  static constexpr uint32_t granule = 2; // bytes

  uint32_t address = 0, bytes = 0;
  unsigned firstWarp = 0, warps = 0;
  std::vector<Mark> writers, copies; // of each granule: the last write, and read by a copy
  std::vector<uint32_t> readers;     // of each granule, by warp
};

} // namespace recur::emulate
