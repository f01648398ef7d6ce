// The checker's state, shared by its parts: declarations (Sema.cpp), names (Resolve.cpp, Calls.cpp), shapes
// (Infer.cpp) and the final checks (Finish.cpp).
#pragma once
#include "lib/Frontend/Builtins.h"
#include "lib/Frontend/Diagnostics.h"
#include "lib/Frontend/Program.h"
#include "lib/Frontend/ShapeSolver.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace recur::frontend {

/// Where an expression stands; this decides which names it may use.
enum class Context {
  Constant, // the value of a const, a bound of a range
  Initial,  // the initial value of a state
  Token,    // a statement that runs for each token
  Block,    // a statement of `block n { }`
  Sequence, // a statement over the whole sequence
};

struct Scope {
  Context context = Context::Token;
  unsigned functions =
      ~0u; // how many of the spec's functions may be called: those above a function's own line
  const llvm::StringMap<const Symbol *> *arguments = nullptr; // inside a function's body: the only names
  SourceRange call = {};                                      // inside a function's body: the outermost call
  unsigned callDepth = 0;

  bool overTokens() const { return context == Context::Block || context == Context::Sequence; }
};

class Sema {
public:
  Sema(Spec spec, DiagnosticEngine &diags);

  std::unique_ptr<Program> run();

private:
  // Sema.cpp: what the names of the spec are.
  void declareItems();
  void declareValues(const Stmt &item);
  void declareFunction(const Stmt &item);
  void checkFunctionNames(const Expr &expr, const Stmt &function);
  void collectAssigned(llvm::ArrayRef<Stmt *> items);
  void declareAssigned(const Stmt &stmt);
  void findStates(llvm::ArrayRef<Stmt *> items, llvm::StringSet<> &assigned,
                  llvm::SmallVectorImpl<llvm::StringRef> &counters);
  void readEarly(const Expr &expr, const llvm::StringSet<> &assigned,
                 llvm::ArrayRef<llvm::StringRef> counters);
  void classify();
  bool overSequence(const Stmt &stmt) const;
  bool overSequence(const Expr &expr) const;
  void markLevel(const Stmt &stmt, Level level);
  void chooseOutputs();

  // Resolve.cpp: names to symbols, in the order of the text.
  void resolveItems();
  void resolveStatement(Stmt &stmt, Context context);
  Symbol &assigned(const Ident &ident);
  void resolveLoop(Stmt &stmt, Context context);
  void resolveBlock(Stmt &stmt);
  void resolveInterval(const Stmt &item);
  std::optional<Interval> evaluateInterval(const IntervalSyntax &syntax);
  int64_t blockSize(Expr &size);
  void resolve(Expr &expr, const Scope &scope);
  void resolveName(Expr &expr, const Scope &scope);
  void resolveIndex(Expr &expr, const Scope &scope);
  void resolveStale(Expr &expr, const Scope &scope);
  const Symbol *find(llvm::StringRef name, SourceRange at, const Scope &scope);
  const Symbol *rows(llvm::StringRef name, SourceRange at, const Scope &scope);
  const Symbol *implicitInput(llvm::StringRef name, SourceRange at);
  const Symbol *builtin(llvm::StringRef name);
  bool checkUse(const Symbol &symbol, SourceRange at, const Scope &scope);
  void unknownName(llvm::StringRef name, SourceRange at, const llvm::Twine &where);

  // Calls.cpp: functions.
  void resolveCall(Expr &expr, const Scope &scope);
  void resolvePrimitive(Expr &expr, const Primitive &primitive, const Scope &scope);
  void resolveGradient(Expr &expr);
  void inlineFunction(Expr &expr, const Stmt &function, unsigned visible, const Scope &scope);
  bool bindArguments(Expr &expr, const Stmt &function, llvm::SmallVectorImpl<Expr *> &bound);
  Expr *clone(const Expr &expr, SourceRange at);
  void unknownFunction(const Expr &expr);

  // Infer.cpp: shapes.
  void inferShapes();
  void inferStatement(const Stmt &stmt);
  ShapeVar infer(Expr &expr);
  ShapeVar inferKind(Expr &expr);
  ShapeVar inferPrimitive(Expr &expr);
  ShapeVar shapeOf(const Symbol &symbol);
  ShapeVar declaredShape(const ShapeSyntax &syntax);
  DimVar declaredDim(const DimSyntax &syntax);
  void require(const Expr &expr, ShapeVar shape, const llvm::Twine &rule);
  void requireScalar(const Expr &expr, const llvm::Twine &rule);
  void conflict(const Constraint &constraint, DimVar a, DimVar b);
  void noteOrigins(Diagnostic &error, llvm::ArrayRef<DimVar> dims);
  void noteDeclared(Diagnostic &error, const Expr &expr);
  void conventionsOf(const Expr &product, ShapeVar left, unsigned constraint);
  bool settle(const Symbol &symbol);
  void settleAmbiguous();

  // Finish.cpp: shapes into the tree, and the checks that need them.
  void finishShapes();
  Shape finish(ShapeVar shape);
  void needVector(const Expr &expr);
  bool isDiag(const Expr &expr);
  void markDiagonals();
  void checkDiagonals();
  void checkIdentities();
  void checkDimensions();
  void checkLevels();
  void warnUnused();
  void warnAlwaysZero();
  void warnOfOnes();
  void listSymbols();

  std::string shown(const Expr &expr) const;
  std::string shown(SourceRange range) const;
  Symbol &addSymbol(SymbolKind kind, llvm::StringRef name, SourceRange at);

  std::unique_ptr<Program> program;
  Spec &spec;
  AstContext &context;
  DiagnosticEngine &diags;
  const SourceFile &file;

  llvm::StringMap<Symbol *> own;       // declared or assigned
  llvm::StringMap<Symbol *> others;    // rows and built-in names
  llvm::StringMap<SourceRange> dims;   // names of dimensions that declarations use
  std::vector<const Stmt *> functions; // of the spec
  std::vector<Ident> outputNames;
  llvm::SmallVector<Symbol *> counters; // of the loops around
  llvm::DenseSet<const Symbol *> assignedSoFar, readSymbols;
  llvm::DenseMap<const Symbol *, std::pair<Level, SourceRange>> stateLevels; // where each is assigned
  SourceRange blockRange;                                                    // of what fixed the block's size
  unsigned cloned = 0;  // nodes made for inlined functions
  bool isWhole = false; // some statement is over the whole sequence

  ShapeSolver solver;
  llvm::DenseMap<const Symbol *, ShapeVar> symbolShapes;
  llvm::SmallPtrSet<const Symbol *, 4> constantsUnderWay; // whose definitions are being looked at
  llvm::DenseMap<const Expr *, ShapeVar> exprShapes;
  std::vector<std::pair<const Expr *, std::string>>
      scalars;                  // must be, by the rule given, once all is inferred
  std::vector<Expr *> inferred; // every expression with a shape, operands first
  llvm::DenseMap<const Symbol *, const Stmt *> declarations;
  llvm::DenseMap<const Expr *, Symbol *> assignedTo; // of the values of assignments
  llvm::DenseSet<const Symbol *> scalarsTransposed;  // reported
};

} // namespace recur::frontend
