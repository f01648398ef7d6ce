// Compiles the text of a rule and calls its kernel.
#include "test/Cpu/Kernel.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/ExecutionEngine/Orc/ThreadSafeModule.h"
#include "llvm/Support/TargetSelect.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>

using namespace recur;
using namespace recur::test;

static const llvm::fltSemantics &semantics(DType dtype) {
  return dtype == DType::BF16  ? llvm::APFloat::BFloat()
         : dtype == DType::F16 ? llvm::APFloat::IEEEhalf()
                               : llvm::APFloat::IEEEsingle();
}

Tensor::Tensor(std::vector<int64_t> shape, DType dtype, int64_t gap, int64_t token)
    : dtype(dtype), sizes(std::move(shape)), strides(sizes.size()) {
  int64_t stride = gap;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i])
    strides[i] = stride;
  int64_t bytes = stride * dtypeSize(dtype);
  if (token)
    strides[0] = token / dtypeSize(dtype), bytes = token * sizes[0];
  memory.resize(bytes + 64);
  int64_t address = reinterpret_cast<int64_t>(memory.data());
  if (token)
    begin = llvm::alignTo(address, 64) - address, address += begin;
  words = {address, address, 0};
  words.insert(words.end(), sizes.begin(), sizes.end());
  words.insert(words.end(), strides.begin(), strides.end());
}

Tensor Tensor::absent(int64_t rank) {
  Tensor tensor(std::vector<int64_t>(rank, 1));
  tensor.words[0] = tensor.words[1] = 0;
  return tensor;
}

// Calls `body` for every place in a shape.
template <typename Body>
static void forEach(const std::vector<int64_t> &shape, Body body) {
  int64_t count = 1;
  for (int64_t length : shape)
    count *= length;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t> place(shape.size());
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d])
      place[d] = rest % shape[d];
    body(place);
  }
}

Tensor Tensor::random(std::vector<int64_t> shape, double lo, double hi, unsigned seed, DType dtype,
                      int64_t gap) {
  Tensor tensor(std::move(shape), dtype, gap);
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> entries(lo, hi);
  forEach(tensor.sizes, [&](const std::vector<int64_t> &place) { tensor.set(place, entries(generator)); });
  return tensor;
}

int64_t Tensor::offsetOf(const std::vector<int64_t> &place) const {
  int64_t offset = 0;
  for (size_t d = 0; d < place.size(); ++d)
    offset += place[d] * strides[d];
  return begin + offset * dtypeSize(dtype);
}

double Tensor::get(std::vector<int64_t> place) const {
  uint64_t bits = 0;
  std::memcpy(&bits, memory.data() + offsetOf(place), dtypeSize(dtype));
  llvm::APFloat number(semantics(dtype), llvm::APInt(8 * dtypeSize(dtype), bits));
  bool loses;
  number.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &loses);
  return number.convertToDouble();
}

void Tensor::set(std::vector<int64_t> place, double value) {
  llvm::APFloat number(value);
  bool loses;
  number.convert(semantics(dtype), llvm::APFloat::rmNearestTiesToEven, &loses);
  uint64_t bits = number.bitcastToAPInt().getZExtValue();
  std::memcpy(memory.data() + offsetOf(place), &bits, dtypeSize(dtype));
}

double test::difference(const Tensor &actual, const Tensor &expected) {
  double most = 0, largest = 0;
  forEach(expected.shape(), [&](const std::vector<int64_t> &place) {
    double error = std::fabs(actual.get(place) - expected.get(place));
    most = std::isnan(error) ? error : std::fmax(most, error);
    largest = std::fmax(largest, std::fabs(expected.get(place)));
  });
  return largest > 0 ? most / largest : most;
}

Kernel::Kernel(llvm::StringRef text, cpu::KernelOptions options) {
  static bool initialized = !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter();
  EXPECT_TRUE(initialized);
  mlir::DialectRegistry registry;
  cpu::registerCpuDialects(registry);
  mlir::MLIRContext context(registry);
  mlir::ScopedDiagnosticHandler handler(&context,
                                        [&](mlir::Diagnostic &diagnostic) { message += diagnostic.str(); });
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  if (!module)
    return;
  auto owned = std::make_unique<llvm::LLVMContext>();
  auto kernel = cpu::buildKernel(*module->getOps<RuleOp>().begin(), options, *owned);
  if (failed(kernel))
    return;
  bytes = kernel->scratchBytes;
  taken = kernel->form;
  mostParts = kernel->parts;
  jit = llvm::cantFail(llvm::orc::LLJITBuilder().create());
  kernel->module->setDataLayout(jit->getDataLayout());
  kernel->module->setTargetTriple(jit->getTargetTriple());
  llvm::cantFail(jit->addIRModule(llvm::orc::ThreadSafeModule(std::move(kernel->module), std::move(owned))));
  function = llvm::cantFail(jit->lookup(options.symbol)).toPtr<decltype(function)>();
}

void Kernel::operator()(std::vector<Tensor *> tensors, Span span) {
  std::vector<void *> views;
  for (Tensor *tensor : tensors)
    views.push_back(tensor->descriptor());
  constexpr int64_t guard = 256;
  std::vector<char> memory(bytes + 2 * guard + 64, 'x');
  char *scratch = memory.data() + guard;
  scratch += -reinterpret_cast<intptr_t>(scratch) & 63;
  function(views.data(), &span, scratch);
  for (int64_t i = 0; i < guard; ++i) {
    EXPECT_EQ(scratch[-1 - i], 'x') << "before the scratch memory";
    EXPECT_EQ(scratch[bytes + i], 'x') << "behind the scratch memory";
  }
}
