#include "lib/Cpu/VectorBuilder.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

Value VectorBuilder::isDense(Value view) {
  auto metadata = memref::ExtractStridedMetadataOp::create(*this, view);
  return arith::CmpIOp::create(*this, arith::CmpIPredicate::eq, metadata.getStrides().back(), index(1));
}

// Not by memref.cast: that folds into the loads and stores, which then see the old type.
Value VectorBuilder::denseView(Value view) {
  auto type = cast<MemRefType>(view.getType());
  auto metadata = memref::ExtractStridedMetadataOp::create(*this, view);
  SmallVector<OpFoldResult> sizes, strides;
  for (auto [index, size] : llvm::enumerate(type.getShape()))
    sizes.push_back(ShapedType::isDynamic(size) ? OpFoldResult(metadata.getSizes()[index]) : getIndexAttr(size));
  llvm::append_range(strides, metadata.getStrides());
  strides.back() = getIndexAttr(1);
  SmallVector<int64_t> known(type.getRank(), ShapedType::kDynamic);
  known.back() = 1;
  auto layout = StridedLayoutAttr::get(getContext(), ShapedType::kDynamic, known);
  auto dense = MemRefType::get(type.getShape(), type.getElementType(), layout);
  return memref::ReinterpretCastOp::create(*this, dense, metadata.getBaseBuffer(), OpFoldResult(metadata.getOffset()),
                                           sizes, strides);
}

SmallVector<Value> VectorBuilder::loop(Value lo, Value hi, int64_t step, ValueRange carried,
                                       llvm::function_ref<Values(Value, ValueRange)> body) {
  auto op = scf::ForOp::create(*this, lo, hi, index(step), carried);
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.getBody());
  Values results = body(op.getInductionVar(), op.getRegionIterArgs());
  if (!carried.empty()) // without carried values the builder has ended the body
    scf::YieldOp::create(*this, results);
  return Values(op.getResults());
}

void VectorBuilder::loop(Value lo, Value hi, int64_t step, llvm::function_ref<void(Value)> body) {
  loop(lo, hi, step, {}, [&](Value i, ValueRange) {
    body(i);
    return Values();
  });
}

SmallVector<Value> VectorBuilder::branch(Value condition, TypeRange types, llvm::function_ref<Values()> yes,
                                         llvm::function_ref<Values()> no) {
  auto op = scf::IfOp::create(*this, types, condition, /*addThenBlock=*/true, /*addElseBlock=*/true);
  for (bool first : {true, false}) {
    OpBuilder::InsertionGuard guard(*this);
    setInsertionPointToStart(&(first ? op.getThenRegion() : op.getElseRegion()).front());
    Values results = first ? yes() : no();
    scf::YieldOp::create(*this, results);
  }
  return Values(op.getResults());
}
