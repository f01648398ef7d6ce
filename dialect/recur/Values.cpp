// Constants and linear algebra: result types, folds, derivatives.
#include "dialect/recur/Recur.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;
using namespace recur;

// The dimension of recur.size in its assembly.
namespace recur {
static void printDim(OpAsmPrinter &printer, Operation *, Attribute dim) { printDim(printer, dim); }
} // namespace recur

#define GET_OP_CLASSES
#include "dialect/recur/RecurOps.cpp.inc"

#define INFER(Op)                                                                                            \
  LogicalResult Op::inferReturnTypes(MLIRContext *context, std::optional<Location> loc, ValueRange operands, \
                                     DictionaryAttr attributes, OpaqueProperties properties,                 \
                                     RegionRange regions, SmallVectorImpl<Type> &results)

static bool isConstantValue(Value value, double expected) {
  FloatAttr number;
  return matchPattern(value, m_Constant(&number)) && number.getValueAsDouble() == expected;
}

//===----------------------------------------------------------------------===//
// Constants
//===----------------------------------------------------------------------===//

void ConstantOp::build(OpBuilder &b, OperationState &state, double value) {
  build(b, state, value, MatType::scalar(b.getContext()));
}
void ConstantOp::build(OpBuilder &b, OperationState &state, double value, Type type) {
  build(b, state, type, b.getF64FloatAttr(value));
}
OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValueAttr(); }
RangeAttr ConstantOp::inferRange(ArrayRef<RangeAttr>) {
  double value = getValue().convertToDouble();
  return RangeAttr::closed(getContext(), value, value);
}

OpFoldResult SizeOp::fold(FoldAdaptor) {
  auto number = dyn_cast<IntegerAttr>(getDim());
  return number ? FloatAttr::get(Float64Type::get(getContext()), number.getInt()) : FloatAttr();
}
RangeAttr SizeOp::inferRange(ArrayRef<RangeAttr>) {
  if (auto number = dyn_cast<IntegerAttr>(getDim()))
    return RangeAttr::closed(getContext(), number.getInt(), number.getInt());
  return RangeAttr::get(getContext(), 1, std::numeric_limits<double>::infinity(), false, false);
}

template <typename OpT>
static LogicalResult verifySquare(OpT op) {
  MatType type = op.getType();
  if (type.getRows() == type.getCols())
    return success();
  return op.emitOpError() << "must be square, got: " << type;
}
LogicalResult IdentityOp::verify() { return verifySquare(*this); } // recur_identity_c1
LogicalResult MaskOp::verify() { return verifySquare(*this); }     // recur_mask_c1

INFER(DecayOp) {
  auto factors = matType(operands[0]);
  if (!isOne(factors.getCols()))
    return emitOptionalError(loc, "the factors must be one for each token, T x 1, got: ", factors);
  results.push_back(MatType::get(context, factors.getRows(), factors.getRows()));
  return success();
}

INFER(ExtractOp) {
  results.push_back(cast<StepsType>(operands[0].getType()).getStep());
  return success();
}

INFER(JoinOp) {
  auto column = operands.empty() ? MatType() : matType(operands[0]);
  if (!column || !isOne(column.getCols()) ||
      llvm::any_of(operands, [&](Value operand) { return operand.getType() != column; })) // recur_join_c1
    return emitOptionalError(loc, "the columns must be at least one, n x 1, of one type");
  results.push_back(
      MatType::get(context, column.getRows(), Builder(context).getI64IntegerAttr(operands.size())));
  return success();
}

INFER(ConcatOp) {
  Adaptor adaptor(operands, attributes, properties, regions);
  ArrayRef<int64_t> firsts = adaptor.getFirsts();
  if (operands.empty() || firsts.size() != operands.size()) // recur_concat_c1
    return emitOptionalError(loc, "there must be at least one part, and where each begins");
  int64_t rows = 0;
  for (auto [part, first] : llvm::zip(operands, firsts)) {
    auto type = matType(part);
    if (!isOne(type.getCols()) || !isa<IntegerAttr>(type.getRows())) // recur_concat_c1
      return emitOptionalError(loc, "the parts must be n x 1, of bound sizes, got: ", type);
    if (first < rows) // recur_concat_c1
      return emitOptionalError(loc, "a part begins at ", first, ", before the end of the one before, ", rows);
    rows = first + type.numRows();
  }
  Builder b(context);
  results.push_back(MatType::get(context, b.getI64IntegerAttr(rows), b.getI64IntegerAttr(1)));
  return success();
}

// Between parts there are zeros.
RangeAttr ConcatOp::inferRange(ArrayRef<RangeAttr> parts) {
  double lo = 0, hi = 0;
  for (RangeAttr part : parts) {
    if (!part)
      return {};
    lo = std::min(lo, part.getLo());
    hi = std::max(hi, part.getHi());
  }
  return RangeAttr::closed(getContext(), lo, hi);
}

//===----------------------------------------------------------------------===//
// matmul, transpose
//===----------------------------------------------------------------------===//

INFER(MatmulOp) {
  MatType lhs = matType(operands[0]), rhs = matType(operands[1]);
  if (lhs.getCols() != rhs.getRows()) // recur_matmul_c1
    return emitOptionalError(
        loc, "the columns of the left side must be the rows of the right side, got: ", lhs, " and ", rhs);
  results.push_back(MatType::get(context, lhs.getRows(), rhs.getCols()));
  return success();
}
Value MatmulOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned index) {
  if (index == 0)
    return MatmulOp::create(b, getLoc(), cotangent, TransposeOp::create(b, getLoc(), getRhs()));
  return MatmulOp::create(b, getLoc(), TransposeOp::create(b, getLoc(), getLhs()), cotangent);
}
OpFoldResult MatmulOp::fold(FoldAdaptor) {
  if (getLhs().getDefiningOp<IdentityOp>())
    return getRhs();
  if (getRhs().getDefiningOp<IdentityOp>())
    return getLhs();
  return {};
}

namespace {
// A product with a zero matrix is zero.
struct ZeroProduct : OpRewritePattern<MatmulOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(MatmulOp op, PatternRewriter &rewriter) const override {
    if (!isConstantValue(op.getLhs(), 0) && !isConstantValue(op.getRhs(), 0))
      return failure();
    rewriter.replaceOpWithNewOp<ConstantOp>(op, 0.0, op.getType());
    return success();
  }
};

// A product with a scalar on one side scales.
struct ScalarProduct : OpRewritePattern<MatmulOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(MatmulOp op, PatternRewriter &rewriter) const override {
    if (!matType(op.getLhs()).isScalar() && !matType(op.getRhs()).isScalar())
      return failure();
    rewriter.replaceOpWithNewOp<MulOp>(op, op.getLhs(), op.getRhs());
    return success();
  }
};

// A vector's product with itself is the sum of its squares.
struct SquaredNorm : OpRewritePattern<MatmulOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(MatmulOp op, PatternRewriter &rewriter) const override {
    auto row = op.getLhs().getDefiningOp<TransposeOp>();
    if (!row || row.getOperand() != op.getRhs() || !matType(op).isScalar())
      return failure();
    Value squares = MulOp::create(rewriter, op.getLoc(), op.getRhs(), op.getRhs());
    rewriter.replaceOpWithNewOp<ReduceOp>(op, Reduction::Sum, squares, /*rows=*/true, /*cols=*/false);
    return success();
  }
};

// The transpose of a product is the product of the transposes, which brings transposes down to the leaves.
struct TransposedProduct : OpRewritePattern<TransposeOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(TransposeOp op, PatternRewriter &rewriter) const override {
    auto product = op.getOperand().getDefiningOp<MatmulOp>();
    if (!product || !product->hasOneUse())
      return failure();
    Value lhs = TransposeOp::create(rewriter, op.getLoc(), product.getRhs());
    Value rhs = TransposeOp::create(rewriter, op.getLoc(), product.getLhs());
    rewriter.replaceOpWithNewOp<MatmulOp>(op, lhs, rhs);
    return success();
  }
};
} // namespace

void MatmulOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<ZeroProduct, ScalarProduct, SquaredNorm>(context);
}

INFER(TransposeOp) {
  results.push_back(matType(operands[0]).transposed());
  return success();
}
Value TransposeOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned) {
  return TransposeOp::create(b, getLoc(), cotangent);
}
OpFoldResult TransposeOp::fold(FoldAdaptor adaptor) {
  if (matType(getOperand()).isScalar())
    return getOperand();
  if (auto inner = getOperand().getDefiningOp<TransposeOp>())
    return inner.getOperand();
  if (getOperand().getDefiningOp<IdentityOp>())
    return getOperand();
  return adaptor.getOperand(); // a constant has the same number everywhere
}
void TransposeOp::getCanonicalizationPatterns(RewritePatternSet &patterns, MLIRContext *context) {
  patterns.add<TransposedProduct>(context);
}
RangeAttr TransposeOp::inferRange(ArrayRef<RangeAttr> operands) { return operands[0]; }

//===----------------------------------------------------------------------===//
// reduce, broadcast
//===----------------------------------------------------------------------===//

static MatType reducedType(MatType type, bool rows, bool cols) {
  Attribute one = IntegerAttr::get(IntegerType::get(type.getContext(), 64), 1);
  return MatType::get(type.getContext(), rows ? one : type.getRows(), cols ? one : type.getCols());
}

INFER(ReduceOp) {
  Adaptor adaptor(operands, attributes, properties, regions);
  results.push_back(reducedType(matType(operands[0]), adaptor.getRows(), adaptor.getCols()));
  return success();
}
Value ReduceOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned) {
  Value spread = BroadcastOp::create(b, getLoc(), getOperand().getType(), cotangent);
  if (getKind() == Reduction::Sum)
    return spread;
  Value attained = GreaterEqualOp::create(b, getLoc(), getOperand(), getResult());
  return MulOp::create(b, getLoc(), spread, attained);
}
OpFoldResult ReduceOp::fold(FoldAdaptor) {
  return getOperand().getType() == getType() ? OpFoldResult(getOperand()) : OpFoldResult();
}
RangeAttr ReduceOp::inferRange(ArrayRef<RangeAttr> operands) {
  if (!operands[0] || getKind() == Reduction::Max)
    return operands[0];
  // A sum of numbers of one sign keeps the sign; how many there are is known only once bound.
  double infinity = std::numeric_limits<double>::infinity();
  if (operands[0].getLo() >= 0)
    return RangeAttr::get(getContext(), operands[0].getLo(), infinity, operands[0].getLoOpen(), false);
  if (operands[0].getHi() <= 0)
    return RangeAttr::get(getContext(), -infinity, operands[0].getHi(), false, operands[0].getHiOpen());
  return {};
}

LogicalResult BroadcastOp::verify() {
  if (broadcastTypes(matType(getOperand()), getType()) == getType()) // recur_broadcast_c1
    return success();
  return emitOpError() << "cannot repeat " << getOperand().getType() << " to " << getType();
}
Value BroadcastOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned) {
  return reduceTo(b, getLoc(), cotangent, matType(getOperand()));
}
OpFoldResult BroadcastOp::fold(FoldAdaptor adaptor) {
  return getOperand().getType() == getType() ? OpFoldResult(getOperand())
                                             : OpFoldResult(adaptor.getOperand());
}
RangeAttr BroadcastOp::inferRange(ArrayRef<RangeAttr> operands) { return operands[0]; }

Value recur::reduceTo(OpBuilder &b, Location loc, Value value, MatType type) {
  MatType from = matType(value);
  bool rows = isOne(type.getRows()) && !isOne(from.getRows());
  bool cols = isOne(type.getCols()) && !isOne(from.getCols());
  return rows || cols ? ReduceOp::create(b, loc, Reduction::Sum, value, rows, cols).getResult() : value;
}

//===----------------------------------------------------------------------===//
// diag, solve, inverse, rope
//===----------------------------------------------------------------------===//

INFER(DiagOp) {
  MatType type = matType(operands[0]);
  if (!isOne(type.getCols())) // recur_diag_c1
    return emitOptionalError(loc, "the diagonal must be a vector, got: ", type);
  results.push_back(MatType::get(context, type.getRows(), type.getRows()));
  return success();
}
Value DiagOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned) {
  Value unit = IdentityOp::create(b, getLoc(), getType());
  Value kept = MulOp::create(b, getLoc(), cotangent, unit);
  return reduceTo(b, getLoc(), kept, matType(getOperand()));
}

INFER(SolveOp) {
  MatType matrix = matType(operands[0]), rhs = matType(operands[1]);
  if (matrix.getRows() != matrix.getCols() || matrix.getCols() != rhs.getRows()) // recur_solve_c1
    return emitOptionalError(loc, "the matrix must be square and fit the right side, got: ", matrix, " and ",
                             rhs);
  Adaptor adaptor(operands, attributes, properties, regions);
  if (adaptor.getIterations() && !isOne(rhs.getCols())) // recur_solve_c2
    return emitOptionalError(loc, "conjugate gradients take one right side, got: ", rhs);
  results.push_back(rhs);
  return success();
}
// With x = A^-1 r: the cotangent of r is A^-T c, that of A is -(A^-T c) x^T.
Value SolveOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned index) {
  Location loc = getLoc();
  Value transposed = TransposeOp::create(b, loc, getMatrix());
  Value back = SolveOp::create(b, loc, transposed, cotangent, getIterationsAttr(), getEpsAttr());
  if (index == 1)
    return back;
  Value outer = MatmulOp::create(b, loc, back, TransposeOp::create(b, loc, getResult()));
  return NegOp::create(b, loc, outer);
}

INFER(InverseOp) {
  MatType type = matType(operands[0]);
  if (type.getRows() != type.getCols()) // recur_inverse_c1
    return emitOptionalError(loc, "the matrix must be square, got: ", type);
  results.push_back(type);
  return success();
}
Value InverseOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned) {
  Value transposed = TransposeOp::create(b, getLoc(), getResult());
  Value left = MatmulOp::create(b, getLoc(), transposed, cotangent);
  return NegOp::create(b, getLoc(), MatmulOp::create(b, getLoc(), left, transposed));
}

INFER(RopeOp) {
  if (!isOne(matType(operands[0]).getCols())) // recur_rope_c1
    return emitOptionalError(loc, "rope needs a vector, got: ", operands[0].getType());
  results.push_back(operands[0].getType());
  return success();
}
// A single entry has none to turn with.
OpFoldResult RopeOp::fold(FoldAdaptor) { return getType().isScalar() ? getOperand() : OpFoldResult(); }
// A rotation's adjoint is the rotation back. The position is an integer: it has no derivative.
Value RopeOp::buildAdjoint(OpBuilder &b, Value cotangent, unsigned index) {
  if (index == 1)
    return ConstantOp::create(b, getLoc(), 0.0);
  Value back = NegOp::create(b, getLoc(), getPosition());
  return RopeOp::create(b, getLoc(), cotangent, back, getBaseAttr());
}

//===----------------------------------------------------------------------===//
// assume
//===----------------------------------------------------------------------===//

INFER(AssumeOp) {
  results.push_back(operands[0].getType());
  return success();
}
Value AssumeOp::buildAdjoint(OpBuilder &, Value cotangent, unsigned) { return cotangent; }
RangeAttr AssumeOp::inferRange(ArrayRef<RangeAttr> operands) {
  if (!getRangeAttr() || !operands[0])
    return getRangeAttr() ? getRangeAttr() : operands[0];
  RangeAttr both = getRangeAttr().intersection(operands[0]);
  return both ? both : getRangeAttr();
}
