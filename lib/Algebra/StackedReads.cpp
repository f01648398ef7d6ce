// Several reads of a token as rows of one read. What they do with their vectors is told apart by inputs that
// stand for several, and by numbers that depend on the row (StackedRows.cpp).
#include "lib/Algebra/StackedReads.h"
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/MicroSteps.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/StackedRows.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;

namespace {
// A token's vector times a number, or what a version of the state reads with such a vector.
struct Part {
  Coefficient c;
  Value vector;
  unsigned version = Row::none; // of the normal form's; none: nothing is read
};

// What is written along one vector; which writes of the update these are.
struct Stream {
  Value key;
  SmallVector<Part, 2> known, reads;
  SmallVector<const Write *, 2> writes = {};
};

// What of an update is one row.
enum class Rows {
  OfKeys, // what is written along one vector
  Apart,  // what is known and what is read, where both are: others read what is erased before it is written
  InOrder // what stands together: others are written along before the same vector comes again
};

class Stacker {
public:
  Stacker(RuleOp rule, bool inLogs, size_t mostRows, bool outputsInRows, Rows kind)
      : rule(rule), body(rule.getBody().front()), b(body.getTerminator()), loc(rule.getLoc()),
        mostRows(mostRows), inLogs(inLogs), outputsInRows(outputsInRows), kind(kind) {}

  LogicalResult run() {
    for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
      if (!isa<MatType>(input.getType()) && !input.use_empty())
        return failure();
    if (!rule.getBody().getOps<ForOp>().empty())
      return failure();
    nf = normalise(rule);
    if (!nf.affine || nf.states.size() != 1 || nf.updates[0] == Row::none || nf.update(0).old.size() != 1)
      return failure();
    splitWrites(b, nf);
    if (failed(findStreams()))
      return failure();
    std::optional<Decay> decay = nf.decay(0);
    bool onRight = keySide == Side::Right;
    if (!decay || decay->c.number == 0 || !decay->elementwise.empty())
      return failure();
    if (failed(findReads()))
      return failure();
    StackedRows rows(rule, b, streams.size());
    Value scale = buildCoefficient(b, loc, decay->c), state = nf.states[0];
    if (scale && isInTurn)
      scale = rows.once(scale);
    Value old = scaled(b, loc, scale, state);
    ArrayRef<Value> ofValues = onRight ? decay->left : decay->right;
    auto decayBy = [&](ArrayRef<Value> factors, bool isColumn) {
      for (Value factor : factors) {
        factor = diagonalColumn(factor);
        if (isInTurn)
          factor = onceOf(b, loc, factor, rows.isRow(0), inLogs);
        if (!isColumn)
          factor = TransposeOp::create(b, loc, factor);
        old = scaled(b, loc, factor, old);
      }
    };
    decayBy(onRight ? decay->right : decay->left, !onRight);
    decayBy(ofValues, onRight);
    Value update = updateOfRow(rows, !isInTurn    ? nf.versions[parts[0].version].value
                                     : readsOlder ? state
                                                  : old);
    if (!update)
      return failure();
    Operation *terminator = body.getTerminator();
    Value next = AddOp::create(b, loc, old, update);
    SmallVector<Value> yielded{next}, outputs(terminator->getOperands().drop_front());
    // In turn, rows after the first find another state than the old one. Outputs are those of the last row,
    // to which the old one is what decayed at the first, or those of the first row.
    bool ofFirst = false;
    auto isRebuilt = [&](Value found) {
      Rebuilder rebuilder(b, nf, [&](Value value) -> std::optional<Value> {
        if (isInTurn && value == found)
          return old;
        if (Value read = isInTurn && !ofFirst ? readDecayed(value, old) : Value())
          return read;
        if (value == nf.update(0).value && !ofFirst)
          return next;
        if (value == state && (ofFirst || !isInTurn))
          return state;
        auto isIt = [&](const Version &version) { return version.value == value && !version.writes.empty(); };
        return ofFirst && llvm::any_of(nf.versions, isIt) ? std::optional(Value()) : std::nullopt;
      });
      yielded.truncate(1);
      for (Value value : outputs) {
        Value own = rebuilder.of(value);
        if (own && outputsInRows && !ofValues.empty())
          own = rows.ofOne(own, ofFirst ? 0 : streams.size() - 1, {state, old, next});
        yielded.push_back(own);
      }
      return !llvm::is_contained(yielded, Value());
    };
    if (!isRebuilt(beforeRow(streams.size() - 1))) {
      ofFirst = isInTurn;
      if (!ofFirst || !isRebuilt(beforeRow(0)))
        return failure();
    }
    terminator->setOperands(yielded);
    rows.finish();
    if (ofFirst)
      rule->setAttr(readsFirstAttr, b.getUnitAttr());
    if (isInTurn)
      rule->setAttr(inTurnAttr, b.getUnitAttr());
    else if (streams.size() > 2)
      rule->setAttr(rowsAttr, b.getI64IntegerAttr(llvm::PowerOf2Ceil(streams.size())));
    eraseDead(body);
    return success();
  }

private:
  // The vectors that are written along, each time what is known, what is read, or both.
  LogicalResult findStreams() {
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
      Stream own{key.value, {}, {}, {&write}};
      if (failed(add(own, write.c, payload)))
        return failure();
      auto stream = llvm::find_if(streams, [&](const Stream &s) { return takes(s, own); });
      if (stream == streams.end()) {
        streams.push_back(own);
        continue;
      }
      llvm::append_range(stream->known, own.known);
      llvm::append_range(stream->reads, own.reads);
      llvm::append_range(stream->writes, own.writes);
    }
    auto isOther = [&](const Stream &stream) { return stream.key != streams[0].key; };
    return success((kind == Rows::InOrder ? streams.size() > 1 : llvm::any_of(streams, isOther)) &&
                   streams.size() <= mostRows &&
                   llvm::all_of(streams, [](const Stream &stream) { return stream.reads.size() <= 1; }));
  }

  LogicalResult add(Stream &stream, const Coefficient &c, const Column &column) {
    if (column.kind == Column::Known) {
      stream.known.push_back({c, column.value});
      return success();
    }
    if (column.kind == Column::OldRead) {
      const Read &read = nf.reads[column.index];
      auto isOld = [&](const Version &version) { return version.value == nf.states[0]; };
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
  bool readsDecayed(Stream &stream, const Coefficient &c, const RowTerm &term) {
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
  bool takes(const Stream &stream, const Stream &own) const {
    if (stream.key != own.key)
      return false;
    if (kind != Rows::InOrder)
      return kind == Rows::OfKeys || own.reads.empty() == stream.reads.empty();
    // What reads what the other one has written, as often as it has been by then, comes after it.
    auto isRead = [&](const Write *write) {
      auto isLike = [&](const Write &x) { return isSame(x, *write, /*decays=*/false); };
      auto countOf = [&](const auto &all) { return llvm::count_if(all, isLike); };
      size_t written = 0;
      for (const Stream &before : streams)
        written += countOf(llvm::make_pointee_range(before.writes));
      return size_t(countOf(nf.versions[own.reads[0].version].writes)) >= written;
    };
    return &stream == &streams.back() && (own.reads.empty() ? stream.known : stream.reads).empty() &&
           (own.reads.empty() || llvm::none_of(stream.writes, isRead));
  }

  // Whether a write of a version is one of the update, which decays after it, or before.
  bool isSame(const Write &own, const Write &ofUpdate, bool decays) const {
    auto same = [](const Column &x, const Column &y) {
      return x.kind == y.kind && x.value == y.value && x.index == y.index;
    };
    auto sorted = [](SmallVector<Value, 2> factors) {
      llvm::sort(factors, [](Value x, Value y) { return x.getAsOpaquePointer() < y.getAsOpaquePointer(); });
      return factors;
    };
    Coefficient c = decays ? times(own.c, nf.update(0).old[0].c) : own.c;
    return same(own.column, ofUpdate.column) && same(own.row, ofUpdate.row) &&
           c.number == ofUpdate.c.number && sorted(c.factors) == sorted(ofUpdate.c.factors);
  }
  bool hasWrite(unsigned version, const Write &ofUpdate) const {
    return llvm::any_of(nf.versions[version].writes, [&](const Write &own) {
      return isSame(own, ofUpdate, /*decays=*/false) || isSame(own, ofUpdate, /*decays=*/true);
    });
  }

  // What some rows write and a version has not, which is the state with all else that they do, as it decays
  // in the update or, where numbers do that, before; nothing where it is another one.
  std::optional<SmallVector<const Write *>> missing(unsigned version, ArrayRef<Stream> written,
                                                    bool decays) const {
    const Version &own = nf.versions[version], &update = nf.update(0);
    if (own.old.size() != 1)
      return std::nullopt;
    const OldTerm &old = own.old[0], &all = update.old[0];
    bool isOld = decays ? old.isScalar() && old.c.isOne() && (all.isScalar() || written.empty())
                        : decayAlike(old, all);
    SmallVector<const Write *> rest;
    size_t count = 0;
    for (const Stream &stream : written)
      for (const Write *write : stream.writes) {
        ++count;
        if (llvm::none_of(own.writes, [&](const Write &other) { return isSame(other, *write, decays); }))
          rest.push_back(write);
      }
    if (!isOld || own.writes.size() + rest.size() != count)
      return std::nullopt;
    return rest;
  }
  bool isWritten(unsigned version, ArrayRef<Stream> written, bool decays) const {
    auto rest = missing(version, written, decays);
    return rest && rest->empty();
  }
  bool isDecayed(unsigned version, ArrayRef<Stream> written) const {
    return isWritten(version, written, /*decays=*/false);
  }

  // What one of several rows in turn finds, and has decayed; null where nothing reads it.
  Value beforeRow(size_t row) const {
    for (auto [i, version] : llvm::enumerate(nf.versions))
      if (isDecayed(i, ArrayRef(streams).take_front(row)))
        return version.value;
    return {};
  }

  // What reads a state that has not decayed, times all that it decays by, as it reads what has: without the
  // numbers and without the factors of keys.
  std::optional<Part> withoutDecay(Part part) {
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

  // What is read of what the last row in turn finds, before it decays, and times all that it decays by, as it
  // is read of `old`, which has decayed; null for other values.
  Value readDecayed(Value value, Value old) {
    Coefficient c;
    while (auto product = value.getDefiningOp<MulOp>()) {
      unsigned number = matType(product.getLhs()).isScalar() ? 0 : 1;
      if (!matType(product->getOperand(number)).isScalar())
        return {};
      Value factor = product->getOperand(number);
      if (auto constant = factor.getDefiningOp<ConstantOp>())
        c.number *= constant.getValue().convertToDouble();
      else
        c.factors.push_back(factor);
      value = product->getOperand(1 - number);
    }
    auto read = value.getDefiningOp<MatmulOp>();
    if (!read || isMatrix(matType(value)))
      return {};
    auto turned = read.getLhs().getDefiningOp<TransposeOp>();
    if ((keySide == Side::Left) != bool(turned))
      return {};
    Value state = turned ? turned.getOperand() : read.getLhs();
    for (auto [i, version] : llvm::enumerate(nf.versions))
      if (version.value == state && isWritten(i, ArrayRef(streams).drop_back(), /*decays=*/true))
        if (std::optional<Part> rest = withoutDecay({c, read.getRhs()}))
          return scaled(b, loc, buildCoefficient(b, loc, rest->c),
                        readOf(b, loc, old, keySide, rest->vector));
    return {};
  }

  // Orders what is done in turn: what is read has been written, and nothing else.
  void orderStreams() {
    auto isWritten = [&](const Stream &stream, unsigned version) {
      return llvm::any_of(stream.writes, [&](const Write *write) { return hasWrite(version, *write); });
    };
    auto countWritten = [&](unsigned version) {
      return llvm::count_if(streams, [&](const Stream &stream) { return isWritten(stream, version); });
    };
    // Twice the number of those before, so that what only writes comes right before what reads that.
    auto placeOf = [&](const Stream &own) {
      if (!own.reads.empty())
        return 2 * countWritten(own.reads[0].version);
      auto first = std::numeric_limits<ptrdiff_t>::max();
      for (const Stream &other : streams)
        if (!other.reads.empty() && isWritten(own, other.reads[0].version))
          first = std::min(first, 2 * countWritten(other.reads[0].version) - 1);
      return first;
    };
    SmallVector<std::pair<ptrdiff_t, size_t>> places;
    for (auto [i, stream] : llvm::enumerate(streams))
      places.push_back({placeOf(stream), i});
    llvm::sort(places);
    std::vector<Stream> given(std::move(streams));
    streams.clear();
    for (auto [place, i] : places)
      streams.push_back(given[i]);
  }

  // Has a row read what those before it leave, with known writes that its version does not have: it writes
  // that much less along its own key.
  LogicalResult readWith(ArrayRef<const Write *> more, Stream &stream, const Part &part) {
    auto product = [&](Value x, Value y) {
      return MatmulOp::create(b, loc, TransposeOp::create(b, loc, x).getResult(), y);
    };
    for (const Write *write : more) {
      const Column &key = keySide == Side::Right ? write->row : write->column;
      const Column &payload = keySide == Side::Right ? write->column : write->row;
      if (payload.kind != Column::Known)
        return failure();
      Part known{times(part.c, write->c), payload.value};
      known.c.number = -known.c.number;
      known.c.factors.push_back(product(key.value, part.vector));
      // S*A*B + v*kT*B, which reads S*A, is (S*A + v*kT)*B.
      auto *opposite = llvm::find_if(stream.known, [&](const Part &own) {
        return own.vector == known.vector && cancel(own.c, known.c);
      });
      if (opposite != stream.known.end()) {
        stream.known.erase(opposite);
        continue;
      }
      // Numbers apart, as such products are of inputs.
      Value number, first = unscaled(b, loc, key.value, number),
                    second = unscaled(b, loc, part.vector, number);
      known.c.factors.back() = product(first, second);
      if (number)
        known.c.factors.push_back(number);
      stream.known.push_back(known);
    }
    return success();
  }

  // What the rows read: one version that has no write yet, or each one what those before it leave.
  LogicalResult findReads() {
    auto isLater = [&](const Stream &stream) {
      return !stream.reads.empty() && !nf.versions[stream.reads[0].version].writes.empty();
    };
    isInTurn = llvm::any_of(streams, isLater);
    if (isInTurn && kind != Rows::InOrder)
      orderStreams();
    else if (!isInTurn && kind != Rows::OfKeys)
      return failure();
    for (Stream &stream : streams)
      parts.push_back(stream.reads.empty() ? Part() : stream.reads[0]);
    auto reads = [](const Part &part) { return part.version != Row::none; };
    for (auto [i, part] : llvm::enumerate(parts)) {
      ArrayRef<Stream> before = ArrayRef(streams).take_front(i);
      if (!isInTurn || !reads(part))
        continue;
      if (auto more = missing(part.version, before, /*decays=*/false)) {
        if (failed(readWith(*more, streams[i], part)))
          return failure();
        continue;
      }
      // What is read before the decay, times all that is decayed by, is read of what decayed.
      if (isWritten(part.version, before, /*decays=*/true))
        if (std::optional<Part> rest = withoutDecay(part)) {
          part = *rest;
          continue;
        }
      // Else rows read the state that they find, which those after the first find decayed.
      if (i > 0 || nf.versions[part.version].value != nf.states[0])
        return failure();
      readsOlder = true;
    }
    // What is only written along reads nothing, and along itself, as many a rule's other vectors do.
    Part any = *llvm::find_if(parts, reads);
    for (auto [part, stream] : llvm::zip(parts, streams))
      if (!reads(part)) {
        part = {Coefficient(), stream.key, any.version};
        part.c.number = any.c.number; // the sign is that of all
        part.c.factors.push_back(ConstantOp::create(b, loc, 0.0));
      }
    auto isOne = [](const Stream &stream) { return stream.known.size() <= 1; };
    return success(llvm::all_of(streams, isOne) && (isInTurn || llvm::all_of(parts, [&](const Part &part) {
                                                      return part.version == any.version;
                                                    })));
  }

  // What a row adds to the state, which it reads as `read`.
  Value updateOfRow(StackedRows &rows, Value read) {
    SmallVector<Value> vectors, keys, numbers, known, numbersOfKnown;
    for (auto [part, stream] : llvm::zip(parts, streams)) {
      Part own = stream.known.empty() ? Part() : stream.known[0];
      vectors.push_back(part.vector), keys.push_back(stream.key), known.push_back(own.vector);
      numbers.push_back(coefficient(part.c)), numbersOfKnown.push_back(coefficient(own.c));
    }
    Value vector = rows.of(vectors), key = rows.of(keys), number = rows.of(numbers);
    if (!vector || !key || !number)
      return {};
    Value payload = MulOp::create(b, loc, number, readOf(b, loc, read, keySide, vector));
    if (llvm::any_of(known, [](Value own) { return bool(own); })) {
      Value c = rows.numberOf(known, numbersOfKnown), sum = rows.ofSome(known);
      if (!c || !sum)
        return {};
      payload = AddOp::create(b, loc, MulOp::create(b, loc, c, sum), payload);
    }
    return keySide == Side::Right
               ? MatmulOp::create(b, loc, payload, TransposeOp::create(b, loc, key)).getResult()
               : MatmulOp::create(b, loc, key, TransposeOp::create(b, loc, payload));
  }

  Value coefficient(const Coefficient &c) {
    Value value = buildCoefficient(b, loc, c);
    return value ? value : ConstantOp::create(b, loc, 1.0).getResult();
  }

  RuleOp rule;
  Block &body;
  OpBuilder b;
  Location loc;
  NormalForm nf;
  Side keySide = Side::Right;
  size_t mostRows;
  std::vector<Stream> streams;
  SmallVector<Part> parts; // what the rows read
  // Whether rows read what those before them leave; then, whether the first one reads what has not decayed.
  bool isInTurn = false, readsOlder = false, inLogs, outputsInRows;
  Rows kind;
};
} // namespace

OwningOpRef<ModuleOp> recur::stackReads(RuleOp rule, bool inLogs, size_t mostRows, bool outputsInRows) {
  for (Rows kind : {Rows::OfKeys, Rows::Apart, Rows::InOrder})
    if (auto stacked = rewritten(
            rule, [&](RuleOp copy) { return Stacker(copy, inLogs, mostRows, outputsInRows, kind).run(); }))
      return stacked;
  return {};
}
