// A vector that sums keys beside a matrix that takes in values along them, as a normaliser does:
//
//   S = a*S + b*v*kT; z = a*z + b*k; o = S*q / f(dot(z, q))
//
// A scan of it would be a kernel of its own, as long as it takes to read all keys and queries once more. But
// a chunk's scores, q . k and what decays between their tokens, are what z is read with, too: it is their
// sums over rows, in f32, and a product of the queries with z. So who makes scores keeps z
// (RoleBesideScores.cpp), and a program is that of the matrix alone, with `chunk.normaliser` for what is
// read.
#include "lib/Algebra/NormalForm.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/Spectral.h"
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/RolePlan.h"
#include "mlir/Analysis/TopologicalSortUtils.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static bool isVectorState(Value state) { return isOne(matType(state).getCols()) && !isNumber(state); }

// A sum's two operands, of which the second one fulfils a condition, or nothing.
static std::pair<Value, Value> splitSum(Value sum, llvm::function_ref<bool(Value)> isSecond) {
  auto op = sum.getDefiningOp<AddOp>();
  for (unsigned i : {0, 1})
    if (op && isSecond(op->getOperand(i)))
      return {op->getOperand(1 - i), op->getOperand(i)};
  return {};
}

// Has one op stand for what is read of a vector state, where that and what the state becomes are sums over
// the same keys with the same weights; null where they are not.
static chunk::NormaliserOp replaceRead(chunk::ProgramOp program, unsigned number) {
  BlockArgument state = program.argumentsOf(ArgKind::State)[number];
  Operation *yield = program.getBodyYield();
  std::optional<FirstState> first = firstStateOf(program, number);
  if (!isVectorState(state) || !first || first->param)
    return {};
  // z' = [whole] z + keysT weights
  auto [kept, added] = splitSum(RolePlan::strip(yield->getOperand(number)), [](Value value) {
    auto product = value.getDefiningOp<MatmulOp>();
    return product && product.getLhs().getDefiningOp<TransposeOp>();
  });
  if (!added)
    return {};
  Value whole;
  if (auto product = kept.getDefiningOp<MulOp>())
    for (unsigned i : {0, 1})
      if (product->getOperand(i) == state) {
        whole = product->getOperand(1 - i);
        kept = state;
      }
  auto write = added.getDefiningOp<MatmulOp>();
  Value weights = write.getRhs();
  if (kept != state || (whole && !isNumber(whole)))
    return {};
  // It is read once, and the sum with scores is for nothing else.
  auto reads = llvm::make_filter_range(state.getUsers(), [](Operation *user) { return isa<MatmulOp>(user); });
  if (llvm::range_size(reads) != 1 || llvm::range_size(state.getUsers()) != 2)
    return {};
  auto read = cast<MatmulOp>(*reads.begin());
  auto sum = read->hasOneUse() ? dyn_cast<AddOp>(*read->user_begin()) : AddOp();
  Value other = sum ? sum->getOperand(sum->getOperand(0) == read.getResult() ? 1 : 0) : Value();
  auto ofScores = other ? other.getDefiningOp<MatmulOp>() : MatmulOp();
  if (!ofScores || !RolePlan::isScores(ofScores.getLhs()) || ofScores.getRhs() != weights)
    return {};
  OpBuilder b(sum);
  auto op = chunk::NormaliserOp::create(b, sum.getLoc(), sum.getType(), read.getLhs(), ofScores.getLhs(),
                                        weights, RolePlan::strip(write.getLhs()), whole, number,
                                        llvm::APFloat(first->number));
  sum.replaceAllUsesWith(op.getResult());
  return op;
}

// Whether the rule's matrix, without that vector, forgets as its decays do.
static bool contractsBut(RuleOp rule, unsigned number) {
  OwningOpRef<RuleOp> copy(rule.clone());
  BlockArgument state = copy->argumentsOf(ArgKind::State)[number];
  Operation *yield = copy->getBodyYield();
  yield->eraseOperands(copy->yieldedStates().size(), copy->yieldedOutputs().size());
  yield->eraseOperand(number);
  copy->getInitYield()->eraseOperand(number);
  copy->setOutputsAttr(ArrayAttr::get(rule.getContext(), {}));
  eraseDead(*copy);
  if (!state.use_empty())
    return false;
  SmallVector<Attribute> args(copy->getArgs().begin(), copy->getArgs().end());
  args.erase(args.begin() + state.getArgNumber());
  copy->getBody().front().eraseArgument(state.getArgNumber());
  copy->setArgsAttr(ArrayAttr::get(rule.getContext(), args));
  return isContraction(normalise(*copy));
}

void RolePlan::takeNormaliser(chunk::ProgramOp program, RuleOp rule) {
  auto states = program.argumentsOf(ArgKind::State);
  if (states.size() < 2 || program->hasAttr(rotatedAttr))
    return;
  Block &body = program.getBody().front(), &init = program.getInit().front();
  for (auto [number, state] : llvm::enumerate(states)) {
    if (!replaceRead(program, number))
      continue;
    program.getBodyYield()->eraseOperand(number);
    init.getTerminator()->eraseOperand(number);
    sortTopologically(&body);
    eraseDead(body);
    eraseDead(init);
    unsigned argument = state.getArgNumber();
    body.eraseArgument(argument);
    SmallVector<Attribute> args(program.getArgs().begin(), program.getArgs().end());
    args.erase(args.begin() + argument);
    program.setArgsAttr(ArrayAttr::get(program.getContext(), args));
    if (contractsBut(rule, number))
      program->setAttr(contractionAttr, UnitAttr::get(program.getContext()));
    return;
  }
}

bool RolePlan::isLate(Value value) {
  Operation *op = trace(value).getDefiningOp();
  return op && !isScores(value) &&
         (isa<chunk::NormaliserOp>(op) ||
          (isa<ElementwiseOp, BroadcastOp>(op) &&
           llvm::any_of(op->getOperands(), [](Value operand) { return isLate(operand); })));
}

bool RolePlan::isLate(ArrayRef<RowFactor> factors) {
  return llvm::any_of(factors, [](RowFactor factor) { return isLate(factor.value); });
}

// Numbers as factors, but for 1.
static RowFactors factorsBut1(Value numbers) {
  RowFactors factors = RolePlan::flatten({{numbers}});
  llvm::erase_if(factors, [](RowFactor factor) {
    auto constant = factor.value.getDefiningOp<ConstantOp>();
    return constant && constant.getValue().isExactlyValue(1);
  });
  return factors;
}

LogicalResult RolePlan::needNormaliser() {
  for (Value rows : {normaliser.getQueries(), normaliser.getKeys()}) {
    if (statesOnly && rows == normaliser.getQueries())
      continue;
    std::optional<TokenTile> tile = asTile(rows);
    if (!tile || tile->span || tile->decayed || tile->made || failed(needInput(tile->input)))
      return failure();
    for (RowFactor factor : tile->scale)
      if (failed(needRow(factor.value)))
        return failure();
  }
  if (Value whole = normaliser.getWhole(); whole && failed(needRow(whole)))
    return failure();
  return success(succeeded(needRow(normaliser.getWeights())) &&
                 (statesOnly || succeeded(visitScores(normaliser.getScores()))));
}

// Whether what scores sum over may have some factors, where the normaliser's are the same scores.
bool RolePlan::leavesNormaliser(chunk::GramOp gram, ArrayRef<RowFactor> columns) const {
  return !normaliser || splitScores(normaliser.getScores()).second != gram ||
         without(factorsBut1(normaliser.getWeights()), flatten(columns));
}

RolePlan::NormaliserScale RolePlan::normaliserScale() const {
  return {splitScores(normaliser.getScores()).first,
          *without(factorsBut1(normaliser.getWeights()), flatten(scores[normaliserTile].columnScale))};
}

RowFactors RolePlan::normaliserWeights() const {
  RowFactors factors = asTile(normaliser.getKeys())->scale;
  llvm::append_range(factors, factorsBut1(normaliser.getWeights()));
  return factors;
}

// Whether it forgets what was before at least as a matrix state does by some decays.
bool RolePlan::forgetsNormaliser(ArrayRef<Value> decays) const {
  SmallVector<Value> own;
  for (RowFactor factor : normaliser.getWhole() ? factorsBut1(normaliser.getWhole()) : RowFactors()) {
    auto weights = factor.value.getDefiningOp<chunk::WeightsOp>();
    if (!weights || factor.divides || weights.getSpan() != chunk::Span::Whole)
      return false;
    own.push_back(weights.getDecay());
  }
  return llvm::all_of(decays, [&](Value decay) { return llvm::is_contained(own, decay); });
}

// Whether someone makes its scores, and nothing but outputs follows from it.
LogicalResult RolePlan::checkNormaliser() {
  if (steps > 1 || decay || rowDecay || states > 1 || ownSystem >= 0 || isF16 || keys > mostKeysBeside)
    return failure();
  auto isTile = [&](const ScoreTile &tile) {
    auto [factors, gram] = splitScores(tile.value);
    return gram && gram == splitScores(normaliser.getScores()).second && maskOf(tile.value) < 0 &&
           !tile.ofTokens && !tile.anyAbove && !tile.turned && tile.rowScale.empty() &&
           leavesNormaliser(gram, tile.columnScale);
  };
  auto *tile = llvm::find_if(scores, isTile);
  normaliserTile = tile - scores.begin();
  if (!statesOnly && tile == scores.end())
    return failure();
  for (const ChainProduct &product : products) {
    std::optional<TokenTile> left = asTile(product.left);
    if (isLate(product.resultScale) || (product.startScale && isLate(*product.startScale)) ||
        (left && isLate(left->scale)) ||
        (product.kind <= ChainProduct::Depth && isLate(asTile(product.right)->scale)))
      return failure();
  }
  // No system and no product comes before it, so that what a state becomes is all that may.
  SmallVector<Value> open(program.getBodyYield().getValues().take_front(states));
  llvm::DenseSet<Value> seen;
  while (!open.empty()) {
    Value value = trace(open.pop_back_val());
    Operation *op = value.getDefiningOp();
    if (!op || !seen.insert(value).second)
      continue;
    if (isa<chunk::NormaliserOp>(op))
      return failure();
    llvm::append_range(open, op->getOperands());
  }
  return success();
}
