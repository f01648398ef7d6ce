// Copies that run beside the threads: of boxes of a tensor, and of packets of 16 bytes.
//
// A box on its way to shared memory is written at once, but in the name of its barrier: who has not waited
// for that may not read it. What a thread waits for itself lands at the wait, as late as a device may.
#include "lib/Emulate/Machine.h"
#include "lib/Emulate/Matrices.h"
#include "lib/Emulate/TensorMap.h"

#include <cstring>

using namespace llvm;
using namespace recur::emulate;

//===----------------------------------------------------------------------===//
// Boxes
//===----------------------------------------------------------------------===//

static const TensorMap &mapAt(Thread &thread, uint64_t address, size_t coordinates) {
  const auto *map = reinterpret_cast<const TensorMap *>(address);
  if (address % 64 || map->mark != TensorMap::magic)
    thread.fail("names no descriptor of a tensor");
  if (map->dims != coordinates)
    thread.fail("has " + Twine(coordinates) + " coordinates for " + Twine(map->dims) + " dimensions");
  return *map;
}

// Calls `body(entry, address)` for each packet of 16 bytes of a box: where its entries are in the tensor, or
// null where they are outside, and where in shared memory. A packet with entries on both sides of an end is
// taken entry by entry.
static void forEntries(const TensorMap &map, uint32_t shared, ArrayRef<int32_t> coordinates,
                       function_ref<void(char *entry, uint32_t address, uint32_t bytes)> body) {
  constexpr unsigned swizzles[] = {0, 3, 2, 1}; // as descriptors of matrices number them
  uint32_t rowBytes = map.box[0] * map.elementBytes, rows = map.boxBytes() / rowBytes;
  for (uint32_t row = 0; row < rows; ++row) {
    char *begin = map.data;
    bool inside = true;
    for (uint32_t dim = 1, rest = row; dim < map.dims; rest /= map.box[dim++]) {
      int64_t at = int64_t(coordinates[dim]) + rest % map.box[dim];
      inside &= at >= 0 && uint64_t(at) < map.sizes[dim];
      begin += at * int64_t(map.strides[dim - 1]);
    }
    for (uint32_t i = 0; i < map.box[0]; ++i) {
      int64_t at = int64_t(coordinates[0]) + i;
      bool exists = inside && at >= 0 && uint64_t(at) < map.sizes[0];
      uint32_t address = swizzled(shared + row * rowBytes + i * map.elementBytes, swizzles[map.swizzle]);
      body(exists ? begin + at * map.elementBytes : nullptr, address, map.elementBytes);
    }
  }
}

static SmallVector<int32_t, 5> coordinatesOf(Thread &thread, const OperandGroup &group, Slots slots) {
  SmallVector<int32_t, 5> coordinates;
  for (const Operand &item : ArrayRef(group.items).drop_front())
    coordinates.push_back(thread.get(item, slots));
  return coordinates;
}

static void checkBox(Thread &thread, const TensorMap &map, uint32_t shared) {
  uint32_t alignment = map.swizzle ? 128 : 16;
  if (shared % alignment)
    thread.fail("has a box at byte " + Twine(shared - thread.block->shared.base()) +
                " of shared memory, which is no multiple of " + Twine(alignment));
}

static void loadBox(Thread &thread, const Statement &s, Slots slots) {
  Cluster &cluster = *thread.cluster;
  uint32_t to = thread.address(s.operands[0], slots);
  SmallVector<int32_t, 5> coordinates = coordinatesOf(thread, s.operands[1], slots);
  const TensorMap &map = mapAt(thread, thread.get(s.operands[1].items[0], slots), coordinates.size());
  TransactionBarrier &barrier = cluster.barrierAt(thread, thread.address(s.operands[2], slots));
  checkBox(thread, map, to);
  Access access{barrier.actor, barrier.phase + 1, &thread.warp->order, /*engine=*/true};
  thread.expect(cluster.blockAt(thread, to).shared.write(to, map.boxBytes(), access));
  forEntries(map, to, coordinates, [&](char *entry, uint32_t address, uint32_t bytes) {
    if (entry)
      memcpy(SharedMemory::at<char>(address), entry, bytes);
    else
      memset(SharedMemory::at<char>(address), 0, bytes);
  });
  barrier.bytes -= map.boxBytes();
  cluster.settle(thread, barrier);
}

// To shared memory, perhaps another block's, from this one's.
static void copyShared(Thread &thread, const Statement &s, Slots slots) {
  Cluster &cluster = *thread.cluster;
  uint32_t to = thread.address(s.operands[0], slots), from = thread.address(s.operands[1], slots),
           bytes = thread.word(s.operands[2], slots);
  if ((to | from | bytes) % 16)
    thread.fail("copies what is at no multiple of 16 bytes");
  TransactionBarrier &barrier = cluster.barrierAt(thread, thread.address(s.operands[3], slots));
  Block &target = cluster.blockAt(thread, to);
  if (&cluster.blockAt(thread, thread.address(s.operands[3], slots)) != &target)
    thread.fail("copies to another block than its barrier's");
  Access access{barrier.actor, barrier.phase + 1, &thread.warp->order, /*engine=*/true};
  thread.expect(thread.block->shared.read(from, bytes, access));
  thread.expect(target.shared.write(to, bytes, access));
  memcpy(SharedMemory::at<char>(to), SharedMemory::at<char>(from), bytes);
  thread.warp->tick();
  barrier.bytes -= bytes;
  cluster.settle(thread, barrier);
}

// Between device memory and shared memory, bytes that lie together.
static void checkBytes(Thread &thread, uint64_t to, uint64_t from, uint32_t bytes) {
  if ((to | from | bytes) % 16)
    thread.fail("copies what is at no multiple of 16 bytes");
}

static void loadBytes(Thread &thread, const Statement &s, Slots slots) {
  Cluster &cluster = *thread.cluster;
  uint32_t to = thread.address(s.operands[0], slots), bytes = thread.word(s.operands[2], slots);
  uint64_t from = thread.address(s.operands[1], slots);
  checkBytes(thread, to, from, bytes);
  TransactionBarrier &barrier = cluster.barrierAt(thread, thread.address(s.operands[3], slots));
  Access access{barrier.actor, barrier.phase + 1, &thread.warp->order, /*engine=*/true};
  thread.expect(cluster.blockAt(thread, to).shared.write(to, bytes, access));
  memcpy(SharedMemory::at<char>(to), reinterpret_cast<const void *>(from), bytes);
  barrier.bytes -= bytes;
  cluster.settle(thread, barrier);
}

static void storeBytes(Thread &thread, const Statement &s, Slots slots) {
  uint64_t to = thread.address(s.operands[0], slots);
  uint32_t from = thread.address(s.operands[1], slots), bytes = thread.word(s.operands[2], slots);
  checkBytes(thread, to, from, bytes);
  thread.boxes.back().push_back({nullptr, from, {}, thread.warp->order, reinterpret_cast<void *>(to), bytes});
  thread.warp->tick();
}

static void storeBox(Thread &thread, const Statement &s, Slots slots) {
  SmallVector<int32_t, 5> coordinates = coordinatesOf(thread, s.operands[0], slots);
  const TensorMap &map = mapAt(thread, thread.get(s.operands[0].items[0], slots), coordinates.size());
  uint32_t from = thread.address(s.operands[1], slots);
  checkBox(thread, map, from);
  thread.boxes.back().push_back({&map, from, std::move(coordinates), thread.warp->order});
  thread.warp->tick();
}

static void commitBoxes(Thread &thread, const Statement &, Slots) { thread.boxes.emplace_back(); }

// Takes the groups that a wait for all but the newest ones waits for; the last group is still open.
template <typename Groups>
static Groups takeGroups(Groups &groups, uint32_t left) {
  Groups taken;
  while (groups.size() > left + 1) {
    taken.push_back(std::move(groups.front()));
    groups.erase(groups.begin());
  }
  return taken;
}

static void awaitBoxes(Thread &thread, const Statement &s, Slots slots) {
  Warp &warp = *thread.warp;
  SharedMemory &shared = thread.block->shared;
  for (auto &group : takeGroups(thread.boxes, thread.word(s.operands[0], slots)))
    for (const LateBox &box : group) {
      uint32_t bytes = box.map ? static_cast<const TensorMap *>(box.map)->boxBytes() : box.bytes;
      thread.expect(shared.read(box.from, bytes, {warp.actor, warp.now(), &box.order, /*engine=*/true}));
      if (!box.map) {
        memcpy(box.to, shared.at<char>(box.from), bytes);
        continue;
      }
      const auto &map = *static_cast<const TensorMap *>(box.map);
      forEntries(map, box.from, box.coordinates, [&](char *entry, uint32_t address, uint32_t count) {
        if (entry)
          memcpy(entry, shared.at<char>(address), count);
      });
    }
  warp.tick();
}

//===----------------------------------------------------------------------===//
// Packets
//===----------------------------------------------------------------------===//

static void copyPacket(Thread &thread, const Statement &s, Slots slots) {
  LateCopy copy;
  copy.to = thread.address(s.operands[0], slots);
  copy.from = reinterpret_cast<const void *>(thread.address(s.operands[1], slots));
  copy.bytes = thread.word(s.operands[2], slots);
  copy.given = s.operands.size() > 3 ? thread.word(s.operands[3], slots) : copy.bytes;
  if (copy.to % copy.bytes || reinterpret_cast<uintptr_t>(copy.from) % copy.bytes)
    thread.fail("copies from or to an address that is no multiple of " + Twine(copy.bytes));
  thread.expect(thread.block->shared.mayWrite(copy.to, copy.bytes, thread.warp->access()));
  thread.copies.back().push_back(copy);
}

static void commitPackets(Thread &thread, const Statement &, Slots) { thread.copies.emplace_back(); }

static void awaitPackets(Thread &thread, const Statement &s, Slots slots) {
  SharedMemory &shared = thread.block->shared;
  if (s.flag) // all, committed or not
    commitPackets(thread, s, slots);
  for (auto &group : takeGroups(thread.copies, s.flag ? 0 : thread.word(s.operands[0], slots)))
    for (const LateCopy &copy : group) {
      thread.expect(shared.write(copy.to, copy.bytes, thread.warp->access()));
      memcpy(shared.at<char>(copy.to), copy.from, copy.given);
      memset(shared.at<char>(copy.to) + copy.given, 0, copy.bytes - copy.given);
    }
}

bool recur::emulate::decodeCopy(Statement &s) {
  if (s.words.size() < 3 || s.words[0] != "cp" || s.words[1] != "async")
    return false;
  size_t count = s.operands.size();
  if (s.words[2] == "bulk" && s.words.size() > 3) {
    if (s.words[3] == "commit_group")
      s.run = commitBoxes;
    else if (s.words[3] == "wait_group" && count == 1)
      s.run = awaitBoxes;
    else if (s.words[3] == "prefetch" && count == 1)
      s.run = [](Thread &, const Statement &, Slots) {}; // a cache is not modelled
    else if (s.words[3] == "tensor" && s.has("tile") && s.has("global")) {
      bool loads = s.words.size() > 6 && s.words[6] == "global";
      s.run = loads ? loadBox : storeBox;
      return loads ? count == 3 && s.has("mbarrier::complete_tx::bytes") : count == 2 && s.has("bulk_group");
    } else if (s.words[3] == "shared::cluster" && s.words[4] == "shared::cta" && count == 4)
      s.run = copyShared;
    else if (s.words[3] == "shared::cta" && s.words[4] == "global" && count == 4)
      s.run = loadBytes;
    else if (s.words[3] == "global" && s.words[4] == "shared::cta" && s.has("bulk_group") && count == 3)
      s.run = storeBytes;
    return s.run;
  }
  if (s.words[2] == "commit_group")
    s.run = commitPackets;
  else if (s.words[2] == "wait_group" || s.words[2] == "wait_all") {
    s.run = awaitPackets;
    s.flag = s.words[2] == "wait_all";
  } else if ((s.words[2] == "cg" || s.words[2] == "ca") && s.has("global") && (count == 3 || count == 4))
    s.run = copyPacket;
  return s.run;
}
