// A chunk program as warp roles of one block, for chips with products of warpgroups and bulk tensor copies.
//
// One warp copies chunks of the inputs into a ring in shared memory; one to three compute the numbers per
// token that go with them; a warpgroup computes the scores between tokens (and the inverse of the system they
// make), ahead of the state; and one warpgroup for 64 independent rows of the state walks the chain, the
// state in its registers. Sums over many keys may be a warpgroup's. Blocks of one head can be a team, a
// cluster that shares out the chunks whose scores each computes for all. Scores dearer than the chain, with a
// decay of each key, are a kernel's, or two warpgroups' beside one that has all of the chain or its half.
#pragma once
#include "lib/Cuda/Ptx.h"
#include "lib/Cuda/RoleTypes.h"

namespace recur::cuda {

/// The name of the shared memory that roles use; swizzled tiles want it at a multiple of 1024 bytes.
constexpr llvm::StringLiteral tilesSymbol = "recur_tiles";

/// The most tensors that a kernel copies in boxes (RECUR_MAX_MAPS).
constexpr size_t mostMaps = 12;

/// Emits the body of an entry point in roles.
class RoleEmitter : RoleTypes {
public:
  /// `call` and `maps` are the kernel's parameters, `shared` points to the block's memory.
  RoleEmitter(Threads &threads, const RolePlan &plan, mlir::Value call, mlir::Value maps, mlir::Value shared,
              Entry &entry, const RoleForm &form);
  /// The threads that a plan's roles are.
  static int64_t countThreads(const RolePlan &plan, const RoleForm &form);

  /// Emits everything but the function's end. Sets the entry's shared memory.
  mlir::LogicalResult emit();
  bool fits() const { return slotsAt <= threads.sharedLimit; } // one chunk into shared memory, as laid out

private:
  // The frame (RoleFrame.cpp).
  void placeTiles(bool apart);
  std::optional<Registers> shareRegisters() const;
  void layOut(), emitStart();
  void layOutChain(int64_t outputBytes);
  bool spreadRing(int64_t others, int64_t most);
  void emitLoader(mlir::Value chunks);
  mlir::Value barrier(Barrier which, mlir::Value index);
  Stage stageAt(mlir::Value index, mlir::Value phase, mlir::Value chunk);
  Stage stageOf(mlir::Value chunk);
  /// A loop over the chunks with the ring's stage; `carried` follow.
  Values forChunks(mlir::Value chunks, mlir::ValueRange carried,
                   llvm::function_ref<Values(mlir::Value chunk, Stage stage, mlir::ValueRange carried)> body);
  /// A loop over those of a team's chunks that are this block's.
  void forOwnChunks(mlir::Value chunks, llvm::function_ref<void(mlir::Value chunk, Stage stage)> body);
  mlir::Value isOwn(mlir::Value chunk);
  /// Of what there are two places of for a block's own chunks, a chunk's place and that place's phase.
  std::pair<mlir::Value, mlir::Value> ownPlace(mlir::Value chunk);
  Part findFromStart(TensorAccess &access);
  void sumDecays(TensorAccess &access, mlir::Value chunk);
  mlir::Value countToForget(TensorAccess &access, mlir::Value end, mlir::Value most);
  mlir::Value countToForgetKeys(mlir::Value end, mlir::Value most);
  std::pair<mlir::Value, mlir::Value> countOfEach(TensorAccess &access, mlir::Value each, mlir::Value end);
  std::pair<mlir::Value, mlir::Value> countFew(TensorAccess &access, mlir::Value each, mlir::Value end);
  void findBegin();
  int64_t tileOffset(mlir::BlockArgument input) const { return tileOffsets.lookup(input).first; }
  int64_t halfStride(mlir::BlockArgument input) const { return tileOffsets.lookup(input).second; }
  /// The rows that an input's place has room for; of a made tile behind the input's, those before it.
  int64_t rowsOfPlace(mlir::BlockArgument input) const;
  int64_t rowsBefore(const MadeTile &tile) const {
    return phase != Phase::Chain && plan.isBehind(tile, tile.place) ? plan.rowsOf(tile.place) : 0;
  }
  /// The made tiles together.
  int64_t madeBytes() const;
  /// Where the scores of a chunk go, and that place's phase.
  std::pair<mlir::Value, mlir::Value> bufferOf(mlir::Value chunk, Stage stage);
  /// How many chunks after one the next block of a team makes scores that lie in the same place.
  int64_t nextMaker() const { return buffers < team ? buffers : 0; }
  mlir::BlockArgument placeOf(const TokenTile &tile) const;
  mlir::Value shardHalves(unsigned tensor);
  mlir::Value rank();
  unsigned slotOf(const Slot &slot);
  int64_t scoreOffset(unsigned tile) const;
  /// Of a leaf of the system: three of its quarters or, of rows by eights, all.
  int64_t leafBytes() const { return (plan.isStacked() ? 4 : 3) * quarterBytes; }
  /// What masks order a row of scores by: itself or, of reads at one time, its token.
  int64_t placeOfRow(int64_t row) const;
  /// The same of one of eight.
  mlir::Value placeInEight(mlir::Value row) {
    return plan.atOnce ? ptx.shiftRight(row, llvm::Log2_64(plan.steps)) : row;
  }
  int64_t scoreTileBytes(const ScoreTile &tile) const {
    return tile.ofTokens ? plan.columns * rowBytes : tileBytes;
  }
  /// Of the system's inverse and, behind it, its rest.
  int64_t inverseBytes() const { return plan.system ? (plan.splitsInverse ? 2 : 1) * tileBytes : 0; }
  /// Whether numbers take three warps; and are made before a chunk's tiles are there, in a place more.
  bool rowsApart() const { return !plan.masks.empty(); }
  bool rowsAhead() const { return rowsApart() && !plan.isWide(); }
  /// Places for the chunks' numbers, which are there before a chunk's tiles or of use after them.
  int64_t rowPlaces() const;
  int64_t slotPitch() const { return rowPlaces() * slotBytes; }
  int64_t slotOffset(const Slot &slot) { return slotOf(slot) * slotPitch(); }
  /// Places for the numbers of masks: of a team each block has those of its own chunks.
  int64_t maskPitch() const { return llvm::divideCeil(stages + rowsAhead(), team) * slotBytes; }
  int64_t maskOffset(int mask, int64_t part) const;
  /// The blocks of 64 columns that this block has of an input, and the first of them.
  int64_t halvesOf(mlir::BlockArgument input) const;
  mlir::Value firstHalf(mlir::BlockArgument input, unsigned tensor);
  unsigned tensorOfMap(unsigned map) const { return entry.maps[map] % mapBox; }

  // Records of chunks (RoleRecord.cpp).
  llvm::ArrayRef<Slot> slotsInRecord() const;
  int64_t bytesInRecord(const Slot &slot) const;
  int64_t recordBytes() const;
  mlir::Value recordAt(mlir::Value chunk);
  bool endsWithFirst() const;
  mlir::Value numberOf(mlir::Value chunk);
  using RecordPart = llvm::function_ref<void(int64_t offset, mlir::Value address, int64_t bytes)>;
  void forTiles(Stage stage, bool early, RecordPart body);
  void forScores(mlir::Value chunk, Stage stage, mlir::Value buffer, RecordPart body);
  // Scores of records lie in two strips of 32 columns, so that the half of one that is zero need not be
  // copied: the first rows of the strip that comes first or, of an inverse, which lies transposed, its last.
  bool inStrips() const { return plan.decay && plan.steps == 1; }
  static int64_t stripAt(int64_t strip, bool ofInverse) {
    return (ofInverse ? strip : 1 - strip) * stripBytes;
  }
  mlir::Value laneInStrip();
  std::pair<mlir::Value, int64_t> scorePlace(mlir::Value row, mlir::Value half, int64_t seer, int64_t seen);
  mlir::Value blockInStrip(mlir::Value laneAt, mlir::Value row, mlir::Value column, bool ofInverse);
  void leaveTiles(mlir::Value chunk, Stage stage), leaveScores(mlir::Value chunk, Stage stage);
  void takeRecord(mlir::Value chunk, Stage stage), takeEarly(mlir::Value chunk, Stage stage);
  bool isEarly(mlir::BlockArgument place) const { return earlyTiles.contains(place); }
  bool isApart(mlir::BlockArgument input) const { return valuesPlaces && input == outputPlace; }
  mlir::Value tilesOf(Stage stage, mlir::BlockArgument place) const;
  mlir::Value tileAt(Stage stage, mlir::BlockArgument place) {
    return ptx.add(tilesOf(stage, place), tileOffset(place));
  }
  std::pair<mlir::Value, mlir::Value> earlyOf(mlir::Value chunk);

  // Numbers per token (RoleRows.cpp, RoleSums.cpp).
  struct RowState;
  struct PlainScore;
  struct ScoreState;
  struct ChainState;
  void emitRows(mlir::Value chunks, RowPart which);
  void emitSums(mlir::Value chunks), sumChunk(mlir::Value chunk, Stage stage);
  int64_t vectorBytes() const, vectorAt(mlir::Value vector) const;
  llvm::SetVector<mlir::Value> vectors() const;
  void storeVectors();
  int64_t sumWarps() const { return form.sumsApart(plan) ? 4 : 2; }
  /// Whether some warps sum over rows. Sums come to a chain in records.
  bool hasSums() const { return !plan.reductions.empty() && phase != Phase::Chain && !walkersSum(); }
  bool walkersSum() const, numbersHoldPlace() const;
  /// The sums that walkers make, or those who scale rows: `sumParts` of each.
  llvm::ArrayRef<mlir::Operation *> sumsOfWalkers() const;
  /// The rows that such a warp sums over, side by side.
  int64_t rowsOfSumWarp() const { return tokensOfChunk / sumWarps() / team; }
  bool waits(const Slot &slot) const;
  mlir::Value sumsOf(mlir::Value chunk, mlir::Operation *op), sumsIn(mlir::Value place, mlir::Operation *op);
  llvm::SetVector<mlir::Operation *> gramsOf(const ScoreRole &role) const;
  void awaitSums(mlir::Value chunk, Stage stage);
  /// Sums are told of by chunk, deeper than the ring, as another block may be ahead; alone 4 are slow.
  int64_t chunksOfSums() const { return team > 1 || stages == 1 ? llvm::PowerOf2Ceil(stages + 1) : 8; }
  int64_t bytesOfSums() const;
  void handOverSums(mlir::Value chunk);
  void forPeers(llvm::function_ref<void(mlir::Value rank)> body);
  int64_t rowsOfSum(ReduceOp op) const;
  mlir::Value placeOfSum(ReduceOp op, mlir::Value row);
  void sumSquares(Stage stage, mlir::Value sums, mlir::Value first, ReduceOp op);
  void storeSum(mlir::Value sums, mlir::Value place, mlir::Value whole, int64_t rows);
  void sumRows(Stage stage, mlir::Value sums, mlir::Value first, ReduceOp op);
  mlir::Value entryOfParams(TensorAccess &access, mlir::Value vector, mlir::Value at);
  std::array<mlir::Value, 2> row(RowState &state, mlir::Value value);
  // Coupled states (RoleCascade.cpp).
  struct Transitions;
  const Transitions &transitionsOf(RowState &state, mlir::Value cascade);
  std::array<mlir::Value, 2> cascadeWeights(RowState &state, chunk::WeightsOp weights);
  void fillMasks(const RowState &state, RowPart which, bool late);
  void fillMask(RowState &state, int mask, RowPart half);
  mlir::Value maskColumns(const ScoreState &state);
  Values maskOn(ScoreState &state, const PlainScore &plain);
  Values maskOff(ScoreState &state, const PlainScore &plain);
  std::array<mlir::Value, 2> maskRows(ScoreState &state, const PlainScore &plain, unsigned of);
  // Tiles that are changed in place: columns of matrices (RoleColumns.cpp), functions (RoleMaps.cpp).
  bool turnsColumns() const, mapsTiles() const;
  bool changesTiles() const { return turnsColumns() || mapsTiles(); }
  /// Who does that: the scores' warpgroup, without a system, or one of its own; else those who sum over rows.
  bool scoresChange() const;
  bool changesAhead() const { return scoresChange() || form.mapsApart(plan); }
  bool sumsChange() const { return changesTiles() && !changesAhead(); }
  void emitMaps(mlir::Value chunks), awaitChanged(Stage stage);
  void changeTiles(mlir::Value chunk, Stage stage), mapTiles(mlir::Value chunk, Stage stage);
  void turnColumns(Stage stage), giveMaps(Stage stage);
  Values &mapPairs(mlir::BlockArgument input, Values &pairs);
  void storeColumns(mlir::Value at, mlir::ValueRange pairs);
  std::array<mlir::Value, 2> decayWithin(RowState &state, const Slot &slot);
  std::array<mlir::Value, 2> reciprocal(RowState &state, mlir::Value value);
  // Rotated updates (RoleRotated.cpp).
  std::array<mlir::Value, 2> numberOfNext(RowState &state, mlir::BlockArgument number);
  Values rotatedStates(mlir::ValueRange given);
  void storeDelayed(TensorAccess &access, const Part &own);
  void setTokens(RowState &state, mlir::Value chunk);
  void clearRows(mlir::Value chunk, Stage stage, mlir::Value tokens);
  std::array<mlir::Value, 2> decaySums(RowState &state, mlir::Value decay, bool before);
  std::array<mlir::Value, 2> atStart(std::array<mlir::Value, 2> before);
  std::array<mlir::Value, 2> signWeights(RowState &state, chunk::WeightsOp weights);
  mlir::Value decayOfChunk(TensorAccess &access, mlir::Value chunk);
  mlir::Value slowestKey(RowState &state, unsigned row);
  mlir::Value slowestValue(TensorAccess &access, mlir::Value chunk);
  mlir::Value vectorEntry(mlir::Value value, llvm::function_ref<mlir::Value(mlir::Value)> leaf);

  // Scores between tokens (RoleScores.cpp, RoleFactors.cpp, RoleInverse.cpp, RoleWideInverse.cpp).
  void emitScores(mlir::Value chunks, unsigned which, const Stage *ofOne = nullptr);
  void awaitPlace(ScoreState &state);
  void handOver(const ScoreState &state, unsigned which, const ScoreRole &role);
  void giveScores(mlir::Value index, const ScoreRole &role, mlir::Value numbers = {});
  void inOneThread(llvm::function_ref<void()> body); // of a warpgroup that is here
  mlir::Value score(ScoreState &state, const ScoreTile &tile, unsigned entry);
  mlir::Value score(ScoreState &state, const ScoreTile &tile, mlir::Value value, unsigned entry,
                    RowFactors factors);
  void collectRows(ScoreState &state, const ScoreTile &tile, mlir::Value value, RowFactors factors);
  void storeTokenScores(ScoreState &state, mlir::Operation *of = nullptr);
  LastRows lastRows();
  void storeLast(const LastRows &rows, mlir::ValueRange pairs,
                 llvm::function_ref<mlir::Value(mlir::Value place)> at, int64_t offset);
  std::optional<PlainScore> asPlain(const ScoreTile &tile) const;
  void collectFactors(ScoreState &state, const ScoreTile &tile, const PlainScore &plain);
  void fetchColumns(ScoreState &state, const ScoreTile &tile);
  mlir::Value columnValue(ScoreState &state, const Slot &slot, unsigned entry);
  std::array<mlir::Value, 2> rowNumbers(ScoreState &state, const Slot &slot);
  Values scoresOn(ScoreState &state, const ScoreTile &tile, const PlainScore &plain);
  Values scoresOff(ScoreState &state, const ScoreTile &tile, const PlainScore &plain);
  void collectRows(ScoreState &state);
  void forBlocks(ScoreState &state, const ScoreTile &tile,
                 llvm::function_ref<void(mlir::ValueRange entries, mlir::Value place, bool onDiagonal)> body);
  void forBlocksBefore(ScoreState &state, const PlainScore &plain,
                       llvm::function_ref<void(mlir::Value)> body);
  mlir::Value freshLane();
  /// A number that the assembler does not know, so that it unrolls no loop.
  mlir::Value opaque(int64_t number) { return ptx.add(ptx.shiftRight(base, 30), number); }
  void refreshBlocks(ScoreState &state);
  void storeTiles(ScoreState &state, mlir::Operation *gram = nullptr);
  void storeLeaf(mlir::ValueRange entries);
  void storeSystem(ScoreState &state);
  mlir::Value blocksOf(const ScoreState &state);
  void clearBlocks(ScoreState &state);
  Halves inHalves(mlir::ValueRange entries);
  Halves loadBlock(mlir::Value at, int64_t offset, bool turned);
  void storeBlock(mlir::Value at, int64_t offset, const Halves &block, mlir::Value when = {});
  static Halves swapped(Halves block);
  void emitInverse(ScoreState &state);
  mlir::Value barrierOfRow(mlir::Value row);
  Values multiplyBlocks(Values sum, llvm::ArrayRef<Halves> lefts, llvm::ArrayRef<Halves> rights);
  std::array<Values, 2> invertLeaf();
  Values invertStackedLeaf(mlir::Value lane, mlir::Value leaf);
  mlir::Value wideBlock(mlir::Value row, mlir::Value column);
  Values inTf32(mlir::ValueRange entries);
  static constexpr int64_t wideBytes = 16 * 16 * 4;
  void storeWide(mlir::Value at, mlir::ValueRange entries);
  mlir::Value wideColumn(mlir::Value column);
  void storeWideLeaf(mlir::Value block, const Values &first, const Values &second);
  void emitWideInverse(ScoreState &state);

  struct Normaliser;  // a vector that is read beside scores (RoleBesideScores.cpp)
  struct KeyWalk;     // of states that each key couples (RoleKeyWalk.cpp)
  struct ScaledTiles; // of keys that decay mildly (RoleScaledTiles.cpp)

  // A decay of each key (RoleTables.cpp, RoleDecay.cpp, RoleWildDecay.cpp).
  int64_t tableBytes() const;
  int64_t sumsAt(int64_t block) const;
  int64_t wholesAt() const;
  int64_t placesOfWholes() const;
  mlir::Value wholesOf(mlir::Value chunk, Stage stage);
  int64_t wholesInRecord() const;
  int64_t rightOffset(mlir::Value rows) const;
  int64_t blocksOfWalker() const { return plan.keys / 16 / form.walkers(); }
  mlir::Value ownBlock(const ScoreState &state, mlir::ValueRange places, int64_t block, int64_t stride);
  void beginDecayed(ScoreState &state);
  void findTokens(ScoreState &state);
  Values blocksFrom(const ScoreState &state, mlir::Value first);
  void emitWalk(mlir::Value chunks);
  void emitDecayed(ScoreState &state);
  void awaitParts(const ScoreState &state);
  void meetWalkers();
  int64_t partsAt(mlir::Operation *gram) const;
  mlir::Value partsOfWarp(const ScoreState &state);
  Values leavePart(ScoreState &state, mlir::Operation *gram, mlir::Value at, mlir::ValueRange sums);
  void addPart(ScoreState &state, mlir::Value at, mlir::ValueRange kept);
  void takeParts(ScoreState &state, mlir::Value scores);
  // Beside the chain (RoleBeside.cpp).
  void addKept(ScoreState &state, llvm::ArrayRef<Values> kept);
  void storeHalves(ScoreState &state, unsigned which);
  void scoreBeside(const ScoreState &walk, llvm::ArrayRef<Values> kept);
  void giveTiles(mlir::Value chunk, Stage stage);
  std::pair<mlir::Value, mlir::Value> tilesFull(mlir::Value chunk, Stage stage);
  void awaitTiles(mlir::Value chunk, Stage stage);
  Values inputPairs(ScoreState &state, mlir::BlockArgument input, int64_t block, bool transposed);
  Values rowsOf(mlir::Value rows, llvm::function_ref<mlir::ValueRange(mlir::BlockArgument)> pairs);
  LogPairs logPairs(ScoreState &state, int64_t block);
  LogSums logSums(ScoreState &state, int64_t block, const LogPairs &pairs, bool before);
  /// An entry, turned by such a bit, if there is one.
  mlir::Value withSign(mlir::Value entry, mlir::Value sign);
  mlir::Value signOf(mlir::Value number);
  mlir::Value lastBit(mlir::Value count);
  /// A logarithm that has the decay's sign for its own, where that counts; and both of them again.
  mlir::Value marked(mlir::Value log, mlir::Value sign);
  std::pair<mlir::Value, mlir::Value> takeMark(mlir::Value log);
  void countRows(ScoreState &state);
  void storeSums(ScoreState &state), makeTables(ScoreState &state);
  void storeTables(mlir::Value channel, mlir::ValueRange sumsOfBlocks, mlir::Value tables, mlir::Value place);
  mlir::Value isWild(mlir::Value lowest);
  mlir::Value leastOf(mlir::Value pair);
  void awaitLogs(mlir::Value chunk), awaitWalked(mlir::Value chunk);
  void awaitInputs(mlir::Value chunk, Stage stage, bool logsAlone = false);
  // Tables that are made ahead of the walkers, by idle warps.
  bool tabulatesAhead() const { return form.walksBeside && plan.leavesTimeForTables(); }
  bool takesLogsAhead() const;
  bool isLogsAhead(mlir::BlockArgument input) const { return takesLogsAhead() && input == plan.logs(); }
  /// Whether an input, or a made tile, is for who walks a chunk for a team, whose own chunks have two places.
  bool isWalked(mlir::BlockArgument input) const;
  int64_t tablePlaces() const { return tabulatesAhead() ? 2 : 1; }
  int64_t tableWarps() const { return plan.keys / 64; }
  int64_t bytesOfTables() const;
  /// Whether sums that walkers exchange lie where the chunk's tables were.
  bool partsInTables() const {
    return form.sharesWalk() && int64_t(plan.grams.size()) * partBytes <= bytesOfTables();
  }
  Tables tablesOf(mlir::Value chunk);
  Values sumBlocks(const Stage &stage);
  void emitTables(mlir::Value chunks);
  void awaitTables(ScoreState &state);
  void weighRows(ScoreState &state);
  void addToSums(const ScoreState &state, int64_t block, llvm::MutableArrayRef<Values> sums,
                 llvm::function_ref<mlir::ValueRange(mlir::BlockArgument)> pairs);
  void storeRowSums(const ScoreState &state, llvm::ArrayRef<Values> sums);
  void storeRights(ScoreState &state, mlir::Value right, mlir::ValueRange rows, int64_t block);
  void seeBlocks(ScoreState &state);
  Values wildDiagonal(ScoreState &state, chunk::GramOp gram);

  // The chain (RoleChain.cpp, RoleEntries.cpp, RoleStates.cpp).
  mlir::LogicalResult emitChain(mlir::Value chunks);
  mlir::FailureOr<Values> emitSlab(ChainState &state, mlir::Value chunk, mlir::ValueRange entries);
  mlir::LogicalResult emitChunk(ChainState &state);
  mlir::FailureOr<Values> slab(ChainState &state, mlir::Value value);
  mlir::FailureOr<Values> entriesOf(ChainState &state, mlir::Value value);
  Values tilePairs(ChainState &state, mlir::BlockArgument input);
  Values decayedWhole(mlir::Value chunk, const Stage &stage, mlir::ValueRange entries);
  Values scaled(ChainState &state, mlir::ValueRange entries, RowFactors factors, bool isNegative = false);

  // A decay of each row in the chain (RoleRowDecay.cpp).
  struct RowDecay;
  RowDecay &rowDecay(ChainState &state);
  mlir::Value isWild(const RowDecay &decay, int64_t block, int64_t row);
  mlir::Value reference(const RowDecay &decay, bool isRight, int64_t block, int64_t row);
  mlir::Value decayBetween(const RowDecay &decay, int64_t from, int64_t to, int64_t row);
  Values sumsOf(ChainState &state, int64_t block);
  Values untilReference(ChainState &state, int64_t block, mlir::ValueRange sums);
  Values packedPairs(mlir::ValueRange entries);
  struct Issue;
  void awaitScores(ChainState &state, bool systemAlone = false);
  /// Whether the inverse goes to the chain before the scores.
  bool isSystemApart(const ScoreRole &role) const { return blocksInScores && role.system; }
  mlir::LogicalResult begin(ChainState &state, Issue &issue, llvm::ArrayRef<const ChainProduct *> wave);
  bool isInTurns(const ChainProduct &product) const; // products by parts of the keys (RoleKeys.cpp)
  mlir::FailureOr<llvm::SmallVector<Values>> leftSlabs(ChainState &state, const ChainProduct &product);
  mlir::FailureOr<llvm::SmallVector<Pending>>
  productInTurns(ChainState &state, const Issue &issue, int64_t columns, bool rest,
                 llvm::ArrayRef<const ChainProduct *> beside = {});
  mlir::FailureOr<Values> productOfRest(ChainState &state, Issue &issue);
  Values restOf(mlir::ValueRange entries, mlir::ValueRange pairs);
  Values blockSums(ChainState &state, int64_t block);
  Values slabPairs(ChainState &state, mlir::BlockArgument input, int64_t block);
  Values logPairs(ChainState &state, int64_t block), rowLogs(ChainState &state, int64_t block);
  Values sinceReference(ChainState &state, int64_t block, bool before, mlir::ValueRange sums);
  Values rowWeights(ChainState &state, chunk::Span span);
  Values scoresOfBlocks(ChainState &state, chunk::MixOp mix, int64_t seer, int64_t seen);
  Values valuesOfMix(ChainState &state, chunk::MixOp mix, int64_t block);
  Values rowsOfMix(ChainState &state, chunk::MixOp mix, int64_t block);
  void mixOnto(ChainState &state, chunk::MixOp mix, Values rows, int64_t block, int64_t seer,
               llvm::MutableArrayRef<mlir::Value> sums);
  Values sideOf(mlir::ValueRange entries);
  Values timesScores(mlir::ValueRange sums, mlir::ValueRange side, mlir::ValueRange scores);
  void finishMix(ChainState &state, chunk::MixOp mix, int64_t block, llvm::MutableArrayRef<mlir::Value> sums);
  Values sliceOfMix(ChainState &state, chunk::MixOp mix, int64_t block);
  Values wildMix(ChainState &state, chunk::MixOp mix, int64_t block);
  mlir::FailureOr<Values> mixed(ChainState &state, chunk::MixOp mix, mlir::Value other);
  std::optional<mlir::FailureOr<Values>> decayedRows(ChainState &state, mlir::Operation *op);

  // Rescaled rows (RolePieces.cpp).
  struct Rescaling;
  struct Pieces;
  mlir::FailureOr<Values> emitChunkOf(ChainState &state, mlir::Value chunk, mlir::ValueRange entries);
  void leaveChunk(ChainState &state), leaveOutputs(const ChainState &state);

  // Systems that each row has for itself (RoleSubstitution.cpp).
  struct Substitution;
  int64_t ownLeavesAt() const { return scoreOffset(plan.scores.size()); }
  int64_t ownInversesAt() const { return ownLeavesAt() + 4 * ownLeafBytes; }
  int64_t ownLeavesBytes() const, functionBytes() const;
  void storeOwnLeaf(ScoreState &state, mlir::ValueRange entries);
  void invertOwnLeaf(ScoreState &state);
  mlir::LogicalResult substitute(ChainState &state, mlir::Operation *system);
  mlir::LogicalResult solveFor(ChainState &state, mlir::Value left);
  mlir::FailureOr<Values> sliceOf(ChainState &state, mlir::Value value, int64_t block);
  Values columnsOf(ChainState &state, RowFactors factors, int64_t block);
  unsigned scoresOf(chunk::MixOp mix) const;
  mlir::Value besideMix(AddOp sum, chunk::MixOp mix);
  mlir::FailureOr<Values> startOfMix(ChainState &state, mlir::Value other, RowFactors factors);
  Values scoresOfBlocks(ChainState &state, unsigned tile, int64_t seer, int64_t seen);

  struct PackedLeft;
  mlir::FailureOr<PackedLeft> packedLeft(ChainState &state, const ChainProduct &product, mlir::Value left);
  mlir::FailureOr<PackedLeft> leftInTurns(ChainState &state, const ChainProduct &product);
  mlir::LogicalResult findLeft(ChainState &state, Issue &issue);
  void rightSteps(ChainState &state, const ChainProduct &product, llvm::SmallVectorImpl<Step> &steps);
  // What a left side's rows are multiplied with, of a thread's two each; nothing without (RoleScale.cpp).
  using RowScale = std::array<mlir::Value, 2>;
  PackedLeft packLeft(mlir::ValueRange entries, bool withRest);
  RowScale rowScale(mlir::ValueRange entries);
  mlir::LogicalResult findScale(ChainState &state, Issue &issue);
  void applyScale(llvm::MutableArrayRef<mlir::Value> entries, const RowScale &scale, bool divides = false);
  mlir::FailureOr<Values> startOf(ChainState &state, const Issue &issue);
  mlir::FailureOr<Values> startEntries(ChainState &state, const ChainProduct &product),
      startInTurns(ChainState &state, const ChainProduct &product);
  mlir::LogicalResult sumStarts(ChainState &state, unsigned wave);
  void takeTurns(ChainState &state, std::array<mlir::Value, 2> results, mlir::ValueRange entries, bool sums);
  void land(ChainState &state, size_t count);
  bool liesTurned(const ChainProduct &product) const;
  bool isStacked(const ChainProduct &product) const { return stacks && product.stack >= 0; }
  mlir::Value tokensLeft(mlir::Value chunk);
  std::optional<unsigned> outputOf(mlir::Value value) const; // that is nothing else
  mlir::FailureOr<Values> packedOutput(ChainState &state, unsigned output, mlir::Value value);
  Values storedOutput(ChainState &state, unsigned output, int64_t block, Values pairs);
  void storeOutputs(ChainState &state, llvm::ArrayRef<mlir::Value> packed);
  void storeRowsOfOutput(unsigned output, mlir::Value chunk, mlir::Value buffer, mlir::Value left);
  void copyOutputs(mlir::Value chunk, Stage stage);
  int64_t outputTileBytes() const { return plan.rowsOfOutput() * rowBytes; }
  mlir::Value outputAt(const Stage &stage, unsigned output, mlir::Value slab);
  std::pair<mlir::Value, mlir::Value> outputsOf(mlir::Value chunk, const Stage &stage);
  void awaitValues(mlir::Value chunk, const Stage &stage);
  Values columnNumbers(ChainState &state, int64_t offset, bool isUniform, int64_t eighths = 0);
  /// Whether a thread's entries are those of a slab of tokens, which has fewer columns than all others.
  bool isOfTokens(mlir::ValueRange entries) const;
  /// The 64 columns of a tile that the warpgroup's rows are among.
  mlir::Value halfOfSlab() { return plan.states > 1 ? ptx.shiftRight(slabIndex, 1) : slabIndex; }
  /// The blocks of 64 columns that the block's independent rows are.
  int64_t slabHalves() const { return slabs / plan.states; }
  /// A thread's entries of a value in 8 columns, and of a state.
  int64_t entriesOfEight() const { return 4 / plan.states; }
  int64_t entriesOfState() const { return plan.keys / 2 / plan.states; }
  void storeFinal(mlir::ValueRange entries);
  /// Row and column of each entry of a state that a thread has.
  void forStateEntries(llvm::function_ref<void(mlir::Value row, mlir::Value col)> body);
  mlir::Value launderedCall(), outputsMeet();
  Part find(TensorAccess &access);
  /// What a warpgroup leaves of a segment: the state's rows, and the factor.
  int64_t gatheredBytes() const { return stateBytes() + 16; }
  int64_t stateBytes() const { return rowsOfSlab * plan.keys * 4 + 128 * 4 * plan.heldPairs(); }
  Values givenState(unsigned state);
  Values initialState(), givenStates(), gatheredState();
  mlir::Value gathered(mlir::Value block, bool ofNormaliser = false);
  void storeGathered(mlir::ValueRange entries, mlir::Value scale);
  Values loadEntries(mlir::Value from);
  void storeEntries(mlir::Value to, mlir::ValueRange entries);

  // Segments that pass the state on (RolePassing.cpp).
  mlir::Value scratch(), isCut(), numberOfBlock();
  void takeNumber(), shareNumber();
  int64_t passedBytes() const;
  /// The state that a block's warpgroup passes on, and the word that is marked then.
  std::pair<mlir::Value, mlir::Value> passed(mlir::Value block, bool ofNormaliser = false);
  /// The state that the segment before leaves.
  Values passedState();
  void passState(mlir::ValueRange entries);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  Ptx ptx;
  const RolePlan &plan;
  mlir::Value call, maps;
  Entry &entry;
  RoleForm form;
  Phase phase;
  int64_t shards, team;
  llvm::SmallVector<ScoreRole> scorers;
  // A warpgroup that has the registers fetches numbers ahead, and takes products of a stack apart.
  bool isRoomy, stacks;

  int64_t stages, slabs;
  llvm::DenseMap<mlir::Value, std::pair<int64_t, int64_t>> tileOffsets;
  llvm::DenseSet<mlir::Value> earlyTiles;
  mlir::BlockArgument outputPlace; // the input in whose place outputs lie
  llvm::SmallVector<Slot> slots;

  // Of the block: its part, the number of the thread in its warpgroup, and so on; all i32 but those of the
  // part.
  Part part;
  mlir::Value base, thread, lane, warp, group, recordPitch, countOfChunks;
  mlir::Value slabIndex, firstSlab; // the warpgroup's in the block, and the block's first in the state
  // How many chunks before its segment the block begins, where it may; and whether that is in shared memory.
  mlir::Value early;
  bool hasBegin = false;
};

} // namespace recur::cuda
