// Logarithms of a decay of each key that are no input: sums, products and the like of inputs, of params and
// of numbers of each token, so that a*S*diag(exp(g)) needs no kernel that writes log(a) + g to memory, and
// S*diag(a) none that writes log(a). Who walks the channels computes them entry by entry, in two parts of 16
// bits, of which one is what rounding leaves: of a logarithm of -5 that is up to 0.01.
//
// Decays that may be negative have the logarithms of their sizes. How many of those up to a token are
// negative is a sum, too, by the same product; whether it is odd is a bit that turns what decays by them.
#include "lib/Cuda/RoleRowState.h"
#include "lib/Cuda/RoleScores.h"
#include "lib/Cuda/Stages.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// What decays by more than 2^-199 counts as that, so that sums stay precise.
constexpr double leastLog = -138;
constexpr int64_t signBit = std::numeric_limits<int32_t>::min();

static constexpr llvm::StringLiteral sizesAttr = "recur.log_of_size";

Value RolePlan::signedFactors() const {
  auto op = decay ? decay.getDefiningOp<chunk::DecayOp>() : chunk::DecayOp();
  if (!op || !op->hasAttr(sizesAttr))
    return {};
  auto size = trace(logs().getDefiningOp<LogOp>().getOperand()).getDefiningOp<AbsOp>();
  return trace(size.getOperand());
}

// Those of what decays by a value of a map are a map's, too.
void RolePlan::takeLogs(chunk::ProgramOp program) {
  RolePlan plan;
  plan.program = program;
  for (auto decay : program.getBody().getOps<chunk::DecayOp>()) {
    bool ofRows = llvm::any_of(decay->getUsers(), [](Operation *user) { return isa<chunk::MixOp>(user); });
    if (decay.getLog() || ofRows || !isOfKeys(decay))
      continue;
    OpBuilder b(decay);
    Value factors = decay.getFactors();
    // As a function that loses no digits, where there is one.
    auto logOf = [&](Value value) -> Value {
      Value log = logarithmOf(b, decay.getLoc(), value, [&](Value operand) { return plan.rangeOf(operand); });
      if (log || !plan.isWithinOne(value))
        return log;
      decay->setAttr(sizesAttr, b.getUnitAttr());
      Value size = AbsOp::create(b, decay.getLoc(), value);
      return LogOp::create(b, decay.getLoc(), size);
    };
    auto result = dyn_cast<OpResult>(factors);
    auto map = result ? dyn_cast<chunk::MapOp>(result.getOwner()) : chunk::MapOp();
    if (!map) {
      if (Value log = logOf(factors))
        decay.getLogMutable().assign(log);
      continue;
    }
    if (!map.getCarried().empty())
      continue;
    auto own = chunk::MapOp::create(b, decay.getLoc(), TypeRange(), TypeRange(factors.getType()),
                                    ValueRange(), map.getRows(), map.getShared());
    IRMapping mapping;
    map.getBody().cloneInto(&own.getBody(), mapping);
    chunk::YieldOp yield = own.getYield();
    b.setInsertionPoint(yield);
    Value log = logOf(yield.getValues()[result.getResultNumber()]);
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
      isa<ConstantOp, AddOp, SubOp, NegOp, MulOp, MaxOp, MinOp, BroadcastOp, AbsOp, LogOp>(op) &&
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
  if (isOfParams(logs) || isa_and_present<LogOp>(op))
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
  if (abreast > 1) { // what the transitions follow from: their numbers, and vectors without these
    work.clear();
    for (Value entry : decay.getDefiningOp()->getOperands()) {
      auto parts = splitTransition(entry);
      for (RowFactor factor : succeeded(parts) ? parts->first : RowFactors{{entry}})
        work.push_back(factor.value);
      if (succeeded(parts) && parts->second)
        work.push_back(parts->second);
    }
  } else if (isOfParams(logs()))
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

bool RolePlan::haveNumbersInLogs() const {
  return llvm::any_of(leavesOfLogs(), [&](Value leaf) { return isRow(leaf); });
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

// A pair of logarithms, which are not too small.
Value RoleEmitter::leastOf(Value pair) {
  return plan.isMild() ? pair : ptx.greater(pair, ptx.constant(ptx.bitsOf(leastLog) * 0x10001));
}

// The logarithms of 16 channels at the warp's tokens, in pairs of tokens, so that they are the right side of
// a product with what sums over these; and ones where decays are negative, likewise.
RoleEmitter::LogPairs RoleEmitter::logPairs(ScoreState &state, int64_t block) {
  if (plan.isOfParams(plan.logs()))
    return {};
  llvm::MapVector<Value, Values> known;
  for (BlockArgument input : plan.tilesOfLogs())
    known[input] = inputPairs(state, input, block, true);
  Value factors = plan.signedFactors();
  Values pairs, negatives, rests;
  if (Value logs = plan.logs(); known.contains(logs)) {
    pairs = known[logs];
    for (Value &pair : pairs)
      pair = leastOf(pair);
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
      Values two, signs;
      for (unsigned i : {e, e + 1}) {
        auto entry = [&](Value value) {
          return vectorEntry(value, [&](Value leaf) { return entryOf(leaf, i); });
        };
        Value log = entry(plan.logs());
        two.push_back(plan.isMild() ? log
                                    : arith::MaximumFOp::create(b, log, ptx.number(leastLog)).getResult());
        if (factors)
          signs.push_back(entry(factors));
      }
      pairs.push_back(ptx.pack(two[0], two[1]));
      Values rounded = ptx.unpack(pairs.back());
      rests.push_back(ptx.pack(ptx.difference(two[0], rounded[0]), ptx.difference(two[1], rounded[1])));
      if (factors) {
        Value ones = ptx.bits(ptx.shiftRight(ptx.pack(signs[0], signs[1]), 15), 0x10001);
        negatives.push_back(ptx.mul(ones, ptx.bitsOf(1)));
      }
    }
  }
  // What decays at channels that no key has is nothing.
  int64_t channels = plan.outlastRows() ? plan.keysInMemory() : plan.keys;
  Value channel = ptx.add(ptx.mul(state.walker, 16 * blocksOfWalker()), ptx.shiftRight(lane, 2));
  for (unsigned i = 0; channels < plan.keys && i < 4; ++i) {
    Value isKey = ptx.below(ptx.add(channel, block * 16 + i / 2 * 8), ptx.constant(channels));
    for (Values *own : {&pairs, &rests})
      if (!own->empty())
        (*own)[i] = ptx.choose(isKey, (*own)[i], ptx.constant(0));
  }
  auto ordered = [&](Values own) {
    for (unsigned i = 0; plan.masksLogs() && i < own.size(); ++i)
      own[i] = arith::AndIOp::create(b, own[i], state.counted[i % 2]);
    return own.empty() ? own : Values{own[0], own[2], own[1], own[3]};
  };
  return {ordered(pairs), ordered(negatives), ordered(rests)};
}

// The last bit of a small count, as a sign.
Value RoleEmitter::lastBit(Value count) {
  constexpr double inLastPlace = 1 << 23;
  Value bits = arith::BitcastOp::create(b, b.getI32Type(), ptx.sum(count, ptx.number(inLastPlace)));
  return arith::ShLIOp::create(b, bits, ptx.constant(31));
}

// Sums of natural logarithms from the first of the warp's tokens, with each token's own or without, and the
// signs of what decays. Of logarithms that are the same for all tokens there are no pairs: they are counted.
RoleEmitter::LogSums RoleEmitter::logSums(ScoreState &state, int64_t block, const LogPairs &pairs,
                                          bool before) {
  auto summed = [&](ValueRange own, ValueRange rests = {}) {
    Values sums(8, ptx.number(0));
    for (ValueRange part : {rests, own})
      if (!part.empty())
        sums = ptx.multiplyPacked(sums, before ? state.strict : state.inclusive, part);
    return sums;
  };
  if (!pairs.logs.empty()) {
    LogSums result{summed(pairs.logs, pairs.rests), {}};
    if (pairs.negatives.empty())
      return result;
    for (Value count : summed(pairs.negatives))
      result.signs.push_back(lastBit(count));
    return result;
  }
  Value at =
      ptx.add(ptx.add(base, ptx.mul(ptx.bits(lane, 3), 8)), ptx.mul(state.walker, 64 * blocksOfWalker()));
  Values logs, sums;
  for (int64_t eight : {0, 1})
    llvm::append_range(logs, ptx.loadFloats(at, vectorAt(plan.logs()) + block * 64 + eight * 32, 2));
  Values signs, signsOfSums;
  for (Value &log : logs) {
    auto [own, sign] = takeMark(log);
    log = plan.isMild() ? own : arith::MaximumFOp::create(b, own, ptx.number(leastLog)).getResult();
    signs.push_back(sign);
  }
  for (unsigned e = 0; e < 8; ++e) {
    Value count = state.counts[before][e / 2 % 2], sign = signs[e / 4 * 2 + e % 2];
    sums.push_back(ptx.multiply(logs[e / 4 * 2 + e % 2], count));
    if (sign)
      signsOfSums.push_back(arith::AndIOp::create(b, sign, lastBit(count)));
  }
  return {sums, signsOfSums};
}

Value RoleEmitter::withSign(Value entry, Value sign) {
  if (!sign)
    return entry;
  Value bits = ptx.exclusiveOr(arith::BitcastOp::create(b, b.getI32Type(), entry), sign);
  return arith::BitcastOp::create(b, b.getF32Type(), bits);
}

// A logarithm is never positive, so that its sign can be that of the decay: then that of -0 is 1.
Value RoleEmitter::marked(Value log, Value sign) {
  return sign ? withSign(ptx.negative(LLVM::FAbsOp::create(b, log)), sign) : log;
}

std::pair<Value, Value> RoleEmitter::takeMark(Value log) {
  if (!plan.signedFactors())
    return {log, Value()};
  return {ptx.negative(LLVM::FAbsOp::create(b, log)), ptx.exclusiveOr(signOf(log), ptx.constant(signBit))};
}

Value RoleEmitter::signOf(Value number) {
  return ptx.bits(arith::BitcastOp::create(b, b.getI32Type(), number), signBit);
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
  if (plan.decaysAtFirst() || plan.decaysByToken())
    log = ptx.choose(ptx.equal(state.steps[row], 0), log, ptx.number(0));
  return ptx.choose(state.valid[row], log, ptx.number(0));
}
