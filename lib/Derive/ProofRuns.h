// Random runs of rules in F_p, for proofs.
#pragma once

#include "lib/Derive/Machine.h"

namespace recur {

/// Replaces every dimension but 1 by a small one: equal ones by equal ones, in all operations it is given.
class Shrinker {
public:
  explicit Shrinker(mlir::StringAttr length = {}) : length(length) {}

  void shrink(mlir::Operation *op);

private:
  mlir::Attribute small(mlir::Attribute dim);

  mlir::StringAttr length; // a dimension that is left alone
  llvm::DenseMap<mlir::Attribute, mlir::Attribute> sizes;
};

/// Random arguments of a rule with bound dimensions. States named by `symmetric` are symmetric matrices.
Call<Fp> randomCall(RuleOp rule, int64_t tokens, uint64_t seed, llvm::ArrayRef<bool> symmetric = {});

/// Where the outputs and final states of two runs differ first; empty where they are the same.
std::string difference(RuleOp rule, const Call<Fp> &a, const Call<Fp> &b);

/// Compares a rule with `other`, which makes outputs and final states of the same random arguments: the first
/// difference, or why there is none to be had; else empty.
std::string compareRuns(RuleOp rule, int64_t tokens,
                        llvm::function_ref<mlir::LogicalResult(Call<Fp> &)> other,
                        llvm::function_ref<mlir::LogicalResult(RuleOp, Call<Fp> &)> run = runRule<Fp>);

} // namespace recur
