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
  Block &block = *thread.block;
  block.launch.code(block.launch.call, block.launch.maps);
  thread.at = nullptr;
  for (const auto &group : thread.boxes)
    if (!group.empty())
      thread.fail("ends before its copies from shared memory have read it");
  for (const Product &product : thread.warp->products)
    if (!product.steps.empty())
      thread.fail("ends before its products are done");
  thread.done = true;
  block.leave(thread);
  llvm_unreachable("a thread that is done does not run");
}
} // namespace recur::emulate

// Stacks for the fibers of a block, each above a page that cannot be touched.
static char *stackTop(unsigned index) {
  constexpr size_t size = 1 << 18, guard = 1 << 12, most = 1024;
  static char *memory = [] {
    void *all = mmap(nullptr, most * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
    return block->launch.threads;
  case GridSize:
    return block->launch.blocks;
  case LaneIndex:
    return lane;
  default:
    return block->shared.base();
  }
}

float Thread::number(const OperandGroup &group, Slots slots) const {
  return bit_cast<float>(word(group, slots));
}

void Thread::wait() {
  waiting = true;
  block->leave(*this);
}

void Thread::fail(const Twine &what) {
  block->failure = ("thread " + Twine(index) + " (warp " + Twine(index / 32) + ") of block " + Twine(block->index) +
                    (at ? " at '" + at->text + "' " : std::string(" ")) + what)
                       .str();
  void *gone;
  recur_emulate_switch(&gone, block->home);
  llvm_unreachable("a failed launch does not go on");
}

//===----------------------------------------------------------------------===//
// Blocks
//===----------------------------------------------------------------------===//

Block::Block(const Launch &launch, unsigned index)
    : launch(launch), index(index), shared(SharedMemory::get()), threads(launch.threads),
      warps((launch.threads + 31) / 32) {
  shared.begin(launch.sharedBytes, warps.size());
  for (auto [i, warp] : enumerate(warps)) {
    warp.index = i;
    warp.order.seen[i] = 1;
  }
  for (auto [i, thread] : enumerate(threads)) {
    thread.index = i;
    thread.lane = i % 32;
    thread.warp = &warps[i / 32];
    thread.block = this;
    thread.copies.resize(1);
    thread.boxes.resize(1);
    // The first switch to it returns into its function, with the stack as after a call.
    void **top = reinterpret_cast<void **>(stackTop(i)) - 2;
    *top = reinterpret_cast<void *>(&runFiber);
    thread.stack = top - 6;
    ready.push_back(&thread);
  }
}

std::string Block::run() {
  if (Thread *first = ready.front()) {
    ready.pop_front();
    current = first;
    recur_emulate_switch(&home, first->stack);
  }
  current = nullptr;
  if (!failure.empty())
    return failure;
  return all_of(threads, [](const Thread &thread) { return thread.done; }) ? "" : describeDeadlock();
}

void Block::leave(Thread &thread) {
  void *next = home;
  if (!ready.empty()) {
    current = ready.front();
    ready.pop_front();
    next = current->stack;
  }
  recur_emulate_switch(&thread.stack, next);
}

void Block::wake(SmallVectorImpl<Thread *> &woken) {
  for (Thread *thread : woken) {
    thread->waiting = false;
    ready.push_back(thread);
  }
  woken.clear();
}

void Block::meet(Thread &thread, const Statement &statement, Slots slots) {
  Warp &warp = *thread.warp;
  if (!warp.arrived)
    warp.at = &statement;
  else if (warp.at != &statement)
    thread.fail("parts from its warp, which is at '" + warp.at->text + "'");
  warp.slots[thread.lane] = slots;
  Thread *first = &threads[warp.index * 32];
  if (++warp.arrived < std::min<size_t>(32, threads.size() - warp.index * 32))
    return thread.wait();
  warp.arrived = 0;
  statement.runWarp(thread, statement, warp.slots);
  for (unsigned lane = 0; lane < 32 && first + lane < threads.data() + threads.size(); ++lane)
    if (first[lane].waiting && first[lane].at == &statement) {
      first[lane].waiting = false;
      ready.push_back(&first[lane]);
    }
}

void Block::execute(Thread &thread, const Program &program, Slots slots) {
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

std::string Block::describeWait(const Thread &thread) const {
  if (thread.done)
    return "are done";
  std::string text = thread.at ? "wait at '" + thread.at->text + "'" : "wait";
  if (thread.warp->at == thread.at && thread.warp->arrived)
    return text + ", where " + std::to_string(thread.warp->arrived) + " lanes of the warp are";
  for (const NamedBarrier &barrier : named)
    if (&barrier == thread.blockedOn)
      return text + ", where " + std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) +
             " threads are";
  for (const auto &[address, barrier] : transactions)
    if (&barrier == thread.blockedOn)
      return text + ": the barrier at byte " + std::to_string(address - shared.base()) + " has completed " +
             std::to_string(barrier.phase) + " phases and lacks " + std::to_string(barrier.pending) + " of " +
             std::to_string(barrier.arrivals) + " arrivals and " + std::to_string(barrier.bytes) +
             " bytes; awaited is parity " + std::to_string(thread.phase);
  return text;
}

std::string Block::describeDeadlock() const {
  std::string text = "no thread of block " + std::to_string(index) + " can go on:";
  for (size_t first = 0; first < threads.size();) {
    std::string what = describeWait(threads[first]);
    size_t end = first + 1;
    while (end < threads.size() && describeWait(threads[end]) == what)
      ++end;
    text += (first ? "; threads " : " threads ") + std::to_string(first) + " to " + std::to_string(end - 1) + " " + what;
    first = end;
  }
  return text;
}

std::string emulate::run(const Launch &launch) {
  for (unsigned index = 0; index < launch.blocks; ++index) {
    Block block(launch, index);
    if (std::string wrong = block.run(); !wrong.empty())
      return wrong;
  }
  return "";
}

//===----------------------------------------------------------------------===//
// What generated code calls
//===----------------------------------------------------------------------===//

extern "C" void recur_emulate(const Program *program, Slots slots) {
  current->block->execute(*current, *program, slots);
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
