// Finds the recurrence in products over the whole sequence: `((Q*K.T).*M)*inv(I + (W*W.T).*Mx)*V` is a delta
// rule without decay. Functions of scores, exp above all, have no finite rank: the block stays as it is.
#include "lib/Algebra/CausalOperators.h"
#include "lib/Algebra/Passes.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringSet.h"

namespace recur {
#define GEN_PASS_DEF_RECURFINDRECURRENCE
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;
using namespace recur::causal;

namespace {
// What a value of the block's region is to one token.
struct Item {
  enum Kind { Shared, Rows, Cols, Pairs } kind; // r x c without tokens; T x n; n x T; T x T
  Value value;                                  // Shared: itself; Rows, Cols: n x 1
  Matrix matrix;                                // Pairs
};

class Finder : public Tokens {
public:
  Finder(RuleOp rule, BlockOp block) : Tokens(rule, OpBuilder(block), block.getLoc()), block(block) {}

  /// Replaces the block; nothing is changed when that fails.
  LogicalResult run() {
    if (block.getSize() || !block.getStates().empty())
      return fail("a state is computed once per block of tokens");
    Block &body = block.getBody().front();
    auto arguments = body.getArguments().begin();
    for (Value token : block.getTokens())
      items[*arguments++] = {Item::Rows, token, {}};
    for (Value shared : block.getShared())
      items[*arguments++] = {Item::Shared, shared, {}};
    Operation *first = block->getPrevNode();
    LogicalResult result = success();
    for (Operation &op : body.without_terminator()) {
      loc = op.getLoc();
      if (succeeded(result))
        result = visit(&op);
    }
    if (succeeded(result))
      for (Value row : block.getYield().getValues())
        if (items[row].kind != Item::Rows)
          result = fail("the output is not a value of each token");
    if (failed(result)) {
      for (Operation *op = block->getPrevNode(); op != first;) {
        Operation *previous = op->getPrevNode();
        op->dropAllUses();
        op->erase();
        op = previous;
      }
      for (Memory &memory : llvm::reverse(memories))
        rule.getBody().eraseArgument(memory.before.getArgNumber());
      return failure();
    }
    for (auto [row, value] : llvm::zip(block.getRows(), block.getYield().getValues()))
      row.replaceAllUsesWith(items[value].value);
    block.erase();
    addStates();
    return success();
  }

private:
  //===--------------------------------------------------------------------===//
  // The block's ops
  //===--------------------------------------------------------------------===//

  bool isTokens(Attribute dim) { return dim == block.getLengthAttr(); }

  LogicalResult visit(Operation *op) {
    auto type = dyn_cast<MatType>(op->getResult(0).getType());
    bool rows = isTokens(type.getRows()), cols = isTokens(type.getCols());
    Item result{rows && cols ? Item::Pairs : rows ? Item::Rows : cols ? Item::Cols : Item::Shared, {}, {}};
    SmallVector<Item> operands;
    bool shared = !rows && !cols;
    for (Value operand : op->getOperands()) {
      operands.push_back(items[operand]);
      shared &= operands.back().kind == Item::Shared;
    }
    FailureOr<Value> value;
    if (shared) {
      if (auto size = dyn_cast<SizeOp>(op); size && isTokens(size.getDim()))
        return fail("the length of the sequence is not known at a token");
      IRMapping mapping;
      for (auto [operand, item] : llvm::zip(op->getOperands(), operands))
        mapping.map(operand, item.value);
      value = b.clone(*op, mapping)->getResult(0);
    } else if (result.kind == Item::Pairs) {
      FailureOr<Matrix> matrix = visitPairs(op, operands);
      if (failed(matrix))
        return failure();
      result.matrix = *matrix;
      value = Value();
    } else if (result.kind == Item::Shared) {
      return fail("a sum over the whole sequence");
    } else {
      value = visitRows(op, operands, type, result.kind);
    }
    if (failed(value))
      return failure();
    result.value = *value;
    items[op->getResult(0)] = result;
    return success();
  }

  // T x n and n x T, a column for one token.
  FailureOr<Value> visitRows(Operation *op, ArrayRef<Item> operands, MatType type, Item::Kind kind) {
    if (isa<TransposeOp, AssumeOp>(op))
      return operands[0].value;
    if (auto matmul = dyn_cast<MatmulOp>(op)) {
      const Item &lhs = operands[0], &rhs = operands[1];
      if (lhs.kind == Item::Pairs && rhs.kind == Item::Rows)
        return apply(lhs.matrix, rhs.value);
      if (lhs.kind == Item::Rows && rhs.kind == Item::Shared)
        return product(flip(rhs.value), lhs.value);
      if (lhs.kind == Item::Shared && rhs.kind == Item::Cols)
        return product(lhs.value, rhs.value);
      return fail("a sum over the whole sequence");
    }
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      bool alongRows = kind == Item::Rows;
      if (alongRows ? reduce.getRows() : reduce.getCols())
        return fail("a reduction over the whole sequence");
      if (operands[0].kind != Item::Pairs)
        return ReduceOp::create(b, loc, reduce.getKind(), operands[0].value, true, false).getResult();
      if (reduce.getKind() == Reduction::Sum && alongRows)
        return apply(operands[0].matrix, number(1));
      return fail("a reduction over all pairs of tokens");
    }
    if (!isa<ElementwiseOp, BroadcastOp>(op))
      return fail("'" + op->getName().stripDialect() + "' of the whole sequence");
    OperationState state(loc, op->getName(), {}, {}, op->getAttrs());
    for (const Item &item : operands) {
      if (item.kind == Item::Shared && !matType(item.value).isScalar())
        state.operands.push_back(kind == Item::Rows ? flip(item.value) : item.value);
      else
        state.operands.push_back(item.value);
    }
    Attribute size = kind == Item::Rows ? type.getCols() : type.getRows();
    state.addTypes(MatType::get(op->getContext(), size, b.getI64IntegerAttr(1)));
    return b.create(state)->getResult(0);
  }

  // A number, or one for each token, as a matrix: of rank 1.
  Matrix repeated(const Item &item) {
    if (item.kind == Item::Pairs)
      return item.matrix;
    bool isKey = item.kind == Item::Cols;
    return kernel(isKey ? Value() : item.value, isKey ? item.value : Value(), {}, Reach::All);
  }

  FailureOr<Matrix> visitPairs(Operation *op, ArrayRef<Item> operands) {
    if (isa<IdentityOp>(op))
      return diagonal({});
    if (auto mask = dyn_cast<MaskOp>(op))
      return kernel({}, {}, {}, mask.getStrict() ? Reach::Strict : Reach::Inclusive);
    if (isa<DecayOp>(op))
      return kernel({}, {}, operands[0].value, Reach::Inclusive);
    if (isa<DiagOp>(op))
      return diagonal(operands[0].value);
    if (isa<AssumeOp>(op))
      return operands[0].matrix;
    if (isa<InverseOp>(op))
      return combine(Operator::Inverse, {operands[0].matrix});
    if (isa<NegOp>(op))
      return scaleRows(operands[0].matrix, number(-1));
    if (isa<TransposeOp>(op)) {
      const Matrix &m = operands[0].matrix;
      if (m->kind == Operator::Diagonal)
        return m;
      if (m->kind == Operator::Kernel && m->reach == Reach::All)
        return kernel(m->key, m->query, m->decay, Reach::All);
      return fail("the transpose of a causal matrix reads later tokens");
    }
    if (isa<MatmulOp>(op)) {
      if (operands[0].kind == Item::Pairs)
        return combine(Operator::Product, {operands[0].matrix, operands[1].matrix});
      return kernel(operands[0].value, operands[1].value, {}, Reach::All);
    }
    if (isa<BroadcastOp>(op))
      return repeated(operands[0]);
    if (isa<AddOp, SubOp>(op)) {
      Matrix lhs = repeated(operands[0]), rhs = repeated(operands[1]);
      return combine(Operator::Sum, {lhs, isa<SubOp>(op) ? scaleRows(rhs, number(-1)) : rhs});
    }
    if (isa<MulOp, DivOp>(op)) {
      Item lhs = operands[0], rhs = operands[1];
      if (isa<MulOp>(op) && lhs.kind != Item::Pairs)
        std::swap(lhs, rhs);
      if (lhs.kind == Item::Pairs && rhs.kind == Item::Pairs && isa<MulOp>(op))
        return entrywise(lhs.matrix, rhs.matrix);
      if (lhs.kind == Item::Cols)
        std::swap(lhs, rhs);
      if (lhs.kind == Item::Rows && rhs.kind == Item::Cols && isa<MulOp>(op))
        return kernel(lhs.value, rhs.value, {}, Reach::All);
      if (lhs.kind == Item::Pairs && rhs.kind != Item::Pairs) {
        Value scale = isa<DivOp>(op) ? over({}, rhs.value) : rhs.value;
        if (rhs.kind != Item::Cols)
          return scaleRows(lhs.matrix, scale);
        return combine(Operator::Product, {lhs.matrix, diagonal(scale)});
      }
    }
    return fail("'" + op->getName().stripDialect() + "' of all pairs of tokens has no finite rank");
  }

  //===--------------------------------------------------------------------===//
  // The rule
  //===--------------------------------------------------------------------===//

  // The new states start at zero and follow those that the rule has.
  void addStates() {
    llvm::StringSet<> taken;
    SmallVector<Attribute> args(rule.getArgs().begin(), rule.getArgs().end());
    for (Attribute arg : args)
      taken.insert(cast<ArgAttr>(arg).getName().getValue());
    for (StringAttr name : rule.getOutputs().getAsRange<StringAttr>())
      taken.insert(name.getValue());
    YieldOp yield = rule.getBodyYield(), init = rule.getInitYield();
    unsigned states = init.getNumOperands();
    OpBuilder atInit(init);
    for (Memory &memory : memories) {
      std::string base = matType(memory.before).isVector() ? "z" : "S", name = base;
      for (unsigned i = 2; !taken.insert(name).second; ++i)
        name = base + std::to_string(i);
      args.push_back(ArgAttr::get(b.getContext(), ArgKind::State, b.getStringAttr(name), {}, false, 0));
      yield.getValuesMutable().slice(states++, 0).append(memory.after);
      init.getValuesMutable().append(
          ConstantOp::create(atInit, memory.before.getLoc(), 0.0, memory.before.getType()).getResult());
    }
    rule.setArgsAttr(b.getArrayAttr(args));
  }

  BlockOp block;
  DenseMap<Value, Item> items;
};

struct FindRecurrence : recur::impl::RecurFindRecurrenceBase<FindRecurrence> {
  void runOnOperation() override { findRecurrence(getOperation()); }
};
} // namespace

std::string recur::findRecurrence(RuleOp rule) {
  SmallVector<BlockOp> blocks(rule.getBody().getOps<BlockOp>());
  if (blocks.size() != 1)
    return blocks.empty() ? "" : "the sequence is passed more than once";
  Finder finder(rule, blocks[0]);
  return succeeded(finder.run()) ? "" : finder.reason;
}
