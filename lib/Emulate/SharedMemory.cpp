#include "lib/Emulate/SharedMemory.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/ErrorHandling.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

using namespace llvm;
using namespace recur::emulate;

void Order::join(const Order &other) {
  for (unsigned i = 0; i < maxActors; ++i) {
    seen[i] = std::max(seen[i], other.seen[i]);
    fenced[i] = std::max(fenced[i], other.fenced[i]);
  }
}

// Descriptors of matrices have a part of an address, so the memory starts at a multiple of its range.
static uint32_t reserve() {
  constexpr uintptr_t bytes = SharedMemory::most * SharedMemory::range;
  for (uintptr_t at = 1 << 28; at < (uintptr_t(1) << 31); at += 8 * bytes) {
    void *memory = mmap(reinterpret_cast<void *>(at), bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == reinterpret_cast<void *>(at))
      return at;
    if (memory != MAP_FAILED)
      munmap(memory, bytes);
  }
  reportFatalUsageError("there is no memory below 2 GiB for blocks' shared memory");
}

SharedMemory &SharedMemory::get(unsigned rank) {
  static const uint32_t first = reserve();
  static SharedMemory all[most];
  all[rank].address = first + rank * range;
  return all[rank];
}

void SharedMemory::begin(uint32_t size, unsigned first, unsigned count) {
  bytes = size;
  firstWarp = first;
  warps = count;
  memset(at<char>(address), 0xff, range); // not a number, whatever it is read as
  writers.assign((size + granule - 1) / granule, {});
  copies = writers;
  readers.assign(writers.size() * warps, 0);
}

static std::string nameOf(unsigned actor) {
  return actor < maxWarps ? "warp " + std::to_string(actor) : "a copy";
}

std::string SharedMemory::checkBounds(uint32_t where, uint32_t count, StringRef what) const {
  if (where >= address && uint64_t(where) + count <= uint64_t(address) + bytes)
    return "";
  return (what + " " + Twine(count) + " bytes at byte " + Twine(int64_t(where) - int64_t(address)) + " of " +
          Twine(bytes) + " bytes of shared memory")
      .str();
}

std::string SharedMemory::read(uint32_t where, uint32_t count, const Access &access) {
  if (std::string wrong = checkBounds(where, count, "reads"); !wrong.empty())
    return wrong;
  uint32_t first = (where - address) / granule, end = (where - address + count - 1) / granule + 1;
  for (uint32_t i = first; i < end; ++i) {
    const Mark &writer = writers[i];
    auto at = [&] { return "reads byte " + std::to_string(i * granule) + " of shared memory, which "; };
    if (!writer.clock)
      return at() + "nothing wrote";
    if (access.order->seen[writer.actor] < writer.clock && writer.relaxed)
      continue;
    if (access.order->seen[writer.actor] < writer.clock)
      return at() + nameOf(writer.actor) + " wrote with nothing that orders the two";
    if (access.engine && writer.actor < maxWarps && access.order->fenced[writer.actor] < writer.clock)
      return at() + nameOf(writer.actor) + " wrote without a proxy fence in between";
    if (access.actor < maxWarps)
      readers[i * warps + access.actor - firstWarp] = access.clock;
    else
      copies[i] = {access.clock, uint16_t(access.actor)};
  }
  return "";
}

std::string SharedMemory::mayWrite(uint32_t where, uint32_t count, const Access &access) const {
  if (std::string wrong = checkBounds(where, count, "writes"); !wrong.empty())
    return wrong;
  uint32_t first = (where - address) / granule, end = (where - address + count - 1) / granule + 1;
  for (uint32_t i = first; i < end; ++i) {
    auto at = [&] { return "overwrites byte " + std::to_string(i * granule) + " of shared memory, which "; };
    if (access.order->seen[writers[i].actor] < writers[i].clock)
      return at() + nameOf(writers[i].actor) + " wrote with nothing that orders the two";
    for (unsigned warp = 0; warp < warps && !access.relaxed; ++warp)
      if (access.order->seen[firstWarp + warp] < readers[i * warps + warp])
        return at() + nameOf(firstWarp + warp) + " may still read";
    if (access.order->seen[copies[i].actor] < copies[i].clock)
      return at() + "a copy may still read";
  }
  return "";
}

std::string SharedMemory::write(uint32_t where, uint32_t count, const Access &access) {
  std::string wrong = mayWrite(where, count, access);
  if (!wrong.empty())
    return wrong;
  uint32_t first = (where - address) / granule, end = (where - address + count - 1) / granule + 1;
  std::fill(writers.begin() + first, writers.begin() + end,
            Mark{access.clock, uint16_t(access.actor), access.relaxed});
  return "";
}
