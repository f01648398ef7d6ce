// Orders products of matrices so that they cost least, and takes out what terms of sums have in common
// (SumFactors.h).
//
// Expanding a sum inside a product pays only when its terms are cheaper than their sum (Terms.h). A sum with
// a dense term stays one factor.
#include "lib/Algebra/DistributeReads.h"
#include "lib/Algebra/NormedSteps.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/SumFactors.h"
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
  // A matrix divided by a scalar, or by rows or columns: one quotient for many entries, and a factor as
  // others are.
  void multiplyByReciprocals(IRRewriter &rewriter) {
    getOperation().walk([&](DivOp op) {
      if (!isMatrix(op.getType()) || op.getLhs().getType() != op.getType() ||
          op.getRhs().getType() == op.getType())
        return;
      rewriter.setInsertionPoint(op);
      Value one = ConstantOp::create(rewriter, op.getLoc(), 1.0);
      Value factor = DivOp::create(rewriter, op.getLoc(), one, op.getRhs());
      rewriter.replaceOpWithNewOp<MulOp>(op, factor, op.getLhs());
    });
  }

  // Entries times those of an outer product: its vectors scale rows and columns.
  void scaleByVectors(IRRewriter &rewriter) {
    getOperation().walk([&](MulOp op) {
      for (unsigned i : {0, 1}) {
        auto outer = op->getOperand(i).getDefiningOp<MatmulOp>();
        Value other = op->getOperand(1 - i);
        if (!outer || !isMatrix(op.getType()) || other.getType() != op.getType() ||
            !isOne(matType(outer.getLhs()).getCols()))
          continue;
        rewriter.setInsertionPoint(op);
        Value scaled = MulOp::create(rewriter, op.getLoc(), other, outer.getRhs());
        rewriter.replaceOpWithNewOp<MulOp>(op, outer.getLhs(), scaled);
        return;
      }
    });
  }

  // A number, and the matrix that it is times; or nothing.
  static std::pair<Value, Value> withoutNumber(Value matrix) {
    auto scaled = matrix.getDefiningOp<MulOp>();
    for (unsigned i = 0; scaled && i < 2; ++i)
      if (matType(scaled->getOperand(i)).isScalar())
        return {scaled->getOperand(i), scaled->getOperand(1 - i)};
    return {};
  }

  // The product that a matrix is but for numbers, if there are two sums in turn in it; null of others.
  static MatmulOp productOfSums(Value matrix) {
    while (Value inner = withoutNumber(matrix).second)
      matrix = inner;
    auto isSum = [](Value value) { return expandTerms(value).size() > 1; };
    auto product = matrix.getDefiningOp<MatmulOp>();
    bool areSums = product && isSum(product.getLhs()) && isSum(product.getRhs());
    return areSums || (product && (productOfSums(product.getLhs()) || productOfSums(product.getRhs())))
               ? product
               : MatmulOp();
  }

  // S*((I - k*kT)*(I - p*pT)) is (S*(I - k*kT))*(I - p*pT): a state is changed by sums in turn, as by those
  // that are written so.
  static Value multiplyInTurn(IRRewriter &rewriter, Location loc, Value state, Value by, bool onRight) {
    if (MatmulOp both = productOfSums(by)) {
      for (; by != both.getResult(); by = withoutNumber(by).second)
        state = MulOp::create(rewriter, loc, withoutNumber(by).first, state);
      Value first = onRight ? both.getLhs() : both.getRhs(), second = onRight ? both.getRhs() : both.getLhs();
      state = multiplyInTurn(rewriter, loc, state, first, onRight);
      return multiplyInTurn(rewriter, loc, state, second, onRight);
    }
    return onRight ? MatmulOp::create(rewriter, loc, state, by) : MatmulOp::create(rewriter, loc, by, state);
  }
  void multiplyInTurn(IRRewriter &rewriter) {
    for (MatmulOp op : llvm::make_early_inc_range(getOperation().getBody().getOps<MatmulOp>()))
      for (bool onRight : {true, false}) {
        Value state = op->getOperand(onRight ? 0 : 1), by = op->getOperand(onRight ? 1 : 0);
        if (!isMatrix(matType(state)) || !isMatrix(matType(by)) || !dependsOnState(state) ||
            dependsOnState(by) || !productOfSums(by))
          continue;
        rewriter.setInsertionPoint(op);
        rewriter.replaceOp(op, multiplyInTurn(rewriter, op.getLoc(), state, by, onRight));
        break;
      }
    eraseDead(getOperation());
  }

  // What is read of a matrix on its right, or on its left: in both cases columns or rows.
  struct MatrixRead {
    Value matrix;
    Side side;
    unsigned along; // the operand that is the vector
  };
  static std::optional<MatrixRead> asRead(Operation *op) {
    auto product = dyn_cast<MatmulOp>(op);
    if (!product || !isRead(product))
      return std::nullopt;
    unsigned along = isMatrix(matType(product.getLhs())) ? 1 : 0;
    Value matrix = product->getOperand(1 - along);
    bool isTurned = matrix.getDefiningOp<TransposeOp>() != nullptr;
    return MatrixRead{withoutTransposes(matrix), isTurned == (along == 1) ? Side::Left : Side::Right, along};
  }

  // The product of a matrix and a diagonal one on its side, if something is read of it on that side and it
  // stands before `user`.
  static MulOp decayedMatrix(Value matrix, Value diagonal, Side side, Operation *user) {
    auto isReadOf = [&](Value value) {
      return llvm::any_of(value.getUsers(), [&](Operation *op) {
        std::optional<MatrixRead> read = asRead(op);
        return read && read->side == side;
      });
    };
    for (Operation *own : matrix.getUsers()) {
      auto decayed = dyn_cast<MulOp>(own);
      if (!decayed || own->getBlock() != user->getBlock() || !own->isBeforeInBlock(user) ||
          !isMatrix(decayed.getType()))
        continue;
      Value factor = decayed->getOperand(decayed.getLhs() == matrix ? 1 : 0);
      bool isRow = isOne(matType(factor).getRows()), isReadSo = isReadOf(decayed);
      for (Operation *turned : own->getUsers())
        isReadSo |= isa<TransposeOp>(turned) && isReadOf(turned->getResult(0));
      if (isRow == (side == Side::Right) && isReadSo &&
          isEqual(withoutTransposes(factor), withoutTransposes(diagonal)))
        return decayed;
    }
    return {};
  }

  // What is read of S*diag(a), where that is read, too: S*(a.*k) is (S*diag(a))*k, so that like reads are
  // alike.
  void readDecayed(IRRewriter &rewriter) {
    getOperation().walk([&](MatmulOp product) {
      std::optional<MatrixRead> read = asRead(product);
      if (!read)
        return;
      Value vector = product->getOperand(read->along);
      auto along = withoutTransposes(vector).getDefiningOp<MulOp>();
      for (unsigned i = 0; along && i < 2; ++i) {
        MulOp decayed = decayedMatrix(read->matrix, along->getOperand(i), read->side, product);
        Value rest = along->getOperand(1 - i);
        if (!decayed || rest.getType() != along.getType())
          continue;
        rewriter.setInsertionPoint(product);
        auto turned = [&](Value value) { return TransposeOp::create(rewriter, product.getLoc(), value); };
        Value matrix = product->getOperand(1 - read->along);
        product->setOperand(read->along, along.getResult() == vector ? rest : turned(rest));
        product->setOperand(1 - read->along, matrix == read->matrix ? decayed.getResult() : turned(decayed));
        return;
      }
    });
  }

  void runOnOperation() override {
    IRRewriter rewriter(&getContext());
    multiplyByReciprocals(rewriter);
    scaleByVectors(rewriter);
    multiplyInTurn(rewriter);
    // Users before operands: a product that is expanded into its user is dead when its turn comes.
    SmallVector<MatmulOp> products;
    getOperation().walk([&](MatmulOp op) { products.push_back(op); });
    for (MatmulOp op : llvm::reverse(products)) {
      if (op->use_empty()) {
        rewriter.eraseOp(op);
        continue;
      }
      SmallVector<Term> terms = expandProduct(op.getLhs(), op.getRhs());
      bool asIs = terms.size() == 1 && terms[0].chain.size() == 2 && terms[0].scalars.empty() &&
                  !terms[0].negative &&
                  !llvm::any_of(terms[0].chain, [](const Factor &f) { return f.diagonal; });
      if (asIs || terms.size() > maxTerms)
        continue;
      rewriter.setInsertionPoint(op);
      rewriter.replaceOp(op, emitTerms(rewriter, op.getLoc(), op.getType(), terms));
    }
    // What is left of what was written anew would count as another use.
    eraseDead(getOperation());
    distributeReads(getOperation(), rewriter);
    readDecayed(rewriter);
    eraseDead(getOperation());
    normSteps(getOperation(), rewriter);
    eraseDead(getOperation());
    // Once more, as what outer products have in common leaves sums of what else they are made of, and those
    // of vectors that are read along.
    for (unsigned round = 0; round < 3; ++round) {
      SmallVector<Operation *> sums;
      getOperation().walk([&](Operation *op) {
        if (!isa<AddOp, SubOp>(op) || matType(op->getResult(0)).isScalar())
          return;
        bool isPart = op->hasOneUse() && isa<AddOp, SubOp, NegOp>(*op->user_begin());
        if (!isPart)
          sums.push_back(op);
      });
      for (Operation *op : sums)
        factorSum(rewriter, op);
      eraseDead(getOperation());
    }
  }
};
} // namespace
