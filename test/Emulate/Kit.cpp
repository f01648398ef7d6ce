#include "test/Emulate/Kit.h"
#include "lib/Cuda/Roles.h"
#include "lib/Emulate/Host.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/IR/MLIRContext.h"

using namespace mlir;
using namespace recur;
using namespace recur::test;

void Kit::when(Value condition, llvm::function_ref<void()> body) {
  auto branch = scf::IfOp::create(b, condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(branch.thenBlock()->getTerminator());
  body();
}

void Kit::storeFloat(Value index, Value value) {
  LLVM::StoreOp::create(b, value, LLVM::GEPOp::create(b, memory.getType(), b.getF32Type(), memory, index));
}

template <typename Type>
static Type *driver(const char *name) {
  return reinterpret_cast<Type *>(emulate::findDriverFunction(name));
}

std::string test::launch(unsigned threads, unsigned sharedBytes, llvm::function_ref<void(Kit &)> build,
                         void *memory, void *maps) {
  DialectRegistry registry;
  cuda::registerCudaDialects(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  Location loc = UnknownLoc::get(&context);
  OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
  ImplicitLocOpBuilder b(loc, &context);
  b.setInsertionPointToStart(module->getBody());
  auto bytes =
      LLVM::GlobalOp::create(b, LLVM::LLVMArrayType::get(b.getI8Type(), 0), false, LLVM::Linkage::External,
                             cuda::tilesSymbol, Attribute(), 1024, /*addrSpace=*/3);
  auto pointer = LLVM::LLVMPointerType::get(&context);
  auto type = LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(&context), {pointer, pointer});
  auto function = LLVM::LLVMFuncOp::create(b, "kernel", type);
  b.setInsertionPointToStart(function.addEntryBlock(b));
  Value thread = NVVM::ThreadIdXOp::create(b, b.getI32Type());
  Kit kit{b, cuda::Ptx(b), function.getArgument(0), function.getArgument(1), {}, thread, {}, {}};
  kit.shared = LLVM::PtrToIntOp::create(b, b.getI32Type(), LLVM::AddressOfOp::create(b, bytes));
  kit.warp = kit.ptx.shiftRight(thread, 5);
  kit.lane = kit.ptx.bits(thread, 31);
  build(kit);
  LLVM::ReturnOp::create(b, ValueRange());

  llvm::Expected<cuda::Chip> chip = cuda::lookupChip("sm_90a");
  cuda::Entry entry;
  entry.name = "kernel";
  entry.threads = threads;
  FailureOr<std::string> image = emulate::compile(*module, *chip, entry);
  if (failed(image))
    return "not compiled";
  void *loaded = nullptr, *kernel = nullptr, *parameters[] = {memory, maps};
  driver<int(void **, const void *)>("cuModuleLoadData")(&loaded, image->c_str());
  driver<int(void **, void *, const char *)>("cuModuleGetFunction")(&kernel, loaded, "kernel");
  int result = driver<int(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          void *, void **, void **)>("cuLaunchKernel")(
      kernel, 1, 1, 1, threads, 1, 1, sharedBytes, nullptr, parameters, nullptr);
  const char *text = "";
  if (result)
    driver<int(int, const char **)>("cuGetErrorString")(result, &text);
  return text;
}

Map::Map(uint16_t *data, uint64_t rows, uint64_t cols) {
  const uint64_t sizes[] = {cols, rows}, strides[] = {cols * 2};
  const uint32_t box[] = {64, 64}, steps[] = {1, 1};
  int result = driver<int(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                          const uint32_t *, int, int, int, int)>("cuTensorMapEncodeTiled")(
      words, /*UINT16*/ 1, 2, data, sizes, strides, box, steps, 0,
      /*SWIZZLE_128B*/ 3, 0, 0);
  assert(!result && "the descriptor is right");
  (void)result;
}
