#include "lib/Cuda/EntryFunctions.h"
#include "lib/Cuda/EntryCombinations.h"
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/Sequential.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The largest entry of a vector, as softmax takes it.
static bool isLargest(Operation *op) {
  auto largest = dyn_cast<ReduceOp>(op);
  return largest && largest.getKind() == Reduction::Max && largest.getType().isScalar() &&
         isOne(matType(largest.getOperand()).getCols());
}

bool cuda::isSum(Operation *op) { return isLargest(op) || factorsOfSum(op).first; }

// The root that a value is, or where it is no less than a number, if that is more than 0.
static std::pair<SqrtOp, std::optional<double>> asRoot(Value value) {
  if (auto greater = value.getDefiningOp<MaxOp>())
    for (unsigned i : {0, 1}) {
      auto constant = greater.getOperand(i).getDefiningOp<ConstantOp>();
      auto root = greater.getOperand(1 - i).getDefiningOp<SqrtOp>();
      if (constant && root && constant.getValue().convertToDouble() > 0)
        return {root, constant.getValue().convertToDouble()};
    }
  return {value.getDefiningOp<SqrtOp>(), std::nullopt};
}

int64_t cuda::countSums(chunk::SubstituteOp op) {
  return llvm::count_if(op.getBody().front(), [](Operation &inner) { return isSum(&inner); });
}

int64_t cuda::depthOfSums(chunk::SubstituteOp op) {
  llvm::DenseMap<Value, int64_t> depths;
  int64_t most = 0;
  for (Operation &inner : op.getBody().front().without_terminator()) {
    int64_t depth = 0;
    for (Value operand : inner.getOperands())
      depth = std::max(depth, depths.lookup(operand));
    if (isSum(&inner))
      ++depth;
    depths[inner.getResult(0)] = depth;
    most = std::max(most, depth);
  }
  return most;
}

std::optional<std::string> cuda::refusalOf(chunk::SubstituteOp op, bool sums) {
  MatType type = matType(op.getSides().front());
  bool isOfRows = !isOne(type.getCols()) &&
                  llvm::all_of(op->getResultTypes(), [&](Type own) { return own == Type(type); });
  auto isColumn = [](Value value) {
    return isa<MatType>(value.getType()) && isOne(matType(value).getCols());
  };
  for (Operation &inner : op.getBody().front().without_terminator()) {
    if (isa<SignOp>(inner)) // in bf16 1e-1 off, where errors are near 0
      return "what is written jumps with what is read, which products round";
    if (sums && isSum(&inner))
      continue;
    if (sums && isa<TransposeOp>(inner) && isColumn(inner.getOperand(0)) &&
        llvm::all_of(inner.getUsers(), isSum))
      continue;
    isOfRows &= isa<ElementwiseOp, ConstantOp, BroadcastOp, AssumeOp>(inner) &&
                llvm::all_of(inner.getOperands(), isColumn) && llvm::all_of(inner.getResults(), isColumn);
  }
  if (isOfRows)
    return std::nullopt;
  return "what is written is a function of several entries of what is read";
}

EntriesOfValue cuda::lowerEntries(ImplicitLocOpBuilder &at, chunk::SubstituteOp op, ValueRange written,
                                  int64_t digits, size_t count,
                                  llvm::function_ref<Value(BlockArgument, size_t)> entryOf,
                                  llvm::function_ref<SumsOfEntries> sum, KnownEntries known,
                                  llvm::function_ref<EntriesOfValue(Value)> spread) {
  constexpr int64_t ofUnit = 16, ofTanh = 10;
  using Entries = EntriesOfValue;
  Relaxing listener;
  ImplicitLocOpBuilder b(op.getLoc(), at.getContext(), digits <= ofUnit ? &listener : nullptr);
  b.setInsertionPoint(at.getInsertionBlock(), at.getInsertionPoint());
  Ptx ptx(b);
  std::function<Entries(Value)> lower;
  llvm::DenseSet<Value> areOfLanes; // numbers of which each lane has a token's
  auto isOfLanes = [&](Value value) { return areOfLanes.contains(value); };
  KnownEntries spreadOut, inverses, spreadInverses;
  auto pick = [](const Entries &entries, size_t e) { return entries[entries.size() == 1 ? 0 : e]; };
  auto entriesOf = [&](Value value) {
    Entries own = lower(value);
    if (!isOfLanes(value))
      return own;
    Entries &entries = spreadOut[value];
    return entries.empty() ? entries = spread(own.front()) : entries;
  };
  auto inverseOf = [&](Value divisor, bool isOne) {
    auto [root, least] = asRoot(divisor);
    Value of = root ? root.getOperand() : divisor;
    Entries &own = inverses[divisor];
    if (own.empty())
      for (Value entry : lower(of)) {
        Value inverse = root ? ptx.reciprocalRoot(entry) : ptx.reciprocal(entry);
        own.push_back(least ? arith::MinimumFOp::create(b, inverse, ptx.number(1 / *least)) : inverse);
      }
    if (isOne || !isOfLanes(of))
      return own;
    Entries &entries = spreadInverses[divisor];
    return entries.empty() ? entries = spread(own.front()) : entries;
  };
  // Whether an op follows from sums that are not known.
  std::function<bool(Operation *)> waits = [&](Operation *own) {
    return llvm::any_of(own->getOperands(), [&](Value operand) {
      Operation *before = operand.getDefiningOp();
      return before && !known.contains(operand) && (isSum(before) || waits(before));
    });
  };
  auto lowerOp = [&](Operation *own) -> Entries {
    if (auto constant = dyn_cast<ConstantOp>(own))
      return {ptx.number(constant.getValue().convertToDouble())};
    if (isa<BroadcastOp, AssumeOp, TransposeOp>(own)) {
      Entries entries = lower(own->getOperand(0));
      if (isOfLanes(own->getOperand(0)))
        areOfLanes.insert(own->getResult(0));
      return entries;
    }
    if (isSum(own)) {
      // Other sums that wait for none come with it.
      llvm::for_each(own->getOperands(), lower);
      SmallVector<Operation *> together{own};
      for (Operation &other : *own->getBlock())
        if (&other != own && isSum(&other) && !known.contains(other.getResult(0)) && !waits(&other))
          together.push_back(&other);
      SmallVector<Entries> products;
      SmallVector<bool> areLargest = llvm::map_to_vector(together, isLargest);
      for (Operation *each : together) {
        Entries &product = products.emplace_back();
        auto [x, y] = isLargest(each) ? std::pair(each->getOperand(0), Value()) : factorsOfSum(each);
        Entries first = entriesOf(x), second = y ? entriesOf(y) : Entries();
        for (size_t e = 0; e < count; ++e)
          product.push_back(y ? ptx.multiply(pick(first, e), pick(second, e)) : pick(first, e));
      }
      for (auto [each, results] : llvm::zip(together, sum(products, areLargest))) {
        known[each->getResult(0)] = results;
        if (spread)
          areOfLanes.insert(each->getResult(0));
      }
      return known.lookup(own->getResult(0));
    }
    // A lane's token is all that it needs for a number that follows from such alone.
    SmallVector<Entries> operands = llvm::map_to_vector(own->getOperands(), lower);
    bool isOne = matType(own->getResult(0)).isScalar() &&
                 llvm::all_of(operands, [](const Entries &entries) { return entries.size() == 1; });
    if (!isOne)
      operands = llvm::map_to_vector(own->getOperands(), entriesOf);
    else if (llvm::any_of(own->getOperands(), isOfLanes))
      areOfLanes.insert(own->getResult(0));
    auto operand = [&](unsigned i, size_t e) { return pick(operands[i], e); };
    Entries results;
    for (size_t e = 0; e < (isOne ? 1 : count); ++e) {
      if (isa<TanhOp>(own) && digits <= ofTanh) {
        results.push_back(ptx.tanh(operand(0, e)));
      } else if (isa<SqrtOp>(own) && digits <= ofUnit) {
        results.push_back(ptx.root(operand(0, e)));
      } else if (isa<DivOp>(own) && digits <= ofUnit) {
        results.push_back(ptx.multiply(operand(0, e), pick(inverseOf(own->getOperand(1), isOne), e)));
      } else {
        Entries arguments;
        for (unsigned i = 0; i < operands.size(); ++i)
          arguments.push_back(operand(i, e));
        results.push_back(cast<ElementwiseOp>(own).lower(b, b.getLoc(), arguments));
      }
    }
    return results;
  };
  lower = [&](Value value) {
    if (auto found = known.find(value); found != known.end())
      return found->second;
    Entries entries;
    if (auto argument = dyn_cast<BlockArgument>(value))
      for (size_t e = 0; e < (matType(value).isScalar() && !spread ? 1 : count); ++e)
        entries.push_back(entryOf(argument, e));
    else
      entries = lowerOp(value.getDefiningOp());
    known[value] = entries;
    return entries;
  };
  Entries all;
  for (Value value : written)
    llvm::append_range(all, entriesOf(value));
  return all;
}
