#include "lib/Cuda/Prepare.h"
#include "lib/Cuda/Convergence.h"
#include "lib/Cuda/Placement.h"
#include "lib/Cuda/SolvedPlan.h"

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

// A diagonal matrix times x, or null.
static Value scaledBy(OpBuilder &b, Location loc, Value matrix, Value x) {
  if (matrix.getDefiningOp<IdentityOp>())
    return x;
  if (auto diagonal = matrix.getDefiningOp<DiagOp>())
    return MulOp::create(b, loc, diagonal.getOperand(), x);
  if (auto product = matrix.getDefiningOp<MulOp>())
    for (unsigned i : {0, 1})
      if (Value factor = product->getOperand(i); matType(factor).isScalar())
        if (Value scaled = scaledBy(b, loc, product->getOperand(1 - i), x))
          return MulOp::create(b, loc, factor, scaled);
  return {};
}

// A matrix times x. A diagonal that is added to a matrix needs no sum of all entries.
static Value applied(OpBuilder &b, Location loc, Value matrix, Value x) {
  if (Value scaled = scaledBy(b, loc, matrix, x))
    return scaled;
  if (auto sum = matrix.getDefiningOp<AddOp>();
      sum && sum->getOperand(0).getType() == sum->getOperand(1).getType())
    for (unsigned i : {0, 1})
      if (Value scaled = scaledBy(b, loc, sum->getOperand(i), x))
        return AddOp::create(b, loc, applied(b, loc, sum->getOperand(1 - i), x), scaled);
  return MatmulOp::create(b, loc, matrix, x);
}

namespace {
// Conjugate gradients as a loop over the solution, the residual, the direction and the residual's square;
// where it can end early (Convergence.h), over its goal and whether it goes on, too.
class Expansion {
public:
  Expansion(SolveOp op, unsigned digits)
      : op(op), b(op), loc(op.getLoc()), eps(op.getEps().convertToDouble()), digits(digits) {}

  void run();

private:
  Value number(double value) { return ConstantOp::create(b, loc, value); }
  Value times(Value x, Value y) { return MulOp::create(b, loc, x, y); }
  Value square(Value x, Value y) { return MatmulOp::create(b, loc, TransposeOp::create(b, loc, x), y); }
  Value reaches(Value x, Value y) { return GreaterEqualOp::create(b, loc, x, y); }
  Value without(Value condition) { return SubOp::create(b, loc, number(1), condition); }
  Value goalOf(Value size, Value length);

  SolveOp op;
  OpBuilder b;
  Location loc;
  double eps;
  unsigned digits;
};
} // namespace

Value Expansion::goalOf(Value size, Value length) {
  Value least =
      times(times(length, number(Convergence::negligible(digits) * eps)), SqrtOp::create(b, loc, size));
  Value goal = MinOp::create(b, loc, number(eps * std::sqrt(eps)), least);
  Value isKnown = reaches(size, number(Convergence::leastSize));
  return SubOp::create(b, loc, times(isKnown, goal), without(isKnown));
}

void Expansion::run() {
  MatType type = op.getType(), scalar = MatType::scalar(op.getContext());
  Value rhs = op.getRhs(), zero = ConstantOp::create(b, loc, 0.0, type);
  SmallVector<Value> inits{zero, rhs, rhs, square(rhs, rhs)};
  bool canEnd = Convergence::canEnd(eps, digits);
  if (canEnd)
    llvm::append_values(inits, number(0), number(1));
  SmallVector<Type> types(ValueRange(inits).getTypes());
  int64_t steps = *op.getIterations();
  auto loop = ForOp::create(b, loc, types, b.getI64IntegerAttr(steps), inits);
  Block &body = loop.getBody().emplaceBlock();
  body.addArgument(scalar, loc);
  body.addArguments(types, SmallVector<Location>(types.size(), loc));
  b.setInsertionPointToStart(&body);
  Value x = body.getArgument(1), r = body.getArgument(2), p = body.getArgument(3), rr = body.getArgument(4);
  Value ap = applied(b, loc, op.getMatrix(), p);
  Value alpha = quotient(b, loc, rr, square(p, ap), eps);
  x = AddOp::create(b, loc, x, times(alpha, p));
  r = SubOp::create(b, loc, r, times(alpha, ap));
  Value next = square(r, r);
  p = AddOp::create(b, loc, r, times(quotient(b, loc, next, rr, eps), p));
  SmallVector<Value> results{x, r, p, next};
  if (canEnd) {
    Value isFirst = reaches(number(1), body.getArgument(0));
    Value goal = AddOp::create(b, loc, times(isFirst, goalOf(rr, alpha)),
                               times(without(isFirst), body.getArgument(5)));
    Value left = SubOp::create(b, loc, number(steps), body.getArgument(0));
    Value moves = times(left, times(next, SqrtOp::create(b, loc, next)));
    llvm::append_values(results, goal, without(reaches(goal, moves)));
    loop->setAttr(goesOnAttr, b.getI64IntegerAttr(results.size() - 1));
  }
  YieldOp::create(b, loc, results);
  op.replaceAllUsesWith(loop.getResult(0));
  op.erase();
}

// How many binary digits of a value can be told by what a rule gives: those of outputs, or f32's.
static unsigned digitsOf(Value value, RuleOp rule, const KernelOptions &options) {
  unsigned digits = 0;
  for (StringAttr name : rule.getOutputs().getAsRange<StringAttr>()) {
    FloatType element = options.elements.lookup(name);
    digits = std::max(digits, element ? element.getFPMantissaWidth() : Convergence::digitsOfF32);
  }
  bool isKept = llvm::any_of(rule.yieldedStates(), [&](Value state) { return dependsOn(state, value); });
  return isKept ? Convergence::digitsOfF32 : digits;
}

FailureOr<OwningOpRef<ModuleOp>> cuda::prepareRule(RuleOp rule, const KernelOptions &options) {
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
  for (SolveOp op : solves)
    Expansion(op, digitsOf(op, copy, options)).run();
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
