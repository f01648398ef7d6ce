#include "lib/Cuda/CombinationTurns.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/EntryFunctions.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

Value cuda::placeInTurns(Ptx &ptx, Value token, Value since) {
  Value pair = ptx.shiftRight(token, 1);
  if (since)
    pair = ptx.bits(arith::SubIOp::create(ptx.b, pair, ptx.shiftRight(since, 1)), 7);
  return ptx.add(ptx.mul(ptx.bits(token, 1), 8), pair);
}

namespace {
// The numbers that a vector consists of others by, null for 0.
using Shares = SmallVector<Value, 3>;

bool isNumber(Value value, double number) {
  FloatAttr attr;
  return value && matchPattern(value, m_Constant(&attr)) && attr.getValueAsDouble() == number;
}

// The turns of one warp.
class CombinationTurns {
public:
  // A lane has the `numbers` of one of 16 tokens, those of the region's scalar arguments.
  CombinationTurns(Ptx &ptx, chunk::SubstituteOp op, const Combination &combination,
                   const CombinationLayout &layout, int64_t digits, Value at, Value lane,
                   const llvm::DenseMap<Value, Value> &numbers)
      : b(ptx.b), ptx(ptx), op(op), of(combination), layout(layout), digits(digits), at(at), lane(lane),
        numbers(numbers), column(ptx.bits(lane, 15)), half(ptx.bits(lane, 16)) {}

  void emit(Value scores, Value end);

private:
  Value times(Value x, Value y) {
    return !x || !y ? Value() : isNumber(x, 1) ? y : isNumber(y, 1) ? x : ptx.multiply(x, y);
  }
  Value plus(Value x, Value y) { return !x ? y : !y ? x : ptx.sum(x, y); }
  // x y + z, of which any may be null.
  Value fused(Value x, Value y, Value z) {
    if (!x || !y || !z || isNumber(x, 1) || isNumber(y, 1))
      return plus(times(x, y), z);
    return LLVM::FMAOp::create(b, x, y, z);
  }
  Value negative(Value x) { return x ? ptx.negative(x) : x; }
  Value isEqual(Value x, Value y) { return ptx.compare(arith::CmpIPredicate::eq, x, y); }
  // An entry of a token's column, of one of a lane's eight rows that is an odd token's or an even one's.
  Value entryOf(size_t vector, Value of, int64_t i, bool isOdd) {
    return ptx.shuffle(columns[vector][i], ptx.add(of, isOdd ? 16 : 0));
  }
  // The row of inner products of a token's vector, and one of them.
  Value row(size_t vector, Value of) {
    Value first = ptx.add(at, layout.at(16 * vector, 0));
    return layout.isOfToken(vector) ? ptx.add(first, ptx.mul(of, layout.pitch)) : first;
  }
  Value product(size_t vector, Value of, size_t other, Value ofOther) {
    Value from = row(vector, of);
    if (layout.isOfToken(other))
      from = ptx.add(from, ptx.mul(ofOther, 4));
    return ptx.loadFloats(from, 64 * other, 1)[0];
  }

  Value inner(size_t i, size_t j) {
    return i && j ? products.lookup({std::min(i, j), std::max(i, j)}) : dots[std::max(i, j)];
  }

  void scaleScores();
  void load();
  Value dot(const Shares &x, const Shares &y);
  Shares sharesOf(Value vector);
  KnownEntries::mapped_type lowered(Value value, const KnownEntries &given);
  Value factorOf(Value vector);
  void look(bool isOdd);
  Values columnsOf(size_t vector);
  void spread(bool isOdd);

  ImplicitLocOpBuilder &b;
  Ptx &ptx;
  chunk::SubstituteOp op;
  const Combination &of;
  const CombinationLayout &layout;
  int64_t digits;
  Value at, lane;
  const llvm::DenseMap<Value, Value> &numbers;
  Value column, half, scores;

  SmallVector<Values> columns; // a lane's, of each kind: eight entries
  // Of a token: inner products of the first of its vectors with each, what is known of its numbers, and by
  // how much what it writes consists of its vectors.
  Value token;
  Values dots;
  KnownEntries known;
  Shares written;
  Value square; // of what it writes
  // Inner products among what it knows, and each lane's with what it writes of that.
  llvm::DenseMap<std::pair<size_t, size_t>, Value> products;
  SmallVector<Values> lanes;
};
} // namespace

// Scores times what their rows' tokens have what is read times.
void CombinationTurns::scaleScores() {
  known.clear();
  for (auto [argument, number] : numbers)
    known[argument] = {number};
  Value factor = factorOf(of.vectors.front()), seen = ptx.shiftRight(lane, 1), isOdd = ptx.bits(lane, 1);
  Value offset = ptx.add(ptx.mul(seen, RoleTypes::ownLeafPitch), ptx.mul(isOdd, 32));
  for (int64_t first : {0, 4}) {
    Values own = ptx.loadFloats(ptx.add(scores, offset), 4 * first, 4);
    for (auto [i, score] : llvm::enumerate(own)) {
      Value pair = ptx.bits(ptx.add(ptx.shiftRight(seen, 1), first + int64_t(i)), 7);
      score = ptx.multiply(score, ptx.shuffle(factor, ptx.add(ptx.mul(pair, 2), isOdd)));
    }
    ptx.store(ptx.add(at, offset), layout.scoresAt + 4 * first, own);
  }
  ptx.syncWarp();
  scores = ptx.add(at, layout.scoresAt);
}

// The columns at first: rows of inner products and, of shares, zeros.
void CombinationTurns::load() {
  for (size_t vector = 0; vector < of.count(); ++vector) {
    Values &own = columns.emplace_back();
    Value from = ptx.add(row(vector, column), ptx.mul(half, 2));
    for (int64_t i : {0, 4})
      llvm::append_range(own, ptx.loadFloats(from, 4 * i, 4));
  }
  columns.emplace_back(8, ptx.number(0));
}

Value CombinationTurns::dot(const Shares &x, const Shares &y) {
  Value sum;
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < y.size(); ++j)
      if (Value share = times(x[i], y[j]))
        sum = fused(share, inner(i, j), sum);
  // What is no less than 0, but for what rounding does.
  return sum && x == y ? arith::MaximumFOp::create(b, sum, ptx.number(0)) : sum;
}

KnownEntries::mapped_type CombinationTurns::lowered(Value value, const KnownEntries &given) {
  return lowerEntries(b, op, value, digits, 1, [](BlockArgument, size_t) { return Value(); }, nullptr, given);
}

Shares CombinationTurns::sharesOf(Value vector) {
  Shares shares(of.count());
  if (auto it = llvm::find(of.vectors, vector); it != of.vectors.end()) {
    shares[it - of.vectors.begin()] = ptx.number(1);
    return shares;
  }
  if (!vector || matType(vector).isScalar()) {
    shares.back() = vector ? lowered(vector, known).front() : ptx.number(1);
    return shares;
  }
  Operation *own = vector.getDefiningOp();
  if (isa<MulOp, DivOp>(own)) {
    // What 1 would be times, or divided by: quotients by roots are no quotients of theirs.
    Value scaled = own->getOperand(matType(own->getOperand(0)).isScalar() ? 1 : 0);
    if (isa<MulOp>(own)) {
      Value number = own->getOperand(own->getOperand(0) == scaled ? 1 : 0);
      known[number] = lowered(number, known);
    }
    KnownEntries ofOne = known;
    ofOne[scaled] = {ptx.number(1)};
    Value factor = lowered(vector, ofOne).front();
    shares = sharesOf(scaled);
    for (Value &share : shares)
      share = times(share, factor);
    return shares;
  }
  shares = sharesOf(own->getOperand(0));
  if (isa<NegOp>(own))
    for (Value &share : shares)
      share = negative(share);
  if (isa<AddOp, SubOp>(own))
    for (auto [share, other] : llvm::zip(shares, sharesOf(own->getOperand(1))))
      share = plus(share, isa<SubOp>(own) ? negative(other) : other);
  return shares;
}

// What is read times what, in a vector that is that and what is known; null for 0.
Value CombinationTurns::factorOf(Value vector) {
  if (vector == op.getBody().getArgument(0))
    return ptx.number(1);
  Operation *own = vector.getDefiningOp();
  if (!own)
    return {};
  if (isa<MulOp, DivOp>(own)) {
    unsigned scaled = matType(own->getOperand(0)).isScalar() ? 1 : 0;
    Value factor = factorOf(own->getOperand(scaled));
    if (!factor || !matType(own->getOperand(1 - scaled)).isScalar())
      return {};
    KnownEntries given = known;
    given[own->getOperand(scaled)] = {factor};
    return lowered(vector, given).front();
  }
  if (!isa<AssumeOp, NegOp, AddOp, SubOp>(own))
    return {};
  Value sum = factorOf(own->getOperand(0));
  if (own->getNumOperands() == 2) {
    Value other = factorOf(own->getOperand(1));
    return plus(sum, isa<SubOp>(own) ? negative(other) : other);
  }
  return isa<NegOp>(own) ? negative(sum) : sum;
}

// Sees what a token writes, and what inner products the next one has.
void CombinationTurns::look(bool isOdd) {
  Value next = ptx.bits(ptx.add(token, 1), 15);
  // What does not wait for the token's numbers: the next one's, as they are before it writes.
  Values told(of.count());
  SmallVector<std::pair<Value, Value>> ofNext(of.count());
  llvm::DenseMap<std::pair<size_t, size_t>, Value> productsWithNext;
  lanes.assign(of.count(), {});
  for (size_t vector = 0; vector < of.count(); ++vector) {
    if (of.isWritten[vector])
      told[vector] = entryOf(vector, token, isOdd, !isOdd);
    if (of.isAsked[vector])
      ofNext[vector] = {entryOf(vector, next, isOdd, !isOdd), entryOf(vector, next, 0, isOdd)};
    for (size_t other = 1; vector && other < of.count(); ++other) {
      if (other <= vector)
        products[{other, vector}] = product(other, token, vector, token);
      if (of.isAsked[vector] && of.isWritten[other])
        productsWithNext[{other, vector}] = product(other, token, vector, next);
    }
    if (vector && of.isWritten[vector])
      lanes[vector] = columnsOf(vector);
  }
  Value score =
      ptx.loadFloats(ptx.add(scores, ptx.mul(token, RoleTypes::ownLeafPitch)), isOdd ? 4 : 32, 1)[0];
  if (of.factor)
    score = times(ptx.number(*of.factor), score);

  known.clear();
  for (auto [argument, number] : numbers)
    known[argument] = {ptx.shuffle(number, token)};
  for (Operation &inner : op.getBody().front().without_terminator()) {
    auto [first, second] = factorsOfSum(&inner);
    if (!first)
      continue;
    Shares x = sharesOf(first), y = second == first ? x : sharesOf(second);
    Value sum = dot(x, y);
    known[inner.getResult(0)] = {sum ? sum : ptx.number(0)};
  }
  written = sharesOf(op.getYield().getValues().front());

  // By what the next one's e changes, that is.
  Shares changes;
  square = {};
  for (Value share : written)
    changes.push_back(times(score, share));
  Values dotsOfNext(of.count());
  for (size_t vector = 0; vector < of.count(); ++vector)
    dotsOfNext[vector] = ofNext[vector].first;
  for (size_t other = 0; other < of.count(); ++other) {
    if (!of.isWritten[other])
      continue;
    Value ofWrite, ofChange = ptx.multiply(told[other], ptx.number(2));
    for (size_t vector = 0; vector < of.count(); ++vector) {
      if (of.isWritten[vector]) {
        ofWrite = fused(written[vector], inner(other, vector), ofWrite);
        ofChange = fused(changes[vector], inner(other, vector), ofChange);
      }
      if (!of.isAsked[vector])
        continue;
      Value with = other ? productsWithNext.lookup({other, vector}) : ofNext[vector].second;
      if (vector)
        dotsOfNext[vector] = fused(changes[other], with, dotsOfNext[vector]);
    }
    square = fused(written[other], ofWrite, square);
    if (of.isAsked[0])
      dotsOfNext[0] = fused(changes[other], ofChange, dotsOfNext[0]);
  }
  dots = dotsOfNext;
}

// Of each lane's columns, the inner products with a vector that a token knows; of shares nothing.
Values CombinationTurns::columnsOf(size_t vector) {
  // With what is read they change: two lanes have them.
  Value told = ptx.add(at, layout.toldAt + 64 * vector), to = ptx.add(told, ptx.mul(half, 2));
  ptx.syncWarp();
  for (int64_t i : {0, 4})
    ptx.store(to, 4 * i, ArrayRef(columns[vector]).slice(i, 4), false, isEqual(column, token));
  ptx.syncWarp();
  Values result = ptx.loadFloats(ptx.add(told, ptx.mul(placeInTurns(ptx, column, token), 4)), 0, 1);
  for (size_t other = 1; other < of.count(); ++other)
    result.push_back(product(vector, token, other, column));
  result.push_back(Value());
  return result;
}

// Changes the columns by what a token writes.
void CombinationTurns::spread(bool isOdd) {
  Value own = ptx.add(scores, ptx.mul(token, RoleTypes::ownLeafPitch));
  Value factor = ptx.number(of.factor.value_or(1));
  Value ofLane = ptx.loadFloats(ptx.add(own, ptx.mul(placeInTurns(ptx, column, token), 4)), 0, 1)[0];
  ofLane = times(factor, ofLane);
  Values ofRows;
  for (int64_t i : {0, 4})
    llvm::append_range(ofRows, ptx.loadFloats(ptx.add(own, ptx.mul(half, 2)), 4 * i, 4));
  SmallVector<Values> told(of.count());
  Values ofOwn(columns.size());
  for (size_t kind = 0; of.isWritten[0] && kind < columns.size(); ++kind)
    ofOwn[kind] = entryOf(kind, column, 0, isOdd);
  for (size_t vector = 0; vector < of.count(); ++vector) {
    if (!of.isWritten[vector])
      continue;
    ptx.store(ptx.add(at, ptx.mul(token, 4)), layout.numbersAt + 64 * vector, {written[vector]}, false,
              ptx.equal(lane, 0));
    for (Value entry : columns[vector])
      told[vector].push_back(ptx.shuffle(entry, ptx.add(token, half)));
  }

  // What a token writes is its own, and what it does to what the tokens before write.
  Value unit = ptx.choose(isEqual(column, token), ptx.number(1), ptx.number(0));
  Values shares, changes;
  for (size_t kind = 0; kind < columns.size(); ++kind) {
    Value &share = shares.emplace_back(kind == of.count() ? unit : Value());
    for (size_t vector = 0; vector < of.count(); ++vector)
      if (of.isWritten[vector])
        share = fused(written[vector], vector ? lanes[vector][kind] : ofOwn[kind], share);
    changes.push_back(times(factor, kind ? shares[kind] : fused(ofLane, square, shares[kind])));
  }
  Values byLane;
  for (Value share : written)
    byLane.push_back(times(ofLane, share));
  for (int64_t i = 0; i < 8; ++i) {
    for (size_t kind = 0; kind < columns.size(); ++kind)
      columns[kind][i] = fused(ofRows[i], changes[kind], columns[kind][i]);
    for (size_t vector = 0; vector < of.count(); ++vector)
      if (of.isWritten[vector])
        columns[0][i] = fused(byLane[vector], told[vector][i], columns[0][i]);
  }
  Value &share = columns.back().front();
  share = ptx.choose(ptx.equal(half, isOdd ? 16 : 0), shares.back(), share);
  // The next two tokens' entries are the first.
  for (Values &own : columns)
    if (isOdd)
      std::rotate(own.begin(), own.begin() + 1, own.end());
}

void CombinationTurns::emit(Value given, Value end) {
  scores = given;
  if (!of.factor)
    scaleScores();
  load();
  token = ptx.constant(0);
  for (size_t vector = 0; vector < of.count(); ++vector)
    dots.push_back(of.isAsked[vector] ? entryOf(vector, token, 0, false) : Value());
  look(false);
  // While a token's numbers are found, columns change by what the one before has written.
  auto state = [&] {
    SmallVector<Value *> all{&square, &token};
    for (Values &own : columns)
      for (Value &entry : own)
        all.push_back(&entry);
    for (size_t vector = 0; vector < of.count(); ++vector) {
      if (of.isAsked[vector])
        all.push_back(&dots[vector]);
      if (of.isWritten[vector])
        all.push_back(&written[vector]);
      for (Value &own : lanes[vector])
        if (own)
          all.push_back(&own);
    }
    return all;
  };
  auto valuesOf = [&] { return Values(llvm::map_range(state(), [](Value *value) { return *value; })); };
  auto turns = scf::ForOp::create(b, ptx.constant(0), end, ptx.constant(1), valuesOf());
  describeTrips(turns, 8);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(turns.getBody());
    for (auto [own, value] : llvm::zip(state(), turns.getRegionIterArgs()))
      *own = value;
    for (bool isOdd : {false, true}) {
      spread(isOdd);
      token = ptx.bits(ptx.add(token, 1), 15);
      look(!isOdd);
    }
    scf::YieldOp::create(b, valuesOf());
  }
  Value to = ptx.add(at, ptx.add(ptx.mul(column, layout.sharePitch), ptx.mul(half, 2)));
  for (int64_t i : {0, 4})
    ptx.store(to, layout.sharesAt + 4 * i, turns.getResults().slice(2 + 8 * layout.shares() + i, 4));
}

void cuda::emitTurns(Ptx &ptx, chunk::SubstituteOp op, const Combination &combination,
                     const CombinationLayout &layout, int64_t digits, Value at, Value lane, Value scores,
                     const llvm::DenseMap<Value, Value> &numbers, Value pairs) {
  CombinationTurns(ptx, op, combination, layout, digits, at, lane, numbers).emit(scores, pairs);
}
