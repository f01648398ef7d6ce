// Products and functions of what depends on the state: in registers, without a barrier.
#include "lib/Cuda/ChunkEmitter.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

FailureOr<ChunkValue> ChunkEmitter::asSlab(Value value) {
  const ChunkValue *known = find(value);
  if (!known)
    return failure();
  if (known->kind == ChunkValue::Slab)
    return *known;
  if (known->kind != ChunkValue::Tile || known->memory.cols != warps * 16)
    return failure();
  sync();
  Value row = arith::MulIOp::create(b, fragments.warp, threads.constant(16));
  ChunkValue slab{ChunkValue::Slab, fragments.loadTransposed(known->memory, row).entries, {}, {}, false};
  if (known->scale)
    for (auto [e, entry] : llvm::enumerate(slab.entries))
      entry = arith::MulFOp::create(b, entry, rowValue(known->scale, fragments.column(e)));
  return slab;
}

LogicalResult ChunkEmitter::emitMatmul(MatmulOp op, ArrayRef<Value> start, Value result) {
  const ChunkValue *lhs = find(op.getLhs());
  FailureOr<ChunkValue> rhs = asSlab(op.getRhs());
  if (failed(rhs) || !lhs)
    return failure();
  SharedTile tile = lhs->memory;
  bool byDepth = lhs->transposed;
  if (lhs->kind == ChunkValue::Scores) {
    if (failed(prepare(op)))
      return failure();
    tile = staged.lookup(op.getLhs());
  }
  else if (lhs->kind != ChunkValue::Tile)
    return failure();
  sync();
  Fragment left{int64_t(rhs->entries.size()) * 2, rhs->entries};
  // A scale on the contracted tokens belongs to the left operand, one on the result's tokens to the result.
  if (lhs->scale && byDepth)
    for (auto [e, entry] : llvm::enumerate(left.entries))
      entry = arith::MulFOp::create(b, entry, rowValue(lhs->scale, fragments.column(e)));
  auto packed = fragments.packed(left);
  int64_t columns = byDepth ? tile.cols : tile.rows;
  if (int64_t(packed.size()) * 16 != (byDepth ? tile.rows : tile.cols))
    return failure();
  Fragment sum = fragments.zero(columns);
  bool scaled = lhs->scale && !byDepth;
  if (!start.empty() && !scaled)
    sum.entries.assign(start.begin(), start.end());
  for (int64_t col = 0; col < columns; col += 16)
    for (auto [step, operand] : llvm::enumerate(packed)) {
      // Scores are zero where the column's token comes before the row's.
      if (lhs->kind == ChunkValue::Scores && int64_t(step) * 16 > col)
        continue;
      auto right = fragments.loadRight(tile, threads.constant(col), step * 16, byDepth);
      for (int64_t i : {0, 1})
        fragments.multiply(MutableArrayRef(sum.entries).slice(col / 2 + 4 * i, 4), operand,
                           ArrayRef(right).slice(2 * i, 2));
    }
  if (scaled)
    for (auto [e, entry] : llvm::enumerate(sum.entries)) {
      entry = arith::MulFOp::create(b, entry, rowValue(lhs->scale, fragments.column(e)));
      if (!start.empty())
        entry = arith::AddFOp::create(b, entry, start[e]);
    }
  values[result] = {ChunkValue::Slab, sum.entries, {}, {}, false};
  return success();
}

LogicalResult ChunkEmitter::prepare(Operation *op) {
  if (auto product = dyn_cast<MatmulOp>(op)) {
    const ChunkValue *lhs = find(product.getLhs());
    if (lhs && lhs->kind == ChunkValue::Scores && !staged.count(product.getLhs()))
      staged[product.getLhs()] = stage(*lhs, /*negatedF32=*/false);
  }
  if (auto solve = dyn_cast<chunk::TriSolveOp>(op)) {
    const ChunkValue *scores = find(solve.getBlocks().front());
    if (solve.getRhs().size() != 1 || solve.getDecay() || !scores || scores->kind != ChunkValue::Scores)
      return failure();
    prepareSolve(solve, *scores);
  }
  return success();
}

// The inverses of the 16 x 16 diagonal blocks of I + N, by four warps, a column a lane.
void ChunkEmitter::prepareSolve(chunk::TriSolveOp op, const ChunkValue &scores) {
  SharedTile n = stage(scores, /*negatedF32=*/true);
  SharedTile inverse = allocate(chunkTokens, 16, 24, true);
  sync();
  Value inLeaf = arith::AndIOp::create(
      b, arith::CmpIOp::create(b, arith::CmpIPredicate::ult, fragments.warp, threads.constant(4)),
      arith::CmpIOp::create(b, arith::CmpIPredicate::ult, fragments.lane, threads.constant(16)));
  threads.when(inLeaf, [&] {
    Value block = arith::MulIOp::create(b, fragments.warp, threads.constant(16));
    SmallVector<Value> x;
    for (int64_t r = 0; r < 16; ++r) {
      Value isDiagonal = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, fragments.lane, threads.constant(r));
      Value sum = arith::SelectOp::create(b, isDiagonal, threads.number(1), threads.number(0));
      Value row = arith::AddIOp::create(b, block, threads.constant(r));
      for (int64_t s = 0; s < r; ++s) {
        Value at = fragments.address(n, row, arith::AddIOp::create(b, block, threads.constant(s)));
        Value factor = LLVM::LoadOp::create(b, b.getF32Type(), at);
        sum = arith::AddFOp::create(b, sum, arith::MulFOp::create(b, factor, x[s]));
      }
      x.push_back(sum);
      LLVM::StoreOp::create(b, sum, fragments.address(inverse, row, fragments.lane));
    }
  });
  dirty = true;
  solves[op] = {n, inverse};
}

// (I + N) U = R by blocks of 16 tokens: U_b = (I + N_bb)^-1 (R_b - sum of N_bj U_j). All in one warp's registers; tf32
// keeps U's range and three more bits.
LogicalResult ChunkEmitter::emitSolve(chunk::TriSolveOp op) {
  const SharedTile n = solves.lookup(op).first, inverse = solves.lookup(op).second;
  FailureOr<ChunkValue> rhs = asSlab(op.getRhs().front());
  if (failed(rhs))
    return failure();
  sync();
  SmallVector<Value> u(rhs->entries);
  // The pair of columns that a thread holds are two steps of depth: any order of depth will do, if both sides have it.
  auto leftOf = [&](ArrayRef<Value> tile) { return SmallVector<Value, 4>{tile[0], tile[2], tile[1], tile[3]}; };
  Value g = fragments.row(0), pair = fragments.column(0);
  auto rightOf = [&](const SharedTile &tile, int64_t row, int64_t col) {
    Value at = fragments.address(tile, arith::AddIOp::create(b, g, threads.constant(row)),
                                 arith::AddIOp::create(b, pair, threads.constant(col)));
    Value both = LLVM::LoadOp::create(b, VectorType::get(2, b.getF32Type()), at, 8);
    return SmallVector<Value, 2>{LLVM::ExtractElementOp::create(b, both, threads.constant(0)),
                                 LLVM::ExtractElementOp::create(b, both, threads.constant(1))};
  };
  for (int64_t block = 0; block < 4; ++block) {
    for (int64_t half : {0, 1}) {
      MutableArrayRef<Value> sum = MutableArrayRef(u).slice(block * 8 + half * 4, 4);
      for (int64_t j = 0; j < block * 2; ++j)
        fragments.multiplyF32(sum, leftOf(ArrayRef(u).slice(j * 4, 4)), rightOf(n, block * 16 + half * 8, j * 8));
    }
    SmallVector<Value> solved(8, threads.number(0));
    for (int64_t half : {0, 1})
      for (int64_t j : {0, 1})
        if (j <= half)
          fragments.multiplyF32(MutableArrayRef(solved).slice(half * 4, 4),
                                leftOf(ArrayRef(u).slice(block * 8 + j * 4, 4)),
                                rightOf(inverse, block * 16 + half * 8, j * 8));
    llvm::copy(solved, u.begin() + block * 8);
  }
  values[op.getResult(0)] = {ChunkValue::Slab, u, {}, {}, false};
  return success();
}

LogicalResult ChunkEmitter::emitElementwise(ElementwiseOp op) {
  Value result = op->getResult(0);
  // A product that waits to be added.
  if (isa<AddOp>(op)) {
    for (unsigned i : {1, 0}) {
      auto product = op->getOperand(i).getDefiningOp<MatmulOp>();
      if (!product || !product->hasOneUse())
        continue;
      Value other = op->getOperand(1 - i);
      if (!find(other)) { // two products: the other one first
        auto second = other.getDefiningOp<MatmulOp>();
        if (!second || failed(emitMatmul(second, {}, other)))
          return failure();
      }
      FailureOr<ChunkValue> sum = asSlab(other);
      return failed(sum) ? failure() : emitMatmul(product, sum->entries, result);
    }
  }
  SmallVector<const ChunkValue *> operands;
  bool anySlab = false, anyScores = false, anyTile = false, anyRows = false;
  for (Value operand : op->getOperands()) {
    const ChunkValue *value = find(operand);
    if (!value)
      return failure();
    anySlab |= value->kind == ChunkValue::Slab;
    anyScores |= value->kind == ChunkValue::Scores;
    anyTile |= value->kind == ChunkValue::Tile;
    anyRows |= value->kind == ChunkValue::Rows;
    operands.push_back(value);
  }
  // Scaled rows of a tile stay a promise.
  if (isa<MulOp>(op) && anyTile && anyRows && !anySlab && !anyScores) {
    unsigned at = operands[0]->kind == ChunkValue::Tile ? 0 : 1;
    if (operands[at]->scale || operands[at]->transposed || matType(op->getOperand(1 - at)).getCols() != Builder(op).getI64IntegerAttr(1))
      return failure();
    ChunkValue tile = *operands[at];
    tile.scale = operands[1 - at]->memory.base;
    values[result] = tile;
    return success();
  }
  SmallVector<ChunkValue> parts;
  if (anySlab || anyTile) {
    for (Value operand : op->getOperands()) {
      const ChunkValue *value = find(operand);
      if (value->kind == ChunkValue::Tile) {
        FailureOr<ChunkValue> slab = asSlab(operand);
        if (failed(slab))
          return failure();
        parts.push_back(*slab);
      } else if (value->kind == ChunkValue::Scores) {
        return failure();
      } else {
        parts.push_back(*value);
      }
    }
  } else {
    for (const ChunkValue *operand : operands)
      parts.push_back(*operand);
  }
  sync();
  if (!anySlab && !anyTile && !anyScores) {
    auto entryOf = [&](const ChunkValue &part, Value local) {
      return part.kind == ChunkValue::Rows ? rowValue(part.memory.base, local) : part.entries[0];
    };
    auto lower = [&](Value local) {
      SmallVector<Value> entries;
      for (const ChunkValue &part : parts)
        entries.push_back(entryOf(part, local));
      return op.lower(b, b.getLoc(), entries);
    };
    if (!anyRows) {
      values[result] = {ChunkValue::Scalar, {lower({})}, {}, {}, false};
      return success();
    }
    ChunkValue rows{ChunkValue::Rows, {}, allocate(1, chunkTokens, chunkTokens, true), {}, false};
    forRows([&](Value local) {
      LLVM::StoreOp::create(b, lower(local), fragments.address(rows.memory, threads.constant(0), local));
    });
    dirty = true;
    values[result] = rows;
    return success();
  }
  size_t count = 0;
  for (const ChunkValue &part : parts)
    if (part.kind == ChunkValue::Slab || part.kind == ChunkValue::Scores)
      count = part.entries.size();
  ChunkValue value{anyScores ? ChunkValue::Scores : ChunkValue::Slab, {}, {}, {}, false};
  for (size_t e = 0; e < count; ++e) {
    SmallVector<Value> entries;
    for (const ChunkValue &part : parts) {
      if (part.kind == ChunkValue::Scalar)
        entries.push_back(part.entries[0]);
      else if (part.kind == ChunkValue::Rows)
        entries.push_back(rowValue(part.memory.base, anyScores ? scoreRow(e) : fragments.column(e)));
      else if (part.entries.size() == count)
        entries.push_back(part.entries[e]);
      else
        return failure();
    }
    value.entries.push_back(op.lower(b, b.getLoc(), entries));
  }
  values[result] = value;
  return success();
}

//===----------------------------------------------------------------------===//
// What is supported
//===----------------------------------------------------------------------===//

int ChunkEmitter::stateDim(chunk::ProgramOp program) {
  Value state = program.argumentsOf(ArgKind::State).front();
  for (Operation *user : state.getUsers())
    if (isa<TransposeOp>(user))
      return 0;
  return 1;
}

bool ChunkEmitter::supports(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors) {
  auto states = program.argumentsOf(ArgKind::State);
  if (states.size() != 1)
    return false;
  MatType state = matType(states[0]);
  int dim = stateDim(program);
  int64_t slab = dim ? state.numCols() : state.numRows(), keys = dim ? state.numRows() : state.numCols();
  if ((slab != 64 && slab != 128) || keys % 32 || keys > 128)
    return false;
  // bf16 products suit bf16 tensors only.
  for (const TensorArgument &tensor : tensors)
    if (tensor.hasToken && tensor.own[1] && !tensor.element.isBF16())
      return false;
  auto init = program.getInit().front().getTerminator()->getOperand(0).getDefiningOp<ConstantOp>();
  if (!init)
    return false;
  bool known = true;
  program.getBody().walk([&](Operation *op) {
    for (Value value : op->getResults()) {
      auto type = dyn_cast<MatType>(value.getType());
      if (op->getParentOfType<chunk::MapOp>())
        known &= type && (type.isScalar() || (type.isVector() && isOne(type.getCols()) && type.numRows() % 32 == 0));
    }
    if (auto map = dyn_cast<chunk::MapOp>(op))
      known &= map.getCarried().empty() &&
               llvm::all_of(map->getOperandTypes(), [](Type type) { return isa<MatType>(type); }) &&
               llvm::all_of(map->getResultTypes(), [](Type type) { return isa<MatType>(type); });
    if (auto decay = dyn_cast<chunk::DecayOp>(op))
      known &= decay.getLog() && isOne(matType(decay.getFactors()).getCols());
    if (isa<chunk::CascadeOp, chunk::MaskOp, chunk::MixOp, chunk::ScanOp>(op))
      known = false;
  });
  for (BlockArgument argument : program.getBody().getArguments()) {
    auto type = dyn_cast<MatType>(argument.getType());
    ArgKind kind = program.getArg(argument.getArgNumber()).getKind();
    known &= type != nullptr;
    if (type && kind == ArgKind::Input && !isOne(type.getCols()))
      known &= cast<IntegerAttr>(type.getCols()).getInt() % 32 == 0;
    if (kind == ArgKind::Param)
      known &= llvm::all_of(argument.getUsers(), [](Operation *user) { return isa<chunk::MapOp>(user); });
  }
  return known;
}
