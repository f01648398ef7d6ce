// The operations. Constraints are numbered; a verifier names the one it found broken, and so does its test.
#ifndef RECUR_OPS
#define RECUR_OPS

include "dialect/recur/RecurDialect.td"
include "dialect/recur/RecurTypes.td"
include "dialect/recur/RecurAttrs.td"
include "dialect/recur/RecurInterfaces.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Recur_Op<string mnemonic, list<Trait> traits = []> : Op<Recur_Dialect, mnemonic, traits>;

//===----------------------------------------------------------------------===//
// Structure
//===----------------------------------------------------------------------===//

def Recur_RuleOp : Recur_Op<"rule", [Symbol, IsolatedFromAbove,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>]> {
  let summary = "what one head does with one token";
  let description = [{
    The `body` runs once per token. Its block arguments are `args`, in order; it yields the new value of every state,
    in the order of the states among `args`, and then the outputs. The `init` region yields the initial value of every
    state; its block arguments are the `param`, `head` and `heads` arguments, in order.

    ```mlir
    recur.rule @decay_sum(input "a" %a: !recur.mat<1 x 1> in <"[0.0, 1.0]">, input "x" %x: !recur.mat<d x 1>,
                          state "s" %s: !recur.mat<d x 1>) -> ("o") init {
      %z = recur.constant 0.0 : !recur.mat<d x 1>
      recur.yield %z : !recur.mat<d x 1>
    } body {
      %0 = recur.mul %a, %s : !recur.mat<1 x 1>, !recur.mat<d x 1>
      %1 = recur.add %0, %x : !recur.mat<d x 1>, !recur.mat<d x 1>
      recur.yield %1, %1 : !recur.mat<d x 1>, !recur.mat<d x 1>
    }
    ```

    Constraints: recur_rule_c1: the body has one block argument for each of `args`. recur_rule_c2: argument names and
    output names are unique. recur_rule_c3: the body yields every state, with the state's type, then every output.
    recur_rule_c4: `init` yields one value for each state, with its type, from `param`, `head` and `heads` alone.
    recur_rule_c5: a stale argument has the name and type of a state and a positive block. recur_rule_c6: a rule has
    an output. recur_rule_c7: `position`, `head` and `heads` are scalars. recur_rule_c8: all stale arguments and
    `recur.block` ops of a rule that have a size have the same one.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Recur_ArgArray:$args, StrArrayAttr:$outputs);
  let regions = (region SizedRegion<1>:$init, SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    ArgAttr getArg(unsigned index) { return ::llvm::cast<ArgAttr>(getArgs()[index]); }
    /// The body's block arguments of one kind, in order.
    ::llvm::SmallVector<::mlir::BlockArgument> argumentsOf(ArgKind kind);
    /// The body's block argument of that kind and name; null if there is none.
    ::mlir::BlockArgument findArgument(ArgKind kind, ::llvm::StringRef name);
    ArgAttr getArg(::mlir::BlockArgument argument) { return getArg(argument.getArgNumber()); }
    YieldOp getBodyYield();
    YieldOp getInitYield();
    /// What the body yields: new states first, then outputs.
    ::mlir::OperandRange yieldedStates();
    ::mlir::OperandRange yieldedOutputs();
    /// Every symbolic dimension in the order of first use.
    ::llvm::SmallVector<::mlir::StringAttr> symbols();
  }];
}

def Recur_YieldOp : Recur_Op<"yield", [Pure, Terminator,
    ParentOneOf<["RuleOp", "ForOp", "BlockOp"]>]> {
  let summary = "end a region with its results";
  let arguments = (ins Variadic<Recur_Mat>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";

}

def Recur_ForOp : Recur_Op<"for", [RecursiveMemoryEffects, SingleBlock]> {
  let summary = "micro-steps of a token";
  let description = [{
    Runs its region with the counter at 1, 2, .. `count` (a scalar) and the carried values.

    ```mlir
    %1 = recur.for %j = 1 to n iter(%s = %0) -> !recur.mat<dv x dk> {
      ...
      recur.yield %next : !recur.mat<dv x dk>
    }
    ```

    Constraints: recur_for_c1: the region has a scalar counter and one argument for each carried value, with its type.
    recur_for_c2: it yields one value for each carried value, with its type.
  }];
  let arguments = (ins AnyAttr:$count, Variadic<Recur_Mat>:$inits);
  let results = (outs Variadic<Recur_Mat>:$results);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::BlockArgument getCounter() { return getBody().getArgument(0); }
    ::mlir::Block::BlockArgListType getCarried() { return getBody().getArguments().drop_front(); }
    YieldOp getYield();
  }];
}

def Recur_BlockOp : Recur_Op<"block", [IsolatedFromAbove, SingleBlock, RecursiveMemoryEffects,
    AttrSizedOperandSegments, AttrSizedResultSegments]> {
  let summary = "statements that run once per block of tokens";
  let description = [{
    Stands in the body of a rule and divides it: what is before it runs for all tokens of the block, then this region
    runs once, then what is after it runs for all tokens of the block. Without a size the block is the whole sequence.

    A value in `tokens`, r x 1 for each token, enters as the matrix of all tokens, `length` x r; a value in `shared` is
    the same for the whole block and enters as it is. The region yields `states`, values for the whole block, and then
    `rows`, matrices `length` x r which become one r x 1 value for each token.

    Constraints: recur_block_c1: the values in `tokens` are scalars or vectors. recur_block_c2: the region's arguments
    are the matrices of `tokens`, then `shared`. recur_block_c3: it yields `states`, then the matrices of `rows`.
    recur_block_c4: it stands directly in the body of a rule.
  }];
  let arguments = (ins OptionalAttr<I64Attr>:$size, StrAttr:$length, Variadic<Recur_Mat>:$tokens,
                       Variadic<Recur_Mat>:$shared);
  let results = (outs Variadic<Recur_Mat>:$states, Variadic<Recur_Mat>:$rows);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    (`size` `(` $size^ `)`)? `length` `(` $length `)` (`tokens` `(` $tokens^ `:` type($tokens) `)`)?
    (`shared` `(` $shared^ `:` type($shared) `)`)? (`states` `(` type($states)^ `)`)? (`rows` `(` type($rows)^ `)`)?
    $body attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    YieldOp getYield();
    /// The matrix over all tokens of the block for a per-token type: r x 1 gives length x r.
    MatType rowsType(MatType tokenType);
  }];
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

def Recur_ConstantOp : Recur_Op<"constant", [Pure, ConstantLike,
    DeclareOpInterfaceMethods<Recur_RangeOp>]> {
  let summary = "a matrix with the same number in every entry";
  let arguments = (ins F64Attr:$value);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$value attr-dict `:` type($result)";
  let hasFolder = 1;
  let builders = [
    OpBuilder<(ins "double":$value)>,
    OpBuilder<(ins "double":$value, "::mlir::Type":$type)>,
  ];
}

def Recur_SizeOp : Recur_Op<"size", [Pure, DeclareOpInterfaceMethods<Recur_RangeOp>]> {
  let summary = "a dimension as a number";
  let description = "Example: `%n = recur.size dk`. Folds to a constant once the dimension is bound.";
  let arguments = (ins AnyAttr:$dim);
  let results = (outs Recur_Scalar:$result);
  let assemblyFormat = "custom<Dim>($dim) attr-dict";
  let hasFolder = 1;
}

def Recur_IdentityOp : Recur_Op<"identity", [Pure]> {
  let summary = "the identity matrix";
  let description = "Constraint: recur_identity_c1: the result is square.";
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Recur_MaskOp : Recur_Op<"mask", [Pure]> {
  let summary = "the causal mask over a block: 1 where the column's token is not after the row's";
  let description = [{
    `strict` leaves the diagonal out. Constraint: recur_mask_c1: the result is square.
  }];
  let arguments = (ins UnitAttr:$strict);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "(`strict` $strict^)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Recur_DecayOp : Recur_Op<"decay", [Pure, DeclareOpInterfaceMethods<InferTypeOpInterface>]> {
  let summary = "products of a factor between two tokens of a block";
  let description = [{
    From one factor for each token, T x 1, the T x T matrix with a_{j+1} .. a_i in row i, column j <= i (1 on the
    diagonal), and 0 above it.
  }];
  let arguments = (ins Recur_Mat:$factors);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$factors attr-dict `:` type($factors)";
}

def Recur_ExtractOp : Recur_Op<"extract", [Pure, DeclareOpInterfaceMethods<InferTypeOpInterface>]> {
  let summary = "the value of one micro-step";
  let description = "Micro-steps count from 1. Example: `%kj = recur.extract %k[%j] : !recur.steps<n x dk x 1>`.";
  let arguments = (ins Recur_Steps:$steps, Recur_Scalar:$index);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$steps `[` $index `]` attr-dict `:` type($steps)";
}

def Recur_JoinOp : Recur_Op<"join", [Pure, DeclareOpInterfaceMethods<InferTypeOpInterface>]> {
  let summary = "the matrix with these columns";
  let description = [{
    Where recur-split-columns took a matrix of few columns apart, an output that is one is put together again.
    Constraint: recur_join_c1: the columns are at least one, n x 1, of one type.

    Example: `%o = recur.join %o1, %o2 : !recur.mat<dv x 1>, !recur.mat<dv x 1>`.
  }];
  let arguments = (ins Variadic<Recur_Mat>:$columns);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$columns attr-dict `:` type($columns)";
}

def Recur_ConcatOp : Recur_Op<"concat", [Pure, DeclareOpInterfaceMethods<InferTypeOpInterface>,
    DeclareOpInterfaceMethods<Recur_RangeOp>]> {
  let summary = "the vector that has these, one below the other";
  let description = [{
    Where recur::joinKeys made one state of several, what it is read and written along has the keys of all.
    `firsts` says where each part begins; entries between two parts are 0, and the last part ends the vector.
    Constraint: recur_concat_c1: the parts are at least one, each n x 1, of bound sizes, and each begins where
    the one before ends, or later.

    Example: `%x = recur.concat %k, %p at [0, 128] : !recur.mat<100 x 1>, !recur.mat<16 x 1>`.
  }];
  let arguments = (ins Variadic<Recur_Mat>:$parts, DenseI64ArrayAttr:$firsts);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$parts `at` $firsts attr-dict `:` type($parts)";
}

//===----------------------------------------------------------------------===//
// Linear algebra
//===----------------------------------------------------------------------===//

class Recur_AlgebraOp<string mnemonic, list<Trait> traits = []> : Recur_Op<mnemonic, !listconcat([Pure,
    DeclareOpInterfaceMethods<InferTypeOpInterface>, DeclareOpInterfaceMethods<Recur_DifferentiableOp>], traits)>;

def Recur_MatmulOp : Recur_AlgebraOp<"matmul"> {
  let summary = "matrix product";
  let description = [{
    Covers the inner product (1 x n times n x 1), the outer product (m x 1 times 1 x n) and matrix times vector.
    Constraint: recur_matmul_c1: the columns of `lhs` are the rows of `rhs`.
  }];
  let arguments = (ins Recur_Mat:$lhs, Recur_Mat:$rhs);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Recur_TransposeOp : Recur_AlgebraOp<"transpose", [DeclareOpInterfaceMethods<Recur_RangeOp>]> {
  let summary = "transpose";
  let arguments = (ins Recur_Mat:$operand);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand)";
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Recur_ReduceOp : Recur_AlgebraOp<"reduce", [DeclareOpInterfaceMethods<Recur_RangeOp>]> {
  let summary = "sum or maximum over rows, columns or both; a reduced dimension becomes 1";
  let description = [{
    Example: `%s = recur.reduce sum %x rows cols : !recur.mat<d x 1>`.
    The derivative of a maximum goes to the entries that attain it.
  }];
  let arguments = (ins Recur_ReductionAttr:$kind, Recur_Mat:$operand, UnitAttr:$rows, UnitAttr:$cols);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$kind $operand (`rows` $rows^)? (`cols` $cols^)? attr-dict `:` type($operand)";
  let hasFolder = 1;
}

def Recur_BroadcastOp : Recur_Op<"broadcast", [Pure, DeclareOpInterfaceMethods<Recur_DifferentiableOp>,
    DeclareOpInterfaceMethods<Recur_RangeOp>]> {
  let summary = "repeat along dimensions that are 1";
  let description = "Constraint: recur_broadcast_c1: each dimension of the operand is 1 or that of the result.";
  let arguments = (ins Recur_Mat:$operand);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `to` type($result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Recur_DiagOp : Recur_AlgebraOp<"diag"> {
  let summary = "the diagonal matrix of a vector";
  let description = "Constraint: recur_diag_c1: the operand is n x 1.";
  let arguments = (ins Recur_Mat:$operand);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand)";
}

def Recur_SolveOp : Recur_AlgebraOp<"solve"> {
  let summary = "solve a linear system";
  let description = [{
    The x with `matrix` x = `rhs`. Without `iterations` exactly, for a symmetric positive definite matrix (by LDL^T
    where it is compiled); with them by that many conjugate gradient steps from zero, whose quotients are
    num / (den + eps), and 0 where den + eps is 0. The derivative is that of the exact solution of a symmetric system.
    Constraints: recur_solve_c1: the matrix is square and fits the right side. recur_solve_c2: conjugate gradients
    take one right side, n x 1.
  }];
  let arguments = (ins Recur_Mat:$matrix, Recur_Mat:$rhs, OptionalAttr<I64Attr>:$iterations,
                       DefaultValuedAttr<F64Attr, "0.0">:$eps);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$matrix `,` $rhs (`iterations` $iterations^)? attr-dict `:` type($matrix) `,` type($rhs)";
}

def Recur_InverseOp : Recur_AlgebraOp<"inverse"> {
  let summary = "the inverse of a general square matrix";
  let description = "Constraint: recur_inverse_c1: the matrix is square.";
  let arguments = (ins Recur_Mat:$operand);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand)";
}

def Recur_RopeOp : Recur_AlgebraOp<"rope"> {
  let summary = "rotary position embedding";
  let description = [{
    Rotates the coordinates (2i, 2i+1) of a vector of n entries by the angle `position` * `base`^(-2i/n)
    (2104.09864, equation 15). The last entry of an odd n stays. Constraint: recur_rope_c1: the operand is a vector.
  }];
  let arguments = (ins Recur_Mat:$operand, Recur_Scalar:$position, DefaultValuedAttr<F64Attr, "10000.0">:$base);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$operand `,` $position attr-dict `:` type($operand)";
  let hasFolder = 1;
}

//===----------------------------------------------------------------------===//
// Facts and derivatives
//===----------------------------------------------------------------------===//

def Recur_AssumeOp : Recur_AlgebraOp<"assume", [DeclareOpInterfaceMethods<Recur_RangeOp>]> {
  let summary = "a value that is known to lie in a range, or to have Euclidean norm 1";
  let description = [{
    The value itself. A declaration such as `input a : scalar in [0, 1]` speaks of later assignments too
    (`a = exp(g)`), and a function such as l2norm promises `unit`. The pass recur-check-ranges reports a range that
    its expression contradicts; recur-drop-assumptions removes the op once nobody asks.
  }];
  let arguments = (ins Recur_Mat:$operand, OptionalAttr<Recur_Range>:$range, UnitAttr:$unit);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$operand (`in` $range^)? (`unit` $unit^)? attr-dict `:` type($operand)";
}

def Recur_GradientOp : Recur_Op<"gradient", [Pure, AllTypesMatch<["wrt", "result"]>]> {
  let summary = "the derivative of a scalar by a value that it was computed from";
  let description = [{
    What the language writes `grad(loss, S)`: `of` is the loss, `wrt` the very SSA value of S that the loss read. The
    pass recur-differentiate replaces the op by the derivative, in reverse mode, written with the ops of this dialect;
    it must run before anything is evaluated.
  }];
  let arguments = (ins Recur_Scalar:$of, Recur_Mat:$wrt);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$of `wrt` $wrt attr-dict `:` type($wrt)";
}

//===----------------------------------------------------------------------===//
// Elementwise functions
//===----------------------------------------------------------------------===//

class Recur_Elementwise<string mnemonic, list<Trait> traits> : Recur_Op<mnemonic, !listconcat([Pure,
    DeclareOpInterfaceMethods<InferTypeOpInterface>, DeclareOpInterfaceMethods<Recur_ElementwiseOp>,
    DeclareOpInterfaceMethods<Recur_RangeOp>], traits)> {
  let results = (outs Recur_Mat:$result);
  let hasFolder = 1;
}
class Recur_Unary<string mnemonic, string what, list<Trait> traits = []> : Recur_Elementwise<mnemonic, traits> {
  let summary = what;
  let arguments = (ins Recur_Mat:$operand);
  let assemblyFormat = "$operand attr-dict `:` type($operand)";
}
class Recur_Binary<string mnemonic, string what, list<Trait> traits = []> : Recur_Elementwise<mnemonic, traits> {
  let summary = what;
  let description = "Constraint: recur_broadcast_c2: the operands' dimensions are equal or the literal 1.";
  let arguments = (ins Recur_Mat:$lhs, Recur_Mat:$rhs);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
}

def Recur_AddOp : Recur_Binary<"add", "sum", [Commutative]>;
def Recur_SubOp : Recur_Binary<"sub", "difference">;
def Recur_MulOp : Recur_Binary<"mul", "product of entries", [Commutative]> {
  let hasCanonicalizer = 1;
}
def Recur_DivOp : Recur_Binary<"div", "quotient of entries">;
def Recur_MaxOp : Recur_Binary<"max", "larger entry", [Commutative]>;
def Recur_MinOp : Recur_Binary<"min", "smaller entry", [Commutative]>;
def Recur_PowOp : Recur_Binary<"pow", "power">;
def Recur_GreaterEqualOp : Recur_Binary<"greater_equal", "1 where lhs >= rhs, else 0">;

def Recur_NegOp : Recur_Unary<"neg", "negation">;
def Recur_ExpOp : Recur_Unary<"exp", "exponential">;
def Recur_LogOp : Recur_Unary<"log", "natural logarithm">;
def Recur_SqrtOp : Recur_Unary<"sqrt", "square root">;
def Recur_AbsOp : Recur_Unary<"abs", "absolute value">;
def Recur_SignOp : Recur_Unary<"sign", "-1, 0 or 1">;
def Recur_SigmoidOp : Recur_Unary<"sigmoid", "1 / (1 + exp(-x))">;
def Recur_TanhOp : Recur_Unary<"tanh", "hyperbolic tangent">;
def Recur_SoftplusOp : Recur_Unary<"softplus", "log(1 + exp(x))">;
def Recur_ErfOp : Recur_Unary<"erf", "error function">;
def Recur_SinOp : Recur_Unary<"sin", "sine">;
def Recur_CosOp : Recur_Unary<"cos", "cosine">;

#endif
