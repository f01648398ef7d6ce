// What of a plan tells how its work can be split: products by warpgroup, scores by warp, sequences into
// segments; and where outputs lie.
#include "lib/Algebra/Spectral.h"
#include "lib/Cuda/RoleChain.h"
#include "lib/Cuda/Stages.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool RolePlan::isInParts(const ChainProduct &product) const {
  return states == 1 && product.kind == ChainProduct::Rows && stateOf(product.left) >= 0 &&
         program->hasAttr(magnifiedAttr);
}

bool RolePlan::keepsRest(const ChainProduct &product) const {
  auto follows = [&](const ChainProduct &own) {
    std::optional<TokenTile> tile = asTile(own.left);
    bool isScaled = own.kind == ChainProduct::Depth && !asTile(own.right)->scale.empty();
    return !tile || !tile->scale.empty() || isScaled;
  };
  bool isFollowed = product.kind == ChainProduct::Depth && program->hasAttr(followedAttr);
  return keepsRests && product.kind != ChainProduct::Rows && !sumsRows(product) && !isFollowed &&
         (follows(product) || (product.other >= 0 && follows(products[product.other])));
}

bool RolePlan::isRest(unsigned output) const {
  return cast<StringAttr>(program.getOutputs()[output]).getValue().ends_with(restSuffix);
}

bool RolePlan::sumsFunctions() const {
  std::function<bool(Value)> isMade = [&](Value value) {
    Operation *op = trace(value).getDefiningOp();
    return op &&
           (!isa<MulOp, AddOp, SubOp, NegOp, ConstantOp>(op) || llvm::any_of(op->getOperands(), isMade));
  };
  return llvm::any_of(reductions, [&](Operation *sum) { return isMade(sum->getOperand(0)); });
}

bool RolePlan::walkersSum() const {
  if (!decay || abreast > 1 || ownSystem >= 0 || steps > 1 || states > 1 ||
      llvm::any_of(leavesOfLogs(), [&](Value leaf) { return isRow(leaf) && needsSums(leaf); }))
    return false;
  return llvm::all_of(reductions, [&](Operation *sum) {
    Value vector = sum->getOperand(0);
    return matType(vector).numRows() == keys && llvm::all_of(leavesOf(vector), [&](BlockArgument leaf) {
             return isOfParams(leaf) || (asTile(leaf) && matType(leaf).numCols() == keys);
           });
  });
}

chunk::GramOp RolePlan::productOf(chunk::GramOp gram) const {
  auto isSame = [&](Value x, Value y) {
    std::optional<TokenTile> own = asRows(x), other = asRows(y);
    return own && other && own->rows() == other->rows() && isOfTokens(x) == isOfTokens(y);
  };
  // With a decay of each key products are of what decays.
  bool isShared = !decay && (steps == 1 || !isOfTokens(gram.getLhs()));
  for (chunk::GramOp known : isShared ? ArrayRef(grams) : ArrayRef<chunk::GramOp>())
    if (isSame(known.getLhs(), gram.getLhs()) && isSame(known.getRhs(), gram.getRhs()))
      return known;
  return gram;
}

// Whether a tile's scores are one of the plan's products times numbers.
bool RolePlan::isOf(const ScoreTile &tile, Operation *product) const {
  chunk::GramOp own = splitScores(tile.value).second;
  return own && productOf(own) == product;
}

llvm::SetVector<Operation *> RolePlan::gramsOf(ArrayRef<Value> values) const {
  llvm::SetVector<Operation *> found, ordered;
  SmallVector<Value> work(values);
  while (!work.empty()) {
    Operation *op = trace(work.pop_back_val()).getDefiningOp();
    if (auto gram = dyn_cast_if_present<chunk::GramOp>(op))
      found.insert(productOf(gram));
    else if (op)
      llvm::append_range(work, llvm::make_filter_range(op->getOperands(), isScores));
  }
  for (chunk::GramOp gram : grams)
    if (found.contains(gram))
      ordered.insert(gram);
  return ordered;
}

bool RolePlan::isForScores(BlockArgument input) const {
  llvm::SetVector<BlockArgument> found;
  auto add = [&](Value rows) { found.insert_range(leavesOf(rows)); };
  for (chunk::GramOp gram : grams)
    for (Value side : {gram.getLhs(), gram.getRhs()})
      add(asRows(side)->rows());
  for (const MadeTile &tile : made)
    add(tile.rows);
  for (Operation *sum : reductions)
    add(sum->getOperand(0));
  if (decay)
    found.insert_range(tilesOfLogs());
  return found.contains(input);
}

bool RolePlan::isPlace(BlockArgument input) const {
  return llvm::any_of(made, [&](const MadeTile &tile) { return tile.place == input; });
}

bool RolePlan::isReadFirst(BlockArgument place) const {
  auto isOf = [&](const TokenTile &tile) { return (tile.span ? madeOf(tile).place : tile.input) == place; };
  auto isRight = [&](const ChainProduct &p) {
    return p.kind <= ChainProduct::Depth && isOf(*asTile(p.right));
  };
  // Entry by entry it may be read at any time.
  bool isSlab = !isPlace(place) && llvm::any_of(available, [&](const auto &known) {
    std::optional<TokenTile> tile = asTile(known.first);
    return tile && isOf(*tile);
  });
  return waves > 1 && !isSlab && llvm::any_of(products, isRight) &&
         llvm::all_of(products, [&](const ChainProduct &p) { return p.wave == 0 || !isRight(p); });
}

bool RolePlan::dependsOn(Value value, Value other) {
  value = trace(strip(value));
  if (value == other)
    return true;
  Operation *op = value.getDefiningOp();
  // Who substitutes makes what is mixed of the solution at once.
  if (auto solve = dyn_cast_if_present<chunk::TriSolveOp>(op); solve && solve.getDecay())
    for (Operation *user : solve->getUsers())
      if (auto mix = dyn_cast<chunk::MixOp>(user))
        if (AddOp sum = sumWith(mix))
          for (Value operand : sum->getOperands())
            if (trace(strip(operand)) != mix.getResult() && dependsOn(operand, other))
              return true;
  return op && llvm::any_of(op->getOperands(), [&](Value operand) { return dependsOn(operand, other); });
}

bool RolePlan::isSlab(BlockArgument input) const {
  return isForChain(input) && llvm::none_of(products, [&](const ChainProduct &p) {
           return p.kind <= ChainProduct::Depth && asTile(p.right)->input == input && !asTile(p.right)->span;
         });
}

// The tile of some scores without factors of their rows.
unsigned RolePlan::needScores(Value value, RowFactors columnScale) {
  chunk::GramOp gram = splitScores(value).second;
  Value plain = gram && maskOf(value) < 0 ? gram.getResult() : value;
  auto known = llvm::find_if(scores, [&](const ScoreTile &x) {
    return x.value == plain && x.columnScale == columnScale && x.plainRows == (gram != nullptr);
  });
  if (known != scores.end())
    return known - scores.begin();
  scores.push_back({plain, columnScale, /*plainRows=*/gram != nullptr});
  return scores.size() - 1;
}

std::pair<RowFactors, chunk::GramOp> RolePlan::splitScores(Value value) const {
  RowFactors factors;
  for (value = trace(value);;) {
    Operation *op = value.getDefiningOp();
    if (auto gram = dyn_cast<chunk::GramOp>(op)) {
      if (std::optional<TokenTile> tile = asRows(gram.getLhs()))
        llvm::append_range(factors, tile->scale);
      return {factors, gram};
    }
    auto product = dyn_cast<MulOp>(op);
    if (!product)
      return {{}, {}};
    unsigned number = isScores(product->getOperand(0)) ? 1 : 0;
    if (isScores(product->getOperand(number))) {
      number = asMask(product->getOperand(0)) ? 0 : 1;
      std::optional<CoupledMask> mask = coupledMask(product->getOperand(number));
      if (!mask)
        return {{}, {}};
      llvm::append_range(factors, mask->scale);
    } else {
      factors.push_back({product->getOperand(number)});
    }
    value = trace(product->getOperand(1 - number));
  }
}

// The products whose sum the new state is, the last one first.
static SmallVector<const ChainProduct *> productsOfUpdate(ArrayRef<ChainProduct> products) {
  SmallVector<const ChainProduct *> all;
  Value sum = products.back().result;
  auto isSum = [&](const ChainProduct &product) { return product.result == sum; };
  for (const ChainProduct *own; (own = llvm::find_if(products, isSum)) != products.end();) {
    all.push_back(own);
    sum = own->start ? RolePlan::strip(own->start) : Value();
  }
  return all;
}

// What the first of them begins with, or null.
static Value startOfUpdate(ArrayRef<ChainProduct> products) {
  Value start = productsOfUpdate(products).back()->start;
  return start ? RolePlan::strip(start) : start;
}

// The numbers that the state is multiplied with before products are added to it.
std::optional<RowFactors> RolePlan::scaleAtStart() const {
  Value state = program.argumentsOf(ArgKind::State).front(), scaled = startOfUpdate(products);
  RowFactors factors;
  if (!scaled || states > 1 || rescales())
    return std::nullopt;
  for (; scaled != state; scaled = strip(scaled)) {
    auto product = scaled.getDefiningOp<MulOp>();
    unsigned number = product && isRow(product->getOperand(0)) ? 0 : 1;
    if (!product || !isRow(product->getOperand(number)) || !isUniform(product->getOperand(number)))
      return std::nullopt;
    factors.push_back({product->getOperand(number)});
    scaled = product->getOperand(1 - number);
  }
  return factors;
}

// Whether what products add to the state is made from tiles and numbers alone.
bool RolePlan::addsWithoutState() const {
  Value state = program.argumentsOf(ArgKind::State).front();
  SmallVector<Value> work;
  for (const ChainProduct *product : productsOfUpdate(products))
    work.push_back(product->left);
  while (!work.empty()) {
    Value value = trace(strip(work.pop_back_val()));
    if (value == state)
      return false;
    if (Operation *op = value.getDefiningOp())
      llvm::append_range(work, op->getOperands());
  }
  return true;
}

std::optional<RowFactors> RolePlan::stateScale() const {
  if (scaling) // each key's own
    return std::nullopt;
  std::optional<RowFactors> factors = scaleAtStart();
  return factors && addsWithoutState() ? factors : std::nullopt;
}

bool RolePlan::needsSums(Value value) {
  Operation *op = trace(value).getDefiningOp();
  return op && (isa<ReduceOp>(op) || llvm::any_of(op->getOperands(), needsSums));
}

RolePlan::Forgetting RolePlan::forgettingOfKeys() const {
  const ChainProduct &last = products.back();
  auto scaled = decay && last.start && !last.chained ? strip(last.start).getDefiningOp<MulOp>() : MulOp();
  Value state = program.argumentsOf(ArgKind::State).front();
  bool isDecayed = scaled && llvm::any_of(llvm::seq(0, 2), [&](int i) {
                     return isWholeOfKeys(scaled->getOperand(i)) && strip(scaled->getOperand(1 - i)) == state;
                   });
  if (!isDecayed || held() || abreast > 1)
    return Forgetting::Never;
  if (addsWithoutState())
    return Forgetting::ByKey;
  // Before any chunk is there, no sums are. What each micro-step has is not looked at.
  bool isKnown = program->hasAttr(contractionAttr) && !needsSums(logs()) &&
                 (steps == 1 || llvm::none_of(tilesOfLogs(), [&](auto input) { return hasSteps(input); }));
  return isKnown ? Forgetting::BySlowestKey : Forgetting::Never;
}

// What the rule says that bounds a token's map, where that can be told from the inputs alone.
static Value normBoundOf(chunk::ProgramOp program) {
  Value bound;
  program.getBody().walk([&](Operation *op) {
    if (op->hasAttr(normBoundAttr) && !RolePlan::needsSums(op->getResult(0)))
      bound = op->getResult(0);
  });
  return bound;
}

SmallVector<Value> RolePlan::forgetting() const {
  if (held()) // what a block's start was, who begins within it has not
    return {};
  if (rowDecay) {
    Value state = program.argumentsOf(ArgKind::State).front(), start = startOfUpdate(products);
    // What is rescaled has the decay elsewhere.
    if (auto scaled = start && !rescales() ? start.getDefiningOp<MulOp>() : MulOp())
      for (int i : {0, 1})
        if (isOfRows(strip(scaled->getOperand(i))))
          start = strip(scaled->getOperand(1 - i));
    bool isKnown = states == 1 && start == state && (program->hasAttr(contractionAttr) || addsWithoutState());
    return isKnown ? SmallVector<Value>{rowDecay} : SmallVector<Value>();
  }
  std::optional<RowFactors> factors = states == 1 ? stateScale() : std::nullopt;
  if (Value bound = factors || normaliser ? Value() : normBoundOf(program))
    return {bound};
  if (!factors && states == 1 && program->hasAttr(contractionAttr))
    factors = scaleAtStart();
  SmallVector<Value> decays;
  for (RowFactor factor : flatten(factors.value_or(RowFactors()))) {
    auto weights = trace(factor.value).getDefiningOp<chunk::WeightsOp>();
    if (!weights || weights.getSpan() != chunk::Span::Whole || needsSums(sourceOf(weights.getDecay())))
      return {};
    if (!areSigns(weights.getDecay()))
      decays.push_back(weights.getDecay());
  }
  if (normaliser && !forgetsNormaliser(decays))
    return {};
  return decays;
}

// A warp has 16 rows, and of a triangle the last ones are longest, those of a turned one the first. So tiles
// are turned where they stand beside a system, which is not; and each second one only.
void RolePlan::turnScores() {
  if (!system || decay || steps > 1 || references() > 1)
    return;
  llvm::SetVector<Operation *> taken = gramsOf({system});
  bool turn = true;
  for (ScoreTile &tile : scores) {
    chunk::GramOp gram = splitScores(tile.value).second;
    // (Sums over rows are of earlier tokens.)
    bool isSummed = normaliser && gram == splitScores(normaliser.getScores()).second;
    bool isShared = !gram || isSummed || maskOf(tile.value) >= 0 || taken.contains(productOf(gram)) ||
                    llvm::count_if(scores, [&](const ScoreTile &other) {
                      return gramsOf({other.value}).contains(productOf(gram));
                    }) > 1;
    if (isShared)
      continue;
    tile.turned = turn;
    turn = !turn;
  }
}

// An output is often a sum of two products, one with scores, times numbers of its tokens. Where scores decay,
// those go into their exponents, which costs nothing, and to the other product's factors.
void RolePlan::foldOutputs() {
  if (decay || steps > 1)
    return;
  for (Value output : program.getBodyYield().getValues().slice(countStates(), countOutputs())) {
    Value value = trace(strip(output)), whole = value;
    RowFactors factors;
    while (auto product = value.getDefiningOp<MulOp>()) {
      unsigned number = isRow(product->getOperand(0)) ? 0 : 1;
      if (!isRow(product->getOperand(number)) || isLate(product->getOperand(number)))
        break;
      factors.push_back({product->getOperand(number)});
      value = trace(strip(product->getOperand(1 - number)));
    }
    auto *sum = llvm::find_if(products, [&](const ChainProduct &p) { return p.result == value; });
    if (sum == products.end() || sum->kind != ChainProduct::Scores || !sum->start || sum->chained ||
        !value.hasOneUse())
      continue;
    auto *other = llvm::find_if(products, [&](const ChainProduct &p) { return p.result == sum->start; });
    bool isShared = llvm::count_if(products, [&](const ChainProduct &p) {
                      return p.kind == ChainProduct::Scores && p.scores == sum->scores;
                    }) > 1;
    ScoreTile &tile = scores[sum->scores];
    auto gram = trace(tile.value).getDefiningOp<chunk::GramOp>();
    llvm::append_range(factors, sum->resultScale);
    if (normaliser && gram == splitScores(normaliser.getScores()).second)
      continue;
    if (other == products.end() || isShared || !gram || !gram.getDecay() || factors.empty() ||
        !llvm::all_of(factors, isPositive) || !keepsRange(factors))
      continue;
    RowFactors rest = sum->startScale ? *sum->startScale : other->resultScale;
    llvm::append_range(rest, factors);
    sum->startScale = rest;
    sum->resultScale.clear();
    sum->result = whole;
    tile.rowScale = factors;
  }
}

RowFactors RolePlan::flatten(ArrayRef<RowFactor> factors) {
  RowFactors flat;
  for (RowFactor factor : factors) {
    auto product = trace(factor.value).getDefiningOp<MulOp>();
    if (product && !factor.divides)
      llvm::append_range(flat, flatten({{product->getOperand(0)}, {product->getOperand(1)}}));
    else
      flat.push_back({trace(factor.value), factor.divides});
  }
  return flat;
}

// The numbers of tokens that a value of the chain, and nothing else, is computed with and has as factors.
SmallVector<Value> RolePlan::factorsOf(Value value) const {
  SmallVector<Value> found;
  Operation *op = trace(strip(value)).getDefiningOp();
  if (!op || !value.hasOneUse() || !op->hasOneUse())
    return found;
  if (isa<NegOp>(op))
    return factorsOf(op->getOperand(0));
  if (isa<AddOp, SubOp>(op)) {
    SmallVector<Value> other = factorsOf(op->getOperand(1));
    llvm::copy_if(factorsOf(op->getOperand(0)), std::back_inserter(found),
                  [&](Value factor) { return llvm::is_contained(other, factor); });
  } else if (isa<MulOp>(op)) {
    unsigned number = isRow(op->getOperand(0)) ? 0 : 1;
    if (!isRow(op->getOperand(number)))
      return found;
    found = factorsOf(op->getOperand(1 - number));
    for (RowFactor factor : flatten({{op->getOperand(number)}}))
      if (!factor.divides && !isUniform(factor.value))
        found.push_back(factor.value);
  }
  return found;
}

// How often at most a number is a factor on the way from a value to what it is computed from.
int64_t RolePlan::timesFactor(Value value, Value factor) const {
  auto countIn = [&](RowFactors factors) {
    return llvm::count_if(flatten(factors), [&](RowFactor own) { return own.value == factor; });
  };
  if (std::optional<TokenTile> tile = asTile(value))
    return countIn(tile->scale);
  value = trace(strip(value));
  auto isResult = [&](const ChainProduct &product) { return product.result == value; };
  if (const auto *product = llvm::find_if(products, isResult); product != products.end())
    return countIn(product->resultScale);
  int64_t most = 0, own = 0;
  if (Operation *op = value.getDefiningOp(); isa_and_present<ElementwiseOp>(op))
    for (Value operand : op->getOperands()) {
      if (isRow(operand))
        own += countIn({{operand}});
      else
        most = std::max(most, timesFactor(operand, factor));
    }
  return own + most;
}

// A factor of what the system is solved for costs the chain an instruction for each entry of its slab; as one
// of the inverse's columns it is a few for each warp. (f16 has no room for one that may be very small.)
void RolePlan::moveFactor() {
  auto solve = [](const ChainProduct &p) { return p.kind == ChainProduct::Inverse; };
  // (A refined inverse is stored as the parts that its blocks are made of, which no factor is multiplied
  // into.)
  if (decay || refinesInverse || isF16 || llvm::count_if(products, solve) != 1)
    return;
  ChainProduct &product = *llvm::find_if(products, solve);
  // What is left of it is computed by leaving the factor out wherever it stands.
  for (Value factor : factorsOf(product.left))
    if (timesFactor(product.left, factor) == 1) {
      product.leftFactor = inverseScale = factor;
      return;
    }
}

void RolePlan::placeOutputs() {
  auto isProductOf = [&](BlockArgument input) {
    auto is = [&](Value value) {
      std::optional<TokenTile> tile = value ? asTile(value) : std::nullopt;
      return tile && tile->input == input;
    };
    return llvm::any_of(products, [&](const ChainProduct &p) { return is(p.left) || is(p.right); }) ||
           llvm::any_of(grams, [&](chunk::GramOp gram) { return is(gram.getLhs()) || is(gram.getRhs()); });
  };
  // What a chunk reads, it may read piece by piece. Logarithms that rows are scaled by are read before.
  auto hasRoom = [&](BlockArgument input) {
    int64_t columns = matType(input).numCols();
    return scaling && input == scalingLogs() ? columns >= independent : columns == independent;
  };
  if (countOutputs() == 1 && !decay && steps == 1 && !comesInPieces())
    for (BlockArgument input : neededInputs)
      if (hasRoom(input) && !isProductOf(input))
        outputPlace = input;
}
