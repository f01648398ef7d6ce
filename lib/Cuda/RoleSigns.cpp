// Decays that may be negative: their signs apart from what they leave of the size.
//
// Sizes have logarithms, zeros the least one, so that all that is known of decays in [0, 1] serves. The
// product of the signs between two tokens is that of the signs up to either, so scores have it as a factor of
// their rows and one of their columns, and what decays over a stretch of the chunk as a number of the token.
#include "lib/Cuda/RoleRowState.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach, chunk::Span;

static constexpr llvm::StringLiteral signsAttr = "recur.signs";

bool RolePlan::areSigns(Value decay) {
  auto op = decay.getDefiningOp<chunk::DecayOp>();
  return op && op->hasAttr(signsAttr);
}

// 1 or -1 for each factor. One of 0 is positive: its size says all.
static Value signsOf(OpBuilder &b, Location loc, Value factors) {
  Value isPositive = GreaterEqualOp::create(b, loc, factors, ConstantOp::create(b, loc, 0.0));
  return SubOp::create(b, loc, AddOp::create(b, loc, isPositive, isPositive),
                       ConstantOp::create(b, loc, 1.0));
}

void RolePlan::splitSigns(chunk::ProgramOp program) {
  RolePlan plan;
  plan.program = program;
  for (auto decay : llvm::make_early_inc_range(program.getBody().getOps<chunk::DecayOp>())) {
    Value factors = decay.getFactors();
    if (decay.getLog() || !isOne(matType(factors).getCols()) || plan.isNotNegative(factors))
      continue;
    OpBuilder b(decay);
    Location loc = decay.getLoc();
    auto size = chunk::DecayOp::create(b, loc, AbsOp::create(b, loc, factors), Value(), decay.getLate());
    auto signs = chunk::DecayOp::create(b, loc, signsOf(b, loc, factors), Value(), decay.getLate());
    signs->setAttr(signsAttr, b.getUnitAttr());
    llvm::DenseMap<int, Value> known;
    b.setInsertionPointAfter(signs);
    auto signsOver = [&](Span span, Type type) {
      Value &value = known[int(span)];
      if (!value)
        value = chunk::WeightsOp::create(b, loc, type, signs, span);
      return value;
    };
    for (Operation *user : llvm::make_early_inc_range(decay->getUsers())) {
      OpBuilder after(user);
      after.setInsertionPointAfter(user);
      if (auto weights = dyn_cast<chunk::WeightsOp>(user)) {
        Value sign = signsOver(weights.getSpan(), weights.getType());
        weights.getDecayMutable().assign(size);
        auto both = MulOp::create(after, user->getLoc(), weights, sign);
        weights.getResult().replaceAllUsesExcept(both, both);
      } else if (auto gram = dyn_cast<chunk::GramOp>(user)) {
        Span later = gram.getReach() == Reach::Before  ? Span::Until
                     : gram.getReach() == Reach::Start ? Span::Start
                                                       : Span::Through;
        after.setInsertionPoint(user);
        gram.getDecayMutable().assign(size);
        auto turn = [&](OpOperand &side, Span span) {
          side.set(MulOp::create(after, user->getLoc(), side.get(), signsOver(span, factors.getType())));
        };
        turn(gram.getRhsMutable(), Span::Through);
        turn(gram.getLhsMutable(), later);
      }
    }
    if (decay.use_empty())
      decay.erase();
  }
}

// The products of the signs through both tokens, or until them, after them, or of all: as decaySums adds up
// logarithms.
std::array<Value, 2> RoleEmitter::signWeights(RowState &state, chunk::WeightsOp weights) {
  Value decay = weights.getDecay();
  constexpr int64_t signBit = std::numeric_limits<int32_t>::min();
  auto [it, isNew] = state.signs.try_emplace(decay);
  if (isNew) {
    Type i32 = b.getI32Type();
    std::array<Value, 2> bits = row(state, RolePlan::sourceOf(decay));
    for (int i : {0, 1}) {
      Value sign = ptx.bits(arith::BitcastOp::create(b, i32, bits[i]), signBit);
      bits[i] = ptx.choose(state.valid[i], sign, ptx.constant(0));
    }
    // Of rows at one time the first ones count.
    auto ofFirst = [&](unsigned i, Value x) {
      return ptx.choose(ptx.equal(state.steps[i], 0), x, ptx.constant(0));
    };
    std::array<Value, 2> counted = bits;
    for (unsigned i : {0, 1})
      if (plan.atOnce)
        counted[i] = ofFirst(i, bits[i]);
    Value all = ptx.exclusiveOr(counted[0], counted[1]);
    if (plan.isStacked())
      all = ofFirst(0, all);
    for (int64_t distance = 1; distance < 32; distance *= 2) {
      Value other = NVVM::ShflOp::create(b, i32, ptx.constant(-1), all, ptx.constant(distance),
                                         ptx.constant(0), NVVM::ShflKind::up, UnitAttr());
      Value exists = ptx.compare(arith::CmpIPredicate::uge, lane, ptx.constant(distance));
      all = ptx.choose(exists, ptx.exclusiveOr(all, other), all);
    }
    Value whole = ptx.shuffle(all, ptx.constant(31)), first = ptx.exclusiveOr(all, counted[1]);
    for (Value *x : {&first, &all})
      if (plan.isStacked())
        *x = ptx.shuffle(*x, ptx.bits(lane, 27));
    Value second = plan.atOnce ? ptx.exclusiveOr(all, bits[1]) : first;
    state.signs[decay] = {first, all, ptx.exclusiveOr(first, bits[0]), second, whole};
  }
  auto [first, second, beforeFirst, beforeSecond, whole] = state.signs.lookup(decay);
  std::array<Value, 2> results{first, second};
  bool isStart = weights.getSpan() == Span::Start;
  if (weights.getSpan() == Span::Until || isStart || chunk::isLate(decay))
    results = {beforeFirst, beforeSecond};
  if (isStart)
    results = atStart(results);
  for (Value &x : results) {
    if (weights.getSpan() == Span::Whole)
      x = whole;
    else if (weights.getSpan() == Span::Rest)
      x = ptx.exclusiveOr(whole, x);
    Value one = ptx.constant(llvm::bit_cast<int32_t>(1.0f));
    x = arith::BitcastOp::create(b, b.getF32Type(), ptx.exclusiveOr(one, x));
  }
  return results;
}
