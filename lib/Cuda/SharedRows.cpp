// Rows that are the same for all tokens, params that decay say. Kernels know functions of tokens, of which
// such rows are one without inputs.
#include "lib/Algebra/Rewriting.h"
#include "lib/Cuda/KernelBuilder.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Whether a value is a vector for each token.
static bool isVectorOfTokens(Value value) {
  MatType type = matType(value);
  return isa<StringAttr>(type.getRows()) && !isOne(type.getCols()) && !isa<StringAttr>(type.getCols());
}

void cuda::mapSharedRows(chunk::ProgramOp program) {
  Block &body = program.getBody().front();
  for (auto rows : llvm::make_early_inc_range(body.getOps<BroadcastOp>())) {
    if (!isVectorOfTokens(rows) || !isOne(matType(rows.getOperand()).getRows()))
      continue;
    // All that they follow from goes into the map, so that it is known what they are functions of.
    BackwardSliceOptions options;
    options.inclusive = options.omitBlockArguments = true;
    llvm::SetVector<Operation *> slice;
    if (Operation *op = rows.getOperand().getDefiningOp();
        op && failed(getBackwardSlice(op, &slice, options)))
      continue;
    llvm::SetVector<Value> params;
    for (Operation *op : slice)
      for (Value operand : op->getOperands())
        if (isa<BlockArgument>(operand))
          params.insert(operand);
    if (isa<BlockArgument>(rows.getOperand()))
      params.insert(rows.getOperand());
    OpBuilder b(rows);
    auto map = chunk::MapOp::create(b, rows.getLoc(), TypeRange(), TypeRange(rows.getType()), ValueRange(),
                                    ValueRange(), params.getArrayRef());
    Block *block = b.createBlock(&map.getBody());
    IRMapping mapping;
    for (Value param : params)
      mapping.map(param, block->addArgument(param.getType(), param.getLoc()));
    for (Operation *op : slice)
      b.clone(*op, mapping);
    Value column = b.createOrFold<TransposeOp>(rows.getLoc(), mapping.lookup(Value(rows.getOperand())));
    chunk::YieldOp::create(b, rows.getLoc(), column);
    rows.replaceAllUsesWith(map.getResults().front());
    rows.erase();
  }
  eraseDead(body);
}
