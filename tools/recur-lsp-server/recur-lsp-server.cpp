// Serves editors of MLIR text that may hold Recur's dialects.
#include "lib/Driver/Register.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  recur::registerAllForTools(registry);
  return failed(mlir::MlirLspServerMain(argc, argv, registry));
}
