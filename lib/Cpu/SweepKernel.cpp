#include "lib/Cpu/SweepKernel.h"
#include "lib/Cpu/SweepColumns.h"
#include "lib/Cpu/SweepRequests.h"
#include "lib/Cpu/SweepState.h"
#include "lib/Cpu/SweepStep.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// A view of tokens without dimensions of 1, but for the one that counts micro-steps.
static Value squeezed(VectorBuilder &b, Value view, const KernelTensor &tensor) {
  auto type = cast<MemRefType>(view.getType());
  auto steps = dyn_cast<StepsType>(tensor.type);
  int64_t counts = !steps ? 0 : steps.getColumns() && type.getRank() == 3 ? 2 : 1;
  SmallVector<int64_t> kept;
  SmallVector<OpFoldResult> begin(type.getRank(), b.getIndexAttr(0)), ones(type.getRank(), b.getIndexAttr(1)),
      sizes;
  for (auto [i, size] : llvm::enumerate(type.getShape())) {
    if (i == 0)
      sizes.push_back(memref::DimOp::create(b, view, 0).getResult());
    else
      sizes.push_back(b.getIndexAttr(size));
    if (i == 0 || size != 1 || int64_t(i) == counts)
      kept.push_back(size);
  }
  if (int64_t(kept.size()) == type.getRank())
    return view;
  auto reduced = memref::SubViewOp::inferRankReducedResultType(kept, type, begin, sizes, ones);
  return memref::SubViewOp::create(b, reduced, view, begin, sizes, ones);
}

PlannedRule::PlannedRule(VectorBuilder &b, const SweepPlan &plan, const SweepOptions &options,
                         ArrayRef<KernelTensor> tensors, ArrayRef<bool> isPacked, func::FuncOp kernel,
                         func::FuncOp packer, func::FuncOp epilogue)
    : plan(plan), options(options), kernel(kernel), packer(packer), epilogue(epilogue), isPacked(isPacked) {
  shape = plan.shape;
  for (auto [tensor, argument] : llvm::zip(tensors, kernel.getArguments())) {
    roles.push_back(tensor.role);
    bool hasTokens = tensor.role == Role::Input || tensor.role == Role::Output;
    given.push_back(hasTokens ? squeezed(b, argument, tensor) : Value(argument));
  }
  auto span = kernel.getArguments().drop_front(roles.size());
  tokenCount = span[0], position = span[1], head = span[2], heads = span[3];
  if (span.size() > 5)
    part = span[4], parts = span[5];
  for (const Rows &rows : rowsToAskFor())
    shape.requests += rows.lines;
}

ValueRange PlannedRule::views(Role role) {
  size_t begin = llvm::find(roles, role) - roles.begin();
  return ValueRange(given).slice(begin, llvm::count(roles, role));
}

//===----------------------------------------------------------------------===//
// Columns in the caller's tensors
//===----------------------------------------------------------------------===//

Value PlannedRule::hasTokens(VectorBuilder &b) {
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, tokenCount, b.index(0));
}

Value PlannedRule::isDense(VectorBuilder &b) {
  Value result = arith::ConstantOp::create(b, b.getBoolAttr(true));
  auto require = [&](Value view) { result = arith::AndIOp::create(b, result, b.isDense(view)); };
  for (Value view : views(Role::Input))
    if (cast<MemRefType>(view.getType()).getRank() > 1)
      require(view);
  if (!plan.hasEpilogue)
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
  Output output = {x, view, {at.token, at.column}};
  if (streams)
    waiting.push_back(std::move(output));
  else
    store(b, output);
}

void PlannedRule::store(VectorBuilder &b, const Output &output) {
  Value x = output.x, view = b.denseView(output.view);
  auto type = VectorType::get(b.lanes, cast<MemRefType>(view.getType()).getElementType());
  // Where there are products of bf16 there is an instruction.
  if ((options.pairs || options.tiles) && type.getElementType().isBF16())
    x = LLVM::CallIntrinsicOp::create(b, type, b.getStringAttr("llvm.x86.avx512bf16.cvtneps2bf16.512"), x)
            .getResult(0);
  else if (type != b.vector)
    x = arith::TruncFOp::create(b, type, x);
  if (Value some = mask(b, output.place.back()))
    vector::MaskedStoreOp::create(b, view, output.place, some, x);
  else
    vector::StoreOp::create(b, x, view, output.place);
}

// Stores a line past the caches: a vector of f32, or two neighbouring ones in bf16. For vectors of bf16 LLVM
// has no such store and a cast is none to it, so that they are made in the wrong order and turned around.
void PlannedRule::storeLine(VectorBuilder &b, ArrayRef<Output> line) {
  Value x = line.front().x;
  if (line.size() == 2) {
    Type halves = VectorType::get(2 * b.lanes, b.getBF16Type());
    x = LLVM::CallIntrinsicOp::create(b, halves, b.getStringAttr("llvm.x86.avx512bf16.cvtne2ps2bf16.512"),
                                      ValueRange{line[0].x, line[1].x})
            .getResult(0);
    x = vector::BitCastOp::create(b, VectorType::get(8, b.getF64Type()), x);
    x = vector::ShuffleOp::create(b, x, x, ArrayRef<int64_t>{4, 5, 6, 7, 0, 1, 2, 3});
  }
  Value to = SweepRequests::pointer(b, SweepRequests::address(b, line.front().view, line.front().place));
  LLVM::StoreOp::create(b, x, to, /*alignment=*/64, /*isVolatile=*/false, /*isNonTemporal=*/true);
}

void PlannedRule::leave(VectorBuilder &b) {
  if (waiting.empty())
    return;
  llvm::MapVector<Value, SmallVector<Output>> byView;
  for (Output &output : waiting)
    byView[output.view].push_back(std::move(output));
  waiting.clear();
  auto lines = [&] {
    for (auto &[view, outputs] : byView)
      for (ArrayRef<Output> rest = outputs; !rest.empty();) {
        size_t count = cast<MemRefType>(view.getType()).getElementType().isF32() ? 1 : 2;
        storeLine(b, rest.take_front(count));
        rest = rest.drop_front(count);
      }
    return Values();
  };
  auto vectors = [&] {
    for (auto &[view, outputs] : byView)
      for (const Output &output : outputs)
        store(b, output);
    return Values();
  };
  b.branch(streams, TypeRange(), lines, vectors);
}

// Where few lines can be on their way from memory at once, those of outputs need not be: a line that is
// written as a whole past the caches is not read before. That is for outputs that no cache would hold until
// they are read, whose lines are the columns of a block.
Value PlannedRule::passesCaches(VectorBuilder &b) {
  constexpr int64_t line = 64, most = 4 << 20;
  if (!options.spread || plan.hasEpilogue || isGather() || shape.columns % options.width())
    return {};
  Value result;
  for (Value view : views(Role::Output)) {
    auto type = cast<MemRefType>(view.getType());
    int64_t bytes = type.getElementTypeBitWidth() / 8;
    bool known = type.getElementType().isF32() || type.getElementType().isBF16();
    if (!known || type.getRank() != 2 || options.width() * bytes % line)
      return {};
    auto metadata = memref::ExtractStridedMetadataOp::create(b, view);
    Value token = b.scale(metadata.getStrides().front(), bytes);
    Value first =
        b.add(memref::ExtractAlignedPointerAsIndexOp::create(b, view), b.scale(metadata.getOffset(), bytes));
    Value odd = arith::RemUIOp::create(b, arith::OrIOp::create(b, first, token), b.index(line));
    Value own = arith::AndIOp::create(
        b, arith::CmpIOp::create(b, arith::CmpIPredicate::eq, odd, b.index(0)),
        arith::CmpIOp::create(b, arith::CmpIPredicate::sge, b.scale(tokenCount, token), b.index(most)));
    result = result ? Value(arith::AndIOp::create(b, result, own)) : own;
  }
  return result;
}

// A column that depends on the token alone.
Value PlannedRule::loadColumn(VectorBuilder &b, const SweepLayout &layout, Value scratch,
                              const SweepColumn &column, const ColumnStep &at) {
  if (column.kind == SweepColumn::Input)
    return loadInput(b, column, at);
  Value token = b.add(b.scale(at.inChunk, layout.columns), layout.columnsBegin);
  return b.load(scratch, b.add(b.add(token, at.column), column.index * layout.columnSlotStride));
}

Value PlannedRule::loadScalar(VectorBuilder &b, const SweepLayout &layout, Value scratch, unsigned slot,
                              const ColumnStep &at) {
  return b.loadSplat(scratch, b.add(b.scale(at.inChunk, layout.scalarSlots), layout.scalarsBegin + slot));
}

SmallVector<Value> PlannedRule::knownWrites(VectorBuilder &b, const SweepLayout &layout, Value scratch,
                                            const ColumnStep &at) {
  auto load = [&](const SweepColumn &column) { return loadColumn(b, layout, scratch, column, at); };
  auto scalar = [&](unsigned slot) { return loadScalar(b, layout, scratch, slot, at); };
  SweepColumns columns(b, plan, {}, load, scalar);
  return llvm::map_to_vector(plan.writes, [&](const SweepSum &write) { return columns.sum(write); });
}

SmallVector<Value> PlannedRule::step(VectorBuilder &b, const SweepLayout &layout, Value scratch,
                                     const ColumnStep &at) {
  auto load = [&](const SweepColumn &column) { return loadColumn(b, layout, scratch, column, at); };
  auto scalar = [&](unsigned slot) { return loadScalar(b, layout, scratch, slot, at); };
  SweepColumns columns(b, plan, at.reads, load, scalar);
  Values writes;
  for (const SweepSum &write : plan.writes)
    writes.push_back(columns.sum(write));
  for (auto [index, value] : llvm::enumerate(plan.staged)) {
    Value token = b.add(b.scale(at.inChunk, layout.columns), layout.columnsBegin);
    unsigned slot = plan.columnValues.size() + index;
    b.store(columns.output(value), scratch, b.add(b.add(token, at.column), slot * layout.columnSlotStride));
  }
  if (!plan.hasEpilogue)
    for (auto [view, value] : llvm::zip(views(Role::Output), plan.outputs))
      storeOutput(b, columns.output(value), view, at);
  return writes;
}

Value PlannedRule::columnDecay(VectorBuilder &b, const SweepLayout &layout, Value scratch,
                               const ColumnStep &at) {
  return loadColumn(b, layout, scratch, *plan.columnDecay, at);
}

//===----------------------------------------------------------------------===//
// Around the sweep
//===----------------------------------------------------------------------===//

// The part of a view that holds `count` tokens from `begin`, with the view's type.
static Value tokensOf(VectorBuilder &b, Value view, Value begin, Value count) {
  auto type = cast<MemRefType>(view.getType());
  SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)), sizes,
      ones(type.getRank(), b.getIndexAttr(1));
  for (int64_t size : type.getShape())
    sizes.push_back(b.getIndexAttr(size));
  offsets[0] = begin;
  sizes[0] = count;
  return memref::SubViewOp::create(b, type, view, offsets, sizes, ones);
}

// Calls a function that may know more of its arguments' layout than the caller's types say.
static void callDirectly(VectorBuilder &b, func::FuncOp callee, SmallVector<Value> arguments) {
  for (auto [argument, type] : llvm::zip(arguments, callee.getArgumentTypes()))
    if (argument.getType() != type)
      argument = b.denseView(argument);
  func::CallOp::create(b, callee, arguments);
}

SmallVector<Value> PlannedRule::tokens(VectorBuilder &b, Role role, Value begin, Value count) {
  return llvm::map_to_vector(views(role), [&](Value view) { return tokensOf(b, view, begin, count); });
}

// A slot of the scratch memory as an argument of that type, token by token.
static Value slotView(VectorBuilder &b, Type argument, Value scratch, int64_t position, int64_t tokenStride,
                      Value count) {
  auto type = cast<MemRefType>(argument);
  SmallVector<OpFoldResult> sizes = {count}, strides = {b.index(tokenStride)};
  for (int64_t size : type.getShape().drop_front()) {
    sizes.push_back(b.getIndexAttr(size));
    strides.push_back(b.getIndexAttr(1));
  }
  return memref::ReinterpretCastOp::create(b, type, scratch, OpFoldResult(b.index(position)), sizes, strides);
}

void PlannedRule::pack(VectorBuilder &b, const SweepLayout &layout, Value scratch, Value begin, Value count) {
  Values arguments = tokens(b, Role::Input, begin, count);
  llvm::append_range(arguments, views(Role::Param));
  // States that the packer carries: the caller's before the first chunk, then its own.
  Value first = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, begin, b.index(0));
  unsigned side = 0;
  for (auto [index, view] : llvm::enumerate(views(Role::InitialState)))
    if (index != plan.state)
      arguments.push_back(arith::SelectOp::create(b, first, view, sideBuffers[side++]));
  auto slot = [&](int64_t position, int64_t tokenStride) {
    Type type = packer.getArgumentTypes()[arguments.size()];
    arguments.push_back(slotView(b, type, scratch, position, tokenStride, count));
  };
  for (size_t i = 0; i < plan.rowValues.size(); ++i)
    slot(layout.rowsBegin + i * layout.rowSlotStride, layout.rowStride);
  for (size_t i = 0; i < plan.columnValues.size(); ++i)
    slot(layout.columnsBegin + i * layout.columnSlotStride, layout.columns);
  for (size_t i = 0; i < plan.scalarValues.size(); ++i)
    slot(layout.scalarsBegin + i, layout.scalarSlots);
  for (Value buffer : keptBuffers)
    arguments.push_back(tokensOf(b, buffer, b.index(0), count));
  llvm::append_range(arguments, sideBuffers);
  llvm::append_range(arguments,
                     Values{count, b.add(position, begin), head, heads, kernel.getArguments().back()});
  callDirectly(b, packer, std::move(arguments));
}

void PlannedRule::finish(VectorBuilder &b, const SweepLayout &layout, Value scratch, Value begin,
                         Value count) {
  if (!plan.hasEpilogue)
    return;
  Values arguments = tokens(b, Role::Input, begin, count);
  for (size_t i = 0; i < plan.staged.size(); ++i) {
    int64_t slot = plan.columnValues.size() + i;
    arguments.push_back(slotView(b, epilogue.getArgumentTypes()[arguments.size()], scratch,
                                 layout.columnsBegin + slot * layout.columnSlotStride, layout.columns,
                                 count));
  }
  for (Value buffer : keptBuffers)
    arguments.push_back(tokensOf(b, buffer, b.index(0), count));
  llvm::append_range(arguments, views(Role::Param));
  llvm::append_range(arguments, tokens(b, Role::Output, begin, count));
  llvm::append_range(arguments,
                     Values{count, b.add(position, begin), head, heads, kernel.getArguments().back()});
  callDirectly(b, epilogue, std::move(arguments));
}

static Value isGiven(VectorBuilder &b, Value view) {
  Value address = memref::ExtractAlignedPointerAsIndexOp::create(b, view);
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, address, b.index(0));
}

void PlannedRule::callWhole(VectorBuilder &b, func::FuncOp function) {
  SmallVector<Value> arguments(kernel.getArguments());
  auto call = [&] { return func::CallOp::create(b, function, arguments), Values(); };
  if (!part) {
    call();
    return;
  }
  arguments.erase(arguments.end() - 3, arguments.end() - 1);
  Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, part, b.index(0));
  b.branch(isFirst, TypeRange(), call, [] { return Values(); });
}

void PlannedRule::emit(VectorBuilder &b) {
  SweepLayout layout(shape, options);
  blocks = {b.index(0), b.index(layout.blocks)};
  if (part) {
    auto begin = [&](Value part) -> Value {
      return arith::DivUIOp::create(b, b.scale(part, layout.blocks), parts);
    };
    blocks = {begin(part), begin(b.add(part, 1))};
  }
  auto flat = MemRefType::get(layout.size, b.getF32Type());
  Value scratch = memref::AllocOp::create(b, flat);
  scratch = memref::CastOp::create(b, MemRefType::get(ShapedType::kDynamic, b.getF32Type()), scratch);
  for (auto [index, view] : llvm::enumerate(views(Role::InitialState)))
    if (index != plan.state) {
      auto type = cast<MemRefType>(view.getType());
      Value buffer = memref::AllocOp::create(b, MemRefType::get(type.getShape(), b.getF32Type()));
      sideBuffers.push_back(memref::CastOp::create(b, type, buffer));
    }
  for (size_t i = 0; i < plan.kept.size(); ++i) {
    auto type =
        cast<MemRefType>(epilogue.getArgumentTypes()[views(Role::Input).size() + plan.staged.size() + i]);
    SmallVector<int64_t> sizes(type.getShape());
    sizes[0] = options.chunk;
    Value buffer = memref::AllocOp::create(b, MemRefType::get(sizes, b.getF32Type()));
    keptBuffers.push_back(memref::CastOp::create(b, type, buffer));
  }
  if (layout.rowStride != shape.rows || layout.columns != shape.columns)
    b.loop(b.index(layout.rowsBegin), b.index(layout.scalarsBegin), b.lanes,
           [&](Value i) { b.store(b.splat(0.0), scratch, i); });

  Value initial = views(Role::InitialState)[plan.state], final = views(Role::FinalState)[plan.state];
  auto whole = [&] { return sweep(b, scratch, initial, final), Values(); };
  if (isGather() || !hasSweepStep(shape, options, plan.transposed)) {
    whole();
  } else {
    auto step = [&] {
      prefetchSweepStep(b, shape, initial);
      pack(b, layout, scratch, b.index(0), b.index(1));
      emitSweepStep(b, *this, options, scratch, initial, final, blocks);
      finish(b, layout, scratch, b.index(0), b.index(1));
      return Values();
    };
    Value alone = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, tokenCount, b.index(1));
    for (Value view : {initial, final}) {
      alone = arith::AndIOp::create(b, alone, isGiven(b, view));
      alone = arith::AndIOp::create(b, alone, b.isDense(view));
    }
    b.branch(alone, TypeRange(), step, whole);
  }
  Values finals(views(Role::FinalState));
  finals.erase(finals.begin() + plan.state);
  for (size_t side = 0; side < finals.size(); ++side)
    b.branch(
        isGiven(b, finals[side]), TypeRange(),
        [&] { return memref::CopyOp::create(b, sideBuffers[side], finals[side]), Values(); },
        [] { return Values(); });
}

// From the initial to the final state of the matrix, by way of the sweep's own layout.
void PlannedRule::sweep(VectorBuilder &b, Value scratch, Value initial, Value final) {
  SweepState state(b, shape, options, scratch, plan.transposed, blocks);
  auto fill = [&] { return state.fill(plan.initial), Values(); };
  if (isGather())
    fill();
  else
    b.branch(isGiven(b, initial), TypeRange(), [&] { return state.load(initial), Values(); }, fill);
  streams = passesCaches(b);
  Value scale = emitSweep(b, *this, options, tokenCount, scratch, blocks);
  if (streams) // other threads see these stores in no order else
    b.branch(
        streams, TypeRange(),
        [&] {
          LLVM::CallIntrinsicOp::create(b, b.getStringAttr("llvm.x86.sse.sfence"), ValueRange());
          return Values();
        },
        [] { return Values(); });
  b.branch(
      isGiven(b, final), TypeRange(), [&] { return state.store(final, scale), Values(); },
      [] { return Values(); });
}
