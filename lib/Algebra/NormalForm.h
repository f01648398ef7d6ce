// The normal form of one token's update: every new state is an affine function of the OLD states, sorted into
// kinds.
//
//   S_i' = sum of c * L * S_m * R         old parts: decay (m = i, diagonal L, R), coupling (m != i, scalar),
//   else dense
//        + sum of c * column * rowT       writes: both token-only, or one of them a row (an erase term)
//
// A *row* is a vector that depends on the old states: a version of a state (the old one, the new one or one
// between) read with a token-only vector. Rows are numbered so that each depends on reads of the old states
// and on earlier rows only; micro-steps stay linear in their number. "token-only" means independent of every
// state.
#pragma once

#include "dialect/recur/Recur.h"
#include "lib/Algebra/Terms.h"
#include "llvm/ADT/StringMap.h"

#include <vector>

namespace recur {

/// Where a vector stands when it reads a state: S*d on the right, dT*S on the left. Both give columns.
enum class Side { Left, Right };

/// number * factors[0] * factors[1] * ..: token-only scalars, sorted, so that equal products are equal
/// structs.
struct Coefficient {
  double number = 1;
  llvm::SmallVector<mlir::Value, 2> factors;

  bool isOne() const { return number == 1 && factors.empty(); }
  bool operator==(const Coefficient &other) const {
    return number == other.number && factors == other.factors;
  }
};

/// One read of an old state: S*vector (Right) or (vectorT*S)T (Left). `vector` is a token-only column.
struct Read {
  unsigned state; // index among the rule's states
  Side side;
  mlir::Value vector;
};

/// A column: a token-only value, a read of an old state, or a row.
struct Column {
  enum Kind { Known, OldRead, RowOf } kind = Known;
  mlir::Value value;  // Known: a token-only column
  unsigned index = 0; // OldRead: into `reads`; RowOf: into `rows`
};

/// c * map * column. `map` holds token-only factors, leftmost first: diagonals, matrices, or a row vector (an
/// inner product); it is empty in most rules.
struct RowTerm {
  Coefficient c;
  llvm::SmallVector<Factor, 1> map;
  Column column;
};

/// A vector that depends on the old states: `version` read with `vector`, spelled out as the sum of `terms`.
/// Every term reads an old state, an earlier row, or is token-only.
struct Row {
  static constexpr unsigned none = ~0u;
  unsigned version; // index into `versions`; `none` for a plain combination of other rows
  Side side;
  mlir::Value vector;
  MatType type; // n x 1
  std::vector<RowTerm> terms;
  mlir::Location loc;
  /// False when reads of the old state do not add up to the row: the version has a decay of full rank, or
  /// `vector` depends on rows that were read out before.
  bool inOldReads = true;
  /// Set for the solution x of version * x = vector, a recur.solve.
  mlir::Value solution;
};

/// c * left * S * right, or c * left * ST * right; `elementwise` factors (token-only matrices) multiply S
/// first.
struct OldTerm {
  Coefficient c;
  unsigned state = 0;
  bool transposed = false;
  llvm::SmallVector<Factor, 1> left, right;
  llvm::SmallVector<mlir::Value, 1> elementwise;
  mlir::Location loc;

  /// No factor but the coefficient: `c * S`.
  bool isScalar() const { return !transposed && left.empty() && right.empty() && elementwise.empty(); }
  /// Nothing but the coefficient and diagonals.
  bool isDiagonal() const;
};

/// c * column * rowT. At most one of the two depends on a state: an erase term; otherwise a write. A value of
/// full rank stands in `matrix` instead (c * matrix).
struct Write {
  Coefficient c;
  Column column, row;
  mlir::Value matrix;
  mlir::Location loc;
  bool isErase() const { return column.kind != Column::Known || row.kind != Column::Known; }
};

/// What one state has become at some point of the update, in terms of the old states.
struct Version {
  mlir::Value value; // the SSA value in the rule
  std::vector<OldTerm> old;
  std::vector<Write> writes;
};

/// A value of the rule's body that is a row (or, transposed, its transpose).
struct Readout {
  mlir::Value value;
  unsigned row;
  bool transposed = false;
};

/// The classes of update rules, from cheap to dear; `explain` prints the name.
enum class RuleClass {
  C0, // writes only
  C1, // scalar decay
  C2, // diagonal decay
  C3, // reads on the side that the readout reads from, or on the only side read
  C4, // states coupled by scalars
  C5, // coupled states with reads
  C6, // elementwise decay of full rank
  C7, // dense transition
  C8, // (max, +) stabiliser
  I,  // implicit readout
  S,  // functions of a state at the start of a block
  Q,  // attention form
  N,  // nonlinear
};

/// Why a rule is in no better class.
struct Blame {
  std::optional<mlir::Location> loc;
  std::string text;
};

/// The decay of a state when its own old part is diagonal: S' = c * diag(left) * S * diag(right) .*
/// elementwise + ..
struct Decay {
  Coefficient c;
  llvm::SmallVector<mlir::Value, 1> left, right, elementwise; // products of columns, of columns, of matrices
  bool isIdentity() const { return c.isOne() && left.empty() && right.empty() && elementwise.empty(); }
};

/// The normal form of a rule. It refers to values of the rule's body; token-only values that had to be made
/// (inner products, scaled vectors) were appended to the body, before its terminator.
struct NormalForm {
  RuleOp rule;
  llvm::SmallVector<mlir::BlockArgument> states;
  llvm::SmallVector<bool> ahead;       // states that run ahead; they have no update below
  llvm::SmallVector<Read> reads;       // distinct reads of old states
  std::vector<Row> rows;               // in order of dependence
  std::vector<Version> versions;       // all versions that are read, and the new states
  llvm::SmallVector<unsigned> updates; // updates[i]: the version that is the new state i (Row::none: ahead)
  /// Values of the body that the rest of the rule (the epilogue) computes the outputs from. The epilogue is
  /// the ops between these, token-only values and the yielded outputs.
  llvm::SmallVector<Readout> readouts;
  /// Set when an update or a readout is not affine; then only `states`, `ruleClass` and `blame` mean
  /// something.
  bool affine = true;
  RuleClass ruleClass = RuleClass::C0;
  std::vector<Blame> blame;

  const Version &update(unsigned state) const { return versions[updates[state]]; }
  /// The state's decay when its own old part is a single diagonal term.
  std::optional<Decay> decay(unsigned state) const;
  /// True when the value does not depend on a state.
  bool isTokenOnly(mlir::Value value) const { return !stateDependent.contains(value); }

  llvm::DenseSet<mlir::Value> stateDependent;
};

/// Computes the normal form. The rule must be differentiated, without assumptions and after CSE; `recur.for`
/// loops must have bound counts (they are unrolled here). Values are appended to the body; its meaning does
/// not change. `withStarts` has states at the start of a block be states, after the others, that stay as they
/// are; else a rule that reads such is not affine.
NormalForm normalise(RuleOp rule, bool withStarts = false);

/// "C3", ..; the name that `class: ` lines print.
llvm::StringRef className(RuleClass ruleClass);

/// The class in words: "reads of the state that are written back, on one side: a triangular solve per chunk".
llvm::StringRef classMeaning(RuleClass ruleClass);

/// The coefficient as one token-only scalar, built before `builder`'s insertion point; null when it is 1.
mlir::Value buildCoefficient(mlir::OpBuilder &builder, mlir::Location loc, const Coefficient &c);

/// What token-only values of a normal form are called where their expressions are too long: x1, x2, ..
struct ShortNames {
  llvm::DenseMap<mlir::Value, std::string> names;
  llvm::StringMap<std::string> byText; // the same by their expressions
  std::vector<std::string> lines;      // "x1 = l2norm(k)", in an order in which each uses earlier ones
};
ShortNames shortNames(const NormalForm &nf);

/// Class, rows, updates and readouts as text, a line each. With short names, what is read on the way from the
/// old to the new state has a line of its own.
std::string printNormalForm(const NormalForm &nf, const ShortNames *names = nullptr);

/// A value as the papers write it: "exp(g)", "b*(v - S*k)".
/// `names` says what block arguments are called that are no argument of a rule.
std::string notation(mlir::Value value);
/// Below `depth` operations there are dots.
constexpr unsigned shownDepth = 6;
std::string notation(mlir::Value value, const llvm::DenseMap<mlir::Value, std::string> &names,
                     unsigned depth = shownDepth);
/// The same, in brackets where it cannot stand in a product.
std::string factorNotation(mlir::Value value, const llvm::DenseMap<mlir::Value, std::string> &names);
/// A definition in full, unless it is very long.
constexpr unsigned fullDepth = 20;

/// A number as `notation` writes it.
std::string numberText(double value);

/// Replaces a loop by so many copies of its region.
void unroll(ForOp loop, int64_t count);
/// Unrolls loops over micro-steps; fails, with an error, when a count is unbound.
mlir::LogicalResult unrollSteps(RuleOp rule);

} // namespace recur
