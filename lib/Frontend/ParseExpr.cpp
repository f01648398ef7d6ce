#include "lib/Frontend/ParserImpl.h"

using namespace llvm;

namespace recur::frontend {

Expr *Parser::make(ExprKind kind, SourceRange range, SourceRange anchor, ArrayRef<Expr *> operands) {
  Expr *expr = context.make(kind, range, anchor, operands);
  if (expr->depth <= maxDepth)
    return expr;
  diags.error(anchor, "this expression has more than " + Twine(maxDepth) + " operations inside each other")
      .note("name parts of it in statements of their own");
  abandon();
  return nullptr;
}

// SUM := TERM (('+' | '-') TERM)*
Expr *Parser::expression() {
  Expr *left = term();
  while (left && (at(TokenKind::Plus) || at(TokenKind::Minus))) {
    const Token op = take();
    Expr *right = term();
    if (!right)
      return nullptr;
    left = make(op.kind == TokenKind::Plus ? ExprKind::Add : ExprKind::Subtract,
                cover(left->range, right->range), op.range, {left, right});
  }
  return left;
}

// TERM := UNARY (('*' | '/' | '.*' | './') UNARY)*
Expr *Parser::term() {
  Expr *left = unary();
  while (left) {
    ExprKind kind;
    switch (peek().kind) {
    case TokenKind::Star:
      kind = ExprKind::Multiply;
      break;
    case TokenKind::Slash:
      kind = ExprKind::Divide;
      break;
    case TokenKind::DotStar:
      kind = ExprKind::ElementMultiply;
      break;
    case TokenKind::DotSlash:
      kind = ExprKind::ElementDivide;
      break;
    default:
      return left;
    }
    SourceRange op = take().range;
    Expr *right = unary();
    if (!right)
      return nullptr;
    left = make(kind, cover(left->range, right->range), op, {left, right});
  }
  return nullptr;
}

// UNARY := '-' UNARY | POWER
Expr *Parser::unary() {
  if (!enter())
    return nullptr;
  Expr *result;
  if (at(TokenKind::Minus)) {
    SourceRange op = take().range;
    Expr *operand = unary();
    result = operand ? make(ExprKind::Negate, cover(op, operand->range), op, operand) : nullptr;
  } else {
    result = power();
  }
  leave();
  return result;
}

// POWER := POSTFIX (('^' | '.^') UNARY)?
Expr *Parser::power() {
  Expr *base = postfix();
  bool ofEntries = at(TokenKind::DotCaret);
  if (!base || (!at(TokenKind::Caret) && !ofEntries))
    return base;
  SourceRange op = take().range;
  Expr *exponent = unary();
  if (!exponent)
    return nullptr;
  return make(ofEntries ? ExprKind::ElementPower : ExprKind::Power, cover(base->range, exponent->range), op,
              {base, exponent});
}

// POSTFIX := PRIMARY ('.' 'T' | 'T' right after a bracket | '[' SUM ']' | '@' BLOCK)*
Expr *Parser::postfix() {
  Expr *expr = primary();
  while (expr) {
    const Token token = peek();
    bool afterBracket = last.end > 0 && StringRef(")]").contains(file.text()[last.end - 1]);
    if (token.kind == TokenKind::Name && text(token) == "T" && !token.spaceBefore && afterBracket) {
      take();
      expr = make(ExprKind::Transpose, cover(expr->range, token.range), token.range, expr);
    } else if (token.kind == TokenKind::Dot) {
      take();
      if (!atWord("T")) {
        unexpected("'T' after '.'");
        return nullptr;
      }
      SourceRange anchor = cover(token.range, take().range);
      expr = make(ExprKind::Transpose, cover(expr->range, anchor), anchor, expr);
    } else if (token.kind == TokenKind::LeftBracket) {
      if (!expr->is(ExprKind::Name)) {
        diags.error(token.range, "only an input with several values per token has an index, such as k[j]");
        return nullptr;
      }
      take();
      Expr *index = expression();
      if (!index || !close(token, TokenKind::RightBracket))
        return nullptr;
      expr = make(ExprKind::Index, cover(expr->range, last), expr->range, {expr, index});
    } else if (token.kind == TokenKind::At) {
      if (!expr->is(ExprKind::Name)) {
        diags.error(token.range, "'@' follows the name of a state, such as S@16").highlight(expr->range);
        return nullptr;
      }
      take();
      if (!at(TokenKind::Number) && !at(TokenKind::Name)) {
        unexpected("the number of tokens of a block after '@'");
        return nullptr;
      }
      Expr *size = primary();
      expr =
          size ? make(ExprKind::Stale, cover(expr->range, size->range), expr->range, {expr, size}) : nullptr;
    } else {
      return expr;
    }
  }
  return nullptr;
}

Expr *Parser::primary() {
  const Token token = peek();
  switch (token.kind) {
  case TokenKind::Number: {
    take();
    Expr *number = context.make(ExprKind::Number, token.range, token.range);
    number->value = token.value;
    number->text = text(token).rtrim('.');
    return number;
  }
  case TokenKind::Name: {
    take();
    if (at(TokenKind::LeftParen))
      return call(ident(token));
    Expr *name = context.make(ExprKind::Name, token.range, token.range);
    name->text = text(token);
    return name;
  }
  case TokenKind::LeftParen: {
    take();
    Expr *inner = expression();
    if (!inner || !close(token, TokenKind::RightParen, /*ofExpression=*/true))
      return nullptr;
    inner->range = {token.range.begin, last.end};
    return inner;
  }
  case TokenKind::Bar: { // a bar opens where an operand is expected, and closes where an operator is
    take();
    Expr *inner = expression();
    if (!inner || !close(token, TokenKind::Bar, /*ofExpression=*/true))
      return nullptr;
    SourceRange range = {token.range.begin, last.end};
    return make(ExprKind::Norm, range, range, inner);
  }
  default:
    Diagnostic &error = unexpected("an operand");
    if (token.kind == TokenKind::Star && token.range.begin == last.end && file.text(last) == "*")
      error.note("a power is written '^', or '.^' entry by entry");
    return nullptr;
  }
}

Expr *Parser::call(Ident function) {
  const Token open = take();
  std::vector<Expr *> arguments;
  std::vector<StringRef> labels;
  if (!at(TokenKind::RightParen))
    do {
      StringRef label;
      SourceRange labelRange = peek().range;
      if (at(TokenKind::Name) && peekNext().kind == TokenKind::Equal) {
        label = text(take());
        take();
      } else if (!labels.empty() && !labels.back().empty()) {
        diags.error(labelRange, "an argument without a name cannot follow one with a name");
        return nullptr;
      }
      Expr *argument = expression();
      if (!argument)
        return nullptr;
      arguments.push_back(argument);
      labels.push_back(label);
    } while (accept(TokenKind::Comma));
  if (!close(open, TokenKind::RightParen, /*ofExpression=*/true))
    return nullptr;
  Expr *expr = make(ExprKind::Call, {function.range.begin, last.end}, function.range, arguments);
  if (expr) {
    expr->text = function.name;
    expr->labels = context.copy<StringRef>(labels);
  }
  return expr;
}

} // namespace recur::frontend
