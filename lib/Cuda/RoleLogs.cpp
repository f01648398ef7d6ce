// Logarithms of a decay of each key that are no input: sums, products and the like of inputs and of numbers
// of each token, so that a*S*diag(exp(g)) needs no kernel that writes log(a) + g to memory. Who walks the
// channels computes them entry by entry, rounded to 16 bits as an input would be.
#include "lib/Cuda/RoleRowState.h"
#include "lib/Cuda/RoleScores.h"
#include "lib/Cuda/Stages.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

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

// Functions that take long are left to a kernel before.
LogicalResult RolePlan::needLogs(Value logs) {
  logs = trace(logs);
  if (isNumberOfLogs(logs))
    return needRow(logs);
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
  if (!op || isNumberOfLogs(logs))
    return true;
  if (auto constant = dyn_cast<ConstantOp>(op))
    return constant.getValue().isZero();
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
  while (!work.empty()) {
    Value value = trace(work.pop_back_val());
    if (isa<BlockArgument>(value) || isNumberOfLogs(value))
      leaves.insert(value);
    else
      llvm::append_range(work, value.getDefiningOp()->getOperands());
  }
  return leaves;
}

llvm::SetVector<BlockArgument> RolePlan::tilesOfLogs() const {
  llvm::SetVector<BlockArgument> tiles;
  for (Value leaf : leavesOfLogs())
    if (!isRow(leaf))
      tiles.insert(cast<BlockArgument>(leaf));
  return tiles;
}

// The logarithms of 16 channels at the warp's tokens, in pairs of tokens, so that they are the right side of
// a product with what sums over these. What decays by more than 2^-199 counts as that, and sums stay precise.
Values RoleEmitter::logPairs(ScoreState &state, int64_t block) {
  constexpr double least = -138;
  llvm::MapVector<Value, Values> known;
  for (BlockArgument input : plan.tilesOfLogs())
    known[input] = inputPairs(state, input, block, true);
  Values pairs;
  if (auto input = dyn_cast<BlockArgument>(plan.logs())) {
    pairs = known[input];
    int32_t twice = ptx.bitsOf(least) * 0x10001;
    for (Value &pair : plan.isMild() ? MutableArrayRef<Value>() : MutableArrayRef<Value>(pairs))
      pair = ptx.greater(pair, ptx.constant(twice));
  } else {
    for (auto &[value, entries] : known) {
      Values unpacked;
      for (Value pair : entries)
        llvm::append_range(unpacked, ptx.unpack(pair));
      entries = unpacked;
    }
    Value columns = ptx.add(ptx.add(state.stage.rows, ptx.mul(warp, 64)), ptx.mul(ptx.bits(lane, 3), 8));
    auto entryOf = [&](Value value, unsigned e) {
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
        Value log = vectorEntry(plan.logs(), i, [&](Value value) { return entryOf(value, i); });
        two.push_back(plan.isMild() ? log : arith::MaximumFOp::create(b, log, ptx.number(least)).getResult());
      }
      pairs.push_back(ptx.pack(two[0], two[1]));
    }
  }
  if (plan.decaysAtFirst())
    for (unsigned i = 0; i < 4; ++i)
      pairs[i] = arith::AndIOp::create(b, pairs[i], state.firsts[i % 2]);
  return {pairs[0], pairs[2], pairs[1], pairs[3]};
}

// The binary logarithm of the largest of a row's factors of a decay of each key.
Value RoleEmitter::slowestKey(RowState &state, unsigned row) {
  Value logs = plan.logs(), most;
  auto greater = [&](Value x) { most = most ? arith::MaximumFOp::create(b, most, x).getResult() : x; };
  auto packets = [&](BlockArgument input, int64_t key) {
    Value at = state.access.entryOfToken(plan.tensorOf(input), state.tokens[row], ptx.constant(key));
    SmallVector<Type> types(4, b.getI32Type());
    return ptx.assembly("ld.global.v4.b32 {$0,$1,$2,$3}, [$4];", types, at);
  };
  if (auto input = dyn_cast<BlockArgument>(logs)) {
    Value pairs;
    for (int64_t key = 0; key < plan.keysInMemory(); key += 8)
      for (Value pair : packets(input, key))
        pairs = pairs ? ptx.greater(pairs, pair) : pair;
    llvm::for_each(ptx.unpack(pairs), greater);
  } else {
    for (int64_t key = 0; key < plan.keysInMemory(); key += 8) {
      llvm::DenseMap<Value, Values> entries;
      for (BlockArgument input : plan.tilesOfLogs())
        for (Value pair : packets(input, key))
          llvm::append_range(entries[input], ptx.unpack(pair));
      for (unsigned e = 0; e < 8; ++e)
        greater(vectorEntry(logs, e, [&](Value value) {
          auto own = entries.find(value);
          return own == entries.end() ? this->row(state, value)[row] : own->second[e];
        }));
    }
  }
  Value log = ptx.multiply(most, ptx.number(llvm::numbers::log2e));
  log = arith::MaximumFOp::create(b, log, ptx.number(-200));
  if (plan.decaysAtFirst())
    log = ptx.choose(ptx.equal(state.steps[row], 0), log, ptx.number(0));
  return ptx.choose(state.valid[row], log, ptx.number(0));
}
