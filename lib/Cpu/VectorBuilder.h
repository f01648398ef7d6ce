// A builder for vector code over flat f32 memory, in a few words per operation.
#pragma once

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace recur::cpu {

/// Builds arith, vector, memref and scf ops on indices, f32 scalars and vectors of `lanes` f32. Memory is a rank 1
/// memref and a position in it.
class VectorBuilder : public mlir::ImplicitLocOpBuilder {
public:
  using Value = mlir::Value;
  using Values = llvm::SmallVector<Value>;

  VectorBuilder(mlir::Location loc, mlir::OpBuilder &builder, int64_t lanes)
      : ImplicitLocOpBuilder(loc, builder), lanes(lanes), vector(mlir::VectorType::get(lanes, getF32Type())) {}

  Value index(int64_t value) { return mlir::arith::ConstantIndexOp::create(*this, value); }
  Value add(Value a, Value b) { return mlir::arith::AddIOp::create(*this, a, b); }
  Value add(Value a, int64_t b) { return b ? add(a, index(b)) : a; }
  Value sub(Value a, int64_t b) { return b ? mlir::arith::SubIOp::create(*this, a, index(b)).getResult() : a; }
  Value scale(Value a, int64_t b) { return b == 1 ? a : mlir::arith::MulIOp::create(*this, a, index(b)).getResult(); }
  Value scale(Value a, Value b) { return mlir::arith::MulIOp::create(*this, a, b); }

  /// An f32 scalar; `splat` gives it in every lane.
  Value number(double value) { return mlir::arith::ConstantOp::create(*this, getF32FloatAttr(value)); }
  Value splat(double value) {
    return mlir::arith::ConstantOp::create(*this, mlir::DenseElementsAttr::get(vector, float(value)));
  }
  Value splat(Value scalar) { return mlir::vector::BroadcastOp::create(*this, vector, scalar); }

  /// Products and sums of scalars or of vectors. A null factor stands for 1.
  Value mul(Value a, Value b) { return !a ? b : !b ? a : mlir::arith::MulFOp::create(*this, a, b).getResult(); }
  Value sum(Value a, Value b) { return mlir::arith::AddFOp::create(*this, a, b); }
  Value fma(Value a, Value b, Value c) { return mlir::vector::FMAOp::create(*this, a, b, c); }
  Value reduce(Value a) { return mlir::vector::ReductionOp::create(*this, mlir::vector::CombiningKind::ADD, a); }

  Value load(Value memory, Value at) { return mlir::vector::LoadOp::create(*this, vector, memory, at); }
  void store(Value x, Value memory, Value at) { mlir::vector::StoreOp::create(*this, x, memory, at); }
  Value loadScalar(Value memory, Value at) { return mlir::memref::LoadOp::create(*this, memory, at); }
  void storeScalar(Value x, Value memory, Value at) { mlir::memref::StoreOp::create(*this, x, memory, at); }
  /// A scalar of memory in every lane; one instruction on x86.
  Value loadSplat(Value memory, Value at) { return splat(loadScalar(memory, at)); }

  /// Whether the entries along a strided memref's last dimension are neighbours, as i1.
  Value isDense(Value view);
  /// A strided memref whose innermost stride is known to be 1, with a type that says so.
  Value denseView(Value view);

  /// for (i = lo; i < hi; i += step), carrying values.
  Values loop(Value lo, Value hi, int64_t step, mlir::ValueRange carried,
              llvm::function_ref<Values(Value, mlir::ValueRange)> body);
  /// The same without carried values.
  void loop(Value lo, Value hi, int64_t step, llvm::function_ref<void(Value)> body);
  /// Both branches have to give values of `types`.
  Values branch(Value condition, mlir::TypeRange types, llvm::function_ref<Values()> yes,
                llvm::function_ref<Values()> no);

  const int64_t lanes;
  const mlir::VectorType vector;
};

/// `value` rounded up to a multiple of `unit`.
inline int64_t roundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

} // namespace recur::cpu
