// From the ops of a kernel to PTX.
#include "lib/Cuda/Cuda.h"
#include "lib/Support/LineTables.h"
#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/NVVMToLLVM/NVVMToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/Parallel.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/Utils/Cloning.h"

using namespace mlir;
using namespace recur;

namespace {
// One instruction of the special function unit, for an f32.
Value onUnit(ImplicitLocOpBuilder &b, StringRef name, Value x) {
  return LLVM::InlineAsmOp::create(b, b.getF32Type(), x, (name + " $0, $1;").str(), "=f,f",
                                   /*has_side_effects=*/false, /*is_align_stack=*/false,
                                   LLVM::TailCallKind::None, LLVM::AsmDialectAttr(), ArrayAttr())
      .getResult(0);
}

Value number(ImplicitLocOpBuilder &b, double x) {
  return arith::ConstantOp::create(b, b.getF32FloatAttr(float(x)));
}

using llvm::numbers::ln2, llvm::numbers::log2e;

// exp2 of x*log2(e) by the special function unit, corrected for the rounding of the product unless any
// approximation will do. Exact at -inf and inf.
struct ExpOnUnit : OpRewritePattern<math::ExpOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::ExpOp op, PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return failure();
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto number = [&](double x) { return ::number(b, x); };
    constexpr float high = float(log2e), low = float(log2e - high);
    if (bitEnumContainsAll(op.getFastmath(), arith::FastMathFlags::afn)) {
      Value exponent;
      // Of a product the side that others share, or that no round of the loop changes, takes the factor.
      if (auto product = op.getOperand().getDefiningOp<arith::MulFOp>()) {
        auto loop = op->getParentOfType<scf::ForOp>();
        auto rank = [&](Value side) {
          return loop && loop.isDefinedOutsideOfLoop(side) ? 2 : side.hasOneUse() ? 0 : 1;
        };
        bool isLeft = rank(product.getLhs()) > rank(product.getRhs());
        Value own = product->getOperand(isLeft ? 0 : 1), other = product->getOperand(isLeft ? 1 : 0);
        if (rank(own))
          exponent = arith::MulFOp::create(b, arith::MulFOp::create(b, own, number(high)), other);
      }
      if (!exponent)
        exponent = arith::MulFOp::create(b, op.getOperand(), number(high));
      rewriter.replaceOp(op, onUnit(b, "ex2.approx.ftz.f32", exponent));
      return success();
    }
    // Past these the result is 0 or inf anyhow.
    Value x = arith::MinimumFOp::create(b, arith::MaximumFOp::create(b, op.getOperand(), number(-150)),
                                        number(150));
    Value exponent = arith::MulFOp::create(b, x, number(high));
    Value error = math::FmaOp::create(b, x, number(high), arith::NegFOp::create(b, exponent));
    error = math::FmaOp::create(b, x, number(low), error);
    Value power = onUnit(b, "ex2.approx.f32", exponent);
    Value correction = arith::MulFOp::create(b, error, number(ln2));
    // Infinite results have no correction: inf * 0 would be none.
    Value scaled = arith::MulFOp::create(b, power, correction);
    Value isFinite = arith::CmpFOp::create(b, arith::CmpFPredicate::ONE, power,
                                           number(std::numeric_limits<float>::infinity()));
    scaled = arith::SelectOp::create(b, isFinite, scaled, number(0));
    rewriter.replaceOp(op, arith::AddFOp::create(b, power, scaled));
    return success();
  }
};

// Functions of which about 16 bits will do.
template <typename Op>
struct OnUnit : OpRewritePattern<Op> {
  using Body = Value (*)(ImplicitLocOpBuilder &, Value);
  OnUnit(MLIRContext *context, Body body) : OpRewritePattern<Op>(context, /*benefit=*/2), body(body) {}
  LogicalResult matchAndRewrite(Op op, PatternRewriter &rewriter) const override {
    if (!op.getType().isF32() || !bitEnumContainsAll(op.getFastmath(), arith::FastMathFlags::afn))
      return failure();
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    rewriter.replaceOp(op, body(b, op.getOperand()));
    return success();
  }
  Body body;
};

Value logOnUnit(ImplicitLocOpBuilder &b, Value x) {
  return arith::MulFOp::create(b, onUnit(b, "lg2.approx.ftz.f32", x), number(b, ln2));
}

// Beside 0 by its first terms, as 1 + x would lose digits of x.
Value log1pOnUnit(ImplicitLocOpBuilder &b, Value x) {
  Value far = logOnUnit(b, arith::AddFOp::create(b, x, number(b, 1)));
  Value near = number(b, -0.25);
  for (double factor : {1.0 / 3, -0.5, 1.0})
    near = math::FmaOp::create(b, near, x, number(b, factor));
  Value isNear =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, math::AbsFOp::create(b, x), number(b, 1.0 / 64));
  return arith::SelectOp::create(b, isNear, arith::MulFOp::create(b, near, x), far);
}

// 1 - 2 / (1 + exp(2x)), and beside 0 by its first terms.
Value tanhOnUnit(ImplicitLocOpBuilder &b, Value x) {
  Value power = onUnit(b, "ex2.approx.ftz.f32", arith::MulFOp::create(b, x, number(b, 2 * log2e)));
  Value inverse = onUnit(b, "rcp.approx.ftz.f32", arith::AddFOp::create(b, power, number(b, 1)));
  Value far = math::FmaOp::create(b, inverse, number(b, -2), number(b, 1));
  Value square = arith::MulFOp::create(b, x, x);
  Value near = math::FmaOp::create(b, square, number(b, 2.0 / 15), number(b, -1.0 / 3));
  near = math::FmaOp::create(b, near, square, number(b, 1));
  Value isNear =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, math::AbsFOp::create(b, x), number(b, 1.0 / 8));
  return arith::SelectOp::create(b, isNear, arith::MulFOp::create(b, near, x), far);
}

struct ApproximateMath : PassWrapper<ApproximateMath, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ApproximateMath)
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<ExpOnUnit>(&getContext(), /*benefit=*/2);
    patterns.add<OnUnit<math::LogOp>>(&getContext(), logOnUnit);
    patterns.add<OnUnit<math::Log1pOp>>(&getContext(), log1pOnUnit);
    patterns.add<OnUnit<math::TanhOp>>(&getContext(), tanhOnUnit);
    // Of angles, which are within a turn.
    patterns.add<OnUnit<math::SinOp>>(
        &getContext(), [](ImplicitLocOpBuilder &b, Value x) { return onUnit(b, "sin.approx.ftz.f32", x); });
    patterns.add<OnUnit<math::CosOp>>(
        &getContext(), [](ImplicitLocOpBuilder &b, Value x) { return onUnit(b, "cos.approx.ftz.f32", x); });
    math::populateExpansionPatterns(patterns, {"powf"});
    populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
      return llvm::is_contained(
          {"math.log", "math.log2", "math.log1p", "math.tanh", "math.erf", "math.sin", "math.cos"}, name);
    });
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

LogicalResult cuda::lowerToLlvm(ModuleOp module) {
  PassManager manager(module.getContext());
  // This one folds and drops what is dead, too. The canonicaliser would compare all values that a loop
  // carries with one another, and kernels carry hundreds.
  manager.addPass(std::make_unique<ApproximateMath>());
  manager.addPass(createCSEPass());
  manager.addPass(createSCFToControlFlowPass());
  manager.addPass(createConvertMathToLLVMPass());
  manager.addPass(createConvertNVVMToLLVMPass());
  manager.addPass(createArithToLLVMConversionPass());
  manager.addPass(createConvertControlFlowToLLVMPass());
  manager.addPass(createReconcileUnrealizedCastsPass());
  return manager.run(module);
}

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

// The module once for each of its kernels, without the others, as bitcode: threads read it into contexts of
// their own.
static std::vector<llvm::SmallString<0>> splitByKernel(const llvm::Module &module) {
  auto isKernel = [](const llvm::Function &function) {
    return function.getCallingConv() == llvm::CallingConv::PTX_Kernel;
  };
  std::vector<llvm::SmallString<0>> parts;
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
    llvm::raw_svector_ostream stream(parts.emplace_back());
    llvm::WriteBitcodeToFile(*part, stream);
  }
  return parts;
}

FailureOr<std::string> cuda::translateToPtx(ModuleOp module, const Chip &chip, bool lines) {
  if (failed(lowerToLlvm(module)) ||
      (lines && failed(addLineTables(module, LLVM::DIEmissionKind::DebugDirectivesOnly))))
    return failure();
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> translated = translateModuleToLLVMIR(module, context, "recur");
  if (!translated)
    return failure();
  if (lines) { // the numbers of files are those of one text
    std::string ptx = emitPtx(*translated, chip);
    if (ptx.empty())
      return module.emitError() << "LLVM cannot write PTX";
    return ptx;
  }
  makeMachine(chip); // registers the target, once
  std::vector<llvm::SmallString<0>> parts = splitByKernel(*translated);
  std::vector<std::string> texts(parts.size());
  llvm::parallelFor(0, parts.size(), [&](size_t i) {
    llvm::LLVMContext own;
    auto part = llvm::parseBitcodeFile(llvm::MemoryBufferRef(parts[i], "recur"), own);
    if (part)
      texts[i] = emitPtx(**part, chip);
    else
      llvm::consumeError(part.takeError());
  });
  // One header; PTX lets declarations of the same memory be repeated.
  constexpr StringRef endOfHeader = ".address_size 64\n";
  std::string ptx;
  for (StringRef text : texts) {
    if (!text.contains(endOfHeader))
      return module.emitError() << "LLVM cannot write PTX";
    ptx += ptx.empty() ? text : text.split(endOfHeader).second;
  }
  return ptx;
}

void cuda::registerCudaDialects(DialectRegistry &registry) {
  registry.insert<RecurDialect, arith::ArithDialect, cf::ControlFlowDialect, LLVM::LLVMDialect,
                  math::MathDialect, NVVM::NVVMDialect, scf::SCFDialect>();
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
  registerConvertNVVMToLLVMInterface(registry);
}
