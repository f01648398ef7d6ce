#include "lib/Cuda/StateProducts.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/HeldProducts.h"
#include "lib/Cuda/ParamProducts.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A thread's neighbouring columns; those of a step of depth; those of a row of 128 bytes.
static constexpr int64_t lanesOfQuad = 4, columnsOfStep = 16, columnsOfRow = 64, rowBytes = 128;
static constexpr int64_t rowsOfWarpgroup = 64, threadsOfWarpgroup = 128, swizzleBytes = 1024;
// Sums and what is packed of more would leave a thread no registers.
static constexpr int64_t mostColumns = 128;

int64_t StateProducts::Matrix::halfBytes() const { return depth * rowBytes; }

int64_t StateProducts::Matrix::partBytes() const {
  return llvm::divideCeil(columns, columnsOfRow) * halfBytes();
}

std::pair<Value, Value> StateProducts::sidesOf(MatmulOp op) {
  return followsFromParams(op.getLhs()) ? std::pair(op.getRhs(), op.getLhs())
                                        : std::pair(op.getLhs(), op.getRhs());
}

int cuda::axisOfStateProduct(Operation *op) {
  if (!isProduct(op) || !isa<RuleOp>(op->getParentOp()))
    return -1;
  auto [state, shared] = StateProducts::sidesOf(cast<MatmulOp>(op));
  auto isLarge = [](int64_t n) { return n >= columnsOfStep && n <= mostColumns; };
  MatType type = matType(shared);
  if (!isMatrix(state) || !followsFromParams(shared) || followsFromParams(state) ||
      !isLarge(type.numRows()) || !isLarge(type.numCols()))
    return -1;
  return state == op->getOperand(0) ? 0 : 1;
}

// The value whose transposed another one is, or null.
static Value turned(Value value) {
  auto transpose = value.getDefiningOp<TransposeOp>();
  return transpose ? transpose.getOperand() : Value();
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
  return axisOfStateProduct(op) == threads.grid.unitsAxis && threads.grid.unitsAxis >= 0;
}

StateProducts::Matrix StateProducts::shapeOf(MatmulOp op, ArrayRef<TensorArgument> tensors) {
  auto [state, shared] = sidesOf(op);
  int64_t rows = matType(shared).numRows(), cols = matType(shared).numCols();
  if (axisOfStateProduct(op))
    std::swap(rows, cols);
  auto filled = [](int64_t n) { return int64_t(llvm::alignTo(n, columnsOfStep)); };
  return {{}, filled(rows), filled(cols), partsOfMatrix(shared, tensors)};
}

std::optional<Grid> cuda::gridOfStateProducts(RuleOp rule, ArrayRef<TensorArgument> tensors,
                                              const Chip &chip) {
  constexpr int64_t ofTokens = 64 << 10, mostWarpgroups = 4;
  if (!chip.hasWarpgroups())
    return std::nullopt;
  Grid grid;
  grid.lanes = lanesOfQuad;
  int64_t rows = 0, bytes = 0;
  llvm::SmallDenseSet<Value> counted;
  for (MatmulOp op : rule.getBody().getOps<MatmulOp>()) {
    int axis = axisOfStateProduct(op);
    if (axis < 0 || (grid.unitsAxis >= 0 && axis != grid.unitsAxis))
      continue;
    grid.unitsAxis = axis;
    auto [state, shared] = StateProducts::sidesOf(op);
    MatType type = matType(state);
    rows = std::max(rows, axis ? type.numCols() : type.numRows());
    StateProducts::Matrix matrix = StateProducts::shapeOf(op, tensors);
    if (counted.insert(shared).second)
      bytes += matrix.parts * matrix.partBytes() + swizzleBytes;
  }
  int64_t warpgroups = llvm::divideCeil(rows, rowsOfWarpgroup);
  if (!rows || warpgroups > mostWarpgroups || bytes + ofTokens > chip.sharedBytes)
    return std::nullopt;
  grid.threads = warpgroups * threadsOfWarpgroup;
  return grid;
}

// The place among sixteen columns, as the units count them, of one that a quad's lanes have four neighbours
// of.
static Value placeOfColumn(Ptx &ptx, Value column) {
  Value lane = ptx.bits(ptx.shiftRight(column, 2), 3), own = ptx.bits(column, 3);
  Value place = ptx.add(ptx.mul(lane, 2), ptx.add(ptx.bits(own, 1), ptx.mul(ptx.shiftRight(own, 1), 8)));
  return ptx.add(ptx.bits(column, ~(columnsOfStep - 1)), place);
}

// Two numbers as pairs of bf16 whose sum they are, the largest first.
static SmallVector<Value> partsOf(Ptx &ptx, Value low, Value high, int64_t parts) {
  SmallVector<Value> pairs;
  for (int64_t part = 0; part < parts; ++part) {
    pairs.push_back(ptx.pack(low, high));
    Values rounded = ptx.unpack(pairs.back());
    low = ptx.difference(low, rounded[0]);
    high = ptx.difference(high, rounded[1]);
  }
  return pairs;
}

void StateProducts::hold(MatmulOp op, const Tile &tile) {
  auto [state, shared] = sidesOf(op);
  if (matrices.contains(shared))
    return;
  Matrix matrix = shapeOf(op, tensors);
  int64_t bytes = matrix.parts * matrix.partBytes();
  Value base = threads.allocate((bytes + swizzleBytes) / 4, 1).base;
  Value address = LLVM::PtrToIntOp::create(b, b.getI32Type(), base);
  matrix.at = ptx.bits(ptx.add(address, swizzleBytes - 1), -swizzleBytes);
  Value begin = arith::SubIOp::create(b, matrix.at, address);
  // Rows and columns that fill up.
  MatType type = matType(shared);
  Value zero = ptx.constant(0);
  if (matrix.depth * matrix.columns != type.numElements()) {
    threads.forLoop(ptx.mul(threads.threadIndex(), 16), ptx.constant(bytes),
                    ptx.constant(16 * threads.grid.threads), {}, [&](Value at, ValueRange) {
                      ptx.store(ptx.add(matrix.at, at), 0, Values(4, zero));
                      return Values();
                    });
    threads.barrier();
  }
  bool isTurned = axisOfStateProduct(op) == 1;
  Layout layout = layoutOf(type, tile.axis);
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t c = 0; c < tile.cols; ++c) {
      Value row = threads.index(layout.rows, type.numRows(), r),
            column = threads.index(layout.cols, type.numCols(), c);
      if (isTurned)
        std::swap(row, column);
      row = placeOfColumn(ptx, row);
      column = placeOfColumn(ptx, column);
      Value inRow = ptx.bits(column, columnsOfRow - 1);
      Value packet = ptx.exclusiveOr(ptx.shiftRight(inRow, 3), ptx.bits(row, 7));
      Value at = ptx.add(ptx.mul(ptx.shiftRight(column, 6), matrix.halfBytes()), ptx.mul(row, rowBytes));
      at = ptx.add(ptx.add(at, ptx.mul(packet, 16)), ptx.mul(ptx.bits(inRow, 7), 2));
      Value exists = threads.valid(tile, r, c);
      for (auto [part, pair] : llvm::enumerate(partsOf(ptx, tile.at(r, c), ptx.number(0), matrix.parts)))
        threads.when(exists, [&, part = part, pair = pair] {
          Value entry = arith::TruncIOp::create(b, b.getI16Type(), pair);
          Value offset = ptx.add(ptx.add(begin, at), part * matrix.partBytes());
          LLVM::StoreOp::create(b, entry,
                                LLVM::GEPOp::create(b, base.getType(), b.getI8Type(), base, offset));
        });
    }
  ptx.fenceProxy();
  threads.communicates = true;
  matrices[shared] = matrix;
}

Tile StateProducts::multiply(MatmulOp op, const Tile &tile) {
  auto [state, shared] = sidesOf(op);
  const Matrix &matrix = matrices.find(shared)->second;
  bool isTurned = tile.axis == 1;
  MatType type = tile.type;
  int64_t depth = isTurned ? type.numRows() : type.numCols(), owned = isTurned ? tile.rows : tile.cols;
  auto entry = [&](int64_t row, int64_t column) -> Value {
    Value own = isTurned ? tile.at(column, row) : tile.at(row, column);
    Value exists = threads.valid(/*axis=*/1, depth, column);
    return exists ? ptx.choose(exists, own, ptx.number(0)) : own;
  };
  // Packed pairs by parts, in the order of left operands.
  int64_t parts = partsOfVectors(tensors), most = std::max(parts, matrix.parts);
  std::vector<Values> packed(parts);
  for (int64_t column = 0; column < owned; column += 2)
    for (int64_t row : {0, 1})
      for (auto [part, pair] :
           llvm::enumerate(partsOf(ptx, entry(row, column), entry(row, column + 1), parts)))
        packed[part].push_back(pair);
  Pending sums;
  for (int64_t left = 0; left < parts; ++left)
    for (int64_t right = 0; right < matrix.parts && left + right < most; ++right) {
      Value first = ptx.descriptor(ptx.add(matrix.at, right * matrix.partBytes()), matrix.halfBytes());
      SmallVector<Step> steps;
      for (int64_t step = 0; step < matrix.depth / columnsOfStep; ++step)
        steps.push_back({Values(ArrayRef(packed[left]).slice(4 * step, 4)),
                         ptx.advance(first, step * columnsOfStep * rowBytes)});
      sums = ptx.product(matrix.columns, sums.entries, steps, /*leftByDepth=*/false, /*rightByDepth=*/true);
    }
  Values landed = ptx.await(0, sums)[0];
  Tile result = threads.shape(op.getType(), tile.axis);
  for (int64_t r = 0; r < result.rows; ++r)
    for (int64_t c = 0; c < result.cols; ++c) {
      int64_t row = isTurned ? c : r, column = isTurned ? r : c;
      result.entries.push_back(landed[8 * (column / 4) + 4 * (column % 4 / 2) + 2 * row + column % 2]);
    }
  return result;
}
