#include "lib/Cuda/Tensors.h"
#include "lib/Algebra/JoinedKeys.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

SmallVector<TensorArgument> cuda::listTensors(RuleOp symbolic, RuleOp bound, const IndexClasses &classes,
                                              unsigned shardedClass, const KernelOptions &options) {
  SmallVector<TensorArgument> tensors;
  FloatType f32 = Float32Type::get(bound.getContext());
  auto add = [&](Value unbound, Value value, BlockArgument argument, StringRef name, bool hasToken,
                 bool isState) {
    TensorArgument tensor;
    tensor.argument = argument;
    tensor.type = value.getType();
    tensor.hasToken = hasToken;
    std::optional<JoinedNames> joined = joinedNames(bound, name);
    auto element = options.elements.find(joined ? joined->front() : name);
    tensor.isTemporary = !isState && element == options.elements.end();
    tensor.element = isState || element == options.elements.end() ? f32 : element->second;
    MatType type = entryType(unbound.getType());
    tensor.own[0] = isa<StepsType>(unbound.getType());
    tensor.own[1] = !isOne(type.getRows());
    tensor.own[2] = !isOne(type.getCols());
    // A matrix of few columns or rows has become micro-steps.
    if (auto steps = dyn_cast<StepsType>(value.getType()); steps && !tensor.own[0]) {
      tensor.stepsLast = steps.getColumns();
      bool hasEntries = tensor.stepsLast ? tensor.own[1] : tensor.own[2];
      tensor.own[0] = true, tensor.own[1] = hasEntries, tensor.own[2] = false;
    }
    for (int dim : {0, 1}) {
      unsigned index = classes.classOf(value, dim);
      if (shardedClass && index == shardedClass)
        tensor.shardedDim = dim;
      MatType part = tensor.entry();
      if (int64_t whole = classes.sizeOf(index); whole % (dim ? part.numCols() : part.numRows()))
        tensor.inMemory[dim] = whole;
    }
    tensors.push_back(tensor);
  };
  auto addArguments = [&](ArgKind kind, bool hasToken, bool withArgument) {
    for (BlockArgument argument : bound.argumentsOf(kind)) {
      StringRef name = bound.getArg(argument).getName();
      BlockArgument unbound = symbolic.findArgument(kind, name); // temporaries are the stage's own
      add(unbound ? unbound : argument, argument, withArgument ? argument : BlockArgument(), name, hasToken,
          kind == ArgKind::State);
    }
  };
  addArguments(ArgKind::Input, true, true);
  addArguments(ArgKind::Param, false, true);
  addArguments(ArgKind::State, false, true);
  size_t initial = tensors.size() - bound.argumentsOf(ArgKind::State).size();
  addJoinedInputs(tensors, bound);
  SmallVector<SmallVector<TensorArgument::Part, 2>> ofFinal = addJoinedStates(tensors, symbolic, bound);
  for (auto [name, value] : llvm::zip(bound.getOutputs().getAsRange<StringAttr>(), bound.yieldedOutputs())) {
    auto known = llvm::find(symbolic.getOutputs(), name);
    Value unbound = known == symbolic.getOutputs().end()
                        ? value
                        : symbolic.yieldedOutputs()[known - symbolic.getOutputs().begin()];
    add(unbound, value, {}, name, true, false);
  }
  addArguments(ArgKind::State, false, false);
  for (auto [i, parts] : llvm::enumerate(ofFinal)) {
    unsigned number = tensors.size() - ofFinal.size() + i;
    if (!parts.empty())
      parts.front().tensor = number;
    tensors[number].parts = parts;
    tensors[number].hasKeysInRows = tensors[initial + i].hasKeysInRows;
  }
  return tensors;
}

Value TensorAccess::word(int64_t index) {
  Value at =
      LLVM::GEPOp::create(b, call.getType(), b.getI64Type(), call, ArrayRef<LLVM::GEPArg>{int32_t(index)});
  return LLVM::LoadOp::create(b, b.getI64Type(), at);
}

Value TensorAccess::pointer(int64_t index) {
  auto global = LLVM::LLVMPointerType::get(b.getContext(), 1);
  return LLVM::IntToPtrOp::create(b, global, word(index));
}

Value TensorAccess::index(Field field, Value at, Value otherwise) {
  // {data, stride, bits}, bits 0 where it was not given.
  Value bits = word(field + 2), data = pointer(field);
  Value position = arith::MulIOp::create(b, at, word(field + 1));
  auto is = [&](int64_t size) {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, bits, threads.constant(size, 64)).getResult();
  };
  auto read = [&](Type type) {
    Value address = LLVM::GEPOp::create(b, data.getType(), type, data, position);
    return LLVM::LoadOp::create(b, type, address).getResult();
  };
  auto wide = scf::IfOp::create(b, b.getI64Type(), is(64), true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(wide.thenBlock());
  scf::YieldOp::create(b, read(b.getI64Type()));
  b.setInsertionPointToStart(wide.elseBlock());
  auto narrow = scf::IfOp::create(b, b.getI64Type(), is(32), true);
  scf::YieldOp::create(b, narrow.getResult(0));
  b.setInsertionPointToStart(narrow.thenBlock());
  scf::YieldOp::create(b, arith::ExtSIOp::create(b, b.getI64Type(), read(b.getI32Type())).getResult());
  b.setInsertionPointToStart(narrow.elseBlock());
  scf::YieldOp::create(b, otherwise);
  return wide.getResult(0);
}

static int64_t base(unsigned tensor) {
  return TensorAccess::TensorsBegin + tensor * TensorAccess::TensorWords;
}

void TensorAccess::locate(Value sequence, Value slot, Value firstToken, Value head, Value shard,
                          int64_t slab) {
  firstInShard = arith::MulIOp::create(b, shard, threads.constant(slab, 64));
  auto isParam = [this](unsigned i) {
    BlockArgument argument = tensors[i].argument;
    return argument && !tensors[i].hasToken &&
           cast<RuleOp>(argument.getOwner()->getParentOp()).getArg(argument).getKind() == ArgKind::Param;
  };
  find = [=](unsigned i) -> Value {
    auto times = [&](Value x, Value y) { return arith::MulIOp::create(b, x, y).getResult(); };
    auto plus = [&](Value x, Value y) { return arith::AddIOp::create(b, x, y).getResult(); };
    const TensorArgument &tensor = tensors[i];
    int64_t at = base(i);
    Value group = arith::DivUIOp::create(b, arith::TruncIOp::create(b, b.getI32Type(), head),
                                         arith::TruncIOp::create(b, b.getI32Type(), word(at + Group)));
    Value offset = times(arith::ExtUIOp::create(b, b.getI64Type(), group), word(at + Head));
    if (tensor.hasToken) {
      offset = plus(offset, times(sequence, word(at + Sequence)));
      offset = plus(offset, times(firstToken, word(at + Token)));
    } else if (!isParam(i)) {
      offset = plus(offset, times(slot, word(at + Sequence)));
      offset = plus(offset, times(sequence, word(at + Token)));
    }
    if (tensor.shardedDim >= 0) {
      // The stride of the dimension: own dimensions that the tensor lacks take no place.
      int place = (tensor.own[0] && !tensor.stepsLast) + (tensor.shardedDim == 1 && tensor.own[1]);
      offset = plus(offset, times(firstInShard, word(at + Own + place)));
    }
    Value data = pointer(at + Data);
    return LLVM::GEPOp::create(b, data.getType(), tensor.element, data, offset);
  };
  for (unsigned i = 0; i < tensors.size(); ++i) {
    bool isState = !tensors[i].hasToken && !isParam(i);
    first.push_back(isState && statesApart ? Value() : find(i));
  }
}

Value TensorAccess::firstOf(unsigned tensor) { return first[tensor] ? first[tensor] : find(tensor); }

Value TensorAccess::isGiven(unsigned tensor) {
  return tensors[tensor].parts.empty() ? isGivenAlone(tensor) : isAnyGiven(tensors[tensor]);
}

Value TensorAccess::isGivenAlone(unsigned tensor) {
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, word(base(tensor) + Data),
                               threads.constant(0, 64));
}

int64_t TensorAccess::packetWidth(const TensorArgument &tensor, const Layout &layout) const {
  bool alongCols = tensor.own[2];
  int64_t inner = alongCols ? tensor.entry().numCols() : tensor.entry().numRows();
  int axis = alongCols ? layout.cols : layout.rows;
  if (!packed || axis < 0 || tensor.stepsLast || inner % threads.grid.packet(inner, axis))
    return 1;
  return threads.grid.packet(inner, axis);
}

void TensorAccess::forPackets(unsigned index, const Tile &tile, Value token, Value step, bool clamp,
                              llvm::function_ref<void(int64_t, int64_t, int64_t, Value)> body) {
  const TensorArgument &tensor = tensors[index];
  MatType type = tensor.entry();
  Layout layout = layoutOf(type, tile.axis);
  int64_t at = base(index), rows = type.numRows(), cols = type.numCols();
  auto offsetBy = [&](Value offset, Value count, Value stride) -> Value {
    Value more = arith::MulIOp::create(b, count, stride);
    return offset ? arith::AddIOp::create(b, offset, more).getResult() : more;
  };
  Value start;
  if (tensor.hasToken)
    start = offsetBy(start, token, word(at + Token));
  int place = 0;
  if (tensor.own[0] && !tensor.stepsLast)
    start = offsetBy(start, step, word(at + Own + place++));
  // Strides of rows and columns; the innermost one is 1 where the caller promised so.
  int last = tensor.own[0] + tensor.own[1] + tensor.own[2] - 1;
  auto strideOf = [&](bool present) -> Value {
    if (!present)
      return {};
    Value stride = packed && place == last ? threads.constant(1, 64) : word(at + Own + place);
    ++place;
    return stride;
  };
  Value rowStride = strideOf(tensor.own[1]), colStride = strideOf(tensor.own[2]);
  if (tensor.own[0] && tensor.stepsLast)
    start = offsetBy(start, step, strideOf(true));
  bool alongCols = tensor.own[2];
  int64_t width = packetWidth(tensor, layout);
  auto position = [&](int axis, int64_t n, int64_t owned, Value stride, Value offset) -> Value {
    if (axis < 0 || !stride)
      return offset;
    Value i = threads.index(axis, n, owned);
    if (clamp)
      if (Value exists = threads.valid(axis, n, owned))
        i = arith::SelectOp::create(b, exists, i, threads.constant(0));
    return offsetBy(offset, arith::ExtUIOp::create(b, b.getI64Type(), i), stride);
  };
  Value origin = firstOf(index);
  for (int64_t r = 0; r < tile.rows; r += alongCols ? 1 : width)
    for (int64_t c = 0; c < tile.cols; c += alongCols ? width : 1) {
      Value offset = position(layout.rows, rows, r, rowStride, start);
      offset = position(layout.cols, cols, c, colStride, offset);
      Value address = origin;
      if (offset)
        address = LLVM::GEPOp::create(b, address.getType(), tensor.element, address, offset);
      body(r, c, width, address);
    }
}

SmallVector<SmallVector<Value>> TensorAccess::fetchSteps(unsigned index, Axis axis, Value token,
                                                         int64_t count) {
  const TensorArgument &tensor = tensors[index];
  FloatType element = tensor.element;
  SmallVector<SmallVector<Value>> found(count);
  int64_t width = count % 4 == 0 ? 4 : 2; // what a packed tensor's strides are multiples of
  if (!tensor.stepsLast || !packed || count % width) {
    for (int64_t step = 0; step < count; ++step)
      found[step] = fetch(index, axis, token, threads.constant(step, 64));
    return found;
  }
  forPackets(index, threads.shape(tensor.entry(), axis), token, threads.constant(0, 64), /*clamp=*/true,
             [&](int64_t, int64_t, int64_t, Value address) {
               for (int64_t step = 0; step < count; step += width) {
                 Value from = LLVM::GEPOp::create(b, address.getType(), element, address,
                                                  ArrayRef<LLVM::GEPArg>{int32_t(step)});
                 Value packet = LLVM::LoadOp::create(b, VectorType::get(width, element), from,
                                                     width * element.getWidth() / 8);
                 for (int64_t i = 0; i < width; ++i)
                   found[step + i].push_back(LLVM::ExtractElementOp::create(b, packet, threads.constant(i)));
               }
             });
  return found;
}

size_t TensorAccess::countPackets(unsigned index, Axis axis) const {
  Tile tile = threads.shape(tensors[index].entry(), axis);
  return tile.rows * tile.cols / packetWidth(tensors[index], layoutOf(tile.type, axis));
}

SmallVector<Value> TensorAccess::addresses(unsigned index, Axis axis, Value token) {
  SmallVector<Value> found;
  forPackets(index, threads.shape(tensors[index].entry(), axis), token, {}, /*clamp=*/true,
             [&](int64_t, int64_t, int64_t, Value address) { found.push_back(address); });
  return found;
}

SmallVector<Value> TensorAccess::next(unsigned index, ArrayRef<Value> addresses) {
  SmallVector<Value> moved;
  for (Value address : addresses)
    moved.push_back(
        LLVM::GEPOp::create(b, address.getType(), tensors[index].element, address, word(index, Token)));
  return moved;
}

Type TensorAccess::packetType(unsigned index, Axis axis) const {
  FloatType element = tensors[index].element;
  int64_t width = packetWidth(tensors[index], layoutOf(tensors[index].entry(), axis));
  return width == 1 ? Type(element) : VectorType::get(width, element);
}

int64_t TensorAccess::bytesOfPacket(unsigned index, Axis axis) const {
  FloatType element = tensors[index].element;
  return packetWidth(tensors[index], layoutOf(tensors[index].entry(), axis)) * element.getWidth() / 8;
}

SmallVector<Value> TensorAccess::fetch(unsigned index, Axis axis, ArrayRef<Value> addresses) {
  Type type = packetType(index, axis);
  int64_t bytes = bytesOfPacket(index, axis);
  return llvm::map_to_vector(
      addresses, [&](Value address) -> Value { return LLVM::LoadOp::create(b, type, address, bytes); });
}

SmallVector<Value> TensorAccess::fetch(unsigned index, Axis axis, Value token, Value step) {
  SmallVector<Value> found;
  forPackets(index, threads.shape(tensors[index].entry(), axis), token, step, /*clamp=*/true,
             [&](int64_t, int64_t, int64_t, Value address) { found.push_back(address); });
  return fetch(index, axis, found);
}

// An entry of a packet in f32. A bf16 is the upper half of one: the hardware's conversion is slower where
// small numbers count as 0.
static Value widen(ImplicitLocOpBuilder &b, Value packet, int64_t i) {
  auto constant = [&](int64_t n) -> Value { return arith::ConstantIntOp::create(b, n, 32); };
  auto vector = dyn_cast<VectorType>(packet.getType());
  Type element = vector ? vector.getElementType() : packet.getType();
  if (element.isBF16() && vector && vector.getNumElements() % 2 == 0) {
    Type words = VectorType::get(vector.getNumElements() / 2, Type(b.getI32Type()));
    Value both = LLVM::BitcastOp::create(b, words, packet);
    both = LLVM::ExtractElementOp::create(b, both, constant(i / 2));
    Value upper = i % 2 ? arith::AndIOp::create(b, both, constant(int32_t(0xffff0000))).getResult()
                        : arith::ShLIOp::create(b, both, constant(16)).getResult();
    return arith::BitcastOp::create(b, b.getF32Type(), upper);
  }
  Value entry = vector ? LLVM::ExtractElementOp::create(b, packet, constant(i)).getResult() : packet;
  if (element.isBF16()) {
    Value bits = arith::BitcastOp::create(b, b.getIntegerType(16), entry);
    bits = arith::ShLIOp::create(b, arith::ExtUIOp::create(b, b.getI32Type(), bits), constant(16));
    return arith::BitcastOp::create(b, b.getF32Type(), bits);
  }
  return element.isF32() ? entry : arith::ExtFOp::create(b, b.getF32Type(), entry).getResult();
}

Tile TensorAccess::unpack(unsigned index, Axis axis, ValueRange fetched) {
  Tile tile = threads.shape(tensors[index].entry(), axis);
  bool alongCols = tensors[index].own[2];
  tile.entries.resize(tile.rows * tile.cols);
  size_t next = 0;
  int64_t width = 1;
  if (auto vector = dyn_cast<VectorType>(fetched.front().getType()))
    width = vector.getNumElements();
  for (int64_t r = 0; r < tile.rows; r += alongCols ? 1 : width)
    for (int64_t c = 0; c < tile.cols; c += alongCols ? width : 1) {
      Value packet = fetched[next++];
      for (int64_t i = 0; i < width; ++i) {
        int64_t row = alongCols ? r : r + i, col = alongCols ? c + i : c;
        Value entry = widen(b, packet, i);
        if (Value exists = threads.valid(tile, row, col))
          entry = arith::SelectOp::create(b, exists, entry, threads.number(0));
        tile.entries[row * tile.cols + col] = entry;
      }
    }
  return tile;
}

Tile TensorAccess::load(unsigned index, Axis axis, Value token, Value step) {
  return unpack(index, axis, fetch(index, axis, token, step));
}

void TensorAccess::storePacket(unsigned index, const Tile &tile, int64_t r, int64_t c, int64_t width,
                               Value address) {
  FloatType element = tensors[index].element;
  bool alongCols = tensors[index].own[2];
  threads.when(threads.valid(tile, r, c), [&] {
    auto narrow = [&](int64_t i) -> Value {
      Value entry = alongCols ? tile.at(r, c + i) : tile.at(r + i, c);
      return element.getWidth() == 32 ? entry : arith::TruncFOp::create(b, element, entry).getResult();
    };
    Value stored = narrow(0);
    if (width > 1) {
      Value packet = LLVM::PoisonOp::create(b, VectorType::get(width, element));
      for (int64_t i = 0; i < width; ++i)
        packet = LLVM::InsertElementOp::create(b, packet, narrow(i), threads.constant(i));
      stored = packet;
    }
    LLVM::StoreOp::create(b, stored, address, width * element.getWidth() / 8);
  });
}

void TensorAccess::store(unsigned index, const Tile &tile, Value token) {
  threads.when(threads.isWriter(tile), [&] {
    forPackets(index, tile, token, {}, /*clamp=*/false,
               [&](int64_t r, int64_t c, int64_t width, Value address) {
                 storePacket(index, tile, r, c, width, address);
               });
  });
}

void TensorAccess::store(unsigned index, const chunk::OutputPart &part, const Tile &tile, Value token) {
  if (part.count == 1)
    return store(index, tile, token);
  const TensorArgument &tensor = tensors[index];
  int last = tensor.own[1] + tensor.own[2] - 1;
  auto strideOf = [&](int dim) -> Value {
    int place = dim && tensor.own[1];
    return packed && place == last ? threads.constant(1, 64) : word(base(index) + Own + place);
  };
  auto times = [&](Value x, Value y) { return arith::MulIOp::create(b, x, y).getResult(); };
  Value start = arith::AddIOp::create(b, times(token, word(index, Token)),
                                      times(threads.constant(part.index, 64), strideOf(part.isRow ? 0 : 1)));
  bool hasEntries = tensor.own[part.isRow ? 2 : 1];
  threads.when(threads.isWriter(tile), [&] {
    for (int64_t r = 0; r < tile.rows; ++r) {
      Value offset = start;
      if (hasEntries && tile.axis >= 0) {
        Value i = threads.index(tile.axis, tile.type.numRows(), r);
        offset = arith::AddIOp::create(
            b, offset, times(arith::ExtUIOp::create(b, b.getI64Type(), i), strideOf(part.isRow ? 1 : 0)));
      }
      Value address =
          LLVM::GEPOp::create(b, firstOf(index).getType(), tensor.element, firstOf(index), offset);
      storePacket(index, tile, r, 0, 1, address);
    }
  });
}

void TensorAccess::store(unsigned index, const Tile &tile, ArrayRef<Value> addresses) {
  bool alongCols = tensors[index].own[2];
  int64_t width = packetWidth(tensors[index], layoutOf(tile.type, tile.axis));
  threads.when(threads.isWriter(tile), [&] {
    for (int64_t r = 0; r < tile.rows; r += alongCols ? 1 : width)
      for (int64_t c = 0; c < tile.cols; c += alongCols ? width : 1) {
        storePacket(index, tile, r, c, width, addresses.front());
        addresses = addresses.drop_front();
      }
  });
}

Value TensorAccess::entryOfToken(unsigned index, Value token, Value at, Value row) {
  assert(packed && "the innermost stride is one");
  Value offset = arith::MulIOp::create(b, token, word(index, Token));
  if (row) {
    Value more = arith::MulIOp::create(b, arith::ExtUIOp::create(b, b.getI64Type(), row), word(index, Own));
    offset = arith::AddIOp::create(b, offset, more);
  }
  offset = arith::AddIOp::create(b, offset, arith::ExtUIOp::create(b, b.getI64Type(), at));
  return LLVM::GEPOp::create(b, first[index].getType(), tensors[index].element, first[index], offset);
}

Value TensorAccess::entry(unsigned index, Value row, Value col) {
  const TensorArgument &tensor = tensors[index];
  int64_t place = base(index) + Own + tensor.own[0];
  Value offset = threads.constant(0, 64);
  for (auto [present, i] : {std::pair(tensor.own[1], row), std::pair(tensor.own[2], col)})
    if (present)
      offset = arith::AddIOp::create(
          b, offset, arith::MulIOp::create(b, arith::ExtUIOp::create(b, b.getI64Type(), i), word(place++)));
  Value origin = firstOf(index);
  return LLVM::GEPOp::create(b, origin.getType(), tensor.element, origin, offset);
}

Value TensorAccess::exists(unsigned index, Value row, Value col) {
  const TensorArgument &tensor = tensors[index];
  Value all;
  for (auto [dim, at] : {std::pair(0, row), std::pair(1, col)}) {
    if (!tensor.inMemory[dim])
      continue;
    Value whole = arith::ExtUIOp::create(b, b.getI64Type(), at);
    if (tensor.shardedDim == dim)
      whole = arith::AddIOp::create(b, whole, firstInShard);
    Value is = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, whole,
                                     threads.constant(tensor.inMemory[dim], 64));
    all = all ? arith::AndIOp::create(b, all, is).getResult() : is;
  }
  return all;
}

Value TensorAccess::loadEntry(unsigned tensor, Value row, Value col) {
  Value exists = this->exists(tensor, row, col), none = threads.constant(0);
  if (exists) {
    row = arith::SelectOp::create(b, exists, row, none);
    col = arith::SelectOp::create(b, exists, col, none);
  }
  if (!tensors[tensor].parts.empty()) {
    Value found = loadFromParts(tensors[tensor], row, col);
    return exists ? arith::SelectOp::create(b, exists, found, threads.number(0)).getResult() : found;
  }
  Value entry = LLVM::LoadOp::create(b, tensors[tensor].element, this->entry(tensor, row, col));
  if (!entry.getType().isF32())
    entry = arith::ExtFOp::create(b, b.getF32Type(), entry);
  return exists ? arith::SelectOp::create(b, exists, entry, threads.number(0)).getResult() : entry;
}

void TensorAccess::storeEntry(unsigned tensor, Value row, Value col, Value value) {
  if (!tensors[tensor].parts.empty())
    return storeToParts(tensor, row, col, value);
  threads.when(exists(tensor, row, col), [&] { LLVM::StoreOp::create(b, value, entry(tensor, row, col)); });
}

std::optional<FirstState> cuda::firstStateOf(chunk::ProgramOp program, unsigned state) {
  Value first = program.getInit().front().getTerminator()->getOperand(state);
  if (auto number = first.getDefiningOp<ConstantOp>())
    return FirstState{number.getValue().convertToDouble()};
  // The region has arguments for params and for what all tokens share, in the order of the program's.
  unsigned next = 0, param = 0;
  for (BlockArgument argument : program.getBody().getArguments()) {
    ArgKind kind = program.getArg(argument.getArgNumber()).getKind();
    if (kind != ArgKind::Param && kind != ArgKind::Head && kind != ArgKind::Heads)
      continue;
    bool isIt = program.getInit().getArgument(next++) == first;
    if (kind != ArgKind::Param)
      continue;
    if (isIt)
      return FirstState{0, param};
    ++param;
  }
  return std::nullopt;
}

Value TensorAccess::firstEntry(const FirstState &state, unsigned params, Value row, Value col) {
  if (!state.param)
    return threads.number(state.number);
  return loadEntry(params + *state.param, row, col);
}
