// Orders products of matrices so that they cost least.
//
// Expanding a sum inside a product pays only when its terms are cheaper than their sum (Terms.h). A sum with a dense
// term stays one factor.
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Terms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace recur {
#define GEN_PASS_DEF_RECURREASSOCIATE
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

namespace {
struct Reassociate : recur::impl::RecurReassociateBase<Reassociate> {
  void runOnOperation() override {
    // Users before operands: a product that is expanded into its user is dead when its turn comes.
    SmallVector<MatmulOp> products;
    getOperation().walk([&](MatmulOp op) { products.push_back(op); });
    IRRewriter rewriter(&getContext());
    for (MatmulOp op : llvm::reverse(products)) {
      if (op->use_empty()) {
        rewriter.eraseOp(op);
        continue;
      }
      SmallVector<Term> terms = multiplyTerms(expandTerms(op.getLhs()), expandTerms(op.getRhs()));
      bool asIs = terms.size() == 1 && terms[0].chain.size() == 2 && terms[0].scalars.empty() && !terms[0].negative &&
                  !llvm::any_of(terms[0].chain, [](const Factor &f) { return f.diagonal; });
      if (asIs || terms.size() > maxTerms)
        continue;
      rewriter.setInsertionPoint(op);
      rewriter.replaceOp(op, emitTerms(rewriter, op.getLoc(), op.getType(), terms));
    }
  }
};
} // namespace
