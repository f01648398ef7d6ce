// Several reads of a token as rows of one read. What they do with their vectors is told apart by inputs that
// stand for several, and by numbers that depend on the row (StackedRows.cpp).
#include "lib/Algebra/StackedReads.h"
#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/ColumnRows.h"
#include "lib/Algebra/MicroSteps.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Algebra/StackedRows.h"
#include "lib/Algebra/TokenStreams.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;

namespace {
class Stacker : TokenStreams {
public:
  Stacker(RuleOp rule, bool inLogs, size_t mostRows, bool outputsInRows, Rows kind)
      : TokenStreams(rule, OpBuilder(rule.getBody().front().getTerminator()), mostRows, kind), rule(rule),
        body(rule.getBody().front()), inLogs(inLogs), outputsInRows(outputsInRows) {}

  LogicalResult run() {
    for (BlockArgument input : rule.argumentsOf(ArgKind::Input))
      if (!isa<MatType>(input.getType()) && !input.use_empty())
        return failure();
    if (!rule.getBody().getOps<ForOp>().empty())
      return failure();
    nf = normalise(rule, /*withStarts=*/true);
    if (!nf.affine || rule.argumentsOf(ArgKind::State).size() != 1 || nf.updates[0] == Row::none ||
        nf.update(0).old.size() != 1)
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
    auto *now = llvm::find_if(parts, [&](const StreamPart &part) { return !readsStart(part); });
    Value update = updateOfRow(rows, now == parts.end() ? Value()
                                     : !isInTurn        ? nf.versions[now->version].value
                                     : readsOlder       ? state
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
        if (value != state && llvm::is_contained(nf.states, value)) // at the start of a block
          return value;
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
    rows.finish(/*fillsUp=*/!isInTurn);
    if (ofFirst)
      rule->setAttr(readsFirstAttr, b.getUnitAttr());
    if (isInTurn)
      rule->setAttr(inTurnAttr, b.getUnitAttr());
    else if (streams.size() > 2 || splitsEights(rule))
      rule->setAttr(rowsAttr, b.getI64IntegerAttr(llvm::PowerOf2Ceil(streams.size())));
    eraseDead(body);
    return success();
  }

private:
  // Whether blocks, at whose starts states are read, are parts of eight tokens, of which two rows would lie
  // apart.
  static bool splitsEights(RuleOp rule) {
    int64_t block = blockOf(rule);
    return block && block < 8;
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
        if (std::optional<StreamPart> rest = withoutDecay({c, read.getRhs()}))
          return scaled(b, loc, buildCoefficient(b, loc, rest->c),
                        readOf(b, loc, old, keySide, rest->vector));
    return {};
  }

  // What a row adds to the state, which rows read as `read`, if not as it was at the start of a block.
  Value updateOfRow(StackedRows &rows, Value read) {
    SmallVector<Value> vectors, keys;
    Value start, payload;
    for (auto [part, stream] : llvm::zip(parts, streams)) {
      vectors.push_back(part.vector), keys.push_back(stream.key);
      start = readsStart(part) ? nf.versions[part.version].value : start;
    }
    Value vector = rows.of(vectors), key = rows.of(keys);
    for (Value state : {read, start}) {
      if (!state)
        continue;
      SmallVector<Value> numbers;
      for (const StreamPart &part : parts)
        numbers.push_back(readsStart(part) == (state == start) ? coefficient(part.c)
                                                               : ConstantOp::create(b, loc, 0.0).getResult());
      Value number = rows.of(numbers);
      if (!vector || !key || !number)
        return {};
      Value product = MulOp::create(b, loc, number, readOf(b, loc, state, keySide, vector));
      payload = payload ? AddOp::create(b, loc, payload, product).getResult() : product;
    }
    for (size_t i = 0; i < mostKnown; ++i) {
      SmallVector<Value> known, numbersOfKnown;
      for (const TokenStream &stream : streams) {
        StreamPart own = i < stream.known.size() ? stream.known[i] : StreamPart();
        known.push_back(own.vector), numbersOfKnown.push_back(coefficient(own.c));
      }
      if (llvm::none_of(known, [](Value own) { return bool(own); }))
        break;
      Value c = rows.numberOf(known, numbersOfKnown), sum = rows.ofSome(known);
      if (!c || !sum)
        return {};
      payload = AddOp::create(b, loc, MulOp::create(b, loc, c, sum), payload);
    }
    Value update = writeOf(payload, key);
    if (apart.empty())
      return update;
    SmallVector<Value> own(streams.size()), keysOfOwn(own), numbersOfOwn(own.size(), coefficient({}));
    for (auto [i, stream] : llvm::enumerate(llvm::reverse(apart))) {
      size_t row = streams.size() - 1 - i;
      own[row] = stream.known[0].vector, keysOfOwn[row] = stream.key;
      numbersOfOwn[row] = coefficient(stream.known[0].c);
    }
    Value c = rows.numberOf(own, numbersOfOwn), written = rows.ofSome(own), along = rows.ofSome(keysOfOwn);
    if (!c || !written || !along)
      return {};
    return AddOp::create(b, loc, update, writeOf(MulOp::create(b, loc, c, written), along));
  }

  Value writeOf(Value payload, Value key) {
    return keySide == Side::Right
               ? MatmulOp::create(b, loc, payload, TransposeOp::create(b, loc, key)).getResult()
               : MatmulOp::create(b, loc, key, TransposeOp::create(b, loc, payload));
  }

  RuleOp rule;
  Block &body;
  bool inLogs, outputsInRows;
};
} // namespace

OwningOpRef<ModuleOp> recur::stackReads(RuleOp rule, bool inLogs, size_t mostRows, bool outputsInRows) {
  using Rows = TokenStreams::Rows;
  for (Rows kind : {Rows::OfKeys, Rows::Apart, Rows::InOrder})
    if (auto stacked = rewritten(
            rule, [&](RuleOp copy) { return Stacker(copy, inLogs, mostRows, outputsInRows, kind).run(); }))
      return stacked;
  return {};
}
