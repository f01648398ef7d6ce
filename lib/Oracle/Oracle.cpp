// Walks a rule over the tokens of a sequence.
//
// recur.block ops divide the body into phases. Within a block of tokens a phase runs for all its tokens
// before the next phase begins. A rule without them has one phase, and each token is a block of its own.
#include "lib/Oracle/Evaluate.h"

using namespace mlir;
using namespace recur;

namespace {
class Interpreter {
public:
  Interpreter(RuleOp rule, OracleCall &call)
      : rule(rule), call(call), states(rule.argumentsOf(ArgKind::State)) {}

  LogicalResult run() {
    if (failed(initialise()))
      return failure();
    call.outputs.assign(rule.getOutputs().size(), std::vector<Matrix>(call.tokens));
    int64_t block = blockLength();
    for (int64_t begin = 0; begin < call.tokens;) {
      // Blocks count from the start of the sequence, wherever this call begins.
      int64_t end = std::min(call.tokens, begin + block - (call.position + begin) % block);
      if (failed(runBlock(begin, end)))
        return failure();
      begin = end;
    }
    return success();
  }

private:
  LogicalResult initialise() {
    Environment environment;
    unsigned next = 0, param = 0;
    for (ArgAttr arg : rule.getArgs().getAsRange<ArgAttr>()) {
      if (arg.getKind() == ArgKind::Param)
        environment[rule.getInit().getArgument(next++)] = {call.params[param++]};
      else if (arg.getKind() == ArgKind::Head || arg.getKind() == ArgKind::Heads)
        environment[rule.getInit().getArgument(next++)] = {Matrix(1, 1, builtin(arg.getKind(), 0))};
    }
    for (Operation &op : rule.getInit().front().without_terminator())
      if (failed(evaluate(op, environment, call.tokens, call.single)))
        return failure();
    call.states.resize(states.size());
    for (auto [state, init] : llvm::zip(call.states, rule.getInitYield().getValues()))
      if (state.data.empty())
        state = environment[init].front();
    return success();
  }

  double builtin(ArgKind kind, int64_t token) const {
    return kind == ArgKind::Position ? call.position + token : kind == ArgKind::Head ? call.head : call.heads;
  }

  int64_t blockLength() {
    int64_t length = 1;
    for (BlockOp op : rule.getBody().getOps<BlockOp>())
      length = op.getSize() ? *op.getSize() : std::max<int64_t>(length, call.position + call.tokens);
    return length;
  }

  // The values that do not depend on earlier phases: everything but the states.
  void bindArguments(Environment &environment, int64_t token) {
    unsigned input = 0, param = 0;
    for (BlockArgument argument : rule.getBody().getArguments()) {
      switch (ArgKind kind = rule.getArg(argument).getKind()) {
      case ArgKind::Input:
        environment[argument] = call.inputs[input++][token];
        break;
      case ArgKind::Param:
        environment[argument] = {call.params[param++]};
        break;
      case ArgKind::State:
      case ArgKind::Stale:
        break;
      default:
        environment[argument] = {Matrix(1, 1, builtin(kind, token))};
      }
    }
  }

  // A state read at a block's start is kept for the whole block of that size.
  void bindStale(Environment &environment, int64_t token) {
    for (BlockArgument argument : rule.argumentsOf(ArgKind::Stale)) {
      if (environment.contains(argument)) // by an earlier phase
        continue;
      ArgAttr arg = rule.getArg(argument);
      if (token == 0 || (call.position + token) % arg.getBlock() == 0) {
        auto state = llvm::find(states, rule.findArgument(ArgKind::State, arg.getName()));
        stale[argument] = {call.states[state - states.begin()]};
      }
      environment[argument] = stale[argument];
    }
  }

  LogicalResult runBlock(int64_t begin, int64_t end) {
    std::vector<Environment> environments(end - begin);
    for (int64_t t = begin; t < end; ++t)
      bindArguments(environments[t - begin], t);
    // States that blocks compute stay as they are until the block's end.
    for (auto [state, value, yielded] : llvm::zip(states, call.states, rule.yieldedStates()))
      if (yielded.getDefiningOp<BlockOp>())
        for (Environment &environment : environments)
          environment[state] = {value};

    Block &body = rule.getBody().front();
    auto phaseBegin = body.begin();
    while (true) {
      auto phaseEnd =
          std::find_if(phaseBegin, body.end(), [](Operation &op) { return isa<BlockOp, YieldOp>(op); });
      for (int64_t t = begin; t < end; ++t)
        if (failed(runPhase(environments[t - begin], t, phaseBegin, phaseEnd)))
          return failure();
      auto block = dyn_cast<BlockOp>(*phaseEnd);
      if (!block)
        break;
      if (failed(runBlockOp(block, environments)))
        return failure();
      phaseBegin = std::next(phaseEnd);
    }

    for (auto [value, yielded] : llvm::zip(call.states, rule.yieldedStates()))
      value = environments.back()[yielded].front();
    for (auto [output, yielded] : llvm::zip(call.outputs, rule.yieldedOutputs()))
      for (int64_t t = begin; t < end; ++t)
        output[t] = environments[t - begin][yielded].front();
    return success();
  }

  LogicalResult runPhase(Environment &environment, int64_t token, Block::iterator begin,
                         Block::iterator end) {
    // States that this phase computes come from the previous token.
    SmallVector<unsigned> computed;
    for (auto [index, state, yielded] : llvm::enumerate(states, rule.yieldedStates()))
      if (!environment.contains(state) && definedBefore(yielded, end)) {
        environment[state] = {call.states[index]};
        computed.push_back(index);
      }
    bindStale(environment, token);
    for (auto op = begin; op != end; ++op) {
      for (Value operand : op->getOperands())
        if (!environment.contains(operand))
          return op->emitError()
                 << "the state is read here, but what it becomes is computed by a later block";
      if (failed(evaluate(*op, environment, call.tokens, call.single)))
        return failure();
    }
    for (unsigned index : computed)
      call.states[index] = environment[rule.yieldedStates()[index]].front();
    return success();
  }

  // True when the value exists once the ops before `end` have run.
  static bool definedBefore(Value value, Block::iterator end) {
    Operation *op = value.getDefiningOp();
    return !op || op->isBeforeInBlock(&*end);
  }

  LogicalResult runBlockOp(BlockOp op, std::vector<Environment> &environments) {
    Environment environment;
    int64_t length = environments.size();
    unsigned next = 0;
    for (Value token : op.getTokens()) {
      Matrix rows;
      for (int64_t t = 0; t < length; ++t) {
        const Matrix &value = environments[t][token].front();
        rows.rows = length;
        rows.cols = value.rows;
        rows.data.insert(rows.data.end(), value.data.begin(), value.data.end());
      }
      environment[op.getBody().getArgument(next++)] = {rows};
    }
    for (Value shared : op.getShared())
      environment[op.getBody().getArgument(next++)] = environments.front()[shared];
    for (Operation &inner : op.getBody().front().without_terminator())
      if (failed(evaluate(inner, environment, length, call.single)))
        return failure();
    auto yielded = op.getYield().getValues().begin();
    for (Value state : op.getStates()) {
      for (Environment &token : environments)
        token[state] = environment[*yielded];
      ++yielded;
    }
    for (Value row : op.getRows()) {
      const Matrix &matrix = environment[*yielded++].front();
      for (int64_t t = 0; t < length; ++t) {
        Matrix value(matrix.cols, 1);
        for (int64_t j = 0; j < matrix.cols; ++j)
          value.at(j, 0) = matrix.at(t, j);
        environments[t][row] = {value};
      }
    }
    return success();
  }

  RuleOp rule;
  OracleCall &call;
  SmallVector<BlockArgument> states;
  Environment stale;
};
} // namespace

LogicalResult recur::interpret(RuleOp rule, OracleCall &call) { return Interpreter(rule, call).run(); }
