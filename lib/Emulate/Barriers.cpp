// Barriers: named ones, those in shared memory, and fences.
#include "lib/Emulate/Machine.h"
#include "llvm/ADT/Twine.h"

#include <numeric>

using namespace llvm;
using namespace recur::emulate;

//===----------------------------------------------------------------------===//
// Named barriers
//===----------------------------------------------------------------------===//

static void meet(Thread &thread, uint32_t id, uint32_t expected, bool waits, bool condition) {
  Block &block = *thread.block;
  if (id >= block.named.size() || !expected || expected % 32)
    thread.fail("names barrier " + Twine(id) + " for " + Twine(expected) + " threads");
  NamedBarrier &barrier = block.named[id];
  if (barrier.arrived && barrier.expected != expected)
    thread.fail("expects " + Twine(expected) + " threads at barrier " + Twine(id) + ", where others expect " +
                Twine(barrier.expected));
  barrier.expected = expected;
  Warp &warp = *thread.warp;
  barrier.order.join(warp.order);
  warp.tick();
  if (waits && !is_contained(barrier.warps, &warp)) // who only arrives learns nothing
    barrier.warps.push_back(&warp);
  barrier.any |= condition;
  if (++barrier.arrived < expected) {
    if (!waits)
      return;
    barrier.waiting.push_back(&thread);
    thread.blockedOn = &barrier;
    return thread.wait();
  }
  for (Warp *other : barrier.warps)
    other->order.join(barrier.order);
  thread.anyHas = barrier.any;
  for (Thread *other : barrier.waiting)
    other->anyHas = barrier.any;
  SmallVector<Thread *> waiting = std::move(barrier.waiting);
  barrier = {};
  thread.cluster->wake(waiting);
}

static void meetAtBarrier(Thread &thread, const Statement &s, Slots slots) {
  meet(thread, thread.word(s.operands[0], slots),
       s.operands.size() > 1 ? thread.word(s.operands[1], slots) : thread.cluster->launch.threads, s.flag,
       false);
}

// All threads of the block, or so many, learn whether a condition holds for any of them.
static void meetForAny(Thread &thread, const Statement &s, Slots slots) {
  uint32_t threads =
      s.operands.size() > 3 ? thread.word(s.operands[2], slots) : thread.cluster->launch.threads;
  meet(thread, thread.word(s.operands[1], slots), threads, true, thread.word(s.operands.back(), slots) & 1);
  thread.set(s.operands[0].items[0], slots, thread.anyHas);
}

static void arriveInCluster(Thread &thread, const Statement &, Slots) {
  Cluster &cluster = *thread.cluster;
  if (thread.inCluster)
    thread.fail("comes to the cluster's barrier twice");
  thread.inCluster = true;
  cluster.all.order.join(thread.warp->order);
  thread.warp->tick();
  if (++cluster.all.arrived < cluster.all.expected)
    return;
  cluster.all.arrived = 0;
  cluster.allComplete = cluster.all.order;
  ++cluster.allPhase;
  cluster.wake(cluster.all.waiting);
}

static void awaitCluster(Thread &thread, const Statement &, Slots) {
  Cluster &cluster = *thread.cluster;
  if (!thread.inCluster)
    thread.fail("has not come to the cluster's barrier");
  if (thread.clusterPhase == cluster.allPhase) {
    cluster.all.waiting.push_back(&thread);
    thread.blockedOn = &cluster.all;
    thread.wait();
  }
  ++thread.clusterPhase;
  thread.inCluster = false;
  thread.warp->order.join(cluster.allComplete);
}

//===----------------------------------------------------------------------===//
// Barriers in shared memory
//===----------------------------------------------------------------------===//

Block &Cluster::blockAt(Thread &thread, uint32_t address) {
  for (Block &block : blocks)
    if (address - block.shared.base() < SharedMemory::range) {
      if (!block.running)
        thread.fail("uses the shared memory of block " + Twine(block.index) + ", which has ended");
      return block;
    }
  thread.fail("uses an address that is not in shared memory");
}

void Cluster::makeBarrier(Thread &thread, uint32_t address, uint32_t arrivals) {
  if (transactions.size() == maxBarriers)
    thread.fail("makes more barriers than the emulator has");
  thread.expect(thread.block->shared.write(address, 8, thread.warp->access()));
  unsigned actor = maxWarps + transactions.size();
  auto [at, isNew] = transactions.try_emplace(address);
  if (!isNew)
    thread.fail("makes a barrier where there is one");
  TransactionBarrier &barrier = at->second;
  barrier.actor = actor;
  barrier.address = address;
  barrier.arrivals = barrier.pending = arrivals;
  barrier.maker = thread.warp->actor;
  barrier.made = thread.warp->now();
}

TransactionBarrier &Cluster::barrierAt(Thread &thread, uint32_t address) {
  blockAt(thread, address);
  auto found = transactions.find(address);
  if (found == transactions.end())
    thread.fail("names no barrier: byte " + Twine(address % SharedMemory::range));
  TransactionBarrier &barrier = found->second;
  if (thread.warp->order.seen[barrier.maker] < barrier.made)
    thread.fail("uses a barrier that may not be made yet");
  return barrier;
}

bool TransactionBarrier::isBeforeKnown(const Order &order) const {
  auto isKnown = [&](auto arrival) { return order.seen[arrival.first] >= arrival.second; };
  return order.seen[actor] + 1 >= phase || (!before.hasBytes && llvm::all_of(before.warps, isKnown));
}

// A wait names a phase by its parity alone. Whatever the warps' speed, it is to find the phase it is for:
// neither the one two before, nor may the next one be complete before it looks.
void Cluster::settle(Thread &thread, TransactionBarrier &barrier) {
  if (barrier.pending || barrier.bytes)
    return;
  for (auto [warp, last] : llvm::enumerate(barrier.passed))
    if (last.when && last.phase == barrier.phase && barrier.arriving.seen[warp] < last.when)
      thread.fail("completes phase " + Twine(barrier.phase + 1) + " of the barrier at byte " +
                  Twine(barrier.address % SharedMemory::range) + ", and warp " + Twine(warp) +
                  " may still wait for the one before");
  ++barrier.phase;
  barrier.before = std::move(barrier.last);
  barrier.last = std::move(barrier.present);
  barrier.present = TransactionBarrier::Arrivals();
  barrier.complete.join(barrier.arriving);
  barrier.complete.seen[barrier.actor] = barrier.phase;
  barrier.pending = barrier.arrivals;
  wake(barrier.waiting);
}

static void makeBarrier(Thread &thread, const Statement &s, Slots slots) {
  thread.cluster->makeBarrier(thread, thread.address(s.operands[0], slots),
                              thread.word(s.operands[1], slots));
}

static void arrive(Thread &thread, const Statement &s, Slots slots) {
  Cluster &cluster = *thread.cluster;
  TransactionBarrier &barrier = cluster.barrierAt(thread, thread.address(s.operands[1], slots));
  uint32_t arrivals = 1;
  if (s.operands.size() > 2 && s.flag)
    barrier.bytes += thread.word(s.operands[2], slots);
  else if (s.operands.size() > 2)
    arrivals = thread.word(s.operands[2], slots);
  if (barrier.pending < arrivals)
    thread.fail("arrives at a barrier that awaits no more arrivals");
  // Another thread's arrival for that phase may still be to come, and this one would count in its place.
  uint32_t &last = barrier.arrived[&thread];
  if (thread.warp->order.seen[barrier.actor] < last)
    thread.fail("arrives at a barrier again, and does not know that the phase before is complete");
  last = barrier.phase + 1;
  barrier.present.hasBytes |= barrier.bytes != 0;
  barrier.present.warps[thread.warp->actor] = thread.warp->now();
  barrier.arriving.join(thread.warp->order);
  thread.warp->tick();
  barrier.pending -= arrivals;
  cluster.settle(thread, barrier);
}

static void expectBytes(Thread &thread, const Statement &s, Slots slots) {
  TransactionBarrier &barrier = thread.cluster->barrierAt(thread, thread.address(s.operands[0], slots));
  barrier.bytes += thread.word(s.operands[1], slots);
  barrier.present.hasBytes = true;
}

static void await(Thread &thread, const Statement &s, Slots slots) {
  TransactionBarrier &barrier = thread.cluster->barrierAt(thread, thread.address(s.operands[1], slots));
  uint32_t parity = thread.word(s.operands[2], slots) & 1;
  Warp &warp = *thread.warp;
  while ((barrier.phase & 1) == parity) {
    barrier.waiting.push_back(&thread);
    thread.blockedOn = &barrier;
    thread.phase = parity;
    thread.wait();
  }
  if (barrier.phase >= 2 && !barrier.isBeforeKnown(warp.order))
    thread.fail("waits for phase " + Twine(barrier.phase) + " of the barrier at byte " +
                Twine(barrier.address % SharedMemory::range) + ", and may take phase " +
                Twine(barrier.phase - 2) + " for it");
  if (barrier.passed.size() <= warp.actor)
    barrier.passed.resize(warp.actor + 1);
  barrier.passed[warp.actor] = {barrier.phase, warp.now()};
  warp.order.join(barrier.complete);
  thread.set(s.operands[0].items[0], slots, true);
}

//===----------------------------------------------------------------------===//
// Fences
//===----------------------------------------------------------------------===//

static void fenceProxy(Thread &thread, const Statement &, Slots) {
  Order &order = thread.warp->order;
  order.fenced = order.seen;
}

// Where an address of this block's shared memory lies in another's.
static void mapToBlock(Thread &thread, const Statement &s, Slots slots) {
  uint32_t address = thread.word(s.operands[1], slots), rank = thread.word(s.operands[2], slots);
  if (rank >= thread.cluster->blocks.size())
    thread.fail("names block " + Twine(rank) + " of a cluster of " + Twine(thread.cluster->blocks.size()));
  uint32_t base = thread.cluster->blocks[rank].shared.base();
  thread.set(s.operands[0].items[0], slots, base + address % SharedMemory::range);
}

// Registers are those that a block has at its start, eight by eight a thread. Who asks for more than the
// others leave waits until they give some back, which no kernel here does twice.
static void shareRegisters(Thread &thread, const Statement &s, const Slots *slots) {
  Block &block = *thread.block;
  block.registers[thread.warp->index] = thread.word(s.operands[0], slots[thread.lane]);
  constexpr unsigned ofProcessor = 65536, most = 248;
  unsigned threads = thread.cluster->launch.threads;
  unsigned all = std::min(most, ofProcessor / threads / 8 * 8) * (threads / 32);
  if (unsigned asked = std::accumulate(block.registers.begin(), block.registers.end(), 0u); asked > all)
    thread.fail("asks for more registers than its block has: all warps that have asked want " + Twine(asked) +
                " of " + Twine(all));
}

static void nothing(Thread &, const Statement &, Slots) {}
static void nothingInWarp(Thread &, const Statement &, const Slots *) {}

bool recur::emulate::decodeBarrier(Statement &s) {
  StringRef name = s.words[0], what = s.words.size() > 1 ? s.words[1] : "";
  size_t count = s.operands.size();
  if (name == "bar" || name == "barrier") {
    if (what == "cta")
      what = s.words[2];
    if (what == "warp") {
      s.scope = Scope::Warp;
      s.runWarp = nothingInWarp;
      return count == 1;
    }
    if (what == "cluster" && s.words.size() > 2 && !count) {
      s.run = s.words[2] == "arrive" ? arriveInCluster : s.words[2] == "wait" ? awaitCluster : nullptr;
      return s.run;
    }
    if (what == "red") {
      s.run = meetForAny;
      return s.has("or") && s.has("pred") && (count == 3 || count == 4);
    }
    s.flag = what == "sync";
    s.run = meetAtBarrier;
    return (s.flag && count >= 1) || (what == "arrive" && count == 2);
  }
  if (name == "mbarrier") {
    bool bytes = s.has("expect_tx");
    if (what == "init" && count == 2)
      s.run = makeBarrier;
    else if (what == "arrive" && count >= 2) {
      s.run = arrive;
      s.flag = bytes;
    } else if (what == "expect_tx" && count == 2)
      s.run = expectBytes;
    else if (what == "try_wait" && s.has("parity") && count >= 3)
      s.run = await;
    return s.run;
  }
  if (name == "fence" || name == "membar") {
    s.run = what == "proxy" ? fenceProxy : nothing;
    return what != "proxy" || (s.words.size() > 2 && s.words[2] == "async");
  }
  if (name == "griddepcontrol") { // launches run one after the other
    s.run = nothing;
    return what == "wait" || what == "launch_dependents";
  }
  if (name == "mapa" && count == 3) {
    s.run = mapToBlock;
    return s.has("shared::cluster");
  }
  if (name == "setmaxnreg") {
    s.scope = Scope::Warp;
    s.runWarp = shareRegisters;
    return count == 1;
  }
  return false;
}
