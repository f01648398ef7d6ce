// The passes of the CPU code generator. The flag of a pass is the name of its file.
#ifndef RECUR_CPU_PASSES
#define RECUR_CPU_PASSES

include "mlir/Pass/PassBase.td"

class LoweringPass<string flag, string text> : Pass<flag, "::mlir::ModuleOp"> {
  let summary = text;
  let options = [
    Option<"symbol", "symbol", "std::string", "\"kernel\"", "name of the function">,
    ListOption<"formats", "formats", "std::string", "TYPE or TYPE:RANK for each tensor; types: f32, bf16, f16">,
    Option<"vectorWidth", "vector-width", "unsigned", "16", "f32 entries in a vector register">,
    Option<"hasBf16Pairs", "bf16-pairs", "bool", "false", "the target multiplies pairs of bf16">,
    Option<"hasBf16Tiles", "bf16-tiles", "bool", "false", "the target multiplies tiles of bf16 (AMX)">,
    Option<"chunkLength", "chunk", "int64_t", "16", "tokens in a chunk, where the rule has a chunk program">,
  ];
  let dependentDialects = [
    "::mlir::LLVM::LLVMDialect", "::mlir::affine::AffineDialect", "::mlir::arith::ArithDialect", "::mlir::bufferization::BufferizationDialect",
    "::mlir::func::FuncDialect", "::mlir::linalg::LinalgDialect", "::mlir::math::MathDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect", "::mlir::tensor::TensorDialect",
    "::mlir::vector::VectorDialect",
  ];
}

def RecurSweep : LoweringPass<"recur-sweep", "turn a rule with one matrix state into a function that sweeps over it"> {
  let description = [{
    Only where the state's columns do not see each other (see SweepPlan.h); other rules stay. The function has the
    arguments that recur-to-linalg gives it. What does not depend on the state becomes a function of its own, which is
    called for each chunk of tokens and is to be inlined; so is the loop over tokens, for tensors whose entries are not
    neighbours.
  }];
}

def RecurToLinalg : LoweringPass<"recur-to-linalg", "turn a rule into a function that loops over tokens"> {
  let description = [{
    The function's arguments are one strided memref for each tensor (inputs, params, initial states, outputs, final
    states; a tensor with one value per token has the token first), the span (tokens, position, head, heads) and the
    scratch memory. States are the loop's carried values; a token's arithmetic is linalg on f32 tensors, scalars are
    plain f32. Where the chunk program of the rule NAME stands beside it as NAME_chunk, the whole chunks of a sequence
    are computed by that program, and the loop over tokens does the rest.
  }];
}

def HoistInvariants : Pass<"hoist-invariants", "::mlir::func::FuncOp"> {
  let summary = "move what does not depend on the token before the loop";
  let description = [{
    Everything but the places and the zeros that results start from: outside of the loop these would have to be copied for
    every token.
  }];
}

def FuseElementwise : Pass<"fuse-elementwise", "::mlir::func::FuncOp"> {
  let summary = "merge elementwise ops into the op that uses them";
  let description = [{
    Only within a block and only where nothing is computed more often than before, so that what is hoisted stays hoisted
    and an exponential of a vector is not computed again for every row of a matrix.
  }];
  let dependentDialects = ["::mlir::linalg::LinalgDialect", "::mlir::tensor::TensorDialect"];
}

def ApproximateMath : Pass<"approximate-math", "::mlir::func::FuncOp"> {
  let summary = "write functions of f32 as polynomials";
  let description = [{
    exp, log, log1p, tanh, erf, sin and cos become arithmetic that works on vectors as well, exact to about two units in
    the last place and like libm's for infinities, NaN and results that underflow. A power with a constant exponent
    that is a small integer or a half becomes products and roots.
  }];
  let options = [
    Option<"hasScaling", "scaling", "bool", "false", "the target multiplies by powers of two in one instruction">,
  ];
  let dependentDialects = ["::mlir::LLVM::LLVMDialect", "::mlir::arith::ArithDialect", "::mlir::math::MathDialect"];
}

def FuseLoops : Pass<"fuse-loops", "::mlir::func::FuncOp"> {
  let summary = "merge the update of a matrix with a sum over the result";
  let description = [{
    Works on linalg on buffers: `S = a*S + u*kT` and `o = S*q` become one op with two results, whose rows pass through the
    registers once.
  }];
}

def PlanScratch : Pass<"plan-scratch", "::mlir::func::FuncOp"> {
  let summary = "give every buffer a place in the scratch memory";
  let description = [{
    Each memref.alloc becomes a view of the function's last argument. Buffers that are not in use at the same time share
    memory. The bytes needed become the attribute `recur.scratch_bytes` of the function.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::memref::MemRefDialect"];
}

def LinalgToVectors : Pass<"linalg-to-vectors", "::mlir::func::FuncOp"> {
  let summary = "write linalg on buffers as loops over vectors";
  let options = [
    Option<"vectorWidth", "vector-width", "unsigned", "16", "f32 entries in a vector register">,
    Option<"accumulators", "accumulators", "unsigned", "8", "sums kept in registers at once">,
  ];
  let dependentDialects = [
    "::mlir::affine::AffineDialect", "::mlir::arith::ArithDialect", "::mlir::memref::MemRefDialect",
    "::mlir::scf::SCFDialect", "::mlir::vector::VectorDialect",
  ];
}

def PackArguments : Pass<"pack-arguments", "::mlir::func::FuncOp"> {
  let summary = "give the function the calling convention of kernels";
  let description = [{
    The arguments become three pointers: to an array of pointers to memref descriptors, to the span, and to the scratch
    memory.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::LLVM::LLVMDialect"];
}

#endif
