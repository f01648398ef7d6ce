// How a chunk program is shared out between warp roles: what each value is, and the order of the chain's
// products.
//
// The roles follow from the dataflow. Numbers per token (gates, sums of decays, norms) are one warp's work;
// scores between tokens depend on no state and run ahead in a warpgroup; what has an independent row of the
// state as an index is the chain, and each of its warpgroups holds 64 such rows in registers, the state among
// them.
#pragma once
#include "lib/Algebra/JoinedKeys.h"
#include "lib/Algebra/RotatedUpdate.h"
#include "lib/Algebra/StackedReads.h"
#include "lib/Cuda/EntryCombinations.h"
#include "lib/Cuda/RoleValues.h"
#include "lib/Cuda/RowMaps.h"
#include "lib/Cuda/Tensors.h"
#include "llvm/ADT/SetVector.h"

namespace recur::cuda {

/// The tokens of a chunk, or its micro-steps, and the independent rows of the state that a warpgroup holds.
constexpr int64_t tokensOfChunk = 64, rowsOfSlab = 64;

/// The tokens of a warp that makes scores, or walks channels.
constexpr int64_t tokensOfWarp = 16;

/// The most keys of a state, and the most where a block may have two slabs: with more the registers of its
/// threads hold one, and what products read of it a part at a time.
constexpr int64_t mostKeys = 256, mostKeysBeside = 128;
/// As many, and those of a vector that is part of the state (JoinedKeys.h): a thread's registers hold that.
constexpr int64_t keysWithVector = mostKeysBeside + keysOfVector;

/// The entries that tiles have for so many: 64, 144 or a multiple of 128, or none where rows of memory cannot
/// be copied in packets. And whether they are that, and no more than there may be.
std::optional<int64_t> sizeOfTile(int64_t size);
inline bool isSizeOfTile(int64_t size) { return size <= mostKeys && sizeOfTile(size) == size; }

/// How many products between tokens a warpgroup makes together, as its registers hold the sums of as many.
constexpr size_t productsTogether = 2;

/// How much a key may decay in 16 tokens, as a binary logarithm, for a reference in their middle to be used:
/// the halves of two blocks together stay within f32's range.
constexpr double mostOfBlock = 120;

/// The plan of one program.
class RolePlan {
public:
  /// The plan, or failure where a value has no role. `statesOnly` leaves the outputs out.
  static mlir::FailureOr<RolePlan> make(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors,
                                        bool statesOnly = false);
  /// Has inputs be functions of what is copied, by name; failure where roles have no time or place for one.
  mlir::LogicalResult takeMaps(const RowMaps &known);
  llvm::SetVector<mlir::Value> paramsOf(const RowMap &map) const; // of the program
  /// Why there is no plan of a program, in words for people (RoleRefusal.cpp).
  static std::string refusal(chunk::ProgramOp program, llvm::ArrayRef<TensorArgument> tensors);

  /// The program's outputs, as far as they are wanted.
  unsigned countOutputs() const { return statesOnly ? 0 : outputsOfRule(); }
  /// The numbers whose product a chunk multiplies the state with, where all else that it adds to it does not
  /// depend on the state.
  std::optional<RowFactors> stateScale() const;
  /// The decays whose product bounds what a chunk leaves of two states' difference, if inputs alone tell any.
  llvm::SmallVector<mlir::Value> forgetting() const;
  /// Whether the decay of each key bounds that: key by key, where nothing that a chunk adds depends on the
  /// state, or as much as the slowest key of each token does.
  enum class Forgetting { Never, ByKey, BySlowestKey };
  Forgetting forgettingOfKeys() const;
  /// The tensor of an input or param, and the first of the initial states.
  unsigned tensorOf(mlir::BlockArgument argument) const;
  /// The tensors of an input: of a stacked one, those of each row, where there are such.
  llvm::SmallVector<std::optional<unsigned>, 2> tensorsOf(mlir::BlockArgument input) const;
  /// The rows of a block, at whose start states are read, where a chunk has several; and its tokens.
  std::optional<int64_t> starts() const { return program.getStarts(); }
  int64_t tokensOfBlock() const { return *starts() * tokens / tokensOfChunk; }
  /// What the state was at the start of a block of several chunks, or null.
  mlir::Value held() const {
    auto ops = program.getBody().getOps<chunk::HeldOp>();
    return ops.empty() ? mlir::Value() : (*ops.begin()).getResult();
  }
  /// A thread's pairs of it, which go from chunk to chunk, and to who goes on, as entries of the state do.
  int64_t heldPairs() const { return held() ? keys / 4 / states : 0; }
  /// Whether a token's two rows, at one time or in turn, lie by eights: those of eight tokens' first rows,
  /// then those of their second ones. Else a token's rows lie together.
  bool isStacked() const {
    return !stacked.empty() && stacked.front().rows.size() == 2 && !atOnce && !hasFunctions();
  }
  bool hasFunctions() const;
  /// The tokens of a box that the copy engine brings of an input's, or an output's, tensor; 0: a chunk's.
  int64_t tokensOfBox(mlir::BlockArgument input) const {
    return !stackedOf(input) ? tokensOfBox() : isStacked() ? 8 : 1;
  }
  int64_t tokensOfBox() const { return stacked.empty() ? 0 : tokens; }
  unsigned initialTensor() const;
  /// Whether a token has a row of an input for each of its micro-steps.
  bool hasSteps(mlir::BlockArgument input) const {
    return stackedOf(input) || tensors[tensorOf(input)].own[0];
  }
  /// The rows of an input's tile, and those of them that a chunk of tokens fills.
  int64_t rowsOf(mlir::BlockArgument input) const { return hasSteps(input) ? tokensOfChunk : columns; }
  int64_t filledRows(mlir::BlockArgument input) const;
  unsigned outputTensor(unsigned output) const {
    return tensors.size() - statesOfRule() - outputsOfRule() + output;
  }
  /// Whether its parts take so many keys: walks, sums and turns have them by sixty-fours.
  bool takesKeys() const;
  /// The keys of a state, and its rows, that are in memory, where its tiles have more.
  int64_t keysInMemory() const, rowsInMemory() const;
  /// The tensor of a state before the first token, and after the last one; by number among the rule's.
  unsigned finalTensor(unsigned state) const { return tensors.size() - statesOfRule() + state; }
  unsigned stateOfRule(unsigned state) const {
    return rotated ? rotated->states[state] : state + (normaliser && state >= normaliser.getState());
  }
  unsigned statesOfRule() const {
    return rotated ? rotated->statesOfRule : countStates() - isAnchored + (normaliser ? 1 : 0);
  }
  /// Whether the last state is a param.
  bool isAnchored = false;
  /// What an input without a tensor, a number of the next token, is at the token itself; or null.
  mlir::Value ofToken(mlir::BlockArgument input) const;
  /// Whether nothing but such numbers follows from an input.
  bool isForNextAlone(mlir::BlockArgument input) const;
  /// The tile that a value is (in the program or in one of its maps), if it is one.
  std::optional<TokenTile> asTile(mlir::Value value) const;
  /// Whether the chain reads an input as it is, and whether what does not depend on the state follows from
  /// it.
  bool isForChain(mlir::BlockArgument input) const { return plainInputs.contains(input); }
  bool isForScores(mlir::BlockArgument input) const;
  /// The rows of a made tile; and whether it lies behind those of the input whose place it takes.
  int64_t rowsOf(const MadeTile &tile) const { return isOfTokens(tile.rows) ? columns : tokensOfChunk; }
  bool isBehind(const MadeTile &tile, mlir::BlockArgument place) const;
  /// Whether a place is no input's, and goes by the state's name.
  bool isSpare(mlir::BlockArgument place) const {
    return place.getOwner() == spares.get() ||
           program.getArg(place.getArgNumber()).getKind() == ArgKind::State;
  }
  /// Whether a made tile lies in an input's place, and whether only products that need no other read it.
  bool isPlace(mlir::BlockArgument input) const;
  bool isReadFirst(mlir::BlockArgument place) const;
  /// Whether rows of an input are columns of the chain's slabs, and not keys.
  bool isSlab(mlir::BlockArgument input) const;
  /// Whether the rows of a value are tokens, where those of others are micro-steps.
  bool isOfTokens(mlir::Value value) const { return !isOf(false, value); }
  /// As above; with a decay of each key rows may also follow from inputs' entry by entry.
  std::optional<TokenTile> asRows(mlir::Value value) const;
  /// The inputs that rows follow from.
  static llvm::SetVector<mlir::BlockArgument> leavesOf(mlir::Value rows);
  /// Whether a value is one number per token that a warp can compute.
  bool isRow(mlir::Value value) const;
  /// Whether a factor is positive, whatever the inputs; and factors of the same product, as single numbers.
  static bool isPositive(RowFactor factor);
  static RowFactors flatten(llvm::ArrayRef<RowFactor> factors);
  /// The factors of the rows of scores, and the product between tokens that they are factors of; null where
  /// scores are more than that, or than that times what reaches a coupled state.
  std::pair<RowFactors, chunk::GramOp> splitScores(mlir::Value scores) const;
  /// What reaches a coupled state, as scores; and which of `masks` some scores have as a factor, or -1.
  static std::optional<CoupledMask> asMask(mlir::Value value);
  int maskOf(mlir::Value scores) const;
  /// Writes inner products that such a mask is a factor of as products between tokens.
  static void findMasks(chunk::ProgramOp program);
  static bool sharesMasks(chunk::ProgramOp program);
  /// Reads two coupled states along the same rows at once, times a sum of numbers; writes to both likewise.
  static void readOnce(chunk::ProgramOp program);
  static void writeBoth(chunk::ProgramOp program);
  /// Has a vector that sums keys be read beside scores, instead of being a state (RoleNormaliser.cpp).
  static void takeNormaliser(chunk::ProgramOp program, RuleOp rule);
  /// Whether a number follows from what is read of it: who makes scores stores it behind them.
  static bool isLate(mlir::Value value);
  static bool isLate(llvm::ArrayRef<RowFactor> factors);
  /// What the scores that it is read beside, as they are stored, are to be times of each row and column.
  struct NormaliserScale {
    RowFactors rows, columns;
  };
  NormaliserScale normaliserScale() const;
  /// What a token's key is times where it is summed.
  RowFactors normaliserWeights() const;
  /// Writes decays that may be negative as those of their sizes, and their signs as factors (RoleSigns.cpp);
  /// whether a decay is such signs.
  static void splitSigns(chunk::ProgramOp program);
  static bool areSigns(mlir::Value decay);
  /// Whether a state takes in another one and never decays, so that what products are off by adds up.
  static bool addsUp(chunk::ProgramOp program);
  /// Whether what is read of a state is written to one that feeds it: it may turn from one into the other and
  /// back, and what products are off by with it.
  static bool swings(chunk::ProgramOp program);
  /// Whether a product's left side is a state that is read in two parts: what follows magnifies errors
  /// (Stages.h).
  bool isInParts(const ChainProduct &product) const;
  /// Whether what is computed of states is a product's left side in two parts, what bf16 holds of it and what
  /// it holds of the rest. So it is where what products are off by adds up, or is magnified by the system: a
  /// state takes in another one and never decays, or swings, or there are more tokens than keys.
  bool keepsRest(const ChainProduct &product) const;
  bool keepsRests = false;
  /// Whether the system's inverse is in two such parts: then, and where there are as many tokens as keys.
  bool splitsInverse = false;
  bool refinesInverse = false; // whether it is made of blocks in two parts each, too
  /// Whether both parts are one left side: the row of the other state, which has no part in it, has the rest.
  bool sumsRows(const ChainProduct &product) const {
    return keepsRests && states > 1 && product.other < 0 && product.kind >= ChainProduct::Scores;
  }
  /// Whether an output is the rest that rounding leaves of the same value's output before.
  bool isRest(unsigned output) const;
  int stateOf(mlir::Value value) const; // which one an argument is, or -1
  /// Whether a value is not negative, as ranges say.
  bool isNotNegative(mlir::Value value) const;
  /// What tells the numbers of a scalar decay: its logarithms or else the factors themselves.
  static mlir::Value sourceOf(mlir::Value decay);
  /// What the rows on the left of a product between tokens have decayed by.
  chunk::Span leftSpan(chunk::GramOp gram) const;
  /// Whether a decay has a factor for each key; and a value is what such a one leaves at the chunk's end.
  static bool isOfKeys(mlir::Value decay);
  static bool isWholeOfKeys(mlir::Value value);
  /// The tile that is made for one of the chain's.
  const MadeTile &madeOf(const TokenTile &tile) const;
  /// Whether no block of 16 tokens decays by more than `mostOfBlock`, as ranges say, and the logarithms: of a
  /// decay of each key or row. Those of rows are an input, those of keys follow from some and numbers of the
  /// token (RoleLogs.cpp).
  bool isMild(mlir::Value decay) const;
  static mlir::Value logsOf(mlir::Value decay);
  bool isMild() const { return isMild(decay); }
  /// The input that logarithms of rows are or, of a token's rows in turn, are at the first one; or null.
  mlir::BlockArgument rowLogs() const;
  mlir::Value logs() const;
  /// Which operand of a product of logarithms with the number that is 1 at a token's first row these are, or
  /// -1.
  static int besideFirst(mlir::Value logs, mlir::BlockArgument isFirst);
  /// Whether they count at a token's first row alone, and those of others do not.
  bool decaysAtFirst() const;
  /// What the logarithms of keys follow from; of that the inputs, and vectors that follow from params.
  llvm::SetVector<mlir::Value> leavesOfLogs() const;
  llvm::SetVector<mlir::BlockArgument> tilesOfLogs() const;
  llvm::SetVector<mlir::Value> vectorsOfLogs() const;
  bool isOfParams(mlir::Value vector) const;
  /// Whether logarithms of rows past a sequence's end, or of later micro-steps, do not count; the former's.
  bool masksLogs() const { return (decaysAtFirst() && !isStacked()) || outlastRows(); }
  bool outlastRows() const { return isOfParams(logs()) || !vanishLogs(logs()); }
  /// Writes decays of values as what values are divided by and outputs are times, where it can
  /// (RoleRescaled.cpp); whether a decay is one of those.
  static void rescaleRows(chunk::ProgramOp program);
  static bool isRescaled(mlir::Value decay);
  static bool mixesRows(chunk::ProgramOp program);
  /// Writes a decay of each key as what rows are times, where it can (RoleScaledKeys.cpp); whether a decay is
  /// one of those, and its logarithms.
  static bool scaleKeys(chunk::ProgramOp program);
  static bool isScaling(mlir::Value decay);
  mlir::BlockArgument scalingLogs() const;
  /// The tokens of a chunk that rows are scaled relative to: the middle one, or that of either half.
  int64_t references() const;
  /// The inputs that scaled rows follow from or take the places of, and those logarithms; the rows in a
  /// place.
  llvm::SetVector<mlir::BlockArgument> inputsOfScaled() const;
  const MadeTile *scaledIn(mlir::BlockArgument place) const;
  bool rescales() const { return rowDecay && isRescaled(rowDecay); }
  /// Whether no chunk decays further than its numbers reach, as ranges say.
  bool isMildChunk() const;
  bool comesInPieces() const { return rescales() && !isMildChunk(); }
  /// Gives decays of keys their logarithms, as far as these can be taken: of those that may be negative,
  /// which `signedFactors` are then, else null, those of their sizes.
  static void takeLogs(chunk::ProgramOp program);
  mlir::Value signedFactors() const;
  /// Whether a value is what the decay of each row leaves over some span.
  bool isOfRows(mlir::Value value) const;
  /// Whether the system's entries are inner products of short rows, times numbers of at most 2 and what only
  /// shrinks, so that those of its inverse are in the range of half precision (RoleTame.cpp).
  bool isTame() const { return mostOf(system) <= 2; }
  bool isF16 = false; // vectors are f16, and not bf16, and so is what products read
  /// Whether scores may be multiplied with factors: in f16 with norms, and constants that are not too large
  /// or small.
  bool keepsRange(llvm::ArrayRef<RowFactor> factors) const;
  /// Whether blocks of the inverse are in f16 or, with two parts, in bf16, and how many.
  bool invertsInHalves() const { return refinesInverse || isTame(); }
  int64_t partsOfHalves() const { return refinesInverse ? 2 : 1; }
  /// Whether there are more products between tokens than a warpgroup makes together.
  bool hasManyProducts() const { return !decay && grams.size() > productsTogether; }
  /// The products between tokens that some scores consist of, in the order of `grams`.
  llvm::SetVector<mlir::Operation *> gramsOf(llvm::ArrayRef<mlir::Value> scores) const;
  /// The one of `grams` that multiplies the same rows as another one, whatever tokens see of them and what
  /// decays between; itself where there is none.
  chunk::GramOp productOf(chunk::GramOp gram) const;
  bool isOf(const ScoreTile &tile, mlir::Operation *product) const;
  /// Whether a number, or a vector of functions, follows from sums over rows.
  static bool needsSums(mlir::Value value);
  /// Whether such a number is the same for all tokens of a chunk.
  static bool isUniform(mlir::Value value);
  /// What solves for a value, where each row of the state has a system for itself, or null.
  static mlir::Operation *ownSystemOf(mlir::Value value);
  /// Whether a vector of a map follows, entry by entry, from inputs and params, and `withNumbers` numbers.
  bool isVectorOfTiles(mlir::Value value, bool withNumbers = false) const;
  /// Whether a vector's entries are zero where those of the inputs and, `withParams`, those of params are.
  bool vanishes(mlir::Value value, bool withParams) const;
  /// Whether a value has tokens for rows and columns.
  static bool isScores(mlir::Value value);
  /// The value itself, transpositions taken away: the chain does not tell a slab from its transposed.
  static mlir::Value strip(mlir::Value value);
  /// Whether a value of the chain is computed from another one.
  static bool dependsOn(mlir::Value value, mlir::Value other);
  /// What an argument of a map stands for, what a result of one is in its region, else the value.
  static mlir::Value trace(mlir::Value value);

  mutable chunk::ProgramOp program; // its accessors are not const
  llvm::ArrayRef<TensorArgument> tensors;
  /// The state's dimension (0 rows, 1 columns) that is independent, its size, and that of the other one.
  int independentDim = 0;
  int64_t independent = 0, keys = 0;
  /// One, or two of a size that numbers couple: of these a thread of the chain has a row each instead of two
  /// of one, and a warpgroup half as many independent rows.
  int64_t states = 1;
  /// States that each key couples by itself, one beside the other in a thread's registers (RoleAbreast.cpp);
  /// and all that there are. Whether those are more than the registers hold what is read of.
  int64_t abreast = 1;
  int64_t countStates() const { return states * abreast; }
  bool isWide() const { return keys * abreast > keysWithVector; }
  /// What a chunk makes of each key, a number or of states abreast a matrix of numbers.
  int64_t wholeBytes() const { return 4 * keys * abreast * abreast; }
  /// An entry of a token's transitions: numbers times a vector that follows from tiles and params entry by
  /// entry, or null. Failure where it is no such product.
  mlir::FailureOr<std::pair<RowFactors, mlir::Value>> splitTransition(mlir::Value entry) const;
  /// The factors that a product's rows are written with to each of these states, none where they are not.
  llvm::SmallVector<std::optional<RowFactors>, 2> weightsOf(chunk::GramOp gram) const;
  llvm::SmallVector<CoupledMask> masks;
  /// The vector that is read beside scores, or null, and which of the score tiles.
  mutable chunk::NormaliserOp normaliser;
  unsigned normaliserTile = 0;
  bool takesCommon = false; // whether factors of all that a mask reads are not the mask's
  /// A chunk's rows are the micro-steps of some tokens. What belongs to a token, not to a micro-step, is a
  /// slab of fewer columns, a multiple of 16, which may be more than there are tokens.
  int64_t steps = 1, tokens = tokensOfChunk, columns = tokensOfChunk;
  /// Which of a token's micro-steps has its outputs: the last one, or the first.
  bool readsFirst = false;
  int64_t stepOfOutputs() const { return readsFirst ? 0 : steps - 1; }
  /// The input without a tensor that is 1 at a token's first micro-step, or row, and else 0; or null. And all
  /// such inputs: those of stacked rows, but for the last one.
  mlir::BlockArgument isFirst;
  llvm::SmallVector<mlir::BlockArgument> rowNumbers;
  /// Inputs that stand for several; and whether a token's second row, by eights, sees what its first one
  /// wrote.
  llvm::SmallVector<StackedInput> stacked;
  bool inTurn = false;
  /// Whether a token's row sees what a row of its own writes; by number.
  bool seesOwn(chunk::Reach reach, unsigned later, unsigned earlier) const {
    return reach == chunk::Reach::Inclusive || (inTurn && later > earlier);
  }
  /// What the rule is to the kernel's, a rotated one.
  std::optional<RotatedUpdate> rotated;
  /// A token's rows are simultaneous, as those that stand for two are, but lie together as micro-steps do;
  /// and whether outputs have such rows, too.
  bool atOnce = false, rowOutputs = false;
  /// Outputs are made for all rows of a chunk, by eights, and those of tokens are picked.
  bool picksOutputs = false;
  /// Whether a decay, which all of a token's rows have, counts at the first one.
  bool decaysByToken() const { return isStacked() || atOnce; }
  /// Whether the rows of an input, or output, lie in memory as the columns of a token's matrix.
  bool areColumns(mlir::BlockArgument input) const {
    return atOnce && !stackedOf(input) && tensors[tensorOf(input)].stepsLast;
  }
  bool areColumns(unsigned output) const {
    return rowOutputs && tensors[outputTensor(output)].entry().numRows() == independent;
  }
  /// The rows of an output's tile.
  int64_t rowsOfOutput() const { return rowOutputs ? tokensOfChunk : columns; }
  /// Whether a block has room for the walkers of its channels and for the chain (RoleBeside.cpp).
  bool canWalkBeside() const;
  /// Whether the blocks of a team may do so for one another.
  bool canShareWalk() const;
  /// Whether two warps have no sums over rows to make, but time for tables of a decay, whose logarithms are
  /// an input as it is.
  bool leavesTimeForTables() const;
  /// Products in the order of waves.
  llvm::SmallVector<ChainProduct> products;
  unsigned waves = 0;
  /// Inputs in shared memory; those of one stack together.
  llvm::SmallVector<llvm::SmallVector<mlir::BlockArgument>> inputs;
  /// Scores that the chain multiplies with, the system that it solves (or null), and the products between
  /// tokens.
  llvm::SmallVector<ScoreTile> scores;
  mlir::Value system;
  llvm::SmallVector<chunk::GramOp> grams;
  /// Of the scores that of a system which each independent row has for itself, or -1: the rows share the
  /// products between tokens, and each has factors or decays of its own.
  int ownSystem = -1;
  /// Whether all rows have the same inverses of blocks on its diagonal; or no token sees others of those.
  bool invertsOwnLeaves = false, hasNoLeaves = false;
  /// Whether the system is less that.
  bool isNegated = false;
  /// The sums that functions of what is read take over the state's rows, all of which a block has then.
  int64_t rowSums = 0;
  /// What they write, where that is a sum of vectors, each times a number.
  std::optional<Combination> combination;
  /// A factor of the columns of the system's inverse, or null.
  mlir::Value inverseScale;
  /// A decay of each key, or null; the tiles that it makes for the chain, and the rows at the right of
  /// products between tokens.
  mlir::Value decay;
  /// A decay of each independent row, or null.
  mlir::Value rowDecay;
  llvm::SmallVector<MadeTile> made;
  /// A mild decay of each key that rows are scaled by, or null, and those rows.
  mlir::Value scaling;
  llvm::SmallVector<MadeTile> scaled;
  llvm::SmallVector<mlir::Value> rights;
  /// An input that the chain alone reads, before its outputs are made, and whose place in shared memory can
  /// take them; or null.
  mlir::BlockArgument outputPlace;
  /// Whether sums as below are over functions of rows that take more than a multiplication.
  bool sumsFunctions() const;
  /// Whether who walks the channels may sum over rows, too, as it has them: no decay follows from the sums.
  bool walkersSum() const;
  /// Whether logarithms of the decay of each key follow from numbers of tokens.
  bool haveNumbersInLogs() const;
  /// Sums over rows that numbers per token follow from; and those that are such a sum of a stacked input, at
  /// one of its rows.
  llvm::SetVector<mlir::Operation *> reductions;
  llvm::DenseMap<mlir::Operation *, std::pair<mlir::Operation *, unsigned>> sumsInStacks;
  /// The stacked input whose first row of a token is the second one of an input, which has no first one, and
  /// which the chain so has in registers without a place in shared memory; or null.
  mlir::BlockArgument oneRowLater(mlir::BlockArgument input) const;
  /// The stacked input in shared memory, and which of its rows, that sums find an input in.
  std::optional<std::pair<mlir::BlockArgument, unsigned>> stackWith(mlir::BlockArgument input) const;
  /// The vectors that are the same for all tokens and lie in shared memory: params of such sums, and those of
  /// logarithms; or of what the chain makes of what it reads.
  llvm::SetVector<mlir::Value> sharedVectors() const, vectorsOfFunctions() const;
  bool statesOnly = false;
  llvm::DenseMap<mlir::BlockArgument, RowMap> maps;
  /// The wave that a value of the chain can be used in.
  llvm::DenseMap<mlir::Value, unsigned> available;

private:
  unsigned nextNumbers() const { return rotated ? rotated->numbers.size() : 0; }
  unsigned outputsOfRule() const { return program.getOutputs().size() - nextNumbers(); }
  std::optional<RowFactors> scaleAtStart() const;
  bool addsWithoutState() const;
  bool isPadded() const, endsInZeros() const;
  void keepDigits(), sumInStacks(), shareRows();
  mlir::LogicalResult check();
  bool areProductsFew() const;
  mlir::LogicalResult findRows(), findSteps();
  const StackedInput *stackedOf(mlir::BlockArgument input) const;
  bool isOf(bool tokens, mlir::Value value) const;
  bool isPicked(mlir::Value value) const;
  bool isOf(bool tokens, mlir::BlockArgument input) const { return steps == 1 || hasSteps(input) != tokens; }
  mlir::FailureOr<unsigned> visit(mlir::Value value);
  mlir::FailureOr<unsigned> visitProduct(mlir::Operation *op, mlir::Value result, mlir::Value start,
                                         bool chained, unsigned leastWave = 0);
  mlir::LogicalResult visitScores(mlir::Value value);
  mlir::LogicalResult needMask(CoupledMask mask);
  mlir::LogicalResult needNormaliser();
  mlir::LogicalResult checkNormaliser();
  bool leavesNormaliser(chunk::GramOp gram, llvm::ArrayRef<RowFactor> columns) const;
  bool forgetsNormaliser(llvm::ArrayRef<mlir::Value> decays) const;
  /// The mask that a value is, as the plan's masks are.
  std::optional<CoupledMask> coupledMask(mlir::Value value) const;
  /// The range of a value's entries, as far as declared ranges say; and whether none is beyond 1.
  RangeAttr rangeOf(mlir::Value value) const;
  bool isWithinOne(mlir::Value value) const;
  double longestOf(const TokenTile &tile) const;
  bool shrinks(mlir::Value decay) const;
  double mostOf(mlir::Value scores) const;
  bool isPacked(unsigned tensor) const;
  bool areTensorsPacked() const;
  mlir::LogicalResult needRow(mlir::Value value), needInput(mlir::BlockArgument input);
  mlir::LogicalResult needTile(const TokenTile &tile), checkDecay(), checkStates();
  mlir::Value leftOf(mlir::Operation *op) const;
  std::optional<mlir::FailureOr<unsigned>> visitSum(AddOp sum, mlir::Value value);
  RowFactors resultScaleOf(MatmulOp product) const;
  std::optional<RowFactors> scaleOfSum(mlir::Value value) const;
  bool isScalarDecay(mlir::Value decay) const;
  void findDecay();
  bool isOfDecay(mlir::Value value) const;
  static std::optional<TokenTile> decayed(std::optional<TokenTile> tile, mlir::Value value);
  mlir::LogicalResult needDecay(mlir::Value value);
  mlir::LogicalResult needTransitions();
  std::optional<std::pair<chunk::Span, KeyCoupling>> couplingOf(mlir::Value factor) const;
  mlir::LogicalResult needLogs(mlir::Value logs);
  bool isNumberOfLogs(mlir::Value value) const;
  bool vanishLogs(mlir::Value logs) const;
  bool countsAtFirst(mlir::BlockArgument logs) const;
  mlir::LogicalResult needRowDecay();
  mlir::LogicalResult visitMix(chunk::MixOp mix);
  mlir::FailureOr<unsigned> visitSubstitution(chunk::TriSolveOp solve);
  mlir::FailureOr<unsigned> visitFunctions(chunk::SubstituteOp op);
  mlir::LogicalResult needOwnSystem(mlir::Value block);
  unsigned needScores(mlir::Value scores, RowFactors columnScale);
  mlir::LogicalResult needRight(const TokenTile &tile);
  void turnScores(), foldOutputs();
  llvm::SmallVector<mlir::Value> factorsOf(mlir::Value value) const;
  int64_t timesFactor(mlir::Value value, mlir::Value factor) const;
  void moveFactor();
  void placeOutputs();
  void delayWrites(), delayReads();
  mlir::LogicalResult pairProducts();
  mlir::LogicalResult stackProducts();
  mlir::BlockArgument place(const TokenTile &tile);
  mlir::LogicalResult placeScaled();
  std::optional<TokenTile> scaledTile(mlir::Operation *op, unsigned i) const;

  /// Whose arguments are places of tiles that no input has room for.
  std::shared_ptr<mlir::Block> spares;
  /// Inputs in shared memory; those that the chain reads as they are; and those that are summed over.
  llvm::SetVector<mlir::BlockArgument> neededInputs, plainInputs, summedInputs;
};

} // namespace recur::cuda
