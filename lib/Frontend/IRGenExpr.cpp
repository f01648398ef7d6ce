#include "lib/Frontend/IRGenImpl.h"

using namespace mlir;

namespace recur::frontend {

Value IRGen::number(double value, Location loc) { return ConstantOp::create(builder, loc, value); }

Value IRGen::number(double value, Type type, Location loc) {
  return ConstantOp::create(builder, loc, value, type);
}

Value IRGen::reduce(Reduction kind, Value operand, bool rows, bool cols, Location loc) {
  return make<ReduceOp>(loc, kind, operand, rows, cols);
}

/// Attaches what is known about a value, if anything.
Value IRGen::promise(Value value, const Interval &interval, bool unit, Location loc) {
  RangeAttr known = range(interval);
  if (!known && !unit)
    return value;
  return AssumeOp::create(builder, loc, value, known, unit);
}

/// The value of an expression as an n x n matrix even where it is a diag.
Value IRGen::matrix(const Expr &expr) {
  if (!expr.shape.diag)
    return value(expr);
  Location loc = location(expr);
  MatType full = MatType::get(&context, dim(expr.shape.rows), dim(expr.shape.cols));
  if (expr.is(ExprKind::Name) && expr.symbol->is(SymbolKind::Identity))
    return IdentityOp::create(builder, loc, full);
  // c*I keeps its identity: products with it are scaled, not computed.
  if (expr.is(ExprKind::Multiply) && expr.operand(0)->shape.isScalar())
    return make<MulOp>(loc, value(*expr.operand(0)), matrix(*expr.operand(1)));
  return make<DiagOp>(loc, value(expr));
}

/// The value of an expression as a symbol of that shape holds it: a number is repeated, a diag written out.
Value IRGen::convert(const Expr &expr, const Shape &shape) {
  MatType wanted = type(shape);
  if (expr.is(ExprKind::Number))
    return number(expr.value, wanted, location(expr));
  Value from = shape.diag ? value(expr) : matrix(expr);
  return from.getType() == wanted ? from : make<BroadcastOp>(location(expr), wanted, from);
}

Value IRGen::value(const Expr &expr) {
  Location loc = location(expr);
  if (std::optional<double> known = evaluate(expr); known && expr.shape.isScalar())
    return number(*known, loc);
  switch (expr.kind) {
  case ExprKind::Invalid:
    break;
  case ExprKind::Number:
    return number(expr.value, loc);
  case ExprKind::Name:
    return emitName(expr);
  case ExprKind::Negate:
    return make<NegOp>(loc, value(*expr.operand()));
  case ExprKind::Add:
  case ExprKind::Subtract:
  case ExprKind::ElementMultiply:
  case ExprKind::ElementDivide:
    return emitElementwise(expr);
  case ExprKind::Multiply:
    return emitProduct(expr);
  case ExprKind::Divide:
    return make<DivOp>(loc, value(*expr.operand(0)), value(*expr.operand(1)));
  case ExprKind::Power:
    return emitPower(expr);
  case ExprKind::ElementPower:
    return emitElementwise(expr);
  case ExprKind::Transpose:
    return expr.shape.diag ? value(*expr.operand()) : make<TransposeOp>(loc, value(*expr.operand()));
  case ExprKind::Norm:
    if (expr.operand()->shape.isScalar())
      return make<AbsOp>(loc, value(*expr.operand()));
    return make<SqrtOp>(loc, emitSquaredNorm(*expr.operand(), loc));
  case ExprKind::Index:
    return ExtractOp::create(builder, loc, values.lookup(expr.operand(0)->symbol), value(*expr.operand(1)));
  case ExprKind::Stale:
    return stale.lookup(expr.operand(0)->symbol);
  case ExprKind::Call:
    return emitCall(expr);
  }
  llvm_unreachable("all expressions are emitted");
}

Value IRGen::emitName(const Expr &expr) {
  Location loc = location(expr);
  const Symbol &symbol = *expr.symbol;
  if (Value known = values.lookup(&symbol))
    return known;
  switch (symbol.kind) {
  case SymbolKind::Const:
    return value(*symbol.value);
  case SymbolKind::Dimension:
    return SizeOp::create(builder, loc, builder.getStringAttr(symbol.name));
  case SymbolKind::Identity:
    return number(1, type(expr.shape), loc);
  case SymbolKind::Mask:
  case SymbolKind::StrictMask:
    return MaskOp::create(builder, loc, type(expr.shape), symbol.is(SymbolKind::StrictMask));
  default:
    llvm_unreachable("a name is read where it has a value");
  }
}

template <typename OpT>
static Value build(OpBuilder &builder, Location loc, Value lhs, Value rhs) {
  return builder.createOrFold<OpT>(loc, lhs, rhs);
}

Value IRGen::emitElementwise(const Expr &expr) {
  auto part = [&](const Expr &operand) { return expr.shape.diag ? value(operand) : matrix(operand); };
  Value lhs = part(*expr.operand(0)), rhs = part(*expr.operand(1));
  Location loc = location(expr);
  switch (expr.kind) {
  case ExprKind::Add:
    return build<AddOp>(builder, loc, lhs, rhs);
  case ExprKind::Subtract:
    return build<SubOp>(builder, loc, lhs, rhs);
  case ExprKind::ElementMultiply:
    return build<MulOp>(builder, loc, lhs, rhs);
  case ExprKind::ElementPower:
    return evaluate(*expr.operand(1)) == 2.0 ? build<MulOp>(builder, loc, lhs, lhs)
                                             : build<PowOp>(builder, loc, lhs, rhs);
  default:
    return build<DivOp>(builder, loc, lhs, rhs);
  }
}

Value IRGen::emitProduct(const Expr &expr) {
  const Expr &a = *expr.operand(0), &b = *expr.operand(1);
  Location loc = location(expr);
  if (a.shape.isScalar() || b.shape.isScalar() || expr.shape.diag)
    return make<MulOp>(loc, value(a), value(b));
  Value lhs = matrix(a), rhs = matrix(b);
  return make<MatmulOp>(loc, lhs, rhs);
}

/// The sum of the squares of all entries.
Value IRGen::emitSquaredNorm(const Expr &of, Location loc) {
  Value x = value(of); // of a diag the entries are all there is
  Value squares = make<MulOp>(loc, x, x);
  return of.shape.isScalar() ? squares : reduce(Reduction::Sum, squares, true, true, loc);
}

Value IRGen::emitPower(const Expr &expr) {
  const Expr &base = *expr.operand(0), &exponent = *expr.operand(1);
  Location loc = location(expr);
  if (evaluate(exponent) == 2.0) {
    if (base.is(ExprKind::Norm))
      return emitSquaredNorm(*base.operand(), loc);
    Value x = value(base);
    return make<MulOp>(loc, x, x);
  }
  return make<PowOp>(loc, value(base), value(exponent));
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

Value IRGen::emitCall(const Expr &expr) {
  if (expr.primitive)
    return emitPrimitive(expr);
  for (auto [symbol, operand] : llvm::zip(expr.arguments, expr.operands))
    values[symbol] = value(*operand);
  return promise(value(*expr.body), expr.interval, expr.unit, location(expr));
}

Value IRGen::emitPrimitive(const Expr &expr) {
  Location loc = location(expr);
  auto operand = [&](unsigned i) {
    return expr.shape.diag ? value(*expr.operand(i)) : matrix(*expr.operand(i));
  };
  auto option = [&](StringRef name) -> const Expr * {
    const auto *found = llvm::find(expr.labels, name);
    return found == expr.labels.end() ? nullptr : expr.operand(found - expr.labels.begin());
  };
  const Shape &shape = expr.operand()->shape;
  bool ofRows = !shape.cols.isOne(); // a function of a vector runs over each row of a matrix
  switch (expr.primitive->op) {
  case PrimitiveOp::Exp:
    return make<ExpOp>(loc, operand(0));
  case PrimitiveOp::Log:
    return make<LogOp>(loc, operand(0));
  case PrimitiveOp::Sqrt:
    return make<SqrtOp>(loc, operand(0));
  case PrimitiveOp::Abs:
    return make<AbsOp>(loc, operand(0));
  case PrimitiveOp::Sign:
    return make<SignOp>(loc, operand(0));
  case PrimitiveOp::Sigmoid:
    return make<SigmoidOp>(loc, operand(0));
  case PrimitiveOp::Tanh:
    return make<TanhOp>(loc, operand(0));
  case PrimitiveOp::Softplus:
    return make<SoftplusOp>(loc, operand(0));
  case PrimitiveOp::Erf:
    return make<ErfOp>(loc, operand(0));
  case PrimitiveOp::Sin:
    return make<SinOp>(loc, operand(0));
  case PrimitiveOp::Cos:
    return make<CosOp>(loc, operand(0));
  case PrimitiveOp::Max:
    return build<MaxOp>(builder, loc, operand(0), operand(1));
  case PrimitiveOp::Min:
    return build<MinOp>(builder, loc, operand(0), operand(1));
  case PrimitiveOp::Sum:
    return reduce(Reduction::Sum, value(*expr.operand()), true, true, loc);
  case PrimitiveOp::VectorSum:
    return reduce(Reduction::Sum, operand(0), !ofRows, ofRows, loc);
  case PrimitiveOp::VectorMax:
    return reduce(Reduction::Max, operand(0), !ofRows, ofRows, loc);
  case PrimitiveOp::VectorLength:
    return make<SizeOp>(loc, dim(ofRows ? shape.cols : shape.rows));
  case PrimitiveOp::Count: {
    Value rows = make<SizeOp>(loc, dim(shape.rows)), cols = make<SizeOp>(loc, dim(shape.cols));
    return make<MulOp>(loc, rows, cols);
  }
  case PrimitiveOp::Rope: {
    const Expr *base = option("base");
    return RopeOp::create(builder, loc, operand(0), values.lookup(position),
                          builder.getF64FloatAttr(base ? base->value : 10000));
  }
  case PrimitiveOp::Diag:
    return value(*expr.operand());
  case PrimitiveOp::Inverse:
    if (expr.shape.diag)
      return make<DivOp>(loc, number(1, loc), value(*expr.operand()));
    return make<InverseOp>(loc, operand(0));
  case PrimitiveOp::Solve: {
    const Expr *iterations = option("iterations"), *eps = option("eps");
    return SolveOp::create(builder, loc, matrix(*expr.operand(0)), matrix(*expr.operand(1)),
                           iterations ? builder.getI64IntegerAttr(iterations->value) : IntegerAttr(),
                           builder.getF64FloatAttr(eps ? eps->value : 0));
  }
  case PrimitiveOp::Decay:
    return DecayOp::create(builder, loc, decays.lookup(expr.operand()));
  case PrimitiveOp::Gradient:
    return GradientOp::create(builder, loc, value(*expr.operand(0)), value(*expr.operand(1)));
  }
  llvm_unreachable("all primitives are emitted");
}

} // namespace recur::frontend
