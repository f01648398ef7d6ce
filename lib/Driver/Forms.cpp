#include "lib/Driver/Forms.h"
#include "lib/Cpu/SweepPlan.h"

using namespace mlir;
using namespace recur;

CpuModel recur::cpuModelOf(ArrayRef<DType> types, const Target &target) {
  bool half = llvm::is_contained(types, DType::BF16);
  return CpuModel::of(target.vectorWidth, half && target.required & RECUR_CPU_AVX512_BF16, half ? 2 : 4);
}

std::vector<FormEntry> recur::compareForms(RuleOp rule, const Analysis &analysis, ArrayRef<DType> types,
                                           const Target &target) {
  const NormalForm &form = analysis.normalForm;
  RuleWork work = workOf(form, leastCost(rule, form), *analysis.derivation.program);
  CpuModel cpu = cpuModelOf(types, target);
  std::vector<FormEntry> entries;
  auto add = [&](StringRef name, const std::string &why) {
    entries.push_back({name.str(), why.empty() ? std::optional(predict(name, work, cpu)) : std::nullopt, why});
  };
  add("sequential", "");
  add("sweep", cpu::planSweep(rule).reason);
  add("chunk", analysis.derivation.reason);
  llvm::sort(entries, [](const FormEntry &a, const FormEntry &b) {
    return std::pair(!a.cost, a.cost ? a.cost->total() : 0) < std::pair(!b.cost, b.cost ? b.cost->total() : 0);
  });
  return entries;
}
