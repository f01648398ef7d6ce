#include "lib/Frontend/Lexer.h"
#include "lib/Frontend/Diagnostics.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace recur::frontend {

StringRef describe(TokenKind kind) {
  switch (kind) {
  case TokenKind::End:
    return "the end of the file";
  case TokenKind::Newline:
    return "the end of the statement";
  case TokenKind::Name:
    return "a name";
  case TokenKind::Number:
    return "a number";
  case TokenKind::Plus:
    return "'+'";
  case TokenKind::Minus:
    return "'-'";
  case TokenKind::Star:
    return "'*'";
  case TokenKind::Slash:
    return "'/'";
  case TokenKind::DotStar:
    return "'.*'";
  case TokenKind::DotSlash:
    return "'./'";
  case TokenKind::Caret:
    return "'^'";
  case TokenKind::DotCaret:
    return "'.^'";
  case TokenKind::Bar:
    return "'|'";
  case TokenKind::LeftParen:
    return "'('";
  case TokenKind::RightParen:
    return "')'";
  case TokenKind::LeftBracket:
    return "'['";
  case TokenKind::RightBracket:
    return "']'";
  case TokenKind::LeftBrace:
    return "'{'";
  case TokenKind::RightBrace:
    return "'}'";
  case TokenKind::Comma:
    return "','";
  case TokenKind::Colon:
    return "':'";
  case TokenKind::Equal:
    return "'='";
  case TokenKind::At:
    return "'@'";
  case TokenKind::Dot:
    return "'.'";
  case TokenKind::DotDot:
    return "'..'";
  case TokenKind::Unknown:
    return "an unknown character";
  }
  llvm_unreachable("all tokens are described");
}

namespace {

class Lexer {
public:
  Lexer(const SourceFile &file, DiagnosticEngine &diags) : text(file.text()), diags(diags) {}

  std::vector<Token> run() {
    if (text.starts_with("\xef\xbb\xbf")) // what some editors begin UTF-8 with
      at = 3;
    while (at < text.size()) {
      char c = text[at];
      if (c == ' ' || c == '\t' || c == '\r') {
        ++at;
        space = true;
      } else if (c == '#' || text.substr(at).starts_with("//")) {
        at = std::min(text.find('\n', at), text.size());
      } else if (c == '\n' || c == ';') {
        endStatement(c == ';');
      } else if (isAlpha(c) || c == '_') {
        size_t end = at;
        while (end < text.size() && (isAlnum(text[end]) || text[end] == '_'))
          ++end;
        name(end);
      } else if (isDigit(c) || (c == '.' && isDigit(peek(1)))) {
        number();
      } else {
        punctuation();
      }
    }
    tokens.push_back({TokenKind::Newline, {at32(), at32()}});
    tokens.push_back({TokenKind::End, {at32(), at32()}});
    return std::move(tokens);
  }

private:
  static constexpr size_t maxNameLength = 255;

  uint32_t at32() const { return static_cast<uint32_t>(at); }
  char peek(size_t ahead) const { return at + ahead < text.size() ? text[at + ahead] : '\0'; }

  Token &push(TokenKind kind, size_t length) {
    Token token;
    token.kind = kind;
    token.range = {at32(), at32() + static_cast<uint32_t>(length)};
    token.spaceBefore = space;
    token.afterLineEnd = continued;
    tokens.push_back(token);
    at += length;
    space = continued = false;
    return tokens.back();
  }

  void name(size_t end) {
    size_t length = end - at;
    push(TokenKind::Name, std::min(length, maxNameLength));
    if (length > maxNameLength)
      diags.error(tokens.back().range, "a name has at most " + llvm::Twine(maxNameLength) +
                                           " characters, got: " + llvm::Twine(length));
    at = end;
  }

  /// A statement that ends in an operator goes on in the next line.
  void endStatement(bool semicolon) {
    TokenKind last = tokens.empty() ? TokenKind::Newline : tokens.back().kind;
    bool goesOn = last == TokenKind::Plus || last == TokenKind::Minus || last == TokenKind::Star ||
                  last == TokenKind::Slash || last == TokenKind::DotStar || last == TokenKind::DotSlash ||
                  last == TokenKind::Caret || last == TokenKind::DotCaret || last == TokenKind::Comma ||
                  last == TokenKind::Equal;
    if (last == TokenKind::Newline || (goesOn && !semicolon)) {
      ++at;
      space = true;
      continued = goesOn;
      return;
    }
    push(TokenKind::Newline, 1);
    space = true;
  }

  /// 1  1.5  .5  1e-6; `1..n` and `1.*x` are no numbers with a point.
  void number() {
    size_t end = at;
    auto digits = [&] {
      while (end < text.size() && isDigit(text[end]))
        ++end;
    };
    auto next = [&](size_t ahead) { return end + ahead < text.size() ? text[end + ahead] : '\0'; };
    digits();
    if (next(0) == '.' && (isDigit(next(1)) || !(isAlpha(next(1)) || StringRef(".*/^").contains(next(1))))) {
      ++end;
      digits();
    }
    if (next(0) == 'e' || next(0) == 'E') {
      size_t sign = next(1) == '+' || next(1) == '-' ? 1 : 0;
      if (isDigit(next(1 + sign))) {
        end += 1 + sign;
        digits();
      }
    }
    double value = 0;
    StringRef spelling = text.slice(at, end);
    // Out of range gives infinity or zero, which no one means.
    bool failed = spelling.getAsDouble(value, /*AllowInexact=*/true) || value > 1e300;
    SourceRange range = {at32(), static_cast<uint32_t>(end)};
    push(TokenKind::Number, end - at).value = failed ? 0 : value;
    if (failed)
      diags.error(range, "number '" + spelling + "' is out of range");
  }

  void punctuation() {
    StringRef two = text.substr(at, 2);
    TokenKind pair = StringSwitch<TokenKind>(two)
                         .Case(".*", TokenKind::DotStar)
                         .Case("./", TokenKind::DotSlash)
                         .Case(".^", TokenKind::DotCaret)
                         .Case("..", TokenKind::DotDot)
                         .Default(TokenKind::Unknown);
    if (pair != TokenKind::Unknown) {
      push(pair, 2);
      return;
    }
    TokenKind one = StringSwitch<TokenKind>(text.substr(at, 1))
                        .Case("+", TokenKind::Plus)
                        .Case("-", TokenKind::Minus)
                        .Case("*", TokenKind::Star)
                        .Case("/", TokenKind::Slash)
                        .Case("^", TokenKind::Caret)
                        .Case("|", TokenKind::Bar)
                        .Case("(", TokenKind::LeftParen)
                        .Case(")", TokenKind::RightParen)
                        .Case("[", TokenKind::LeftBracket)
                        .Case("]", TokenKind::RightBracket)
                        .Case("{", TokenKind::LeftBrace)
                        .Case("}", TokenKind::RightBrace)
                        .Case(",", TokenKind::Comma)
                        .Case(":", TokenKind::Colon)
                        .Case("=", TokenKind::Equal)
                        .Case("@", TokenKind::At)
                        .Case(".", TokenKind::Dot)
                        .Default(TokenKind::Unknown);
    if (one != TokenKind::Unknown) {
      push(one, 1);
      return;
    }
    size_t length = 1; // a whole UTF-8 character
    while ((static_cast<unsigned char>(peek(length)) & 0xc0) == 0x80)
      ++length;
    StringRef character = text.substr(at, length);
    SourceRange range = push(TokenKind::Unknown, length).range;
    // Formulas pasted from papers bring these.
    StringRef meant = StringSwitch<StringRef>(character)
                          .Cases({"\u2212", "\u2013"}, "-")
                          .Cases({"\u00b7", "\u00d7", "\u2217"}, "*")
                          .Case("\u2299", ".*")
                          .Cases({"'", "\u1d40", "\u22a4"}, ".T")
                          .Default("");
    Diagnostic &error = diags.error(range, "character '" + character + "' has no meaning here");
    if (!meant.empty())
      error.fix(range, meant).note("write '" + meant + "'");
    if (character == "<" || character == ">" || character == "?")
      error.note("there are no comparisons: max, min, clamp, relu and sign choose between values");
  }

  StringRef text;
  DiagnosticEngine &diags;
  std::vector<Token> tokens;
  size_t at = 0;
  bool space = true;
  bool continued = false;
};

} // namespace

std::vector<Token> lex(const SourceFile &file, DiagnosticEngine &diags) { return Lexer(file, diags).run(); }

void printTokens(const SourceFile &file, ArrayRef<Token> tokens, raw_ostream &os) {
  for (const Token &token : tokens) {
    LineColumn at = file.lineColumn(token.range.begin);
    os << at.line << ':' << at.column << ' ';
    if (token.kind == TokenKind::Name)
      os << "name " << file.text(token.range);
    else if (token.kind == TokenKind::Number)
      os << "number " << file.text(token.range);
    else
      os << describe(token.kind);
    os << '\n';
  }
}

} // namespace recur::frontend
