// Ops that combine entries of several threads: products, reductions, linear systems.
#include "lib/Cuda/BodyEmitter.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

Tile BodyEmitter::reduce(const Tile &tile, bool rows, bool cols, Reduction kind, MatType type) {
  Layout layout = layoutOf(tile.type, tile.axis);
  bool overRows = rows && layout.rows >= 0, overCols = cols && layout.cols >= 0;
  SmallVector<Value> sums((overRows ? 1 : tile.rows) * (overCols ? 1 : tile.cols));
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t c = 0; c < tile.cols; ++c) {
      Value entry = tile.at(r, c);
      if (Value exists =
              threads.both(overRows ? threads.valid(layout.rows, tile.type.numRows(), r) : Value(),
                           overCols ? threads.valid(layout.cols, tile.type.numCols(), c) : Value()))
        entry = arith::SelectOp::create(b, exists, entry, threads.identity(kind));
      Value &sum = sums[(overRows ? 0 : r) * (overCols ? 1 : tile.cols) + (overCols ? 0 : c)];
      sum = sum ? threads.combine(sum, entry, kind) : entry;
    }
  for (int axis : {1, 0})
    if ((overRows && layout.rows == axis) || (overCols && layout.cols == axis))
      threads.allReduce(sums, axis, kind);
  // What is left of a matrix lies along the axis of the dimension that stays.
  Axis axis = type.numRows() != 1 ? layout.rows : type.numCols() != 1 ? layout.cols : 0;
  Tile result = threads.shape(type, axis);
  result.entries = std::move(sums);
  return result;
}

void BodyEmitter::emitReduce(ReduceOp op) {
  const Tile tile = get(op.getOperand(), placement.anyOf(op.getOperand()));
  setMoved(op, reduce(tile, op.getRows(), op.getCols(), op.getKind(), op.getType()));
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

void BodyEmitter::emitMatmul(MatmulOp op) {
  Value lhs = op.getLhs(), rhs = op.getRhs();
  MatType left = matType(lhs), right = matType(rhs);
  auto product = [&](Value x, Value y) { return arith::MulFOp::create(b, x, y).getResult(); };
  if (held && held->holds(op))
    return emitHeldProduct(op);
  if (units && units->makes(op))
    return setMoved(op, units->multiply(op, get(StateProducts::sidesOf(op).first, threads.grid.unitsAxis)));
  if (left.numCols() == 1) {
    build(op, [&](const Tile &tile, int64_t r, int64_t c) {
      return product(like(lhs, tile).at(r, 0), like(rhs, tile).at(0, c));
    });
    return;
  }
  // A product with a vector is a sum over entries times the vector's.
  auto sum = [&](const Tile &matrix, const Tile &vector, bool overRows) {
    Tile terms = matrix;
    for (int64_t r = 0; r < terms.rows; ++r)
      for (int64_t c = 0; c < terms.cols; ++c) {
        Value factor = vector.entries[overRows ? r : c];
        terms.entries[r * terms.cols + c] = product(matrix.at(r, c), factor);
      }
    setMoved(op, reduce(terms, overRows, !overRows, Reduction::Sum, op.getType()));
  };
  if (left.numRows() == 1 && right.numCols() == 1) {
    Axis axis = placement.commonAxis({lhs, rhs});
    sum(get(rhs, axis), get(lhs, axis), /*overRows=*/true);
  } else if (right.numCols() == 1) {
    Axis axis = placement.axisOf(lhs);
    sum(get(lhs, axis), get(rhs, 1 - axis), /*overRows=*/false);
  } else if (left.numRows() == 1) {
    Axis axis = placement.axisOf(rhs);
    sum(get(rhs, axis), get(lhs, axis), /*overRows=*/true);
  } else {
    emitMatrixProduct(op);
  }
}

void BodyEmitter::holdMatrices(Block &block, ArrayRef<TensorArgument> tensors) {
  if (threads.grid.unitsAxis >= 0) {
    units.emplace(threads, tensors);
    for (MatmulOp op : block.getOps<MatmulOp>())
      if (units->makes(op) && placement.isNeeded(op)) {
        Value shared = StateProducts::sidesOf(op).second;
        if (followsFromParams(shared))
          units->hold(op, get(shared, placement.anyOf(shared)));
        else
          units->take(op);
      }
  }
  if (!threads.grid.heldRegisters)
    return;
  held.emplace(threads, tensors, block);
  for (MatmulOp op : block.getOps<MatmulOp>())
    if (isHeldProduct(op) && placement.isNeeded(op)) {
      Value vector = HeldProducts::vectorOf(op);
      held->hold(op, vector == op.getRhs() ? get(op.getLhs(), 0) : get(op.getRhs(), 1));
    }
}

// The vectors of all products that are known by now are shared at once: one barrier.
void BodyEmitter::emitHeldProduct(MatmulOp op) {
  if (!held->isShared(HeldProducts::vectorOf(op))) {
    SmallVector<Value> vectors;
    for (MatmulOp other : op->getBlock()->getOps<MatmulOp>()) {
      if (!held->holds(other))
        continue;
      Value vector = HeldProducts::vectorOf(other);
      Operation *maker = vector.getDefiningOp();
      if (held->isShared(vector) || (maker && !maker->isBeforeInBlock(op)))
        continue;
      held->share(vector, get(vector, 0));
      vectors.push_back(vector);
    }
    threads.barrier();
    for (Value vector : vectors)
      held->multiply(vector, *op->getBlock());
  }
  setMoved(op, held->productOf(op));
}

// Both operands go to memory; each thread sums products of a column piece and a row piece for its own
// entries.
void BodyEmitter::emitMatrixProduct(MatmulOp op) {
  Staged lhs = stage(op.getLhs()), rhs = stage(op.getRhs());
  threads.barrier();
  for (Axis axis : {0, 1}) {
    if (!placement.needs(op, axis))
      continue;
    Tile tile = threads.shape(op.getType(), axis);
    Layout layout = layoutOf(tile.type, axis);
    SmallVector<Value> zeros(tile.rows * tile.cols, threads.number(0)), rowIndices, colIndices;
    auto clamped = [&](int a, int64_t n, int64_t owned) -> Value {
      Value index = threads.index(a, n, owned), exists = threads.valid(a, n, owned);
      return exists ? arith::SelectOp::create(b, exists, index, threads.constant(0)).getResult() : index;
    };
    for (int64_t r = 0; r < tile.rows; ++r)
      rowIndices.push_back(clamped(layout.rows, tile.type.numRows(), r));
    for (int64_t c = 0; c < tile.cols; ++c)
      colIndices.push_back(clamped(layout.cols, tile.type.numCols(), c));
    auto loop = threads.forLoop(threads.constant(0), threads.constant(lhs.cols), threads.constant(1), zeros,
                                [&](Value k, ValueRange sums) {
                                  SmallVector<Value> column, row, next;
                                  for (Value index : rowIndices)
                                    column.push_back(threads.loadElement(lhs, index, k));
                                  for (Value index : colIndices)
                                    row.push_back(threads.loadElement(rhs, k, index));
                                  for (int64_t r = 0; r < tile.rows; ++r)
                                    for (int64_t c = 0; c < tile.cols; ++c)
                                      next.push_back(
                                          math::FmaOp::create(b, column[r], row[c], sums[r * tile.cols + c]));
                                  return next;
                                });
    tile.entries.assign(loop.getResults().begin(), loop.getResults().end());
    set(op, std::move(tile));
  }
}

//===----------------------------------------------------------------------===//
// Linear systems
//===----------------------------------------------------------------------===//

// Gauss-Jordan elimination of [matrix | rhs] in memory, a column at a time by all threads; without `rhs` the
// inverse. Symmetric positive definite matrices need no pivots.
void BodyEmitter::emitSolve(Operation *op, Value matrix, Value rhs, bool pivot) {
  Value result = op->getResult(0);
  int64_t n = matType(matrix).numRows(), m = matType(result).numCols();
  Staged system = threads.allocate(n, n + m);
  Staged left{system.base, n, n + m};
  threads.store(left, get(matrix, placement.anyOf(matrix)));
  Staged right = left; // shifted by n columns
  right.base = threads.element(left, threads.constant(0), threads.constant(n));
  Value zero = threads.constant(0), one = threads.constant(1), size = threads.constant(n),
        width = threads.constant(n + m), step = threads.constant(threads.grid.threads);
  auto forThreads = [&](Value end, llvm::function_ref<void(Value)> body) {
    threads.forLoop(threads.threadIndex(), end, step, {}, [&](Value i, ValueRange) -> SmallVector<Value> {
      body(i);
      return {};
    });
  };
  if (rhs) {
    threads.store(right, get(rhs, placement.anyOf(rhs)));
  } else {
    forThreads(threads.constant(n * m), [&](Value i) {
      Value row = arith::DivUIOp::create(b, i, size), col = arith::RemUIOp::create(b, i, size);
      Value same = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, row, col);
      threads.storeElement(right, row, col,
                           arith::SelectOp::create(b, same, threads.number(1), threads.number(0)));
    });
  }
  threads.barrier();
  threads.forLoop(zero, size, one, {}, [&](Value p, ValueRange) -> SmallVector<Value> {
    if (pivot) {
      // Every thread looks for the largest entry by itself and finds the same one.
      Value first = math::AbsFOp::create(b, threads.loadElement(left, p, p));
      auto best = threads.forLoop(
          arith::AddIOp::create(b, p, one), size, one, {p, first}, [&](Value i, ValueRange so) {
            Value entry = math::AbsFOp::create(b, threads.loadElement(left, i, p));
            Value more = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, entry, so[1]);
            return SmallVector<Value>{arith::SelectOp::create(b, more, i, so[0]),
                                      arith::SelectOp::create(b, more, entry, so[1])};
          });
      threads.barrier();
      forThreads(width, [&](Value j) {
        Value upper = threads.loadElement(left, p, j),
              lower = threads.loadElement(left, best.getResult(0), j);
        threads.storeElement(left, best.getResult(0), j, upper);
        threads.storeElement(left, p, j, lower);
      });
      threads.barrier();
    }
    Value inverse = arith::DivFOp::create(b, threads.number(1), threads.loadElement(left, p, p));
    Value from = arith::AddIOp::create(b, p, one), count = arith::SubIOp::create(b, width, from);
    forThreads(arith::MulIOp::create(b, size, count), [&](Value i) {
      Value row = arith::DivUIOp::create(b, i, count);
      Value col = arith::AddIOp::create(b, from, arith::RemUIOp::create(b, i, count));
      threads.when(arith::CmpIOp::create(b, arith::CmpIPredicate::ne, row, p), [&] {
        Value factor = arith::MulFOp::create(b, threads.loadElement(left, row, p), inverse);
        Value update = arith::MulFOp::create(b, factor, threads.loadElement(left, p, col));
        Value entry = arith::SubFOp::create(b, threads.loadElement(left, row, col), update);
        threads.storeElement(left, row, col, entry);
      });
    });
    threads.barrier();
    return {};
  });
  // The matrix is diagonal now.
  for (Axis axis : {0, 1}) {
    if (!placement.needs(result, axis))
      continue;
    Tile tile = threads.load(right, matType(result), axis);
    Layout layout = layoutOf(tile.type, axis);
    for (int64_t r = 0; r < tile.rows; ++r) {
      Value row = threads.index(layout.rows, n, r);
      if (Value exists = threads.valid(layout.rows, n, r))
        row = arith::SelectOp::create(b, exists, row, zero);
      Value pivotEntry = threads.loadElement(left, row, row);
      for (int64_t c = 0; c < tile.cols; ++c) {
        Value &entry = tile.entries[r * tile.cols + c];
        entry = arith::DivFOp::create(b, entry, pivotEntry);
      }
    }
    set(result, std::move(tile));
  }
}
