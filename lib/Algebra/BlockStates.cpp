#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/LinearSum.h"
#include "lib/Algebra/Rewriting.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recur;

int64_t recur::blockOf(RuleOp rule) {
  auto starts = rule.argumentsOf(ArgKind::Stale);
  return starts.empty() ? 0 : rule.getArg(starts.front()).getBlock();
}

void recur::setBlocks(RuleOp rule, int64_t size) {
  SmallVector<Attribute> args(rule.getArgs().getValue());
  for (Attribute &attr : args)
    if (auto arg = cast<ArgAttr>(attr); arg.getKind() == ArgKind::Stale)
      attr =
          ArgAttr::get(rule.getContext(), ArgKind::Stale, arg.getName(), arg.getRange(), arg.getUnit(), size);
  rule.setArgsAttr(ArrayAttr::get(rule.getContext(), args));
}

namespace {
class BlockWriter {
public:
  BlockWriter(RuleOp rule, MutableArrayRef<BlockState> infos)
      : rule(rule), infos(infos), b(rule.getContext()), states(rule.argumentsOf(ArgKind::State)),
        grown(states.size()) {
    for (BlockArgument state : states)
      starts.push_back(rule.findArgument(ArgKind::Stale, rule.getArg(state).getName()));
  }

  /// Finds the states that are sums over others.
  void findSums();
  /// Fails where a state is more than its start and what it has grown by: it is kept the next time.
  LogicalResult write();

private:
  static bool isNumber(Value value) { return matType(value).isScalar(); }
  bool isStart(Value value) const { return llvm::is_contained(starts, value); }
  std::string nameOf(unsigned state) { return rule.getArg(states[state]).getName().str(); }
  void setArg(BlockArgument argument, ArgKind kind, const Twine &name);
  void makeParams();
  void readParts(Value matrix, ArrayRef<std::pair<Value, Value>> terms);
  LogicalResult grow(unsigned state);
  LogicalResult sumUp(unsigned state);
  std::string addNumber(Value number, const Twine &name);
  void erase(unsigned state);

  RuleOp rule;
  MutableArrayRef<BlockState> infos;
  OpBuilder b;
  SmallVector<BlockArgument> states;
  SmallVector<BlockArgument> starts; // by state; null: not read
  SmallVector<Value> grown;          // by state: what it has grown by after the token
};
} // namespace

void BlockWriter::findSums() {
  b.setInsertionPoint(rule.getBodyYield());
  SmallVector<Value> updates = llvm::to_vector(rule.yieldedStates());
  for (auto [i, state] : llvm::enumerate(states)) {
    auto isOther = [&, i = i](Value value) {
      size_t of = llvm::find(updates, value) - updates.begin();
      return of < updates.size() && of != i && infos[of].kind == BlockState::Grown;
    };
    if (infos[i].kind != BlockState::Grown || !state.use_empty() || isOther(updates[i]))
      continue;
    if (llvm::all_of(LinearSum(b, updates[i], isNumber, isOther).build(),
                     [&](const auto &term) { return isStart(term.first) || isOther(term.first); }))
      infos[i].kind = BlockState::Summed;
  }
}

void BlockWriter::setArg(BlockArgument argument, ArgKind kind, const Twine &name) {
  MLIRContext *context = rule.getContext();
  SmallVector<Attribute> args(rule.getArgs().getValue());
  args[argument.getArgNumber()] = ArgAttr::get(context, kind, StringAttr::get(context, name), RangeAttr(),
                                               /*isUnit=*/false, /*block=*/0);
  rule.setArgsAttr(ArrayAttr::get(context, args));
}

// Starts are params, of initial states, too.
void BlockWriter::makeParams() {
  for (auto [i, start] : llvm::enumerate(starts)) {
    if (!start)
      continue;
    infos[i].start = nameOf(i) + "@" + std::to_string(rule.getArg(start).getBlock());
    unsigned number = 0;
    for (BlockArgument argument : rule.getBody().getArguments().take_front(start.getArgNumber()))
      number += llvm::is_contained({ArgKind::Param, ArgKind::Head, ArgKind::Heads},
                                   rule.getArg(argument).getKind());
    setArg(start, ArgKind::Param, infos[i].start);
    rule.getInit().insertArgument(number, start.getType(), start.getLoc());
  }
}

// Has reads of a matrix be those of what it is the sum of.
void BlockWriter::readParts(Value matrix, ArrayRef<std::pair<Value, Value>> terms) {
  if (!isMatrix(matType(matrix)))
    return;
  for (OpOperand &use : llvm::make_early_inc_range(matrix.getUses())) {
    auto read = dyn_cast<MatmulOp>(use.getOwner());
    if (!read || !isRead(read))
      continue;
    OpBuilder at(read);
    Value sum;
    for (auto [value, number] : terms) {
      IRMapping part;
      part.map(matrix, value);
      Value term = scaled(at, read.getLoc(), number, at.clone(*read, part)->getResult(0));
      sum = sum ? AddOp::create(at, read.getLoc(), sum, term).getResult() : term;
    }
    read.replaceAllUsesWith(sum);
    read.erase();
  }
}

// Has a state be its start and what it has grown by, which is the state from now on.
LogicalResult BlockWriter::grow(unsigned state) {
  Value update = rule.yieldedStates()[state];
  if (!update.getDefiningOp())
    return failure();
  b.setInsertionPointAfterValue(update);
  auto growth = SubOp::create(b, update.getLoc(), update, starts[state]);
  LinearSum sum(b, growth, isNumber);
  if (llvm::any_of(starts, [&](Value start) { return start && sum.isTerm(start); }))
    return failure();
  grown[state] = sum.buildSum();
  growth.erase();
  Value whole = AddOp::create(b, update.getLoc(), starts[state], grown[state]);
  readParts(update, {{starts[state], {}}, {grown[state], {}}});
  update.replaceAllUsesWith(whole);
  rule.getBodyYield()->setOperand(state, grown[state]);
  b.setInsertionPoint(rule.getInitYield());
  Type type = states[state].getType();
  rule.getInitYield()->setOperand(state, ConstantOp::create(b, rule.getLoc(), 0.0, cast<MatType>(type)));
  return success();
}

// An output that is a number of each token.
std::string BlockWriter::addNumber(Value number, const Twine &name) {
  SmallVector<Attribute> outputs(rule.getOutputs().getValue());
  auto own = StringAttr::get(rule.getContext(), name);
  outputs.push_back(own);
  rule.setOutputsAttr(ArrayAttr::get(rule.getContext(), outputs));
  rule.getBodyYield()->insertOperands(rule.getBodyYield()->getNumOperands(), number);
  return own.str();
}

// Has a state be a sum of starts and of what others have grown by, each times a number of the last token.
LogicalResult BlockWriter::sumUp(unsigned state) {
  Value update = rule.yieldedStates()[state];
  b.setInsertionPointAfterValue(update);
  LinearSum sum(b, update, isNumber, [&](Value value) { return llvm::is_contained(grown, value); });
  auto terms = sum.build();
  Value whole = sum.buildSum();
  readParts(update, terms);
  update.replaceAllUsesWith(whole);
  for (auto [value, number] : terms) {
    BlockState::Part part{0, isStart(value), {}};
    part.state =
        part.isStart ? llvm::find(starts, value) - starts.begin() : llvm::find(grown, value) - grown.begin();
    if (part.state == states.size())
      return failure();
    const BlockState &of = infos[part.state];
    if (number)
      part.number =
          addNumber(number, nameOf(state) + " takes " + (part.isStart ? of.start : of.growth) + " times");
    infos[state].parts.push_back(part);
  }
  return success();
}

void BlockWriter::erase(unsigned state) {
  SmallVector<Attribute> args(rule.getArgs().getValue());
  unsigned number = states[state].getArgNumber();
  args.erase(args.begin() + number);
  rule.setArgsAttr(ArrayAttr::get(rule.getContext(), args));
  rule.getBody().eraseArgument(number);
  rule.getBodyYield()->eraseOperand(state);
  rule.getInitYield()->eraseOperand(state);
}

LogicalResult BlockWriter::write() {
  makeParams();
  for (auto [i, state] : llvm::enumerate(states)) {
    if (infos[i].kind != BlockState::Grown)
      continue;
    infos[i].growth = nameOf(i) + " - " + infos[i].start;
    setArg(state, ArgKind::State, infos[i].growth);
    b.setInsertionPointToStart(&rule.getBody().front());
    auto whole = AddOp::create(b, rule.getLoc(), starts[i], state);
    state.replaceAllUsesExcept(whole, whole);
  }
  for (auto [i, info] : llvm::enumerate(infos))
    if (info.kind == BlockState::Grown && failed(grow(i)))
      return info.kind = BlockState::Kept, failure();
  for (auto [i, info] : llvm::enumerate(infos))
    if (info.kind == BlockState::Summed && failed(sumUp(i)))
      return info.kind = BlockState::Kept, failure();
  for (size_t i = states.size(); i-- > 0;)
    if (infos[i].kind == BlockState::Summed)
      erase(i);
  eraseDead(rule);
  return success();
}

BlockRule recur::ruleOfBlock(RuleOp rule, bool inParts) {
  BlockRule result;
  SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State);
  result.size = blockOf(rule);
  if (!result.size)
    return result;
  SmallVector<BlockState> kinds(states.size());
  for (auto [info, state] : llvm::zip(kinds, states))
    if (!inParts && rule.findArgument(ArgKind::Stale, rule.getArg(state).getName()))
      info.kind = BlockState::Grown;
  rewritten(rule, [&](RuleOp copy) { return BlockWriter(copy, kinds).findSums(), success(); });
  // Each time one state more is kept.
  while (!result.module) {
    result.states.clear();
    for (const BlockState &info : kinds)
      result.states.emplace_back().kind = info.kind;
    result.module = rewritten(rule, [&](RuleOp copy) { return BlockWriter(copy, result.states).write(); });
    for (auto [known, info] : llvm::zip(kinds, result.states))
      known.kind = info.kind;
  }
  return result;
}
