// Barriers: named ones, those in shared memory, and fences.
#include "lib/Emulate/Machine.h"
#include "llvm/ADT/Twine.h"

using namespace llvm;
using namespace recur::emulate;

//===----------------------------------------------------------------------===//
// Named barriers
//===----------------------------------------------------------------------===//

static void meetAtBarrier(Thread &thread, const Statement &s, Slots slots) {
  Block &block = *thread.block;
  uint32_t id = thread.word(s.operands[0], slots);
  uint32_t expected = s.operands.size() > 1 ? thread.word(s.operands[1], slots) : block.launch.threads;
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
  if (s.flag && !is_contained(barrier.warps, &warp)) // who only arrives learns nothing
    barrier.warps.push_back(&warp);
  if (++barrier.arrived < expected) {
    if (!s.flag)
      return;
    barrier.waiting.push_back(&thread);
    thread.blockedOn = &barrier;
    return thread.wait();
  }
  for (Warp *other : barrier.warps)
    other->order.join(barrier.order);
  SmallVector<Thread *> waiting = std::move(barrier.waiting);
  barrier = {};
  block.wake(waiting);
}

//===----------------------------------------------------------------------===//
// Barriers in shared memory
//===----------------------------------------------------------------------===//

void Block::makeBarrier(Thread &thread, uint32_t address, uint32_t arrivals) {
  if (transactions.size() == maxBarriers)
    thread.fail("makes more barriers than the emulator has");
  thread.expect(shared.write(address, 8, thread.warp->access()));
  unsigned actor = maxWarps + transactions.size();
  auto [at, isNew] = transactions.try_emplace(address);
  if (!isNew)
    thread.fail("makes a barrier where there is one");
  TransactionBarrier &barrier = at->second;
  barrier.actor = actor;
  barrier.arrivals = barrier.pending = arrivals;
  barrier.maker = thread.warp->index;
  barrier.made = thread.warp->now();
}

TransactionBarrier &Block::barrierAt(Thread &thread, uint32_t address) {
  auto found = transactions.find(address);
  if (found == transactions.end())
    thread.fail("names no barrier: byte " + Twine(address - shared.base()));
  TransactionBarrier &barrier = found->second;
  if (thread.warp->order.seen[barrier.maker] < barrier.made)
    thread.fail("uses a barrier that may not be made yet");
  return barrier;
}

void Block::settle(TransactionBarrier &barrier) {
  if (barrier.pending || barrier.bytes)
    return;
  ++barrier.phase;
  barrier.complete.join(barrier.arriving);
  barrier.complete.seen[barrier.actor] = barrier.phase;
  barrier.pending = barrier.arrivals;
  wake(barrier.waiting);
}

static void makeBarrier(Thread &thread, const Statement &s, Slots slots) {
  thread.block->makeBarrier(thread, thread.address(s.operands[0], slots), thread.word(s.operands[1], slots));
}

static void arrive(Thread &thread, const Statement &s, Slots slots) {
  Block &block = *thread.block;
  TransactionBarrier &barrier = block.barrierAt(thread, thread.address(s.operands[1], slots));
  uint32_t arrivals = 1;
  if (s.operands.size() > 2 && s.flag)
    barrier.bytes += thread.word(s.operands[2], slots);
  else if (s.operands.size() > 2)
    arrivals = thread.word(s.operands[2], slots);
  if (barrier.pending < arrivals)
    thread.fail("arrives at a barrier that awaits no more arrivals");
  barrier.arriving.join(thread.warp->order);
  thread.warp->tick();
  barrier.pending -= arrivals;
  block.settle(barrier);
}

static void expectBytes(Thread &thread, const Statement &s, Slots slots) {
  thread.block->barrierAt(thread, thread.address(s.operands[0], slots)).bytes += thread.word(s.operands[1], slots);
}

static void await(Thread &thread, const Statement &s, Slots slots) {
  TransactionBarrier &barrier = thread.block->barrierAt(thread, thread.address(s.operands[1], slots));
  uint32_t parity = thread.word(s.operands[2], slots) & 1;
  while ((barrier.phase & 1) == parity) {
    barrier.waiting.push_back(&thread);
    thread.blockedOn = &barrier;
    thread.phase = parity;
    thread.wait();
  }
  thread.warp->order.join(barrier.complete);
  thread.set(s.operands[0].items[0], slots, true);
}

//===----------------------------------------------------------------------===//
// Fences
//===----------------------------------------------------------------------===//

static void fenceProxy(Thread &thread, const Statement &, Slots) {
  Order &order = thread.warp->order;
  order.fenced = order.seen;
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
  if (name == "setmaxnreg") {
    s.scope = Scope::Warp;
    s.runWarp = nothingInWarp;
    return true;
  }
  return false;
}
