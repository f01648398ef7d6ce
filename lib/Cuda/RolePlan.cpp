#include "lib/Cuda/RolePlan.h"
#include "lib/Cuda/Stages.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static bool isTokens(Attribute dim) { return isa<StringAttr>(dim); }

static MatType typeOf(Value value) { return dyn_cast<MatType>(value.getType()); }

// Whether a value is one number, or one for each token.
static bool isNumber(Value value) {
  MatType type = typeOf(value);
  return type && isOne(type.getCols()) && (isOne(type.getRows()) || isTokens(type.getRows()));
}

bool RolePlan::isScores(Value value) {
  MatType type = typeOf(value);
  return type && isTokens(type.getRows()) && isTokens(type.getCols());
}

Value RolePlan::strip(Value value) {
  while (auto transpose = value.getDefiningOp<TransposeOp>())
    value = transpose.getOperand();
  return value;
}

Value RolePlan::trace(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value))
    if (auto map = dyn_cast<chunk::MapOp>(argument.getOwner()->getParentOp()))
      return trace(map->getOperand(argument.getArgNumber()));
  if (auto result = dyn_cast<OpResult>(value))
    if (auto map = dyn_cast<chunk::MapOp>(result.getOwner()); map && map.getCarried().empty())
      return trace(map.getYield().getValues()[result.getResultNumber()]);
  if (auto assume = value.getDefiningOp<AssumeOp>())
    return trace(assume.getOperand());
  return value;
}

unsigned RolePlan::tensorOf(BlockArgument argument) const {
  if (const StackedInput *own = stackedOf(argument)) {
    auto any = llvm::find_if(own->rows, [](std::optional<unsigned> row) { return row.has_value(); });
    return tensorOf(program.getBody().getArgument(**any));
  }
  // Tensors begin with the inputs and params, in order.
  auto inputs = program.argumentsOf(ArgKind::Input), params = program.argumentsOf(ArgKind::Param);
  if (auto at = llvm::find(inputs, argument); at != inputs.end())
    return at - inputs.begin();
  return initialTensor() - params.size() + (llvm::find(params, argument) - params.begin());
}

std::optional<TokenTile> RolePlan::asTile(Value value) const {
  value = trace(value);
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    if (program.getArg(argument.getArgNumber()).getKind() != ArgKind::Input || !typeOf(value) ||
        isNumber(value))
      return std::nullopt;
    return TokenTile{argument, {}};
  }
  Operation *op = value.getDefiningOp();
  if (!isa<MulOp, DivOp>(op) || isNumber(value) || isScores(value))
    return std::nullopt;
  for (unsigned i : {0, 1}) {
    Value factor = op->getOperand(1 - i);
    if (std::optional<TokenTile> tile = scaledTile(op, i))
      return tile;
    if (auto coupling = isa<MulOp>(op) ? couplingOf(factor) : std::nullopt) {
      std::optional<TokenTile> tile = asRows(op->getOperand(i));
      if (!tile || tile->span)
        return std::nullopt;
      tile->span = coupling->first;
      tile->coupling = coupling->second;
      return tile;
    }
    if (isa<MulOp>(op) && isOfDecay(factor))
      return decayed(asRows(op->getOperand(i)), factor);
    if (isNumber(op->getOperand(i)) || !isNumber(factor) || (isa<DivOp>(op) && i == 1))
      continue;
    std::optional<TokenTile> tile = asRows(op->getOperand(i));
    if (tile)
      tile->scale.push_back({factor, isa<DivOp>(op)});
    return tile;
  }
  return std::nullopt;
}

bool RolePlan::isUniform(Value value) {
  value = trace(value);
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    auto program = cast<chunk::ProgramOp>(argument.getOwner()->getParentOp());
    ArgKind kind = program.getArg(argument.getArgNumber()).getKind();
    return kind != ArgKind::Input && kind != ArgKind::Position;
  }
  Operation *op = value.getDefiningOp();
  if (auto weights = dyn_cast<chunk::WeightsOp>(op))
    return weights.getSpan() == chunk::Span::Whole;
  if (auto broadcast = dyn_cast<BroadcastOp>(op))
    return isUniform(broadcast.getOperand());
  return !isa<ReduceOp>(op) &&
         llvm::all_of(op->getOperands(), [](Value operand) { return isUniform(operand); });
}

bool RolePlan::isVectorOfTiles(Value value, bool withNumbers) const {
  value = trace(value);
  if (withNumbers && isRow(value))
    return true;
  if (auto argument = dyn_cast<BlockArgument>(value))
    return asTile(value) || (argument.getOwner()->getParentOp() == program.getOperation() && typeOf(value) &&
                             isOne(typeOf(value).getCols()) &&
                             program.getArg(argument.getArgNumber()).getKind() == ArgKind::Param);
  Operation *op = value.getDefiningOp();
  return isa<ConstantOp>(op) ||
         (isa<ElementwiseOp>(op) && llvm::all_of(op->getOperands(), [&](Value operand) {
            return isVectorOfTiles(operand, withNumbers);
          }));
}

bool RolePlan::isRow(Value value) const {
  value = trace(value);
  if (!isNumber(value))
    return false;
  if (auto argument = dyn_cast<BlockArgument>(value))
    return argument.getOwner()->getParentOp() == program.getOperation() &&
           program.getArg(argument.getArgNumber()).getKind() != ArgKind::State;
  return TypeSwitch<Operation *, bool>(value.getDefiningOp())
      .Case<ConstantOp, chunk::NormaliserOp>([](auto) { return true; })
      .Case([&](BroadcastOp broadcast) { return isRow(broadcast.getOperand()); })
      .Case([&](chunk::WeightsOp w) {
        auto cascade = w.getDecay().getDefiningOp<chunk::CascadeOp>();
        return cascade ? llvm::all_of(cascade.getFactors(), [&](Value factor) { return isRow(factor); })
                       : isScalarDecay(w.getDecay());
      })
      .Case([&](ElementwiseOp e) {
        return llvm::all_of(e->getOperands(), [&](Value operand) { return isRow(operand); });
      })
      .Case([&](ReduceOp r) { return r.getKind() == Reduction::Sum && isVectorOfTiles(r.getOperand()); })
      .Default([](Operation *) { return false; });
}

// Whether a decay is one number per token that a warp can sum the logarithms of.
bool RolePlan::isScalarDecay(Value value) const {
  auto decay = value.getDefiningOp<chunk::DecayOp>();
  return decay && isNumber(decay.getFactors()) && isRow(sourceOf(value)) &&
         (decay.getLog() || areSigns(value) || isNotNegative(decay.getFactors()));
}

//===----------------------------------------------------------------------===//
// What is needed
//===----------------------------------------------------------------------===//

LogicalResult RolePlan::needInput(BlockArgument input) {
  neededInputs.insert(input);
  return success(isSizeOfTile(typeOf(input).numCols()));
}

// Inputs whose rows are read for a number are in shared memory too.
LogicalResult RolePlan::needRow(Value value) {
  value = trace(value);
  if (!isRow(value))
    return failure();
  Operation *op = value.getDefiningOp();
  if (isa_and_present<chunk::NormaliserOp>(op))
    return needNormaliser();
  if (auto weights = dyn_cast_if_present<chunk::WeightsOp>(op)) {
    SmallVector<Value> sources;
    if (auto cascade = weights.getDecay().getDefiningOp<chunk::CascadeOp>())
      llvm::append_range(sources, cascade.getFactors());
    else
      sources.push_back(sourceOf(weights.getDecay()));
    return success(llvm::all_of(sources, [&](Value source) { return succeeded(needRow(source)); }));
  }
  auto reduce = dyn_cast_if_present<ReduceOp>(op);
  if (!reduce) {
    for (Value operand : op ? op->getOperands() : OperandRange(nullptr, 0))
      if (failed(needRow(operand)))
        return failure();
    return success();
  }
  reductions.insert(reduce);
  SmallVector<Value> work{reduce.getOperand()};
  while (!work.empty()) {
    Value vector = work.pop_back_val();
    if (Operation *inner = trace(vector).getDefiningOp())
      llvm::append_range(work, inner->getOperands());
    else if (asTile(vector)) {
      auto input = cast<BlockArgument>(trace(vector));
      if (!isSizeOfTile(typeOf(input).numCols()))
        return failure();
      (isStacked() && !decay ? summedInputs : neededInputs).insert(input);
    }
  }
  return success();
}

LogicalResult RolePlan::visitScores(Value value) {
  value = trace(value);
  if (isNumber(value))
    return needRow(value);
  Operation *op = value.getDefiningOp();
  if (!op || !isScores(value))
    return failure();
  if (auto gram = dyn_cast<chunk::GramOp>(op)) {
    if (!llvm::is_contained(grams, productOf(gram)))
      grams.push_back(gram);
    for (Value side : {gram.getLhs(), gram.getRhs()}) {
      std::optional<TokenTile> tile = asRows(side);
      if (!tile || tile->span || (scaling && tile->made) ||
          (tile->decayed && (side == gram.getRhs() ||
                             (gram.getReach() != chunk::Reach::Before && !chunk::isLate(gram.getDecay())))) ||
          failed(needTile(*tile)))
        return failure();
      for (RowFactor factor : tile->scale)
        if (failed(needRow(factor.value)))
          return failure();
    }
    // A block's start is a place among rows, of which those of eight tokens may lie together.
    if (gram.getReach() == chunk::Reach::Start &&
        (!llvm::isPowerOf2_64(*starts()) || *starts() < (isStacked() ? tokensOfWarp : 1)))
      return failure();
    if (!gram.getDecay())
      return success();
    if (isOfKeys(gram.getDecay())) {
      for (const auto &weight : weightsOf(gram))
        for (RowFactor factor : weight.value_or(RowFactors()))
          if (failed(needRow(factor.value)))
            return failure();
      return needDecay(gram.getDecay());
    }
    return success(isScalarDecay(gram.getDecay()) && succeeded(needRow(sourceOf(gram.getDecay()))));
  }
  if (isa<MulOp>(op))
    for (unsigned i : {0, 1})
      if (std::optional<CoupledMask> mask = coupledMask(op->getOperand(i)))
        return success(splitScores(value).second && succeeded(visitScores(op->getOperand(1 - i))) &&
                       succeeded(needMask(*mask)));
  // What passes between coupled states is a mask of one product, not of a sum.
  if (!isa<ElementwiseOp>(op) || (states == 2 && !splitScores(value).second))
    return failure();
  for (Value operand : op->getOperands())
    if (failed(visitScores(operand)))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// The chain
//===----------------------------------------------------------------------===//

Value RolePlan::leftOf(Operation *op) const {
  if (auto product = dyn_cast<MatmulOp>(op))
    return strip(product.getRhs());
  auto solve = cast<chunk::TriSolveOp>(op);
  return strip(solve.getRhs().front());
}

FailureOr<unsigned> RolePlan::visitProduct(Operation *op, Value result, Value start, bool chained,
                                           unsigned leastWave) {
  ChainProduct product;
  product.result = result;
  product.left = leftOf(op);
  product.start = start;
  product.chained = chained;
  FailureOr<unsigned> wave = visit(product.left);
  if (failed(wave))
    return failure();
  product.wave = std::max(*wave, leastWave);
  if (auto solve = dyn_cast<chunk::TriSolveOp>(op)) {
    if (solve.getBlocks().size() != 1)
      return failure();
    Value block = solve.getBlocks().front();
    auto negation = trace(block).getDefiningOp<NegOp>();
    Value own = negation ? negation.getOperand() : block;
    if (system && (system != own || isNegated != bool(negation)))
      return failure();
    system = product.right = own;
    isNegated = negation != nullptr;
    product.kind = ChainProduct::Inverse;
    if (failed(visitScores(system)))
      return failure();
  } else {
    Value lhs = cast<MatmulOp>(op).getLhs();
    bool transposed = lhs.getDefiningOp<TransposeOp>() != nullptr;
    product.right = strip(lhs);
    if (isScores(lhs)) {
      if (transposed || failed(visitScores(lhs)))
        return failure();
      product.kind = ChainProduct::Scores;
      // Factors of the tokens that are summed over are the scores' as well as the tile's, and there cost no
      // register.
      RowFactors columnScale;
      if (std::optional<TokenTile> tile = asTile(product.left);
          tile && keepsRange(tile->scale) && leavesNormaliser(splitScores(lhs).second, tile->scale)) {
        product.left = tile->input;
        columnScale = tile->scale;
      }
      product.resultScale = splitScores(lhs).first;
      product.scores = needScores(lhs, columnScale);
    } else {
      std::optional<TokenTile> tile = asTile(product.right);
      if (!tile || failed(needRight(*tile)))
        return failure();
      product.kind = transposed ? ChainProduct::Depth : ChainProduct::Rows;
      product.resultScale = resultScaleOf(cast<MatmulOp>(op));
    }
  }
  waves = std::max(waves, product.wave + 1);
  products.push_back(product);
  available[result] = product.wave + 1;
  return product.wave + 1;
}

bool RolePlan::isPositive(RowFactor factor) {
  Operation *op = trace(factor.value).getDefiningOp();
  auto constant = dyn_cast_if_present<ConstantOp>(op);
  return constant ? constant.getValue().convertToDouble() > 0 : factor.divides && isa_and_present<SqrtOp>(op);
}

// The wave that a value of the chain can be used in.
FailureOr<unsigned> RolePlan::visit(Value value) {
  value = strip(value);
  for (Value name : {value, trace(value)})
    if (auto known = available.find(name); known != available.end())
      return known->second;
  auto none = [](LogicalResult needed) { return failed(needed) ? FailureOr<unsigned>(failure()) : 0u; };
  if (isNumber(value))
    return none(needRow(value));
  if (isOfRows(value))
    return none(needRowDecay());
  if (isWholeOfKeys(value))
    return none(needDecay(trace(value).getDefiningOp<chunk::WeightsOp>().getDecay()));
  if (std::optional<TokenTile> tile = asTile(value)) {
    if (tile->span || tile->decayed || tile->made || failed(needInput(tile->input)))
      return failure();
    plainInputs.insert(tile->input);
    for (RowFactor factor : tile->scale)
      if (failed(needRow(factor.value)))
        return failure();
    return available[value] = 0u;
  }
  value = trace(value);
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    if (program.getArg(argument.getArgNumber()).getKind() != ArgKind::State)
      return failure();
    return available[value] = 0u;
  }
  Operation *op = value.getDefiningOp();
  // As it is read, a product's left side, it goes from chunk to chunk.
  if (isa<chunk::HeldOp>(op)) {
    bool hasPlace = value == held() && !isF16 && keys <= mostKeysBeside && !program->hasAttr(magnifiedAttr);
    if (!hasPlace)
      return failure();
    return available[value] = 0u;
  }
  if (auto solve = dyn_cast<chunk::TriSolveOp>(op); solve && solve.isByColumn())
    return visitSubstitution(solve);
  if (auto functions = dyn_cast<chunk::SubstituteOp>(op))
    return visitFunctions(functions);
  if (isa<MatmulOp, chunk::TriSolveOp>(op))
    return visitProduct(op, value, {}, false);
  if (auto mix = dyn_cast<chunk::MixOp>(op)) {
    if (failed(visitMix(mix)))
      return failure();
    return available[value] = available.lookup(strip(mix.getValues()));
  }
  if (!isa<ElementwiseOp>(op))
    return failure();
  if (auto sum = dyn_cast<AddOp>(op))
    if (std::optional<FailureOr<unsigned>> wave = visitSum(sum, value))
      return *wave;
  unsigned last = 0;
  for (Value operand : op->getOperands()) {
    FailureOr<unsigned> when = visit(operand);
    if (failed(when))
      return failure();
    last = std::max(last, *when);
  }
  return available[value] = last;
}

LogicalResult RolePlan::stackProducts() {
  delayWrites();
  delayReads();
  SmallVector<ChainProduct> inWaves;
  for (unsigned wave = 0; wave < waves; ++wave)
    llvm::copy_if(products, std::back_inserter(inWaves),
                  [&](const ChainProduct &p) { return p.wave == wave; });
  products = std::move(inWaves);
  if (failed(pairProducts()))
    return failure();
  llvm::SmallPtrSet<void *, 4> placed;
  auto isPlaced = [&](BlockArgument input) { return placed.contains(input.getAsOpaquePointer()); };
  auto stackable = [&](const ChainProduct &p) {
    return p.kind == ChainProduct::Rows && !p.isSecond && !isInParts(p);
  };
  auto follower = [&](const ChainProduct &p) {
    auto follows = [&](const ChainProduct &other) { return other.chained && other.start == p.result; };
    auto *found = llvm::find_if(products, follows);
    return found == products.end() ? nullptr : found;
  };
  // Of states abreast what is read of one goes on with what is read of the other.
  auto areFollowed = [&](const ChainProduct &x, const ChainProduct &y) {
    ChainProduct *a = follower(x), *b = follower(y);
    if (!a || !b)
      return a == b;
    return abreast > 1 && a->left == b->left && stackable(*a) && stackable(*b) && !follower(*a) &&
           !follower(*b);
  };
  auto placeBoth = [&](ChainProduct &x, ChainProduct &y) {
    BlockArgument first = place(*asTile(x.right)), second = place(*asTile(y.right));
    if (first == second || !first || !second || isPlaced(first) || isPlaced(second))
      return false;
    for (BlockArgument input : {first, second})
      placed.insert(input.getAsOpaquePointer());
    inputs.push_back({first, second});
    return true;
  };
  int stacks = 0;
  for (size_t i = 0; i < products.size(); ++i)
    for (size_t j = i + 1; j < products.size(); ++j) {
      ChainProduct &x = products[i], &y = products[j];
      bool sameLeft = x.left == y.left || (states > 1 && stateOf(x.left) >= 0 && stateOf(y.left) >= 0);
      if (x.stack >= 0 || y.stack >= 0 || x.wave != y.wave || !sameLeft || !stackable(x) || !stackable(y) ||
          x.start || y.start || !areFollowed(x, y) || !placeBoth(x, y))
        continue;
      x.stack = y.stack = stacks++;
      ChainProduct *a = follower(x), *b = follower(y);
      if (a && !placeBoth(*a, *b))
        return failure();
      if (a)
        a->stack = b->stack = stacks++;
    }
  for (const ChainProduct &p : products)
    if (p.kind <= ChainProduct::Depth && !place(*asTile(p.right)))
      return failure();
  llvm::SetVector<BlockArgument> rest = neededInputs;
  for (const MadeTile &tile : made)
    rest.insert(tile.place);
  for (BlockArgument input : rest)
    if (!isPlaced(input))
      inputs.push_back({input});
  return success();
}

LogicalResult RolePlan::check() {
  for (chunk::NormaliserOp own : program.getBody().getOps<chunk::NormaliserOp>())
    normaliser = own;
  isF16 = llvm::any_of(program.argumentsOf(ArgKind::Input), [&](BlockArgument input) {
    return asTile(input) && tensors[tensorOf(input)].element.isF16();
  });
  if (failed(checkStates()) || failed(placeScaled()))
    return failure();
  auto yielded = program.getBodyYield().getValues().take_front(countStates() + countOutputs());
  for (Value value : llvm::concat<const Value>(SmallVector<Value>(yielded.drop_front(countStates())),
                                               SmallVector<Value>(yielded.take_front(countStates()))))
    if (failed(visit(value)))
      return failure();
  if (normaliser && statesOnly && failed(needNormaliser()))
    return failure();
  if (decay ? failed(checkDecay()) : !areProductsFew())
    return failure();
  if (system && ownSystem >= 0)
    return failure();
  turnScores();
  foldOutputs();
  moveFactor();
  // The state must end with a product in place, and outputs be rows of independent columns.
  if (products.empty() || products.back().result != strip(yielded[countStates() - 1]) || failed(findSteps()))
    return failure();
  for (Value output : yielded.drop_front(countStates()))
    if (MatType type = typeOf(output); isNumber(output) || type.numCols() != independent)
      return failure();
  sumInStacks();
  shareRows();
  if (failed(stackProducts()) || (isPadded() && !endsInZeros()))
    return failure();
  keepDigits();
  placeOutputs();
  if (normaliser && failed(checkNormaliser()))
    return failure();
  return success(areTensorsPacked());
}

FailureOr<RolePlan> RolePlan::make(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors,
                                   bool statesOnly) {
  RolePlan plan;
  plan.statesOnly = statesOnly;
  plan.program = program;
  plan.tensors = tensors;
  // Outputs of several columns are put together after.
  if (llvm::any_of(chunk::outputParts(program), [](const auto &part) { return part.count > 1; }) ||
      failed(plan.findRows()) || failed(plan.check()))
    return failure();
  return plan;
}
