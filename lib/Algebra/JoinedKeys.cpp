#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/JoinedMembers.h"
#include "lib/Algebra/LinearSum.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/Terms.h"
#include "mlir/Analysis/TopologicalSortUtils.h"

using namespace mlir;
using namespace recur;

namespace {
// By member, null where there is none: vectors that matrices are read or written along, numbers of vectors.
using Along = SmallVector<Value>;

// A vector that follows linearly from the joined state, as it was, as it is and as it was at the start of a
// block, and from the rest.
struct Combination {
  Along old, now, start;
  Value rest;
  bool isLinear = true; // else the rest has functions of the state
};

class Joiner : JoinedMembers {
public:
  Joiner(RuleOp rule, bool areAlike)
      : JoinedMembers(rule), b(rule.getBodyYield()), loc(rule.getLoc()), areAlike(areAlike) {}

  LogicalResult run() {
    if (failed(find(areAlike)) || failed(findWrites()))
      return failure();
    makeState();
    // Of all joined states the keys lie alike (joinedNames).
    if (areAlike && rule->getAttr(joinedKeysAttr) != places())
      return failure();
    rule->setAttr(joinedKeysAttr, places());
    Value whole = makeUpdate();
    return whole ? replace(whole) : failure();
  }

private:
  // Numbers and vectors, null for 1 and for 0.

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

  // What the states become.

  // Of matrices what is written to them along vectors of the token, by what is written; of vectors what they
  // have of that.
  LogicalResult findWrites() {
    for (unsigned i = 0; i < members.size(); ++i)
      if (!isVector(i) && failed(findWritesToMatrix(i)))
        return failure();
    findDecay();
    return success();
  }

  LogicalResult findWritesToMatrix(unsigned i) {
    Value left; // of the state as it was; null: nothing
    for (auto [term, number] : termsOf(update(i))) {
      Value channels = channelsOf(term, member(i));
      if (term == member(i) || channels) {
        if (left)
          return failure();
        left = number ? number : one();
        if (channels)
          left = scaled(b, loc, number, column(channels));
        continue;
      }
      auto outer = term.getDefiningOp<MatmulOp>();
      if (!outer || isOfMatrix(outer.getLhs()) || isOfMatrix(outer.getRhs()) ||
          !isOfToken(outer->getOperand(isTurned ? 0 : 1)))
        return failure();
      Value what = unscaled(b, loc, plain(outer->getOperand(isTurned ? 1 : 0)), number,
                            [&](Value x) { return isOfToken(x); });
      auto &along = writes[plain(what)];
      along.resize(members.size());
      add(along[i], scaled(b, loc, number, column(outer->getOperand(isTurned ? 0 : 1))));
    }
    lefts.push_back(left);
    return success(left != nullptr);
  }

  // What of a member is left where all of it is left of a number.
  Value splat(Value number, int64_t keys) {
    return MulOp::create(b, loc, number, ConstantOp::create(b, loc, 1.0, columnType(keys)));
  }

  // A number that is left of all, where it is the same of all matrices. Each key has its own, else.
  void findDecay() {
    decay = lefts.front();
    for (Value left : lefts)
      if (!isNumber(left) || !isSameNumber(left, decay))
        decay = {};
    for (auto [i, left] : llvm::enumerate(lefts))
      if (!decay && isNumber(left))
        left = splat(left, keysOf(i));
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
    if (!decay) {
      lefts.push_back(splat(left ? left : one(), keysOfVector));
      left = left ? Value() : ConstantOp::create(b, loc, -1.0).getResult();
    } else if (left && isSameNumber(left, decay)) {
      left = {};
    } else {
      left = left ? SubOp::create(b, loc, left, decay).getResult() : NegOp::create(b, loc, decay);
    }
    return rest;
  }

  // Vectors that follow from the states.

  Combination none() const {
    Along empty(members.size());
    return {empty, empty, empty, {}, true};
  }

  // Adds a vector times a number; what it reads of new states as that, or of what they are made of.
  bool addVector(Value vector, Value number, Combination &sum, bool fromNew) {
    auto isNew = [&](Value value) {
      return (fromNew && memberOf(plain(value), /*isUpdate=*/true)) || isOfOthers(value);
    };
    for (auto [value, own] : termsOf(plain(vector), isNew)) {
      Value term = plain(value), factor = times(number, own);
      if (auto i = fromNew ? memberOf(term, /*isUpdate=*/true) : std::nullopt; i && isVector(*i)) {
        add(sum.now[*i], factor ? factor : one());
      } else if (auto i = memberOf(term, /*isUpdate=*/false); i && isVector(*i)) {
        add(sum.old[*i], factor ? factor : one());
      } else if (auto i = memberAtStart(term); i && isVector(*i)) {
        add(sum.start[*i], factor ? factor : one());
      } else if (isOfOthers(term)) {
        Value own = rebuilt(term);
        if (!own)
          return false;
        add(sum.rest, scaled(b, loc, factor, column(own)));
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
    auto newMember = [&](Value term) {
      return fromNew && onLeft == isTurned ? memberOf(term, /*isUpdate=*/true) : std::nullopt;
    };
    for (auto [term, own] : termsOf(matrix, [&](Value x) { return newMember(x) || isOfOthers(x); })) {
      Value factor = times(number, own);
      if (auto i = newMember(term)) {
        add(sum.now[*i], scaled(b, loc, factor, vector));
        continue;
      }
      if (isOfOthers(term)) {
        Value other = rebuilt(term);
        if (!other)
          return false;
        add(sum.rest,
            scaled(b, loc, factor, readOf(b, loc, other, onLeft ? Side::Left : Side::Right, vector)));
        continue;
      }
      auto outer = term.getDefiningOp<MatmulOp>();
      if (auto i = onLeft != isTurned ? std::nullopt : memberOf(term, /*isUpdate=*/false)) {
        add(sum.old[*i], scaled(b, loc, factor, vector));
      } else if (auto i = onLeft != isTurned ? std::nullopt : memberAtStart(term)) {
        add(sum.start[*i], scaled(b, loc, factor, vector));
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
      } else if (std::optional<unsigned> own = memberOfChannels(term); own && onLeft == isTurned) {
        Value channels = column(channelsOf(term, member(*own)));
        add(sum.old[*own], scaled(b, loc, factor, MulOp::create(b, loc, channels, vector)));
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
    sum.isLinear &= isOfToken(vector);
    return true;
  }

  // The vector that a combination is. What a state has grown by stays one difference, of which little may be
  // left.
  Value make(const Combination &combination) {
    auto [old, oldNumber] = joinedVector(combination.old);
    auto [now, nowNumber] = joinedVector(combination.now);
    auto [start, startNumber] = joinedVector(combination.start);
    Value sum;
    bool isGrowth = now && now == start && startNumber &&
                    isSameNumber(nowNumber, NegOp::create(b, loc, startNumber).getResult());
    if (old)
      add(sum, scaled(b, loc, oldNumber, read(joined, old)));
    if (isGrowth)
      add(sum,
          scaled(b, loc, nowNumber, SubOp::create(b, loc, read(updated, now), read(joinedStart, start))));
    if (now && !isGrowth)
      add(sum, scaled(b, loc, nowNumber, read(updated, now)));
    if (start && !isGrowth)
      add(sum, scaled(b, loc, startNumber, read(joinedStart, start)));
    if (combination.rest)
      add(sum, combination.rest);
    return sum ? sum : ConstantOp::create(b, loc, 0.0, columnType(rows));
  }

  // What is read along a vector, once.
  Value read(Value state, Value vector) {
    Value &known = reads[{state, vector}];
    if (!known)
      known = readOf(b, loc, state, isTurned ? Side::Left : Side::Right, vector);
    return known;
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
    // What one part is times, all others should be, too: the first, so that it is one of the rule's vectors,
    // or another, so that what is read and what is written along the same vector are seen to be.
    Value common;
    for (unsigned i = 0; i < vectors.size(); ++i) {
      SmallVector<Value> quotients;
      for (auto [member, vector] : llvm::enumerate(vectors))
        if (FailureOr<Value> own = vector ? quotientOf(b, loc, numbers[member], numbers[i]) : Value();
            succeeded(own) && (!isVector(member) || isKeyOfVector(*own)))
          quotients.push_back(*own);
      if (!vectors[i] || quotients.size() < vectors.size())
        continue;
      common = numbers[i];
      numbers = quotients;
      break;
    }
    SmallVector<Value> parts;
    for (unsigned i = 0; i < members.size(); ++i) {
      MatType type = columnType(keysOf(i));
      Value part = vectors[i];
      if (!part)
        part = ConstantOp::create(b, loc, 0.0, type);
      else if (isVector(i))
        part = ConstantOp::create(b, loc, entryOfVector, type);
      parts.push_back(vectors[i] ? scaled(b, loc, numbers[i], part) : part);
    }
    for (auto &[known, vector] : vectorsMade)
      if (llvm::all_of(llvm::zip(known, parts),
                       [](const auto &pair) { return isEqual(std::get<0>(pair), std::get<1>(pair)); }))
        return {vector, common};
    Value vector = ConcatOp::create(b, loc, parts, firsts);
    vectorsMade.push_back({parts, vector});
    return {vector, common};
  }

  // The rule of the joined state.

  // The joined state stands where the first of them did.
  void makeState() {
    SmallVector<std::string> names;
    for (unsigned i = 0; i < members.size(); ++i)
      names.push_back(rule.getArg(member(i)).getName().str());
    MLIRContext *context = b.getContext();
    unsigned at = member(0).getArgNumber();
    SmallVector<Attribute> args(rule.getArgs().begin(), rule.getArgs().end());
    auto type = MatType::get(context, b.getI64IntegerAttr(rows), b.getI64IntegerAttr(keys));
    type = isTurned ? type.transposed() : type;
    auto insert = [&](ArgKind kind, int64_t block) {
      args.insert(args.begin() + at, ArgAttr::get(context, kind, StringAttr::get(context, joinNames(names)),
                                                  RangeAttr(), /*unit=*/false, block));
      return body.insertArgument(at, type, loc);
    };
    if (int64_t block = blockOf(rule))
      joinedStart = insert(ArgKind::Stale, block);
    joined = insert(ArgKind::State, 0);
    rule.setArgsAttr(ArrayAttr::get(context, args));
  }

  Attribute places() {
    SmallVector<int64_t> places{isTurned};
    for (unsigned i = 0; i < members.size(); ++i)
      places.append({firsts[i], keysOf(i), params[i]});
    return b.getDenseI64ArrayAttr(places);
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
      auto isThere = [](Value along) { return along != nullptr; };
      if (rest->rest || llvm::any_of(rest->old, isThere) || llvm::any_of(rest->start, isThere))
        rests[i] = make(*rest);
      if (rests[i] && areAlike)
        return {};
    }
    Value factor = decay;
    if (!factor) {
      factor = ConcatOp::create(b, loc, lefts, firsts);
      factor = isTurned ? factor : TransposeOp::create(b, loc, factor);
    }
    Value sum = MulOp::create(b, loc, joined.getType(), factor, joined);
    auto write = [&](Value what, const Along &along) {
      auto [vector, number] = joinedVector(along);
      Value left = isTurned ? vector : what, right = isTurned ? what : vector;
      add(sum, scaled(b, loc, number, MatmulOp::create(b, loc, left, TransposeOp::create(b, loc, right))));
    };
    for (auto &[what, along] : writes) {
      Value own = needed(what);
      if (!own)
        return {};
      write(column(own), along);
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
    if (!op || memberOf(plain(value), /*isUpdate=*/true))
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
    Value made = combined.lookup(plain(vector));
    if (!made) {
      Combination own = none();
      if (!addVector(vector, {}, own, updated != nullptr))
        return {};
      // A function stays as it is written down.
      made = own.isLinear ? make(own) : rebuilt(plain(vector));
      if (!made)
        return {};
      made = combined[plain(vector)] = column(made);
    }
    return isRow(matType(vector)) ? TransposeOp::create(b, loc, made).getResult() : made;
  }

  // What else follows from the states follows from the new one.
  LogicalResult replace(Value whole) {
    updated = whole;
    SmallVector<BlockArgument> gone;
    for (unsigned i = 0; i < members.size(); ++i)
      for (BlockArgument argument : {member(i), startOf(i)})
        if (argument)
          gone.push_back(argument);
    replaced.clear();
    combined.clear();
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
    for (BlockArgument argument : gone) {
      unsigned at = argument.getArgNumber();
      if (!argument.use_empty())
        return failure();
      body.eraseArgument(at);
      args.erase(args.begin() + at);
    }
    rule.setArgsAttr(ArrayAttr::get(rule.getContext(), args));
    return success();
  }

  OpBuilder b;
  Location loc;
  bool areAlike;                        // written the same, without reading each other
  Value decay;                          // what a token leaves of all, a number, or null
  SmallVector<Value> lefts;             // what it leaves of each: numbers or, without one, vectors of keys
  llvm::MapVector<Value, Along> writes; // by what is written
  Value joined, joinedStart, updated;   // the state, now and at a block's start; the new one, once there
  SmallVector<std::pair<SmallVector<Value>, Value>> vectorsMade;
  llvm::DenseMap<std::pair<Value, Value>, Value> reads; // by state and vector
  // What stands for values, and for vectors that are combinations.
  llvm::DenseMap<Value, Value> replaced, combined;
};
} // namespace

OwningOpRef<ModuleOp> recur::joinKeys(RuleOp rule) {
  OwningOpRef<ModuleOp> joined =
      rewritten(rule, [](RuleOp copy) { return Joiner(copy, /*areAlike=*/false).run(); });
  while (joined) {
    OwningOpRef<ModuleOp> more = rewritten(*joined->getOps<RuleOp>().begin(),
                                           [](RuleOp copy) { return Joiner(copy, /*areAlike=*/true).run(); });
    if (!more)
      break;
    joined = std::move(more);
  }
  return joined;
}
