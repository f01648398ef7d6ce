// The functions of chunk.substitute, entry by entry.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <optional>

namespace recur::cuda {

/// Why what an op writes has no code: it is made of entries each by itself and, where `sums` are, of
/// sums over them, or their largest, which counts as a sum. Nothing if it has.
std::optional<std::string> refusalOf(chunk::SubstituteOp op, bool sums = false);
/// The sums that it is made of, too.
int64_t countSums(chunk::SubstituteOp op);
/// The most of them that follow from one another.
int64_t depthOfSums(chunk::SubstituteOp op);
/// Whether an op is of all entries of a vector: a sum, or the largest.
bool isSum(mlir::Operation *op);
/// Has it take sums before others that they need not wait for (EarlierSums.cpp).
void takeSumsEarlier(chunk::SubstituteOp op);
/// Has what reads states also give outputs that are functions of that (FunctionOutputs.cpp).
void giveFunctions(chunk::ProgramOp program);
/// Entries of a value of the region: one of a number of one token, or as many as are asked for.
using EntriesOfValue = llvm::SmallVector<mlir::Value, 2>;
/// Entries of values of the region, by what is known of some.
using SumsOfEntries = llvm::SmallVector<EntriesOfValue>(llvm::ArrayRef<EntriesOfValue>,
                                                        llvm::ArrayRef<bool> areLargest);
using KnownEntries = llvm::DenseMap<mlir::Value, EntriesOfValue>;
/// Some entries of what it writes, values that its region yields, one after the other, or others, of entries
/// of the region's arguments and of what is `known`, by functions of so many binary digits; `sum` adds up
/// entries, these and all others, of several vectors at once, or finds the largest ones. Where entries are of
/// several tokens, token by token, a lane has sums of one token, and `spread` hands out such a number as
/// entries.
EntriesOfValue lowerEntries(mlir::ImplicitLocOpBuilder &at, chunk::SubstituteOp op, mlir::ValueRange written,
                            int64_t digits, size_t count,
                            llvm::function_ref<mlir::Value(mlir::BlockArgument, size_t entry)> entryOf,
                            llvm::function_ref<SumsOfEntries> sum = nullptr,
                            KnownEntries known = KnownEntries(),
                            llvm::function_ref<EntriesOfValue(mlir::Value)> spread = nullptr);

} // namespace recur::cuda
