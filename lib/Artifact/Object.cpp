#include "lib/Artifact/Object.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Linker/Linker.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Target/TargetOptions.h"

#include <mutex>

using namespace llvm;

namespace recur {
namespace {

constexpr StringLiteral tripleText = "x86_64-unknown-linux-gnu";

/// The machine of functions that say nothing: the plainest. Kernels are marked with their own.
Expected<std::unique_ptr<TargetMachine>> makeTargetMachine(unsigned level) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
  const Triple triple(tripleText);
  std::string text;
  const llvm::Target *target = TargetRegistry::lookupTarget(triple, text);
  if (!target)
    return createStringError("this LLVM has no code generator for " + tripleText + ": " + text);
  const CodeGenOptLevel levels[] = {CodeGenOptLevel::None, CodeGenOptLevel::Less, CodeGenOptLevel::Default,
                                    CodeGenOptLevel::Aggressive};
  return std::unique_ptr<TargetMachine>(target->createTargetMachine(
      triple, "x86-64", "", TargetOptions(), Reloc::PIC_, CodeModel::Small, levels[std::min(level, 3u)]));
}

Error verify(const Module &module, StringRef when) {
  std::string text;
  raw_string_ostream os(text);
  if (!verifyModule(module, &os))
    return Error::success();
  return createStringError("internal error: bad LLVM module " + when + ": " + StringRef(text).rtrim());
}

} // namespace

Error prepareModule(Module &module, const Target &target, ArrayRef<StringRef> exported) {
  Expected<std::unique_ptr<TargetMachine>> machine = makeTargetMachine(0);
  if (!machine)
    return machine.takeError();
  module.setTargetTriple(Triple(tripleText));
  module.setDataLayout((*machine)->createDataLayout());
  for (GlobalValue &value : module.global_values())
    if (!value.isDeclaration() && !is_contained(exported, value.getName()))
      value.setLinkage(GlobalValue::InternalLinkage);
  for (Function &function : module) {
    if (function.isDeclaration())
      continue;
    function.addFnAttr("target-cpu", target.cpu);
    if (!target.features.empty())
      function.addFnAttr("target-features", target.features);
    if (!target.tuneCpu.empty())
      function.addFnAttr("tune-cpu", target.tuneCpu);
    function.setUWTableKind(UWTableKind::Default);
  }
  return verify(module, "before linking");
}

Error linkModules(Module &into, std::unique_ptr<Module> from) {
  const std::string name = from->getModuleIdentifier();
  if (Linker::linkModules(into, std::move(from)))
    return createStringError("internal error: cannot link module '" + name + "'");
  return Error::success();
}

Error optimizeModule(Module &module, unsigned level) {
  Expected<std::unique_ptr<TargetMachine>> machine = makeTargetMachine(level);
  if (!machine)
    return machine.takeError();
  if (Error error = verify(module, "before optimization"))
    return error;
  PipelineTuningOptions tuning;
  tuning.LoopVectorization = tuning.SLPVectorization = tuning.LoopInterleaving = level >= 2;
  PassBuilder builder(machine->get(), tuning);
  LoopAnalysisManager loops;
  FunctionAnalysisManager functions;
  CGSCCAnalysisManager components;
  ModuleAnalysisManager modules;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  const OptimizationLevel levels[] = {OptimizationLevel::O0, OptimizationLevel::O1, OptimizationLevel::O2,
                                      OptimizationLevel::O3};
  const OptimizationLevel chosen = levels[std::min(level, 3u)];
  ModulePassManager passes =
      level ? builder.buildPerModuleDefaultPipeline(chosen) : builder.buildO0DefaultPipeline(chosen);
  passes.run(module, modules);
  return Error::success();
}

Expected<SmallString<0>> emitCode(Module &module, CodeKind kind, unsigned level) {
  Expected<std::unique_ptr<TargetMachine>> machine = makeTargetMachine(level);
  if (!machine)
    return machine.takeError();
  if (Error error = verify(module, "before code generation"))
    return std::move(error);
  SmallString<0> bytes;
  raw_svector_ostream os(bytes);
  legacy::PassManager passes;
  const CodeGenFileType type =
      kind == CodeKind::Object ? CodeGenFileType::ObjectFile : CodeGenFileType::AssemblyFile;
  if ((*machine)->addPassesToEmitFile(passes, os, nullptr, type))
    return createStringError("internal error: LLVM cannot write this kind of file");
  passes.run(module);
  return bytes;
}

} // namespace recur
