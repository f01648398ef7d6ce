// What the tools know.
#include "lib/Driver/Register.h"
#include "lib/Algebra/Passes.h"
#include "lib/Cpu/Cpu.h"
#include "lib/Cuda/Cuda.h"
#include "lib/Derive/Passes.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllPasses.h"

void recur::registerAll(mlir::DialectRegistry &registry) {
  registry.insert<RecurDialect, chunk::ChunkDialect>();
  cpu::registerCpuDialects(registry);
  cuda::registerCudaDialects(registry);
}

void recur::registerAllForTools(mlir::DialectRegistry &registry) {
  mlir::registerAllDialects(registry);
  mlir::registerAllPasses();
  registerAll(registry);
  registerRecurAlgebraPasses();
  registerRecurDerivePasses();
  cpu::registerCpuPasses();
}
