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
// What is read of a matrix, or of it transposed, along a column.
struct MatrixRead {
  Value matrix;
  bool isTransposed;
  Value vector; // perhaps as a row
};

std::optional<MatrixRead> asRead(Value vector) {
  auto product = stripOrientation(vector).getDefiningOp<MatmulOp>();
  if (!product || isMatrix(product.getLhs()) == isMatrix(product.getRhs()))
    return std::nullopt;
  bool isColumn = isMatrix(product.getLhs());
  Value matrix = isColumn ? product.getLhs() : product.getRhs();
  bool isTurned = matrix.getDefiningOp<TransposeOp>() != nullptr;
  return MatrixRead{stripOrientation(matrix), isTurned == isColumn,
                    isColumn ? product.getRhs() : product.getLhs()};
}

// A vector that follows linearly from matrices: what each of them is read along, and a vector of the token.
class LinearReads {
public:
  LinearReads(OpBuilder &b, Location loc, llvm::function_ref<bool(Value)> isOfToken)
      : b(b), loc(loc), isOfToken(isOfToken) {}

  // Adds a vector that follows from the matrices, times a number, or subtracts it. A null number is 1.
  bool add(Value vector, Value number, bool isNegative) {
    Value sign = ConstantOp::create(b, loc, isNegative ? -1.0 : 1.0);
    return addVector(vector, times(number, sign));
  }

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
  // A column, or a row that stands for one.
  bool addVector(Value vector, Value number) {
    vector = stripOrientation(vector);
    Operation *op = vector.getDefiningOp();
    if (isOfToken(vector)) {
      Value own = MulOp::create(b, loc, number, column(vector));
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
    std::optional<MatrixRead> read = asRead(vector);
    return read && isOfToken(read->vector) &&
           addRead(read->matrix, read->isTransposed, column(read->vector), number);
  }

  Value negated(Value number) const {
    return number ? NegOp::create(b, loc, number).getResult() : ConstantOp::create(b, loc, -1.0).getResult();
  }
  Value times(Value number, Value other) const {
    return number ? MulOp::create(b, loc, number, other).getResult() : other;
  }
  Value column(Value vector) const { return isOne(matType(vector).getCols()) ? vector : turn(vector); }
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

// The factor by which alone a matrix becomes the new state, or null.
static Value decayOf(RuleOp rule, Value matrix) {
  for (Operation *user : matrix.getUsers())
    if (isa<MulOp>(user) && llvm::is_contained(rule.yieldedStates(), user->getResult(0)))
      return user->getOperand(user->getOperand(0) == matrix);
  return {};
}

// How many reads of states there are that go into states.
static int64_t countReadsForStates(RuleOp rule) {
  return llvm::count_if(rule.getBody().getOps<MatmulOp>(),
                        [&](MatmulOp product) { return isRead(product) && feedsState(rule, product); });
}

// Whether a matrix is a state between two changes of a token, which read it once in all: where they read it
// in turn, so may outputs (StackedReads.h).
static bool isBetweenChanges(RuleOp rule, Value matrix) {
  return isa_and_present<AddOp, SubOp>(matrix.getDefiningOp()) && feedsState(rule, matrix.getDefiningOp()) &&
         !llvm::is_contained(rule.yieldedStates(), matrix) && countReadsForStates(rule) == 1;
}

// Whether what is left of a matrix by a decay is the new state, and that can be the last thing that its token
// does (lib/Derive/GroupDecays.cpp): then the matrix is read as it is. With several rows of a token outputs
// are not.
bool StageCutter::decaysLate(Value matrix) {
  Value factor = decayOf(rule, matrix);
  Core *own = factor && !isMatrix(factor) ? cores.coreOf(matrix) : nullptr;
  return own && llvm::isPowerOf2_64(own->states) && isReadAlong(own, factor) &&
         countReadsForStates(rule) <= 1;
}

// What a vector follows from linearly, as it is written down.
static void findReads(Value vector, SmallVectorImpl<MatrixRead> &reads) {
  vector = stripOrientation(vector);
  Operation *op = vector.getDefiningOp();
  if (std::optional<MatrixRead> read = asRead(vector))
    reads.push_back(*read);
  else if (isa_and_present<AddOp, SubOp, NegOp, MulOp>(op))
    for (Value operand : op->getOperands())
      if (!isNumber(operand))
        findReads(operand, reads);
}

// Whether one is read of a matrix and the other of what a diagonal of its keys makes of it, along one vector.
static bool areOldAndDecayed(const MatrixRead &old, const MatrixRead &decayed) {
  auto after = decayed.matrix.getDefiningOp<MulOp>();
  if (!after || old.isTransposed != decayed.isTransposed ||
      stripOrientation(old.vector) != stripOrientation(decayed.vector))
    return false;
  for (unsigned i : {0, 1})
    if (Value factor = after->getOperand(1 - i); after->getOperand(i) == old.matrix && !isNumber(factor))
      return isOne(matType(factor).getRows()) != old.isTransposed;
  return false;
}

namespace {
// A term of a sum of matrices, times 1 or -1.
struct MatrixTerm {
  Value matrix;
  bool isNegative;
};

// An outer product of what follows from the state and a vector of the token, times a number, null for 1.
struct StateWrite {
  MatrixTerm term;
  Value payload, number;
};
} // namespace

static void addTerms(Value matrix, bool isNegative, SmallVectorImpl<MatrixTerm> &terms) {
  Operation *op = matrix.getDefiningOp();
  if (isa_and_present<AddOp, SubOp>(op) && llvm::all_of(op->getOperands(), isOfMatrix)) {
    addTerms(op->getOperand(0), isNegative, terms);
    addTerms(op->getOperand(1), isNegative != isa<SubOp>(op), terms);
  } else {
    terms.push_back({matrix, isNegative});
  }
}

// A vector and the number that it is times, which may be null. Norms that it is divided by stay.
static std::pair<Value, Value> withoutNumber(OpBuilder &b, Value vector) {
  Value number;
  while (auto product = vector.getDefiningOp<MulOp>()) {
    unsigned at = isNumber(product.getLhs()) ? 0 : 1;
    if (!isNumber(product->getOperand(at)))
      break;
    Value own = product->getOperand(at);
    number = number ? MulOp::create(b, product.getLoc(), number, own).getResult() : own;
    vector = product->getOperand(1 - at);
  }
  return {vector, number};
}

static Value sumOf(OpBuilder &b, Location loc, ArrayRef<MatrixTerm> terms) {
  Value sum;
  for (auto [matrix, isNegative] : terms)
    if (sum)
      sum = isNegative ? SubOp::create(b, loc, sum, matrix).getResult() : AddOp::create(b, loc, sum, matrix);
    else
      sum = isNegative ? NegOp::create(b, loc, matrix).getResult() : matrix;
  return sum;
}

// The sum of what is written along one vector, as one read; null where no read is both of the state and of
// what has decayed of it.
static Value readTogether(OpBuilder &b, Location loc, ArrayRef<StateWrite> writes,
                          llvm::function_ref<bool(Value)> isOfToken) {
  SmallVector<MatrixRead> found;
  for (const StateWrite &write : writes)
    findReads(write.payload, found);
  auto hasDecayed = [&](const MatrixRead &old) {
    return llvm::any_of(found, [&](const MatrixRead &read) { return areOldAndDecayed(old, read); });
  };
  LinearReads reads(b, loc, isOfToken);
  bool isMixed = llvm::any_of(found, hasDecayed) && llvm::all_of(writes, [&](const StateWrite &write) {
                   return reads.add(write.payload, write.number, write.term.isNegative);
                 });
  return isMixed ? reads.result() : Value();
}

// What is written along a vector, and was read both of the state and of what has decayed of it, is read of
// the state along one vector: c*S*k + d*(S*diag(a))*k is S*((c + d*a).*k).
void StageCutter::mergeReads() {
  auto isOfToken = [&](Value value) { return !cores.reachOf(stripOrientation(value)); };
  for (Value update : llvm::to_vector(rule.yieldedStates())) {
    if (!isMatrix(update) || !update.getDefiningOp())
      continue;
    OpBuilder b(rule.getContext());
    b.setInsertionPointAfterValue(update);
    Location loc = update.getLoc();
    SmallVector<MatrixTerm> terms, merged;
    addTerms(update, false, terms);
    // By the token's vector, and whether that is the column.
    llvm::MapVector<std::pair<Value, unsigned>, SmallVector<StateWrite>> writes;
    for (const MatrixTerm &term : terms)
      if (auto outer = term.matrix.getDefiningOp<MatmulOp>();
          outer && llvm::none_of(outer->getOperands(), isOfMatrix))
        for (bool isTurned : {false, true}) {
          Value payload = outer->getOperand(isTurned), key = stripOrientation(outer->getOperand(!isTurned));
          if (isOfToken(payload) || !isOfToken(key))
            continue;
          auto [vector, number] = withoutNumber(b, key);
          writes[{vector, isTurned}].push_back({term, payload, number});
        }
    for (auto &entry : writes) {
      ArrayRef<StateWrite> own = entry.second;
      Value key = entry.first.first;
      bool isTurned = entry.first.second;
      Value once = readTogether(b, loc, own, isOfToken);
      if (!once)
        continue;
      Value row = TransposeOp::create(b, loc, isTurned ? once : key);
      merged.push_back({MatmulOp::create(b, loc, isTurned ? key : once, row), false});
      llvm::erase_if(terms, [&](const MatrixTerm &term) {
        return llvm::any_of(own, [&](const StateWrite &write) { return write.term.matrix == term.matrix; });
      });
    }
    if (merged.empty())
      continue;
    terms.append(merged);
    Operation *sum = sumOf(b, loc, terms).getDefiningOp();
    update.replaceUsesWithIf(sum->getResult(0), [&](OpOperand &use) {
      return use.getOwner()->getBlock() == &body && sum->isBeforeInBlock(use.getOwner());
    });
  }
  eraseDead(body);
  cores.findReach();
}

// A state that changes once more is read before that as it was before the token: of
// `T = S - b*(S*k - v)*kT; o = T*q; S = T + c*w*pT` the output is S*(q - b*(kT*q)*k) + b*(kT*q)*v.
void StageCutter::readBeforeUpdates() {
  for (MatmulOp read : llvm::make_early_inc_range(body.getOps<MatmulOp>())) {
    Value matrix = stripOrientation(read.getLhs());
    if (!isMatrix(matrix) || isMatrix(read.getRhs()) ||
        !(decayOf(rule, matrix) || isBetweenChanges(rule, matrix)) || decaysLate(matrix) ||
        cores.reachOf(read.getRhs()) || feedsState(rule, read))
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
