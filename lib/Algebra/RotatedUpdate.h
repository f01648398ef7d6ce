// Updates that write what the token before gave, seen from one token earlier.
//
// `S = a*S + b*v1*k1.T + c*v*kT`, where k1 and v1 are the last token's key and value, writes twice along keys
// that are the same a token apart. What of the next token's update follows from numbers and this token's
// vectors alone, its decays and those writes, can be done with this token's own writes:
//
//   X' = a1*(X + c*v*kT) + b1*v*kT, where a1 and b1 are the next token's a and b,
//
// one write, and no vector is kept. Reads find the state as it is after that part: S is X + c*v*kT.
#pragma once

#include "dialect/recur/Recur.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur {

/// What a rotated rule is to the rule: it has fewer states, more inputs and more outputs.
struct RotatedUpdate {
  /// A number of the next token: the rotated rule has it as an input, and what it is at the token itself as
  /// an output, both among its last ones, in this order. After the last token it is `past`.
  struct Number {
    double past;
    bool isLog; // of a decay
  };
  llvm::SmallVector<Number> numbers;
  /// How many states the rule has, and which of them the rotated rule has.
  unsigned statesOfRule = 0;
  llvm::SmallVector<unsigned> states;
  /// States of the rule that are an input of the token before: by number among its states, and its inputs.
  struct Delay {
    unsigned state, input;
  };
  llvm::SmallVector<Delay> delays;
  /// What the rotated states are before the first token: the sums of states, and of products of two delayed
  /// vectors, times the first token's numbers; -1 is the number 1.
  struct Old {
    unsigned to, from; // among the rotated states
    int number;
  };
  struct Write {
    unsigned to, column, row; // these among `delays`
    int number;
  };
  llvm::SmallVector<Old> old;
  llvm::SmallVector<Write> writes;
};

/// The rotated rule, in a module of its own, or null where a rule writes nothing of the token before, or more
/// than a number of the next token would have to be known. `inLogs`: where decays are exponentials, their
/// numbers are the logarithms.
mlir::OwningOpRef<mlir::ModuleOp> rotateUpdate(RuleOp rule, bool inLogs);

/// What a rotated rule says of itself, or the chunk program of one that was given its attribute.
constexpr llvm::StringLiteral rotatedAttr = "chunk.rotated";
std::optional<RotatedUpdate> rotatedUpdate(mlir::Operation *op);

} // namespace recur
