// The loop over the whole chunks of a sequence.
#include "lib/Cpu/Chunk.h"
#include "lib/Cpu/ChunkLdl.h"
#include "lib/Cpu/KernelBuilder.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// How a state is stored in the loop: transposed, where the program only ever uses it so.
static SmallVector<unsigned, 2> carriedAxes(BlockArgument state) {
  SmallVector<unsigned, 2> axes = naturalAxes(matType(state));
  if (axes.size() == 2 && llvm::all_of(state.getUsers(), llvm::IsaPred<TransposeOp>))
    std::swap(axes[0], axes[1]);
  return axes;
}

// The rows of an input's view as the program takes them.
static void enterRows(ChunkLowering &lowering, BlockArgument argument, Value rows) {
  auto tokens = dyn_cast<chunk::TokensType>(argument.getType());
  if (tokens && isa<StepsType>(tokens.getValue())) {
    lowering.ops.steps[argument] = rows;
    return;
  }
  Matrix matrix{rows, {}, {}};
  if (tokens) {
    auto type = cast<MatType>(tokens.getValue());
    matrix.axes.push_back(tokenAxis);
    llvm::append_range(matrix.axes, naturalAxes(type));
    matrix.sizes = {type.numRows(), type.numCols()};
  } else {
    matrix.axes = naturalAxes(matType(argument));
    matrix.sizes = sizesOf(argument);
  }
  lowering.ops.matrices[argument] = matrix;
}

// Asks for the rows of a view from a token on, which may lie behind its end. The rows of a head lie far apart
// when there are many heads: no prefetcher of the hardware finds them.
static void fetchAhead(OpBuilder &b, Location loc, View &view, Value begin, int64_t count, bool isWrite) {
  auto type = cast<MemRefType>(view.memref.getType());
  if (type.getRank() != 2)
    return;
  auto index = [&](int64_t value) -> Value { return arith::ConstantIndexOp::create(b, loc, value); };
  Value zero = index(0), one = index(1), line = index(64 * 8 / type.getElementTypeBitWidth());
  auto rows = scf::ForOp::create(b, loc, zero, index(count), one);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(rows.getBody());
  Value token = arith::AddIOp::create(b, loc, begin, rows.getInductionVar());
  auto lines = scf::ForOp::create(b, loc, zero, index(type.getDimSize(1)), line);
  b.setInsertionPointToStart(lines.getBody());
  memref::PrefetchOp::create(b, loc, view.memref, ValueRange{token, lines.getInductionVar()}, isWrite,
                             /*localityHint=*/2, /*isDataCache=*/true);
}

LogicalResult KernelBuilder::chunkBody(const OpLowering &outer, scf::ForOp loop, ArrayRef<Matrix> carried) {
  ChunkLowering lowering(b, vectorWidth, length);
  Value begin = loop.getInductionVar();
  for (ArgKind kind : {ArgKind::Param, ArgKind::Head, ArgKind::Heads})
    for (auto [argument, known] : llvm::zip(program.argumentsOf(kind), rule.argumentsOf(kind))) {
      lowering.ops.matrices[argument] = outer.matrices.lookup(known);
      if (Value integer = outer.integers.lookup(known))
        lowering.ops.integers[argument] = integer;
    }
  Value next = arith::AddIOp::create(b, loc, begin, arith::ConstantIndexOp::create(b, loc, length));
  for (auto [view, argument] : llvm::zip(viewsOf(Role::Input), program.argumentsOf(ArgKind::Input)))
    if (!argument.use_empty()) {
      enterRows(lowering, argument, load(*view, begin, length));
      fetchAhead(b, loc, *view, next, length, /*isWrite=*/false);
    }
  for (View *view : viewsOf(Role::Output))
    fetchAhead(b, loc, *view, begin, length, /*isWrite=*/true);
  for (auto [argument, state] : llvm::zip(program.argumentsOf(ArgKind::State), carried))
    lowering.ops.matrices[argument] = state;
  MatrixBuilder m(b, loc);
  for (BlockArgument argument : program.argumentsOf(ArgKind::Position)) {
    Value first = arith::AddIOp::create(b, loc, position, begin);
    lowering.positions[argument] = first;
    lowering.ops.matrices[argument] = m.map({length, 1}, ArrayRef<unsigned>{0}, {}, [&](ValueRange) {
      return toScalar(b, loc, arith::AddIOp::create(b, loc, first, linalg::IndexOp::create(b, loc, 0)));
    });
  }
  if (failed(lowering.lower(program.getBody().front())))
    return failure();

  auto yielded = program.getBodyYield().getValues();
  SmallVector<View *> targets = viewsOf(Role::Output);
  for (auto [part, output] : llvm::zip(chunk::outputParts(program), yielded.drop_front(carried.size()))) {
    Value rows = m.stored(lowering.ops.matrices.lookup(output), naturalAxes(matType(output)));
    if (part.count > 1)
      storePart(*targets[part.output], begin, rows, length, part);
    else
      store(*targets[part.output], begin, rows, length);
  }
  SmallVector<Matrix> last;
  SmallVector<SmallVector<unsigned, 2>> axes;
  for (auto [value, state] : llvm::zip(yielded, carried)) {
    last.push_back(lowering.ops.matrices.lookup(value));
    axes.push_back(state.axes);
  }
  if (!carried.empty()) // without states the builder has ended the loop's body
    scf::YieldOp::create(b, loc, storeCarried(m, last, loop.getRegionIterArgs(), axes));
  return success();
}

// A state that lies along some axes, along others; memory of its own where these differ.
static Value arranged(OpBuilder &b, Location loc, unsigned vectorWidth, const Matrix &state,
                      ArrayRef<unsigned> axes) {
  if (ArrayRef<unsigned>(state.axes) == axes)
    return state.value;
  ChunkBuilder v(loc, b, vectorWidth);
  return v.tensorOf(v.transposed(v.memoryOf(state.value)), /*writable=*/true);
}

// A state with entries of another type, in memory of its own.
static Value converted(OpBuilder &b, Location loc, unsigned vectorWidth, Value state, Type entry) {
  ChunkBuilder v(loc, b, vectorWidth);
  return v.tensorOf(emitConverted(v, v.memoryOf(state), entry), /*writable=*/true);
}

FailureOr<Value> KernelBuilder::chunkLoop(const OpLowering &outer, Value first, SmallVector<Value> &states) {
  Value step = arith::ConstantIndexOp::create(b, loc, length);
  Value rest = arith::RemUIOp::create(b, loc, b.createOrFold<arith::SubIOp>(loc, tokens, first), step);
  Value whole = arith::SubIOp::create(b, loc, tokens, rest);
  if (program.getBlock()) { // whole blocks begin where the position is a multiple of their size
    Value phase = arith::RemUIOp::create(b, loc, position, step);
    Value zero = arith::ConstantIndexOp::create(b, loc, 0);
    Value isStart = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, phase, zero);
    whole = arith::SelectOp::create(b, loc, isStart, whole, first);
  }
  Value any = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ugt, whole, first);
  SmallVector<Type> scalars;
  for (Value state : states)
    if (isa<FloatType>(state.getType()))
      scalars.push_back(state.getType());
  auto choice = scf::IfOp::create(b, loc, scalars, any, /*addThenBlock=*/true, /*addElseBlock=*/true);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    SmallVector<Matrix> carried;
    SmallVector<Value> inits;
    SmallVector<BlockArgument> arguments = program.argumentsOf(ArgKind::State);
    for (auto [state, argument] : llvm::zip(states, arguments)) {
      Matrix start{state, naturalAxes(matType(argument)), sizesOf(argument)};
      if (auto type = dyn_cast<MemRefType>(state.getType()))
        start.value = bufferization::ToTensorOp::create(
            b, loc, RankedTensorType::get(type.getShape(), type.getElementType()), state, /*restrict=*/true,
            /*writable=*/true);
      SmallVector<unsigned, 2> axes = carriedAxes(argument);
      if (isWide(argument))
        start.value = converted(b, loc, vectorWidth, start.value, b.getF64Type());
      inits.push_back(arranged(b, loc, vectorWidth, start, axes));
      carried.push_back({{}, axes, start.sizes});
    }
    auto loop = scf::ForOp::create(b, loc, first, whole, step, inits);
    for (auto [state, argument] : llvm::zip(carried, loop.getRegionIterArgs()))
      state.value = argument;
    b.setInsertionPointToStart(loop.getBody());
    if (failed(chunkBody(outer, loop, carried)))
      return failure();
    b.setInsertionPointAfter(loop);
    SmallVector<Value> last;
    for (auto [state, result, matrix, argument] : llvm::zip(states, loop.getResults(), carried, arguments)) {
      matrix.value = isWide(argument) ? converted(b, loc, vectorWidth, result, b.getF32Type()) : result;
      Value value = arranged(b, loc, vectorWidth, matrix, naturalAxes(matType(argument)));
      if (isa<FloatType>(state.getType()))
        last.push_back(value);
      else
        bufferization::MaterializeInDestinationOp::create(b, loc, TypeRange(), value, state,
                                                          /*restrict=*/true,
                                                          /*writable=*/true);
    }
    scf::YieldOp::create(b, loc, last);
    b.setInsertionPointToStart(choice.elseBlock());
    SmallVector<Value> unchanged;
    for (Value state : states)
      if (isa<FloatType>(state.getType()))
        unchanged.push_back(state);
    scf::YieldOp::create(b, loc, unchanged);
  }
  unsigned next = 0;
  for (Value &state : states)
    if (isa<FloatType>(state.getType()))
      state = choice.getResult(next++);
  return whole;
}
