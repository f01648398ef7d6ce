// Who walks the channels where each key couples the states. Two warpgroups have 64 channels each, a warp has
// 16 of the chunk's tokens, a thread two channels: it goes through its tokens in order, so that products of
// transitions need no other thread.
#include "lib/Cuda/RoleKeyWalk.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

//===----------------------------------------------------------------------===//
// What a plan's rows and transitions are
//===----------------------------------------------------------------------===//

static std::optional<double> constantOf(const RowFactors &factors) {
  auto constant =
      factors.size() == 1 ? RolePlan::trace(factors[0].value).getDefiningOp<ConstantOp>() : ConstantOp();
  return constant ? std::optional(constant.getValue().convertToDouble()) : std::nullopt;
}

static bool isNumberOfTokens(const RolePlan &plan, Value value) {
  return plan.isRow(value) && !value.getDefiningOp<ConstantOp>();
}

// The numbers of tokens that a vector follows from, entry by entry.
static llvm::SetVector<Value> numbersIn(const RolePlan &plan, Value vector) {
  llvm::SetVector<Value> numbers;
  SmallVector<Value> work{vector};
  while (!work.empty()) {
    Value value = RolePlan::trace(work.pop_back_val());
    if (isNumberOfTokens(plan, value))
      numbers.insert(value);
    else if (Operation *op = value.getDefiningOp(); op && !plan.isOfParams(value))
      llvm::append_range(work, op->getOperands());
  }
  return numbers;
}

int RoleEmitter::KeyWalk::Shape::numberOf(const RowFactors &factors, double outside) {
  for (auto [i, known] : llvm::enumerate(numbers))
    if (known.factors == factors && known.outside == outside)
      return i;
  numbers.push_back({factors, outside});
  return numbers.size() - 1;
}

unsigned RoleEmitter::KeyWalk::Shape::leftOf(const Left &left) {
  for (auto [i, known] : llvm::enumerate(lefts))
    if (known.rows == left.rows && known.to == left.to && known.span == left.span)
      return i;
  lefts.push_back(left);
  return lefts.size() - 1;
}

unsigned RoleEmitter::KeyWalk::Shape::rightOf(const Right &right) {
  for (auto [i, known] : llvm::enumerate(rights))
    if (known.rows == right.rows && known.weights == right.weights)
      return i;
  rights.push_back(right);
  return rights.size() - 1;
}

RoleEmitter::KeyWalk::Shape::Shape(const RolePlan &plan) {
  for (auto [i, factor] : llvm::enumerate(plan.decay.getDefiningOp()->getOperands())) {
    Transition &own = transitions[i / 2][i % 2];
    double outside = i / 2 == i % 2;
    auto parts = *plan.splitTransition(factor);
    RowFactors factors = parts.first;
    Value vector = parts.second;
    // (A state that becomes nothing of itself stays what it is past a sequence's end.)
    own.isZero = constantOf(factors) == 0 && outside == 0;
    if (own.isZero)
      continue;
    // (A number that is 1 everywhere is none.)
    if (!factors.empty() || (!vector && outside == 0))
      own.number = numberOf(factors, outside);
    if (!vector)
      continue;
    double ofVector = own.number >= 0 ? 1 : outside;
    auto *known =
        llvm::find_if(vectors, [&](const Vector &x) { return x.value == vector && x.outside == ofVector; });
    own.vector = known - vectors.begin();
    if (known == vectors.end())
      vectors.push_back({vector, ofVector});
  }
  for (int i : {0, 1})
    for (int j : {0, 1})
      holds[i][j] = i == j || !transitions[i][j].isZero;
  for (chunk::GramOp gram : plan.grams) {
    unsigned left = leftOf({plan.asRows(gram.getLhs())->rows(), unsigned(gram.getTo()), plan.leftSpan(gram)});
    grams.push_back({left, rightOf({plan.asRows(gram.getRhs())->rows(), plan.weightsOf(gram)})});
  }
  seers = lefts.size(), seen = rights.size();
  for (const MadeTile &tile : plan.made) {
    if (tile.span == Span::Rest)
      rightOf({tile.rows, tile.coupling->weights});
    else
      leftOf({tile.rows, tile.coupling->to, tile.span});
  }
  for (const Right &right : rights)
    for (const auto &weight : right.weights)
      if (weight && !weight->empty())
        numberOf(*weight, 0);
  for (const Vector &vector : vectors)
    for (Value number : numbersIn(plan, vector.value))
      numberOf({{number}}, 0);
}

// There are two places for levels, so that one is made while the one before is multiplied.
int64_t RoleEmitter::KeyWalk::bytesOfLevels(const RolePlan &plan) {
  return 2 * Shape(plan).rowsOfLevel() * 2 * (plan.keys / 64) * 128;
}

int64_t RoleEmitter::KeyWalk::bytesOfTables(const RolePlan &plan) {
  return blocksOfChunk * 4 * plan.keys * 4;
}

//===----------------------------------------------------------------------===//
// Products of transitions
//===----------------------------------------------------------------------===//

RoleEmitter::KeyWalk::KeyWalk(RoleEmitter &roles, ScoreState &state)
    : roles(roles), state(state), plan(roles.plan), ptx(roles.ptx), b(roles.b), shape(plan),
      one(ptx.number(1)) {}

RoleEmitter::KeyWalk::Two RoleEmitter::KeyWalk::sum(Two x, Two y) {
  if (!x[0] || !y[0])
    return x[0] ? x : y;
  Value first = ptx.sum(x[0], y[0]);
  return {first, x[0] == x[1] && y[0] == y[1] ? first : ptx.sum(x[1], y[1])};
}

RoleEmitter::KeyWalk::Two RoleEmitter::KeyWalk::times(Two x, Two y) {
  if (!x[0] || !y[0])
    return {};
  if (x[0] == one || y[0] == one)
    return x[0] == one ? y : x;
  Value first = ptx.multiply(x[0], y[0]);
  return {first, x[0] == x[1] && y[0] == y[1] ? first : ptx.multiply(x[1], y[1])};
}

RoleEmitter::KeyWalk::Matrix RoleEmitter::KeyWalk::identity() {
  Matrix result;
  result.entries[0][0] = result.entries[1][1] = {one, one};
  return result;
}

RoleEmitter::KeyWalk::Matrix RoleEmitter::KeyWalk::multiply(const Matrix &x, const Matrix &y) {
  Matrix result;
  for (int i : {0, 1})
    for (int j : {0, 1})
      for (int k : {0, 1})
        result.entries[i][j] = sum(result.entries[i][j], times(x.entries[i][k], y.entries[k][j]));
  return result;
}

// (A condition is the same for a warp.)
RoleEmitter::KeyWalk::Matrix RoleEmitter::KeyWalk::when(Value condition, llvm::function_ref<Matrix()> body,
                                                        llvm::function_ref<Matrix()> otherwise) {
  auto flat = [&](const Matrix &m) {
    Values values;
    for (int i : {0, 1})
      for (int j : {0, 1})
        for (int channel : {0, 1})
          if (shape.holds[i][j])
            values.push_back(m.entries[i][j][channel] ? m.entries[i][j][channel] : ptx.number(0));
    return values;
  };
  SmallVector<Type> types(llvm::count_if(ArrayRef(&shape.holds[0][0], 4), [](bool x) { return x; }) * 2,
                          b.getF32Type());
  auto is = scf::IfOp::create(b, types, condition, true);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(is.thenBlock());
    scf::YieldOp::create(b, flat(body()));
    b.setInsertionPointToStart(is.elseBlock());
    scf::YieldOp::create(b, flat(otherwise()));
  }
  Matrix result;
  ValueRange values = is.getResults();
  for (int i : {0, 1})
    for (int j : {0, 1})
      if (shape.holds[i][j]) {
        result.entries[i][j] = {values[0], values[1]};
        values = values.drop_front(2);
      }
  return result;
}

//===----------------------------------------------------------------------===//
// Tokens
//===----------------------------------------------------------------------===//

// Of 64 channels, one warpgroup has all.
void RoleEmitter::KeyWalk::whenWalking(llvm::function_ref<void()> body) {
  plan.keys > 64 ? body() : roles.threads.when(ptx.equal(state.walker, 0), body);
}

void RoleEmitter::KeyWalk::findPlaces() {
  half = ptx.bits(state.walker, plan.keys / 64 - 1);
  block = roles.warp;
  place = ptx.mul(roles.freshLane(), 4);
  blocks = ptx.add(ptx.add(roles.base, roles.tablesAt), ptx.mul(half, 256));
  blocks = ptx.add(blocks, ptx.mul(place, 2));
}

Value RoleEmitter::KeyWalk::loadPair(BlockArgument input, int64_t token) {
  Value at = ptx.add(state.stage.tiles, ptx.mul(half, roles.halfStride(input)));
  at = ptx.exclusiveOr(ptx.add(ptx.add(at, ptx.mul(block, blockBytes)), place), ptx.constant(token % 8 * 16));
  return ptx.load(at, roles.tileOffset(input) + token * 128, 1, b.getI32Type())[0];
}

// Entries of what follows from inputs and params entry by entry.
RoleEmitter::KeyWalk::Two RoleEmitter::KeyWalk::entriesOf(Value vector, int64_t token) {
  llvm::DenseMap<Value, Two> leaves;
  Two result;
  for (int channel : {0, 1})
    result[channel] = roles.vectorEntry(vector, [&](Value value) -> Value {
      auto known = leaves.find(value);
      if (known != leaves.end())
        return known->second[channel];
      if (plan.sharedVectors().contains(value)) {
        Value at = ptx.add(ptx.add(roles.base, ptx.mul(half, 256)), ptx.mul(roles.freshLane(), 8));
        Values entries = ptx.loadFloats(at, roles.vectorAt(value), 2);
        return (leaves[value] = {entries[0], entries[1]})[channel];
      }
      if (isNumberOfTokens(plan, value))
        return number(shape.numberOf({{value}}, 0), token)[channel];
      auto input = dyn_cast<BlockArgument>(value);
      if (!input)
        return {};
      auto ahead = pairs.find(value);
      Values entries = ptx.unpack(ahead != pairs.end() ? ahead->second[token] : loadPair(input, token));
      return (leaves[value] = {entries[0], entries[1]})[channel];
    });
  return result;
}

// All that the levels have to do with: so a chunk's inputs may give way to the next one's. Tokens that are
// not there leave states as they are.
void RoleEmitter::KeyWalk::loadTokens() {
  Value left = arith::SubIOp::create(b, roles.tokensLeft(state.chunk), ptx.mul(block, tokens));
  Values isThere;
  for (int64_t token = 0; token < tokens; ++token)
    isThere.push_back(ptx.compare(arith::CmpIPredicate::sgt, left, ptx.constant(token)));
  auto load = [&](Value own) {
    if (auto input = dyn_cast<BlockArgument>(own)) {
      if (Values &loaded = pairs[own]; loaded.empty())
        for (int64_t token = 0; token < tokens; ++token)
          loaded.push_back(loadPair(input, token));
      return;
    }
    if (auto &made = rows[own]; made.empty())
      for (int64_t token = 0; token < tokens; ++token)
        made.push_back(entriesOf(own, token));
  };
  for (const Left &own : shape.lefts)
    load(own.rows);
  for (const Right &own : shape.rights)
    load(own.rows);
  // What follows from zeros need not be zero.
  for (const Right &own : shape.rights)
    if (auto made = rows.find(own.rows); made != rows.end())
      for (auto [entries, holds] : llvm::zip(made->second, isThere))
        for (Value &entry : entries)
          entry = ptx.choose(holds, entry, ptx.number(0));
  Value from = ptx.add(state.stage.rows, ptx.mul(block, tokens * 4));
  for (const Number &number : shape.numbers) {
    Values &own = numbers.emplace_back();
    for (int64_t token = 0; token < tokens; token += 4)
      llvm::append_range(
          own, number.factors.empty()
                   ? Values(4, one)
                   : ptx.loadFloats(from, roles.slotOffset({number.factors, {}, false}) + token * 4, 4));
    for (auto [value, holds] : llvm::zip(own, isThere))
      value = ptx.choose(holds, value, ptx.number(number.outside));
  }
  for (const Vector &vector : shape.vectors) {
    auto &own = vectors.emplace_back();
    for (int64_t token = 0; token < tokens; ++token) {
      Two entries = entriesOf(vector.value, token);
      for (Value &entry : entries)
        entry = ptx.choose(isThere[token], entry, ptx.number(vector.outside));
      own.push_back(entries);
    }
  }
}

RoleEmitter::KeyWalk::Two RoleEmitter::KeyWalk::rowsOf(Value own, int64_t token) {
  if (auto made = rows.find(own); made != rows.end())
    return made->second[token];
  Values entries = ptx.unpack(fresh(pairs.lookup(own)[token]));
  return {entries[0], entries[1]};
}

// As if it were another each time, so that what follows from it takes no register all the time.
Value RoleEmitter::KeyWalk::fresh(Value value) {
  return ptx.assembly("mov.b32 $0, $1;", value.getType(), value)[0];
}

RoleEmitter::KeyWalk::Two RoleEmitter::KeyWalk::number(int number, int64_t token) {
  return {numbers[number][token], numbers[number][token]};
}

RoleEmitter::KeyWalk::Matrix RoleEmitter::KeyWalk::transitionsOf(int64_t token) {
  Matrix result;
  for (int i : {0, 1})
    for (int j : {0, 1})
      if (const Transition &own = shape.transitions[i][j]; !own.isZero) {
        Two factor = own.number < 0 ? Two{one, one} : number(own.number, token);
        if (own.vector >= 0 && own.number >= 0)
          factor[0] = factor[1] = fresh(factor[0]);
        result.entries[i][j] = own.vector < 0 ? factor : times(factor, vectors[own.vector][token]);
      }
  return result;
}

// What reads a state, times the transitions since some token; what is written, times those up to another one.
RoleEmitter::KeyWalk::Stacked RoleEmitter::KeyWalk::leftRows(const Left &left, const Matrix &before,
                                                             const Matrix &through, int64_t token) {
  const Matrix &since = left.span == Span::Until ? before : through;
  Two own = rowsOf(left.rows, token);
  return {times(since.entries[left.to][0], own), times(since.entries[left.to][1], own)};
}

RoleEmitter::KeyWalk::Stacked RoleEmitter::KeyWalk::rightRows(const Right &right, const Matrix &after,
                                                              int64_t token) {
  Stacked result;
  for (int from : {0, 1}) {
    if (!right.weights[from])
      continue;
    Two weight{one, one};
    if (!right.weights[from]->empty())
      weight = number(shape.numberOf(*right.weights[from], 0), token);
    for (int to : {0, 1})
      result[to] = sum(result[to], times(after.entries[to][from], weight));
  }
  Two own = rowsOf(right.rows, token);
  for (Two &entry : result)
    entry = times(entry, own);
  return result;
}
