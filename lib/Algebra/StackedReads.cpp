// Two reads at one time as two rows of one read. What the two do with their vectors is told apart by inputs
// that stand for two, and by numbers that depend on the row.
#include "lib/Algebra/StackedReads.h"
#include "lib/Algebra/Rewriting.h"

using namespace mlir;
using namespace recur;

SmallVector<StackedInput> recur::stackedInputs(Operation *op) {
  SmallVector<StackedInput> inputs;
  if (auto list = op->getAttrOfType<ArrayAttr>(stackedAttr))
    for (auto numbers : list.getAsRange<DenseI32ArrayAttr>()) {
      StackedInput input{unsigned(numbers[0]), {}};
      for (unsigned i : {0, 1})
        if (numbers[1 + i] >= 0)
          input.rows[i] = numbers[1 + i];
      inputs.push_back(input);
    }
  return inputs;
}

Value recur::beforeStackedRow(Value newState) { return newState.getDefiningOp<AddOp>().getLhs(); }

namespace {
// A token's vector times a number, or what a version of the state reads with such a vector.
struct Part {
  Coefficient c;
  Value vector;
  unsigned version = Row::none; // of the normal form's; none: nothing is read
};

// What is written along one vector.
struct Stream {
  Value key;
  SmallVector<Part, 2> known, reads;
};

class Stacker {
public:
  Stacker(RuleOp rule, bool inLogs)
      : rule(rule), body(rule.getBody().front()), b(body.getTerminator()), loc(rule.getLoc()),
        inLogs(inLogs) {}

  LogicalResult run() {
    for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
      if (!isa<MatType>(input.getType()))
        return failure();
    if (!rule.getBody().getOps<ForOp>().empty())
      return failure();
    nf = normalise(rule);
    if (!nf.affine || nf.states.size() != 1 || nf.updates[0] == Row::none || failed(findStreams()))
      return failure();
    std::optional<Decay> decay = nf.decay(0);
    bool onRight = keySide == Side::Right;
    if (!decay || decay->c.number == 0 || !(onRight ? decay->left : decay->right).empty() ||
        !decay->elementwise.empty())
      return failure();
    if (failed(findReads()))
      return failure();
    Value scale = buildCoefficient(b, loc, decay->c), state = nf.states[0];
    if (scale && isInTurn)
      scale = choose(scale, ConstantOp::create(b, loc, 1.0));
    Value old = scaled(b, loc, scale, state);
    for (Value factors : onRight ? decay->right : decay->left) {
      factors = diagonalColumn(factors);
      if (isInTurn)
        factors = onceOf(b, loc, factors, row(), inLogs);
      if (onRight)
        factors = TransposeOp::create(b, loc, factors);
      old = scaled(b, loc, factors, old);
    }
    Value update = updateOfRow(!isInTurn ? nf.versions[parts[0].version].value : readsOlder ? state : old);
    if (!update)
      return failure();
    Operation *terminator = body.getTerminator();
    Value next = AddOp::create(b, loc, old, update), ofRule = rule.yieldedStates()[0];
    Rebuilder rebuilder(b, nf, [&](Value value) -> std::optional<Value> {
      if (value == ofRule)
        return next;
      // In turn, rows after the first find another state than the old one.
      return value == state && !isInTurn ? std::optional(state) : std::nullopt;
    });
    SmallVector<Value> yielded;
    for (Value value : terminator->getOperands()) {
      yielded.push_back(rebuilder.of(value));
      if (!yielded.back())
        return failure();
    }
    terminator->setOperands(yielded);
    MLIRContext *context = rule.getContext();
    BlockArgument last = addInput(rule, "first row", RangeAttr::closed(context, 0, 1), /*isUnit=*/false,
                                  MatType::scalar(context));
    if (isFirst)
      isFirst.replaceAllUsesWith(last);
    rule->setAttr(stackedAttr, b.getArrayAttr(stacked));
    if (isInTurn)
      rule->setAttr(inTurnAttr, b.getUnitAttr());
    eraseDead(body);
    return success();
  }

private:
  // Two vectors that are written along, each time what is known, what is read, or both.
  LogicalResult findStreams() {
    std::optional<Side> side;
    for (const Write &write : nf.update(0).writes)
      for (auto [column, own] : {std::pair(&write.column, Side::Right), {&write.row, Side::Left}})
        if (column->kind != Column::Known) {
          if (side.value_or(own) != own)
            return failure();
          side = own;
        }
    if (!side || nf.update(0).writes.empty())
      return failure();
    keySide = *side;
    for (const Write &write : nf.update(0).writes) {
      const Column &key = keySide == Side::Right ? write.row : write.column;
      const Column &payload = keySide == Side::Right ? write.column : write.row;
      if (write.matrix || key.kind != Column::Known)
        return failure();
      auto *stream = llvm::find_if(streams, [&](const Stream &s) { return s.key == key.value; });
      if (stream == streams.end())
        stream = &streams.emplace_back(Stream{key.value, {}, {}});
      if (failed(add(*stream, write.c, payload)))
        return failure();
    }
    return success(streams.size() == 2 && llvm::all_of(streams, [](const Stream &stream) {
                     return stream.reads.size() <= 1 && stream.known.size() <= 1;
                   }));
  }

  static Coefficient times(Coefficient x, const Coefficient &y) {
    x.number *= y.number;
    llvm::append_range(x.factors, y.factors);
    return x;
  }

  LogicalResult add(Stream &stream, const Coefficient &c, const Column &column) {
    if (column.kind == Column::Known) {
      stream.known.push_back({c, column.value});
      return success();
    }
    if (column.kind == Column::OldRead) {
      const Read &read = nf.reads[column.index];
      auto isOld = [&](const Version &version) { return version.value == nf.states[0]; };
      auto old = llvm::find_if(nf.versions, isOld);
      stream.reads.push_back({c, read.vector, unsigned(old - nf.versions.begin())});
      return success(read.side == keySide && old != nf.versions.end());
    }
    const Row &row = nf.rows[column.index];
    if (row.version != Row::none) {
      stream.reads.push_back({c, row.vector, row.version});
      return success(row.side == keySide && row.inOldReads && !row.solution);
    }
    for (const RowTerm &term : row.terms)
      if (!term.map.empty() || failed(add(stream, times(c, term.c), term.column)))
        return failure();
    return success();
  }

  // Whether a version is the state as it decays in the update, with no write yet or with all along one
  // vector.
  bool isDecayed(unsigned version, const Stream *written) {
    const Version &own = nf.versions[version], &update = nf.update(0);
    auto isAlong = [&](const Write &write) {
      return written && (keySide == Side::Right ? write.row : write.column).value == written->key;
    };
    auto same = [](const Column &x, const Column &y) {
      return x.kind == y.kind && x.value == y.value && x.index == y.index;
    };
    auto isOfUpdate = [&](const Write &write) {
      return isAlong(write) && llvm::any_of(update.writes, [&](const Write &other) {
               return write.c == other.c && same(write.column, other.column) && same(write.row, other.row);
             });
    };
    if (own.old.size() != 1 || update.old.size() != 1)
      return false;
    const OldTerm &old = own.old[0], &all = update.old[0];
    return old.c == all.c && old.left == all.left && old.right == all.right &&
           old.elementwise == all.elementwise && old.transposed == all.transposed &&
           llvm::all_of(own.writes, isOfUpdate) &&
           int64_t(own.writes.size()) == llvm::count_if(update.writes, isAlong);
  }

  // Without the numbers that the state decays by, where it is times all of them and nothing else decays.
  std::optional<Coefficient> withoutDecay(Coefficient c) {
    Decay decay = *nf.decay(0);
    if (decay.c.number != 1 || !decay.left.empty() || !decay.right.empty())
      return std::nullopt;
    for (Value factor : decay.c.factors) {
      auto *found = llvm::find(c.factors, factor);
      if (found == c.factors.end())
        return std::nullopt;
      c.factors.erase(found);
    }
    return c;
  }

  // What the rows read: one version that has no write yet, or the second row what the first one leaves.
  LogicalResult findReads() {
    for (Stream &stream : streams)
      if (!stream.reads.empty() && !nf.versions[stream.reads[0].version].writes.empty())
        isInTurn = true;
    if (isInTurn && !streams[0].reads.empty() && !nf.versions[streams[0].reads[0].version].writes.empty())
      std::swap(streams[0], streams[1]);
    for (auto [part, stream] : llvm::zip(parts, streams))
      if (!stream.reads.empty())
        part = stream.reads[0];
    // What reads the old state, times all that it decays by, reads what decayed. Else rows read the state
    // that they find, which the second one finds decayed.
    if (const Part &own = parts[0];
        isInTurn && own.version != Row::none && !isDecayed(own.version, nullptr)) {
      if (nf.versions[own.version].value != nf.states[0])
        return failure();
      if (std::optional<Coefficient> rest = withoutDecay(own.c))
        parts[0] = {*rest, own.vector, parts[1].version};
      else
        readsOlder = true;
    }
    if (isInTurn && (parts[1].version == Row::none || !isDecayed(parts[1].version, &streams[0])))
      return failure();
    // What is only written along reads nothing, and along itself, as many a rule's other vector does.
    for (unsigned i : {0, 1})
      if (parts[i].version == Row::none) {
        parts[i] = {Coefficient(), streams[i].key, parts[1 - i].version};
        parts[i].c.number = parts[1 - i].c.number; // the sign is that of both
        parts[i].c.factors.push_back(ConstantOp::create(b, loc, 0.0));
      }
    return success(isInTurn || parts[0].version == parts[1].version);
  }

  // What a row adds to the state, which it reads as `read`.
  Value updateOfRow(Value read) {
    const auto &[first, second] = parts;
    Value vector = stack(first.vector, second.vector), key = stack(streams[0].key, streams[1].key);
    Value number = stack(coefficient(first.c), coefficient(second.c));
    if (!vector || !key || !number)
      return {};
    Value payload = MulOp::create(b, loc, number, readOf(b, loc, read, keySide, vector));
    auto partOf = [](const Stream &stream) { return stream.known.empty() ? Part() : stream.known[0]; };
    if (Part x = partOf(streams[0]), y = partOf(streams[1]); x.vector || y.vector) {
      Value known = x.vector && y.vector ? stack(x.vector, y.vector) : stackAlone(x.vector, y.vector);
      Value c = x.vector && y.vector ? stack(coefficient(x.c), coefficient(y.c))
                                     : coefficient(x.vector ? x.c : y.c);
      if (!known || !c)
        return {};
      payload = AddOp::create(b, loc, MulOp::create(b, loc, c, known), payload);
    }
    return keySide == Side::Right
               ? MatmulOp::create(b, loc, payload, TransposeOp::create(b, loc, key)).getResult()
               : MatmulOp::create(b, loc, key, TransposeOp::create(b, loc, payload));
  }

  Value coefficient(const Coefficient &c) {
    Value value = buildCoefficient(b, loc, c);
    return value ? value : ConstantOp::create(b, loc, 1.0).getResult();
  }

  static bool isNumber(Value value) { return matType(value).isScalar(); }

  bool isInput(Value value) {
    auto argument = dyn_cast<BlockArgument>(value);
    return argument && rule.getArg(argument).getKind() == ArgKind::Input;
  }

  // Whether a vector of the token is what a value follows from.
  bool followsFromVector(Value value) {
    if (isInput(value))
      return !isNumber(value);
    Operation *op = value.getDefiningOp();
    return op && llvm::any_of(op->getOperands(), [&](Value operand) { return followsFromVector(operand); });
  }

  // A value that is the one at the first row and the other at the second; null where there is none.
  Value stack(Value first, Value second) {
    if (first == second && !followsFromVector(first))
      return first;
    auto known = stacks.find({first, second});
    if (known != stacks.end())
      return known->second;
    Value value = stackOperands(first, second);
    if (!value && isNumber(first) && isNumber(second)) {
      value = choose(first, second);
    } else if (!value) {
      value = stackRows(first, second);
    }
    return stacks[{first, second}] = value;
  }

  // A number for each row.
  Value choose(Value first, Value second) {
    Value isSecond = SubOp::create(b, loc, ConstantOp::create(b, loc, 1.0), row());
    return AddOp::create(b, loc, MulOp::create(b, loc, row(), first),
                         MulOp::create(b, loc, isSecond, second));
  }

  // Of two that are the same function, that of their operands.
  Value stackOperands(Value first, Value second) {
    if (first.getType() != second.getType())
      return {};
    if (isInput(first) && isInput(second) && !isNumber(first))
      return inputOf(first, second);
    Operation *op = first.getDefiningOp(), *other = second.getDefiningOp();
    if (isa_and_present<ConstantOp>(op) && isa_and_present<ConstantOp>(other) &&
        op->getAttrDictionary() == other->getAttrDictionary())
      return first;
    if (!op || !other || op->getName() != other->getName() || op->getNumResults() != 1 ||
        op->getNumRegions() || op->getAttrDictionary() != other->getAttrDictionary() ||
        op->getNumOperands() != other->getNumOperands() || !op->getNumOperands())
      return {};
    SmallVector<Value> operands;
    for (auto [x, y] : llvm::zip(op->getOperands(), other->getOperands())) {
      Value operand = x.getType() == y.getType() ? stack(x, y) : Value();
      if (!operand)
        return {};
      operands.push_back(operand);
    }
    Operation *copy = b.clone(*op);
    copy->setOperands(operands);
    return copy->getResult(0);
  }

  // A vector without the numbers that it is times.
  Value unscaled(Value vector, Value &number) {
    while (Operation *op = vector.getDefiningOp()) {
      unsigned at = isa<MulOp>(op) && isNumber(op->getOperand(0)) ? 0 : 1;
      if (!isa<MulOp, DivOp>(op) || !isNumber(op->getOperand(at)) || isNumber(op->getOperand(1 - at)))
        break;
      Value factor = op->getOperand(at);
      if (isa<DivOp>(op))
        factor = DivOp::create(b, loc, ConstantOp::create(b, loc, 1.0), factor);
      number = number ? MulOp::create(b, loc, number, factor).getResult() : factor;
      vector = op->getOperand(1 - at);
    }
    return vector;
  }

  // Two inputs, each times numbers of its own.
  Value stackRows(Value first, Value second) {
    Value numbers[2];
    first = unscaled(first, numbers[0]), second = unscaled(second, numbers[1]);
    if (!(numbers[0] || numbers[1]) || !isInput(first) || !isInput(second))
      return {};
    for (Value &number : numbers)
      if (!number)
        number = ConstantOp::create(b, loc, 1.0);
    return MulOp::create(b, loc, stack(numbers[0], numbers[1]), inputOf(first, second));
  }

  // One row is a vector, the other zero.
  Value stackAlone(Value first, Value second) {
    Value number, vector = unscaled(first ? first : second, number);
    if (!isInput(vector))
      return {};
    Value rows = first ? inputOf(vector, {}) : inputOf({}, vector);
    return scaled(b, loc, number, rows);
  }

  // An input that stands for two; or for one, where the other row is zero.
  Value inputOf(Value first, Value second) {
    Value &known = inputs[{first, second}];
    if (known)
      return known;
    auto argOf = [&](Value input) { return rule.getArg(cast<BlockArgument>(input)); };
    ArgAttr arg = argOf(first ? first : second);
    std::string name;
    int32_t numbers[] = {int32_t(body.getNumArguments()), -1, -1};
    bool isUnit = true;
    for (auto [i, own] : llvm::enumerate(std::array{first, second})) {
      name += (i ? " over " : "") + (own ? argOf(own).getName().str() : std::string("0"));
      isUnit &= !own || argOf(own).getUnit();
      if (own)
        numbers[1 + i] = cast<BlockArgument>(own).getArgNumber();
    }
    bool isSame = first && second && argOf(first).getRange() == argOf(second).getRange();
    stacked.push_back(b.getDenseI32ArrayAttr(numbers));
    return known = addInput(rule, name, isSame ? arg.getRange() : RangeAttr(), isUnit,
                            (first ? first : second).getType());
  }

  // The number that tells the rows apart: what stands for it until all other inputs are known.
  Value row() {
    if (!isFirst)
      isFirst = ConstantOp::create(b, loc, 1.0);
    return isFirst;
  }

  RuleOp rule;
  Block &body;
  OpBuilder b;
  Location loc;
  NormalForm nf;
  Side keySide = Side::Right;
  SmallVector<Stream, 2> streams;
  Part parts[2]; // what the rows read
  // Whether the second row reads what the first one leaves; then, whether the first one reads what has not
  // decayed.
  bool isInTurn = false, readsOlder = false, inLogs;
  SmallVector<Attribute> stacked;
  Value isFirst;
  DenseMap<std::pair<Value, Value>, Value> stacks, inputs;
};
} // namespace

OwningOpRef<ModuleOp> recur::stackReads(RuleOp rule, bool inLogs) {
  return rewritten(rule, [&](RuleOp copy) { return Stacker(copy, inLogs).run(); });
}
