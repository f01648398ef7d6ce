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
    Option<"explain", "explain", "bool", "false", "print the derivation">,
    Option<"channels", "channels", "bool", "false", "make states a cascade that diagonals couple, key by key">,
  ];
}

def RecurProve : Pass<"recur-prove", "::mlir::ModuleOp"> {
  let summary = "compare every chunk program NAME_chunk with the rule NAME over F_p";
  let options = [
    Option<"rounds", "rounds", "unsigned", "1", "how many random inputs">,
  ];
}

def RecurMeasure : Pass<"recur-measure", "::mlir::ModuleOp"> {
  let summary = "compare chunk programs in floating point with the oracle, and fail above a limit";
  let description = [{
    Derives the program of every rule (whose dimensions are bound) and runs it in chunks of 16, 32, 64 and 128 tokens on
    tame and nasty inputs, in float64 and float32. A rule without a chunk form is passed over.
  }];
  let dependentDialects = ["::recur::chunk::ChunkDialect"];
  let options = [
    Option<"tokens", "tokens", "int64_t", "150", "the length of the sequence">,
    Option<"f64", "f64", "double", "1e-11", "the largest error in float64">,
    Option<"tame", "tame", "double", "2e-6", "the largest error in float32 on tame inputs">,
    Option<"nasty", "nasty", "double", "2e-5", "the largest error in float32 on nasty inputs">,
    Option<"print", "print", "bool", "false", "print every error">,
  ];
}

def RecurDiff : Pass<"recur-diff", "::mlir::ModuleOp"> {
  let summary = "say whether the first two rules are the same function, decided over F_p";
}

#endif
