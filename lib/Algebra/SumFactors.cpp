#include "lib/Algebra/SumFactors.h"
#include "lib/Algebra/Terms.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace recur;

namespace {
// Sums of matrices, or of vectors that are read of some, flattened.
class SumFactorer {
public:
  explicit SumFactorer(IRRewriter &rewriter) : rewriter(rewriter) {}

  // Of vectors what sums have that are times a number, too, if nothing else is shared.
  void run(Operation *root) {
    if (!share(root, /*opensMultiples=*/false) && !isMatrix(matType(root->getResult(0))))
      share(root, /*opensMultiples=*/true);
  }

private:
  bool share(Operation *root, bool opensMultiples) {
    parts.clear();
    isAlong = llvm::any_of(root->getUsers(), [](Operation *user) {
      auto product = dyn_cast<MatmulOp>(user);
      return product && isRead(product);
    });
    flatten(root->getResult(0), false, {}, opensMultiples, /*isRoot=*/true);
    for (bool byRow : {true, false}) {
      Groups groups;
      for (auto [index, part] : llvm::enumerate(parts))
        if (Value factor = byRow ? part.row : part.column; factor && isCommon(factor, root))
          groups[{withoutTransposes(factor), part.diagonal, isTurned(factor)}].push_back(index);
        else if (!byRow && !part.column && part.diagonal)
          groups[{Value(), part.diagonal, 0}].push_back(index);
      if (!llvm::any_of(groups, [](const auto &group) { return group.second.size() > 1; }))
        continue;
      rewriter.setInsertionPoint(root);
      rewriter.replaceOp(root, emit(root, groups, byRow));
      return true;
    }
    return false;
  }

  // One summand: scales * diagonal * column * row, where one of the last two may be a matrix, or a vector is
  // the row alone; or anything else as `whole`, which is times the scales of the sum that it stood in.
  struct Part {
    bool negative;
    Value whole;
    SmallVector<Value, 2> outer, scales;
    Value diagonal, column, row;
  };

  // Parts by what they have in common: a vector, or a matrix and whether it is transposed; and a diagonal.
  using Groups = llvm::MapVector<std::tuple<Value, Value, unsigned>, SmallVector<unsigned>>;

  // (A vector is a row or a column by where it stands.)
  static bool isTurned(Value factor) {
    bool turned = false;
    while (auto transpose = isMatrix(matType(factor)) ? factor.getDefiningOp<TransposeOp>() : TransposeOp()) {
      factor = transpose.getOperand();
      turned = !turned;
    }
    return turned;
  }

  // Of reads, the matrix.
  static bool isCommon(Value factor, Operation *root) {
    return isMatrix(matType(root->getResult(0))) || isMatrix(matType(factor));
  }

  // The operand of a product of vectors, entry by entry, that others have in common with it: what is read of
  // a matrix is the other one, or the product is a factor in many and what is read along. None: nothing.
  static std::optional<unsigned> diagonalOf(MulOp product, bool isAlong) {
    auto isOwnRead = [](Value value) {
      auto read = value.getDefiningOp<MatmulOp>();
      return read && isRead(read) && read->hasOneUse();
    };
    auto uses = [&](unsigned i) {
      return llvm::count_if(product->getOperand(i).getUsers(), [&](Operation *user) {
        return isa<MulOp>(user) && user->getResult(0).getType() == product.getType();
      });
    };
    for (unsigned i : {0, 1})
      if (isOwnRead(product->getOperand(1 - i)))
        return i;
    if (!isAlong || dependsOnState(product))
      return std::nullopt;
    return uses(0) >= uses(1) ? 0 : 1;
  }

  void flatten(Value value, bool negative, SmallVector<Value, 2> scales, bool opensMultiples,
               bool isRoot = false) {
    Operation *op = value.getDefiningOp();
    bool inside = op && (isRoot || op->hasOneUse());
    if (inside && isa<AddOp, SubOp>(op) && op->getOperand(0).getType() == value.getType() &&
        op->getOperand(1).getType() == value.getType()) {
      flatten(op->getOperand(0), negative, scales, opensMultiples);
      flatten(op->getOperand(1), negative ^ isa<SubOp>(op), scales, opensMultiples);
      return;
    }
    if (inside && isa<NegOp>(op))
      return flatten(op->getOperand(0), !negative, scales, opensMultiples);
    Part part{negative, value, scales, scales, {}, {}, {}};
    auto scaled = dyn_cast_or_null<MulOp>(op);
    for (unsigned i = 0; inside && scaled && i < 2; ++i)
      if (matType(scaled->getOperand(i)).isScalar() && scaled->getOperand(1 - i).hasOneUse()) {
        part.scales.push_back(scaled->getOperand(i));
        op = scaled->getOperand(1 - i).getDefiningOp();
        if (opensMultiples && isa_and_present<AddOp, SubOp>(op))
          return flatten(op->getResult(0), negative, part.scales, opensMultiples);
        break;
      }
    auto vectors = dyn_cast_or_null<MulOp>(op);
    if (inside && vectors && !isMatrix(vectors.getType()) && !vectors.getType().isScalar() &&
        vectors.getLhs().getType() == vectors.getRhs().getType())
      if (std::optional<unsigned> diagonal = diagonalOf(vectors, isAlong)) {
        part.diagonal = vectors->getOperand(*diagonal);
        part.row = vectors->getOperand(1 - *diagonal);
        op = part.row.getDefiningOp();
      }
    auto product = dyn_cast_or_null<MatmulOp>(op);
    bool isOuter = product && isOne(matType(product.getLhs()).getCols());
    if (inside && product && (isOuter || isRead(product)))
      part.column = product.getLhs(), part.row = product.getRhs();
    parts.push_back(part);
  }

  Value emit(Operation *root, Groups &groups, bool byRow) {
    loc = root->getLoc();
    Value sum;
    auto add = [&](Value value, bool negative) {
      if (!sum)
        sum = negative ? NegOp::create(rewriter, loc, value).getResult() : value;
      else
        sum = negative ? SubOp::create(rewriter, loc, sum, value).getResult()
                       : AddOp::create(rewriter, loc, sum, value).getResult();
    };
    SmallVector<bool> isGrouped(parts.size());
    for (auto &[common, members] : groups)
      for (unsigned index : members)
        isGrouped[index] = true;
    auto whole = [&](const Part &part) {
      Value value = part.whole;
      for (Value scale : llvm::reverse(part.outer))
        value = MulOp::create(rewriter, loc, scale, value);
      return value;
    };
    for (bool negative : {false, true}) // a negation is rarely needed
      for (auto [part, grouped] : llvm::zip(parts, isGrouped))
        if (!grouped && part.negative == negative)
          add(whole(part), negative);
    for (auto &[common, members] : groups) {
      const Part &first = parts[members[0]];
      if (members.size() == 1) {
        add(whole(first), first.negative);
        continue;
      }
      auto vectorOf = [&](const Part &part) { return byRow ? part.column : part.row; };
      Value vector = vectorOf(first);
      bool isOne = llvm::all_of(members, [&](unsigned index) {
        return vectorOf(parts[index]) == vector && !parts[index].scales.empty();
      });
      SmallVector<Term> terms;
      for (unsigned index : members) {
        Term &term = terms.emplace_back();
        term.negative = parts[index].negative;
        term.scalars.append(parts[index].scales.begin(), parts[index].scales.end());
        term.chain.push_back({isOne ? term.scalars.pop_back_val() : vectorOf(parts[index])});
      }
      Value vectors =
          emitTerms(rewriter, loc, isOne ? MatType::scalar(rewriter.getContext()) : matType(vector), terms);
      if (isOne)
        vectors = MulOp::create(rewriter, loc, vectors, vector);
      Value product = byRow          ? MatmulOp::create(rewriter, loc, vectors, first.row)
                      : first.column ? MatmulOp::create(rewriter, loc, first.column, vectors)
                                     : vectors;
      if (first.diagonal)
        product = MulOp::create(rewriter, loc, first.diagonal, product);
      add(product, false);
    }
    return sum;
  }

  IRRewriter &rewriter;
  Location loc = rewriter.getUnknownLoc();
  SmallVector<Part> parts;
  bool isAlong = false; // whether a matrix is read along the sum
};
} // namespace

void recur::factorSum(IRRewriter &rewriter, Operation *root) { SumFactorer(rewriter).run(root); }
