// What a group's states decay by, and whether that comes before what a token writes or after it.
#include "lib/Derive/Group.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace recur;

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
  auto decayOf = [&](const Coefficient &c, ArrayRef<Value> columns, bool late = false) -> Value {
    if (c.isOne() && columns.empty())
      return {};
    std::tie(product, log) = productOf(atToken, cx.loc, c, columns);
    Value factors = cx.tokens.rows(product);
    return chunk::DecayOp::create(cx.b(), cx.loc, factors, log ? cx.tokens.rows(log) : Value(), late);
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
    if (value.empty())
      findLateWrites(decay->c, key);
    keyDecay = decayOf(decay->c, key, isLate());
    if (keyDecay)
      findDecayedRows(product);
    valueDecay = decayOf({}, value);
    valueFactors.assign(value.begin(), value.end());
    return success();
  }
  return findCascade();
}

bool Group::areChannelsCoupled() const {
  if (!cx.nf.rule->hasAttr(channelsAttr) || states.size() < 2)
    return false;
  bool hasDiagonal = false;
  for (unsigned state : states)
    for (const OldTerm &term : cx.nf.update(state).old) {
      if (!term.isDiagonal() || !term.elementwise.empty() ||
          !(keySide == Side::Right ? term.left : term.right).empty())
        return false;
      hasDiagonal |= !term.isScalar();
    }
  return hasDiagonal;
}

// The transitions of states that go together: numbers or, where those are wanted, diagonals on the key side.
LogicalResult Group::findCascade() {
  const NormalForm &nf = cx.nf;
  OpBuilder atToken(RuleOp(nf.rule).getBody().front().getTerminator());
  bool ofChannels = areChannelsCoupled();
  SmallVector<Value> entries;
  MatType type;
  for (unsigned to : states)
    for (unsigned from : states) {
      Value entry;
      for (const OldTerm &term : nf.update(to).old) {
        if (!ofChannels && !term.isScalar())
          return cx.fail(
              "'" + notation(nf.states[to]) + "' takes '" + notation(nf.states[term.state]) +
              "' times more than a number: states that go together are coupled by numbers in chunks");
        if (term.state != from)
          continue;
        SmallVector<Value> columns;
        for (const Factor &factor : keySide == Side::Right ? term.right : term.left)
          columns.push_back(diagonalColumn(factor.value));
        Value part = productOf(atToken, cx.loc, term.c, columns).first;
        part = cx.tokens.rows(part ? part : ConstantOp::create(atToken, cx.loc, 1.0).getResult());
        entry = cx.add(entry, part);
      }
      if (!entry)
        entry = cx.tokens.rows(ConstantOp::create(atToken, cx.loc, 0.0).getResult());
      entries.push_back(entry);
      if (!type || isOne(type.getCols()))
        type = matType(entry);
    }
  cascade = chunk::CascadeOp::create(
      cx.b(), cx.loc, chunk::CascadeType::get(atToken.getContext(), states.size(), type), entries);
  return success();
}

bool recur::reaches(Value cascade, unsigned from, unsigned to) {
  auto op = cascade.getDefiningOp<chunk::CascadeOp>();
  unsigned states = op.getType().getStates();
  SmallVector<bool> reached(states);
  SmallVector<unsigned> work{from};
  while (!work.empty()) {
    unsigned state = work.pop_back_val();
    if (std::exchange(reached[state], true))
      continue;
    FloatAttr number;
    for (unsigned next = 0; next < states; ++next)
      if (!matchPattern(op.getFactors()[next * states + state], m_Constant(&number)) ||
          number.getValueAsDouble() != 0)
        work.push_back(next);
  }
  return reached[to];
}

// Where each key has transitions of its own, what is written to all states is weighed within the product.
Value Group::gramOfChannels(Value vectors, Value keys, ArrayRef<Target> from, unsigned member,
                            chunk::Reach reach) {
  SmallVector<Value> weights(states.size());
  bool isSeen = false;
  for (const Target &target : from) {
    Value weight = weightRows(target);
    weights[target.member] = cx.add(weights[target.member], weight ? weight : numberRows(1));
    isSeen |= reaches(cascade, target.member, member);
  }
  for (Value &weight : weights)
    weight = weight ? weight : numberRows(0);
  Attribute tokens = matType(vectors).getRows();
  MatType square = MatType::get(tokens.getContext(), tokens, tokens);
  return isSeen
             ? chunk::GramOp::create(cx.b(), cx.loc, square, vectors, keys, cascade, weights, reach, member)
                   .getResult()
             : Value();
}

Value Group::numberRows(double number) {
  OpBuilder atToken(RuleOp(cx.nf.rule).getBody().front().getTerminator());
  return cx.tokens.rows(ConstantOp::create(atToken, cx.loc, number));
}

std::optional<double> recur::quotient(double of, double by) {
  double result = of / by;
  return std::fma(result, by, -of) == 0 ? std::optional<double>(result) : std::nullopt;
}

std::optional<Coefficient> recur::quotient(Coefficient of, const Coefficient &by) {
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
    for (const Write &write : nf.ahead[state]      ? std::vector<Write>()
                              : state == states[0] ? writesTo(state)
                                                   : nf.update(state).writes)
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

// The factors of a product that are left without some of them, or null.
static Value withoutFactors(OpBuilder &b, Location loc, Value product, ArrayRef<Value> some) {
  SmallVector<Value> factors = factorsOf(product);
  bool hasAll = llvm::all_of(some, [&](Value factor) {
    auto *own = llvm::find(factors, factor);
    return own != factors.end() && factors.erase(own);
  });
  if (!hasAll || factors.empty())
    return {};
  Value rest = factors.front();
  for (Value factor : ArrayRef(factors).drop_front())
    rest = MulOp::create(b, loc, rest, factor);
  return rest;
}

bool recur::isUndecayed(const Version &version) {
  return version.old.size() == 1 && version.old[0].isScalar() && version.old[0].c.isOne();
}

// A read between the token's writes and its decay is one of the state with these, if that comes last; else it
// is put together from reads before them. With a decay of each key what is written, and then decays, would be
// written along other vectors than it is read along; if that comes last, what is read behind it is read along
// the vector times the decay.
bool Group::wantsLate(ArrayRef<Value> channels) const {
  bool wants = !channels.empty();
  for (const Read &read : cx.nf.reads)
    if (contains(read.state) && !sideIsKey(read.side))
      return false;
  for (const auto &[index, row] : llvm::enumerate(cx.nf.rows)) {
    if (row.version == Row::none || !reads(index))
      continue;
    if (!sideIsKey(row.side))
      return false;
    const Version &version = cx.nf.versions[row.version];
    wants |= isUndecayed(version) && !version.writes.empty();
  }
  return wants;
}

// What the new state is but for numbers and channels, if that is read somewhere: numbers may be spelt apart.
const Version *Group::versionThatDecays() const {
  Value value = cx.nf.update(states[0]).value;
  auto isFactorOfEntries = [&](Value factor) {
    MatType type = matType(factor);
    return (isOne(type.getRows()) || isOne(type.getCols())) && cx.nf.isTokenOnly(factor);
  };
  auto isChannels = [&](Value factor) { return factor.getDefiningOp<DiagOp>() && cx.nf.isTokenOnly(factor); };
  while (Operation *op = value.getDefiningOp()) {
    bool isProduct = isa<MulOp>(op), isMatmul = isa<MatmulOp>(op);
    auto isFactor = [&](Value x) { return isProduct ? isFactorOfEntries(x) : isMatmul && isChannels(x); };
    auto factor = llvm::find_if(op->getOperands(), isFactor);
    if (factor == op->operand_end())
      break;
    value = op->getOperand(factor == op->operand_begin());
  }
  for (const Version &version : cx.nf.versions)
    if (version.value == value && isUndecayed(version) && version.old[0].state == states[0])
      return &version;
  return nullptr;
}

void Group::findLateWrites(const Coefficient &number, ArrayRef<Value> channels) {
  SmallVector<Value> factors;
  for (Value channel : channels)
    llvm::append_range(factors, factorsOf(channel));
  if (number.number == 0 || (number.isOne() && channels.empty()) || !wantsLate(factors))
    return;
  bool isRight = keySide == Side::Right;
  const std::vector<Write> &decayed = cx.nf.update(states[0]).writes;
  auto hasSamePayload = [&](const Write &x, const Write &y) {
    return sameColumn(isRight ? x.column : x.row, isRight ? y.column : y.row);
  };
  if (const Version *own = versionThatDecays()) {
    if (llvm::equal(own->writes, decayed, hasSamePayload))
      lateWrites = own->writes;
    return;
  }
  std::vector<Write> writes;
  OpBuilder atToken(RuleOp(cx.nf.rule).getBody().front().getTerminator());
  for (Write write : decayed) {
    Column &key = isRight ? write.row : write.column;
    std::optional<Coefficient> c = quotient(write.c, number);
    if (!c || write.matrix || (!channels.empty() && key.kind != Column::Known))
      return;
    write.c = *c;
    if (!channels.empty()) {
      Value rest = withoutFactors(atToken, cx.loc, key.value, factors);
      if (!rest || rest.getType() != key.value.getType())
        return;
      key.value = rest;
    }
    writes.push_back(write);
  }
  lateWrites = std::move(writes);
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
    if (!place || place->after || place->atStart || !sideIsKey(row.side) || !isTimesDecay(index))
      continue;
    if (Value rest = withoutFactors(atToken, cx.loc, row.vector, channels))
      decayedRows[index] = MulOp::create(atToken, cx.loc, decay, rest);
  }
}

Coefficient Group::withoutDecay(const Coefficient &c, const Column &column) const {
  return column.kind == Column::RowOf && decayedRows.contains(column.index) ? *quotient(c, decayNumber) : c;
}
