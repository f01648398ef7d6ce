// A rule's code for one GPU: of the machine, or an emulated one.
#include "lib/Driver/CompileGpu.h"
#include "lib/Algebra/MicroSteps.h"
#include "lib/Derive/ProveRewritten.h"
#include "lib/Driver/Compile.h"
#include "lib/Emulate/Host.h"
#include <recur/abi.h>

using namespace mlir;
using namespace recur;

static int64_t flagsOf(const cuda::Entry &entry) {
  constexpr int64_t cuts[] = {0,
                              RECUR_CUDA_SEGMENTS,
                              RECUR_CUDA_SEGMENTS | RECUR_CUDA_ANY,
                              RECUR_CUDA_TOKENS,
                              RECUR_CUDA_SPREAD,
                              RECUR_CUDA_SEGMENTS | RECUR_CUDA_ONE,
                              RECUR_CUDA_SPREAD | RECUR_CUDA_INITIAL,
                              RECUR_CUDA_SEGMENTS | RECUR_CUDA_PASSES,
                              RECUR_CUDA_SEGMENTS | RECUR_CUDA_SEVERAL};
  int64_t cut =
      cuts[entry.cut] | (entry.takesMore ? RECUR_CUDA_MORE : 0) | (entry.forFew ? RECUR_CUDA_FEW : 0);
  return cut | (entry.continues ? RECUR_CUDA_CONTINUES : 0) | (entry.overlaps ? RECUR_CUDA_OVERLAPS : 0) |
         (entry.atStart ? RECUR_CUDA_AT_START : 0);
}

static GpuCode launchable(const cuda::Chip &chip, cuda::Code code, const cuda::Kernel &kernel) {
  // What only this chip runs needs no PTX for later ones.
  GpuCode gpu{{}, chip.exact ? "" : std::move(code.ptx), chip.capability, chip.exact, {}, {}};
  llvm::StringMap<size_t> cubins;
  for (cuda::Cubin &cubin : code.cubins) {
    for (StringRef name : cubin.kernels)
      cubins[name] = gpu.cubins.size();
    gpu.cubins.push_back(std::move(cubin.code));
  }
  for (const cuda::Temporary &temporary : kernel.temporaries)
    gpu.temporaries.push_back({temporary.rows, temporary.entries, temporary.bits});
  for (const cuda::Entry &entry : kernel.entries)
    gpu.entries.push_back({entry.name,
                           cubins.at(entry.name),
                           entry.threads,
                           entry.shards,
                           entry.sharedBytes,
                           entry.scratchBytes,
                           entry.packed,
                           entry.leastTokens,
                           {entry.maps.begin(), entry.maps.end()},
                           entry.mostBlocks,
                           flagsOf(entry),
                           {entry.tensors.begin(), entry.tensors.end()},
                           entry.recordBytes});
  return gpu;
}

// The kernels of a rule for the chip that the options name, before they are lowered.
static FailureOr<OwningOpRef<ModuleOp>> emitForGpu(Session &session, RuleOp rule, const ModelInfo &info,
                                                   ArrayRef<DType> types, cuda::KernelOptions &options,
                                                   cuda::Kernel &kernel) {
  options.symbol = info.name;
  for (auto [tensor, type] : llvm::zip(info.tensors, types))
    if (tensor.role != Role::State)
      options.elements[tensor.name] = floatType(&session.context, type);
  session.context.loadDialect<chunk::ChunkDialect>();
  // The derivation adds values to a copy of the rule.
  OwningOpRef<ModuleOp> copy;
  Derivation derivation;
  std::string missing;
  auto deriveProgram = [&](RuleOp part, bool ofMicroStep) -> chunk::ProgramOp {
    derivation = {};
    copy = ofMicroStep ? ruleOfMicroStep(part, /*inLogs=*/true) : cpu::isolateRule(part);
    if (!copy)
      return {};
    RuleOp derived = *copy->getOps<RuleOp>().begin();
    if (ofMicroStep) {
      OwningOpRef<ModuleOp> plain = ruleOfMicroStep(part, /*inLogs=*/false);
      if (std::string defect = proveMicroStep(part, *plain->getOps<RuleOp>().begin()); !defect.empty()) {
        warnOfDefect(session, defect);
        return {};
      }
    }
    if (failed(unrollSteps(derived)))
      return {};
    derivation = derive(normalise(derived));
    dropUnproved(session, derived, derivation);
    if (!ofMicroStep)
      missing = derivation.reason;
    if (!derivation.program)
      return {};
    if (Attribute attr = derived->getAttr(readsFirstAttr))
      (*derivation.program)->setAttr(readsFirstAttr, attr);
    return *derivation.program;
  };
  FailureOr<OwningOpRef<ModuleOp>> module =
      cuda::emitKernels(rule, session.rule(), deriveProgram, options, kernel);
  if (!missing.empty())
    for (StringRef form : {"roles", "chunk"})
      kernel.refused.try_emplace(form, missing);
  return module;
}

FailureOr<GpuCode> recur::compileForGpu(Session &session, RuleOp rule, const ModelInfo &info,
                                        ArrayRef<DType> types, const Target &target, StringRef form,
                                        cuda::Kernel &kernel) {
  llvm::Expected<cuda::Chip> chip = cuda::lookupChip(target.name);
  if (failed(report(session, chip.takeError())))
    return failure();
  cuda::KernelOptions options;
  options.chip = *chip;
  options.form = form.str();
  if (session.options.emulate && session.options.processors)
    options.chip.processors = session.options.processors;
  FailureOr<OwningOpRef<ModuleOp>> module = emitForGpu(session, rule, info, types, options, kernel);
  if (failed(module))
    return failure();
  if (session.options.emulate) {
    FailureOr<std::string> code = emulate::compile(**module, options.chip, kernel.entries);
    if (failed(code))
      return failure();
    recur_rt_find_driver_with(emulate::findDriverFunction);
    cuda::Cubin all{{}, std::move(*code), ""};
    for (const cuda::Entry &entry : kernel.entries)
      all.kernels.push_back(entry.name);
    return launchable(options.chip, {{std::move(all)}, ""}, kernel);
  }
  llvm::Expected<cuda::Code> code = cuda::generateCode(**module, *chip, session.options.lines);
  if (failed(report(session, code.takeError())))
    return failure();
  int64_t spilled = 0;
  for (const cuda::Cubin &cubin : code->cubins)
    spilled = std::max(spilled, cubin.spilledBytes());
  if (spilled)
    session.diags.warning(
        frontend::WarningClass::Perf, {},
        llvm::Twine("the state and what is computed with it do not fit into the registers of ") +
            target.name + ": " + llvm::Twine(spilled) + " bytes of a thread are kept in memory");
  if (llvm::any_of(code->cubins, std::mem_fn(&cuda::Cubin::serialisesProducts)))
    session.diags.warning(frontend::WarningClass::Perf, {},
                          llvm::Twine("matrix products on ") + target.name +
                              " wait for one another: ptxas found no other way");
  return launchable(*chip, std::move(*code), kernel);
}

FailureOr<cuda::Kernel> recur::planForGpu(Session &session, RuleOp rule, const ModelInfo &info,
                                          ArrayRef<DType> types, const Target &target) {
  llvm::Expected<cuda::Chip> chip = cuda::lookupChip(target.name);
  if (failed(report(session, chip.takeError())))
    return failure();
  cuda::KernelOptions options;
  options.chip = *chip;
  options.everyForm = true;
  cuda::Kernel kernel;
  if (failed(emitForGpu(session, rule, info, types, options, kernel)))
    return failure();
  return kernel;
}
