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

// Whether a number is of all entries of a vector: a sum, or the largest.
static bool isSum(Operation *op) { return isLargest(op) || factorsOfSum(op).first; }

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

EntriesOfValue cuda::lowerEntries(ImplicitLocOpBuilder &at, chunk::SubstituteOp op, Value written,
                                  int64_t digits, size_t count,
                                  llvm::function_ref<Value(BlockArgument, size_t)> entryOf,
                                  llvm::function_ref<SumsOfEntries> sum, KnownEntries known, size_t tokens) {
  constexpr int64_t ofUnit = 16, ofTanh = 10;
  using Entries = EntriesOfValue;
  Relaxing listener;
  ImplicitLocOpBuilder b(op.getLoc(), at.getContext(), digits <= ofUnit ? &listener : nullptr);
  b.setInsertionPoint(at.getInsertionBlock(), at.getInsertionPoint());
  Ptx ptx(b);
  std::function<Entries(Value)> lower;
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
    if (isa<BroadcastOp, AssumeOp, TransposeOp>(own))
      return lower(own->getOperand(0));
    SmallVector<Entries> operands = llvm::map_to_vector(own->getOperands(), lower);
    auto operand = [&](unsigned i, size_t e) { return operands[i][operands[i].size() == 1 ? 0 : e]; };
    Entries results;
    if (isSum(own)) {
      // Other sums that wait for none come with it.
      SmallVector<Operation *> together{own};
      for (Operation &other : *own->getBlock())
        if (&other != own && isSum(&other) && !known.contains(other.getResult(0)) && !waits(&other))
          together.push_back(&other);
      SmallVector<Entries> products;
      SmallVector<bool> areLargest = llvm::map_to_vector(together, isLargest);
      for (Operation *each : together) {
        Entries &product = products.emplace_back();
        auto [x, y] = isLargest(each) ? std::pair(each->getOperand(0), Value()) : factorsOfSum(each);
        Entries first = lower(x), second = y ? lower(y) : Entries();
        for (size_t e = 0; e < count; ++e) {
          auto entry = [&](const Entries &of) { return of[of.size() == 1 ? 0 : e]; };
          product.push_back(y ? ptx.multiply(entry(first), entry(second)) : entry(first));
        }
      }
      for (auto [each, results] : llvm::zip(together, sum(products, areLargest)))
        known[each->getResult(0)] = results;
      return known.lookup(own->getResult(0));
    }
    bool isOne = matType(own->getResult(0)).isScalar() &&
                 llvm::all_of(operands, [](const Entries &entries) { return entries.size() == 1; });
    for (size_t e = 0; e < (isOne ? 1 : count); ++e) {
      if (isa<TanhOp>(own) && digits <= ofTanh) {
        results.push_back(ptx.tanh(operand(0, e)));
      } else if (isa<SqrtOp>(own) && digits <= ofUnit) {
        results.push_back(ptx.root(operand(0, e)));
      } else if (isa<DivOp>(own) && digits <= ofUnit) {
        auto [root, least] = asRoot(own->getOperand(1));
        Entries of = root ? lower(root.getOperand()) : Entries();
        Value inverse = root ? ptx.reciprocalRoot(of[of.size() == 1 ? 0 : e]) : ptx.reciprocal(operand(1, e));
        if (least)
          inverse = arith::MinimumFOp::create(b, inverse, ptx.number(1 / *least));
        results.push_back(ptx.multiply(operand(0, e), inverse));
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
      for (size_t e = 0; e < (matType(value).isScalar() && tokens == 1 ? 1 : count); ++e)
        entries.push_back(entryOf(argument, e));
    else
      entries = lowerOp(value.getDefiningOp());
    known[value] = entries;
    return entries;
  };
  return lower(written);
}
