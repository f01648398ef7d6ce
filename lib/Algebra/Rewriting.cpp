#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Terms.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace recur;

OwningOpRef<ModuleOp> recur::rewritten(RuleOp rule, llvm::function_ref<LogicalResult(RuleOp)> write) {
  OwningOpRef<ModuleOp> module = ModuleOp::create(rule.getLoc());
  if (failed(write(cast<RuleOp>(OpBuilder::atBlockEnd(module->getBody()).clone(*rule)))))
    return {};
  return module;
}

BlockArgument recur::addInput(RuleOp rule, const Twine &name, RangeAttr range, bool isUnit, Type type) {
  MLIRContext *context = rule.getContext();
  SmallVector<Attribute> args(rule.getArgs().getValue());
  args.push_back(
      ArgAttr::get(context, ArgKind::Input, StringAttr::get(context, name), range, isUnit, /*block=*/0));
  rule.setArgsAttr(ArrayAttr::get(context, args));
  return rule.getBody().addArgument(type, rule.getLoc());
}

void recur::eraseDead(Block &block) {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (isOpTriviallyDead(&op))
      op.erase();
}

void recur::eraseDead(RuleOp rule) {
  eraseDead(rule.getInit().front());
  eraseDead(rule.getBody().front());
}

Value recur::readOf(OpBuilder &b, Location loc, Value matrix, Side side, Value vector) {
  if (side == Side::Right)
    return MatmulOp::create(b, loc, matrix, vector);
  return TransposeOp::create(b, loc, MatmulOp::create(b, loc, TransposeOp::create(b, loc, vector), matrix));
}

SmallVector<Value> recur::factorsOf(Value vector) {
  auto product = vector.getDefiningOp<MulOp>();
  if (!product)
    return {vector};
  SmallVector<Value> factors = factorsOf(product.getLhs());
  llvm::append_range(factors, factorsOf(product.getRhs()));
  return factors;
}

Value recur::scaled(OpBuilder &b, Location loc, Value number, Value value) {
  return number ? MulOp::create(b, loc, value.getType(), number, value).getResult() : value;
}

Value recur::onceOf(OpBuilder &b, Location loc, Value factor, Value isFirst, bool inLogs) {
  auto part = [&](Value operand) { return onceOf(b, loc, operand, isFirst, inLogs); };
  if (auto row = factor.getDefiningOp<TransposeOp>())
    return TransposeOp::create(b, loc, part(row.getOperand()));
  if (auto product = factor.getDefiningOp<MulOp>()) {
    Value left = part(product.getLhs());
    return MulOp::create(b, loc, left, part(product.getRhs()));
  }
  // (Of a number, an infinite exponent would count as no number where it is 0 times that.)
  if (auto exp = factor.getDefiningOp<ExpOp>(); exp && inLogs && !matType(factor).isScalar())
    return ExpOp::create(b, loc, MulOp::create(b, loc, isFirst, exp.getOperand()));
  Value later = SubOp::create(b, loc, ConstantOp::create(b, loc, 1.0), isFirst);
  if (!matType(factor).isScalar())
    later = BroadcastOp::create(b, loc, factor.getType(), later);
  Value once = AddOp::create(b, loc, MulOp::create(b, loc, isFirst, factor), later);
  // As a sum, a decay is not known to be one.
  RangeAttr range = rangeOf(factor);
  if (!inLogs || !range || range.getLo() < -1 || range.getHi() > 1)
    return once;
  if (range.getLo() < 0)
    once = MaxOp::create(b, loc, once, ConstantOp::create(b, loc, -1.0));
  return MinOp::create(b, loc, once, ConstantOp::create(b, loc, 1.0));
}

Value recur::unscaled(OpBuilder &b, Location loc, Value vector, Value &number) {
  auto isScalar = [](Value value) { return matType(value).isScalar(); };
  while (Operation *op = vector.getDefiningOp()) {
    unsigned at = isa<MulOp>(op) && isScalar(op->getOperand(0)) ? 0 : 1;
    if (!isa<MulOp, DivOp>(op) || !isScalar(op->getOperand(at)) || isScalar(op->getOperand(1 - at)))
      break;
    Value factor = op->getOperand(at);
    if (isa<DivOp>(op))
      factor = DivOp::create(b, loc, ConstantOp::create(b, loc, 1.0), factor);
    number = number ? MulOp::create(b, loc, number, factor).getResult() : factor;
    vector = op->getOperand(1 - at);
  }
  return vector;
}

bool recur::isEqual(Value x, Value y) {
  Operation *own = x.getDefiningOp(), *other = y.getDefiningOp();
  return x == y || (own && other &&
                    OperationEquivalence::isEquivalentTo(
                        own, other, [](Value x, Value y) { return success(isEqual(x, y)); },
                        /*markEquivalent=*/nullptr, OperationEquivalence::IgnoreLocations));
}

unsigned recur::decayedVersion(OpBuilder &b, NormalForm &nf) {
  const OldTerm all = nf.update(0).old[0];
  auto found = llvm::find_if(nf.versions, [&](const Version &v) {
    return v.writes.empty() && v.old.size() == 1 && v.old[0].left == all.left &&
           v.old[0].right == all.right && v.old[0].c.isOne() && v.old[0].elementwise.empty();
  });
  unsigned number = found - nf.versions.begin();
  if (number < nf.versions.size())
    return number;
  Location loc = nf.states[0].getLoc();
  Value decayed = nf.states[0];
  for (Value factor : nf.decay(0)->left)
    decayed = scaled(b, loc, diagonalColumn(factor), decayed);
  for (Value factor : nf.decay(0)->right)
    decayed = scaled(b, loc, TransposeOp::create(b, loc, diagonalColumn(factor)), decayed);
  nf.versions.push_back({decayed, {all}, {}});
  return number;
}

bool recur::cancel(Coefficient x, Coefficient y) {
  for (Coefficient *c : {&x, &y})
    for (Value &factor : c->factors)
      if (auto opposite = factor.getDefiningOp<NegOp>()) {
        factor = opposite.getOperand();
        c->number = -c->number;
      }
  for (Value factor : x.factors) {
    auto *same = llvm::find_if(y.factors, [&](Value other) { return isEqual(other, factor); });
    if (same == y.factors.end())
      return false;
    y.factors.erase(same);
  }
  return y.factors.empty() && x.number == -y.number;
}

Value Rebuilder::of(Value value) {
  if (nf.isTokenOnly(value))
    return value;
  if (auto known = rebuilt.find(value); known != rebuilt.end())
    return known->second;
  if (std::optional<Value> other = replacement(value))
    return rebuilt[value] = *other;
  Operation *op = value.getDefiningOp();
  if (!op)
    return {};
  IRMapping map;
  for (Value operand : op->getOperands()) {
    Value own = of(operand);
    if (!own)
      return rebuilt[value] = {};
    map.map(operand, own);
  }
  b.clone(*op, map);
  return rebuilt[value] = map.lookup(value);
}
