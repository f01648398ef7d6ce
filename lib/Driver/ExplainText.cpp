// An explanation for a terminal.
#include "lib/Driver/Explanation.h"
#include "llvm/Support/Format.h"

using namespace recur;
using llvm::format;

void recur::printExplanation(const Explanation &e, llvm::raw_ostream &os) {
  os << "rule: " << e.rule << "\nclass: " << e.ruleClass << "\nform: " << e.form
     << "\nprecision: " << e.precision << "\n";
  for (const std::string &note : e.notes)
    os << note << "\n";
  os << "the class: " << e.classMeaning << "\n";
  for (const auto &[name, doc] : e.tensors)
    os << name << " : " << doc << "\n";
  for (const std::string &text : e.blame)
    os << "not faster because: " << text << "\n";
  Derivation derivation;
  derivation.steps = e.derivation;
  os << "\n" << printDerivation(derivation);
  if (!e.noChunk.empty())
    os << "no chunk form: " << e.noChunk << "\n";
  os << "\n";
  if (!e.cost) {
    os << "cost: bind the dimensions to see it (--bind)\n";
  } else {
    const TokenCost &cost = *e.cost;
    os << "cost of a token and head: " << format("%.6g", cost.flops) << " flop at least"
       << (cost.byOps ? " (counted op by op)" : "") << ", " << format("%.6g", 4 * cost.values)
       << " bytes of f32 tensors\n"
       << "state of a head: " << format("%.6g", 4 * cost.state) << " bytes, read and written once a call\n"
       << "cost of a decoded token and head: " << format("%.6g", 8 * cost.state + 4 * cost.values)
       << " bytes\n";
  }
  if (!e.forms.empty())
    os << "\nforms " << e.place << " as the cost model predicts them:\n";
  for (const FormEntry &entry : e.forms) {
    os << format("  %-12s", entry.form.c_str());
    if (entry.microseconds)
      os << format(*entry.microseconds < 1000 ? "%8.3g us, bound by " : "%8.0f us, bound by ",
                   *entry.microseconds)
         << entry.bound << (entry.chosen ? " (chosen)" : "");
    else
      os << "      no: " << entry.why;
    os << (entry.launches.empty() ? "" : ": ") << entry.launches << "\n";
  }
  for (const std::string &floor : e.floors)
    os << "  floor: " << floor << "\n";
  if (!e.advice.empty())
    os << "\nwhat would make it faster:\n";
  for (const std::string &text : e.advice)
    os << "  " << text << "\n";
}
