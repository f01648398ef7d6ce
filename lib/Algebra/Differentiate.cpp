// Reverse-mode differentiation of expressions.
#include "lib/Algebra/Passes.h"

namespace recur {
#define GEN_PASS_DEF_RECURDIFFERENTIATE
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

namespace {
// The ops between a value and what was computed from it, and the cotangents built so far.
class Gradient {
public:
  Gradient(OpBuilder &builder, Location loc, Value wrt) : builder(builder), loc(loc), wrt(wrt) {}

  Value build(Value of) {
    if (!dependsOnWrt(of))
      return zero();
    cotangents[of] = ConstantOp::create(builder, loc, 1.0);
    for (Operation *op : llvm::reverse(order))
      if (failed(propagate(op)))
        return {};
    // Null when only factors of derivative zero stand between.
    Value gradient = cotangents.lookup(wrt);
    return gradient ? gradient : zero();
  }

private:
  Value zero() { return ConstantOp::create(builder, loc, 0.0, wrt.getType()); }

  // True when `value` was computed from `wrt`; notes the ops on the way so that operands come before their
  // users.
  bool dependsOnWrt(Value value) {
    if (value == wrt)
      return true;
    Operation *op = value.getDefiningOp();
    if (!op)
      return false;
    if (auto known = dependent.find(op); known != dependent.end())
      return known->second;
    bool depends = false;
    for (Value operand : op->getOperands())
      depends |= dependsOnWrt(operand);
    // A region may use values from outside.
    op->walk([&](Operation *inner) {
      if (inner != op)
        for (Value operand : inner->getOperands())
          if (operand.getParentRegion()->isProperAncestor(inner->getParentRegion()) &&
              !op->isAncestor(operand.getParentRegion()->getParentOp()))
            depends |= dependsOnWrt(operand);
    });
    dependent[op] = depends;
    if (depends)
      order.push_back(op);
    return depends;
  }

  LogicalResult propagate(Operation *op) {
    if (op->getNumResults() != 1 || !isa<ElementwiseOp, DifferentiableOp>(op)) {
      InFlightDiagnostic error = emitError(op->getLoc())
                                 << "cannot differentiate through '" << op->getName().stripDialect() << "'";
      error.attachNote(loc) << "the gradient is asked for here";
      return error;
    }
    Value cotangent = cotangents.lookup(op->getResult(0));
    if (!cotangent) // only through a factor of derivative zero
      return success();
    for (OpOperand &operand : op->getOpOperands()) {
      if (!dependsOnWrt(operand.get()))
        continue;
      Value part;
      if (auto elementwise = dyn_cast<ElementwiseOp>(op)) {
        Value partial = elementwise.buildPartial(builder, operand.getOperandNumber());
        if (!partial)
          continue;
        part = reduceTo(builder, op->getLoc(), builder.createOrFold<MulOp>(op->getLoc(), cotangent, partial),
                        matType(operand.get()));
      } else {
        part = cast<DifferentiableOp>(op).buildAdjoint(builder, cotangent, operand.getOperandNumber());
      }
      Value &sum = cotangents[operand.get()];
      sum = sum ? builder.createOrFold<AddOp>(op->getLoc(), sum, part) : part;
    }
    return success();
  }

  OpBuilder &builder;
  Location loc;
  Value wrt;
  DenseMap<Operation *, bool> dependent;
  SmallVector<Operation *> order;
  DenseMap<Value, Value> cotangents;
};

struct Differentiate : recur::impl::RecurDifferentiateBase<Differentiate> {
  void runOnOperation() override {
    SmallVector<GradientOp> gradients;
    getOperation().walk([&](GradientOp op) { gradients.push_back(op); });
    for (GradientOp op : gradients) {
      OpBuilder builder(op);
      Value gradient = buildGradient(builder, op.getLoc(), op.getOf(), op.getWrt());
      if (!gradient)
        return signalPassFailure();
      op.replaceAllUsesWith(gradient);
      op.erase();
    }
  }
};
} // namespace

Value recur::buildGradient(OpBuilder &builder, Location loc, Value of, Value wrt) {
  return Gradient(builder, loc, wrt).build(of);
}
