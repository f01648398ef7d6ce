#include "lib/Emulate/Machine.h"
#include "llvm/ADT/Twine.h"
#include "llvm/ADT/bit.h"
#include "llvm/Support/ErrorHandling.h"

#include <sys/mman.h>

using namespace llvm;
using namespace recur;
using namespace recur::emulate;

// Keeps the registers that a function must keep on the stack, exchanges stacks, and takes them back.
extern "C" void recur_emulate_switch(void **from, void *to);
asm(R"(
.text
.globl recur_emulate_switch
.hidden recur_emulate_switch
.type recur_emulate_switch, @function
recur_emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size recur_emulate_switch, .-recur_emulate_switch
)");

// The thread that runs.
static Thread *current = nullptr;

namespace recur::emulate {
void runFiber() {
  Thread &thread = *current;
  Cluster &cluster = *thread.cluster;
  cluster.launch.code(cluster.launch.call, cluster.launch.maps);
  thread.at = nullptr;
  for (const auto &group : thread.boxes)
    if (!group.empty())
      thread.fail("ends before its copies from shared memory have read it");
  for (const Product &product : thread.warp->products)
    if (!product.steps.empty())
      thread.fail("ends before its products are done");
  thread.done = true;
  --thread.block->running;
  cluster.leave(thread);
  llvm_unreachable("a thread that is done does not run");
}
} // namespace recur::emulate

// Stacks for the fibers of a block, each above a page that cannot be touched.
static char *stackTop(unsigned index) {
  constexpr size_t size = 1 << 18, guard = 1 << 12, most = 4096;
  static char *memory = [] {
    void *all = mmap(nullptr, most * size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
      reportFatalUsageError("there is no memory for the stacks of a block's threads");
    for (size_t i = 0; i < most; ++i)
      mprotect(static_cast<char *>(all) + i * size, guard, PROT_NONE);
    return static_cast<char *>(all);
  }();
  return memory + (index + 1) * size;
}

//===----------------------------------------------------------------------===//
// Threads
//===----------------------------------------------------------------------===//

uint64_t Thread::get(const Operand &operand, Slots slots) const {
  if (operand.kind == Operand::Slot)
    return slots[operand.value];
  if (operand.kind == Operand::Number)
    return operand.value;
  switch (operand.value) {
  case ThreadIndex:
    return index;
  case BlockIndex:
    return block->index;
  case BlockSize:
    return cluster->launch.threads;
  case GridSize:
    return cluster->launch.blocks;
  case LaneIndex:
    return lane;
  case ClusterRank:
    return block->rank;
  default:
    return block->shared.base();
  }
}

float Thread::number(const OperandGroup &group, Slots slots) const {
  return bit_cast<float>(word(group, slots));
}

void Thread::wait() {
  waiting = true;
  cluster->leave(*this);
}

void Thread::fail(const Twine &what) {
  cluster->failure = ("thread " + Twine(index) + " (warp " + Twine(index / 32) + ") of block " +
                      Twine(block->index) + (at ? " at '" + at->text + "' " : std::string(" ")) + what)
                         .str();
  void *gone;
  recur_emulate_switch(&gone, cluster->home);
  llvm_unreachable("a failed launch does not go on");
}

//===----------------------------------------------------------------------===//
// Blocks
//===----------------------------------------------------------------------===//

Block::Block(Cluster &cluster, unsigned rank, unsigned index)
    : cluster(cluster), rank(rank), index(index), shared(SharedMemory::get(rank)),
      running(cluster.launch.threads) {
  unsigned warps = (running + 31) / 32;
  registers.assign(warps, 0);
  shared.begin(cluster.launch.sharedBytes, rank * warps, warps);
}

Cluster::Cluster(const Launch &launch, unsigned firstBlock)
    : launch(launch), threads(launch.cluster * launch.threads),
      warps(launch.cluster * ((launch.threads + 31) / 32)) {
  unsigned warpsOfBlock = warps.size() / launch.cluster;
  for (unsigned rank = 0; rank < launch.cluster; ++rank)
    blocks.emplace_back(*this, rank, firstBlock + rank);
  for (auto [i, warp] : enumerate(warps)) {
    warp.actor = i;
    warp.index = i % warpsOfBlock;
    warp.order.seen[i] = 1;
  }
  for (auto [i, thread] : enumerate(threads)) {
    unsigned rank = i / launch.threads;
    thread.index = i % launch.threads;
    thread.lane = thread.index % 32;
    thread.warp = &warps[rank * warpsOfBlock + thread.index / 32];
    thread.block = &blocks[rank];
    thread.cluster = this;
    thread.copies.resize(1);
    thread.boxes.resize(1);
    // The first switch to it returns into its function, with the stack as after a call.
    void **top = reinterpret_cast<void **>(stackTop(i)) - 2;
    *top = reinterpret_cast<void *>(&runFiber);
    thread.stack = top - 6;
    ready.push_back(&thread);
  }
  all.expected = threads.size();
}

std::string Cluster::run() {
  current = ready.front();
  ready.pop_front();
  recur_emulate_switch(&home, current->stack);
  current = nullptr;
  if (!failure.empty())
    return failure;
  return all_of(threads, [](const Thread &thread) { return thread.done; }) ? "" : describeDeadlock();
}

void Cluster::leave(Thread &thread) {
  void *next = home;
  if (!ready.empty()) {
    current = ready.front();
    ready.pop_front();
    next = current->stack;
  }
  recur_emulate_switch(&thread.stack, next);
}

void Cluster::wake(SmallVectorImpl<Thread *> &woken) {
  for (Thread *thread : woken) {
    thread->waiting = false;
    ready.push_back(thread);
  }
  woken.clear();
}

void Cluster::meet(Thread &thread, const Statement &statement, Slots slots) {
  Warp &warp = *thread.warp;
  if (!warp.arrived)
    warp.at = &statement;
  else if (warp.at != &statement)
    thread.fail("parts from its warp, which is at '" + warp.at->text + "'");
  warp.slots[thread.lane] = slots;
  Thread *first = &thread - thread.lane;
  if (++warp.arrived < 32)
    return thread.wait();
  warp.arrived = 0;
  statement.runWarp(thread, statement, warp.slots);
  for (Thread *lane = first; lane < first + 32; ++lane)
    if (lane != &thread) {
      lane->waiting = false;
      ready.push_back(lane);
    }
}

void Cluster::execute(Thread &thread, const Program &program, Slots slots) {
  for (auto [operand, output] : program.tied)
    slots[output] = slots[operand];
  for (const Statement &statement : program.statements) {
    if (statement.predicate >= 0 && bool(slots[statement.predicate]) == statement.negated)
      continue;
    thread.at = &statement;
    if (statement.scope == Scope::Warp)
      meet(thread, statement, slots);
    else
      statement.run(thread, statement, slots);
  }
}

std::string Cluster::describeWait(const Thread &thread) const {
  if (thread.done)
    return "are done";
  std::string text = thread.at ? "wait at '" + thread.at->text + "'" : "wait";
  if (thread.warp->at == thread.at && thread.warp->arrived)
    return text + ", where " + std::to_string(thread.warp->arrived) + " lanes of the warp are";
  if (thread.blockedOn == &all)
    return text + ", where " + std::to_string(all.arrived) + " of " + std::to_string(all.expected) +
           " threads are";
  for (const NamedBarrier &barrier : thread.block->named)
    if (&barrier == thread.blockedOn)
      return text + ", where " + std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) +
             " threads are";
  for (const auto &[address, barrier] : transactions)
    if (&barrier == thread.blockedOn)
      return text + ": the barrier at byte " + std::to_string(address % SharedMemory::range) +
             " has completed " + std::to_string(barrier.phase) + " phases and lacks " +
             std::to_string(barrier.pending) + " of " + std::to_string(barrier.arrivals) + " arrivals and " +
             std::to_string(barrier.bytes) + " bytes; awaited is parity " + std::to_string(thread.phase);
  return text;
}

std::string Cluster::describeDeadlock() const {
  std::string text = "no thread can go on:";
  for (size_t first = 0; first < threads.size();) {
    std::string what = describeWait(threads[first]);
    const Block *block = threads[first].block;
    size_t end = first + 1;
    while (end < threads.size() && threads[end].block == block && describeWait(threads[end]) == what)
      ++end;
    text += (first ? "; threads " : " threads ") + std::to_string(threads[first].index) + " to " +
            std::to_string(threads[end - 1].index) + " of block " + std::to_string(block->index) + " " + what;
    first = end;
  }
  return text;
}

std::string emulate::run(const Launch &launch) {
  // Nothing orders blocks; the last come first, so that what counts on their order shows.
  for (unsigned end = launch.blocks; end; end -= launch.cluster) {
    Cluster cluster(launch, end - launch.cluster);
    if (std::string wrong = cluster.run(); !wrong.empty())
      return wrong;
  }
  return "";
}

//===----------------------------------------------------------------------===//
// What generated code calls
//===----------------------------------------------------------------------===//

extern "C" void recur_emulate(const Program *program, Slots slots) {
  current->cluster->execute(*current, *program, slots);
}

extern "C" void recur_emulate_access(uint64_t address, uint32_t bytes, bool writes) {
  Thread &thread = *current;
  thread.at = nullptr;
  SharedMemory &shared = thread.block->shared;
  Access access = thread.warp->access();
  if (address >> 32)
    thread.fail("takes an address outside of shared memory for one in it");
  thread.expect(writes ? shared.write(address, bytes, access) : shared.read(address, bytes, access));
}
