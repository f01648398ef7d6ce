#include "lib/Cuda/LoadAhead.h"
#include "lib/Cuda/Ptx.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/PatternMatch.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

namespace {
class LoadsAhead {
public:
  LoadsAhead(Threads &threads, scf::ForOp loop, int64_t count)
      : threads(threads), b(threads.b), ptx(b), loop(loop), count(count) {}

  scf::ForOp run(Operation *before, int64_t &used);

private:
  struct Ahead {
    LLVM::LoadOp load;
    /// What its address is made of, in order.
    llvm::SetVector<Operation *> sources;
    /// Where the threads' entries lie in shared memory; none for one in a register.
    std::optional<int64_t> offset = std::nullopt;
  };

  void find(Operation *before, int64_t &used);
  bool addSources(Value value, llvm::SetVector<Operation *> &sources);
  Values ask(Value counter);
  Value ownPlace(int64_t bytes);

  Threads &threads;
  ImplicitLocOpBuilder &b;
  Ptx ptx;
  scf::ForOp loop;
  const int64_t count;
  SmallVector<Ahead> loads;
};
} // namespace

static unsigned addressSpace(LLVM::LoadOp load) {
  return cast<LLVM::LLVMPointerType>(load.getAddr().getType()).getAddressSpace();
}

// Whether a packet takes two registers, and would take more by its entries.
static bool isWide(Type type) {
  auto vector = dyn_cast<VectorType>(type);
  return vector && vector.getNumElements() * vector.getElementTypeBitWidth() == 64;
}

static int64_t bytesOf(Type type) {
  auto vector = dyn_cast<VectorType>(type);
  Type entry = vector ? vector.getElementType() : type;
  return entry.getIntOrFloatBitWidth() / 8 * (vector ? vector.getNumElements() : 1);
}

// False where a value comes from more than the counter, what stands outside of the loop and the kernel's
// parameters.
bool LoadsAhead::addSources(Value value, llvm::SetVector<Operation *> &sources) {
  if (value == loop.getInductionVar() || !loop->isAncestor(value.getParentBlock()->getParentOp()))
    return true;
  Operation *op = value.getDefiningOp();
  if (!op || op->getBlock() != loop.getBody() || op->getNumRegions())
    return false;
  auto load = dyn_cast<LLVM::LoadOp>(op);
  if (load ? addressSpace(load) != 0 : !isPure(op))
    return false;
  if (!llvm::all_of(op->getOperands(), [&](Value operand) { return addSources(operand, sources); }))
    return false;
  sources.insert(op);
  return true;
}

void LoadsAhead::find(Operation *before, int64_t &used) {
  for (auto load : loop.getBody()->getOps<LLVM::LoadOp>()) {
    Ahead ahead{load, {}};
    if (!load->isBeforeInBlock(before) || addressSpace(load) != 1 ||
        !addSources(load.getAddr(), ahead.sources))
      continue;
    if (int64_t bytes = bytesOf(load.getType()); count && bytes >= 4) {
      ahead.offset = llvm::alignTo(used, 16);
      used = *ahead.offset + bytes * count;
    }
    loads.push_back(std::move(ahead));
  }
}

// Where the thread's entries of so many bytes begin, of those from the start of shared memory on.
Value LoadsAhead::ownPlace(int64_t bytes) {
  Value own = arith::MulIOp::create(b, threads.threadIndex(), threads.constant(bytes));
  Value begin = threads.sharedAt(0);
  return LLVM::GEPOp::create(b, begin.getType(), b.getI8Type(), begin, own);
}

Values LoadsAhead::ask(Value counter) {
  IRMapping known;
  known.map(loop.getInductionVar(), counter);
  Values entries;
  for (Ahead &ahead : loads) {
    for (Operation *op : ahead.sources)
      if (!known.contains(op))
        b.clone(*op, known);
    Value address = known.lookupOrDefault(ahead.load.getAddr());
    if (ahead.offset) {
      int64_t bytes = bytesOf(ahead.load.getType());
      Value to = LLVM::PtrToIntOp::create(b, b.getI32Type(), ownPlace(bytes));
      ptx.copyPacket(to, *ahead.offset, address, bytes);
      continue;
    }
    Value entry = b.clone(*ahead.load, known)->getResult(0);
    entries.push_back(isWide(entry.getType()) ? LLVM::BitcastOp::create(b, b.getI64Type(), entry).getResult()
                                              : entry);
  }
  return entries;
}

scf::ForOp LoadsAhead::run(Operation *before, int64_t &used) {
  find(before, used);
  if (loads.empty())
    return loop;
  OpBuilder::InsertionGuard guard(b);
  SmallVector<Type> types;
  for (Ahead &ahead : loads)
    if (!ahead.offset)
      types.push_back(isWide(ahead.load.getType()) ? Type(b.getI64Type()) : ahead.load.getType());
  b.setInsertionPoint(loop);
  Value runs =
      arith::CmpIOp::create(b, arith::CmpIPredicate::slt, loop.getLowerBound(), loop.getUpperBound());
  auto first = scf::IfOp::create(b, types, runs, /*withElseRegion=*/true);
  auto yield = [&](Block *block, llvm::function_ref<Values()> body) {
    if (Operation *last = block->empty() ? nullptr : &block->back(); isa_and_nonnull<scf::YieldOp>(last))
      last->erase();
    b.setInsertionPointToEnd(block);
    scf::YieldOp::create(b, body());
  };
  yield(first.thenBlock(), [&] { return ask(loop.getLowerBound()); });
  yield(first.elseBlock(), [&] {
    return llvm::map_to_vector<12>(
        types, [&](Type type) -> Value { return arith::ConstantOp::create(b, b.getZeroAttr(type)); });
  });
  // This round has all of its own by then.
  b.setInsertionPoint(before);
  Value next = arith::AddIOp::create(b, loop.getInductionVar(), loop.getStep());
  Value isThere = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, next, loop.getUpperBound());
  Values later = ask(arith::SelectOp::create(b, isThere, next, loop.getInductionVar()));
  b.setInsertionPoint(loads.front().load);
  if (count)
    ptx.awaitPackets();
  IRRewriter rewriter(b.getContext());
  rewriter.setInsertionPoint(loop);
  loop = cast<scf::ForOp>(*loop.replaceWithAdditionalYields(
      rewriter, first.getResults(), /*replaceInitOperandUsesInLoop=*/false,
      [&](OpBuilder &, Location, ArrayRef<BlockArgument>) { return SmallVector<Value>(later); }));
  ArrayRef<BlockArgument> entries = loop.getRegionIterArgs().take_back(types.size());
  for (Ahead &ahead : loads) {
    Value entry;
    if (ahead.offset) {
      b.setInsertionPoint(ahead.load);
      int64_t bytes = bytesOf(ahead.load.getType());
      Value own = ownPlace(bytes);
      Value at = LLVM::GEPOp::create(b, own.getType(), b.getI8Type(), own,
                                     ArrayRef<LLVM::GEPArg>{int32_t(*ahead.offset)});
      entry = LLVM::LoadOp::create(b, ahead.load.getType(), at, bytes);
    } else {
      entry = entries.front();
      b.setInsertionPoint(ahead.load);
      if (isWide(ahead.load.getType()))
        entry = LLVM::BitcastOp::create(b, ahead.load.getType(), entry);
      entries = entries.drop_front();
    }
    ahead.load.getResult().replaceAllUsesWith(entry);
    ahead.load.erase();
  }
  b.setInsertionPointAfter(loop);
  if (count)
    ptx.awaitPackets();
  return loop;
}

scf::ForOp cuda::loadAhead(Threads &threads, scf::ForOp loop, Operation *before, int64_t count,
                           int64_t &used) {
  return LoadsAhead(threads, loop, count).run(before, used);
}

scf::ForOp cuda::loadAhead(Threads &threads, scf::ForOp loop, Operation *before) {
  int64_t none = 0;
  return LoadsAhead(threads, loop, 0).run(before, none);
}
