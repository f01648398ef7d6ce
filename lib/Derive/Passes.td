// Passes from rules to chunk programs.
#ifndef RECUR_DERIVE_PASSES
#define RECUR_DERIVE_PASSES

include "mlir/Pass/PassBase.td"

def RecurDerive : Pass<"recur-derive", "::mlir::ModuleOp"> {
  let summary = "add the chunk program of every rule that has one, proved over F_p";
  let dependentDialects = ["::recur::chunk::ChunkDialect"];
  let description = [{
    Expects recur-differentiate, recur-drop-assumptions, canonicalize and cse before it. A rule without a chunk form gets
    a remark that says why. A program that is not the rule is an internal error.
  }];
  let options = [
    Option<"prove", "prove", "bool", "true", "compare the program with the rule over F_p">,
  ];
}

#endif
