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
