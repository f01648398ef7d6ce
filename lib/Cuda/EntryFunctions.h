// The functions of chunk.substitute, entry by entry.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <optional>

namespace recur::cuda {

/// Why what an op writes has no code: it is made of entries each by itself and, where `sums` are, of
/// sums over them. Nothing if it has.
std::optional<std::string> refusalOf(chunk::SubstituteOp op, bool sums = false);
/// Whether it is made of sums, too.
bool sumsEntries(chunk::SubstituteOp op);
/// Some entries of what it writes, one of the values that its region yields, of entries of the region's
/// arguments, by functions of so many binary digits; `sum` adds up entries, these and all others.
llvm::SmallVector<mlir::Value, 2>
lowerEntries(mlir::ImplicitLocOpBuilder &at, chunk::SubstituteOp op, mlir::Value written, int64_t digits,
             size_t count, llvm::function_ref<mlir::Value(mlir::BlockArgument, size_t entry)> entryOf,
             llvm::function_ref<mlir::Value(mlir::ValueRange)> sum = nullptr);

} // namespace recur::cuda
