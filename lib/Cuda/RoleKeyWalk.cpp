// Who walks the channels where each key couples the states. Two warpgroups take turns with the chunks; of one
// each warp has 16 tokens, and a thread two of 64 channels, then of the next 64: it goes through its tokens
// in order, so that products of transitions need no other thread.
//
// No transition can be divided by, so what a token sees of an earlier one goes through a place between the
// two: the chunk's middle for those in different halves, the middle of a half for those of its quarters, and
// so on down to pairs of tokens. On such a level a row of the later half is what reads the states, times the
// transitions since the middle; a row of the earlier half what is written to them, times those up to it. All
// of them are forward products, whatever the transitions are. The levels have tiles in shared memory, one
// after the other, which the warps multiply.
//
// What the chain multiplies with are the rows of whole blocks of 16 tokens, times the blocks before or after
// them; the threads leave these in the chunk's record.
#include "lib/Cuda/RoleKeyWalk.h"
#include "lib/Cuda/Count.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

static constexpr int64_t tokens = tokensOfWarp, blocksOfChunk = tokensOfChunk / tokens,
                         halfBytes = tokensOfChunk * 128, blockBytes = tokens * 128, entryBytes = 64 * 4;

//===----------------------------------------------------------------------===//
// What a plan's rows and transitions are
//===----------------------------------------------------------------------===//

static std::optional<double> constantOf(const RowFactors &factors) {
  auto constant =
      factors.size() == 1 ? RolePlan::trace(factors[0].value).getDefiningOp<ConstantOp>() : ConstantOp();
  return constant ? std::optional(constant.getValue().convertToDouble()) : std::nullopt;
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
    own.isZero = constantOf(factors) == 0;
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
}

// A place for each warpgroup, for a level of 64 channels.
int64_t RoleEmitter::KeyWalk::bytesOfLevels(const RolePlan &plan) {
  return 2 * Shape(plan).rowsOfLevel() * 2 * 128;
}

int64_t RoleEmitter::KeyWalk::bytesOfTables(const RolePlan &) { return 2 * blocksOfChunk * 4 * entryBytes; }

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

void RoleEmitter::KeyWalk::findPlaces() {
  block = roles.warp;
  place = ptx.mul(roles.freshLane(), 4);
  levels = ptx.add(roles.base, roles.rightsAt);
  levels = ptx.add(levels, ptx.mul(state.walker, shape.rowsOfLevel() * 2 * 128));
  blocks =
      ptx.add(ptx.add(roles.base, roles.tablesAt), ptx.mul(state.walker, blocksOfChunk * 4 * entryBytes));
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
  for (const Vector &vector : shape.vectors) {
    auto &own = vectors.emplace_back();
    for (int64_t token = 0; token < tokens; ++token) {
      Two entries = entriesOf(vector.value, token);
      for (Value &entry : entries)
        entry = ptx.choose(isThere[token], entry, ptx.number(vector.outside));
      own.push_back(entries);
    }
  }
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

//===----------------------------------------------------------------------===//
// Levels
//===----------------------------------------------------------------------===//

// Where the rows of a tile are that have to do with a state. Those that only see lie without the others.
int64_t RoleEmitter::KeyWalk::offsetOf(size_t tile, int64_t part) const {
  int64_t rows = (std::min(tile, shape.seen) + tile) * tokensOfChunk;
  return (rows + part * (isPacked(tile) ? tokensOfChunk / 2 : tokensOfChunk)) * 128;
}

void RoleEmitter::KeyWalk::storeRows(Level level, size_t tile, const Stacked &own, int64_t token,
                                     Value condition) {
  Value first = block;
  int64_t row = token, bytes = blockBytes;
  if (isPacked(tile) && level < tokens) { // half of the block
    row = token / (2 * level) * level + token % level;
    bytes = blockBytes / 2;
  } else if (isPacked(tile)) { // half of the blocks
    int64_t each = level / tokens;
    first = ptx.add(ptx.mul(ptx.shiftRight(block, llvm::Log2_64(2 * each)), each), ptx.bits(block, each - 1));
  }
  Value at = ptx.add(ptx.add(levels, ptx.mul(first, bytes)), place);
  at = ptx.exclusiveOr(fresh(at), ptx.constant(row % 8 * 16));
  for (int64_t part : {0, 1}) {
    Value pair = own[part][0] ? ptx.pack(own[part][0], own[part][1]) : ptx.constant(0);
    ptx.store(at, offsetOf(tile, part) + row * 128, {pair}, /*relaxed=*/false, condition);
  }
}

// What the block's tokens together make of each key, for the other warps.
void RoleEmitter::KeyWalk::storeBlock() {
  Matrix whole = transitionsOf(0);
  for (int64_t token = 1; token < tokens; ++token)
    whole = multiply(transitionsOf(token), whole);
  Value at = ptx.add(blocks, ptx.mul(block, 4 * entryBytes));
  for (int i : {0, 1})
    for (int j : {0, 1})
      if (shape.holds[i][j])
        ptx.store(at, (2 * i + j) * entryBytes, whole.entries[i][j]);
}

RoleEmitter::KeyWalk::Matrix RoleEmitter::KeyWalk::loadBlock(Value block) {
  Matrix result;
  Value at = ptx.add(blocks, ptx.mul(block, 4 * entryBytes));
  for (int i : {0, 1})
    for (int j : {0, 1})
      if (shape.holds[i][j]) {
        Values pair = ptx.loadFloats(at, (2 * i + j) * entryBytes, 2);
        result.entries[i][j] = {pair[0], pair[1]};
      }
  return result;
}

// The rows of a level whose halves are shorter than a block: later ones that see, earlier ones that are seen.
void RoleEmitter::KeyWalk::makeLevel(Level level) {
  for (int64_t middle = level; middle < tokens; middle += 2 * level) {
    Matrix since = identity(), until = since;
    for (int64_t step = 0; step < level; ++step) {
      int64_t token = middle - 1 - step;
      for (size_t i = 0; i < shape.seen; ++i)
        storeRows(level, i, rightRows(shape.rights[i], until, token), token);
      if (step + 1 < level)
        until = multiply(until, transitionsOf(token));
      token = middle + step;
      Matrix before = since;
      since = multiply(transitionsOf(token), before);
      for (size_t i = 0; i < shape.seers; ++i)
        storeRows(level, i, leftRows(shape.lefts[i], before, since, token), token);
    }
  }
}

// The same where halves are blocks, or several: each sees, with what has been done since the middle, or is
// seen, with what is done until then.
void RoleEmitter::KeyWalk::makeHalves(Level level, llvm::function_ref<Matrix()> sinceMiddle,
                                      llvm::function_ref<Matrix()> untilMiddle) {
  int64_t each = level / tokens;
  auto is = scf::IfOp::create(b, ptx.equal(ptx.bits(block, each), 0), /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(is.thenBlock());
  goBack(untilMiddle(), [&](const Matrix &after, int64_t token) {
    for (size_t i = 0; i < shape.seen; ++i)
      storeRows(level, i, rightRows(shape.rights[i], after, token), token);
  });
  b.setInsertionPointToStart(is.elseBlock());
  goOn(sinceMiddle(), [&](const Matrix &before, const Matrix &through, int64_t token) {
    for (size_t i = 0; i < shape.seers; ++i)
      storeRows(level, i, leftRows(shape.lefts[i], before, through, token), token);
  });
}

// From token to token, or back, with the product of the transitions so far.
RoleEmitter::KeyWalk::Matrix
RoleEmitter::KeyWalk::goOn(Matrix before,
                           llvm::function_ref<void(const Matrix &, const Matrix &, int64_t)> body) {
  for (int64_t token = 0; token < tokens; ++token) {
    Matrix through = multiply(transitionsOf(token), before);
    body(before, through, token);
    before = through;
  }
  return before;
}

void RoleEmitter::KeyWalk::goBack(Matrix after, llvm::function_ref<void(const Matrix &, int64_t)> body) {
  for (int64_t token = tokens; token-- > 0;) {
    body(after, token);
    if (token)
      after = multiply(after, transitionsOf(token));
  }
}

// All products of what the warp's tokens have in a level's tiles with what those of a block have.
SmallVector<Values> RoleEmitter::KeyWalk::multiplyRows(Level level, Value seen) {
  Value lane = roles.freshLane(), own = ptx.bits(lane, 15);
  auto addressOf = [&](unsigned tile, Value block) {
    Value row = ptx.add(ptx.mul(block, tokens), own);
    if (isPacked(tile)) // (of rows that do not see, something that is there)
      row = ptx.add(ptx.mul(ptx.shiftRight(row, llvm::Log2_64(2 * level)), level), ptx.bits(row, level - 1));
    Value unit = ptx.exclusiveOr(ptx.shiftRight(lane, 4), ptx.bits(row, 7));
    return ptx.add(levels, ptx.add(ptx.mul(row, 128), ptx.mul(unit, 16)));
  };
  llvm::SmallDenseMap<unsigned, Value> lefts, rights;
  for (auto [left, right] : shape.grams) {
    lefts[left] = addressOf(left, roles.warp);
    rights[right] = addressOf(right, seen);
  }
  SmallVector<Values> sums = noSums();
  for (int64_t part : {0, 1})
    for (int64_t step = 0; step < 4; ++step) {
      auto load = [&](unsigned tile, Value at) {
        return ptx.loadMatrices(ptx.exclusiveOr(at, ptx.constant(32 * step)), offsetOf(tile, part), false);
      };
      llvm::SmallDenseMap<unsigned, Values> seers, others;
      for (auto [left, at] : lefts)
        seers[left] = load(left, at);
      for (auto [right, at] : rights)
        others[right] = load(right, at);
      for (auto [sum, gram] : llvm::zip(sums, shape.grams))
        sum = ptx.multiplyPacked(sum, seers[gram.first], others[gram.second]);
    }
  return sums;
}

SmallVector<Values> RoleEmitter::KeyWalk::noSums() {
  return SmallVector<Values>(shape.grams.size(), Values(8, ptx.number(0)));
}

SmallVector<Values> RoleEmitter::KeyWalk::whenSums(Value condition,
                                                   llvm::function_ref<SmallVector<Values>()> body) {
  auto flat = [](ArrayRef<Values> sums) {
    Values all;
    for (const Values &own : sums)
      llvm::append_range(all, own);
    return all;
  };
  Values none = flat(noSums());
  auto is = scf::IfOp::create(b, ValueRange(none).getTypes(), condition, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(is.thenBlock());
  scf::YieldOp::create(b, flat(body()));
  b.setInsertionPointToStart(is.elseBlock());
  scf::YieldOp::create(b, none);
  SmallVector<Values> sums;
  for (size_t i = 0; i < shape.grams.size(); ++i)
    sums.emplace_back(is.getResults().slice(8 * i, 8));
  return sums;
}

// What a thread's entries of a block of 16 x 16 are of each other: the bits in which row and column differ.
Values RoleEmitter::KeyWalk::bitsApart() {
  Value lane = roles.freshLane(), row = ptx.shiftRight(lane, 2), column = ptx.mul(ptx.bits(lane, 3), 2);
  Values apart;
  for (int64_t e = 0; e < 8; ++e)
    apart.push_back(ptx.exclusiveOr(ptx.add(row, e / 2 % 2 * 8), ptx.add(column, e % 2 + e / 4 * 8)));
  return apart;
}

// What tokens see of their own writes, which nothing has been done to.
Values RoleEmitter::KeyWalk::ownSums(unsigned gram) {
  const Left &left = shape.lefts[shape.grams[gram].first];
  const Right &right = shape.rights[shape.grams[gram].second];
  Values sums(8, ptx.number(0));
  const auto &weight = right.weights[left.to];
  if (chunk::GramOp own = plan.grams[gram]; own.getReach() != Reach::Inclusive || !weight)
    return sums;
  for (int64_t step = 0; step < 4; ++step) {
    auto rows = [&](Value rows) {
      llvm::DenseMap<BlockArgument, Values> pairs;
      for (BlockArgument leaf : RolePlan::leavesOf(rows)) {
        Value at = ptx.add(state.stage.tiles, ptx.mul(half, roles.halfStride(leaf)));
        at = ptx.add(at, ptx.add(state.warpRows, state.blocks[step]));
        pairs[leaf] = ptx.loadMatrices(at, roles.tileOffset(leaf), false);
      }
      return roles.rowsOf(rows, [&](BlockArgument leaf) { return ValueRange(pairs[leaf]); });
    };
    sums = ptx.multiplyTf32(sums, rows(left.rows), rows(right.rows));
  }
  Values factors(2, one);
  Value row = ptx.add(ptx.mul(roles.warp, tokens), ptx.shiftRight(roles.freshLane(), 2));
  for (int64_t eight = 0; eight < 2 && !weight->empty(); ++eight)
    factors[eight] = ptx.loadFloats(ptx.add(state.stage.rows, ptx.mul(row, 4)),
                                    roles.slotOffset({*weight, {}, false}) + eight * 32, 1)[0];
  Values apart = bitsApart();
  for (size_t e = 0; e < 8; ++e)
    sums[e] = ptx.choose(ptx.equal(apart[e], 0), ptx.multiply(sums[e], factors[e / 2 % 2]), ptx.number(0));
  return sums;
}

//===----------------------------------------------------------------------===//
// Tiles and sums
//===----------------------------------------------------------------------===//

void RoleEmitter::KeyWalk::storeMade(Value record, size_t tile, Two entries, int64_t token) {
  Value pair = entries[0] ? ptx.pack(entries[0], entries[1]) : ptx.constant(0);
  Value at = LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record,
                                 ValueRange{ptx.exclusiveOr(fresh(place), ptx.constant(token % 8 * 16))});
  int64_t offset = tile * (plan.keys / 64) * halfBytes + token * 128;
  ptx.assembly(("st.global.b32 [$0+" + Twine(offset) + "], $1;").str(), {}, {at, pair});
}

// The chain's tiles, what the chunk makes of each key, and the levels whose halves are 16 tokens and 32.
void RoleEmitter::KeyWalk::makeTiles() {
  Value isOdd = ptx.equal(ptx.bits(block, 1), 1), isLater = ptx.equal(ptx.bits(block, 2), 2);
  auto one = [&] { return identity(); };
  auto neighbour = [&] { return loadBlock(ptx.exclusiveOr(block, ptx.constant(1))); };
  auto otherHalf = [&] {
    Value first = ptx.exclusiveOr(ptx.bits(block, 2), ptx.constant(2));
    Matrix before = loadBlock(first);
    return multiply(loadBlock(ptx.add(first, 1)), before);
  };
  // The middle of the chunk, or its start, or its end.
  auto since = [&] { return when(isOdd, neighbour, one); };
  auto until = [&] { return when(isOdd, one, neighbour); };
  // (Another identity than that of before: else the block's products would be kept for this.)
  auto other = [&] {
    Matrix m = one();
    Value unknown = arith::BitcastOp::create(b, b.getF32Type(), roles.opaque(llvm::bit_cast<int32_t>(1.0f)));
    for (int i : {0, 1})
      m.entries[i][i] = {unknown, unknown};
    return m;
  };
  Value record = roles.recordAt(state.chunk);
  Value offset = ptx.add(ptx.mul(half, halfBytes), ptx.mul(block, blockBytes));
  record = LLVM::GEPOp::create(b, record.getType(), b.getI8Type(), record, ValueRange{offset});
  auto forTiles = [&](bool isRead, llvm::function_ref<void(size_t, const MadeTile &)> body) {
    for (auto [i, tile] : llvm::enumerate(plan.made))
      if ((tile.span != Span::Rest) == isRead)
        body(i, tile);
  };
  auto meet = [&] { ptx.meet(state.meeting, 128); };
  makeHalves(2 * tokens, since, until);
  meet();
  for (int64_t column : {0, 1})
    addColumn(column, whenSums(isLater, [&] { return multiplyRows(2 * tokens, ptx.constant(column)); }),
              isLater);
  Matrix before = since();
  before = when(isLater, [&] { return multiply(before, otherHalf()); }, [&] { return before; });
  Matrix whole = goOn(before, [&](const Matrix &before, const Matrix &through, int64_t token) {
    forTiles(true, [&](size_t number, const MadeTile &tile) {
      Left left{tile.rows, tile.coupling->to, tile.span};
      storeMade(record, number, leftRows(left, before, through, token)[tile.coupling->state], token);
    });
  });
  roles.threads.when(ptx.equal(block, blocksOfChunk - 1), [&] {
    Value wholes = roles.wholesOf(state.chunk, state.stage);
    wholes = ptx.add(ptx.add(wholes, ptx.mul(half, 256)), ptx.mul(roles.freshLane(), 8));
    for (int i : {0, 1})
      for (int j : {0, 1}) {
        Two entry = whole.entries[i][j];
        if (!entry[0])
          entry[0] = entry[1] = ptx.number(0);
        ptx.store(wholes, (2 * i + j) * plan.keys * 4, entry);
      }
  });
  // (Who meets next has done with what blocks make.)
  Matrix rest = until();
  rest = when(isLater, [&] { return rest; }, [&] { return multiply(otherHalf(), rest); });
  meet();
  makeHalves(tokens, other, other);
  meet();
  Value beforeOwn = ptx.bits(roles.warp, -2);
  SmallVector<Values> between = whenSums(isOdd, [&] { return multiplyRows(tokens, beforeOwn); });
  addColumn(0, between, ptx.equal(roles.warp, 1));
  addColumn(2, between, ptx.equal(roles.warp, 3));
  goBack(rest, [&](const Matrix &after, int64_t token) {
    forTiles(false, [&](size_t number, const MadeTile &tile) {
      Right right{tile.rows, tile.coupling->weights};
      storeMade(record, number, rightRows(right, after, token)[tile.coupling->state], token);
    });
  });
}

// Adds what the first 64 channels, and the next, give to a block's sums: of tokens before the warp's own, or
// of these.
void RoleEmitter::KeyWalk::addColumn(int64_t column, ArrayRef<Values> sums, Value condition) {
  Value at =
      ptx.add(roles.partsOfWarp(state), column < 3 ? ptx.constant(column * 1024) : ptx.mul(roles.warp, 1024));
  roles.threads.when(condition, [&] {
    auto store = [&](bool adds) {
      for (auto [gram, own] : llvm::zip(plan.grams, sums))
        for (int64_t eight : {0, 1}) {
          Values all(ArrayRef(own).slice(4 * eight, 4));
          int64_t offset = roles.partsAt(gram) + eight * 512;
          if (adds)
            for (auto [sum, before] : llvm::zip(all, ptx.loadFloats(at, offset, 4)))
              sum = ptx.sum(sum, before);
          ptx.store(at, offset, all);
        }
    };
    if (plan.keys == 64)
      return store(false);
    auto isFirst = scf::IfOp::create(b, ptx.equal(half, 0), /*withElseRegion=*/true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(isFirst.thenBlock());
    store(false);
    b.setInsertionPointToStart(isFirst.elseBlock());
    store(true);
  });
}

void RoleEmitter::KeyWalk::emit() {
  const Stage &stage = state.stage;
  ptx.await(roles.barrier(Full, stage.index), stage.phase);
  findPlaces();
  auto meet = [&] { ptx.meet(state.meeting, 128); };
  int64_t halves = plan.keys / 64;
  auto body = [&](Value which) {
    half = which;
    loadTokens();
    storeBlock();
    SmallVector<Values> sums;
    for (unsigned gram = 0; gram < shape.grams.size(); ++gram)
      sums.push_back(ownSums(gram));
    ptx.fenceProxy();
    // (Who is here has done with the levels before.)
    meet();
    Value isLast = ptx.equal(half, halves - 1), isFirst = ptx.equal(half, 0);
    roles.threads.when(arith::AndIOp::create(b, isLast, ptx.equal(roles.thread, 0)),
                       [&] { ptx.arrive(roles.barrier(TilesFull, stage.index)); });
    for (Level level : {8, 4, 2, 1}) {
      makeLevel(level);
      meet();
      SmallVector<Values> own = multiplyRows(level, roles.warp);
      Values apart = bitsApart();
      for (size_t gram = 0; gram < sums.size(); ++gram)
        for (size_t e = 0; e < 8; ++e) {
          Value bits = ptx.shiftRight(apart[e], llvm::Log2_64(level));
          sums[gram][e] = ptx.choose(ptx.equal(bits, 1), own[gram][e], sums[gram][e]);
        }
      meet();
    }
    roles.threads.when(isFirst, [&] { roles.awaitParts(state); });
    addColumn(3, sums, ptx.compare(arith::CmpIPredicate::sge, roles.warp, ptx.constant(0)));
    makeTiles();
  };
  if (halves == 1) {
    body(ptx.constant(0));
  } else {
    auto loop = roles.threads.forLoop(ptx.constant(0), roles.opaque(halves), ptx.constant(1), {},
                                      [&](Value which, ValueRange) {
                                        pairs.clear(), rows.clear(), vectors.clear(), numbers.clear();
                                        body(which);
                                        return Values();
                                      });
    describeTrips(loop, halves);
  }
  ptx.fenceProxy();
  ptx.arrive(roles.barrier(PartsFull, roles.placeOfParts(state.chunk).first));
}
