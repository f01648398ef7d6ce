// The function of a kernel, its views, and how values come in and out of it.
#include "lib/Cpu/KernelBuilder.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

//===----------------------------------------------------------------------===//
// The function and its views
//===----------------------------------------------------------------------===//

LogicalResult KernelBuilder::checkRule() {
  SmallVector<StringAttr> symbols = rule.symbols();
  if (!symbols.empty())
    return rule.emitError() << "dimension '" << symbols.front().getValue() << "' is not bound";
  return success();
}

// Whether the caller's tensor, of so many dimensions, has micro-steps last: those of a single entry may have
// no other.
static bool haveColumns(const KernelTensor &tensor, int64_t rank) {
  auto steps = dyn_cast<StepsType>(tensor.type);
  return steps && steps.getColumns() && rank == 3;
}

FailureOr<MemRefType> KernelBuilder::viewType(const KernelTensor &tensor, TensorFormat format) {
  SmallVector<int64_t> shape;
  Type type = tensor.type;
  if (tensor.role == Role::Input || tensor.role == Role::Output)
    shape.push_back(ShapedType::kDynamic);
  int rank = format.rank;
  if (auto steps = dyn_cast<StepsType>(type)) {
    shape.push_back(cast<IntegerAttr>(steps.getCount()).getInt());
    type = steps.getStep();
    --rank;
  }
  auto mat = cast<MatType>(type);
  int least = naturalAxes(mat).size();
  if (format.rank < 0)
    rank = least;
  if (rank < least || rank > 2)
    return rule.emitError() << "'" << tensor.name << "' needs " << least << " dimensions, got: " << rank;
  if (rank == 2 || (rank == 1 && mat.numRows() > 1))
    shape.push_back(mat.numRows());
  if (rank == 2 || (rank == 1 && mat.numRows() == 1))
    shape.push_back(mat.numCols());
  bool isState = tensor.role == Role::InitialState || tensor.role == Role::FinalState;
  if (isState && format.dtype != DType::F32)
    return rule.emitError() << "state '" << tensor.name << "' must be f32";
  // Columns of a matrix lie side by side.
  if (haveColumns(tensor, shape.size()))
    std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  SmallVector<int64_t> strides(shape.size(), ShapedType::kDynamic);
  if (isDirect && shape.size() > 1 && ShapedType::isDynamic(shape.front()))
    strides.back() = 1;
  return MemRefType::get(shape, floatType(b.getContext(), format.dtype),
                         StridedLayoutAttr::get(b.getContext(), ShapedType::kDynamic, strides));
}

void KernelBuilder::createFunction(StringRef symbol, ArrayRef<MemRefType> types) {
  SmallVector<Type> arguments(types.begin(), types.end());
  arguments.append(4, b.getIndexType());
  arguments.push_back(MemRefType::get(ShapedType::kDynamic, b.getI8Type()));
  function = func::FuncOp::create(b, loc, symbol, b.getFunctionType(arguments, {}));
  Block *entry = function.addEntryBlock();
  b.setInsertionPointToStart(entry);
  auto span = entry->getArguments().drop_front(types.size());
  tokens = span[0], position = span[1], head = span[2], heads = span[3];
  for (auto [view, argument] : llvm::zip(views, entry->getArguments())) {
    view.memref = argument;
    view.hasTokens = view.tensor.role == Role::Input || view.tensor.role == Role::Output;
    if (haveColumns(view.tensor, cast<MemRefType>(argument.getType()).getRank())) {
      SmallVector<unsigned> order{0, 2, 1};
      auto map = AffineMap::getPermutationMap(order, b.getContext());
      view.memref = memref::TransposeOp::create(b, loc, argument, AffineMapAttr::get(map));
    }
    ArrayRef<int64_t> shape = cast<MemRefType>(view.memref.getType()).getShape().drop_front(view.hasTokens);
    for (auto [i, length] : llvm::enumerate(shape))
      if (length > 1 || (i == 0 && isa<StepsType>(view.tensor.type)))
        view.kept.push_back(i);
    if (view.kept.empty())
      continue;
    auto metadata = memref::ExtractStridedMetadataOp::create(b, loc, view.memref);
    Value stride = metadata.getStrides()[view.kept.back() + view.hasTokens];
    Value one = arith::ConstantIndexOp::create(b, loc, 1);
    view.isDense = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, stride, one);
  }
}

SmallVector<View *> KernelBuilder::viewsOf(Role role) {
  SmallVector<View *> result;
  for (View &view : views)
    if (view.tensor.role == role)
      result.push_back(&view);
  return result;
}

// True when the caller gave this tensor.
Value KernelBuilder::isGiven(View &view) {
  Value address = memref::ExtractAlignedPointerAsIndexOp::create(b, loc, view.memref);
  Value zero = arith::ConstantIndexOp::create(b, loc, 0);
  return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, address, zero);
}

//===----------------------------------------------------------------------===//
// Loads and stores
//===----------------------------------------------------------------------===//

// The view at a token, with the kept dimensions only; at several tokens, with the tokens first.
Value KernelBuilder::part(View &view, Value token, int64_t count) {
  auto type = cast<MemRefType>(view.memref.getType());
  SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)),
      strides(type.getRank(), b.getIndexAttr(1)), lengths;
  for (int64_t length : type.getShape())
    lengths.push_back(b.getIndexAttr(length));
  if (view.hasTokens) {
    offsets[0] = token;
    lengths[0] = b.getIndexAttr(count);
  }
  SmallVector<int64_t> shape;
  if (count > 1)
    shape.push_back(count);
  for (int64_t i : view.kept)
    shape.push_back(type.getDimSize(i + view.hasTokens));
  auto result = memref::SubViewOp::inferRankReducedResultType(shape, type, offsets, lengths, strides);
  return memref::SubViewOp::create(b, loc, result, view.memref, offsets, lengths, strides);
}

static Value convert(OpBuilder &b, Location loc, Value value, Type type) {
  if (value.getType() == type)
    return value;
  if (type.isF32())
    return arith::ExtFOp::create(b, loc, type, value);
  return arith::TruncFOp::create(b, loc, type, value);
}

// Copies between a part of a view and a buffer of f32. Whether the view's entries are neighbours is known
// only at run time; if they are, vectors can be used.
void KernelBuilder::copy(View &view, Value from, Value to) {
  auto emit = [&](bool isDense) {
    auto type = cast<MemRefType>(to.getType());
    AffineMap map = b.getMultiDimIdentityMap(type.getRank());
    SmallVector<utils::IteratorType> iterators(type.getRank(), utils::IteratorType::parallel);
    auto op = linalg::GenericOp::create(
        b, loc, from, to, {map, map}, iterators, [&](OpBuilder &nested, Location, ValueRange entries) {
          Value entry = convert(nested, loc, entries[0], type.getElementType());
          linalg::YieldOp::create(nested, loc, entry);
        });
    if (isDense)
      op->setAttr(denseAttr, b.getUnitAttr());
  };
  if (!view.isDense) // one number for each token
    return emit(false);
  auto choice = scf::IfOp::create(b, loc, view.isDense, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  emit(/*isDense=*/true);
  b.setInsertionPointToStart(choice.elseBlock());
  emit(/*isDense=*/false);
}

static Value loadScalar(OpBuilder &b, Location loc, Value part) {
  return convert(b, loc, memref::LoadOp::create(b, loc, part), b.getF32Type());
}

static bool isKnownDense(MemRefType type) {
  auto layout = dyn_cast<StridedLayoutAttr>(type.getLayout());
  return layout && layout.getStrides().back() == 1;
}

// The tensor of f32 in memory that stays as it is.
Value KernelBuilder::loadDirectly(Value source) {
  auto type = cast<MemRefType>(source.getType());
  auto stored = RankedTensorType::get(type.getShape(), type.getElementType());
  Value tensor = bufferization::ToTensorOp::create(b, loc, stored, source, /*restrict=*/true);
  if (type.getElementType().isF32())
    return tensor;
  Value empty = tensor::EmptyOp::create(b, loc, type.getShape(), b.getF32Type());
  AffineMap map = b.getMultiDimIdentityMap(type.getRank());
  SmallVector<utils::IteratorType> iterators(type.getRank(), utils::IteratorType::parallel);
  return linalg::GenericOp::create(b, loc, empty.getType(), tensor, empty, {map, map}, iterators,
                                   [&](OpBuilder &nested, Location, ValueRange entries) {
                                     linalg::YieldOp::create(
                                         nested, loc, convert(nested, loc, entries[0], nested.getF32Type()));
                                   })
      .getResult(0);
}

// The value of a view at a token (none for params and states): f32 or a tensor of f32 in memory of its own.
Value KernelBuilder::load(View &view, Value token, int64_t count) {
  Value source = part(view, token, count);
  if (view.kept.empty() && count == 1)
    return loadScalar(b, loc, source);
  if (isDirect && view.hasTokens && isKnownDense(cast<MemRefType>(source.getType())))
    return loadDirectly(source);
  ArrayRef<int64_t> shape = cast<MemRefType>(source.getType()).getShape();
  Value buffer = memref::AllocOp::create(b, loc, MemRefType::get(shape, b.getF32Type()));
  copy(view, source, buffer);
  auto type = RankedTensorType::get(shape, b.getF32Type());
  return bufferization::ToTensorOp::create(b, loc, type, buffer, /*restrict=*/true);
}

// One of an output's columns or rows.
void KernelBuilder::storePart(View &view, Value token, Value value, int64_t count,
                              const chunk::OutputPart &own) {
  Value whole = part(view, token, count);
  auto type = cast<MemRefType>(whole.getType());
  int64_t dim = own.isRow ? count > 1 : type.getRank() - 1;
  SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)),
      strides(type.getRank(), b.getIndexAttr(1)), lengths;
  SmallVector<int64_t> shape;
  for (auto [i, length] : llvm::enumerate(type.getShape())) {
    lengths.push_back(b.getIndexAttr(int64_t(i) == dim ? 1 : length));
    if (int64_t(i) != dim)
      shape.push_back(length);
  }
  offsets[dim] = b.getIndexAttr(own.index);
  auto result = memref::SubViewOp::inferRankReducedResultType(shape, type, offsets, lengths, strides);
  Value target = memref::SubViewOp::create(b, loc, result, whole, offsets, lengths, strides);
  View strided = view;
  if (!own.isRow)
    strided.isDense = {};
  storeTo(strided, target, value);
}

void KernelBuilder::store(View &view, Value token, Value value, int64_t count) {
  storeTo(view, part(view, token, count), value);
}

void KernelBuilder::storeTo(View &view, Value target, Value value) {
  auto type = cast<MemRefType>(target.getType());
  if (type.getRank() == 0) {
    memref::StoreOp::create(b, loc, convert(b, loc, value, type.getElementType()), target);
    return;
  }
  if (isDirect && view.hasTokens && type.getElementType().isF32() && isKnownDense(type)) {
    bufferization::MaterializeInDestinationOp::create(b, loc, TypeRange(), value, target, /*restrict=*/true,
                                                      /*writable=*/true);
    return;
  }
  auto bufferType = MemRefType::get(type.getShape(), b.getF32Type());
  Value buffer = bufferization::ToBufferOp::create(b, loc, bufferType, value, /*read_only=*/true);
  copy(view, buffer, target);
}

//===----------------------------------------------------------------------===//
// Values of the rule
//===----------------------------------------------------------------------===//

void KernelBuilder::enter(OpLowering &lowering, BlockArgument argument, Value value) {
  if (isa<StepsType>(argument.getType())) {
    lowering.steps[argument] = value;
    return;
  }
  MatType type = matType(argument);
  lowering.matrices[argument] = {value, naturalAxes(type), {type.numRows(), type.numCols()}};
}

void KernelBuilder::enterIndex(OpLowering &lowering, BlockArgument argument, Value index) {
  lowering.integers[argument] = index;
  lowering.matrices[argument] = {toScalar(b, loc, index), {}, {1, 1}};
}

// The state before the first token, the caller's or what the rule says: an f32, or a buffer that loops may
// overwrite.
FailureOr<Value> KernelBuilder::initialState(unsigned state, const OpLowering &outer) {
  View &view = *viewsOf(Role::InitialState)[state];
  BlockArgument argument = rule.argumentsOf(ArgKind::State)[state];
  Type type = storageType(b.getContext(), naturalAxes(matType(argument)),
                          {matType(argument).numRows(), matType(argument).numCols()});
  bool isScalar = view.kept.empty();
  Value buffer;
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    buffer = memref::AllocOp::create(b, loc, MemRefType::get(tensor.getShape(), b.getF32Type()));
  auto choice = scf::IfOp::create(b, loc, isScalar ? TypeRange(type) : TypeRange(), isGiven(view),
                                  /*addThenBlock=*/true, /*addElseBlock=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  if (isScalar)
    scf::YieldOp::create(b, loc, loadScalar(b, loc, part(view, {})));
  else
    copy(view, part(view, {}), buffer);
  if (!isScalar)
    scf::YieldOp::create(b, loc);

  b.setInsertionPointToStart(choice.elseBlock());
  OpLowering lowering(b, vectorWidth);
  unsigned next = 0;
  for (BlockArgument known : rule.getBody().getArguments()) {
    ArgKind kind = rule.getArg(known).getKind();
    if (kind != ArgKind::Param && kind != ArgKind::Head && kind != ArgKind::Heads)
      continue;
    BlockArgument inner = rule.getInit().getArgument(next++);
    lowering.matrices[inner] = outer.matrices.lookup(known);
    if (Value integer = outer.integers.lookup(known))
      lowering.integers[inner] = integer;
  }
  if (failed(lowering.lower(rule.getInit().front())))
    return failure();
  Matrix value = lowering.matrices.lookup(rule.getInitYield().getValues()[state]);
  Value stored = MatrixBuilder(b, loc).stored(value, naturalAxes(matType(argument)));
  if (isScalar) {
    scf::YieldOp::create(b, loc, stored);
    return choice.getResult(0);
  }
  bufferization::MaterializeInDestinationOp::create(b, loc, TypeRange(), stored, buffer, /*restrict=*/false,
                                                    /*writable=*/true);
  scf::YieldOp::create(b, loc);
  return buffer;
}
