// Merges a loop that updates a matrix in place with the loop behind it that reads the result, so that the
// matrix passes through the registers once.
#include "lib/Cpu/Passes.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

namespace recur::cpu {
#define GEN_PASS_DEF_FUSELOOPS
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur::cpu;

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

static Value rootOf(Value memref) {
  while (auto view = memref.getDefiningOp<ViewLikeOpInterface>())
    memref = view.getViewSource();
  return memref;
}

// Buffers of our own are apart from each other and from the caller's memory.
static bool mayAlias(Value x, Value y) {
  x = rootOf(x);
  y = rootOf(y);
  auto isOwn = [](Value root) { return root.getDefiningOp<memref::AllocOp>() != nullptr; };
  auto isCallers = [](Value root) {
    return isa<BlockArgument>(root) && isa<func::FuncOp>(root.getParentBlock()->getParentOp());
  };
  return x == y || !((isOwn(x) && (isOwn(y) || isCallers(y))) || (isOwn(y) && isCallers(x)));
}

namespace {
/// What an op does with memory, with all that is in it.
struct Accesses {
  SmallVector<Value> reads, writes;

  explicit Accesses(Operation *root) {
    root->walk([&](Operation *op) {
      if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op)) {
        for (OpOperand *input : linalgOp.getDpsInputOperands())
          add(reads, input->get());
        for (Value init : linalgOp.getDpsInits()) {
          add(reads, init);
          add(writes, init);
        }
        return;
      }
      if (isMemoryEffectFree(op))
        return;
      bool isLoad = isa<memref::LoadOp, vector::LoadOp>(op);
      for (Value operand : op->getOperands()) {
        add(reads, operand);
        if (!isLoad)
          add(writes, operand);
      }
    });
  }
  static void add(SmallVector<Value> &list, Value value) {
    if (isa<MemRefType>(value.getType()))
      list.push_back(value);
  }
};
} // namespace

static bool anyAlias(ArrayRef<Value> xs, ArrayRef<Value> ys) {
  return llvm::any_of(xs, [&](Value x) { return llvm::any_of(ys, [&](Value y) { return mayAlias(x, y); }); });
}

// Whether an op may run after all ops between it and another one behind it.
static bool mayMoveDown(Operation *op, Operation *to) {
  Accesses own(op);
  for (Operation *between = op->getNextNode(); between != to; between = between->getNextNode()) {
    Accesses other(between);
    if (anyAlias(own.writes, other.reads) || anyAlias(own.reads, other.writes))
      return false;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Merging
//===----------------------------------------------------------------------===//

// The init of an op that writes this whole buffer entry by entry; null if there is none.
static OpOperand *writer(linalg::GenericOp op, Value buffer) {
  for (OpOperand &init : op.getDpsInitsMutable())
    if (init.get() == buffer && op.getMatchingIndexingMap(&init).isIdentity())
      return &init;
  return nullptr;
}

// Whether every sum over loops of the merged op runs over all its reduction loops.
static bool isProper(ArrayRef<AffineMap> outputMaps, ArrayRef<utils::IteratorType> iterators) {
  return llvm::all_of(outputMaps, [&](AffineMap map) {
    if (map.isPermutation())
      return true;
    for (auto [loop, iterator] : llvm::enumerate(iterators))
      if ((iterator == utils::IteratorType::reduction) == map.isFunctionOfDim(loop))
        return false;
    return true;
  });
}

// Merges `first` into `second`, which reads what it writes entry by entry. Null if that cannot be.
static linalg::GenericOp merge(linalg::GenericOp first, linalg::GenericOp second, OpOperand &link) {
  OpOperand *written = writer(first, link.get());
  AffineMap place = second.getMatchingIndexingMap(&link);
  if (!written || !place.isPermutation() || first.getNumLoops() != second.getNumLoops())
    return {};
  // Beside the link the two must not meet in memory, but for reading the same.
  for (OpOperand &operand : second->getOpOperands())
    if (&operand != &link && isa<MemRefType>(operand.get().getType())) {
      bool isWritten = second.isDpsInit(&operand);
      for (OpOperand &other : first->getOpOperands())
        if ((isWritten || first.isDpsInit(&other)) && isa<MemRefType>(other.get().getType()) &&
            mayAlias(operand.get(), other.get()))
          return {};
    }
  if (!mayMoveDown(first, second))
    return {};

  SmallVector<utils::IteratorType> iterators = second.getIteratorTypesArray();
  for (auto [loop, iterator] : llvm::enumerate(first.getIteratorTypesArray()))
    if (iterator == utils::IteratorType::reduction)
      iterators[place.getDimPosition(loop)] = iterator;
  SmallVector<Value> inputs, inits;
  SmallVector<AffineMap> maps, initMaps;
  IRMapping values;
  OpBuilder b(second);
  auto block = std::make_unique<Block>();
  auto add = [&](linalg::GenericOp op, bool wantsInits, auto mapOf) {
    for (OpOperand &operand : op->getOpOperands()) {
      if (&operand == &link || op.isDpsInit(&operand) != wantsInits)
        continue;
      (wantsInits ? inits : inputs).push_back(operand.get());
      (wantsInits ? initMaps : maps).push_back(mapOf(op.getMatchingIndexingMap(&operand)));
      BlockArgument argument = op.getMatchingBlockArgument(&operand);
      values.map(argument, block->addArgument(argument.getType(), argument.getLoc()));
    }
  };
  auto moved = [&](AffineMap map) { return map.compose(place); };
  auto same = [](AffineMap map) { return map; };
  for (bool wantsInits : {false, true}) {
    add(first, wantsInits, moved);
    add(second, wantsInits, same);
  }
  if (!isProper(initMaps, iterators))
    return {};
  llvm::append_range(maps, initMaps);
  auto merged = linalg::GenericOp::create(b, second.getLoc(), inputs, inits, maps, iterators);
  merged.getRegion().push_back(block.release());
  b.setInsertionPointToEnd(&merged.getRegion().front());
  SmallVector<Value> results;
  auto inlineBody = [&](linalg::GenericOp op) {
    for (Operation &inner : op.getBody()->without_terminator()) {
      Operation *copy = b.clone(inner, values);
      if (auto index = dyn_cast<linalg::IndexOp>(copy); index && op == first)
        index.setDim(place.getDimPosition(index.getDim()));
    }
    for (Value value : op.getBody()->getTerminator()->getOperands())
      results.push_back(values.lookupOrDefault(value));
  };
  inlineBody(first);
  values.map(second.getMatchingBlockArgument(&link),
             results[written->getOperandNumber() - first.getNumDpsInputs()]);
  inlineBody(second);
  linalg::YieldOp::create(b, second.getLoc(), results);
  first.erase();
  second.erase();
  return merged;
}

namespace {
struct FuseLoops : recur::cpu::impl::FuseLoopsBase<FuseLoops> {
  void runOnOperation() override {
    SmallVector<Block *> blocks;
    getOperation().walk([&](Block *block) { blocks.push_back(block); });
    for (Block *block : blocks)
      for (auto op = block->begin(); op != block->end(); ++op)
        if (auto second = dyn_cast<linalg::GenericOp>(*op))
          if (linalg::GenericOp merged = mergeInto(second))
            op = merged->getIterator();
  }

  // Only matrices: a vector is in registers or in the nearest cache anyway.
  static linalg::GenericOp mergeInto(linalg::GenericOp second) {
    if (second.getNumLoops() < 2 || second.getNumReductionLoops() == 0)
      return {};
    for (OpOperand *input : second.getDpsInputOperands()) {
      Operation *before = second->getPrevNode();
      for (; before; before = before->getPrevNode())
        if (auto first = dyn_cast<linalg::GenericOp>(before))
          if (writer(first, input->get()))
            if (linalg::GenericOp merged = merge(first, second, *input))
              return merged;
    }
    return {};
  }
};
} // namespace
