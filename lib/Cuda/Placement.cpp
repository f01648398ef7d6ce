#include "lib/Cuda/Placement.h"
#include "lib/Cuda/HeldProducts.h"
#include "lib/Cuda/StateProducts.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t Grid::owned(int64_t n, int axis) const {
  if (n == 1)
    return 1;
  int64_t v = packet(n, axis);
  return llvm::divideCeil(n, v * extent(axis)) * v;
}

Layout cuda::layoutOf(MatType type, Axis axis) {
  bool rows = type.numRows() != 1, cols = type.numCols() != 1;
  if (rows && cols)
    return {axis, 1 - axis};
  return {rows ? axis : -1, cols ? axis : -1};
}

static bool isMatrix(MatType type) { return type.numRows() != 1 && type.numCols() != 1; }

Axis cuda::operandAxis(MatType operand, MatType result, Axis axis) {
  if (operand.numElements() == 1)
    return 0;
  if (isMatrix(operand) || !isMatrix(result))
    return axis;
  return operand.numRows() != 1 ? axis : 1 - axis;
}

Axis Placement::axisOf(Value matrix) const {
  if (turned)
    return turned->isTurned(matrix);
  auto transpose = matrix.getDefiningOp<TransposeOp>();
  bool isTurned = transpose && isMatrix(matType(matrix));
  return isTurned != (unitsAxis == 1);
}

//===----------------------------------------------------------------------===//
// Demands
//===----------------------------------------------------------------------===//

void Placement::demand(Value value, Axis axis) {
  if (isa<MatType>(value.getType()) && matType(value).numElements() == 1)
    axis = 0;
  unsigned &held = demands[value];
  changed |= !(held & (1 << axis));
  held |= 1 << axis;
}

void Placement::demandLike(Value operand, MatType result, Axis axis) {
  demand(operand, operandAxis(matType(operand), result, axis));
}

void Placement::demandAny(Value value) {
  if (!isNeeded(value))
    demand(value, natural(value));
}

Axis Placement::commonAxis(ValueRange values) const {
  unsigned common = 3;
  for (Value value : values)
    common &= demands.lookup(value);
  return common & 1 ? 0 : 1;
}

void Placement::demandTogether(ValueRange values) {
  unsigned common = 3, held = 0;
  for (Value value : values) {
    common &= demands.lookup(value);
    held |= demands.lookup(value);
  }
  if (common)
    return;
  Axis axis = held == 1 ? 0 : held ? 1 : natural(values.front());
  for (Value value : values)
    demand(value, axis);
}

static JoinOp joinOf(Value matrix) {
  if (auto transpose = matrix.getDefiningOp<TransposeOp>())
    matrix = transpose.getOperand();
  return matrix.getDefiningOp<JoinOp>();
}

// The axis in which a value comes out of its op; sums within a warp are the cheapest, so that is what inputs
// get.
Axis Placement::natural(Value value) const {
  MatType type = entryType(value.getType());
  if (isMatrix(type)) {
    // A vector that becomes a column, or a row, stays where it is.
    if (JoinOp join = joinOf(value))
      return join == value.getDefiningOp() ? natural(join.getColumns()[0])
                                           : 1 - natural(join.getColumns()[0]);
    return axisOf(value);
  }
  if (type.numElements() == 1)
    return 0;
  Operation *op = value.getDefiningOp();
  if (!op)
    return vectorAxis;
  if (auto product = dyn_cast<MatmulOp>(op)) {
    if (productsApart || (holdsMatrices && isHeldProduct(op)))
      return vectorAxis;
    if (isMatrix(matType(product.getLhs())))
      return axisOf(product.getLhs());
    if (isMatrix(matType(product.getRhs())))
      return 1 - axisOf(product.getRhs());
  }
  if (auto reduce = dyn_cast<ReduceOp>(op))
    return type.numRows() != 1 ? 0 : 1;
  for (Value operand : op->getOperands())
    if (isa<MatType>(operand.getType()) && matType(operand).numElements() != 1) {
      unsigned held = demands.lookup(operand);
      return held == 1 ? 0 : held == 2 ? 1 : natural(operand);
    }
  return vectorAxis;
}

void Placement::visitMatmul(MatmulOp op, unsigned wanted) {
  Value lhs = op.getLhs(), rhs = op.getRhs();
  MatType left = matType(lhs), right = matType(rhs);
  if (left.numCols() == 1) { // an outer product, or a scaling
    for (Axis axis : {0, 1})
      if (wanted & (1 << axis)) {
        demandLike(lhs, op.getType(), axis);
        demandLike(rhs, op.getType(), axis);
      }
  } else if (productsApart && (isMatrix(left) || isMatrix(right))) {
    demand(isMatrix(left) ? rhs : lhs, 1);
  } else if (holdsMatrices && isHeldProduct(op)) {
    demand(lhs, 0);
    demand(rhs, isMatrix(right) ? 1 : 0);
  } else if (left.numRows() == 1 && right.numCols() == 1) {
    demandTogether({lhs, rhs});
  } else if (right.numCols() == 1) {
    demand(lhs, axisOf(lhs));
    demand(rhs, 1 - axisOf(lhs));
  } else if (left.numRows() == 1) {
    demand(rhs, axisOf(rhs));
    demand(lhs, axisOf(rhs));
  } else {
    auto [state, shared] = StateProducts::sidesOf(op);
    bool isOfUnits = unitsAxis >= 0 && axisOfStateProduct(op) == unitsAxis;
    if (isOfUnits)
      demand(state, unitsAxis);
    demandAny(state);
    if (!isOfUnits || !unitsTakeInputs || followsFromParams(shared))
      demandAny(shared);
  }
}

void Placement::visit(Operation *op) {
  unsigned wanted = 0;
  for (Value result : op->getResults())
    wanted |= demands.lookup(result);
  if (!wanted)
    return;
  auto each = [&](auto action) {
    for (Axis axis : {0, 1})
      if (wanted & (1 << axis))
        action(axis);
  };
  TypeSwitch<Operation *>(op)
      .Case([&](MatmulOp m) { visitMatmul(m, wanted); })
      .Case([&](TransposeOp t) {
        each([&](Axis axis) { demand(t.getOperand(), isMatrix(t.getType()) ? 1 - axis : axis); });
      })
      .Case([&](ReduceOp r) { demandAny(r.getOperand()); })
      .Case<ElementwiseOp, BroadcastOp, AssumeOp, JoinOp>([&](auto e) {
        for (Value operand : e->getOperands())
          each([&](Axis axis) { demandLike(operand, matType(e->getResult(0)), axis); });
      })
      .Case([&](RopeOp r) {
        each([&](Axis axis) { demand(r.getOperand(), axis); });
        demand(r.getPosition(), 0);
      })
      .Case([&](DiagOp d) { each([&](Axis axis) { demand(d.getOperand(), axis); }); })
      .Case([&](ExtractOp e) { demand(e.getIndex(), 0); })
      .Case([&](ForOp loop) {
        if (auto goesOn = loop->getAttrOfType<IntegerAttr>(goesOnAttr))
          demand(loop.getCarried()[goesOn.getInt()], 0);
        for (auto [init, argument, yielded, result] :
             llvm::zip(loop.getInits(), loop.getCarried(), loop.getYield().getValues(), loop.getResults())) {
          // What the loop carries, all ends hold in the same ways.
          unsigned held = demands.lookup(argument) | demands.lookup(result);
          for (Axis axis : {0, 1})
            if (held & (1 << axis))
              for (Value end : {init, Value(argument), yielded, Value(result)})
                demand(end, axis);
        }
        visitRegion(loop.getBody().front());
      })
      .Default([&](Operation *other) {
        for (Value operand : other->getOperands())
          demandAny(operand);
      });
}

void Placement::visitRegion(Block &block) {
  for (Operation &op : llvm::reverse(block.without_terminator()))
    visit(&op);
}

Placement::Placement(RuleOp rule, const Grid &grid)
    : vectorAxis(grid.lanes == 1 || grid.heldRegisters ? 0 : 1), productsApart(grid.productsApart),
      holdsMatrices(grid.heldRegisters), unitsTakeInputs(grid.unitsTakeInputs), unitsAxis(grid.unitsAxis) {
  auto states = rule.argumentsOf(ArgKind::State);
  if (!productsApart && !holdsMatrices && unitsAxis < 0)
    if (IndexClasses classes(rule); classes.turnsStates())
      turned = std::move(classes);
  while (changed) {
    changed = false;
    for (Value output : rule.yieldedOutputs())
      demandAny(output);
    for (auto [state, yielded, init] :
         llvm::zip(states, rule.yieldedStates(), rule.getInitYield().getValues())) {
      demandAny(state); // stored at the end, though nothing may read it
      for (Axis axis : {0, 1})
        if (needs(state, axis)) {
          demand(yielded, axis);
          demand(init, axis);
        }
    }
    for (BlockArgument stale : rule.argumentsOf(ArgKind::Stale))
      for (Axis axis : {0, 1})
        if (needs(stale, axis))
          demand(rule.findArgument(ArgKind::State, rule.getArg(stale).getName()), axis);
    visitRegion(rule.getBody().front());
    visitRegion(rule.getInit().front());
  }
}

Placement::Placement(Block &block, ValueRange results, const Grid &grid)
    : vectorAxis(grid.lanes == 1 || grid.heldRegisters ? 0 : 1), productsApart(grid.productsApart),
      holdsMatrices(grid.heldRegisters), unitsTakeInputs(grid.unitsTakeInputs), unitsAxis(grid.unitsAxis) {
  while (changed) {
    changed = false;
    for (Value result : results)
      demandAny(result);
    visitRegion(block);
  }
}

//===----------------------------------------------------------------------===//
// Grid
//===----------------------------------------------------------------------===//

// Whether a vector is made of products with matrices, and so lies across the lanes.
static bool hasProducts(Value vector) {
  Operation *op = vector.getDefiningOp();
  if (isa_and_present<MatmulOp>(op) &&
      llvm::any_of(op->getOperands(), [](Value x) { return isMatrix(matType(x)); }))
    return true;
  return op && llvm::any_of(op->getOperands(), [](Value x) {
           return isa<MatType>(x.getType()) && !isMatrix(matType(x)) && hasProducts(x);
         });
}

// A state's type, the way round that has its independent dimension in rows.
static MatType typeAsHeld(const IndexClasses &classes, Value state) {
  MatType type = matType(state);
  bool isTurned = isMatrix(type) && classes.isTurned(state);
  return isTurned ? MatType::get(type.getContext(), type.getCols(), type.getRows()) : type;
}

Grid cuda::chooseGrid(RuleOp rule, int64_t together) {
  constexpr int64_t entriesPerThread = 64;
  int64_t entries = 0, rows = 1, cols = 1, rowsOfMatrices = 1;
  auto hold = [&](MatType type, int64_t count) {
    rows = std::max(rows, type.numRows());
    if (type.numCols() != 1)
      rowsOfMatrices = std::max(rowsOfMatrices, type.numRows());
    cols = std::max(cols, type.numCols());
    entries += count * type.numElements();
  };
  IndexClasses classes(rule);
  for (BlockArgument argument : rule.getBody().getArguments()) {
    ArgKind kind = rule.getArg(argument).getKind();
    if (kind == ArgKind::State)
      hold(typeAsHeld(classes, argument), 1);
    else if (kind == ArgKind::Param)
      hold(matType(argument), isMatrix(matType(argument)));
  }
  for (Value output : rule.yieldedOutputs()) {
    MatType type = matType(output);
    JoinOp join = joinOf(output);
    if (join && output.getDefiningOp() == join && llvm::none_of(join.getColumns(), hasProducts))
      type = MatType::get(type.getContext(), type.getCols(), type.getRows()); // they lie along the lanes
    if (isMatrix(type))
      hold(type, together);
  }
  Grid grid;
  // Vectors that a loop carries take registers beside the states: a thread holds shorter parts of them.
  bool carriesVectors = false;
  rule.walk([&](ForOp loop) {
    for (Value init : loop.getInits())
      carriesVectors |= !isMatrix(matType(init)) && !matType(init).isScalar();
  });
  int64_t each = carriesVectors ? 8 : 16;
  grid.lanes = cols == 1 ? 1 : std::clamp<int64_t>(llvm::PowerOf2Ceil(llvm::divideCeil(cols, each)), 4, 32);
  if (cols == 1)
    entries = rows * entriesPerThread / 4;
  grid.threads =
      std::clamp<int64_t>(llvm::PowerOf2Ceil(llvm::divideCeil(entries, entriesPerThread)), 32, 512);
  // Where matrices have few rows, threads across them would hold none.
  while (grid.lanes > 1 && grid.lanes < 32 &&
         2 * rowsOfMatrices <= grid.extent(0) * grid.packet(rowsOfMatrices, 0) && grid.owned(cols, 1) > 4)
    grid.lanes *= 2;
  return grid;
}

Grid cuda::gridAhead(RuleOp rule) {
  constexpr int64_t manyThreads = 128;
  Grid grid = chooseGrid(rule);
  int64_t rows = 1;
  IndexClasses classes(rule);
  for (BlockArgument state : rule.argumentsOf(ArgKind::State))
    rows = std::max(rows, typeAsHeld(classes, state).numRows());
  int64_t threads = rows * grid.lanes / 2;
  if (threads > manyThreads)
    threads /= 2;
  grid.threads = std::clamp<int64_t>(llvm::PowerOf2Ceil(threads), 32, 512);
  return grid;
}
