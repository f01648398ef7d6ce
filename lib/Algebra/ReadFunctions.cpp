#include "lib/Algebra/ReadFunctions.h"
#include "lib/Algebra/NormalForm.h"
#include "lib/Algebra/Rewriting.h"
#include "mlir/Analysis/SliceAnalysis.h"

using namespace mlir;
using namespace recur;

// The products of a vector of the token and a matrix that depends on states, from which a state follows.
static SmallVector<MatmulOp> findReads(RuleOp rule) {
  SetVector<Operation *> dependent;
  SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State);
  llvm::append_range(states, rule.argumentsOf(ArgKind::Stale));
  for (BlockArgument state : states)
    getForwardSlice(state, &dependent);
  auto depends = [&](Value value) {
    return isa<BlockArgument>(value) ? llvm::is_contained(states, value)
                                     : dependent.contains(value.getDefiningOp());
  };
  SmallVector<MatmulOp> reads;
  for (MatmulOp product : rule.getBody().getOps<MatmulOp>()) {
    bool isLeft = isMatrix(matType(product.getLhs()));
    Value matrix = isLeft ? product.getLhs() : product.getRhs();
    Value vector = isLeft ? product.getRhs() : product.getLhs();
    if (isRead(product) && depends(matrix) && !depends(vector) && feedsState(rule, product))
      reads.push_back(product);
  }
  return reads;
}

// Inner products of what follows from what was read: sums of entries, as functions of vectors have them.
static void sumProducts(RuleOp rule, ArrayRef<Value> given) {
  SetVector<Operation *> dependent;
  for (Value read : given)
    getForwardSlice(read, &dependent);
  IRRewriter rewriter(rule.getContext());
  for (MatmulOp product : llvm::make_early_inc_range(rule.getBody().getOps<MatmulOp>())) {
    if (!dependent.contains(product) || !matType(product).isScalar() || matType(product.getLhs()).isScalar())
      continue;
    rewriter.setInsertionPoint(product);
    Value row = product.getLhs(), column = TransposeOp::create(rewriter, product.getLoc(), row);
    Value entries = MulOp::create(rewriter, product.getLoc(), column, product.getRhs());
    rewriter.replaceOpWithNewOp<ReduceOp>(product, Reduction::Sum, entries, /*rows=*/true, /*cols=*/false);
  }
}

OwningOpRef<ModuleOp> recur::takeReadsApart(RuleOp rule, SmallVectorImpl<std::string> &texts) {
  return rewritten(rule, [&](RuleOp copy) {
    OpBuilder b(copy.getBodyYield());
    SmallVector<Attribute> outputs(copy.getOutputs().getValue());
    SmallVector<Value> givens;
    for (MatmulOp read : findReads(copy)) {
      texts.push_back(notation(read));
      std::string name = "read " + std::to_string(texts.size());
      MatType type = read.getType();
      bool isRow = !isOne(type.getCols());
      Value given = addInput(copy, name, RangeAttr(), /*isUnit=*/false, isRow ? type.transposed() : type);
      givens.push_back(given);
      if (isRow) {
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPoint(read);
        given = TransposeOp::create(b, read.getLoc(), given);
      }
      read.replaceAllUsesWith(given);
      Value found = isRow ? TransposeOp::create(b, read.getLoc(), read).getResult() : read.getResult();
      copy.getBodyYield()->insertOperands(copy.getBodyYield()->getNumOperands(), found);
      outputs.push_back(b.getStringAttr(name));
    }
    copy.setOutputsAttr(b.getArrayAttr(outputs));
    sumProducts(copy, givens);
    return success(!texts.empty());
  });
}
