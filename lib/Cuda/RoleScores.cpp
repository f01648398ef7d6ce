// Scores between the tokens of a chunk, by one warpgroup: each warp has 16 tokens as rows.
#include "lib/Cuda/RoleScores.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;

void RoleEmitter::collectRows(ScoreState &state, const ScoreTile &tile, Value value, RowFactors factors) {
  value = RolePlan::trace(value);
  if (auto gram = value.getDefiningOp<chunk::GramOp>()) {
    if (!tile.plainRows)
      llvm::append_range(factors, plan.asRows(gram.getLhs())->scale);
    auto load = [&](const Slot &slot) {
      unsigned at = slotOf(slot);
      if (state.rowValues.count(at))
        return;
      // A thread's two rows lie 8 tokens apart.
      int64_t offset = at * stages * slotBytes;
      state.rowValues[at] = {ptx.loadFloats(state.ownRows, offset, 1)[0],
                             ptx.loadFloats(state.ownRows, offset + 32, 1)[0]};
    };
    if (!factors.empty())
      load({factors, {}, false});
    if (gram.getDecay() && !plan.decay)
      load({{}, gram.getDecay(), gram.getReach() == Reach::Before});
    return;
  }
  Operation *op = value.getDefiningOp();
  if (isa<MulOp>(op))
    for (unsigned i : {0, 1})
      if (!RolePlan::isScores(op->getOperand(i))) {
        factors.push_back({op->getOperand(i)});
        return collectRows(state, tile, op->getOperand(1 - i), factors);
      }
  for (Value operand : op->getOperands())
    if (RolePlan::isScores(operand))
      collectRows(state, tile, operand, factors);
}

Value RoleEmitter::score(ScoreState &state, const ScoreTile &tile, unsigned entry) {
  return score(state, tile, tile.value, entry, {});
}

Value RoleEmitter::score(ScoreState &state, const ScoreTile &tile, Value value, unsigned entry,
                         RowFactors factors) {
  value = RolePlan::trace(value);
  unsigned which = entry / 2 % 2, column = entry / 4 % 2 * 2 + entry % 2;
  auto columnValue = [&](const Slot &slot) {
    Values &values = state.columnValues[slotOf(slot)];
    if (values.empty())
      for (int64_t eight : {0, 1})
        llvm::append_range(
            values, ptx.loadFloats(state.columns, slotOffset(slot) + state.block * 64 + eight * 32, 2));
    return values[column];
  };
  if (auto gram = value.getDefiningOp<chunk::GramOp>()) {
    Value x = state.sums.find(gram)->second[state.block * 8 + entry];
    if (!tile.plainRows)
      llvm::append_range(factors, plan.asRows(gram.getLhs())->scale);
    if (!factors.empty())
      x = ptx.multiply(x, state.rowValues.lookup(slotOf({factors, {}, false}))[which]);
    RowFactors right = plan.asRows(gram.getRhs())->scale;
    llvm::append_range(right, tile.columnScale);
    Value decay = plan.decay ? Value() : gram.getDecay();
    // Factors of columns go into the exponent where they have logarithms.
    bool inExponent = decay && llvm::all_of(right, RolePlan::isPositive);
    if (!right.empty() && !inExponent)
      x = ptx.multiply(x, columnValue({right, {}, false}));
    if (!inExponent)
      right.clear();
    bool before = gram.getReach() == Reach::Before;
    if (decay) {
      unsigned row = slotOf({{}, decay, before}), column = slotOf({right, decay, false});
      Value &factor = state.decays[{row * 64 + column, entry}];
      if (!factor)
        factor =
            ptx.exp2(ptx.difference(state.rowValues.lookup(row)[which], columnValue({right, decay, false})));
      x = ptx.multiply(x, factor);
    }
    if (tile.anyAbove)
      return x;
    // The entry's column less its row, but for what the thread adds.
    int64_t offset = 8 * ((state.block * 8 + entry) / 4) + entry % 2 - 8 * which;
    auto order = gram.getReach() == Reach::Inclusive ? arith::CmpIPredicate::sle : arith::CmpIPredicate::slt;
    Value reached = ptx.compare(order, ptx.constant(offset), state.rowLessColumn);
    return ptx.choose(reached, x, ptx.number(0));
  }
  Operation *op = value.getDefiningOp();
  if (isa<MulOp>(op))
    for (unsigned i : {0, 1})
      if (!RolePlan::isScores(op->getOperand(i))) {
        factors.push_back({op->getOperand(i)});
        return score(state, tile, op->getOperand(1 - i), entry, factors);
      }
  Values operands;
  for (Value operand : op->getOperands())
    operands.push_back(score(state, tile, operand, entry, factors));
  return cast<ElementwiseOp>(op).lower(b, b.getLoc(), operands);
}

// Stores the role's scores, and the system.
void RoleEmitter::storeScores(ScoreState &state) {
  for (int64_t block = 0; block < 4; ++block) {
    state.block = block;
    auto body = [&] {
      state.columnValues.clear();
      state.decays.clear();
      for (unsigned i : state.role->tiles) {
        const ScoreTile &tile = plan.scores[i];
        if (tile.ofTokens)
          continue;
        Values packed;
        for (unsigned e = 0; e < 8; e += 2) {
          Value low = score(state, tile, e);
          packed.push_back(ptx.packBf16(low, score(state, tile, e + 1)));
        }
        ptx.storeMatrices(ptx.add(ptx.add(state.buffer, state.warpRows), state.blocks[block]), scoreOffset(i),
                          packed, false);
      }
      if (state.role->system)
        storeSystem(state);
    };
    // Blocks above the diagonal are zero.
    if (block == 0)
      body();
    else
      threads.when(ptx.compare(arith::CmpIPredicate::uge, warp, ptx.constant(block)), body);
  }
}

// Waits until the chains have done with what is in the buffer.
void RoleEmitter::awaitPlace(ScoreState &state) {
  if (!state.hasPlace)
    ptx.await(barrier(ScoresEmpty, state.index), ptx.exclusiveOr(state.phase, ptx.constant(1)));
  state.hasPlace = true;
}

// Gives the chunk's scores to this block's chain and to those of its team.
void RoleEmitter::handOver(const ScoreState &state, unsigned which) {
  ptx.fenceProxy();
  ptx.meet(ptx.constant(5 + which), 128);
  SmallVector<std::pair<int64_t, int64_t>> tiles; // where and how many bytes
  int64_t bytes = 0;
  for (unsigned tile : scorers[which].tiles)
    tiles.push_back({scoreOffset(tile), scoreTileBytes(plan.scores[tile])});
  if (scorers[which].system)
    tiles.push_back({inverseAt - scoresAt, tileBytes});
  for (auto [offset, size] : tiles)
    bytes += size;
  threads.when(ptx.equal(thread, 0), [&] {
    Value full = barrier(ScoresFull, state.index);
    ptx.arrive(full);
    forPeers([&](Value rank) {
      Value there = ptx.inBlock(full, rank);
      ptx.arriveThereExpecting(there, bytes);
      for (auto [offset, size] : tiles) {
        Value at = ptx.add(state.buffer, offset);
        ptx.copyThere(ptx.inBlock(at, rank), at, size, there);
      }
    });
  });
}

// Whether sums are taken from a product.
static bool givesSums(const ScoreRole &role, Operation *gram) {
  return llvm::any_of(role.sums, [&](const ScoreRole::Sum &sum) { return sum.from == gram; });
}

void RoleEmitter::emitScores(Value chunks, unsigned which) {
  const ScoreRole &role = scorers[which];
  ScoreState state;
  state.role = &role;
  Value eighth = ptx.bits(lane, 7), sixteenth = ptx.bits(lane, 15), upper = ptx.shiftRight(lane, 4);
  Value row = ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2)), pair = ptx.mul(ptx.bits(lane, 3), 2);
  state.rowLessColumn = arith::SubIOp::create(b, row, pair);
  state.warpRows = ptx.mul(warp, 16 * 128);
  for (int64_t block = 0; block < 4; ++block)
    state.blocks.push_back(
        ptx.add(ptx.mul(sixteenth, 128), ptx.mul(ptx.exclusiveOr(ptx.add(upper, 2 * block), eighth), 16)));
  if (role.system)
    beginInverse(state);
  if (plan.decay)
    beginDecayed(state);
  llvm::SetVector<Operation *> grams = gramsOf(role);
  forOwnChunks(chunks, [&](Value chunk, Stage stage) {
    state.rowValues.clear();
    state.index = ptx.bits(chunk, 1);
    state.phase = ptx.bits(ptx.shiftRight(chunk, 1), 1);
    state.buffer = ptx.add(ptx.add(base, scoresAt), ptx.mul(state.index, scoreBytes));
    state.hasPlace = false;
    state.ownRows = ptx.add(stage.rows, ptx.mul(row, 4));
    state.columns = ptx.add(stage.rows, ptx.mul(pair, 4));
    auto collect = [&] {
      for (unsigned i : role.tiles)
        if (!plan.scores[i].ofTokens)
          collectRows(state, plan.scores[i], plan.scores[i].value, {});
      if (role.system)
        collectRows(state, {plan.system, {}}, plan.system, {});
    };
    if (plan.decay) {
      state.stage = stage;
      awaitPlace(state);
      ptx.await(barrier(Full, stage.index), stage.phase);
      emitDecayed(state);
      collect();
      storeScores(state);
      if (role.system)
        emitInverse(state);
      return handOver(state, which);
    }
    ptx.await(barrier(Loaded, stage.index), stage.phase);
    SmallVector<Pending> products;
    auto multiply = [&](BlockArgument left, BlockArgument right) {
      SmallVector<Step> steps;
      auto side = [&](BlockArgument input, int64_t k) {
        return ptx.advance(ptx.descriptor(ptx.add(stage.tiles, tileOffset(input)), 0),
                           k / 4 * halfStride(input) + k % 4 * 32);
      };
      for (int64_t k = 0; k < matType(left).numCols() / 16; ++k)
        steps.push_back({{side(left, k)}, side(right, k)});
      products.push_back(ptx.product(plan.rowsOf(right), {}, steps, false, false));
    };
    // Sums first: those that take a product of their own one after the other, as registers are few.
    for (const ScoreRole::Sum &sum : role.sums)
      if (!sum.from) {
        multiply(sum.factors[0], sum.factors[1]);
        storeDiagonal(ptx.await(0, products).front(), sumsOf(chunk, sum.op));
        products.clear();
      }
    SmallVector<Operation *> order;
    for (bool early : {true, false})
      for (Operation *op : grams)
        if (auto gram = cast<chunk::GramOp>(op); early == givesSums(role, gram)) {
          BlockArgument left = plan.asTile(gram.getLhs())->input, right = plan.asTile(gram.getRhs())->input;
          // Rows are always micro-steps.
          if (plan.isOfTokens(gram.getLhs()))
            std::swap(left, right);
          multiply(left, right);
          order.push_back(gram);
        }
    size_t first = llvm::count_if(order, [&](Operation *gram) { return givesSums(role, gram); });
    state.sums.clear();
    auto land = [&](size_t from, size_t to) {
      SmallVector<Values> landed = ptx.await(order.size() - to, ArrayRef(products).slice(from, to - from));
      for (auto [gram, sums] : llvm::zip(ArrayRef(order).slice(from, to - from), landed))
        state.sums[gram] = sums;
    };
    if (first)
      land(0, first);
    for (const ScoreRole::Sum &sum : role.sums)
      if (sum.from)
        storeDiagonal(state.sums.lookup(sum.from), sumsOf(chunk, sum.op));
    if (!role.sums.empty())
      handOverSums(chunk, which);
    if (!role.tiles.empty())
      awaitPlace(state);
    ptx.await(barrier(Full, stage.index), stage.phase);
    collect();
    if (first < order.size())
      land(first, order.size());
    storeScores(state);
    storeTokenScores(state);
    if (role.system)
      emitInverse(state);
    handOver(state, which);
  });
}
