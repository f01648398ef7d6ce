#include "lib/Derive/Segments.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Derive/Elementwise.h"
#include "mlir/IR/IRMapping.h"

#include <limits>

using namespace mlir;
using namespace recur;

namespace {
// A copy of a rule in a module of its own that is made into another rule.
class RuleEditor {
public:
  explicit RuleEditor(RuleOp original) : module(ModuleOp::create(original.getLoc())) {
    OpBuilder builder(module->getBodyRegion());
    rule = cast<RuleOp>(builder.clone(*original.getOperation(), mapping));
    args = llvm::to_vector(rule.getArgs());
    body = OpBuilder(rule.getBodyYield());
    init = OpBuilder(rule.getInitYield());
  }

  Value operator[](Value value) { return mapping.lookup(value); }
  Location loc() { return rule.getLoc(); }

  Value addArgument(ArgKind kind, const Twine &name, MatType type) {
    args.push_back(ArgAttr::get(rule.getContext(), kind, body.getStringAttr(name), {}, false, 0));
    return rule.getBody().addArgument(type, loc());
  }

  static Value constant(OpBuilder &b, Location loc, double value, MatType type) {
    return ConstantOp::create(b, loc, value, type);
  }

  // Erases the arguments that `drop` names; nothing may use them.
  OwningOpRef<ModuleOp> finish(ArrayRef<Value> inits, ArrayRef<Value> states, ArrayRef<Value> outputs,
                               ArrayRef<Attribute> names, llvm::function_ref<bool(unsigned)> drop) {
    SmallVector<Value> yielded(states);
    llvm::append_range(yielded, outputs);
    rule.getBodyYield().getValuesMutable().assign(yielded);
    rule.getInitYield().getValuesMutable().assign(inits);
    eraseDead(rule);
    for (unsigned i = args.size(); i-- > 0;)
      if (drop(i)) {
        rule.getBody().eraseArgument(i);
        args.erase(args.begin() + i);
      }
    rule.setArgsAttr(body.getArrayAttr(args));
    rule.setOutputsAttr(body.getArrayAttr(names));
    return std::move(module);
  }

  IRMapping mapping;
  OwningOpRef<ModuleOp> module;
  RuleOp rule;
  SmallVector<Attribute> args;
  OpBuilder body{static_cast<MLIRContext *>(nullptr)}, init{static_cast<MLIRContext *>(nullptr)};
};

// Segments of rules whose states go on entry by entry (see findScan). A group's map has a number for each
// pair of its states, and the states as they are after the segment where they were 0 before (in (max, +):
// -inf).
class ScanSegments {
public:
  ScanSegments(RuleOp rule, const ScanForm &form)
      : rule(rule), form(form), states(rule.argumentsOf(ArgKind::State)) {}

  SmallVector<SegmentRound> run() {
    SmallVector<SegmentRound> rounds;
    for (const auto &phase : form.phases) {
      SegmentRound round;
      // A matrix has a rule of its own; the first takes the vectors along.
      SmallVector<SmallVector<const ScanGroup *>> shares;
      auto isLarge = [&](const ScanGroup &group) {
        MatType type = matType(states[group.states.front()]);
        return type.numRows() > 1 && type.numCols() > 1;
      };
      for (const ScanGroup &group : phase)
        if (isLarge(group))
          shares.push_back({&group});
      if (shares.empty())
        shares.emplace_back();
      for (const ScanGroup &group : phase)
        if (!isLarge(group))
          shares.front().push_back(&group);
      for (ArrayRef<const ScanGroup *> share : shares)
        round.gathers.push_back(gather(share));
      stitch(round, shares);
      rounds.push_back(std::move(round));
      for (const ScanGroup &group : phase)
        known.insert(group.states.begin(), group.states.end());
    }
    return rounds;
  }

private:
  static double zero(const ScanGroup &group) {
    return group.kind == ScanGroup::Max ? -std::numeric_limits<double>::infinity() : 0;
  }

  // Factors need not have the states' shape.
  MatType factorType(const ScanGroup &group) {
    auto state = matType(states[group.states.front()]);
    int64_t rows = 1, cols = 1;
    for (Value factor : group.factors)
      if (factor) {
        rows = std::max(rows, matType(factor).numRows());
        cols = std::max(cols, matType(factor).numCols());
      }
    return MatType::get(state.getContext(), rows, cols);
  }

  // The factors of the map that is `group`'s of this token after the map with the factors `before`.
  SmallVector<Value> composed(RuleEditor &edit, const ScanGroup &group, ArrayRef<Value> before,
                              MatType type) {
    SmallVector<Value> result;
    size_t n = group.states.size();
    OpBuilder &b = edit.body;
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) {
        Value sum;
        for (size_t k = 0; k < n; ++k) {
          Value outer = group.factors[i * n + k];
          if (!outer)
            continue;
          Value part = group.kind == ScanGroup::Max
                           ? AddOp::create(b, edit.loc(), edit[outer], before[k * n + j]).getResult()
                           : MulOp::create(b, edit.loc(), edit[outer], before[k * n + j]).getResult();
          sum = sum ? AddOp::create(b, edit.loc(), sum, part).getResult() : part;
        }
        result.push_back(sum ? sum : RuleEditor::constant(b, edit.loc(), 0, type));
      }
    return result;
  }

  SegmentGather gather(ArrayRef<const ScanGroup *> groups) {
    RuleEditor edit(rule);
    SegmentGather result;
    llvm::SmallDenseMap<unsigned, double> gathered; // by state: what it begins with
    for (const ScanGroup *group : groups)
      for (unsigned state : group->states)
        gathered[state] = zero(*group);
    SmallVector<Value> inits, yielded;
    llvm::SmallDenseSet<unsigned> dropped;
    for (auto [i, state] : llvm::enumerate(states)) {
      if (!gathered.count(i) && !known.contains(i)) {
        dropped.insert(state.getArgNumber());
        continue;
      }
      result.states.push_back({unsigned(i), !gathered.count(i), matType(state)});
      yielded.push_back(edit.rule.yieldedStates()[i]);
      inits.push_back(gathered.count(i)
                          ? RuleEditor::constant(edit.init, edit.loc(), gathered[i], matType(state))
                          : edit.rule.getInitYield().getValues()[i]);
    }
    for (const ScanGroup *group : groups) {
      MatType type = factorType(*group);
      size_t n = group->states.size();
      SmallVector<Value> before;
      for (size_t i = 0; i < n * n; ++i) {
        before.push_back(edit.addArgument(ArgKind::State, "factor " + Twine(yielded.size() + i), type));
        inits.push_back(RuleEditor::constant(edit.init, edit.loc(),
                                             group->kind == ScanGroup::Affine && i % (n + 1) == 0, type));
        result.states.push_back({std::nullopt, false, type});
      }
      llvm::append_range(yielded, composed(edit, *group, before, type));
    }
    result.module = edit.finish(inits, yielded, {}, {}, [&](unsigned i) { return dropped.contains(i); });
    return result;
  }

  void stitch(SegmentRound &round, ArrayRef<SmallVector<const ScanGroup *>> shares) {
    RuleEditor edit(rule);
    llvm::SmallDenseSet<unsigned> kept; // arguments
    llvm::SmallDenseMap<unsigned, Value> next;
    OpBuilder &b = edit.body;
    auto apply = [&](bool adds, Value x, Value y) -> Value {
      return adds ? AddOp::create(b, edit.loc(), x, y).getResult()
                  : MulOp::create(b, edit.loc(), x, y).getResult();
    };
    // As the gathers have them: known ones do not come, writes stand by state, factors follow.
    for (auto [share, gather] : llvm::zip(shares, round.gathers)) {
      llvm::SmallDenseMap<unsigned, Value> writes;
      for (const SegmentGather::State &state : gather.states)
        if (state.original && !state.isKnown)
          writes[*state.original] =
              edit.addArgument(ArgKind::Input, "end " + Twine(edit.args.size()), state.type);
      for (const ScanGroup *group : share) {
        size_t n = group->states.size();
        SmallVector<Value> factors;
        for (size_t i = 0; i < n * n; ++i)
          factors.push_back(
              edit.addArgument(ArgKind::Input, "factor " + Twine(edit.args.size()), factorType(*group)));
        for (auto [i, state] : llvm::enumerate(group->states)) {
          Value value = writes[state];
          bool isMax = group->kind == ScanGroup::Max;
          for (auto [j, from] : llvm::enumerate(group->states)) {
            Value moved = apply(isMax, factors[i * n + j], edit[states[from]]);
            value =
                isMax ? MaxOp::create(b, edit.loc(), moved, value).getResult() : apply(true, moved, value);
          }
          next[state] = value;
          kept.insert(states[state].getArgNumber());
        }
      }
    }
    SmallVector<Value> inits, yielded;
    SmallVector<Attribute> names;
    for (auto [i, state] : llvm::enumerate(states)) {
      if (!next.count(i))
        continue;
      round.states.push_back(i);
      inits.push_back(edit.rule.getInitYield().getValues()[i]);
      yielded.push_back(next[i]);
      names.push_back(b.getStringAttr("next " + rule.getArg(state).getName().getValue()));
    }
    auto drop = [&](unsigned i) {
      if (i >= rule.getArgs().size())
        return false;
      ArgKind kind = rule.getArg(i).getKind();
      return kind == ArgKind::Input || (kind == ArgKind::State && !kept.contains(i));
    };
    round.stitch = edit.finish(inits, yielded, yielded, names, drop);
  }

  RuleOp rule;
  const ScanForm &form;
  SmallVector<BlockArgument> states;
  llvm::SmallDenseSet<unsigned> known; // states of earlier rounds
};
} // namespace

SmallVector<SegmentRound> recur::planSegments(RuleOp rule, std::string &reason) {
  OwningOpRef<RuleOp> copy = rule.clone();
  if (std::optional<ScanForm> form = findScan(*copy, reason))
    return ScanSegments(*copy, *form).run();
  return {};
}
