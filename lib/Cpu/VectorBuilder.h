// A builder for vector code over flat memory, in a few words per operation.
#pragma once

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace recur::cpu {

/// Builds arith, vector, memref and scf ops on indices, scalars and vectors of `lanes` of them: f32, unless a
/// type is given. Memory is a memref whose last dimension is dense, and a place in it.
class VectorBuilder : public mlir::ImplicitLocOpBuilder {
public:
  using Value = mlir::Value;
  using Values = llvm::SmallVector<Value>;

  VectorBuilder(mlir::Location loc, mlir::OpBuilder &builder, int64_t lanes, mlir::Type entry = {})
      : ImplicitLocOpBuilder(loc, builder), lanes(lanes),
        vector(mlir::VectorType::get(lanes, entry ? entry : getF32Type())) {}

  Value index(int64_t value) { return mlir::arith::ConstantIndexOp::create(*this, value); }
  Value add(Value a, Value b) { return mlir::arith::AddIOp::create(*this, a, b); }
  Value add(Value a, int64_t b) { return b ? add(a, index(b)) : a; }
  Value sub(Value a, int64_t b) {
    return b ? mlir::arith::SubIOp::create(*this, a, index(b)).getResult() : a;
  }
  Value scale(Value a, int64_t b) {
    return b == 1 ? a : mlir::arith::MulIOp::create(*this, a, index(b)).getResult();
  }
  Value scale(Value a, Value b) { return mlir::arith::MulIOp::create(*this, a, b); }

  Value flag(bool value) { return mlir::arith::ConstantOp::create(*this, getBoolAttr(value)); }
  /// A scalar; `splat` gives it in every lane.
  Value number(double value) {
    return mlir::arith::ConstantOp::create(*this, getFloatAttr(vector.getElementType(), value));
  }
  Value splat(double value) {
    mlir::Attribute entry = getFloatAttr(vector.getElementType(), value);
    return mlir::arith::ConstantOp::create(*this, mlir::DenseElementsAttr::get(vector, entry));
  }
  Value splat(Value scalar) { return mlir::vector::BroadcastOp::create(*this, vector, scalar); }

  /// Products and sums of scalars or of vectors. A null factor stands for 1.
  Value mul(Value a, Value b) {
    return !a ? b : !b ? a : mlir::arith::MulFOp::create(*this, a, b).getResult();
  }
  Value sum(Value a, Value b) { return mlir::arith::AddFOp::create(*this, a, b); }
  Value fma(Value a, Value b, Value c) { return mlir::vector::FMAOp::create(*this, a, b, c); }
  Value reduce(Value a) {
    return mlir::vector::ReductionOp::create(*this, mlir::vector::CombiningKind::ADD, a);
  }

  using Place = mlir::ValueRange;
  Value load(Value memory, Place at) { return mlir::vector::LoadOp::create(*this, vector, memory, at); }
  void store(Value x, Value memory, Place at) { mlir::vector::StoreOp::create(*this, x, memory, at); }
  Value loadScalar(Value memory, Place at) { return mlir::memref::LoadOp::create(*this, memory, at); }
  void storeScalar(Value x, Value memory, Place at) { mlir::memref::StoreOp::create(*this, x, memory, at); }
  /// A scalar of memory in every lane; one instruction on x86.
  Value loadSplat(Value memory, Place at) { return splat(loadScalar(memory, at)); }
  /// The first `count` lanes from memory, zeros in the others.
  Value loadPart(Value memory, Place at, int64_t count);

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

  /// Calls `body` with the first column of each strip of a matrix of that many columns: strips of full
  /// vectors in a loop, then narrower ones, each with a builder of their width.
  void strips(int64_t columns, llvm::function_ref<void(VectorBuilder &, Value column)> body);

  const int64_t lanes;
  const mlir::VectorType vector;
};

/// Combines the lanes of each vector: one vector with a lane for each of them. There are a power of two of
/// vectors, no more than lanes.
mlir::Value foldLanes(mlir::OpBuilder &b, mlir::Location loc, llvm::ArrayRef<mlir::Value> vectors,
                      llvm::function_ref<mlir::Value(mlir::Value, mlir::Value)> combine);

/// `value` rounded up to a multiple of `unit`.
inline int64_t roundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

} // namespace recur::cpu
