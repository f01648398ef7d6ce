#include "lib/Algebra/Spectral.h"
#include "lib/Algebra/Bounds.h"
#include "mlir/IR/Matchers.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>

using namespace mlir;
using namespace recur;

namespace {
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
    Operation *op = value.getDefiningOp();
    bool isSquare = isa<MulOp>(op) && op->getOperand(0) == op->getOperand(1);
    for (Value operand : isSquare ? op->getOperands().take_front() : op->getOperands())
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
    std::optional<Decay> decay = nf.decay(0);
    const Version &update = nf.update(0);
    if (!decay || decay->c.number == 0 || !decay->elementwise.empty() ||
        (!decay->left.empty() && !decay->right.empty()))
      return false;
    // The map is symmetric, and erases between nothing and all steps together.
    double all = 0;
    for (const Write &write : update.writes)
      if (write.isErase()) {
        std::optional<Step> step = stepOf(*decay, write, /*isOfDecayed=*/true);
        all += step ? longest(*step).value_or(HUGE_VAL) : HUGE_VAL;
      }
    return all <= 2 + constantSlack;
  }

  // Of a map a I - sum of c k kT, a not negative: a or, where more than twice that may be erased, the rest.
  Value normBound() {
    std::optional<Decay> decay = nf.decay(0);
    auto isNegative = [](Value factor) { return Interval::of(factor).lo < 0; };
    if (!decay || !decay->elementwise.empty() || !decay->left.empty() || !decay->right.empty() ||
        decay->c.number <= 0 || llvm::any_of(decay->c.factors, isNegative))
      return {};
    OpBuilder b(rule.getBody().front().getTerminator());
    Location loc = rule.getLoc();
    Value erased;
    for (const Write &write : nf.update(0).writes) {
      if (!write.isErase())
        continue;
      std::optional<Step> step = stepOf(*decay, write, /*isOfDecayed=*/false);
      double norm = step ? normOf(step->key).hi : 0;
      if (!step || !longest(*step) || std::isinf(norm))
        return {};
      double rate = 1;
      for (Value factor : step->rates)
        rate *= Interval::of(factor).magnitude();
      Value most = ConstantOp::create(b, loc, step->number * norm * norm * rate);
      for (Value factor : step->factors)
        most = MulOp::create(b, loc, most, factor);
      erased = erased ? AddOp::create(b, loc, erased, most).getResult() : most;
    }
    Value kept = buildCoefficient(b, loc, decay->c);
    if (kept && erased)
      kept = MaxOp::create(b, loc, kept, SubOp::create(b, loc, erased, kept));
    return erased ? kept : Value();
  }

private:
  std::string name(unsigned state) { return rule.getArg(nf.states[state]).getName().str(); }

  void report(Location loc, const Twine &what, const Twine &fix) {
    if (seen.insert(loc).second)
      found.push_back({loc, what.str(), fix.str()});
  }

  // Two states that take each other in have the eigenvalues of both together.
  bool isMutual(unsigned state) {
    auto takes = [&](unsigned a, unsigned b) {
      return nf.updates[a] != Row::none &&
             llvm::any_of(nf.update(a).old, [&](const OldTerm &term) { return term.state == b; });
    };
    for (unsigned other = 0; other < nf.states.size(); ++other)
      if (other != state && takes(state, other) && takes(other, state))
        return true;
    return false;
  }

  void checkDecay(unsigned state, const Decay &decay) {
    if (isMutual(state))
      return;
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

  // A read that is written back: number * factors * (S vector) knownT, and the vectors whose products
  // `vector` and `known` are. A state that decays before it is read has the decay in the coefficient and in
  // the vector: it is no part of the term.
  struct Erase {
    Value known, vector;
    double number = 1;
    SmallVector<Value> factors, read, key;

    bool isSame() const { return arePermuted(read, key); }
  };
  std::optional<Erase> eraseOf(unsigned state, const std::optional<Decay> &decay, const Write &write) {
    const Column &read = write.column.kind == Column::Known ? write.row : write.column;
    const Column &known = write.column.kind == Column::Known ? write.column : write.row;
    std::optional<Value> vector = readVector(state, read);
    if (known.kind != Column::Known || !vector || !isMatrix(matType(nf.states[state])))
      return std::nullopt;
    Erase erase{known.value, *vector, write.c.number, factorsOf(write.c.factors), {}, factorsOf(known.value)};
    flattenProduct(*vector, erase.factors);
    // What is read of a later version decays by what comes after.
    if (decay && !removeDecay(erase.factors, *decay) && read.kind == Column::RowOf &&
        nf.versions[nf.rows[read.index].version].old.size() == 1) {
      SmallVector<Value> since = factorsOf(decay->c.factors);
      if (removeAll(since, factorsOf(nf.versions[nf.rows[read.index].version].old[0].c.factors)))
        removeAll(erase.factors, since);
    }
    erase.read = takeVectors(erase.factors);
    return erase;
  }

  // A product of steps S - b (S k) kT leaves, beside each of them, inner products of one's key with the
  // next's: b c (k.p) (S k) pT. The steps are judged themselves. Whether `term` is so from those of `steps`
  // on that read with the vectors `at`; numbers are multiples of the decay's.
  static bool isCross(ArrayRef<Erase> steps, double number, SmallVector<Value> scalars, ArrayRef<Value> at,
                      ArrayRef<SmallVector<Value>> links, ArrayRef<Value> key) {
    for (const Erase &step : steps) {
      SmallVector<Value> rest = scalars;
      double others = number / step.number;
      if (!arePermuted(at, step.key) || !removeAll(rest, step.factors))
        continue;
      if (links.empty() && rest.empty() && std::fabs(others - 1) < constantSlack && arePermuted(at, key))
        return true;
      for (auto [i, link] : llvm::enumerate(links)) {
        SmallVector<Value> next = link;
        SmallVector<SmallVector<Value>> later(links);
        later.erase(later.begin() + i);
        if (removeAll(next, at) && isCross(steps, others, rest, next, later, key))
          return true;
      }
    }
    return false;
  }
  // The same for a write; sums of such that go between the same vectors are one write.
  bool isCross(unsigned state, const std::optional<Decay> &decay, const Write &write, const Erase &term) {
    double unit = decay && decay->c.number != 0 ? decay->c.number : 1;
    SmallVector<Erase> steps;
    for (const Write &other : nf.update(state).writes)
      if (std::optional<Erase> erase = other.isErase() ? eraseOf(state, decay, other) : std::nullopt)
        if (erase->isSame()) {
          erase->number /= unit;
          steps.push_back(*erase);
        }
    SmallVector<Value> factors = factorsOf(write.c.factors);
    flattenProduct(term.vector, factors);
    SmallVector<std::pair<double, SmallVector<Value>>> parts;
    openSums(write.c.number / unit, factors, parts);
    return llvm::all_of(parts, [&](auto &part) {
      if (decay)
        removeDecay(part.second, *decay);
      SmallVector<Value> read = takeVectors(part.second), scalars;
      SmallVector<SmallVector<Value>> links;
      for (Value factor : part.second)
        if (auto product = factor.getDefiningOp<MatmulOp>()) {
          SmallVector<Value> inside = factorsOf(product->getOperands());
          links.push_back(takeVectors(inside));
          llvm::append_range(scalars, inside);
        } else {
          scalars.push_back(factor);
        }
      return !links.empty() && isCross(steps, part.first, scalars, read, links, term.key);
    });
  }

  // S + c (S b) wT has the eigenvalue 1 + c b.w.
  void checkErase(unsigned state, const std::optional<Decay> &decay, const Write &write) {
    std::optional<Erase> erase = eraseOf(state, decay, write);
    if (!erase || isCross(state, decay, write, *erase))
      return;
    Leaves leaves(rule);
    leaves.add(erase->known);
    leaves.add(erase->vector);
    llvm::for_each(write.c.factors, [&](Value factor) { leaves.add(factor); });
    Leaves scale(rule);
    llvm::for_each(erase->factors, [&](Value factor) { scale.add(factor); });
    if (leaves.fromState || scale.repeated)
      return;
    Interval c{-write.c.number, -write.c.number};
    std::string coefficient = std::fabs(write.c.number) == 1 ? "" : number(std::fabs(write.c.number));
    for (Value factor : erase->factors) {
      c = c * Interval::of(factor);
      coefficient += (coefficient.empty() ? "" : "*") + bracketed(notation(factor));
    }
    bool same = erase->isSame();
    Interval norm = normOf(erase->known), other = normOf(erase->vector);
    // Momentum moves a state by several tokens' steps, and stands twice of each.
    bool coupled =
        llvm::any_of(nf.update(state).old, [&](const OldTerm &term) { return term.state != state; });
    double most = coupled ? 4 : 2;
    if (same && isImplicitStep(erase->factors, erase->known))
      return;
    Interval moved =
        c * (same ? Interval{norm.lo * norm.lo, norm.hi * norm.hi} : Interval{0, norm.hi * other.hi});
    // Two vectors that differ may point the same way; which way is the caller's.
    if (same ? moved.within(0, most) : moved.within(-most, most))
      return;

    std::string key = notation(erase->known), by = same ? key : notation(erase->vector),
                times = coefficient + (coefficient.empty() ? "" : "*");
    std::string product = same ? "|" + key + "|^2" : "dot(" + by + ", " + key + ")";
    std::string why = boundText(coefficient, c, write.c.number > 0) + normText(key, norm);
    if (!same)
      why += normText(by, other);
    report(write.loc,
           "'" + name(state) + "' may grow without bound: the term '" + times + bracketed(by) + "*" +
               bracketed(key) + (key.size() == 1 ? "T" : ".T") + "' has the eigenvalue 1 " +
               (write.c.number < 0 ? "- " : "+ ") + times + product +
               ", which must stay within [-1, 1], but " + StringRef(why).drop_back(5),
           fixText(same ? key : "", c, same ? norm : Interval{0, std::sqrt(norm.hi * other.hi)}, most));
  }

  // What is erased, c diag(r) (S k) kT: the numbers that c is a product of, the factors of the rates r, and
  // k.
  struct Step {
    double number;
    SmallVector<Value> factors, rates;
    Value key;
  };
  // `isOfDecayed`: of a state that has decayed, which is left out; else of the old one.
  std::optional<Step> stepOf(const Decay &decay, const Write &write, bool isOfDecayed) {
    const Column &known = write.column.kind == Column::Known ? write.column : write.row;
    Column read = write.column.kind == Column::Known ? write.row : write.column;
    double number = -write.c.number;
    SmallVector<Value> factors = factorsOf(write.c.factors), rates;
    while (read.kind == Column::RowOf) {
      const RowTerm *only = nullptr;
      for (const RowTerm &term : nf.rows[read.index].terms)
        if (term.column.kind != Column::Known && std::exchange(only, &term))
          return std::nullopt;
      if (!only)
        return std::nullopt;
      for (const Factor &factor : only->map) {
        if (!factor.diagonal)
          return std::nullopt;
        flattenProduct(factor.value, rates);
      }
      read = only->column;
      number *= only->c.number;
      llvm::append_range(factors, factorsOf(only->c.factors));
    }
    if (known.kind != Column::Known || read.kind != Column::OldRead)
      return std::nullopt;
    Side side = nf.reads[read.index].side;
    if ((side == Side::Right) != (write.column.kind != Column::Known))
      return std::nullopt;
    flattenProduct(nf.reads[read.index].vector, factors);
    if (isOfDecayed) {
      auto ofKeys = decay.right, ofValues = decay.left;
      if (side == Side::Left)
        std::swap(ofKeys, ofValues);
      SmallVector<Value> wanted = factorsOf(decay.c.factors);
      for (Value column : ofKeys)
        flattenProduct(column, wanted);
      if (!removeAll(factors, wanted) || !removeAll(rates, factorsOf(ofValues)))
        return std::nullopt;
      number /= decay.c.number;
    }
    if (!arePermuted(takeVectors(factors), factorsOf(known.value)))
      return std::nullopt;
    return Step{number, factors, rates, known.value};
  }

  // The most that a step erases, c r |k|^2, where that is at least 0.
  static std::optional<double> longest(const Step &step) {
    Interval c{step.number, step.number}, norm = normOf(step.key);
    if (step.number >= 0 && isImplicitStep(step.factors, step.key)) {
      c = {0, 1};
    } else {
      for (Value factor : step.factors)
        c = c * Interval::of(factor);
      c = c * Interval{norm.lo * norm.lo, norm.hi * norm.hi};
    }
    for (Value rate : step.rates)
      c = c * Interval::of(rate);
    return c.lo >= 0 ? std::optional(c.hi) : std::nullopt;
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

  static SmallVector<Value> factorsOf(ValueRange values) {
    SmallVector<Value> factors;
    for (Value value : values)
      flattenProduct(value, factors);
    return factors;
  }

  // A product as a sum of products, each with its number, where an inner product is in a sum.
  static void openSums(double number, SmallVector<Value> factors,
                       SmallVector<std::pair<double, SmallVector<Value>>> &parts) {
    for (Value *factor = factors.begin(); factor != factors.end();) {
      FloatAttr known;
      Operation *sum = holdsInnerProduct(*factor) ? factor->getDefiningOp() : nullptr;
      if (matchPattern(*factor, m_Constant(&known)) && matType(*factor).isScalar()) {
        number *= known.getValueAsDouble();
        factor = factors.erase(factor);
      } else if (isa_and_present<AddOp, SubOp, NegOp>(sum)) {
        factors.erase(factor);
        for (auto [i, operand] : llvm::enumerate(sum->getOperands())) {
          SmallVector<Value> part = factors;
          flattenProduct(operand, part);
          openSums(isa<NegOp>(sum) || (i == 1 && isa<SubOp>(sum)) ? -number : number, part, parts);
        }
        return;
      } else {
        ++factor;
      }
    }
    parts.push_back({number, factors});
  }
  static bool holdsInnerProduct(Value value) {
    Operation *op = matType(value).isScalar() ? value.getDefiningOp() : nullptr;
    return isa_and_present<MatmulOp>(op) || (isa_and_present<AddOp, SubOp, NegOp, MulOp>(op) &&
                                             llvm::any_of(op->getOperands(), holdsInnerProduct));
  }

  // Removes the decay's factors if they are all there.
  static bool removeDecay(SmallVector<Value> &factors, const Decay &decay) {
    SmallVector<Value> wanted = factorsOf(decay.c.factors);
    for (Value column : llvm::concat<const Value>(decay.left, decay.right))
      flattenProduct(column, wanted);
    return removeAll(factors, wanted);
  }

  // The same for any factors.
  static bool removeAll(SmallVector<Value> &factors, ArrayRef<Value> wanted) {
    SmallVector<Value> rest(factors);
    for (Value factor : wanted) {
      auto *at = llvm::find(rest, factor);
      if (at == rest.end())
        return false;
      rest.erase(at);
    }
    factors = rest;
    return true;
  }
  static bool arePermuted(ArrayRef<Value> a, ArrayRef<Value> b) {
    return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
  }
  // Leaves the numbers, and returns the vectors.
  static SmallVector<Value> takeVectors(SmallVector<Value> &factors) {
    auto isVector = [](Value value) { return !matType(value).isScalar(); };
    SmallVector<Value> vectors = llvm::filter_to_vector(factors, isVector);
    llvm::erase_if(factors, isVector);
    return vectors;
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

static bool hasOneState(const NormalForm &nf) {
  return nf.affine && nf.states.size() == 1 && nf.updates[0] != Row::none;
}

Value recur::buildNormBound(const NormalForm &nf) {
  return hasOneState(nf) ? Finder(nf).normBound() : Value();
}

bool recur::isContraction(const NormalForm &nf) { return hasOneState(nf) && Finder(nf).isContraction(); }
