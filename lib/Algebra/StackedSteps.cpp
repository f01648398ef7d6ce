#include "lib/Algebra/StackedSteps.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/StackedReads.h"
#include "lib/Algebra/StackedRows.h"
#include "lib/Algebra/Terms.h"
#include "mlir/Analysis/SliceAnalysis.h"

using namespace mlir;
using namespace recur;

namespace {
class StepStacker {
public:
  StepStacker(RuleOp rule, bool inLogs, size_t mostRows)
      : rule(rule), body(rule.getBody().front()), b(body.getTerminator()), loc(rule.getLoc()), inLogs(inLogs),
        mostRows(mostRows) {}

  LogicalResult run() {
    SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State);
    for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
      if (!isa<MatType>(input.getType()) && !input.use_empty())
        return failure();
    if (states.size() != 1 || !isMatrix(matType(states[0])) || !rule.getBody().getOps<ForOp>().empty())
      return failure();
    state = states[0];
    readScaled();
    findVersions();
    // What only scales comes first.
    SmallVector<Value> factors;
    size_t first = 0;
    for (Value before = state; first < versions.size(); before = versions[first++]) {
      Value factor = factorOf(versions[first], before);
      if (!factor)
        break;
      factors.push_back(factor);
    }
    ArrayRef<Value> steps = ArrayRef(versions).drop_front(first);
    if (steps.size() < 2 || steps.size() > mostRows)
      return failure();
    StackedRows rows(rule, b, steps.size());
    Value found = state;
    for (Value factor : factors)
      found = scaled(b, loc,
                     matType(factor).isScalar() ? rows.once(factor)
                                                : onceOf(b, loc, factor, rows.isRow(0), inLogs),
                     found);
    SmallVector<Value> before{first ? versions[first - 1] : state};
    llvm::append_range(before, steps.drop_back());
    rows.know(before, found);
    Value next = rows.of(steps), last = steps.back();
    if (!next || next.getType() != state.getType())
      return failure();
    SmallVector<Value> yielded{next};
    Operation *terminator = body.getTerminator();
    for (Value output : terminator->getOperands().drop_front())
      yielded.push_back(rebuilt(output, last, next));
    if (llvm::is_contained(yielded, Value()))
      return failure();
    terminator->setOperands(yielded);
    rows.finish(/*fillsUp=*/false);
    rule->setAttr(inTurnAttr, b.getUnitAttr());
    eraseDead(body);
    return success();
  }

private:
  // Reads of a matrix times what another one is scaled by read that one. (Rules spell them as is cheaper.)
  void readScaled() {
    auto scaledBy = [&](Value factor, Value matrix, Operation *by) -> Value {
      for (Operation *user : matrix.getUsers())
        if (auto product = dyn_cast<MulOp>(user); product && product->isBeforeInBlock(by))
          for (unsigned i : {0, 1})
            if (product->getOperand(1 - i) == matrix && isEqual(product->getOperand(i), factor))
              return product;
      return {};
    };
    for (Operation &op : llvm::make_early_inc_range(body)) {
      OpBuilder at(&op);
      // A number times what is read.
      for (unsigned i : {0, 1})
        if (isa<MulOp>(op) && matType(op.getOperand(i)).isScalar())
          if (auto read = op.getOperand(1 - i).getDefiningOp<MatmulOp>(); read && isRead(read)) {
            unsigned side = isMatrix(matType(read.getLhs())) ? 0 : 1;
            if (Value matrix = scaledBy(op.getOperand(i), read->getOperand(side), &op)) {
              SmallVector<Value> operands(read->getOperands());
              operands[side] = matrix;
              op.getResult(0).replaceAllUsesWith(MatmulOp::create(at, loc, operands[0], operands[1]));
              break;
            }
          }
      // What is read by a vector times others.
      if (auto read = dyn_cast<MatmulOp>(op); read && isRead(read) && isMatrix(matType(read.getLhs())))
        if (auto vector = read.getRhs().getDefiningOp<MulOp>())
          for (unsigned i : {0, 1}) {
            Value factor = vector->getOperand(i), rest = vector->getOperand(1 - i);
            bool isNumber = matType(factor).isScalar();
            MatType type = matType(vector.getResult());
            if (matType(rest) != type || !(isNumber || matType(factor) == type))
              continue;
            Value by = isNumber ? factor : TransposeOp::create(at, loc, factor).getResult();
            if (Value matrix = scaledBy(by, read.getLhs(), &op)) {
              read.getResult().replaceAllUsesWith(MatmulOp::create(at, loc, matrix, rest));
              break;
            }
          }
    }
    eraseDead(body);
  }

  void findVersions() {
    SetVector<Operation *> slice;
    getForwardSlice(state, &slice);
    dependent.insert(state);
    for (Operation *op : slice)
      dependent.insert(op->result_begin(), op->result_end());
    Value last = rule.yieldedStates()[0];
    // Whether the new state follows from the old one without some value.
    auto followsWithout = [&](Value version) {
      DenseSet<Value> seen{version};
      SmallVector<Value> work{last};
      while (!work.empty()) {
        Value value = work.pop_back_val();
        if (value == state)
          return true;
        if (dependent.contains(value) && seen.insert(value).second)
          llvm::append_range(work, value.getDefiningOp()->getOperands());
      }
      return false;
    };
    for (Operation &op : body.without_terminator())
      if (Value value = op.getResult(0); value.getType() == state.getType() && dependent.contains(value) &&
                                         (value == last || !followsWithout(value)))
        versions.push_back(value);
  }

  // What a version scales the one before it by, if it does nothing else.
  Value factorOf(Value version, Value before) const {
    auto product = version.getDefiningOp<MulOp>();
    for (unsigned i : {0, 1})
      if (product && product->getOperand(1 - i) == before && !isMatrix(matType(product->getOperand(i))) &&
          !dependent.contains(product->getOperand(i)))
        return product->getOperand(i);
    return {};
  }

  // A value with what the last step leaves in its place; null where it follows from what was before.
  Value rebuilt(Value value, Value last, Value next) {
    if (value == last)
      return next;
    if (!dependent.contains(value))
      return value;
    if (auto known = outputs.find(value); known != outputs.end())
      return known->second;
    Operation *op = value.getDefiningOp();
    IRMapping map;
    for (Value operand : op ? ValueRange(op->getOperands()) : ValueRange()) {
      Value own = rebuilt(operand, last, next);
      if (!own)
        return outputs[value] = {};
      map.map(operand, own);
    }
    return outputs[value] = op ? b.clone(*op, map)->getResult(0) : Value();
  }

  RuleOp rule;
  Block &body;
  OpBuilder b;
  Location loc;
  Value state;
  DenseSet<Value> dependent;   // what follows from the state
  SmallVector<Value> versions; // what all of the new state follows from, in order, with it
  llvm::DenseMap<Value, Value> outputs;
  bool inLogs;
  size_t mostRows;
};
} // namespace

OwningOpRef<ModuleOp> recur::stackSteps(RuleOp rule, bool inLogs, size_t mostRows) {
  return rewritten(rule, [&](RuleOp copy) { return StepStacker(copy, inLogs, mostRows).run(); });
}
