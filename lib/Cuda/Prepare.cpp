#include "lib/Cuda/Prepare.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// num / (den + eps), and 0 where that is 0 / 0 or num / 0.
static Value quotient(OpBuilder &b, Location loc, Value num, Value den, double eps) {
  Value zero = ConstantOp::create(b, loc, 0.0), one = ConstantOp::create(b, loc, 1.0);
  Value divisor = eps == 0 ? den : AddOp::create(b, loc, den, ConstantOp::create(b, loc, eps)).getResult();
  Value isZero = GreaterEqualOp::create(b, loc, zero, AbsOp::create(b, loc, divisor));
  Value ratio = DivOp::create(b, loc, num, AddOp::create(b, loc, divisor, isZero));
  return MulOp::create(b, loc, SubOp::create(b, loc, one, isZero), ratio);
}

// Conjugate gradients as a loop over the solution, the residual, the direction and the residual's square.
static void expandIterations(SolveOp op) {
  OpBuilder b(op);
  Location loc = op.getLoc();
  MatType type = op.getType(), scalar = MatType::scalar(op.getContext());
  auto square = [&](Value x, Value y) -> Value {
    return MatmulOp::create(b, loc, TransposeOp::create(b, loc, x), y);
  };
  Value rhs = op.getRhs(), zero = ConstantOp::create(b, loc, 0.0, type);
  SmallVector<Value> inits{zero, rhs, rhs, square(rhs, rhs)};
  SmallVector<Type> types{type, type, type, scalar};
  auto loop = ForOp::create(b, loc, types, b.getI64IntegerAttr(*op.getIterations()), inits);
  Block &body = loop.getBody().emplaceBlock();
  body.addArgument(scalar, loc);
  body.addArguments(types, SmallVector<Location>(types.size(), loc));
  b.setInsertionPointToStart(&body);
  Value x = body.getArgument(1), r = body.getArgument(2), p = body.getArgument(3), rr = body.getArgument(4);
  double eps = op.getEps().convertToDouble();
  Value ap = MatmulOp::create(b, loc, op.getMatrix(), p);
  Value alpha = quotient(b, loc, rr, square(p, ap), eps);
  x = AddOp::create(b, loc, x, MulOp::create(b, loc, alpha, p));
  r = SubOp::create(b, loc, r, MulOp::create(b, loc, alpha, ap));
  Value next = square(r, r);
  p = AddOp::create(b, loc, r, MulOp::create(b, loc, quotient(b, loc, next, rr, eps), p));
  YieldOp::create(b, loc, ValueRange{x, r, p, next});
  op.replaceAllUsesWith(loop.getResult(0));
  op.erase();
}

FailureOr<OwningOpRef<ModuleOp>> cuda::prepareRule(RuleOp rule) {
  for (BlockOp block : rule.getBody().getOps<BlockOp>())
    return block.emitError() << (block.getSize() ? "statements per block of tokens"
                                                 : "a product over the whole sequence")
                             << " cannot be compiled for a GPU";
  if (auto open = rule.symbols(); !open.empty())
    return rule.emitError() << "dimension '" << open.front().getValue() << "' has no size";
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
  auto copy = cast<RuleOp>(b.clone(*rule));
  SmallVector<SolveOp> solves;
  copy.walk([&](SolveOp op) {
    if (op.getIterations())
      solves.push_back(op);
  });
  llvm::for_each(solves, expandIterations);
  return module;
}

void cuda::takePart(RuleOp rule, const IndexClasses &classes, unsigned index, int64_t slab) {
  auto retype = [&](Value value) {
    auto part = [&](unsigned dim, int64_t size) {
      return classes.classOf(value, dim) == index ? slab : size;
    };
    auto matrix = [&](MatType type) {
      return MatType::get(type.getContext(), part(0, type.numRows()), part(1, type.numCols()));
    };
    if (auto type = dyn_cast<MatType>(value.getType()))
      value.setType(matrix(type));
    else if (auto steps = dyn_cast<StepsType>(value.getType()))
      value.setType(
          StepsType::get(steps.getContext(), steps.getCount(), matrix(steps.getStep()), steps.getColumns()));
  };
  rule->walk([&](Operation *op) {
    for (Region &region : op->getRegions())
      llvm::for_each(region.getArguments(), retype);
    llvm::for_each(op->getResults(), retype);
  });
}
