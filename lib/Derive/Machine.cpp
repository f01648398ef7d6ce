// Runs of rules and programs.
#include "lib/Derive/Evaluator.h"

using namespace mlir;
using namespace recur;

namespace {
// The rule's own initial states, where the caller gives none.
template <typename F>
LogicalResult initialise(ArrayAttr args, Region &init, Call<F> &call) {
  Evaluator<F> evaluator;
  unsigned next = 0, param = 0;
  for (ArgAttr arg : args.getAsRange<ArgAttr>()) {
    if (arg.getKind() == ArgKind::Param)
      evaluator.set(init.getArgument(next++), call.params[param++]);
    else if (arg.getKind() == ArgKind::Head || arg.getKind() == ArgKind::Heads)
      evaluator.set(init.getArgument(next++),
                    Dense<F>(1, 1, number<F>(arg.getKind() == ArgKind::Head ? call.head : call.heads)));
  }
  if (failed(evaluator.run(init.front())))
    return failure();
  call.states.resize(init.front().getTerminator()->getNumOperands());
  for (auto [state, value] : llvm::zip(call.states, init.front().getTerminator()->getOperands()))
    if (state.data.empty())
      state = evaluator.get(value);
  return success();
}

// How many tokens of a block are left at a token: blocks begin where the position is a multiple of their
// size.
template <typename F>
int64_t leftOfBlock(const Call<F> &call, int64_t token, int64_t size) {
  return size - (call.position + token) % size;
}

// Gives a body's arguments their values for the tokens begin .. end-1.
template <typename F>
void bind(Evaluator<F> &evaluator, ArrayAttr args, Region &body, Call<F> &call, int64_t begin, int64_t end,
          bool rows) {
  unsigned input = 0, param = 0, state = 0;
  for (BlockArgument argument : body.getArguments()) {
    auto arg = cast<ArgAttr>(args[argument.getArgNumber()]);
    switch (arg.getKind()) {
    case ArgKind::Input: {
      auto &tokens = call.inputs[input++];
      std::vector<Dense<F>> values;
      for (int64_t t = begin; t < end; ++t)
        values.insert(values.end(), tokens[t].begin(), tokens[t].end());
      if (rows && isa<MatType>(argument.getType())) {
        Dense<F> matrix(end - begin, values[0].rows);
        matrix.data.clear();
        for (const Dense<F> &value : values)
          matrix.data.insert(matrix.data.end(), value.data.begin(), value.data.end());
        values = {matrix};
      }
      evaluator.values[argument] = std::move(values);
      break;
    }
    case ArgKind::Param:
      evaluator.set(argument, call.params[param++]);
      break;
    case ArgKind::State:
      evaluator.set(argument, call.states[state++]);
      break;
    case ArgKind::Stale:
      break;
    case ArgKind::Position: {
      Dense<F> position(end - begin, 1);
      for (int64_t t = begin; t < end; ++t)
        position.at(t - begin, 0) = number<F>(call.position + t);
      evaluator.set(argument, position);
      break;
    }
    default:
      evaluator.set(argument,
                    Dense<F>(1, 1, number<F>(arg.getKind() == ArgKind::Head ? call.head : call.heads)));
    }
  }
}
} // namespace

template <typename F>
LogicalResult recur::runRule(RuleOp rule, Call<F> &call) {
  if (failed(initialise(rule.getArgs(), rule.getInit(), call)))
    return failure();
  call.outputs.assign(rule.getOutputs().size(), {});
  Evaluator<F> evaluator;
  SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State);
  for (int64_t t = 0; t < call.tokens; ++t) {
    bind(evaluator, rule.getArgs(), rule.getBody(), call, t, t + 1, false);
    for (BlockArgument stale : rule.argumentsOf(ArgKind::Stale)) {
      ArgAttr arg = rule.getArg(stale);
      bool isStart = t == 0 || leftOfBlock(call, t, arg.getBlock()) == arg.getBlock();
      auto *state = llvm::find(states, rule.findArgument(ArgKind::State, arg.getName()));
      if (isStart)
        evaluator.set(stale, (t || call.starts.empty() ? call.states : call.starts)[state - states.begin()]);
    }
    if (failed(evaluator.run(rule.getBody().front())))
      return failure();
    for (auto [state, value] : llvm::zip(call.states, rule.yieldedStates()))
      state = evaluator.get(value);
    for (auto [output, value] : llvm::zip(call.outputs, rule.yieldedOutputs()))
      output.push_back(evaluator.get(value));
  }
  return success();
}

template <typename F>
LogicalResult recur::runSequence(RuleOp rule, Call<F> &call) {
  Block &body = rule.getBody().front();
  BlockOp block = *body.getOps<BlockOp>().begin();
  if (failed(initialise(rule.getArgs(), rule.getInit(), call)))
    return failure();
  // Every token up to the block, the block once, every token after it.
  std::vector<Evaluator<F>> tokens(call.tokens);
  Evaluator<F> whole;
  whole.length = call.tokens;
  for (auto [argument, token] : llvm::zip(block.getBody().getArguments(), block.getTokens()))
    whole.set(argument, Dense<F>(call.tokens, cast<IntegerAttr>(matType(token).getRows()).getInt()));
  for (auto [t, evaluator] : llvm::enumerate(tokens)) {
    bind(evaluator, rule.getArgs(), rule.getBody(), call, t, t + 1, false);
    if (failed(evaluator.run(body.begin(), Block::iterator(block))))
      return failure();
    for (auto [argument, token] : llvm::zip(block.getBody().getArguments(), block.getTokens())) {
      Dense<F> rows = whole.get(argument);
      for (int64_t i = 0; i < rows.cols; ++i)
        rows.at(t, i) = evaluator.get(token).at(i, 0);
      whole.set(argument, std::move(rows));
    }
    for (auto [state, value] : llvm::zip(call.states, rule.yieldedStates()))
      state = evaluator.get(value);
  }
  for (auto [argument, shared] :
       llvm::zip(block.getBody().getArguments().drop_front(block.getTokens().size()), block.getShared()))
    whole.set(argument, tokens.front().get(shared));
  if (failed(whole.run(block.getBody().front())))
    return failure();
  call.outputs.assign(rule.getOutputs().size(), {});
  for (auto [t, evaluator] : llvm::enumerate(tokens)) {
    for (auto [row, value] : llvm::zip(block.getRows(), block.getYield().getValues())) {
      const Dense<F> &rows = whole.get(value);
      Dense<F> token(rows.cols, 1);
      for (int64_t i = 0; i < rows.cols; ++i)
        token.at(i, 0) = rows.at(t, i);
      evaluator.set(row, std::move(token));
    }
    if (failed(evaluator.run(std::next(Block::iterator(block)), std::prev(body.end()))))
      return failure();
    for (auto [output, value] : llvm::zip(call.outputs, rule.yieldedOutputs()))
      output.push_back(evaluator.get(value));
  }
  return success();
}

template <typename F>
LogicalResult recur::runProgram(chunk::ProgramOp program, Call<F> &call, int64_t size) {
  if (failed(initialise(program.getArgs(), program.getInit(), call)))
    return failure();
  // Outputs that are joined of several of the program's have their parts side by side.
  SmallVector<chunk::OutputPart> parts = chunk::outputParts(program);
  call.outputs.assign(parts.empty() ? 0 : parts.back().output + 1, {});
  Evaluator<F> evaluator;
  evaluator.starts = program.getStarts().value_or(0);
  for (int64_t begin = 0, end = 0; begin < call.tokens; begin = end) {
    end = std::min(call.tokens, begin + (program.getBlock() ? leftOfBlock(call, begin, size) : size));
    evaluator.length = end - begin;
    evaluator.beginsBlock =
        begin == 0 || (evaluator.starts && leftOfBlock(call, begin, evaluator.starts) == evaluator.starts);
    bind(evaluator, program.getArgs(), program.getBody(), call, begin, end, true);
    if (failed(evaluator.run(program.getBody().front())))
      return failure();
    auto yielded = program.getBodyYield().getValues().begin();
    for (Dense<F> &state : call.states)
      state = evaluator.get(*yielded++);
    for (const chunk::OutputPart &part : parts) {
      const Dense<F> &rows = evaluator.get(*yielded++);
      auto &output = call.outputs[part.output];
      for (int64_t t = 0; t < rows.rows; ++t) {
        if (part.index == 0)
          output.push_back(part.isRow ? Dense<F>(part.count, rows.cols) : Dense<F>(rows.cols, part.count));
        Dense<F> &token = output[begin + t];
        for (int64_t i = 0; i < rows.cols; ++i)
          token.at(part.isRow ? part.index : i, part.isRow ? i : part.index) = rows.at(t, i);
      }
    }
  }
  return success();
}

#define INSTANTIATE(F)                                                                                       \
  template LogicalResult recur::runRule<F>(RuleOp, Call<F> &);                                               \
  template LogicalResult recur::runSequence<F>(RuleOp, Call<F> &);                                           \
  template LogicalResult recur::runProgram<F>(chunk::ProgramOp, Call<F> &, int64_t);
INSTANTIATE(Fp)
INSTANTIATE(double)
INSTANTIATE(float)
