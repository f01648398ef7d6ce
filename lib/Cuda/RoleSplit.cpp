// What of a plan tells how its work can be split: products by warpgroup, scores by warp, sequences into
// segments; and where outputs lie.
#include "lib/Algebra/Spectral.h"
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

llvm::SetVector<Operation *> RolePlan::gramsOf(ArrayRef<Value> values) const {
  llvm::SetVector<Operation *> found, ordered;
  SmallVector<Value> work(values);
  while (!work.empty()) {
    Operation *op = trace(work.pop_back_val()).getDefiningOp();
    if (isa_and_present<chunk::GramOp>(op))
      found.insert(op);
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
    found.insert(logs());
  return found.contains(input);
}

bool RolePlan::isPlace(BlockArgument input) const {
  return llvm::any_of(made, [&](const MadeTile &tile) { return tile.place == input; });
}

bool RolePlan::isReadFirst(BlockArgument place) const {
  return waves > 1 && isPlace(place) && llvm::all_of(products, [&](const ChainProduct &p) {
           if (p.kind > ChainProduct::Depth || p.wave == 0)
             return true;
           std::optional<TokenTile> tile = asTile(p.right);
           return !tile->span || madeOf(*tile).place != place;
         });
}

bool RolePlan::isSlab(BlockArgument input) const {
  return isForChain(input) && llvm::none_of(products, [&](const ChainProduct &p) {
           return p.kind <= ChainProduct::Depth && asTile(p.right)->input == input && !asTile(p.right)->span;
         });
}

// The tile of some scores without factors of their rows.
unsigned RolePlan::needScores(Value value, RowFactors columnScale) {
  chunk::GramOp gram = splitScores(value).second;
  Value plain = gram ? gram.getResult() : value;
  auto known = llvm::find_if(
      scores, [&](const ScoreTile &x) { return x.value == plain && x.columnScale == columnScale; });
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
    if (isScores(product->getOperand(number)))
      return {{}, {}};
    factors.push_back({product->getOperand(number)});
    value = trace(product->getOperand(1 - number));
  }
}

// The numbers that the state is multiplied with before the last product is added to it.
std::optional<RowFactors> RolePlan::scaleAtStart() const {
  Value state = program.argumentsOf(ArgKind::State).front();
  RowFactors factors;
  Value scaled = strip(products.back().start ? products.back().start : Value(state));
  if (!products.back().start || products.back().chained)
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

std::optional<RowFactors> RolePlan::stateScale() const {
  std::optional<RowFactors> factors = scaleAtStart();
  if (!factors)
    return std::nullopt;
  Value state = program.argumentsOf(ArgKind::State).front();
  // What a product adds is made from tiles and numbers alone.
  SmallVector<Value> work{products.back().left};
  while (!work.empty()) {
    Value value = trace(strip(work.pop_back_val()));
    if (value == state)
      return std::nullopt;
    if (Operation *op = value.getDefiningOp())
      llvm::append_range(work, op->getOperands());
  }
  return factors;
}

// Whether a number follows from sums over rows.
static bool needsSums(Value value) {
  Operation *op = RolePlan::trace(value).getDefiningOp();
  return op && (isa<ReduceOp>(op) || llvm::any_of(op->getOperands(), needsSums));
}

SmallVector<Value> RolePlan::forgetting() const {
  std::optional<RowFactors> factors = stateScale();
  if (!factors && program->hasAttr(contractionAttr))
    factors = scaleAtStart();
  SmallVector<Value> decays;
  for (RowFactor factor : factors.value_or(RowFactors())) {
    auto weights = trace(factor.value).getDefiningOp<chunk::WeightsOp>();
    if (!weights || weights.getSpan() != chunk::Span::Whole || needsSums(sourceOf(weights.getDecay())))
      return {};
    decays.push_back(weights.getDecay());
  }
  return decays;
}

// A warp has 16 rows, and of a triangle the last ones are longest, those of a turned one the first. So tiles
// are turned where they stand beside a system, which is not; and each second one only.
void RolePlan::turnScores() {
  if (!system || decay || steps > 1)
    return;
  llvm::SetVector<Operation *> taken = gramsOf({system});
  bool turn = true;
  for (ScoreTile &tile : scores) {
    Operation *gram = splitScores(tile.value).second;
    bool isShared = !gram || taken.contains(gram) || llvm::count_if(scores, [&](const ScoreTile &other) {
                                                       return gramsOf({other.value}).contains(gram);
                                                     }) > 1;
    if (isShared)
      continue;
    tile.turned = turn;
    turn = !turn;
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
  if (countOutputs() == 1 && !decay && steps == 1)
    for (BlockArgument input : neededInputs)
      if (matType(input).numCols() == independent && !isProductOf(input))
        outputPlace = input;
}
