#include "lib/Driver/Forms.h"
#include "lib/Cpu/SweepPlan.h"

using namespace mlir;
using namespace recur;

CpuModel recur::cpuModelOf(ArrayRef<DType> types, const Target &target) {
  bool half = llvm::is_contained(types, DType::BF16);
  return CpuModel::of(target.vectorWidth, half && target.required & RECUR_CPU_AVX512_BF16, half ? 2 : 4);
}

static void sortByTime(std::vector<FormEntry> &entries) {
  auto key = [](const FormEntry &entry) {
    return std::tuple(!entry.microseconds, entry.microseconds.value_or(0), StringRef(entry.form));
  };
  llvm::sort(entries, [&](const FormEntry &a, const FormEntry &b) { return key(a) < key(b); });
}

std::string recur::whyNoChunks(const Derivation &derivation) {
  constexpr int64_t tokensOfTile = 16, most = 256;
  if (!derivation.program)
    return derivation.reason;
  std::optional<int64_t> block = chunk::ProgramOp(*derivation.program).getBlock();
  if (!block || (*block % tokensOfTile == 0 && *block <= most))
    return {};
  return "a block has " + std::to_string(*block) + " tokens, and chunks on CPUs have a multiple of " +
         std::to_string(tokensOfTile) + ", up to " + std::to_string(most);
}

std::vector<FormEntry> recur::compareForms(RuleOp rule, const Analysis &analysis, ArrayRef<DType> types,
                                           const Target &target) {
  const NormalForm &form = analysis.normalForm;
  RuleWork work = workOf(form, leastCost(rule, form), *analysis.derivation.program);
  CpuModel cpu = cpuModelOf(types, target);
  std::vector<FormEntry> entries;
  auto add = [&](StringRef name, const std::string &why) {
    FormEntry entry{name.str(), {}, "", "", why};
    if (why.empty()) {
      FormCost cost = predict(name, work, cpu);
      entry.microseconds = cost.total() * 1e-3;
      entry.bound = cost.bound().str();
    }
    entries.push_back(entry);
  };
  add("sequential", "");
  add("sweep", cpu::planSweep(rule).reason);
  add("chunk", whyNoChunks(analysis.derivation));
  sortByTime(entries);
  return entries;
}

double recur::bytesOfToken(RuleOp rule, const ModelInfo &info, ArrayRef<DType> types) {
  double bytes = 0;
  auto add = [&](Role role, ValueRange values) {
    size_t next = 0;
    for (auto [tensor, type] : llvm::zip(info.tensors, types))
      if (tensor.role == role)
        bytes += elementsOf(values[next++].getType()) * dtypeSize(type);
  };
  add(Role::Input,
      SmallVector<Value>(llvm::map_range(rule.argumentsOf(ArgKind::Input), [](Value x) { return x; })));
  add(Role::Output, rule.yieldedOutputs());
  return bytes;
}

std::vector<FormEntry> recur::compareGpuForms(RuleOp rule, const ModelInfo &info, ArrayRef<DType> types,
                                              const cuda::Kernel &kernel, StringRef chosen,
                                              const GpuShape &shape, const GpuModel &gpu) {
  std::vector<FormEntry> entries;
  bool found = false;
  std::vector<GpuCandidate> candidates = cuda::listCandidates(kernel, info.name);
  candidates.pop_back(); // the last one is for tensors that are not aligned
  for (GpuCandidate &candidate : candidates) {
    candidate.bytes += bytesOfToken(rule, info, types);
    GpuTime time = predict(candidate, shape, gpu);
    FormEntry entry{candidate.form, {}, time.bound, time.launches, time.why};
    if (time.why.empty()) {
      entry.microseconds = time.microseconds;
      entry.chosen = candidate.form == chosen && !std::exchange(found, true);
    } else {
      for (const GpuLaunch &launch : candidate.launches)
        entry.launches += (entry.launches.empty() ? "" : ", ") + launch.name;
    }
    entries.push_back(entry);
  }
  for (StringRef form : cuda::gpuForms)
    if (auto why = kernel.refused.find(form);
        why != kernel.refused.end() &&
        llvm::none_of(entries, [&](const FormEntry &e) { return e.form == form; }))
      entries.push_back({form.str(), {}, "", "", why->second});
  sortByTime(entries);
  return entries;
}
