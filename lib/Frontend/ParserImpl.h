// The parser's state, shared by its two halves: statements (Parser.cpp) and expressions (ParseExpr.cpp).
#pragma once
#include "lib/Frontend/Diagnostics.h"
#include "lib/Frontend/Lexer.h"
#include "lib/Frontend/Parser.h"

namespace recur::frontend {

class Parser {
public:
  Parser(const SourceFile &file, DiagnosticEngine &diags);

  Spec run();

private:
  // Statements. Null: a syntax error, already reported.
  Stmt *wholeStatement();
  Stmt *statement();
  Stmt *declaration(StmtKind kind);
  Stmt *function();
  Stmt *loop();
  Stmt *block();
  Stmt *assignment();
  bool body(Stmt *stmt);
  bool names(Stmt *stmt);
  bool shape(Stmt *stmt);
  bool dim(DimSyntax &dim);
  bool facts(Stmt *stmt);
  bool parameter(Parameter &parameter);
  bool endOfStatement(bool ofExpression);
  /// Skips to the end of a statement that could not be understood.
  void recover();

  // Expressions.
  Expr *invalid();
  Expr *expression();
  Expr *term();
  Expr *unary();
  Expr *power();
  Expr *postfix();
  Expr *primary();
  Expr *call(Ident function);
  Expr *make(ExprKind kind, SourceRange range, SourceRange anchor, llvm::ArrayRef<Expr *> operands);

  // Tokens. Line ends inside brackets are skipped.
  const Token &peek();
  const Token &peekNext();
  const Token &take();
  bool at(TokenKind kind) { return peek().kind == kind; }
  bool accept(TokenKind kind);
  bool expect(TokenKind kind, const llvm::Twine &where);
  /// Is the next token the first of its line?
  bool startsLine();
  bool atWord(llvm::StringRef word) { return at(TokenKind::Name) && text(peek()) == word; }
  /// Closes the bracket opened by `open`.
  bool close(const Token &open, TokenKind kind, bool ofExpression = false);
  bool atFactor();
  llvm::StringRef text(const Token &token) const { return file.text(token.range); }
  std::string shown(const Token &token) const;
  Ident ident(const Token &token) const { return {text(token), token.range}; }
  Diagnostic &unexpected(const llvm::Twine &expected);
  /// Gives up on the whole text: what follows would only repeat the error.
  void abandon();
  /// Counts a level of nesting; false, and an error, where it is one too many.
  bool enter();
  void leave() { --nesting; }

  const SourceFile &file;
  DiagnosticEngine &diags;
  Spec spec;
  AstContext &context;
  std::vector<Token> tokens;
  size_t position = 0;
  unsigned brackets = 0; // open ( and [
  unsigned braces = 0;   // open {
  unsigned nesting = 0;
  bool abandoned = false;
  bool broken = false; // the current statement has a syntax error, but what is known of it is kept
  SourceRange last;    // of the token taken last
  Diagnostic reported; // takes the notes of an error that was reported before
};

} // namespace recur::frontend
