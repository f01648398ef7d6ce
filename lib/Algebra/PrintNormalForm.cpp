// The normal form as text.
#include "lib/Algebra/Expander.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Stems.h"
#include "mlir/IR/Matchers.h"

#include <cmath>

namespace recur {
#define GEN_PASS_DEF_RECURNORMALISE
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

std::string recur::freeStem(ArrayRef<ArgAttr> args, StringRef letters) {
  for (char letter : letters) {
    StringRef stem(&letter, 1);
    bool isTaken = llvm::any_of(args, [&](ArgAttr arg) {
      StringRef rest = arg.getName().getValue();
      return rest.consume_front(stem) &&
             (rest.empty() ? arg.getKind() == ArgKind::State : llvm::all_of(rest, llvm::isDigit));
    });
    if (!isTaken)
      return stem.str();
  }
  return letters.take_front().str() + "_";
}
std::string recur::readStem(ArrayRef<ArgAttr> args) { return freeStem(args, "yrnm"); }
std::string recur::shortStem(ArrayRef<ArgAttr> args) { return freeStem(args, "xwuf"); }

static SmallVector<ArgAttr> argumentsOf(const NormalForm &nf) {
  RuleOp rule = nf.rule;
  return llvm::to_vector(rule.getArgs().getAsRange<ArgAttr>());
}

namespace {
class Printer {
public:
  Printer(const NormalForm &nf, const ShortNames *given, raw_ostream &os) : nf(nf), os(os), brief(given) {
    if (!brief)
      return;
    y = readStem(argumentsOf(nf));
    names = given->names;
    for (auto [index, version] : llvm::enumerate(nf.updates))
      if (version != Row::none)
        names[nf.versions[version].value] = notation(nf.states[index]) + "'";
  }

  void print() {
    if (!brief) {
      os << "class: " << className(nf.ruleClass) << "\n";
      for (const Blame &blame : nf.blame)
        os << "  blame: " << blame.text << "\n";
    }
    for (auto [index, ahead] : llvm::enumerate(nf.ahead))
      if (ahead)
        os << "  ahead: " << name(index) << "\n";
    if (!nf.affine)
      return;
    for (auto [index, row] : llvm::enumerate(nf.rows)) {
      if (brief && row.version != Row::none)
        nameVersion(nf.versions[row.version]);
      std::string line;
      if (row.solution)
        line = " = " + say(row.solution);
      else if (row.version != Row::none)
        line = " = " + read(say(nf.versions[row.version].value), row.side, row.vector);
      if (std::string sum = " = " + terms(row.terms); row.inOldReads && !(brief && sum == line))
        line += sum;
      os << "  " << y << index + 1 << line << "\n";
    }
    for (auto [index, version] : llvm::enumerate(nf.updates))
      if (version != Row::none)
        os << "  " << name(index) << "' = " << update(nf.versions[version]) << "\n";
    for (const Readout &readout : nf.readouts)
      os << "  read out: " << y << readout.row + 1 << (readout.transposed ? "T" : "") << "\n";
  }

private:
  std::string name(unsigned state) { return notation(nf.states[state]); }
  std::string say(Value value) { return notation(value, names); }
  std::string sayFactor(Value value) { return factorNotation(value, names); }

  // What a state is between two steps of its update.
  void nameVersion(const Version &version) {
    if (names.contains(version.value) || isa<BlockArgument>(version.value) || version.old.empty())
      return;
    std::string fresh = name(version.old.front().state) + std::to_string(++versions);
    os << "  " << fresh << " = " << update(version) << "\n";
    names[version.value] = fresh;
  }

  static std::string bracket(std::string text) {
    return text.find(' ') == std::string::npos ? text : "(" + text + ")";
  }

  std::string read(std::string version, Side side, Value vector) {
    if (matType(vector).isScalar())
      return version;
    version = bracket(version);
    return version + (side == Side::Right ? "*" : ".T*") + sayFactor(vector);
  }

  std::string column(const Column &column) {
    if (column.kind == Column::Known)
      return sayFactor(column.value);
    if (column.kind == Column::RowOf)
      return y + std::to_string(column.index + 1);
    const Read &r = nf.reads[column.index];
    return read(name(r.state), r.side, r.vector);
  }

  // What is added to a vector is added along the number 1.
  static bool isOneNumber(const Column &column) {
    FloatAttr number;
    return column.kind == Column::Known && matType(column.value).isScalar() &&
           matchPattern(column.value, m_Constant(&number)) && number.getValueAsDouble() == 1;
  }

  std::string factor(const Factor &f) {
    if (f.diagonal)
      return "diag(" + say(diagonalColumn(f.value)) + ")";
    return sayFactor(f.value) + (f.transposed ? ".T" : "");
  }

  std::string coefficient(const Coefficient &c, bool first) {
    std::string text = c.number < 0 ? (first ? "-" : " - ") : first ? "" : " + ";
    if (std::fabs(c.number) != 1)
      text += numberText(std::fabs(c.number)) + "*";
    for (Value f : c.factors)
      text += sayFactor(f) + "*";
    return text;
  }

  std::string terms(ArrayRef<RowTerm> terms) {
    std::string text;
    for (const RowTerm &term : terms) {
      text += coefficient(term.c, text.empty());
      for (const Factor &f : term.map)
        text += factor(f) + "*";
      if (brief && isOneNumber(term.column) && StringRef(text).ends_with("*"))
        text.pop_back();
      else
        text += column(term.column);
    }
    return text.empty() ? "0" : text;
  }

  std::string update(const Version &version) {
    std::string text;
    for (const OldTerm &term : version.old) {
      text += coefficient(term.c, text.empty());
      for (const Factor &f : term.left)
        text += factor(f) + "*";
      for (Value e : term.elementwise)
        text += sayFactor(e) + ".*";
      text += name(term.state) + (term.transposed ? "T" : "");
      for (const Factor &f : term.right)
        text += "*" + factor(f);
    }
    for (const Write &write : version.writes) {
      text += coefficient(write.c, text.empty());
      if (write.matrix)
        text += sayFactor(write.matrix);
      else if (brief && isOneNumber(write.column) && isOneNumber(write.row) && StringRef(text).ends_with("*"))
        text.pop_back();
      else
        text +=
            column(write.column) + (brief && isOneNumber(write.row) ? "" : "*" + column(write.row) + ".T");
    }
    return text.empty() ? "0" : text;
  }

  const NormalForm &nf;
  raw_ostream &os;
  bool brief;
  DenseMap<Value, std::string> names;
  std::string y = "y";
  unsigned versions = 0;
};

// Longer expressions get a name.
constexpr size_t longestExpression = 7;

struct Normalise : recur::impl::RecurNormaliseBase<Normalise> {
  void runOnOperation() override {
    if (failed(unrollSteps(getOperation())))
      return signalPassFailure();
    llvm::outs() << printNormalForm(normalise(getOperation()));
  }
};
} // namespace

ShortNames recur::shortNames(const NormalForm &nf) {
  ShortNames result;
  if (!nf.affine)
    return result;
  std::string stem = shortStem(argumentsOf(nf));
  auto add = [&](Value value) {
    if (!value || !nf.isTokenOnly(value) || result.names.contains(value))
      return;
    std::string full = notation(value, DenseMap<Value, std::string>(), fullDepth);
    if (full.size() <= longestExpression)
      return;
    std::string name = stem + std::to_string(result.lines.size() + 1);
    result.lines.push_back(name + " = " + notation(value, result.names, fullDepth));
    result.byText[full] = result.names[value] = name;
  };
  auto addAll = [&](const auto &values) { llvm::for_each(values, add); };
  auto addFactors = [&](ArrayRef<Factor> factors) {
    for (const Factor &factor : factors)
      add(factor.diagonal ? diagonalColumn(factor.value) : factor.value);
  };
  auto addColumn = [&](const Column &column) { add(column.kind == Column::Known ? column.value : Value()); };
  for (const Read &read : nf.reads)
    add(read.vector);
  for (const Row &row : nf.rows) {
    add(row.vector);
    for (const RowTerm &term : row.terms) {
      addFactors(term.map);
      addAll(term.c.factors);
      addColumn(term.column);
    }
  }
  for (const Version &version : nf.versions) {
    for (const OldTerm &term : version.old) {
      addFactors(term.left);
      addFactors(term.right);
      addAll(term.elementwise);
      addAll(term.c.factors);
    }
    for (const Write &write : version.writes) {
      addAll(write.c.factors);
      addColumn(write.column);
      addColumn(write.row);
      add(write.matrix);
    }
  }
  return result;
}

std::string recur::printNormalForm(const NormalForm &nf, const ShortNames *names) {
  std::string text;
  llvm::raw_string_ostream os(text);
  Printer(nf, names, os).print();
  return text;
}
