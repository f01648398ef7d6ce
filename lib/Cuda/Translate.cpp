// From the ops of kernels to machine code.
#include "lib/Cuda/Cuda.h"
#include "lib/Support/LineTables.h"
#include "mlir/Conversion/NVVMToLLVM/NVVMToLLVM.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/ThreadPool.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/Utils/Cloning.h"

using namespace mlir;
using namespace recur;

static std::unique_ptr<llvm::TargetMachine> makeMachine(const cuda::Chip &chip) {
  static bool once = [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
    return true;
  }();
  (void)once;
  llvm::Triple triple("nvptx64-nvidia-cuda");
  std::string error;
  const llvm::Target *target = llvm::TargetRegistry::lookupTarget(triple, error);
  assert(target && "LLVM is built with the NVPTX target");
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Fast;
  return std::unique_ptr<llvm::TargetMachine>(
      target->createTargetMachine(triple, chip.name, chip.features, options, llvm::Reloc::PIC_, std::nullopt,
                                  llvm::CodeGenOptLevel::Aggressive));
}

void cuda::optimize(llvm::Module &module, llvm::TargetMachine &machine, llvm::OptimizationLevel level) {
  llvm::PassBuilder builder(&machine);
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  builder.buildPerModuleDefaultPipeline(level).run(module, modules);
}

// Whether a call is assembly that all threads of a warp must run together.
static bool isCommon(const llvm::CallInst &call) {
  auto *text = dyn_cast<llvm::InlineAsm>(call.getCalledOperand());
  return text && StringRef(text->getAsmString()).contains(".sync");
}

// Optimises a module and writes it as PTX; empty if LLVM cannot.
static std::string emitPtx(llvm::Module &module, const cuda::Chip &chip) {
  std::unique_ptr<llvm::TargetMachine> machine = makeMachine(chip);
  module.setTargetTriple(machine->getTargetTriple());
  module.setDataLayout(machine->createDataLayout());
  // Code that threads run together must not be moved into branches.
  for (llvm::Function &function : module)
    for (llvm::BasicBlock &block : function)
      for (llvm::Instruction &instruction : block)
        if (auto *call = dyn_cast<llvm::CallInst>(&instruction); call && isCommon(*call))
          call->setConvergent();
  cuda::optimize(module, *machine, llvm::OptimizationLevel::O2);
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager emit;
  if (machine->addPassesToEmitFile(emit, stream, nullptr, llvm::CodeGenFileType::AssemblyFile))
    return {};
  emit.run(module);
  return text.str().str();
}

namespace {
// Some kernels of a module, and their code.
struct Part {
  // A thread reads it into a context of its own.
  llvm::SmallString<0> bitcode;
  std::string ptx;
  cuda::Cubin cubin;
  std::string error;
};
} // namespace

static bool isKernel(const llvm::Function &function) {
  return function.getCallingConv() == llvm::CallingConv::PTX_Kernel;
}

static Part makePart(const llvm::Module &module) {
  Part part;
  for (const llvm::Function &function : module)
    if (isKernel(function))
      part.cubin.kernels.push_back(function.getName().str());
  llvm::raw_svector_ostream stream(part.bitcode);
  llvm::WriteBitcodeToFile(module, stream);
  return part;
}

// Each kernel without the others.
static std::vector<Part> splitByKernel(const llvm::Module &module) {
  std::vector<Part> parts;
  for (const llvm::Function &kernel : module) {
    if (!isKernel(kernel))
      continue;
    llvm::ValueToValueMapTy map;
    std::unique_ptr<llvm::Module> part = llvm::CloneModule(module, map, [&](const llvm::GlobalValue *value) {
      auto *function = dyn_cast<llvm::Function>(value);
      return !function || function == &kernel || !isKernel(*function);
    });
    for (llvm::Function &other : llvm::make_early_inc_range(*part))
      if (isKernel(other) && other.isDeclaration())
        other.eraseFromParent();
    parts.push_back(makePart(*part));
  }
  return parts;
}

static void generate(Part &part, StringRef ptxas, const cuda::Chip &chip, bool lines) {
  llvm::LLVMContext context;
  auto module = llvm::parseBitcodeFile(llvm::MemoryBufferRef(part.bitcode, "recur"), context);
  if (!module) {
    part.error = llvm::toString(module.takeError());
    return;
  }
  part.ptx = emitPtx(**module, chip);
  if (part.ptx.empty())
    part.error = "LLVM cannot write PTX";
  else if (llvm::Error error = cuda::assemble(ptxas, part.ptx, chip, lines, part.cubin))
    part.error = llvm::toString(std::move(error));
}

llvm::Expected<cuda::Code> cuda::generateCode(ModuleOp module, const Chip &chip, bool lines) {
  llvm::Expected<std::string> ptxas = findPtxas();
  if (!ptxas)
    return ptxas.takeError();
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> translated;
  if (succeeded(lowerToLlvm(module)) &&
      (!lines || succeeded(addLineTables(module, LLVM::DIEmissionKind::DebugDirectivesOnly))))
    translated = translateModuleToLLVMIR(module, context, "recur");
  if (!translated)
    return llvm::createStringError("kernels for " + chip.name + " cannot be lowered");
  makeMachine(chip); // registers the target, once
  // Kernels share nothing but names of memory. Line tables number the files of one text.
  std::vector<Part> parts;
  if (lines)
    parts.push_back(makePart(*translated));
  else
    parts = splitByKernel(*translated);
  // The longest first, so that none is left alone at the end.
  SmallVector<Part *> order(llvm::make_pointer_range(parts));
  llvm::sort(order, [](Part *a, Part *b) { return a->bitcode.size() > b->bitcode.size(); });
  llvm::DefaultThreadPool pool;
  for (Part *part : order)
    pool.async([&, part] { generate(*part, *ptxas, chip, lines); });
  pool.wait();
  Code code;
  for (Part &part : parts) {
    if (!part.error.empty())
      return llvm::createStringError(part.error);
    // One header; PTX lets declarations of the same memory be repeated.
    code.ptx +=
        code.ptx.empty() ? StringRef(part.ptx) : StringRef(part.ptx).split(".address_size 64\n").second;
    code.cubins.push_back(std::move(part.cubin));
  }
  return code;
}

void cuda::registerCudaDialects(DialectRegistry &registry) {
  registry.insert<RecurDialect, arith::ArithDialect, cf::ControlFlowDialect, LLVM::LLVMDialect,
                  math::MathDialect, NVVM::NVVMDialect, scf::SCFDialect>();
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
  registerConvertNVVMToLLVMInterface(registry);
}
