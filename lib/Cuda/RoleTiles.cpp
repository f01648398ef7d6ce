// The part of a plan that concerns decays: what ranges say of them, and the tiles that a decay of each key
// makes.
#include "lib/Algebra/Bounds.h"
#include "lib/Cuda/EntryFunctions.h"
#include "lib/Cuda/RolePlan.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

RangeAttr RolePlan::rangeOf(Value value) const {
  value = trace(value);
  MLIRContext *context = value.getContext();
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    if (argument.getOwner()->getParentOp() != program)
      return {};
    ArgAttr arg = program.getArg(argument.getArgNumber());
    if (arg.getKind() < ArgKind::Position)
      return arg.getRange();
    return RangeAttr::get(context, arg.getKind() == ArgKind::Heads ? 1 : 0,
                          std::numeric_limits<double>::infinity(), false, false);
  }
  if (auto sum = value.getDefiningOp<AddOp>())
    if (RangeAttr mean = rangeOfMean(sum, [&](Value part) { return rangeOf(part); }))
      return mean;
  auto known = value.getDefiningOp<RangeOp>();
  if (!known)
    return {};
  SmallVector<RangeAttr> operands;
  for (Value operand : known->getOperands())
    operands.push_back(rangeOf(operand));
  return known.inferRange(operands);
}

bool RolePlan::isNotNegative(Value value) const {
  RangeAttr range = rangeOf(value);
  return range && range.getLo() >= 0;
}

bool RolePlan::isWithinOne(Value value) const {
  RangeAttr range = rangeOf(value);
  return range && range.getLo() >= -1 && range.getHi() <= 1;
}

Value RolePlan::sourceOf(Value decay) {
  auto op = decay.getDefiningOp<chunk::DecayOp>();
  return op.getLog() ? op.getLog() : op.getFactors();
}

chunk::Span RolePlan::leftSpan(chunk::GramOp gram) const {
  if (gram.getReach() == chunk::Reach::Start)
    return chunk::Span::Start;
  bool isBefore = chunk::isLate(gram.getDecay()) || gram.getReach() == chunk::Reach::Before;
  return isBefore && !asRows(gram.getLhs())->decayed ? chunk::Span::Until : chunk::Span::Through;
}

bool RolePlan::isOfKeys(Value decay) { return !isOne(chunk::typeOfFactors(decay.getType()).getCols()); }

bool RolePlan::isWholeOfKeys(Value value) {
  auto weights = trace(value).getDefiningOp<chunk::WeightsOp>();
  return weights && weights.getSpan() == chunk::Span::Whole && isOfKeys(weights.getDecay());
}

Value RolePlan::logsOf(Value decay) { return trace(decay.getDefiningOp<chunk::DecayOp>().getLog()); }

int RolePlan::besideFirst(Value logs, BlockArgument isFirst) {
  auto product = logs.getDefiningOp<MulOp>();
  for (int i : {0, 1})
    if (product && isFirst && trace(product->getOperand(1 - i)) == isFirst)
      return i;
  return -1;
}

Value RolePlan::logs() const {
  if (abreast > 1)
    return {};
  Value logs = logsOf(decay);
  int own = besideFirst(logs, isFirst);
  return own < 0 ? logs : trace(logs.getDefiningOp()->getOperand(own));
}

bool RolePlan::decaysAtFirst() const { return abreast == 1 && besideFirst(logsOf(decay), isFirst) >= 0; }

bool RolePlan::isMild(Value decay) const {
  RangeAttr range = rangeOf(logsOf(decay));
  bool byToken = decay == rowDecay || (decay == this->decay && (decaysAtFirst() || decaysByToken()));
  int64_t tokens = byToken ? llvm::divideCeil(16, steps) : 16;
  return range && range.getLo() >= -mostOfBlock / (tokens * llvm::numbers::log2e);
}

// The decay of each key and that of each row, which values have between tokens; where there are several, the
// first.
void RolePlan::findDecay() {
  program.getBody().walk([&](chunk::CascadeOp op) {
    if (isOfKeys(op))
      decay = op;
  });
  program.getBody().walk([&](chunk::DecayOp op) {
    bool ofRows = isRescaled(op) ||
                  llvm::any_of(op->getUsers(), [](Operation *user) { return isa<chunk::MixOp>(user); });
    if (Value &own = isScaling(op) ? scaling : ofRows ? rowDecay : decay; !own && isOfKeys(op))
      own = op;
  });
}

bool RolePlan::isOfRows(Value value) const {
  auto weights = trace(value).getDefiningOp<chunk::WeightsOp>();
  return weights && rowDecay && weights.getDecay() == rowDecay;
}

BlockArgument RolePlan::rowLogs() const {
  if (!rowDecay.getDefiningOp<chunk::DecayOp>().getLog())
    return {};
  Value logs = logsOf(rowDecay);
  if (int own = besideFirst(logs, isFirst); own >= 0)
    logs = trace(logs.getDefiningOp()->getOperand(own));
  return dyn_cast<BlockArgument>(logs);
}

// Whether a token's decay counts at its first row, or for all that are read at one time, as those who sum
// logarithms have it.
bool RolePlan::countsAtFirst(BlockArgument logs) const {
  bool isOnce = logs != logsOf(rowDecay), isAtOneTime = atOnce || (isStacked() && !inTurn);
  return !hasSteps(logs) && isOnce != isAtOneTime &&
         (isStacked() || (rescales() && llvm::isPowerOf2_64(steps) && steps <= 8));
}

LogicalResult RolePlan::needRowDecay() {
  auto op = rowDecay.getDefiningOp<chunk::DecayOp>();
  BlockArgument input = rowLogs();
  if (!input || program.getArg(input.getArgNumber()).getKind() != ArgKind::Input ||
      (steps > 1 && !countsAtFirst(input)) || matType(op.getFactors()).numCols() != independent)
    return failure();
  plainInputs.insert(input);
  return needInput(input);
}

// Scores times rows whose entries decay in between: the chain makes them of a tile.
LogicalResult RolePlan::visitMix(chunk::MixOp mix) {
  std::optional<TokenTile> tile = asTile(mix.getValues());
  bool isSolved = mix.getValues().getDefiningOp<chunk::TriSolveOp>() != nullptr;
  if (mix.getDecay() != rowDecay || !(isSolved || (tile && steps == 1)) || failed(needRowDecay()) ||
      failed(visitScores(mix.getScores())) || failed(visit(mix.getValues())))
    return failure();
  needScores(mix.getScores(), tile && keepsRange(tile->scale) ? tile->scale : RowFactors());
  return success();
}

// A system that each row has for itself: the chain substitutes.
FailureOr<unsigned> RolePlan::visitSubstitution(chunk::TriSolveOp solve) {
  if (states > 1 || solve.getBlocks().size() != 1 || (steps > 1 && !isStacked()) ||
      solve.getDecay() != rowDecay || (rowDecay && failed(needRowDecay())))
    return failure();
  FailureOr<unsigned> wave = visit(solve.getRhs().front());
  // What decays is known relative to its block of tokens: it is mixed, or decays to the chunk's end.
  auto isKnownUse = [&](Operation *user) {
    auto mix = dyn_cast<chunk::MixOp>(user);
    return mix ? splitScores(mix.getScores()).second != nullptr
               : isa<MulOp>(user) && llvm::any_of(user->getOperands(), [&](Value operand) {
                   return isOfRows(operand) &&
                          operand.getDefiningOp<chunk::WeightsOp>().getSpan() == chunk::Span::Rest;
                 });
  };
  if (failed(wave) || (rowDecay && !llvm::all_of(solve.getResult(0).getUsers(), isKnownUse)))
    return failure();
  for (Value factors : solve.getFactors()) {
    FailureOr<unsigned> own = visit(factors);
    if (failed(own))
      return failure();
    wave = std::max(*wave, *own);
  }
  if (failed(needOwnSystem(solve.getBlocks().front())))
    return failure();
  invertsOwnLeaves = rowDecay && solve.getFactors().empty() && solve.getReach() != chunk::Reach::Before;
  return available[solve.getResult(0)] = *wave;
}

bool RolePlan::hasFunctions() const { return !program.getBody().getOps<chunk::SubstituteOp>().empty(); }

// What is read of the state and written to it, a function of that: with a sum where a system has a
// difference.
FailureOr<unsigned> RolePlan::visitFunctions(chunk::SubstituteOp op) {
  if (op.getReads().size() != 1 || op.getWrites().size() > 2 || rowDecay || refusalOf(op, /*sums=*/true))
    return failure();
  rowSums = countSums(op);
  const TensorArgument &ofState = tensors[initialTensor() + stateOfRule(0)];
  bool hasAllRows = !ofState.inMemory[independentDim], isPart = ofState.shardedDim == independentDim;
  FloatAttr none;
  bool isSystem = !matchPattern(op.getBlocks().front(), m_Constant(&none)) || !none.getValue().isZero();
  chunk::GramOp gram = splitScores(op.getBlocks().front()).second;
  hasNoLeaves =
      !isSystem || (gram && gram.getReach() == chunk::Reach::Start && *starts() % tokensOfWarp == 0);
  // What is written nowhere is an output.
  bool isOutput = op.getWrites().size() == 1 || (matchPattern(op.getBlocks()[1], m_Constant(&none)) &&
                                                 none.getValue().isZero() && hasNoLeaves);
  if (!isOutput)
    return failure();
  if (rowSums && op.getReads().front().use_empty() && !hasNoLeaves)
    combination = combinationOf(op);
  // A vector that is written takes as long, in turns, as warps take to meet.
  if (combination && hasAllRows && llvm::count(combination->isWritten, true) > depthOfSums(op))
    combination = std::nullopt;
  // Sums are of one block's rows.
  if (rowSums && (isPart || independent * states > 2 * rowsOfSlab))
    return failure();
  unsigned wave = 0;
  SmallVector<Value> operands(op.getSides());
  llvm::append_range(operands, op.getRows());
  llvm::append_range(operands, op.getShared());
  for (Value operand : operands) {
    if (!isa<MatType>(operand.getType()))
      return failure();
    if (auto param = dyn_cast<BlockArgument>(operand);
        param && !matType(param).isScalar() &&
        program.getArg(param.getArgNumber()).getKind() == ArgKind::Param && hasAllRows)
      continue;
    FailureOr<unsigned> own = visit(operand);
    if (failed(own))
      return failure();
    wave = std::max(wave, *own);
  }
  if (isSystem && (failed(needOwnSystem(op.getBlocks().front())) || isNegated))
    return failure();
  isNegated = true;
  for (Value write : op.getWrites())
    available[write] = wave;
  return available[op.getReads().front()] = wave;
}

LogicalResult RolePlan::needOwnSystem(Value block) {
  block = trace(block);
  auto negation = block.getDefiningOp<NegOp>();
  if (negation)
    block = trace(negation.getOperand());
  if (ownSystem >= 0 || failed(visitScores(block)) || !splitScores(block).second)
    return failure();
  ownSystem = scores.size();
  isNegated = negation != nullptr;
  scores.push_back({block, {}});
  return success();
}

Operation *RolePlan::ownSystemOf(Value value) {
  Operation *op = strip(value).getDefiningOp();
  auto solve = dyn_cast_if_present<chunk::TriSolveOp>(op);
  return isa_and_present<chunk::SubstituteOp>(op) || (solve && solve.isByColumn()) ? op : nullptr;
}

// Whether two values follow from the same ones by the same operations.
static bool areAlike(Value x, Value y) {
  x = RolePlan::trace(x), y = RolePlan::trace(y);
  Operation *op = x.getDefiningOp(), *other = y.getDefiningOp();
  if (x == y || !op || !other)
    return x == y;
  return op->getName() == other->getName() && x.getType() == y.getType() &&
         op->getAttrDictionary() == other->getAttrDictionary() && isPure(op) &&
         llvm::all_of_zip(op->getOperands(), other->getOperands(), areAlike);
}

// Whether a value is weights of the decay of each key, or its factors. Those that are the same for all tokens
// may be computed in several places.
bool RolePlan::isOfDecay(Value value) const {
  if (!(decay || scaling) || abreast > 1)
    return false;
  value = trace(value);
  if (auto weights = value.getDefiningOp<chunk::WeightsOp>())
    return weights.getDecay() == decay && weights.getSpan() != chunk::Span::Whole;
  Value factors = trace((decay ? decay : scaling).getDefiningOp<chunk::DecayOp>().getFactors());
  return value == factors || (isOfParams(value) && areAlike(value, factors));
}

std::optional<TokenTile> RolePlan::asRows(Value value) const {
  if (std::optional<TokenTile> tile = asTile(value))
    return tile;
  value = trace(value);
  if (!(decay || scaling) || !isa_and_present<ElementwiseOp>(value.getDefiningOp()) ||
      !isVectorOfTiles(value))
    return std::nullopt;
  auto leaves = leavesOf(value);
  auto isInput = [&](BlockArgument leaf) { return asTile(leaf).has_value(); };
  if (leaves.empty() || !llvm::all_of(leaves, isInput))
    return std::nullopt;
  return TokenTile{leaves.front(), {}, std::nullopt, false, value};
}

llvm::SetVector<BlockArgument> RolePlan::leavesOf(Value rows) {
  llvm::SetVector<BlockArgument> leaves;
  SmallVector<Value> work{rows};
  while (!work.empty()) {
    Value value = trace(work.pop_back_val());
    if (auto argument = dyn_cast<BlockArgument>(value))
      leaves.insert(argument);
    else
      llvm::append_range(work, value.getDefiningOp()->getOperands());
  }
  return leaves;
}

// What follows from several inputs has all their rows.
LogicalResult RolePlan::needTile(const TokenTile &tile) {
  return success(llvm::all_of(leavesOf(tile.rows()), [&](BlockArgument input) {
    return isOfTokens(input) == isOfTokens(tile.input) && succeeded(needInput(input));
  }));
}

// A tile times such a value, as far as tiles can be that.
std::optional<TokenTile> RolePlan::decayed(std::optional<TokenTile> tile, Value value) {
  auto weights = trace(value).getDefiningOp<chunk::WeightsOp>();
  if (!tile || tile->span || (tile->decayed && (!weights || weights.getSpan() != chunk::Span::Until)))
    return std::nullopt;
  if (!weights)
    tile->decayed = true;
  else
    tile->span = tile->decayed ? chunk::Span::Through : weights.getSpan();
  tile->decayed &= !weights;
  return tile;
}

LogicalResult RolePlan::needDecay(Value value) {
  if (abreast > 1)
    return value == decay ? needTransitions() : failure();
  auto op = value.getDefiningOp<chunk::DecayOp>();
  if (decay != value || !op.getLog() || matType(op.getFactors()).numCols() != keys)
    return failure();
  return needLogs(logs());
}

// What a tile at the right of one of the chain's products needs.
LogicalResult RolePlan::needRight(const TokenTile &tile) {
  if (failed(needTile(tile)))
    return failure();
  for (RowFactor factor : tile.scale)
    if (failed(needRow(factor.value)))
      return failure();
  if (tile.decayed)
    return failure();
  if (!tile.span) {
    plainInputs.insert(tile.input);
    return success(!tile.made);
  }
  if (llvm::none_of(made, [&](const MadeTile &x) { return x.isOf(tile); }))
    made.push_back({tile.rows(), *tile.span, {}, tile.coupling});
  return needDecay(decay);
}

const MadeTile &RolePlan::madeOf(const TokenTile &tile) const {
  return *llvm::find_if(made, [&](const MadeTile &x) { return x.isOf(tile); });
}

// Whether the products between tokens are as many as one warpgroup takes: two together, or some one after the
// other, where each of the scores needs one of them.
bool RolePlan::areProductsFew() const {
  constexpr size_t most = 4;
  auto isOfOne = [&](Value value) { return splitScores(value).second; };
  return grams.size() <= productsTogether ||
         (grams.size() <= most && (!system || isOfOne(system)) &&
          llvm::all_of(scores, [&](const ScoreTile &tile) { return isOfOne(tile.value); }));
}

// With a decay of each key all products between tokens have it, and scores are such a product times factors.
LogicalResult RolePlan::checkDecay() {
  for (chunk::GramOp gram : grams) {
    if (gram.getDecay() != decay)
      return failure();
    if (Value right = asRows(gram.getRhs())->rows(); !llvm::is_contained(rights, right))
      rights.push_back(right);
  }
  // Rows past the end are zero, but what follows from them might not be, and a system would take it in.
  auto vanish = [&](Value rows) { return vanishes(rows, /*withParams=*/false); };
  if ((system || ownSystem >= 0) &&
      !(llvm::all_of(rights, vanish) &&
        llvm::all_of(made, [&](const MadeTile &tile) { return vanish(tile.rows); })))
    return failure();
  // The system is what its warps go on with, so its product comes last.
  if (auto *last = system ? llvm::find(grams, splitScores(system).second) : grams.end(); last != grams.end())
    std::rotate(last, last + 1, grams.end());
  auto isOwn = [&](const ScoreTile &tile) { return ownSystem >= 0 && &tile == &scores[ownSystem]; };
  auto isPlain = [&](BlockArgument input) { return plainInputs.contains(input); };
  return success(llvm::none_of(tilesOfLogs(), isPlain) && (!system || splitScores(system).second) &&
                 llvm::all_of(scores, [&](const ScoreTile &tile) { return tile.plainRows || isOwn(tile); }));
}

// A warp takes the place of the rows that it alone has read; those of a token may be several warps'.
bool RolePlan::isBehind(const MadeTile &tile, BlockArgument place) const {
  return steps > 1 && !isSpare(place) &&
         (rowsOf(place) != rowsOf(tile) || (!hasSteps(place) && tilesOfLogs().contains(place)));
}

// Where a tile of the chain lies: where its input does or, made, where an input did that only the scores
// read, or in a place of its own.
BlockArgument RolePlan::place(const TokenTile &tile) {
  if (!tile.span)
    return tile.input;
  auto &own = const_cast<MadeTile &>(madeOf(tile));
  auto take = [&](bool ofLogs, bool behind) {
    for (BlockArgument input : neededInputs)
      if (!own.place && !plainInputs.contains(input) && matType(input).numCols() == keys &&
          tilesOfLogs().contains(input) == ofLogs && isBehind(own, input) == behind &&
          llvm::none_of(made, [&](const MadeTile &x) { return x.place == input; }))
        own.place = input;
  };
  // Logarithms may come before the chain has done with what lies in the places of others.
  for (bool behind : {false, true})
    for (bool ofLogs : {false, true})
      take(ofLogs, behind);
  BlockArgument spare = program.argumentsOf(ArgKind::State).front();
  if (!own.place && llvm::none_of(made, [&](const MadeTile &x) { return x.place == spare; }))
    own.place = spare;
  if (!own.place && abreast > 1)
    own.place = spares->addArgument(matType(tile.rows()), tile.rows().getLoc());
  return own.place;
}
