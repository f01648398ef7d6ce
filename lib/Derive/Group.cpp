// What a group is: its key side, its decays and its streams.
#include "lib/Derive/Group.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/Stems.h"

using namespace mlir;
using namespace recur;

bool Group::reads(unsigned index) const {
  const Row &row = cx.nf.rows[index];
  if (row.version != Row::none && !row.inOldReads)
    for (const OldTerm &term : cx.nf.versions[row.version].old)
      if (contains(term.state))
        return true;
  for (const RowTerm &term : cx.nf.rows[index].terms) {
    if (term.column.kind == Column::OldRead && contains(cx.nf.reads[term.column.index].state))
      return true;
    if (term.column.kind == Column::RowOf && reads(term.column.index))
      return true;
  }
  return false;
}

LogicalResult Group::prepare() {
  if (failed(orient()))
    return failure();
  bool isScan = wantsScan() && !areChannelsCoupled();
  if (isScan && starts.empty()) {
    prepareScan();
    return success();
  }
  if (failed(findDecays()) || failed(findStreams()))
    return failure();
  if (!starts.empty() && (isScan || valueDecay))
    return cx.fail("'" + notation(cx.nf.states[starts[0].first]) +
                   "' is read of a state whose entries, or values, decay each by itself");
  for (unsigned state : states) {
    Value stored = cx.tokens.shared(cx.nf.states[state]);
    initial.push_back(keySide == Side::Right ? cx.transpose(stored) : stored);
  }
  return success();
}

// Reads that the update itself makes decide the side; else the readout does.
LogicalResult Group::orient() {
  std::optional<Side> side;
  bool twoSided = false;
  std::function<void(unsigned)> visit = [&](unsigned row) {
    // What reads with an earlier readout has no terms.
    if (cx.nf.rows[row].terms.empty() && reads(row))
      side = cx.nf.rows[row].side;
    for (const RowTerm &term : cx.nf.rows[row].terms) {
      if (term.column.kind == Column::RowOf)
        visit(term.column.index);
      if (term.column.kind != Column::OldRead || !contains(cx.nf.reads[term.column.index].state))
        continue;
      Side found = cx.nf.reads[term.column.index].side;
      twoSided |= side && *side != found;
      side = found;
    }
  };
  for (unsigned state : states)
    for (const Write &write : cx.nf.update(state).writes)
      for (const Column *column : {&write.column, &write.row})
        if (column->kind == Column::RowOf && reads(column->index)) {
          visit(column->index);
          twoSided |= side && *side != (column == &write.column ? Side::Right : Side::Left);
        }
  if (twoSided)
    return cx.fail("the update reads '" + notation(cx.nf.states[states[0]]) +
                   "' from both sides: their unknown scalars "
                   "and vectors do not form one triangular system");
  if (!side)
    for (const Readout &readout : cx.nf.readouts)
      if (!side && reads(readout.row))
        visit(readout.row);
  keySide = side.value_or(Side::Right);
  for (unsigned state : states) {
    std::string name = notation(cx.nf.states[state]);
    cx.note("orient", keySide == Side::Right ? name + " is read on its right: H = " + name + "ᵀ"
                                             : name + " is read on its left: H = " + name);
  }
  return success();
}

bool recur::sameColumn(const Column &x, const Column &y) {
  return x.kind == y.kind && x.value == y.value && x.index == y.index;
}

// The number that one payload is times another.
static std::optional<Coefficient> quotientOf(ArrayRef<std::pair<Coefficient, Column>> of,
                                             ArrayRef<std::pair<Coefficient, Column>> by) {
  std::optional<Coefficient> number;
  if (of.size() != by.size())
    return std::nullopt;
  for (const auto &[x, y] : llvm::zip(of, by)) {
    std::optional<Coefficient> own =
        sameColumn(x.second, y.second) ? quotient(x.first, y.first) : std::nullopt;
    if (!own || (number && !(*own == *number)))
      return std::nullopt;
    number = own;
  }
  return number;
}

// Has the weights take over what all of a payload has as a factor: values, and the number of its first term.
void Group::Stream::takeFactorsOut() {
  Coefficient common;
  for (Value factor : payload.front().first.factors) {
    common.factors.push_back(factor);
    if (!llvm::all_of(payload, [&](const auto &term) { return quotient(term.first, common).has_value(); }))
      common.factors.pop_back();
  }
  common.number = payload.front().first.number;
  if (!llvm::all_of(payload, [&](const auto &term) { return quotient(term.first.number, common.number); }))
    common.number = 1;
  for (auto &[c, column] : payload)
    c = *quotient(c, common);
  for (Target &target : into)
    target.weight = times(common, target.weight);
}

// Takes another stream on, where one payload is a number times the other: then what is written to several
// states is known, or solved for, once.
bool Group::joinStreams(Stream &stream, Stream other) {
  if (!sameColumn(stream.key, other.key))
    return false;
  // Factors of which none is a multiple of the other are weights of what has none.
  if (!quotientOf(other.payload, stream.payload) && !quotientOf(stream.payload, other.payload)) {
    Stream plain = stream;
    plain.takeFactorsOut();
    other.takeFactorsOut();
    if (quotientOf(other.payload, plain.payload) || quotientOf(plain.payload, other.payload))
      stream = plain;
  }
  if (auto weight = quotientOf(other.payload, stream.payload)) {
    for (const Target &target : other.into)
      stream.into.push_back({target.member, times(*weight, target.weight)});
    return true;
  }
  if (auto weight = quotientOf(stream.payload, other.payload)) {
    for (Target &target : stream.into)
      target.weight = times(*weight, target.weight);
    llvm::append_range(stream.into, other.into);
    stream.payload = other.payload;
    return true;
  }
  return false;
}

// The same of two payloads of which only what they read is a number times the other's: what is known is
// written beside that.
bool Group::joinReads(Stream &stream, const Stream &other, std::vector<Stream> &known) {
  auto part = [&](const Stream &of, bool unknown) {
    Stream own = of;
    own.unknown = unknown;
    llvm::erase_if(own.payload, [&](const auto &term) { return isUnknown(term.second) != unknown; });
    return own;
  };
  Stream joined = part(stream, true);
  if (!stream.unknown || !other.unknown || !joinStreams(joined, part(other, true)))
    return false;
  for (const Stream *whole : {static_cast<const Stream *>(&stream), &other})
    if (Stream rest = part(*whole, false);
        !rest.payload.empty() && llvm::none_of(known, [&](Stream &own) { return joinStreams(own, rest); }))
      known.push_back(rest);
  stream = joined;
  return true;
}

LogicalResult Group::findStreams() {
  for (auto [member, state] : llvm::enumerate(states)) {
    size_t first = streams.size();
    std::vector<Stream> own;
    for (const Write &write : writesTo(state)) {
      const Column &key = keySide == Side::Right ? write.row : write.column;
      const Column &payload = keySide == Side::Right ? write.column : write.row;
      if (write.matrix)
        return cx.fail("a matrix of full rank is added to '" + notation(cx.nf.states[state]) + "'");
      if (key.kind == Column::OldRead || (key.kind == Column::RowOf && reads(key.index)))
        return cx.fail("'" + notation(cx.nf.states[state]) +
                       "' is written along a vector that was read from it");
      auto stream = llvm::find_if(own, [&](const Stream &s) { return sameColumn(s.key, key); });
      if (stream == own.end()) {
        own.push_back({key, {}, {{unsigned(member), {}}}, false, {}, {}});
        stream = std::prev(own.end());
      }
      stream->payload.push_back({write.c, payload});
      stream->unknown |= isUnknown(payload);
    }
    std::vector<Stream> more;
    for (Stream &stream : own) {
      auto others = llvm::make_range(streams.begin(), streams.begin() + first);
      if (llvm::none_of(others, [&](Stream &other) { return joinStreams(other, stream); }) &&
          llvm::none_of(others, [&](Stream &other) { return joinReads(other, stream, more); }))
        more.push_back(std::move(stream));
    }
    llvm::move(more, std::back_inserter(streams));
  }
  // Within a token a payload may depend on those of earlier rows only.
  auto lastRow = [](const Stream &stream) {
    unsigned last = 0;
    for (const auto &[c, column] : stream.payload)
      if (column.kind == Column::RowOf)
        last = std::max(last, column.index);
    return last;
  };
  RuleOp rule = cx.nf.rule;
  std::string y = readStem(llvm::to_vector(rule.getArgs().getAsRange<ArgAttr>()));
  for (const Stream &stream : streams)
    cx.note("sort", "key " +
                        (stream.key.kind == Column::Known ? notation(stream.key.value, cx.names.names)
                                                          : y + std::to_string(stream.key.index + 1)) +
                        (stream.unknown ? ": its payload reads the state, an unknown row"
                                        : ": its payload is known"));
  std::sort(streams.begin(), streams.end(),
            [&](const Stream &a, const Stream &b) { return lastRow(a) < lastRow(b); });
  return success();
}

bool recur::sameOld(ArrayRef<OldTerm> a, ArrayRef<OldTerm> b) {
  return llvm::equal(a, b, [](const OldTerm &x, const OldTerm &y) {
    return x.state == y.state && x.c == y.c && x.transposed == y.transposed && x.left == y.left &&
           x.right == y.right && x.elementwise == y.elementwise;
  });
}

bool recur::sameWrite(const Write &a, const Write &b) {
  return a.c == b.c && a.matrix == b.matrix && sameColumn(a.column, b.column) && sameColumn(a.row, b.row);
}

std::optional<Group::Place> Group::placeOf(const Row &row) const {
  if (row.version == Row::none)
    return std::nullopt;
  const Version &version = cx.nf.versions[row.version];
  for (auto [start, state] : starts)
    if (version.value == cx.nf.states[start])
      return placeOf(Read{start, row.side, row.vector});
  for (auto [member, state] : llvm::enumerate(states)) {
    if (version.value == cx.nf.states[state])
      return Place{unsigned(member), false, SmallVector<bool>(streams.size(), false)};
    const Version &update = cx.nf.update(state);
    std::optional<Place> place;
    if (sameOld(version.old, update.old))
      place = placeAmong(version, member, update.writes);
    if (place)
      place->isDecayed = isLate();
    else if (isLate() && isUndecayed(version) && version.old[0].state == state)
      place = placeAmong(version, member, lateWrites);
    if (place)
      return place;
  }
  return std::nullopt;
}

Group::Place Group::placeOf(const Read &read) const {
  Place place{indexOf(read.state), false, SmallVector<bool>(streams.size(), false)};
  place.atStart = isStart(read.state);
  return place;
}

// Which of a stream's writes a read sees.
chunk::Reach Group::reachOf(const Place &place, unsigned stream) const {
  return place.atStart               ? chunk::Reach::Start
         : !place.after && !isLate() ? chunk::Reach::Before
         : place.seen[stream]        ? chunk::Reach::Inclusive
                                     : chunk::Reach::Strict;
}

// Each stream into the state has been written whole, or not at all.
std::optional<Group::Place> Group::placeAmong(const Version &version, unsigned member,
                                              const std::vector<Write> &writes) const {
  Place place{member, true, SmallVector<bool>(streams.size(), false)};
  const std::vector<Write> &own = writesTo(states[member]);
  size_t matched = 0;
  for (size_t index = 0; index < streams.size(); ++index) {
    const Stream &stream = streams[index];
    size_t parts = 0, seen = 0;
    // One along the key has what is read, and one the rest; or one has all.
    bool isSplit = llvm::any_of(streams, [&](const Stream &other) {
      return other.unknown != stream.unknown && sameColumn(other.key, stream.key) && other.goesInto(member);
    });
    for (size_t i = 0; i < own.size(); ++i) {
      const Write &write = own[i];
      const Column &key = keySide == Side::Right ? write.row : write.column;
      const Column &payload = keySide == Side::Right ? write.column : write.row;
      if (!sameColumn(key, stream.key) || !stream.goesInto(member) ||
          (isSplit && isUnknown(payload) != stream.unknown))
        continue;
      ++parts;
      seen += llvm::any_of(version.writes, [&](const Write &w) { return sameWrite(w, writes[i]); });
    }
    place.seen[index] = parts && seen == parts;
    matched += place.seen[index] ? parts : 0;
  }
  return matched == version.writes.size() ? std::optional(place) : std::nullopt;
}
