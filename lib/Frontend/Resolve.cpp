#include "lib/Frontend/SemaImpl.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"

#include <cmath>

using namespace llvm;

namespace recur::frontend {

//===----------------------------------------------------------------------===//
// Statements
//===----------------------------------------------------------------------===//

// The operation that makes no number, or, of finite ones, no finite one; null where each does.
static const Expr *whereNotFinite(const Expr &expr) {
  bool areFinite = true, areNumbers = true;
  for (const Expr *operand : expr.operands) {
    if (const Expr *at = whereNotFinite(*operand))
      return at;
    std::optional<double> x = evaluate(*operand);
    areFinite &= x && std::isfinite(*x);
    areNumbers &= x && !std::isnan(*x);
  }
  std::optional<double> value = evaluate(expr);
  bool isNew =
      value && !expr.operands.empty() && (std::isnan(*value) ? areNumbers : std::isinf(*value) && areFinite);
  return isNew ? &expr : nullptr;
}

void Sema::resolveItems() {
  unsigned numFunctions = 0;
  for (Stmt *item : spec.items) {
    switch (item->kind) {
    case StmtKind::Function:
      checkFunctionNames(*item->value, *item);
      for (const Parameter &parameter : item->parameters)
        if (parameter.defaultValue)
          resolve(*clone(*parameter.defaultValue, parameter.defaultValue->range),
                  {Context::Constant, numFunctions});
      ++numFunctions;
      [[fallthrough]];
    case StmtKind::Input:
    case StmtKind::Param:
      resolveInterval(*item);
      break;
    case StmtKind::State:
      if (item->value)
        resolve(*item->value, {Context::Initial});
      resolveInterval(*item);
      break;
    case StmtKind::Const: {
      resolve(*item->value, {Context::Constant});
      if (auto named = own.find(item->name().name); named != own.end())
        named->second->number = evaluate(*item->value);
      if (const Expr *at = whereNotFinite(*item->value))
        diags.error(at->range, "the constant '" + item->name().name + "' is not a " +
                                   (std::isnan(*evaluate(*at)) ? "number" : "finite number"));
      break;
    }
    case StmtKind::Block:
      resolveBlock(*item);
      break;
    case StmtKind::Assign:
    case StmtKind::For: {
      bool whole = overSequence(*item);
      resolveStatement(*item, whole ? Context::Sequence : Context::Token);
      (whole ? program->sequence : program->body).push_back(item);
      break;
    }
    default:
      break;
    }
  }
}

void Sema::resolveInterval(const Stmt &item) {
  if (!item.interval)
    return;
  std::optional<Interval> interval = evaluateInterval(*item.interval);
  if (interval && interval->isEmpty())
    diags.error(item.interval->range, "range " + interval->str() + " is empty");
  for (const Ident &ident : item.names)
    if (auto named = own.find(ident.name); interval && named != own.end() && !item.is(StmtKind::Function))
      named->second->interval = *interval;
}

/// The numbers that bound a range; nothing, and an error, where a bound is no number. Only `inf` is infinite.
std::optional<Interval> Sema::evaluateInterval(const IntervalSyntax &syntax) {
  Interval interval;
  for (auto [expr, bound] :
       {std::make_pair(syntax.lo, &interval.lo), std::make_pair(syntax.hi, &interval.hi)}) {
    unsigned before = diags.numErrors();
    resolve(*expr, {Context::Constant});
    std::optional<double> value = evaluate(*expr);
    if (!value && diags.numErrors() == before)
      diags.error(expr->range, "a bound of a range is a number, but " + shown(*expr) + " is not");
    if (!value)
      return std::nullopt;
    if (const Expr *at = whereNotFinite(*expr)) {
      diags.error(at->range, "a bound of a range is a finite number or 'inf', but " + shown(*at) + " is not");
      return std::nullopt;
    }
    *bound = *value;
  }
  interval.loOpen = syntax.loOpen;
  interval.hiOpen = syntax.hiOpen;
  return interval;
}

static StringRef contextName(Context context) {
  return context == Context::Block ? "a statement of a block" : "a statement over the whole sequence";
}

void Sema::resolveStatement(Stmt &stmt, Context where) {
  if (stmt.is(StmtKind::For))
    return resolveLoop(stmt, where);
  if (!stmt.is(StmtKind::Assign)) {
    diags.error(stmt.range, "only statements may stand in the body of a loop or block");
    return;
  }
  resolve(*stmt.value, {where});
  Symbol &symbol = assigned(stmt.name());
  stmt.symbol = &symbol;
  StringRef name = symbol.name;
  SourceRange at = stmt.name().range;
  for (const Symbol *counter : counters)
    if (counter->name == name)
      diags.error(at, "'" + name + "' counts the steps of a loop and cannot be assigned in it")
          .note(counter->range, "the loop is here");
  Level level = where == Context::Token   ? Level::Token
                : where == Context::Block ? Level::Block
                                          : Level::Sequence;
  if (symbol.is(SymbolKind::Local) ? symbol.level != level
                                   : symbol.is(SymbolKind::Input) && level != Level::Token)
    diags.error(at, "'" + name + "' is assigned both for each token and over all tokens")
        .note(symbol.range, "'" + name + "' is first seen here");
  if (!symbol.is(SymbolKind::State))
    return;
  if (level == Level::Sequence)
    diags
        .error(at, Twine(contextName(where)) + " cannot assign a state, but '" + name +
                       "' is read before it is assigned and so is one")
        .note("a statement with Q, K, V, M, Mx or decay is over the whole sequence, unless the spec declares "
              "them");
  auto [first, isNew] = stateLevels.try_emplace(&symbol, level, at);
  if (!isNew && first->second.first != level)
    diags.error(at, "state '" + name + "' is assigned both for each token and once per block")
        .note(first->second.second, "the other assignment is here");
}

/// The symbol that an assignment gives a value. A local that has one already is a new local of the same name,
/// which may have another shape; in a loop it stays the same one, carried from step to step.
Symbol &Sema::assigned(const Ident &ident) {
  Symbol *symbol = own[ident.name];
  if (!assignedSoFar.insert(symbol).second && symbol->is(SymbolKind::Local) && counters.empty()) {
    Symbol &version = addSymbol(SymbolKind::Local, ident.name, ident.range);
    version.level = symbol->level;
    own[ident.name] = symbol = &version;
    assignedSoFar.insert(symbol);
  }
  return *symbol;
}

void Sema::resolveLoop(Stmt &stmt, Context where) {
  resolve(*stmt.lo, {Context::Constant});
  std::optional<double> first = evaluate(*stmt.lo);
  if (!first || *first != 1)
    diags.error(stmt.lo->range, "a loop counts from 1, got: " + shown(*stmt.lo));
  Symbol &counter = addSymbol(SymbolKind::Counter, stmt.name().name, stmt.name().range);
  counter.level = Level::Head;
  stmt.symbol = &counter;
  // The upper bound is an integer or a dimension; a name that nothing else introduces becomes a dimension
  // here.
  Expr &hi = *stmt.hi;
  if (hi.is(ExprKind::Name) && !own.count(hi.text))
    dims.try_emplace(hi.text, hi.range);
  resolve(hi, {Context::Constant});
  std::optional<double> last = evaluate(hi);
  if (hi.symbol && hi.symbol->is(SymbolKind::Dimension))
    counter.steps = Dim{hi.symbol->name, 0};
  else if (last && *last >= 1 && *last <= 1e6 && *last == static_cast<double>(static_cast<int64_t>(*last)))
    counter.steps = Dim{StringRef(), static_cast<int64_t>(*last)};
  else
    diags.error(hi.range, "a loop ends at a dimension or an integer from 1 to 1000000, got: " + shown(hi));
  counters.push_back(&counter);
  for (Stmt *inner : stmt.body)
    resolveStatement(*inner, where);
  counters.pop_back();
}

void Sema::resolveBlock(Stmt &stmt) {
  if (isWhole)
    diags.error(stmt.range, "a rule has blocks or statements over the whole sequence, not both");
  stmt.blockSize = blockSize(*stmt.value);
  for (Stmt *inner : stmt.body)
    resolveStatement(*inner, Context::Block);
  program->body.push_back(&stmt);
}

/// All blocks of a rule have one size: the sizes of `S@n` and of `block n` are the same grid over the tokens.
int64_t Sema::blockSize(Expr &size) {
  unsigned before = diags.numErrors();
  resolve(size, {Context::Constant});
  if (diags.numErrors() != before)
    return 0;
  std::optional<double> value = evaluate(size);
  if (!value || *value < 1 || *value > 1e9 || *value != static_cast<double>(static_cast<int64_t>(*value))) {
    diags.error(size.range, "a block has a positive number of tokens, got: " + shown(size));
    return 0;
  }
  int64_t tokens = static_cast<int64_t>(*value);
  if (program->blockSize && program->blockSize != tokens)
    diags
        .error(size.range,
               "all blocks of a rule have one size, but this one has " + Twine(tokens) + " tokens")
        .note(blockRange, "this one has " + Twine(program->blockSize));
  program->blockSize = tokens;
  blockRange = size.range;
  return tokens;
}

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

void Sema::resolve(Expr &expr, const Scope &scope) {
  switch (expr.kind) {
  case ExprKind::Name:
    return resolveName(expr, scope);
  case ExprKind::Index:
    return resolveIndex(expr, scope);
  case ExprKind::Stale:
    return resolveStale(expr, scope);
  case ExprKind::Call:
    return resolveCall(expr, scope);
  default:
    for (Expr *operand : expr.operands)
      resolve(*operand, scope);
  }
}

void Sema::resolveName(Expr &expr, const Scope &scope) {
  StringRef name = expr.text;
  const Symbol *symbol = find(name, expr.range, scope);
  // `kT` is `k.T` where it is no name of its own.
  if (!symbol && name.size() > 1 && name.ends_with("T")) {
    SourceRange stem = expr.range;
    if (!scope.arguments)
      stem.end -= 1;
    Expr *operand = context.make(ExprKind::Name, stem, stem);
    operand->text = name.drop_back();
    expr.kind = ExprKind::Transpose;
    expr.text = {};
    expr.operands = context.copy<Expr *>(operand);
    return resolveName(*operand, scope);
  }
  if (!symbol && scope.overTokens() && isUpper(name[0]))
    symbol = rows(name, expr.range, scope);
  else if (!symbol && (scope.context == Context::Constant || scope.context == Context::Initial))
    return unknownName(name, expr.range,
                       scope.context == Context::Constant
                           ? "; a constant may use constants, dimensions, head and heads"
                           : "; an initial value may use params, constants, dimensions, head and heads");
  else if (!symbol)
    symbol = implicitInput(name, expr.range);
  if (!symbol || !checkUse(*symbol, expr.range, scope))
    return;
  if (symbol->steps && symbol->is(SymbolKind::Input)) {
    diags.error(expr.range, "'" + name + "' has " + symbol->steps->str() + " values per token: write " +
                                name + "[j] in a loop over them");
    return;
  }
  expr.symbol = symbol;
}

/// The symbol that a name stands for; null where nothing introduces it.
const Symbol *Sema::find(StringRef name, SourceRange at, const Scope &scope) {
  if (scope.arguments)
    if (const Symbol *argument = scope.arguments->lookup(name))
      return argument;
  for (Symbol *counter : reverse(counters))
    if (counter->name == name)
      return counter;
  if (auto named = own.find(name); named != own.end())
    return named->second;
  if (const Symbol *known = builtin(name))
    return known;
  // dk, dv and d1 are what dimensions are called that no declaration names.
  bool inferred = name == "dk" || name == "dv" ||
                  (name.size() > 1 && name[0] == 'd' && all_of(name.drop_front(), isDigit));
  if (!dims.contains(name) && !inferred)
    return nullptr;
  Symbol *&dimension = others[name];
  if (!dimension) {
    dimension = &addSymbol(SymbolKind::Dimension, name, at);
    dimension->level = Level::Head;
    dimension->declared = dims.contains(name);
  }
  return dimension;
}

const Symbol *Sema::builtin(StringRef name) {
  auto kind = StringSwitch<std::optional<SymbolKind>>(name)
                  .Case("t", SymbolKind::Position)
                  .Case("head", SymbolKind::Head)
                  .Case("heads", SymbolKind::Heads)
                  .Case("inf", SymbolKind::Infinity)
                  .Case("I", SymbolKind::Identity)
                  .Case("M", SymbolKind::Mask)
                  .Case("Mx", SymbolKind::StrictMask)
                  .Default(std::nullopt);
  if (!kind)
    return nullptr;
  Symbol *&symbol = others[name];
  if (!symbol) {
    symbol = &addSymbol(*kind, name, {});
    symbol->level = *kind == SymbolKind::Position ? Level::Token : Level::Head;
  }
  return symbol;
}

const Symbol *Sema::implicitInput(StringRef name, SourceRange at) {
  Symbol &symbol = addSymbol(SymbolKind::Input, name, at);
  own[name] = &symbol;
  return &symbol;
}

/// The capital of a token value's name: the matrix of its values over all tokens.
const Symbol *Sema::rows(StringRef name, SourceRange at, const Scope &scope) {
  StringRef tokenName = context.save(Twine(toLower(name[0])) + name.drop_front());
  const Symbol *token = find(tokenName, at, scope);
  if (!token)
    token = implicitInput(tokenName, at);
  bool perToken =
      token->is(SymbolKind::Input) || (token->is(SymbolKind::Local) && token->level == Level::Token);
  if (!perToken || token->steps) {
    diags
        .error(at,
               "'" + name + "' would be the rows of '" + tokenName + "', which is not one value per token")
        .note("declare '" + name + "' if it is a name of its own");
    return nullptr;
  }
  if (token->is(SymbolKind::Local) && !assignedSoFar.contains(token)) {
    diags.error(at, "'" + name + "' is the rows of '" + tokenName + "', which is assigned only after this")
        .note(token->range, "'" + tokenName + "' is assigned here");
    return nullptr;
  }
  readSymbols.insert(token);
  Symbol *&symbol = others[name];
  if (!symbol || symbol->of != token) {
    symbol = &addSymbol(SymbolKind::Rows, context.save(name), at);
    symbol->of = token;
    symbol->level = scope.context == Context::Block ? Level::Block : Level::Sequence;
  }
  return symbol;
}

/// May an expression that stands here use this name?
bool Sema::checkUse(const Symbol &symbol, SourceRange at, const Scope &scope) {
  readSymbols.insert(&symbol);
  StringRef name = symbol.name;
  bool perToken =
      symbol.level == Level::Token && !symbol.is(SymbolKind::State) && !symbol.is(SymbolKind::Argument);
  switch (scope.context) {
  case Context::Constant:
  case Context::Initial: {
    bool allowed = symbol.level == Level::Head || symbol.is(SymbolKind::Argument);
    if (scope.context == Context::Constant)
      allowed &= !symbol.is(SymbolKind::Param);
    if (allowed)
      break;
    diags
        .error(at, Twine(scope.context == Context::Constant ? "a constant" : "an initial value") +
                       " cannot use '" + name + "', which is not fixed when compiling")
        .note(symbol.range, "'" + name + "' is introduced here");
    return false;
  }
  case Context::Token:
    if (symbol.is(SymbolKind::Mask) || symbol.is(SymbolKind::StrictMask)) {
      diags.error(at,
                  "'" + name + "' is the causal mask, which only statements over a sequence or block have");
      return false;
    }
    break;
  case Context::Block:
  case Context::Sequence:
    if (perToken) {
      Diagnostic &error = diags.error(at, "'" + name + "' is one value per token, but " +
                                              contextName(scope.context) + " is about all tokens");
      if (!symbol.is(SymbolKind::Position) && isLower(name[0])) {
        std::string capital = std::string(1, toUpper(name[0])) + name.drop_front().str();
        error.note("write '" + capital + "' for the matrix whose rows are the values of '" + name + "'");
        if (!scope.arguments)
          error.fix(at, capital);
      }
      return false;
    }
    if (scope.context == Context::Sequence && symbol.is(SymbolKind::State)) {
      diags.error(at, "a statement over the whole sequence cannot read the state '" + name + "'")
          .note("read it for each token into a local first; 'Q', 'K', 'V', 'M' and 'decay' speak of all "
                "tokens");
      return false;
    }
    break;
  }
  return true;
}

void Sema::unknownName(StringRef name, SourceRange at, const Twine &where) {
  Diagnostic &error = diags.error(at, "unknown name '" + name + "'" + where);
  if (name.size() < 3)
    return; // everything is near to a short name
  for (const auto &entry : own)
    if (entry.getKey() != name && entry.getKey().edit_distance(name, /*AllowReplacements=*/true, 1) <= 1) {
      error.note("did you mean '" + entry.getKey() + "'?");
      return;
    }
}

void Sema::resolveIndex(Expr &expr, const Scope &scope) {
  Expr &base = *expr.operand(0), &index = *expr.operand(1);
  resolve(index, scope.overTokens() ? Scope{Context::Constant} : scope);
  const Symbol *counter = index.symbol && index.symbol->is(SymbolKind::Counter) ? index.symbol : nullptr;
  const Symbol *symbol = find(base.text, base.range, scope);
  if (!symbol && scope.context == Context::Token) {
    // An undeclared input has as many values as the loop has steps.
    symbol = implicitInput(base.text, base.range);
    if (counter)
      own[base.text]->steps = counter->steps;
  }
  if (!symbol || !checkUse(*symbol, base.range, scope))
    return;
  base.symbol = symbol;
  if (!symbol->is(SymbolKind::Input) || !symbol->steps)
    diags.error(expr.range, "'" + base.text + "' has one value per token, so it has no index")
        .note("'input " + base.text +
              " : SHAPE[n]' declares n of them; an earlier token's is kept by a state, '" + base.text +
              "1 = " + base.text + "' after it was read");
  if (counter && counter->steps && symbol->steps && !counter->steps->isSymbol() &&
      !symbol->steps->isSymbol() && counter->steps->value > symbol->steps->value)
    diags.error(index.range, "'" + counter->name + "' counts to " + counter->steps->str() + ", but '" +
                                 base.text + "' has " + symbol->steps->str() + " values per token");
  std::optional<double> number = evaluate(index);
  if (number && (*number < 1 || *number != static_cast<double>(static_cast<int64_t>(*number)) ||
                 (symbol->steps && !symbol->steps->isSymbol() && *number > symbol->steps->value)))
    diags.error(index.range, "micro-steps count from 1" +
                                 Twine(symbol->steps ? " to " + symbol->steps->str() : "") +
                                 ", got: " + formatNumber(*number));
}

void Sema::resolveStale(Expr &expr, const Scope &scope) {
  Expr &base = *expr.operand(0);
  const Symbol *symbol = find(base.text, base.range, scope);
  if (!symbol || !symbol->is(SymbolKind::State)) {
    diags.error(base.range, "'@' needs a state, but '" + base.text + "' is none")
        .note("S@16 is the state S at the start of a block of 16 tokens; a product is written '*', and what "
              "the token "
              "before had is a state that is assigned it at the end");
    return;
  }
  if (scope.overTokens()) {
    diags.error(expr.range, "in " + contextName(scope.context) + " there is no block to look back to")
        .note("'" + base.text + "' itself is the state at the start of the block here");
    return;
  }
  if (!checkUse(*symbol, base.range, scope))
    return;
  base.symbol = symbol;
  own[base.text]->stale = true;
  expr.value = static_cast<double>(blockSize(*expr.operand(1)));
}

} // namespace recur::frontend
