// Types: a matrix of symbolic shape, and one matrix per micro-step.
#ifndef RECUR_TYPES
#define RECUR_TYPES

include "dialect/recur/RecurDialect.td"
include "mlir/IR/AttrTypeBase.td"

def Recur_Mat : TypeDef<Recur_Dialect, "Mat"> {
  let mnemonic = "mat";
  let summary = "a matrix of reals";
  let description = [{
    Every value is a matrix: a scalar is 1 x 1, a vector n x 1, a transposed vector 1 x n. A dimension is a positive
    integer or a symbol that is bound when compiling.

    Example: `!recur.mat<dv x dk>`, `!recur.mat<128 x 1>`.
  }];
  let parameters = (ins "::mlir::Attribute":$rows, "::mlir::Attribute":$cols);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let builders = [
    TypeBuilder<(ins "int64_t":$rows, "int64_t":$cols)>,
  ];
  let extraClassDeclaration = [{
    /// The type of a scalar.
    static MatType scalar(::mlir::MLIRContext *context);
    bool isScalar() const;
    /// True for n x 1 with n not the literal 1.
    bool isVector() const;
    /// True when both dimensions are integers.
    bool isBound() const;
    /// The dimensions of a bound matrix.
    int64_t numRows() const;
    int64_t numCols() const;
    int64_t numElements() const { return numRows() * numCols(); }
    MatType transposed() const;
  }];
}

def Recur_Steps : TypeDef<Recur_Dialect, "Steps"> {
  let mnemonic = "steps";
  let summary = "one matrix for each micro-step of a token";
  let description = [{
    The type of an input declared with a micro-step count, such as `input k : vector(dk)[n]`. Also that of an input
    that is a matrix of few columns or rows, once recur-split-columns has taken it apart: they are then looked at one by
    one, as micro-steps are. `columns` says that the caller's tensor has them side by side: its last dimension counts
    them.

    Example: `!recur.steps<n x dk x 1>`, `!recur.steps<4 x dk x 1, columns>`.
  }];
  let parameters = (ins "::mlir::Attribute":$count, "::recur::MatType":$step, "bool":$columns);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let builders = [
    TypeBuilder<(ins "::mlir::Attribute":$count, "::recur::MatType":$step), [{
      return $_get($_ctxt, count, step, false);
    }]>,
  ];
}

def Recur_Scalar : Type<CPred<"::llvm::isa<::recur::MatType>($_self) && ::llvm::cast<::recur::MatType>($_self).isScalar()">,
                        "1 x 1 matrix", "::recur::MatType">,
                   BuildableType<"::recur::MatType::scalar($_builder.getContext())">;

#endif
