#include "lib/Frontend/IRGen.h"
#include "TestSupport.h"
#include "dialect/recur/Recur.h"
#include "mlir/IR/Verifier.h"

using namespace recur::frontend;

static std::string emitted(llvm::StringRef text) {
  SourceFile file("t.rec", text);
  DiagnosticEngine diags;
  mlir::MLIRContext context;
  mlir::OwningOpRef<mlir::ModuleOp> module = compileSource(context, file, diags);
  EXPECT_EQ(!module, diags.hasErrors());
  if (!module)
    return rendered(diags);
  EXPECT_TRUE(mlir::succeeded(mlir::verify(*module)));
  std::string ir;
  llvm::raw_string_ostream os(ir);
  module->print(os);
  return ir;
}

TEST(IRGen, EmitsTheLanguage) {
  for (const std::string &path : specFiles("language"))
    if (!llvm::StringRef(path).ends_with("deltanet.rec")) {
      EXPECT_NE(emitted(textOf(path)).find("recur.rule @"), std::string::npos) << path;
    }
}

TEST(IRGen, KeepsDiagonals) {
  std::string ir = emitted("input g : diag(dk)\nS = S*exp(g) + v*kT; o = S*q");
  EXPECT_NE(ir.find("input \"g\" %g: !recur.mat<dk x 1>"), std::string::npos) << ir;
  EXPECT_NE(ir.find("recur.diag"), std::string::npos) << ir;
  // A constant is one too.
  ir = emitted("const g = I/2\nS = exp(g)*S + v*kT; o = S*q");
  EXPECT_NE(ir.find("recur.rule @"), std::string::npos) << ir;
}

TEST(IRGen, BridgesDiagnostics) {
  SourceFile file("t.rec", "o = q\n");
  DiagnosticEngine diags;
  diags.setFile(&file);
  mlir::MLIRContext context;
  DiagnosticBridge bridge(context, diags);
  auto at = mlir::FileLineColRange::get(mlir::StringAttr::get(&context, "t.rec"), 1, 5, 1, 6);
  mlir::emitError(at) << "wrong";
  EXPECT_EQ(rendered(diags), "t.rec:1:5: error: wrong\n    o = q\n        ^\n");
}

TEST(IRGen, WarnsOfGradientsThatAreZero) {
  auto warnings = [](llvm::StringRef text) {
    SourceFile file("t.rec", text);
    DiagnosticEngine diags;
    diags.setFile(&file);
    mlir::MLIRContext context;
    compileSource(context, file, diags);
    return rendered(diags);
  };
  std::string late = warnings("loss = 1/2*|S*k - v|^2\nS = a*S\nS = S - grad(loss, S)\no = S*q\n");
  EXPECT_NE(late.find("t.rec:3:9: warning: this gradient is 0"), std::string::npos) << late;
  EXPECT_EQ(warnings("S = a*S\nloss = 1/2*|S*k - v|^2\nS = S - grad(loss, S)\no = S*q\n"), "");
}
