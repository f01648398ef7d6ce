// A decay of each independent row, by the chain: a thread has two rows of the state and of everything made of
// it. Of what RoleRescaled.cpp leaves as it is: beside other decays, in f16, and what is read before it
// decays.
//
// Logarithms are summed within blocks of 16 tokens, by a product with a triangle of ones, which is exact as
// they have 16 bits. A token's entry of a tile is multiplied with what decays from it to a reference in its
// block, an output with what decays from its block's reference to it; what decays in between is a number for
// a row and two blocks. Where a row's block decays beyond f32's range, its references are the block's end and
// start, so that no exponent is positive, and what its tokens see of each other is computed apart.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RolePieces.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

// Which of a thread's two rows an entry is of.
static int64_t rowOf(size_t entry) { return entry / 2 % 2; }

// A slab of a tile, transposed, in pairs: 16 of its tokens.
Values RoleEmitter::slabPairs(ChainState &state, BlockArgument input, int64_t block) {
  Value at = ptx.add(ptx.add(state.stage.tiles, state.matrixLane), ptx.mul(halfOfSlab(), halfStride(input)));
  // Of two states a warp has eight rows, of which four matrices are 32 tokens.
  int64_t step = block / plan.states;
  Values pairs = ptx.loadMatrices(at, tileOffset(input) + step * 2048 * plan.states, true);
  if (plan.states > 1)
    pairs = Values(ArrayRef(pairs).slice(block % 2 * 2, 2));
  return mapPairs(input, pairs);
}

Values RoleEmitter::packedPairs(ValueRange entries) {
  Values pairs;
  for (size_t e = 0; e < entries.size(); e += 2)
    pairs.push_back(ptx.pack(entries[e], entries[e + 1]));
  return pairs;
}

// What products by a warp have as their left side: pairs. Entries relative to a block's middle are all of
// f32's range, so that beside f16 they are tf32.
Values RoleEmitter::sideOf(ValueRange entries) {
  return plan.isF16 ? ptx.roundTf32(entries) : packedPairs(entries);
}

// 16 x 16 such entries times scores, onto sums.
Values RoleEmitter::timesScores(ValueRange sums, ValueRange side, ValueRange scores) {
  if (!plan.isF16)
    return ptx.multiplyPacked(sums, side, scores);
  Values right;
  for (Value pair : scores)
    llvm::append_range(right, ptx.unpack(pair));
  return ptx.multiplyTf32(sums, side, right);
}

// The logarithms of 16 tokens, packed and not. What decays by more than 2^-199 counts as that, and sums stay
// precise.
Values RoleEmitter::logPairs(ChainState &state, int64_t block) {
  int32_t least = ptx.bitsOf(-138) * 0x10001; // twice
  bool byEights = plan.isStacked() && !plan.rescales();
  Values pairs = slabPairs(state, plan.rowLogs(), byEights ? block / 2 : block);
  // A block has rows of eight tokens, and what decays counts at the first ones.
  if (byEights) {
    Value none = ptx.constant(0);
    pairs = {pairs[block % 2 * 2], pairs[block % 2 * 2 + 1], none, none};
  }
  if (!plan.isMild(plan.rowDecay))
    for (Value &pair : pairs)
      pair = ptx.greater(pair, ptx.constant(least));
  return pairs;
}

Values RoleEmitter::rowLogs(ChainState &state, int64_t block) {
  Values entries;
  for (Value pair : logPairs(state, block))
    llvm::append_range(entries, ptx.unpack(pair));
  // Rows at one time have the decay of the first one.
  if (plan.isStacked() && !plan.inTurn)
    std::copy_n(entries.begin(), 4, entries.begin() + 4);
  return entries;
}

// Sums of natural logarithms from the first of 16 tokens, with each token's own.
Values RoleEmitter::blockSums(ChainState &state, int64_t block) {
  // A triangle of ones, laid out like a left operand.
  Value distance = arith::SubIOp::create(b, ptx.shiftRight(lane, 2), ptx.mul(ptx.bits(lane, 3), 2));
  int64_t one = ptx.bitsOf(1);
  auto half = [&](int64_t more, int64_t bits) {
    Value holds = ptx.compare(arith::CmpIPredicate::sge, distance, ptx.constant(more));
    return ptx.choose(holds, ptx.constant(bits), ptx.constant(0));
  };
  Value ends = ptx.add(half(0, one), half(1, one << 16)), none = ptx.constant(0);
  Values triangle{ends, ptx.constant(one << 16 | one), none, ends};
  // By eights, what decays lies at tokens' first rows.
  if (plan.isStacked() && !plan.rescales())
    triangle = {ends, ends, none, none};
  return ptx.multiplyPacked(Values(8, ptx.number(0)), logPairs(state, block), triangle);
}

RoleEmitter::RowDecay &RoleEmitter::rowDecay(ChainState &state) {
  if (state.rowDecay)
    return *state.rowDecay;
  RowDecay &decay = state.rowDecay.emplace();
  Value last = arith::OrIOp::create(b, lane, ptx.constant(3));
  for (int64_t block = 0; block < 4; ++block) {
    Values sums = blockSums(state, block);
    for (int64_t row : {0, 1})
      decay.sum[block][row] =
          ptx.multiply(ptx.shuffle(sums[5 + 2 * row], last), ptx.number(llvm::numbers::log2e));
    // Who substitutes has no registers for them.
    if (plan.ownSystem < 0)
      llvm::append_range(decay.sums, sums);
  }
  return decay;
}

// The sums of a block, again where they have not been kept.
Values RoleEmitter::sumsOf(ChainState &state, int64_t block) {
  const RowDecay &decay = rowDecay(state);
  return decay.sums.empty() ? blockSums(state, block) : Values(ArrayRef(decay.sums).slice(8 * block, 8));
}

// Whether a row's block decays beyond f32's range; null where none does.
Value RoleEmitter::isWild(const RowDecay &decay, int64_t block, int64_t row) {
  if (plan.isMild(plan.rowDecay))
    return {};
  return arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, decay.sum[block][row], ptx.number(-mostOfBlock));
}

// The reference of a block's tokens on the right or left, from its start.
Value RoleEmitter::reference(const RowDecay &decay, bool isRight, int64_t block, int64_t row) {
  Value sum = decay.sum[block][row], half = ptx.multiply(sum, ptx.number(0.5)),
        wild = isWild(decay, block, row);
  return wild ? ptx.choose(wild, isRight ? sum : ptx.number(0), half) : half;
}

// What decays between the references of two blocks: -1 is the chunk's start, 4 its end.
Value RoleEmitter::decayBetween(const RowDecay &decay, int64_t from, int64_t to, int64_t row) {
  Value log =
      from < 0 ? ptx.number(0) : ptx.difference(decay.sum[from][row], reference(decay, true, from, row));
  for (int64_t block = from + 1; block < to; ++block)
    log = ptx.sum(log, decay.sum[block][row]);
  return ptx.exp2(to < 4 ? ptx.sum(log, reference(decay, false, to, row)) : log);
}

// What decays from a block's tokens to its reference.
Values RoleEmitter::untilReference(ChainState &state, int64_t block, ValueRange sums) {
  Values results;
  for (auto [e, sum] : llvm::enumerate(sums))
    results.push_back(ptx.exp2(LLVM::FMAOp::create(b, sum, ptx.number(-llvm::numbers::log2e),
                                                   reference(rowDecay(state), true, block, rowOf(e)))));
  return results;
}

// What decays from a block's reference to its tokens, with the token's own factor or without.
Values RoleEmitter::sinceReference(ChainState &state, int64_t block, bool before, ValueRange sums) {
  const RowDecay &decay = rowDecay(state);
  Values own, results;
  if (before)
    own = rowLogs(state, block);
  for (size_t e = 0; e < 8; ++e) {
    Value log = sums[e];
    if (before)
      log = ptx.difference(log, own[e]);
    Value start = arith::NegFOp::create(b, reference(decay, false, block, rowOf(e)));
    results.push_back(ptx.exp2(LLVM::FMAOp::create(b, log, ptx.number(llvm::numbers::log2e), start)));
  }
  return results;
}

// Entries times a number for each block and row.
static void scaleRows(Ptx &ptx, MutableArrayRef<Value> entries, llvm::function_ref<Value(int64_t)> ofRow) {
  for (int64_t row : {0, 1}) {
    Value factor = ofRow(row);
    for (auto [e, entry] : llvm::enumerate(entries))
      if (rowOf(e) == row)
        entry = ptx.multiply(entry, factor);
  }
}

Values RoleEmitter::rowWeights(ChainState &state, Span span) {
  const RowDecay &decay = rowDecay(state);
  Values results;
  for (int64_t block = 0; block < 4; ++block) {
    bool isRest = span == Span::Rest;
    Values sums = sumsOf(state, block);
    Values own =
        isRest ? untilReference(state, block, sums) : sinceReference(state, block, span == Span::Until, sums);
    scaleRows(ptx, own, [&](int64_t row) {
      return isRest ? decayBetween(decay, block, 4, row) : decayBetween(decay, -1, block, row);
    });
    llvm::append_range(results, own);
  }
  return results;
}

// A mix's values in a block. Their factors are the scores', where those have room for them.
Values RoleEmitter::valuesOfMix(ChainState &state, chunk::MixOp mix, int64_t block) {
  TokenTile tile = *plan.asTile(mix.getValues());
  Values entries;
  for (Value pair : slabPairs(state, tile.input, block))
    llvm::append_range(entries, ptx.unpack(pair));
  if (!plan.keepsRange(tile.scale))
    for (auto [entry, number] : llvm::zip(entries, columnsOf(state, tile.scale, block)))
      entry = ptx.multiply(entry, number);
  return entries;
}

// A mix's rows in a block, relative to its reference.
Values RoleEmitter::rowsOfMix(ChainState &state, chunk::MixOp mix, int64_t block) {
  Values rows = untilReference(state, block, sumsOf(state, block)), entries = valuesOfMix(state, mix, block);
  for (auto [row, entry] : llvm::zip(rows, entries))
    row = ptx.multiply(row, entry);
  return rows;
}

// Sums such rows by the mix's scores onto those of a block's tokens, relative to that one's reference.
void RoleEmitter::mixOnto(ChainState &state, chunk::MixOp mix, Values rows, int64_t block, int64_t seer,
                          MutableArrayRef<Value> sums) {
  const RowDecay &decay = rowDecay(state);
  if (seer > block)
    scaleRows(ptx, rows, [&](int64_t row) { return decayBetween(decay, block, seer, row); });
  else if (!plan.isMild(plan.rowDecay))
    scaleRows(ptx, rows, [&](int64_t row) {
      return ptx.choose(isWild(decay, block, row), ptx.number(0), ptx.number(1));
    });
  llvm::copy(timesScores(sums, sideOf(rows), scoresOfBlocks(state, mix, seer, block)), sums.begin());
}

// What a block's tokens make of such sums.
void RoleEmitter::finishMix(ChainState &state, chunk::MixOp mix, int64_t block, MutableArrayRef<Value> sums) {
  RowDecay &decay = rowDecay(state);
  bool before = mix.getReach() == Reach::Before;
  for (auto [entry, weight] : llvm::zip(sums, sinceReference(state, block, before, sumsOf(state, block))))
    entry = ptx.multiply(entry, weight);
  if (plan.isMild(plan.rowDecay))
    return;
  // Apart, as it takes many registers.
  Value wild = ptx.any(arith::OrIOp::create(b, isWild(decay, block, 0), isWild(decay, block, 1)));
  auto choice = scf::IfOp::create(b, ValueRange(sums).getTypes(), wild, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  describeRare(*choice.thenBlock());
  Values more = wildMix(state, mix, block);
  for (auto [x, y] : llvm::zip(more, sums))
    x = ptx.sum(x, y);
  scf::YieldOp::create(b, more);
  b.setInsertionPointToStart(choice.elseBlock());
  scf::YieldOp::create(b, sums);
  llvm::copy(choice.getResults(), sums.begin());
}

// A mix at a block's tokens alone.
Values RoleEmitter::sliceOfMix(ChainState &state, chunk::MixOp mix, int64_t block) {
  Values sums(8, ptx.number(0));
  for (int64_t from = 0; from <= block; ++from)
    mixOnto(state, mix, rowsOfMix(state, mix, from), from, block, sums);
  finishMix(state, mix, block, sums);
  return sums;
}

// The scores of 16 tokens with 16 others, a warp's right operand.
Values RoleEmitter::scoresOfBlocks(ChainState &state, chunk::MixOp mix, int64_t seer, int64_t seen) {
  return scoresOfBlocks(state, scoresOf(mix), seer, seen);
}

unsigned RoleEmitter::scoresOf(chunk::MixOp mix) const {
  Value plain = plan.splitScores(mix.getScores()).second;
  std::optional<TokenTile> values = plan.asTile(mix.getValues());
  RowFactors columnScale = values && plan.keepsRange(values->scale) ? values->scale : RowFactors();
  const auto *tile = llvm::find_if(plan.scores, [&](const ScoreTile &x) {
    return x.plainRows && x.value == plain && x.columnScale == columnScale;
  });
  return tile - plan.scores.begin();
}

Values RoleEmitter::scoresOfBlocks(ChainState &state, unsigned tile, int64_t seer, int64_t seen) {
  auto [at, offset] = scorePlace(ptx.bits(lane, 15), ptx.shiftRight(lane, 4), seer, seen);
  return ptx.loadMatrices(ptx.add(at, state.scoresBase), scoreOffset(tile) + offset, false);
}

// What the tokens of a block see of each other where its decay is out of f32's range. Halves of 8, 4, 2 and 1
// tokens in turn: what the later half of a pair of halves sees of the earlier one is relative to the end of
// the earlier.
Values RoleEmitter::wildMix(ChainState &state, chunk::MixOp mix, int64_t block) {
  const RowDecay &decay = rowDecay(state);
  bool before = mix.getReach() == Reach::Before;
  Value zero = ptx.number(0), pair = ptx.mul(ptx.bits(lane, 3), 2), seer = ptx.shiftRight(lane, 2);
  Values scores = scoresOfBlocks(state, mix, block, block), rows = valuesOfMix(state, mix, block);
  Values sums = blockSums(state, block), since(sums);
  if (before)
    for (auto [e, log] : llvm::enumerate(rowLogs(state, block)))
      since[e] = ptx.difference(since[e], log);
  auto tokenOf = [&](size_t e) { return ptx.add(pair, e % 2 + e / 4 * 8); };
  auto isSet = [&](Value x) { return ptx.compare(arith::CmpIPredicate::ne, x, ptx.constant(0)); };
  auto power = [&](Value log) { return ptx.exp2(ptx.multiply(log, ptx.number(llvm::numbers::log2e))); };
  // The scores whose tokens' numbers differ in these bits alone, the first of which they do differ in.
  auto scoresWithin = [&](Value size) {
    Values results;
    for (size_t i = 0; i < 4; ++i) {
      Value mask = ptx.constant(0), later = ptx.add(seer, i % 2 * 8);
      for (int64_t half : {0, 1}) {
        Value apart = ptx.exclusiveOr(later, ptx.add(pair, half + i / 2 * 8));
        Value holds = ptx.equal(apart, 0);
        if (size)
          holds = arith::AndIOp::create(b, isSet(arith::AndIOp::create(b, apart, size)),
                                        ptx.below(apart, ptx.mul(size, 2)));
        mask = ptx.add(mask, ptx.choose(holds, ptx.constant(half ? 0xffff0000 : 0xffff), ptx.constant(0)));
      }
      results.push_back(arith::AndIOp::create(b, scores[i], mask));
    }
    return results;
  };
  // A token's own write has not decayed.
  Values own = timesScores(Values(8, zero), sideOf(rows), scoresWithin({}));
  Value levels = ptx.assembly("mov.b32 $0, 4;", b.getI32Type(), {})[0];
  auto loop =
      threads.forLoop(ptx.constant(0), levels, ptx.constant(1), own, [&](Value level, ValueRange carried) {
        Value size = arith::ShRUIOp::create(b, ptx.constant(8), level);
        Value others = arith::SubIOp::create(b, ptx.constant(0), ptx.mul(size, 2));
        Value middle = arith::OrIOp::create(b, arith::AndIOp::create(b, pair, others), ptx.add(size, -1));
        Value source = ptx.add(ptx.bits(lane, 28), ptx.shiftRight(ptx.bits(middle, 7), 1));
        Value isLargest = ptx.equal(size, 8), isSmallest = ptx.equal(size, 1);
        Values earlier, later;
        for (size_t e = 0; e < rows.size(); ++e) {
          // The middle's entry: of halves of 8 in the first eight tokens, of halves of 1 the first of a pair.
          size_t odd = e | 1;
          Value from = e / 4 ? ptx.choose(isLargest, sums[odd - 4], sums[odd]) : sums[odd];
          Value end = ptx.shuffle(ptx.choose(isSmallest, sums[e & ~size_t(1)], from), source);
          Value isLater = isSet(arith::AndIOp::create(b, tokenOf(e), size));
          Value seen = ptx.multiply(rows[e], power(ptx.difference(end, sums[e])));
          earlier.push_back(ptx.choose(isLater, zero, seen));
          later.push_back(ptx.choose(isLater, power(ptx.difference(since[e], end)), zero));
        }
        Values found = timesScores(Values(8, zero), sideOf(earlier), scoresWithin(size)), results;
        for (size_t e = 0; e < found.size(); ++e)
          results.push_back(ptx.sum(carried[e], ptx.multiply(found[e], later[e])));
        return results;
      });
  Values results(loop.getResults());
  for (size_t e = 0; e < results.size(); ++e)
    results[e] = ptx.choose(isWild(decay, block, rowOf(e)), results[e], zero);
  return results;
}

// What a mix is added to, where that is a value times what decays since the chunk's start; else null.
Value RoleEmitter::besideMix(AddOp sum, chunk::MixOp mix) {
  Span span = mix.getReach() == Reach::Before ? Span::Until : Span::Through;
  for (Value operand : sum->getOperands())
    if (auto product = RolePlan::trace(RolePlan::strip(operand)).getDefiningOp<MulOp>())
      for (unsigned k : {0, 1}) {
        Value weights = RolePlan::trace(product->getOperand(k));
        if (plan.isOfRows(weights) && weights.getDefiningOp<chunk::WeightsOp>().getSpan() == span)
          return product->getOperand(1 - k);
      }
  return {};
}

// The entries of such a value. Factors of the tokens are left to the end.
FailureOr<Values> RoleEmitter::startOfMix(ChainState &state, Value other, RowFactors factors) {
  auto product = llvm::find_if(plan.products, [&](const ChainProduct &p) {
    return p.result == RolePlan::strip(other) && p.resultScale == factors;
  });
  bool isRaw = product != plan.products.end();
  FailureOr<Values> start = isRaw ? state.raw.lookup(product->result) : slab(state, other);
  if (failed(start) || start->empty() || (!isRaw && !factors.empty()))
    return failure();
  return start;
}

// A mix, and what it is added to: a value times what decays since the chunk's start, or null.
FailureOr<Values> RoleEmitter::mixed(ChainState &state, chunk::MixOp mix, Value other) {
  RowDecay &decay = rowDecay(state);
  RowFactors factors = plan.splitScores(mix.getScores()).first;
  Values results(tokensOfChunk / 2, ptx.number(0));
  if (other) {
    FailureOr<Values> start = startOfMix(state, other, factors);
    if (failed(start))
      return failure();
    results = *start;
  }
  // What follows from the blocks' numbers takes no register all the time.
  for (auto &sums : decay.sum)
    for (Value &sum : sums)
      sum = ptx.assembly("mov.b32 $0, $1;", b.getF32Type(), sum)[0];
  for (int64_t block = 0; other && block < 4; ++block)
    scaleRows(ptx, MutableArrayRef(results).slice(8 * block, 8),
              [&](int64_t row) { return decayBetween(decay, -1, block, row); });
  awaitScores(state);
  for (int64_t block = 0; block < 4; ++block) {
    Values rows = rowsOfMix(state, mix, block);
    for (int64_t seer = block; seer < 4; ++seer)
      mixOnto(state, mix, rows, block, seer, MutableArrayRef(results).slice(8 * seer, 8));
  }
  for (int64_t block = 0; block < 4; ++block)
    finishMix(state, mix, block, MutableArrayRef(results).slice(8 * block, 8));
  return scaled(state, results, factors);
}

// A value that has to do with the decay of each row; nothing where it has not.
std::optional<FailureOr<Values>> RoleEmitter::decayedRows(ChainState &state, Operation *op) {
  if (plan.rescales()) {
    for (unsigned i : {0, 1})
      if (isa<MulOp, DivOp>(op) && plan.isOfRows(RolePlan::strip(op->getOperand(i)))) {
        FailureOr<Values> entries = slab(state, op->getOperand(1 - i));
        return failed(entries) ? entries
                               : FailureOr<Values>(Pieces(*this, state).rescaled(*entries, isa<DivOp>(op)));
      }
    return std::nullopt;
  }
  auto isWhole = [&](Value value) {
    auto weights = value.getDefiningOp<chunk::WeightsOp>();
    return weights && weights.getSpan() == Span::Whole;
  };
  if (plan.isOfRows(op->getResult(0)))
    return FailureOr<Values>(rowWeights(state, cast<chunk::WeightsOp>(op).getSpan()));
  if (auto mix = dyn_cast<chunk::MixOp>(op))
    return mixed(state, mix, {});
  for (unsigned i : {0, 1}) {
    if (op->getNumOperands() != 2)
      break;
    Value own = RolePlan::trace(RolePlan::strip(op->getOperand(i))), other = op->getOperand(1 - i);
    if (isa<MulOp>(op) && plan.isOfRows(own) && isWhole(own)) {
      const RowDecay &decay = rowDecay(state);
      FailureOr<Values> entries = slab(state, other);
      if (failed(entries))
        return entries;
      scaleRows(ptx, *entries, [&](int64_t row) { return decayBetween(decay, -1, 4, row); });
      return entries;
    }
    // What outputs are multiplied with a mix shares with what it is added to.
    auto mix = own.getDefiningOp<chunk::MixOp>();
    if (!isa<AddOp>(op) || !mix)
      continue;
    if (Value beside = besideMix(cast<AddOp>(op), mix))
      if (FailureOr<Values> sum = mixed(state, mix, beside); succeeded(sum))
        return sum;
  }
  return std::nullopt;
}
