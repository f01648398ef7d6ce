// Vectors that read themselves, as matrices.
//
// `z = a*z + b*(1 - dot(z, k))*k` is a delta rule whose values are numbers. Written for a few values that are
// all the same, `Z = a*Z + k*(b*(1T - kT*Z))`, it is one that chunks of a matrix know, and a number that is
// read of z is the mean of those that are read of Z.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// How many columns a vector becomes: what a packet of half precision holds.
constexpr int64_t columnsOfVector = 8;

/// A copy of the rule, in a module of its own, whose states that are vectors and read themselves are matrices
/// of as many rows and `columnsOfVector` like columns; null where there are none, or where more than numbers
/// is read of them, or what they become is no sum of that. They begin with constants.
mlir::OwningOpRef<mlir::ModuleOp> widenVectors(RuleOp rule);

} // namespace recur
