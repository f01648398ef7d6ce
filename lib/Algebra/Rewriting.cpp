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

Value recur::unscaled(OpBuilder &b, Location loc, Value vector, Value &number,
                      llvm::function_ref<bool(Value)> isOfKind) {
  auto isScalar = [](Value value) { return matType(value).isScalar(); };
  while (Operation *op = vector.getDefiningOp()) {
    unsigned at = isa<MulOp>(op) && isScalar(op->getOperand(0)) ? 0 : 1;
    if (!isa<MulOp, DivOp>(op) || !isScalar(op->getOperand(at)) || isScalar(op->getOperand(1 - at)))
      break;
    Value factor = op->getOperand(at);
    if (isOfKind && !isOfKind(factor))
      break;
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

// What is left of a coefficient without a part of it.
static Coefficient without(OpBuilder &b, Location loc, const Coefficient &all, const Coefficient &part) {
  if (all.factors == part.factors)
    return {all.number - part.number, all.factors};
  auto valueOf = [&](const Coefficient &c) {
    Value value = buildCoefficient(b, loc, c);
    return value ? value : ConstantOp::create(b, loc, 1.0).getResult();
  };
  Value whole = valueOf(all), own = valueOf(part);
  if (auto sum = whole.getDefiningOp<AddOp>())
    for (unsigned i : {0, 1})
      if (isEqual(sum->getOperand(i), own))
        return {1, {sum->getOperand(1 - i)}};
  return {1, {SubOp::create(b, loc, whole, own)}};
}

bool recur::decayAlike(const OldTerm &x, const OldTerm &y) {
  return x.c == y.c && x.left == y.left && x.right == y.right && x.elementwise == y.elementwise &&
         x.transposed == y.transposed;
}

void recur::splitWrites(OpBuilder &b, NormalForm &nf) {
  Version &update = nf.versions[nf.updates[0]];
  auto isSame = [](const Write &x, const Write &y) {
    return !x.matrix && !y.matrix && !x.isErase() && !y.isErase() && x.column.value == y.column.value &&
           x.row.value == y.row.value;
  };
  SmallVector<std::pair<size_t, Write>> rests; // and what each comes before
  for (size_t i = 0; i < update.writes.size(); ++i) {
    const Write &whole = update.writes[i];
    auto next = std::find_if(update.writes.begin() + i, update.writes.end(), [&](const Write &later) {
      return later.isErase() &&
             (later.row.value == whole.row.value || later.column.value == whole.column.value);
    });
    std::optional<Coefficient> part;
    for (const Version &version : nf.versions)
      for (const Write &own : version.writes)
        if (!part && isSame(own, whole) && !(own.c == whole.c) &&
            llvm::equal(version.old, update.old, decayAlike))
          part = own.c;
    if (!part || next == update.writes.end())
      continue;
    rests.push_back({next - update.writes.begin(), whole});
    rests.back().second.c = without(b, whole.loc, whole.c, *part);
    update.writes[i].c = *part;
  }
  llvm::sort(rests, [](const auto &x, const auto &y) { return x.first > y.first; });
  for (const auto &[at, rest] : rests)
    update.writes.insert(update.writes.begin() + at, rest);
}

Coefficient recur::times(Coefficient x, const Coefficient &y) {
  x.number *= y.number;
  llvm::append_range(x.factors, y.factors);
  return x;
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
