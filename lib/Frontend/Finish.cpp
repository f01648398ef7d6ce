#include "lib/Frontend/SemaImpl.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace recur::frontend {

Shape Sema::finish(ShapeVar shape) {
  return {solver.finish(shape.rows, context), solver.finish(shape.cols, context), false};
}

void Sema::finishShapes() {
  // Inputs name their dimensions first, then whatever is left takes d1, d2, ...
  for (SymbolKind kind : {SymbolKind::Input, SymbolKind::Param, SymbolKind::State, SymbolKind::Local})
    for (Symbol &symbol : program->symbols)
      if (symbol.is(kind))
        symbol.shape = finish(shapeOf(symbol));
  checkIdentities();
  for (Symbol &symbol : program->symbols)
    if (auto shape = symbolShapes.find(&symbol); shape != symbolShapes.end())
      symbol.shape = finish(shape->second);
  for (Expr *expr : inferred) {
    expr->shape = finish(exprShapes[expr]);
    bool isRope = expr->is(ExprKind::Call) && expr->primitive && expr->primitive->op == PrimitiveOp::Rope;
    if ((isRope || expr->is(ExprKind::Transpose)) && expr->shape.isScalar())
      needVector(*expr);
  }
  markDiagonals();
  checkDiagonals();
  checkDimensions();
  checkLevels();
}

/// A scalar that is transposed or rotated is a sign that a declaration or a name is wrong.
void Sema::needVector(const Expr &expr) {
  const Expr &operand = *expr.operand();
  if (!operand.is(ExprKind::Name) || operand.symbol->is(SymbolKind::Argument)) {
    diags.error(expr.range, shown(expr) + " needs a vector" +
                                (expr.is(ExprKind::Transpose) ? " or a matrix" : "") + ", but " +
                                shown(operand) + " is a scalar");
    return;
  }
  const Symbol &symbol = *operand.symbol;
  if (!scalarsTransposed.insert(&symbol).second)
    return;
  Diagnostic &error =
      diags.error(expr.range, shown(expr) + " needs a vector, but '" + symbol.name + "' is a scalar");
  if (symbol.declared)
    error.note(symbol.range, "'" + symbol.name + "' was declared here");
}

//===----------------------------------------------------------------------===//
// Diagonal matrices
//===----------------------------------------------------------------------===//

static bool isElementwise(const Expr &expr) {
  return expr.is(ExprKind::Add) || expr.is(ExprKind::Subtract) || expr.is(ExprKind::ElementMultiply) ||
         expr.is(ExprKind::ElementDivide) || expr.is(ExprKind::ElementPower) ||
         (expr.primitive && expr.primitive->shape == PrimitiveShape::Elementwise);
}

/// Is the value stored as the entries of its diagonal? Operands are known already.
bool Sema::isDiag(const Expr &expr) {
  auto diagOrScalar = [](const Expr *operand) { return operand->shape.diag || operand->shape.isScalar(); };
  auto isDiagonal = [](const Expr *operand) { return operand->shape.diag; };
  if (expr.is(ExprKind::Name)) {
    bool named = expr.symbol->is(SymbolKind::Argument) || expr.symbol->is(SymbolKind::Const);
    if (named && expr.symbol->value)
      return expr.symbol->value->shape.diag;
    return expr.symbol->is(SymbolKind::Identity) || expr.symbol->shape.diag;
  }
  if (expr.body)
    return expr.body->shape.diag;
  if (isElementwise(expr) || expr.is(ExprKind::Multiply))
    return any_of(expr.operands, isDiagonal) && all_of(expr.operands, diagOrScalar);
  switch (expr.kind) {
  case ExprKind::Negate:
  case ExprKind::Transpose:
  case ExprKind::Index:
  case ExprKind::Stale:
  case ExprKind::Divide:
    return expr.operand(0)->shape.diag;
  case ExprKind::Call:
    return expr.primitive->op == PrimitiveOp::Diag ||
           (expr.primitive->op == PrimitiveOp::Inverse && expr.operand()->shape.diag) ||
           (expr.primitive->op == PrimitiveOp::Gradient && expr.operand(1)->shape.diag);
  default:
    return false;
  }
}

void Sema::markDiagonals() {
  for (auto [symbol, stmt] : declarations)
    if (stmt->shape)
      const_cast<Symbol *>(symbol)->shape.diag = stmt->shape->form == ShapeSyntax::Diag;
  // A local is a diag if all it is assigned is. Assume so, and take it back until nothing changes.
  for (auto [value, symbol] : assignedTo)
    if (symbol->is(SymbolKind::Local) && symbol->shape.rows == symbol->shape.cols &&
        !symbol->shape.isScalar())
      symbol->shape.diag = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (Expr *expr : inferred) {
      expr->shape.diag = isDiag(*expr);
      Symbol *symbol = assignedTo.lookup(expr);
      if (symbol && symbol->is(SymbolKind::Local) && symbol->shape.diag && !expr->shape.diag) {
        symbol->shape.diag = false;
        changed = true;
      }
    }
  }
  for (Symbol &symbol : program->symbols)
    if (symbol.is(SymbolKind::Const) && symbol.value)
      symbol.shape.diag = symbol.value->shape.diag;
}

void Sema::checkDiagonals() {
  for (const Expr *expr : inferred) {
    if (const Symbol *symbol = assignedTo.lookup(expr))
      if (symbol->shape.diag && !expr->shape.diag && !expr->is(ExprKind::Number))
        diags
            .error(expr->range, "'" + symbol->name + "' is a " + symbol->shape.str() +
                                    ", but it is assigned a " + expr->shape.str())
            .note(symbol->range, "'" + symbol->name + "' was declared here");
    if (!isElementwise(*expr) || expr->operands.size() != 2)
      continue;
    for (unsigned i : {0u, 1u}) {
      const Expr &diag = *expr->operand(i), &other = *expr->operand(1 - i);
      if (!diag.shape.diag || other.shape.diag || (other.shape.rows.isOne() == other.shape.cols.isOne()))
        continue;
      StringRef op = expr->is(ExprKind::Call) ? expr->text : operatorSpelling(expr->kind);
      Diagnostic &error = diags.error(expr->anchor, "'" + op + "' works entry by entry, but " + shown(diag) +
                                                        " is a " + diag.shape.str() + " and " + shown(other) +
                                                        " a " + other.shape.str());
      error.highlight(diag.range).highlight(other.range);
      if (expr->is(ExprKind::ElementMultiply))
        error.fix(expr->anchor, "*").note("'*' scales the vector by the diagonal");
    }
  }
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

/// An identity must be tied to some named value, or its size is anyone's guess.
void Sema::checkIdentities() {
  for (const Expr *expr : inferred) {
    if (!expr->is(ExprKind::Name) || !expr->symbol->is(SymbolKind::Identity))
      continue;
    DimVar n = exprShapes[expr].rows;
    bool tied = any_of(program->symbols, [&](const Symbol &symbol) {
      auto shape = symbolShapes.find(&symbol);
      if (shape == symbolShapes.end() || symbol.is(SymbolKind::Argument) || symbol.is(SymbolKind::Const))
        return false;
      bool counts = !symbol.is(SymbolKind::Local);
      return counts && (solver.same(shape->second.rows, n) || solver.same(shape->second.cols, n));
    });
    if (!tied)
      diags.error(expr->range, "nothing says how large this 'I' is");
  }
}

void Sema::checkDimensions() {
  SetVector<StringRef> found;
  auto add = [&](const Dim &dim) {
    if (dim.isSymbol() && dim.symbol != tokenDim)
      found.insert(dim.symbol);
  };
  bool overTokens = isWhole || any_of(program->body, [](const Stmt *s) { return s->is(StmtKind::Block); });
  if (auto taken = dims.find(tokenDim); taken != dims.end() && overTokens)
    diags.error(taken->second, "'T' is the number of tokens in this rule: call the dimension something else");
  for (SymbolKind kind : {SymbolKind::Input, SymbolKind::Param, SymbolKind::State})
    for (const Symbol &symbol : program->symbols)
      if (symbol.is(kind)) {
        add(symbol.shape.rows);
        add(symbol.shape.cols);
        if (symbol.steps)
          add(*symbol.steps);
      }
  for (const Symbol &symbol : program->symbols) {
    if (!symbol.is(SymbolKind::Dimension))
      continue;
    if (!symbol.declared && !found.contains(symbol.name))
      diags.error(symbol.range, "this rule has no dimension '" + symbol.name + "'")
          .note("declare '" + symbol.name + "' if it is an input");
    found.insert(symbol.name);
  }
  for (const Stmt *item : spec.items)
    if (item->is(StmtKind::Dimension))
      for (const Ident &ident : item->names)
        found.insert(ident.name);
  program->dims.assign(found.begin(), found.end());
}

Shape Program::perToken(const Symbol &output) {
  const Shape &shape = output.shape;
  bool isRow = shape.rows.isOne() || (output.level != Level::Token && shape.rows.symbol == tokenDim);
  return isRow ? Shape{shape.cols, Dim(), false} : shape;
}

/// Which values may leave the statements over many tokens.
void Sema::checkLevels() {
  auto overTokens = [](const Dim &dim) { return dim.symbol == tokenDim; };
  for (const Symbol &symbol : program->symbols) {
    bool rows = overTokens(symbol.shape.rows), cols = overTokens(symbol.shape.cols);
    if (symbol.is(SymbolKind::State) && (rows || cols))
      diags.error(symbol.range, "state '" + symbol.name + "' has one " + (rows ? "row" : "column") +
                                    " per token, but the size of a state is fixed");
    if (symbol.output && symbol.level != Level::Token && (cols || !rows))
      diags.error(symbol.range, "output '" + symbol.name + "' needs one row for each token, but it is a " +
                                    symbol.shape.str());
  }
  auto visit = [&](auto &self, const Expr &expr) -> void {
    if (expr.is(ExprKind::Name) && expr.symbol->level == Level::Block && expr.symbol->is(SymbolKind::Local) &&
        overTokens(expr.symbol->shape.rows))
      diags.error(expr.range, "'" + expr.symbol->name +
                                  "' has one row per token of the block; for one token it cannot be read");
    for (const Expr *operand : expr.operands)
      self(self, *operand);
  };
  auto visitBody = [&](auto &self, const Stmt &stmt) -> void {
    if (stmt.is(StmtKind::Assign))
      visit(visit, *stmt.value);
    for (const Stmt *inner : stmt.body)
      self(self, *inner);
  };
  for (const Stmt *stmt : program->body)
    if (!stmt->is(StmtKind::Block))
      visitBody(visitBody, *stmt);
}

void Sema::warnUnused() {
  for (const Symbol &symbol : program->symbols) {
    if (readSymbols.contains(&symbol))
      continue;
    if (symbol.declared && (symbol.is(SymbolKind::Input) || symbol.is(SymbolKind::Param)))
      diags.warning(WarningClass::Unused, symbol.range,
                    Twine(symbol.is(SymbolKind::Input) ? "input" : "param") + " '" + symbol.name +
                        "' is never read");
    if (symbol.is(SymbolKind::Local) && !symbol.output)
      diags.warning(WarningClass::Unused, symbol.range, "'" + symbol.name + "' is assigned but never read")
          .note("outputs besides the last name assigned are declared: 'output " + symbol.name + ", ..'");
  }
  for (const Symbol &symbol : program->symbols)
    if (symbol.declared && symbol.is(SymbolKind::State) && !assignedSoFar.contains(&symbol))
      diags.warning(WarningClass::Unused, symbol.range,
                    "state '" + symbol.name + "' is never assigned: it stays what it begins with");
}

// Whether an expression is zero wherever a state is, for all that can be seen.
static bool vanishesWith(const Expr &expr, const Symbol &state) {
  auto vanishes = [&](const Expr *operand) { return vanishesWith(*operand, state); };
  switch (expr.kind) {
  case ExprKind::Number:
    return expr.value == 0;
  case ExprKind::Name:
    return expr.symbol == &state ||
           (expr.symbol && expr.symbol->is(SymbolKind::Argument) && vanishesWith(*expr.symbol->value, state));
  case ExprKind::Negate:
  case ExprKind::Transpose:
  case ExprKind::Norm:
  case ExprKind::Add:
  case ExprKind::Subtract:
    return all_of(expr.operands, vanishes);
  case ExprKind::Multiply:
  case ExprKind::ElementMultiply:
    return any_of(expr.operands, vanishes);
  case ExprKind::Divide:
  case ExprKind::ElementDivide:
    return vanishes(expr.operand(0));
  case ExprKind::Call:
    if (expr.body)
      return vanishesWith(*expr.body, state);
    return expr.primitive &&
           is_contained({PrimitiveOp::Sqrt, PrimitiveOp::Abs, PrimitiveOp::Sign, PrimitiveOp::Tanh,
                         PrimitiveOp::Erf, PrimitiveOp::Sin, PrimitiveOp::Max, PrimitiveOp::Min,
                         PrimitiveOp::Sum, PrimitiveOp::VectorSum, PrimitiveOp::VectorMax, PrimitiveOp::Rope},
                        expr.primitive->op) &&
           all_of(expr.operands, vanishes);
  default:
    return false;
  }
}

// `k = l2norm(k)` makes a state of a `k` that nobody declared, which is zero for ever: an input was meant.
void Sema::warnAlwaysZero() {
  DenseMap<const Symbol *, bool> always;
  auto visit = [&](auto &self, ArrayRef<Stmt *> items) -> void {
    for (const Stmt *item : items) {
      if (item->is(StmtKind::Assign) && item->symbol->is(SymbolKind::State) && !item->symbol->declared)
        always.try_emplace(item->symbol, true).first->second &= vanishesWith(*item->value, *item->symbol);
      self(self, item->body);
    }
  };
  visit(visit, spec.items);
  for (const Symbol &symbol : program->symbols)
    if (always.lookup(&symbol))
      diags
          .warning(WarningClass::Unused, symbol.range,
                   "'" + symbol.name +
                       "' is read before it is assigned, which makes it a state, and this one stays zero")
          .note("an input is declared: 'input " + symbol.name + " : " + symbol.shape.str() + "'");
}

// `S*(1 - b*k*kT)`: 1 minus every entry of a matrix is no identity.
void Sema::warnOfOnes() {
  auto isMatrix = [](const Shape &shape) {
    return !shape.diag && !shape.rows.isOne() && !shape.cols.isOne();
  };
  for (const Expr *product : inferred) {
    if (!product->is(ExprKind::Multiply) || product->operand(0)->shape.isScalar() ||
        product->operand(1)->shape.isScalar())
      continue;
    for (const Expr *factor : product->operands) {
      bool isSum = factor->is(ExprKind::Add) || factor->is(ExprKind::Subtract);
      const Expr *one = isSum ? factor->operand(0) : nullptr;
      if (one && one->is(ExprKind::Number) && one->value == 1 && isMatrix(factor->shape))
        diags
            .warning(WarningClass::Numerics, factor->anchor,
                     "'" + operatorSpelling(factor->kind) + "' works entry by entry, so the 1 is a " +
                         factor->shape.str() + " of ones")
            .fix(one->range, "I")
            .note("the identity is 'I'");
    }
  }
}

void Sema::listSymbols() {
  SmallVector<std::pair<uint32_t, const Symbol *>> order;
  for (const Symbol &symbol : program->symbols)
    order.emplace_back(symbol.range.begin, &symbol);
  sort(order, [](const auto &a, const auto &b) { return a.first < b.first; });
  for (auto [begin, symbol] : order) {
    if (symbol->is(SymbolKind::Input))
      program->inputs.push_back(symbol);
    else if (symbol->is(SymbolKind::Param))
      program->params.push_back(symbol);
    else if (symbol->is(SymbolKind::State))
      program->states.push_back(symbol);
    else if (symbol->is(SymbolKind::Const))
      program->consts.push_back(symbol);
    else if (symbol->is(SymbolKind::Local))
      program->locals.push_back(symbol);
    program->usesPosition |= symbol->is(SymbolKind::Position) && readSymbols.contains(symbol);
  }
  for (const Ident &ident : outputNames)
    program->outputs.push_back(own[ident.name]);
  if (outputNames.empty())
    for (const Symbol *symbol : program->locals)
      if (symbol->output)
        program->outputs.push_back(symbol);
}

void printSymbols(const Program &program, raw_ostream &os) {
  os << "rule " << program.name << '\n';
  auto list = [&](StringRef kind, ArrayRef<const Symbol *> symbols) {
    for (const Symbol *symbol : symbols) {
      os << kind << ' ' << symbol->name << " : "
         << (kind == "output" ? Program::perToken(*symbol) : symbol->shape).str();
      if (symbol->steps)
        os << '[' << symbol->steps->str() << ']';
      if (!symbol->interval.isEverything())
        os << " in " << symbol->interval.str();
      os << (symbol->unit ? " unit" : "") << '\n';
    }
  };
  list("input", program.inputs);
  list("param", program.params);
  list("state", program.states);
  list("const", program.consts);
  list("local", program.locals);
  list("output", program.outputs);
  os << "dims";
  for (StringRef dim : program.dims)
    os << ' ' << dim;
  os << '\n';
}

} // namespace recur::frontend
