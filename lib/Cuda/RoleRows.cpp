// One number per token: gates, sums of decays, norms. Lanes hold two neighbouring tokens each.
#include "lib/Cuda/Roles.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

struct RoleEmitter::RowState {
  RowState(const TensorAccess &access, Stage stage) : access(access), stage(stage) {}
  TensorAccess access;
  Stage stage;
  Value left, tokens[2], valid[2]; // of the sequence
  llvm::DenseMap<Value, std::array<Value, 2>> known, reciprocals;
  llvm::DenseMap<Value, std::array<Value, 3>> sums; // of a decay's logarithms: both tokens', the chunk's
};

// Every sum over a row that a slot needs.
SmallVector<ReduceOp> RoleEmitter::reductions() {
  llvm::SetVector<Operation *> found;
  SmallVector<Value> work;
  for (const Slot &slot : slots) {
    for (RowFactor factor : slot.factors)
      work.push_back(factor.value);
    if (slot.decay)
      work.push_back(RolePlan::sourceOf(slot.decay));
  }
  while (!work.empty()) {
    Operation *op = RolePlan::trace(work.pop_back_val()).getDefiningOp();
    if (auto weights = dyn_cast_if_present<chunk::WeightsOp>(op))
      work.push_back(RolePlan::sourceOf(weights.getDecay()));
    else if (isa_and_present<ReduceOp>(op))
      found.insert(op);
    else if (op)
      llvm::append_range(work, op->getOperands());
  }
  SmallVector<ReduceOp> results;
  for (Operation *op : found)
    results.push_back(cast<ReduceOp>(op));
  return results;
}

// Whether a number follows from sums over rows.
static bool needsSums(Value value) {
  Operation *op = RolePlan::trace(value).getDefiningOp();
  if (auto weights = dyn_cast_if_present<chunk::WeightsOp>(op))
    return needsSums(RolePlan::sourceOf(weights.getDecay()));
  return op && (isa<ReduceOp>(op) || llvm::any_of(op->getOperands(), needsSums));
}

std::array<Value, 2> RoleEmitter::decaySums(RowState &state, Value decay, bool before) {
  auto [it, isNew] = state.sums.try_emplace(decay);
  if (isNew) {
    bool hasLogs = decay.getDefiningOp<chunk::DecayOp>().getLog() != nullptr;
    std::array<Value, 2> logs = row(state, RolePlan::sourceOf(decay));
    for (int i : {0, 1}) {
      // A factor of 0 counts as one of 2^-200; past the end nothing decays.
      Value log = hasLogs ? ptx.multiply(logs[i], ptx.number(1.4426950408889634)) : ptx.log2(logs[i]);
      log = arith::MaximumFOp::create(b, log, ptx.number(-200));
      logs[i] = ptx.choose(state.valid[i], log, ptx.number(0));
    }
    Value sum = ptx.sum(logs[0], logs[1]);
    auto shuffle = [&](Value x, int64_t by, int64_t bound, NVVM::ShflKind kind) -> Value {
      return NVVM::ShflOp::create(b, b.getF32Type(), ptx.constant(-1), x, ptx.constant(by),
                                  ptx.constant(bound), kind, UnitAttr());
    };
    for (int64_t distance = 1; distance < 32; distance *= 2) {
      Value other = shuffle(sum, distance, 0, NVVM::ShflKind::up);
      Value exists = ptx.compare(arith::CmpIPredicate::uge, lane, ptx.constant(distance));
      sum = ptx.choose(exists, ptx.sum(sum, other), sum);
    }
    Value whole = shuffle(sum, 31, 31, NVVM::ShflKind::idx);
    state.sums[decay] = {ptx.difference(sum, logs[1]), sum, whole};
    state.known[decay] = logs;
  }
  std::array<Value, 3> sums = state.sums.lookup(decay);
  if (!before)
    return {sums[0], sums[1]};
  std::array<Value, 2> logs = state.known.lookup(decay);
  return {ptx.difference(sums[0], logs[0]), sums[0]};
}

std::array<Value, 2> RoleEmitter::row(RowState &state, Value value) {
  value = RolePlan::trace(value);
  if (auto known = state.known.find(value); known != state.known.end())
    return known->second;
  std::array<Value, 2> result;
  chunk::ProgramOp program = plan.program;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    ArgKind kind = program.getArg(argument.getArgNumber()).getKind();
    for (int i : {0, 1}) {
      if (kind == ArgKind::Input || kind == ArgKind::Param) {
        Value token = kind == ArgKind::Input ? state.tokens[i] : Value();
        result[i] = state.access.load(plan.tensorOf(argument), 0, token).entries[0];
      } else {
        Value number = kind == ArgKind::Head    ? part.head
                       : kind == ArgKind::Heads ? part.heads
                                                : ptx.add(part.position, state.tokens[i]);
        result[i] = arith::SIToFPOp::create(b, b.getF32Type(), number);
      }
    }
    return state.known[value] = result;
  }
  Operation *op = value.getDefiningOp();
  TypeSwitch<Operation *>(op)
      .Case([&](ConstantOp c) { result.fill(ptx.number(c.getValue().convertToDouble())); })
      .Case([&](BroadcastOp broadcast) { result = row(state, broadcast.getOperand()); })
      .Case([&](chunk::WeightsOp w) {
        using chunk::Span;
        std::array<Value, 2> sums = decaySums(state, w.getDecay(), w.getSpan() == Span::Until);
        Value whole = state.sums.lookup(w.getDecay())[2];
        for (int i : {0, 1})
          result[i] = ptx.exp2(w.getSpan() == Span::Whole  ? whole
                               : w.getSpan() == Span::Rest ? ptx.difference(whole, sums[i])
                                                           : sums[i]);
      })
      .Case([&](ReduceOp r) {
        int64_t at = (slots.size() + (llvm::find(reduced, r) - reduced.begin())) * stages * slotBytes;
        Values sums = ptx.loadFloats(ptx.add(state.stage.rows, ptx.mul(lane, 8)), at, 2);
        result = {sums[0], sums[1]};
      })
      .Case([&](ElementwiseOp e) {
        SmallVector<std::array<Value, 2>> operands;
        for (Value operand : op->getOperands())
          operands.push_back(row(state, operand));
        for (int i : {0, 1}) {
          Values entries;
          for (const auto &operand : operands)
            entries.push_back(operand[i]);
          result[i] = e.lower(b, b.getLoc(), entries);
        }
      });
  return state.known[value] = result;
}

std::array<Value, 2> RoleEmitter::reciprocal(RowState &state, Value value) {
  value = RolePlan::trace(value);
  auto [it, isNew] = state.reciprocals.try_emplace(value);
  if (!isNew)
    return it->second;
  auto root = value.getDefiningOp<SqrtOp>();
  std::array<Value, 2> result = row(state, root ? root->getOperand(0) : value);
  for (Value &x : result)
    x = root ? ptx.reciprocalRoot(x) : ptx.reciprocal(x);
  return state.reciprocals[value] = result;
}

void RoleEmitter::setTokens(RowState &state, Value chunk) {
  Value first = arith::ExtUIOp::create(b, b.getI64Type(), ptx.mul(chunk, tokensOfChunk));
  state.left = arith::SubIOp::create(b, part.tokens, first);
  for (int64_t i : {0, 1}) {
    Value local = arith::ExtUIOp::create(b, b.getI64Type(), ptx.add(ptx.mul(lane, 2), i));
    state.valid[i] = ptx.compare(arith::CmpIPredicate::slt, local, state.left);
    // Past the end the chunk's first token is read, and dropped.
    state.tokens[i] = ptx.add(first, ptx.choose(state.valid[i], local, ptx.constant(0, 64)));
  }
}

void RoleEmitter::emitRows(Value chunks) {
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  find(access);
  SmallVector<BlockArgument> inputs;
  for (BlockArgument input : plan.program.argumentsOf(ArgKind::Input))
    if (!slots.empty() && plan.isRow(input) && !input.use_empty())
      inputs.push_back(input);
  // Numbers are fetched a chunk ahead.
  auto fetch = [&](Value chunk) {
    RowState state(access, {});
    setTokens(state, chunk);
    Values fetched;
    for (BlockArgument input : inputs)
      llvm::append_range(fetched, row(state, input));
    return fetched;
  };
  Value last = ptx.add(chunks, -1);
  forChunks(chunks, fetch(ptx.constant(0)), [&](Value chunk, Stage stage, ValueRange fetched) {
    RowState state(access, stage);
    setTokens(state, chunk);
    Value left = state.left;
    for (auto [i, input] : llvm::enumerate(inputs))
      state.known[input] = {fetched[2 * i], fetched[2 * i + 1]};
    Values next = fetch(arith::MinSIOp::create(b, ptx.add(chunk, 1), last));
    ptx.await(barrier(Loaded, stage.index), stage.phase);
    auto fill = [&](unsigned i) {
      const Slot &slot = slots[i];
      std::array<Value, 2> values{ptx.number(1), ptx.number(1)};
      if (slot.decay)
        values = decaySums(state, slot.decay, slot.before);
      for (RowFactor factor : slot.factors) {
        std::array<Value, 2> more =
            factor.divides ? reciprocal(state, factor.value) : row(state, factor.value);
        for (int k : {0, 1})
          values[k] =
              slot.decay ? ptx.difference(values[k], ptx.log2(more[k])) : ptx.multiply(values[k], more[k]);
      }
      if (!slot.decay)
        for (int k : {0, 1})
          values[k] = ptx.choose(state.valid[k], values[k], ptx.number(0));
      ptx.store(ptx.add(stage.rows, ptx.mul(lane, 8)), i * stages * slotBytes, {values[0], values[1]});
    };
    // What needs no sums is made beside them.
    auto waits = [&](const Slot &slot) {
      return (slot.decay && needsSums(RolePlan::sourceOf(slot.decay))) ||
             llvm::any_of(slot.factors, [](RowFactor factor) { return needsSums(factor.value); });
    };
    for (bool late : {false, true}) {
      if (late && !reduced.empty())
        ptx.meet(ptx.constant(4), 96);
      for (unsigned i = 0; i < slots.size(); ++i)
        if (waits(slots[i]) == late)
          fill(i);
    }
    // Rows past the end are another sequence's, or none. Scores that are being made of them are not used.
    threads.when(ptx.compare(arith::CmpIPredicate::slt, left, ptx.constant(tokensOfChunk, 64)), [&] {
      Value count = arith::TruncIOp::create(b, b.getI32Type(), left), zero = ptx.number(0);
      Value row = ptx.add(count, ptx.shiftRight(lane, 3)), chunk = ptx.mul(ptx.bits(lane, 7), 16);
      threads.forLoop(row, ptx.constant(tokensOfChunk), ptx.constant(4), {}, [&](Value row, ValueRange) {
        Value at = ptx.add(ptx.add(stage.tiles, chunk), ptx.mul(row, 128));
        for (int64_t tile = 0; tile < stageBytes; tile += tileBytes)
          ptx.store(at, tile, {zero, zero, zero, zero}, /*relaxed=*/true);
        return Values();
      });
      ptx.fenceProxy();
    });
    ptx.arrive(barrier(Full, stage.index));
    return next;
  });
}

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
  Value count = ptx.assembly("mov.b32 $0, 2;", b.getI32Type(), {})[0];
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

// Other sums over rows: a lane takes a row, 16 bytes at a time.
void RoleEmitter::sumRows(Value tiles, Value sums, ReduceOp op) {
  Value at = ptx.add(tiles, ptx.mul(lane, 128)), swizzle = ptx.bits(lane, 7);
  int64_t width = matType(op.getOperand()).numRows();
  Value packets = ptx.assembly(("mov.b32 $0, " + Twine(width / 8) + ";").str(), b.getI32Type(), {})[0];
  auto loop = threads.forLoop(
      ptx.constant(0), packets, ptx.constant(1), Values(4, ptx.number(0)), [&](Value packet, ValueRange carried) {
        Values partial(carried);
        Value place = ptx.add(at, ptx.mul(ptx.exclusiveOr(swizzle, ptx.bits(packet, 7)), 16));
        Value block = ptx.shiftRight(packet, 3);
        llvm::DenseMap<Value, Values> loaded;
        for (int64_t e = 0; e < 8; ++e) {
          Value entry = vectorEntry(op.getOperand(), e, [&](BlockArgument input) {
            Values &pairs = loaded[input];
            if (pairs.empty())
              for (Value pair : ptx.load(ptx.add(place, ptx.mul(block, halfStride(input))), tileOffset(input), 4,
                                         b.getI32Type()))
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

// Sums over rows, by two warps with 32 rows each.
void RoleEmitter::emitSums(Value chunks) {
  Value half = ptx.bits(warp, 1);
  forChunks(chunks, {}, [&](Value, Stage stage, ValueRange) {
    ptx.await(barrier(Loaded, stage.index), stage.phase);
    Value tiles = ptx.add(stage.tiles, ptx.mul(half, 32 * 128));
    for (auto [i, op] : llvm::enumerate(reduced)) {
      Value sums = ptx.add(ptx.add(stage.rows, int64_t(slots.size() + i) * stages * slotBytes),
                           ptx.mul(half, 32 * 4));
      if (auto factors = innerProduct(op))
        sumDiagonal(tiles, sums, (*factors)[0], (*factors)[1]);
      else
        sumRows(tiles, sums, op);
    }
    ptx.meet(ptx.constant(4), 96);
    return Values();
  });
}
