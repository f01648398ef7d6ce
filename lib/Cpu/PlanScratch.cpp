// Gives every buffer of a function a place in the scratch memory.
#include "lib/Cpu/Passes.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

namespace recur::cpu {
#define GEN_PASS_DEF_PLANSCRATCH
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur::cpu;

namespace {

constexpr int64_t alignment = 64;

/// When, in the order of the text, a buffer is in use, and where it lies.
struct Lifetime {
  memref::AllocOp alloc;
  int64_t begin, end; // both inclusive
  int64_t bytes, offset = 0;
};

/// The order of ops in the text; an op with regions ends after all that is in them.
struct TextOrder {
  llvm::DenseMap<Operation *, std::pair<int64_t, int64_t>> spans;
  int64_t next = 0;

  void number(Operation *op) {
    int64_t begin = next++;
    for (Region &region : op->getRegions())
      for (Operation &inner : region.getOps())
        number(&inner);
    spans[op] = {begin, next++};
  }
};

struct PlanScratch : recur::cpu::impl::PlanScratchBase<PlanScratch> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    TextOrder order;
    order.number(function);
    SmallVector<Lifetime> lifetimes;
    function.walk([&](memref::AllocOp alloc) { lifetimes.push_back(lifetimeOf(alloc, order)); });
    int64_t bytes = 0;
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      place(lifetimes[i], ArrayRef(lifetimes).take_front(i));
      bytes = std::max(bytes, lifetimes[i].offset + lifetimes[i].bytes);
    }
    Value scratch = function.getArguments().back();
    for (Lifetime &lifetime : lifetimes) {
      OpBuilder b(lifetime.alloc);
      Location loc = lifetime.alloc.getLoc();
      Value offset = arith::ConstantIndexOp::create(b, loc, lifetime.offset);
      Value view = memref::ViewOp::create(b, loc, lifetime.alloc.getType(), scratch, offset, ValueRange());
      lifetime.alloc.replaceAllUsesWith(view);
      lifetime.alloc.erase();
    }
    function->setAttr(scratchBytesAttr, IntegerAttr::get(IntegerType::get(&getContext(), 64), bytes));
  }

  // From the alloc to the end of the last op beside it that has a use in it, through any names that the
  // buffer takes. A buffer that leaves its block is in use all the time.
  static Lifetime lifetimeOf(memref::AllocOp alloc, const TextOrder &order) {
    MemRefType type = alloc.getType();
    int64_t bytes = llvm::alignTo(type.getNumElements() * type.getElementTypeBitWidth() / 8, alignment);
    Lifetime lifetime{alloc, order.spans.lookup(alloc).first, order.spans.lookup(alloc).second, bytes};
    SmallVector<Value> names = {alloc};
    while (!names.empty())
      for (OpOperand &use : names.pop_back_val().getUses()) {
        Operation *user = use.getOwner();
        if (isa<RegionBranchTerminatorOpInterface, RegionBranchOpInterface>(user))
          return {alloc, 0, order.next, bytes};
        Operation *beside = alloc->getBlock()->findAncestorOpInBlock(*user);
        lifetime.end = std::max(lifetime.end, order.spans.lookup(beside).second);
        for (Value result : user->getResults())
          if (isa<MemRefType>(result.getType()))
            names.push_back(result);
      }
    return lifetime;
  }

  // The lowest place that is free during the whole lifetime.
  static void place(Lifetime &lifetime, ArrayRef<Lifetime> placed) {
    SmallVector<std::pair<int64_t, int64_t>> taken;
    for (const Lifetime &other : placed)
      if (other.begin <= lifetime.end && lifetime.begin <= other.end)
        taken.push_back({other.offset, other.offset + other.bytes});
    llvm::sort(taken);
    for (auto [from, to] : taken) {
      if (lifetime.offset + lifetime.bytes <= from)
        return;
      lifetime.offset = std::max(lifetime.offset, to);
    }
  }
};

} // namespace
