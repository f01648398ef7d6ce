// Scores that are a product between tokens times numbers of the one token and the other, and what decays from
// the one to the other. Where the tokens' blocks of 16 differ, that is what decays to the edge of a block and
// what decays from there: two numbers, of a row and a column. On the diagonal it is an exponential for each
// entry.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

std::optional<RoleEmitter::PlainScore> RoleEmitter::asPlain(const ScoreTile &tile) const {
  auto [factors, gram] = plan.splitScores(tile.value);
  if (!gram)
    return std::nullopt;
  PlainScore plain;
  plain.gram = gram;
  plain.decay = plan.decay ? Value() : gram.getDecay();
  plain.later = tile.plainRows ? tile.rowScale : factors;
  plain.earlier = plan.asRows(gram.getRhs())->scale;
  llvm::append_range(plain.earlier, tile.columnScale);
  plain.mask = plan.maskOf(tile.value);
  plain.reach = gram.getReach();
  // Factors go into the exponent where they have logarithms.
  plain.inExponent = plain.decay && llvm::all_of(plain.earlier, RolePlan::isPositive);
  plain.laterInExponent = plain.decay && llvm::all_of(plain.later, RolePlan::isPositive);
  return plain;
}

// A slot's numbers of the thread's two rows, which lie 8 tokens apart.
std::array<Value, 2> RoleEmitter::rowNumbers(ScoreState &state, const Slot &slot) {
  unsigned at = slotOf(slot);
  auto [it, isNew] = state.rowValues.try_emplace(at);
  int64_t offset = at * slotPitch();
  if (isNew)
    it->second = {ptx.loadFloats(state.ownRows, offset, 1)[0],
                  ptx.loadFloats(state.ownRows, offset + 32, 1)[0]};
  return it->second;
}

// A slot's number of an entry's column. Those of the diagonal's blocks are kept.
Value RoleEmitter::columnValue(ScoreState &state, const Slot &slot, unsigned entry) {
  Values &values = (state.block < 0 ? state.ownColumns : state.columnValues)[slotOf(slot)];
  if (values.empty()) {
    bool own = state.block < 0;
    Value columns = own ? ptx.add(state.columns, ptx.mul(warp, 64)) : state.columns;
    for (int64_t eight = 0; eight < state.entries / 4; ++eight)
      llvm::append_range(
          values, ptx.loadFloats(columns, slotOffset(slot) + (own ? 0 : state.block * 64) + eight * 32, 2));
  }
  return values[entry / 4 % 2 * 2 + entry % 2];
}

// Loads the rows' numbers, ahead of the blocks.
void RoleEmitter::collectFactors(ScoreState &state, const ScoreTile &tile, const PlainScore &plain) {
  for (unsigned of = 0; of < 2 && plain.mask >= 0; ++of)
    maskRows(state, plain, of);
  if (plain.decay)
    rowNumbers(state, tile.turned ? plain.earlierLog() : plain.laterLog());
  if (Slot numbers = tile.turned ? plain.earlierNumber() : plain.laterNumber(); !numbers.factors.empty())
    rowNumbers(state, numbers);
}

// Loads the numbers of the columns of the diagonal's blocks.
void RoleEmitter::fetchColumns(ScoreState &state, const ScoreTile &tile) {
  std::optional<PlainScore> plain = asPlain(tile);
  if (!plain)
    return;
  state.block = -1;
  if (plain->decay)
    columnValue(state, tile.turned ? plain->laterLog() : plain->earlierLog(), 0);
  if (Slot numbers = tile.turned ? plain->laterNumber() : plain->earlierNumber(); !numbers.factors.empty())
    columnValue(state, numbers, 0);
}

// The warp's block on the diagonal.
Values RoleEmitter::scoresOn(ScoreState &state, const ScoreTile &tile, const PlainScore &plain) {
  Values entries;
  const Values &sums = state.sumsOf(plan, plain.gram);
  // The entry's row less its column, but for what the entry's number adds.
  Value rowLessColumn = arith::SubIOp::create(b, state.rowLessColumn, ptx.mul(warp, placeOfRow(16)));
  Values masks = plain.mask < 0 ? Values() : maskOn(state, plain);
  bool isOwn = state.block >= 0; // its place among the sums is known
  for (unsigned e = 0; e < state.entries; ++e) {
    unsigned which = e / 2 % 2;
    auto number = [&](const Slot &slot, bool isLater) {
      return isLater == tile.turned ? columnValue(state, slot, e) : rowNumbers(state, slot)[which];
    };
    Value x = sums[(isOwn ? state.block * state.entries : 0) + e];
    for (int64_t block = 1; !isOwn && block < 4; ++block)
      x = ptx.choose(ptx.equal(warp, block), sums[block * 8 + e], x);
    for (bool isLater : {true, false})
      if (Slot slot = isLater ? plain.laterNumber() : plain.earlierNumber(); !slot.factors.empty())
        x = ptx.multiply(x, number(slot, isLater));
    if (!masks.empty())
      x = ptx.multiply(x, masks[e]);
    if (plain.decay)
      x = ptx.multiply(
          x, ptx.exp2(ptx.difference(number(plain.laterLog(), true), number(plain.earlierLog(), false))));
    if (plain.atStart()) {
      Value row = ptx.add(ptx.shiftRight(lane, 2), 8 * which),
            column = ptx.add(ptx.mul(ptx.bits(lane, 3), 2), 8 * (e / 4) + e % 2);
      Value isSeen = tile.turned ? ptx.below(row, firstOfBlock(ptx, plan, column))
                                 : ptx.below(column, firstOfBlock(ptx, plan, row));
      x = ptx.choose(isSeen, x, ptx.number(0));
    } else if (!tile.anyAbove) {
      Value offset = ptx.constant(placeOfRow(8 * (e / 4) + e % 2) - placeOfRow(8 * which));
      bool seesOwn =
          tile.turned ? plan.seesOwn(plain.reach, e / 4, which) : plan.seesOwn(plain.reach, which, e / 4);
      auto order = tile.turned ? seesOwn ? arith::CmpIPredicate::sge : arith::CmpIPredicate::sgt
                   : seesOwn   ? arith::CmpIPredicate::sle
                               : arith::CmpIPredicate::slt;
      x = ptx.choose(ptx.compare(order, offset, rowLessColumn), x, ptx.number(0));
    }
    entries.push_back(x);
  }
  return entries;
}

// A block off the diagonal, whose entries are all seen, or none where it is in a block of the rule's at whose
// start states are read. What decays has its edge between the blocks: at the end of the columns' tokens or,
// turned, before their start.
Values RoleEmitter::scoresOff(ScoreState &state, const ScoreTile &tile, const PlainScore &plain) {
  std::array<Value, 2> rows;
  Slot rowSlot = tile.turned ? plain.earlierNumber() : plain.laterNumber();
  if (!rowSlot.factors.empty())
    rows = rowNumbers(state, rowSlot);
  Slot columns = tile.turned ? plain.laterNumber() : plain.earlierNumber();
  // Of tokens in a turn's columns whose block starts before them, nothing decays since.
  bool startsBefore = tile.turned && plain.atStart() && *plan.starts() > 16;
  if (plain.decay) {
    int64_t first = state.block * 16, block = startsBefore ? *plan.starts() : 1;
    int64_t token = tile.turned ? std::max<int64_t>(first / block * block - 1, 0) : first + 15;
    token += chunk::isLate(plain.decay) ? 1 : 0;
    Value edge = ptx.loadFloats(state.numbers, slotOffset({{}, plain.decay}) + token * 4, 1)[0];
    std::array<Value, 2> logs = rowNumbers(state, tile.turned ? plain.earlierLog() : plain.laterLog());
    for (unsigned i : {0, 1}) {
      Value decayed = ptx.exp2(tile.turned ? ptx.difference(edge, logs[i]) : ptx.difference(logs[i], edge));
      rows[i] = rows[i] ? ptx.multiply(rows[i], decayed) : decayed;
    }
    columns = tile.turned ? Slot{plain.later, plain.decay, plain.before(), false, Slot::Start}
                          : Slot{plain.earlier, plain.decay, false, false, Slot::End};
    columns.atStart = tile.turned && plain.atStart();
    if (startsBefore)
      columns = Slot{plain.later, {}};
  }
  Values entries, masks = plain.mask < 0 ? Values() : maskOff(state, plain);
  Value isSeen;
  if (plain.atStart() && *plan.starts() > 16) {
    Value row = ptx.mul(warp, 16), column = ptx.mul(state.columnBlock, 16);
    isSeen = tile.turned ? ptx.below(row, firstOfBlock(ptx, plan, column))
                         : ptx.below(column, firstOfBlock(ptx, plan, row));
  }
  for (unsigned e = 0; e < state.entries; ++e) {
    Value x = state.sumsOf(plan, plain.gram)[state.block * state.entries + e];
    if (!masks.empty())
      x = ptx.multiply(x, masks[e]);
    if (Value row = rows[e / 2 % 2])
      x = ptx.multiply(x, row);
    if (columns.decay || !columns.factors.empty())
      x = ptx.multiply(x, columnValue(state, columns, e));
    entries.push_back(isSeen ? ptx.choose(isSeen, x, ptx.number(0)) : x);
  }
  return entries;
}
