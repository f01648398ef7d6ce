// Which tokens see which, and stretches of the chunk.
//
// A late decay's factor comes after its token's writes. Then a token t that sees j, on whatever terms, sees it
// decayed by the factors j .. t-1; what has decayed since the chunk's start is, through the token or until it, that of
// the factors 1 .. t-1, and until the chunk's end that of t .. C.
//
// In a program with `starts`, b is the first token of t's block of so many.
#ifndef CHUNK_ENUMS
#define CHUNK_ENUMS

include "dialect/chunk/ChunkDialect.td"
include "mlir/IR/EnumAttr.td"

def Chunk_Reach : I32EnumAttr<"Reach", "which tokens j a token t sees, and the decays between them", [
  I32EnumAttrCase<"Inclusive", 0, "inclusive">, // j <= t, factors j+1 .. t
  I32EnumAttrCase<"Strict", 1, "strict">,       // j < t,  factors j+1 .. t
  I32EnumAttrCase<"Before", 2, "before">,       // j < t,  factors j+1 .. t-1: what the state of token t-1 holds
  I32EnumAttrCase<"Start", 3, "start">,         // j < b,  factors j+1 .. b-1: what the state of token b-1 holds
]> {
  let cppNamespace = "::recur::chunk";
  let genSpecializedAttr = 0;
}
def Chunk_ReachAttr : EnumAttr<Chunk_Dialect, Chunk_Reach, "reach">;

def Chunk_Span : I32EnumAttr<"Span", "a stretch of the chunk", [
  I32EnumAttrCase<"Through", 0, "through">, // factors 1 .. t
  I32EnumAttrCase<"Until", 1, "until">,     // factors 1 .. t-1
  I32EnumAttrCase<"Rest", 2, "rest">,       // factors t+1 .. C
  I32EnumAttrCase<"Whole", 3, "whole">,     // factors 1 .. C
  I32EnumAttrCase<"Start", 4, "start">,     // factors 1 .. b-1
]> {
  let cppNamespace = "::recur::chunk";
  let genSpecializedAttr = 0;
}
def Chunk_SpanAttr : EnumAttr<Chunk_Dialect, Chunk_Span, "span">;

#endif
