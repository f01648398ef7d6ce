// Sums over the rows of inputs, which norms are made of.
#include "lib/Cuda/Roles.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

Value RoleEmitter::vectorEntry(Value value, unsigned entry, llvm::function_ref<Value(BlockArgument)> leaf) {
  value = RolePlan::trace(value);
  if (auto argument = dyn_cast<BlockArgument>(value))
    return leaf(argument);
  Operation *op = value.getDefiningOp();
  if (auto constant = dyn_cast<ConstantOp>(op))
    return ptx.number(constant.getValue().convertToDouble());
  Values operands;
  for (Value operand : op->getOperands())
    operands.push_back(vectorEntry(operand, entry, leaf));
  return cast<ElementwiseOp>(op).lower(b, b.getLoc(), operands);
}

// The inputs whose rows' inner products a sum is, where it is no more than that.
static std::optional<std::array<BlockArgument, 2>> innerProduct(ReduceOp op) {
  auto product = RolePlan::trace(op.getOperand()).getDefiningOp<MulOp>();
  if (!product)
    return std::nullopt;
  auto left = dyn_cast<BlockArgument>(RolePlan::trace(product->getOperand(0)));
  auto right = dyn_cast<BlockArgument>(RolePlan::trace(product->getOperand(1)));
  if (!left || !right)
    return std::nullopt;
  return std::array<BlockArgument, 2>{left, right};
}

// Inner products of 32 rows are the diagonal of a product: of 16 rows with 8 of theirs, twice.
void RoleEmitter::sumDiagonal(Value tiles, Value sums, BlockArgument left, BlockArgument right) {
  Value unit = ptx.exclusiveOr(ptx.shiftRight(lane, 4), ptx.bits(lane, 7)), ownRow = ptx.shiftRight(lane, 2);
  Value at = ptx.add(tiles, ptx.add(ptx.mul(ptx.bits(lane, 15), 128), ptx.mul(unit, 16)));
  Value to = ptx.add(sums, ptx.mul(ownRow, 4)), isOdd = ptx.equal(ptx.bits(ownRow, 1), 1);
  Value isOn = ptx.compare(arith::CmpIPredicate::eq, ptx.bits(lane, 3), ptx.shiftRight(lane, 3));
  // All roles' code shares one small cache: this loop stays one.
  Value count =
      ptx.assembly(("mov.b32 $0, " + Twine(std::min<int64_t>(plan.rowsOf(left) / 16, 2)) + ";").str(),
                   b.getI32Type(), {})[0];
  threads.forLoop(ptx.constant(0), count, ptx.constant(1), {}, [&](Value block, ValueRange) {
    Value rows = ptx.add(at, ptx.mul(block, 2048));
    Values entries(8, ptx.number(0));
    for (int64_t k = 0; k < matType(left).numCols() / 16; ++k) {
      auto load = [&](BlockArgument input) {
        return ptx.loadMatrices(ptx.exclusiveOr(rows, ptx.constant(k % 4 * 32)),
                                tileOffset(input) + k / 4 * halfStride(input), false);
      };
      Values x = load(left), y = left == right ? x : load(right);
      entries = ptx.multiplyBf16(entries, x, y);
    }
    threads.when(isOn, [&] {
      for (int64_t eight : {0, 1})
        ptx.store(ptx.add(to, ptx.mul(block, 64)), eight * 32,
                  ptx.choose(isOdd, entries[6 * eight + 1], entries[6 * eight]));
    });
    return Values();
  });
}

// An entry of a param that is a vector.
Value RoleEmitter::paramEntry(TensorAccess &access, BlockArgument param, Value at) {
  unsigned tensor = plan.tensorOf(param);
  Value entry =
      LLVM::LoadOp::create(b, plan.tensors[tensor].element, access.entry(tensor, at, ptx.constant(0)));
  return entry.getType().isF32() ? entry : arith::ExtFOp::create(b, b.getF32Type(), entry).getResult();
}

// Other sums over rows: a lane takes a row, 16 bytes at a time.
void RoleEmitter::sumRows(TensorAccess &access, Value tiles, Value sums, ReduceOp op) {
  Value row = plan.isOfTokens(op.getOperand()) ? ptx.bits(lane, plan.columns - 1) : lane;
  Value at = ptx.add(tiles, ptx.mul(row, rowBytes)), swizzle = ptx.bits(lane, 7);
  int64_t width = matType(op.getOperand()).numRows();
  Value packets = ptx.assembly(("mov.b32 $0, " + Twine(width / 8) + ";").str(), b.getI32Type(), {})[0];
  auto loop =
      threads.forLoop(ptx.constant(0), packets, ptx.constant(1), Values(4, ptx.number(0)),
                      [&](Value packet, ValueRange carried) {
                        Values partial(carried);
                        Value place = ptx.add(at, ptx.mul(ptx.exclusiveOr(swizzle, ptx.bits(packet, 7)), 16));
                        Value block = ptx.shiftRight(packet, 3);
                        llvm::DenseMap<Value, Values> loaded;
                        for (int64_t e = 0; e < 8; ++e) {
                          Value entry = vectorEntry(op.getOperand(), e, [&](BlockArgument input) -> Value {
                            if (!tileOffsets.contains(input))
                              return paramEntry(access, input, ptx.add(ptx.mul(packet, 8), e));
                            Values &pairs = loaded[input];
                            if (pairs.empty())
                              for (Value pair : ptx.load(ptx.add(place, ptx.mul(block, halfStride(input))),
                                                         tileOffset(input), 4, b.getI32Type()))
                                llvm::append_range(pairs, ptx.unpackBf16(pair));
                            return pairs[e];
                          });
                          partial[e % 4] = ptx.sum(partial[e % 4], entry);
                        }
                        return partial;
                      });
  auto result = [&](unsigned i) -> Value { return loop.getResult(i); };
  ptx.store(ptx.add(sums, ptx.mul(lane, 4)), 0,
            ptx.sum(ptx.sum(result(0), result(1)), ptx.sum(result(2), result(3))));
}

// Where the sums of a chunk are; they lie four chunks deep, see RoleEmitter::Summed.
Value RoleEmitter::sumsOf(Value chunk, Operation *op) {
  int64_t which = llvm::find(plan.reductions, op) - plan.reductions.begin();
  return ptx.add(ptx.add(base, normsAt + which * 4 * slotBytes), ptx.mul(ptx.bits(chunk, 3), slotBytes));
}

// Who makes which sums: inner products that are on the diagonal of a product between tokens come from there;
// of a team's warpgroups for scores, the one without a system has room for a product more; the rest is for
// two warps.
void RoleEmitter::shareSums() {
  for (Operation *op : plan.reductions) {
    auto factors = innerProduct(cast<ReduceOp>(op));
    ScoreRole *role = nullptr;
    chunk::GramOp from;
    for (ScoreRole &scorer : scorers)
      for (Operation *gram : gramsOf(scorer)) {
        auto of = cast<chunk::GramOp>(gram);
        if (factors && !plan.decay && plan.asTile(of.getLhs())->input == (*factors)[0] &&
            plan.asTile(of.getRhs())->input == (*factors)[1])
          role = &scorer, from = of;
      }
    if (!role && factors && !plan.decay && team > 1 && !scorers.back().system &&
        !plan.isOfTokens(op->getOperand(0)))
      role = &scorers.back();
    if (role)
      role->sums.push_back({op, from, *factors});
    else
      summed.push_back(cast<ReduceOp>(op));
  }
}

llvm::SetVector<Operation *> RoleEmitter::gramsOf(const ScoreRole &role) const {
  SmallVector<Value> roots;
  for (unsigned i : role.tiles)
    roots.push_back(plan.scores[i].value);
  if (role.system)
    roots.push_back(plan.system);
  return plan.gramsOf(roots);
}

// Sums over rows, by two warps with 32 rows each.
void RoleEmitter::emitSums(Value chunks) {
  Value half = ptx.bits(warp, 1);
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  find(access);
  forChunks(chunks, {}, [&](Value chunk, Stage stage, ValueRange) {
    ptx.await(barrier(Loaded, stage.index), stage.phase);
    Value tiles = ptx.add(stage.tiles, ptx.mul(half, 32 * 128));
    for (ReduceOp op : summed) {
      Value sums = ptx.add(sumsOf(chunk, op), ptx.mul(half, 32 * 4));
      auto body = [&] {
        if (auto factors = innerProduct(op))
          sumDiagonal(tiles, sums, (*factors)[0], (*factors)[1]);
        else
          sumRows(access, tiles, sums, op);
      };
      // Of tokens there are no more than one warp has rows.
      if (plan.isOfTokens(op.getOperand()))
        threads.when(ptx.equal(half, 0), body);
      else
        body();
    }
    ptx.meet(ptx.constant(4), 96);
    return Values();
  });
}

// Waits, in the warp that makes numbers of them, for a chunk's sums.
void RoleEmitter::awaitSums(Value chunk) {
  if (llvm::any_of(scorers, [](const ScoreRole &role) { return !role.sums.empty(); }))
    ptx.await(barrier(Summed, ptx.bits(chunk, 3)), ptx.bits(ptx.shiftRight(chunk, 2), 1));
  if (!summed.empty())
    ptx.meet(ptx.constant(4), 96);
}

// Stores the diagonal of a product between tokens. A warp's rows are 16 tokens, of which a lane has column
// and row where it is on the diagonal of 8 x 8 entries.
void RoleEmitter::storeDiagonal(ValueRange entries, Value sums) {
  // Read again, so that what follows from it takes no register all the time.
  Value lane = ptx.assembly("mov.u32 $0, %laneid;", b.getI32Type(), {})[0];
  Value ownRow = ptx.shiftRight(lane, 2), isOdd = ptx.equal(ptx.bits(ownRow, 1), 1);
  Value isOn = ptx.compare(arith::CmpIPredicate::eq, ptx.bits(lane, 3), ptx.shiftRight(lane, 3));
  Value to = ptx.add(sums, ptx.add(ptx.mul(warp, 64), ptx.mul(ownRow, 4)));
  Values values;
  for (int64_t half : {0, 1}) {
    Value value;
    for (int64_t w = 3; w >= 0; --w) {
      int64_t first = 4 * (2 * w + half) + 2 * half;
      Value own = ptx.choose(isOdd, entries[first + 1], entries[first]);
      value = value ? ptx.choose(ptx.equal(warp, w), own, value) : own;
    }
    values.push_back(value);
  }
  threads.when(isOn, [&] {
    for (int64_t half : {0, 1})
      ptx.store(to, 32 * half, {values[half]});
  });
}

// Tells the numbers' warps, of the whole team, of the sums that a warpgroup for scores has stored. Those of
// four chunks before have been read: the scores of two chunks before found room, and with that the chains are
// past them.
void RoleEmitter::handOverSums(Value chunk, unsigned which) {
  ptx.fenceProxy();
  ptx.meet(ptx.constant(5 + which), 128);
  threads.when(ptx.equal(thread, 0), [&] {
    Value done = barrier(Summed, ptx.bits(chunk, 3));
    ptx.arrive(done);
    forPeers([&](Value rank) {
      Value there = ptx.inBlock(done, rank);
      ptx.arriveThereExpecting(there, scorers[which].sums.size() * slotBytes);
      for (const ScoreRole::Sum &sum : scorers[which].sums) {
        Value at = sumsOf(chunk, sum.op);
        ptx.copyThere(ptx.inBlock(at, rank), at, slotBytes, there);
      }
    });
  });
}

void RoleEmitter::forPeers(llvm::function_ref<void(Value)> body) {
  for (int64_t i = 1; i < team; ++i)
    body(ptx.bits(ptx.add(arith::TruncIOp::create(b, b.getI32Type(), part.shard), i), team - 1));
}
