// Conjugate gradients for all tokens of a chunk at once: what is a number for one system is a column here.
//
// The products of an iteration read f16 where that is safe: directions are kept at about 2^-6 of length, by
// powers of 2 for each token, rows that they meet have a norm of 1, and operands that stay the same are
// packed once, in units of their largest entry.
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/Convergence.h"
#include "lib/Cuda/SolvedPlan.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

//===----------------------------------------------------------------------===//
// Where f16 is safe
//===----------------------------------------------------------------------===//

static bool iteratesInHalves(chunk::ConjugateGradientsOp op) {
  Block &region = op.getProduct().front();
  Value direction = region.getArgument(0);
  auto isOuter = [&](Value value) { return value.getParentBlock() != &region; };
  auto isShort = [&](Value value) {
    if (auto product = value.getDefiningOp<MulOp>())
      for (unsigned i : {0, 1})
        if (auto weights = product->getOperand(i).getDefiningOp<chunk::WeightsOp>())
          return product->getOperand(1 - i) == direction && isOne(weights.getType().getCols());
    return value == direction || value.getDefiningOp<chunk::GramOp>();
  };
  return llvm::all_of(region, [&](Operation &inner) {
    if (auto product = dyn_cast<MatmulOp>(inner))
      return isShort(product.getLhs()) && isOuter(product.getRhs()) && !isOne(product.getType().getCols());
    if (auto gram = dyn_cast<chunk::GramOp>(inner))
      return gram.getLhs() == direction && isOuter(gram.getRhs()) && areUnitRows(gram.getRhs()) &&
             (!gram.getDecay() || onlyDecays(gram.getDecay()));
    return true;
  });
}

//===----------------------------------------------------------------------===//
// What stays the same
//===----------------------------------------------------------------------===//

LogicalResult ChunkEmitter::emitOuter(chunk::ConjugateGradientsOp op, SmallVectorImpl<Value> &outer) {
  Block &region = op.getProduct().front();
  llvm::DenseSet<Value> inside{region.getArgument(0)};
  for (Operation &inner : region) {
    bool isSame = !isa<chunk::YieldOp>(inner);
    for (Value operand : inner.getOperands()) {
      if (inside.contains(operand)) {
        isSame = false;
        continue;
      }
      bool isDecay = !isa<MatType>(operand.getType());
      if (isDecay ? failed(emitDecayOf(operand)) : failed(need(operand)))
        return failure();
      ++usesLeft[operand];
      outer.push_back(operand);
    }
    if (!isSame) {
      inside.insert(inner.result_begin(), inner.result_end());
      continue;
    }
    for (Value result : inner.getResults()) {
      ++usesLeft[result];
      outer.push_back(result);
    }
    if (failed(emitOp(&inner)))
      return failure();
  }
  return success();
}

LogicalResult ChunkEmitter::packOuter(chunk::ConjugateGradientsOp op) {
  for (auto product : op.getProduct().getOps<MatmulOp>()) {
    FailureOr<ChunkValue> slab = asSlab(product.getRhs());
    if (failed(slab) || slab->dim != 1)
      return failure();
    slabsAhead[product.getRhs()] = packInUnits(slab->entries, slab->rows);
  }
  for (auto gram : op.getProduct().getOps<chunk::GramOp>()) {
    FailureOr<ChunkValue> rows = asTile(gram.getRhs());
    if (failed(rows))
      return failure();
    set(gram.getRhs(), *rows);
    sync();
    weightsAhead[gram] = weighScores(gram);
  }
  return success();
}

//===----------------------------------------------------------------------===//
// The iterations
//===----------------------------------------------------------------------===//

Value ChunkEmitter::powerOf(Value biased) {
  return arith::BitcastOp::create(b, b.getF32Type(), arith::ShLIOp::create(b, biased, threads.constant(23)));
}

Value ChunkEmitter::exponentOf(Value number) {
  return arith::ShRUIOp::create(b, arith::BitcastOp::create(b, b.getI32Type(), number), threads.constant(23));
}

Value ChunkEmitter::unitOf(Value most, int64_t more) {
  Value biased = arith::MaxSIOp::create(b, exponentOf(most), threads.constant(127 - 40));
  return powerOf(add(arith::MinSIOp::create(b, biased, threads.constant(127 + 40)), more));
}

Value ChunkEmitter::inverseOf(Value power) {
  Value bits = arith::BitcastOp::create(b, b.getI32Type(), power);
  return arith::BitcastOp::create(b, b.getF32Type(),
                                  arith::SubIOp::create(b, threads.constant(int64_t(254) << 23), bits));
}

void ChunkEmitter::sumRows(const ChunkValue &x, const ChunkValue &y,
                           llvm::function_ref<void(Value at, Value sum)> body) {
  SharedTile parts = allocate(warps, tokens, tokens, true);
  SmallVector<Value> sums(tokens / 4, threads.number(0));
  for (size_t e = 0; e < x.entries.size(); ++e) {
    Value &sum = sums[e / 4 * 2 + e % 2];
    sum = plus(sum, multiply(x.entries[e], y.entries[e]));
  }
  // Eight lanes have entries of a token: of two that exchange, each goes on with half of the tokens.
  for (int64_t distance : {16, 8, 4}) {
    Value isUpper = arith::CmpIOp::create(
        b, arith::CmpIPredicate::ne, arith::AndIOp::create(b, fragments.lane, threads.constant(distance)),
        threads.constant(0));
    size_t half = sums.size() / 2;
    for (size_t i = 0; i < half; ++i)
      sums[i] = plus(choose(isUpper, sums[i + half], sums[i]),
                     shuffle(choose(isUpper, sums[i], sums[i + half]), distance));
    sums.truncate(half);
  }
  for (auto [i, sum] : llvm::enumerate(sums)) {
    Value place = add(times(over(fragments.lane, 4), sums.size()), i);
    Value token = add(times(over(place, 2), 8), times(modulo(fragments.lane, 4), 2));
    store(parts, fragments.warp, add(token, modulo(place, 2)), sum);
  }
  dirty = true;
  sync();
  forItems(tokens, [&](Value local) {
    Value sum = load(parts, threads.constant(0), local);
    for (int64_t warp = 1; warp < std::min(padded(x.rows) / 16, warps); ++warp)
      sum = plus(sum, load(parts, threads.constant(warp), local));
    body(local, sum);
  });
  dirty = true;
}

LogicalResult ChunkEmitter::emitConjugateGradients(chunk::ConjugateGradientsOp op) {
  FailureOr<ChunkValue> rhs = asSlab(op.getRhs());
  SmallVector<Value> outer; // lives until after the loop
  if (failed(rhs) || rhs->dim != 1 || failed(emitOuter(op, outer)))
    return failure();
  Block &region = op.getProduct().front();
  BlockArgument argument = region.getArgument(0);
  SmallVector<std::pair<Value, ChunkValue>> wide;
  bool isNarrow = fragments.isNarrow;
  if (fragments.precision == Precision::Tf32 && iteratesInHalves(op)) {
    for (auto gram : op.getProduct().getOps<chunk::GramOp>())
      wide.push_back({gram.getRhs(), values[gram.getRhs()]});
    fragments.isNarrow = true;
    if (failed(packOuter(op)))
      return failure();
  }
  size_t n = rhs->entries.size();
  // Of each token: the residual's squared norm, and the goal (Convergence.h); what the direction is
  // multiplied with, and its inverse; and what is added where.
  ChunkValue size = ChunkValue::column(allocateRows(tokens)), goal = size, scale = size, inverse = size,
             step = size, ratio = size;
  for (ChunkValue *rows : {&goal, &scale, &inverse, &step, &ratio})
    rows->memory = allocateRows(tokens);
  Ptx ptx(b);
  double eps = op.getEps().convertToDouble();
  bool canEnd = Convergence::canEnd(eps, digitsOf(op));
  Convergence convergence(b, eps, op.getIterations(), digitsOf(op));
  auto quotient = [&](Value num, Value den) -> Value {
    Value sum = plus(den, threads.number(eps)), zero = threads.number(0);
    Value isZero = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, zero);
    return choose(isZero, zero, arith::DivFOp::create(b, num, sum));
  };
  // Returns the scale.
  auto storeSize = [&](Value at, Value sum) {
    Value twice = arith::SubIOp::create(b, exponentOf(sum), threads.constant(127));
    Value half = arith::ShRSIOp::create(b, twice, threads.constant(1));
    Value biased = arith::SubIOp::create(b, threads.constant(127 - 6), half), power = powerOf(biased);
    storeRow(size.memory, at, sum);
    storeRow(scale.memory, at, power);
    storeRow(inverse.memory, at, powerOf(arith::SubIOp::create(b, threads.constant(254), biased)));
    return power;
  };
  sumRows(*rhs, *rhs, storeSize);
  sync();
  // The solution, the residual, the direction.
  SmallVector<Value> inits(n, threads.number(0));
  llvm::append_range(inits, rhs->entries);
  for (auto [e, entry] : llvm::enumerate(rhs->entries))
    inits.push_back(multiply(entry, entryOf(scale, fragments.column(e))));
  LogicalResult status = success();
  auto iterate = [&](Value number, ValueRange carried) -> std::pair<Values, Value> {
    SmallVector<Value> next(carried);
    MutableArrayRef<Value> x = MutableArrayRef(next).take_front(n), r = MutableArrayRef(next).slice(n, n),
                           p = MutableArrayRef(next).take_back(n);
    ChunkValue direction = ChunkValue::slab(p, rhs->rows), residual;
    set(argument, direction);
    moved[argument] = moveSlab(direction, /*isF32=*/false);
    FailureOr<ChunkValue> image = asSlab(region.getTerminator()->getOperand(0));
    if (failed(image) || image->entries.size() != n) {
      status = failure();
      return {next, Value()};
    }
    sumRows(direction, *image, [&](Value at, Value sum) {
      Value one = entryOf(inverse, at), slope = multiply(multiply(sum, one), one), known = entryOf(size, at);
      Value length = quotient(known, slope);
      storeRow(step.memory, at, multiply(length, one));
      if (canEnd)
        threads.when(ptx.equal(number, 0),
                     [&] { storeRow(goal.memory, at, convergence.goalOf(known, length)); });
    });
    sync();
    for (size_t e = 0; e < n; ++e) {
      Value length = entryOf(step, fragments.column(e));
      x[e] = plus(x[e], multiply(length, p[e]));
      r[e] = arith::SubFOp::create(b, r[e], multiply(length, image->entries[e]));
    }
    residual = ChunkValue::slab(r, rhs->rows);
    sumRows(residual, residual, [&](Value at, Value sum) {
      Value part = multiply(quotient(sum, entryOf(size, at)), entryOf(inverse, at));
      storeRow(ratio.memory, at, multiply(part, storeSize(at, sum)));
    });
    sync();
    for (size_t e = 0; e < n; ++e) {
      Value token = fragments.column(e);
      p[e] = plus(multiply(r[e], entryOf(scale, token)), multiply(entryOf(ratio, token), p[e]));
    }
    // Each warp asks for all tokens.
    Value isOpen;
    for (int64_t first = 0; canEnd && first < tokens; first += 32) {
      Value token = add(modulo(fragments.lane, std::min<int64_t>(tokens, 32)), first);
      Value is = convergence.isOpen(number, entryOf(size, token), entryOf(goal, token));
      isOpen = isOpen ? arith::OrIOp::create(b, isOpen, is).getResult() : is;
    }
    if (isOpen)
      isOpen = ptx.any(isOpen);
    // What an iteration leaves in shared memory was read before the last barrier.
    for (Operation &inner : region)
      for (Value made : inner.getResults())
        if (!llvm::is_contained(outer, made)) {
          values.erase(made);
          staged.erase(made);
        }
    values.erase(argument);
    moved.erase(argument);
    return {next, isOpen};
  };
  iterates = true;
  Values last = runSteps(b, op.getIterations(), inits, iterate);
  iterates = false;
  dirty = true;
  fragments.isNarrow = isNarrow;
  slabsAhead.clear();
  weightsAhead.clear();
  for (auto &[value, known] : wide)
    set(value, known);
  for (Value operand : outer)
    if (--usesLeft[operand] == 0) {
      values.erase(operand);
      staged.erase(operand);
      decays.erase(operand);
    }
  set(op, ChunkValue::slab(SmallVector<Value>(ArrayRef(last).take_front(n)), rhs->rows));
  return status;
}
