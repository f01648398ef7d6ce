#include "lib/Cuda/Convergence.h"
#include "lib/Cuda/Count.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Approximately, and hardly anything for zero.
Value Convergence::root(Value x) {
  Value number = arith::MaximumFOp::create(ptx.b, x, ptx.number(0x1p-100));
  return ptx.multiply(number, ptx.reciprocalRoot(number));
}

Value Convergence::goalOf(Value size, Value length) {
  auto is = [&](arith::CmpFPredicate how, double value) {
    return arith::CmpFOp::create(ptx.b, how, size, ptx.number(value));
  };
  Value least = ptx.multiply(ptx.multiply(length, ptx.number(part * eps)), root(size));
  Value goal = arith::MinimumFOp::create(ptx.b, ptx.number(eps * std::sqrt(eps)), least);
  goal = ptx.choose(is(arith::CmpFPredicate::OLT, leastSize), ptx.number(-1), goal);
  // Right sides of zero have the goal of zero, and reach it.
  return ptx.choose(is(arith::CmpFPredicate::OEQ, 0), ptx.number(0), goal);
}

Value Convergence::isOpen(Value number, Value size, Value goal) {
  Value left = arith::SubIOp::create(ptx.b, ptx.constant(steps - 1), number);
  left = arith::UIToFPOp::create(ptx.b, ptx.b.getF32Type(), left);
  Value moves = ptx.multiply(left, ptx.multiply(size, root(size)));
  return arith::CmpFOp::create(ptx.b, arith::CmpFPredicate::UGT, moves, goal);
}

Values cuda::runSteps(ImplicitLocOpBuilder &b, int64_t steps, ValueRange start,
                      llvm::function_ref<std::pair<Values, Value>(Value, ValueRange)> step) {
  Ptx ptx(b);
  Values inits{ptx.constant(0), ptx.constant(1, 1)};
  llvm::append_range(inits, start);
  auto loop = scf::WhileOp::create(
      b, ValueRange(inits).getTypes(), inits,
      [&](OpBuilder &, Location, ValueRange values) {
        Value isLeft = ptx.below(values[0], ptx.constant(steps));
        scf::ConditionOp::create(b, arith::AndIOp::create(b, isLeft, values[1]), values);
      },
      [&](OpBuilder &, Location, ValueRange values) {
        auto [next, isOpen] = step(values[0], values.drop_front(2));
        Values results{ptx.add(values[0], 1), isOpen ? isOpen : ptx.constant(1, 1)};
        llvm::append_range(results, next);
        scf::YieldOp::create(b, results);
      });
  describeTrips(loop, steps);
  return Values(loop.getResults().drop_front(2));
}
