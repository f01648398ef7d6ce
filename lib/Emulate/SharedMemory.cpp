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

SharedMemory &SharedMemory::get() {
  static SharedMemory memory;
  return memory;
}

// Descriptors of matrices have 18 bits of an address, so the memory starts at a multiple of their range.
SharedMemory::SharedMemory() {
  constexpr uintptr_t range = 1 << 18;
  for (uintptr_t at = 1 << 28; at < (uintptr_t(1) << 31); at += 64 * range) {
    void *memory = mmap(reinterpret_cast<void *>(at), range, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == reinterpret_cast<void *>(at)) {
      address = at;
      return;
    }
    if (memory != MAP_FAILED)
      munmap(memory, range);
  }
  reportFatalUsageError("there is no memory below 2 GiB for a block's shared memory");
}

void SharedMemory::begin(uint32_t size, unsigned count) {
  bytes = size;
  warps = count;
  memset(at<char>(address), 0xff, 1 << 18); // not a number, whatever it is read as
  writers.assign((size + granule - 1) / granule, {});
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
    const Writer &writer = writers[i];
    auto at = [&] { return "reads byte " + std::to_string(i * granule) + " of shared memory, which "; };
    if (!writer.clock)
      return at() + "nothing wrote";
    if (access.order->seen[writer.actor] < writer.clock && writer.relaxed)
      continue;
    if (access.order->seen[writer.actor] < writer.clock)
      return at() + nameOf(writer.actor) + " wrote with nothing that orders the two";
    if (access.engine && writer.actor < maxWarps && access.order->fenced[writer.actor] < writer.clock)
      return at() + nameOf(writer.actor) + " wrote without a proxy fence in between";
    readers[i * warps + access.actor] = access.clock;
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
      if (access.order->seen[warp] < readers[i * warps + warp])
        return at() + "warp " + std::to_string(warp) + " may still read";
  }
  return "";
}

std::string SharedMemory::write(uint32_t where, uint32_t count, const Access &access) {
  std::string wrong = mayWrite(where, count, access);
  if (!wrong.empty())
    return wrong;
  uint32_t first = (where - address) / granule, end = (where - address + count - 1) / granule + 1;
  std::fill(writers.begin() + first, writers.begin() + end, Writer{access.clock, uint16_t(access.actor), access.relaxed});
  return "";
}
