// Systems that each row of the state has for itself: rows share the products between tokens, and each has
// factors of its own. The chain substitutes, by blocks of 16 tokens. What blocks before a block give to it
// are products of the warp for all its rows; within a block a token's four threads in a row take turns, each
// with two of its tokens, and tell one another what came out. The scores hand over the blocks on the diagonal
// in f32, too, a column together (RoleOwnLeaves.cpp).
//
// Where rows decay, what is solved for is relative to its block's reference (RoleRowDecay.cpp): as the decay
// between two tokens is a quotient of what is between them and the reference, that turns a row's system into
// one without a decay. Rows that decay too much for it are solved for entry by entry. What is mixed of the
// solution is made beside it, block by block, and what is left of it at the chunk's end. Where rows have
// decays alone, and read what has decayed, blocks are the same for all of them, and so are their inverses.
// (Most such rules come as others without decays: RoleRescaled.cpp.)
#include "lib/Cuda/RoleSubstitution.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/RoleScores.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;
using chunk::Reach;
using chunk::Span;

AddOp cuda::sumWith(chunk::MixOp mix) {
  auto program = mix->getParentOfType<chunk::ProgramOp>();
  std::function<AddOp(Value)> find = [&](Value value) -> AddOp {
    Operation *op = RolePlan::trace(RolePlan::strip(value)).getDefiningOp();
    if (!isa_and_present<ElementwiseOp>(op))
      return {};
    for (Value operand : op->getOperands()) {
      if (isa<AddOp>(op) && RolePlan::trace(RolePlan::strip(operand)) == mix.getResult())
        return cast<AddOp>(op);
      if (AddOp found = find(operand))
        return found;
    }
    return {};
  };
  for (Value output : program.getBodyYield().getValues().take_back(program.getOutputs().size()))
    if (AddOp found = find(output))
      return found;
  return {};
}

Values RoleEmitter::Substitution::sideOf(ValueRange entries) {
  if (rows() == 2)
    return roles.sideOf(entries);
  Values rests(entries.size(), ptx.number(0)), both;
  if (!roles.plan.isF16)
    rests = roles.restOf(entries, roles.packedPairs(entries));
  for (size_t e = 0; e < entries.size(); e += 2)
    for (ValueRange own : {entries, ValueRange(rests)})
      llvm::append_range(both, own.slice(e, 2));
  return roles.sideOf(both);
}

Values RoleEmitter::Substitution::ownOf(ValueRange sums) {
  if (rows() == 2)
    return Values(sums);
  Values own;
  for (size_t e = 0; e < sums.size(); e += 4)
    for (size_t odd : {0, 1})
      own.push_back(ptx.sum(sums[e + odd], sums[e + 2 + odd]));
  return own;
}

Values RoleEmitter::Substitution::earlier(unsigned tile, int64_t block, ArrayRef<Value> solved,
                                          ValueRange start) {
  Values sums(8, ptx.number(0));
  const RowDecay *decay = state.rowDecay ? &*state.rowDecay : nullptr;
  size_t size = roles.plan.isF16 ? 8 : 4;
  for (int64_t from = 0; from < block; ++from) {
    if (decay && from)
      sums = scaled(sums, [&](int64_t row) {
        Value log = ptx.difference(decay->sum[from - 1][row],
                                   roles.reference(*decay, /*isRight=*/true, from - 1, row));
        return ptx.exp2(ptx.sum(log, roles.reference(*decay, /*isRight=*/true, from, row)));
      });
    sums = roles.timesScores(sums, solved.slice(size * from, size),
                             roles.scoresOfBlocks(state, tile, block, from));
  }
  if (decay && block)
    sums = scaled(sums, [&](int64_t row) { return roles.decayBetween(*decay, block - 1, block, row); });
  sums = ownOf(sums);
  for (size_t e = 0; e < start.size(); ++e)
    sums[e] = block ? ptx.sum(sums[e], start[e]) : start[e];
  return sums;
}

Values RoleEmitter::Substitution::solve(int64_t block, ValueRange sides, ValueRange factors, Values given,
                                        Function written, Values *reads) {
  if (roles.plan.invertsOwnLeaves) {
    Value at = ptx.add(state.scoresBase, ptx.mul(roles.lane, 16));
    Values inverse;
    for (int64_t half : {0, 1})
      llvm::append_range(
          inverse, ptx.loadFloats(at, roles.ownInversesAt() + block * wideBytes + half * wideBytes / 2, 4));
    return ptx.multiplyTf32(Values(8, ptx.number(0)), ptx.roundTf32(less(sides, factors, given)), inverse);
  }
  if (roles.plan.isStacked())
    return solveByEights(block, sides, factors, given);
  int64_t leaf = roles.ownLeavesAt() + block * ownLeafBytes;
  size_t rows = this->rows(), each = 2 * rows; // entries of half a block
  auto factor = [&](size_t e) { return factors.empty() ? Value() : factors[e]; };
  // What the first eight tokens give to the others is a product, too. Of one row it would take longer than to
  // add that up in turn.
  bool byProduct = rows == 2;
  // Where functions are written, what is given is all that is read: they come one after the other, and all
  // between them counts.
  auto side = [&](size_t e) { return written ? given[e] : less(sides[e], factor(e), given[e]); };
  Values results(written ? 2 * each : 0, ptx.number(0));
  for (size_t half : {0, 1}) {
    // The later of a thread's two tokens sees the earlier one.
    Value own = ptx.loadFloats(diagonals, leaf + half * 8 * (ownLeafPitch + 4) + 4, 1)[0];
    for (int64_t turn = 0; turn < 4; ++turn) {
      Value source = ptx.add(quad, turn), isTurn = ptx.equal(pair, turn), solved[2][2];
      size_t e = each * half;
      Values firsts, seconds;
      for (size_t row = 0; row < rows; ++row) {
        firsts.push_back(side(e + 2 * row));
        seconds.push_back(side(e + 2 * row + 1));
      }
      if (written)
        firsts = written(e, turn, firsts);
      for (size_t row = 0; row < rows; ++row) {
        Value seen = factors.empty() ? own : ptx.multiply(factor(e + 2 * row + 1), own);
        seconds[row] = less(seconds[row], seen, firsts[row]);
      }
      if (written)
        seconds = written(e + 1, turn, seconds);
      for (size_t row = 0; row < rows; ++row) {
        solved[row][0] = ptx.shuffle(firsts[row], source);
        solved[row][1] = ptx.shuffle(seconds[row], source);
        for (size_t odd = 0; written && odd < 2; ++odd) {
          Value &result = results[e + 2 * row + odd];
          result = ptx.choose(isTurn, odd ? seconds[row] : firsts[row], result);
        }
      }
      for (size_t token : {0, 1})
        for (size_t later = half; later < (byProduct ? half + 1 : 2); ++later) {
          int64_t column = 8 * half + 2 * turn + token;
          Values seen = ptx.loadFloats(leaves, leaf + column * ownLeafPitch + 32 * later, 2);
          for (size_t row = 0; row < rows; ++row)
            for (size_t odd : {0, 1}) {
              Value &sum = given[each * later + 2 * row + odd];
              sum = LLVM::FMAOp::create(b, seen[odd], solved[row][token], sum);
            }
        }
    }
    for (size_t e = each * half; !written && e < each * (half + 1); ++e)
      results.push_back(less(sides[e], factor(e), given[e]));
    if (half || !byProduct)
      continue;
    Value zero = ptx.constant(0), row = ptx.add(ptx.shiftRight(roles.lane, 2), 8);
    Value scores = pairOfScores(roles.plan.ownSystem, block, row, zero, pair);
    Values left = sideOf(ArrayRef(results).take_front(4)), later(ArrayRef(given).drop_front(4));
    left.append({zero, zero});
    llvm::copy(roles.plan.isF16 ? ptx.multiply16By8Tf32(later, left, ptx.unpack(scores))
                                : ptx.multiply16By8("bf16", later, left, Values{scores, zero}),
               given.begin() + 4);
  }
  if (reads)
    *reads = given;
  return results;
}

Values RoleEmitter::Substitution::solveByEights(int64_t block, ValueRange sides, ValueRange factors,
                                                Values given) {
  int64_t leaf = roles.ownLeavesAt() + block * ownLeafBytes;
  auto factor = [&](size_t e) { return factors.empty() ? Value() : factors[e]; };
  auto columnOf = [](size_t place) { return place / 2 + 8 * (place % 2); };
  Value own[4][4];
  for (size_t seen = 0; seen < 4; ++seen)
    for (size_t seer = seen + 1; seer < 4; ++seer)
      own[seer][seen] =
          ptx.loadFloats(diagonals, leaf + columnOf(seen) * ownLeafPitch + columnOf(seer) * 4, 1)[0];
  for (int64_t turn = 0; turn < 4; ++turn) {
    Value source = ptx.add(quad, turn), solved[2][4];
    for (size_t row : {0, 1}) {
      Value found[4];
      for (size_t place = 0; place < 4; ++place) {
        size_t e = 4 * (place % 2) + 2 * row + place / 2;
        found[place] = less(sides[e], factor(e), given[e]);
        for (size_t seen = 0; seen < place; ++seen) {
          Value score = own[place][seen];
          found[place] = less(found[place], factor(e) ? ptx.multiply(factor(e), score) : score, found[seen]);
        }
        solved[row][place] = ptx.shuffle(found[place], source);
      }
    }
    for (size_t place = 0; place < 4; ++place)
      for (size_t half : {0, 1}) {
        int64_t column = 2 * turn + columnOf(place);
        Values seen = ptx.loadFloats(leaves, leaf + column * ownLeafPitch + 32 * half, 2);
        for (size_t row : {0, 1})
          for (size_t odd : {0, 1}) {
            Value &sum = given[4 * half + 2 * row + odd];
            sum = LLVM::FMAOp::create(b, seen[odd], solved[row][place], sum);
          }
      }
  }
  return less(sides, factors, given);
}

std::pair<Values, Values> RoleEmitter::Substitution::solveWild(int64_t block, ValueRange sides,
                                                               ValueRange factors, const Values (&logs)[3],
                                                               std::optional<unsigned> mixed) {
  Value tokens = ptx.assembly("mov.b32 $0, 16;", b.getI32Type(), {})[0], zero = ptx.number(0);
  int64_t leaf = roles.ownLeavesAt() + block * ownLeafBytes;
  auto body = [&](Value token, ValueRange carried) {
    Values given(carried.take_front(8)), seen(carried.drop_front(8));
    // By eights, a token's two rows come in turn.
    if (roles.plan.isStacked())
      token = ptx.add(ptx.shiftRight(token, 1), ptx.mul(ptx.bits(token, 1), 8));
    Value isLate = ptx.compare(arith::CmpIPredicate::uge, token, ptx.constant(8));
    Value isOdd = ptx.equal(ptx.bits(token, 1), 1);
    Value source = ptx.add(quad, ptx.shiftRight(ptx.bits(token, 7), 1));
    auto pick = [&](ValueRange values, size_t row) {
      auto ofHalf = [&](size_t half) {
        return ptx.choose(isOdd, values[4 * half + 2 * row + 1], values[4 * half + 2 * row]);
      };
      return ptx.choose(isLate, ofHalf(1), ofHalf(0));
    };
    Value solved[2], log[2];
    for (size_t row : {0, 1}) {
      Value factor = factors.empty() ? Value() : pick(factors, row);
      solved[row] = ptx.shuffle(less(pick(sides, row), factor, pick(given, row)), source);
      log[row] = ptx.shuffle(pick(logs[0], row), source);
    }
    Value column = ptx.add(leaves, ptx.mul(token, ownLeafPitch));
    for (size_t half : {0, 1}) {
      Values scores = ptx.loadFloats(column, leaf + 32 * half, 2);
      for (size_t odd : {0, 1})
        for (size_t row : {0, 1}) {
          size_t e = 4 * half + 2 * row + odd;
          auto decayed = [&](Value at) {
            Value exponent = arith::MinimumFOp::create(b, ptx.difference(at, log[row]), zero);
            return ptx.multiply(solved[row], ptx.exp2(exponent));
          };
          given[e] = LLVM::FMAOp::create(b, scores[odd], decayed(logs[1][e]), given[e]);
          if (mixed)
            seen[e] =
                LLVM::FMAOp::create(b, score(*mixed, block, ptx.add(ptx.mul(pair, 2), 8 * half + odd), token),
                                    decayed(logs[2][e]), seen[e]);
        }
    }
    llvm::append_range(given, seen);
    return given;
  };
  auto loop =
      roles.threads.forLoop(ptx.constant(0), tokens, ptx.constant(1), Values(mixed ? 16 : 8, zero), body);
  Values results(loop.getResults());
  return {less(sides, factors, ArrayRef(results).take_front(8)), Values(ArrayRef(results).drop_front(8))};
}

Value RoleEmitter::Substitution::score(unsigned tile, int64_t block, Value seer, Value seen) {
  Value word = ptx.shiftRight(ptx.bits(seen, 7), 1);
  Values entries = ptx.unpack(pairOfScores(tile, block, seer, ptx.shiftRight(seen, 3), word));
  return ptx.choose(ptx.equal(ptx.bits(seen, 1), 1), entries[1], entries[0]);
}

Value RoleEmitter::Substitution::pairOfScores(unsigned tile, int64_t block, Value row, Value half,
                                              Value pair) {
  auto [at, offset] = roles.scorePlace(row, half, block, block);
  Value word = ptx.add(ptx.add(state.scoresBase, at), ptx.mul(pair, 4));
  return ptx.load(word, roles.scoreOffset(tile) + offset, 1, b.getI32Type())[0];
}

// Solves for what a product's left side is made of, where that is such a solution.
LogicalResult RoleEmitter::solveFor(ChainState &state, Value left) {
  SmallVector<Value> sources{left};
  if (auto product = left.getDefiningOp<MulOp>())
    llvm::append_range(sources, product->getOperands());
  for (Value source : sources)
    if (Operation *system = RolePlan::ownSystemOf(source))
      return state.solved.empty() && !state.slabs.count(source) ? substitute(state, system) : success();
  return success();
}

// Numbers of columns for a thread's entries of a block of 16 tokens; none are 1.
Values RoleEmitter::columnsOf(ChainState &state, RowFactors factors, int64_t block) {
  if (factors.empty())
    return {};
  int64_t offset = slotOffset({factors, {}, false});
  size_t rows = Substitution(*this, state).rows();
  if (llvm::all_of(factors, [](RowFactor f) { return RolePlan::isUniform(f.value); }))
    return Values(4 * rows, ptx.loadFloats(state.stage.rows, offset, 1)[0]);
  Values results;
  for (int64_t half : {0, 1}) {
    Values two = ptx.loadFloats(state.columns, offset + block * 64 + half * 32, 2);
    for (size_t row = 0; row < rows; ++row)
      llvm::append_range(results, two);
  }
  return results;
}

// The entries of a value at a block of 16 tokens, without those of others, for which there are no registers.
FailureOr<Values> RoleEmitter::sliceOf(ChainState &state, Value value, int64_t block) {
  value = RolePlan::trace(RolePlan::strip(value));
  Substitution substitution(*this, state);
  size_t each = 4 * substitution.rows();
  if (auto known = state.slabs.find(value); known != state.slabs.end())
    return Values(ArrayRef(known->second).slice(each * block, each));
  for (const ChainProduct &product : plan.products)
    if (product.result == value) {
      auto known = state.raw.find(value);
      if (known == state.raw.end())
        return failure();
      return substitution.times(ArrayRef(known->second).slice(each * block, each),
                                columnsOf(state, product.resultScale, block));
    }
  if (std::optional<TokenTile> tile = plan.asTile(value)) {
    Values &entries = state.slices[tile->input];
    if (entries.empty())
      for (Value pair : slabPairs(state, tile->input, block))
        llvm::append_range(entries, ptx.unpack(pair));
    return substitution.times(entries, columnsOf(state, tile->scale, block));
  }
  if (auto mix = value.getDefiningOp<chunk::MixOp>())
    return substitution.times(sliceOfMix(state, mix, block),
                              columnsOf(state, plan.splitScores(mix.getScores()).first, block));
  if (plan.isOfRows(value)) {
    Span span = value.getDefiningOp<chunk::WeightsOp>().getSpan();
    if (span != Span::Until && span != Span::Through)
      return failure();
    Values since = sinceReference(state, block, span == Span::Until, sumsOf(state, block));
    return substitution.scaled(since,
                               [&](int64_t row) { return decayBetween(rowDecay(state), -1, block, row); });
  }
  auto op = value.getDefiningOp<ElementwiseOp>();
  if (!op)
    return failure();
  SmallVector<Values> operands;
  for (Value operand : op->getOperands()) {
    if (auto constant = RolePlan::trace(operand).getDefiningOp<ConstantOp>()) {
      operands.push_back(Values(each, ptx.number(constant.getValue().convertToDouble())));
    } else if (plan.isRow(operand)) {
      operands.push_back(columnsOf(state, {{operand}}, block));
    } else {
      FailureOr<Values> entries = sliceOf(state, operand, block);
      if (failed(entries))
        return failure();
      operands.push_back(*entries);
    }
  }
  Values results;
  for (size_t e = 0; e < each; ++e) {
    Values arguments;
    for (const Values &entries : operands)
      arguments.push_back(entries[e]);
    results.push_back(op.lower(b, b.getLoc(), arguments));
  }
  return results;
}

void RoleEmitter::Substitution::leave(Value solution, int64_t block, ValueRange entries) {
  for (const ChainProduct &product : roles.plan.products) {
    auto made = product.left.getDefiningOp<MulOp>();
    if (product.left != solution && !(made && llvm::is_contained(made->getOperands(), solution)))
      continue;
    Values side = times(entries, roles.columnsOf(state, factorsOfDepth(roles.plan, product), block));
    llvm::append_range(state.solved[&product], roles.plan.isF16 ? side : roles.packedPairs(side));
  }
}

LogicalResult RoleEmitter::substitute(ChainState &state, Operation *system) {
  if (auto functions = dyn_cast<chunk::SubstituteOp>(system))
    return Substitution(*this, state).substitute(functions);
  auto solve = cast<chunk::TriSolveOp>(system);
  // With decays the solution is nowhere as it is, but what is mixed of it, and what is left of it at the
  // chunk's end.
  bool decays = solve.getDecay() != nullptr, isBefore = solve.getReach() == Reach::Before;
  auto solution = solve.getResult(0);
  chunk::MixOp mix;
  for (Operation *user : solution.getUsers())
    if (auto other = dyn_cast<chunk::MixOp>(user)) {
      if (mix)
        return failure();
      mix = other;
    }
  // What the mix is added to, and what both are then times.
  AddOp sum = mix ? sumWith(mix) : AddOp();
  Value beside = sum ? besideMix(sum, mix) : Value();
  RowFactors ofMix = mix ? plan.splitScores(mix.getScores()).first : RowFactors();
  FailureOr<Values> start = beside ? startOfMix(state, beside, ofMix) : Values();
  if (failed(start))
    return failure();
  bool mixesBefore = mix && mix.getReach() == Reach::Before;
  std::optional<unsigned> mixedBy;
  if (mix)
    mixedBy = scoresOf(mix);
  awaitScores(state);
  Substitution substitution(*this, state);
  // What follows from the blocks' numbers takes no register all the time.
  if (decays)
    for (auto &numbers : rowDecay(state).sum)
      for (Value &number : numbers)
        number = ptx.assembly("mov.b32 $0, $1;", b.getF32Type(), number)[0];
  Values known, mixed, plain;
  for (int64_t block = 0; block < 4; ++block) {
    FailureOr<Values> sides = sliceOf(state, solve.getRhs().front(), block), factors = Values();
    if (!solve.getFactors().empty())
      factors = sliceOf(state, solve.getFactors().front(), block);
    state.slices.clear();
    if (failed(sides) || failed(factors))
      return failure();
    Values given = substitution.earlier(plan.ownSystem, block, known, {}), results, left;
    if (!decays) {
      results = left = substitution.solve(block, *sides, *factors, given);
    } else {
      const RowDecay &decay = rowDecay(state);
      Values sums = sumsOf(state, block), until = untilReference(state, block, sums);
      Values since = sinceReference(state, block, isBefore, sums), seen, sinceOfMix = since;
      if (mixesBefore != isBefore)
        sinceOfMix = sinceReference(state, block, mixesBefore, sums);
      if (mix) {
        Values begin(8, ptx.number(0));
        if (!start->empty())
          begin = substitution.scaled(ArrayRef(*start).slice(8 * block, 8),
                                      [&](int64_t row) { return decayBetween(decay, -1, block, row); });
        seen = substitution.earlier(*mixedBy, block, known, begin);
      }
      auto solveMild = [&] {
        // From a token to the reference and back is 1, but for the token's own factor.
        Values weights = isBefore ? substitution.times(substitution.times(until, since), *factors) : *factors;
        Values found = substitution.solve(block, substitution.times(*sides, until), weights, given);
        if (mix)
          llvm::append_range(found,
                             substitution.times(timesScores(seen, sideOf(found),
                                                            scoresOfBlocks(state, *mixedBy, block, block)),
                                                sinceOfMix));
        return found;
      };
      auto solveWild = [&] {
        Values logs[3], ownLogs = isBefore || mixesBefore ? rowLogs(state, block) : Values();
        for (auto [i, without] : {std::pair<size_t, bool>{0, false}, {1, isBefore}, {2, mixesBefore}})
          for (size_t e = 0; e < 8; ++e) {
            Value log = without ? ptx.difference(sums[e], ownLogs[e]) : sums[e];
            logs[i].push_back(ptx.multiply(log, ptx.number(llvm::numbers::log2e)));
          }
        Values rest = substitution.less(*sides, substitution.times(since, *factors), given);
        auto [plain, more] = substitution.solveWild(block, rest, *factors, logs, mixedBy);
        Values found = substitution.times(plain, until);
        if (mix)
          for (auto [x, y] : llvm::zip(substitution.times(seen, sinceOfMix), more))
            found.push_back(ptx.sum(x, y));
        return found;
      };
      if (plan.isMild(plan.rowDecay)) {
        results = solveMild();
      } else {
        Value wild = ptx.any(arith::OrIOp::create(b, isWild(decay, block, 0), isWild(decay, block, 1)));
        SmallVector<Type> types(mix ? 16 : 8, b.getF32Type());
        auto choice = scf::IfOp::create(b, types, wild, true);
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToStart(choice.thenBlock());
        describeRare(*choice.thenBlock());
        scf::YieldOp::create(b, solveWild());
        b.setInsertionPointToStart(choice.elseBlock());
        scf::YieldOp::create(b, solveMild());
        results.assign(choice.getResults().begin(), choice.getResults().end());
      }
      llvm::append_range(mixed, ArrayRef(results).drop_front(8));
      results.resize(8);
      left = substitution.scaled(results, [&](int64_t row) { return decayBetween(decay, block, 4, row); });
    }
    llvm::append_range(known, sideOf(results));
    llvm::append_range(plain, results);
    substitution.leave(solution, block, left);
  }
  if (!decays)
    state.slabs[solution] = plain;
  if (mix)
    state.slabs[start->empty() ? mix.getResult() : sum.getResult()] = this->scaled(state, mixed, ofMix);
  return success();
}
