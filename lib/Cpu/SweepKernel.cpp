#include "lib/Cpu/SweepKernel.h"
#include "lib/Cpu/SweepColumns.h"
#include "lib/Cpu/SweepState.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

PlannedRule::PlannedRule(const SweepPlan &plan, const SweepOptions &options, ArrayRef<Role> roles, func::FuncOp kernel,
                         func::FuncOp packer)
    : plan(plan), options(options), kernel(kernel), packer(packer), roles(roles) {
  shape = plan.shape;
  auto span = kernel.getArguments().drop_front(roles.size());
  tokens = span[0], position = span[1], head = span[2], heads = span[3];
}

ValueRange PlannedRule::views(Role role) {
  size_t begin = llvm::find(roles, role) - roles.begin();
  return ValueRange(kernel.getArguments()).slice(begin, llvm::count(roles, role));
}

//===----------------------------------------------------------------------===//
// Columns in the caller's tensors
//===----------------------------------------------------------------------===//

Value PlannedRule::isDense(VectorBuilder &b) {
  Value result = arith::ConstantOp::create(b, b.getBoolAttr(true));
  auto require = [&](Value view) {
    auto metadata = memref::ExtractStridedMetadataOp::create(b, view);
    Value one = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, metadata.getStrides().back(), b.index(1));
    result = arith::AndIOp::create(b, result, one);
  };
  for (Value view : views(Role::Input))
    if (cast<MemRefType>(view.getType()).getRank() > 1)
      require(view);
  llvm::for_each(views(Role::Output), require);
  return result;
}

// Which of the lanes from `column` are columns of the state; null when all always are.
Value PlannedRule::mask(VectorBuilder &b, Value column) {
  if (shape.columns % options.width() == 0)
    return {};
  Value left = arith::SubIOp::create(b, b.index(shape.columns), column);
  left = arith::MaxSIOp::create(b, left, b.index(0));
  return vector::CreateMaskOp::create(b, VectorType::get(b.lanes, b.getI1Type()), left);
}

Value PlannedRule::loadInput(VectorBuilder &b, const SweepColumn &column, const ColumnStep &at) {
  Value view = b.denseView(views(Role::Input)[column.index]);
  auto type = VectorType::get(b.lanes, cast<MemRefType>(view.getType()).getElementType());
  Values place = {at.token};
  if (column.step >= 0)
    place.push_back(b.index(column.step));
  place.push_back(at.column);
  Value loaded;
  if (Value some = mask(b, at.column)) {
    Value zero = arith::ConstantOp::create(b, b.getZeroAttr(type));
    loaded = vector::MaskedLoadOp::create(b, type, view, place, some, zero);
  } else {
    loaded = vector::LoadOp::create(b, type, view, place);
  }
  return type == b.vector ? loaded : arith::ExtFOp::create(b, b.vector, loaded).getResult();
}

void PlannedRule::storeOutput(VectorBuilder &b, Value x, Value view, const ColumnStep &at) {
  view = b.denseView(view);
  auto type = VectorType::get(b.lanes, cast<MemRefType>(view.getType()).getElementType());
  if (type != b.vector)
    x = arith::TruncFOp::create(b, type, x);
  Values place = {at.token, at.column};
  if (Value some = mask(b, at.column))
    vector::MaskedStoreOp::create(b, view, place, some, x);
  else
    vector::StoreOp::create(b, x, view, place);
}

SmallVector<Value> PlannedRule::step(VectorBuilder &b, const SweepLayout &layout, Value scratch,
                                     const ColumnStep &at) {
  auto load = [&](const SweepColumn &column) {
    if (column.kind == SweepColumn::Input)
      return loadInput(b, column, at);
    Value token = b.add(b.scale(at.inChunk, layout.columns), layout.columnsBegin);
    return b.load(scratch, b.add(b.add(token, at.column), column.index * layout.columnSlotStride));
  };
  auto scalar = [&](unsigned slot) {
    return b.loadSplat(scratch, b.add(b.scale(at.inChunk, layout.scalarSlots), layout.scalarsBegin + slot));
  };
  SweepColumns columns(b, plan, at.reads, load, scalar);
  Values writes;
  for (const SweepSum &write : plan.writes)
    writes.push_back(columns.sum(write));
  for (auto [view, value] : llvm::zip(views(Role::Output), plan.outputs))
    storeOutput(b, columns.output(value), view, at);
  return writes;
}

Value PlannedRule::columnDecay(VectorBuilder &b, const SweepLayout &layout, Value scratch, const ColumnStep &at) {
  if (plan.columnDecay->kind == SweepColumn::Input)
    return loadInput(b, *plan.columnDecay, at);
  Value token = b.add(b.scale(at.inChunk, layout.columns), layout.columnsBegin);
  return b.load(scratch, b.add(b.add(token, at.column), plan.columnDecay->index * layout.columnSlotStride));
}

// Asks for the lines of the token one chunk ahead, its share of them at each column block.
void PlannedRule::enter(VectorBuilder &b, const SweepLayout &layout, Value, const ColumnStep &at, Value block) {
  Value last = b.sub(tokens, 1);
  Value token = arith::MinUIOp::create(b, b.add(at.token, options.chunk), last);
  auto ask = [&](Value view, bool write) {
    auto type = cast<MemRefType>(view.getType());
    if (type.getRank() < 2 || ShapedType::isDynamic(type.getShape().back()))
      return;
    int64_t line = 512 / type.getElementTypeBitWidth(), lines = (type.getShape().back() + line - 1) / line;
    int64_t share = (lines + layout.blocks - 1) / layout.blocks;
    int64_t steps = type.getRank() == 3 ? type.getDimSize(1) : 1;
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t i = 0; i < share; ++i) {
        Values place = {token};
        if (type.getRank() == 3)
          place.push_back(b.index(step));
        place.push_back(b.add(b.scale(block, share * line), i * line));
        memref::PrefetchOp::create(b, b.denseView(view), place, write, 2, /*isDataCache=*/true);
      }
  };
  for (Value view : views(Role::Input))
    ask(view, false);
  for (Value view : views(Role::Output))
    ask(view, true);
}

//===----------------------------------------------------------------------===//
// Around the sweep
//===----------------------------------------------------------------------===//

void PlannedRule::pack(VectorBuilder &b, const SweepLayout &layout, Value scratch, Value begin, Value count) {
  Values arguments;
  for (Value view : views(Role::Input)) {
    auto type = cast<MemRefType>(view.getType());
    SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)), sizes, strides(type.getRank(), b.getIndexAttr(1));
    for (int64_t size : type.getShape())
      sizes.push_back(b.getIndexAttr(size));
    offsets[0] = begin;
    sizes[0] = count;
    arguments.push_back(memref::SubViewOp::create(b, type, view, offsets, sizes, strides));
  }
  llvm::append_range(arguments, views(Role::Param));
  // States that the packer carries: the caller's before the first chunk, then its own.
  Value first = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, begin, b.index(0));
  unsigned side = 0;
  for (auto [index, view] : llvm::enumerate(views(Role::InitialState)))
    if (index != plan.state)
      arguments.push_back(arith::SelectOp::create(b, first, view, sideBuffers[side++]));
  auto slot = [&](int64_t position, ArrayRef<int64_t> tokenStrides) {
    auto type = cast<MemRefType>(packer.getArgumentTypes()[arguments.size()]);
    SmallVector<OpFoldResult> sizes = {count}, strides;
    for (int64_t size : type.getShape().drop_front())
      sizes.push_back(b.getIndexAttr(size));
    for (int64_t stride : tokenStrides)
      strides.push_back(b.index(stride));
    strides.resize(sizes.size());
    arguments.push_back(memref::ReinterpretCastOp::create(b, type, scratch, OpFoldResult(b.index(position)), sizes, strides));
  };
  for (unsigned i = 0; i < shape.rowSlots; ++i)
    slot(layout.rowsBegin + i * layout.rowSlotStride, {layout.rowStride, 1});
  for (unsigned i = 0; i < shape.columnSlots; ++i)
    slot(layout.columnsBegin + i * layout.columnSlotStride, {layout.columns, 1});
  for (unsigned i = 0; i < shape.scalarSlots; ++i)
    slot(layout.scalarsBegin + i, {layout.scalarSlots});
  llvm::append_range(arguments, sideBuffers);
  llvm::append_range(arguments, Values{count, b.add(position, begin), head, heads, kernel.getArguments().back()});
  func::CallOp::create(b, packer, arguments);
}

static Value isGiven(VectorBuilder &b, Value view) {
  Value address = memref::ExtractAlignedPointerAsIndexOp::create(b, view);
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, address, b.index(0));
}

void PlannedRule::emit(VectorBuilder &b) {
  SweepLayout layout(shape, options);
  auto flat = MemRefType::get(layout.size(shape, options), b.getF32Type());
  Value scratch = memref::AllocOp::create(b, flat);
  scratch = memref::CastOp::create(b, MemRefType::get(ShapedType::kDynamic, b.getF32Type()), scratch);
  for (auto [index, view] : llvm::enumerate(views(Role::InitialState)))
    if (index != plan.state) {
      auto type = cast<MemRefType>(view.getType());
      Value buffer = memref::AllocOp::create(b, MemRefType::get(type.getShape(), b.getF32Type()));
      sideBuffers.push_back(memref::CastOp::create(b, type, buffer));
    }
  if (layout.rowStride != shape.rows || layout.columns != shape.columns)
    b.loop(b.index(layout.rowsBegin), b.index(layout.scalarsBegin), b.lanes,
           [&](Value i) { b.store(b.splat(0.0), scratch, i); });

  SweepState state(b, shape, options, scratch, plan.transposed);
  Value initial = views(Role::InitialState)[plan.state], final = views(Role::FinalState)[plan.state];
  auto nothing = [] { return Values(); };
  b.branch(
      isGiven(b, initial), TypeRange(), [&] { return state.load(initial), Values(); },
      [&] { return state.fill(plan.initial), Values(); });
  Value scale = emitSweep(b, *this, options, tokens, scratch);
  b.branch(isGiven(b, final), TypeRange(), [&] { return state.store(final, scale), Values(); }, nothing);
  Values finals(views(Role::FinalState));
  finals.erase(finals.begin() + plan.state);
  for (size_t side = 0; side < finals.size(); ++side)
    b.branch(
        isGiven(b, finals[side]), TypeRange(),
        [&] { return memref::CopyOp::create(b, sideBuffers[side], finals[side]), Values(); }, nothing);
}
