#include "lib/Algebra/JoinedKeys.h"
#include "lib/Algebra/LinearSum.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/Terms.h"
#include "mlir/Analysis/TopologicalSortUtils.h"

using namespace mlir;
using namespace recur;

static bool isNumber(Value value) { return matType(value).isScalar(); }
static bool isOfMatrix(Value value) { return isMatrix(matType(value)); }

// The value that another one is but for its orientation.
static Value plain(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<TransposeOp, AssumeOp>(op) || isOfMatrix(value))
      break;
    value = op->getOperand(0);
  }
  return value;
}

namespace {
// By member, null where there is none: vectors that matrices are read or written along, numbers of vectors.
using Along = SmallVector<Value>;

// A vector that follows linearly from the joined state, as it was and as it is, and from the rest.
struct Combination {
  Along old, now;
  Value rest;
};

class Joiner {
public:
  explicit Joiner(RuleOp rule)
      : rule(rule), body(rule.getBody().front()), b(rule.getBodyYield()), loc(rule.getLoc()),
        states(rule.argumentsOf(ArgKind::State)) {}

  LogicalResult run() {
    auto hasRegion = [](Operation &op) { return op.getNumRegions() != 0; };
    if (states.size() > 64 || !rule.argumentsOf(ArgKind::Stale).empty() || llvm::any_of(body, hasRegion))
      return failure();
    findReach();
    if (failed(findMembers()) || failed(findWrites()))
      return failure();
    makeState();
    Value whole = makeUpdate();
    return whole ? replace(whole) : failure();
  }

private:
  void findReach() {
    for (auto [i, state] : llvm::enumerate(states))
      reach[state] = uint64_t(1) << i;
    for (Operation &op : body.without_terminator())
      for (Value result : op.getResults())
        for (Value operand : op.getOperands())
          reach[result] |= reach.lookup(operand);
  }

  // The states that the first matrix which needs others needs, and that need it.
  LogicalResult findMembers() {
    SmallVector<uint64_t> needs;
    for (Value update : rule.yieldedStates())
      needs.push_back(reach.lookup(update));
    for (bool more = true; std::exchange(more, false);)
      for (uint64_t &own : needs)
        for (auto [k, other] : llvm::enumerate(needs))
          if (own >> k & 1 && other & ~own)
            own |= other, more = true;
    for (auto [i, state] : llvm::enumerate(states)) {
      group = 0;
      for (unsigned k = 0; k < states.size(); ++k)
        group |= uint64_t((needs[i] >> k & 1) && (needs[k] >> i & 1)) << k;
      if (!isOfMatrix(state) || llvm::popcount(group) < 2)
        continue;
      isTurned = findOrientation();
      rows = isTurned ? matType(state).numCols() : matType(state).numRows();
      // Matrices first.
      for (bool ofMatrices : {true, false})
        for (unsigned k = 0; k < states.size(); ++k)
          if (group >> k & 1 && isOfMatrix(states[k]) == ofMatrices)
            members.push_back(k);
      break;
    }
    for (unsigned member : members) {
      MatType type = matType(states[member]);
      std::optional<int64_t> param = paramOf(rule.getInitYield()->getOperand(member));
      bool isVector = !isOfMatrix(states[member]);
      if ((isTurned && !isVector ? type.numCols() : type.numRows()) != rows || !param)
        return failure();
      params.push_back(*param);
      firsts.push_back(llvm::alignTo(keys, keysTogether));
      keys = firsts.back() + keysOf(firsts.size() - 1);
    }
    return success(!members.empty());
  }

  BlockArgument member(unsigned i) const { return states[members[i]]; }
  Value update(unsigned i) const { return RuleOp(rule).yieldedStates()[members[i]]; }
  int64_t keysOf(unsigned i) const {
    MatType type = matType(member(i));
    return isVector(i) ? keysOfVector : isTurned ? type.numRows() : type.numCols();
  }
  // The param that an initial state is, by number, or -1 for zeros; nothing for others.
  std::optional<int64_t> paramOf(Value first) {
    if (auto constant = first.getDefiningOp<ConstantOp>(); constant && constant.getValue().isZero())
      return -1;
    unsigned next = 0;
    int64_t param = 0;
    for (BlockArgument argument : body.getArguments()) {
      ArgKind kind = rule.getArg(argument).getKind();
      if (kind != ArgKind::Param && kind != ArgKind::Head && kind != ArgKind::Heads)
        continue;
      bool isIt = rule.getInit().getArgument(next++) == first;
      if (kind == ArgKind::Param && isIt) // whose rows blocks then share out as those of the state
        return argument.use_empty() ? std::optional<int64_t>(param) : std::nullopt;
      param += kind == ArgKind::Param;
    }
    return std::nullopt;
  }
  // Whether matrices of the group are read on their left.
  bool findOrientation() {
    for (auto read : body.getOps<MatmulOp>())
      for (unsigned i : {0, 1}) {
        Value matrix = read->getOperand(i);
        bool isLeft = i;
        while (auto turned = matrix.getDefiningOp<TransposeOp>())
          matrix = turned.getOperand(), isLeft = !isLeft;
        if (isOfMatrix(matrix) && !isOfToken(matrix) && !isOfMatrix(read->getOperand(1 - i)))
          return isLeft;
      }
    return false;
  }
  bool isVector(unsigned i) const { return !isOfMatrix(states[members[i]]); }
  std::optional<unsigned> memberOf(Value value, bool isUpdate) const {
    for (unsigned i = 0; i < members.size(); ++i)
      if (isUpdate ? plain(update(i)) == value : member(i) == value)
        return i;
    return std::nullopt;
  }
  bool isOfToken(Value value) const { return !(reach.lookup(value) & group); }

  //===-- Numbers and vectors, null for 1 and for 0
  //------------------------------------------------------===//

  Value one() { return ConstantOp::create(b, loc, 1.0); }
  Value times(Value x, Value y) { return !x ? y : !y ? x : MulOp::create(b, loc, x, y).getResult(); }
  void add(Value &sum, Value more) { sum = sum ? AddOp::create(b, loc, sum, more).getResult() : more; }
  Value column(Value vector) {
    vector = plain(vector);
    return isRow(matType(vector)) ? TransposeOp::create(b, loc, vector).getResult() : vector;
  }

  // A value as a sum of others, each times a number.
  SmallVector<std::pair<Value, Value>> termsOf(Value value, LinearSum::Predicate isLeaf = nullptr) {
    auto isKnownNumber = [&](Value x) { return isNumber(x) && isOfToken(x); };
    return LinearSum(b, value, isKnownNumber, isLeaf).build();
  }

  //===-- What the states become
  //-------------------------------------------------------------------------===//

  // Of matrices what is written to them along vectors of the token, by what is written; of vectors what they
  // have of that.
  LogicalResult findWrites() {
    for (unsigned i = 0; i < members.size(); ++i)
      if (!isVector(i) && failed(findWritesToMatrix(i)))
        return failure();
    return success();
  }

  LogicalResult findWritesToMatrix(unsigned i) {
    Value left; // of the state as it was; null: nothing
    for (auto [term, number] : termsOf(update(i))) {
      if (term == member(i)) {
        left = number ? number : one();
        continue;
      }
      auto outer = term.getDefiningOp<MatmulOp>();
      if (!outer || isOfMatrix(outer.getLhs()) || isOfMatrix(outer.getRhs()) ||
          !isOfToken(outer->getOperand(isTurned ? 0 : 1)))
        return failure();
      Value what = unscaled(b, loc, plain(outer->getOperand(isTurned ? 1 : 0)), number);
      auto &along = writes[plain(what)];
      along.resize(members.size());
      add(along[i], scaled(b, loc, number, column(outer->getOperand(isTurned ? 0 : 1))));
    }
    if (!left || (decay && !isSameNumber(decay, left)))
      return failure();
    decay = left;
    return success();
  }

  // What a vector becomes beside what is written to matrices, too. What is left of it that is not left of
  // those, it is written.
  std::optional<Combination> restOf(unsigned i) {
    Combination rest = none();
    auto isWritten = [&](Value value) { return writes.contains(plain(value)); };
    for (auto [term, number] : termsOf(update(i), isWritten)) {
      if (isWritten(term))
        add(writes[plain(term)][i], number ? number : one());
      else if (!addVector(term, number, rest, /*fromNew=*/false))
        return std::nullopt;
    }
    Value &left = rest.old[i];
    if (left && isSameNumber(left, decay))
      left = {};
    else if (left)
      left = SubOp::create(b, loc, left, decay);
    else
      left = NegOp::create(b, loc, decay);
    return rest;
  }

  //===-- Vectors that follow from the states
  //------------------------------------------------------------===//

  Combination none() const { return {Along(members.size()), Along(members.size()), {}}; }

  // Adds a vector times a number; what it reads of new states as that, or of what they are made of.
  bool addVector(Value vector, Value number, Combination &sum, bool fromNew) {
    auto isNew = [&](Value value) { return fromNew && memberOf(plain(value), /*isUpdate=*/true); };
    for (auto [value, own] : termsOf(plain(vector), isNew)) {
      Value term = plain(value), factor = times(number, own);
      if (auto i = fromNew ? memberOf(term, /*isUpdate=*/true) : std::nullopt; i && isVector(*i)) {
        add(sum.now[*i], factor ? factor : one());
      } else if (auto i = memberOf(term, /*isUpdate=*/false); i && isVector(*i)) {
        add(sum.old[*i], factor ? factor : one());
      } else if (term != plain(vector) && !isOfToken(term)) {
        if (!addVector(term, factor, sum, fromNew))
          return false;
      } else if (auto read = term.getDefiningOp<MatmulOp>();
                 read && !isNumber(term) && !isOfToken(term) &&
                 (isOfMatrix(read.getLhs()) != isOfMatrix(read.getRhs()))) {
        bool onLeft = isOfMatrix(read.getRhs());
        Value along = read->getOperand(onLeft ? 0 : 1);
        if (!isOfToken(along)
                ? !addOpaque(term, factor, sum)
                : !addRead(read->getOperand(onLeft ? 1 : 0), onLeft, column(along), factor, sum, fromNew))
          return false;
      } else if (!addOpaque(term, factor, sum)) {
        return false;
      }
    }
    return true;
  }

  // Adds number * matrix * vector or, on its left, what is that of the transposed matrix.
  bool addRead(Value matrix, bool onLeft, Value vector, Value number, Combination &sum, bool fromNew) {
    if (auto turned = matrix.getDefiningOp<TransposeOp>())
      return addRead(turned.getOperand(), !onLeft, vector, number, sum, fromNew);
    if (auto i = fromNew && onLeft == isTurned ? memberOf(matrix, /*isUpdate=*/true) : std::nullopt)
      return add(sum.now[*i], scaled(b, loc, number, vector)), true;
    for (auto [term, own] : termsOf(matrix)) {
      Value factor = times(number, own);
      auto outer = term.getDefiningOp<MatmulOp>();
      if (auto i = onLeft != isTurned ? std::nullopt : memberOf(term, /*isUpdate=*/false)) {
        add(sum.old[*i], scaled(b, loc, factor, vector));
      } else if (isa_and_present<TransposeOp>(term.getDefiningOp())) {
        if (!addRead(term, onLeft, vector, factor, sum, fromNew))
          return false;
      } else if (outer && !isOfMatrix(outer.getLhs()) && !isOfMatrix(outer.getRhs())) {
        Value what = outer->getOperand(onLeft ? 1 : 0), key = column(outer->getOperand(onLeft ? 0 : 1));
        if (!isOfToken(key))
          return false;
        Value met = MatmulOp::create(b, loc, TransposeOp::create(b, loc, key), vector);
        if (!addVector(what, times(factor, met), sum, fromNew))
          return false;
      } else {
        return false;
      }
    }
    return true;
  }

  // A vector that does not follow linearly: of the token, or a function of what does.
  bool addOpaque(Value vector, Value number, Combination &sum) {
    Value own = rebuilt(vector);
    if (!own)
      return false;
    add(sum.rest, scaled(b, loc, number, column(own)));
    return true;
  }

  // The vector that a combination is.
  Value make(const Combination &combination) {
    Value sum;
    for (auto [state, along] : {std::pair(joined, &combination.old), std::pair(updated, &combination.now)})
      if (auto [vector, number] = joinedVector(*along); vector)
        add(sum, scaled(b, loc, number, readOf(b, loc, state, isTurned ? Side::Left : Side::Right, vector)));
    if (combination.rest)
      add(sum, combination.rest);
    return sum ? sum : ConstantOp::create(b, loc, 0.0, columnType(rows));
  }

  MatType columnType(int64_t size) {
    return MatType::get(b.getContext(), b.getI64IntegerAttr(size), b.getI64IntegerAttr(1));
  }

  // What all members' keys are, and a number that all are times, null for 1; null where there are none.
  std::pair<Value, Value> joinedVector(const Along &along) {
    SmallVector<Value> vectors, numbers;
    for (Value own : along) {
      Value number;
      if (own && isNumber(own))
        number = own, own = one();
      else if (own)
        own = unscaled(b, loc, own, number);
      vectors.push_back(own);
      numbers.push_back(number);
    }
    auto *first = llvm::find_if(vectors, [](Value vector) { return vector != nullptr; });
    if (first == vectors.end())
      return {};
    Value common = numbers[first - vectors.begin()];
    bool isCommon = llvm::all_of(llvm::zip(vectors, numbers), [&](const auto &own) {
      auto [vector, number] = own;
      return !vector || isSameNumber(number, common);
    });
    SmallVector<Value> parts;
    for (unsigned i = 0; i < members.size(); ++i) {
      MatType type = columnType(keysOf(i));
      Value number = isCommon ? Value() : numbers[i], part = vectors[i];
      if (!part)
        part = ConstantOp::create(b, loc, 0.0, type);
      else if (isVector(i))
        part = ConstantOp::create(b, loc, entryOfVector, type);
      parts.push_back(vectors[i] ? scaled(b, loc, number, part) : part);
    }
    for (auto &[known, vector] : vectorsMade)
      if (llvm::all_of(llvm::zip(known, parts),
                       [](const auto &pair) { return isEqual(std::get<0>(pair), std::get<1>(pair)); }))
        return {vector, isCommon ? common : Value()};
    Value vector = ConcatOp::create(b, loc, parts, firsts);
    vectorsMade.push_back({parts, vector});
    return {vector, isCommon ? common : Value()};
  }

  //===-- The rule of the joined state
  //-------------------------------------------------------------------===//

  // The joined state stands where the first of them did.
  void makeState() {
    SmallVector<std::string> names;
    for (unsigned i = 0; i < members.size(); ++i)
      names.push_back(rule.getArg(member(i)).getName().str());
    MLIRContext *context = b.getContext();
    unsigned at = member(0).getArgNumber();
    SmallVector<Attribute> args(rule.getArgs().begin(), rule.getArgs().end());
    args.insert(args.begin() + at,
                ArgAttr::get(context, ArgKind::State, StringAttr::get(context, joinNames(names)), RangeAttr(),
                             /*unit=*/false, /*block=*/0));
    rule.setArgsAttr(ArrayAttr::get(context, args));
    auto type = MatType::get(context, b.getI64IntegerAttr(rows), b.getI64IntegerAttr(keys));
    type = isTurned ? type.transposed() : type;
    joined = body.insertArgument(at, type, loc);
    SmallVector<int64_t> places{isTurned};
    for (unsigned i = 0; i < members.size(); ++i)
      places.append({firsts[i], keysOf(i), params[i]});
    rule->setAttr(joinedKeysAttr, b.getDenseI64ArrayAttr(places));
  }

  // The new one; null where what is written is not known.
  Value makeUpdate() {
    SmallVector<Value> rests(members.size());
    for (unsigned i = 0; i < members.size(); ++i) {
      if (!isVector(i))
        continue;
      std::optional<Combination> rest = restOf(i);
      if (!rest)
        return {};
      if (rest->rest || llvm::any_of(rest->old, [](Value along) { return along != nullptr; }))
        rests[i] = make(*rest);
    }
    Value sum = MulOp::create(b, loc, joined.getType(), decay, joined);
    auto write = [&](Value what, const Along &along) {
      auto [vector, number] = joinedVector(along);
      Value left = isTurned ? vector : what, right = isTurned ? what : vector;
      add(sum, scaled(b, loc, number, MatmulOp::create(b, loc, left, TransposeOp::create(b, loc, right))));
    };
    for (auto &[what, along] : writes) {
      Combination own = none();
      if (!isOfToken(what) && !addVector(what, {}, own, /*fromNew=*/false))
        return {};
      write(isOfToken(what) ? column(what) : make(own), along);
    }
    for (unsigned i = 0; i < members.size(); ++i)
      if (rests[i]) {
        Along along(members.size());
        along[i] = one();
        write(rests[i], along);
      }
    return sum;
  }

  // What a value is that other things need; null where that is a matrix.
  Value rebuilt(Value value) {
    if (isOfToken(value))
      return value;
    if (Value known = replaced.lookup(value))
      return known;
    Operation *op = value.getDefiningOp();
    if (!op || isOfMatrix(value))
      return {};
    SmallVector<Value> operands;
    for (Value operand : op->getOperands()) {
      Value own = isOfMatrix(operand) || isNumber(operand) ? rebuilt(operand) : needed(operand);
      if (!own)
        return {};
      operands.push_back(own);
    }
    Operation *copy = b.clone(*op);
    copy->setOperands(operands);
    return replaced[value] = copy->getResult(0);
  }

  // The same of a vector, as it is turned: of new states, once there are some.
  Value needed(Value vector) {
    if (isOfToken(vector))
      return vector;
    Combination own = none();
    if (!addVector(vector, {}, own, updated != nullptr))
      return {};
    Value made = make(own);
    return isRow(matType(vector)) ? TransposeOp::create(b, loc, made).getResult() : made;
  }

  // What else follows from the states follows from the new one.
  LogicalResult replace(Value whole) {
    updated = whole;
    replaced.clear();
    Operation *yield = rule.getBodyYield(), *init = rule.getInitYield();
    SmallVector<Value> yields, inits;
    for (auto [i, value] : llvm::enumerate(yield->getOperands())) {
      bool isMember = i < states.size() && llvm::is_contained(members, i);
      Value own = i == members[0]                        ? whole
                  : isMember                             ? Value()
                  : isOfMatrix(value) || isNumber(value) ? rebuilt(value)
                                                         : needed(value);
      if (own)
        yields.push_back(own);
      else if (!isMember)
        return failure();
    }
    OpBuilder first(init);
    for (auto [i, value] : llvm::enumerate(init->getOperands()))
      if (i == members[0])
        inits.push_back(ConstantOp::create(first, loc, 0.0, cast<MatType>(joined.getType())));
      else if (!llvm::is_contained(members, i))
        inits.push_back(value);
    yield->setOperands(yields);
    init->setOperands(inits);
    if (!sortTopologically(&body))
      return failure();
    eraseDead(rule);
    SmallVector<Attribute> args(rule.getArgs().begin(), rule.getArgs().end());
    for (unsigned i = members.size(); i-- > 0;) {
      unsigned at = member(i).getArgNumber();
      if (!member(i).use_empty())
        return failure();
      body.eraseArgument(at);
      args.erase(args.begin() + at);
    }
    rule.setArgsAttr(ArrayAttr::get(rule.getContext(), args));
    return success();
  }

  RuleOp rule;
  Block &body;
  OpBuilder b;
  Location loc;
  SmallVector<BlockArgument> states;
  llvm::DenseMap<Value, uint64_t> reach;
  uint64_t group = 0;
  SmallVector<unsigned> members; // by number among the states
  SmallVector<int64_t> firsts, params;
  bool isTurned = false; // matrices have a row for each key
  int64_t rows = 0, keys = 0;
  Value decay;                          // what a token leaves of all, a number
  llvm::MapVector<Value, Along> writes; // by what is written
  Value joined, updated;                // the state, and the new one once there is one
  SmallVector<std::pair<SmallVector<Value>, Value>> vectorsMade;
  llvm::DenseMap<Value, Value> replaced;
};
} // namespace

OwningOpRef<ModuleOp> recur::joinKeys(RuleOp rule) {
  return rewritten(rule, [](RuleOp copy) { return Joiner(copy).run(); });
}
