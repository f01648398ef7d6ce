// The types of tensors' entries in memory. Computations and states are f32.
#pragma once
#include "mlir/IR/BuiltinTypes.h"
#include "llvm/Support/Error.h"

namespace recur {

enum class DType { F32, BF16, F16 };

/// "f32", "bf16", "f16": as on the command line and in JSON.
inline llvm::StringRef dtypeName(DType type) {
  static constexpr llvm::StringLiteral names[] = {"f32", "bf16", "f16"};
  return names[unsigned(type)];
}

/// Inverse of dtypeName.
inline llvm::Expected<DType> parseDType(llvm::StringRef name) {
  for (DType type : {DType::F32, DType::BF16, DType::F16})
    if (dtypeName(type) == name)
      return type;
  return llvm::createStringError("unknown type '" + name + "', known are f32, bf16, f16");
}

/// Bytes of one element.
inline unsigned dtypeSize(DType type) { return type == DType::F32 ? 4 : 2; }

/// The type of one element.
inline mlir::FloatType floatType(mlir::MLIRContext *context, DType type) {
  switch (type) {
  case DType::F32:
    return mlir::Float32Type::get(context);
  case DType::BF16:
    return mlir::BFloat16Type::get(context);
  case DType::F16:
    return mlir::Float16Type::get(context);
  }
  llvm_unreachable("all types are listed");
}

} // namespace recur
