#include "lib/Algebra/Rewriting.h"
#include "lib/Derive/Blocks.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recur;

// A map in two, with the products of one vector in between.
namespace {
struct Cut {
  MatmulOp product;
  Value matrix; // of the program, as it multiplies rows from the right
};
} // namespace

// The first product of a matrix that is the same for all tokens and a vector of each.
static std::optional<Cut> findCut(chunk::MapOp map, OpBuilder &b) {
  Block &body = map.getBody().front();
  unsigned shared = map.getCarried().size() + map.getRows().size();
  for (MatmulOp product : body.getOps<MatmulOp>()) {
    Value matrix = product.getLhs();
    bool isTransposed = false;
    while (auto transpose = matrix.getDefiningOp<TransposeOp>()) {
      matrix = transpose.getOperand();
      isTransposed ^= true;
    }
    auto argument = dyn_cast<BlockArgument>(matrix);
    if (!argument || argument.getArgNumber() < shared || !isMatrix(matType(matrix)) ||
        !isOne(product.getType().getCols()))
      continue;
    Value whole = map.getShared()[argument.getArgNumber() - shared];
    b.setInsertionPoint(map);
    return Cut{product, isTransposed ? whole : TransposeOp::create(b, map.getLoc(), whole).getResult()};
  }
  return std::nullopt;
}

// The rows of a vector that a map computes on the way.
static Value rowsOf(chunk::MapOp map, Value vector, OpBuilder &b) {
  if (auto argument = dyn_cast<BlockArgument>(vector);
      argument && argument.getArgNumber() < map.getRows().size())
    return map.getRows()[argument.getArgNumber()];
  auto program = map->getParentOfType<chunk::ProgramOp>();
  Type type = chunk::MapOp::rowsType(vector.getType(), program.getLengthAttr());
  b.setInsertionPoint(map);
  auto before = chunk::MapOp::create(b, map.getLoc(), TypeRange(), TypeRange{type}, ValueRange(),
                                     map.getRows(), map.getShared());
  OpBuilder inside(b.getContext());
  Block *body = inside.createBlock(&before.getBody());
  IRMapping values;
  for (BlockArgument argument : map.getBody().getArguments())
    values.map(argument, body->addArgument(argument.getType(), argument.getLoc()));
  llvm::SetVector<Operation *> ops;
  BackwardSliceOptions options;
  options.inclusive = true;
  options.filter = [&](Operation *op) { return op->getBlock() == &map.getBody().front(); };
  (void)getBackwardSlice(vector, &ops, options);
  for (Operation *op : ops)
    inside.clone(*op, values);
  chunk::YieldOp::create(inside, map.getLoc(), values.lookup(vector));
  return before.getResults()[0];
}

// The map with more rows, which stand for values inside.
static chunk::MapOp withRows(chunk::MapOp map, ArrayRef<std::pair<Value, Value>> given, OpBuilder &b) {
  SmallVector<Value> rows(map.getRows());
  for (auto [inside, outside] : given)
    rows.push_back(outside);
  b.setInsertionPoint(map);
  auto after = chunk::MapOp::create(b, map.getLoc(), TypeRange(), map.getResultTypes(), ValueRange(), rows,
                                    map.getShared());
  after.getBody().takeBody(map.getBody());
  unsigned at = map.getRows().size();
  for (auto [inside, outside] : given) {
    BlockArgument argument = after.getBody().insertArgument(at++, inside.getType(), inside.getLoc());
    inside.replaceAllUsesWith(argument);
  }
  map.replaceAllUsesWith(after.getResults());
  map.erase();
  return after;
}

// Drops what a map takes and does not use.
static void dropUnused(chunk::MapOp map) {
  Block &body = map.getBody().front();
  eraseDead(body);
  unsigned rows = map.getRows().size();
  for (unsigned i = body.getNumArguments(); i-- > 0;) {
    if (!body.getArgument(i).use_empty())
      continue;
    body.eraseArgument(i);
    if (i < rows)
      map.getRowsMutable().erase(i);
    else
      map.getSharedMutable().erase(i - rows);
  }
}

void recur::splitMaps(chunk::ProgramOp program) {
  OpBuilder b(program.getContext());
  for (chunk::MapOp map : llvm::to_vector(program.getBody().getOps<chunk::MapOp>())) {
    if (!map.getCarried().empty())
      continue;
    while (std::optional<Cut> cut = findCut(map, b)) {
      Value vector = cut->product.getRhs();
      Value rows = rowsOf(map, vector, b);
      b.setInsertionPoint(map);
      Value product = MatmulOp::create(b, map.getLoc(), rows, cut->matrix);
      SmallVector<std::pair<Value, Value>> given{{cut->product.getResult(), product}};
      if (!isa<BlockArgument>(vector))
        given.push_back({vector, rows});
      map = withRows(map, given, b);
      cut->product.erase();
    }
  }
  for (chunk::MapOp map : program.getBody().getOps<chunk::MapOp>())
    if (map.getCarried().empty())
      dropUnused(map);
}
