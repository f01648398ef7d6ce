// A cluster of blocks of threads of a GPU on the host (for most kernels, of one): each thread is a fiber that
// runs until it waits for others.
#pragma once
#include "lib/Emulate/Assembly.h"
#include "lib/Emulate/SharedMemory.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <deque>
#include <map>

namespace recur::emulate {

class Block;
class Cluster;
struct Warp;

/// A launch of a kernel.
struct Launch {
  /// Its code: takes the two parameters.
  void (*code)(void *call, void *maps) = nullptr;
  void *call = nullptr, *maps = nullptr;
  unsigned blocks = 0, threads = 0;
  uint32_t sharedBytes = 0;
  /// Blocks that run together.
  unsigned cluster = 1;
};

/// Runs all clusters one after the other. What went wrong, or "".
std::string run(const Launch &launch);

/// A copy from global to shared memory under way, which lands when it is waited for.
struct LateCopy {
  uint32_t to;
  const void *from;
  uint32_t bytes, given; // bytes past those given become 0
};

/// A box on its way from shared memory to a tensor, or, without a map, bytes to where they lie together.
struct LateBox {
  const void *map;
  uint32_t from;
  llvm::SmallVector<int32_t, 5> coordinates;
  Order order; // when it was issued
  void *to = nullptr;
  uint32_t bytes = 0;
};

class Thread {
public:
  uint64_t get(const Operand &operand, Slots slots) const;
  uint32_t word(const OperandGroup &group, Slots slots) const { return get(group.items[0], slots); }
  float number(const OperandGroup &group, Slots slots) const;
  void set(const Operand &operand, Slots slots, uint64_t value) const {
    if (operand.kind == Operand::Slot)
      slots[operand.value] = value;
  }
  /// The address that a group in brackets is.
  uint64_t address(const OperandGroup &group, Slots slots) const {
    return get(group.items[0], slots) + group.offset;
  }

  /// Stops the launch with what this thread did wrong.
  [[noreturn]] void fail(const llvm::Twine &what);
  /// Fails where there is something wrong.
  void expect(const std::string &wrong) {
    if (!wrong.empty())
      fail(wrong);
  }
  /// Lets others run until somebody wakes this thread.
  void wait();

  unsigned index = 0, lane = 0;
  Warp *warp = nullptr;
  Block *block = nullptr;
  Cluster *cluster = nullptr;
  bool done = false, waiting = false, inCluster = false; // inCluster: has come to the cluster's barrier
  void *stack = nullptr;
  const Statement *at = nullptr;   // runs, or waits there
  const void *blockedOn = nullptr; // the barrier
  uint32_t phase = 0;
  unsigned clusterPhase = 0;
  bool anyHas = false; // what a barrier that asks has answered

  llvm::SmallVector<std::vector<LateCopy>> copies; // by group, the last one open
  llvm::SmallVector<std::vector<LateBox>> boxes;
};

/// A product of a warpgroup under way; a warp does its 16 rows.
struct Product {
  struct Step {
    bool leftInRegisters, leftByDepth, rightByDepth, isF16;
    uint32_t left[32][4]; // by lane
    uint64_t leftDescriptor, rightDescriptor;
    Order order;        // when it was issued
    unsigned group = 0; // 0: of none yet
  };
  uint32_t id = 0;
  int64_t columns = 0;
  std::vector<float> sums; // by lane
  std::vector<Step> steps; // still to be done
};

struct Warp {
  unsigned index = 0; // in its block
  unsigned actor = 0; // in its cluster
  Order order;
  /// Lanes that have come to the same statement.
  const Statement *at = nullptr;
  unsigned arrived = 0;
  Slots slots[32];

  std::deque<Product> products;
  unsigned nextProduct = 0, group = 0;

  /// Its own time: what it does from now on is not known to those who have seen it so far.
  uint32_t now() const { return order.seen[actor]; }
  void tick() { ++order.seen[actor]; }
  Access access() const { return {actor, now(), &order}; }
};

/// A barrier of the kind that named ones are: so many threads meet.
struct NamedBarrier {
  unsigned expected = 0, arrived = 0;
  bool any = false; // whether a condition holds for any thread that has come
  Order order;
  llvm::SmallVector<Thread *> waiting;
  llvm::SmallVector<Warp *> warps;
};

/// A barrier in shared memory that counts arrivals and bytes.
struct TransactionBarrier {
  unsigned actor = 0;
  uint32_t address = 0, arrivals = 0, pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0; // number of phases that are complete
  unsigned maker = 0;
  uint32_t made = 0;                          // when
  llvm::DenseMap<Thread *, uint32_t> arrived; // phases complete with that of each thread's last arrival
  Order arriving, complete;
  llvm::SmallVector<Thread *> waiting;
  /// By warp: the phases that were complete when it last went on, and when that was. None: 0.
  struct Passed {
    uint32_t phase = 0, when = 0;
  };
  llvm::SmallVector<Passed> passed;
  /// Which warps have arrived for a phase, and when they last did; whether it awaits bytes, too.
  struct Arrivals {
    llvm::DenseMap<unsigned, uint32_t> warps;
    bool hasBytes = false;
  } present, last, before; // of the phase that is not complete, and of the two that were complete last
  /// Whether all is known of the phase before the last one: then no wait takes the one before that for it.
  bool isBeforeKnown(const Order &order) const;
};

class Block {
public:
  Block(Cluster &cluster, unsigned rank, unsigned index);

  Cluster &cluster;
  const unsigned rank, index;
  SharedMemory &shared;
  std::array<NamedBarrier, 16> named;
  llvm::SmallVector<uint32_t> registers; // of a thread, as each warp has asked for
  unsigned running = 0;                  // threads
};

class Cluster {
public:
  Cluster(const Launch &launch, unsigned firstBlock);
  std::string run();

  /// Runs one piece of assembly in the current thread.
  void execute(Thread &thread, const Program &program, Slots slots);
  /// Makes threads ready to run.
  void wake(llvm::SmallVectorImpl<Thread *> &threads);
  /// The block whose shared memory has an address; fails where that is none that the thread may use.
  Block &blockAt(Thread &thread, uint32_t address);
  /// A transaction barrier that the thread may use; fails where there is none.
  TransactionBarrier &barrierAt(Thread &thread, uint32_t address);
  void makeBarrier(Thread &thread, uint32_t address, uint32_t arrivals);
  /// Ends the phase of a barrier where nothing is awaited any more.
  void settle(Thread &thread, TransactionBarrier &barrier);

  const Launch &launch;
  std::deque<Block> blocks;
  std::map<uint32_t, TransactionBarrier> transactions;
  /// Of all threads, in two steps.
  NamedBarrier all;
  Order allComplete;
  unsigned allPhase = 0;

private:
  friend class Thread;
  friend void runFiber();
  void meet(Thread &thread, const Statement &statement, Slots slots);
  /// Runs other threads; returns when this one is ready again.
  void leave(Thread &thread);
  std::string describeDeadlock() const;
  std::string describeWait(const Thread &thread) const;

  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::deque<Thread *> ready;
  void *home = nullptr;
  std::string failure;
};

} // namespace recur::emulate
