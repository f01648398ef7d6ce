// One spec being worked on: its text, its diagnostics, its IR.
#pragma once

#include "dialect/recur/Recur.h"
#include "lib/Driver/Options.h"
#include "lib/Frontend/IRGen.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <map>

namespace recur {

class Session {
public:
  /// Applies the options about diagnostics; an unknown -W flag becomes an error.
  Session(const Options &options, mlir::MLIRContext &context);

  /// Reads and checks a spec, and makes its IR, gradients resolved. Fails after a diagnostic.
  mlir::LogicalResult load(llvm::StringRef path);
  /// Reads and checks a spec and makes its IR, but leaves gradients alone.
  mlir::LogicalResult loadRaw(llvm::StringRef path);
  /// Reads and parses a spec; its tokens, or its syntax tree, as text. Fails after a diagnostic.
  mlir::FailureOr<std::string> showTokens(llvm::StringRef path);
  mlir::FailureOr<std::string> showTree(llvm::StringRef path);

  mlir::ModuleOp module() { return *ir; }
  RuleOp rule();
  const frontend::SourceFile &file() const { return *source; }
  const frontend::Program &program() const { return *checked; }
  /// --bind without the constants: sizes of dimensions.
  llvm::StringMap<int64_t> sizes() const;

  /// Reports an error about no place in the spec.
  mlir::LogicalResult fail(const llvm::Twine &what) {
    diags.error(what);
    return mlir::failure();
  }

  /// Prints what was reported. The exit code: 1 if there was an error.
  int finish();

  const Options &options;
  mlir::MLIRContext &context;
  frontend::DiagnosticEngine diags;

private:
  mlir::LogicalResult open(llvm::StringRef path);
  std::map<std::string, double> boundDimensions() const;

  frontend::DiagnosticBridge bridge;
  std::unique_ptr<frontend::SourceFile> source;
  std::unique_ptr<frontend::Program> checked;
  mlir::OwningOpRef<mlir::ModuleOp> ir;
  bool rendered = false;
};

} // namespace recur
