// The forms that a rule can take on a CPU, and which one it takes when none is asked for.
#pragma once

#include "lib/Driver/Compile.h"
#include "lib/Schedule/Predict.h"

namespace recur {

/// The names of the forms, as --form takes them.
inline constexpr llvm::StringLiteral cpuForms[] = {"sequential", "sweep", "chunk"};

/// One form of a rule.
struct FormEntry {
  std::string form;
  std::optional<FormCost> cost; // of one token of one head, where there is code for it
  std::string why;              // where there is none
};

/// A core of a target, as the model of the forms' times sees it.
CpuModel cpuModelOf(llvm::ArrayRef<DType> types, const Target &target);

/// All forms of a bound and simplified rule, the one with the least predicted time first, those without code last.
std::vector<FormEntry> compareForms(RuleOp rule, const Analysis &analysis, llvm::ArrayRef<DType> types,
                                    const Target &target);

} // namespace recur
