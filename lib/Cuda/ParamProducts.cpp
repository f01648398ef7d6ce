#include "lib/Cuda/ParamProducts.h"
#include "lib/Cuda/Cores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool cuda::isDense(MatmulOp op) {
  return matType(op.getLhs()).numCols() != 1 && (isMatrix(op.getLhs()) || isMatrix(op.getRhs()));
}

bool cuda::isProduct(Operation *op) {
  auto product = dyn_cast<MatmulOp>(op);
  return product && isDense(product);
}

std::optional<ParamProduct> cuda::paramProductOf(MatmulOp op, ArrayRef<TensorArgument> tensors) {
  constexpr int64_t leastEntries = 16;
  bool isLeft = !isMatrix(op.getRhs());
  Value matrix = isLeft ? op.getLhs() : op.getRhs();
  ParamProduct product;
  product.vector = isLeft ? op.getRhs() : op.getLhs();
  product.isTransposed = !isLeft;
  while (auto transpose = matrix.getDefiningOp<TransposeOp>()) {
    matrix = transpose.getOperand();
    product.isTransposed ^= true;
  }
  auto *tensor = llvm::find_if(tensors, [&](const auto &t) { return t.argument == matrix; });
  if (isMatrix(product.vector) || tensor == tensors.end() || tensor->hasToken || tensor->element.isF32())
    return std::nullopt;
  product.tensor = tensor - tensors.begin();
  product.element = tensor->element;
  MatType type = matType(matrix);
  product.rows = product.isTransposed ? type.numCols() : type.numRows();
  product.depth = product.isTransposed ? type.numRows() : type.numCols();
  if (std::min(product.rows, product.depth) < leastEntries)
    return std::nullopt;
  return product;
}

bool cuda::usesNoMatrix(Operation &op) {
  bool isView = isa<TransposeOp>(op) && llvm::all_of(op.getUsers(), [](Operation *user) {
                  return isa<TransposeOp>(user) || isProduct(user);
                });
  return isView || (op.getNumRegions() == 0 && llvm::none_of(op.getResults(), isMatrix) &&
                    llvm::all_of(op.getOperands(), [](Value operand) {
                      return isa<MatType>(operand.getType()) && !isMatrix(operand);
                    }));
}
