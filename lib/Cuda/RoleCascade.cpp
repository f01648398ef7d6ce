// Numbers of states that numbers couple: products of 2 x 2 matrices of tokens, and the masks of scores that
// follow. Between blocks of 16 tokens a mask is a row of the later token, of what its block multiplies with
// up to it, times a column of the earlier one, of what is multiplied up to the later one's block; within a
// block it is a table. Nothing is divided, so that any entry may be zero or negative.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleRowState.h"
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// The parts of a mask, each a number for each token. Rows of the table are those of a block; of the others
// each has one for either state: what a block multiplies with through the token, and until it; and for each
// block but the first what is multiplied from an earlier token to its begin.
enum MaskPart { Table = 0, Through = 16, Until = 18, Edges = 20, Parts = 26 };

int64_t RoleEmitter::maskOffset(int mask, int64_t part) const { return (mask * Parts + part) * maskPitch(); }

namespace {

// Arithmetic on products of transitions, which leaves out what is zero.
struct Arithmetic {
  Ptx &ptx;

  Value sum(Value x, Value y) { return x && y ? ptx.sum(x, y) : x ? x : y; }
  Value multiply(Value x, Value y) { return x && y ? ptx.multiply(x, y) : Value(); }
  Value choose(Value condition, Value x, Value y) {
    return x || y ? ptx.choose(condition, known(x), known(y)) : Value();
  }
  Value known(Value x) { return x ? x : ptx.number(0); }

  Transition identity() { return {ptx.number(1), {}, {}, ptx.number(1)}; }
  Transition multiply(const Transition &x, const Transition &y) {
    Transition result;
    for (unsigned e = 0; e < 4; ++e)
      result[e] = sum(multiply(x[e / 2 * 2], y[e % 2]), multiply(x[e / 2 * 2 + 1], y[2 + e % 2]));
    return result;
  }
  std::array<Value, 2> apply(const Transition &x, std::array<Value, 2> vector) {
    return {sum(multiply(x[0], vector[0]), multiply(x[1], vector[1])),
            sum(multiply(x[2], vector[0]), multiply(x[3], vector[1]))};
  }
  std::array<Value, 2> applyLeft(std::array<Value, 2> row, const Transition &x) {
    return {sum(multiply(row[0], x[0]), multiply(row[1], x[2])),
            sum(multiply(row[0], x[1]), multiply(row[1], x[3]))};
  }
  template <typename Array>
  Array choose(Value condition, const Array &x, const Array &y) {
    Array result;
    for (auto [entry, a, b] : llvm::zip(result, x, y))
      entry = choose(condition, a, b);
    return result;
  }
  Transition of(const Transition &x, Value lane) {
    Transition result;
    for (auto [entry, other] : llvm::zip(result, x))
      entry = other ? ptx.shuffle(other, lane) : Value();
    return result;
  }
};

} // namespace

const RoleEmitter::Transitions &RoleEmitter::transitionsOf(RowState &state, Value cascade) {
  auto [it, isNew] = state.transitions.try_emplace(cascade);
  if (!isNew)
    return it->second;
  Arithmetic math{ptx};
  Transitions all;
  for (auto [entry, factor] : llvm::enumerate(cascade.getDefiningOp<chunk::CascadeOp>().getFactors())) {
    auto constant = RolePlan::trace(factor).getDefiningOp<ConstantOp>();
    if (constant && constant.getValue().isZero())
      continue;
    std::array<Value, 2> numbers = row(state, factor);
    for (unsigned i : {0, 1})
      all.own[i][entry] = numbers[i];
  }
  Transition identity = math.identity();
  for (unsigned i : {0, 1}) // past the end nothing changes
    all.own[i] = math.choose(state.valid[i], all.own[i], identity);
  // Eight lanes have a block.
  Value inBlock = ptx.bits(lane, 7);
  Transition pair = math.multiply(all.own[1], all.own[0]), before = pair, after = pair;
  for (int64_t distance = 1; distance < 8; distance *= 2) {
    Transition other = math.of(before, ptx.add(lane, -distance));
    Value exists = ptx.compare(arith::CmpIPredicate::uge, inBlock, ptx.constant(distance));
    before = math.choose(exists, math.multiply(before, other), before);
    other = math.of(after, ptx.add(lane, distance));
    after = math.choose(ptx.below(inBlock, ptx.constant(8 - distance)), math.multiply(other, after), after);
  }
  for (int64_t i = 0; i < 4; ++i)
    all.blocks[i] = math.of(before, ptx.constant(8 * i + 7));
  all.throughInBlock[1] = before;
  all.untilInBlock[0] = math.choose(ptx.equal(inBlock, 0), identity, math.of(before, ptx.add(lane, -1)));
  all.untilInBlock[1] = all.throughInBlock[0] = math.multiply(all.own[0], all.untilInBlock[0]);
  all.restInBlock[1] = math.choose(ptx.equal(inBlock, 7), identity, math.of(after, ptx.add(lane, 1)));
  all.restInBlock[0] = math.multiply(all.restInBlock[1], all.own[1]);
  return state.transitions[cascade] = all;
}

std::array<Value, 2> RoleEmitter::cascadeWeights(RowState &state, chunk::WeightsOp weights) {
  using chunk::Span;
  const Transitions &all = transitionsOf(state, weights.getDecay());
  Arithmetic math{ptx};
  Span span = weights.getSpan();
  // Row `to` of what comes after the token, or column `from` of what comes before it.
  unsigned to = weights.getTo(), from = weights.getFrom();
  std::array<Value, 2> result;
  Value block = ptx.shiftRight(lane, 3), one = ptx.number(1);
  if (span == Span::Rest) {
    std::array<Value, 2> later, row{to ? Value() : one, to ? one : Value()};
    later = row;
    for (int64_t i = 2; i >= 0; --i) {
      row = math.applyLeft(row, all.blocks[i + 1]);
      later = math.choose(ptx.equal(block, i), row, later);
    }
    for (unsigned i : {0, 1})
      result[i] = math.known(math.applyLeft(later, all.restInBlock[i])[from]);
    return result;
  }
  std::array<Value, 2> column{from ? Value() : one, from ? one : Value()}, earlier = column;
  for (int64_t i = 1; i < 4; ++i) {
    column = math.apply(all.blocks[i - 1], column);
    earlier = math.choose(ptx.equal(block, i), column, earlier);
  }
  if (span == Span::Whole) {
    result.fill(math.known(math.apply(all.blocks[3], column)[to]));
    return result;
  }
  for (unsigned i : {0, 1})
    result[i] = math.known(
        math.apply(span == Span::Through ? all.throughInBlock[i] : all.untilInBlock[i], earlier)[to]);
  return span == Span::Start ? atStart(result) : result;
}

// Stores a part of a mask: the table, or what there is of it beside.
void RoleEmitter::fillMask(RowState &state, int which, RowPart half) {
  const CoupledMask &mask = plan.masks[which];
  Transitions all = transitionsOf(state, mask.cascade);
  Arithmetic math{ptx};
  // Of the lane's two tokens a number for each state, null for 0.
  std::array<Value, 2> written[2], read[2];
  for (auto [numbers, factors] : {std::pair(written, &mask.weights), {read, &mask.reads}})
    for (unsigned i : {0, 1})
      for (auto [own, number] : llvm::zip(*factors, numbers[i])) {
        if (!own)
          continue;
        number = ptx.number(1);
        for (RowFactor factor : *own)
          number = ptx.multiply(
              number, (factor.divides ? reciprocal(state, factor.value) : row(state, factor.value))[i]);
      }
  auto isPlain = [&](unsigned s) { return mask.reads[s] && mask.reads[s]->empty(); };
  // What is read of the numbers of both states.
  auto sumOf = [&](const std::array<Value, 2> &numbers, const std::array<Value, 2> &reads) {
    Value sum;
    for (unsigned s : {0, 1})
      if (mask.reads[s])
        sum = math.sum(sum, isPlain(s) ? numbers[s] : math.multiply(numbers[s], reads[s]));
    return sum;
  };
  Value at = ptx.add(state.stage.masks, ptx.mul(lane, 8));
  auto storeAt = [&](Value at, int64_t part, Value first, Value second) {
    ptx.store(at, maskOffset(which, part), {math.known(first), math.known(second)});
  };
  auto store = [&](int64_t part, Value first, Value second) { storeAt(at, part, first, second); };
  if (half == RowPart::Tables) {
    // A lane's columns, row after row: what of its two tokens' writes has reached each state. What cannot is
    // null.
    using Reached = std::array<std::array<Value, 2>, 2>;
    std::array<std::array<bool, 2>, 2> reaches;
    for (unsigned i : {0, 1})
      for (unsigned s : {0, 1})
        reaches[i][s] = written[i][s] || (written[i][1 - s] && all.own[i][2 * s + 1 - s]);
    auto packed = [&](const Reached &reached) {
      Values values;
      for (unsigned i : {0, 1})
        for (unsigned s : {0, 1})
          if (reaches[i][s])
            values.push_back(math.known(reached[i][s]));
      return values;
    };
    Value first = ptx.bits(lane, 24), inBlock = ptx.mul(ptx.bits(lane, 7), 2);
    Value pairs = plan.system ? opaque(8) : ptx.constant(8);
    auto rows = threads.forLoop(
        ptx.constant(0), pairs, ptx.constant(1), packed({}), [&](Value pair, ValueRange carried) {
          Reached reached;
          for (unsigned i : {0, 1})
            for (unsigned s : {0, 1})
              if (reaches[i][s]) {
                reached[i][s] = carried.front();
                carried = carried.drop_front();
              }
          Value from = ptx.add(first, pair), ahead = arith::SubIOp::create(b, inBlock, ptx.mul(pair, 2));
          Value row = ptx.add(at, ptx.mul(pair, 2 * maskPitch()));
          for (unsigned token : {0, 1}) {
            Transition own = math.of(all.own[token], from);
            for (unsigned i : {0, 1})
              reached[i] = math.choose(ptx.equal(ahead, int64_t(token) - int64_t(i)), written[i],
                                       math.apply(own, reached[i]));
            // A row that is seen before its token is the one of the token before. (The last
            // one is not used.)
            std::array<Value, 2> reads;
            unsigned reader = token + (mask.reach == chunk::Reach::Before ? 1 : 0);
            for (unsigned s : {0, 1})
              if (mask.reads[s] && !isPlain(s))
                reads[s] = ptx.shuffle(read[reader % 2][s], ptx.add(from, reader / 2));
            storeAt(row, Table + token, sumOf(reached[0], reads), sumOf(reached[1], reads));
          }
          return packed(reached);
        });
    describeTrips(rows, 8);
    return;
  }
  for (unsigned s : {0, 1}) {
    auto entries = [&](int64_t part, const std::array<Transition, 2> &of) {
      auto column = [&](unsigned i) { return sumOf({of[i][s], of[i][2 + s]}, read[i]); };
      store(part + s, column(0), column(1));
    };
    entries(Through, all.throughInBlock);
    entries(Until, all.untilInBlock);
  }
  std::array<Value, 2> ends[2], edges[2];
  for (unsigned i : {0, 1})
    edges[i] = ends[i] = math.apply(all.restInBlock[i], written[i]);
  Value block = ptx.shiftRight(lane, 3);
  for (int64_t later = 1; later < 4; ++later) {
    if (later > 1)
      for (unsigned i : {0, 1})
        edges[i] = math.choose(ptx.below(block, ptx.constant(later - 1)),
                               math.apply(all.blocks[later - 1], edges[i]), ends[i]);
    for (unsigned s : {0, 1})
      store(Edges + 2 * (later - 1) + s, edges[0][s], edges[1][s]);
  }
}

// The address of the numbers of the lane's columns in a block.
Value RoleEmitter::maskColumns(const ScoreState &state) {
  Value pair = ptx.mul(ptx.bits(freshLane(), 3), 8);
  return ptx.add(ptx.add(state.masks, pair), ptx.mul(state.columnBlock, 64));
}

// A mask's entries in the warp's block on the diagonal.
Values RoleEmitter::maskOn(ScoreState &state, const PlainScore &plain) {
  Value row = ptx.shiftRight(freshLane(), 2), columns = maskColumns(state);
  Values entries(8);
  for (unsigned which : {0, 1}) {
    // What is seen before a token is what the one before it sees; the block's first sees none of it.
    Value place = ptx.add(row, 8 * int64_t(which));
    Value own = ptx.add(plain.atStart() ? firstOfBlock(ptx, plan, place) : place, plain.before() ? -1 : 0);
    if (plain.before() && (which == 0 || plain.atStart()))
      own = arith::MaxSIOp::create(b, own, ptx.constant(0));
    Value at = ptx.add(columns, ptx.mul(own, maskPitch()));
    for (unsigned eight : {0, 1}) {
      Values pair = ptx.loadFloats(at, maskOffset(plain.mask, Table) + eight * 32, 2);
      for (unsigned odd : {0, 1})
        entries[4 * eight + 2 * which + odd] = pair[odd];
    }
  }
  return entries;
}

// The numbers of the later token's row, which are loaded ahead.
std::array<Value, 2> RoleEmitter::maskRows(ScoreState &state, const PlainScore &plain, unsigned of) {
  int64_t offset = maskOffset(plain.mask, (plain.before() ? Until : Through) + of);
  auto [it, isNew] = state.maskRows.try_emplace(plain.atStart() ? -1 - offset : offset);
  if (isNew) {
    Value row = ptx.add(ptx.mul(warp, 16), ptx.shiftRight(freshLane(), 2));
    for (int64_t which : {0, 1}) {
      Value own = ptx.add(row, 8 * which);
      if (plain.atStart())
        own = firstOfBlock(ptx, plan, own);
      it->second[which] = ptx.loadFloats(ptx.add(state.masks, ptx.mul(own, 4)), offset, 1)[0];
    }
  }
  return it->second;
}

// A mask's entries in a block off the diagonal.
Values RoleEmitter::maskOff(ScoreState &state, const PlainScore &plain) {
  // (Where the rows' start is the chunk's, nothing is seen, and any numbers will do.)
  Value seer = plain.atStart() ? ptx.shiftRight(firstOfBlock(ptx, plan, ptx.mul(warp, 16)), 4) : warp;
  Value columns = ptx.add(maskColumns(state), ptx.mul(ptx.add(seer, -1), 2 * maskPitch()));
  Values entries;
  for (unsigned s : {0, 1}) {
    std::array<Value, 2> rows = maskRows(state, plain, s);
    Values numbers;
    for (int64_t eight : {0, 1})
      llvm::append_range(numbers, ptx.loadFloats(columns, maskOffset(plain.mask, Edges + s) + eight * 32, 2));
    for (unsigned e = 0; e < 8; ++e) {
      Value x = ptx.multiply(rows[e / 2 % 2], numbers[e / 4 * 2 + e % 2]);
      if (s)
        entries[e] = ptx.sum(entries[e], x);
      else
        entries.push_back(x);
    }
  }
  return entries;
}
