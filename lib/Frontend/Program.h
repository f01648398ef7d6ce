// What the front end hands on: a spec with all names resolved and all shapes known.
#pragma once
#include "lib/Frontend/Ast.h"
#include <deque>
#include <optional>
#include <vector>

namespace recur::frontend {

class DiagnosticEngine;

enum class SymbolKind {
  Input,      // one value per token and head
  Param,      // one value per head
  State,      // carried from token to token
  Const,      // fixed when compiling, perhaps per head
  Local,      // assigned by statements
  Counter,    // of a `for`, from 1
  Dimension,  // a dimension as a number
  Rows,       // the matrix whose rows are the values of a token value, one per token of the block or sequence
  Argument,   // of an inlined function
  Position,   // `t`
  Head,       // `head`
  Heads,      // `heads`
  Infinity,   // `inf`
  Identity,   // `I`
  Mask,       // `M`
  StrictMask, // `Mx`
};

/// Where the value of a name is computed.
enum class Level {
  Head,     // once: constants, parameters
  Token,    // for each token
  Block,    // once for a block of tokens
  Sequence, // once for the whole sequence
};

/// A thing that a name stands for.
struct Symbol {
  SymbolKind kind = SymbolKind::Input;
  llvm::StringRef name;
  SourceRange range;     // its declaration, or the first place that uses it
  bool declared = false; // by a declaration of the spec
  Level level = Level::Token;
  Shape shape;
  Interval interval;            // of every entry; a promise for inputs and params
  bool unit = false;            // the norm is 1
  std::optional<Dim> steps;     // Input: micro-steps per token
  Expr *value = nullptr;        // Const: its value. State: its initial value, null means zero
  std::optional<double> number; // Const: the value where it is one number
  const Symbol *of = nullptr;   // Rows: the token value
  bool output = false;
  bool stale = false; // State: `S@n` occurs

  bool is(SymbolKind k) const { return kind == k; }
};

/// A checked spec. Expressions carry symbols, shapes and intervals.
struct Program {
  const SourceFile *file = nullptr;
  std::string name; // of the rule
  std::deque<Symbol> symbols;
  std::vector<llvm::StringRef> dims; // symbolic dimensions in the order of appearance, without tokenDim
  // In the order of the text; the C interface has the same order.
  std::vector<const Symbol *> inputs, params, states, consts, locals, outputs;
  std::vector<const Stmt *> body;     // per token; may hold Block statements
  std::vector<const Stmt *> sequence; // over the whole sequence, after `body`: attention forms
  bool usesPosition = false;
  int64_t blockSize = 0; // of `S@n` and `block n`; 0: none
  Spec spec;             // owns the tree

  /// What one token has of an output: an attention form computes all of them as rows, and a row is a vector.
  static Shape perToken(const Symbol &output);
};

/// Parses and checks a spec. Null, and errors in `diags`, when it is not well formed. `file` must outlive the
/// result.
std::unique_ptr<Program> check(const SourceFile &file, DiagnosticEngine &diags);

/// Checks a parsed spec.
std::unique_ptr<Program> check(Spec spec, DiagnosticEngine &diags);

/// The value of an expression of numbers and constants; nothing where it depends on more.
std::optional<double> evaluate(const Expr &expr);

/// Prints names, kinds, shapes and facts, one per line.
void printSymbols(const Program &program, llvm::raw_ostream &os);

} // namespace recur::frontend
