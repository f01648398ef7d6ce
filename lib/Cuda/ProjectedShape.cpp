// Which rules are projected scans, and how a block works.
#include "lib/Cuda/ProjectedScan.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool ProjectedShape::shrink() {
  if (run > 8)
    return run = 8;
  return places > 3 && --places;
}

// Whether a block of ops has nothing but functions entry by entry and, if allowed, products and sums.
static bool isSimple(Block &block, llvm::function_ref<bool(Operation *)> isKnown) {
  return llvm::all_of(block.without_terminator(), [&](Operation &op) {
    if (isShared(&op))
      return isKnown(&op);
    if (auto product = dyn_cast<MatmulOp>(op)) // a vector times a number
      return !isMatrix(product);
    return usesNoMatrix(op) &&
           isa<ElementwiseOp, BroadcastOp, AssumeOp, ConstantOp, SizeOp, TransposeOp, RopeOp>(op);
  });
}

std::optional<ProjectedShape> cuda::chooseProjectedShape(RuleOp rule, ArrayRef<TensorArgument> tensors,
                                                         bool hasWarpgroups) {
  constexpr int64_t rowsOfWarp = 16, mostWarps = 8, together = 4;
  // What follows from vectors of more digits than products have.
  llvm::DenseSet<Value> precise;
  for (const TensorArgument &tensor : tensors)
    if (tensor.hasToken && tensor.argument && tensor.element.isF32() && !tensor.entry().isScalar())
      precise.insert(tensor.argument);
  if (!precise.empty())
    precise.insert_range(rule.argumentsOf(ArgKind::State));
  for (Operation &op : rule.getBody().front())
    if (llvm::any_of(op.getOperands(), [&](Value operand) { return precise.contains(operand); }))
      precise.insert(op.result_begin(), op.result_end());
  SmallVector<ParamProduct> products;
  auto know = [&](Operation *op) {
    if (!isProduct(op)) // sums of vectors
      return llvm::none_of(op->getOperands(), isMatrix);
    std::optional<ParamProduct> product = paramProductOf(cast<MatmulOp>(op), tensors);
    if (!product || precise.contains(product->vector) ||
        (!products.empty() && product->element != products.front().element))
      return false;
    products.push_back(*product);
    return true;
  };
  if (!isSimple(rule.getInit().front(), [](Operation *) { return false; }) ||
      !isSimple(rule.getBody().front(), know) || products.empty())
    return std::nullopt;
  int64_t largest = 0;
  for (const TensorArgument &tensor : tensors) {
    if (tensor.argument && isa<StepsType>(tensor.argument.getType()))
      return std::nullopt;
    MatType type = tensor.entry();
    bool isParam = tensor.argument && rule.getArg(tensor.argument).getKind() == ArgKind::Param;
    if (type.numRows() != 1 && type.numCols() != 1) {
      if (!isParam)
        return std::nullopt;
      continue;
    }
    // What products alone read, no thread has entries of.
    bool isHeld = !tensor.argument || !llvm::all_of(tensor.argument.getUsers(), isProduct);
    if (isHeld)
      largest = std::max(largest, type.numElements());
    if (tensor.hasToken && !type.isScalar() &&
        (type.numElements() % together || tensor.own[1] == tensor.own[2]))
      return std::nullopt;
  }
  for (const ParamProduct &product : products)
    largest = std::max(largest, product.rows);
  ProjectedShape shape;
  shape.isLarge = largest > mostWarps * rowsOfWarp;
  int64_t warps = std::clamp<int64_t>(llvm::divideCeil(largest, rowsOfWarp), 1, mostWarps);
  shape.byWarpgroups = hasWarpgroups && warps >= 4;
  if (shape.byWarpgroups) {
    warps = llvm::alignTo(warps, 4);
    shape.places = 4;
  }
  shape.grid.threads = shape.grid.lanes = warps * 32 / ProjectedShape::turns;
  shape.grid.groups = ProjectedShape::turns;
  shape.grid.productsApart = true;
  int64_t kept = 0, sums = 0;
  for (const ParamProduct &product : products) {
    int64_t owned = shape.grid.owned(product.rows, 1);
    kept += owned / 2 * llvm::divideCeil(product.depth, 16) * 4;
    sums += owned;
  }
  shape.run = 16 * sums <= (shape.byWarpgroups ? 64 : 128) ? 16 : 8;
  shape.inRegisters = kept <= (shape.byWarpgroups ? (shape.run == 8 ? 96 : 0) : 64);
  return shape;
}
