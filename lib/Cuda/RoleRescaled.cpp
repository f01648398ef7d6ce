// Decays of each value without a decay: a value's row of the state, divided by what has decayed since the
// chunk's start, is that of a rule that decays no values and is written what was divided by it, too. So
//
//   U = (I + N)^-1 R with entries N[t,j] W_t/W_j is W (I + N)^-1 (R / W),
//   P U with entries P[t,j] W_t/W_j is W P (U / W), and the state at the end, less its decay, S + KT (U / W),
//
// where W is what decays from the chunk's start to each token, for each value. Scores and systems are those
// of the other rule, and all rows share them. What is read before it decays is no such product: it takes the
// ways of RoleSubstitution.cpp and RoleRowDecay.cpp.
//
// W may leave f32's range. The chain takes the state relative to a reference in the middle, and takes chunks
// that decay further piece by piece (RolePieces.cpp).
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

static constexpr llvm::StringLiteral rescaledAttr = "recur.rescaled";

bool RolePlan::isRescaled(Value decay) { return decay.getDefiningOp()->hasAttr(rescaledAttr); }

namespace {
class Rescaler {
public:
  Rescaler(chunk::ProgramOp program, chunk::DecayOp decay)
      : yield(program.getBodyYield()), b(yield), loc(program.getLoc()), decay(decay),
        states(program.argumentsOf(ArgKind::State).size()) {}

  bool run() {
    for (Operation *user : decay->getUsers())
      if (auto weights = dyn_cast<chunk::WeightsOp>(user); weights && weights.getSpan() == Span::Through)
        through = weights;
    if (!through || !llvm::all_of(decay->getUsers(), isTaken))
      return false;
    SmallVector<Value> values;
    for (auto [i, value] : llvm::enumerate(yield->getOperands()))
      values.push_back(i < states ? written(value) : read(value));
    if (llvm::is_contained(values, Value()))
      return false;
    yield->setOperands(values);
    return true;
  }

private:
  static bool isTaken(Operation *user) {
    if (auto solve = dyn_cast<chunk::TriSolveOp>(user))
      return solve.getFactors().empty() && solve.getReach() == Reach::Inclusive &&
             solve.getBlocks().size() == 1;
    if (auto mix = dyn_cast<chunk::MixOp>(user))
      return mix.getReach() == Reach::Inclusive;
    auto weights = dyn_cast<chunk::WeightsOp>(user);
    return weights && weights.getSpan() != Span::Until;
  }

  // Which operand is what decays over a span, as a column or as a row; or -1.
  int besideWeights(Operation *op, Span span) {
    for (int i : {0, 1})
      if (isa_and_present<MulOp>(op))
        if (auto own = RolePlan::strip(op->getOperand(i)).getDefiningOp<chunk::WeightsOp>();
            own && own.getDecay() == decay && own.getSpan() == span)
          return i;
    return -1;
  }

  static bool isNumber(Value value) { return isOne(matType(value).getCols()); }
  // The number of each token that a value is times; or -1.
  static int besideNumber(Operation *op) {
    for (int i : {0, 1})
      if (isa<MulOp>(op) && isNumber(op->getOperand(i)))
        return i;
    return -1;
  }

  // Whether all of a value is times what decays until its token.
  bool isRelative(Value value) {
    Operation *op = value.getDefiningOp();
    if (!op)
      return false;
    if (auto mix = dyn_cast<chunk::MixOp>(op))
      return mix.getDecay() == decay;
    if (auto solve = dyn_cast<chunk::TriSolveOp>(op))
      return solve.getDecay() == decay;
    if (besideWeights(op, Span::Through) >= 0)
      return true;
    if (int number = besideNumber(op); number >= 0)
      return isRelative(op->getOperand(1 - number));
    return isa<AddOp, SubOp, NegOp>(op) &&
           llvm::all_of(op->getOperands(), [&](Value operand) { return isRelative(operand); });
  }

  // A value divided by what decays until its token.
  Value relative(Value value) {
    if (auto known = relatives.find(value); known != relatives.end())
      return known->second;
    Operation *op = value.getDefiningOp();
    Value result;
    if (auto mix = dyn_cast_if_present<chunk::MixOp>(op); mix && mix.getDecay() == decay) {
      result = MatmulOp::create(b, loc, mix.getScores(), relative(mix.getValues()));
    } else if (auto solve = dyn_cast_if_present<chunk::TriSolveOp>(op); solve && solve.getDecay() == decay) {
      Value side = relative(solve.getRhs().front());
      auto plain = cast<chunk::TriSolveOp>(b.clone(*op));
      plain.getRhsMutable().assign(side);
      plain.getDecayMutable().clear();
      plain.setReach(Reach::Before);
      result = plain.getResult(0);
    } else if (int weights = op ? besideWeights(op, Span::Through) : -1; weights >= 0) {
      result = op->getOperand(1 - weights);
    } else if (int number = op ? besideNumber(op) : -1; number >= 0) {
      Value rest = relative(op->getOperand(1 - number));
      result = MulOp::create(b, loc, op->getOperand(number), rest);
    } else if (isa_and_present<AddOp, SubOp, NegOp>(op)) {
      result = cloned(op, [&](Value operand) { return relative(operand); });
    } else {
      result = DivOp::create(b, loc, value, through);
    }
    return relatives[value] = result;
  }

  // What outputs follow from, with products of such quotients.
  Value read(Value value) {
    if (isRelative(value)) {
      Value rest = relative(value);
      return MulOp::create(b, loc, through, rest);
    }
    Operation *op = value.getDefiningOp();
    if (auto map = dyn_cast_if_present<chunk::MapOp>(op)) {
      if (!maps.contains(map)) {
        SmallVector<Value> operands =
            llvm::map_to_vector(map->getOperands(), [&](Value x) { return read(x); });
        Operation *own = b.clone(*map);
        own->setOperands(operands);
        maps[map] = own;
      }
      return maps[map]->getResult(cast<OpResult>(value).getResultNumber());
    }
    return isa_and_present<ElementwiseOp>(op) ? cloned(op, [&](Value operand) { return read(operand); })
                                              : value;
  }

  // A state after the chunk, without what the decay leaves of it; null where it is no such product.
  Value written(Value value) {
    Operation *op = value.getDefiningOp();
    if (int weights = besideWeights(op, Span::Whole); weights >= 0)
      return op->getOperand(1 - weights);
    if (isa_and_present<AddOp, SubOp, NegOp, TransposeOp>(op))
      return cloned(op, [&](Value operand) { return written(operand); });
    if (auto product = dyn_cast_if_present<MulOp>(op)) // a decay of each key
      for (int i : {0, 1})
        if (RolePlan::isWholeOfKeys(RolePlan::strip(op->getOperand(i))) || isNumber(op->getOperand(i)))
          return cloned(
              op, [&](Value operand) { return operand == op->getOperand(i) ? operand : written(operand); });
    if (auto product = dyn_cast_if_present<MatmulOp>(op)) {
      // Of writes, tokens are what is summed over.
      Value rest = untilEnd(product.getRhs());
      return rest ? MatmulOp::create(b, loc, product.getLhs(), rest).getResult() : Value();
    }
    return {};
  }

  // What is written, times what decays from its token to the end, without that and divided by what decays
  // until its token.
  Value untilEnd(Value value) {
    Operation *op = value.getDefiningOp();
    if (int weights = besideWeights(op, Span::Rest); weights >= 0)
      return relative(op->getOperand(1 - weights));
    if (isa_and_present<AddOp, SubOp, NegOp>(op))
      return cloned(op, [&](Value operand) { return untilEnd(operand); });
    if (int number = op ? besideNumber(op) : -1; number >= 0)
      return cloned(
          op, [&](Value operand) { return operand == op->getOperand(number) ? operand : untilEnd(operand); });
    return {};
  }

  Value cloned(Operation *op, llvm::function_ref<Value(Value)> ofOperand) {
    IRMapping map;
    for (Value operand : op->getOperands()) {
      Value own = ofOperand(operand);
      if (!own)
        return {};
      map.map(operand, own);
    }
    return b.clone(*op, map)->getResult(0);
  }

  Operation *yield;
  OpBuilder b;
  Location loc;
  chunk::DecayOp decay;
  Value through;
  size_t states;
  llvm::DenseMap<Value, Value> relatives;
  llvm::DenseMap<Operation *, Operation *> maps; // functions of what is read, by those of what was
};
} // namespace

// A decay of values that something is mixed with, or solved for.
static chunk::DecayOp mixedDecay(chunk::ProgramOp program) {
  auto isMixed = [](Operation *user) {
    auto solve = dyn_cast<chunk::TriSolveOp>(user);
    return isa<chunk::MixOp>(user) || (solve && solve.getDecay());
  };
  for (auto decay : program.getBody().getOps<chunk::DecayOp>())
    if (llvm::any_of(decay->getUsers(), isMixed))
      return decay;
  return {};
}

bool RolePlan::mixesRows(chunk::ProgramOp program) { return bool(mixedDecay(program)); }

void RolePlan::rescaleRows(chunk::ProgramOp program) {
  // A piece leaves the state as if no other decayed.
  auto decays = program.getBody().getOps<chunk::DecayOp>();
  chunk::DecayOp decay = mixedDecay(program);
  if (!decay || !decay.getLog() || !llvm::hasSingleElement(decays))
    return;
  if (Rescaler(program, decay).run())
    decay->setAttr(rescaledAttr, UnitAttr::get(program.getContext()));
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(program.getBody().front())))
    if (isOpTriviallyDead(&op))
      op.erase();
}
