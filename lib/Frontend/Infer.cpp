#include "lib/Frontend/SemaImpl.h"
#include "llvm/ADT/STLExtras.h"

using namespace llvm;

namespace recur::frontend {

//===----------------------------------------------------------------------===//
// Symbols and statements
//===----------------------------------------------------------------------===//

DimVar Sema::declaredDim(const DimSyntax &syntax) {
  return syntax.name.empty() ? solver.integer(syntax.value) : solver.named(syntax.name);
}

ShapeVar Sema::declaredShape(const ShapeSyntax &syntax) {
  switch (syntax.form) {
  case ShapeSyntax::Scalar:
    return solver.scalar();
  case ShapeSyntax::Vector:
    return {declaredDim(syntax.dims[0]), solver.one()};
  case ShapeSyntax::Matrix:
    return {declaredDim(syntax.dims[0]), declaredDim(syntax.dims[1])};
  case ShapeSyntax::Diag: {
    DimVar n = declaredDim(syntax.dims[0]);
    return {n, n};
  }
  }
  llvm_unreachable("all forms of shapes are known");
}

ShapeVar Sema::shapeOf(const Symbol &symbol) {
  if (auto known = symbolShapes.find(&symbol); known != symbolShapes.end())
    return known->second;
  ShapeVar shape = solver.scalar();
  const Stmt *declaration = declarations.lookup(&symbol);
  solver.because(symbol.range, &symbol);
  switch (symbol.kind) {
  case SymbolKind::Input:
  case SymbolKind::Param:
  case SymbolKind::State:
  case SymbolKind::Local:
    if (declaration) {
      if (!declaration->shape)
        return symbolShapes[&symbol] = solver.errorShape();
      shape = declaredShape(*declaration->shape);
      break;
    }
    shape = solver.freshShape();
    if (!symbol.is(SymbolKind::Local) && StringRef("qkv").contains(symbol.name[0])) {
      solver.suggestName(shape.rows, symbol.name[0] == 'v' ? "dv" : "dk");
      if (symbol.is(SymbolKind::Input))
        solver.add(Default{Convention::NamedVector, shape});
    }
    break;
  case SymbolKind::Const:
    if (!constantsUnderWay.insert(&symbol).second) {
      diags.error(symbol.range, "the constant '" + symbol.name + "' is defined by itself");
      return symbolShapes[&symbol] = solver.errorShape();
    }
    shape = infer(*symbol.value);
    constantsUnderWay.erase(&symbol);
    break;
  case SymbolKind::Rows: {
    ShapeVar token = shapeOf(*symbol.of);
    if (!solver.unify(token.cols, solver.one()))
      diags.error(symbol.range, "'" + symbol.name + "' needs a vector or scalar for each token, but '" +
                                    symbol.of->name + "' is " + solver.describe(token));
    shape = {solver.named(tokenDim), token.rows};
    break;
  }
  case SymbolKind::Mask:
  case SymbolKind::StrictMask:
    shape = {solver.named(tokenDim), solver.named(tokenDim)};
    break;
  default:
    break;
  }
  return symbolShapes[&symbol] = shape;
}

void Sema::inferShapes() {
  for (const Symbol &symbol : program->symbols) {
    if (symbol.declared && symbol.is(SymbolKind::Const))
      shapeOf(symbol);
    if (!declarations.count(&symbol) || symbol.is(SymbolKind::Const))
      continue;
    ShapeVar shape = shapeOf(symbol);
    if (!symbol.value)
      continue;
    // An initial value fills the state: a scalar is repeated.
    solver.add(Constraint{Relation::Broadcast, infer(*symbol.value), shape, shape, symbol.value});
  }
  for (const Stmt *item : spec.items)
    inferStatement(*item);
  auto report = [&](const Constraint &c, DimVar a, DimVar b) { conflict(c, a, b); };
  solver.solve(report);
  for (const auto &[expr, rule] : scalars)
    require(*expr, solver.scalar(), rule);
  solver.solve(report);
  settleAmbiguous();
}

void Sema::inferStatement(const Stmt &stmt) {
  if (stmt.is(StmtKind::For) || stmt.is(StmtKind::Block))
    for (const Stmt *inner : stmt.body)
      inferStatement(*inner);
  if (!stmt.is(StmtKind::Assign) ||
      !stmt.symbol) // without a symbol it stands where none may, and was reported
    return;
  ShapeVar value = infer(*stmt.value);
  ShapeVar target = shapeOf(*stmt.symbol);
  assignedTo[stmt.value] = stmt.symbol;
  // A number fills whatever the name turns out to be: `x = 0` before a sum.
  if (stmt.value->is(ExprKind::Number)) {
    solver.add(Default{Convention::FilledScalar, target});
    return;
  }
  solver.because(stmt.range, stmt.symbol);
  solver.propagate([&](const Constraint &c, DimVar a, DimVar b) { conflict(c, a, b); });
  bool rows = solver.unify(target.rows, value.rows);
  if (rows && solver.unify(target.cols, value.cols))
    return;
  Diagnostic &error =
      diags.error(stmt.value->range, "'" + stmt.symbol->name + "' is " + solver.describe(target) +
                                         ", but it is assigned " + solver.describe(value));
  if (!(stmt.symbol->range == stmt.name().range))
    error.note(stmt.symbol->range, "'" + stmt.symbol->name + "' was " +
                                       (stmt.symbol->declared ? "declared" : "first assigned") + " here");
  noteOrigins(error, {rows ? target.cols : target.rows, rows ? value.cols : value.rows});
}

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

ShapeVar Sema::infer(Expr &expr) {
  ShapeVar shape = inferKind(expr);
  exprShapes[&expr] = shape;
  inferred.push_back(&expr);
  return shape;
}

/// Demands that an expression has a shape; `rule` says why.
void Sema::require(const Expr &expr, ShapeVar wanted, const Twine &rule) {
  ShapeVar shape = exprShapes[&expr];
  solver.because(expr.range);
  if (solver.unify(shape.rows, wanted.rows) && solver.unify(shape.cols, wanted.cols))
    return;
  Diagnostic &error =
      diags.error(expr.range, rule + ", but " + shown(expr) + " is " + solver.describe(shape));
  noteDeclared(error, expr);
}

/// Demands a scalar, but lets whatever else is said of the expression speak first: the error is then better.
void Sema::requireScalar(const Expr &expr, const Twine &rule) {
  solver.add(Default{Convention::ScalarOperand, exprShapes[&expr]});
  scalars.emplace_back(&expr, rule.str());
}

ShapeVar Sema::inferKind(Expr &expr) {
  switch (expr.kind) {
  case ExprKind::Invalid:
    return solver.errorShape();
  case ExprKind::Number:
    return solver.scalar();
  case ExprKind::Name: {
    if (!expr.symbol)
      return solver.errorShape();
    if (!expr.symbol->is(SymbolKind::Identity))
      return shapeOf(*expr.symbol);
    solver.because(expr.range);
    DimVar n = solver.freshSized(); // the size that fits
    return {n, n};
  }
  case ExprKind::Negate:
    return infer(*expr.operand());
  case ExprKind::Add:
  case ExprKind::Subtract:
  case ExprKind::ElementMultiply:
  case ExprKind::ElementDivide:
  case ExprKind::ElementPower: {
    ShapeVar left = infer(*expr.operand(0)), right = infer(*expr.operand(1)), result = solver.freshShape();
    unsigned constraint = solver.add(Constraint{Relation::Broadcast, left, right, result, &expr});
    solver.add(Default{Convention::OperandsAgree, result, constraint});
    return result;
  }
  case ExprKind::Multiply: {
    ShapeVar left = infer(*expr.operand(0)), right = infer(*expr.operand(1)), result = solver.freshShape();
    conventionsOf(expr, left, solver.add(Constraint{Relation::Product, left, right, result, &expr}));
    return result;
  }
  case ExprKind::Divide: {
    ShapeVar left = infer(*expr.operand(0));
    infer(*expr.operand(1));
    requireScalar(*expr.operand(1), "'/' divides by a scalar ('./' entry by entry)");
    return left;
  }
  case ExprKind::Power:
    for (Expr *operand : expr.operands) {
      infer(*operand);
      requireScalar(*operand, "'^' is the power of a scalar ('.^' entry by entry, '.T' transposes)");
    }
    return solver.scalar();
  case ExprKind::Transpose: {
    ShapeVar operand = infer(*expr.operand());
    const Symbol *symbol = expr.operand()->symbol;
    if (symbol && symbol->is(SymbolKind::Input))
      solver.add(Default{Convention::TransposedIsVector, operand});
    if (!solver.isScalar(operand))
      return operand.transposed();
    needVector(expr);
    return solver.errorShape();
  }
  case ExprKind::Norm:
    infer(*expr.operand());
    return solver.scalar();
  case ExprKind::Index: {
    infer(*expr.operand(1));
    requireScalar(*expr.operand(1), "an index is a scalar");
    return infer(*expr.operand(0));
  }
  case ExprKind::Stale:
    return infer(*expr.operand(0));
  case ExprKind::Call:
    break;
  }
  if (expr.primitive)
    return inferPrimitive(expr);
  for (auto [operand, symbol] : zip(expr.operands, expr.arguments))
    symbolShapes[symbol] = infer(*operand);
  if (expr.body)
    return infer(*expr.body);
  for (Expr *operand : expr.operands)
    infer(*operand);
  return solver.errorShape(); // a call that was reported
}

/// Does a name of that kind occur?
static bool mentions(const Expr &expr, ArrayRef<SymbolKind> kinds) {
  if (expr.is(ExprKind::Name))
    return expr.symbol && is_contained(kinds, expr.symbol->kind);
  return any_of(expr.operands, [&](const Expr *operand) { return mentions(*operand, kinds); });
}

/// What the factors of a product are taken for where nothing else decides.
void Sema::conventionsOf(const Expr &product, ShapeVar left, unsigned constraint) {
  const Expr &a = *product.operand(0), &b = *product.operand(1);
  if (mentions(a, SymbolKind::State)) {
    solver.add(Default{Convention::StateIsMatrix, left, constraint});
    return;
  }
  // The factor before this one: `y` in `x*y*b`.
  const Expr &last = a.is(ExprKind::Multiply) ? *a.operand(1) : a;
  ShapeVar shape = exprShapes[&last];
  if (b.is(ExprKind::Transpose))
    solver.add(Default{Convention::TransposedIsVector, shape});
  else if (!mentions(last, {SymbolKind::Local, SymbolKind::State}))
    solver.add(Default{Convention::LeadingIsScalar, shape});
}

ShapeVar Sema::inferPrimitive(Expr &expr) {
  const Primitive &primitive = *expr.primitive;
  SmallVector<ShapeVar, 2> shapes;
  for (auto [i, operand] : enumerate(expr.operands)) {
    shapes.push_back(infer(*operand));
    if (i >= primitive.operands)
      requireScalar(*operand, "'" + expr.labels[i] + "' is a number");
  }
  std::string name = ("'" + expr.text + "'").str();
  ShapeVar x = shapes[0];
  switch (primitive.shape) {
  case PrimitiveShape::Elementwise: {
    if (primitive.operands == 1)
      return x;
    ShapeVar result = solver.freshShape();
    unsigned constraint = solver.add(Constraint{Relation::Broadcast, x, shapes[1], result, &expr});
    solver.add(Default{Convention::OperandsAgree, result, constraint});
    return result;
  }
  case PrimitiveShape::Reduce: {
    ShapeVar result = solver.freshShape();
    solver.add(Constraint{Relation::Reduce, x, x, result, &expr});
    solver.add(Default{Convention::FunctionOfVector, x});
    return result;
  }
  case PrimitiveShape::SumAll:
  case PrimitiveShape::Count:
    return solver.scalar();
  case PrimitiveShape::Vector:
    require(*expr.operand(), {x.rows, solver.one()}, name + " needs a vector");
    solver.add(Default{Convention::FunctionOfVector, x});
    return x;
  case PrimitiveShape::MakeDiag:
    require(*expr.operand(), {x.rows, solver.one()}, name + " needs a vector");
    solver.add(Default{Convention::FunctionOfVector, x});
    return {x.rows, x.rows};
  case PrimitiveShape::Square:
    require(*expr.operand(), {x.rows, x.rows}, name + " needs a square matrix");
    return x;
  case PrimitiveShape::Solve:
    require(*expr.operand(0), {x.rows, x.rows}, name + " needs a square matrix");
    require(*expr.operand(1), {x.rows, shapes[1].cols},
            name + " needs a right side with the rows of the matrix");
    if (!expr.labels.empty() && is_contained(expr.labels, "iterations"))
      require(*expr.operand(1), {x.rows, solver.one()},
              name + " by iterations needs a vector on the right side");
    solver.add(Default{Convention::FunctionOfVector, shapes[1]});
    return shapes[1];
  case PrimitiveShape::Decay:
    requireScalar(*expr.operand(), name + " needs a scalar for each token");
    return {solver.named(tokenDim), solver.named(tokenDim)};
  case PrimitiveShape::Gradient:
    requireScalar(*expr.operand(0), name + " differentiates a scalar");
    return shapes[1];
  }
  llvm_unreachable("all primitives have a shape");
}

//===----------------------------------------------------------------------===//
// Errors
//===----------------------------------------------------------------------===//

/// Notes where the names in an expression were declared.
void Sema::noteDeclared(Diagnostic &error, const Expr &expr) {
  if (expr.is(ExprKind::Name) && !expr.symbol)
    return;
  if (expr.is(ExprKind::Name) && expr.symbol->declared && error.notes.size() < 4)
    error.note(expr.symbol->range, "'" + expr.symbol->name + "' was declared here");
  if (expr.is(ExprKind::Name) && expr.symbol->is(SymbolKind::Argument))
    noteDeclared(error, *expr.symbol->value);
  if (expr.operands.size() <= 1 || expr.is(ExprKind::Index))
    for (const Expr *operand : expr.operands.take_front(1))
      noteDeclared(error, *operand);
}

void Sema::noteOrigins(Diagnostic &error, ArrayRef<DimVar> dims) {
  SmallVector<uint32_t, 4> seen;
  for (DimVar dim : dims) {
    ShapeSolver::Origin origin = solver.originOf(dim);
    bool noted = any_of(error.notes, [&](const Diagnostic &note) { return note.range == origin.range; });
    if (!origin.symbol || !solver.isSized(dim) || noted || !origin.symbol->declared)
      continue;
    error.note(origin.range, "dimension '" + solver.describe(dim) + "' comes from here");
  }
}

void Sema::conflict(const Constraint &c, DimVar a, DimVar b) {
  const Expr &expr = *c.at;
  std::string left = solver.describe(c.a), right = solver.describe(c.b);
  if (c.relation == Relation::Reduce) {
    noteDeclared(
        diags.error(expr.range,
                    shown(expr) + " needs a vector or a matrix of rows, but its argument is " + left),
        *expr.operand());
    return;
  }
  if (assignedTo.count(&expr) == 0 && expr.operands.size() < 2) {
    diags.error(expr.range, "the initial value of the state is " + left + ", but the state is " + right);
    return;
  }
  StringRef op = expr.is(ExprKind::Call) ? expr.text : operatorSpelling(expr.kind);
  const Expr *x = expr.operands.size() == 2 ? expr.operand(0) : &expr;
  const Expr *y = expr.operands.size() == 2 ? expr.operand(1) : &expr;
  std::string operands = shown(*x) + " is " + left + " and " + shown(*y) + " is " + right;
  // Inside an inlined function all places are that of the call.
  if (x->range == expr.range)
    operands = "the left one is " + left + " and the right one " + right;
  std::string rule = c.relation == Relation::Product
                         ? "needs as many columns on the left as rows on the right"
                         : "needs operands of one shape";
  Diagnostic &error = diags.error(expr.anchor, "'" + op + "' " + rule + ", but " + operands);
  error.highlight(x->range).highlight(y->range);
  if (c.relation == Relation::Product && left == right)
    error.note("a product of operands of one shape is written '.*', entry by entry");
  noteDeclared(error, *x);
  noteDeclared(error, *y);
  noteOrigins(error, {a, b});
}

//===----------------------------------------------------------------------===//
// What stays open
//===----------------------------------------------------------------------===//

/// Tries what a name could be. One reading that fits is taken; two are an error that shows them.
bool Sema::settle(const Symbol &symbol) {
  ShapeVar shape = symbolShapes[&symbol];
  struct Reading {
    ShapeSolver solver;
    std::string text;
  };
  std::vector<Reading> readings;
  for (unsigned kind = 0; kind < 3 && readings.size() < 2; ++kind) {
    Reading reading{solver, {}};
    bool fits =
        kind > 0 ? reading.solver.makeSized(shape.rows) : reading.solver.unify(shape.rows, solver.one());
    fits = fits &&
           (kind > 1 ? reading.solver.makeSized(shape.cols) : reading.solver.unify(shape.cols, solver.one()));
    reading.solver.solve([&](const Constraint &, DimVar, DimVar) { fits = false; });
    if (!fits)
      continue;
    ShapeVar settled = shape;
    bool square = kind == 2 && reading.solver.same(settled.rows, settled.cols);
    auto dim = [&](DimVar d) { return Shape{reading.solver.finish(d, context), {}, false}.rows.str(); };
    reading.text = kind == 0   ? "scalar"
                   : kind == 1 ? "vector(" + dim(shape.rows) + ")"
                   : square    ? "diag(" + dim(shape.rows) + ")"
                               : "matrix(" + dim(shape.rows) + ", " + dim(shape.cols) + ")";
    readings.push_back(std::move(reading));
  }
  if (readings.size() == 1) {
    solver = std::move(readings.front().solver);
    return true;
  }
  StringRef keyword = symbol.is(SymbolKind::State) ? "state " : "input ";
  Diagnostic &error = diags.error(
      symbol.range, readings.empty() ? "no shape of '" + symbol.name + "' fits all that is done with it"
                                     : "the shape of '" + symbol.name + "' is ambiguous: declare it");
  if (readings.empty())
    error.note("the product of two vectors is x.T*y, a number, or x*yT, a matrix");
  for (const Reading &reading : readings)
    error.note(Twine(&reading == &readings.front() ? "one reading: '" : "another: '") + keyword +
               symbol.name + " : " + reading.text + "'");
  return false;
}

void Sema::settleAmbiguous() {
  if (diags.hasErrors())
    return;
  // Inputs decide what is computed from them, so they are asked for first.
  for (SymbolKind kind : {SymbolKind::Input, SymbolKind::State, SymbolKind::Local})
    for (const Symbol &symbol : program->symbols)
      if (symbol.is(kind) && !solver.isKnown(shapeOf(symbol)) && !settle(symbol))
        return;
}

} // namespace recur::frontend
