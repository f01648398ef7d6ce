// The part of a plan that concerns two states which numbers couple. What one token's writes are to a later
// one's state is an entry of a product of 2 x 2 matrices instead of a factor, and has no logarithm; all else
// is as with one state whose rows are those of both in turns.
#include "lib/Cuda/RolePlan.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;

int RolePlan::stateOf(Value value) const {
  auto all = program.argumentsOf(ArgKind::State);
  auto *found = llvm::find(all, trace(strip(value)));
  return found == all.end() ? -1 : found - all.begin();
}

// A state's size and which of its dimensions is independent; two are of one size and one way round.
LogicalResult RolePlan::checkStates() {
  auto all = program.argumentsOf(ArgKind::State);
  states = all.size();
  if (all.empty() || states > 2)
    return failure();
  auto dimOf = [](BlockArgument state) {
    return llvm::any_of(state.getUsers(), [](Operation *user) { return isa<TransposeOp>(user); }) ? 0 : 1;
  };
  // Both ways round it is read along either of its dimensions, which the chain tells apart by their sizes
  // only.
  for (BlockArgument state : all)
    if (dimOf(state) == 0 &&
        llvm::any_of(state.getUsers(), [](Operation *user) { return isa<MatmulOp>(user); }))
      return failure();
  independentDim = dimOf(all[0]);
  MatType type = matType(all[0]);
  for (auto [i, state] : llvm::enumerate(all))
    if (matType(state) != type || dimOf(state) != independentDim || !firstStateOf(program, i))
      return failure();
  independent = independentDim ? type.numCols() : type.numRows();
  keys = type.numElements() / independent;
  if ((independent != 64 && independent != 128) || !(keys == 64 || keys == 128 || keys == mostKeys))
    return failure();
  findDecay();
  if (keys > mostKeysBeside && (independent > rowsOfSlab || states > 1 || decay || rowDecay))
    return failure();
  keepsRests = states > 1 && addsUp(program);
  return success(states == 1 || !(decay || rowDecay));
}

bool RolePlan::addsUp(chunk::ProgramOp program) {
  bool found = false;
  program.getBody().walk([&](chunk::CascadeOp cascade) {
    OperandRange factors = cascade.getFactors();
    FloatAttr number;
    for (size_t i = 0, n = cascade.getType().getStates(); i < n; ++i)
      found |= matchPattern(factors[i * (n + 1)], m_Constant(&number)) && number.getValueAsDouble() == 1;
  });
  return found;
}

// With one state after the other in the rows of a product, what is read of both along the same rows is one
// product, and so is what the same rows write to both.
LogicalResult RolePlan::pairProducts() {
  if (states == 1)
    return success();
  auto pair = [&](ChainProduct &x, ChainProduct &y) {
    bool same = x.kind == y.kind && x.wave == y.wave && x.other < 0 && y.other < 0 &&
                x.kind <= ChainProduct::Depth && asTile(x.right)->input == asTile(y.right)->input;
    if (!same)
      return failure();
    x.other = &y - products.begin();
    y.other = &x - products.begin();
    (&x < &y ? y : x).isSecond = true;
    return success();
  };
  for (ChainProduct &x : products)
    if (int state = stateOf(x.left); state >= 0) {
      x.row = state;
      for (ChainProduct &y : products)
        if (&y < &x && stateOf(y.left) == 1 - state && succeeded(pair(y, x)))
          break;
    }
  // The states end with products in place.
  auto yielded = program.getBodyYield().getValues();
  auto makes = [&](Value value) {
    return llvm::find_if(products, [&](const ChainProduct &p) { return p.result == value; });
  };
  Value results[2] = {strip(yielded[0]), strip(yielded[1])};
  while (true) {
    ChainProduct *own[2] = {makes(results[0]), makes(results[1])};
    for (unsigned i : {0, 1}) {
      if (own[i] == products.end() || own[i]->kind != ChainProduct::Depth || stateOf(own[i]->left) >= 0)
        return failure();
      own[i]->row = i;
    }
    if (own[0]->chained != own[1]->chained || failed(pair(*own[0], *own[1])))
      return failure();
    if (!own[0]->chained)
      return success();
    for (unsigned i : {0, 1})
      results[i] = own[i]->start;
  }
}

//===----------------------------------------------------------------------===//
// Masks
//===----------------------------------------------------------------------===//

std::optional<CoupledMask> RolePlan::asMask(Value value) {
  value = trace(value);
  Operation *op = value.getDefiningOp();
  if (auto entries = dyn_cast_if_present<chunk::MaskOp>(op)) {
    auto cascade = entries.getDecay().getDefiningOp<chunk::CascadeOp>();
    if (!cascade)
      return std::nullopt;
    CoupledMask mask{cascade, unsigned(entries.getTo()), {}, entries.getReach()};
    mask.weights.resize(cascade.getType().getStates());
    mask.weights[entries.getFrom()] = RowFactors();
    return mask;
  }
  if (auto product = dyn_cast_if_present<MulOp>(op)) {
    for (unsigned i : {0, 1})
      if (auto transposed = product->getOperand(1 - i).getDefiningOp<TransposeOp>();
          transposed && !isScores(transposed))
        if (std::optional<CoupledMask> mask = asMask(product->getOperand(i))) {
          for (std::optional<RowFactors> &weight : mask->weights)
            if (weight)
              weight->push_back({transposed.getOperand()});
          return mask;
        }
    return std::nullopt;
  }
  auto sum = dyn_cast_if_present<AddOp>(op);
  std::optional<CoupledMask> x = sum ? asMask(sum->getOperand(0)) : std::nullopt;
  std::optional<CoupledMask> y = x ? asMask(sum->getOperand(1)) : std::nullopt;
  if (!y || x->cascade != y->cascade || x->to != y->to)
    return std::nullopt;
  // Whether a token sees itself is the same where it writes to other states alone.
  if (x->reach != y->reach) {
    if (x->reach == Reach::Before || y->reach == Reach::Before)
      return std::nullopt;
    for (auto [own, other] : {std::pair(&*x, &*y), {&*y, &*x}})
      if (!own->weights[own->to])
        own->reach = other->reach;
    if (x->reach != y->reach)
      return std::nullopt;
  }
  for (auto [own, other] : llvm::zip(x->weights, y->weights)) {
    if (own && other)
      return std::nullopt;
    if (other)
      own = other;
  }
  return x;
}

static bool isSame(const CoupledMask &x, const CoupledMask &y) {
  return x.cascade == y.cascade && x.to == y.to && x.weights == y.weights;
}

int RolePlan::maskOf(Value scores) const {
  for (scores = trace(scores);;) {
    auto product = scores.getDefiningOp<MulOp>();
    if (!product)
      return -1;
    for (unsigned i : {0, 1})
      if (std::optional<CoupledMask> mask = asMask(product->getOperand(i))) {
        auto *known = llvm::find_if(masks, [&](const CoupledMask &x) { return isSame(x, *mask); });
        return known == masks.end() ? -1 : known - masks.begin();
      }
    scores = trace(product->getOperand(isScores(product->getOperand(0)) ? 0 : 1));
  }
}

LogicalResult RolePlan::needMask(const CoupledMask &mask) {
  if (states != 2 || mask.weights.size() != 2)
    return failure();
  SmallVector<Value> numbers(mask.cascade.getDefiningOp<chunk::CascadeOp>().getFactors());
  for (const std::optional<RowFactors> &weight : mask.weights)
    for (RowFactor factor : weight.value_or(RowFactors()))
      numbers.push_back(factor.value);
  if (llvm::none_of(masks, [&](const CoupledMask &x) { return isSame(x, mask); }))
    masks.push_back(mask);
  return success(llvm::all_of(numbers, [&](Value number) { return succeeded(needRow(number)); }));
}

void RolePlan::findMasks(chunk::ProgramOp program) {
  llvm::SmallVector<chunk::GramOp> grams;
  program.getBody().walk([&](MulOp product) {
    for (unsigned i : {0, 1}) {
      std::optional<CoupledMask> mask = asMask(product->getOperand(i));
      auto inner = product->getOperand(1 - i).getDefiningOp<MatmulOp>();
      auto right = inner ? inner.getRhs().getDefiningOp<TransposeOp>() : TransposeOp();
      if (!mask || !right || matType(right.getOperand()) != matType(inner.getLhs()))
        continue;
      auto *known = llvm::find_if(grams, [&](chunk::GramOp gram) {
        return gram.getLhs() == inner.getLhs() && gram.getRhs() == right.getOperand() &&
               gram.getReach() == mask->reach;
      });
      if (known == grams.end()) {
        OpBuilder b(inner);
        grams.push_back(chunk::GramOp::create(b, product.getLoc(), inner.getType(), inner.getLhs(),
                                              right.getOperand(), Value(), mask->reach));
        known = std::prev(grams.end());
      }
      product->setOperand(1 - i, known->getResult());
      return;
    }
  });
}
