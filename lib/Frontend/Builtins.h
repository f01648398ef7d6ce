// The functions that the compiler itself knows. All others are one line each of the prelude, in Builtins.cpp.
#pragma once
#include "lib/Frontend/Ast.h"

namespace recur::frontend {

/// How a primitive's result shape follows from its operands'.
enum class PrimitiveShape {
  Elementwise, // operands broadcast
  SumAll,      // a scalar from all entries
  Reduce,      // over the entries of a vector, or of each row of a matrix
  Count,       // a scalar from the shape alone
  Vector,      // a vector to a vector of the same shape
  MakeDiag,    // a vector to a diagonal matrix
  Square,      // a square matrix to one of the same shape
  Solve,       // a square matrix and a right side, to the right side's shape
  Decay,       // a scalar per token to a matrix over tokens
  Gradient,    // a scalar and a state, to the state's shape
};

/// What code is generated for a primitive; IRGen has one line for each.
enum class PrimitiveOp {
  Exp,
  Log,
  Sqrt,
  Abs,
  Sign,
  Sigmoid,
  Tanh,
  Softplus,
  Erf,
  Sin,
  Cos,
  Max,
  Min,
  Sum,
  VectorSum,
  VectorMax,
  VectorLength,
  Count,
  Rope,
  Diag,
  Inverse,
  Solve,
  Decay,
  Gradient,
};

/// One built-in function.
struct Primitive {
  llvm::StringLiteral name;
  PrimitiveOp op;
  PrimitiveShape shape;
  unsigned operands;                                // values, given by position
  llvm::ArrayRef<llvm::StringLiteral> options = {}; // constants, given by name, each optional
};

/// Null: no such primitive.
const Primitive *findPrimitive(llvm::StringRef name);
llvm::ArrayRef<Primitive> allPrimitives();

/// The functions of the language that are written in the language, parsed once.
const Spec &prelude();

/// The function of the prelude of that name; null if there is none.
const Stmt *findPreludeFunction(llvm::StringRef name);

} // namespace recur::frontend
