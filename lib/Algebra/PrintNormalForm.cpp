// The normal form as text.
#include "lib/Algebra/Expander.h"
#include "lib/Algebra/Passes.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>

namespace recur {
#define GEN_PASS_DEF_RECURNORMALISE
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

namespace {
class Printer {
public:
  Printer(const NormalForm &nf, raw_ostream &os) : nf(nf), os(os) {}

  void print() {
    os << "class: " << className(nf.ruleClass) << "\n";
    for (const Blame &blame : nf.blame)
      os << "  blame: " << blame.text << "\n";
    for (auto [index, ahead] : llvm::enumerate(nf.ahead))
      if (ahead)
        os << "  ahead: " << name(index) << "\n";
    if (!nf.affine)
      return;
    for (auto [index, row] : llvm::enumerate(nf.rows)) {
      os << "  y" << index + 1;
      if (row.solution)
        os << " = " << notation(row.solution);
      else if (row.version != Row::none)
        os << " = " << read(notation(nf.versions[row.version].value), row.side, row.vector);
      if (row.inOldReads)
        os << " = " << terms(row.terms);
      os << "\n";
    }
    for (auto [index, version] : llvm::enumerate(nf.updates))
      if (version != Row::none)
        os << "  " << name(index) << "' = " << update(nf.versions[version]) << "\n";
    for (const Readout &readout : nf.readouts)
      os << "  read out: y" << readout.row + 1 << (readout.transposed ? "T" : "") << "\n";
  }

private:
  std::string name(unsigned state) { return notation(nf.states[state]); }

  static std::string bracket(std::string text) {
    return text.find(' ') == std::string::npos ? text : "(" + text + ")";
  }

  std::string read(std::string version, Side side, Value vector) {
    if (matType(vector).isScalar())
      return version;
    version = bracket(version);
    return side == Side::Right ? version + "*" + bracket(notation(vector))
                               : version + ".T*" + bracket(notation(vector));
  }

  std::string column(const Column &column) {
    if (column.kind == Column::Known)
      return bracket(notation(column.value));
    if (column.kind == Column::RowOf)
      return "y" + std::to_string(column.index + 1);
    const Read &r = nf.reads[column.index];
    return read(name(r.state), r.side, r.vector);
  }

  std::string factor(const Factor &f) {
    std::string text = bracket(notation(f.value));
    return f.diagonal ? "diag(" + text + ")" : text + (f.transposed ? ".T" : "");
  }

  std::string coefficient(const Coefficient &c, bool first) {
    std::string text = c.number < 0 ? (first ? "-" : " - ") : first ? "" : " + ";
    if (std::fabs(c.number) != 1)
      text += llvm::formatv("{0}*", std::fabs(c.number)).str();
    for (Value f : c.factors)
      text += bracket(notation(f)) + "*";
    return text;
  }

  std::string terms(ArrayRef<RowTerm> terms) {
    std::string text;
    for (const RowTerm &term : terms) {
      text += coefficient(term.c, text.empty());
      for (const Factor &f : term.map)
        text += factor(f) + "*";
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
        text += bracket(notation(e)) + ".*";
      text += name(term.state) + (term.transposed ? "T" : "");
      for (const Factor &f : term.right)
        text += "*" + factor(f);
    }
    for (const Write &write : version.writes) {
      text += coefficient(write.c, text.empty());
      if (write.matrix)
        text += bracket(notation(write.matrix));
      else
        text += column(write.column) + "*" + column(write.row) + ".T";
    }
    return text.empty() ? "0" : text;
  }

  const NormalForm &nf;
  raw_ostream &os;
};

struct Normalise : recur::impl::RecurNormaliseBase<Normalise> {
  void runOnOperation() override {
    if (failed(unrollSteps(getOperation())))
      return signalPassFailure();
    llvm::outs() << printNormalForm(normalise(getOperation()));
  }
};
} // namespace

std::string recur::printNormalForm(const NormalForm &nf) {
  std::string text;
  llvm::raw_string_ostream os(text);
  Printer(nf, os).print();
  return text;
}
