// Decays of each key without a decay, where those of a chunk are mild. With W_t what decays from the chunk's
// middle to token t, for each key,
//
//   q_t . (S W_t/W_start) = (q_t W_t) . (S / W_start)   and   q_t . (k_j W_t/W_j) = (q_t W_t) . (k_j / W_j),
//
// so rows that read are multiplied with W, rows that are written divided by it, and what is left is the rule
// without a decay: one product between tokens for each kind of scores, and tiles that scores and the chain
// share. Within a chunk the state is relative to the middle: the chain divides it by W_start as the chunk
// begins, and multiplies it with W_end behind.
//
// Half of a chunk's decay goes to either side and, above the diagonal, where nothing is seen, scores are as
// large as W_j/W_t: so ranges have to say that no chunk decays by more than `mostOfScaled`. (Walkers, who
// have references for 16 tokens, take any: RoleDecay.cpp.) Scaled rows lie where an input did that nobody
// else reads once they are made (RoleScaledTiles.cpp).
//
// Where a chunk may decay by more, but half of it by no more than `mostOfHalf`, the middle of either half is
// a reference. All that is read is relative to the first one, to which the chain brings the state: what the
// later half sees of the state and of the earlier half has decayed since, and is zero where numbers end
// because what decays from one token to the next is bounded, too. Written rows are relative to their own
// half's reference, as the chain goes from the one to the other between adding them. For what tokens of the
// later half see of one another their read rows are there a second time, relative to the second reference.
// There scores above the diagonal may be infinite, which are chosen from, never multiplied.
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Span;

static constexpr llvm::StringLiteral scaledAttr = "recur.scaled_keys";
// As a binary logarithm: scores are sums of products of rows that need not be short, in f32.
static constexpr double mostOfScaled = 100;
// The same of half of a chunk that has a reference of its own: rows of up to 2^11 stay in range.
static constexpr double mostOfHalf = 232;

bool RolePlan::isScaling(Value decay) { return decay.getDefiningOp()->hasAttr(scaledAttr); }

int64_t RolePlan::references() const {
  return scaling ? scaling.getDefiningOp()->getAttrOfType<IntegerAttr>(scaledAttr).getInt() : 0;
}

// What weights of such a decay are operand `i`'s factor; null where they are none.
static chunk::WeightsOp scalingBeside(Operation *op, unsigned i) {
  auto product = dyn_cast_if_present<MulOp>(op);
  auto weights = product ? product->getOperand(1 - i).getDefiningOp<chunk::WeightsOp>() : chunk::WeightsOp();
  return weights && RolePlan::isScaling(weights.getDecay()) ? weights : chunk::WeightsOp();
}

namespace {
class KeyScaler {
public:
  KeyScaler(chunk::ProgramOp program, const RolePlan &plan, int64_t references)
      : plan(plan), yield(program.getBodyYield()), b(yield), loc(program.getLoc()),
        decay(plan.decay.getDefiningOp<chunk::DecayOp>()), references(references) {}

  void run() {
    SmallVector<chunk::GramOp> grams;
    for (Operation *user : decay->getUsers())
      if (auto gram = dyn_cast<chunk::GramOp>(user); gram && plan.asRows(gram.getLhs()))
        grams.push_back(gram);
      else if (!isa<chunk::WeightsOp>(user))
        return;
    // What is read of the state has decayed until some token.
    for (auto product : yield->getBlock()->getOps<MatmulOp>())
      if (plan.stateOf(RolePlan::strip(product.getRhs())) == 0)
        if (std::optional<TokenTile> rows = plan.asTile(product.getLhs()); !rows || !rows->span)
          return;
    Value state = unscaled(yield->getOperand(0));
    if (!state)
      return;
    yield->setOperand(0, state);
    for (chunk::GramOp gram : grams) {
      // Rows that are times their token's own factors are so until it.
      Span span = plan.asRows(gram.getLhs())->decayed ? Span::Until : plan.leftSpan(gram);
      b.setInsertionPoint(gram);
      gram.getLhsMutable().assign(times(gram.getLhs(), span));
      gram.getRhsMutable().assign(times(gram.getRhs(), Span::Rest));
      gram.getDecayMutable().clear();
    }
    decay->setAttr(scaledAttr, b.getI64IntegerAttr(references));
  }

private:
  Value times(Value rows, Span span) {
    Value weights = chunk::WeightsOp::create(b, loc, rows.getType(), decay, span);
    return MulOp::create(b, loc, rows, weights);
  }

  // A state after the chunk, which is then relative to the middle, of one that was before; null where it is
  // something else.
  Value unscaled(Value value) {
    Operation *op = value.getDefiningOp();
    if (isa_and_present<MulOp>(op))
      for (unsigned i : {0, 1})
        if (RolePlan::isWholeOfKeys(RolePlan::strip(op->getOperand(i))))
          return plan.stateOf(RolePlan::strip(op->getOperand(1 - i))) == 0 ? op->getOperand(1 - i) : Value();
    if (auto product = dyn_cast_if_present<MatmulOp>(op)) {
      std::optional<TokenTile> tile = plan.asTile(RolePlan::strip(product.getLhs()));
      return tile && tile->span == Span::Rest ? value : Value();
    }
    if (!isa_and_present<AddOp, SubOp, NegOp, TransposeOp>(op))
      return {};
    IRMapping map;
    for (Value operand : op->getOperands()) {
      Value own = unscaled(operand);
      if (!own)
        return {};
      map.map(operand, own);
    }
    return b.clone(*op, map)->getResult(0);
  }

  const RolePlan &plan;
  Operation *yield;
  OpBuilder b;
  Location loc;
  chunk::DecayOp decay;
  int64_t references;
};
} // namespace

bool RolePlan::scaleKeys(chunk::ProgramOp program) {
  RolePlan plan;
  plan.program = program;
  plan.findDecay();
  auto decays = program.getBody().getOps<chunk::DecayOp>();
  auto decay = plan.decay ? plan.decay.getDefiningOp<chunk::DecayOp>() : chunk::DecayOp();
  if (!decay || !decay.getLog() || !llvm::hasSingleElement(decays) ||
      program.argumentsOf(ArgKind::State).size() != 1)
    return false;
  auto logs = dyn_cast<BlockArgument>(trace(decay.getLog()));
  RangeAttr range = logs ? plan.rangeOf(logs) : RangeAttr();
  if (!range)
    return false;
  // What grows is relative to the first reference to the chunk's end.
  double unit = tokensOfChunk * llvm::numbers::log2e, most = -range.getLo() * unit;
  if (range.getHi() * unit > mostOfScaled || most > 2 * mostOfHalf)
    return false;
  KeyScaler(program, plan, most > mostOfScaled ? 2 : 1).run();
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(program.getBody().front())))
    if (isOpTriviallyDead(&op))
      op.erase();
  return llvm::any_of(program.getBody().getOps<chunk::DecayOp>(), [](Value own) { return isScaling(own); });
}

// Whether anyone reads the rows of an input, or of what follows from it, as they are copied: but for sums,
// which come first, and for those who scale them.
static bool isReadPlain(Value value) {
  return llvm::any_of(value.getUses(), [](OpOperand &use) {
    Operation *user = use.getOwner();
    if (isa<ReduceOp, chunk::DecayOp>(user) || scalingBeside(user, use.getOperandNumber()))
      return false;
    if (auto map = dyn_cast<chunk::MapOp>(user))
      return isReadPlain(map.getBody().getArgument(use.getOperandNumber()));
    if (isa<chunk::YieldOp>(user) && isa<chunk::MapOp>(user->getParentOp()))
      return isReadPlain(user->getParentOp()->getResult(use.getOperandNumber()));
    return !isa<ElementwiseOp>(user) || isReadPlain(user->getResult(0));
  });
}

// The span that rows are scaled by: what is times its own factors, too, is so through its token. All else
// that is read has not decayed by a late one's.
static Span spanOf(const TokenTile &tile, chunk::WeightsOp weights) {
  if (tile.decayed)
    return Span::Through;
  bool isUntil = chunk::isLate(weights.getDecay()) && weights.getSpan() == Span::Through;
  return isUntil ? Span::Until : weights.getSpan();
}

LogicalResult RolePlan::placeScaled() {
  if (!scaling)
    return success();
  program.getBody().walk([&](MulOp product) {
    for (unsigned i : {0, 1})
      if (chunk::WeightsOp weights = scalingBeside(product, i))
        if (std::optional<TokenTile> tile = asRows(product->getOperand(i)))
          if (llvm::none_of(scaled, [&](const MadeTile &x) {
                return x.rows == tile->rows() && x.span == spanOf(*tile, weights);
              }))
            scaled.push_back({tile->rows(), spanOf(*tile, weights)});
  });
  // What follows from fewer inputs has less to choose from. Logarithms are read by all that are scaled.
  auto takePlace = [&](MadeTile &tile) {
    SmallVector<BlockArgument> places = llvm::to_vector(leavesOf(tile.rows));
    places.push_back(scalingLogs());
    llvm::append_range(places, program.argumentsOf(ArgKind::Input));
    auto *place = llvm::find_if(places, [&](BlockArgument input) {
      return asTile(input) && matType(input).numCols() == keys && !isReadPlain(input) &&
             llvm::none_of(scaled, [&](const MadeTile &x) { return x.place == input; });
    });
    if (place != places.end())
      tile.place = *place;
  };
  for (bool isOfOne : {true, false})
    for (MadeTile &tile : scaled)
      if ((leavesOf(tile.rows).size() == 1) == isOfOne)
        takePlace(tile);
  if (llvm::any_of(scaled, [](const MadeTile &tile) { return !tile.place; }))
    return failure();
  for (BlockArgument input : inputsOfScaled())
    if (!asTile(input) || matType(input).numCols() != keys || failed(needInput(input)))
      return failure();
  // Tokens past a sequence's end, and keys that tiles alone have, are zero in inputs, and are to be in rows.
  return success(keys % 64 == 0 && keys <= mostKeysBeside && steps == 1 && stacked.empty() && !rotated &&
                 !normaliser && !isF16 && llvm::all_of(scaled, [&](const MadeTile &tile) {
                   return vanishes(tile.rows, /*withParams=*/false);
                 }));
}

BlockArgument RolePlan::scalingLogs() const { return cast<BlockArgument>(logsOf(scaling)); }

llvm::SetVector<BlockArgument> RolePlan::inputsOfScaled() const {
  llvm::SetVector<BlockArgument> inputs;
  for (const MadeTile &tile : scaled) {
    inputs.insert(tile.place);
    inputs.insert_range(leavesOf(tile.rows));
  }
  if (scaling)
    inputs.insert(scalingLogs());
  return inputs;
}

const MadeTile *RolePlan::scaledIn(BlockArgument place) const {
  auto *found = llvm::find_if(scaled, [&](const MadeTile &tile) { return tile.place == place; });
  return found == scaled.end() ? nullptr : found;
}

// The tile of rows times what decays over a span, where that is such a scaling.
std::optional<TokenTile> RolePlan::scaledTile(Operation *op, unsigned i) const {
  chunk::WeightsOp weights = scalingBeside(op, i);
  std::optional<TokenTile> tile = weights ? asRows(op->getOperand(i)) : std::nullopt;
  if (!tile)
    return std::nullopt;
  for (const MadeTile &own : scaled)
    if (own.rows == tile->rows() && own.span == spanOf(*tile, weights))
      return TokenTile{own.place, tile->scale};
  return std::nullopt;
}
