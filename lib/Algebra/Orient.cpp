// Rows as transposed columns. A vector may be written as either, `qT*S` or `S.T*q`, and each use may turn it:
// what is computed entry by entry, or summed, is computed of columns, so that later passes see one vector
// where there is one.
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Terms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace recur {
#define GEN_PASS_DEF_RECURORIENT
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

static bool isRow(Value value) {
  auto type = dyn_cast<MatType>(value.getType());
  return type && isRow(type);
}

// A row's column; anything else as it is.
static Value columnOf(OpBuilder &b, Location loc, Value value) {
  return isRow(value) ? b.createOrFold<TransposeOp>(loc, value) : value;
}

namespace {
// f(x) for rows x is f(xT)T.
struct TurnFunction : OpInterfaceRewritePattern<ElementwiseOp> {
  using OpInterfaceRewritePattern::OpInterfaceRewritePattern;

  LogicalResult matchAndRewrite(ElementwiseOp function, PatternRewriter &b) const override {
    Operation *op = function;
    if (!isRow(op->getResult(0)))
      return failure();
    SmallVector<Value> columns;
    for (Value operand : op->getOperands())
      columns.push_back(columnOf(b, op->getLoc(), operand));
    Type type = matType(op->getResult(0)).transposed();
    Operation *turned = b.create(op->getLoc(), op->getName().getIdentifier(), columns, type, op->getAttrs());
    b.replaceOpWithNewOp<TransposeOp>(op, turned->getResult(0));
    return success();
  }
};

// A row's sum or maximum is its column's.
struct TurnReduction : OpRewritePattern<ReduceOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReduceOp op, PatternRewriter &b) const override {
    if (!isRow(op.getOperand()) || !op.getCols())
      return failure();
    Value column = columnOf(b, op.getLoc(), op.getOperand());
    b.replaceOpWithNewOp<ReduceOp>(op, op.getKind(), column, /*rows=*/true, /*cols=*/false);
    return success();
  }
};

struct Orient : recur::impl::RecurOrientBase<Orient> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<TurnFunction, TurnReduction>(&getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace
