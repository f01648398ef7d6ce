#include "lib/Derive/Blocks.h"
#include "lib/Algebra/BlockStates.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace recur;

namespace {
// A program over blocks, of that of the tokens of one.
class BlockProgram {
public:
  BlockProgram(RuleOp rule, const BlockRule &block, chunk::ProgramOp inner, bool inParts)
      : rule(rule), block(block), inner(inner), inParts(inParts), b(rule.getContext()), loc(rule.getLoc()) {}

  OwningOpRef<chunk::ProgramOp> build();

private:
  OwningOpRef<chunk::ProgramOp> begin();
  void enter();
  Value find(ArgKind kind, StringRef name);
  Value stateAt(unsigned index) { return program.argumentsOf(ArgKind::State)[index]; }
  Value growthOf(unsigned state) { return ends.lookup(block.states[state].growth); }
  Value lastOf(Value numbers);
  Value endOf(unsigned state);

  RuleOp rule;
  const BlockRule &block;
  chunk::ProgramOp inner, program;
  bool inParts; // whether a chunk is a part of a block
  OpBuilder b;
  Location loc;
  IRMapping values;
  llvm::StringMap<Value> ends; // of the inner states, and the rows of the inner outputs
};
} // namespace

// The rule's outputs stand before those that are numbers of its states.
OwningOpRef<chunk::ProgramOp> BlockProgram::begin() {
  SmallVector<chunk::OutputPart> parts = chunk::outputParts(inner);
  llvm::erase_if(parts, [&](const auto &part) { return part.output >= rule.getOutputs().size(); });
  auto names = b.getArrayAttr(inner.getOutputs().getValue().take_front(parts.size()));
  auto size = b.getI64IntegerAttr(block.size);
  auto result = emptyProgram(rule, inner.getLengthAttr(), names, parts, inParts ? IntegerAttr() : size);
  program = *result;
  if (inParts)
    program.setStartsAttr(size);
  b.setInsertionPointToEnd(&program.getBody().front());
  return result;
}

Value BlockProgram::find(ArgKind kind, StringRef name) {
  for (BlockArgument argument : program.argumentsOf(kind))
    if (program.getArg(argument.getArgNumber()).getName() == name)
      return argument;
  return {};
}

// What the inner program's arguments are: nothing has grown yet.
void BlockProgram::enter() {
  for (BlockArgument argument : inner.getBody().getArguments()) {
    ArgAttr arg = inner.getArg(argument.getArgNumber());
    Value value = find(arg.getKind(), arg.getName());
    for (auto [i, state] : llvm::enumerate(block.states))
      if (arg.getKind() == ArgKind::Param && arg.getName() == state.start)
        value = inParts ? chunk::HeldOp::create(b, loc, stateAt(i)).getResult() : stateAt(i);
    if (!value)
      value = ConstantOp::create(b, loc, 0.0, cast<MatType>(argument.getType()));
    values.map(argument, value);
  }
  for (Operation &op : inner.getBody().front().without_terminator())
    b.clone(op, values);
  auto yielded = inner.getBodyYield().getValues().begin();
  for (BlockArgument state : inner.argumentsOf(ArgKind::State))
    ends[inner.getArg(state.getArgNumber()).getName()] = values.lookup(*yielded++);
  for (auto name : inner.getOutputs().getAsRange<StringAttr>())
    ends[name] = values.lookup(*yielded++);
}

// The last token's of some numbers.
Value BlockProgram::lastOf(Value numbers) {
  Type number = chunk::MapOp::tokenType(numbers.getType());
  Value zero = ConstantOp::create(b, loc, 0.0, cast<MatType>(number));
  auto map = chunk::MapOp::create(b, loc, TypeRange{number}, TypeRange(), zero, numbers, ValueRange());
  OpBuilder inside(b.getContext());
  Block *body = inside.createBlock(&map.getBody(), {}, {number, number}, {loc, loc});
  chunk::YieldOp::create(inside, loc, body->getArgument(1));
  return map.getLast()[0];
}

// A state at the block's end, the transpose of a sum where what has grown is one.
Value BlockProgram::endOf(unsigned index) {
  const BlockState &state = block.states[index];
  if (state.kind == BlockState::Kept)
    return ends.lookup(rule.getArg(rule.argumentsOf(ArgKind::State)[index]).getName());
  SmallVector<BlockState::Part> parts(state.parts);
  if (state.kind == BlockState::Grown)
    parts = {{index, true, {}}, {index, false, {}}};
  bool isTransposed = llvm::any_of(parts, [&](const BlockState::Part &part) {
    return !part.isStart && growthOf(part.state).getDefiningOp<TransposeOp>();
  });
  Value sum;
  for (const BlockState::Part &part : parts) {
    Value term = part.isStart ? stateAt(part.state) : growthOf(part.state);
    if (isTransposed)
      term = b.createOrFold<TransposeOp>(loc, term);
    if (!part.number.empty())
      term = MulOp::create(b, loc, term.getType(), lastOf(ends.lookup(part.number)), term);
    sum = sum ? AddOp::create(b, loc, sum, term).getResult() : term;
  }
  return isTransposed ? TransposeOp::create(b, loc, sum).getResult() : sum;
}

OwningOpRef<chunk::ProgramOp> BlockProgram::build() {
  OwningOpRef<chunk::ProgramOp> result = begin();
  enter();
  SmallVector<Value> yields;
  for (unsigned i = 0; i < block.states.size(); ++i)
    yields.push_back(endOf(i));
  for (auto name : program.getOutputs().getAsRange<StringAttr>())
    yields.push_back(ends.lookup(name));
  chunk::YieldOp::create(b, loc, yields);
  return result;
}

static LogicalResult simplifyOnce(Operation *op) {
  PassManager pm(op->getContext(), op->getName().getStringRef());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  return pm.run(op);
}

LogicalResult recur::simplify(RuleOp rule) { return simplifyOnce(rule); }

LogicalResult recur::simplify(chunk::ProgramOp program) {
  LogicalResult first = simplifyOnce(program);
  splitMaps(program);
  return success(succeeded(first) && succeeded(simplifyOnce(program)));
}

Derivation recur::deriveBlocks(RuleOp rule, bool inParts) {
  Derivation derivation;
  BlockRule block = ruleOfBlock(rule, inParts);
  RuleOp inner = *block.module->getOps<RuleOp>().begin();
  if (failed(simplify(inner)))
    return derivation;
  derivation = derive(normalise(inner));
  if (!derivation.program)
    return derivation;
  DerivationStep step{"block", {}};
  for (auto [state, argument] : llvm::zip(block.states, rule.argumentsOf(ArgKind::State)))
    if (state.kind == BlockState::Grown)
      step.lines.push_back(rule.getArg(argument).getName().str() + " = " + state.start +
                           " + what it has grown by");
  derivation.steps.insert(derivation.steps.begin(), step);
  derivation.program = BlockProgram(rule, block, *derivation.program, inParts).build();
  if (failed(simplify(*derivation.program))) {
    derivation.program = nullptr;
    derivation.defect = "its blocks are no program";
  }
  return derivation;
}
