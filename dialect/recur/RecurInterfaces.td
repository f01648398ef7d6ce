// Interfaces through which passes speak to ops without knowing them.
#ifndef RECUR_INTERFACES
#define RECUR_INTERFACES

include "mlir/IR/OpBase.td"

def Recur_ElementwiseOp : OpInterface<"ElementwiseOp"> {
  let cppNamespace = "::recur";
  let description = [{
    A function applied entry by entry, with operands broadcast along dimensions that are the literal 1. One
    implementation holds all that the compiler knows about the function, so that a new function is one new op.
  }];
  let methods = [
    InterfaceMethod<"The function of one entry of each operand, in float64.",
      "double", "evaluate", (ins "::llvm::ArrayRef<double>":$operands)>,
    InterfaceMethod<[{Builds the partial derivative by operand `index`, as a value that broadcasts to the result's
        shape, or null where it is zero.}],
      "::mlir::Value", "buildPartial", (ins "::mlir::OpBuilder &":$builder, "unsigned":$index)>,
    InterfaceMethod<"Builds the function on floats (scalars or vectors of one type) with arith and math ops.",
      "::mlir::Value", "lower", (ins "::mlir::OpBuilder &":$builder, "::mlir::Location":$loc,
                                     "::mlir::ValueRange":$operands)>,
  ];
}

def Recur_DifferentiableOp : OpInterface<"DifferentiableOp"> {
  let cppNamespace = "::recur";
  let description = "An op whose vector-Jacobian product is written with ops of this dialect.";
  let methods = [
    InterfaceMethod<[{Builds the cotangent of operand `index` from the cotangent of the result; the value returned has
        the operand's type.}],
      "::mlir::Value", "buildAdjoint", (ins "::mlir::OpBuilder &":$builder, "::mlir::Value":$cotangent,
                                            "unsigned":$index)>,
  ];
}

def Recur_RangeOp : OpInterface<"RangeOp"> {
  let cppNamespace = "::recur";
  let description = "An op that can bound its result's entries.";
  let methods = [
    InterfaceMethod<[{An interval that holds every entry of the result when operand i lies in `operands[i]`; null when
        nothing is known.}],
      "::recur::RangeAttr", "inferRange", (ins "::llvm::ArrayRef<::recur::RangeAttr>":$operands)>,
  ];
}

#endif
