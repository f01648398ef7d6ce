// The steps of conjugate gradients, all in registers.
//
// A token's residual and direction are kept as multiples by a power of 2 such that the residual is about 2^6
// long; its solution, as f16 multiples of what a step adds. After more and more steps, and wherever numbers
// leave f16's range before, the solution is added to what lies in shared memory, and the powers are chosen
// anew.
#include "lib/Cuda/SolvedEmitter.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

Values SolvedEmitter::Steps::all() const {
  Values values;
  for (const Values *part : {&found, &residual, &direction})
    llvm::append_range(values, *part);
  for (const Pair *pair : {&size, &scale, &unit, &goal})
    llvm::append_range(values, *pair);
  return values;
}

SolvedEmitter::Steps SolvedEmitter::Steps::of(ValueRange values, size_t entries) {
  Steps at;
  auto take = [&](auto &&to, size_t count) {
    llvm::copy(values.take_front(count), to);
    values = values.drop_front(count);
  };
  take(std::back_inserter(at.found), entries / 2);
  take(std::back_inserter(at.residual), entries);
  take(std::back_inserter(at.direction), entries / 2);
  for (Pair *pair : {&at.size, &at.scale, &at.unit, &at.goal})
    take(pair->begin(), 2);
  return at;
}

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

Value SolvedEmitter::greatest(Value number) {
  for (int64_t distance : {1, 2})
    number = arith::MaximumFOp::create(b, number, chunk.shuffle(number, distance));
  return number;
}

Value SolvedEmitter::sumOfFour(Value number) {
  for (int64_t distance : {1, 2})
    number = ptx.sum(number, chunk.shuffle(number, distance));
  return number;
}

// 0 where the divisor is.
Value SolvedEmitter::quotient(Value num, Value den) {
  Value isThere =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, math::AbsFOp::create(b, den), number(0x1p-126));
  return ptx.choose(isThere, ptx.multiply(num, ptx.reciprocal(den)), number(0));
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

// The solution with what the steps since the last time have added; stored back, or as it is.
Values SolvedEmitter::addFound(const Steps &at, bool store) {
  Pair factor;
  for (unsigned h : {0, 1})
    factor[h] = ptx.multiply(at.unit[h], chunk.inverseOf(at.scale[h]));
  Value place = ptx.add(ptx.mul(thread, 16), LLVM::PtrToIntOp::create(b, b.getI32Type(), solution.base));
  Values sums;
  for (size_t e = 0; e < at.residual.size(); e += 4) {
    Values known = ptx.loadFloats(place, e / 4 * 2048, 4);
    for (unsigned h : {0, 1})
      for (auto [i, more] : llvm::enumerate(ptx.unpackF16(at.found[e / 2 + h])))
        known[2 * h + i] = ptx.sum(known[2 * h + i], ptx.multiply(more, factor[h]));
    if (store)
      ptx.store(place, e / 4 * 2048, known);
    llvm::append_range(sums, known);
  }
  return sums;
}

// Before a step's length is taken: adds up where it is time. `change` is what the residual was multiplied
// with.
SolvedEmitter::Steps SolvedEmitter::settle(Value number, Steps at, const Pair &length, Pair &change) {
  // Steps 0, 1, 2, 4, 8, 16 and so on: the first ones add most.
  Value isTime = ptx.equal(arith::AndIOp::create(b, number, ptx.add(number, -1)), 0), isWild;
  for (unsigned h : {0, 1}) {
    auto exceeds = [&](Value x, Value most) {
      Value is = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, x, most);
      isWild = isWild ? arith::OrIOp::create(b, isWild, is).getResult() : is;
    };
    exceeds(math::AbsFOp::create(b, length[h]), ptx.multiply(at.unit[h], this->number(64)));
    exceeds(at.size[h], this->number(0x1p24));
  }
  isTime = arith::OrIOp::create(b, isTime, ptx.any(isWild));
  Values known = at.all();
  known.append(2, this->number(1));
  auto branch = scf::IfOp::create(b, ValueRange(known).getTypes(), isTime, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(branch.elseBlock());
  scf::YieldOp::create(b, known);
  b.setInsertionPointToStart(branch.thenBlock());
  threads.when(ptx.compare(arith::CmpIPredicate::ne, number, ptx.constant(0)),
               [&] { addFound(at, /*store=*/true); });
  at.found.assign(at.found.size(), ptx.constant(0));
  Pair factor, pairs;
  Value isFirst = ptx.equal(number, 0);
  for (unsigned h : {0, 1}) {
    Value inverse = chunk.inverseOf(at.scale[h]);
    Value size = ptx.multiply(at.size[h], ptx.multiply(inverse, inverse));
    at.goal[h] = ptx.choose(isFirst, convergence.goalOf(size, length[h]), at.goal[h]);
    // 2^6 over the residual's length, within what f16 holds, and none where the residual is 0 or has been
    // multiplied with much already.
    Value twice = arith::SubIOp::create(b, chunk.exponentOf(at.size[h]), ptx.constant(127));
    Value power =
        arith::SubIOp::create(b, ptx.constant(6), arith::ShRSIOp::create(b, twice, ptx.constant(1)));
    power = arith::MinSIOp::create(b, arith::MaxSIOp::create(b, power, ptx.constant(-14)), ptx.constant(14));
    Value isLarge = arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, at.scale[h], this->number(0x1p40));
    Value isSmall = arith::CmpFOp::create(b, arith::CmpFPredicate::OLE, at.scale[h], this->number(0x1p-40));
    isLarge = arith::OrIOp::create(b, isLarge,
                                   ptx.equal(arith::BitcastOp::create(b, b.getI32Type(), at.size[h]), 0));
    power = ptx.choose(arith::OrIOp::create(b, isLarge, isSmall), ptx.constant(0), power);
    factor[h] = chunk.powerOf(ptx.add(power, 127));
    pairs[h] = ptx.packF16(factor[h], factor[h]);
    at.size[h] = ptx.multiply(at.size[h], ptx.multiply(factor[h], factor[h]));
    at.scale[h] = ptx.multiply(at.scale[h], factor[h]);
    at.unit[h] = chunk.unitOf(math::AbsFOp::create(b, length[h]), 0);
  }
  for (auto [e, entry] : llvm::enumerate(at.residual))
    entry = ptx.multiply(entry, factor[half(e)]);
  for (auto [i, entry] : llvm::enumerate(at.direction))
    entry = ptx.multiplyPairs(entry, pairs[half(2 * i)]);
  Values next = at.all();
  llvm::append_range(next, factor);
  scf::YieldOp::create(b, next);
  ValueRange results = branch.getResults();
  change = {results[results.size() - 2], results[results.size() - 1]};
  return Steps::of(results.drop_back(2), entries);
}

SolvedEmitter::Steps SolvedEmitter::step(Value number, Steps at) {
  Values image = product(at.direction, state, keys, stateWeights);
  // What the direction's square is by the token's matrix.
  Values slopes(4, this->number(0)), squares = slopes;
  Value place = ptx.mul(ptx.bits(thread, 3), 8);
  if (diagonal.base)
    place = ptx.add(place, LLVM::PtrToIntOp::create(b, b.getI32Type(), diagonal.base));
  for (size_t e = 0; e < image.size(); e += 4) {
    Values more;
    if (diagonal.base)
      more = ptx.loadFloats(place, e / 4 * 32, 2);
    for (unsigned h : {0, 1})
      for (auto [i, entry] : llvm::enumerate(ptx.unpackF16(at.direction[e / 2 + h]))) {
        Value &own = image[e + 2 * h + i];
        if (diagonal.base)
          own = ptx.sum(own, ptx.multiply(entry, more[i]));
        if (ownDiagonal[h])
          own = ptx.sum(own, ptx.multiply(entry, ownDiagonal[h]));
        slopes[2 * h + i] = ptx.sum(slopes[2 * h + i], ptx.multiply(entry, own));
      }
  }
  double eps = plan.solve.getEps().convertToDouble();
  auto divisor = [&](Value den, Value scale) {
    return eps == 0 ? den : ptx.sum(den, ptx.multiply(this->number(eps), ptx.multiply(scale, scale)));
  };
  Pair length, change;
  for (unsigned h : {0, 1})
    length[h] = quotient(
        at.size[h],
        divisor(ptx.multiply(sumOfFour(ptx.sum(slopes[2 * h], slopes[2 * h + 1])), ownUnit), at.scale[h]));
  at = settle(number, at, length, change);
  Pair pairs, taken;
  for (unsigned h : {0, 1}) {
    // The residual loses what the solution, in f16, gains.
    Value part = ptx.multiply(length[h], chunk.inverseOf(at.unit[h]));
    pairs[h] = ptx.packF16(part, part);
    taken[h] =
        ptx.multiply(ptx.unpackF16(pairs[h])[0], ptx.multiply(at.unit[h], ptx.multiply(change[h], ownUnit)));
  }
  for (auto [i, pair] : llvm::enumerate(at.found))
    pair = ptx.addProducts(pair, at.direction[i], pairs[half(2 * i)]);
  for (auto [e, entry] : llvm::enumerate(at.residual)) {
    entry = ptx.difference(entry, ptx.multiply(taken[half(e)], image[e]));
    squares[e % 4] = ptx.sum(squares[e % 4], ptx.multiply(entry, entry));
  }
  for (unsigned h : {0, 1}) {
    Value size = sumOfFour(ptx.sum(squares[2 * h], squares[2 * h + 1]));
    Value ratio = quotient(size, divisor(at.size[h], at.scale[h]));
    ratio = arith::MinimumFOp::create(b, ratio, this->number(60000));
    pairs[h] = ptx.packF16(ratio, ratio);
    at.size[h] = size;
  }
  for (auto [i, pair] : llvm::enumerate(at.direction))
    pair = ptx.addProducts(ptx.packF16(at.residual[2 * i], at.residual[2 * i + 1]), pair, pairs[half(2 * i)]);
  return at;
}

// Whether steps after this one may still count for any of the chunk's tokens.
Value SolvedEmitter::isOpen(Value number, const Steps &at) {
  Value isOpen;
  for (unsigned h : {0, 1}) {
    Value inverse = chunk.inverseOf(at.scale[h]);
    Value size = ptx.multiply(at.size[h], ptx.multiply(inverse, inverse));
    Value is = convergence.isOpen(number, size, at.goal[h]);
    isOpen = isOpen ? arith::OrIOp::create(b, isOpen, is).getResult() : is;
  }
  return ptx.meetForAny(isOpen);
}
