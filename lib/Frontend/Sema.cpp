#include "lib/Frontend/Parser.h"
#include "lib/Frontend/SemaImpl.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

using namespace llvm;

namespace recur::frontend {

std::unique_ptr<Program> check(const SourceFile &file, DiagnosticEngine &diags) {
  Spec spec = parse(file, diags);
  return check(std::move(spec), diags);
}

std::unique_ptr<Program> check(Spec spec, DiagnosticEngine &diags) {
  // What is missing would be missed here: more errors about it say nothing.
  if (spec.incomplete || !spec.file)
    return nullptr;
  return Sema(std::move(spec), diags).run();
}

Sema::Sema(Spec parsed, DiagnosticEngine &diags)
    : program(std::make_unique<Program>()), spec(program->spec = std::move(parsed)), context(*spec.context),
      diags(diags), file(*spec.file) {
  program->file = &file;
  program->name = file.ruleName();
}

std::unique_ptr<Program> Sema::run() {
  declareItems();
  collectAssigned(spec.items);
  StringSet<> assigned;
  SmallVector<StringRef> loops;
  findStates(spec.items, assigned, loops);
  classify();
  resolveItems();
  chooseOutputs();
  // Shapes are checked even where names were wrong; what is unknown by then fits everywhere.
  inferShapes();
  if (diags.hasErrors())
    return nullptr;
  finishShapes();
  if (diags.hasErrors())
    return nullptr;
  warnUnused();
  warnAlwaysZero();
  warnOfOnes();
  listSymbols();
  return std::move(program);
}

Symbol &Sema::addSymbol(SymbolKind kind, StringRef name, SourceRange at) {
  Symbol &symbol = program->symbols.emplace_back();
  symbol.kind = kind;
  symbol.name = name;
  symbol.range = at;
  return symbol;
}

std::string Sema::shown(SourceRange range) const {
  StringRef text = file.text(range);
  if (text.size() > 40 || text.contains('\n'))
    return "this expression";
  return ("'" + text + "'").str();
}

std::string Sema::shown(const Expr &expr) const { return shown(expr.range); }

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

void Sema::declareItems() {
  const Stmt *rule = nullptr;
  for (const Stmt *item : spec.items) {
    switch (item->kind) {
    case StmtKind::Rule:
      if (rule)
        diags.error(item->range, "a spec holds one rule, but this is a second 'rule'")
            .note(rule->range, "the first is here");
      else
        program->name = item->name().name.str();
      rule = item;
      break;
    case StmtKind::Input:
    case StmtKind::Param:
    case StmtKind::State:
    case StmtKind::Const:
      declareValues(*item);
      break;
    case StmtKind::Dimension:
      for (const Ident &ident : item->names)
        dims.try_emplace(ident.name, ident.range);
      break;
    case StmtKind::Output:
      outputNames.insert(outputNames.end(), item->names.begin(), item->names.end());
      break;
    case StmtKind::Function:
      declareFunction(*item);
      break;
    default:
      break;
    }
  }
}

void Sema::declareValues(const Stmt &item) {
  SymbolKind kind = item.is(StmtKind::Input)   ? SymbolKind::Input
                    : item.is(StmtKind::Param) ? SymbolKind::Param
                    : item.is(StmtKind::State) ? SymbolKind::State
                                               : SymbolKind::Const;
  if (item.shape) {
    for (const DimSyntax &dim : ArrayRef(item.shape->dims).take_front(item.shape->numDims))
      if (!dim.name.empty())
        dims.try_emplace(dim.name, dim.range);
    if (item.shape->hasSteps && !item.shape->steps.name.empty())
      dims.try_emplace(item.shape->steps.name, item.shape->steps.range);
    if (item.shape->hasSteps && kind != SymbolKind::Input)
      diags.error(item.shape->steps.range, "only an input has several values per token");
  }
  for (const Ident &ident : item.names) {
    if (auto earlier = own.find(ident.name); earlier != own.end()) {
      diags.error(ident.range, "'" + ident.name + "' is declared twice")
          .note(earlier->second->range, "'" + ident.name + "' was declared here");
      continue;
    }
    Symbol &symbol = addSymbol(kind, ident.name, ident.range);
    symbol.declared = true;
    symbol.level = kind == SymbolKind::Param || kind == SymbolKind::Const ? Level::Head : Level::Token;
    symbol.unit = item.unit;
    symbol.value = item.value;
    declarations[&symbol] = &item;
    if (item.shape && item.shape->hasSteps)
      symbol.steps = Dim{item.shape->steps.name, item.shape->steps.value};
    own[ident.name] = &symbol;
  }
}

void Sema::declareFunction(const Stmt &item) {
  for (const Stmt *earlier : functions)
    if (earlier->name().name == item.name().name)
      diags.error(item.name().range, "function '" + item.name().name + "' is defined twice")
          .note(earlier->name().range, "it was defined here");
  StringSet<> seen;
  for (const Parameter &parameter : item.parameters)
    if (!seen.insert(parameter.name.name).second)
      diags.error(parameter.name.range, "two parameters are called '" + parameter.name.name + "'");
  functions.push_back(&item);
}

/// A function's body may use its parameters and what is fixed when compiling.
void Sema::checkFunctionNames(const Expr &expr, const Stmt &function) {
  for (const Expr *operand : expr.operands)
    checkFunctionNames(*operand, function);
  if (!expr.is(ExprKind::Name))
    return;
  for (StringRef name = expr.text; !name.empty(); name = name.drop_back()) {
    auto named = own.find(name);
    bool known = any_of(function.parameters, [&](const Parameter &p) { return p.name.name == name; }) ||
                 (named != own.end() && named->second->level == Level::Head) || dims.contains(name) ||
                 is_contained({"t", "head", "heads", "inf", "I", "M", "Mx"}, name);
    if (known)
      return;
    if (!name.ends_with("T"))
      break;
  }
  unknownName(expr.text, expr.range,
              "; function '" + function.name().name +
                  "' may use its parameters and what is fixed when compiling");
}

//===----------------------------------------------------------------------===//
// Assigned names: locals and states
//===----------------------------------------------------------------------===//

void Sema::collectAssigned(ArrayRef<Stmt *> items) {
  for (Stmt *item : items) {
    if (item->is(StmtKind::Assign))
      declareAssigned(*item);
    else if (item->is(StmtKind::For) || item->is(StmtKind::Block))
      collectAssigned(item->body);
  }
}

void Sema::declareAssigned(const Stmt &stmt) {
  const Ident &ident = stmt.name();
  auto [entry, isNew] = own.try_emplace(ident.name, nullptr);
  if (isNew) {
    entry->second = &addSymbol(SymbolKind::Local, ident.name, ident.range);
    return;
  }
  const Symbol &symbol = *entry->second;
  if (symbol.is(SymbolKind::Param) || symbol.is(SymbolKind::Const))
    diags
        .error(ident.range, "'" + ident.name + "' is a " +
                                (symbol.is(SymbolKind::Param) ? "param" : "const") +
                                " and cannot be assigned")
        .note(symbol.range, "'" + ident.name + "' was declared here");
}

void Sema::findStates(ArrayRef<Stmt *> items, StringSet<> &assigned, SmallVectorImpl<StringRef> &loops) {
  for (const Stmt *item : items) {
    switch (item->kind) {
    case StmtKind::Assign:
      readEarly(*item->value, assigned, loops);
      assigned.insert(item->name().name);
      break;
    case StmtKind::For:
      loops.push_back(item->name().name);
      findStates(item->body, assigned, loops);
      loops.pop_back();
      break;
    case StmtKind::Block:
      findStates(item->body, assigned, loops);
      break;
    default:
      break;
    }
  }
}

/// A local that is read before it is assigned is a state.
void Sema::readEarly(const Expr &expr, const StringSet<> &assigned, ArrayRef<StringRef> loops) {
  for (const Expr *operand : expr.operands)
    readEarly(*operand, assigned, loops);
  if (!expr.is(ExprKind::Name) || is_contained(loops, expr.text))
    return;
  for (StringRef name = expr.text; !name.empty(); name = name.drop_back()) {
    if (auto named = own.find(name); named != own.end()) {
      if (named->second->is(SymbolKind::Local) && !assigned.contains(name))
        named->second->kind = SymbolKind::State;
      return;
    }
    if (!name.ends_with("T"))
      return;
  }
}

//===----------------------------------------------------------------------===//
// Statements over the whole sequence
//===----------------------------------------------------------------------===//

bool Sema::overSequence(const Expr &expr) const {
  if (expr.is(ExprKind::Call) && expr.text == "decay" &&
      none_of(functions, [](const Stmt *f) { return f->name().name == "decay"; }))
    return true;
  if (expr.is(ExprKind::Name)) {
    for (StringRef name = expr.text; !name.empty(); name = name.drop_back()) {
      if (auto named = own.find(name); named != own.end())
        return named->second->level == Level::Sequence;
      if (is_contained({"Q", "K", "V", "M", "Mx"}, name))
        return true;
      if (!name.ends_with("T"))
        return false;
    }
  }
  return any_of(expr.operands, [&](const Expr *operand) { return overSequence(*operand); });
}

bool Sema::overSequence(const Stmt &stmt) const {
  if (stmt.is(StmtKind::Assign))
    return overSequence(*stmt.value);
  return stmt.is(StmtKind::For) && any_of(stmt.body, [&](const Stmt *s) { return overSequence(*s); });
}

void Sema::markLevel(const Stmt &stmt, Level level) {
  for (const Stmt *inner : stmt.body)
    markLevel(*inner, level);
  if (stmt.is(StmtKind::Assign)) {
    Symbol &symbol = *own[stmt.name().name];
    if (symbol.is(SymbolKind::Local))
      symbol.level = level;
  }
}

/// Statements that speak of rows, masks or decays over tokens, and what depends on them.
void Sema::classify() {
  for (const Stmt *item : spec.items) {
    if (item->is(StmtKind::Block)) {
      markLevel(*item, Level::Block);
    } else if (overSequence(*item)) {
      markLevel(*item, Level::Sequence);
      isWhole = true;
    }
  }
}

//===----------------------------------------------------------------------===//
// Outputs
//===----------------------------------------------------------------------===//

void Sema::chooseOutputs() {
  for (const Ident &ident : outputNames) {
    auto named = own.find(ident.name);
    if (named == own.end()) {
      diags.error(ident.range, "output '" + ident.name + "' is never assigned");
      continue;
    }
    Symbol &symbol = *named->second;
    if (symbol.output)
      diags.error(ident.range, "'" + ident.name + "' is an output twice");
    symbol.output = true;
    readSymbols.insert(&symbol);
    if (symbol.is(SymbolKind::Local))
      continue;
    StringRef kind = symbol.is(SymbolKind::Input)   ? "an input"
                     : symbol.is(SymbolKind::State) ? "a state"
                     : symbol.is(SymbolKind::Param) ? "a param"
                                                    : "a const";
    diags.error(ident.range, "'" + ident.name + "' is " + kind + " and cannot be written as an output")
        .note("give the value a name of its own: 'o = " + ident.name + "', 'output o'");
  }
  if (!outputNames.empty())
    return;
  // The last local; one of a block only where there is no other, as it has no value for each token.
  Symbol *last = nullptr;
  auto visit = [&](auto &self, const Stmt &stmt) -> void {
    Symbol *symbol = stmt.is(StmtKind::Assign) ? own[stmt.name().name] : nullptr;
    if (symbol && symbol->is(SymbolKind::Local) && (!last || symbol->level != Level::Block))
      last = symbol;
    for (const Stmt *inner : stmt.body)
      self(self, *inner);
  };
  for (const Stmt *item : spec.items)
    visit(visit, *item);
  if (!last) {
    SourceRange at = spec.items.empty() ? SourceRange() : spec.items.back()->range;
    diags.error(at, "this rule reads nothing out").note("assign an output, such as 'o = S*q'");
    return;
  }
  last->output = true;
  readSymbols.insert(last);
}

} // namespace recur::frontend
