// Scores between the tokens of a chunk, by one warpgroup: each warp has 16 tokens as rows.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleBesideScores.h"
#include "lib/Cuda/RoleScaledTiles.h"
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
    if (!factors.empty())
      rowNumbers(state, {factors, {}, false});
    if (gram.getDecay() && !plan.decay)
      rowNumbers(state, slotOfReach({}, gram.getDecay(), gram.getReach()));
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

void RoleEmitter::collectRows(ScoreState &state) {
  auto collect = [&](const ScoreTile &tile) {
    if (std::optional<PlainScore> plain = asPlain(tile))
      collectFactors(state, tile, *plain);
    else
      collectRows(state, tile, tile.value, {});
  };
  for (unsigned i : state.role->tiles)
    if (!plan.scores[i].ofTokens || plan.decay)
      collect(plan.scores[i]);
  if (state.role->system) {
    collect({plan.system, {}});
    fetchColumns(state, {plan.system, {}});
  }
}

Value RoleEmitter::score(ScoreState &state, const ScoreTile &tile, unsigned entry) {
  return score(state, tile, tile.value, entry, {});
}

Value RoleEmitter::score(ScoreState &state, const ScoreTile &tile, Value value, unsigned entry,
                         RowFactors factors) {
  value = RolePlan::trace(value);
  unsigned which = entry / 2 % 2;
  if (auto gram = value.getDefiningOp<chunk::GramOp>()) {
    Value x = state.sumsOf(plan, gram)[state.block * state.entries + entry];
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
      x = ptx.multiply(x, columnValue(state, {right, {}, false}, entry));
    if (!inExponent)
      right.clear();
    if (decay) {
      unsigned row = slotOf(slotOfReach({}, gram.getDecay(), gram.getReach())),
               column = slotOf({right, decay, false});
      Value &factor = state.decays[{row * 64 + column, entry}];
      if (!factor)
        factor = ptx.exp2(ptx.difference(state.rowValues.lookup(row)[which],
                                         columnValue(state, {right, decay, false}, entry)));
      x = ptx.multiply(x, factor);
    }
    if (gram.getReach() == Reach::Start) {
      Value row = ptx.add(ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2)), 8 * which),
            column = ptx.add(ptx.mul(ptx.bits(lane, 3), 2), 16 * state.block + 8 * (entry / 4) + entry % 2);
      return ptx.choose(ptx.below(column, firstOfBlock(ptx, plan, row)), x, ptx.number(0));
    }
    if (tile.anyAbove)
      return x;
    // The entry's column less its row, but for what the thread adds.
    int64_t offset = placeOfRow(16 * state.block + 8 * (entry / 4) + entry % 2) - placeOfRow(8 * which);
    auto order = plan.seesOwn(gram.getReach(), which, entry / 4) ? arith::CmpIPredicate::sle
                                                                 : arith::CmpIPredicate::slt;
    Value reached = ptx.compare(order, ptx.constant(offset), state.rowLessColumn);
    return ptx.choose(reached, x, ptx.number(0));
  }
  Operation *op = value.getDefiningOp();
  SpecPlace place(b, op);
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

// A tile's blocks of 16 columns that a warp has anything of, and where they go. Blocks beyond the diagonal
// are zero.
void RoleEmitter::forBlocks(ScoreState &state, const ScoreTile &tile,
                            llvm::function_ref<void(ValueRange, Value, bool)> body) {
  std::optional<PlainScore> plain = asPlain(tile);
  auto inside = [&](int64_t block, bool onDiagonal, Value number) {
    state.block = block;
    state.columnBlock = number;
    state.columnValues.clear();
    state.decays.clear();
    Values entries;
    if (plain)
      entries = onDiagonal ? scoresOn(state, tile, *plain) : scoresOff(state, tile, *plain);
    else
      for (unsigned e = 0; e < 8; ++e)
        entries.push_back(score(state, tile, e));
    Value place = block >= 0 ? state.blocks[block] : ptx.exclusiveOr(state.blocks[0], ptx.mul(warp, 32));
    body(entries, place, onDiagonal);
  };
  auto when = [&](arith::CmpIPredicate order, int64_t block, bool onDiagonal) {
    Values before = state.rowSums;
    auto is =
        scf::IfOp::create(b, ValueRange(before).getTypes(), ptx.compare(order, warp, ptx.constant(block)),
                          /*withElseRegion=*/!before.empty());
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(is.thenBlock());
    inside(block, onDiagonal, onDiagonal ? warp : ptx.constant(block));
    if (before.empty())
      return;
    scf::YieldOp::create(b, state.rowSums);
    b.setInsertionPointToStart(is.elseBlock());
    scf::YieldOp::create(b, before);
    state.rowSums = is.getResults();
  };
  if (plain)
    inside(-1, true, warp);
  if (plain && plain->mask >= 0 && plan.system)
    return forBlocksBefore(state, *plain, [&](Value block) { inside(0, false, block); });
  for (int64_t block = 0; block < 4; ++block) {
    if (!plain)
      when(arith::CmpIPredicate::eq, block, true);
    if (block != (tile.turned ? 0 : 3))
      when(tile.turned ? arith::CmpIPredicate::ult : arith::CmpIPredicate::ugt, block, false);
  }
}

// The blocks before the warp's own, in a loop whose body takes them for the first one: a product's sums take
// turns in the registers of those. With two states and a system the numbers need registers that unrolled
// blocks would keep.
void RoleEmitter::forBlocksBefore(ScoreState &state, const PlainScore &plain,
                                  llvm::function_ref<void(Value)> body) {
  constexpr int64_t blocks = 3, each = 8;
  Values &sums = state.sumsOf(plan, plain.gram), all = sums;
  Value columns = state.columns, first = state.blocks[0];
  auto loop = threads.forLoop(ptx.constant(0), opaque(blocks), ptx.constant(1),
                              ArrayRef(all).take_front(blocks * each), [&](Value block, ValueRange carried) {
                                sums.assign(carried.begin(), carried.end());
                                state.columns = ptx.add(columns, ptx.mul(block, 64));
                                state.blocks[0] = ptx.exclusiveOr(first, ptx.mul(block, 32));
                                threads.when(ptx.below(block, warp), [&] { body(block); });
                                Values next(carried.drop_front(each));
                                llvm::append_range(next, carried.take_front(each));
                                return next;
                              });
  describeTrips(loop, blocks);
  sums.assign(loop.getResults().begin(), loop.getResults().end());
  llvm::append_range(sums, ArrayRef(all).drop_front(blocks * each));
  state.columns = columns;
  state.blocks[0] = first;
}

// The lane, as if it were another each time, so that what follows from it takes no register all the time.
Value RoleEmitter::freshLane() { return ptx.assembly("mov.b32 $0, $1;", b.getI32Type(), lane)[0]; }

// A lane's places in rows of blocks, for the next use of them.
void RoleEmitter::refreshBlocks(ScoreState &state) {
  Value lane = freshLane(), unit = ptx.exclusiveOr(ptx.shiftRight(lane, 4), ptx.bits(lane, 7));
  Value first = ptx.add(ptx.mul(ptx.bits(lane, 15), 128), ptx.mul(unit, 16));
  state.blocks.clear();
  for (int64_t block = 0; block < 4; ++block)
    state.blocks.push_back(ptx.exclusiveOr(first, ptx.constant(32 * block)));
}

// Stores the role's tiles, or those of one product.
void RoleEmitter::storeTiles(ScoreState &state, Operation *gram) {
  refreshBlocks(state);
  Value laneAt = inStrips() ? laneInStrip() : Value();
  LastRows rows = plan.decay && plan.steps > 1 ? lastRows() : LastRows();
  for (unsigned i : state.role->tiles) {
    const ScoreTile &tile = plan.scores[i];
    if ((tile.ofTokens && !plan.decay) || (gram && !plan.isOf(tile, gram)))
      continue;
    if (plan.decay)
      takeParts(state, tile.value);
    forBlocks(state, tile, [&](ValueRange entries, Value place, bool onDiagonal) {
      Values packed;
      for (unsigned e = 0; e < 8; e += 2)
        packed.push_back(ptx.pack(entries[e], entries[e + 1]));
      // With a decay of each key, a token's scores are those of its last micro-step.
      if (tile.ofTokens) {
        Value column = ptx.mul(state.columnBlock, 32);
        auto at = [&](Value place) { return ptx.add(state.buffer, ptx.exclusiveOr(place, column)); };
        return storeLast(rows, packed, at, scoreOffset(i));
      }
      Value at = ptx.add(state.warpRows, place);
      if (inStrips())
        at = blockInStrip(laneAt, warp, state.columnBlock, /*ofInverse=*/false);
      ptx.storeMatrices(ptx.add(state.buffer, at), scoreOffset(i), packed, false);
      if (onDiagonal && int(i) == plan.ownSystem && !plan.hasNoLeaves)
        storeOwnLeaf(state, entries);
      if (!state.rowSums.empty() && i == plan.normaliserTile)
        Normaliser(*this).addScores(state, entries);
    });
    if (plan.invertsOwnLeaves && int(i) == plan.ownSystem)
      invertOwnLeaf(state);
  }
}

// Waits until the chains have done with what is in the buffer.
void RoleEmitter::awaitPlace(ScoreState &state) {
  if (!state.hasPlace)
    ptx.await(barrier(ScoresEmpty, state.index), ptx.exclusiveOr(state.phase, ptx.constant(1)));
  state.hasPlace = true;
}

// Of all chunks that are this block's or, where a place in the ring is given, of the one that is `chunks`.
void RoleEmitter::emitScores(Value chunks, unsigned which, const Stage *ofOne) {
  const ScoreRole &role = scorers[which];
  ScoreState state;
  state.role = &role;
  Value row, pair;
  auto findPlace = [&](Value lane) {
    row = ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2));
    pair = ptx.mul(ptx.bits(lane, 3), 2);
    Value place = ptx.add(ptx.mul(warp, placeOfRow(16)), placeInEight(ptx.shiftRight(lane, 2)));
    state.rowLessColumn = arith::SubIOp::create(b, place, placeInEight(pair));
  };
  findPlace(lane);
  state.warpRows = ptx.mul(warp, 16 * 128);
  refreshBlocks(state);
  // The system's products first: most follows from them.
  SmallVector<Operation *> order;
  if (role.system)
    order = plan.gramsOf({plan.system}).takeVector();
  size_t ofSystem = order.size();
  for (Operation *gram : gramsOf(role))
    if (!llvm::is_contained(order, gram))
      order.push_back(gram);
  auto hasTile = [&](Operation *gram) {
    return llvm::any_of(role.tiles, [&](unsigned i) { return plan.isOf(plan.scores[i], gram); });
  };
  auto isTurned = [&](Operation *gram) {
    return llvm::any_of(role.tiles,
                        [&](unsigned i) { return plan.scores[i].turned && plan.isOf(plan.scores[i], gram); });
  };
  // Where the chain leaves the matrix units room, products do not wait for numbers. (Who makes those clears
  // the rows past a sequence's end, too, and may change tiles.)
  bool isAhead =
      (team > 1 || plan.isWide()) && order.size() <= productsTogether && plan.ownSystem < 0 && !sumsChange();
  // Who makes tiles, and not only an inverse, keeps a vector that is read beside them.
  bool keepsVector = plan.normaliser && (scorers.size() == 1 || !role.tiles.empty());
  auto beginVector = [&](Value chunk, Stage stage) {
    if (team > 1)
      Normaliser(*this).publish(state.vector, which);
    return Normaliser(*this).begin(chunk, stage, /*reads=*/!plan.statesOnly);
  };
  auto leave = [&](Value chunk, Stage stage) {
    if (keepsVector) {
      awaitPlace(state);
      if (state.ofVector.empty())
        Normaliser(*this).land(state, ptx.await(0, beginVector(chunk, stage)));
      Normaliser(*this).finish(state, chunk, stage);
    }
    handOver(state, which, {role.tiles, role.system && !blocksInScores});
    if (keepsVector && team > 1)
      ptx.arrive(barrier(Empty, stage.index));
  };
  auto invert = [&] { plan.invertsInHalves() ? emitInverse(state) : emitWideInverse(state); };
  auto body = [&](Value chunk, Stage stage) {
    state.rowValues.clear();
    state.maskRows.clear();
    state.ownColumns.clear();
    std::tie(state.index, state.phase) = bufferOf(chunk, stage);
    if (nextMaker()) // of a place that others fill in between
      state.phase = ptx.bits(ptx.shiftRight(ptx.add(chunk, 1), 1), 1);
    state.buffer = ptx.add(ptx.add(base, scoresAt), ptx.mul(state.index, scoreBytes));
    state.hasPlace = false;
    state.numbers = stage.rows;
    state.masks = stage.masks;
    // Registers are few.
    if (!plan.decay)
      findPlace(freshLane());
    state.ownRows = ptx.add(stage.rows, ptx.mul(row, 4));
    state.columns = ptx.add(stage.rows, ptx.mul(pair, 4));
    if (plan.decay) {
      ptx.await(barrier(PartsFull, ptx.constant(0)), ptx.bits(chunk, 1));
      // Numbers that follow from what walkers sum come after their tiles.
      if (walkersSum())
        ptx.await(barrier(Full, stage.index), stage.phase);
      collectRows(state);
      for (auto [i, gram] : llvm::enumerate(order)) {
        if (hasTile(gram)) {
          awaitPlace(state);
          storeTiles(state, gram);
        }
        // The system's blocks lie where its sums did, so that tiles of the same sums go first.
        if (i < ofSystem) {
          takeParts(state, plan.system);
          ptx.meet(ptx.constant(5 + which), 128);
          storeSystem(state);
        }
      }
      awaitPlace(state);
      if (role.system)
        invert();
      handOver(state, which, role);
      return inOneThread([&] { ptx.arrive(barrier(PartsEmpty, ptx.constant(0))); });
    }
    if (scoresChange() && !plan.scaling) {
      ptx.await(barrier(Loaded, stage.index), stage.phase);
      changeTiles(chunk, stage);
      ptx.arrive(barrier(Changed, stage.index));
    }
    // The numbers are there not long after the tiles. What is loaded behind products waits for them.
    auto awaitNumbers = [&] {
      ptx.await(barrier(Full, stage.index), stage.phase);
      collectRows(state);
    };
    if (plan.scaling) // who scales clears rows
      awaitTiles(chunk, stage);
    if (isAhead && !plan.scaling) {
      Value isWhole = ptx.compare(arith::CmpIPredicate::sge, tokensLeft(chunk), ptx.constant(plan.tokens));
      Value full = barrier(Full, stage.index);
      Value loaded = barrier(changesAhead() ? Changed : Loaded, stage.index);
      ptx.await(ptx.choose(isWhole, loaded, full), stage.phase);
      if (form.sharesMaps(plan))
        ptx.await(barrier(MapsFull, stage.index), stage.phase);
    } else if (!isAhead) {
      awaitNumbers();
    }
    state.ofVector.clear();
    state.rowSums.assign(keepsVector && !plan.statesOnly ? 2 : 0, ptx.number(0));
    SmallVector<Pending> products;
    int64_t partsOfProduct = std::max<int64_t>(plan.references(), 1);
    auto multiply = [&](BlockArgument left, BlockArgument right) {
      if (plan.references() > 1)
        return products.push_back(ScaledTiles(*this).product(stage, left, right));
      SmallVector<Step> steps;
      auto side = [&](BlockArgument input, int64_t k) {
        return ptx.advance(ptx.descriptor(tileAt(stage, input), 0), k / 4 * halfStride(input) + k % 4 * 32);
      };
      for (int64_t k = 0; k < matType(left).numCols() / 16; ++k)
        steps.push_back({{side(left, k)}, side(right, k)});
      products.push_back(ptx.product(plan.rowsOf(right), {}, steps, false, false));
    };
    auto multiplyOf = [&](Operation *op) {
      SpecPlace place(b, op);
      auto gram = cast<chunk::GramOp>(op);
      BlockArgument left = plan.asTile(gram.getLhs())->input, right = plan.asTile(gram.getRhs())->input;
      // With micro-steps, rows are always those.
      if (isTurned(op) || plan.isOfTokens(gram.getLhs()))
        std::swap(left, right);
      multiply(left, right);
    };
    state.sums.clear();
    // Who substitutes has the registers, and scores have the time.
    if (plan.ownSystem >= 0) {
      awaitPlace(state);
      for (auto [i, op] : llvm::enumerate(order)) {
        multiplyOf(op);
        state.sums.clear();
        state.sums[op] = ptx.await(0, products[i])[0];
        storeTiles(state, op);
        storeTokenScores(state, op);
      }
      if (earlyPlaces && team == 1)
        ptx.arrive(barrier(EarlyEmpty, earlyOf(chunk).first));
      return handOver(state, which, role);
    }
    // Of many products two are on their way at a time, as the sums of more take too many registers; one with
    // two states, whose masks take registers, too, and where left sides are there a second time, in
    // registers. The inverse follows then on the products that it is of.
    bool isOne = plan.states > 1 || (plan.references() > 1 && order.size() > productsTogether);
    if (order.size() > productsTogether ||
        (isOne && llvm::any_of(ArrayRef(order).take_front(ofSystem), hasTile))) {
      for (size_t i = 0; i < order.size(); ++i) {
        while (products.size() < std::min(i + (isOne ? 1 : 2), order.size()))
          multiplyOf(order[products.size()]);
        if (isAhead && i == 0)
          awaitNumbers();
        state.sums.clear();
        state.sums[order[i]] = ptx.await(partsOfProduct * (products.size() - 1 - i), products[i])[0];
        if (i < ofSystem)
          storeSystem(state);
        if (hasTile(order[i])) {
          awaitPlace(state);
          storeTiles(state, order[i]);
          storeTokenScores(state, order[i]);
        }
        if (role.system && i + 1 == (isOne ? ofSystem : order.size()))
          invert();
      }
      if (earlyPlaces && team == 1)
        ptx.arrive(barrier(EarlyEmpty, earlyOf(chunk).first));
      return leave(chunk, stage);
    }
    // With two states a team's blocks make the inverse of every second chunk, too: that needs no place until
    // its last steps.
    bool invertsFirst = team > 1 && plan.states > 1 && role.system && ofSystem < order.size();
    ArrayRef<Operation *> others = ArrayRef(order).drop_front(invertsFirst ? ofSystem : order.size());
    for (Operation *op : ArrayRef(order).drop_back(others.size()))
      multiplyOf(op);
    if (isAhead)
      awaitNumbers();
    auto land = [&](size_t from, size_t to) {
      SmallVector<Values> landed =
          ptx.await(partsOfProduct * (products.size() - to), ArrayRef(products).slice(from, to - from));
      for (auto [gram, sums] : llvm::zip(ArrayRef(order).slice(from, to - from), landed))
        state.sums[gram] = sums;
    };
    if (role.system) {
      land(0, ofSystem);
      if (blocksInScores)
        awaitPlace(state);
      storeSystem(state);
    }
    if (invertsFirst)
      invert();
    for (Operation *op : others)
      multiplyOf(op);
    // (Where registers are few they come behind the scores.)
    SmallVector<Pending> ofVector;
    if (keepsVector && (plan.system || slabs == 1) && !form.mapsApart(plan))
      ofVector = beginVector(chunk, stage);
    for (unsigned tile : role.tiles)
      if (!plan.scores[tile].ofTokens)
        fetchColumns(state, plan.scores[tile]);
    if (!role.tiles.empty())
      awaitPlace(state);
    // All together: the assembler has products in turn where some are in flight beside branches.
    SmallVector<Pending> last(ArrayRef(products).drop_front(ofSystem));
    llvm::append_range(last, ofVector);
    SmallVector<Values> landed = last.empty() ? SmallVector<Values>() : ptx.await(0, last);
    for (auto [gram, sums] : llvm::zip(ArrayRef(order).drop_front(ofSystem), landed))
      state.sums[gram] = sums;
    if (!ofVector.empty())
      Normaliser(*this).land(state, ArrayRef(landed).drop_front(order.size() - ofSystem));
    if (earlyPlaces && team == 1)
      ptx.arrive(barrier(EarlyEmpty, earlyOf(chunk).first));
    if (blocksInScores) {
      invert();
      handOver(state, which, {{}, true});
      clearBlocks(state);
    }
    storeTiles(state);
    storeTokenScores(state);
    if (role.system && !invertsFirst && !blocksInScores)
      invert();
    leave(chunk, stage);
  };
  if (ofOne)
    return body(chunks, *ofOne);
  if (!keepsVector)
    return forOwnChunks(chunks, body);
  Values first = Normaliser(*this).load();
  if (team == 1)
    Normaliser(*this).publish(first, which);
  Values last = Normaliser(*this).overChunks(state, chunks, first, body);
  Normaliser(*this).store(last, which);
}
