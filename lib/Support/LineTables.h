// Line tables: which places of the spec code comes from.
#pragma once
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/Transforms/Passes.h"
#include "mlir/IR/AttrTypeSubElements.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

namespace recur {

/// Lets the functions of a module of the LLVM dialect keep the places of their operations when they are
/// translated. DWARF has places where the IR has stretches of the text: they begin there.
inline mlir::LogicalResult addLineTables(mlir::ModuleOp module, mlir::LLVM::DIEmissionKind kind) {
  mlir::AttrTypeReplacer replacer;
  replacer.addReplacement([](mlir::FileLineColRange range) -> mlir::LocationAttr {
    return mlir::FileLineColLoc::get(range.getFilename(), range.getStartLine(), range.getStartColumn());
  });
  replacer.recursivelyReplaceElementsIn(module, /*replaceAttrs=*/false, /*replaceLocs=*/true,
                                        /*replaceTypes=*/false);
  mlir::PassManager pm(module.getContext());
  pm.addPass(mlir::LLVM::createDIScopeForLLVMFuncOpPass({kind}));
  return pm.run(module);
}

} // namespace recur
