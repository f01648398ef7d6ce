// Runs passes on MLIR text that may hold Recur's dialects.
#include "dialect/chunk/Chunk.h"
#include "lib/Algebra/Passes.h"
#include "lib/Derive/Passes.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  registry.insert<recur::RecurDialect, recur::chunk::ChunkDialect>();
  mlir::registerAllPasses();
  recur::registerRecurAlgebraPasses();
  recur::registerRecurDerivePasses();
  return failed(mlir::MlirOptMain(argc, argv, "Recur's optimiser driver\n", registry));
}
