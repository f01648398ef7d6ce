// Several reads of a token as rows of one read. What they do with their vectors is told apart by inputs that
// stand for several, and by numbers that depend on the row (StackedRows.cpp).
#include "lib/Algebra/StackedReads.h"
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/StackedRows.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;

SmallVector<StackedInput> recur::stackedInputs(Operation *op) {
  SmallVector<StackedInput> inputs;
  if (auto list = op->getAttrOfType<ArrayAttr>(stackedAttr))
    for (auto numbers : list.getAsRange<DenseI32ArrayAttr>()) {
      StackedInput &input = inputs.emplace_back(StackedInput{unsigned(numbers[0]), {}});
      for (int32_t row : numbers.asArrayRef().drop_front())
        input.rows.push_back(row < 0 ? std::nullopt : std::optional<unsigned>(row));
    }
  return inputs;
}

Value recur::beforeStackedRow(Value newState) { return newState.getDefiningOp<AddOp>().getLhs(); }

namespace {
// A token's vector times a number, or what a version of the state reads with such a vector.
struct Part {
  Coefficient c;
  Value vector;
  unsigned version = Row::none; // of the normal form's; none: nothing is read
};

// What is written along one vector.
struct Stream {
  Value key;
  SmallVector<Part, 2> known, reads;
};

class Stacker {
public:
  // `apart`: what is known and what is read are rows of their own where both are written along one vector, as
  // others read what is erased before it is written again.
  Stacker(RuleOp rule, bool inLogs, size_t mostRows, bool apart)
      : rule(rule), body(rule.getBody().front()), b(body.getTerminator()), loc(rule.getLoc()),
        mostRows(mostRows), inLogs(inLogs), apart(apart) {}

  LogicalResult run() {
    for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
      if (!isa<MatType>(input.getType()) && !input.use_empty())
        return failure();
    if (!rule.getBody().getOps<ForOp>().empty())
      return failure();
    nf = normalise(rule);
    if (!nf.affine || nf.states.size() != 1 || nf.updates[0] == Row::none || failed(findStreams()))
      return failure();
    std::optional<Decay> decay = nf.decay(0);
    bool onRight = keySide == Side::Right;
    if (!decay || decay->c.number == 0 || !(onRight ? decay->left : decay->right).empty() ||
        !decay->elementwise.empty())
      return failure();
    if (failed(findReads()))
      return failure();
    StackedRows rows(rule, b, streams.size());
    Value scale = buildCoefficient(b, loc, decay->c), state = nf.states[0];
    if (scale && isInTurn)
      scale = rows.once(scale);
    Value old = scaled(b, loc, scale, state);
    for (Value factors : onRight ? decay->right : decay->left) {
      factors = diagonalColumn(factors);
      if (isInTurn)
        factors = onceOf(b, loc, factors, rows.isRow(0), inLogs);
      if (onRight)
        factors = TransposeOp::create(b, loc, factors);
      old = scaled(b, loc, factors, old);
    }
    Value update = updateOfRow(rows, !isInTurn    ? nf.versions[parts[0].version].value
                                     : readsOlder ? state
                                                  : old);
    if (!update)
      return failure();
    Operation *terminator = body.getTerminator();
    Value next = AddOp::create(b, loc, old, update), ofRule = rule.yieldedStates()[0];
    Value beforeLast = isInTurn ? beforeLastRow() : Value();
    Rebuilder rebuilder(b, nf, [&](Value value) -> std::optional<Value> {
      if (value == ofRule)
        return next;
      // In turn, rows after the first find another state than the old one. Outputs are those of the last
      // row, to which the old one is what decayed at the first.
      if (isInTurn)
        return value == beforeLast ? std::optional(old) : std::nullopt;
      return value == state ? std::optional(state) : std::nullopt;
    });
    SmallVector<Value> yielded;
    for (Value value : terminator->getOperands()) {
      yielded.push_back(rebuilder.of(value));
      if (!yielded.back())
        return failure();
    }
    terminator->setOperands(yielded);
    rows.finish();
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
      auto stream = llvm::find_if(streams, [&](const Stream &s) { return isAlong(write, s); });
      if (stream == streams.end())
        stream = streams.insert(stream, Stream{key.value, {}, {}});
      if (failed(add(*stream, write.c, payload)))
        return failure();
    }
    auto isOther = [&](const Stream &stream) { return stream.key != streams[0].key; };
    return success(llvm::any_of(streams, isOther) && streams.size() <= mostRows &&
                   llvm::all_of(streams, [](const Stream &stream) {
                     return stream.reads.size() <= 1 && stream.known.size() <= 1;
                   }));
  }

  static Coefficient times(Coefficient x, const Coefficient &y) {
    x.number *= y.number;
    llvm::append_range(x.factors, y.factors);
    return x;
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
      if (!term.map.empty() || failed(add(stream, times(c, term.c), term.column)))
        return failure();
    return success();
  }

  bool isAlong(const Write &write, const Stream &stream) const {
    const Column &key = keySide == Side::Right ? write.row : write.column;
    return key.value == stream.key && (!apart || write.isErase() != stream.reads.empty());
  }

  // Whether a version is the state as it decays in the update, with all that is written along some vectors.
  bool isDecayed(unsigned version, ArrayRef<Stream> written) {
    const Version &own = nf.versions[version], &update = nf.update(0);
    auto isAlong = [&](const Write &write) {
      return llvm::any_of(written, [&](const Stream &stream) { return this->isAlong(write, stream); });
    };
    auto same = [](const Column &x, const Column &y) {
      return x.kind == y.kind && x.value == y.value && x.index == y.index;
    };
    auto isOfUpdate = [&](const Write &write) {
      return isAlong(write) && llvm::any_of(update.writes, [&](const Write &other) {
               return write.c == other.c && same(write.column, other.column) && same(write.row, other.row);
             });
    };
    if (own.old.size() != 1 || update.old.size() != 1)
      return false;
    const OldTerm &old = own.old[0], &all = update.old[0];
    return old.c == all.c && old.left == all.left && old.right == all.right &&
           old.elementwise == all.elementwise && old.transposed == all.transposed &&
           llvm::all_of(own.writes, isOfUpdate) &&
           int64_t(own.writes.size()) == llvm::count_if(update.writes, isAlong);
  }

  // What the last one of several rows in turn finds; null where nothing reads it.
  Value beforeLastRow() {
    for (auto [i, version] : llvm::enumerate(nf.versions))
      if (isDecayed(i, ArrayRef(streams).drop_back()))
        return version.value;
    return {};
  }

  // Without the numbers that the state decays by, where it is times all of them and nothing else decays.
  std::optional<Coefficient> withoutDecay(Coefficient c) {
    Decay decay = *nf.decay(0);
    if (decay.c.number != 1 || !decay.left.empty() || !decay.right.empty())
      return std::nullopt;
    for (Value factor : decay.c.factors) {
      auto *found = llvm::find(c.factors, factor);
      if (found == c.factors.end())
        return std::nullopt;
      c.factors.erase(found);
    }
    return c;
  }

  // Orders what is done in turn: what is read has been written, and nothing else.
  void orderStreams() {
    auto isWritten = [&](const Stream &stream, unsigned version) {
      return llvm::any_of(nf.versions[version].writes,
                          [&](const Write &write) { return isAlong(write, stream); });
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

  // What the rows read: one version that has no write yet, or each one what those before it leave.
  LogicalResult findReads() {
    auto isLater = [&](const Stream &stream) {
      return !stream.reads.empty() && !nf.versions[stream.reads[0].version].writes.empty();
    };
    isInTurn = llvm::any_of(streams, isLater);
    if (isInTurn)
      orderStreams();
    else if (apart)
      return failure();
    for (Stream &stream : streams)
      parts.push_back(stream.reads.empty() ? Part() : stream.reads[0]);
    auto reads = [](const Part &part) { return part.version != Row::none; };
    for (auto [i, part] : llvm::enumerate(parts)) {
      if (!isInTurn || !reads(part) || isDecayed(part.version, ArrayRef(streams).take_front(i)))
        continue;
      // What reads the old state, times all that it decays by, reads what decayed. Else rows read the state
      // that they find, which those after the first find decayed.
      if (i > 0 || nf.versions[part.version].value != nf.states[0])
        return failure();
      if (std::optional<Coefficient> rest = withoutDecay(part.c))
        part.c = *rest;
      else
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
    return success(isInTurn ||
                   llvm::all_of(parts, [&](const Part &part) { return part.version == any.version; }));
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
  bool isInTurn = false, readsOlder = false, inLogs, apart;
};
} // namespace

OwningOpRef<ModuleOp> recur::stackReads(RuleOp rule, bool inLogs, size_t mostRows) {
  for (bool apart : {false, true})
    if (auto stacked =
            rewritten(rule, [&](RuleOp copy) { return Stacker(copy, inLogs, mostRows, apart).run(); }))
      return stacked;
  return {};
}
