#include "lib/Derive/Elementwise.h"
#include "lib/Derive/Derive.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace recur;

namespace {
// Sums of what multiplies a state and of what does not. In (max, +) "sum" is the larger one, and factors add.
struct Parts {
  llvm::SmallMapVector<unsigned, Value, 2> factors;
  Value rest;
};

class ScanFinder {
public:
  explicit ScanFinder(RuleOp rule)
      : rule(rule), states(rule.argumentsOf(ArgKind::State)), b(rule.getBody().front().getTerminator()) {
    for (auto [i, state] : llvm::enumerate(states))
      reach[state] = uint64_t(1) << i;
    for (Operation &op : rule.getBody().front()) {
      uint64_t sources = 0;
      op.walk([&](Operation *inner) {
        for (Value operand : inner->getOperands())
          sources |= reach.lookup(operand);
      });
      for (Value result : op.getResults())
        reach[result] = sources;
    }
  }

  std::optional<ScanForm> run(std::string &reason) {
    ScanForm form;
    updates = llvm::to_vector(rule.yieldedStates());
    for (unsigned i = 0; i < states.size(); ++i)
      open |= uint64_t(1) << i;
    while (open) {
      SmallVector<ScanGroup> phase = affineGroups();
      if (phase.empty())
        phase = maxGroups();
      if (phase.empty()) {
        unsigned state = llvm::countr_zero(open);
        reason = ("the state '" + rule.getArg(states[state]).getName().getValue() +
                  "' is not updated entry by entry")
                     .str();
        return std::nullopt;
      }
      for (const ScanGroup &group : phase)
        for (unsigned state : group.states)
          open &= ~(uint64_t(1) << state);
      form.phases.push_back(std::move(phase));
    }
    if (!rewrite(form, ScanGroup::Affine, reason))
      return std::nullopt;
    rewrite(form, ScanGroup::Max, reason);
    return form;
  }

private:
  bool isOpen(Value value) const { return reach.lookup(value) & open; }
  Value constant(double value, Type type) {
    return ConstantOp::create(b, rule.getLoc(), value, cast<MatType>(type));
  }
  static bool isNumber(Value value, double number) {
    auto constant = value.getDefiningOp<ConstantOp>();
    return constant && constant.getValue().isExactlyValue(number);
  }
  template <typename Op>
  Value apply(Value x, Value y) {
    return Op::create(b, rule.getLoc(), x, y);
  }
  Value sum(Value x, Value y) { return !x ? y : !y ? x : apply<AddOp>(x, y); }
  Value larger(Value x, Value y) { return !x ? y : !y ? x : apply<MaxOp>(x, y); }

  template <typename Action>
  static Parts mapped(Parts parts, Action action) {
    for (auto &[state, factor] : parts.factors)
      factor = action(factor);
    if (parts.rest)
      parts.rest = action(parts.rest);
    return parts;
  }
  template <typename Join>
  static Parts joined(Parts x, const Parts &y, Join join) {
    for (auto &[state, factor] : y.factors)
      x.factors[state] = join(x.factors.lookup(state), factor);
    x.rest = join(x.rest, y.rest);
    return x;
  }

  // A value that depends on an open state is one of its entries' functions only if it has its shape.
  std::optional<Parts> start(Value value, MatType type, double one) {
    Parts parts;
    if (!isOpen(value)) {
      parts.rest = value;
      return parts;
    }
    auto state = llvm::find(states, value);
    if (state == states.end() || value.getType() != type)
      return std::nullopt;
    parts.factors[state - states.begin()] = constant(one, type);
    return parts;
  }

  // An op, `Forth` or its inverse `Back`, on an open operand and one that is not: the parts of the first,
  // each with the second. `one` is what changes nothing.
  template <typename Forth, typename Back>
  std::optional<Parts> moved(Operation *op, MatType type, double one,
                             std::optional<Parts> (ScanFinder::*find)(Value, MatType)) {
    unsigned which = isOpen(op->getOperand(0)) ? 0 : 1;
    Value other = op->getOperand(1 - which);
    bool isBack = isa<Back>(op);
    if (isOpen(other) || (which && isBack))
      return std::nullopt;
    std::optional<Parts> x = (this->*find)(op->getOperand(which), type);
    if (x)
      x = mapped(*x, [&](Value part) {
        return isBack ? apply<Back>(part, other) : isNumber(part, one) ? other : apply<Forth>(other, part);
      });
    return x;
  }

  std::optional<Parts> affine(Value value, MatType type) {
    if (std::optional<Parts> known = start(value, type, 1))
      return known;
    Operation *op = value.getDefiningOp();
    if (!op || value.getType() != type)
      return std::nullopt;
    if (auto assume = dyn_cast<AssumeOp>(op))
      return affine(assume.getOperand(), type);
    if (auto neg = dyn_cast<NegOp>(op)) {
      std::optional<Parts> x = affine(neg.getOperand(), type);
      if (x)
        x = mapped(*x, [&](Value part) { return NegOp::create(b, rule.getLoc(), part).getResult(); });
      return x;
    }
    if (isa<AddOp, SubOp>(op)) {
      std::optional<Parts> x = affine(op->getOperand(0), type), y = affine(op->getOperand(1), type);
      if (!x || !y)
        return std::nullopt;
      if (isa<SubOp>(op))
        y = mapped(*y, [&](Value part) { return NegOp::create(b, rule.getLoc(), part).getResult(); });
      return joined(*x, *y, [&](Value p, Value q) { return sum(p, q); });
    }
    if (isa<MulOp, DivOp>(op))
      return moved<MulOp, DivOp>(op, type, 1, &ScanFinder::affine);
    return std::nullopt;
  }

  std::optional<Parts> tropical(Value value, MatType type) {
    if (std::optional<Parts> known = start(value, type, 0))
      return known;
    Operation *op = value.getDefiningOp();
    if (!op || value.getType() != type)
      return std::nullopt;
    if (auto assume = dyn_cast<AssumeOp>(op))
      return tropical(assume.getOperand(), type);
    if (isa<MaxOp>(op)) {
      std::optional<Parts> x = tropical(op->getOperand(0), type), y = tropical(op->getOperand(1), type);
      if (!x || !y)
        return std::nullopt;
      return joined(*x, *y, [&](Value p, Value q) { return larger(p, q); });
    }
    if (isa<AddOp, SubOp>(op))
      return moved<AddOp, SubOp>(op, type, 0, &ScanFinder::tropical);
    return std::nullopt;
  }

  // Open states that are affine functions of one another, in groups of those that are coupled.
  SmallVector<ScanGroup> affineGroups() {
    llvm::SmallMapVector<unsigned, Parts, 4> found;
    for (unsigned i = 0; i < states.size(); ++i)
      if (open >> i & 1)
        if (std::optional<Parts> parts = affine(updates[i], matType(states[i])))
          found[i] = std::move(*parts);
    // What needs a state that is none of them is none either.
    for (bool again = true; again;) {
      again = false;
      for (auto &[state, parts] : found)
        if (llvm::any_of(parts.factors, [&](auto &factor) { return !found.contains(factor.first); })) {
          found.erase(state);
          again = true;
          break;
        }
    }
    llvm::DenseMap<unsigned, unsigned> leader;
    for (auto &[state, parts] : found)
      leader[state] = state;
    for (auto &[state, parts] : found)
      for (auto &[from, factor] : parts.factors) {
        unsigned old = leader[from], now = leader[state];
        for (auto &entry : leader)
          entry.second = entry.second == old ? now : entry.second;
      }
    SmallVector<ScanGroup> groups;
    for (auto &[first, unused] : found) {
      if (leader[first] != first)
        continue;
      ScanGroup group;
      for (auto &[state, parts] : found)
        if (leader[state] == first)
          group.states.push_back(state);
      for (unsigned state : group.states) {
        for (unsigned from : group.states)
          group.factors.push_back(found[state].factors.lookup(from));
        group.writes.push_back(found[state].rest);
      }
      groups.push_back(std::move(group));
    }
    return groups;
  }

  SmallVector<ScanGroup> maxGroups() {
    SmallVector<ScanGroup> groups;
    for (unsigned i = 0; i < states.size(); ++i) {
      if (!(open >> i & 1))
        continue;
      std::optional<Parts> parts = tropical(updates[i], matType(states[i]));
      if (parts && parts->rest && parts->factors.size() == 1 && parts->factors.contains(i))
        groups.push_back({ScanGroup::Max, {i}, {parts->factors[i]}, {parts->rest}});
    }
    return groups;
  }

  // Yields what the groups of a kind say, of affine ones after a proof. (A maximum is nothing in a field.)
  bool rewrite(const ScanForm &form, ScanGroup::Kind kind, std::string &reason) {
    OwningOpRef<RuleOp> before;
    if (kind == ScanGroup::Affine)
      before = rule.clone();
    Operation *yield = rule.getBody().front().getTerminator();
    for (const auto &phase : form.phases)
      for (const ScanGroup &group : phase) {
        if (group.kind != kind)
          continue;
        for (auto [i, state] : llvm::enumerate(group.states)) {
          Value update = group.writes[i];
          if (kind == ScanGroup::Max)
            update = apply<MaxOp>(apply<AddOp>(states[state], group.factors[0]), update);
          else
            for (auto [j, from] : llvm::enumerate(group.states))
              if (Value factor = group.factors[i * group.states.size() + j])
                update = sum(apply<MulOp>(factor, states[from]), update);
          if (update.getType() != states[state].getType())
            update = BroadcastOp::create(b, rule.getLoc(), states[state].getType(), update);
          yield->setOperand(state, update);
        }
      }
    std::string where;
    if (!before || sameRule(*before, rule, where))
      return true;
    reason = "the scan differs from the rule at " + where;
    return false;
  }

  RuleOp rule;
  SmallVector<BlockArgument> states;
  SmallVector<Value> updates;
  OpBuilder b;
  llvm::DenseMap<Value, uint64_t> reach; // the states that a value depends on
  uint64_t open = 0;                     // states that have no group yet
};
} // namespace

std::optional<ScanForm> recur::findScan(RuleOp rule, std::string &reason) {
  SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State);
  if (states.empty() || states.size() > 64 || !rule.argumentsOf(ArgKind::Stale).empty()) {
    reason = "there is no state, or one of a block's start";
    return std::nullopt;
  }
  return ScanFinder(rule).run(reason);
}
