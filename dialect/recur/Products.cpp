// Products of entries that are written down more simply.
#include "dialect/recur/Recur.h"
#include "mlir/IR/PatternMatch.h"
#include <cmath>

using namespace mlir;
using namespace recur;

namespace {
// A matrix with the same number in every entry scales.
struct ConstantScale : OpRewritePattern<MulOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(MulOp op, PatternRewriter &rewriter) const override {
    for (unsigned i : {0, 1}) {
      auto scale = op->getOperand(i).getDefiningOp<ConstantOp>();
      if (!scale || scale.getType().isScalar() || op->getOperand(1 - i).getType() != op.getType())
        continue;
      Value number = ConstantOp::create(rewriter, op.getLoc(), scale.getValue().convertToDouble());
      rewriter.replaceOpWithNewOp<MulOp>(op, number, op->getOperand(1 - i));
      return success();
    }
    return failure();
  }
};

// What is repeated for every entry scales as it is: gradients of sums bring such products.
struct RepeatedScale : OpRewritePattern<MulOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(MulOp op, PatternRewriter &rewriter) const override {
    for (unsigned i : {0, 1}) {
      auto repeat = op->getOperand(i).getDefiningOp<BroadcastOp>();
      if (!repeat || op->getOperand(1 - i).getType() != op.getType())
        continue;
      rewriter.replaceOpWithNewOp<MulOp>(op, repeat.getOperand(), op->getOperand(1 - i));
      return success();
    }
    return failure();
  }
};

static ConstantOp asNumber(Value value) {
  auto constant = value.getDefiningOp<ConstantOp>();
  return constant && constant.getType().isScalar() ? constant : ConstantOp();
}

// Equal terms are a product, (y + x) + x, too: the gradient of a square has two.
struct EqualTerms : OpRewritePattern<AddOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(AddOp op, PatternRewriter &rewriter) const override {
    auto twice = [&](Value x) {
      return MulOp::create(rewriter, op.getLoc(), ConstantOp::create(rewriter, op.getLoc(), 2.0), x);
    };
    if (op.getLhs() == op.getRhs()) {
      rewriter.replaceOp(op, twice(op.getLhs()));
      return success();
    }
    for (unsigned i : {0, 1})
      if (auto sum = op->getOperand(i).getDefiningOp<AddOp>())
        for (unsigned j : {0, 1})
          if (Value x = op->getOperand(1 - i); sum->getOperand(j) == x) {
            rewriter.replaceOpWithNewOp<AddOp>(op, sum->getOperand(1 - j), twice(x));
            return success();
          }
    return failure();
  }
};

// What is left of a matrix or vector without a share of it: S - S*diag(x) is S*diag(1 - x).
struct WithoutShare : OpRewritePattern<SubOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(SubOp op, PatternRewriter &rewriter) const override {
    auto part = op.getRhs().getDefiningOp<MulOp>();
    for (unsigned i : {0, 1}) {
      if (!part || part->getOperand(i) != op.getLhs())
        continue;
      Value share = part->getOperand(1 - i), one = ConstantOp::create(rewriter, op.getLoc(), 1.0);
      if (share.getType() == op.getType())
        continue;
      auto row = share.getDefiningOp<TransposeOp>(); // vectors are columns
      Value rest = SubOp::create(rewriter, op.getLoc(), one, row ? row.getOperand() : share);
      if (row)
        rest = TransposeOp::create(rewriter, op.getLoc(), rest);
      rewriter.replaceOpWithNewOp<MulOp>(op, op.getLhs(), rest);
      return success();
    }
    return failure();
  }
};

// Numbers that stand in the text, or come of gradients, are one: a*(b*x) is (a*b)*x, where that rounds
// nothing, as in all folding (Elementwise.cpp).
struct ConstantFactors : OpRewritePattern<MulOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(MulOp op, PatternRewriter &rewriter) const override {
    for (unsigned i : {0, 1}) {
      ConstantOp outer = asNumber(op->getOperand(i));
      auto product = op->getOperand(1 - i).getDefiningOp<MulOp>();
      for (unsigned j : {0, 1})
        if (ConstantOp inner = outer && product ? asNumber(product->getOperand(j)) : ConstantOp()) {
          double x = outer.getValue().convertToDouble(), y = inner.getValue().convertToDouble(),
                 number = x * y;
          if (std::fma(x, y, -number) != 0)
            return failure();
          rewriter.replaceOpWithNewOp<MulOp>(op, ConstantOp::create(rewriter, op.getLoc(), number),
                                             product->getOperand(1 - j));
          return success();
        }
    }
    return failure();
  }
};
} // namespace
void MulOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<ConstantScale, RepeatedScale, EqualTerms, WithoutShare, ConstantFactors>(context);
}
