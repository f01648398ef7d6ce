// The dialect and its types.
#ifndef CHUNK_DIALECT
#define CHUNK_DIALECT

include "dialect/recur/RecurTypes.td"

def Chunk_Dialect : Dialect {
  let name = "chunk";
  let cppNamespace = "::recur::chunk";
  let summary = "how a rule is computed over a chunk of tokens";
  let description = [{
    A `chunk.program` computes a rule for C tokens at once, C a symbol. Token values are matrices with one row per
    token; products and elementwise functions on them are those of the recur dialect. The ops here are what a chunk
    needs beside them: products of decays, decayed inner products, the triangular solve. Any rule's program is a
    polynomial (or rational) identity of its inputs, so that it can be tested exactly over a finite field. The decisions
    behind the dialect are in Rationale.md.
  }];
  let dependentDialects = ["::recur::RecurDialect"];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
}

class Chunk_Type<string name, string typeMnemonic> : TypeDef<Chunk_Dialect, name> {
  let mnemonic = typeMnemonic;
}

def Chunk_Decay : Chunk_Type<"Decay", "decay"> {
  let summary = "products of decay factors between any two tokens of a chunk";
  let description = [{
    `of` is the type of the factors: one row per token, one column per channel (1: a scalar decay). Only products over
    later tokens can be asked for (mask, weights, gram ..), never quotients: hence a factor may be 0 or negative, and
    in logarithms no exponent is ever positive.

    Example: `!chunk.decay<!recur.mat<C x dk>>`.
  }];
  let parameters = (ins "::recur::MatType":$of);
  let assemblyFormat = "`<` $of `>`";
}

def Chunk_Cascade : Chunk_Type<"Cascade", "cascade"> {
  let summary = "products of transition matrices of coupled states between any two tokens of a chunk";
  let description = "Example: `!chunk.cascade<2, !recur.mat<C x 1>>` for two states, `C x dk` where keys have their own.";
  let parameters = (ins "int64_t":$states, "::recur::MatType":$of);
  let assemblyFormat = "`<` $states `,` $of `>`";
}

def Chunk_Tokens : Chunk_Type<"Tokens", "tokens"> {
  let summary = "one value for each token, where a row of a matrix cannot hold it";
  let description = "Example: `!chunk.tokens<!recur.mat<d x n>>`, `!chunk.tokens<!recur.steps<n x dk x 1>>`.";
  let parameters = (ins "::mlir::Type":$value);
  let assemblyFormat = "`<` $value `>`";
}

def Chunk_TokenValue : AnyTypeOf<[Recur_Mat, Chunk_Tokens], "value per token">;

#endif
