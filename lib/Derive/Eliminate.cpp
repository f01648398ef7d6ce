// Unrolling a group over the chunk and solving for its unknown rows.
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
  auto scalarCascade = dyn_cast<chunk::CascadeType>(decay.getType());
  MatType of = scalarCascade ? scalarCascade.getOf() : cast<chunk::DecayType>(decay.getType()).getOf();
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
  if (!cascade && !decay && reach != Reach::Inclusive)
    for (const std::unique_ptr<Inverse> &inverse : cx.inverses)
      if (Value known = inverse->gram(vectors, keys))
        return known;
  if (!cascade)
    return chunk::GramOp::create(cx.b(), cx.loc, squareOf(vectors), vectors, keys, decay, reach);
  Value mask;
  for (const Target &target : from) {
    Value own =
        chunk::MaskOp::create(cx.b(), cx.loc, squareOf(vectors), cascade, reach, member, target.member);
    Value weight = weightRows(target);
    mask = cx.add(mask, weight ? cx.mul(own, cx.transpose(weight)) : own);
  }
  return cx.mul(cx.matmul(vectors, cx.transpose(keys)), mask);
}

Value Group::scores(Value vectors, const Stream &stream, unsigned member, Reach reach) {
  return masked(vectors, stream.keys, keyDecay, stream.into, member, reach);
}

Value Group::carried(Value vectors, unsigned member, bool after, bool otherSide) {
  Span span = after ? Span::Through : Span::Until;
  auto start = [&](unsigned state) { return otherSide ? cx.transpose(initial[state]) : initial[state]; };
  if (cascade) {
    Value sum;
    for (unsigned from = 0; from < states.size(); ++from)
      sum = cx.add(sum, cx.mul(weightsOf(cx, cascade, span, member, from), cx.matmul(vectors, start(from))));
    return sum;
  }
  Value in = otherSide ? valueDecay : keyDecay, out = otherSide ? keyDecay : valueDecay;
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

static Reach reachOf(bool after, bool seen) {
  return !after ? Reach::Before : seen ? Reach::Inclusive : Reach::Strict;
}

RowValue Group::readValue(Value vectors, unsigned member, bool after, ArrayRef<bool> seen) {
  RowValue result;
  result.scores.assign(streams.size(), Value());
  result.base = carried(vectors, member, after, false);
  for (auto [index, stream] : llvm::enumerate(streams)) {
    Value score = scores(vectors, stream, member, reachOf(after, seen[index]));
    if (stream.values)
      result.base = cx.add(result.base, apply(score, stream.values, after));
    else
      result.scores[index] = score;
  }
  return result;
}

// dT*S where S is read as S*d in the update: known streams only, keys and payloads change places.
Value Group::otherSideRead(Value vector, unsigned member, bool after, ArrayRef<bool> seen) {
  Value vectors = cx.tokens.rows(vector);
  Value result = carried(vectors, member, after, true);
  bool channels = keyDecay && !isOne(cast<chunk::DecayType>(keyDecay.getType()).getOf().getCols());
  if (keyDecay && valueDecay && !channels) {
    (void)cx.fail("a scalar and a diagonal decay meet a read on the other side");
    return {};
  }
  for (auto [index, stream] : llvm::enumerate(streams)) {
    Reach reach = reachOf(after, seen[index]);
    Value score = masked(vectors, stream.values,
                         channels   ? valueDecay
                         : keyDecay ? keyDecay
                                    : valueDecay,
                         stream.into, member, reach);
    result = cx.add(result,
                    channels ? chunk::MixOp::create(cx.b(), cx.loc, stream.keys.getType(), score, stream.keys,
                                                    keyDecay, after ? Reach::Inclusive : Reach::Before)
                                   .getResult()
                             : cx.matmul(score, stream.keys));
  }
  return result;
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
    return rowCache[index] = readValue(cx.tokens.rows(row.vector), place->member, place->after, place->seen);
  }
  auto addRow = [&](const Coefficient &c, const RowValue &part) {
    result.base = cx.add(result.base, cx.scale(c, part.base));
    for (auto [sum, score] : llvm::zip(result.scores, part.scores))
      sum = cx.add(sum, cx.scale(c, score));
  };
  for (const RowTerm &term : row.terms) {
    if (!term.map.empty() || !row.inOldReads) {
      (void)cx.fail(
          "what is read from '" + notation(cx.nf.states[states[0]]) + "' is scaled by '" +
          (term.map.empty() ? std::string("a matrix") : notation(diagonalColumn(term.map[0].value))) +
          "' before it is written back: each value channel has a system of its own; scale the writes only");
      return std::nullopt;
    }
    if (term.column.kind == Column::Known) {
      result.base = cx.add(result.base, cx.scale(term.c, cx.tokens.rows(term.column.value)));
    } else if (term.column.kind == Column::RowOf) {
      std::optional<RowValue> part = rowValue(term.column.index, known);
      if (!part)
        return std::nullopt;
      addRow(term.c, *part);
    } else {
      const Read &read = cx.nf.reads[term.column.index];
      readsBefore = true;
      addRow(term.c, readValue(cx.tokens.rows(read.vector), indexOf(read.state), false,
                               SmallVector<bool>(streams.size(), false)));
    }
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
  SmallVector<Value> blocks, rhs;
  for (unsigned s : unknown) {
    RowValue sum;
    sum.scores.assign(streams.size(), Value());
    for (const auto &[c, column] : streams[s].payload) {
      if (column.kind == Column::Known) {
        sum.base = cx.add(sum.base, cx.scale(c, cx.tokens.rows(column.value)));
        continue;
      }
      std::optional<RowValue> row = rowValue(column.index, known);
      if (!row)
        return failure();
      sum.base = cx.add(sum.base, cx.scale(c, row->base));
      Coefficient negated = c;
      negated.number = -c.number;
      for (auto [total, score] : llvm::zip(sum.scores, row->scores))
        total = cx.add(total, cx.scale(negated, score));
    }
    rhs.push_back(sum.base);
    for (unsigned other : unknown)
      blocks.push_back(sum.scores[other]);
  }
  if (valueDecay && readsBefore && readsAfter)
    return cx.fail("reads before and after a decay of the value channels meet in one system");
  for (Value &block : blocks)
    if (!block)
      block = ConstantOp::create(cx.b(), cx.loc, 0.0, squareOf(rhs[0]));
  SmallVector<Type> types(rhs.size(), rhs[0].getType());
  auto solved = chunk::TriSolveOp::create(cx.b(), cx.loc, types, blocks, rhs, valueDecay,
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
             ? finish(readValue(cx.tokens.rows(row.vector), place->member, place->after, place->seen),
                      place->after)
             : otherSideRead(row.vector, place->member, place->after, place->seen);
}

Value Group::finalRead(const Read &read) {
  if (!scanWrites.empty())
    return scanRow(indexOf(read.state), true, read.side, read.vector);
  SmallVector<bool> seen(streams.size(), false);
  return sideIsKey(read.side)
             ? finish(readValue(cx.tokens.rows(read.vector), indexOf(read.state), false, seen), false)
             : otherSideRead(read.vector, indexOf(read.state), false, seen);
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
    Value result = finish(readValue(vectors, member, true, SmallVector<bool>(streams.size(), true)), true);
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
        Value own = weightsOf(cx, cascade, Span::Rest, member, target.member), times = weightRows(target);
        weight = cx.add(weight, times ? cx.mul(times, own) : own);
      }
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
