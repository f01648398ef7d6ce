// Sums over a token's rows, as warps make them: of products of inputs entry by entry, with all numbers that
// divide them outside.
#include "lib/Cuda/RoleForm.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Writes inner products in maps as the sums that they are.
static void writeInnerProducts(chunk::ProgramOp program) {
  program.getBody().walk([](MatmulOp product) {
    if (!isa<chunk::MapOp>(product->getParentOp()) || !isOne(matType(product).getRows()) ||
        !isOne(matType(product).getCols()))
      return;
    OpBuilder b(product);
    Value row = product.getLhs();
    auto transpose = row.getDefiningOp<TransposeOp>();
    if (!transpose)
      return;
    Value column = transpose.getOperand();
    Value entries = MulOp::create(b, product.getLoc(), column.getType(), column, product.getRhs());
    Value sum = ReduceOp::create(b, product.getLoc(), Reduction::Sum, entries, /*rows=*/true, /*cols=*/false);
    product.replaceAllUsesWith(sum);
    product.erase();
  });
}

static bool dividesVector(DivOp quotient, Type vector) {
  return quotient && matType(quotient.getRhs()).isScalar() && matType(quotient.getLhs()) == vector;
}

// Takes numbers that divide a factor of a vector, entry by entry, out of the product.
static void takeOutNumbers(MulOp product) {
  MatType type = product.getType();
  for (unsigned i : {0, 1}) {
    auto quotient = product->getOperand(i).getDefiningOp<DivOp>();
    Value other = product->getOperand(1 - i);
    if (type.isScalar() || matType(other) != type || !dividesVector(quotient, type))
      continue;
    OpBuilder b(product);
    auto entries = MulOp::create(b, product.getLoc(), quotient.getLhs(), other);
    product.replaceAllUsesWith(DivOp::create(b, product.getLoc(), entries, quotient.getRhs()).getResult());
    product.erase();
    return takeOutNumbers(entries);
  }
}

// Takes those that divide all that is summed out of the sum.
static void takeOutNumbers(ReduceOp sum) {
  auto quotient = sum.getOperand().getDefiningOp<DivOp>();
  if (sum.getKind() != Reduction::Sum || !dividesVector(quotient, sum.getOperand().getType()))
    return;
  OpBuilder b(sum->getContext());
  b.setInsertionPointAfter(sum);
  sum->setOperand(0, quotient.getLhs());
  auto whole = DivOp::create(b, sum.getLoc(), sum, quotient.getRhs());
  sum.getResult().replaceAllUsesExcept(whole, whole);
  takeOutNumbers(sum);
}

void cuda::writeSums(chunk::ProgramOp program) {
  writeInnerProducts(program);
  for (auto map : program.getBody().getOps<chunk::MapOp>()) {
    for (auto product : llvm::make_early_inc_range(map.getBody().getOps<MulOp>()))
      takeOutNumbers(product);
    for (auto sum : llvm::make_early_inc_range(map.getBody().getOps<ReduceOp>()))
      takeOutNumbers(sum);
  }
}
