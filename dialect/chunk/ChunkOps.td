// The operations. Constraints are numbered; a verifier names the one it found broken, and so does its test.
#ifndef CHUNK_OPS
#define CHUNK_OPS

include "dialect/chunk/ChunkDialect.td"
include "dialect/chunk/ChunkEnums.td"
include "dialect/recur/RecurAttrs.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Chunk_Op<string mnemonic, list<Trait> traits = []> : Op<Chunk_Dialect, mnemonic, traits>;

//===----------------------------------------------------------------------===//
// Structure
//===----------------------------------------------------------------------===//

def Chunk_ProgramOp : Chunk_Op<"program", [Symbol, IsolatedFromAbove,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>]> {
  let summary = "what one head does with a chunk of tokens";
  let description = [{
    The body runs once per chunk, in the order of the chunks. `length` is the symbol of the number of tokens in it; the
    last chunk of a sequence may be shorter. Its arguments are those of the rule: an input that is a vector as the
    matrix of its rows, another input as `!chunk.tokens`, the position as C x 1, states and parameters as they are. It
    yields the states at the chunk's end and then the outputs, one row per token. `init` is that of the rule. With
    `block` the chunks are the rule's blocks, at whose starts states are read: of so many tokens at most, and a chunk
    begins where the position is a multiple of that. With `starts` states are read at the starts of blocks of so many
    tokens, too, of which a chunk has several, or which have several chunks: each begins where each of the other does.

    Constraints: chunk_program_c1: the body has one argument for each of `args`, of the type above. chunk_program_c2: it
    yields the states, with their types, then the outputs, matrices of `length` rows. chunk_program_c3: no argument is
    stale. chunk_program_c4: a block's start is reached only where `starts` says what a block is.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, StrAttr:$length, Recur_ArgArray:$args, StrArrayAttr:$outputs,
      OptionalAttr<I64Attr>:$block, OptionalAttr<I64Attr>:$starts);
  let regions = (region SizedRegion<1>:$init, SizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `length` `(` $length `)` $args `->` $outputs (`block` $block^)? (`starts` $starts^)? attr-dict-with-keyword
    `init` $init `body` $body
  }];
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    ArgAttr getArg(unsigned index) { return ::llvm::cast<ArgAttr>(getArgs()[index]); }
    YieldOp getBodyYield();
    /// The body's arguments of one kind, in order.
    ::llvm::SmallVector<::mlir::BlockArgument> argumentsOf(ArgKind kind);
  }];
}

def Chunk_YieldOp : Chunk_Op<"yield", [Pure, Terminator, ParentOneOf<["ProgramOp", "MapOp", "SubstituteOp",
    "ConjugateGradientsOp"]>]> {
  let summary = "end a region with its results";
  let arguments = (ins Variadic<Recur_Mat>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
}

def Chunk_MapOp : Chunk_Op<"map", [IsolatedFromAbove, SingleBlock, RecursiveMemoryEffects, AttrSizedOperandSegments,
    AttrSizedResultSegments]> {
  let summary = "a function of one token, for all tokens of the chunk";
  let description = [{
    A row of a matrix in `rows` enters as a column, a `!chunk.tokens` as its value; `shared` is the same for all. Each
    value of the region becomes the row of a matrix or, when it is no column, an entry of `!chunk.tokens`. With `carried`
    the tokens run in order: the region takes the carried values first and yields their successors first.

    Constraints: chunk_map_c1: the region's arguments are `carried`, one token of each of `rows`, `shared`.
    chunk_map_c2: it yields the carried values, then one token of each result.
  }];
  let arguments = (ins Variadic<Recur_Mat>:$carried, Variadic<Chunk_TokenValue>:$rows, Variadic<Recur_Mat>:$shared);
  let results = (outs Variadic<Recur_Mat>:$last, Variadic<Chunk_TokenValue>:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    (`carried` `(` $carried^ `:` type($carried) `)`)? (`rows` `(` $rows^ `:` type($rows) `)`)?
    (`shared` `(` $shared^ `:` type($shared) `)`)? `->` (`last` `(` type($last)^ `)`)? `(` type($results) `)` $body
    attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    YieldOp getYield();
    /// What one token of a row value is.
    static ::mlir::Type tokenType(::mlir::Type rows);
    /// The type that collects values of one token over a chunk of `length` tokens.
    static ::mlir::Type rowsType(::mlir::Type token, ::mlir::Attribute length);
  }];
}

//===----------------------------------------------------------------------===//
// Decays
//===----------------------------------------------------------------------===//

def Chunk_DecayOp : Chunk_Op<"decay", [Pure, DeclareOpInterfaceMethods<InferTypeOpInterface>]> {
  let summary = "the products of decay factors";
  let description = [{
    `log`, where it is there, holds the logarithms of the factors; floating point then sums logarithms and exponentiates
    differences. A `late` decay comes after what its token writes, so that this decays with it (ChunkEnums.td).
    Constraint: chunk_decay_c1: `log` has the type of `factors`.
  }];
  let arguments = (ins Recur_Mat:$factors, Optional<Recur_Mat>:$log, UnitAttr:$late);
  let results = (outs Chunk_Decay:$result);
  let assemblyFormat = "(`late` $late^)? $factors `:` type($factors) (`log` $log^ `:` type($log))? attr-dict";
  let hasVerifier = 1;
}

def Chunk_CascadeOp : Chunk_Op<"cascade", [Pure]> {
  let summary = "the products of transition matrices of states that are coupled by numbers, or key by key";
  let description = [{
    `factors` are the entries of token t's matrix, row by row. Products run from later tokens (left) to earlier ones.
    With channels each key has matrices of its own, of which an entry may still be one number for all.
    Constraint: chunk_cascade_c1: there are n*n factors, each of the type of the result or C x 1.
  }];
  let arguments = (ins Variadic<Recur_Mat>:$factors);
  let results = (outs Chunk_Cascade:$result);
  let assemblyFormat = "$factors attr-dict `:` type($factors) `->` type($result)";
  let hasVerifier = 1;
}

def Chunk_MaskOp : Chunk_Op<"mask", [Pure]> {
  let summary = "a scalar decay between any two tokens, C x C";
  let description = [{
    Row t, column j: the product of the factors in reach, and 0 where j is out of reach. For a cascade the entry
    (`to`, `from`) of that product of matrices.
    Constraints: chunk_mask_c1: the decay is scalar. chunk_mask_c2: `to` and `from` are states of the cascade.
  }];
  let arguments = (ins AnyTypeOf<[Chunk_Decay, Chunk_Cascade]>:$decay, Chunk_ReachAttr:$reach,
                       DefaultValuedAttr<I64Attr, "0">:$to, DefaultValuedAttr<I64Attr, "0">:$from);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$reach $decay attr-dict `:` type($decay) `->` type($result)";
  let hasVerifier = 1;
}

def Chunk_WeightsOp : Chunk_Op<"weights", [Pure]> {
  let summary = "the decay of each token over a stretch of the chunk";
  let description = [{
    One row per token, a column per channel; for `whole` the one row as a column. For a cascade the entry (`to`, `from`).
    Constraint: chunk_weights_c1: the result has the factors' type, or its transposed row.
  }];
  let arguments = (ins AnyTypeOf<[Chunk_Decay, Chunk_Cascade]>:$decay, Chunk_SpanAttr:$span,
                       DefaultValuedAttr<I64Attr, "0">:$to, DefaultValuedAttr<I64Attr, "0">:$from);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$span $decay attr-dict `:` type($decay) `->` type($result)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Between tokens
//===----------------------------------------------------------------------===//

def Chunk_GramOp : Chunk_Op<"gram", [Pure, AllTypesMatch<["lhs", "rhs"]>, AttrSizedOperandSegments]> {
  let summary = "decayed inner products of the rows of two matrices, masked";
  let description = [{
    result[t,j] = sum over c of lhs[t,c] rhs[j,c] d[t,j,c], where d is the product of the factors in reach (1 without a
    decay), and 0 where j is out of reach. For a cascade with channels d is the sum over its states s of the entries
    (`to`, s) of that product of matrices, each times weights_s[j]: rows are written to several states, and read of one.
    Constraints: chunk_gram_c1: the decay is scalar or has a channel for each column. chunk_gram_c2: the result is
    square with the operands' rows. chunk_gram_c3: there is a weight for each state of a cascade, one number per token,
    and `to` is one of them; else there are none.
  }];
  let arguments = (ins Recur_Mat:$lhs, Recur_Mat:$rhs, Optional<AnyTypeOf<[Chunk_Decay, Chunk_Cascade]>>:$decay,
                       Variadic<Recur_Mat>:$weights, Chunk_ReachAttr:$reach, DefaultValuedAttr<I64Attr, "0">:$to);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = [{
    $reach $lhs `,` $rhs (`decay` $decay^ `:` type($decay))? (`weights` `(` $weights^ `:` type($weights) `)`)? attr-dict
    `:` type($lhs) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Chunk_MixOp : Chunk_Op<"mix", [Pure]> {
  let summary = "sums rows by scores while the channels decay";
  let description = [{
    result[t,c] = sum over j of scores[t,j] values[j,c] d[t,j,c]: a decay on the value axis. `scores` is 0 where j is out
    of reach. Constraints: chunk_mix_c1: the shapes fit. chunk_mix_c2: the decay has a channel for each column.
    chunk_mix_c3: it is not late.
  }];
  let arguments = (ins Recur_Mat:$scores, Recur_Mat:$values, Chunk_Decay:$decay, Chunk_ReachAttr:$reach);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = [{
    $reach $scores `,` $values `decay` $decay attr-dict `:` type($scores) `,` type($values) `,` type($decay) `->`
    type($result)
  }];
  let hasVerifier = 1;
}

def Chunk_TriSolveOp : Chunk_Op<"tri_solve", [Pure, AttrSizedOperandSegments]> {
  let summary = "solve (I + N) U = R, N strictly lower triangular";
  let description = [{
    With n unknown streams N has n*n blocks, row by row, and the unknowns are ordered by token first, then by stream: a
    block below the diagonal of blocks may have a diagonal, the others may not. With a decay on the value axis each
    column c is solved with the entries N[t,j] d[t,j,c], with factors, one matrix for each right side, with
    factors[t,c] N[t,j] d[t,j,c]: then each column has a system of its own.
    Constraints: chunk_tri_solve_c1: there are n*n blocks for n right sides. chunk_tri_solve_c2: the blocks are square
    and fit. chunk_tri_solve_c3: the right sides have equal types, the decay a channel for each of their columns.
    chunk_tri_solve_c4: there are no factors, or one of the right sides' type for each of these. chunk_tri_solve_c5: the
    decay is not late.
  }];
  let arguments = (ins Variadic<Recur_Mat>:$blocks, Variadic<Recur_Mat>:$rhs, Variadic<Recur_Mat>:$factors,
                       Optional<Chunk_Decay>:$decay, DefaultValuedAttr<Chunk_ReachAttr, "Reach::Before">:$reach);
  let results = (outs Variadic<Recur_Mat>:$results);
  let assemblyFormat = [{
    `blocks` `(` $blocks `:` type($blocks) `)` `rhs` `(` $rhs `:` type($rhs) `)`
    (`factors` `(` $factors^ `:` type($factors) `)`)? (`decay` `(` $decay^ `:` type($decay) `)` $reach)? attr-dict `->`
    type($results)
  }];
  let extraClassDeclaration = [{
    /// Whether each column has a system of its own, so that no inverse serves all.
    bool isByColumn() { return !getFactors().empty() || getDecay(); }
  }];
  let hasVerifier = 1;
}

def Chunk_SubstituteOp : Chunk_Op<"substitute", [IsolatedFromAbove, SingleBlock, RecursiveMemoryEffects,
    AttrSizedOperandSegments, AttrSizedResultSegments]> {
  let summary = "what is read of a state and, a function of that, written to it, token by token";
  let description = [{
    A triangular system that is not linear: with functions f_s of one token, the region, and strictly lower triangular
    blocks, n*m of them for n reads and m writes, row by row,

      reads_i[t] = sides_i[t] + sum over s and j of blocks[i,s][t,j] writes_s[j],  writes_s[t] = f_s(reads[t], rows[t]).

    Constraints: chunk_substitute_c1: there are n*m blocks, square, with the sides' rows. chunk_substitute_c2: reads have
    the sides' types, and writes as many rows. chunk_substitute_c3: the region's arguments are one token of each of the
    reads and of `rows`, and `shared`. chunk_substitute_c4: it yields one token of each of the writes.
  }];
  let arguments = (ins Variadic<Recur_Mat>:$blocks, Variadic<Recur_Mat>:$sides, Variadic<Chunk_TokenValue>:$rows,
                       Variadic<Recur_Mat>:$shared);
  let results = (outs Variadic<Recur_Mat>:$reads, Variadic<Recur_Mat>:$writes);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    `blocks` `(` $blocks `:` type($blocks) `)` `sides` `(` $sides `:` type($sides) `)`
    (`rows` `(` $rows^ `:` type($rows) `)`)? (`shared` `(` $shared^ `:` type($shared) `)`)? `->` `reads` `(` type($reads)
    `)` `writes` `(` type($writes) `)` $body attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    YieldOp getYield();
  }];
}

def Chunk_LdlOp : Chunk_Op<"ldl", [Pure, AllTypesMatch<["keys", "reads", "gains"]>, AllTypesMatch<["state", "last"]>]> {
  let summary = "a symmetric matrix that loses its own read by a key with each token, for all tokens by one L D LT";
  let description = [{
    P_0 is `state`, symmetric, and token t makes of it, with its key k and the numbers decay a, weight w and offset e,
    P_t = (P - P k (P k)T w / d) / a, d = e + w kT P k, P = P_{t-1}: the inverse of a matrix that is affine in its like,
    a (P^-1 + (w / e) k kT). Gives P_{t-1} k as rows (`reads`), the same times w / d (`gains`), d (`denominators`), P_C
    (`last`), and `lower`, L - I, of the factors that give them all. With A_t the product of the decays up to t and X the
    rows A_{t-1} P_{t-1} k,

      K P_0 KT + diag(A_{t-1} e / w) = L D LT,  X = L^-1 K P_0,  P_C = (P_0 - XT D^-1 X) / A_C.

    There is no pivoting: row t depends on the first t rows alone. Nothing is divided by a weight, so that a token of
    weight 0 takes no part. Row t of L is what the gains of earlier tokens are by key t: K gainsT = L - I below the
    diagonal. P_0 - P_C may be nearly all of P_0: a lowering to f32 needs more digits within.
    Constraints: chunk_ldl_c1: the state is square and fits the keys. chunk_ldl_c2: decays, weights, offsets and
    denominators are one number per token. chunk_ldl_c3: `lower` has a row and a column per token.
  }];
  let arguments = (ins Recur_Mat:$state, Recur_Mat:$keys, Recur_Mat:$decays, Recur_Mat:$weights, Recur_Mat:$offsets);
  let results = (outs Recur_Mat:$lower, Recur_Mat:$reads, Recur_Mat:$gains, Recur_Mat:$denominators, Recur_Mat:$last);
  let assemblyFormat = [{
    $state `keys` $keys `decays` $decays `weights` $weights `offsets` $offsets attr-dict `:` type($state) `,`
    type($keys) `,` type($decays) `,` type($weights) `,` type($offsets) `->` type($lower) `,` type($denominators)
  }];
  let hasVerifier = 1;
}

def Chunk_ScanOp : Chunk_Op<"scan", [Pure, AttrSizedOperandSegments, AttrSizedResultSegments]> {
  let summary = "an elementwise recurrence: each entry on its own";
  let description = [{
    With one state, s_t = factors_t .* s_{t-1} + writes_t from s_0 = `init`. With n states that are coupled entry by
    entry, `factors` are the n*n entries of a matrix, row by row. Gives s_t (or, `before`, s_{t-1}) for each token, and
    s_C. The pairs (factors, writes) compose associatively, so that tokens need not run in order.
    Constraints: chunk_scan_c1: there are n*n factors, n writes, states and results for n states. chunk_scan_c2: factors,
    writes and results have one type, `init` and the last states that of one token.
  }];
  let arguments = (ins Variadic<Chunk_TokenValue>:$factors, Variadic<Chunk_TokenValue>:$writes,
                       Variadic<Recur_Mat>:$init, UnitAttr:$before);
  let results = (outs Variadic<Chunk_TokenValue>:$results, Variadic<Recur_Mat>:$last);
  let assemblyFormat = [{
    (`before` $before^)? `factors` `(` $factors `:` type($factors) `)` `writes` `(` $writes `:` type($writes) `)`
    `from` `(` $init `:` type($init) `)` attr-dict `->` type($results) `last` `(` type($last) `)`
  }];
  let hasVerifier = 1;
}

def Chunk_NormaliserOp : Chunk_Op<"normaliser", [Pure, AllTypesMatch<["queries", "keys"]>]> {
  let summary = "what queries read of a vector that sums keys";
  let description = [{
    A vector state z takes in keys with the scores that a matrix state takes in values with, so that who has those needs
    no other product between tokens:

      result[t] = queries[t] z + sum over j of scores[t,j] weights[j],  z' = whole z + keysT weights.

    Lowerings make this of a program where they keep z beside the matrix: it is then no argument of the program any
    more, but `state`, a number among the rule's, and `first` in all of its entries where none is given.
    Constraints: chunk_normaliser_c1: the scores are square with the queries' rows, weights and the result one number
    per token. chunk_normaliser_c2: `whole` is one number.
  }];
  let arguments = (ins Recur_Mat:$queries, Recur_Mat:$scores, Recur_Mat:$weights, Recur_Mat:$keys,
                       Optional<Recur_Mat>:$whole, I64Attr:$state, F64Attr:$first);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = [{
    $queries `scores` $scores `weights` $weights `keys` $keys (`whole` $whole^ `:` type($whole))? `state` $state `first`
    $first attr-dict `:` type($queries) `,` type($scores) `,` type($weights) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Chunk_HeldOp : Chunk_Op<"held", [Pure, SameOperandsAndResultType]> {
  let summary = "a state at the start of the chunk's block";
  let description = [{
    Of a program whose blocks have several chunks: what the state was where the first chunk of this one's block began,
    so that it is the state itself in that chunk, and in a sequence's first one.
    Constraint: chunk_held_c1: `starts` says what a block is.
  }];
  let arguments = (ins Recur_Mat:$state);
  let results = (outs Recur_Mat:$result);
  let assemblyFormat = "$state attr-dict `:` type($state)";
}

def Chunk_ConjugateGradientsOp : Chunk_Op<"conjugate_gradients", [SingleBlock, RecursiveMemoryEffects,
    AllTypesMatch<["rhs", "result"]>]> {
  let summary = "solve one symmetric system for each token";
  let description = [{
    Row t of the result is what `iterations` steps of conjugate gradients from zero make of row t of `rhs`; the region
    multiplies each row by its token's matrix. Quotients are num / (den + eps), and 0 where den + eps is 0.
    Constraint: chunk_conjugate_gradients_c1: the region takes and yields one matrix of the type of `rhs`.
  }];
  let arguments = (ins Recur_Mat:$rhs, I64Attr:$iterations, F64Attr:$eps);
  let results = (outs Recur_Mat:$result);
  let regions = (region SizedRegion<1>:$product);
  let assemblyFormat = "$rhs `iterations` $iterations `eps` $eps `:` type($rhs) $product attr-dict";
  let hasRegionVerifier = 1;
}

#endif
