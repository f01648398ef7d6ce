// The ops of a chunk program between tokens.
#include "lib/Cpu/Chunk.h"
#include "lib/Cpu/ChunkLdl.h"
#include "lib/Cpu/ChunkProducts.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/IR/AttrTypeSubElements.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

OwningOpRef<chunk::ProgramOp> cpu::bindLength(chunk::ProgramOp program, int64_t length) {
  OwningOpRef<chunk::ProgramOp> bound(program.clone());
  Attribute symbol = program.getLengthAttr(), size = Builder(program.getContext()).getI64IntegerAttr(length);
  auto dim = [&](Attribute dim) { return dim == symbol ? size : dim; };
  AttrTypeReplacer replacer;
  replacer.addReplacement([&](MatType type) {
    return MatType::get(type.getContext(), dim(type.getRows()), dim(type.getCols()));
  });
  replacer.recursivelyReplaceElementsIn(*bound, /*replaceAttrs=*/false, /*replaceLocs=*/false,
                                        /*replaceTypes=*/true);
  return bound;
}

LogicalResult ChunkLowering::lower(Block &block) {
  for (Operation &op : block.without_terminator())
    if (failed(lower(op)))
      return failure();
  return success();
}

// The product that a sum takes up: one that nothing else uses is added where the other operand lies.
static MatmulOp productInto(Operation &op) {
  if (!isa<AddOp>(op) || op.getOperand(0).getType() != op.getOperand(1).getType())
    return {};
  for (unsigned i : {1u, 0u})
    if (auto product = op.getOperand(i).getDefiningOp<MatmulOp>())
      if (product->hasOneUse() && product->getBlock() == op.getBlock())
        return product;
  return {};
}

static bool isTakenUp(Operation &op) {
  return isa<MatmulOp>(op) && op.hasOneUse() && productInto(**op.user_begin()) == &op;
}

LogicalResult ChunkLowering::lower(Operation &op) {
  auto set = [&](Matrix matrix) {
    ops.matrices[op.getResult(0)] = std::move(matrix);
    return success();
  };
  if (MatmulOp product = productInto(op)) {
    Value other = op.getOperand(op.getOperand(0) == product.getResult() ? 1 : 0);
    return set(lowerProduct(product, other));
  }
  if (isTakenUp(op))
    return success();
  // What is 0 above the diagonal stays so when it is scaled or added to its like.
  auto isTriangular = [&](Value value) { return triangular.contains(value); };
  if ((isa<MulOp>(op) && llvm::any_of(op.getOperands(), isTriangular)) ||
      (isa<AddOp, SubOp, NegOp>(op) && llvm::all_of(op.getOperands(), isTriangular)))
    triangular.insert(op.getResult(0));
  return TypeSwitch<Operation *, LogicalResult>(&op)
      .Case([&](MatmulOp product) { return set(lowerProduct(product, {})); })
      .Case([&](chunk::DecayOp decay) { return lowerDecay(decay), success(); })
      .Case([&](chunk::CascadeOp cascade) { return lowerCascade(cascade), success(); })
      .Case([&](chunk::MaskOp mask) {
        triangular.insert(mask);
        ChunkBuilder v = builder(op.getLoc());
        return set(decays[mask.getDecay()].mask(v, mask.getReach(), mask.getTo(), mask.getFrom()));
      })
      .Case([&](chunk::WeightsOp weights) {
        ChunkBuilder v = builder(op.getLoc());
        return set(
            decays[weights.getDecay()].weights(v, weights.getSpan(), weights.getTo(), weights.getFrom()));
      })
      .Case([&](chunk::GramOp gram) { return lowerGram(gram), success(); })
      .Case([&](chunk::MixOp mix) { return lowerMix(mix), success(); })
      .Case([&](chunk::TriSolveOp solve) { return lowerTriSolve(solve), success(); })
      .Case([&](chunk::SubstituteOp substitute) { return lowerSubstitute(substitute); })
      .Case([&](chunk::LdlOp ldl) { return lowerLdl(ldl), success(); })
      .Case([&](chunk::ScanOp scan) { return lowerScan(scan), success(); })
      .Case([&](chunk::MapOp map) { return lowerMap(map); })
      .Case([&](chunk::ConjugateGradientsOp solve) { return lowerConjugateGradients(solve); })
      .Default([&](Operation *) { return ops.lower(op); });
}

//===----------------------------------------------------------------------===//
// Decays and products between tokens
//===----------------------------------------------------------------------===//

void ChunkLowering::lowerDecay(chunk::DecayOp op) {
  ChunkBuilder v = builder(op.getLoc());
  Matrix factors = matrix(op.getFactors());
  if (factors.sizes[1] > 1)
    factors = {MatrixBuilder(b, op.getLoc()).stored(factors, {0, 1}), {0, 1}, factors.sizes};
  decays[op] = ChunkDecay(v, op, factors);
}

void ChunkLowering::lowerCascade(chunk::CascadeOp op) {
  ChunkBuilder v = builder(op.getLoc());
  SmallVector<Matrix> entries =
      llvm::map_to_vector(op.getFactors(), [&](Value factor) { return matrix(factor); });
  decays[op] = ChunkDecay(v, op, entries);
}

void ChunkLowering::lowerGram(chunk::GramOp op) {
  ChunkBuilder v = builder(op.getLoc());
  const ChunkDecay *decay = op.getDecay() ? &decays[op.getDecay()] : nullptr;
  Value result = emitGram(v, matrix(op.getLhs()), matrix(op.getRhs()), decay, op.getReach());
  ops.matrices[op] = v.matrixOf(result);
  triangular.insert(op);
}

void ChunkLowering::lowerMix(chunk::MixOp op) {
  ChunkBuilder v = builder(op.getLoc());
  Matrix values = matrix(op.getValues());
  Value result = v.allocate(values.sizes);
  emitMix(v, v.memoryOf(matrix(op.getScores())), v.memoryOf(values),
          v.memoryOf(decays[op.getDecay()].factors), op.getReach(), result);
  ops.matrices[op] = v.matrixOf(result);
}

// Memory with a value's entries, to be written: its own where nothing else reads it.
Value ChunkLowering::ownMemory(ChunkBuilder &v, Value value) {
  Value stored = MatrixBuilder(b, v.getLoc()).stored(matrix(value), {0, 1}), source = value;
  while (source.hasOneUse() && source.getDefiningOp<TransposeOp>())
    source = source.getDefiningOp()->getOperand(0);
  if (source.hasOneUse())
    return v.ownMemoryOf(stored);
  Value copy = v.allocate(cast<RankedTensorType>(stored.getType()).getShape());
  memref::CopyOp::create(b, v.getLoc(), v.memoryOf(stored), copy);
  return copy;
}

// lhs * rhs, plus what is to be added, if anything.
Matrix ChunkLowering::lowerProduct(MatmulOp op, Value added) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc);
  Matrix lhs = matrix(op.getLhs()), rhs = matrix(op.getRhs());
  if (triangular.contains(op.getLhs()) && lhs.axes.size() == 2) {
    ChunkBuilder v = builder(loc);
    std::array<int64_t, 2> sizes = {lhs.sizes[0], rhs.sizes[1]};
    Value result = added ? ownMemory(v, added) : v.ownMemoryOf(m.stored(m.constant(sizes, 0), {0, 1}));
    emitTriangularProduct(v, v.memoryOf(lhs), v.memoryOf(rhs), result);
    return v.matrixOf(result);
  }
  return added ? m.addProduct(matrix(added), lhs, rhs) : m.product(lhs, rhs);
}

void ChunkLowering::lowerTriSolve(chunk::TriSolveOp op) {
  ChunkBuilder v = builder(op.getLoc());
  MatrixBuilder m(b, op.getLoc());
  SmallVector<Value> blocks, sides, factors;
  for (Value factor : op.getFactors())
    factors.push_back(v.memoryOf(m.stored(matrix(factor), {0, 1})));
  for (Value side : op.getRhs())
    sides.push_back(ownMemory(v, side));
  for (Value block : op.getBlocks()) {
    Matrix entries = matrix(block);
    bool isZero = entries.isUniform() && matchPattern(entries.value, m_AnyZeroFloat());
    blocks.push_back(isZero ? Value() : v.memoryOf(entries));
  }
  Value decay = op.getDecay() ? v.memoryOf(decays[op.getDecay()].factors) : Value();
  emitTriangularSolve(v, blocks, sides, factors, decay, op.getReach());
  for (auto [result, side] : llvm::zip(op.getResults(), sides))
    ops.matrices[result] = v.matrixOf(side);
}

bool cpu::isWide(BlockArgument state) {
  auto op = state.hasOneUse() ? dyn_cast<chunk::LdlOp>(*state.user_begin()) : chunk::LdlOp();
  return op && op.getState() == state && op.getLast().hasOneUse() &&
         isa<chunk::YieldOp>(*op.getLast().user_begin()) && naturalAxes(matType(state)).size() == 2;
}

void ChunkLowering::lowerLdl(chunk::LdlOp op) {
  ChunkBuilder v = builder(op.getLoc());
  Matrix state = matrix(op.getState());
  auto memory = [&](Value value) { return v.memoryOf(matrix(value)); };
  auto result = [&](Value value) { return value.use_empty() ? Value() : v.allocate(sizesOf(value)); };
  auto type = dyn_cast<RankedTensorType>(state.value.getType());
  bool wide = type && type.getElementType().isF64();
  LdlMemory m;
  m.state = wide ? v.ownMemoryOf(state.value) : emitConverted(v, v.memoryOf(state), v.getF64Type());
  m.keys = memory(op.getKeys());
  m.decays = memory(op.getDecays()), m.weights = memory(op.getWeights()), m.offsets = memory(op.getOffsets());
  m.lower = result(op.getLower()), m.denominators = result(op.getDenominators());
  m.reads = result(op.getReads()), m.gains = result(op.getGains());
  emitLdl(v, m);
  for (auto [value, stored] :
       {std::pair(Value(op.getLower()), m.lower), std::pair(Value(op.getReads()), m.reads),
        std::pair(Value(op.getGains()), m.gains), std::pair(Value(op.getDenominators()), m.denominators)})
    if (stored)
      ops.matrices[value] = v.matrixOf(stored);
  triangular.insert(op.getLower());
  if (wide)
    ops.matrices[op.getLast()] = {v.tensorOf(m.state, /*writable=*/true), state.axes, state.sizes};
  else
    ops.matrices[op.getLast()] = v.matrixOf(emitConverted(v, m.state, v.getF32Type()));
}

//===----------------------------------------------------------------------===//
// Conjugate gradients
//===----------------------------------------------------------------------===//

// All rows at once: what is a number for one system is a column here.
LogicalResult ChunkLowering::lowerConjugateGradients(chunk::ConjugateGradientsOp op) {
  Location loc = op.getLoc();
  MatrixBuilder m(b, loc);
  Matrix rhs = matrix(op.getRhs());
  std::array<int64_t, 2> column = {rhs.sizes[0], 1};
  SmallVector<unsigned, 2> axes = naturalAxes(matType(op.getRhs()));
  auto dots = [&](const Matrix &x, const Matrix &y) {
    return m.reduce(Reduction::Sum, m.mul(x, y), /*rows=*/false, /*cols=*/true);
  };
  auto quotient = [&](const Matrix &num, const Matrix &den) {
    return m.map(column, {num, den}, [&](ValueRange e) -> Value {
      Value zero = m.number(0),
            sum = arith::AddFOp::create(b, loc, e[1], m.number(op.getEps().convertToDouble()));
      Value isZero = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OEQ, sum, zero);
      return arith::SelectOp::create(b, loc, isZero, zero, arith::DivFOp::create(b, loc, e[0], sum));
    });
  };
  auto index = [&](int64_t value) -> Value { return arith::ConstantIndexOp::create(b, loc, value); };
  Value start = m.stored(rhs, axes);
  SmallVector<Value> inits = {m.stored(m.constant(rhs.sizes, 0), axes), ownCopy(b, loc, start),
                              ownCopy(b, loc, start), m.stored(dots(rhs, rhs), {0})};
  auto loop = scf::ForOp::create(b, loc, index(0), index(op.getIterations()), index(1), inits);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(loop.getBody());
    auto carried = loop.getRegionIterArgs();
    Matrix x{carried[0], axes, rhs.sizes}, residual{carried[1], axes, rhs.sizes},
        direction{carried[2], axes, rhs.sizes}, size{carried[3], {0}, column};
    Block &product = op.getProduct().front();
    ops.matrices[product.getArgument(0)] = direction;
    if (failed(lower(product)))
      return failure();
    Matrix image = matrix(product.getTerminator()->getOperand(0));
    Matrix step = quotient(size, dots(direction, image));
    Matrix nextX = m.add(x, m.mul(step, direction));
    Matrix nextResidual = m.sub(residual, m.mul(step, image));
    Matrix nextSize = dots(nextResidual, nextResidual);
    Matrix nextDirection = m.add(nextResidual, m.mul(quotient(nextSize, size), direction));
    scf::YieldOp::create(b, loc, storeCarried(m, {nextX, nextResidual, nextDirection, nextSize}, carried));
  }
  ops.matrices[op] = {loop.getResult(0), axes, rhs.sizes};
  return success();
}
