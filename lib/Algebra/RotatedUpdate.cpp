// A rule's update from after its delayed writes to after those of the next token.
#include "lib/Algebra/RotatedUpdate.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/Rewriting.h"

using namespace mlir;
using namespace recur;

static ArrayRef<int32_t> numbersOf(DictionaryAttr all, StringRef name) {
  return cast<DenseI32ArrayAttr>(all.get(name)).asArrayRef();
}

std::optional<RotatedUpdate> recur::rotatedUpdate(Operation *op) {
  auto all = op->getAttrOfType<DictionaryAttr>(rotatedAttr);
  if (!all)
    return std::nullopt;
  RotatedUpdate update;
  ArrayRef<int32_t> logs = numbersOf(all, "logs"), states = numbersOf(all, "states");
  for (auto [past, isLog] : llvm::zip(cast<DenseF64ArrayAttr>(all.get("past")).asArrayRef(), logs))
    update.numbers.push_back({past, isLog != 0});
  update.statesOfRule = states.front();
  update.states.assign(states.begin() + 1, states.end());
  ArrayRef<int32_t> delays = numbersOf(all, "delays"), old = numbersOf(all, "old"),
                    writes = numbersOf(all, "writes");
  for (size_t i = 0; i < delays.size(); i += 2)
    update.delays.push_back({unsigned(delays[i]), unsigned(delays[i + 1])});
  for (size_t i = 0; i < old.size(); i += 3)
    update.old.push_back({unsigned(old[i]), unsigned(old[i + 1]), old[i + 2]});
  for (size_t i = 0; i < writes.size(); i += 4)
    update.writes.push_back(
        {unsigned(writes[i]), unsigned(writes[i + 1]), unsigned(writes[i + 2]), writes[i + 3]});
  return update;
}

static DictionaryAttr attributeOf(const RotatedUpdate &update, OpBuilder &b) {
  SmallVector<double> past;
  SmallVector<int32_t> logs, states{int32_t(update.statesOfRule)}, delays, old, writes;
  for (const auto &number : update.numbers) {
    past.push_back(number.past);
    logs.push_back(number.isLog);
  }
  llvm::append_range(states, update.states);
  for (const auto &delay : update.delays)
    delays.append({int32_t(delay.state), int32_t(delay.input)});
  for (const auto &term : update.old)
    old.append({int32_t(term.to), int32_t(term.from), term.number});
  for (const auto &write : update.writes)
    writes.append({int32_t(write.to), int32_t(write.column), int32_t(write.row), write.number});
  auto list = [&](StringRef name, ArrayRef<int32_t> numbers) {
    return b.getNamedAttr(name, b.getDenseI32ArrayAttr(numbers));
  };
  return b.getDictionaryAttr({b.getNamedAttr("past", b.getDenseF64ArrayAttr(past)), list("logs", logs),
                              list("states", states), list("delays", delays), list("old", old),
                              list("writes", writes)});
}

namespace {
class Rotator {
public:
  Rotator(RuleOp rule, bool inLogs)
      : rule(rule), body(rule.getBody().front()), b(body.getTerminator()), loc(rule.getLoc()), inLogs(inLogs),
        inputs(rule.argumentsOf(ArgKind::Input)), states(rule.argumentsOf(ArgKind::State)) {}

  LogicalResult run() {
    if (!findDelays() || llvm::any_of(body, [](Operation &op) { return op.getNumRegions() != 0; }))
      return failure();
    nf = normalise(rule);
    if (!nf.affine || !findStates())
      return failure();
    for (unsigned i = 0; i < kept.size(); ++i)
      if (!findParts(i))
        return failure();
    if (update.writes.empty())
      return failure();
    SmallVector<Value> yields;
    for (unsigned i = 0; i < kept.size(); ++i) {
      Value next = nextState(i);
      if (!next)
        return failure();
      yields.push_back(next);
    }
    Rebuilder rebuilder(b, nf, [&](Value value) -> std::optional<Value> {
      for (const Version &version : nf.versions)
        if (version.value == value)
          return versionOf(version);
      return std::nullopt;
    });
    for (Value output : rule.yieldedOutputs()) {
      Value value = rebuilder.of(output);
      if (!value)
        return failure();
      yields.push_back(value);
    }
    llvm::append_range(yields, ofToken);
    return finish(yields);
  }

private:
  using Outer = std::tuple<Value, Value, Value>; // a number, a column, a row as a column

  // States that are an input of the token before, and at first zero.
  bool findDelays() {
    if (!rule.argumentsOf(ArgKind::Stale).empty())
      return false;
    for (auto [i, next] : llvm::enumerate(rule.yieldedStates())) {
      auto *input = llvm::find(inputs, next);
      auto first = rule.getInitYield()->getOperand(i).getDefiningOp<ConstantOp>();
      if (input != inputs.end() && isa<MatType>(next.getType()) && matType(next).isVector() &&
          !matType(next).isScalar() && first && first.getValue().isZero())
        update.delays.push_back({unsigned(i), unsigned(input - inputs.begin())});
    }
    return !update.delays.empty();
  }

  int delayOf(Value value) const {
    for (auto [i, delay] : llvm::enumerate(update.delays))
      if (value == states[delay.state])
        return i;
    return -1;
  }

  // All other states change by numbers and writes.
  bool findStates() {
    update.statesOfRule = states.size();
    for (unsigned i = 0; i < states.size(); ++i) {
      if (delayOf(states[i]) >= 0)
        continue;
      if (nf.updates[i] == Row::none)
        return false;
      kept.push_back(i);
    }
    update.states.assign(kept.begin(), kept.end());
    return !kept.empty();
  }

  int rotatedOf(unsigned state) const {
    auto *found = llvm::find(kept, state);
    return found == kept.end() ? -1 : found - kept.begin();
  }

  bool isDelayed(const Write &write) const {
    return !write.matrix && write.column.kind == Column::Known && write.row.kind == Column::Known &&
           delayOf(write.column.value) >= 0 && delayOf(write.row.value) >= 0;
  }

  // The numbers that the next token's decays and delayed writes take.
  bool findParts(unsigned state) {
    const Version &version = nf.update(kept[state]);
    bool hasOwn = false;
    for (const OldTerm &term : version.old) {
      int from = rotatedOf(term.state), number = -1;
      bool isOwn = term.state == kept[state];
      if (!term.isScalar() || from < 0 || term.c.number == 0 || (isOwn && hasOwn) ||
          (!(isOwn && term.c.isOne()) && !findNumber(term.c, /*past=*/isOwn, number)))
        return false;
      hasOwn |= isOwn;
      update.old.push_back({state, unsigned(from), number});
    }
    // What is left of it after the last token is itself.
    if (Coefficient none; !hasOwn) {
      int number;
      none.number = 0;
      if (!findNumber(none, /*past=*/true, number))
        return false;
      update.old.push_back({state, state, number});
    }
    for (const Write &write : version.writes) {
      int number = -1;
      if (write.matrix)
        return false;
      if (!isDelayed(write))
        continue;
      if (!findNumber(write.c, /*past=*/0, number))
        return false;
      update.writes.push_back(
          {state, unsigned(delayOf(write.column.value)), unsigned(delayOf(write.row.value)), number});
    }
    return true;
  }

  // Whether a number follows, entry by entry, from the token's inputs and what all tokens share.
  bool isOfToken(Value value) {
    if (!matType(value).isScalar())
      return false;
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      ArgKind kind = rule.getArg(argument).getKind();
      return kind != ArgKind::State && kind != ArgKind::Stale;
    }
    Operation *op = value.getDefiningOp();
    return isa<ConstantOp>(op) ||
           (isa<ElementwiseOp, AssumeOp>(op) &&
            llvm::all_of(op->getOperands(), [&](Value operand) { return isOfToken(operand); }));
  }

  // A number of the next token, which decays by the state's own or else adds nothing past the end.
  bool findNumber(const Coefficient &c, bool past, int &number) {
    if (!llvm::all_of(c.factors, [&](Value factor) { return isOfToken(factor); }))
      return false;
    Value own;
    bool isLog =
        inLogs && past && c.number == 1 && !c.factors.empty() &&
        llvm::all_of(c.factors, [](Value factor) { return isa_and_present<ExpOp>(factor.getDefiningOp()); });
    if (isLog) {
      for (Value factor : c.factors) {
        Value log = factor.getDefiningOp()->getOperand(0);
        own = own ? AddOp::create(b, loc, own, log).getResult() : log;
      }
    } else {
      own = buildCoefficient(b, loc, c);
      own = own ? own : ConstantOp::create(b, loc, 1.0).getResult();
    }
    double after = past && !isLog ? 1 : 0;
    number = update.numbers.size();
    update.numbers.push_back({after, isLog});
    ofToken.push_back(own);
    RangeAttr range = rangeOf(own);
    if (range && !range.contains(after))
      range = RangeAttr::closed(rule.getContext(), std::min(range.getLo(), after),
                                std::max(range.getHi(), after));
    Value next = addInput(rule, "number " + Twine(number) + " of the next token", range, /*isUnit=*/false,
                          MatType::scalar(rule.getContext()));
    ofNext.push_back(isLog ? ExpOp::create(b, loc, next).getResult() : next);
    return true;
  }

  Value product(Value number, const Coefficient &c) {
    Value other = buildCoefficient(b, loc, c);
    return number && other ? MulOp::create(b, loc, number, other).getResult() : number ? number : other;
  }

  // What a state is when the token's own part is done, but for the rotated state: the writes that are left.
  LogicalResult ownWrites(const Version &version, Value number, SmallVectorImpl<Outer> &outers) {
    for (const Write &write : version.writes) {
      if (isDelayed(write))
        continue;
      Value column = columnOf(write.column), row = columnOf(write.row);
      if (write.matrix || !column || !row)
        return failure();
      add(outers, product(number, write.c), column, row);
    }
    return success();
  }

  // Numbers of the same product are added up.
  void add(SmallVectorImpl<Outer> &outers, Value number, Value column, Value row) {
    for (auto &[known, c, r] : outers)
      if (c == column && r == row) {
        auto orOne = [&](Value x) { return x ? x : ConstantOp::create(b, loc, 1.0).getResult(); };
        known = AddOp::create(b, loc, orOne(known), orOne(number));
        return;
      }
    outers.push_back({number, column, row});
  }

  Value sumOf(Value sum, ArrayRef<Outer> outers) {
    for (auto [number, column, row] : outers) {
      Value outer =
          MatmulOp::create(b, loc, scaled(b, loc, number, column), TransposeOp::create(b, loc, row));
      sum = sum ? AddOp::create(b, loc, sum, outer).getResult() : outer;
    }
    return sum;
  }

  // The rotated state after this token: what the next one's decays and delayed writes make of the new states.
  Value nextState(unsigned state) {
    Value sum;
    SmallVector<Outer> outers;
    for (const RotatedUpdate::Old &term : update.old) {
      if (term.to != state)
        continue;
      Value number = term.number < 0 ? Value() : ofNext[term.number];
      Value decayed = scaled(b, loc, number, states[kept[term.from]]);
      sum = sum ? AddOp::create(b, loc, sum, decayed).getResult() : decayed;
      if (failed(ownWrites(nf.update(kept[term.from]), number, outers)))
        return {};
    }
    for (const RotatedUpdate::Write &write : update.writes)
      if (write.to == state)
        add(outers, ofNext[write.number], inputs[update.delays[write.column].input],
            inputs[update.delays[write.row].input]);
    return sumOf(sum, outers);
  }

  // A version of a state, by the rotated state: it must have decayed, and what is delayed be written.
  Value versionOf(const Version &version) {
    for (unsigned state = 0; state < kept.size(); ++state) {
      const Version &whole = nf.update(kept[state]);
      auto has = [&](const Write &delayed) {
        return llvm::any_of(version.writes, [&](const Write &write) {
          return isDelayed(write) && write.c == delayed.c && write.column.value == delayed.column.value &&
                 write.row.value == delayed.row.value;
        });
      };
      auto isSame = [](const OldTerm &x, const OldTerm &y) {
        return x.state == y.state && x.isScalar() && x.c == y.c;
      };
      bool isOf = version.old.size() == whole.old.size() &&
                  llvm::all_of(version.old,
                               [&](const OldTerm &term) {
                                 return llvm::any_of(
                                     whole.old, [&](const OldTerm &other) { return isSame(term, other); });
                               }) &&
                  llvm::count_if(version.writes, [&](const Write &w) { return isDelayed(w); }) ==
                      llvm::count_if(whole.writes, [&](const Write &w) { return isDelayed(w); }) &&
                  llvm::all_of(whole.writes, [&](const Write &w) { return !isDelayed(w) || has(w); });
      SmallVector<Outer> outers;
      if (isOf && succeeded(ownWrites(version, {}, outers)))
        return sumOf(states[kept[state]], outers);
    }
    return {};
  }

  Value columnOf(const Column &column) {
    if (column.kind == Column::Known)
      return column.value;
    return column.kind == Column::RowOf ? rowOf(column.index) : Value();
  }

  // What is read of a version, or a combination of such.
  Value rowOf(unsigned index) {
    if (auto known = rows.find(index); known != rows.end())
      return known->second;
    const Row &row = nf.rows[index];
    Value result;
    if (row.version != Row::none) {
      Value version = versionOf(nf.versions[row.version]);
      if (!version || row.solution || !nf.isTokenOnly(row.vector))
        return {};
      result = readOf(b, loc, version, row.side, row.vector);
    } else {
      for (const RowTerm &term : row.terms) {
        Value column = term.map.empty() ? columnOf(term.column) : Value();
        if (!column)
          return {};
        Value part = scaled(b, loc, product({}, term.c), column);
        result = result ? AddOp::create(b, loc, result, part).getResult() : part;
      }
    }
    return rows[index] = result;
  }

  // The rule with new results, without the delayed states.
  LogicalResult finish(ArrayRef<Value> yields) {
    SmallVector<Value> first;
    for (unsigned state : kept)
      first.push_back(rule.getInitYield()->getOperand(state));
    rule.getBodyYield()->setOperands(yields);
    rule.getInitYield()->setOperands(first);
    SmallVector<Attribute> names(rule.getOutputs().begin(), rule.getOutputs().end()),
        args(rule.getArgs().begin(), rule.getArgs().end());
    for (size_t i = 0; i < ofToken.size(); ++i)
      names.push_back(b.getStringAttr("number " + std::to_string(i) + " of the token"));
    rule.setOutputsAttr(b.getArrayAttr(names));
    eraseDead(body);
    for (const RotatedUpdate::Delay &delay : llvm::reverse(update.delays)) {
      BlockArgument state = states[delay.state];
      if (!state.use_empty())
        return failure();
      args.erase(args.begin() + state.getArgNumber());
      body.eraseArgument(state.getArgNumber());
    }
    rule.setArgsAttr(b.getArrayAttr(args));
    rule->setAttr(rotatedAttr, attributeOf(update, b));
    return success();
  }

  RuleOp rule;
  Block &body;
  OpBuilder b;
  Location loc;
  bool inLogs;
  SmallVector<BlockArgument> inputs, states;
  NormalForm nf;
  RotatedUpdate update;
  SmallVector<unsigned> kept;
  SmallVector<Value> ofToken, ofNext;
  DenseMap<unsigned, Value> rows;
};
} // namespace

OwningOpRef<ModuleOp> recur::rotateUpdate(RuleOp rule, bool inLogs) {
  return rewritten(rule, [&](RuleOp copy) { return Rotator(copy, inLogs).run(); });
}
