// Scores of tokens with micro-steps, or several reads: their products lie transposed, as there are fewer
// tokens than rows.
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;

int64_t RoleEmitter::placeOfRow(int64_t row) const {
  return plan.isStacked() ? row / 16 * 8 + row % 8 : plan.atOnce ? row / plan.steps : row;
}

// Where rows of tokens are in a tile, for a warp that has 16 micro-steps as rows.
RoleEmitter::LastRows RoleEmitter::lastRows() {
  LastRows rows;
  Value lane = freshLane(), eighth = ptx.shiftRight(lane, 2), first = ptx.add(ptx.mul(warp, 16), eighth);
  auto placeOf = [&](Value token) {
    Value swizzle = ptx.mul(ptx.bits(token, 7), 16);
    return ptx.add(ptx.add(ptx.mul(token, rowBytes), swizzle), ptx.mul(ptx.bits(lane, 3), 4));
  };
  if (plan.isStacked()) {
    rows.place[plan.stepOfOutputs()] = placeOf(ptx.add(ptx.mul(warp, 8), eighth));
    return rows;
  }
  for (int64_t i : {0, 1}) {
    Value row = ptx.add(first, 8 * i), token = arith::DivUIOp::create(b, row, ptx.constant(plan.steps));
    rows.place[i] = placeOf(token);
    rows.isLast[i] =
        ptx.equal(arith::SubIOp::create(b, row, ptx.mul(token, plan.steps)), plan.stepOfOutputs());
  }
  return rows;
}

// Stores a block of 16 columns of such rows, where micro-steps are their tokens' last ones. `at` has a
// block's address by the row's place.
void RoleEmitter::storeLast(const LastRows &rows, ValueRange pairs, llvm::function_ref<Value(Value)> at,
                            int64_t offset) {
  for (unsigned i : {0, 1}) {
    if (!rows.place[i])
      continue;
    Value left = at(rows.place[i]), right = ptx.exclusiveOr(left, ptx.constant(16));
    ptx.store(left, offset, pairs[i], /*relaxed=*/false, rows.isLast[i]);
    ptx.store(right, offset, pairs[i + 2], /*relaxed=*/false, rows.isLast[i]);
  }
}

// Stores the role's scores of tokens, or those of one product. Each warp has 16 micro-steps as rows.
void RoleEmitter::storeTokenScores(ScoreState &state, Operation *of) {
  for (unsigned i : state.role->tiles) {
    const ScoreTile &tile = plan.scores[i];
    if (!tile.ofTokens)
      continue;
    auto gram = cast<chunk::GramOp>(RolePlan::trace(tile.value).getDefiningOp());
    if (of && gram != of)
      continue;
    const Values &sums = state.sums.find(gram)->second;
    Value decay = gram.getDecay();
    RowFactors right = plan.asTile(gram.getRhs())->scale;
    llvm::append_range(right, tile.columnScale);
    // A thread's two rows lie 8 micro-steps apart.
    auto ofRows = [&](const Slot &slot) {
      int64_t offset = slotOffset(slot);
      return Values{ptx.loadFloats(state.ownRows, offset, 1)[0],
                    ptx.loadFloats(state.ownRows, offset + 32, 1)[0]};
    };
    // Factors go into the exponent where they have logarithms.
    bool inExponent = decay && llvm::all_of(right, RolePlan::isPositive);
    Values factors, logs;
    if (!right.empty() && !inExponent)
      factors = ofRows({right, {}, false});
    if (decay)
      logs = ofRows({inExponent ? right : RowFactors(), decay, false});
    // A token sees micro-steps up to its last one, or those before its first. Reads at one time have one
    // place, and so have two in turn, of which the first is seen by what is read before the second.
    int64_t places = plan.isStacked() || plan.atOnce ? 1 : plan.steps;
    Value row = ptx.add(ptx.mul(warp, placeOfRow(16)), placeInEight(ptx.shiftRight(lane, 2)));
    Value distance = arith::SubIOp::create(b, row, ptx.mul(ptx.bits(lane, 3), 2 * places));
    int64_t seen = plan.readsFirst ? 1 : places;
    unsigned reader = plan.readsFirst ? 0 : 1;
    auto reachOf = [&](unsigned which) {
      return seen - (plan.seesOwn(gram.getReach(), reader, which) ? 0 : 1);
    };
    // One that looks at the start of its block sees the tokens before that.
    bool atStart = gram.getReach() == Reach::Start;
    auto isBeforeBlock = [&](int64_t token, unsigned which) {
      Value own = ptx.shiftRight(ptx.add(row, placeOfRow(8 * which)), llvm::Log2_64(places));
      Value first = ptx.bits(ptx.add(ptx.mul(ptx.bits(lane, 3), 2), token), -plan.tokensOfBlock());
      return ptx.below(own, first);
    };
    Value eighth = ptx.bits(lane, 7), to = ptx.add(eighth, ptx.mul(ptx.shiftRight(lane, 4), 8));
    Value unit = ptx.exclusiveOr(ptx.add(ptx.mul(warp, 2), ptx.bits(ptx.shiftRight(lane, 3), 1)), eighth);
    Value at = ptx.add(ptx.add(state.buffer, ptx.mul(to, rowBytes)), ptx.mul(unit, 16));
    for (int64_t block = 0; block < plan.columns / 16; ++block) {
      auto body = [&] {
        Values before;
        if (decay) {
          Slot slot = slotOfReach({}, decay, gram.getReach());
          slot.ofTokens = true;
          for (int64_t eight : {0, 1})
            llvm::append_range(before,
                               ptx.loadFloats(state.columns, slotOffset(slot) + block * 64 + eight * 32, 2));
        }
        Values entries, packed;
        for (unsigned e = 0; e < 8; ++e) {
          unsigned which = e / 2 % 2, column = e / 4 * 2 + e % 2;
          Value x = sums[block * 8 + e];
          if (!factors.empty())
            x = ptx.multiply(x, factors[which]);
          if (decay)
            x = ptx.multiply(x, ptx.exp2(ptx.difference(before[column], logs[which])));
          int64_t token = block * 16 + e / 4 * 8 + e % 2;
          Value reached =
              atStart ? isBeforeBlock(token, which)
                      : ptx.compare(arith::CmpIPredicate::slt, distance,
                                    ptx.constant(token * places + reachOf(which) - placeOfRow(8 * which)));
          entries.push_back(ptx.choose(reached, x, ptx.number(0)));
        }
        for (unsigned e = 0; e < 8; e += 2)
          packed.push_back(ptx.pack(entries[e], entries[e + 1]));
        ptx.storeMatrices(at, scoreOffset(i) + block * 16 * rowBytes, packed, true);
      };
      // What no token of the block sees is zero.
      if (int64_t seen = plan.steps * (block + 1); seen < 4)
        threads.when(ptx.below(warp, ptx.constant(seen)), body);
      else
        body();
    }
  }
}
