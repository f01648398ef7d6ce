#include "lib/Frontend/Ast.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace recur::frontend {

Expr *AstContext::make(ExprKind kind, SourceRange range, SourceRange anchor, ArrayRef<Expr *> operands) {
  Expr *expr = make<Expr>();
  expr->kind = kind;
  expr->range = range;
  expr->anchor = anchor;
  expr->operands = copy(operands);
  for (Expr *operand : operands)
    expr->depth = std::max(expr->depth, operand->depth + 1);
  return expr;
}

Expr *AstContext::makeNumber(double value, SourceRange range) {
  Expr *expr = make(ExprKind::Number, range, range);
  expr->value = value;
  expr->text = save(formatNumber(value));
  return expr;
}

StringRef operatorSpelling(ExprKind kind) {
  switch (kind) {
  case ExprKind::Negate:
  case ExprKind::Subtract:
    return "-";
  case ExprKind::Add:
    return "+";
  case ExprKind::Multiply:
    return "*";
  case ExprKind::Divide:
    return "/";
  case ExprKind::ElementMultiply:
    return ".*";
  case ExprKind::ElementDivide:
    return "./";
  case ExprKind::Power:
    return "^";
  case ExprKind::ElementPower:
    return ".^";
  default:
    return "";
  }
}

//===----------------------------------------------------------------------===//
// Printing source text
//===----------------------------------------------------------------------===//

namespace {

// How tightly a printed expression holds together; an operand that binds less than asked gets parentheses.
enum Binding { Sum = 1, Product, Prefix, PowerOf, Postfix };

Binding bindingOf(const Expr &expr) {
  switch (expr.kind) {
  case ExprKind::Add:
  case ExprKind::Subtract:
    return Sum;
  case ExprKind::Multiply:
  case ExprKind::Divide:
  case ExprKind::ElementMultiply:
  case ExprKind::ElementDivide:
    return Product;
  case ExprKind::Negate:
    return Prefix;
  case ExprKind::Power:
  case ExprKind::ElementPower:
    return PowerOf;
  default:
    return Postfix;
  }
}

void printExpr(const Expr &expr, raw_ostream &os, int atLeast) {
  Binding binding = bindingOf(expr);
  if (binding < atLeast) {
    os << '(';
    printExpr(expr, os, Sum);
    os << ')';
    return;
  }
  switch (expr.kind) {
  case ExprKind::Invalid:
    os << '?';
    return;
  case ExprKind::Number:
  case ExprKind::Name:
    os << expr.text;
    return;
  case ExprKind::Negate:
    os << '-';
    printExpr(*expr.operand(), os, Prefix);
    return;
  case ExprKind::Add:
  case ExprKind::Subtract:
    printExpr(*expr.operand(0), os, Sum);
    os << ' ' << operatorSpelling(expr.kind) << ' ';
    printExpr(*expr.operand(1), os, Product);
    return;
  case ExprKind::Multiply:
  case ExprKind::Divide:
  case ExprKind::ElementMultiply:
  case ExprKind::ElementDivide:
    printExpr(*expr.operand(0), os, Product);
    os << operatorSpelling(expr.kind);
    printExpr(*expr.operand(1), os, Prefix);
    return;
  case ExprKind::Power:
  case ExprKind::ElementPower:
    printExpr(*expr.operand(0), os, Postfix);
    os << operatorSpelling(expr.kind);
    printExpr(*expr.operand(1), os, Prefix);
    return;
  case ExprKind::Transpose:
    printExpr(*expr.operand(), os, Postfix);
    os << ".T";
    return;
  case ExprKind::Norm:
    os << '|';
    printExpr(*expr.operand(), os, Sum);
    os << '|';
    return;
  case ExprKind::Index:
    printExpr(*expr.operand(0), os, Postfix);
    os << '[';
    printExpr(*expr.operand(1), os, Sum);
    os << ']';
    return;
  case ExprKind::Stale:
    printExpr(*expr.operand(0), os, Postfix);
    os << '@';
    printExpr(*expr.operand(1), os, Postfix);
    return;
  case ExprKind::Call:
    os << expr.text << '(';
    for (auto [i, argument] : enumerate(expr.operands)) {
      os << (i ? ", " : "");
      if (i < expr.labels.size() && !expr.labels[i].empty())
        os << expr.labels[i] << '=';
      printExpr(*argument, os, Sum);
    }
    os << ')';
    return;
  }
}

void printDim(const DimSyntax &dim, raw_ostream &os) {
  if (dim.name.empty())
    os << dim.value;
  else
    os << dim.name;
}

void printShape(const ShapeSyntax &shape, raw_ostream &os) {
  static constexpr StringLiteral forms[] = {"scalar", "vector", "matrix", "diag"};
  os << forms[shape.form];
  for (unsigned i = 0; i < shape.numDims; ++i) {
    os << (i ? ", " : "(");
    printDim(shape.dims[i], os);
  }
  os << (shape.numDims ? ")" : "");
  if (shape.hasSteps) {
    os << '[';
    printDim(shape.steps, os);
    os << ']';
  }
}

void printFacts(const Stmt &stmt, raw_ostream &os) {
  if (const IntervalSyntax *interval = stmt.interval) {
    os << " in " << (interval->loOpen ? '(' : '[');
    printExpr(*interval->lo, os, Sum);
    os << ", ";
    printExpr(*interval->hi, os, Sum);
    os << (interval->hiOpen ? ')' : ']');
  }
  if (stmt.unit)
    os << " unit";
}

StringRef keyword(StmtKind kind) {
  switch (kind) {
  case StmtKind::Rule:
    return "rule";
  case StmtKind::Input:
    return "input";
  case StmtKind::Param:
    return "param";
  case StmtKind::State:
    return "state";
  case StmtKind::Output:
    return "output";
  case StmtKind::Const:
    return "const";
  case StmtKind::Dimension:
    return "dim";
  case StmtKind::Function:
    return "fn";
  case StmtKind::Assign:
    return "assign";
  case StmtKind::For:
    return "for";
  case StmtKind::Block:
    return "block";
  }
  llvm_unreachable("all statements have a keyword");
}

} // namespace

void print(const Expr &expr, raw_ostream &os) { printExpr(expr, os, Sum); }

std::string toString(const Expr &expr) {
  std::string text;
  raw_string_ostream os(text);
  print(expr, os);
  return text;
}

void print(const Stmt &stmt, raw_ostream &os, unsigned indent) {
  os.indent(indent);
  if (!stmt.is(StmtKind::Assign))
    os << keyword(stmt.kind) << (stmt.names.empty() ? "" : " ");
  interleaveComma(stmt.names, os, [&](const Ident &ident) { os << ident.name; });
  switch (stmt.kind) {
  case StmtKind::Function:
    os << '(';
    interleaveComma(stmt.parameters, os, [&](const Parameter &parameter) {
      os << parameter.name.name;
      if (parameter.defaultValue) {
        os << '=';
        print(*parameter.defaultValue, os);
      }
    });
    os << ')';
    printFacts(stmt, os);
    break;
  case StmtKind::For:
    os << " in ";
    print(*stmt.lo, os);
    os << "..";
    print(*stmt.hi, os);
    break;
  case StmtKind::Block:
    os << ' ';
    print(*stmt.value, os);
    break;
  default:
    if (stmt.shape) {
      os << " : ";
      printShape(*stmt.shape, os);
    }
    printFacts(stmt, os);
  }
  if (stmt.is(StmtKind::For) || stmt.is(StmtKind::Block)) {
    os << " {\n";
    for (const Stmt *inner : stmt.body)
      print(*inner, os, indent + 2);
    os.indent(indent) << "}\n";
    return;
  }
  if (stmt.value) {
    os << " = ";
    print(*stmt.value, os);
  }
  os << '\n';
}

void print(const Spec &spec, raw_ostream &os) {
  for (const Stmt *item : spec.items)
    print(*item, os);
}

//===----------------------------------------------------------------------===//
// Printing the tree
//===----------------------------------------------------------------------===//

static void dumpExpr(const Expr &expr, raw_ostream &os, unsigned indent) {
  static constexpr StringLiteral kinds[] = {"invalid",        "number", "name",
                                            "negate",         "add",    "subtract",
                                            "multiply",       "divide", "element-multiply",
                                            "element-divide", "power",  "element-power",
                                            "transpose",      "norm",   "index",
                                            "stale",          "call"};
  os.indent(indent) << kinds[static_cast<unsigned>(expr.kind)];
  if (!expr.text.empty())
    os << ' ' << expr.text;
  for (StringRef label : expr.labels)
    if (!label.empty())
      os << ' ' << label << '=';
  if (expr.symbol || expr.primitive || expr.body || !expr.shape.isScalar())
    os << " : " << expr.shape.str();
  os << '\n';
  for (const Expr *operand : expr.operands)
    dumpExpr(*operand, os, indent + 2);
}

static void dumpStmt(const Stmt &stmt, raw_ostream &os, unsigned indent) {
  os.indent(indent) << keyword(stmt.kind);
  for (const Ident &ident : stmt.names)
    os << ' ' << ident.name;
  if (stmt.shape) {
    os << " : ";
    printShape(*stmt.shape, os);
  }
  printFacts(stmt, os);
  os << '\n';
  for (const Parameter &parameter : stmt.parameters) {
    os.indent(indent + 2) << "parameter " << parameter.name.name << '\n';
    if (parameter.defaultValue)
      dumpExpr(*parameter.defaultValue, os, indent + 4);
  }
  for (const Expr *expr : {stmt.lo, stmt.hi, stmt.value})
    if (expr)
      dumpExpr(*expr, os, indent + 2);
  for (const Stmt *inner : stmt.body)
    dumpStmt(*inner, os, indent + 2);
}

void dump(const Spec &spec, raw_ostream &os) {
  for (const Stmt *item : spec.items)
    dumpStmt(*item, os, 0);
}

} // namespace recur::frontend
