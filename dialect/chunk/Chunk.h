// The chunk dialect: how a rule is computed over a chunk of tokens.
#pragma once

#include "dialect/recur/Recur.h"

#include "dialect/chunk/ChunkDialect.h.inc"
#include "dialect/chunk/ChunkEnums.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialect/chunk/ChunkTypes.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialect/chunk/ChunkAttrs.h.inc"

#define GET_OP_CLASSES
#include "dialect/chunk/ChunkOps.h.inc"

namespace recur::chunk {

/// What an output of a program is of the rule's: all of it, or one of the columns (or rows) that are joined.
struct OutputPart {
  unsigned output;
  int64_t index = 0, count = 1;
  bool isRow = false;
};

/// The parts that a program's outputs are, in order. Those of one output of the rule stand together.
llvm::SmallVector<OutputPart> outputParts(ProgramOp program);
/// How many outputs of the rule they make up; none where an earlier stage has computed them all.
unsigned numOutputs(ProgramOp program);
void setOutputParts(ProgramOp program, llvm::ArrayRef<OutputPart> parts);

/// Whether a decay's factor comes after what its token writes; not of a cascade, or of none.
bool isLate(mlir::Value decay);

/// The type of the factors of a decay, or of the entries of a cascade where they have channels.
MatType typeOfFactors(mlir::Type decay);

} // namespace recur::chunk
