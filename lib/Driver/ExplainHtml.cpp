// An explanation as one page: no script, nothing from the network, equations in MathML.
#include "lib/Driver/Explanation.h"
#include "lib/Driver/MathMl.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FormatVariadic.h"

using namespace recur;
using llvm::formatv;
using llvm::StringRef;

static constexpr llvm::StringLiteral style = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --mark: #0a5bb5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0f1216; --line: #30363d; --mark: #6cb6ff; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2rem; border-bottom: 1px solid var(--line); }
.sub, .why { color: var(--soft); }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line); border-radius: 6px; font-size: 14px; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top; }
th { font-weight: 600; } tr + tr td { border-top: 1px solid var(--line); }
.chosen td:first-child { font-weight: 600; color: var(--mark); }
.equation { overflow-x: auto; padding: .3rem 0 .3rem 1rem; } math { font-size: 1.1rem; }
@media print { body { max-width: none; margin: 0; } h2 { break-after: avoid; } .equation { break-inside: avoid; } }
)";

// What each step of a derivation does.
static StringRef meaning(StringRef step) {
  return llvm::StringSwitch<StringRef>(step)
      .Case("where", "Names for what depends on the token alone.")
      .Case(
          "affinise",
          "Every new state as a sum of terms with at most one old state in each; y are vectors read from it.")
      .Case("orient",
            "The side on which the state is read; H is the state turned so that it is read by its rows.")
      .Case("sort", "The vectors along which is written. A payload that reads the state is an unknown row.")
      .Case("per token",
            "For each token by itself. Capitals are matrices with one row per token of a chunk; G is the sum "
            "of log decays up to a token, with a minus up to the one before.")
      .Case("eliminate",
            "The unknown rows of a chunk solve a unit lower triangular system; tril and stril are the lower "
            "triangles with and without the diagonal.")
      .Case("emit", "Outputs of the chunk, and the state at its end.")
      .Default("");
}

static std::string tableRow(llvm::ArrayRef<std::string> cells, StringRef cell = "td") {
  std::string row;
  for (const std::string &text : cells)
    row += formatv("<{0}>{1}</{0}>", cell, text);
  return row;
}

static void printForms(const Explanation &e, llvm::raw_ostream &os) {
  os << "<h2>Forms</h2>\n<p class=\"sub\">Forms " << escapeHtml(e.place)
     << " as the cost model predicts them.</p>\n<table>\n<tr>"
     << tableRow({"form", "microseconds", "bound by", "", "launches"}, "th") << "</tr>\n";
  for (const FormEntry &entry : e.forms)
    os << (entry.chosen ? "<tr class=\"chosen\">" : "<tr>")
       << (entry.microseconds
               ? tableRow({entry.form, formatv("{0:f3}", *entry.microseconds).str(), escapeHtml(entry.bound),
                           entry.chosen ? "chosen" : "", escapeHtml(entry.launches)})
               : tableRow({entry.form, "", "", "no: " + escapeHtml(entry.why), escapeHtml(entry.launches)}))
       << "</tr>\n";
  os << "</table>\n";
  for (const std::string &floor : e.floors)
    os << "<p class=\"sub\">Floor: " << escapeHtml(floor) << ".</p>\n";
}

static void printCost(const TokenCost &cost, llvm::raw_ostream &os) {
  auto number = [](double x) { return std::to_string(static_cast<int64_t>(x)); };
  os << "<h2>Cost</h2>\n<table>\n<tr>"
     << tableRow({"flop of a token and head, at least",
                  number(cost.flops) + (cost.byOps ? ", counted op by op" : "")})
     << "</tr>\n<tr>" << tableRow({"bytes of f32 tensors of a token and head", number(4 * cost.values)})
     << "</tr>\n<tr>"
     << tableRow({"bytes of a head's state, read and written once a call", number(4 * cost.state)})
     << "</tr>\n<tr>"
     << tableRow({"bytes of a decoded token and head", number(8 * cost.state + 4 * cost.values)})
     << "</tr>\n</table>\n";
}

static void printList(StringRef title, llvm::ArrayRef<std::string> texts, llvm::raw_ostream &os) {
  if (texts.empty())
    return;
  os << "<h2>" << title << "</h2>\n<ul>\n";
  for (const std::string &text : texts)
    os << "<li>" << escapeHtml(text) << "</li>\n";
  os << "</ul>\n";
}

void recur::printExplanationAsHtml(const Explanation &e, llvm::raw_ostream &os) {
  llvm::StringSet<> names;
  for (const std::string &name : e.names)
    names.insert(name);
  os << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>"
     << escapeHtml(e.rule) << "</title>\n<style>" << style << "</style>\n</head>\n<body>\n<h1>"
     << escapeHtml(e.rule) << "</h1>\n<p class=\"sub\">Class " << e.ruleClass << ": "
     << escapeHtml(e.classMeaning) << ".<br>Form: " << escapeHtml(e.form)
     << ".<br>Precision: " << escapeHtml(e.precision) << ".";
  for (const std::string &note : e.notes)
    os << "<br>" << escapeHtml(note) << ".";
  os << "</p>\n<pre>" << escapeHtml(StringRef(e.spec).rtrim()) << "</pre>\n<table>\n";
  for (const auto &[name, doc] : e.tensors)
    os << "<tr>" << tableRow({escapeHtml(name), escapeHtml(doc)}) << "</tr>\n";
  os << "</table>\n";
  printList("Why it is in no faster class", e.blame, os);
  if (!e.derivation.empty())
    os << "<h2>Derivation</h2>\n";
  for (const DerivationStep &step : e.derivation) {
    os << "<h3>" << escapeHtml(step.name) << "</h3>\n<p class=\"why\">" << meaning(step.name) << "</p>\n";
    for (const std::string &line : step.lines)
      os << "<div class=\"equation\"><math display=\"inline\">" << toMathMl(line, names) << "</math></div>\n";
  }
  if (!e.noChunk.empty())
    os << "<p>No chunk form: " << escapeHtml(e.noChunk) << ".</p>\n";
  if (!e.forms.empty())
    printForms(e, os);
  if (e.cost)
    printCost(*e.cost, os);
  printList("What would make it faster", e.advice, os);
  os << "</body>\n</html>\n";
}
