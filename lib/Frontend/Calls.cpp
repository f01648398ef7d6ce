#include "lib/Frontend/SemaImpl.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include <cmath>

using namespace llvm;

namespace recur::frontend {

// Functions are inlined into the tree; these bound what a chain of calls can grow to.
static constexpr unsigned maxCallDepth = 64;
static constexpr unsigned maxCloned = 100000;

void Sema::resolveCall(Expr &expr, const Scope &scope) {
  // The spec's own functions come first. A function sees those defined above it.
  unsigned visible = std::min<size_t>(scope.functions, functions.size());
  for (unsigned i = visible; i-- > 0;)
    if (functions[i]->name().name == expr.text)
      return inlineFunction(expr, *functions[i], i, scope);
  if (const Primitive *primitive = findPrimitive(expr.text))
    return resolvePrimitive(expr, *primitive, scope);
  if (const Stmt *function = findPreludeFunction(expr.text))
    return inlineFunction(expr, *function, 0, scope);
  for (Expr *operand : expr.operands)
    resolve(*operand, scope);
  unknownFunction(expr);
}

void Sema::unknownFunction(const Expr &expr) {
  if (own.count(expr.text)) {
    SourceRange gap = {expr.anchor.end, expr.anchor.end};
    diags.error(expr.anchor, "'" + expr.text + "' is no function").fix(gap, "*").note("a product needs '*'");
    return;
  }
  for (const Stmt *function : functions)
    if (function->name().name == expr.text) {
      diags.error(expr.anchor, "function '" + expr.text + "' is not known here")
          .note(function->name().range, "functions may use those above them, and not themselves");
      return;
    }
  StringRef best;
  unsigned distance = std::max<size_t>(1, expr.text.size() / 3) + 1;
  auto consider = [&](StringRef name) {
    unsigned d = name.edit_distance(expr.text, /*AllowReplacements=*/true, distance);
    if (d < distance) {
      best = name;
      distance = d;
    }
  };
  for (const Stmt *function : functions)
    consider(function->name().name);
  for (const Primitive &primitive : allPrimitives())
    consider(primitive.name);
  for (const Stmt *function : prelude().items)
    consider(function->name().name);
  Diagnostic &error = diags.error(expr.anchor, "unknown function '" + expr.text + "'");
  // What other languages call it.
  StringRef here = StringSwitch<StringRef>(expr.text)
                       .Cases({"norm", "l2"}, "|x|, and |x|^2 its square")
                       .Cases({"normalize", "normalise", "unit"}, "l2norm(x)")
                       .Cases({"matmul", "mm", "bmm", "einsum"}, "x*y")
                       .Cases({"outer", "ger"}, "x*yT")
                       .Cases({"transpose"}, "x.T")
                       .Cases({"pow", "power"}, "x^y, and x.^y entry by entry")
                       .Cases({"square"}, "x.*x")
                       .Cases({"eye", "identity"}, "I")
                       .Cases({"swish"}, "silu(x)")
                       .Cases({"where", "select", "cond"}, "max, min, clamp, relu or sign")
                       .Default("");
  if (!here.empty())
    error.note("here that is " + here);
  else if (!best.empty())
    error.fix(expr.anchor, best).note("did you mean '" + best + "'?");
}

//===----------------------------------------------------------------------===//
// Primitives
//===----------------------------------------------------------------------===//

void Sema::resolvePrimitive(Expr &expr, const Primitive &primitive, const Scope &scope) {
  unsigned given = 0;
  for (auto [operand, label] : zip(expr.operands, expr.labels)) {
    if (!label.empty()) {
      unsigned before = diags.numErrors();
      resolve(*operand, {Context::Constant, scope.functions});
      if (!is_contained(primitive.options, label))
        diags.error(operand->range, "'" + expr.text + "' has no argument named '" + label + "'");
      else if (std::optional<double> value = evaluate(*operand))
        operand->value = *value;
      else if (diags.numErrors() == before)
        diags.error(operand->range, "'" + label + "' is fixed when compiling: it must be a number");
      if (label == "iterations" && diags.numErrors() == before &&
          !(operand->value >= 1 && operand->value <= 1e6 && operand->value == std::floor(operand->value)))
        diags.error(operand->range,
                    "'iterations' needs an integer from 1 to 1000000, got: " + shown(*operand));
      continue;
    }
    ++given;
    // What decay takes is one factor per token; it makes the matrix over tokens itself.
    Scope inner = scope;
    if (primitive.op == PrimitiveOp::Decay)
      inner.context = Context::Token;
    resolve(*operand, inner);
  }
  if (given != primitive.operands) {
    diags.error(expr.anchor, "'" + expr.text + "' takes " + Twine(primitive.operands) + " argument" +
                                 (primitive.operands == 1 ? "" : "s") + ", got: " + Twine(given));
    return;
  }
  expr.primitive = &primitive;
  switch (primitive.op) {
  case PrimitiveOp::Gradient:
    return resolveGradient(expr);
  case PrimitiveOp::Decay:
    if (!scope.overTokens())
      diags.error(expr.anchor,
                  "'decay' is a matrix over tokens, which only statements over a sequence or block have");
    return;
  case PrimitiveOp::Rope:
    readSymbols.insert(builtin("t"));
    if (scope.context != Context::Token)
      diags.error(expr.anchor, "'rope' rotates by the position of one token")
          .note("apply it to the token's value in a statement before: 'q = rope(q)'");
    return;
  default:
    return;
  }
}

void Sema::resolveGradient(Expr &expr) {
  const Expr &with = *expr.operand(1);
  const Expr &base = with.is(ExprKind::Stale) ? *with.operand(0) : with;
  if (!base.is(ExprKind::Name)) {
    diags.error(with.range, "'grad' differentiates by a state, but " + shown(with) + " is an expression");
    return;
  }
  if (base.symbol && !base.symbol->is(SymbolKind::State)) {
    Diagnostic &error =
        diags.error(with.range, "'grad' differentiates by a state, but '" + base.text + "' is none");
    if (base.symbol->range.end)
      error.note(base.symbol->range, "'" + base.text + "' is introduced here");
  }
}

//===----------------------------------------------------------------------===//
// Functions of the prelude and of the spec
//===----------------------------------------------------------------------===//

bool Sema::bindArguments(Expr &expr, const Stmt &function, SmallVectorImpl<Expr *> &bound) {
  bound.assign(function.parameters.size(), nullptr);
  auto signature = [&](Diagnostic &error) {
    std::string list;
    for (const Parameter &parameter : function.parameters)
      list += (list.empty() ? "" : ", ") + parameter.name.name.str() +
              (parameter.defaultValue ? "=" + toString(*parameter.defaultValue) : "");
    error.note("it is declared as " + expr.text + "(" + list + ")");
  };
  for (auto [i, operand] : enumerate(expr.operands)) {
    StringRef label = expr.labels[i];
    size_t at = i;
    if (!label.empty())
      at = find_if(function.parameters, [&](const Parameter &p) { return p.name.name == label; }) -
           function.parameters.begin();
    if (at >= bound.size()) {
      signature(
          label.empty()
              ? diags.error(operand->range, "'" + expr.text + "' takes " + Twine(bound.size()) + " argument" +
                                                (bound.size() == 1 ? "" : "s") +
                                                ", got: " + Twine(expr.operands.size()))
              : diags.error(operand->range, "'" + expr.text + "' has no argument named '" + label + "'"));
      return false;
    }
    if (bound[at]) {
      diags.error(operand->range, "argument '" + label + "' of '" + expr.text + "' is given twice");
      return false;
    }
    bound[at] = operand;
  }
  for (auto [i, parameter] : enumerate(function.parameters)) {
    if (bound[i])
      continue;
    if (!parameter.defaultValue) {
      signature(
          diags.error(expr.anchor, "'" + expr.text + "' needs an argument '" + parameter.name.name + "'"));
      return false;
    }
    bound[i] = clone(*parameter.defaultValue, expr.range);
  }
  return true;
}

void Sema::inlineFunction(Expr &expr, const Stmt &function, unsigned visible, const Scope &scope) {
  SmallVector<Expr *> bound;
  if (!bindArguments(expr, function, bound)) {
    for (Expr *operand : expr.operands)
      resolve(*operand, scope);
    return;
  }
  expr.operands = context.copy<Expr *>(bound);
  expr.labels = {};
  for (Expr *operand : bound)
    resolve(*operand, scope);
  if (scope.callDepth >= maxCallDepth || cloned > maxCloned) {
    diags.error(expr.anchor, "functions call each other too often to be inlined here");
    return;
  }
  StringMap<const Symbol *> arguments;
  SmallVector<const Symbol *> symbols;
  for (auto [parameter, operand] : zip(function.parameters, bound)) {
    Symbol &symbol = addSymbol(SymbolKind::Argument, parameter.name.name, operand->range);
    symbol.value = operand;
    symbol.number = evaluate(*operand);
    arguments[symbol.name] = &symbol;
    symbols.push_back(&symbol);
  }
  expr.arguments = context.copy<const Symbol *>(symbols);
  Scope inner = scope;
  inner.functions = visible;
  inner.arguments = &arguments;
  inner.call = scope.arguments ? scope.call : expr.range;
  inner.callDepth = scope.callDepth + 1;
  expr.body = clone(*function.value, inner.call);
  resolve(*expr.body, inner);
  expr.unit = function.unit;
  if (function.interval) {
    IntervalSyntax promise = *function.interval;
    promise.lo = clone(*promise.lo, expr.range);
    promise.hi = clone(*promise.hi, expr.range);
    expr.interval = evaluateInterval(promise).value_or(Interval());
  }
}

/// A copy of a function's body, placed at the call.
Expr *Sema::clone(const Expr &expr, SourceRange at) {
  SmallVector<Expr *, 4> operands;
  for (const Expr *operand : expr.operands)
    operands.push_back(clone(*operand, at));
  Expr *copy = context.make(expr.kind, at, at, operands);
  copy->value = expr.value;
  copy->text = expr.text;
  copy->labels = expr.labels;
  ++cloned;
  return copy;
}

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

static std::optional<double> evaluatePrimitive(PrimitiveOp op, ArrayRef<double> x) {
  switch (op) {
  case PrimitiveOp::Exp:
    return std::exp(x[0]);
  case PrimitiveOp::Log:
    return std::log(x[0]);
  case PrimitiveOp::Sqrt:
    return std::sqrt(x[0]);
  case PrimitiveOp::Abs:
    return std::fabs(x[0]);
  case PrimitiveOp::Sign:
    return (x[0] > 0) - (x[0] < 0);
  case PrimitiveOp::Sigmoid:
    return 1 / (1 + std::exp(-x[0]));
  case PrimitiveOp::Tanh:
    return std::tanh(x[0]);
  case PrimitiveOp::Softplus:
    return std::fmax(x[0], 0) + std::log1p(std::exp(-std::fabs(x[0])));
  case PrimitiveOp::Erf:
    return std::erf(x[0]);
  case PrimitiveOp::Sin:
    return std::sin(x[0]);
  case PrimitiveOp::Cos:
    return std::cos(x[0]);
  case PrimitiveOp::Max:
    return std::fmax(x[0], x[1]);
  case PrimitiveOp::Min:
    return std::fmin(x[0], x[1]);
  case PrimitiveOp::Sum:
    return x[0];
  default:
    return std::nullopt;
  }
}

std::optional<double> evaluate(const Expr &expr) {
  if (expr.is(ExprKind::Number))
    return expr.value;
  if (expr.is(ExprKind::Name)) {
    if (!expr.symbol)
      return std::nullopt;
    if (expr.symbol->is(SymbolKind::Infinity))
      return std::numeric_limits<double>::infinity();
    return expr.symbol->number;
  }
  if (expr.body)
    return evaluate(*expr.body);
  SmallVector<double, 2> x;
  for (const Expr *operand : expr.operands) {
    std::optional<double> value = evaluate(*operand);
    if (!value)
      return std::nullopt;
    x.push_back(*value);
  }
  switch (expr.kind) {
  case ExprKind::Negate:
    return -x[0];
  case ExprKind::Add:
    return x[0] + x[1];
  case ExprKind::Subtract:
    return x[0] - x[1];
  case ExprKind::Multiply:
  case ExprKind::ElementMultiply:
    return x[0] * x[1];
  case ExprKind::Divide:
  case ExprKind::ElementDivide:
    return x[0] / x[1];
  case ExprKind::Power:
  case ExprKind::ElementPower:
    return std::pow(x[0], x[1]);
  case ExprKind::Norm:
    return std::fabs(x[0]);
  case ExprKind::Call:
    return expr.primitive ? evaluatePrimitive(expr.primitive->op, x) : std::nullopt;
  default:
    return std::nullopt;
  }
}

} // namespace recur::frontend
