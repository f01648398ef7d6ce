// Of `T = S + p*kT`, T*k is S*k + (kT*k)*p: a delta rule that follows on a write, or on another one, along
// the same key reads what the first one does, and their systems are one. (Where what it reads is written
// along another vector, and p follows from the state, nothing is one: those are changes in turn.)
#include "lib/Algebra/DistributeReads.h"
#include "lib/Algebra/LinearSum.h"
#include "lib/Algebra/NormalForm.h"
#include "lib/Algebra/Terms.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recur;

static Value columnOf(OpBuilder &b, Location loc, Value vector) {
  Value column = withoutTransposes(vector);
  return isRow(matType(column)) ? TransposeOp::create(b, loc, column).getResult() : column;
}

// A vector's product with itself. Of one divided by its norm, that follows from the norm.
static Value squareOf(OpBuilder &b, Location loc, Value vector) {
  Value column = columnOf(b, loc, vector);
  if (normalisedVector(column)) {
    Value sum = column.getDefiningOp<DivOp>().getRhs().getDefiningOp<SqrtOp>().getOperand();
    for (Value square : sum.getDefiningOp<AddOp>()->getOperands())
      if (square.getDefiningOp<ReduceOp>())
        return DivOp::create(b, loc, square, sum);
  }
  return MatmulOp::create(b, loc, TransposeOp::create(b, loc, column), column);
}

// A sum transposed, term by term, so that its terms are seen.
static Value turnedSum(OpBuilder &b, Location loc, Value sum) {
  auto turned = [&](unsigned operand) { return turnedSum(b, loc, sum.getDefiningOp()->getOperand(operand)); };
  Operation *op = sum.getDefiningOp();
  if (isa_and_present<TransposeOp>(op))
    return op->getOperand(0);
  if (isa_and_present<NegOp>(op))
    return NegOp::create(b, loc, turned(0));
  if (isa_and_present<AddOp, SubOp>(op) && op->getOperand(0).getType() == op->getOperand(1).getType()) {
    Value first = turned(0), second = turned(1);
    return isa<AddOp>(op) ? AddOp::create(b, loc, first, second).getResult()
                          : SubOp::create(b, loc, first, second);
  }
  for (unsigned i : {0, 1})
    if (isa_and_present<MulOp>(op) && matType(op->getOperand(i)).isScalar())
      return MulOp::create(b, loc, op->getOperand(i), turned(1 - i));
  return TransposeOp::create(b, loc, sum);
}

namespace {
// A read of a matrix along a vector on one side of it.
class ReadAlong {
public:
  ReadAlong(OpBuilder &b, Location loc, Value vector, bool onRight, bool ofAll)
      : b(b), loc(loc), onRight(onRight), ofAll(ofAll), vector(vector) {}

  // What is read of a sum whose last terms are written along the vector: of the terms before them, and
  // numbers times what was written. Null where the last term is another.
  Value before(Value matrix) {
    Operation *op = matrix.getDefiningOp();
    if (isa_and_present<TransposeOp>(op)) {
      Value turned = TransposeOp::create(b, loc, vector);
      Value read = ReadAlong(b, loc, turned, !onRight, ofAll).before(op->getOperand(0));
      return read ? turnedSum(b, loc, read) : read;
    }
    if (isa_and_present<NegOp>(op)) {
      Value read = before(op->getOperand(0));
      return read ? NegOp::create(b, loc, read).getResult() : read;
    }
    for (unsigned i : {0, 1})
      if (isa_and_present<MulOp>(op) && matType(op->getOperand(i)).isScalar()) {
        Value read = before(op->getOperand(1 - i));
        return read ? MulOp::create(b, loc, op->getOperand(i), read).getResult() : read;
      }
    if (!isa_and_present<AddOp, SubOp>(op) || op->getOperand(0).getType() != op->getOperand(1).getType())
      return {};
    for (unsigned i : {1, 0}) {
      Value written = ofWrite(op->getOperand(i));
      if (!written)
        continue;
      Value others = op->getOperand(1 - i), rest = before(others);
      if (!rest)
        rest = of(others);
      if (isa<AddOp>(op))
        return AddOp::create(b, loc, rest, written);
      return i ? SubOp::create(b, loc, rest, written).getResult() : SubOp::create(b, loc, written, rest);
    }
    return {};
  }

private:
  // What is read of a matrix that stays one. What was read before is found, of the transposed matrix, too.
  Value of(Value matrix) {
    Value lhs = onRight ? matrix : vector, rhs = onRight ? vector : matrix;
    auto isSame = [&](Operation *user, Value of, bool isRight) {
      auto known = dyn_cast<MatmulOp>(user);
      return known && known->getOperand(isRight ? 0 : 1) == of &&
             withoutTransposes(known->getOperand(isRight ? 1 : 0)) == withoutTransposes(vector) &&
             user->getBlock() == b.getInsertionBlock() && user->isBeforeInBlock(&*b.getInsertionPoint());
    };
    for (Operation *user : matrix.getUsers()) {
      if (isSame(user, matrix, onRight))
        return user->getResult(0);
      if (isa<TransposeOp>(user))
        for (Operation *other : user->getUsers())
          if (isSame(other, user->getResult(0), !onRight))
            return TransposeOp::create(b, loc, other->getResult(0));
    }
    if (auto scaled = matrix.getDefiningOp<MulOp>())
      for (unsigned i : {0, 1})
        if (matType(scaled->getOperand(i)).isScalar())
          return MulOp::create(b, loc, scaled->getOperand(i), of(scaled->getOperand(1 - i)));
    return MatmulOp::create(b, loc, lhs, rhs);
  }

  // What is read of an outer product along the vector, perhaps times a number; null of others.
  Value ofWrite(Value term) {
    Value scale;
    auto scaled = term.getDefiningOp<MulOp>();
    for (unsigned i : {0, 1})
      if (scaled && matType(scaled->getOperand(i)).isScalar())
        scale = scaled->getOperand(i), term = scaled->getOperand(1 - i);
    auto outer = term.getDefiningOp<MatmulOp>();
    if (!outer || !isOne(matType(outer.getLhs()).getCols()))
      return {};
    Value along = withoutTransposes(outer->getOperand(onRight ? 1 : 0));
    if (auto multiple = along.getDefiningOp<MulOp>())
      for (unsigned i : {0, 1})
        if (Value number = multiple->getOperand(i); matType(number).isScalar()) {
          scale = scale ? MulOp::create(b, loc, scale, number).getResult() : number;
          along = withoutTransposes(multiple->getOperand(1 - i));
          break;
        }
    Value column = outer->getOperand(onRight ? 0 : 1);
    if (along != withoutTransposes(vector) || (!ofAll && dependsOnState(column)))
      return {};
    Value met = squareOf(b, loc, vector);
    if (scale)
      met = MulOp::create(b, loc, scale, met);
    return MulOp::create(b, loc, met, column);
  }

  OpBuilder &b;
  Location loc;
  bool onRight;
  bool ofAll; // or of what is known beforehand alone
  Value vector;
};
} // namespace

// Whether a value is a vector times numbers.
static bool isMultiple(Value value, Value vector) {
  for (value = withoutTransposes(value); value != vector;) {
    auto product = value.getDefiningOp<MulOp>();
    unsigned number = product && matType(product.getLhs()).isScalar() ? 0 : 1;
    if (!product || !matType(product->getOperand(number)).isScalar())
      return false;
    value = withoutTransposes(product->getOperand(1 - number));
  }
  return true;
}

// Whether a vector that follows from another one is written along one, or what it is a multiple of.
static bool isWrittenAlong(Value column, Value vector) {
  SetVector<Value> follow;
  follow.insert(column);
  for (unsigned i = 0; i < follow.size(); ++i)
    for (Operation *user : follow[i].getUsers()) {
      bool makesMatrix = user->getNumResults() && isMatrix(matType(user->getResult(0)));
      if (isa<MatmulOp>(user) && makesMatrix &&
          llvm::any_of(user->getOperands(), [&](Value side) { return isMultiple(side, vector); }))
        return true;
      if (user->getNumResults() && !makesMatrix)
        follow.insert(user->getResult(0));
    }
  return false;
}

static void readBeforeWrites(RuleOp rule, IRRewriter &rewriter) {
  for (MatmulOp op : llvm::make_early_inc_range(rule.getBody().getOps<MatmulOp>())) {
    // A new state changes no more.
    bool onRight = isMatrix(matType(op.getLhs()));
    if (!isRead(op) || !feedsState(rule, op) ||
        llvm::is_contained(rule.yieldedStates(), withoutTransposes(op->getOperand(onRight ? 0 : 1))))
      continue;
    rewriter.setInsertionPoint(op);
    Value vector = op->getOperand(onRight ? 1 : 0);
    ReadAlong read(rewriter, op.getLoc(), vector, onRight, isWrittenAlong(op, withoutTransposes(vector)));
    Value before = read.before(op->getOperand(onRight ? 0 : 1));
    if (!before)
      continue;
    // A read of three changes would have the first ones' reads four times, that of ten a thousand times.
    LinearSum sum(rewriter, before, [](Value value) { return matType(value).isScalar(); });
    rewriter.replaceOp(op, sum.hasLikeTerms() ? sum.buildSum() : before);
  }
}

static void readOfStates(RuleOp rule, IRRewriter &rewriter) {
  auto isState = [&](Value value) {
    return llvm::is_contained(rule.yieldedStates(), value) ||
           llvm::is_contained(rule.argumentsOf(ArgKind::State), value);
  };
  for (MatmulOp op : llvm::make_early_inc_range(rule.getBody().getOps<MatmulOp>())) {
    unsigned matrix = isMatrix(matType(op.getLhs())) ? 0 : 1;
    Operation *sum = op->getOperand(matrix).getDefiningOp();
    if (!isRead(op) || !isa_and_present<AddOp, SubOp>(sum) || isState(sum->getResult(0)) ||
        !llvm::all_of(sum->getOperands(), isState) || feedsState(rule, op))
      continue;
    rewriter.setInsertionPoint(op);
    Value reads[2];
    for (unsigned i : {0, 1}) {
      IRMapping map;
      map.map(sum->getResult(0), sum->getOperand(i));
      reads[i] = rewriter.clone(*op, map)->getResult(0);
    }
    if (isa<AddOp>(sum))
      rewriter.replaceOpWithNewOp<AddOp>(op, reads[0], reads[1]);
    else
      rewriter.replaceOpWithNewOp<SubOp>(op, reads[0], reads[1]);
  }
}

// Whether all that a loop does is to read a matrix along one vector, the same in each step, and to add what
// is written along it.
static bool changesAlongOne(ForOp loop) {
  if (!loop.getCounter().use_empty() || loop.getCarried().size() != 1 ||
      !isMatrix(matType(loop.getCarried()[0])))
    return false;
  auto isWithin = [&](Value value) { return value.getParentBlock() == &loop.getBody().front(); };
  Value vector;
  for (Operation &op : loop.getBody().front().without_terminator()) {
    auto product = dyn_cast<MatmulOp>(op);
    if (!product) {
      if (op.getNumRegions() ||
          (isMatrix(matType(op.getResult(0))) && !isa<AddOp, SubOp, NegOp, TransposeOp>(op)))
        return false;
      continue;
    }
    if (isRead(product) && vector)
      return false;
    if (isRead(product))
      vector = withoutTransposes(product->getOperand(isMatrix(matType(product.getLhs())) ? 1 : 0));
  }
  auto isAlong = [&](MatmulOp product) {
    return isRead(product) ||
           llvm::any_of(product->getOperands(), [&](Value side) { return isMultiple(side, vector); });
  };
  return vector && !isWithin(vector) && llvm::all_of(loop.getBody().getOps<MatmulOp>(), isAlong);
}

void recur::distributeReads(RuleOp rule, IRRewriter &rewriter) {
  constexpr int64_t most = 8; // steps: a sum with three terms for each has to stay below maxTerms
  for (ForOp loop : llvm::make_early_inc_range(rule.getBody().getOps<ForOp>()))
    if (auto count = dyn_cast<IntegerAttr>(loop.getCount());
        count && count.getInt() <= most && changesAlongOne(loop)) {
      // What is the same in all steps is to be the same value.
      auto isWithin = [&](Value value) { return value.getParentRegion() == &loop.getBody(); };
      for (Operation &op : llvm::make_early_inc_range(loop.getBody().front().without_terminator()))
        if (llvm::none_of(op.getOperands(), isWithin))
          op.moveBefore(loop);
      unroll(loop, count.getInt());
    }
  readBeforeWrites(rule, rewriter);
  readOfStates(rule, rewriter);
}
