// Where things are in the shared memory of roles: the ring of tiles, scores, tables, numbers.
#include "lib/Cuda/RoleBesideScores.h"
#include "lib/Cuda/RoleKeyWalk.h"
#include "lib/Cuda/RoleScaledTiles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

int64_t RoleEmitter::halvesOf(BlockArgument input) const {
  int64_t halves = llvm::divideCeil(plan.isSpare(input) ? plan.keys : matType(input).numCols(), 64);
  return form.parts > 1 && plan.isSlab(input) ? halves / form.parts : halves;
}

bool RoleEmitter::isWalked(BlockArgument input) const {
  return form.sharesWalk() &&
         (plan.scaling ? plan.inputsOfScaled().contains(input) : !plan.isForChain(input));
}

Value RoleEmitter::firstHalf(BlockArgument input, unsigned tensor) {
  return form.parts > 1 && plan.isSlab(input) ? firstSlab : shardHalves(tensor);
}

Value RoleEmitter::tilesOf(Stage stage, BlockArgument place) const {
  return isEarly(place)       ? stage.early
         : isApart(place)     ? stage.values
         : isLogsAhead(place) ? stage.logs
         : isWalked(place)    ? stage.walked
                              : stage.tiles;
}

int64_t RoleEmitter::rowsOfPlace(BlockArgument input) const {
  const MadeTile *tile = llvm::find_if(plan.made, [&](const MadeTile &x) { return x.place == input; });
  return tile == plan.made.end() ? plan.rowsOf(input) : rowsBefore(*tile) + plan.rowsOf(*tile);
}

int64_t RoleEmitter::rowPlaces() const {
  bool isAhead = phase == Phase::Prepare || rowsAhead() || (takesLogsAhead() && !form.sharesWalk());
  return isAhead ? stages + 1 : stages;
}

int64_t RoleEmitter::madeBytes() const {
  int64_t rows = 0;
  for (const MadeTile &tile : plan.made)
    rows += plan.rowsOf(tile);
  return rows * (plan.keys / 64) * rowBytes;
}

// Places tiles in a stage; those that the chain has done with early in a chunk, where that is asked for,
// apart, and so those that it alone reads, where there are places for them.
void RoleEmitter::placeTiles(bool apart) {
  SmallVector<BlockArgument> copied = copiedInputs(plan, phase);
  stageBytes = loadedBytes = logsBytes = walkedBytes = walkedLoaded = earlyBytes = valuesBytes = 0;
  earlyTiles.clear();
  if (takesLogsAhead()) {
    auto logs = cast<BlockArgument>(plan.logs());
    tileOffsets[logs] = {0, rowBytes * rowsOfPlace(logs)};
    logsBytes = halvesOf(logs) * halfStride(logs);
  }
  // What of a stack has a ring of its own lies alone.
  SmallVector<SmallVector<BlockArgument>> groups;
  for (ArrayRef<BlockArgument> inputs : plan.inputs)
    if (valuesPlaces)
      for (BlockArgument input : inputs)
        groups.push_back({input});
    else
      groups.push_back(llvm::to_vector(inputs));
  for (ArrayRef<BlockArgument> inputs : groups) {
    // The chain finds made tiles where inputs would be.
    SmallVector<BlockArgument> together;
    llvm::copy_if(inputs, std::back_inserter(together), [&](BlockArgument input) {
      return (llvm::is_contained(copied, input) && !isLogsAhead(input)) ||
             ((phase == Phase::Chain || (plan.isSpare(input) && plan.abreast == 1)) && plan.isPlace(input));
    });
    if (together.empty())
      continue;
    bool isEarly = apart && llvm::all_of(together, [&](BlockArgument input) {
                     return plan.isReadFirst(input) && (phase != Phase::Chain || plan.isPlace(input));
                   });
    int64_t &total = isEarly                      ? earlyBytes
                     : isApart(together.front())  ? valuesBytes
                     : isWalked(together.front()) ? walkedBytes
                                                  : stageBytes;
    int64_t halves = halvesOf(together.front()), at = total, bytes = 0;
    for (BlockArgument input : together)
      bytes += rowBytes * rowsOfPlace(input);
    for (BlockArgument input : together) {
      if (isEarly)
        earlyTiles.insert(input);
      tileOffsets[input] = {at, bytes};
      at += rowBytes * rowsOfPlace(input);
      if (llvm::is_contained(copied, input) && !isApart(input))
        (isWalked(input) ? walkedLoaded : loadedBytes) +=
            halves * rowBytes * plan.filledRows(input) / (form.sharesMap(plan, input) ? team : 1);
    }
    total += halves * bytes;
  }
  int64_t &ofScaled = form.sharesScaled ? walkedBytes : stageBytes;
  scalesAt = ofScaled;
  ofScaled += ScaledTiles::bytes(plan);
}

// Of a team each block makes every second chunk's scores, for both, and those of many keys come long after
// the keys do. So keys get a place more than there is room for whole chunks: what the chain has done with
// early has its own ring of two places or one, and so has what the chain alone reads, with the outputs in its
// place; the system's blocks lie where scores go when it is inverted. What else there is in shared memory
// takes `others`.
bool RoleEmitter::spreadRing(int64_t others, int64_t most) {
  bool isOfChain = outputPlace && plan.outputPlace && !plan.isForScores(outputPlace);
  bool isInverted = plan.system && plan.partsOfHalves() == 1 && plan.invertsInHalves() &&
                    plan.ownSystem < 0 &&
                    llvm::any_of(plan.scores, [](const ScoreTile &tile) { return !tile.ofTokens; });
  if (team == 1 || !plan.isWide() || plan.states > 1 || plan.decay || plan.hasManyProducts() ||
      plan.normaliser || changesTiles() || !isOfChain || !isInverted)
    return false;
  int64_t whole = stages;
  valuesPlaces = 2;
  placeTiles(/*apart=*/true);
  for (auto [keys, early] : {std::pair<int64_t, int64_t>{3, 2}, {2, 1}}) {
    stages = keys;
    earlyPlaces = early;
    int64_t bytes = others + stages * stageBytes + early * earlyBytes + valuesPlaces * valuesBytes;
    if (earlyBytes && keys > whole && keys <= most && bytes <= threads.sharedLimit)
      return blocksInScores = true;
  }
  valuesPlaces = earlyPlaces = 0;
  stages = whole;
  placeTiles(/*apart=*/false);
  return false;
}

void RoleEmitter::layOut() {
  placeTiles(/*apart=*/false);
  scoreBytes = scoreOffset(plan.scores.size()) + inverseBytes() + ownLeavesBytes();
  int64_t outputBytes = outputPlace ? 0 : plan.countOutputs() * slabHalves() * outputTileBytes();
  if (phase == Phase::Chain)
    return layOutChain(outputBytes);
  int64_t blockBytes = !plan.system             ? 0
                       : plan.invertsInHalves() ? plan.partsOfHalves() * tileBytes
                                                : partBytes,
          leavesBytes = plan.system || plan.invertsOwnLeaves ? 4 * leafBytes() : 0;
  // A chunk stays in the ring while it passes all roles, so the ring is as deep as there is room.
  int64_t tablesBytes = tableBytes(), sumBytes = plan.reductions.size() * bytesOfSums();
  int64_t rightBytes = plan.rights.size() * (plan.keys / 64) * rightHalf, exchangeBytes = 0;
  if (plan.abreast > 1)
    rightBytes = KeyWalk::bytesOfLevels(plan);
  // With a decay of each key, the system's blocks lie where its sums did.
  if (plan.decay)
    exchangeBytes = partsInTables() ? 0 : plan.grams.size() * partBytes, blockBytes = rightBytes;
  // The system's blocks lie where rows did that only its products read, which are done with by then.
  int64_t twinBytes = ScaledTiles::twinsOf(plan).size() * ScaledTiles::bytesOfTwin(plan);
  int64_t middleBytes = ScaledTiles::bytesOfMiddle(plan);
  std::optional<int64_t> ofSystem = ScaledTiles::twinOfSystem(plan);
  if (ofSystem && blockBytes > ScaledTiles::bytesOfTwin(plan))
    ofSystem = std::nullopt;
  if (ofSystem)
    blockBytes = 0;
  int64_t others = outputBytes + blockBytes + twinBytes + middleBytes + leavesBytes + tablesBytes + sumBytes +
                   vectorBytes() + exchangeBytes + ownPlaces * logsBytes + (ownPlaces + 1) * walkedBytes +
                   Barriers * barrierPitch + beginBytes + Normaliser(*this).bytes() + functionBytes() + 256;
  // Teams want three places for what their chains read as it is; the first try leaves outputs one of their
  // own.
  int64_t wanted = 3 * (stageBytes + slotBytes) + 2 * scoreBytes;
  if (form.sharesWalk() && (form.stages < RoleForm().stages || others + wanted > threads.sharedLimit))
    for (BlockArgument input : copiedInputs(plan, phase))
      if (plan.isSlab(input) && plan.isForChain(input) && matType(input).numCols() == plan.independent &&
          std::exchange(outputBytes, 0)) {
        outputPlace = input;
        others -= outputTileBytes();
      }
  // Where there is room for one chunk's inputs, its scores wait for the chain anyway.
  constexpr int64_t numbersBytes = 2048;
  buffers = others + 2 * scoreBytes + stageBytes + numbersBytes > threads.sharedLimit ? 1 : 2;
  // A team has a place for each block before it has two for scores.
  auto hasPlaces = [&](int64_t count) {
    return others + count * scoreBytes + team * stageBytes + numbersBytes <= threads.sharedLimit;
  };
  if (plan.scaling && team > 1 && !hasPlaces(2))
    buffers = 1;
  others += buffers * scoreBytes;
  int64_t most = stages, masks = plan.masks.size();
  stages = std::clamp<int64_t>((threads.sharedLimit - others) / stageBytes, 1, most);
  while (stages > 1 && others + maskOffset(masks, 0) + stages * stageBytes > threads.sharedLimit)
    --stages;
  if (buffers > 1 && others + maskOffset(masks, 0) + stageBytes + numbersBytes > threads.sharedLimit) {
    buffers = 1;
    others -= scoreBytes;
  }
  // Of whole heads, what comes more than three chunks ahead comes slower.
  constexpr int64_t muchAhead = 160 * 1024;
  if (stages > 3 && stages * stageBytes > muchAhead)
    stages = 3;
  // What the chain reads first is free again long before the rest of its chunk: then two places of it are
  // enough for more of the rest, each with its numbers. (Of a team each block has some chunks' scores only.)
  if (!form.walkers() && stages == 2 && most > 2 && team == 1) {
    placeTiles(/*apart=*/true);
    stages = (threads.sharedLimit - others - 2 * earlyBytes - numbersBytes) / (stageBytes + numbersBytes);
    stages = std::min(stages, most);
    while (stages > 2 &&
           others + maskOffset(masks, 0) + 2 * earlyBytes + stages * stageBytes > threads.sharedLimit)
      --stages;
    if (earlyBytes && stages > 2) {
      earlyPlaces = 2;
    } else {
      placeTiles(/*apart=*/false);
      stages = 2;
    }
  }
  if (spreadRing(others - blockBytes + numbersBytes, most))
    blockBytes = 0;
  earlyAt = stages * stageBytes;
  valuesAt = earlyAt + earlyPlaces * earlyBytes;
  logsAt = valuesAt + valuesPlaces * valuesBytes;
  walkedAt = logsAt + ownPlaces * logsBytes;
  int64_t at = walkedAt + (ownPlaces + 1) * walkedBytes;
  auto take = [&](int64_t &where, int64_t bytes) {
    where = at;
    at += bytes;
  };
  take(scoresAt, buffers * scoreBytes);
  take(normaliserAt, Normaliser(*this).bytes());
  inverseAt = scoresAt + scoreOffset(plan.scores.size());
  take(outputsAt, outputBytes);
  take(twinsAt, twinBytes);
  take(middleAt, middleBytes);
  take(blocksAt, blockBytes);
  if (ofSystem)
    blocksAt = twinsAt + *ofSystem * ScaledTiles::bytesOfTwin(plan);
  rightsAt = blocksAt;
  take(exchangeAt, exchangeBytes);
  if (exchangeBytes && plan.system)
    blocksAt = partsAt(plan.splitScores(plan.system).second);
  take(leavesAt, leavesBytes);
  take(tablesAt, tablesBytes);
  if (partsInTables())
    exchangeAt = tablesAt;
  take(normsAt, plan.reductions.size() * bytesOfSums()); // of the ring as it is now
  take(vectorsAt, vectorBytes());
  take(barriersAt, Barriers * barrierPitch);
  take(beginAt, beginBytes);
  at = llvm::alignTo(at, 16);
  take(functionsAt, functionBytes());
  take(masksAt, maskOffset(masks, 0));
  slotsAt = llvm::alignTo(at, 256);
}

std::pair<Value, Value> RoleEmitter::bufferOf(Value chunk, Stage stage) {
  if (phase == Phase::Chain)
    return {stage.index, stage.phase};
  if (buffers == 1)
    return {ptx.constant(0), ptx.bits(chunk, 1)};
  return {ptx.bits(chunk, 1), ptx.bits(ptx.shiftRight(chunk, 1), 1)};
}

int64_t RoleEmitter::scoreOffset(unsigned tile) const {
  int64_t offset = 0;
  for (const ScoreTile &before : ArrayRef(plan.scores).take_front(tile))
    offset += scoreTileBytes(before);
  return offset;
}
