// What a group is: its key side, its decays and its streams.
#include "lib/Derive/Group.h"
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
  if (wantsScan()) {
    prepareScan();
    return success();
  }
  if (failed(findDecays()) || failed(findStreams()))
    return failure();
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

// The product of factors, and its logarithm where each of them is an exponential.
static std::pair<Value, Value> productOf(OpBuilder &b, Location loc, const Coefficient &c,
                                         ArrayRef<Value> columns) {
  Value product, log;
  bool isExp = c.number == 1;
  auto times = [&](Value factor) {
    product = product ? MulOp::create(b, loc, product, factor).getResult() : factor;
    auto exp = factor.getDefiningOp<ExpOp>();
    isExp &= bool(exp);
    if (isExp)
      log = log ? AddOp::create(b, loc, log, exp.getOperand()).getResult() : exp.getOperand();
  };
  for (Value column : columns)
    times(column);
  for (Value factor : c.factors)
    times(factor);
  if (c.number != 1) {
    Value number = ConstantOp::create(b, loc, c.number);
    product = product ? MulOp::create(b, loc, number, product).getResult() : number;
  }
  return {product, isExp ? log : Value()};
}

LogicalResult Group::findDecays() {
  const NormalForm &nf = cx.nf;
  OpBuilder atToken(RuleOp(nf.rule).getBody().front().getTerminator());
  Value product, log;
  auto decayOf = [&](const Coefficient &c, ArrayRef<Value> columns) -> Value {
    if (c.isOne() && columns.empty())
      return {};
    std::tie(product, log) = productOf(atToken, cx.loc, c, columns);
    Value factors = cx.tokens.rows(product);
    return chunk::DecayOp::create(cx.b(), cx.loc, factors, log ? cx.tokens.rows(log) : Value());
  };
  if (states.size() == 1) {
    std::optional<Decay> decay = nf.decay(states[0]);
    if (!decay || !decay->elementwise.empty())
      return cx.fail("'" + notation(nf.states[states[0]]) + "' is multiplied by a matrix of full rank");
    SmallVector<Value> key, value;
    for (Value diagonal : keySide == Side::Right ? decay->right : decay->left)
      key.push_back(diagonalColumn(diagonal));
    for (Value diagonal : keySide == Side::Right ? decay->left : decay->right)
      value.push_back(diagonalColumn(diagonal));
    keyDecay = decayOf(decay->c, key);
    if (keyDecay)
      findDecayedRows(product);
    valueDecay = decayOf({}, value);
    valueFactors.assign(value.begin(), value.end());
    return success();
  }
  SmallVector<Value> entries;
  for (unsigned to : states)
    for (unsigned from : states) {
      const OldTerm *found = nullptr;
      for (const OldTerm &term : nf.update(to).old)
        if (term.state == from)
          found = !found && term.isScalar() ? &term : nullptr;
      for (const OldTerm &term : nf.update(to).old)
        if (!term.isScalar())
          return cx.fail(
              "'" + notation(nf.states[to]) + "' takes '" + notation(nf.states[term.state]) +
              "' times more than a number: states that go together are coupled by numbers in chunks");
      Coefficient c;
      if (found)
        c = found->c;
      else
        c.number = 0;
      Value scalar = buildCoefficient(atToken, cx.loc, c);
      entries.push_back(
          cx.tokens.rows(scalar ? scalar : ConstantOp::create(atToken, cx.loc, 1.0).getResult()));
    }
  auto type = chunk::CascadeType::get(atToken.getContext(), states.size(), matType(entries[0]));
  cascade = chunk::CascadeOp::create(cx.b(), cx.loc, type, entries);
  return success();
}

// What a number is times another one, where that is no rounded number: proofs compare exactly.
static std::optional<double> quotient(double of, double by) {
  double result = of / by;
  return std::fma(result, by, -of) == 0 ? std::optional<double>(result) : std::nullopt;
}

// What a coefficient is times another one, where it has all of that one's factors.
static std::optional<Coefficient> quotient(Coefficient of, const Coefficient &by) {
  for (Value factor : by.factors) {
    auto *found = llvm::find(of.factors, factor);
    if (found == of.factors.end())
      return std::nullopt;
    of.factors.erase(found);
  }
  std::optional<double> number = quotient(of.number, by.number);
  if (!number)
    return std::nullopt;
  of.number = *number;
  return of;
}

// Whether all that a row is used for is times the numbers of the key decay.
bool Group::isTimesDecay(unsigned row) const {
  const NormalForm &nf = cx.nf;
  auto isRow = [&](const Column &column) { return column.kind == Column::RowOf && column.index == row; };
  auto isTimes = [&](const Coefficient &c) { return quotient(c, decayNumber).has_value(); };
  for (unsigned state = 0; state < nf.states.size(); ++state)
    for (const Write &write : nf.ahead[state] ? std::vector<Write>() : nf.update(state).writes)
      if ((isRow(write.column) || isRow(write.row)) && !(state == states[0] && isTimes(write.c)))
        return false;
  for (const Row &other : nf.rows)
    for (const RowTerm &term : other.terms)
      if (isRow(term.column) && !isTimes(term.c))
        return false;
  return llvm::none_of(nf.readouts, [&](const Readout &readout) { return readout.row == row; });
}

// The factors of a product of vectors, entry by entry, and numbers.
static SmallVector<Value> factorsOf(Value product) {
  SmallVector<Value> factors, work{product};
  while (!work.empty()) {
    Value value = work.pop_back_val();
    if (auto inner = value.getDefiningOp<MulOp>())
      llvm::append_range(work, llvm::reverse(inner->getOperands()));
    else
      factors.push_back(value);
  }
  return factors;
}

// With a decay by numbers and channels, c*S*diag(d), what reads the state after it is S*(d.*k) times c. It is
// told from other reads as S*((c*d).*k).
void Group::findDecayedRows(Value decay) {
  SmallVector<Value> channels;
  for (Value factor : factorsOf(decay)) {
    if (auto constant = factor.getDefiningOp<ConstantOp>())
      decayNumber.number *= constant.getValue().convertToDouble();
    else if (matType(factor).isScalar())
      decayNumber.factors.push_back(factor);
    else
      channels.push_back(factor);
  }
  if (decayNumber.isOne() || channels.empty())
    return;
  OpBuilder atToken(RuleOp(cx.nf.rule).getBody().front().getTerminator());
  for (auto [index, row] : llvm::enumerate(cx.nf.rows)) {
    std::optional<Place> place = placeOf(row);
    if (!place || place->after || !sideIsKey(row.side) || !isTimesDecay(index))
      continue;
    SmallVector<Value> factors = factorsOf(row.vector);
    bool hasAll = llvm::all_of(channels, [&](Value channel) {
      auto *own = llvm::find(factors, channel);
      return own != factors.end() && factors.erase(own);
    });
    if (!hasAll || factors.empty())
      continue;
    Value rest = factors.front();
    for (Value factor : ArrayRef(factors).drop_front())
      rest = MulOp::create(atToken, cx.loc, rest, factor);
    decayedRows[index] = MulOp::create(atToken, cx.loc, decay, rest);
  }
}

Coefficient Group::withoutDecay(const Coefficient &c, const Column &column) const {
  return column.kind == Column::RowOf && decayedRows.contains(column.index) ? *quotient(c, decayNumber) : c;
}

static bool sameColumn(const Column &x, const Column &y) {
  return x.kind == y.kind && x.value == y.value && x.index == y.index;
}

// The number that one payload is times another.
static std::optional<Coefficient> quotient(ArrayRef<std::pair<Coefficient, Column>> of,
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

// One coefficient times another.
static Coefficient times(Coefficient x, const Coefficient &y) {
  x.number *= y.number;
  llvm::append_range(x.factors, y.factors);
  return x;
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
  if (!quotient(other.payload, stream.payload) && !quotient(stream.payload, other.payload)) {
    Stream plain = stream;
    plain.takeFactorsOut();
    other.takeFactorsOut();
    if (quotient(other.payload, plain.payload) || quotient(plain.payload, other.payload))
      stream = plain;
  }
  if (auto weight = quotient(other.payload, stream.payload)) {
    for (const Target &target : other.into)
      stream.into.push_back({target.member, times(*weight, target.weight)});
    return true;
  }
  if (auto weight = quotient(stream.payload, other.payload)) {
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
    for (const Write &write : cx.nf.update(state).writes) {
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
  for (auto [member, state] : llvm::enumerate(states)) {
    if (version.value == cx.nf.states[state])
      return Place{unsigned(member), false, SmallVector<bool>(streams.size(), false)};
    const Version &update = cx.nf.update(state);
    if (!sameOld(version.old, update.old))
      continue;
    // Each stream into this state has been written whole, or not at all.
    Place place{unsigned(member), true, SmallVector<bool>(streams.size(), false)};
    size_t matched = 0;
    for (size_t index = 0; index < streams.size(); ++index) {
      const Stream &stream = streams[index];
      size_t parts = 0, seen = 0;
      // One along the key has what is read, and one the rest; or one has all.
      bool isSplit = llvm::any_of(streams, [&](const Stream &other) {
        return other.unknown != stream.unknown && sameColumn(other.key, stream.key) &&
               other.goesInto(place.member);
      });
      for (const Write &write : update.writes) {
        const Column &key = keySide == Side::Right ? write.row : write.column;
        const Column &payload = keySide == Side::Right ? write.column : write.row;
        if (!sameColumn(key, stream.key) || !stream.goesInto(member) ||
            (isSplit && isUnknown(payload) != stream.unknown))
          continue;
        ++parts;
        seen += llvm::any_of(version.writes, [&](const Write &w) { return sameWrite(w, write); });
      }
      place.seen[index] = parts && seen == parts;
      matched += place.seen[index] ? parts : 0;
    }
    if (matched == version.writes.size())
      return place;
  }
  return std::nullopt;
}
