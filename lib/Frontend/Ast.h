// The syntax tree of a spec. The parser builds it, sema resolves names in place and fills in the shapes.
#pragma once
#include "lib/Frontend/Shape.h"
#include "lib/Frontend/SourceFile.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Allocator.h"
#include <vector>

namespace llvm {
class raw_ostream;
} // namespace llvm

namespace recur::frontend {

struct Expr;
struct Stmt;
struct Symbol;
struct Primitive;

/// A name and where it stands.
struct Ident {
  llvm::StringRef name;
  SourceRange range;
};

enum class ExprKind {
  Invalid, // what the parser could not understand; fits everywhere
  Number,
  Name,
  Negate,
  Add,
  Subtract,
  Multiply,        // `*`: matrix product, or scaling where one side is a scalar
  Divide,          // `/`: by a scalar
  ElementMultiply, // `.*`
  ElementDivide,   // `./`
  Power,           // `^`
  ElementPower,    // `.^`
  Transpose,       // `x.T`, or `xT` once sema has resolved it
  Norm,            // `|x|`; `|x|^2` is a Power of it
  Index,           // `x[j]`: operands x, j
  Stale,           // `S@n`: operands S, n
  Call,            // operands are the arguments, labels their names where given
};

/// One expression. Nodes live in the arena of their tree and are trivially destructible.
struct Expr {
  ExprKind kind = ExprKind::Number;
  SourceRange range;    // the whole expression
  SourceRange anchor;   // where a caret belongs: the operator, or the name
  unsigned depth = 1;   // height of the tree, bounded by the parser
  double value = 0;     // Number
  llvm::StringRef text; // Number: as written; Name, Call: the name
  llvm::MutableArrayRef<Expr *> operands;
  llvm::ArrayRef<llvm::StringRef> labels; // Call: one per operand, empty where positional

  // Filled in by sema.
  const Symbol *symbol = nullptr;       // Name
  const Primitive *primitive = nullptr; // Call of a built-in function
  Expr *body = nullptr; // Call of a function of the prelude or the spec: its body, with Argument symbols
  llvm::ArrayRef<const Symbol *> arguments; // of `body`, bound to `operands` in this order
  Shape shape;
  Interval interval; // promised by the function that is called
  bool unit = false;

  bool is(ExprKind k) const { return kind == k; }
  Expr *operand(unsigned i = 0) const { return operands[i]; }
};

/// The extent in a declaration: a name or an integer.
struct DimSyntax {
  llvm::StringRef name; // empty: `value`
  int64_t value = 1;
  SourceRange range;
};

/// `scalar`, `vector(n)`, `matrix(m, n)`, `diag(n)`, each with an optional `[steps]`.
struct ShapeSyntax {
  enum Form { Scalar, Vector, Matrix, Diag };
  Form form = Scalar;
  DimSyntax dims[2];
  unsigned numDims = 0;
  bool hasSteps = false;
  DimSyntax steps;
  SourceRange range;
};

/// `[LO, HI)`; the bounds are constant expressions.
struct IntervalSyntax {
  Expr *lo = nullptr;
  Expr *hi = nullptr;
  bool loOpen = false;
  bool hiOpen = false;
  SourceRange range;
};

enum class StmtKind {
  Rule,      // rule NAME
  Input,     // input NAMES : SHAPE [in RANGE] [unit]
  Param,     // param NAMES : SHAPE [in RANGE] [unit]
  State,     // state NAME : SHAPE [= VALUE]
  Output,    // output NAMES
  Const,     // const NAME = VALUE
  Dimension, // dim NAMES
  Function,  // fn NAME(PARAMETERS) [in RANGE] [unit] = VALUE
  Assign,    // NAME = VALUE
  For,       // for NAME in LO..HI { BODY }
  Block,     // block SIZE { BODY }
};

/// A parameter of a function; a default makes the argument optional.
struct Parameter {
  Ident name;
  Expr *defaultValue = nullptr;
};

/// A declaration or a statement.
struct Stmt {
  StmtKind kind = StmtKind::Assign;
  SourceRange range;
  llvm::ArrayRef<Ident> names;
  ShapeSyntax *shape = nullptr;
  IntervalSyntax *interval = nullptr;
  bool unit = false;
  Expr *value = nullptr; // VALUE; Block: SIZE
  Expr *lo = nullptr;    // For
  Expr *hi = nullptr;
  llvm::ArrayRef<Parameter> parameters;
  llvm::ArrayRef<Stmt *> body;

  // Filled in by sema.
  Symbol *symbol = nullptr; // Assign: what is assigned; For: the loop's variable
  int64_t blockSize = 0;    // Block

  bool is(StmtKind k) const { return kind == k; }
  const Ident &name() const { return names.front(); }
};

/// Owns the nodes of a tree and the strings made for it.
class AstContext {
public:
  template <typename T>
  T *make() {
    return new (allocator) T();
  }
  Expr *make(ExprKind kind, SourceRange range, SourceRange anchor, llvm::ArrayRef<Expr *> operands = {});
  Expr *makeNumber(double value, SourceRange range);
  template <typename T>
  llvm::MutableArrayRef<T> copy(llvm::ArrayRef<T> from) {
    T *to = allocator.Allocate<T>(from.size());
    std::uninitialized_copy(from.begin(), from.end(), to);
    return {to, from.size()};
  }
  llvm::StringRef save(const llvm::Twine &text) {
    llvm::SmallString<32> buffer;
    llvm::ArrayRef<char> saved = copy(llvm::ArrayRef<char>(text.toStringRef(buffer)));
    return {saved.data(), saved.size()};
  }

private:
  llvm::BumpPtrAllocator allocator;
};

/// A parsed spec. Names are views into the source file, which must outlive it.
struct Spec {
  const SourceFile *file = nullptr;
  std::unique_ptr<AstContext> context = std::make_unique<AstContext>();
  std::vector<Stmt *> items; // declarations and statements in the order of the text
  bool incomplete = false;   // a declaration is missing whose absence would change what the rest means
};

/// The spelling of an operator: "+", ".*"; empty for kinds that are no operator.
llvm::StringRef operatorSpelling(ExprKind kind);

/// Prints a spec, statement or expression as source text. Parsing it gives the same tree.
void print(const Spec &spec, llvm::raw_ostream &os);
void print(const Stmt &stmt, llvm::raw_ostream &os, unsigned indent = 0);
void print(const Expr &expr, llvm::raw_ostream &os);
std::string toString(const Expr &expr);

/// Prints the tree itself, one node per line, with shapes where sema has found them.
void dump(const Spec &spec, llvm::raw_ostream &os);

} // namespace recur::frontend
