// Runs passes on MLIR text that may hold Recur's dialects.
#include "lib/Driver/Register.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  recur::registerAllForTools(registry);
  return failed(mlir::MlirOptMain(argc, argv, "Recur's optimiser driver\n", registry));
}
