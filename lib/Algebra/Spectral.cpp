#include "lib/Algebra/Spectral.h"
#include "lib/Algebra/Passes.h"
#include "mlir/IR/Matchers.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>

using namespace mlir;
using namespace recur;

static constexpr double infinity = std::numeric_limits<double>::infinity();
// What rounding in a spec's constants may add to 1.
static constexpr double slack = 1e-6;

namespace {
// An interval of reals; what is not known is unbounded.
struct Interval {
  double lo = -infinity, hi = infinity;

  static Interval of(Value value) {
    FloatAttr number;
    if (matchPattern(value, m_Constant(&number)))
      return {number.getValueAsDouble(), number.getValueAsDouble()};
    RangeAttr range = rangeOf(value);
    bool usable = range && !std::isnan(range.getLo()) && !std::isnan(range.getHi());
    return usable ? Interval{range.getLo(), range.getHi()} : Interval();
  }
  double magnitude() const { return std::max(std::fabs(lo), std::fabs(hi)); }
  Interval operator*(Interval other) const {
    auto times = [](double a, double b) { return a == 0 || b == 0 ? 0 : a * b; };
    double ends[] = {times(lo, other.lo), times(lo, other.hi), times(hi, other.lo), times(hi, other.hi)};
    return {*llvm::min_element(ends), *llvm::max_element(ends)};
  }
  Interval operator-() const { return {-hi, -lo}; }
  bool within(double least, double most) const { return lo >= least - slack && hi <= most + slack; }
};

std::string number(double x) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.4g", x);
  return text;
}
std::string bracketed(const std::string &text) {
  return StringRef(text).contains(' ') ? "(" + text + ")" : text;
}
std::string text(Interval x) {
  std::string lo = std::isinf(x.lo) ? "(" : "[", hi = std::isinf(x.hi) ? ")" : "]";
  return lo + number(x.lo) + ", " + number(x.hi) + hi;
}

// Bounds of the Euclidean norm of a vector.
Interval normOf(Value value, unsigned depth = 8) {
  auto type = dyn_cast<MatType>(value.getType());
  if (type && type.isScalar()) {
    Interval range = Interval::of(value);
    return {0, range.magnitude()};
  }
  auto fromRange = [&]() -> Interval {
    double most = Interval::of(value).magnitude();
    auto rows = type ? dyn_cast<IntegerAttr>(type.getRows()) : IntegerAttr(),
         cols = type ? dyn_cast<IntegerAttr>(type.getCols()) : IntegerAttr();
    return {0, rows && cols ? most * std::sqrt(double(rows.getInt()) * cols.getInt())
               : most == 0  ? 0
                            : infinity};
  };
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    auto rule = dyn_cast<RuleOp>(argument.getOwner()->getParentOp());
    return rule && rule.getArg(argument).getUnit() ? Interval{1, 1} : fromRange();
  }
  Operation *op = value.getDefiningOp();
  if (depth == 0)
    return {0, infinity};
  auto operand = [&](unsigned i) { return normOf(op->getOperand(i), depth - 1); };
  if (isa<TransposeOp, RopeOp, NegOp>(op))
    return operand(0);
  if (auto extract = dyn_cast<ExtractOp>(op))
    return normOf(extract.getSteps(), depth - 1);
  if (auto mul = dyn_cast<MulOp>(op)) {
    auto scaled = [&](unsigned scale, unsigned vector) {
      return Interval::of(op->getOperand(scale)).magnitude() * operand(vector).hi;
    };
    double left = scaled(0, 1), right = scaled(1, 0);
    return {0, std::fmin(left, right)}; // infinity * 0 is no number
  }
  if (auto quotient = dyn_cast<DivOp>(op)) {
    if (normalisedVector(value))
      return {0, 1};
    // Positive parts of a whole, as softmax makes them.
    auto sum = quotient.getRhs().getDefiningOp<ReduceOp>();
    if (sum && sum.getKind() == Reduction::Sum && sum.getOperand() == quotient.getLhs() &&
        Interval::of(quotient.getLhs()).lo >= 0)
      return {0, 1};
    Interval by = Interval::of(quotient.getRhs());
    return matType(quotient.getRhs()).isScalar() && by.lo > 0 ? Interval{0, operand(0).hi / by.lo}
                                                              : fromRange();
  }
  if (isa<AddOp, SubOp>(op))
    return {0, std::min(operand(0).hi + operand(1).hi, fromRange().hi)};
  return fromRange();
}

// Whether interval arithmetic on some values is exact: every leaf is declared, and none stands there twice.
class Leaves {
public:
  explicit Leaves(RuleOp rule) : rule(rule) {}
  void add(Value value) {
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      ArgKind kind = rule.getArg(argument).getKind();
      fromState |= kind == ArgKind::State || kind == ArgKind::Stale;
      undeclared |=
          kind <= ArgKind::Param && !rule.getArg(argument).getRange() && !rule.getArg(argument).getUnit();
      repeated |= !seen.insert(value).second;
      return;
    }
    for (Value operand : value.getDefiningOp()->getOperands())
      add(operand);
  }
  bool fromState = false, undeclared = false, repeated = false;

private:
  RuleOp rule;
  llvm::DenseSet<Value> seen;
};

class Finder {
public:
  explicit Finder(const NormalForm &nf) : nf(nf), rule(nf.rule) {}

  std::vector<UnstableTerm> run() {
    for (auto [state, update] : llvm::enumerate(nf.updates)) {
      if (update == Row::none)
        continue;
      std::optional<Decay> decay = nf.decay(state);
      if (decay)
        checkDecay(state, *decay);
      for (const Write &write : nf.versions[update].writes)
        if (write.isErase())
          checkErase(state, decay, write);
    }
    return std::move(found);
  }

  bool isContraction() {
    if (nf.states.size() != 1 || nf.updates[0] == Row::none)
      return false;
    std::optional<Decay> decay = nf.decay(0);
    const Version &update = nf.update(0);
    if (!decay || decay->c.number == 0 || !decay->elementwise.empty() || (!decay->left.empty() && !decay->right.empty()))
      return false;
    const Write *erase = nullptr;
    for (const Write &write : update.writes)
      if (write.isErase() && std::exchange(erase, &write))
        return false;
    return !erase || isShortStep(*decay, *erase);
  }

private:
  std::string name(unsigned state) { return rule.getArg(nf.states[state]).getName().str(); }

  void report(Location loc, const Twine &what, const Twine &fix) {
    if (seen.insert(loc).second)
      found.push_back({loc, what.str(), fix.str()});
  }

  void checkDecay(unsigned state, const Decay &decay) {
    Leaves leaves(rule);
    Interval range{decay.c.number, decay.c.number};
    std::string factors;
    auto multiply = [&](Value factor) {
      leaves.add(factor);
      range = range * Interval::of(factor);
      factors += (factors.empty() ? "" : "*") + bracketed(notation(factor));
    };
    llvm::for_each(decay.c.factors, multiply);
    for (const auto *group : {&decay.left, &decay.right, &decay.elementwise})
      llvm::for_each(*group, multiply);
    if (leaves.undeclared || leaves.repeated || leaves.fromState || range.within(-1, 1))
      return;
    Location loc = nf.states[state].getLoc();
    for (const OldTerm &term : nf.update(state).old)
      if (term.state == state)
        loc = term.loc;
    if (factors.empty())
      factors = number(decay.c.number);
    report(loc,
           "'" + name(state) + "' may grow without bound: its decay '" + factors + "' lies in " +
               text(range) + ", but a token may multiply a state by at most 1",
           "declare what the decay is computed from so that it stays within [0, 1], such as exp(g) with g in "
           "(-inf, 0]");
  }

  // A read that is written back: S + c (S b) wT has the eigenvalue 1 + c b.w.
  void checkErase(unsigned state, const std::optional<Decay> &decay, const Write &write) {
    const Column &read = write.column.kind == Column::Known ? write.row : write.column;
    const Column &known = write.column.kind == Column::Known ? write.column : write.row;
    std::optional<Value> vector = readVector(state, read);
    if (known.kind != Column::Known || !vector || !isMatrix(matType(nf.states[state])))
      return;
    Leaves leaves(rule);
    leaves.add(known.value);
    leaves.add(*vector);
    llvm::for_each(write.c.factors, [&](Value factor) { leaves.add(factor); });
    if (leaves.fromState)
      return;
    // A state that decays before it is read has the decay in the coefficient and in the vector: it is no part
    // of the term.
    SmallVector<Value> factors = factorsOf(write.c.factors), vectors;
    flatten(*vector, factors);
    if (decay)
      removeDecay(factors, *decay);
    llvm::copy_if(factors, std::back_inserter(vectors),
                  [](Value value) { return !matType(value).isScalar(); });
    llvm::erase_if(factors, [](Value value) { return !matType(value).isScalar(); });
    Interval c{-write.c.number, -write.c.number};
    std::string coefficient = std::fabs(write.c.number) == 1 ? "" : number(std::fabs(write.c.number));
    for (Value factor : factors) {
      c = c * Interval::of(factor);
      coefficient += (coefficient.empty() ? "" : "*") + bracketed(notation(factor));
    }
    SmallVector<Value> keyFactors = factorsOf(known.value);
    bool same = std::is_permutation(vectors.begin(), vectors.end(), keyFactors.begin(), keyFactors.end());
    Interval norm = normOf(known.value), other = normOf(*vector);
    // Momentum moves a state by several tokens' steps, and stands twice of each.
    bool coupled =
        llvm::any_of(nf.update(state).old, [&](const OldTerm &term) { return term.state != state; });
    double most = coupled ? 4 : 2;
    if (same && isBounded(factors, known.value))
      return;
    Interval moved =
        c * (same ? Interval{norm.lo * norm.lo, norm.hi * norm.hi} : Interval{0, norm.hi * other.hi});
    // Two vectors that differ may point the same way; which way is the caller's.
    if (same ? moved.within(0, most) : moved.within(-most, most))
      return;

    std::string key = notation(known.value), by = same ? key : notation(*vector),
                times = coefficient + (coefficient.empty() ? "" : "*");
    std::string product = same ? "|" + key + "|^2" : "dot(" + by + ", " + key + ")";
    std::string why = boundText(coefficient, c, write.c.number > 0) + normText(key, norm);
    if (!same)
      why += normText(by, other);
    report(write.loc,
           "'" + name(state) + "' may grow without bound: the term '" + times + by + "*" + key +
               (key.size() == 1 ? "T" : ".T") + "' has the eigenvalue 1 " +
               (write.c.number < 0 ? "- " : "+ ") + times + product +
               ", which must stay within [-1, 1], but " + StringRef(why).drop_back(5),
           fixText(same ? key : "", c, same ? norm : Interval{0, std::sqrt(norm.hi * other.hi)}, most));
  }

  // Whether what is erased, of a state that has decayed, is c (S k) kT with c |k|^2 in [0, 2].
  bool isShortStep(const Decay &decay, const Write &write) {
    const Column &known = write.column.kind == Column::Known ? write.column : write.row;
    Column read = write.column.kind == Column::Known ? write.row : write.column;
    double number = -write.c.number;
    SmallVector<Value> factors = factorsOf(write.c.factors);
    if (read.kind == Column::RowOf) {
      const RowTerm *only = nullptr;
      for (const RowTerm &term : nf.rows[read.index].terms)
        if (term.column.kind != Column::Known && (std::exchange(only, &term) || !term.map.empty()))
          return false;
      if (!only || only->column.kind != Column::OldRead)
        return false;
      read = only->column;
      number *= only->c.number;
      llvm::append_range(factors, factorsOf(only->c.factors));
    }
    if (known.kind != Column::Known || read.kind != Column::OldRead)
      return false;
    Side side = nf.reads[read.index].side;
    if (!(side == Side::Right ? decay.left : decay.right).empty() ||
        (side == Side::Right) != (write.column.kind != Column::Known))
      return false;
    flatten(nf.reads[read.index].vector, factors);
    if (!removeDecay(factors, decay))
      return false;
    number /= decay.c.number;
    SmallVector<Value> vectors, keyFactors = factorsOf(known.value);
    llvm::copy_if(factors, std::back_inserter(vectors), [](Value x) { return !matType(x).isScalar(); });
    llvm::erase_if(factors, [](Value x) { return !matType(x).isScalar(); });
    if (!std::is_permutation(vectors.begin(), vectors.end(), keyFactors.begin(), keyFactors.end()))
      return false;
    Interval c{number, number}, norm = normOf(known.value);
    for (Value factor : factors)
      c = c * Interval::of(factor);
    return (number >= 0 && isBounded(factors, known.value)) ||
           (c * Interval{norm.lo * norm.lo, norm.hi * norm.hi}).within(0, 2);
  }

  // What is known about the factors of a term, each with a comma or an "and" to come.
  static std::string boundText(StringRef coefficient, Interval c, bool negated) {
    if (coefficient.empty())
      return "";
    std::string quoted = "'" + coefficient.str() + "'";
    return (std::isinf(c.lo) && std::isinf(c.hi) ? quoted + " has no declared range"
                                                 : quoted + " lies in " + text(negated ? -c : c)) +
           " and ";
  }
  static std::string normText(StringRef vector, Interval norm) {
    std::string quoted = "|" + vector.str() + "|";
    return (std::isinf(norm.hi) ? "nothing bounds " + quoted : quoted + " is at most " + number(norm.hi)) +
           " and ";
  }

  static std::string fixText(StringRef key, Interval c, Interval norm, double most) {
    std::string coefficient = ", and keep the coefficient within [0, " + number(most) + "]";
    if (std::isinf(norm.hi))
      return (key.empty() ? "normalise both vectors with l2norm, or declare the inputs 'unit'"
                          : "normalise it, l2norm(" + key.str() + "), or declare the input 'unit'") +
             (c.within(key.empty() ? -most : 0, most) ? "" : coefficient);
    return "keep the coefficient within [0, " + number(most / (norm.hi * norm.hi)) +
           "], by the declared range of an input or by a function such as sigmoid";
  }

  // What a row reads the state with, where that is all the row does; nothing for a row of another state.
  std::optional<Value> readVector(unsigned state, const Column &column) {
    if (column.kind == Column::OldRead)
      return nf.reads[column.index].state == state ? std::optional(nf.reads[column.index].vector)
                                                   : std::nullopt;
    const Row &row = nf.rows[column.index];
    bool own = llvm::any_of(row.terms, [&](const RowTerm &term) {
      return term.column.kind == Column::OldRead && nf.reads[term.column.index].state == state;
    });
    return own && row.version != Row::none && nf.isTokenOnly(row.vector) ? std::optional(row.vector)
                                                                         : std::nullopt;
  }

  // The factors of a product of entries.
  static void flatten(Value value, SmallVector<Value> &factors) {
    Operation *op = value.getDefiningOp();
    if (isa_and_nonnull<TransposeOp, BroadcastOp>(op))
      return flatten(op->getOperand(0), factors);
    if (!isa_and_nonnull<MulOp>(op))
      return factors.push_back(value);
    for (Value operand : op->getOperands())
      flatten(operand, factors);
  }
  static SmallVector<Value> factorsOf(ValueRange values) {
    SmallVector<Value> factors;
    for (Value value : values)
      flatten(value, factors);
    return factors;
  }

  // Removes the decay's factors if they are all there.
  static bool removeDecay(SmallVector<Value> &factors, const Decay &decay) {
    SmallVector<Value> rest(factors), wanted = factorsOf(decay.c.factors);
    for (Value column : llvm::concat<const Value>(decay.left, decay.right))
      flatten(column, wanted);
    for (Value factor : wanted) {
      auto *at = llvm::find(rest, factor);
      if (at == rest.end())
        return false;
      rest.erase(at);
    }
    factors = rest;
    return true;
  }

  // b / (p + b |k|^2) times |k|^2 is less than 1, whatever the key: the implicit step.
  static bool isBounded(ArrayRef<Value> factors, Value key) {
    for (Value factor : factors) {
      auto quotient = factor.getDefiningOp<DivOp>();
      auto sum = quotient ? quotient.getRhs().getDefiningOp<AddOp>() : AddOp();
      for (unsigned i = 0; sum && i < 2; ++i) {
        SmallVector<Value> parts = {sum->getOperand(i)}, scale;
        bool square = false;
        while (!parts.empty()) {
          Value part = parts.pop_back_val();
          auto mul = part.getDefiningOp<MulOp>();
          if (isSquareOf(part, key))
            square = true;
          else if (mul && mul.getType().isScalar())
            parts.append({mul.getLhs(), mul.getRhs()});
          else
            scale.push_back(part);
        }
        SmallVector<Value> numerator;
        FloatAttr one;
        if (!matchPattern(quotient.getLhs(), m_Constant(&one)))
          numerator.push_back(quotient.getLhs());
        for (Value other : factors)
          if (other != factor)
            numerator.push_back(other);
        bool positive = Interval::of(sum->getOperand(1 - i)).lo > 0 &&
                        llvm::all_of(scale, [](Value value) { return Interval::of(value).lo >= 0; });
        if (square && positive &&
            std::is_permutation(numerator.begin(), numerator.end(), scale.begin(), scale.end()))
          return true;
      }
    }
    return false;
  }

  static bool isSquareOf(Value value, Value key) {
    if (auto reduce = value.getDefiningOp<ReduceOp>()) {
      auto square = reduce.getOperand().getDefiningOp<MulOp>();
      return reduce.getKind() == Reduction::Sum && square && square.getLhs() == square.getRhs() &&
             square.getLhs() == key;
    }
    auto product = value.getDefiningOp<MatmulOp>();
    auto transposed = product ? product.getLhs().getDefiningOp<TransposeOp>() : TransposeOp();
    return transposed && transposed.getOperand() == key && product.getRhs() == key;
  }

  const NormalForm &nf;
  RuleOp rule;
  std::vector<UnstableTerm> found;
  llvm::DenseSet<Location> seen;
};
} // namespace

std::vector<UnstableTerm> recur::findUnstableTerms(const NormalForm &nf) {
  return nf.affine ? Finder(nf).run() : std::vector<UnstableTerm>();
}

bool recur::isContraction(const NormalForm &nf) { return nf.affine && Finder(nf).isContraction(); }
