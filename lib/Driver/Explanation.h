// What `recurc explain` says about a rule, as data: printed as text and as a page.
#pragma once

#include "lib/Derive/Derive.h"
#include "lib/Driver/Forms.h"
#include "lib/Schedule/Cost.h"

namespace recur {

struct Explanation {
  std::string rule, spec, ruleClass, classMeaning, form, precision;
  std::vector<std::string> notes;                           // on what is shown
  std::vector<std::pair<std::string, std::string>> tensors; // "input q", "vector(dk)"
  std::vector<std::string> blame;                           // why it is in no better class
  std::vector<DerivationStep> derivation;
  std::string noChunk; // why there is no chunk form
  /// "on one core of x86-64-v4, times of a token and head": of what the times of the forms are.
  std::string place;
  std::vector<FormEntry> forms;
  std::vector<std::string> floors; // times that no form can be below
  std::optional<TokenCost> cost;
  std::vector<std::string> advice;
  std::vector<std::string> names; // of tensors and dimensions, for equations
};

void printExplanation(const Explanation &explanation, llvm::raw_ostream &os);
/// One page that needs nothing else: no script, no network.
void printExplanationAsHtml(const Explanation &explanation, llvm::raw_ostream &os);

} // namespace recur
