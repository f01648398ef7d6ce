// One linalg op on buffers as loops over vectors.
#include "lib/Cpu/LoopEmitter.h"
#include "lib/Cpu/VectorBuilder.h"
#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <limits>
#include <map>

using namespace mlir;
using namespace recur::cpu;

LoopEmitter::LoopEmitter(linalg::LinalgOp op, unsigned vectorWidth, unsigned accumulators)
    : op(op), vectorWidth(vectorWidth), accumulators(accumulators), b(op), loc(op.getLoc()),
      sizes(op.getStaticLoopRanges()), jam(sizes.size(), 1), places(sizes.size()) {
  for (auto [loop, iterator] : llvm::enumerate(op.getIteratorTypesArray()))
    (iterator == utils::IteratorType::reduction ? reductions : parallel).push_back(loop);
  for (OpOperand &init : op.getDpsInitsMutable())
    if (isSum(init))
      sums.push_back(&init);
}

void LoopEmitter::emit() {
  chooseVectorLoop();
  chooseJam();
  nest(parallel, {}, [&](ValueRange) { return sumUp(); });
}

//===----------------------------------------------------------------------===//
// Choices
//===----------------------------------------------------------------------===//

bool LoopEmitter::uses(OpOperand &operand, unsigned loop) {
  return op.getMatchingIndexingMap(&operand).isFunctionOfDim(loop);
}

bool LoopEmitter::isSum(OpOperand &init) {
  return llvm::any_of(reductions, [&](unsigned loop) { return !uses(init, loop); });
}

bool LoopEmitter::isVectorLoopIn(ArrayRef<unsigned> loops) {
  return vectorLoop >= 0 && llvm::is_contained(loops, static_cast<unsigned>(vectorLoop));
}

// How far apart in memory the entries for two neighbouring indices are; kDynamic if that is not known.
int64_t LoopEmitter::strideAlong(OpOperand &operand, unsigned loop) {
  if (!uses(operand, loop))
    return 0;
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(cast<MemRefType>(operand.get().getType()).getStridesAndOffset(strides, offset)))
    return ShapedType::kDynamic;
  AffineMap map = op.getMatchingIndexingMap(&operand);
  for (auto [dim, expression] : llvm::enumerate(map.getResults())) {
    if (!expression.isFunctionOfDim(loop))
      continue;
    bool isLast = dim + 1 == map.getNumResults();
    return isa<AffineDimExpr>(expression) && (isLast || strides[dim] != 1) ? strides[dim]
                                                                           : ShapedType::kDynamic;
  }
  return 0;
}

// The loop along which the fewest operands lie scattered, the longest of these, a parallel one if there is a
// choice.
void LoopEmitter::chooseVectorLoop() {
  int64_t leastScattered = std::numeric_limits<int64_t>::max();
  for (ArrayRef<unsigned> loops : {ArrayRef<unsigned>(parallel), ArrayRef<unsigned>(reductions)})
    for (unsigned loop : loops) {
      int64_t scattered = 0;
      for (OpOperand &operand : op->getOpOperands()) {
        if (!isa<MemRefType>(operand.get().getType()))
          continue;
        int64_t stride = strideAlong(operand, loop);
        if (stride == ShapedType::kDynamic)
          scattered = -1;
        if (scattered < 0)
          break;
        scattered += stride > 1;
      }
      if (scattered < 0 || sizes[loop] < 2)
        continue;
      if (scattered < leastScattered || (scattered == leastScattered && sizes[loop] > sizes[vectorLoop])) {
        leastScattered = scattered;
        vectorLoop = loop;
      }
    }
  if (isVectorLoopIn(parallel)) { // innermost among the parallel loops
    llvm::erase(parallel, static_cast<unsigned>(vectorLoop));
    parallel.push_back(vectorLoop);
  }
}

// Enough sums side by side to fill the pipeline of additions: strips of the vector loop, rows of another.
void LoopEmitter::chooseJam() {
  if (sums.empty() || parallel.empty())
    return;
  SmallVector<unsigned> rows;
  for (unsigned loop : parallel)
    if (static_cast<int>(loop) != vectorLoop && sizes[loop] > 1)
      rows.push_back(loop);
  int64_t left = accumulators;
  if (isVectorLoopIn(parallel)) {
    // A product of matrices has a use for all of AVX-512's registers.
    if (!rows.empty() && !reductions.empty() && vectorWidth == 16)
      left *= 2;
    int64_t strips = std::max<int64_t>(1, sizes[vectorLoop] / vectorWidth);
    jam[vectorLoop] = std::min(strips, rows.empty() ? left : 2);
    left /= jam[vectorLoop];
  }
  if (!rows.empty())
    jam[rows.back()] = std::min(sizes[rows.back()], std::max<int64_t>(1, left));
  // A strip of the right factor stays in the cache for all rows of the left one.
  if (!rows.empty() && !reductions.empty() && isVectorLoopIn(parallel))
    std::swap(*llvm::find(parallel, rows.back()), parallel.back());
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

SmallVector<LoopEmitter::Segment> LoopEmitter::segments(unsigned loop) {
  SmallVector<Segment> result;
  int64_t start = 0;
  bool isVector = static_cast<int>(loop) == vectorLoop;
  for (int64_t width = isVector ? vectorWidth : 1; width > 0; width /= 2) {
    int64_t passes = (sizes[loop] - start) / width, trips = passes / jam[loop], rest = passes % jam[loop];
    if (trips > 0)
      result.push_back({start, trips, jam[loop], width});
    if (rest > 0)
      result.push_back({start + trips * jam[loop] * width, 1, rest, width});
    start += passes * width;
  }
  return result;
}

SmallVector<Value> LoopEmitter::pass(unsigned loop, const Segment &segment, ValueRange sums, Next next) {
  auto index = [&](int64_t value) -> Value { return arith::ConstantIndexOp::create(b, loc, value); };
  places[loop].jam = segment.jam;
  places[loop].width = segment.width;
  if (segment.trips == 1) {
    places[loop].base = index(segment.start);
    return next(sums);
  }
  int64_t step = segment.jam * segment.width;
  auto loopOp = scf::ForOp::create(b, loc, index(segment.start), index(segment.start + segment.trips * step),
                                   index(step), sums);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loopOp.getBody());
  places[loop].base = loopOp.getInductionVar();
  SmallVector<Value> results = next(loopOp.getRegionIterArgs());
  if (!sums.empty())
    scf::YieldOp::create(b, loc, results);
  return loopOp.getResults();
}

// All passes of the loops in order, the first loop outermost.
SmallVector<Value> LoopEmitter::nest(ArrayRef<unsigned> loops, ValueRange sums, Next next) {
  if (loops.empty())
    return next(sums);
  SmallVector<Value> current(sums);
  for (const Segment &segment : segments(loops.front()))
    current = pass(loops.front(), segment, current,
                   [&](ValueRange inner) { return nest(loops.drop_front(), inner, next); });
  return current;
}

//===----------------------------------------------------------------------===//
// Sums
//===----------------------------------------------------------------------===//

// The op that adds to a sum: addf or maximumf.
static Operation *combiner(linalg::LinalgOp op, OpOperand &init) {
  unsigned result = init.getOperandNumber() - op.getNumDpsInputs();
  return op.getBlock()->getTerminator()->getOperand(result).getDefiningOp();
}

// Loads the sums at this place of the parallel loops, adds over the reduction loops, stores.
SmallVector<Value> LoopEmitter::sumUp() {
  if (isVectorLoopIn(reductions)) {
    sumAlongVectors();
    return {};
  }
  SmallVector<Value> current;
  for (const Instance &instance : instances())
    for (OpOperand *sum : sums)
      current.push_back(load(*sum, instance));
  current = nest(reductions, current, [&](ValueRange inner) { return body(inner); });
  auto value = current.begin();
  for (const Instance &instance : instances())
    for (OpOperand *sum : sums)
      store(*sum, instance, *value++);
  return {};
}

// Every lane of a vector has its own sum, and they meet at the end.
void LoopEmitter::sumAlongVectors() {
  SmallVector<Instance> all = instances();
  unsigned count = sums.size();
  auto others = llvm::to_vector(llvm::make_filter_range(
      reductions, [&](unsigned loop) { return static_cast<int>(loop) != vectorLoop; }));
  // For each sum one vector with the entries of all instances.
  SmallVector<Value> totals;
  for (OpOperand *sum : sums)
    totals.push_back(loadTogether(*sum, all));
  for (const Segment &segment : segments(vectorLoop)) {
    SmallVector<Value> lanes;
    for (size_t i = 0; i < all.size() * count; ++i) {
      Type type = getElementTypeOrSelf(totals[i % count]);
      if (segment.width > 1)
        type = VectorType::get(segment.width, type);
      lanes.push_back(neutral(*sums[i % count], type));
    }
    lanes = nest(others, lanes, [&](ValueRange inner) {
      return pass(vectorLoop, segment, inner, [&](ValueRange innermost) { return body(innermost); });
    });
    for (auto [k, sum] : llvm::enumerate(sums)) {
      SmallVector<Value> own;
      for (size_t i = 0; i < all.size(); ++i)
        own.push_back(lanes[i * count + k]);
      totals[k] = combine(*sum, totals[k], gather(*sum, own));
    }
  }
  places[vectorLoop] = {};
  for (auto [sum, total] : llvm::zip(sums, totals))
    storeTogether(*sum, all, total);
}

Value LoopEmitter::neutral(OpOperand &sum, Type type) {
  bool isAdd = isa<arith::AddFOp>(combiner(op, sum));
  FloatAttr number =
      b.getFloatAttr(getElementTypeOrSelf(type), isAdd ? 0 : -std::numeric_limits<double>::infinity());
  if (auto vector = dyn_cast<VectorType>(type))
    return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(vector, number));
  return arith::ConstantOp::create(b, loc, number);
}

Value LoopEmitter::combine(OpOperand &sum, Value x, Value y) {
  if (isa<arith::AddFOp>(combiner(op, sum)))
    return arith::AddFOp::create(b, loc, x, y);
  return arith::MaximumFOp::create(b, loc, x, y);
}

// Adds up the lanes of each vector, giving one vector with a lane for each.
Value LoopEmitter::gather(OpOperand &sum, ArrayRef<Value> vectors) {
  auto type = dyn_cast<VectorType>(vectors[0].getType());
  if (!type)
    return vectors.size() == 1 ? vectors[0] : joined(vectors);
  if (!llvm::isPowerOf2_64(vectors.size()) || static_cast<int64_t>(vectors.size()) > type.getNumElements()) {
    SmallVector<Value> scalars;
    for (Value vector : vectors)
      scalars.push_back(gather(sum, vector));
    return joined(scalars);
  }
  Value folded = foldLanes(b, loc, vectors, [&](Value x, Value y) { return combine(sum, x, y); });
  return vectors.size() == 1 ? vector::ExtractOp::create(b, loc, folded, 0).getResult() : folded;
}

Value LoopEmitter::joined(ArrayRef<Value> scalars) {
  auto type = VectorType::get(scalars.size(), scalars[0].getType());
  return vector::FromElementsOp::create(b, loc, type, scalars);
}

// Whether the entries of an operand for all instances are neighbours.
bool LoopEmitter::isRun(OpOperand &operand) {
  for (unsigned loop : parallel)
    if (places[loop].jam > 1 && strideAlong(operand, loop) != 1)
      return false;
  return llvm::count_if(parallel, [&](unsigned loop) { return places[loop].jam > 1; }) == 1;
}

Value LoopEmitter::loadTogether(OpOperand &operand, ArrayRef<Instance> all) {
  if (all.size() > 1 && isRun(operand)) {
    Type entry = cast<MemRefType>(operand.get().getType()).getElementType();
    return vector::LoadOp::create(b, loc, VectorType::get(all.size(), entry), operand.get(),
                                  indices(operand, all.front()));
  }
  SmallVector<Value> scalars =
      llvm::map_to_vector(all, [&](const Instance &each) { return load(operand, each); });
  return scalars.size() == 1 ? scalars[0] : joined(scalars);
}

void LoopEmitter::storeTogether(OpOperand &operand, ArrayRef<Instance> all, Value value) {
  if (all.size() > 1 && isRun(operand)) {
    vector::StoreOp::create(b, loc, value, operand.get(), indices(operand, all.front()));
    return;
  }
  for (auto [i, instance] : llvm::enumerate(all)) {
    Value entry = all.size() == 1 ? value : vector::ExtractOp::create(b, loc, value, i).getResult();
    store(operand, instance, entry);
  }
}

//===----------------------------------------------------------------------===//
// The body
//===----------------------------------------------------------------------===//

// All that this pass covers side by side.
SmallVector<LoopEmitter::Instance> LoopEmitter::instances() {
  SmallVector<Instance> result = {Instance(sizes.size(), 0)};
  for (unsigned loop : parallel) {
    SmallVector<Instance> wider;
    for (int64_t i = 0; i < places[loop].jam; ++i)
      for (Instance instance : result) {
        instance[loop] = i;
        wider.push_back(instance);
      }
    result = std::move(wider);
  }
  return result;
}

Value LoopEmitter::position(unsigned loop, int64_t instance) {
  if (instance == 0)
    return places[loop].base;
  Value offset = arith::ConstantIndexOp::create(b, loc, instance * places[loop].width);
  return arith::AddIOp::create(b, loc, places[loop].base, offset);
}

SmallVector<Value> LoopEmitter::indices(OpOperand &operand, const Instance &instance) {
  SmallVector<Value> result;
  for (AffineExpr expression : op.getMatchingIndexingMap(&operand).getResults()) {
    if (auto dim = dyn_cast<AffineDimExpr>(expression)) {
      result.push_back(position(dim.getPosition(), instance[dim.getPosition()]));
      continue;
    }
    SmallVector<Value> positions;
    for (unsigned loop = 0; loop < sizes.size(); ++loop)
      positions.push_back(expression.isFunctionOfDim(loop) ? position(loop, instance[loop])
                                                           : arith::ConstantIndexOp::create(b, loc, 0));
    AffineMap map = AffineMap::get(sizes.size(), 0, expression);
    result.push_back(affine::AffineApplyOp::create(b, loc, map, positions));
  }
  return result;
}

Value LoopEmitter::load(OpOperand &operand, const Instance &instance) {
  Value memory = operand.get();
  auto type = dyn_cast<MemRefType>(memory.getType());
  if (!type)
    return memory; // a scalar
  SmallVector<Value> place = indices(operand, instance);
  if (width() == 1 || !uses(operand, vectorLoop))
    return memref::LoadOp::create(b, loc, memory, place);
  auto vectorType = VectorType::get(width(), type.getElementType());
  if (strideAlong(operand, vectorLoop) == 1)
    return vector::LoadOp::create(b, loc, vectorType, memory, place);
  SmallVector<Value> lanes;
  for (int64_t lane = 0; lane < width(); ++lane) {
    SmallVector<Value> lanePlace = place;
    shift(operand, lanePlace, lane);
    lanes.push_back(memref::LoadOp::create(b, loc, memory, lanePlace));
  }
  return vector::FromElementsOp::create(b, loc, vectorType, lanes);
}

void LoopEmitter::store(OpOperand &operand, const Instance &instance, Value value) {
  Value memory = operand.get();
  SmallVector<Value> place = indices(operand, instance);
  if (width() == 1 || !uses(operand, vectorLoop)) {
    memref::StoreOp::create(b, loc, value, memory, place);
    return;
  }
  if (strideAlong(operand, vectorLoop) == 1) {
    vector::StoreOp::create(b, loc, spread(value), memory, place);
    return;
  }
  for (int64_t lane = 0; lane < width(); ++lane) {
    SmallVector<Value> lanePlace = place;
    shift(operand, lanePlace, lane);
    Value entry = value;
    if (isa<VectorType>(value.getType()))
      entry = vector::ExtractOp::create(b, loc, value, lane);
    memref::StoreOp::create(b, loc, entry, memory, lanePlace);
  }
}

// Moves a place by some indices of the vector loop.
void LoopEmitter::shift(OpOperand &operand, SmallVectorImpl<Value> &place, int64_t lanes) {
  for (auto [dim, expression] : llvm::enumerate(op.getMatchingIndexingMap(&operand).getResults()))
    if (expression.isFunctionOfDim(vectorLoop))
      place[dim] = arith::AddIOp::create(b, loc, place[dim], arith::ConstantIndexOp::create(b, loc, lanes));
}

Value LoopEmitter::spread(Value value) {
  if (width() == 1 || isa<VectorType>(value.getType()))
    return value;
  return vector::BroadcastOp::create(b, loc, VectorType::get(width(), value.getType()), value);
}

// One op of the body on what its operands have become: a scalar as long as they all are.
Value LoopEmitter::apply(Operation &inner, const Instance &instance, IRMapping &values) {
  if (auto index = dyn_cast<linalg::IndexOp>(inner)) {
    unsigned loop = index.getDim();
    Value base = position(loop, instance[loop]);
    if (static_cast<int>(loop) != vectorLoop || width() == 1)
      return base;
    SmallVector<int64_t> lanes = llvm::to_vector(llvm::seq<int64_t>(0, width()));
    auto type = VectorType::get(width(), b.getIndexType());
    Value offsets = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, ArrayRef<int64_t>(lanes)));
    return arith::AddIOp::create(b, loc, spread(base), offsets);
  }
  bool isVector = llvm::any_of(inner.getOperands(), [&](Value operand) {
    return isa<VectorType>(values.lookupOrDefault(operand).getType());
  });
  if (auto quotient = dyn_cast<arith::DivFOp>(inner); quotient && isVector) {
    // All entries are divided by the same number: one division, and as many products as there are entries.
    Value divisor = values.lookupOrDefault(quotient.getRhs());
    if (!isa<VectorType>(divisor.getType())) {
      FloatAttr one = b.getFloatAttr(divisor.getType(), 1);
      Value inverse = arith::DivFOp::create(b, loc, arith::ConstantOp::create(b, loc, one), divisor);
      return arith::MulFOp::create(b, loc, values.lookupOrDefault(quotient.getLhs()), spread(inverse));
    }
  }
  IRMapping operands;
  for (Value operand : inner.getOperands()) {
    Value value = values.lookupOrDefault(operand);
    operands.map(operand, isVector ? spread(value) : value);
  }
  Operation *copy = b.clone(inner, operands);
  Value result = copy->getResult(0);
  if (isVector)
    result.setType(VectorType::get(width(), result.getType()));
  return result;
}

// The op's region at this place, for all instances; first all loads, at last all stores.
SmallVector<Value> LoopEmitter::body(ValueRange start) {
  Block *block = op.getBlock();
  std::map<std::pair<unsigned, SmallVector<int64_t>>, Value> loaded;
  auto loadOnce = [&](OpOperand &operand, const Instance &instance) {
    SmallVector<int64_t> key;
    for (unsigned loop = 0; loop < sizes.size(); ++loop)
      key.push_back(uses(operand, loop) ? instance[loop] : 0);
    Value &value = loaded[{operand.getOperandNumber(), key}];
    return value ? value : value = load(operand, instance);
  };
  SmallVector<Instance> all = instances();
  SmallVector<IRMapping> values(all.size());
  auto sum = start.begin();
  for (auto [instance, mapping] : llvm::zip(all, values))
    for (OpOperand &operand : op->getOpOperands()) {
      BlockArgument argument = op.getMatchingBlockArgument(&operand);
      if (llvm::is_contained(sums, &operand))
        mapping.map(argument, *sum++);
      else if (!argument.use_empty())
        mapping.map(argument, loadOnce(operand, instance));
    }
  for (auto [instance, mapping] : llvm::zip(all, values))
    for (Operation &inner : block->without_terminator())
      mapping.map(inner.getResult(0), apply(inner, instance, mapping));
  SmallVector<Value> results;
  for (auto [instance, mapping] : llvm::zip(all, values))
    for (auto [init, yielded] : llvm::zip(op.getDpsInitsMutable(), block->getTerminator()->getOperands())) {
      Value value = mapping.lookupOrDefault(yielded);
      if (llvm::is_contained(sums, &init))
        results.push_back(value);
      else
        store(init, instance, value);
    }
  return results;
}
