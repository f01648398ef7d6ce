// Rows times what decays between the chunk's middle and their token, in place, 16 tokens by 16 keys at a
// time.
//
// From the middle on logarithms are summed by products with triangles of ones: of each half of a chunk those
// of 16 tokens near the middle, and of 16 behind these, to which all of the near ones are added. They are
// bf16, so that sums are exact. Sums lie as matrices do that are loaded from tiles and stored to them.
//
// Each block of a team scales the rows of its own chunks, every second one, and gives them to the other, where
// there is room for two places for its own and one for the other's. Else each scales all rows: with two places
// the exchange would be what is waited for.
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
    roles.threads.when(roles.isOwn(chunk), [&] {
      describeEach(*b.getInsertionBlock(), roles.team);
      scores(chunk, stage);
    });
    return Values();
  });
}

// The number of a warp among those.
Value RoleEmitter::ScaledTiles::warpOf() { return ptx.add(ptx.mul(ptx.add(roles.group, -1), 4), roles.warp); }

// Sums are of what is copied.
void RoleEmitter::ScaledTiles::awaitSums(Value chunk, const Stage &stage) {
  if (!roles.hasSums())
    return;
  auto [index, phase] = roles.form.sharesScaled ? roles.ownPlace(chunk) : std::pair(stage.index, stage.phase);
  ptx.await(roles.barrier(RowsRead, index), phase);
}

// What comes past a sequence's end is another one's, or none: zeros, of which follow zeros.
void RoleEmitter::ScaledTiles::clearPastEnd(Value chunk, const Stage &stage) {
  Value left = roles.tokensLeft(chunk);
  roles.threads.when(ptx.compare(arith::CmpIPredicate::slt, left, ptx.constant(plan.tokens)), [&] {
    describeRare(*b.getInsertionBlock());
    awaitSums(chunk, stage);
    int64_t lanes = plan.keys / 8;
    Value thread = ptx.add(ptx.mul(warpOf(), 32), roles.lane), zero = ptx.constant(0);
    Value first = ptx.add(left, ptx.shiftRight(thread, llvm::Log2_64(lanes)));
    Value packet = ptx.bits(thread, lanes - 1);
    llvm::SetVector<BlockArgument> read = leaves();
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

llvm::SetVector<BlockArgument> RoleEmitter::ScaledTiles::leaves() const {
  llvm::SetVector<BlockArgument> leaves;
  for (const MadeTile &tile : plan.scaled)
    leaves.insert_range(RolePlan::leavesOf(tile.rows));
  return leaves;
}

void RoleEmitter::ScaledTiles::scale(Value chunk, const Stage &stage) {
  clearPastEnd(chunk, stage);
  Value lane = roles.lane, warp = warpOf(), zero = ptx.constant(0);
  BlockArgument logs = plan.scalingLogs();
  // A warp has the tokens near the middle, or those behind them, of one half, and of some 16 keys. (Those
  // behind have more to do: each quarter of the processor has as many of them.)
  auto isOne = [&](int64_t bit) { return ptx.equal(ptx.bits(ptx.shiftRight(warp, bit), 1), 1); };
  Value isLater = isOne(0), isFar = isOne(2);
  auto rowOf = [&](int64_t inEarlier, int64_t inLater) {
    return ptx.add(ptx.choose(isLater, ptx.constant(inLater), ptx.constant(inEarlier)), ptx.bits(lane, 15));
  };
  Value rowNear = rowOf(16, 32), rowOwn = ptx.choose(isFar, rowOf(0, 48), rowNear);
  auto placeOf = [&](BlockArgument input, Value group, Value row) {
    Value packet = ptx.add(ptx.mul(ptx.bits(group, 3), 2), ptx.shiftRight(lane, 4));
    Value at = ptx.add(ptx.mul(row, rowBytes), ptx.mul(ptx.exclusiveOr(packet, ptx.bits(lane, 7)), 16));
    return ptx.add(ptx.add(roles.tilesOf(stage, input), at),
                   ptx.mul(ptx.shiftRight(group, 2), roles.halfStride(input)));
  };
  auto load = [&](BlockArgument input, Value group, Value row, bool transposed) {
    return ptx.loadMatrices(placeOf(input, group, row), roles.tileOffset(input), transposed);
  };
  // Logarithms count from the middle on: what decays later, and what has decayed before. What is read has
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
      Value counts = ptx.choose(isLater, ptx.compare(until ? Order::ult : Order::ule, other, row),
                                ptx.compare(until ? Order::uge : Order::ugt, other, row));
      block = ptx.add(block, ptx.choose(counts, ptx.constant(int32_t(one << 16 * odd)), zero));
    }
    return Values{block, ptx.choose(isLater, all, zero), ptx.choose(isLater, zero, all), block};
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
  Value unit = ptx.choose(isLater, ptx.number(llvm::numbers::log2e), ptx.number(-llvm::numbers::log2e));
  // Of each left side both products, of eight keys each, one after the other.
  auto times = [&](Values sums, const Values &left, const Values &right) {
    Values results;
    for (int64_t eight : {0, 1})
      llvm::append_range(results, ptx.multiply16By8("bf16", ArrayRef(sums).slice(4 * eight, 4), left,
                                                    ArrayRef(right).slice(2 * eight, 2)));
    return results;
  };
  Value isEnd = ptx.compare(arith::CmpIPredicate::eq, row, ptx.choose(isLater, ptx.constant(7), zero));
  isEnd = arith::AndIOp::create(b, isFar, isEnd);
  Value halfAt = this->placeOf(stage, ptx.choose(isLater, ptx.constant(1), zero));
  auto body = [&](Value group, ValueRange) {
    Values near = load(logs, group, rowNear, true), own = load(logs, group, rowOwn, true);
    llvm::DenseMap<Value, Values> pairs;
    for (BlockArgument input : leaves())
      pairs[input] = load(input, group, rowOwn, false);
    Values before = times(Values(8, ptx.number(0)), ones, near);
    Values ofUntil = times(before, until, own), ofThrough = times(before, through, own);
    // Where scaled rows take the logarithms' place, all have read these.
    if (plan.scaledIn(logs))
      ptx.meet(ptx.constant(meeting), 32 * warps);
    SmallVector<Values> made(plan.scaled.size());
    for (int64_t eight : {0, 1}) {
      llvm::DenseMap<int, Values> sums, scales;
      for (auto [span, both] : {std::pair(Span::Until, ofUntil), std::pair(Span::Through, ofThrough)})
        for (Value sum : ArrayRef(both).slice(4 * eight, 4))
          sums[int(span)].push_back(ptx.multiply(sum, unit));
      for (const MadeTile &tile : plan.scaled)
        if (Values &scale = scales[int(tile.span)]; scale.empty())
          for (Value sum : sums[int(tile.span == Span::Rest ? Span::Through : tile.span)])
            scale.push_back(ptx.exp2(tile.span == Span::Rest ? ptx.negative(sum) : sum));
      llvm::DenseMap<Value, Values> entries;
      for (BlockArgument input : leaves())
        for (Value pair : ArrayRef(pairs[input]).slice(2 * eight, 2))
          llvm::append_range(entries[input], ptx.unpack(pair));
      for (auto [tile, pairs] : llvm::zip(plan.scaled, made)) {
        Values scaled;
        for (unsigned e = 0; e < 4; ++e) {
          Value entry = roles.vectorEntry(tile.rows, [&](Value leaf) -> Value {
            auto input = dyn_cast<BlockArgument>(leaf);
            return input && entries.count(input) ? entries.lookup(input)[e] : Value();
          });
          scaled.push_back(ptx.multiply(entry, scales[int(tile.span)][e]));
        }
        pairs.push_back(ptx.pack(scaled[0], scaled[1]));
        pairs.push_back(ptx.pack(scaled[2], scaled[3]));
      }
      // What all of the half decays by: of its last token, or of its first.
      Value at = ptx.add(ptx.mul(group, 16 * 4), ptx.mul(ptx.add(column, 8 * eight), 4));
      Values ends;
      for (unsigned key : {0, 1})
        ends.push_back(ptx.exp2(ptx.choose(isLater, sums[int(Span::Through)][2 + key],
                                           ptx.negative(sums[int(Span::Until)][key]))));
      ptx.store(ptx.add(halfAt, at), 0, ends, /*relaxed=*/false, isEnd);
    }
    awaitSums(chunk, stage);
    for (auto [tile, pairs] : llvm::zip(plan.scaled, made))
      ptx.storeMatrices(placeOf(tile.place, group, rowOwn), roles.tileOffset(tile.place), pairs, false);
    return Values();
  };
  int64_t groups = plan.keys / 16, together = 2;
  auto loop = roles.threads.forLoop(ptx.bits(ptx.shiftRight(warp, 1), 1), roles.opaque(groups),
                                    ptx.constant(together), {}, body);
  describeTrips(loop, groups / together);
  ptx.fenceProxy();
}

Values RoleEmitter::ScaledTiles::decayed(const Stage &stage, int64_t half, ValueRange entries) {
  Values results(entries);
  Value at = ptx.add(placeOf(stage, ptx.constant(half)), ptx.mul(ptx.bits(roles.lane, 3), 8));
  for (size_t e = 0; e < results.size(); e += 4) {
    Values pair = ptx.loadFloats(at, e / 4 * 32, 2);
    for (size_t i = 0; i < 4; ++i)
      results[e + i] = ptx.multiply(results[e + i], pair[i % 2]);
  }
  return results;
}
