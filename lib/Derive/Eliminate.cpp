// Unrolling a group over the chunk and solving for its unknown rows.
#include "lib/Algebra/Rewriting.h"
#include "lib/Derive/Inverse.h"

using namespace mlir;
using namespace recur;
using chunk::Reach;
using chunk::Span;

//===----------------------------------------------------------------------===//
// Decays between tokens
//===----------------------------------------------------------------------===//

static MatType squareOf(Value rows) {
  return MatType::get(rows.getContext(), matType(rows).getRows(), matType(rows).getRows());
}

// The product of decays over a stretch; null where nothing decays.
static Value weightsOf(DeriveContext &cx, Value decay, Span span, unsigned to = 0, unsigned from = 0) {
  if (!decay)
    return {};
  MatType of = chunk::typeOfFactors(decay.getType());
  Attribute one = MatType::scalar(cx.b().getContext()).getRows();
  MatType type = span == Span::Whole ? MatType::get(cx.b().getContext(), of.getCols(), one) : of;
  return chunk::WeightsOp::create(cx.b(), cx.loc, type, decay, span, to, from);
}

Value Group::weightRows(const Target &target) {
  OpBuilder atToken(RuleOp(cx.nf.rule).getBody().front().getTerminator());
  Value weight = buildCoefficient(atToken, cx.loc, target.weight);
  return weight ? cx.tokens.rows(weight) : Value();
}

Value Group::masked(Value vectors, Value keys, Value decay, ArrayRef<Target> from, unsigned member,
                    Reach reach) {
  if (!cascade && !decay && reach != Reach::Inclusive && reach != Reach::Start)
    for (const std::unique_ptr<Inverse> &inverse : cx.inverses)
      if (Value known = inverse->gram(vectors, keys))
        return known;
  if (!cascade)
    return chunk::GramOp::create(cx.b(), cx.loc, squareOf(vectors), vectors, keys, decay, ValueRange(),
                                 reach);
  if (hasChannels())
    return gramOfChannels(vectors, keys, from, member, reach);
  Value mask;
  // A token's own writes to other states have not come to this one.
  if (reach == Reach::Strict &&
      llvm::none_of(from, [&](const Target &target) { return target.member == member; }))
    reach = Reach::Inclusive;
  for (const Target &target : from) {
    if (!reaches(cascade, target.member, member))
      continue;
    Value own =
        chunk::MaskOp::create(cx.b(), cx.loc, squareOf(vectors), cascade, reach, member, target.member);
    Value weight = weightRows(target);
    mask = cx.add(mask, weight ? cx.mul(own, cx.transpose(weight)) : own);
  }
  return mask ? cx.mul(cx.matmul(vectors, cx.transpose(keys)), mask) : Value();
}

Value Group::scores(Value vectors, const Stream &stream, unsigned member, Reach reach) {
  return masked(vectors, stream.keys, keyDecay, stream.into, member, reach);
}

Value Group::carried(Value vectors, const Place &place, bool otherSide) {
  Span span = place.atStart ? Span::Start : place.after && !isLate() ? Span::Through : Span::Until;
  unsigned member = place.member;
  auto start = [&](unsigned state) { return otherSide ? cx.transpose(initial[state]) : initial[state]; };
  if (cascade) {
    Value sum;
    for (unsigned from = 0; from < states.size(); ++from) {
      if (!reaches(cascade, from, member))
        continue;
      Value weights = weightsOf(cx, cascade, span, member, from);
      sum = cx.add(sum, hasChannels() ? cx.matmul(cx.mul(weights, vectors), start(from))
                                      : cx.mul(weights, cx.matmul(vectors, start(from))));
    }
    return sum;
  }
  Value in = otherSide ? valueDecay : keyDecay, out = otherSide ? keyDecay : valueDecay;
  // Reads of the state as it is, and as it was, along one vector are one, times a sum of numbers.
  if (in && !out && !starts.empty() && isOne(cast<chunk::DecayType>(in.getType()).getOf().getCols()))
    std::swap(in, out);
  if (Value weight = weightsOf(cx, in, span))
    vectors = cx.mul(weight, vectors);
  Value rows = cx.matmul(vectors, start(0));
  Value weight = weightsOf(cx, out, span);
  return weight ? cx.mul(weight, rows) : rows;
}

Value Group::apply(Value scores, Value values, bool after) {
  if (!scores || !values)
    return {};
  if (!valueDecay)
    return cx.matmul(scores, values);
  return chunk::MixOp::create(cx.b(), cx.loc, values.getType(), scores, values, valueDecay,
                              after ? Reach::Inclusive : Reach::Before);
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

Value Group::vectorsAt(const Place &place, Value vectors) {
  return place.isDecayed ? cx.mul(keyDecay.getDefiningOp<chunk::DecayOp>().getFactors(), vectors) : vectors;
}

RowValue Group::readValue(Value vectors, const Place &place) {
  RowValue result;
  result.scores.assign(streams.size(), Value());
  result.base = carried(vectors, place, false);
  for (auto [index, stream] : llvm::enumerate(streams)) {
    Value score = scores(vectors, stream, place.member, reachOf(place, index));
    if (stream.values)
      result.base = cx.add(result.base, apply(score, stream.values, place.after));
    else
      result.scores[index] = score;
  }
  return result;
}

// dT*S where S is read as S*d in the update: known streams only, keys and payloads change places.
Value Group::otherSideRead(Value vector, const Place &place) {
  if (hasChannels()) {
    (void)cx.fail("states that each key couples by itself are read on the other side, too");
    return {};
  }
  Value vectors = cx.tokens.rows(vector);
  Value result = carried(vectors, place, true);
  bool channels = keyDecay && !isOne(cast<chunk::DecayType>(keyDecay.getType()).getOf().getCols());
  if (place.atStart && channels) {
    (void)cx.fail(
        "what a state was at the start of a block is read on the other side of a decay of each key");
    return {};
  }
  if (keyDecay && valueDecay && !channels) {
    (void)cx.fail("a scalar and a diagonal decay meet a read on the other side");
    return {};
  }
  for (auto [index, stream] : llvm::enumerate(streams)) {
    Value score = masked(vectors, stream.values,
                         channels   ? valueDecay
                         : keyDecay ? keyDecay
                                    : valueDecay,
                         stream.into, place.member, reachOf(place, index));
    if (!score)
      continue;
    result = cx.add(result,
                    channels ? chunk::MixOp::create(cx.b(), cx.loc, stream.keys.getType(), score, stream.keys,
                                                    keyDecay, place.after ? Reach::Inclusive : Reach::Before)
                                   .getResult()
                             : cx.matmul(score, stream.keys));
  }
  return result;
}

// A value's system is its own where what it reads is times a number of its own.
std::optional<RowValue> Group::termValue(const RowTerm &term, function_ref<Value(unsigned)> known) {
  SmallVector<Value, 1> diagonals;
  for (const Factor &factor : term.map) {
    if (!factor.diagonal) {
      (void)cx.fail("what is read from '" + notation(cx.nf.states[states[0]]) + "' is multiplied by '" +
                    notation(factor.value) +
                    "' before it is written back: its values share no triangular system");
      return std::nullopt;
    }
    diagonals.push_back(diagonalColumn(factor.value));
  }
  RowValue value;
  value.scores.assign(streams.size(), Value());
  const Column &column = term.column;
  auto isRow = [&](Column::Kind kind) { return column.kind == kind; };
  std::optional<Place> place = isRow(Column::RowOf) ? placeOf(cx.nf.rows[column.index]) : std::nullopt;
  bool isBefore = isRow(Column::OldRead) || (place && !place->after);
  // What decays by what a state does is read after its decay.
  auto isOfDecay = [&](Value diagonal) { return llvm::is_contained(valueFactors, diagonal); };
  bool isAfter =
      isBefore && valueDecay && !keyDecay && valueFactors.size() == 1 && llvm::any_of(diagonals, isOfDecay);
  if (isRow(Column::Known)) {
    value.base = cx.tokens.rows(column.value);
  } else if (isRow(Column::RowOf) && !isAfter) {
    std::optional<RowValue> row = rowValue(column.index, known);
    if (!row)
      return std::nullopt;
    value = *row;
  } else {
    Side side = isRow(Column::RowOf) ? cx.nf.rows[column.index].side : cx.nf.reads[column.index].side;
    Value vector = isRow(Column::RowOf) ? cx.nf.rows[column.index].vector : cx.nf.reads[column.index].vector;
    Place at = place ? *place : placeOf(cx.nf.reads[column.index]);
    if (!sideIsKey(side)) {
      (void)cx.fail("'" + notation(cx.nf.states[states[0]]) + "' is read from both sides");
      return std::nullopt;
    }
    if (isAfter)
      diagonals.erase(llvm::find_if(diagonals, isOfDecay));
    (isAfter ? readsAfter : readsBefore) = true;
    at.after = isAfter;
    at.seen.assign(streams.size(), false);
    value = readValue(cx.tokens.rows(vector), at);
  }
  value.base = value.base && !diagonals.empty() ? cx.mul(diagonalRows(diagonals), value.base) : value.base;
  llvm::append_range(value.diagonals, diagonals);
  return value;
}

LogicalResult Group::addRow(RowValue &sum, const Coefficient &c, const Coefficient &ofScores,
                            const RowValue &part) {
  sum.base = cx.add(sum.base, cx.scale(c, part.base));
  if (!part.hasScores())
    return success();
  auto sorted = [](SmallVector<Value, 1> values) {
    llvm::sort(values, [](Value a, Value b) { return a.getAsOpaquePointer() < b.getAsOpaquePointer(); });
    return values;
  };
  if (!sum.hasScores())
    sum.diagonals = part.diagonals;
  else if (sorted(sum.diagonals) != sorted(part.diagonals))
    return cx.fail("reads of '" + notation(cx.nf.states[states[0]]) +
                   "' that are written back together are times different diagonals");
  for (auto [total, score] : llvm::zip(sum.scores, part.scores))
    total = cx.add(total, cx.scale(ofScores, score));
  return success();
}

Value Group::diagonalRows(ArrayRef<Value> diagonals) {
  Value product;
  for (Value diagonal : diagonals) {
    Value rows = cx.tokens.rows(diagonal);
    product = product ? cx.mul(product, rows) : rows;
  }
  return product;
}

std::optional<RowValue> Group::rowValue(unsigned index, function_ref<Value(unsigned)> known) {
  if (auto cached = rowCache.find(index); cached != rowCache.end())
    return cached->second;
  RowValue result;
  result.scores.assign(streams.size(), Value());
  const Row row = cx.nf.rows[index];
  if (!reads(index)) {
    result.base = known(index);
    if (!result.base)
      return std::nullopt;
    return rowCache[index] = result;
  }
  if (std::optional<Place> place = placeOf(row); place && sideIsKey(row.side)) {
    (place->after ? readsAfter : readsBefore) = true;
    Value decayed = decayedRows.lookup(index);
    Value vectors = vectorsAt(*place, cx.tokens.rows(decayed ? decayed : row.vector));
    return rowCache[index] = readValue(vectors, *place);
  }
  if (!row.inOldReads) {
    (void)cx.fail("what is read from '" + notation(cx.nf.states[states[0]]) +
                  "' is multiplied by a matrix before it is written back");
    return std::nullopt;
  }
  for (const RowTerm &term : row.terms) {
    std::optional<RowValue> part = termValue(term, known);
    Coefficient c = withoutDecay(term.c, term.column);
    if (!part || failed(addRow(result, c, c, *part)))
      return std::nullopt;
  }
  return rowCache[index] = result;
}

Value Group::finish(const RowValue &value, bool after) {
  Value result = value.base;
  for (auto [score, stream] : llvm::zip(value.scores, streams))
    result = cx.add(result, apply(score, stream.values, after));
  return result;
}

//===----------------------------------------------------------------------===//
// The system
//===----------------------------------------------------------------------===//

// What a state that is a vector, read by the number 1, is written: of several terms that are known the sum,
// as the rule has it. Null for other payloads.
Value Group::payloadOfToken(const Stream &stream) {
  bool isKnown = llvm::all_of(stream.payload, [](const auto &p) { return p.second.kind == Column::Known; });
  if (!isKnown || stream.payload.size() == 1 || !stream.key.value || !matType(stream.key.value).isScalar())
    return {};
  // The state plus a value: that one.
  if (auto update = cx.nf.update(states[0]).value.getDefiningOp<AddOp>(); update && states.size() == 1)
    for (unsigned i : {0, 1})
      if (update->getOperand(i) == cx.nf.states[states[0]] && cx.nf.isTokenOnly(update->getOperand(1 - i)))
        return update->getOperand(1 - i);
  OpBuilder atToken(RuleOp(cx.nf.rule).getBody().front().getTerminator());
  Value sum;
  for (const auto &[c, column] : stream.payload) {
    Value term = scaled(atToken, cx.loc, buildCoefficient(atToken, cx.loc, c), column.value);
    sum = sum ? AddOp::create(atToken, cx.loc, sum, term).getResult() : term;
  }
  return sum;
}

LogicalResult Group::eliminate(function_ref<Value(unsigned)> known) {
  if (!scanWrites.empty())
    return success();
  for (Stream &stream : streams) {
    if (Value key = stream.key.value) {
      for (const std::unique_ptr<Inverse> &inverse : cx.inverses)
        key = inverse->absorb(key, stream.payload);
      stream.keys = cx.tokens.rows(key);
    } else if (!(stream.keys = known(stream.key.index))) {
      return failure();
    }
    if (stream.unknown)
      continue;
    if (Value token = payloadOfToken(stream)) {
      stream.values = cx.tokens.rows(token);
      continue;
    }
    for (const auto &[c, column] : stream.payload) {
      Value rows = column.kind == Column::Known ? cx.tokens.rows(column.value) : known(column.index);
      if (!rows)
        return failure();
      stream.values = cx.add(stream.values, cx.scale(c, rows));
    }
  }
  return solve(known);
}

LogicalResult Group::solve(function_ref<Value(unsigned)> known) {
  SmallVector<unsigned> unknown;
  for (auto [index, stream] : llvm::enumerate(streams))
    if (stream.unknown)
      unknown.push_back(index);
  if (unknown.empty())
    return success();
  // U_s = sum of c * column; every row among the columns is base + sum of scores * U.
  SmallVector<Value> blocks, rhs, factors;
  for (unsigned s : unknown) {
    RowValue sum;
    sum.scores.assign(streams.size(), Value());
    for (const auto &[c, column] : streams[s].payload) {
      if (column.kind == Column::Known) {
        sum.base = cx.add(sum.base, cx.scale(c, cx.tokens.rows(column.value)));
        continue;
      }
      std::optional<RowValue> row = rowValue(column.index, known);
      Coefficient own = withoutDecay(c, column), negated = own;
      negated.number = -own.number;
      if (!row || failed(addRow(sum, own, negated, *row)))
        return failure();
    }
    rhs.push_back(sum.base);
    factors.push_back(diagonalRows(sum.diagonals));
    for (unsigned other : unknown)
      blocks.push_back(sum.scores[other]);
  }
  if (valueDecay && readsBefore && readsAfter)
    return cx.fail("reads before and after a decay of the value channels meet in one system");
  for (Value &block : blocks)
    if (!block)
      block = ConstantOp::create(cx.b(), cx.loc, 0.0, squareOf(rhs[0]));
  SmallVector<Type> types(rhs.size(), rhs[0].getType());
  if (llvm::none_of(factors, [](Value factor) { return factor != nullptr; }))
    factors.clear();
  for (Value &factor : factors)
    if (!factor)
      factor = ConstantOp::create(cx.b(), cx.loc, 1.0, cast<MatType>(types[0]));
  auto solved = chunk::TriSolveOp::create(cx.b(), cx.loc, types, blocks, rhs, factors, valueDecay,
                                          readsAfter ? Reach::Inclusive : Reach::Before);
  for (auto [index, values] : llvm::zip(unknown, solved.getResults()))
    streams[index].values = values;
  rowCache.clear();
  return success();
}

Value Group::finalRow(unsigned index) {
  const Row row = cx.nf.rows[index];
  if (!scanWrites.empty()) {
    if (row.version == Row::none)
      return {};
    for (auto [member, state] : llvm::enumerate(states)) {
      bool before = cx.nf.versions[row.version].value == cx.nf.states[state];
      if (before || row.version == cx.nf.updates[state])
        return scanRow(member, before, row.side, row.vector);
    }
    return {};
  }
  std::optional<Place> place = placeOf(row);
  if (!place)
    return {};
  return sideIsKey(row.side)
             ? finish(readValue(vectorsAt(*place, cx.tokens.rows(row.vector)), *place), place->after)
             : otherSideRead(row.vector, *place);
}

Value Group::writtenRow(unsigned index) const {
  const Row &row = cx.nf.rows[index];
  auto isPart = [](const RowTerm &term, const std::pair<Coefficient, Column> &part) {
    const Column &a = term.column, &b = part.second;
    return term.map.empty() && term.c == part.first && a.kind == b.kind && a.value == b.value &&
           a.index == b.index;
  };
  if (row.version != Row::none)
    return {};
  for (const Stream &stream : streams)
    if (stream.unknown && stream.values && stream.payload.size() == row.terms.size() &&
        llvm::all_of(row.terms, [&](const RowTerm &term) {
          return llvm::any_of(stream.payload, [&](const auto &part) { return isPart(term, part); });
        }))
      return stream.values;
  return {};
}

Value Group::finalRead(const Read &read) {
  if (!scanWrites.empty())
    return scanRow(indexOf(read.state), true, read.side, read.vector);
  Place place = placeOf(read);
  return sideIsKey(read.side) ? finish(readValue(cx.tokens.rows(read.vector), place), false)
                              : otherSideRead(read.vector, place);
}

Value Group::multiplyRows(const Version &version, Value vectors) {
  if (!scanWrites.empty() || keySide != Side::Right)
    return {};
  for (auto [member, state] : llvm::enumerate(states)) {
    const Version &update = cx.nf.update(state);
    auto isNew = [&](const Write &write) {
      return llvm::any_of(update.writes, [&](const Write &other) { return sameWrite(write, other); });
    };
    if (!sameOld(version.old, update.old) || !llvm::all_of(update.writes, [&](const Write &write) {
          return llvm::any_of(version.writes, [&](const Write &other) { return sameWrite(write, other); });
        }))
      continue;
    Place whole{unsigned(member), true, SmallVector<bool>(streams.size(), true), isLate()};
    Value result = finish(readValue(vectorsAt(whole, vectors), whole), true);
    for (const Write &write : version.writes) {
      if (isNew(write))
        continue;
      auto diagonal = write.matrix ? write.matrix.getDefiningOp<DiagOp>() : DiagOp();
      Value part;
      if (diagonal)
        part = cx.mul(cx.tokens.rows(diagonal.getOperand()), vectors);
      else if (write.matrix && cx.tokens.isShared(write.matrix))
        part = cx.matmul(vectors, cx.transpose(cx.tokens.shared(write.matrix)));
      else
        return {};
      result = cx.add(result, cx.scale(write.c, part));
    }
    return result;
  }
  return {};
}

Value Group::finalState(unsigned state) {
  unsigned member = indexOf(state);
  if (!scanWrites.empty())
    return scan(scans[1] && !scans[0]).getLast()[member];
  Value result;
  if (cascade) {
    for (unsigned from = 0; from < states.size(); ++from)
      if (reaches(cascade, from, member))
        result = cx.add(result, cx.mul(weightsOf(cx, cascade, Span::Whole, member, from), initial[from]));
  } else {
    result = initial[0];
    if (Value whole = weightsOf(cx, keyDecay, Span::Whole))
      result = cx.mul(whole, result);
    if (Value whole = weightsOf(cx, valueDecay, Span::Whole))
      result = cx.mul(result, cx.transpose(whole));
  }
  for (const Stream &stream : streams) {
    Value keys = stream.keys, values = stream.values;
    if (cascade) {
      Value weight;
      for (const Target &target : stream.into) {
        if (!reaches(cascade, target.member, member))
          continue;
        Value own = weightsOf(cx, cascade, Span::Rest, member, target.member), times = weightRows(target);
        weight = cx.add(weight, times ? cx.mul(times, own) : own);
      }
      if (!weight)
        continue;
      keys = cx.mul(weight, keys);
    }
    if (Value weight = weightsOf(cx, keyDecay, Span::Rest))
      keys = cx.mul(weight, keys);
    if (Value weight = weightsOf(cx, valueDecay, Span::Rest))
      values = cx.mul(weight, values);
    result = cx.add(result, cx.matmul(cx.transpose(keys), values));
  }
  return keySide == Side::Right ? cx.transpose(result) : result;
}
