// The streams of a token: found in the normal form's update, and put in an order in which each finds the
// state that it reads.
#include "lib/Algebra/TokenStreams.h"
#include "lib/Algebra/Rewriting.h"

using namespace mlir;
using namespace recur;

LogicalResult TokenStreams::findStreams() {
  std::optional<Side> side;
  for (const Write &write : nf.update(0).writes)
    for (auto [column, own] : {std::pair(&write.column, Side::Right), {&write.row, Side::Left}})
      if (column->kind != Column::Known) {
        if (side.value_or(own) != own)
          return failure();
        side = own;
      }
  if (!side || nf.update(0).writes.empty())
    return failure();
  keySide = *side;
  for (const Write &write : nf.update(0).writes) {
    const Column &key = keySide == Side::Right ? write.row : write.column;
    const Column &payload = keySide == Side::Right ? write.column : write.row;
    if (write.matrix || key.kind != Column::Known)
      return failure();
    TokenStream own{key.value, {}, {}, {&write}};
    if (failed(add(own, write.c, payload)))
      return failure();
    auto stream = llvm::find_if(streams, [&](const TokenStream &s) { return takes(s, own); });
    if (stream == streams.end()) {
      streams.push_back(own);
      continue;
    }
    llvm::append_range(stream->known, own.known);
    llvm::append_range(stream->reads, own.reads);
    llvm::append_range(stream->writes, own.writes);
  }
  for (TokenStream &stream : streams)
    join(stream.reads);
  auto isOther = [&](const TokenStream &stream) { return stream.key != streams[0].key; };
  return success((kind == Rows::InOrder ? streams.size() > 1 : llvm::any_of(streams, isOther)) &&
                 llvm::all_of(streams, [](const TokenStream &stream) { return stream.reads.size() <= 1; }));
}

LogicalResult TokenStreams::add(TokenStream &stream, const Coefficient &c, const Column &column) {
  if (column.kind == Column::Known) {
    stream.known.push_back({c, column.value});
    return success();
  }
  if (column.kind == Column::OldRead) {
    const Read &read = nf.reads[column.index];
    auto isOld = [&](const Version &version) { return version.value == nf.states[read.state]; };
    auto old = llvm::find_if(nf.versions, isOld);
    stream.reads.push_back({c, read.vector, unsigned(old - nf.versions.begin())});
    return success(read.side == keySide && old != nf.versions.end());
  }
  const Row &row = nf.rows[column.index];
  if (row.version != Row::none) {
    stream.reads.push_back({c, row.vector, row.version});
    return success(row.side == keySide && row.inOldReads && !row.solution);
  }
  for (const RowTerm &term : row.terms)
    if (!(term.map.empty() ? succeeded(add(stream, times(c, term.c), term.column))
                           : readsDecayed(stream, times(c, term.c), term)))
      return failure();
  return success();
}

// Whether a term is read of the old state, times all that decays its values: so of what has decayed.
bool TokenStreams::readsDecayed(TokenStream &stream, const Coefficient &c, const RowTerm &term) {
  const OldTerm &all = nf.update(0).old[0];
  auto [ofValues, ofKeys] =
      keySide == Side::Right ? std::pair(all.left, all.right) : std::pair(all.right, all.left);
  size_t known = stream.known.size();
  if (term.map != ofValues || !ofKeys.empty() || !all.c.isOne() || !all.elementwise.empty() ||
      failed(add(stream, c, term.column)) || stream.known.size() > known ||
      nf.versions[stream.reads.back().version].value != nf.states[0])
    return false;
  stream.reads.back().version = decayedVersion(b, nf);
  return true;
}

// Whether a row is a part of one that there is.
bool TokenStreams::takes(const TokenStream &stream, const TokenStream &own) const {
  if (stream.key != own.key)
    return false;
  if (kind != Rows::InOrder)
    return kind == Rows::OfKeys || own.reads.empty() == stream.reads.empty();
  // What reads what the other one has written, as often as it has been by then, comes after it.
  auto isRead = [&](const Write *write) {
    auto isLike = [&](const Write &x) { return isSame(x, *write, /*decays=*/false); };
    auto countOf = [&](const auto &all) { return llvm::count_if(all, isLike); };
    size_t written = 0;
    for (const TokenStream &before : streams)
      written += countOf(llvm::make_pointee_range(before.writes));
    return size_t(countOf(nf.versions[own.reads[0].version].writes)) >= written;
  };
  return &stream == &streams.back() && (own.reads.empty() ? stream.known : stream.reads).empty() &&
         (own.reads.empty() || llvm::none_of(stream.writes, isRead));
}

// Whether a write of a version is one of the update, which decays after it, or before.
bool TokenStreams::isSame(const Write &own, const Write &ofUpdate, bool decays) const {
  auto same = [](const Column &x, const Column &y) {
    return x.kind == y.kind && x.value == y.value && x.index == y.index;
  };
  auto sorted = [](SmallVector<Value, 2> factors) {
    llvm::sort(factors, [](Value x, Value y) { return x.getAsOpaquePointer() < y.getAsOpaquePointer(); });
    return factors;
  };
  Coefficient c = decays ? times(own.c, nf.update(0).old[0].c) : own.c;
  return same(own.column, ofUpdate.column) && same(own.row, ofUpdate.row) && c.number == ofUpdate.c.number &&
         sorted(c.factors) == sorted(ofUpdate.c.factors);
}
bool TokenStreams::hasWrite(unsigned version, const Write &ofUpdate) const {
  return llvm::any_of(nf.versions[version].writes, [&](const Write &own) {
    return isSame(own, ofUpdate, /*decays=*/false) || isSame(own, ofUpdate, /*decays=*/true);
  });
}

// How a version, which is the state as it decays in the update or, where numbers do that, before, differs
// from the state with what some rows write; nothing where it is another one.
std::optional<TokenStreams::Difference>
TokenStreams::differenceTo(unsigned version, ArrayRef<TokenStream> written, bool decays) const {
  const Version &own = nf.versions[version], &update = nf.update(0);
  if (own.old.size() != 1)
    return std::nullopt;
  const OldTerm &old = own.old[0], &all = update.old[0];
  if (old.state != all.state) // what was at the start of a block
    return std::nullopt;
  bool isOld =
      decays ? old.isScalar() && old.c.isOne() && (all.isScalar() || written.empty()) : decayAlike(old, all);
  Difference difference;
  auto take = [&](const Write *write) {
    auto *same =
        llvm::find_if(difference.more, [&](const Write *other) { return isSame(*other, *write, decays); });
    if (same == difference.more.end())
      difference.lacking.push_back(write);
    else
      difference.more.erase(same);
  };
  for (const Write &write : own.writes)
    difference.more.push_back(&write);
  for (const TokenStream &stream : written)
    llvm::for_each(stream.writes, take);
  return isOld ? std::optional(difference) : std::nullopt;
}
bool TokenStreams::isWritten(unsigned version, ArrayRef<TokenStream> written, bool decays) const {
  auto difference = differenceTo(version, written, decays);
  return difference && difference->lacking.empty() && difference->more.empty();
}

Value TokenStreams::beforeRow(size_t row) const {
  for (auto [i, version] : llvm::enumerate(nf.versions))
    if (isWritten(i, ArrayRef(streams).take_front(row), /*decays=*/false))
      return version.value;
  return {};
}

std::optional<StreamPart> TokenStreams::withoutDecay(StreamPart part) {
  Decay decay = *nf.decay(0);
  if (!(keySide == Side::Right ? decay.left : decay.right).empty())
    return std::nullopt;
  auto taken = [&](Value factor) { return take(part.c.factors, factor); };
  double number = part.c.number / decay.c.number;
  if (number * decay.c.number != part.c.number || !llvm::all_of(decay.c.factors, taken))
    return std::nullopt;
  part.c.number = number;
  SmallVector<Value> factors = factorsOf(part.vector);
  for (Value own : keySide == Side::Right ? decay.right : decay.left)
    for (Value factor : factorsOf(diagonalColumn(own)))
      if (!take(factors, factor))
        return std::nullopt;
  auto isVector = [](Value factor) { return !matType(factor).isScalar(); };
  auto *first = llvm::find_if(factors, isVector);
  if (first == factors.end())
    return std::nullopt;
  if (factors.size() == factorsOf(part.vector).size())
    return part;
  std::swap(*first, factors.front());
  part.vector = factors.front();
  for (Value factor : ArrayRef(factors).drop_front())
    part.vector = MulOp::create(b, loc, part.vector, factor);
  return part;
}

// Orders what is done in turn: what is read has been written, and nothing else.
void TokenStreams::orderStreams() {
  auto isWritten = [&](const TokenStream &stream, unsigned version) {
    return llvm::any_of(stream.writes, [&](const Write *write) { return hasWrite(version, *write); });
  };
  auto countWritten = [&](unsigned version) {
    return llvm::count_if(streams, [&](const TokenStream &stream) { return isWritten(stream, version); });
  };
  // Twice the number of those before, so that what only writes comes right before what reads that.
  auto placeOf = [&](const TokenStream &own) {
    if (!own.reads.empty())
      return 2 * countWritten(own.reads[0].version);
    auto first = std::numeric_limits<ptrdiff_t>::max();
    for (const TokenStream &other : streams)
      if (!other.reads.empty() && isWritten(own, other.reads[0].version))
        first = std::min(first, 2 * countWritten(other.reads[0].version) - 1);
    return first;
  };
  SmallVector<std::pair<ptrdiff_t, size_t>> places;
  for (auto [i, stream] : llvm::enumerate(streams))
    places.push_back({placeOf(stream), i});
  llvm::sort(places);
  std::vector<TokenStream> given(std::move(streams));
  streams.clear();
  for (auto [place, i] : places)
    streams.push_back(given[i]);
}

// Has a row read what those before it leave, with known writes that its version lacks or has beside: it
// writes that much less along its own key, or more.
LogicalResult TokenStreams::readWith(const Difference &difference, TokenStream &stream,
                                     const StreamPart &part) {
  auto product = [&](Value x, Value y) {
    return MatmulOp::create(b, loc, TransposeOp::create(b, loc, x).getResult(), y);
  };
  for (const Write *write : llvm::concat<const Write *const>(difference.lacking, difference.more)) {
    const Column &key = keySide == Side::Right ? write->row : write->column;
    const Column &payload = keySide == Side::Right ? write->column : write->row;
    if (payload.kind != Column::Known)
      return failure();
    StreamPart known{times(part.c, write->c), payload.value};
    if (llvm::is_contained(difference.lacking, write))
      known.c.number = -known.c.number;
    known.c.factors.push_back(product(key.value, part.vector));
    // S*A*B + v*kT*B, which reads S*A, is (S*A + v*kT)*B.
    auto *opposite = llvm::find_if(stream.known, [&](const StreamPart &own) {
      return own.vector == known.vector && cancel(own.c, known.c);
    });
    if (opposite != stream.known.end()) {
      stream.known.erase(opposite);
      continue;
    }
    // Numbers apart, as such products are of inputs.
    Value number, first = unscaled(b, loc, key.value, number), second = unscaled(b, loc, part.vector, number);
    known.c.factors.back() = product(first, second);
    if (number)
      known.c.factors.push_back(number);
    stream.known.push_back(known);
  }
  return success();
}

// Has what is only written stand beside as many rows as go, along vectors of its own. In turn that is what
// is written last alone, as rows after it would read it.
bool TokenStreams::takeApart() {
  auto reads = [](const TokenStream &stream) { return !stream.reads.empty(); };
  bool isLast = !reads(streams.back()) && streams.size() == mostRows + 1;
  if (size_t(llvm::count_if(streams, reads)) != mostRows || streams.size() > 2 * mostRows ||
      (isInTurn && !isLast))
    return false;
  for (TokenStream &stream : std::exchange(streams, {}))
    (reads(stream) ? streams : apart).push_back(std::move(stream));
  return true;
}

Value TokenStreams::coefficient(const Coefficient &c) {
  Value value = buildCoefficient(b, loc, c);
  return value ? value : ConstantOp::create(b, loc, 1.0).getResult();
}

// What is known, or read, of one vector more than once is so once, times a sum.
void TokenStreams::join(SmallVectorImpl<StreamPart> &parts) {
  SmallVector<StreamPart> given(parts.begin(), parts.end());
  parts.clear();
  for (const StreamPart &own : given) {
    auto *same = llvm::find_if(parts, [&](const StreamPart &other) {
      return other.vector == own.vector && other.version == own.version;
    });
    if (same == parts.end()) {
      parts.push_back(own);
      continue;
    }
    Value first = coefficient(same->c), sum = AddOp::create(b, loc, first, coefficient(own.c));
    same->c = Coefficient();
    same->c.factors.push_back(sum);
  }
}

LogicalResult TokenStreams::findReads() {
  auto isLater = [&](const TokenStream &stream) {
    return !stream.reads.empty() && !nf.versions[stream.reads[0].version].writes.empty();
  };
  isInTurn = llvm::any_of(streams, isLater);
  if (isInTurn && kind != Rows::InOrder)
    orderStreams();
  else if (!isInTurn && kind != Rows::OfKeys)
    return failure();
  if (streams.size() > mostRows && !takeApart())
    return failure();
  for (TokenStream &stream : streams)
    parts.push_back(stream.reads.empty() ? StreamPart() : stream.reads[0]);
  auto reads = [](const StreamPart &part) { return part.version != Row::none; };
  for (auto [i, part] : llvm::enumerate(parts)) {
    ArrayRef<TokenStream> before = ArrayRef(streams).take_front(i);
    if (!isInTurn || !reads(part) || readsStart(part))
      continue;
    std::optional<Difference> difference = differenceTo(part.version, before, /*decays=*/false);
    // What is read before the decay, times all that is decayed by, is read of what decayed.
    if (!difference && (difference = differenceTo(part.version, before, /*decays=*/true))) {
      std::optional<StreamPart> rest = withoutDecay(part);
      if (rest && difference->more.empty())
        part = *rest;
      else
        difference = std::nullopt;
    }
    if (difference) {
      if (failed(readWith(*difference, streams[i], part)))
        return failure();
      continue;
    }
    // Else rows read the state that they find, which those after the first find decayed.
    if (i > 0 || nf.versions[part.version].value != nf.states[0])
      return failure();
    readsOlder = true;
  }
  // What is only written along reads nothing, and along itself, as many a rule's other vectors do.
  auto *now = llvm::find_if(parts, [&](const StreamPart &part) { return reads(part) && !readsStart(part); });
  StreamPart any = now == parts.end() ? *llvm::find_if(parts, reads) : *now;
  for (auto [part, stream] : llvm::zip(parts, streams))
    if (!reads(part)) {
      part = {Coefficient(), stream.key, any.version};
      part.c.number = any.c.number; // the sign is that of all
      part.c.factors.push_back(ConstantOp::create(b, loc, 0.0));
    }
  for (TokenStream &stream : llvm::concat<TokenStream>(streams, apart))
    join(stream.known);
  auto isOne = [](const TokenStream &stream) { return stream.known.size() == 1; };
  auto areFew = [](const TokenStream &stream) { return stream.known.size() <= mostKnown; };
  return success(llvm::all_of(streams, areFew) && llvm::all_of(apart, isOne) &&
                 (isInTurn || llvm::all_of(parts, [&](const StreamPart &part) {
                    return part.version == any.version || readsStart(part);
                  })));
}
