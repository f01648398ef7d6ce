// Records of chunks in the workspace: what one launch prepares and the next, the chain, begins with.
//
// A record is what the chain would find in shared memory if one block did both: made tiles, scores, the
// inverse, what decays in the chunk, numbers per token. So it is copied as it lies, swizzled, and the chain's
// loader puts its parts where its own tiles are.
#include "lib/Cuda/Chunked.h"
#include "lib/Cuda/Roles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The chain's memory: a ring of tiles, with the scores and the numbers of their chunks.
void RoleEmitter::layOutChain(int64_t outputBytes) {
  constexpr int64_t numbersBytes = 1024;
  int64_t others = outputBytes + Barriers * barrierPitch + beginBytes + functionBytes() + 256;
  auto count = [&] {
    int64_t each = stageBytes + scoreBytes + plan.wholeBytes() + numbersBytes;
    return std::clamp<int64_t>((threads.sharedLimit - others - earlyBytes) / each, 1, stages);
  };
  // Where there is room for one chunk, the tiles that are read first are loaded while the chunk before goes
  // on.
  if (count() == 1) {
    placeTiles(/*apart=*/true);
    earlyPlaces = earlyBytes ? 1 : 0;
  }
  stages = count();
  buffers = stages;
  earlyAt = stages * stageBytes;
  scoresAt = earlyAt + earlyBytes;
  inverseAt = scoresAt + scoreOffset(plan.scores.size());
  outputsAt = scoresAt + stages * scoreBytes;
  tablesAt = outputsAt + outputBytes;
  barriersAt = tablesAt + stages * plan.wholeBytes();
  beginAt = barriersAt + Barriers * barrierPitch;
  vectorsAt = llvm::alignTo(beginAt + beginBytes, 16);
  functionsAt = vectorsAt + vectorBytes();
  slotsAt = llvm::alignTo(functionsAt + functionBytes(), 256);
}

// Call `body` for each part of a record, with where it is in shared memory: first tiles, then all else.
void RoleEmitter::forTiles(Stage stage, bool early, RecordPart body) {
  int64_t offset = 0;
  for (const MadeTile &tile : plan.made) {
    int64_t bytes = rowBytes * plan.rowsOf(tile), first = rowBytes * rowsBefore(tile);
    for (int64_t half = 0; half < plan.keys / 64; ++half, offset += bytes)
      if (isEarly(tile.place) == early)
        body(offset, ptx.add(tileAt(stage, tile.place), first + half * halfStride(tile.place)), bytes);
  }
}

void RoleEmitter::forScores(Value chunk, Stage stage, Value buffer, RecordPart body) {
  int64_t offset = madeBytes();
  auto add = [&](Value address, int64_t bytes) {
    body(offset, address, bytes);
    offset += bytes;
  };
  Value scores = ptx.add(ptx.add(base, scoresAt), ptx.mul(buffer, scoreBytes));
  SmallVector<std::pair<int64_t, int64_t>> pieces; // first and end
  auto piece = [&](int64_t first, int64_t end) {
    if (!pieces.empty() && pieces.back().second == first)
      pieces.back().second = end;
    else
      pieces.push_back({first, end});
  };
  if (scoreBytes && !inStrips())
    piece(0, scoreBytes);
  for (unsigned tile = 0; inStrips() && tile < plan.scores.size(); ++tile)
    piece(scoreOffset(tile) + stripBytes / 2, scoreOffset(tile) + tileBytes);
  if (int64_t inverse = scoreOffset(plan.scores.size()); inStrips() && plan.system) {
    piece(inverse, inverse + stripBytes / 2);
    piece(inverse + stripBytes, inverse + tileBytes);
  }
  if (inStrips() && plan.ownSystem >= 0)
    piece(ownLeavesAt(), ownLeavesAt() + ownLeavesBytes());
  for (auto [first, end] : pieces)
    add(ptx.add(scores, first), end - first);
  add(wholesOf(chunk, stage), plan.wholeBytes());
  for (auto [i, slot] : llvm::enumerate(slotsInRecord()))
    add(ptx.add(stage.rows, i * slotPitch()), bytesInRecord(slot));
}

// A lane's place in a block of 16 x 16 of a strip whose column is even.
Value RoleEmitter::laneInStrip() {
  Value lane = freshLane();
  Value unit = ptx.exclusiveOr(ptx.shiftRight(lane, 4), ptx.bits(ptx.shiftRight(lane, 1), 3));
  return ptx.add(ptx.mul(ptx.bits(lane, 15), 64), ptx.mul(unit, 16));
}

// The same of any block of a tile, by its row and column among the blocks.
Value RoleEmitter::blockInStrip(Value laneAt, Value row, Value column, bool ofInverse) {
  Value strip = ptx.shiftRight(column, 1);
  if (!ofInverse)
    strip = ptx.exclusiveOr(strip, ptx.constant(1));
  return ptx.add(ptx.add(ptx.mul(strip, stripBytes), ptx.mul(row, 1024)),
                 ptx.exclusiveOr(laneAt, ptx.mul(ptx.bits(column, 1), 32)));
}

// Where 16 bytes of scores are, of those of two blocks of 16 tokens: their row there, and which half of it.
std::pair<Value, int64_t> RoleEmitter::scorePlace(Value row, Value half, int64_t seer, int64_t seen) {
  int64_t inRow = inStrips() ? seen % 2 * 2 : seen * 2;
  Value swizzle = inStrips() ? ptx.bits(ptx.shiftRight(row, 1), 3) : ptx.bits(row, 7);
  Value unit = ptx.exclusiveOr(ptx.add(half, inRow), swizzle);
  int64_t bytes = inStrips() ? rowBytes / 2 : rowBytes;
  int64_t strip = inStrips() ? stripAt(seen / 2, /*ofInverse=*/false) : 0;
  return {ptx.add(ptx.mul(row, bytes), ptx.mul(unit, 16)), strip + seer * 16 * bytes};
}

ArrayRef<RoleEmitter::Slot> RoleEmitter::slotsInRecord() const {
  return phase == Phase::Chain ? ArrayRef(slots) : ArrayRef(*form.handedOver);
}

// Of numbers of tokens, those that there are.
int64_t RoleEmitter::bytesInRecord(const Slot &slot) const {
  return slot.ofTokens ? 4 * plan.columns : slotBytes;
}

int64_t RoleEmitter::wholesInRecord() const {
  return madeBytes() + ownLeavesBytes() + (scoreBytes - ownLeavesBytes()) / 4 * (inStrips() ? 3 : 4);
}

int64_t RoleEmitter::recordBytes() const {
  int64_t bytes = wholesInRecord() + plan.wholeBytes();
  for (const Slot &slot : slotsInRecord())
    bytes += bytesInRecord(slot);
  return bytes;
}

// The first chunks of sequences are prepared last, those of all heads together: what the cache still has of
// records is what the chains begin with.
bool RoleEmitter::endsWithFirst() const { return phase == Phase::Prepare; }

// The number in its part of the chunk that is the loop's.
Value RoleEmitter::numberOf(Value chunk) {
  if (!endsWithFirst())
    return chunk;
  return arith::SubIOp::create(b, ptx.add(countOfChunks, -1), chunk);
}

// Where a chunk's record is in device memory.
Value RoleEmitter::recordAt(Value chunk) {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  return recordOf(threads, access, part, plan.tokens, numberOf(chunk), recordPitch);
}

static Value at(ImplicitLocOpBuilder &b, Value record, int64_t offset) {
  return LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                             ArrayRef<LLVM::GEPArg>{int32_t(offset)});
}

// Copies a chunk's tiles out of shared memory when they are there: long before its scores are, which no
// longer need what the tiles were made of, so that the next chunk's inputs may take the place.
void RoleEmitter::leaveTiles(Value chunk, Stage stage) {
  ptx.await(barrier(TilesFull, stage.index), stage.phase);
  if (plan.abreast > 1) // who walks the channels has left them
    return;
  Value record = recordAt(chunk);
  // Each is a group: inputs come in the order in which tiles leave.
  int64_t pieces = 0;
  forTiles(stage, /*early=*/false, [&](int64_t offset, Value address, int64_t bytes) {
    ptx.storeBytes(at(b, record, offset), address, bytes);
    if (++pieces % (plan.keys / 64) == 0)
      ptx.commitStores();
  });
}

// Copies the rest of a chunk's record out, and gives the scores' place back.
void RoleEmitter::leaveScores(Value chunk, Stage stage) {
  auto [buffer, phase] = bufferOf(chunk, stage);
  ptx.await(barrier(ScoresFull, buffer), phase);
  ptx.fenceProxy();
  Value record = recordAt(chunk);
  forScores(chunk, stage, buffer, [&](int64_t offset, Value address, int64_t bytes) {
    ptx.storeBytes(at(b, record, offset), address, bytes);
  });
  ptx.commitStores();
  ptx.awaitStores(/*written=*/false);
  ptx.arrive(barrier(ScoresEmpty, buffer));
}

// Has a chunk's record copied to its place in the ring.
void RoleEmitter::takeRecord(Value chunk, Stage stage) {
  Value record = recordAt(chunk), loaded = barrier(Loaded, stage.index);
  auto load = [&](int64_t offset, Value address, int64_t bytes) {
    ptx.loadBytes(address, at(b, record, offset), bytes, loaded);
  };
  forTiles(stage, /*early=*/false, load);
  forScores(chunk, stage, stage.index, load);
}

// The same of the tiles that are read first, when the chain has done with those of the chunk before.
void RoleEmitter::takeEarly(Value chunk, Stage stage) {
  auto [place, phase] = earlyOf(chunk);
  Value record = recordAt(chunk), loaded = barrier(EarlyFull, place);
  ptx.await(barrier(EarlyEmpty, place), ptx.exclusiveOr(phase, ptx.constant(1)));
  forTiles(stage, /*early=*/true, [&](int64_t offset, Value address, int64_t bytes) {
    ptx.loadBytes(address, at(b, record, offset), bytes, loaded);
  });
  ptx.arriveExpecting(loaded, earlyBytes);
}
