// Text of a spec to tokens.
#pragma once
#include "lib/Frontend/SourceFile.h"
#include <vector>

namespace llvm {
class raw_ostream;
} // namespace llvm

namespace recur::frontend {

class DiagnosticEngine;

enum class TokenKind {
  End,
  Newline, // the end of a line, or `;`
  Name,
  Number,
  Plus,
  Minus,
  Star,
  Slash,
  DotStar,
  DotSlash,
  Caret,
  DotCaret,
  Bar,
  LeftParen,
  RightParen,
  LeftBracket,
  RightBracket,
  LeftBrace,
  RightBrace,
  Comma,
  Colon,
  Equal,
  At,
  Dot,
  DotDot,
  Unknown, // a character of no token; already reported
};

/// How a token of this kind is named in a message: "')'", "a name", "the end of the line".
llvm::StringRef describe(TokenKind kind);

struct Token {
  TokenKind kind = TokenKind::End;
  SourceRange range;
  double value = 0;          // Number
  bool spaceBefore = false;  // blank or line end before it
  bool afterLineEnd = false; // on a new line because the line before ended in an operator
};

/// All tokens of a text, the last one being End. A line end is a token only where a statement may end:
/// not after an operator, and not where the line is empty. (Inside brackets the parser skips it.)
std::vector<Token> lex(const SourceFile &file, DiagnosticEngine &diags);

/// One token per line, for --emit=tokens.
void printTokens(const SourceFile &file, llvm::ArrayRef<Token> tokens, llvm::raw_ostream &os);

} // namespace recur::frontend
