#include "lib/Frontend/ParserImpl.h"
#include "llvm/ADT/StringSwitch.h"
#include <optional>

using namespace llvm;

namespace recur::frontend {

Spec parse(const SourceFile &file, DiagnosticEngine &diags) {
  diags.setFile(&file);
  if (!file.checkText(diags)) {
    Spec empty;
    empty.file = &file;
    empty.incomplete = true;
    return empty;
  }
  return Parser(file, diags).run();
}

Parser::Parser(const SourceFile &file, DiagnosticEngine &diags)
    : file(file), diags(diags), context(*spec.context), tokens(lex(file, diags)) {
  spec.file = &file;
}

Spec Parser::run() {
  while (!at(TokenKind::End)) {
    if (accept(TokenKind::Newline))
      continue;
    if (at(TokenKind::RightBrace)) {
      diags.error(take().range, "'}' closes nothing");
      continue;
    }
    if (Stmt *parsed = wholeStatement())
      spec.items.push_back(parsed);
  }
  return std::move(spec);
}

/// A statement up to its end. What could be understood of a broken one is kept, so that its names are known.
Stmt *Parser::wholeStatement() {
  broken = false;
  Stmt *parsed = statement();
  if (parsed && !broken && !endOfStatement(/*ofExpression=*/parsed->value)) {
    broken = true;
    if (parsed->value)
      parsed->value = invalid();
  }
  if (!parsed || broken)
    recover();
  return parsed;
}

Expr *Parser::invalid() {
  broken = true;
  return context.make(ExprKind::Invalid, last, last);
}

//===----------------------------------------------------------------------===//
// Tokens
//===----------------------------------------------------------------------===//

const Token &Parser::peek() {
  if (brackets)
    while (tokens[position].kind == TokenKind::Newline && text(tokens[position]) != ";" &&
           tokens[position + 1].kind != TokenKind::End)
      ++position;
  return tokens[position];
}

const Token &Parser::peekNext() {
  peek();
  return tokens[std::min(position + 1, tokens.size() - 1)];
}

const Token &Parser::take() {
  const Token &token = peek();
  if (token.kind == TokenKind::LeftParen || token.kind == TokenKind::LeftBracket)
    ++brackets;
  else if ((token.kind == TokenKind::RightParen || token.kind == TokenKind::RightBracket) && brackets)
    --brackets;
  last = token.range;
  if (token.kind != TokenKind::End)
    ++position;
  return token;
}

bool Parser::accept(TokenKind kind) {
  if (!at(kind))
    return false;
  take();
  return true;
}

std::string Parser::shown(const Token &token) const {
  if (token.kind == TokenKind::Name || token.kind == TokenKind::Number)
    return ("'" + text(token) + "'").str();
  return describe(token.kind).str();
}

Diagnostic &Parser::unexpected(const Twine &expected) {
  const Token &token = peek();
  // The end of a statement is shown behind what stands before it.
  SourceRange at = token.range;
  bool atLineEnd = brackets && startsLine();
  if (token.kind == TokenKind::Newline || token.kind == TokenKind::End || atLineEnd)
    at = {last.end, last.end};
  // An unknown character was reported by the lexer, and what made the parser give up as well.
  if (token.kind == TokenKind::Unknown || abandoned)
    return reported;
  Diagnostic &error =
      diags.error(at, "expected " + expected + ", got " + (atLineEnd ? "the end of the line" : shown(token)));
  if (token.afterLineEnd || (position > 0 && tokens[position - 1].afterLineEnd))
    error.note(last, "the statement goes on here, as the line before ends in an operator or comma");
  return error;
}

bool Parser::startsLine() {
  peek();
  return position > 0 && tokens[position - 1].kind == TokenKind::Newline;
}

bool Parser::expect(TokenKind kind, const Twine &where) {
  if (accept(kind))
    return true;
  unexpected(describe(kind) + where);
  return false;
}

bool Parser::atFactor() {
  TokenKind kind = peek().kind;
  return !peek().afterLineEnd &&
         (kind == TokenKind::Name || kind == TokenKind::Number || kind == TokenKind::LeftParen);
}

bool Parser::close(const Token &open, TokenKind kind, bool ofExpression) {
  if (accept(kind))
    return true;
  bool isProduct = ofExpression && !startsLine() && atFactor();
  Diagnostic &error = unexpected((isProduct ? "an operator or " : "") + describe(kind));
  if (isProduct)
    error.fix({last.end, peek().range.begin}, "*").note("a product needs '*'");
  error.note(open.range, "to match this " + describe(open.kind));
  return false;
}

void Parser::abandon() {
  position = tokens.size() - 1;
  brackets = braces = 0;
  abandoned = true;
}

bool Parser::enter() {
  if (++nesting <= maxNesting)
    return true;
  if (!at(TokenKind::End)) {
    diags.error(peek().range, "this is nested deeper than " + Twine(maxNesting) + " levels");
    abandon();
  }
  return false;
}

void Parser::recover() {
  // A bracket that was left open does not take the next line with it.
  if (brackets && startsLine())
    --position;
  brackets = 0;
  unsigned open = 0;
  for (; tokens[position].kind != TokenKind::End; ++position) {
    TokenKind kind = tokens[position].kind;
    if (kind == TokenKind::Newline && open == 0)
      return;
    if (kind == TokenKind::RightBrace && open == 0 && braces)
      return; // ends the body around
    if (kind == TokenKind::LeftBrace)
      ++open;
    else if (kind == TokenKind::RightBrace && open)
      --open;
  }
}

static constexpr StringLiteral noIndices =
    "names have no indices of tokens: a state that is read before it is assigned is the last token's";

bool Parser::endOfStatement(bool ofExpression) {
  if (at(TokenKind::Newline) || at(TokenKind::End) || (braces && at(TokenKind::RightBrace)))
    return true;
  const Token &token = peek();
  if (ofExpression && atFactor()) {
    SourceRange gap = {last.end, token.range.begin};
    unexpected("an operator or the end of the statement").fix(gap, "*").note("a product needs '*'");
    return false;
  }
  Diagnostic &error = unexpected("the end of the statement");
  if (token.kind == TokenKind::LeftBrace)
    error.note(noIndices);
  return false;
}

//===----------------------------------------------------------------------===//
// Statements
//===----------------------------------------------------------------------===//

static std::optional<StmtKind> keywordOf(StringRef word) {
  return StringSwitch<std::optional<StmtKind>>(word)
      .Case("rule", StmtKind::Rule)
      .Case("input", StmtKind::Input)
      .Case("param", StmtKind::Param)
      .Case("state", StmtKind::State)
      .Case("output", StmtKind::Output)
      .Case("const", StmtKind::Const)
      .Case("dim", StmtKind::Dimension)
      .Case("fn", StmtKind::Function)
      .Case("for", StmtKind::For)
      .Case("block", StmtKind::Block)
      .Default(std::nullopt);
}

Stmt *Parser::statement() {
  if (!at(TokenKind::Name)) {
    unexpected("a statement");
    return nullptr;
  }
  // Keywords are words only where a declaration may start, and no name is assigned: `input = 1` is fine.
  if (peekNext().kind != TokenKind::Equal) {
    if (std::optional<StmtKind> kind = keywordOf(text(peek()))) {
      uint32_t begin = take().range.begin;
      Stmt *parsed = *kind == StmtKind::Function ? function()
                     : *kind == StmtKind::For    ? loop()
                     : *kind == StmtKind::Block  ? block()
                                                 : declaration(*kind);
      if (parsed)
        parsed->range = {begin, last.end};
      spec.incomplete |= !parsed;
      return parsed;
    }
  }
  return assignment();
}

static bool isOperator(TokenKind kind) { return kind >= TokenKind::Plus && kind <= TokenKind::DotSlash; }

Stmt *Parser::assignment() {
  Stmt *stmt = context.make<Stmt>();
  const Token first = take();
  Ident name = ident(first);
  stmt->names = context.copy<Ident>(name);
  if (!accept(TokenKind::Equal)) {
    TokenKind next = peek().kind;
    Diagnostic &error = unexpected("'=' after '" + name.name + "'");
    if (next == TokenKind::Name) {
      for (StringRef word : {"rule", "input", "param", "state", "output", "const", "dim", "for", "block"})
        if (word.edit_distance(name.name, /*AllowReplacements=*/true, 2) <= (word.size() > 3 ? 2u : 1u))
          error.note("did you mean '" + word + "'?");
      if (name.name == "if" || name.name == "while")
        error.note("there are no conditions: max, min, clamp, relu and sign choose between values");
      spec.incomplete = true;
      return nullptr;
    } else if (next == TokenKind::LeftBracket) {
      error.note(noIndices);
    } else if (isOperator(next) && peekNext().kind == TokenKind::Equal) {
      error.note("there are no updates such as '+=': write '" + name.name + " = " + name.name + " + ...'");
    }
    stmt->value = invalid();
  } else if (!(stmt->value = expression())) {
    stmt->value = invalid();
  }
  stmt->range = {first.range.begin, last.end};
  return stmt;
}

bool Parser::names(Stmt *stmt) {
  std::vector<Ident> list;
  do {
    if (!at(TokenKind::Name)) {
      unexpected("a name");
      return false;
    }
    list.push_back(ident(take()));
  } while (accept(TokenKind::Comma));
  stmt->names = context.copy<Ident>(list);
  return true;
}

Stmt *Parser::declaration(StmtKind kind) {
  Stmt *stmt = context.make<Stmt>();
  stmt->kind = kind;
  if (!names(stmt))
    return nullptr;
  bool single = kind == StmtKind::Rule || kind == StmtKind::Const;
  if (single && stmt->names.size() > 1) {
    diags.error(stmt->names[1].range, "expected one name");
    return nullptr;
  }
  if (kind == StmtKind::Input || kind == StmtKind::Param || kind == StmtKind::State) {
    if (!expect(TokenKind::Colon, " and a shape") || !shape(stmt) || !facts(stmt)) {
      stmt->shape = nullptr;
      stmt->interval = nullptr;
      broken = true;
      return stmt;
    }
  }
  if (kind == StmtKind::Const) {
    stmt->value = expect(TokenKind::Equal, "") ? expression() : nullptr;
  } else if (kind == StmtKind::State && accept(TokenKind::Equal)) {
    stmt->value = expression();
  } else {
    return stmt;
  }
  if (!stmt->value)
    stmt->value = invalid();
  return stmt;
}

bool Parser::dim(DimSyntax &dim) {
  const Token &token = peek();
  dim.range = token.range;
  if (token.kind == TokenKind::Name) {
    dim.name = text(take());
    return true;
  }
  if (token.kind == TokenKind::Number && token.value >= 1 && token.value <= (1 << 24) &&
      token.value == static_cast<double>(static_cast<int64_t>(token.value))) {
    dim.value = static_cast<int64_t>(take().value);
    return true;
  }
  unexpected("a dimension: a name or an integer from 1 to 16777216");
  return false;
}

bool Parser::shape(Stmt *stmt) {
  ShapeSyntax *shape = stmt->shape = context.make<ShapeSyntax>();
  StringRef word = at(TokenKind::Name) ? text(peek()) : StringRef();
  int form = StringSwitch<int>(word)
                 .Case("scalar", 0)
                 .Case("vector", 1)
                 .Case("matrix", 2)
                 .Case("diag", 3)
                 .Default(-1);
  if (form < 0) {
    unexpected("a shape: scalar, vector(n), matrix(m, n) or diag(n)");
    return false;
  }
  uint32_t begin = take().range.begin;
  shape->form = static_cast<ShapeSyntax::Form>(form);
  shape->numDims = form == ShapeSyntax::Scalar ? 0 : form == ShapeSyntax::Matrix ? 2 : 1;
  if (shape->numDims) {
    const Token open = peek();
    if (!expect(TokenKind::LeftParen, " after '" + word + "'"))
      return false;
    for (unsigned i = 0; i < shape->numDims; ++i)
      if ((i && !expect(TokenKind::Comma, ": a " + word + " has " + Twine(shape->numDims) + " dimensions")) ||
          !dim(shape->dims[i]))
        return false;
    if (!close(open, TokenKind::RightParen))
      return false;
  }
  if (at(TokenKind::LeftBracket)) {
    const Token open = take();
    shape->hasSteps = true;
    if (!dim(shape->steps) || !close(open, TokenKind::RightBracket))
      return false;
  }
  shape->range = {begin, last.end};
  return true;
}

bool Parser::facts(Stmt *stmt) {
  while (true) {
    if (!stmt->unit && atWord("unit")) {
      take();
      stmt->unit = true;
      continue;
    }
    if (stmt->interval || !atWord("in"))
      return true;
    take();
    IntervalSyntax *interval = stmt->interval = context.make<IntervalSyntax>();
    const Token open = peek();
    if (!at(TokenKind::LeftParen) && !at(TokenKind::LeftBracket)) {
      unexpected("a range such as [0, 1) after 'in'");
      return false;
    }
    take();
    interval->loOpen = open.kind == TokenKind::LeftParen;
    if (!(interval->lo = expression()) || !expect(TokenKind::Comma, " between the bounds of a range") ||
        !(interval->hi = expression()))
      return false;
    interval->hiOpen = at(TokenKind::RightParen);
    if (!interval->hiOpen && !at(TokenKind::RightBracket)) {
      unexpected("')' or ']'").note(open.range, "to close this range");
      return false;
    }
    take();
    interval->range = {open.range.begin, last.end};
  }
}

bool Parser::parameter(Parameter &parameter) {
  if (!at(TokenKind::Name)) {
    unexpected("a parameter's name");
    return false;
  }
  parameter.name = ident(take());
  return !accept(TokenKind::Equal) || (parameter.defaultValue = expression());
}

Stmt *Parser::function() {
  Stmt *stmt = context.make<Stmt>();
  stmt->kind = StmtKind::Function;
  if (!names(stmt))
    return nullptr;
  const Token open = peek();
  if (!expect(TokenKind::LeftParen, " and the parameters"))
    return nullptr;
  std::vector<Parameter> list;
  if (!at(TokenKind::RightParen))
    do {
      if (!parameter(list.emplace_back()))
        return nullptr;
    } while (accept(TokenKind::Comma));
  if (!close(open, TokenKind::RightParen) || !facts(stmt) || !expect(TokenKind::Equal, ""))
    return nullptr;
  stmt->parameters = context.copy<Parameter>(list);
  stmt->value = expression();
  return stmt->value ? stmt : nullptr;
}

Stmt *Parser::loop() {
  Stmt *stmt = context.make<Stmt>();
  stmt->kind = StmtKind::For;
  if (!names(stmt))
    return nullptr;
  if (!atWord("in")) {
    unexpected("'in' and the loop's bounds");
    return nullptr;
  }
  take();
  if (!(stmt->lo = expression()) || !expect(TokenKind::DotDot, " between the loop's bounds") ||
      !(stmt->hi = expression()) || !body(stmt))
    return nullptr;
  return stmt;
}

Stmt *Parser::block() {
  Stmt *stmt = context.make<Stmt>();
  stmt->kind = StmtKind::Block;
  if (!at(TokenKind::Number) && !at(TokenKind::Name)) {
    unexpected("the number of tokens of a block");
    return nullptr;
  }
  if (!(stmt->value = primary()) || !body(stmt))
    return nullptr;
  return stmt;
}

bool Parser::body(Stmt *stmt) {
  const Token open = peek();
  if (!expect(TokenKind::LeftBrace, "") || !enter())
    return false;
  ++braces;
  std::vector<Stmt *> list;
  while (!at(TokenKind::RightBrace) && !at(TokenKind::End)) {
    if (accept(TokenKind::Newline))
      continue;
    if (Stmt *parsed = wholeStatement())
      list.push_back(parsed);
  }
  stmt->body = context.copy<Stmt *>(list);
  braces -= braces != 0;
  leave();
  return close(open, TokenKind::RightBrace);
}

} // namespace recur::frontend
