// From a checked spec to recur IR.
#pragma once
#include "lib/Frontend/Diagnostics.h"
#include "lib/Frontend/Program.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur::frontend {

/// One module with one recur.rule. Locations are ranges of the spec's file. Gradients are recur.gradient ops
/// and promises recur.assume ops; passes of lib/Algebra remove them. Warns of gradients that are 0 as they
/// are written.
mlir::OwningOpRef<mlir::ModuleOp> emitIR(const Program &program, mlir::MLIRContext &context,
                                         DiagnosticEngine &diags);

/// Parses, checks and emits a spec. Null, and errors in `diags`, when it is not well formed.
mlir::OwningOpRef<mlir::ModuleOp> compileSource(mlir::MLIRContext &context, const SourceFile &file,
                                                DiagnosticEngine &diags);

/// The place of a location in the engine's file, innermost where calls are inlined; nothing when it is
/// elsewhere.
std::optional<SourceRange> placeInFile(mlir::Location loc, const DiagnosticEngine &diags);

/// While it lives, diagnostics of the context go to the engine; those that point into its file show the text.
class DiagnosticBridge {
public:
  DiagnosticBridge(mlir::MLIRContext &context, DiagnosticEngine &diags);

private:
  mlir::ScopedDiagnosticHandler handler;
};

} // namespace recur::frontend
