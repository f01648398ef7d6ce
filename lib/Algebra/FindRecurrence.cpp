// Finds the recurrence in products over the whole sequence.
//
// A T x T matrix that weighs earlier tokens only is a causal operator: it makes a row per token from rows per
// token. Three kinds run token by token with a state of fixed size, and sums, products and inverses of such do too:
//
//   diagonal   y_t = d_t x_t
//   kernel     y_t = sum over j <= t (strict: j < t) of a_{j+1} .. a_t (q_t . k_j) x_j
//              = S_t q_t  with  S_t = a_t S_{t-1} + x_t k_tT   (strict: a_t S_{t-1} q_t)
//   inverse    y = (D + N)^-1 x, N strict: y_t = (x_t - (N y)_t) / d_t, where (N y)_t needs earlier y only
//
// So `((Q*K.T).*M)*inv(I + (W*W.T).*Mx)*V` is a delta rule without decay, found by the same three lines (the algebra of
// semiseparable matrices: Dao and Gu, "Transformers are SSMs", arXiv 2405.21060, section 3). Functions of
// scores, exp above all, have no finite rank: the block stays as it is.
#include "lib/Algebra/Passes.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringSet.h"

#include <memory>

namespace recur {
#define GEN_PASS_DEF_RECURFINDRECURRENCE
#include "lib/Algebra/Passes.h.inc"
} // namespace recur

using namespace mlir;
using namespace recur;

namespace {
enum class Reach { All, Inclusive, Strict };

// A T x T matrix. Values are those of one token; a null one is the scalar 1.
struct Operator;
using Matrix = std::shared_ptr<const Operator>;
struct Operator {
  enum Kind { Diagonal, Kernel, Sum, Product, Inverse } kind;
  Value diagonal = {};                    // Diagonal: 1 x 1
  Value query = {}, key = {}, decay = {}; // Kernel: n x 1, n x 1, 1 x 1
  Reach reach = Reach::All;
  std::vector<Matrix> parts = {}; // Sum, Product (two), Inverse (one)
};

Matrix diagonal(Value value) { return std::make_shared<Operator>(Operator{Operator::Diagonal, value}); }
Matrix kernel(Value query, Value key, Value decay, Reach reach) {
  return std::make_shared<Operator>(Operator{Operator::Kernel, {}, query, key, decay, reach});
}
Matrix combine(Operator::Kind kind, ArrayRef<Matrix> parts) {
  return std::make_shared<Operator>(Operator{kind, {}, {}, {}, {}, Reach::All, parts.vec()});
}

// What a value of the block's region is to one token.
struct Item {
  enum Kind { Shared, Rows, Cols, Pairs } kind; // r x c without tokens; T x n; n x T; T x T
  Value value;                                  // Shared: itself; Rows, Cols: n x 1
  Matrix matrix;                                // Pairs
};

class Finder {
public:
  Finder(RuleOp rule, BlockOp block) : rule(rule), block(block), b(block), loc(block.getLoc()) {}

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

  std::string reason;

private:
  // A state of a kernel: sum of x k^T, decayed. While x is not known yet, `hole` says which unknown it is.
  struct Memory {
    Value key, decay, x;
    unsigned hole;
    BlockArgument before;
    Value after;
  };
  // What `hole` is once `of` is known.
  struct Dependent {
    unsigned hole, of;
    Matrix matrix;
  };

  LogicalResult fail(const Twine &why) {
    if (reason.empty())
      reason = why.str();
    return failure();
  }

  // One token's arithmetic; null is 1.
  Value number(double value) { return ConstantOp::create(b, loc, value); }
  Value orOne(Value value) { return value ? value : number(1); }
  Value times(Value lhs, Value rhs) { return !lhs ? rhs : !rhs ? lhs : MulOp::create(b, loc, lhs, rhs).getResult(); }
  Value plus(Value lhs, Value rhs) { return !lhs ? rhs : !rhs ? lhs : AddOp::create(b, loc, lhs, rhs).getResult(); }
  Value over(Value lhs, Value rhs) { return rhs ? DivOp::create(b, loc, orOne(lhs), rhs).getResult() : lhs; }
  Value flip(Value value) { return TransposeOp::create(b, loc, value); }
  Value product(Value lhs, Value rhs) { return MatmulOp::create(b, loc, lhs, rhs); }
  Value dot(Value lhs, Value rhs) {
    return lhs && rhs ? product(flip(lhs), rhs) : lhs ? lhs : rhs; // a null one is a scalar, so the other is too
  }

  //===--------------------------------------------------------------------===//
  // Matrices
  //===--------------------------------------------------------------------===//

  Matrix scaleRows(const Matrix &m, Value scale) {
    if (m->kind == Operator::Kernel)
      return kernel(times(scale, m->query), m->key, m->decay, m->reach);
    if (m->kind == Operator::Diagonal)
      return diagonal(times(scale, m->diagonal));
    if (m->kind == Operator::Sum) {
      SmallVector<Matrix> parts;
      for (const Matrix &part : m->parts)
        parts.push_back(scaleRows(part, scale));
      return combine(Operator::Sum, parts);
    }
    return combine(Operator::Product, {diagonal(scale), m});
  }

  FailureOr<Matrix> entrywise(const Matrix &lhs, const Matrix &rhs) {
    if (rhs->kind == Operator::Sum || lhs->kind == Operator::Diagonal)
      if (lhs->kind != Operator::Sum && rhs->kind != Operator::Diagonal)
        return entrywise(rhs, lhs);
    if (lhs->kind == Operator::Sum) {
      SmallVector<Matrix> parts;
      for (const Matrix &part : lhs->parts) {
        FailureOr<Matrix> masked = entrywise(part, rhs);
        if (failed(masked))
          return failure();
        parts.push_back(*masked);
      }
      return combine(Operator::Sum, parts);
    }
    bool kernels = lhs->kind == Operator::Kernel;
    if (rhs->kind == Operator::Diagonal && lhs->kind == Operator::Diagonal)
      return diagonal(times(lhs->diagonal, rhs->diagonal));
    if (rhs->kind == Operator::Diagonal && kernels)
      return lhs->reach == Reach::Strict ? combine(Operator::Sum, {})
                                         : diagonal(times(rhs->diagonal, dot(lhs->query, lhs->key)));
    if (!kernels || rhs->kind != Operator::Kernel)
      return fail("the entrywise product with a product or an inverse of matrices over all pairs of tokens");
    const Operator *wide = lhs.get(), *narrow = rhs.get(); // narrow: of rank 1
    auto rankOne = [](const Operator *m) {
      return (!m->query || matType(m->query).isScalar()) && (!m->key || matType(m->key).isScalar());
    };
    if (!rankOne(narrow))
      std::swap(wide, narrow);
    if (!rankOne(narrow))
      return fail("the entrywise product of two products of all pairs of tokens has a larger rank");
    return kernel(times(wide->query, narrow->query), times(wide->key, narrow->key), times(wide->decay, narrow->decay),
                  std::max(wide->reach, narrow->reach));
  }

  // The diagonal (none: null optional) and the part below it.
  struct Split {
    std::optional<Value> diagonal;
    Matrix strict;
  };
  FailureOr<Split> split(const Matrix &m) {
    Split result;
    switch (m->kind) {
    case Operator::Diagonal:
      return Split{m->diagonal, {}};
    case Operator::Kernel:
      if (m->reach == Reach::All)
        return fail("later tokens are read: multiply by M or Mx");
      if (m->reach == Reach::Strict)
        return Split{std::nullopt, m};
      return Split{dot(m->query, m->key), kernel(m->query, m->key, m->decay, Reach::Strict)};
    case Operator::Sum: {
      SmallVector<Matrix> strict;
      for (const Matrix &part : m->parts) {
        FailureOr<Split> one = split(part);
        if (failed(one))
          return failure();
        if (one->strict)
          strict.push_back(one->strict);
        if (one->diagonal)
          result.diagonal = result.diagonal ? plus(orOne(*result.diagonal), orOne(*one->diagonal)) : *one->diagonal;
      }
      if (!strict.empty())
        result.strict = strict.size() == 1 ? strict[0] : combine(Operator::Sum, strict);
      return result;
    }
    case Operator::Product: {
      FailureOr<Split> lhs = split(m->parts[0]), rhs = split(m->parts[1]);
      if (failed(lhs) || failed(rhs))
        return failure();
      SmallVector<Matrix> strict;
      if (lhs->diagonal && rhs->diagonal)
        result.diagonal = times(*lhs->diagonal, *rhs->diagonal);
      if (lhs->diagonal && rhs->strict)
        strict.push_back(scaleRows(rhs->strict, *lhs->diagonal));
      if (lhs->strict) // of the whole right side: its diagonal and what is below it
        strict.push_back(combine(Operator::Product, {lhs->strict, m->parts[1]}));
      if (!strict.empty())
        result.strict = strict.size() == 1 ? strict[0] : combine(Operator::Sum, strict);
      return result;
    }
    case Operator::Inverse: {
      FailureOr<Split> inner = split(m->parts[0]);
      if (failed(inner))
        return failure();
      if (!inner->diagonal)
        return fail("the inverse of a matrix without a diagonal");
      Value reciprocal = over({}, *inner->diagonal);
      if (!inner->strict)
        return Split{reciprocal, {}};
      Value minus = times(number(-1), reciprocal);
      return Split{reciprocal, combine(Operator::Product, {scaleRows(inner->strict, minus), m})};
    }
    }
    llvm_unreachable("covered switch");
  }

  //===--------------------------------------------------------------------===//
  // Operators applied to one token's row
  //===--------------------------------------------------------------------===//

  // S and its product with the query. S is m x n; n x 1 where the row is a scalar, so that it is a vector.
  Value readState(Value state, Value query, bool transposed) {
    if (!query)
      return state;
    if (transposed || matType(state).getCols() == matType(query).getRows())
      return product(transposed ? flip(state) : state, query);
    return times(state, query); // a key of 1 with a query that is a scalar
  }
  static bool isTransposed(Value key, MatType row) { return key && !matType(key).isScalar() && row.isScalar(); }

  Memory &stateOf(const Operator &m, MatType row, unsigned hole) {
    Attribute one = b.getI64IntegerAttr(1);
    Attribute keys = m.key ? matType(m.key).getRows() : one;
    MatType type = isTransposed(m.key, row) ? MatType::get(b.getContext(), keys, one)
                                            : MatType::get(b.getContext(), row.getRows(), keys);
    BlockArgument before = rule.getBody().addArgument(type, loc);
    memories.push_back({m.key, m.decay, {}, hole, before, {}});
    return memories.back();
  }

  void update(Memory &memory, Value x) {
    memory.x = x;
    memory.hole = 0;
    Value write = !memory.key                                      ? x
                  : isTransposed(memory.key, matType(x))           ? times(memory.key, x)
                  : matType(memory.key).isScalar()                 ? times(memory.key, x)
                                                                   : product(x, flip(memory.key));
    memory.after = plus(times(memory.decay, memory.before), write);
  }

  // The product of a strict operator with a row that is not known yet: the value of `hole`, of type `row`.
  FailureOr<Value> readStrict(const Matrix &m, MatType row, unsigned hole) {
    switch (m->kind) {
    case Operator::Kernel: {
      Memory *memory = llvm::find_if(
          memories, [&](const Memory &s) { return s.hole == hole && s.key == m->key && s.decay == m->decay; });
      if (memory == memories.end())
        memory = &stateOf(*m, row, hole);
      return times(m->decay, readState(memory->before, m->query, isTransposed(m->key, row)));
    }
    case Operator::Sum: {
      Value sum;
      for (const Matrix &part : m->parts) {
        FailureOr<Value> one = readStrict(part, row, hole);
        if (failed(one))
          return failure();
        sum = plus(sum, *one);
      }
      return sum;
    }
    case Operator::Product: {
      FailureOr<Split> lhs = split(m->parts[0]);
      if (failed(lhs))
        return failure();
      if (!lhs->diagonal) { // strict on the left: it reads what the right side makes of the row
        unsigned inner = ++holes;
        dependents.push_back({inner, hole, m->parts[1]});
        return readStrict(lhs->strict, row, inner);
      }
      FailureOr<Value> read = readStrict(m->parts[1], row, hole);
      return failed(read) ? read : apply(m->parts[0], *read);
    }
    default:
      return fail("an inverse below the diagonal");
    }
  }

  LogicalResult fill(unsigned hole, Value value) {
    for (Memory &memory : memories)
      if (memory.hole == hole)
        update(memory, value);
    for (size_t i = 0; i < dependents.size(); ++i)
      if (dependents[i].of == hole) {
        Dependent dependent = dependents[i];
        FailureOr<Value> inner = apply(dependent.matrix, value);
        if (failed(inner) || failed(fill(dependent.hole, *inner)))
          return failure();
      }
    return success();
  }

  FailureOr<Value> apply(const Matrix &m, Value x) {
    switch (m->kind) {
    case Operator::Diagonal:
      return times(m->diagonal, x);
    case Operator::Kernel: {
      if (m->reach == Reach::All)
        return fail("later tokens are read: multiply by M or Mx");
      Memory *memory = llvm::find_if(
          memories, [&](const Memory &s) { return s.x == x && s.key == m->key && s.decay == m->decay; });
      if (memory == memories.end()) {
        memory = &stateOf(*m, matType(x), 0);
        update(*memory, x);
      }
      bool transposed = isTransposed(m->key, matType(x));
      return m->reach == Reach::Strict ? times(m->decay, readState(memory->before, m->query, transposed))
                                       : readState(memory->after, m->query, transposed);
    }
    case Operator::Sum: {
      Value sum;
      for (const Matrix &part : m->parts) {
        FailureOr<Value> one = apply(part, x);
        if (failed(one))
          return failure();
        sum = plus(sum, *one);
      }
      return sum ? sum : times(number(0), x);
    }
    case Operator::Product: {
      FailureOr<Value> inner = apply(m->parts[1], x);
      return failed(inner) ? inner : apply(m->parts[0], *inner);
    }
    case Operator::Inverse: {
      FailureOr<Split> parts = split(m->parts[0]);
      if (failed(parts))
        return failure();
      if (!parts->diagonal)
        return fail("the inverse of a matrix without a diagonal");
      if (!parts->strict)
        return over(x, *parts->diagonal);
      unsigned hole = ++holes;
      FailureOr<Value> known = readStrict(parts->strict, matType(x), hole);
      if (failed(known))
        return failure();
      Value y = over(SubOp::create(b, loc, x, *known), *parts->diagonal);
      if (failed(fill(hole, y)))
        return failure();
      return y;
    }
    }
    llvm_unreachable("covered switch");
  }

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
    if (isa<AddOp, SubOp>(op) && operands[0].kind == Item::Pairs && operands[1].kind == Item::Pairs)
      return combine(Operator::Sum, {operands[0].matrix, isa<SubOp>(op) ? scaleRows(operands[1].matrix, number(-1))
                                                                         : operands[1].matrix});
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
      init.getValuesMutable().append(ConstantOp::create(atInit, memory.before.getLoc(), 0.0, memory.before.getType()).getResult());
    }
    rule.setArgsAttr(b.getArrayAttr(args));
  }

  RuleOp rule;
  BlockOp block;
  OpBuilder b;
  Location loc;
  DenseMap<Value, Item> items;
  SmallVector<Memory> memories;
  SmallVector<Dependent> dependents;
  unsigned holes = 0;
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
