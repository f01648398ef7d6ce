// The stages from a rule to LLVM.
#include "lib/Cpu/Cpu.h"
#include "lib/Cpu/Passes.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/Transforms/BufferizableOpInterfaceImpl.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/Bufferization/Transforms/FuncBufferizableOpInterfaceImpl.h"
#include "mlir/Dialect/Bufferization/Transforms/Passes.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/Extensions/InlinerExtension.h"
#include "mlir/Dialect/Linalg/Transforms/AllInterfaces.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Dialect/SCF/Transforms/BufferizableOpInterfaceImpl.h"
#include "mlir/Dialect/Tensor/IR/TensorInferTypeOpInterfaceImpl.h"
#include "mlir/Dialect/Tensor/Transforms/BufferizableOpInterfaceImpl.h"
#include "mlir/Dialect/Tensor/Transforms/SubsetInsertionOpInterfaceImpl.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/ModuleTranslation.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

// The number of dimensions of a type, bound or not, that are not the literal 1.
static int rankOf(Type type) {
  if (auto steps = dyn_cast<StepsType>(type))
    return 1 + rankOf(steps.getStep());
  auto mat = cast<MatType>(type);
  return !isOne(mat.getRows()) + !isOne(mat.getCols());
}

SmallVector<KernelTensor> cpu::kernelTensors(RuleOp rule) {
  SmallVector<KernelTensor> tensors;
  auto add = [&](Role role, ArgKind kind) {
    for (BlockArgument argument : rule.argumentsOf(kind))
      tensors.push_back(
          {role, rule.getArg(argument).getName().getValue(), argument.getType(), rankOf(argument.getType())});
  };
  add(Role::Input, ArgKind::Input);
  add(Role::Param, ArgKind::Param);
  add(Role::InitialState, ArgKind::State);
  for (auto [name, value] : llvm::zip(rule.getOutputs().getAsRange<StringAttr>(), rule.yieldedOutputs()))
    tensors.push_back({Role::Output, name.getValue(), value.getType(), rankOf(value.getType())});
  add(Role::FinalState, ArgKind::State);
  return tensors;
}

//===----------------------------------------------------------------------===//
// Stages
//===----------------------------------------------------------------------===//

template <typename PassOptions>
static PassOptions loweringOptions(const KernelOptions &options) {
  PassOptions own;
  own.symbol = options.symbol;
  for (TensorFormat format : options.tensors)
    own.formats.push_back(formatText(format));
  own.vectorWidth = options.vectorWidth;
  own.hasBf16Pairs = options.hasBf16Pairs;
  own.hasBf16Tiles = options.hasBf16Tiles;
  own.chunkLength = options.chunk;
  return own;
}

static void populateLinalg(OpPassManager &pm, const KernelOptions &options) {
  if (options.sweep)
    pm.addPass(createRecurSweep(loweringOptions<RecurSweepOptions>(options)));
  pm.addPass(createRecurToLinalg(loweringOptions<RecurToLinalgOptions>(options)));
  if (options.sweep)
    pm.addPass(createInlinerPass());
}

static void populateFused(OpPassManager &pm, const KernelOptions &) {
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createHoistInvariants());
  functions.addPass(createFuseElementwise());
}

static void populateBuffers(OpPassManager &pm, const KernelOptions &) {
  pm.addPass(bufferization::createEmptyTensorEliminationPass());
  pm.addPass(bufferization::createOneShotBufferizePass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createFuseLoops());
  functions.addPass(createPlanScratch());
}

static void populateVectors(OpPassManager &pm, const KernelOptions &options) {
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createApproximateMath({/*hasScaling=*/options.vectorWidth == 16})); // AVX-512
  functions.addPass(createLinalgToVectors({options.vectorWidth, options.accumulators}));
  functions.addPass(createCSEPass());
}

static void populateLlvm(OpPassManager &pm, const KernelOptions &) {
  pm.addNestedPass<func::FuncOp>(createPackArguments());
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(memref::createExpandStridedMetadataPass());
  pm.addPass(createLowerAffinePass());
  arith::ArithExpandOpsPassOptions expand;
  expand.includeBf16 = true;
  pm.addPass(arith::createArithExpandOpsPass(expand));
  ConvertVectorToLLVMPassOptions vectors;
  vectors.reassociateFPReductions = true;
  pm.addPass(createConvertVectorToLLVMPass(vectors));
  pm.addPass(createFinalizeMemRefToLLVMConversionPass());
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createConvertIndexToLLVMPass());
  pm.addPass(createUBToLLVMConversionPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
}

ArrayRef<Stage> cpu::stages() {
  static const Stage all[] = {
      {"linalg", "a function loops over the tokens, whose arithmetic is linalg on tensors", populateLinalg},
      {"fused",
       "what does not depend on the token is computed before the loop, and chains of elementwise "
       "ops are one op",
       populateFused},
      {"buffers", "there are no tensors, states are updated in place, and all memory is the caller's",
       populateBuffers},
      {"vectors",
       "all loops are explicit, the innermost over vectors, and no function of libm is left in them",
       populateVectors},
      {"llvm-dialect", "the function has the kernel's calling convention and consists of the LLVM dialect",
       populateLlvm},
  };
  return all;
}

OwningOpRef<ModuleOp> cpu::isolateRule(RuleOp rule) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  module->push_back(rule->clone());
  return module;
}

void cpu::addChunkProgram(ModuleOp module, chunk::ProgramOp program) {
  RuleOp rule = *module.getOps<RuleOp>().begin();
  auto copy = cast<chunk::ProgramOp>(program->clone());
  copy.setSymName((rule.getSymName() + chunkSuffix).str());
  module.push_back(copy);
}

LogicalResult cpu::runStage(const Stage &stage, ModuleOp module, const KernelOptions &options) {
  PassManager pm(module.getContext());
  pm.enableVerifier(false); // once for the stage is enough
  stage.populate(pm, options);
  return success(succeeded(pm.run(module)) && succeeded(verify(module)));
}

// A masked load or store of bf16 moves bits, but where the machine has no masks LLVM takes it apart into
// operations on bf16 numbers, which need a library function. As i16 it does not.
static void maskBf16AsInteger(llvm::Module &module) {
  for (llvm::Function &function : module)
    for (llvm::Instruction &instruction : llvm::make_early_inc_range(llvm::instructions(function))) {
      auto *call = dyn_cast<llvm::IntrinsicInst>(&instruction);
      bool load = call && call->getIntrinsicID() == llvm::Intrinsic::masked_load;
      if (!load && !(call && call->getIntrinsicID() == llvm::Intrinsic::masked_store))
        continue;
      llvm::Value *data = load ? call->getArgOperand(2) : call->getArgOperand(0);
      if (!data->getType()->getScalarType()->isBFloatTy())
        continue;
      llvm::IRBuilder<> builder(call);
      llvm::Type *bits = data->getType()->getWithNewType(builder.getInt16Ty());
      llvm::Value *asBits = builder.CreateBitCast(data, bits);
      if (load) {
        llvm::Value *loaded =
            builder.CreateMaskedLoad(bits, call->getArgOperand(0), call->getParamAlign(0).valueOrOne(),
                                     call->getArgOperand(1), asBits);
        call->replaceAllUsesWith(builder.CreateBitCast(loaded, data->getType()));
      } else {
        builder.CreateMaskedStore(asBits, call->getArgOperand(1), call->getParamAlign(1).valueOrOne(),
                                  call->getArgOperand(2));
      }
      call->eraseFromParent();
    }
}

// The loops of a chunk have the shape that the machine wants: unrolled again, they would only take longer to
// compile.
static void keepLoops(llvm::Module &module) {
  llvm::LLVMContext &context = module.getContext();
  llvm::MDNode *keep = llvm::MDNode::get(context, llvm::MDString::get(context, "llvm.loop.unroll.disable"));
  for (llvm::Function &function : module) {
    if (function.isDeclaration())
      continue;
    llvm::DominatorTree dominators(function);
    llvm::LoopInfo loops(dominators);
    for (llvm::Loop *loop : loops.getLoopsInPreorder()) {
      llvm::MDNode *id = llvm::MDNode::getDistinct(context, {nullptr, keep});
      id->replaceOperandWith(0, id);
      loop->setLoopID(id);
    }
  }
}

FailureOr<Kernel> cpu::translateKernel(ModuleOp module, llvm::LLVMContext &context) {
  Kernel kernel;
  for (auto function : module.getOps<LLVM::LLVMFuncOp>())
    if (auto bytes = function->getAttrOfType<IntegerAttr>(scratchBytesAttr)) {
      kernel.scratchBytes = bytes.getInt();
      function->removeAttr(scratchBytesAttr);
    }
  auto form = dyn_cast_or_null<StringAttr>(module->removeAttr(formAttr));
  kernel.form = form ? form.str() : "sequential";
  if (auto reason = dyn_cast_or_null<StringAttr>(module->removeAttr(formReasonAttr)))
    kernel.formReason = reason.str();
  if (auto parts = dyn_cast_or_null<IntegerAttr>(module->removeAttr(partsAttr)))
    kernel.parts = parts.getInt();
  kernel.module = translateModuleToLLVMIR(module, context);
  if (!kernel.module)
    return failure();
  maskBf16AsInteger(*kernel.module);
  if (kernel.form == "chunk")
    keepLoops(*kernel.module);
  return kernel;
}

FailureOr<Kernel> cpu::buildKernel(RuleOp rule, const KernelOptions &options, llvm::LLVMContext &context,
                                   chunk::ProgramOp program) {
  OwningOpRef<ModuleOp> module = isolateRule(rule);
  if (program)
    addChunkProgram(*module, program);
  for (const Stage &stage : stages())
    if (failed(runStage(stage, *module, options)))
      return failure();
  return translateKernel(*module, context);
}

//===----------------------------------------------------------------------===//
// Registration
//===----------------------------------------------------------------------===//

void cpu::registerCpuDialects(DialectRegistry &registry) {
  registry.insert<RecurDialect, chunk::ChunkDialect, affine::AffineDialect, arith::ArithDialect,
                  bufferization::BufferizationDialect, cf::ControlFlowDialect, func::FuncDialect,
                  linalg::LinalgDialect, math::MathDialect, memref::MemRefDialect, scf::SCFDialect,
                  tensor::TensorDialect, vector::VectorDialect, LLVM::LLVMDialect>();
  arith::registerBufferizableOpInterfaceExternalModels(registry);
  bufferization::func_ext::registerBufferizableOpInterfaceExternalModels(registry);
  func::registerInlinerExtension(registry);
  linalg::registerAllDialectInterfaceImplementations(registry);
  scf::registerBufferizableOpInterfaceExternalModels(registry);
  tensor::registerBufferizableOpInterfaceExternalModels(registry);
  tensor::registerInferTypeOpInterfaceExternalModels(registry);
  tensor::registerSubsetOpInterfaceExternalModels(registry);
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
}

void cpu::registerCpuPasses() { registerRecurCpuPasses(); }
