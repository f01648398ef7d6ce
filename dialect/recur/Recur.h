// The recur dialect: dialect, types, attributes, interfaces and ops.
#pragma once

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialect/recur/RecurDialect.h.inc"
#include "dialect/recur/RecurEnums.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialect/recur/RecurTypes.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialect/recur/RecurAttrs.h.inc"
#include "dialect/recur/RecurInterfaces.h.inc"

namespace recur {
/// The type of the entries of `lhs op rhs`: dimensions equal, or one of them the literal 1. Null when they do
/// not fit.
MatType broadcastTypes(MatType lhs, MatType rhs);

/// True when a dimension is the literal 1.
bool isOne(mlir::Attribute dim);

/// A dimension as text: "dv" or "128".
std::string dimText(mlir::Attribute dim);
mlir::ParseResult parseDim(mlir::AsmParser &parser, mlir::Attribute &dim);
void printDim(mlir::AsmPrinter &printer, mlir::Attribute dim);

/// Sums `value` over the dimensions along which `type` is 1, so that it has that type: the adjoint of
/// broadcasting.
mlir::Value reduceTo(mlir::OpBuilder &builder, mlir::Location loc, mlir::Value value, MatType type);

inline MatType matType(mlir::Value value) { return llvm::cast<MatType>(value.getType()); }
} // namespace recur

#define GET_OP_CLASSES
#include "dialect/recur/RecurOps.h.inc"
