// Rows times what decays between the chunk's middle and their token, in place, 16 tokens by 16 keys at a
// time.
//
// From a reference on logarithms are summed by products with triangles of ones: of 16 tokens before it and of
// 16 behind it and, where the chunk has but one, of 16 further on either side, to which all of the near ones
// are added. They are bf16, so that sums are exact. Sums lie as matrices do that are loaded from tiles and
// stored to them. What numbers of tokens are sums of rows for, norms most often, is summed on the way.
//
// Each block of a team scales the rows of its own chunks, every second one, and gives them to the other,
// where there is room for two places for its own and one for the other's. Else each scales all rows: with two
// places the exchange would be what is waited for.
#include "lib/Cuda/RoleScaledTiles.h"
#include "lib/Cuda/Count.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Span;

void RoleEmitter::ScaledTiles::emit(Value chunks) {
  auto scores = [&](Value chunk, const Stage &stage) {
    auto isFirst = scf::IfOp::create(b, ptx.equal(roles.group, 1), /*withElseRegion=*/true);
    OpBuilder::InsertionGuard guard(b);
    for (unsigned which : {0, 1}) {
      b.setInsertionPoint((which ? isFirst.elseBlock() : isFirst.thenBlock())->getTerminator());
      roles.emitScores(chunk, which, &stage);
    }
  };
  if (roles.form.sharesScaled)
    return roles.forOwnChunks(chunks, [&](Value chunk, Stage stage) {
      roles.awaitWalked(chunk);
      scale(chunk, stage);
      ptx.arrive(roles.tilesFull(chunk, stage).first);
      // Who does not make the inverse has the time.
      roles.threads.when(ptx.equal(warpOf(), 4), [&] {
        roles.awaitTiles(chunk, stage);
        roles.threads.when(ptx.isElected(), [&] { roles.giveTiles(chunk, stage); });
      });
      scores(chunk, stage);
    });
  roles.forChunks(chunks, {}, [&](Value chunk, Stage stage, ValueRange) {
    ptx.await(roles.barrier(Loaded, stage.index), stage.phase);
    scale(chunk, stage);
    ptx.arrive(roles.barrier(Changed, stage.index));
    // What decays between references has one place.
    if (plan.references() > 1)
      ptx.await(roles.barrier(Changed, stage.index), stage.phase);
    roles.threads.when(roles.isOwn(chunk), [&] {
      describeEach(*b.getInsertionBlock(), roles.team);
      scores(chunk, stage);
    });
    return Values();
  });
}

llvm::SetVector<BlockArgument> RoleEmitter::ScaledTiles::leavesOf(const RolePlan &plan) {
  llvm::SetVector<BlockArgument> leaves;
  for (const MadeTile &tile : plan.scaled)
    leaves.insert_range(RolePlan::leavesOf(tile.rows));
  return leaves;
}

// Whether a kernel may have two references.
static bool canSplit(const RolePlan &plan, const RoleForm &form) {
  // What is added to the state after a product, or apart from it, would be relative to another one.
  bool isFirst = true;
  for (const ChainProduct &own : plan.products)
    if (own.kind == ChainProduct::Depth && own.chained == std::exchange(isFirst, false))
      return false;
  // Where both blocks scale all rows, walkers are slower if each of their launches copies more than four
  // inputs, and those who scale neither compute functions nor make four tiles while others sum.
  auto isFunction = [](const MadeTile &tile) { return !isa<BlockArgument>(tile.rows); };
  bool isWorth = copiedInputs(plan, form.phase).size() > 4 && llvm::none_of(plan.scaled, isFunction) &&
                 (plan.scaled.size() < 4 || plan.reductions.empty());
  return plan.ownSystem < 0 && (form.sharesScaled || isWorth);
}

bool RoleEmitter::ScaledTiles::canScale(const RolePlan &plan, const RoleForm &form) {
  if (plan.references() > 1 && !canSplit(plan, form))
    return false;
  // What comes next to a place of its own does not wait for outputs to leave it.
  if (form.sharesScaled && plan.outputPlace && plan.inputsOfScaled().contains(plan.outputPlace))
    return false;
  llvm::SetVector<BlockArgument> known = leavesOf(plan);
  return !form.sharesScaled || llvm::all_of(plan.reductions, [&](Operation *sum) {
    return llvm::all_of(RolePlan::leavesOf(sum->getOperand(0)),
                        [&](BlockArgument leaf) { return known.contains(leaf); });
  });
}

SmallVector<const MadeTile *> RoleEmitter::ScaledTiles::twinsOf(const RolePlan &plan) {
  SmallVector<const MadeTile *> twins;
  for (const MadeTile &tile : plan.scaled)
    if (plan.references() > 1 && tile.span != Span::Rest)
      twins.push_back(&tile);
  return twins;
}

int64_t RoleEmitter::ScaledTiles::twinIn(const RolePlan &plan, BlockArgument place) {
  SmallVector<const MadeTile *> all = twinsOf(plan);
  return llvm::find_if(all, [&](const MadeTile *tile) { return tile->place == place; }) - all.begin();
}

std::optional<int64_t> RoleEmitter::ScaledTiles::twinOfSystem(const RolePlan &plan) {
  if (!plan.system || twinsOf(plan).empty())
    return std::nullopt;
  auto readBy = [&](ArrayRef<Value> roots) {
    llvm::SetVector<int64_t> read;
    for (Operation *gram : plan.gramsOf(roots))
      read.insert(twinIn(plan, plan.asTile(cast<chunk::GramOp>(gram).getLhs())->input));
    return read;
  };
  SmallVector<Value> scores;
  for (const ScoreTile &tile : plan.scores)
    scores.push_back(tile.value);
  auto ofSystem = readBy({plan.system}), others = readBy(scores);
  for (int64_t own : ofSystem)
    if (!others.contains(own))
      return own;
  return std::nullopt;
}

// Rows of the later half that see tokens of theirs are relative to their own reference; the earlier half's
// have no sums there that anybody reads.
Pending RoleEmitter::ScaledTiles::product(const Stage &stage, BlockArgument read, BlockArgument written) {
  constexpr int64_t columns = tokensOfChunk / 2;
  SmallVector<Step> steps[2];
  Value lane = roles.freshLane(),
        rows = ptx.mul(ptx.add(ptx.mul(ptx.bits(roles.warp, 1), 16), ptx.bits(lane, 15)), rowBytes);
  Value twin = ptx.add(twinAt(twinIn(plan, read)), rows);
  auto side = [&](BlockArgument input, int64_t k, int64_t row) {
    int64_t bytes = k / 4 * roles.halfStride(input) + k % 4 * 32 + row * rowBytes;
    return ptx.advance(ptx.descriptor(roles.tileAt(stage, input), 0), bytes);
  };
  for (int64_t k = 0; k < plan.keys / 16; ++k) {
    steps[0].push_back({{side(read, k, 0)}, side(written, k, 0)});
    Value packet = ptx.exclusiveOr(ptx.add(ptx.shiftRight(lane, 4), k % 4 * 2), ptx.bits(lane, 7));
    Values left = ptx.loadMatrices(ptx.add(twin, ptx.mul(packet, 16)), k / 4 * halfOfTwin, false);
    steps[1].push_back({left, side(written, k, columns)});
  }
  Pending product;
  for (const auto &own : steps)
    llvm::append_range(product.entries, ptx.product(columns, {}, own, false, false).entries);
  return product;
}

// The number of a warp among those.
Value RoleEmitter::ScaledTiles::warpOf() { return ptx.add(ptx.mul(ptx.add(roles.group, -1), 4), roles.warp); }

// Sums are of what is copied.
void RoleEmitter::ScaledTiles::awaitSums(const Stage &stage) {
  if (roles.hasSums())
    ptx.await(roles.barrier(RowsRead, stage.index), stage.phase);
}

// What comes past a sequence's end is another one's, or none: zeros, of which follow zeros.
void RoleEmitter::ScaledTiles::clearPastEnd(Value chunk, const Stage &stage) {
  Value left = roles.tokensLeft(chunk);
  roles.threads.when(ptx.compare(arith::CmpIPredicate::slt, left, ptx.constant(plan.tokens)), [&] {
    describeRare(*b.getInsertionBlock());
    awaitSums(stage);
    int64_t lanes = plan.keys / 8;
    Value thread = ptx.add(ptx.mul(warpOf(), 32), roles.lane), zero = ptx.constant(0);
    Value first = ptx.add(left, ptx.shiftRight(thread, llvm::Log2_64(lanes)));
    Value packet = ptx.bits(thread, lanes - 1);
    llvm::SetVector<BlockArgument> read = leavesOf(plan);
    read.insert(plan.scalingLogs());
    roles.threads.forLoop(
        first, ptx.constant(plan.tokens), ptx.constant(32 * warps / lanes), {}, [&](Value row, ValueRange) {
          for (BlockArgument input : read) {
            Value at = ptx.add(roles.tileAt(stage, input), ptx.mul(row, rowBytes));
            at = ptx.add(at, ptx.mul(ptx.shiftRight(packet, 3), roles.halfStride(input)));
            ptx.store(ptx.add(at, ptx.mul(ptx.bits(packet, 7), 16)), 0, {zero, zero, zero, zero});
          }
          return Values();
        });
    ptx.meet(ptx.constant(meeting), 32 * warps);
  });
}

// Where a lane's row of 16 keys is, as matrices are loaded and stored.
Value RoleEmitter::ScaledTiles::placeIn(Value tiles, int64_t halfStride, Value group, Value row) {
  Value packet = ptx.add(ptx.mul(ptx.bits(group, 3), 2), ptx.shiftRight(roles.lane, 4));
  Value at = ptx.add(ptx.mul(row, rowBytes), ptx.mul(ptx.exclusiveOr(packet, ptx.bits(roles.lane, 7)), 16));
  return ptx.add(ptx.add(tiles, at), ptx.mul(ptx.shiftRight(group, 2), halfStride));
}

Value RoleEmitter::ScaledTiles::placeOf(const Stage &stage, BlockArgument input, Value group, Value row) {
  return placeIn(roles.tileAt(stage, input), roles.halfStride(input), group, row);
}

// The sums of `left` times 16 x 16 of the right, in eight keys each, one after the other.
Values RoleEmitter::ScaledTiles::times(ValueRange sums, const Values &left, ArrayRef<Value> right) {
  Values results;
  for (int64_t eight : {0, 1})
    llvm::append_range(results,
                       ptx.multiply16By8("bf16", sums.slice(4 * eight, 4), left, right.slice(2 * eight, 2)));
  return results;
}

// What decays between two references, for each key, as a binary logarithm for who scales and as it is for the
// chain. A warp has 16 keys. With them all have read what others scale in place, and what lies where rows
// that are there a second time will.
void RoleEmitter::ScaledTiles::sumMiddle(const Stage &stage) {
  Value lane = roles.lane, group = warpOf();
  roles.threads.when(ptx.below(group, ptx.constant(plan.keys / 16)), [&] {
    Values ones(4, ptx.constant(int32_t(ptx.bitsOf(1) | ptx.bitsOf(1) << 16))), sums(8, ptx.number(0));
    for (int64_t first : {16, 32}) {
      Value at = placeOf(stage, plan.scalingLogs(), group, ptx.add(ptx.bits(lane, 15), first));
      sums = times(sums, ones, ptx.loadMatrices(at, 0, true));
    }
    Value isFirst = ptx.equal(ptx.shiftRight(lane, 2), 0); // all rows are the same
    for (int64_t eight : {0, 1}) {
      Value key = ptx.add(ptx.mul(group, 16), ptx.add(ptx.mul(ptx.bits(lane, 3), 2), 8 * eight));
      Values logs, decays;
      for (Value sum : ArrayRef(sums).slice(4 * eight, 2)) {
        logs.push_back(ptx.multiply(sum, ptx.number(llvm::numbers::log2e)));
        decays.push_back(ptx.exp2(logs.back()));
      }
      ptx.store(middleAt(key), 0, logs, /*relaxed=*/false, isFirst);
      ptx.store(ptx.add(placeOf(stage, ptx.constant(1)), ptx.mul(key, 4)), 0, decays, false, isFirst);
    }
  });
  ptx.meet(ptx.constant(meeting), 32 * warps);
}

void RoleEmitter::ScaledTiles::scale(Value chunk, const Stage &stage) {
  clearPastEnd(chunk, stage);
  if (plan.references() > 1)
    sumMiddle(stage);
  Value lane = roles.lane, warp = warpOf(), zero = ptx.constant(0);
  BlockArgument logs = plan.scalingLogs();
  // A warp has 16 tokens before or behind a reference, and every second 16 keys. With one reference those are
  // near it, or far; with two they are in the earlier or later half. (Those far, and the later half's, have
  // more to do: each quarter of the processor has as many of them.)
  bool isSplit = plan.references() > 1, isLate = chunk::isLate(plan.scaling);
  auto isOne = [&](int64_t bit) { return ptx.equal(ptx.bits(ptx.shiftRight(warp, bit), 1), 1); };
  Value isBehind = isOne(0), isFar = isOne(2);
  auto rowOf = [&](int64_t before, int64_t behind) {
    return ptx.add(ptx.choose(isBehind, ptx.constant(behind), ptx.constant(before)), ptx.bits(lane, 15));
  };
  Value rowNear = isSplit ? rowOf(0, 16) : rowOf(16, 32),
        rowOwn = ptx.choose(isFar, isSplit ? rowOf(32, 48) : rowOf(0, 48), rowNear);
  auto load = [&](BlockArgument input, Value group, Value row, bool transposed) {
    return ptx.loadMatrices(placeOf(stage, input, group, row), 0, transposed);
  };
  // Logarithms count from the reference on: what decays later, and what has decayed before. What is read has
  // decayed by a later token's own decay, not by an earlier one's, if it has at all. A triangle's blocks of
  // 8 x 8 are itself, all or nothing.
  Value row = ptx.shiftRight(lane, 2), column = ptx.mul(ptx.bits(lane, 3), 2);
  uint32_t one = ptx.bitsOf(1);
  Value all = ptx.constant(int32_t(one | one << 16));
  auto triangle = [&](Span span) {
    using Order = arith::CmpIPredicate;
    bool until = span == Span::Until;
    Value block = zero;
    for (int64_t odd : {0, 1}) {
      Value other = ptx.add(column, odd);
      Value counts = ptx.choose(isBehind, ptx.compare(until ? Order::ult : Order::ule, other, row),
                                ptx.compare(until ? Order::uge : Order::ugt, other, row));
      block = ptx.add(block, ptx.choose(counts, ptx.constant(int32_t(one << 16 * odd)), zero));
    }
    return Values{block, ptx.choose(isBehind, all, zero), ptx.choose(isBehind, zero, all), block};
  };
  // Left sides are four registers in a row. Each has its own: the assembler would move those there that it
  // knows to be the same.
  auto apart = [&](Values left) {
    for (auto [i, own] : llvm::enumerate(left))
      own = ptx.add(own, ptx.shiftRight(lane, 5 + i));
    return left;
  };
  Values ones = apart(Values(4, ptx.choose(isFar, all, zero)));
  Values until = apart(triangle(Span::Until)), through = apart(triangle(Span::Through));
  Value unit = ptx.choose(isBehind, ptx.number(llvm::numbers::log2e), ptx.number(-llvm::numbers::log2e));
  auto scaled = [&](Values sums, Value unit) {
    for (Value &sum : sums)
      sum = ptx.multiply(sum, unit);
    return sums;
  };
  // What the chunk's first and last 16 tokens decay by, from or to a reference.
  Value isEnd = ptx.compare(arith::CmpIPredicate::eq, row, ptx.choose(isBehind, ptx.constant(7), zero));
  Value isOuter = isSplit ? ptx.compare(arith::CmpIPredicate::eq, isFar, isBehind) : isFar;
  isEnd = arith::AndIOp::create(b, isEnd, isOuter);
  Value endsAt = placeOf(stage, ptx.choose(isBehind, ptx.constant(plan.references()), zero));
  auto body = [&](Value group, ValueRange carried) {
    Values own = load(logs, group, rowOwn, true);
    // What of those near decays is summed before those far; or all between two references.
    Values before(8, ptx.number(0)), between;
    if (!isSplit)
      before = times(before, ones, load(logs, group, rowNear, true));
    for (int64_t eight = 0; isSplit && eight < 2; ++eight) {
      Value key = ptx.add(ptx.mul(group, 16), ptx.add(column, 8 * eight));
      Values logs = ptx.loadFloats(middleAt(key), 0, 2);
      between.append({logs[0], logs[1], logs[0], logs[1]});
    }
    llvm::DenseMap<Value, Values> pairs;
    for (BlockArgument input : leavesOf(plan))
      pairs[input] = load(input, group, rowOwn, false);
    Values next(carried); // of each sum that of the lane's two rows
    for (auto [i, op] : llvm::enumerate(roles.sumsOfWalkers()))
      for (unsigned e = 0; e < 8; ++e) {
        Value entry = roles.vectorEntry(op->getOperand(0), [&](Value leaf) -> Value {
          auto known = pairs.find(leaf);
          return known == pairs.end() ? Value() : ptx.unpack(known->second[e / 2])[e % 2];
        });
        Value &sum = next[2 * i + e / 2 % 2];
        sum = ptx.sum(sum, entry);
      }
    Values ofUntil = scaled(times(before, until, own), unit),
           ofThrough = scaled(times(before, through, own), unit);
    // Where scaled rows take the logarithms' place, all have read these.
    if (plan.scaledIn(logs) && !isSplit)
      ptx.meet(ptx.constant(meeting), 32 * warps);
    // Rows of all tiles, or of those that are read, that far from their reference and as much more.
    auto rows = [&](bool readAlone, ValueRange more) {
      SmallVector<Values> made(plan.scaled.size());
      for (int64_t eight : {0, 1}) {
        llvm::DenseMap<int, Values> scales;
        for (auto [tile, packed] : llvm::zip(plan.scaled, made)) {
          if (readAlone && tile.span == Span::Rest)
            continue;
          Values &scale = scales[int(tile.span)], entries;
          // What is written before a late decay decays with its token's.
          bool isUntil = tile.span == Span::Until || (tile.span == Span::Rest && isLate);
          for (int64_t e = 4 * eight; scale.size() < 4; ++e) {
            Value sum = (isUntil ? ofUntil : ofThrough)[e];
            scale.push_back(ptx.exp2(tile.span == Span::Rest ? ptx.negative(sum)
                                     : more.empty()          ? sum
                                                             : ptx.sum(sum, more[e])));
          }
          for (unsigned e = 0; e < 4; ++e) {
            Value entry = roles.vectorEntry(tile.rows, [&](Value leaf) -> Value {
              auto input = dyn_cast<BlockArgument>(leaf);
              return input && pairs.count(input) ? ptx.unpack(pairs[input][2 * eight + e / 2])[e % 2]
                                                 : Value();
            });
            entries.push_back(ptx.multiply(entry, scale[e]));
          }
          for (unsigned e : {0, 2})
            packed.push_back(ptx.packFinite(entries[e], entries[e + 1]));
        }
      }
      return made;
    };
    SmallVector<Values> made = rows(/*readAlone=*/false, {});
    for (int64_t eight : {0, 1}) {
      Values ends;
      for (int64_t key : {0, 1}) {
        Value first = ptx.negative(ofUntil[4 * eight + key]), last = ofThrough[4 * eight + 2 + key];
        ends.push_back(ptx.exp2(ptx.choose(isBehind, last, first)));
      }
      Value at = ptx.add(ptx.mul(group, 16 * 4), ptx.mul(ptx.add(column, 8 * eight), 4));
      ptx.store(ptx.add(endsAt, at), 0, ends, /*relaxed=*/false, isEnd);
    }
    awaitSums(stage);
    for (auto [tile, packed] : llvm::zip(plan.scaled, made)) {
      Value at = placeOf(stage, tile.place, group, rowOwn);
      if (int64_t twin = twinIn(plan, tile.place); isSplit && tile.span != Span::Rest)
        at = ptx.choose(isFar, placeIn(twinAt(twin), halfOfTwin, group, ptx.bits(rowOwn, 31)), at);
      ptx.storeMatrices(at, 0, packed, false);
    }
    if (isSplit)
      roles.threads.when(isFar, [&] {
        for (auto [tile, packed] : llvm::zip(plan.scaled, rows(/*readAlone=*/true, between)))
          if (!packed.empty())
            ptx.storeMatrices(placeOf(stage, tile.place, group, rowOwn), 0, packed, false);
      });
    return next;
  };
  int64_t groups = plan.keys / 16, together = 2;
  Value part = ptx.bits(ptx.shiftRight(warp, 1), 1);
  auto loop = roles.threads.forLoop(part, roles.opaque(groups), ptx.constant(together),
                                    Values(2 * roles.sumsOfWalkers().size(), ptx.number(0)), body);
  describeTrips(loop, groups / together);
  // Who makes numbers of them adds both parts.
  for (unsigned i = 0; i < loop.getNumResults(); ++i) {
    Value sum = loop.getResult(i);
    for (int64_t distance : {1, 2})
      sum = ptx.sum(sum, ptx.exchange(sum, distance));
    Value token = ptx.add(ptx.bits(rowOwn, 48), ptx.add(row, i % 2 * 8));
    Value at = ptx.add(roles.sumsOf(chunk, plan.reductions[i / 2]), ptx.mul(part, slotBytes));
    ptx.store(ptx.add(at, ptx.mul(token, 4)), 0, {sum}, /*relaxed=*/false, ptx.equal(ptx.bits(lane, 3), 0));
  }
  ptx.fenceProxy();
}

// Within the chunk the state is relative to its reference.
FailureOr<Values> RoleEmitter::ScaledTiles::overChunk(ChainState &state, Value chunk, ValueRange entries) {
  roles.awaitTiles(chunk, state.stage);
  FailureOr<Values> next = roles.emitChunkOf(state, chunk, decayed(state.stage, 0, entries));
  if (failed(next))
    return failure();
  Values after = decayed(state.stage, plan.references(), *next);
  roles.leaveChunk(state);
  return after;
}

Pending RoleEmitter::ScaledTiles::overHalves(ChainState &state, int64_t columns) {
  constexpr size_t all = tokensOfChunk / 16;
  SmallVector<Issue, 1> written = std::exchange(state.written, {});
  bool byDepth = llvm::any_of(written, [](const Issue &issue) { return issue.byDepth; });
  auto product = [&](ValueRange start, bool later) {
    SmallVector<Step> own;
    for (const Issue &issue : written)
      for (auto [k, step] : llvm::enumerate(issue.steps))
        if (later == (k % all >= all / 2))
          own.push_back(step);
    return ptx.product(columns, start, own, byDepth, /*rightByDepth=*/true);
  };
  Values earlier = ptx.await(0, product(written.front().start, false))[0];
  return product(ptx.pin(decayed(state.stage, 1, earlier)), true);
}

Values RoleEmitter::ScaledTiles::decayed(const Stage &stage, int64_t part, ValueRange entries) {
  Values results(entries);
  Value at = ptx.add(placeOf(stage, ptx.constant(part)), ptx.mul(ptx.bits(roles.lane, 3), 8));
  for (size_t e = 0; e < results.size(); e += 4) {
    Values pair = ptx.loadFloats(at, e / 4 * 32, 2);
    for (size_t i = 0; i < 4; ++i)
      results[e + i] = ptx.multiply(results[e + i], pair[i % 2]);
  }
  return results;
}
