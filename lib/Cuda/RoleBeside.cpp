// Walkers of channels beside the chain, in one launch: where no system is to be solved, nothing goes through
// the workspace. The chain finds tiles where the walkers leave them, in the places of their inputs.
//
// The registers of a block hold the walkers, with all that they keep of their channels, and one warpgroup of
// the chain, which has all of a head's state and goes on with one slab of it after the other. So the walkers
// make scores of their sums, too: what a warp adds up is 8 columns of each block of 16, those that its
// warpgroup keeps.
//
// Where a head has two slabs, two blocks that are a team have one each, and walk every second chunk for both:
// tiles and scores are copied from one block's memory to the other's. So all processors walk where there are
// fewer heads than processors. A block has two places for chunks of its own, of which one is walked while the
// other is loaded, and one for what comes from the other block. Walkers are held up by nothing but the place
// of the chunk before the last one, which both chains have to have done with.
#include "lib/Cuda/RoleScaledTiles.h"
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool RolePlan::canWalkBeside() const {
  // What a block's start gives is read before all else: a product more in turn, for which there are no
  // registers.
  return decay && abreast == 1 && !grams.empty() && !program.getBlock() && !held() && !rowDecay && !system &&
         (!starts() || *starts() <= tokensOfWarp) && ownSystem < 0 && !keepsRests && states == 1 &&
         steps == 1 && countOutputs() <= 1 && keys <= mostKeysBeside && independent <= 2 * rowsOfSlab;
}

bool RolePlan::canShareWalk() const {
  return canWalkBeside() && leavesTimeForTables() && llvm::none_of(neededInputs, [&](BlockArgument input) {
           return isForChain(input) && (isForScores(input) || isPlace(input));
         });
}

bool RolePlan::leavesTimeForTables() const {
  return (reductions.empty() || walkersSum()) && isa<BlockArgument>(logs()) && !isOfParams(logs()) &&
         !signedFactors() && !masksLogs();
}

// Adds what the other warpgroup has left to what was kept of the sums, of all products: those of the blocks
// before the warp's own, and of that one behind them.
void RoleEmitter::addKept(ScoreState &state, ArrayRef<Values> kept) {
  Value own = ptx.add(partsOfWarp(state), ptx.mul(state.walker, 512));
  SmallVector<Value> places;
  for (int64_t column = 0; column < 4; ++column)
    places.push_back(ptx.add(
        own, ptx.mul(column < 3 ? arith::MinUIOp::create(b, warp, ptx.constant(column)).getResult() : warp,
                     1024)));
  state.sums.clear();
  for (auto [i, gram] : llvm::enumerate(plan.grams))
    for (auto [place, sums] : llvm::zip(places, kept))
      for (auto [left, sum] :
           llvm::zip(ptx.loadFloats(place, partsAt(gram), 4), ArrayRef(sums).slice(4 * i, 4)))
        state.sums[gram].push_back(ptx.sum(left, sum));
}

// Stores the half that is this warpgroup's of each of a tile's blocks up to the diagonal.
void RoleEmitter::storeHalves(ScoreState &whole, unsigned which) {
  ScoreState state = whole; // places move from block to block
  const ScoreTile &tile = plan.scores[which];
  std::optional<PlainScore> plain = asPlain(tile);
  Value columns = ptx.add(state.columns, ptx.mul(state.walker, 32));
  Value rowLessColumn = arith::SubIOp::create(b, state.rowLessColumn, ptx.mul(state.walker, 8));
  Value lane = freshLane(), row = ptx.shiftRight(lane, 2), swizzle = ptx.bits(ptx.shiftRight(row, 1), 3);
  Value rows = ptx.add(ptx.add(state.buffer, ptx.mul(warp, 16 * rowBytes / 2)), ptx.mul(row, rowBytes / 2));
  rows = ptx.add(rows, ptx.mul(ptx.bits(lane, 3), 4));
  auto store = [&](int64_t block, Value number) {
    bool onDiagonal = block == 3;
    Value more = ptx.add(number, -block);
    state.block = block;
    state.columns = ptx.add(columns, ptx.mul(more, 64));
    state.rowLessColumn = rowLessColumn;
    state.columnValues.clear();
    Values entries;
    if (plain) {
      entries = onDiagonal ? scoresOn(state, tile, *plain) : scoresOff(state, tile, *plain);
    } else {
      state.rowLessColumn = arith::SubIOp::create(b, rowLessColumn, ptx.mul(more, 16));
      for (unsigned e = 0; e < 4; ++e)
        entries.push_back(score(state, tile, e));
    }
    Value unit = ptx.add(ptx.mul(ptx.bits(number, 1), 2), state.walker);
    Value strip = ptx.exclusiveOr(ptx.shiftRight(number, 1), ptx.constant(1));
    Value at =
        ptx.add(ptx.add(rows, ptx.mul(ptx.exclusiveOr(unit, swizzle), 16)), ptx.mul(strip, stripBytes));
    for (int64_t eight : {0, 1})
      ptx.store(at, scoreOffset(which) + eight * 8 * rowBytes / 2,
                {ptx.pack(entries[2 * eight], entries[2 * eight + 1])});
  };
  store(3, warp);
  for (int64_t block = 0; block < 3; ++block)
    threads.when(ptx.below(ptx.constant(block), warp), [&] { store(block, ptx.constant(block)); });
}

// Makes the chunk's scores of what the walkers have summed, and gives them to the chain.
void RoleEmitter::scoreBeside(const ScoreState &walk, ArrayRef<Values> kept) {
  ScoreRole role;
  for (unsigned tile = 0; tile < plan.scores.size(); ++tile)
    role.tiles.push_back(tile);
  ScoreState state = walk;
  state.role = &role;
  state.entries = 4;
  std::tie(state.index, state.phase) = bufferOf(state.chunk, state.stage);
  state.buffer = ptx.add(ptx.add(base, scoresAt), ptx.mul(state.index, scoreBytes));
  state.numbers = state.stage.rows;
  Value lane = freshLane(), row = ptx.add(ptx.mul(warp, 16), ptx.shiftRight(lane, 2));
  state.ownRows = ptx.add(state.stage.rows, ptx.mul(row, 4));
  state.columns = ptx.add(state.stage.rows, ptx.mul(ptx.bits(lane, 3), 8));
  addKept(state, kept);
  awaitPlace(state);
  // Walkers of a team are not held up by the ring of numbers; by now the place's last ones are done with.
  if (!hasSums())
    ptx.await(barrier(Full, state.stage.index), state.stage.phase);
  collectRows(state);
  for (unsigned tile : role.tiles)
    storeHalves(state, tile);
  ptx.fenceProxy();
  meetWalkers();
  threads.when(ptx.equal(ptx.add(ptx.mul(state.walker, 128), thread), 0), [&] {
    ptx.arrive(barrier(ScoresFull, state.index));
    giveScores(state.index, role);
  });
  if (partsInTables())
    ptx.arrive(barrier(TablesEmpty, tablesOf(state.chunk).index));
}

// Gives the tiles of a chunk that is this block's, with what decays in it, to the other block of its team,
// which has one place for what this one walks.
void RoleEmitter::giveTiles(Value chunk, Stage stage) {
  Value before = ptx.add(chunk, -team), tilesThere = barrier(TilesFull, ptx.constant(ownPlaces));
  threads.when(ptx.compare(arith::CmpIPredicate::sge, before, ptx.constant(0)), [&] {
    auto [index, phase] = ownPlace(before);
    ptx.await(barrier(WalkedEmpty, index), phase);
  });
  Value place = ptx.add(base, walkedAt + ownPlaces * walkedBytes);
  forPeers([&](Value other) {
    Value there = ptx.inBlock(tilesThere, other);
    auto copy = [&](Value to, Value from, int64_t bytes) {
      ptx.copyThere(ptx.inBlock(to, other), from, bytes, there);
    };
    int64_t sumBytes = sumsOfWalkers().size() * sumParts * slotBytes;
    auto copySums = [&] {
      for (Operation *sum : sumsOfWalkers())
        copy(sumsIn(ptx.constant(ownPlaces), sum), sumsOf(chunk, sum), sumParts * slotBytes);
    };
    if (plan.scaling) { // what decays lies behind the tiles
      int64_t bytes = scalesAt + ScaledTiles::bytesOfParts(plan);
      ptx.arriveThereExpecting(there, bytes + sumBytes);
      copy(place, stage.walked, bytes);
      return copySums();
    }
    Value wholes = wholesOf(chunk, stage),
          wholesThere = ptx.add(base, wholesAt() + (ownPlaces + 1) * 4 * plan.keys);
    ptx.arriveThereExpecting(there, walkedBytes + 4 * plan.keys + sumBytes);
    copy(place, stage.walked, walkedBytes); // tiles have taken the inputs' places
    copy(wholesThere, wholes, 4 * plan.keys);
    copySums();
  });
}

// The barrier of a chunk's tiles, and its phase: of the place where they lie.
std::pair<Value, Value> RoleEmitter::tilesFull(Value chunk, Stage stage) {
  if (!form.sharesWalk())
    return {barrier(plan.scaling ? Changed : TilesFull, stage.index), stage.phase};
  auto [index, phase] = ownPlace(chunk);
  Value own = isOwn(chunk);
  Value ofOther = ptx.bits(arith::DivUIOp::create(b, chunk, ptx.constant(team)), 1);
  return {barrier(TilesFull, ptx.choose(own, index, ptx.constant(ownPlaces))),
          ptx.choose(own, phase, ofOther)};
}

void RoleEmitter::awaitTiles(Value chunk, Stage stage) {
  auto [full, phase] = tilesFull(chunk, stage);
  ptx.await(full, phase);
}
