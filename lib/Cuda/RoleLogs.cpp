// Logarithms of a decay of each key that are no input: sums, products and the like of inputs, of params and
// of numbers of each token, so that a*S*diag(exp(g)) needs no kernel that writes log(a) + g to memory. Who
// walks the channels computes them entry by entry, rounded to 16 bits as an input would be.
#include "lib/Cuda/RoleRowState.h"
#include "lib/Cuda/RoleScores.h"
#include "lib/Cuda/Stages.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// What decays by more than 2^-199 counts as that, so that sums stay precise.
constexpr double leastLog = -138;

// What a decay without logarithms decays by is a value of a map: a map of its own has the logarithm.
void RolePlan::takeLogs(chunk::ProgramOp program) {
  RolePlan plan;
  plan.program = program;
  for (auto decay : program.getBody().getOps<chunk::DecayOp>()) {
    auto factors = dyn_cast<OpResult>(decay.getFactors());
    auto map = factors ? dyn_cast<chunk::MapOp>(factors.getOwner()) : chunk::MapOp();
    bool ofRows = llvm::any_of(decay->getUsers(), [](Operation *user) { return isa<chunk::MixOp>(user); });
    if (decay.getLog() || ofRows || !isOfKeys(decay) || !map || !map.getCarried().empty())
      continue;
    OpBuilder b(decay);
    auto own = chunk::MapOp::create(b, decay.getLoc(), TypeRange(), TypeRange(factors.getType()),
                                    ValueRange(), map.getRows(), map.getShared());
    IRMapping mapping;
    map.getBody().cloneInto(&own.getBody(), mapping);
    chunk::YieldOp yield = own.getYield();
    b.setInsertionPoint(yield);
    Value log = logarithmOf(b, decay.getLoc(), yield.getValues()[factors.getResultNumber()],
                            [&](Value value) { return plan.rangeOf(value); });
    if (!log) {
      own.erase();
      continue;
    }
    yield->setOperands(log);
    decay.getLogMutable().assign(own.getResults().front());
  }
}

bool RolePlan::isNumberOfLogs(Value value) const {
  return isRow(value) && !trace(value).getDefiningOp<ConstantOp>();
}

bool RolePlan::isOfParams(Value vector) const {
  vector = trace(vector);
  if (auto argument = dyn_cast<BlockArgument>(vector))
    return argument.getOwner()->getParentOp() == program.getOperation() &&
           program.getArg(argument.getArgNumber()).getKind() == ArgKind::Param &&
           isOne(matType(argument).getCols());
  Operation *op = vector.getDefiningOp();
  return isa<ConstantOp, BroadcastOp, ElementwiseOp>(op) &&
         llvm::all_of(op->getOperands(), [&](Value operand) { return isOfParams(operand); });
}

// Functions that take long are left to a kernel before, where tokens have some.
LogicalResult RolePlan::needLogs(Value logs) {
  logs = trace(logs);
  if (isNumberOfLogs(logs))
    return needRow(logs);
  if (isOfParams(logs))
    return success();
  if (auto argument = dyn_cast<BlockArgument>(logs))
    return asTile(argument) ? needInput(argument) : failure();
  Operation *op = logs.getDefiningOp();
  return success(
      isa<ConstantOp, AddOp, SubOp, NegOp, MulOp, MaxOp, MinOp, BroadcastOp>(op) &&
      llvm::all_of(op->getOperands(), [&](Value operand) { return succeeded(needLogs(operand)); }));
}

// Whether they are zero past a sequence's end, where inputs and numbers are.
bool RolePlan::vanishLogs(Value logs) const {
  logs = trace(logs);
  Operation *op = logs.getDefiningOp();
  if (auto constant = dyn_cast_if_present<ConstantOp>(op))
    return constant.getValue().isZero();
  if (isNumberOfLogs(logs))
    return true;
  if (isOfParams(logs))
    return false;
  if (!op)
    return true;
  auto vanish = [&](Value operand) { return vanishLogs(operand); };
  if (isa<MulOp>(op))
    return llvm::any_of(op->getOperands(), vanish);
  if (isa<MaxOp, MinOp>(op)) {
    // Of what vanishes and a constant on the side where that does not count.
    FloatAttr bound;
    for (unsigned i : {0, 1})
      if (matchPattern(op->getOperand(i), m_Constant(&bound)) && vanish(op->getOperand(1 - i)))
        return isa<MaxOp>(op) ? bound.getValueAsDouble() <= 0 : bound.getValueAsDouble() >= 0;
  }
  return llvm::all_of(op->getOperands(), vanish);
}

llvm::SetVector<Value> RolePlan::leavesOfLogs() const {
  llvm::SetVector<Value> leaves;
  SmallVector<Value> work{logs()};
  if (isOfParams(logs()))
    leaves.insert(work.pop_back_val());
  while (!work.empty()) {
    Value value = trace(work.pop_back_val());
    if (value.getDefiningOp<ConstantOp>())
      continue;
    if (isa<BlockArgument>(value) || isNumberOfLogs(value) || isOfParams(value))
      leaves.insert(value);
    else
      llvm::append_range(work, value.getDefiningOp()->getOperands());
  }
  return leaves;
}

llvm::SetVector<Value> RolePlan::vectorsOfLogs() const {
  llvm::SetVector<Value> vectors;
  for (Value leaf : leavesOfLogs())
    if (!isRow(leaf) && isOfParams(leaf))
      vectors.insert(leaf);
  return vectors;
}

llvm::SetVector<BlockArgument> RolePlan::tilesOfLogs() const {
  llvm::SetVector<BlockArgument> tiles;
  for (Value leaf : leavesOfLogs())
    if (!isRow(leaf) && !isOfParams(leaf))
      tiles.insert(cast<BlockArgument>(leaf));
  return tiles;
}

// The logarithms of 16 channels at the warp's tokens, in pairs of tokens, so that they are the right side of
// a product with what sums over these.
Values RoleEmitter::logPairs(ScoreState &state, int64_t block) {
  if (plan.isOfParams(plan.logs()))
    return {};
  llvm::MapVector<Value, Values> known;
  for (BlockArgument input : plan.tilesOfLogs())
    known[input] = inputPairs(state, input, block, true);
  Values pairs;
  if (Value logs = plan.logs(); known.contains(logs)) {
    pairs = known[logs];
    int32_t twice = ptx.bitsOf(leastLog) * 0x10001;
    for (Value &pair : plan.isMild() ? MutableArrayRef<Value>() : MutableArrayRef<Value>(pairs))
      pair = ptx.greater(pair, ptx.constant(twice));
  } else {
    for (auto &[value, entries] : known) {
      Values unpacked;
      for (Value pair : entries)
        llvm::append_range(unpacked, ptx.unpack(pair));
      entries = unpacked;
    }
    Value channels = ptx.add(base, ptx.mul(ptx.shiftRight(lane, 2), 4));
    channels = ptx.add(channels, ptx.mul(state.walker, 64 * blocksOfWalker()));
    for (Value vector : plan.vectorsOfLogs())
      for (int64_t eight : {0, 1})
        known[vector].append(4, ptx.loadFloats(channels, vectorAt(vector) + block * 64 + eight * 32, 1)[0]);
    Value columns = ptx.add(ptx.add(state.stage.rows, ptx.mul(warp, 64)), ptx.mul(ptx.bits(lane, 3), 8));
    auto leaves = plan.leavesOfLogs();
    auto entryOf = [&](Value value, unsigned e) {
      if (!leaves.contains(value))
        return Value();
      Values &entries = known[value];
      // Of a number those of both eights of tokens, for both eights of channels.
      if (entries.empty())
        for (int64_t eight : {0, 1, 0, 1})
          llvm::append_range(entries, ptx.loadFloats(columns, slotOffset({{{value}}, {}}) + eight * 32, 2));
      return entries[e];
    };
    for (unsigned e = 0; e < 8; e += 2) {
      Values two;
      for (unsigned i : {e, e + 1}) {
        Value log = vectorEntry(plan.logs(), [&](Value value) { return entryOf(value, i); });
        two.push_back(plan.isMild() ? log
                                    : arith::MaximumFOp::create(b, log, ptx.number(leastLog)).getResult());
      }
      pairs.push_back(ptx.pack(two[0], two[1]));
    }
  }
  for (unsigned i = 0; plan.masksLogs() && i < 4; ++i)
    pairs[i] = arith::AndIOp::create(b, pairs[i], state.counted[i % 2]);
  return {pairs[0], pairs[2], pairs[1], pairs[3]};
}

// Sums of natural logarithms from the first of the warp's tokens, with each token's own or without. Of those
// that are the same for all tokens there are no pairs: they are counted.
Values RoleEmitter::logSums(ScoreState &state, int64_t block, ValueRange pairs, bool before) {
  if (!pairs.empty())
    return ptx.multiplyPacked(Values(8, ptx.number(0)), before ? state.strict : state.inclusive, pairs);
  Value at =
      ptx.add(ptx.add(base, ptx.mul(ptx.bits(lane, 3), 8)), ptx.mul(state.walker, 64 * blocksOfWalker()));
  Values logs, sums;
  for (int64_t eight : {0, 1})
    llvm::append_range(logs, ptx.loadFloats(at, vectorAt(plan.logs()) + block * 64 + eight * 32, 2));
  for (Value &log : plan.isMild() ? MutableArrayRef<Value>() : MutableArrayRef<Value>(logs))
    log = arith::MaximumFOp::create(b, log, ptx.number(leastLog));
  for (unsigned e = 0; e < 8; ++e)
    sums.push_back(ptx.multiply(logs[e / 4 * 2 + e % 2], state.counts[before][e / 2 % 2]));
  return sums;
}

// The binary logarithm of the largest of a row's factors of a decay of each key.
Value RoleEmitter::slowestKey(RowState &state, unsigned row) {
  Value logs = plan.logs(), most;
  auto packets = [&](BlockArgument input, Value key) {
    Value at = state.access.entryOfToken(plan.tensorOf(input), state.tokens[row], key);
    SmallVector<Type> types(4, b.getI32Type());
    return ptx.assembly("ld.global.v4.b32 {$0,$1,$2,$3}, [$4];", types, at);
  };
  auto greater = [&](Value x, Value y) -> Value { return arith::MaximumFOp::create(b, x, y); };
  if (auto input = dyn_cast<BlockArgument>(logs); input && !plan.isOfParams(logs)) {
    Value pairs;
    for (int64_t key = 0; key < plan.keysInMemory(); key += 8)
      for (Value pair : packets(input, ptx.constant(key)))
        pairs = pairs ? ptx.greater(pairs, pair) : pair;
    Values two = ptx.unpack(pairs);
    most = greater(two[0], two[1]);
  } else {
    llvm::DenseMap<Value, Value> numbers;
    for (Value leaf : plan.leavesOfLogs())
      if (plan.isRow(leaf))
        numbers[leaf] = this->row(state, leaf)[row];
    Value count = ptx.constant(plan.keysInMemory() / 8), least = ptx.number(-3e38);
    auto loop =
        threads.forLoop(ptx.constant(0), count, ptx.constant(1), least, [&](Value eight, ValueRange carried) {
          Value key = ptx.mul(eight, 8), greatest = carried[0];
          llvm::DenseMap<Value, Values> entries;
          for (BlockArgument input : plan.tilesOfLogs())
            for (Value pair : packets(input, key))
              llvm::append_range(entries[input], ptx.unpack(pair));
          for (Value vector : plan.vectorsOfLogs())
            for (int64_t e = 0; e < 8; ++e)
              entries[vector].push_back(entryOfParams(state.access, vector, ptx.add(key, e)));
          for (unsigned e = 0; e < 8; ++e)
            greatest = greater(greatest, vectorEntry(logs, [&](Value leaf) {
                                 auto own = entries.find(leaf);
                                 return own == entries.end() ? numbers.lookup(leaf) : own->second[e];
                               }));
          return Values{greatest};
        });
    most = loop.getResult(0);
  }
  Value log = ptx.multiply(most, ptx.number(llvm::numbers::log2e));
  log = arith::MaximumFOp::create(b, log, ptx.number(-200));
  if (plan.decaysAtFirst())
    log = ptx.choose(ptx.equal(state.steps[row], 0), log, ptx.number(0));
  return ptx.choose(state.valid[row], log, ptx.number(0));
}
