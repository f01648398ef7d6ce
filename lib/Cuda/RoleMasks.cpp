// Masks of two states which numbers couple: what one token's writes are to a later one's state is an entry of
// a product of 2 x 2 matrices.
#include "lib/Cuda/RolePlan.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;

static bool isZero(Value factor) {
  FloatAttr number;
  return matchPattern(factor, m_Constant(&number)) && number.getValue().isZero();
}

// Whether nothing that is written to one state comes to another one.
static bool isUnreachable(Value cascade, size_t to, size_t from) {
  auto op = cascade.getDefiningOp<chunk::CascadeOp>();
  return op.getType().getStates() == 2 && to != from && isZero(op.getFactors()[2 * to + from]);
}

// Where a state takes nothing of the other one, what it decays by at a token; null where it does.
static Value ownDecay(Value cascade, unsigned state) {
  auto op = cascade.getDefiningOp<chunk::CascadeOp>();
  unsigned states = op.getType().getStates();
  for (unsigned other = 0; other < states; ++other)
    if (other != state && !isZero(op.getFactors()[state * states + other]))
      return {};
  return RolePlan::trace(op.getFactors()[state * states + state]);
}

// What is read before a token, times what the states decay by there, is read of them decayed, before the
// token's writes; and the other way round.
static bool readDecayed(CoupledMask &mask, bool decayed) {
  auto reads = mask.reads;
  for (auto [state, factors] : llvm::enumerate(reads)) {
    if (!factors)
      continue;
    Value own = ownDecay(mask.cascade, state);
    if (!own)
      return false;
    if (!decayed) {
      factors->push_back({own});
      continue;
    }
    auto *found = llvm::find_if(
        *factors, [&](RowFactor factor) { return !factor.divides && RolePlan::trace(factor.value) == own; });
    if (found == factors->end())
      return false;
    factors->erase(found);
  }
  mask.reads = reads;
  mask.reach = decayed ? Reach::Strict : Reach::Before;
  return true;
}

// Adds what one mask has for each state to what the other has; they must not have the same state's.
static bool join(SmallVectorImpl<std::optional<RowFactors>> &own,
                 ArrayRef<std::optional<RowFactors>> others) {
  for (auto [x, y] : llvm::zip(own, others)) {
    if (x && y)
      return false;
    if (y)
      x = y;
  }
  return true;
}

// The sum of masks that are read of different states. A state's weight is left out where it reaches none of
// what is read.
static std::optional<CoupledMask> joinReads(CoupledMask x, CoupledMask y) {
  for (auto [own, other] : {std::pair(&x, &y), {&y, &x}})
    if (own->reach == Reach::Strict && other->reach == Reach::Before && !readDecayed(*own, false))
      return std::nullopt;
  for (auto [from, own, other] : llvm::enumerate(x.weights, y.weights)) {
    if (own && other && *own != *other)
      return std::nullopt;
    if (own.has_value() != other.has_value())
      for (auto [to, factors] : llvm::enumerate(own ? y.reads : x.reads))
        if (factors && !isUnreachable(x.cascade, to, from))
          return std::nullopt;
    if (other)
      own = other;
  }
  return x.reach == y.reach && join(x.reads, y.reads) ? std::optional(x) : std::nullopt;
}

// The same mask of one state that is read, with constant factors as those of what is written.
static CoupledMask withConstantsWritten(CoupledMask mask) {
  auto isSet = [](const std::optional<RowFactors> &factors) { return factors.has_value(); };
  if (llvm::count_if(mask.reads, isSet) != 1)
    return mask;
  RowFactors &read = **llvm::find_if(mask.reads, isSet);
  auto isConstant = [](RowFactor factor) {
    return RolePlan::trace(factor.value).getDefiningOp<ConstantOp>() != nullptr;
  };
  for (std::optional<RowFactors> &weight : mask.weights)
    if (weight)
      llvm::copy_if(read, std::back_inserter(*weight), isConstant);
  llvm::erase_if(read, isConstant);
  return mask;
}

std::optional<CoupledMask> RolePlan::asMask(Value value) {
  value = trace(value);
  Operation *op = value.getDefiningOp();
  if (auto entries = dyn_cast_if_present<chunk::MaskOp>(op)) {
    auto cascade = entries.getDecay().getDefiningOp<chunk::CascadeOp>();
    if (!cascade)
      return std::nullopt;
    CoupledMask mask{cascade, {}, {}, entries.getReach()};
    for (auto [factors, state] :
         {std::pair(&mask.reads, entries.getTo()), {&mask.weights, entries.getFrom()}}) {
      factors->resize(cascade.getType().getStates());
      (*factors)[state] = RowFactors();
    }
    return mask;
  }
  if (auto product = dyn_cast_if_present<MulOp>(op)) {
    for (unsigned i : {0, 1}) {
      Value factor = product->getOperand(1 - i);
      if (isScores(factor) && !factor.getDefiningOp<TransposeOp>())
        continue;
      std::optional<CoupledMask> mask =
          isScores(product->getOperand(i)) ? asMask(product->getOperand(i)) : std::optional<CoupledMask>();
      if (!mask)
        continue;
      auto transposed = factor.getDefiningOp<TransposeOp>();
      if (transposed && isScores(transposed))
        continue;
      for (std::optional<RowFactors> &factors : transposed ? mask->weights : mask->reads)
        if (factors)
          factors->push_back({trace(transposed ? transposed.getOperand() : factor)});
      if (mask->reach == Reach::Before)
        readDecayed(*mask, true);
      // Tables have the numbers of the token that a row is, or of the next one.
      bool hasNumbers = llvm::any_of(mask->reads, [](const auto &own) { return own && !own->empty(); });
      return mask->reach == Reach::Start && hasNumbers ? std::optional<CoupledMask>() : mask;
    }
    return std::nullopt;
  }
  auto sum = dyn_cast_if_present<AddOp>(op);
  std::optional<CoupledMask> x = sum ? asMask(sum->getOperand(0)) : std::nullopt;
  std::optional<CoupledMask> y = x ? asMask(sum->getOperand(1)) : std::nullopt;
  if (!y || x->cascade != y->cascade)
    return std::nullopt;
  if (x->reads != y->reads) {
    CoupledMask own = withConstantsWritten(*x), other = withConstantsWritten(*y);
    if (own.reads != other.reads)
      return joinReads(*x, *y);
    x = own;
    y = other;
  }
  // Whether a token sees itself is the same where it writes to other states alone.
  if (x->reach != y->reach) {
    for (Reach reach : {Reach::Before, Reach::Start})
      if (x->reach == reach || y->reach == reach)
        return std::nullopt;
    for (auto [own, other] : {std::pair(&*x, &*y), {&*y, &*x}})
      if (llvm::all_of(llvm::zip(own->reads, own->weights),
                       [](auto both) { return !(std::get<0>(both) && std::get<1>(both)); }))
        own->reach = other->reach;
    if (x->reach != y->reach)
      return std::nullopt;
  }
  return join(x->weights, y->weights) ? x : std::nullopt;
}

// The table of a mask that is read before a token's own update has the next token's numbers.
static bool isSame(const CoupledMask &x, const CoupledMask &y) {
  bool hasFactors = llvm::any_of(x.reads, [](const auto &factors) { return factors && !factors->empty(); });
  return x.cascade == y.cascade && x.reads == y.reads && x.weights == y.weights &&
         (!hasFactors || (x.reach == Reach::Before) == (y.reach == Reach::Before));
}

// Factors that whatever is read has in common are those of the mask.
static CoupledMask withoutCommon(CoupledMask mask) {
  auto *first = llvm::find_if(mask.reads, [](const auto &factors) { return factors.has_value(); });
  for (RowFactor factor : RowFactors(**first)) {
    if (!llvm::all_of(mask.reads, [&](const auto &own) { return !own || llvm::is_contained(*own, factor); }))
      continue;
    for (std::optional<RowFactors> &own : mask.reads)
      if (own)
        own->erase(llvm::find(*own, factor));
    mask.scale.push_back(factor);
  }
  return mask;
}

// Out of a mask factors are multiplied with scores, or with what these give: worth it where that leaves one
// mask of two.
bool RolePlan::sharesMasks(chunk::ProgramOp program) {
  SmallVector<CoupledMask> all, taken;
  auto add = [](SmallVector<CoupledMask> &known, const CoupledMask &mask) {
    if (llvm::none_of(known, [&](const CoupledMask &x) { return isSame(x, mask); }))
      known.push_back(mask);
  };
  program.getBody().walk([&](MulOp product) {
    for (unsigned i : {0, 1})
      if (trace(product->getOperand(1 - i)).getDefiningOp<chunk::GramOp>())
        if (std::optional<CoupledMask> mask = asMask(product->getOperand(i))) {
          add(all, *mask);
          add(taken, withoutCommon(*mask));
        }
  });
  return taken.size() < all.size();
}

std::optional<CoupledMask> RolePlan::coupledMask(Value value) const {
  std::optional<CoupledMask> mask = asMask(value);
  return mask && takesCommon ? withoutCommon(*mask) : mask;
}

int RolePlan::maskOf(Value scores) const {
  for (scores = trace(scores);;) {
    auto product = scores.getDefiningOp<MulOp>();
    if (!product)
      return -1;
    for (unsigned i : {0, 1})
      if (std::optional<CoupledMask> mask = coupledMask(product->getOperand(i))) {
        auto *known = llvm::find_if(masks, [&](const CoupledMask &x) { return isSame(x, *mask); });
        return known == masks.end() ? -1 : known - masks.begin();
      }
    scores = trace(product->getOperand(isScores(product->getOperand(0)) ? 0 : 1));
  }
}

SmallVector<Value> CoupledMask::numbers() const {
  SmallVector<Value> found(cascade.getDefiningOp<chunk::CascadeOp>().getFactors());
  for (const auto *factors : {&reads, &weights})
    for (const std::optional<RowFactors> &own : *factors)
      for (RowFactor factor : own.value_or(RowFactors()))
        found.push_back(factor.value);
  return found;
}

LogicalResult RolePlan::needMask(CoupledMask mask) {
  if (states != 2 || mask.weights.size() != 2)
    return failure();
  for (RowFactor factor : std::exchange(mask.scale, {}))
    if (failed(needRow(factor.value)))
      return failure();
  if (llvm::none_of(masks, [&](const CoupledMask &x) { return isSame(x, mask); }))
    masks.push_back(mask);
  return success(llvm::all_of(mask.numbers(), [&](Value number) { return succeeded(needRow(number)); }));
}

// Scores as what their mask is a factor of and the mask, with numbers of the later token as factors of that.
static std::pair<Value, Value> takeMask(OpBuilder &b, Value scores) {
  auto times = [&](Value number, Value mask) -> Value {
    return MulOp::create(b, scores.getLoc(), mask.getType(), number, mask);
  };
  if (auto negative = scores.getDefiningOp<NegOp>()) {
    auto [inner, mask] = takeMask(b, negative->getOperand(0));
    if (inner)
      return {inner, times(ConstantOp::create(b, scores.getLoc(), -1.0), mask)};
    return {};
  }
  auto product = scores.getDefiningOp<MulOp>();
  if (!product)
    return {};
  for (unsigned i : {0, 1}) {
    Value own = product->getOperand(i), other = product->getOperand(1 - i);
    if (RolePlan::isScores(own) && RolePlan::isScores(other) && RolePlan::asMask(own))
      return {other, own};
    if (RolePlan::isScores(other) || !RolePlan::isScores(own))
      continue;
    auto [inner, mask] = takeMask(b, own);
    if (inner)
      return {inner, times(other, mask)};
  }
  return {};
}

// The sum of scores that are one product times masks as the product times the sum of those; null of others.
static Value sumOfMasked(OpBuilder &b, Value lhs, Value rhs) {
  auto [x, own] = takeMask(b, lhs);
  auto [y, other] = takeMask(b, rhs);
  if (!x || x != y)
    return {};
  Value mask = AddOp::create(b, lhs.getLoc(), own.getType(), own, other);
  return RolePlan::asMask(mask) ? MulOp::create(b, lhs.getLoc(), x.getType(), x, mask).getResult() : Value();
}

// What scores of two states take of the same rows is taken by one.
static void joinProducts(chunk::ProgramOp program) {
  for (AddOp root : llvm::make_early_inc_range(program.getBody().getOps<AddOp>())) {
    if (RolePlan::isScores(root) ||
        llvm::any_of(root->getUsers(), [](Operation *op) { return isa<AddOp>(op); }))
      continue;
    OpBuilder b(root);
    SmallVector<Value> terms, work{root};
    while (!work.empty()) {
      Value value = work.pop_back_val();
      if (auto sum = value.getDefiningOp<AddOp>(); sum && (sum == root || value.hasOneUse()))
        work.append({sum.getRhs(), sum.getLhs()});
      else
        terms.push_back(value);
    }
    size_t all = terms.size();
    for (size_t i = 0; i < terms.size(); ++i)
      for (size_t j = i + 1; j < terms.size(); ++j) {
        auto x = terms[i].getDefiningOp<MatmulOp>(), y = terms[j].getDefiningOp<MatmulOp>();
        if (!x || !y || x.getRhs() != y.getRhs() || !RolePlan::isScores(x.getLhs()))
          continue;
        if (Value scores = sumOfMasked(b, x.getLhs(), y.getLhs())) {
          terms[i] = MatmulOp::create(b, root.getLoc(), scores, x.getRhs());
          terms.erase(terms.begin() + j--);
        }
      }
    if (terms.size() == all)
      continue;
    Value sum = terms.front();
    for (Value term : ArrayRef(terms).drop_front())
      sum = AddOp::create(b, root.getLoc(), sum, term);
    root.replaceAllUsesWith(sum);
  }
}

// Writes sums of the same product times masks as the product times the sum of those.
static void joinMasks(chunk::ProgramOp program) {
  SmallVector<AddOp> sums;
  program.getBody().walk([&](AddOp sum) {
    if (RolePlan::isScores(sum) && !RolePlan::asMask(sum))
      sums.push_back(sum);
  });
  for (AddOp sum : sums) {
    OpBuilder b(sum);
    if (Value joined = sumOfMasked(b, sum->getOperand(0), sum->getOperand(1)))
      sum.replaceAllUsesWith(joined);
  }
}

void RolePlan::findMasks(chunk::ProgramOp program) {
  joinProducts(program);
  joinMasks(program);
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
                                              right.getOperand(), Value(), ValueRange(), mask->reach));
        known = std::prev(grams.end());
      }
      product->setOperand(1 - i, known->getResult());
      return;
    }
  });
}
