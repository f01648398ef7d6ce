// Reads that are written another way, so that a core is read as it was or as it is.
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/Terms.h"
#include "lib/Cuda/StageCutter.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A sum of several cores' matrices is read as the sum of what is read of each.
void StageCutter::distributeReads() {
  SmallVector<MatmulOp> work(body.getOps<MatmulOp>());
  while (!work.empty()) {
    MatmulOp product = work.pop_back_val();
    unsigned side = isMatrix(product.getLhs()) ? 0 : 1;
    Value matrix = product->getOperand(side), vector = product->getOperand(1 - side);
    Operation *op = matrix.getDefiningOp();
    if (isMatrix(vector) || !cores.reachOf(matrix) || cores.coreOf(matrix) ||
        !isa_and_present<AddOp, SubOp, MulOp>(op))
      continue;
    OpBuilder b(product);
    IRMapping map;
    for (Value part : op->getOperands())
      if (isMatrix(part)) {
        auto own = MatmulOp::create(b, product.getLoc(), side ? vector : part, side ? part : vector);
        work.push_back(own);
        map.map(part, own.getResult());
      } else if (!isNumber(part)) {
        return;
      }
    auto parts = llvm::map_to_vector(op->getOperands(), [&](Value x) { return map.lookupOrDefault(x); });
    Operation *sum = b.create(op->getLoc(), op->getName().getIdentifier(), parts, product->getResultTypes());
    product.replaceAllUsesWith(sum->getResult(0));
    product.erase();
    cores.findReach();
  }
}

static bool isOfMatrix(Value value) { return isMatrix(value); } // isMatrix has overloads

namespace {
// A vector that follows linearly from matrices: what each of them is read along, and a vector of the token.
class LinearReads {
public:
  LinearReads(OpBuilder &b, Location loc, llvm::function_ref<bool(Value)> isOfToken)
      : b(b), loc(loc), isOfToken(isOfToken) {}

  // Adds number * matrix * vector, or with the transposed matrix. A null number is 1.
  bool addRead(Value matrix, bool transposed, Value vector, Value number) {
    Operation *op = matrix.getDefiningOp();
    if (auto turned = dyn_cast_if_present<TransposeOp>(op))
      return addRead(turned.getOperand(), !transposed, vector, number);
    if (isa_and_present<AddOp, SubOp>(op) && llvm::all_of(op->getOperands(), isOfMatrix))
      return addRead(op->getOperand(0), transposed, vector, number) &&
             addRead(op->getOperand(1), transposed, vector, isa<SubOp>(op) ? negated(number) : number);
    if (isa_and_present<NegOp>(op))
      return addRead(op->getOperand(0), transposed, vector, negated(number));
    for (unsigned i : {0, 1}) {
      Value factor = isa_and_present<MulOp>(op) ? op->getOperand(i) : Value();
      if (!factor || isMatrix(factor) || !isOfToken(factor))
        continue;
      Value rest = op->getOperand(1 - i);
      if (isNumber(factor))
        return addRead(rest, transposed, vector, times(number, factor));
      bool isOfColumns = isOne(matType(factor).getRows());
      return isOfColumns != transposed &&
             addRead(rest, transposed, MulOp::create(b, loc, isOfColumns ? turn(factor) : factor, vector),
                     number);
    }
    auto outer = dyn_cast_if_present<MatmulOp>(op);
    if (outer && llvm::none_of(op->getOperands(), isOfMatrix)) {
      Value column = outer.getLhs(), row = outer.getRhs();
      Value key = transposed ? turn(column) : row;
      if (!isOfToken(key))
        return false;
      Value met = MatmulOp::create(b, loc, key, vector);
      return addVector(transposed ? turn(row) : column, times(number, met));
    }
    if (!isa<BlockArgument>(matrix))
      return false;
    Value along = number ? MulOp::create(b, loc, number, vector).getResult() : vector;
    Value &sum = reads[{matrix, unsigned(transposed)}];
    sum = sum ? AddOp::create(b, loc, sum, along).getResult() : along;
    return true;
  }

  Value result() const {
    Value sum = token;
    for (auto &[read, vector] : reads) {
      Value matrix = read.second ? turn(read.first) : read.first;
      Value own = MatmulOp::create(b, loc, matrix, vector);
      sum = sum ? AddOp::create(b, loc, own, sum).getResult() : own;
    }
    return sum;
  }

private:
  bool addVector(Value vector, Value number) {
    Operation *op = vector.getDefiningOp();
    if (isOfToken(vector)) {
      Value own = MulOp::create(b, loc, number, vector);
      token = token ? AddOp::create(b, loc, token, own).getResult() : own;
      return true;
    }
    if (isa_and_present<AddOp, SubOp>(op) && op->getOperand(0).getType() == op->getOperand(1).getType())
      return addVector(op->getOperand(0), number) &&
             addVector(op->getOperand(1), isa<SubOp>(op) ? negated(number) : number);
    if (isa_and_present<NegOp>(op))
      return addVector(op->getOperand(0), negated(number));
    for (unsigned i : {0, 1})
      if (isa_and_present<MulOp>(op) && isNumber(op->getOperand(i)) && isOfToken(op->getOperand(i)))
        return addVector(op->getOperand(1 - i), times(number, op->getOperand(i)));
    auto read = dyn_cast_if_present<MatmulOp>(op);
    return read && isMatrix(read.getLhs()) && isOfToken(read.getRhs()) &&
           addRead(read.getLhs(), /*transposed=*/false, read.getRhs(), number);
  }

  Value negated(Value number) const {
    return number ? NegOp::create(b, loc, number).getResult() : ConstantOp::create(b, loc, -1.0).getResult();
  }
  Value times(Value number, Value other) const {
    return number ? MulOp::create(b, loc, number, other).getResult() : other;
  }
  Value turn(Value value) const {
    auto turned = value.getDefiningOp<TransposeOp>();
    return turned ? turned.getOperand() : TransposeOp::create(b, loc, value).getResult();
  }

  OpBuilder &b;
  Location loc;
  llvm::function_ref<bool(Value)> isOfToken;
  llvm::MapVector<std::pair<Value, unsigned>, Value> reads; // by matrix, and whether it is transposed
  Value token;
};
} // namespace

// Whether a matrix becomes the new state by a factor alone.
static bool isBeforeDecay(RuleOp rule, Value matrix) {
  return llvm::any_of(matrix.getUsers(), [&](Operation *user) {
    return isa<MulOp>(user) && llvm::is_contained(rule.yieldedStates(), user->getResult(0));
  });
}

// Whether a matrix is a state between two changes of a token, which read it once in all: where they read it
// in turn, so may outputs (StackedReads.h).
static bool isBetweenChanges(RuleOp rule, Value matrix) {
  auto readsForState = [&](MatmulOp product) { return isRead(product) && feedsState(rule, product); };
  return isa_and_present<AddOp, SubOp>(matrix.getDefiningOp()) && feedsState(rule, matrix.getDefiningOp()) &&
         !llvm::is_contained(rule.yieldedStates(), matrix) &&
         llvm::count_if(rule.getBody().getOps<MatmulOp>(), readsForState) == 1;
}

// A state that changes once more is read before that as it was before the token: of
// `T = S - b*(S*k - v)*kT; o = T*q; S = a*T` the output is S*(q - b*(kT*q)*k) + b*(kT*q)*v.
void StageCutter::readBeforeUpdates() {
  for (MatmulOp read : llvm::make_early_inc_range(body.getOps<MatmulOp>())) {
    Value matrix = stripOrientation(read.getLhs());
    if (!isMatrix(matrix) || isMatrix(read.getRhs()) ||
        !(isBeforeDecay(rule, matrix) || isBetweenChanges(rule, matrix)) || cores.reachOf(read.getRhs()) ||
        feedsState(rule, read))
      continue;
    OpBuilder b(read);
    auto isOfToken = [&](Value value) { return !cores.reachOf(stripOrientation(value)); };
    LinearReads reads(b, read.getLoc(), isOfToken);
    if (reads.addRead(read.getLhs(), /*transposed=*/false, read.getRhs(), {}))
      read.replaceAllUsesWith(reads.result());
  }
  eraseDead(body);
  cores.findReach();
}
