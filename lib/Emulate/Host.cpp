// What LLVM can compile for a host stays as it is; the rest, operations of a GPU and its assembly, becomes
// calls of the emulator with the assembly taken apart, and operands and results in memory.
#include "lib/Emulate/Host.h"
#include "lib/Emulate/Assembly.h"
#include "lib/Emulate/Image.h"
#include "lib/Emulate/Numbers.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"

using namespace mlir;
using namespace recur;
using namespace recur::emulate;

extern "C" void recur_emulate(const Program *program, Slots slots);
extern "C" void recur_emulate_access(uint64_t address, uint32_t bytes, bool writes);
// What code for hosts without an instruction calls. A bf16 is returned in the register of a float.
extern "C" float recur_emulate_to_bf16(float x) { return llvm::bit_cast<float>(uint32_t(roundToBf16(x))); }

static std::vector<std::unique_ptr<Program>> &programs() {
  static std::vector<std::unique_ptr<Program>> all;
  return all;
}

//===----------------------------------------------------------------------===//
// Calls for operations
//===----------------------------------------------------------------------===//

namespace {
// An operation as assembly.
struct AsAssembly {
  std::string text, constraints;
};

class Rewriter {
public:
  explicit Rewriter(ModuleOp module) : module(module), b(module.getLoc(), module.getContext()) {}
  LogicalResult run();

private:
  std::optional<AsAssembly> assemblyOf(Operation *op);
  LogicalResult rewrite(Operation *op, const AsAssembly &assembly);
  void checkAccess(Operation *op, Value address, Type type, bool writes);
  void call(StringRef name, ValueRange operands);
  Value constant(Type type, int64_t value) {
    return LLVM::ConstantOp::create(b, type, b.getIntegerAttr(type, value));
  }

  ModuleOp module;
  ImplicitLocOpBuilder b;
  LLVM::AllocaOp slots;
  unsigned mostSlots = 1;
};
} // namespace

// None: the host can compile it.
std::optional<AsAssembly> Rewriter::assemblyOf(Operation *op) {
  if (auto assembly = dyn_cast<LLVM::InlineAsmOp>(op))
    return AsAssembly{assembly.getAsmString().str(), assembly.getConstraints().str()};
  if (isa<NVVM::ThreadIdXOp>(op))
    return AsAssembly{"mov.u32 $0, %tid.x;", "=r"};
  if (isa<NVVM::BlockIdXOp>(op))
    return AsAssembly{"mov.u32 $0, %ctaid.x;", "=r"};
  if (isa<NVVM::BlockDimXOp>(op))
    return AsAssembly{"mov.u32 $0, %ntid.x;", "=r"};
  if (isa<NVVM::GridDimXOp>(op))
    return AsAssembly{"mov.u32 $0, %nctaid.x;", "=r"};
  if (isa<NVVM::LaneIdOp>(op))
    return AsAssembly{"mov.u32 $0, %laneid;", "=r"};
  if (isa<NVVM::BlockInClusterIdXOp>(op))
    return AsAssembly{"mov.u32 $0, %cluster_ctarank;", "=r"};
  if (isa<NVVM::Barrier0Op>(op))
    return AsAssembly{"bar.sync 0;", ""};
  if (isa<NVVM::SyncWarpOp>(op))
    return AsAssembly{"bar.warp.sync $0;", "r"};
  if (isa<NVVM::ElectSyncOp>(op))
    return AsAssembly{"elect.sync _|$0, 0xffffffff;", "=b"};
  if (auto shuffle = dyn_cast<NVVM::ShflOp>(op))
    return AsAssembly{
        ("shfl.sync." + NVVM::stringifyShflKind(shuffle.getKind()) + ".b32 $0, $2, $3, $4, $1;").str(),
        "=r,r,r,r,r"};
  if (auto address = dyn_cast<LLVM::AddressOfOp>(op); address && address.getType().getAddressSpace() == 3)
    return AsAssembly{"mov.u64 $0, %shared;", "=l"};
  return std::nullopt;
}

void Rewriter::call(StringRef name, ValueRange operands) {
  LLVM::CallOp::create(b, TypeRange(), SymbolRefAttr::get(b.getContext(), name), operands);
}

LogicalResult Rewriter::rewrite(Operation *op, const AsAssembly &assembly) {
  llvm::Expected<std::unique_ptr<Program>> program = parseAssembly(assembly.text, assembly.constraints);
  if (!program)
    return op->emitError() << "a kernel cannot be emulated: " << llvm::toString(program.takeError());
  mostSlots = std::max(mostSlots, (*program)->slots);
  b.setLoc(op->getLoc());
  b.setInsertionPoint(op);
  auto slot = [&](unsigned i) -> Value {
    return LLVM::GEPOp::create(b, slots.getType(), b.getI64Type(), slots, ArrayRef<LLVM::GEPArg>{int32_t(i)});
  };
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    LLVM::StoreOp::create(b, operand, slot((*program)->outputs + i));
  int64_t where = reinterpret_cast<intptr_t>(program->get());
  call("recur_emulate",
       {LLVM::IntToPtrOp::create(b, slots.getType(), constant(b.getI64Type(), where)), slots});
  programs().push_back(std::move(*program));
  if (op->getNumResults() == 0) {
    op->erase();
    return success();
  }
  Value result = op->getResult(0);
  if (auto type = dyn_cast<LLVM::LLVMStructType>(result.getType())) {
    for (Operation *user : llvm::make_early_inc_range(result.getUsers())) {
      auto extract = dyn_cast<LLVM::ExtractValueOp>(user);
      if (!extract)
        return op->emitError() << "a kernel cannot be emulated: results of assembly are used as a whole";
      unsigned i = extract.getPosition()[0];
      // Here, and not where it is used: later assembly has the same slots.
      extract.replaceAllUsesWith(LLVM::LoadOp::create(b, type.getBody()[i], slot(i)).getResult());
      extract.erase();
    }
  } else {
    result.replaceAllUsesWith(LLVM::LoadOp::create(b, result.getType(), slot(0)).getResult());
  }
  op->erase();
  return success();
}

void Rewriter::checkAccess(Operation *op, Value address, Type type, bool writes) {
  if (cast<LLVM::LLVMPointerType>(address.getType()).getAddressSpace() != 3)
    return;
  b.setLoc(op->getLoc());
  b.setInsertionPoint(op);
  call("recur_emulate_access",
       {LLVM::PtrToIntOp::create(b, b.getI64Type(), address),
        constant(b.getI32Type(), DataLayout(module).getTypeSize(type)), constant(b.getI1Type(), writes)});
}

LogicalResult Rewriter::run() {
  auto pointer = LLVM::LLVMPointerType::get(b.getContext());
  auto nothing = LLVM::LLVMVoidType::get(b.getContext());
  b.setInsertionPointToStart(module.getBody());
  LLVM::LLVMFuncOp::create(b, "recur_emulate", LLVM::LLVMFunctionType::get(nothing, {pointer, pointer}));
  LLVM::LLVMFuncOp::create(
      b, "recur_emulate_access",
      LLVM::LLVMFunctionType::get(nothing, {b.getI64Type(), b.getI32Type(), b.getI1Type()}));
  for (auto function : module.getOps<LLVM::LLVMFuncOp>()) {
    if (function.isExternal())
      continue;
    SmallVector<StringAttr> dropped;
    for (NamedAttribute attribute : function->getDiscardableAttrs())
      if (attribute.getName().strref().starts_with("nvvm."))
        dropped.push_back(attribute.getName());
    for (StringAttr name : dropped)
      function->removeAttr(name);
    function.removeArgAttrsAttr(); // parameters come by address
    SmallVector<Operation *> ops;
    function.walk([&](Operation *op) {
      if (!isa<LLVM::ExtractValueOp>(op)) // go with what they are of
        ops.push_back(op);
    });
    b.setLoc(function.getLoc());
    b.setInsertionPointToStart(&function.getBody().front());
    Value one = constant(b.getI32Type(), 1);
    slots = LLVM::AllocaOp::create(b, pointer, b.getI64Type(), one);
    mostSlots = 1;
    for (Operation *op : ops) {
      if (auto load = dyn_cast<LLVM::LoadOp>(op))
        checkAccess(op, load.getAddr(), load.getType(), false);
      else if (auto store = dyn_cast<LLVM::StoreOp>(op))
        checkAccess(op, store.getAddr(), store.getValue().getType(), true);
      else if (std::optional<AsAssembly> assembly = assemblyOf(op)) {
        if (failed(rewrite(op, *assembly)))
          return failure();
      } else if (isa_and_nonnull<NVVM::NVVMDialect>(op->getDialect()))
        return op->emitError() << "a kernel cannot be emulated: the emulator does not know '" << op->getName()
                               << "'";
    }
    slots.setElemType(LLVM::LLVMArrayType::get(b.getI64Type(), mostSlots));
  }
  for (auto global : llvm::make_early_inc_range(module.getOps<LLVM::GlobalOp>()))
    if (global.getAddrSpace() == 3)
      global.erase();
  return success();
}

//===----------------------------------------------------------------------===//
// Code
//===----------------------------------------------------------------------===//

static llvm::Expected<std::unique_ptr<llvm::orc::LLJIT>> load(ModuleOp module) {
  using namespace llvm::orc;
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
  auto builder = JITTargetMachineBuilder::detectHost();
  if (!builder)
    return builder.takeError();
  builder->getOptions().AllowFPOpFusion = llvm::FPOpFusion::Fast; // as on the device
  builder->setCodeGenOptLevel(llvm::CodeGenOptLevel::Less);
  auto machine = builder->createTargetMachine();
  if (!machine)
    return machine.takeError();
  auto context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> translated = translateModuleToLLVMIR(module, *context, "recur");
  if (!translated)
    return llvm::createStringError("the module cannot be translated");
  translated->setTargetTriple((*machine)->getTargetTriple());
  translated->setDataLayout((*machine)->createDataLayout());
  cuda::optimize(*translated, **machine, llvm::OptimizationLevel::O1);
  auto jit = LLJITBuilder().setJITTargetMachineBuilder(std::move(*builder)).create();
  if (!jit)
    return jit.takeError();
  JITDylib &main = (*jit)->getMainJITDylib();
  SymbolMap symbols;
  auto add = [&](const char *name, auto *function) {
    symbols[(*jit)->mangleAndIntern(name)] = {ExecutorAddr::fromPtr(function),
                                              llvm::JITSymbolFlags::Exported};
  };
  add("recur_emulate", &recur_emulate);
  add("recur_emulate_access", &recur_emulate_access);
  add("__truncsfbf2", &recur_emulate_to_bf16);
  auto process =
      DynamicLibrarySearchGenerator::GetForCurrentProcess((*jit)->getDataLayout().getGlobalPrefix());
  if (!process)
    return process.takeError();
  main.addGenerator(std::move(*process)); // libm
  if (llvm::Error error = main.define(absoluteSymbols(std::move(symbols))))
    return error;
  if (llvm::Error error = (*jit)->addIRModule(ThreadSafeModule(std::move(translated), std::move(context))))
    return error;
  return std::move(*jit);
}

namespace {
struct Loaded {
  std::unique_ptr<llvm::orc::LLJIT> jit;
  Image image;
};
} // namespace

static llvm::StringMap<Loaded> &images() {
  static llvm::StringMap<Loaded> all;
  return all;
}

Image *emulate::findImage(StringRef name) {
  auto found = images().find(name);
  return found == images().end() ? nullptr : &found->second.image;
}

DeviceTraits &emulate::deviceTraits() {
  static DeviceTraits traits;
  return traits;
}

static std::function<void(ModuleOp)> &kernelChange() {
  static std::function<void(ModuleOp)> change;
  return change;
}

void emulate::changeKernelsWith(std::function<void(ModuleOp)> change) { kernelChange() = std::move(change); }

FailureOr<std::string> emulate::compile(ModuleOp module, const cuda::Chip &chip,
                                        ArrayRef<cuda::Entry> entries) {
  llvm::StringMap<unsigned> clusters;
  for (auto function : module.getOps<LLVM::LLVMFuncOp>())
    if (auto dims = function->getAttrOfType<DenseI32ArrayAttr>(NVVM::NVVMDialect::getClusterDimAttrName()))
      clusters[function.getSymName()] = dims[0];
  if (failed(cuda::lowerToLlvm(module)))
    return failure();
  if (kernelChange())
    kernelChange()(module);
  if (failed(Rewriter(module).run()))
    return failure();
  Loaded loaded;
  auto fail = [&](llvm::Error error) {
    return module.emitError() << "a kernel cannot be emulated: " << llvm::toString(std::move(error));
  };
  auto jit = load(module);
  if (!jit)
    return fail(jit.takeError());
  loaded.jit = std::move(*jit);
  for (const cuda::Entry &entry : entries) {
    auto address = loaded.jit->lookup(entry.name);
    if (!address)
      return fail(address.takeError());
    loaded.image[entry.name] = {address->toPtr<void (*)(void *, void *)>(), unsigned(entry.threads),
                                std::max(1u, clusters.lookup(entry.name))};
  }
  deviceTraits() = {chip.capability, chip.processors, chip.sharedBytes};
  std::string name = "emulated code " + std::to_string(images().size());
  images()[name] = std::move(loaded);
  return name + '\0'; // a driver is told no length
}
