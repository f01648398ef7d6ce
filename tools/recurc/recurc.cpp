// The compiler.
#include "lib/Driver/Commands.h"
#include "llvm/Support/InitLLVM.h"

int main(int argc, char **argv) {
  llvm::setBugReportMsg("internal error in recurc: please report it with the spec and the command line\n");
  llvm::InitLLVM init(argc, argv);
  return recur::runCommandLine(llvm::ArrayRef<const char *>(argv + 1, argv + argc));
}
