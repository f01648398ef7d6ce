// Inference of shapes: unification of dimensions, products and broadcasts that wait until they can be
// decided, and the conventions that settle what unification leaves open.
#pragma once
#include "lib/Frontend/Shape.h"
#include "lib/Frontend/SourceFile.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include <string>
#include <vector>

namespace recur::frontend {

class AstContext;
struct Expr;
struct Symbol;

/// An extent that may still be unknown.
using DimVar = unsigned;

struct ShapeVar {
  DimVar rows = 0;
  DimVar cols = 0;

  ShapeVar transposed() const { return {cols, rows}; }
};

/// Relations that cannot be decided at once.
enum class Relation {
  Product,   // result = a * b: scaling where one is a scalar, else a matrix product
  Broadcast, // result = a op b, entry by entry, extents equal or 1
  Reduce,    // result = a with the entries of a vector, or of each row, combined into one
};

struct Constraint {
  Relation relation;
  ShapeVar a, b, result;
  const Expr *at = nullptr; // for the error
  bool done = false;
};

/// What a value is taken for when nothing else decides. Earlier conventions come first.
enum class Convention {
  TransposedIsVector, // `xT`, and the factor before `yT`
  NamedVector,        // q.., k.., v..
  StateIsMatrix,      // a state times a vector
  ScalarOperand,      // a divisor, a base, a loss
  LeadingIsScalar,    // the first factors of a product
  OperandsAgree,      // operands of `+`, `.*`, ...
  FunctionOfVector,   // operands of l2norm, softmax, ...
  FilledScalar,       // a local that is only assigned numbers
};

struct Default {
  Convention convention;
  ShapeVar shape;
  unsigned constraint = 0; // OperandsAgree: which
};

class ShapeSolver {
public:
  /// Called with a constraint and two extents that would have to be equal.
  using Conflict = llvm::function_ref<void(const Constraint &, DimVar, DimVar)>;

  ShapeSolver();

  DimVar one() const { return 0; }
  ShapeVar scalar() const { return {0, 0}; }
  DimVar fresh();
  ShapeVar freshShape() { return {fresh(), fresh()}; }
  /// An extent that is not 1 by definition. `soft` is the name it gets if nothing else names it.
  DimVar freshSized(llvm::StringRef soft = {});
  /// The extent of that name, the same one at every call.
  DimVar named(llvm::StringRef name);
  DimVar integer(int64_t value);
  /// An extent of a faulty expression: fits everything.
  DimVar error() const { return 1; }
  ShapeVar errorShape() const { return {1, 1}; }

  /// Where facts stated from now on come from; a conflict can then show both places.
  void because(SourceRange range, const Symbol *symbol = nullptr) { origin = {range, symbol}; }
  struct Origin {
    SourceRange range;
    const Symbol *symbol = nullptr;
  };
  Origin originOf(DimVar dim) const { return classes[find(dim)].origin; }

  /// Makes two extents equal; false where they cannot be.
  bool unify(DimVar a, DimVar b);
  bool makeSized(DimVar dim);
  /// Gives an extent a name unless it has one.
  void suggestName(DimVar dim, llvm::StringRef name);

  /// Returns the constraint's index, for OperandsAgree.
  unsigned add(Constraint constraint);
  void add(Default rule) { defaults.push_back(rule); }

  /// Decides what can be decided; conflicts are reported once each.
  void propagate(Conflict conflict);
  /// Propagates, and applies the conventions one by one while something is unknown.
  void solve(Conflict conflict);

  bool isUnknown(DimVar dim) const { return stateOf(dim) == State::Unknown; }
  bool isOne(DimVar dim) const { return stateOf(dim) == State::One; }
  bool isSized(DimVar dim) const { return stateOf(dim) == State::Sized; }
  bool isError(DimVar dim) const { return stateOf(dim) == State::Error; }
  bool isScalar(ShapeVar s) const { return isOne(s.rows) && isOne(s.cols); }
  bool isNonScalar(ShapeVar s) const { return isSized(s.rows) || isSized(s.cols); }
  bool isKnown(ShapeVar s) const { return !isUnknown(s.rows) && !isUnknown(s.cols); }
  bool hasError(ShapeVar s) const { return isError(s.rows) || isError(s.cols); }
  bool same(DimVar a, DimVar b) const { return find(a) == find(b); }

  /// The extent as a result; one without a name gets its soft name, or the next of d1, d2, ...
  Dim finish(DimVar dim, AstContext &context);
  /// The shape as far as it is known, as an error shows it: "vector(dk)", "matrix(dv, ?)".
  std::string describe(ShapeVar shape) const;
  std::string describe(DimVar dim) const;

private:
  enum class State { Unknown, One, Sized, Error };
  struct Class {
    DimVar parent;
    State state = State::Unknown;
    llvm::StringRef name; // fixed: written in the text
    int64_t value = 0;    // fixed: an integer; 0 is none
    llvm::StringRef soft;
    Origin origin;
    llvm::SmallVector<unsigned, 2> watchers; // constraints to look at when the state changes
  };

  State stateOf(DimVar dim) const { return classes[find(dim)].state; }
  DimVar find(DimVar dim) const;
  bool makeOne(DimVar dim) { return unify(dim, one()); }
  void wake(Class &changed);
  void step(unsigned index, Conflict conflict);
  void product(Constraint &c, Conflict conflict);
  void broadcast(Constraint &c, Conflict conflict);
  void reduce(Constraint &c, Conflict conflict);
  bool apply(const Default &rule);

  mutable std::vector<Class> classes;
  llvm::StringMap<DimVar> names;
  std::vector<Constraint> constraints;
  std::vector<unsigned> pending;
  std::vector<Default> defaults;
  Origin origin;
};

} // namespace recur::frontend
