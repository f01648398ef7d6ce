#include "lib/Cuda/StateProducts.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/HeldProducts.h"
#include "lib/Cuda/ParamProducts.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A thread's neighbouring columns; those of a step of depth; those of a row of 128 bytes.
static constexpr int64_t lanesOfQuad = 4, columnsOfPacket = 4, columnsOfStep = 16, columnsOfRow = 64,
                         rowBytes = 128;
static constexpr int64_t rowsOfWarpgroup = 64, threadsOfWarpgroup = 128, swizzleBytes = 1024;
// Sums and what is packed of more would leave a thread no registers.
static constexpr int64_t mostColumns = 128;

int64_t StateProducts::Matrix::halfBytes() const { return (byColumns ? columns : depth) * rowBytes; }

int64_t StateProducts::Matrix::partBytes() const {
  return llvm::divideCeil(byColumns ? depth : columns, columnsOfRow) * halfBytes();
}

// The value whose transposed another one is, or null.
static Value turned(Value value) {
  auto transpose = value.getDefiningOp<TransposeOp>();
  return transpose ? transpose.getOperand() : Value();
}

static bool isOfKind(Value value, ArgKind kind) {
  auto argument = dyn_cast<BlockArgument>(value);
  auto rule = argument ? dyn_cast<RuleOp>(argument.getOwner()->getParentOp()) : RuleOp();
  return rule && rule.getArg(argument).getKind() == kind;
}

static bool isOfToken(Value value) {
  return isOfKind(turned(value) ? turned(value) : value, ArgKind::Input) && isMatrix(value);
}

static bool followsFromStates(Value value) {
  llvm::SetVector<Value> seen;
  seen.insert(value);
  for (size_t i = 0; i < seen.size(); ++i) {
    if (isOfKind(seen[i], ArgKind::State) || isOfKind(seen[i], ArgKind::Stale))
      return true;
    if (Operation *op = seen[i].getDefiningOp())
      seen.insert_range(op->getOperands());
  }
  return false;
}

std::pair<Value, Value> StateProducts::sidesOf(MatmulOp op) {
  Value lhs = op.getLhs(), rhs = op.getRhs();
  bool isFirst = followsFromParams(lhs) ||
                 (!followsFromParams(rhs) && isOfToken(lhs) && !(isOfToken(rhs) && followsFromStates(lhs)));
  return isFirst ? std::pair(rhs, lhs) : std::pair(lhs, rhs);
}

int cuda::axisOfStateProduct(Operation *op) {
  if (!isProduct(op) || !isa<RuleOp>(op->getParentOp()))
    return -1;
  auto [state, shared] = StateProducts::sidesOf(cast<MatmulOp>(op));
  auto isLarge = [](int64_t n) { return n >= columnsOfStep && n <= mostColumns; };
  MatType type = matType(shared);
  bool isShared =
      followsFromParams(shared) ? !followsFromParams(state) : isOfToken(shared) && followsFromStates(state);
  if (!isMatrix(state) || !isMatrix(shared) || !isShared || !isLarge(type.numRows()) ||
      !isLarge(type.numCols()))
    return -1;
  return state == op->getOperand(0) ? 0 : 1;
}

void cuda::readStateProducts(RuleOp rule) {
  Block &body = rule.getBody().front();
  for (MatmulOp product : llvm::to_vector(body.getOps<MatmulOp>())) {
    int axis = axisOfStateProduct(product);
    if (axis < 0)
      continue;
    auto [state, shared] = StateProducts::sidesOf(product);
    for (MatmulOp read : llvm::to_vector(body.getOps<MatmulOp>())) {
      auto along = read.getRhs().getDefiningOp<MatmulOp>();
      if (!along || isMatrix(along))
        continue;
      // (R*S).T*k is S.T*(R.T*k).
      Value matrix = axis ? turned(read.getLhs()) : read.getLhs(),
            beside = axis ? turned(along.getLhs()) : along.getLhs();
      if (matrix != state || beside != shared)
        continue;
      if (!product->isBeforeInBlock(read))
        product->moveBefore(read);
      OpBuilder b(read);
      Value whole = product;
      if (axis)
        whole = TransposeOp::create(b, read.getLoc(), whole);
      read->setOperands({whole, along.getRhs()});
    }
  }
}

bool StateProducts::makes(Operation *op) const {
  const Grid &grid = threads.grid;
  return grid.unitsAxis >= 0 && axisOfStateProduct(op) == grid.unitsAxis &&
         (grid.unitsTakeInputs || followsFromParams(sidesOf(cast<MatmulOp>(op)).second));
}

// Nothing where an input is not as the units take it.
std::optional<StateProducts::Matrix> StateProducts::shapeOf(MatmulOp op, ArrayRef<TensorArgument> tensors) {
  Value shared = sidesOf(op).second;
  int64_t rows = matType(shared).numRows(), cols = matType(shared).numCols();
  int axis = axisOfStateProduct(op);
  if (axis)
    std::swap(rows, cols);
  auto filled = [](int64_t n) { return int64_t(llvm::alignTo(n, columnsOfStep)); };
  Matrix matrix{{}, filled(rows), filled(cols), 1};
  if (followsFromParams(shared)) {
    matrix.parts = partsOfMatrix(shared, tensors);
    return matrix;
  }
  Value input = turned(shared) ? turned(shared) : shared;
  auto *tensor = llvm::find_if(tensors, [&](const auto &t) { return t.argument == input; });
  if (tensor == tensors.end() || !tensor->element.isBF16() || tensor->shardedDim >= 0 ||
      tensor->isTemporary || !tensor->parts.empty() || matType(input).numCols() % columnsOfPacket)
    return std::nullopt;
  matrix.tensor = tensor - tensors.begin();
  matrix.byColumns = (input != shared) != (axis == 1);
  return matrix;
}

std::optional<Grid> cuda::gridOfStateProducts(RuleOp rule, ArrayRef<TensorArgument> tensors,
                                              const Chip &chip) {
  constexpr int64_t ofTokens = 64 << 10, mostWarpgroups = 4;
  if (!chip.hasWarpgroups())
    return std::nullopt;
  Grid grid;
  grid.lanes = lanesOfQuad;
  SmallVector<MatmulOp> products;
  for (MatmulOp op : rule.getBody().getOps<MatmulOp>())
    if (int axis = axisOfStateProduct(op); axis >= 0 && (products.empty() || axis == grid.unitsAxis)) {
      grid.unitsAxis = axis;
      products.push_back(op);
    }
  auto isInput = [](MatmulOp op) { return !followsFromParams(StateProducts::sidesOf(op).second); };
  grid.unitsTakeInputs = llvm::any_of(products, isInput);
  if (llvm::any_of(products, [&](MatmulOp op) { return !StateProducts::shapeOf(op, tensors); })) {
    grid.unitsTakeInputs = false;
    llvm::erase_if(products, isInput);
  }
  int64_t rows = 0, bytes = 0;
  llvm::SmallDenseSet<Value> counted;
  for (MatmulOp op : products) {
    auto [state, shared] = StateProducts::sidesOf(op);
    rows = std::max(rows, grid.unitsAxis ? matType(state).numCols() : matType(state).numRows());
    if (counted.insert(shared).second)
      bytes += StateProducts::shapeOf(op, tensors)->bytes() + swizzleBytes;
  }
  int64_t warpgroups = llvm::divideCeil(rows, rowsOfWarpgroup);
  if (!rows || warpgroups > mostWarpgroups || bytes + ofTokens > chip.sharedBytes)
    return std::nullopt;
  grid.threads = warpgroups * threadsOfWarpgroup;
  return grid;
}

// The place among sixteen columns, as the units count them, of one that a quad's lanes have four neighbours
// of; of two they count alike.
static Value placeOfColumn(Ptx &ptx, const Grid &grid, Value column) {
  if (grid.unitsTakeInputs)
    return column;
  Value lane = ptx.bits(ptx.shiftRight(column, 2), 3), own = ptx.bits(column, 3);
  Value place = ptx.add(ptx.mul(lane, 2), ptx.add(ptx.bits(own, 1), ptx.mul(ptx.shiftRight(own, 1), 8)));
  return ptx.add(ptx.bits(column, ~(columnsOfStep - 1)), place);
}

// Room for a matrix, with zeros where rows and columns fill up; false where there is that already.
bool StateProducts::take(MatmulOp op) {
  Value shared = sidesOf(op).second;
  if (matrices.contains(shared))
    return false;
  Matrix &matrix = matrices[shared];
  matrix = *shapeOf(op, tensors);
  int64_t bytes = matrix.bytes() + swizzleBytes;
  assert(threads.sharedBytes + bytes <= threads.sharedLimit && "the grid has room for its matrices");
  Value base = threads.allocate(bytes / 4, 1).base;
  matrix.at = LLVM::PtrToIntOp::create(b, b.getI32Type(), base);
  matrix.at = ptx.bits(ptx.add(matrix.at, swizzleBytes - 1), -swizzleBytes);
  if (matrix.depth * matrix.columns == matType(shared).numElements())
    return true;
  threads.forLoop(ptx.mul(threads.threadIndex(), 16), ptx.constant(matrix.bytes()),
                  ptx.constant(16 * threads.grid.threads), {}, [&](Value at, ValueRange) {
                    ptx.store(ptx.add(matrix.at, at), 0, Values(4, ptx.constant(0)));
                    return Values();
                  });
  ptx.fenceProxy();
  threads.barrier();
  return true;
}

// Where an entry of a tile lies from its begin on: rows of 128 bytes, whose packets of 16 are exchanged by
// the row's number.
static Value placeInTile(Ptx &ptx, Value row, Value column, int64_t halfBytes) {
  Value inRow = ptx.bits(column, columnsOfRow - 1);
  Value packet = ptx.exclusiveOr(ptx.shiftRight(inRow, 3), ptx.bits(row, 7));
  Value at = ptx.add(ptx.mul(ptx.shiftRight(column, 6), halfBytes), ptx.mul(row, rowBytes));
  return ptx.add(ptx.add(at, ptx.mul(packet, 16)), ptx.mul(ptx.bits(inRow, 7), 2));
}

void StateProducts::hold(MatmulOp op, const Tile &tile) {
  if (!take(op))
    return;
  Value shared = sidesOf(op).second;
  const Matrix &matrix = matrices.find(shared)->second;
  MatType type = matType(shared);
  bool isTurned = axisOfStateProduct(op) == 1;
  Layout layout = layoutOf(type, tile.axis);
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t c = 0; c < tile.cols; ++c) {
      Value row = threads.index(layout.rows, type.numRows(), r),
            column = threads.index(layout.cols, type.numCols(), c);
      if (isTurned)
        std::swap(row, column);
      row = placeOfColumn(ptx, threads.grid, row);
      column = placeOfColumn(ptx, threads.grid, column);
      Value at = ptx.add(matrix.at, placeInTile(ptx, row, column, matrix.halfBytes()));
      Value exists = threads.valid(tile, r, c);
      for (auto [part, pair] : llvm::enumerate(partsOf(threads, tile.at(r, c), ptx.number(0), matrix.parts)))
        threads.when(exists, [&, part = part, pair = pair] {
          Value entry = arith::TruncIOp::create(b, b.getI16Type(), pair);
          ptx.assembly("st.shared.b16 [$0], $1;", {}, {ptx.add(at, part * matrix.partBytes()), entry});
        });
    }
  ptx.fenceProxy();
  threads.communicates = true;
}

// Four neighbours of a row at a time, which is what memory is known to be aligned to.
void StateProducts::fetch(TensorAccess &access, Value token, Value to) {
  // Plus nothing, as no token has so large a number: else what does not depend on the token would be kept in
  // registers, of each packet.
  Value none = ptx.shiftRight(arith::TruncIOp::create(b, b.getI32Type(), token), 31);
  Value thread = ptx.add(threads.threadIndex(), none);
  int64_t count = threads.grid.threads;
  for (auto &[shared, matrix] : matrices) {
    if (!matrix.tensor)
      continue;
    unsigned tensor = *matrix.tensor;
    MatType type = tensors[tensor].entry();
    int64_t packets = type.numCols() / columnsOfPacket, all = packets * type.numRows();
    int64_t halfBytes = matrix.halfBytes();
    Value begin = ptx.add(matrix.at, ptx.mul(to, matrix.partBytes()));
    auto rowOf = [&](Value own) -> Value { return arith::DivUIOp::create(b, own, ptx.constant(packets)); };
    auto columnOf = [&](Value own) {
      return ptx.mul(arith::RemUIOp::create(b, own, ptx.constant(packets)), columnsOfPacket);
    };
    auto copy = [&](Value place, int64_t offset, Value from) {
      ptx.copyPacket(ptx.add(begin, place), offset, from, 2 * columnsOfPacket);
    };
    if (count % packets == 0 && all % count == 0 && llvm::isPowerOf2_64(count / packets)) {
      // The same columns of every so many rows: of eight rows places are exchanged alike.
      constexpr int64_t alike = 8;
      int64_t rows = count / packets, places = std::max<int64_t>(1, alike / rows);
      Value row = rowOf(thread), column = columnOf(thread),
            from = access.entryOfToken(tensor, token, column, row);
      Value more = ptx.mul(access.word(tensor, TensorAccess::Own), rows);
      SmallVector<Value> at;
      for (int64_t i = 0; i < places; ++i)
        at.push_back(placeInTile(ptx, ptx.add(row, i * rows), column, halfBytes));
      for (int64_t i = 0; i < all / count; ++i) {
        copy(at[i % places], i / places * places * rows * rowBytes, from);
        from = LLVM::GEPOp::create(b, from.getType(), tensors[tensor].element, from, more);
      }
      continue;
    }
    for (int64_t first = 0; first < all; first += count) {
      Value own = ptx.add(thread, first), row = rowOf(own), column = columnOf(own);
      Value exists = first + count > all ? ptx.below(own, ptx.constant(all)) : Value();
      threads.when(exists, [&] {
        copy(placeInTile(ptx, row, column, halfBytes), 0, access.entryOfToken(tensor, token, column, row));
      });
    }
  }
  ptx.commitPackets();
}

void StateProducts::beginToken(TensorAccess &access, Value token, Value last) {
  auto placeOf = [&](Value number) {
    return ptx.bits(arith::TruncIOp::create(b, b.getI32Type(), number), 1);
  };
  ptx.awaitPackets();
  ptx.fenceProxy();
  threads.barrier();
  place = placeOf(token);
  Value next = ptx.add(token, 1);
  fetchNext = [&access, this, from = arith::MinSIOp::create(b, next, last).getResult(), to = placeOf(next)] {
    fetch(access, from, to);
  };
}

Tile StateProducts::multiply(MatmulOp op, const Tile &tile) {
  auto [state, shared] = sidesOf(op);
  const Matrix &matrix = matrices.find(shared)->second;
  bool isTurned = tile.axis == 1;
  MatType type = tile.type;
  int64_t depth = isTurned ? type.numRows() : type.numCols(), owned = isTurned ? tile.rows : tile.cols;
  auto entry = [&](int64_t row, int64_t column) -> Value {
    if (column >= owned)
      return ptx.number(0);
    Value own = isTurned ? tile.at(column, row) : tile.at(row, column);
    Value exists = threads.valid(/*axis=*/1, depth, column);
    return exists ? ptx.choose(exists, own, ptx.number(0)) : own;
  };
  // Packed pairs by parts, in the order of left operands.
  int64_t parts = partsOfVectors(tensors), most = std::max(parts, matrix.parts);
  std::vector<Values> packed(parts);
  for (int64_t column = 0; column < matrix.depth / lanesOfQuad; column += 2)
    for (int64_t row : {0, 1})
      for (auto [part, pair] :
           llvm::enumerate(partsOf(threads, entry(row, column), entry(row, column + 1), parts)))
        packed[part].push_back(pair);
  Pending sums;
  for (int64_t left = 0; left < parts; ++left)
    for (int64_t right = 0; right < matrix.parts && left + right < most; ++right) {
      Value at = ptx.add(matrix.at, right * matrix.partBytes());
      if (matrix.tensor)
        at = ptx.add(at, ptx.mul(place, matrix.partBytes()));
      Value first = ptx.descriptor(at, matrix.byColumns ? 0 : matrix.halfBytes());
      // Of rows that are columns, steps of depth are a quarter of a row of 128 bytes.
      auto advanced = [&](int64_t step) {
        return ptx.advance(first, matrix.byColumns ? step / 4 * matrix.halfBytes() + step % 4 * 32
                                                   : step * columnsOfStep * rowBytes);
      };
      SmallVector<Step> steps;
      for (int64_t step = 0; step < matrix.depth / columnsOfStep; ++step)
        steps.push_back({Values(ArrayRef(packed[left]).slice(4 * step, 4)), advanced(step)});
      sums = ptx.product(matrix.columns, sums.entries, steps, /*leftByDepth=*/false,
                         /*rightByDepth=*/!matrix.byColumns);
    }
  // While the units are at work.
  if (fetchNext)
    std::exchange(fetchNext, nullptr)();
  Values landed = ptx.await(0, sums)[0];
  Tile result = threads.shape(op.getType(), tile.axis);
  for (int64_t r = 0; r < result.rows; ++r)
    for (int64_t c = 0; c < result.cols; ++c) {
      int64_t row = isTurned ? c : r, column = isTurned ? r : c;
      result.entries.push_back(landed[8 * (column / 4) + 4 * (column % 4 / 2) + 2 * row + column % 2]);
    }
  return result;
}
