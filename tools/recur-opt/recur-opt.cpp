// Runs passes on MLIR text that may hold Recur's dialects.
#include "dialect/recur/Recur.h"
#include "lib/Cpu/Passes.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  registry.insert<recur::RecurDialect>();
  recur::cpu::registerCpuDialects(registry);
  mlir::registerAllPasses();
  recur::cpu::registerCpuPasses();
  return failed(mlir::MlirOptMain(argc, argv, "Recur's optimiser driver\n", registry));
}
