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
    sizes.push_back(ShapedType::isDynamic(size) ? OpFoldResult(metadata.getSizes()[index])
                                                : getIndexAttr(size));
  llvm::append_range(strides, metadata.getStrides());
  strides.back() = getIndexAttr(1);
  SmallVector<int64_t> known(type.getRank(), ShapedType::kDynamic);
  known.back() = 1;
  auto layout = StridedLayoutAttr::get(getContext(), ShapedType::kDynamic, known);
  auto dense = MemRefType::get(type.getShape(), type.getElementType(), layout);
  return memref::ReinterpretCastOp::create(*this, dense, metadata.getBaseBuffer(),
                                           OpFoldResult(metadata.getOffset()), sizes, strides);
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

Value VectorBuilder::loadPart(Value memory, Place at, int64_t count) {
  if (count >= lanes)
    return load(memory, at);
  SmallVector<bool> bits(lanes, false);
  std::fill_n(bits.begin(), count, true);
  auto type = VectorType::get(lanes, getI1Type());
  Value mask = arith::ConstantOp::create(*this, DenseElementsAttr::get(type, ArrayRef<bool>(bits)));
  return vector::MaskedLoadOp::create(*this, vector, memory, at, mask, splat(0.0));
}

void VectorBuilder::strips(int64_t columns, llvm::function_ref<void(VectorBuilder &, Value)> body) {
  int64_t full = columns / lanes * lanes;
  if (full > lanes)
    loop(index(0), index(full), lanes, [&](Value column) { body(*this, column); });
  else if (full)
    body(*this, index(0));
  for (int64_t width = lanes / 2, column = full; width > 0; width /= 2)
    if (columns - column >= width) {
      VectorBuilder narrow(getLoc(), *this, width, vector.getElementType());
      body(narrow, narrow.index(column));
      column += width;
    }
}

// Pairs of vectors are folded into one, then pairs of these: the fewest shuffles. A vector is made of groups
// of lanes that belong to one input; a fold takes the first half of every group of both and combines it with
// the second halves.
Value cpu::foldLanes(OpBuilder &b, Location loc, ArrayRef<Value> vectors,
                     llvm::function_ref<Value(Value, Value)> combine) {
  SmallVector<Value> folded(vectors);
  for (int64_t group = cast<VectorType>(folded[0].getType()).getNumElements(); group > 1; group /= 2) {
    bool isPaired = folded.size() > 1;
    SmallVector<int64_t> first, second;
    int64_t width = cast<VectorType>(folded[0].getType()).getNumElements();
    for (int64_t start = 0; start < (isPaired ? 2 : 1) * width; start += group)
      for (int64_t lane = 0; lane < group / 2; ++lane) {
        first.push_back(start + lane);
        second.push_back(start + group / 2 + lane);
      }
    SmallVector<Value> next;
    for (size_t i = 0; i < folded.size(); i += isPaired ? 2 : 1) {
      Value other = folded[isPaired ? i + 1 : i];
      next.push_back(combine(vector::ShuffleOp::create(b, loc, folded[i], other, first),
                             vector::ShuffleOp::create(b, loc, folded[i], other, second)));
    }
    folded = std::move(next);
  }
  return folded[0];
}
