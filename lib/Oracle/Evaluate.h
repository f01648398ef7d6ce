// The value of one op.
#pragma once

#include "lib/Oracle/Oracle.h"

namespace recur {

/// What every SSA value stands for at one token: a matrix, or one for each micro-step.
using Environment = llvm::DenseMap<mlir::Value, std::vector<Matrix>>;

/// Evaluates an op that is neither a recur.block nor a terminator and puts its results into the environment.
/// `length` is the number of tokens that a symbolic dimension (of a block's matrices) stands for. With
/// `single` results are rounded to float32.
mlir::LogicalResult evaluate(mlir::Operation &op, Environment &environment, int64_t length,
                             bool single = false);

} // namespace recur
