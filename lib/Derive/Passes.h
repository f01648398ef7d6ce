// Passes from rules to chunk programs.
#pragma once

#include "dialect/chunk/Chunk.h"
#include "mlir/Pass/Pass.h"

namespace recur {
#define GEN_PASS_DECL
#include "lib/Derive/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "lib/Derive/Passes.h.inc"
} // namespace recur
