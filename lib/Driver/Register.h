// What the tools know.
#pragma once

#include "mlir/IR/DialectRegistry.h"

namespace recur {

/// The dialects, interfaces and translations of recurc's pipeline.
void registerAll(mlir::DialectRegistry &registry);

/// registerAll, all upstream dialects, and all passes by name: for tools that read MLIR text.
void registerAllForTools(mlir::DialectRegistry &registry);

} // namespace recur
