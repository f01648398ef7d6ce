#include "lib/Cuda/BodyEmitter.h"
#include "lib/Cuda/Convergence.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

void BodyEmitter::set(Value value, Tile tile) {
  Axis axis = tile.axis;
  tiles[axis][value] = std::move(tile);
}

const Tile &BodyEmitter::get(Value value, Axis axis) {
  auto it = tiles[axis].find(value);
  assert(it != tiles[axis].end() && "the placement gave every operand its layouts");
  return it->second;
}

const Tile &BodyEmitter::like(Value operand, const Tile &result) {
  return get(operand, operandAxis(matType(operand), result.type, result.axis));
}

void BodyEmitter::build(Value result, llvm::function_ref<Value(const Tile &, int64_t, int64_t)> entry) {
  for (Axis axis : {0, 1}) {
    if (!placement.needs(result, axis))
      continue;
    Tile tile = threads.shape(matType(result), axis);
    for (int64_t r = 0; r < tile.rows; ++r)
      for (int64_t c = 0; c < tile.cols; ++c)
        tile.entries.push_back(entry(tile, r, c));
    set(result, std::move(tile));
  }
}

void BodyEmitter::setMoved(Value value, const Tile &tile) {
  Axis other = 1 - tile.axis;
  if (placement.needs(value, other)) {
    Staged memory = threads.allocate(tile.type.numRows(), tile.type.numCols());
    threads.store(memory, tile);
    threads.barrier();
    set(value, threads.load(memory, tile.type, other));
  }
  set(value, tile);
}

Staged BodyEmitter::stage(Value value) {
  MatType type = matType(value);
  Staged memory = threads.allocate(type.numRows(), type.numCols());
  threads.store(memory, get(value, placement.anyOf(value)));
  return memory;
}

LogicalResult BodyEmitter::emitBlock(Block &block, LoadStep loadStep,
                                     llvm::function_ref<bool(Operation *)> chosen) {
  if (held)
    held->beginToken();
  for (Operation &op : block.without_terminator())
    if ((!chosen || chosen(&op)) &&
        llvm::any_of(op.getResults(), [&](Value result) { return placement.isNeeded(result); })) {
      b.setLoc(op.getLoc());
      if (failed(emit(&op, loadStep)))
        return failure();
    }
  return success();
}

LogicalResult BodyEmitter::emit(Operation *op, LoadStep loadStep) {
  Value result = op->getResult(0);
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](ForOp loop) { return emitLoop(loop, loadStep); })
      .Case([&](ElementwiseOp e) { return emitElementwise(e), success(); })
      .Case([&](MatmulOp m) { return emitMatmul(m), success(); })
      .Case([&](ReduceOp r) { return emitReduce(r), success(); })
      .Case([&](RopeOp r) { return emitRope(r), success(); })
      .Case([&](SolveOp s) { return emitSolve(s, s.getMatrix(), s.getRhs(), false), success(); })
      .Case([&](InverseOp i) { return emitSolve(i, i.getOperand(), {}, true), success(); })
      .Case([&](ConstantOp c) {
        Value number = threads.number(c.getValue().convertToDouble());
        build(result, [&](const Tile &, int64_t, int64_t) { return number; });
        return success();
      })
      .Case([&](SizeOp s) {
        Value number = threads.number(double(cast<IntegerAttr>(s.getDim()).getInt()));
        build(result, [&](const Tile &, int64_t, int64_t) { return number; });
        return success();
      })
      .Case<BroadcastOp, AssumeOp>([&](auto e) {
        build(result,
              [&](const Tile &tile, int64_t r, int64_t c) { return like(e.getOperand(), tile).at(r, c); });
        return success();
      })
      .Case([&](TransposeOp t) {
        MatType type = t.getType();
        bool matrix = type.numRows() != 1 && type.numCols() != 1;
        build(result, [&](const Tile &tile, int64_t r, int64_t c) {
          return get(t.getOperand(), matrix ? 1 - tile.axis : tile.axis).at(c, r);
        });
        return success();
      })
      .Case<IdentityOp, DiagOp>([&](auto d) {
        build(result, [&](const Tile &tile, int64_t r, int64_t c) -> Value {
          Value entry = threads.number(1);
          if (auto diag = dyn_cast<DiagOp>(op))
            entry = get(diag.getOperand(), tile.axis).at(r, 0);
          int64_t n = tile.type.numRows();
          Layout layout = layoutOf(tile.type, tile.axis);
          if (layout.rows < 0)
            return entry;
          Value equal = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, threads.index(layout.rows, n, r),
                                              threads.index(layout.cols, n, c));
          return arith::SelectOp::create(b, equal, entry, threads.number(0));
        });
        return success();
      })
      .Case([&](JoinOp j) {
        build(result, [&](const Tile &tile, int64_t r, int64_t c) -> Value {
          Value column = threads.index(layoutOf(tile.type, tile.axis).cols, tile.type.numCols(), c), chosen;
          for (auto [k, operand] : llvm::enumerate(j.getColumns())) {
            Value entry = like(operand, tile).at(r, 0);
            Value isIt = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, column, threads.constant(k));
            chosen = chosen ? arith::SelectOp::create(b, isIt, entry, chosen).getResult() : entry;
          }
          return chosen;
        });
        return success();
      })
      .Case([&](ExtractOp e) {
        Value index = get(e.getIndex(), 0).entries[0];
        index = arith::FPToSIOp::create(b, b.getI64Type(), index);
        index = arith::SubIOp::create(b, index, threads.constant(1, 64));
        for (Axis axis : {0, 1})
          if (placement.needs(result, axis))
            set(result, loadStep(cast<BlockArgument>(e.getSteps()), index, axis));
        return success();
      })
      .Default([](Operation *other) {
        return other->emitOpError() << "cannot be compiled for a GPU token by token";
      });
}

LogicalResult BodyEmitter::emitLoop(ForOp op, LoadStep loadStep) {
  // Everything that is carried, flat.
  SmallVector<std::pair<unsigned, Axis>> carried;
  SmallVector<Value> inits;
  for (auto [i, init] : llvm::enumerate(op.getInits()))
    for (Axis axis : {0, 1})
      if (placement.needs(op.getCarried()[i], axis)) {
        carried.push_back({i, axis});
        llvm::append_range(inits, get(init, axis).entries);
      }
  auto setAll = [&](auto values, ValueRange entries) {
    for (auto [i, axis] : carried) {
      Tile tile = threads.shape(matType(op.getInits()[i]), axis);
      tile.entries.assign(entries.begin(), entries.begin() + tile.rows * tile.cols);
      entries = entries.drop_front(tile.entries.size());
      set(values[i], std::move(tile));
    }
  };
  LogicalResult status = success();
  int64_t count = cast<IntegerAttr>(op.getCount()).getInt();
  bool before = std::exchange(threads.communicates, false);
  auto step = [&](Value counter, ValueRange entries) {
    Tile tile = threads.shape(MatType::scalar(op.getContext()), 0);
    tile.entries.push_back(arith::SIToFPOp::create(b, b.getF32Type(), counter));
    set(op.getCounter(), tile);
    setAll(op.getCarried(), entries);
    status = emitBlock(op.getBody().front(), loadStep);
    SmallVector<Value> next;
    if (failed(status))
      return SmallVector<Value>(entries);
    for (auto [i, axis] : carried)
      llvm::append_range(next, get(op.getYield().getValues()[i], axis).entries);
    if (threads.communicates)
      threads.barrier();
    return next;
  };
  Value one = threads.constant(1);
  if (auto index = op->getAttrOfType<IntegerAttr>(goesOnAttr)) {
    // All threads hold the same scalar, made in the same way of the same entries.
    Value last = op.getYield().getValues()[index.getInt()];
    setAll(op.getResults(), runSteps(b, count, inits, [&](Value number, ValueRange entries) {
             Values next = step(arith::AddIOp::create(b, number, one), entries);
             if (failed(status))
               return std::pair(next, Value());
             Value goesOn = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, get(last, 0).entries[0],
                                                  threads.number(0));
             return std::pair(next, goesOn);
           }));
  } else {
    Value end = threads.constant(count + 1);
    setAll(op.getResults(), threads.forLoop(one, end, one, inits, step).getResults());
  }
  threads.communicates |= before;
  return status;
}

void BodyEmitter::emitElementwise(ElementwiseOp op) {
  // Quotients by a common divisor are products with its reciprocal: a division costs as much as ten products.
  llvm::DenseMap<Value, Value> reciprocals;
  bool isShared = isa<DivOp>(op) && op->getOperand(1).getType() != op->getResult(0).getType();
  build(op->getResult(0), [&](const Tile &tile, int64_t r, int64_t c) -> Value {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands())
      operands.push_back(like(operand, tile).at(r, c));
    if (!isShared)
      return op.lower(b, b.getLoc(), operands);
    Value &reciprocal = reciprocals[operands[1]];
    if (!reciprocal)
      reciprocal = arith::DivFOp::create(b, threads.number(1), operands[1]);
    return arith::MulFOp::create(b, operands[0], reciprocal);
  });
}

void BodyEmitter::emitRope(RopeOp op) {
  // In float32 an angle has too few digits for the turns of late tokens. So turns per token are two numbers,
  // and whole turns are taken away before anything is rounded.
  auto wide = [&](double x) { return arith::ConstantOp::create(b, b.getF64FloatAttr(x)).getResult(); };
  auto times = [&](Value x, Value y) { return arith::MulFOp::create(b, x, y).getResult(); };
  auto narrow = [&](Value x) { return arith::TruncFOp::create(b, b.getF32Type(), x).getResult(); };
  Value position = get(op.getPosition(), 0).entries[0];
  double base = op.getBase().convertToDouble();
  int64_t n = op.getType().numElements();
  for (Axis axis : {0, 1}) {
    if (!placement.needs(op, axis))
      continue;
    const Tile x = get(op.getOperand(), axis);
    Tile tile = threads.shape(op.getType(), axis);
    auto power = [&](double index) { return std::pow(base, -index / n); };
    // Turns per token of the thread's first index: a power for each bit of its coordinate.
    Value first = wide(0.5 / M_PI);
    for (int64_t bit = 1; bit < threads.grid.extent(axis); bit *= 2) {
      Value masked = arith::AndIOp::create(b, threads.coordinate(axis), threads.constant(bit));
      Value set = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, masked, threads.constant(0));
      double factor = power(double(bit * threads.grid.packet(n, axis)));
      first = times(first, arith::SelectOp::create(b, set, wide(factor), wide(1)));
    }
    for (size_t e = 0; e + 1 < x.entries.size(); e += 2) {
      Value each = times(first, wide(power(double(threads.ownedOffset(axis, n, e)))));
      Value high = narrow(each);
      Value low = narrow(arith::SubFOp::create(b, each, arith::ExtFOp::create(b, b.getF64Type(), high)));
      Value whole = math::RoundEvenOp::create(b, times(position, high));
      Value turns = math::FmaOp::create(b, position, high, arith::NegFOp::create(b, whole));
      turns = math::FmaOp::create(b, position, low, turns);
      Value angle = times(turns, threads.number(2 * M_PI));
      Operation *sin = math::SinOp::create(b, angle), *cos = math::CosOp::create(b, angle);
      for (Operation *function : {sin, cos})
        function->setAttr(withinTurnAttr, b.getUnitAttr());
      Value a = x.entries[e], c = x.entries[e + 1], s = sin->getResult(0), k = cos->getResult(0);
      tile.entries.push_back(arith::SubFOp::create(b, times(a, k), times(c, s)));
      tile.entries.push_back(arith::AddFOp::create(b, times(a, s), times(c, k)));
    }
    if (n % 2) // the last one has no partner
      for (size_t e = 0; e < x.entries.size(); ++e) {
        Value isLast = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, threads.index(axis, n, e),
                                             threads.constant(n - 1));
        tile.entries[e] = arith::SelectOp::create(b, isLast, x.entries[e], tile.entries[e]);
      }
    set(op, std::move(tile));
  }
}
