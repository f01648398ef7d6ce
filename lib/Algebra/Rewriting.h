// What rules that are written anew from their normal form are made with.
#pragma once

#include "lib/Algebra/NormalForm.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/DenseMap.h"

#include <functional>
#include <optional>

namespace recur {

/// A copy of the rule, in a module of its own, as `write` changes it; null where that fails.
mlir::OwningOpRef<mlir::ModuleOp> rewritten(RuleOp rule,
                                            llvm::function_ref<mlir::LogicalResult(RuleOp)> write);

/// Appends an input to the rule. Names with a space in them are none of the language's.
mlir::BlockArgument addInput(RuleOp rule, const llvm::Twine &name, RangeAttr range, bool isUnit,
                             mlir::Type type);

/// Erases the operations whose results nothing uses, from the last one on.
void eraseDead(mlir::Block &block);
/// The same in a rule, of what initial states are, too.
void eraseDead(RuleOp rule);

/// S*d for a vector on the right, (dT*S)T for one on the left: columns both.
mlir::Value readOf(mlir::OpBuilder &b, mlir::Location loc, mlir::Value matrix, Side side, mlir::Value vector);

/// A value times a number, which may be null for 1.
mlir::Value scaled(mlir::OpBuilder &b, mlir::Location loc, mlir::Value number, mlir::Value value);

/// A vector without the numbers that it is times, or those of one kind up to the first other one; multiplies
/// `number`, which may be null for 1, by those.
mlir::Value unscaled(mlir::OpBuilder &b, mlir::Location loc, mlir::Value vector, mlir::Value &number,
                     llvm::function_ref<bool(mlir::Value)> isOfKind = nullptr);

/// Whether two values are the same, or the same function of such.
bool isEqual(mlir::Value x, mlir::Value y);

/// The factors of a product of vectors, entry by entry.
llvm::SmallVector<mlir::Value> factorsOf(mlir::Value vector);

/// Takes one of such factors out of some; false where it is none of them.
template <typename Factors>
bool take(Factors &factors, mlir::Value factor) {
  auto *found = llvm::find(factors, factor);
  if (found == factors.end())
    return false;
  factors.erase(found);
  return true;
}

/// The version of the only state, by number, that its factors have decayed and nothing has been written to.
unsigned decayedVersion(mlir::OpBuilder &b, NormalForm &nf);

/// Whether two terms are the same of what their states were.
bool decayAlike(const OldTerm &x, const OldTerm &y);

/// Takes apart what the only state is written at two times along one pair of vectors, which its update has
/// the sum of: what an earlier version has of it, and the rest, right before what is read and written along
/// the same vector.
void splitWrites(mlir::OpBuilder &b, NormalForm &nf);

/// The product of two coefficients.
Coefficient times(Coefficient x, const Coefficient &y);

/// Whether the sum of two coefficients is zero, factors in any order.
bool cancel(Coefficient x, Coefficient y);

/// A factor of a state as it counts at the first of a token's rows, or micro-steps, alone; `isFirst` is 1
/// there and else 0. `inLogs` has exponentials of vectors count by their exponents, x^first, and not as
/// first*x + 1 - first, which is the same.
mlir::Value onceOf(mlir::OpBuilder &b, mlir::Location loc, mlir::Value factor, mlir::Value isFirst,
                   bool inLogs);

/// Builds what follows from states once more, where other values stand for some of it. What is token-only
/// stays.
class Rebuilder {
public:
  /// What stands for a value: another; null if there is none; nothing if its operation is built once more.
  using Replacement = std::function<std::optional<mlir::Value>(mlir::Value)>;

  Rebuilder(mlir::OpBuilder &b, const NormalForm &nf, Replacement replacement)
      : b(b), nf(nf), replacement(std::move(replacement)) {}

  /// Null where nothing stands for a state that the value follows from.
  mlir::Value of(mlir::Value value);

private:
  mlir::OpBuilder &b;
  const NormalForm &nf;
  Replacement replacement;
  llvm::DenseMap<mlir::Value, mlir::Value> rebuilt;
};

} // namespace recur
