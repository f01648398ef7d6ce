// Sums over the rows of inputs, which norms are made of.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/Roles.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// An entry of a vector, of what those that `leaf` knows have there; of others it gives null.
Value RoleEmitter::vectorEntry(Value value, llvm::function_ref<Value(Value)> leaf) {
  value = RolePlan::trace(value);
  if (Value known = leaf(value))
    return known;
  Operation *op = value.getDefiningOp();
  if (auto constant = dyn_cast<ConstantOp>(op))
    return ptx.number(constant.getValue().convertToDouble());
  SpecPlace place(b, op);
  // What counts at a token's first row alone may be infinite there.
  if (int own = RolePlan::besideFirst(value, plan.isFirst); own >= 0) {
    Value isFirst = vectorEntry(op->getOperand(1 - own), leaf);
    Value holds = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, isFirst, ptx.number(0));
    return ptx.choose(holds, vectorEntry(op->getOperand(own), leaf), ptx.number(0));
  }
  Values operands;
  for (Value operand : op->getOperands())
    operands.push_back(vectorEntry(operand, leaf));
  // Of logarithms those of the special function unit have digits enough.
  if (isa<LogOp>(op))
    return ptx.multiply(ptx.log2(operands[0]), ptx.number(llvm::numbers::ln2));
  return isa<BroadcastOp>(op) ? operands[0] : cast<ElementwiseOp>(op).lower(b, b.getLoc(), operands);
}

// An entry of what follows from params alone.
Value RoleEmitter::entryOfParams(TensorAccess &access, Value vector, Value at) {
  return vectorEntry(vector, [&](Value value) -> Value {
    auto param = dyn_cast<BlockArgument>(value);
    if (!param)
      return {};
    Value row = matType(param).isScalar() ? ptx.constant(0) : at;
    return access.loadEntry(plan.tensorOf(param), row, ptx.constant(0));
  });
}

// The vectors that are the same for all tokens and that roles read entry by entry: sums over rows params, who
// walks the channels what logarithms follow from.
llvm::SetVector<Value> RolePlan::sharedVectors() const {
  llvm::SetVector<Value> vectors;
  if (decay)
    vectors = vectorsOfLogs();
  SmallVector<Value> work;
  for (Operation *sum : reductions)
    work.push_back(sum->getOperand(0));
  while (!work.empty()) {
    Value value = trace(work.pop_back_val());
    if (Operation *op = value.getDefiningOp())
      llvm::append_range(work, op->getOperands());
    else if (isOfParams(value))
      vectors.insert(value);
  }
  for (ArrayRef<BlockArgument> together : inputs)
    for (BlockArgument input : together)
      if (auto map = maps.find(input); map != maps.end())
        vectors.insert_range(paramsOf(map->second));
  return vectors;
}

llvm::SetVector<Value> RolePlan::vectorsOfFunctions() const {
  llvm::SetVector<Value> vectors;
  for (auto op : program.getBody().getOps<chunk::SubstituteOp>())
    for (Value param : op.getShared())
      if (!isRow(param))
        vectors.insert(param);
  return vectors;
}

// Those that the kernel has.
llvm::SetVector<Value> RoleEmitter::vectors() const {
  llvm::SetVector<Value> vectors;
  if (phase != Phase::Chain)
    vectors = plan.sharedVectors();
  if (phase != Phase::Prepare)
    vectors.insert_range(plan.vectorsOfFunctions());
  return vectors;
}

static int64_t bytesOfVector(Value vector) { return llvm::alignTo(4 * matType(vector).numRows(), 16); }

int64_t RoleEmitter::vectorBytes() const {
  int64_t bytes = 0;
  for (Value vector : vectors())
    bytes += bytesOfVector(vector);
  return bytes;
}

int64_t RoleEmitter::vectorAt(Value vector) const {
  int64_t at = vectorsAt;
  for (Value before : vectors()) {
    if (before == vector)
      break;
    at += bytesOfVector(before);
  }
  return at;
}

// Puts them into shared memory, once for all chunks: from device memory each entry would be asked for again
// for each row.
void RoleEmitter::storeVectors() {
  auto vectors = this->vectors();
  if (vectors.empty())
    return;
  TensorAccess access(threads, call, plan.tensors, /*packed=*/true);
  access.locate(part.sequence, part.sequence, part.begin, part.head, part.shard, plan.independent);
  Value own = ptx.add(ptx.mul(group, 128), thread);
  Value factors = plan.signedFactors();
  for (Value vector : vectors)
    threads.when(ptx.below(own, ptx.constant(matType(vector).numRows())), [&] {
      Value entry = entryOfParams(access, vector, own);
      // What decays at channels that no key has is nothing.
      if (plan.decay && vector == plan.logs() && plan.keysInMemory() < plan.keys)
        entry = ptx.choose(ptx.below(own, ptx.constant(plan.keysInMemory())), entry, ptx.number(0));
      if (factors && vector == plan.logs())
        entry = marked(entry, signOf(entryOfParams(access, factors, own)));
      ptx.store(ptx.add(base, ptx.mul(own, 4)), vectorAt(vector), {entry});
    });
  NVVM::Barrier0Op::create(b);
}

// The input that a sum is the squared norm of, or null.
static BlockArgument inputOfNorm(ReduceOp op) {
  auto product = RolePlan::trace(op.getOperand()).getDefiningOp<MulOp>();
  if (!product || RolePlan::trace(product->getOperand(0)) != RolePlan::trace(product->getOperand(1)))
    return {};
  return dyn_cast<BlockArgument>(RolePlan::trace(product->getOperand(0)));
}

std::optional<std::pair<BlockArgument, unsigned>> RolePlan::stackWith(BlockArgument input) const {
  if (summedInputs.contains(input) && !neededInputs.contains(input))
    for (BlockArgument own : neededInputs)
      if (const StackedInput *stack = stackedOf(own))
        for (auto [row, argument] : llvm::enumerate(stack->rows))
          if (argument == input.getArgNumber())
            return std::pair(own, row);
  return std::nullopt;
}

// Inputs that sums alone read, and that are rows of one that others read, are summed over there, and the
// norms of both are one.
void RolePlan::sumInStacks() {
  for (BlockArgument input : summedInputs)
    if (!stackWith(input))
      neededInputs.insert(input);
  for (Operation *sum : llvm::to_vector(reductions)) {
    BlockArgument input = inputOfNorm(cast<ReduceOp>(sum));
    auto stack = input ? stackWith(input) : std::nullopt;
    auto *same = llvm::find_if(reductions, [&](Operation *other) {
      return stack && inputOfNorm(cast<ReduceOp>(other)) == stack->first;
    });
    if (same == reductions.end())
      continue;
    sumsInStacks[sum] = {*same, stack->second};
    reductions.remove(sum);
  }
}

Value cuda::rowInStack(Ptx &ptx, Value token, unsigned row) {
  return ptx.add(ptx.add(ptx.mul(ptx.shiftRight(token, 3), 16), ptx.bits(token, 7)), 8 * row);
}

bool RoleForm::sumsApart(const RolePlan &plan) const {
  bool isOneLaunch = phase != Phase::Chain && phase != Phase::Prepare;
  return isOneLaunch && plan.keys > mostKeysBeside && plan.states == 1 && !plan.atOnce &&
         !plan.reductions.empty() && llvm::all_of(plan.reductions, [&](Operation *sum) {
           return matType(cast<ReduceOp>(sum).getOperand()).numRows() == plan.keys;
         });
}

// Of tokens there may be fewer than of micro-steps. Who sums shares them out where a lane still has as many
// bytes as go at a time; else some are summed more than once.
int64_t RoleEmitter::rowsOfSum(ReduceOp op) const {
  constexpr int64_t leastEntries = 32 * 32;
  int64_t all = rowsOfSumWarp(), own = plan.isOfTokens(op.getOperand()) ? all * plan.columns / 64 : all;
  return own * matType(op.getOperand()).numRows() >= leastEntries ? own : all;
}

// Among the sums of a chunk, of which those of a team's block lie together.
Value RoleEmitter::placeOfSum(ReduceOp op, Value row) {
  if (team == 1 || rowsOfSum(op) == rowsOfSumWarp())
    return row;
  int64_t ofBlock = plan.columns / team;
  return ptx.add(ptx.mul(ptx.shiftRight(row, llvm::Log2_64(ofBlock)), tokensOfChunk / team),
                 ptx.bits(row, ofBlock - 1));
}

// Squared norms of rows, a lane or more to a row, 64 bytes at a time.
void RoleEmitter::sumSquares(Stage stage, Value sums, Value first, ReduceOp op) {
  BlockArgument input = inputOfNorm(op);
  constexpr int64_t together = 4; // packets of eight
  int64_t rows = rowsOfSum(op), rounds = matType(input).numCols() * rows / (32 * 8 * together);
  first = ptx.shiftRight(first, llvm::Log2_64(rowsOfSumWarp() / rows));
  Value row = ptx.add(first, ptx.bits(lane, rows - 1)), own = ptx.bits(row, plan.rowsOf(input) - 1);
  if (auto stack = plan.stackWith(input)) {
    own = rowInStack(ptx, own, stack->second);
    input = stack->first;
  }
  Value at = ptx.add(tilesOf(stage, input), ptx.add(ptx.mul(own, rowBytes), ptx.mul(ptx.bits(own, 7), 16)));
  Value begin = rows == 32 ? ptx.constant(0) : ptx.mul(ptx.shiftRight(lane, llvm::Log2_64(rows)), rounds);
  // All roles' code shares one small cache: nobody is to know that this loop could be unrolled.
  Value count = ptx.add(ptx.shiftRight(lane, 5), rounds);
  Values zeros(3, ptx.number(0));
  auto loop =
      threads.forLoop(ptx.constant(0), count, ptx.constant(1), zeros, [&](Value round, ValueRange carried) {
        Value place = ptx.add(round, begin);
        Value from = ptx.add(ptx.exclusiveOr(at, ptx.mul(ptx.bits(place, 1), 64)),
                             ptx.mul(ptx.shiftRight(place, 1), halfStride(input)));
        Values partial(carried), packets[together];
        auto fetch = [&](int64_t i) {
          packets[i] =
              ptx.load(ptx.exclusiveOr(from, ptx.constant(16 * i)), tileOffset(input), 4, b.getI32Type());
        };
        auto sum = [&](int64_t i) {
          for (auto [at, pair] : llvm::enumerate(packets[i]))
            for (auto [side, entry] : llvm::enumerate(ptx.unpack(pair))) {
              Value &own = partial[(8 * i + 2 * at + side) % partial.size()];
              own = ptx.sum(own, ptx.multiply(entry, entry));
            }
        };
        // The assembler would put off each load to just before its use. The last one takes the first one's
        // registers.
        for (int64_t i = 0; i + 1 < together; ++i)
          fetch(i);
        ptx.syncWarp();
        sum(0);
        fetch(together - 1);
        ptx.syncWarp();
        for (int64_t i = 1; i < together; ++i)
          sum(i);
        return partial;
      });
  storeSum(sums, placeOfSum(op, row),
           ptx.sum(ptx.sum(loop.getResult(0), loop.getResult(1)), loop.getResult(2)), rows);
}

// Adds up what the lanes of a row have, and stores it at the row's place.
void RoleEmitter::storeSum(Value sums, Value place, Value whole, int64_t rows) {
  for (int64_t distance = rows; distance < 32; distance *= 2)
    whole = ptx.sum(whole, ptx.exchange(whole, distance));
  ptx.store(ptx.add(sums, ptx.mul(place, 4)), 0, {whole});
}

// A lane or more sum over a row, 32 bytes at a time, which are fetched while those before are summed.
void RoleEmitter::sumRows(Stage stage, Value sums, Value first, ReduceOp op) {
  auto isTile = [&](BlockArgument input) { return tileOffsets.contains(input) || plan.stackWith(input); };
  if (BlockArgument input = inputOfNorm(op); input && isTile(input))
    return sumSquares(stage, sums, first, op);
  llvm::SmallSetVector<BlockArgument, 2> inputs;
  SmallVector<Value> work{op.getOperand()};
  while (!work.empty()) {
    Value value = RolePlan::trace(work.pop_back_val());
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      if (isTile(argument))
        inputs.insert(argument);
    } else
      llvm::append_range(work, value.getDefiningOp()->getOperands());
  }
  // Packets lie at their number's place in a row of 128 bytes, exchanged by the row's number. Of stacks,
  // beside whose numbers registers are few, one of each input comes at a time, and none later than it is
  // asked for.
  bool isStack = plan.isStacked();
  int64_t together = isStack && inputs.size() > 1 ? 1 : 2, rows = rowsOfSum(op);
  int64_t rounds = matType(op.getOperand()).numRows() / (8 * together);
  auto fetched = [&] {
    if (isStack)
      ptx.syncWarp();
  };
  int64_t ownRounds = rounds * rows / 32;
  first = ptx.shiftRight(first, llvm::Log2_64(rowsOfSumWarp() / rows));
  Value row = ptx.add(first, ptx.bits(lane, rows - 1));
  Value own = plan.isOfTokens(op.getOperand()) ? ptx.bits(row, plan.columns - 1) : row;
  Value at = ptx.add(stage.tiles, ptx.add(ptx.mul(own, rowBytes), ptx.mul(ptx.bits(own, 7), 16)));
  Value begin = rows == 32 ? ptx.constant(0) : ptx.mul(ptx.shiftRight(lane, llvm::Log2_64(rows)), ownRounds);
  auto packetAt = [&](Value round) { return ptx.mul(ptx.bits(ptx.add(round, begin), rounds - 1), together); };
  auto fetch = [&](Value round) {
    Value packet = packetAt(round);
    Value half = ptx.shiftRight(packet, 3), place = ptx.exclusiveOr(at, ptx.mul(ptx.bits(packet, 7), 16));
    auto placeOf = [&](BlockArgument input, std::optional<unsigned> rowOfStack) -> Value {
      Value at = place;
      if (rowOfStack) {
        Value there = arith::SubIOp::create(b, rowInStack(ptx, own, *rowOfStack), own);
        at = ptx.add(at, ptx.mul(there, rowBytes));
      }
      return isEarly(input) ? ptx.add(at, arith::SubIOp::create(b, stage.early, stage.tiles)) : at;
    };
    Values pairs;
    for (BlockArgument input : inputs) {
      std::optional<unsigned> rowOfStack;
      if (auto stack = plan.stackWith(input))
        std::tie(input, rowOfStack) = *stack;
      Value at = ptx.add(placeOf(input, rowOfStack), ptx.mul(half, halfStride(input)));
      for (int64_t i = 0; i < together; ++i)
        llvm::append_range(
            pairs, ptx.load(ptx.exclusiveOr(at, ptx.constant(i * 16)), tileOffset(input), 4, b.getI32Type()));
    }
    return pairs;
  };
  // All roles' code shares one small cache: nobody is to know that this loop could be unrolled. It is so
  // once, so that packets need not change registers.
  Value count = ptx.add(ptx.shiftRight(lane, 5), ownRounds), zero = ptx.constant(0);
  auto sum = [&](Values &partial, ValueRange pairs, Value round) {
    Value params = ptx.add(base, ptx.mul(packetAt(round), 32));
    llvm::DenseMap<Value, Values> four;
    for (int64_t e = 0; e < together * 8; ++e) {
      if (e % 4 == 0)
        four.clear();
      Value entry = vectorEntry(op.getOperand(), [&](Value leaf) -> Value {
        auto input = dyn_cast<BlockArgument>(leaf);
        if (!input)
          return {};
        if (inputs.contains(input)) {
          int64_t first = (llvm::find(inputs, input) - inputs.begin()) * together * 4;
          return ptx.unpack(pairs[first + e / 2])[e % 2];
        }
        bool isOne = matType(input).isScalar();
        Values &own = four[input];
        if (own.empty())
          own = isOne ? ptx.loadFloats(base, vectorAt(input), 1)
                      : ptx.loadFloats(params, vectorAt(input) + e * 4, 4);
        return own[isOne ? 0 : e % 4];
      });
      partial[e % 4] = ptx.sum(partial[e % 4], entry);
    }
  };
  Values carried(4, ptx.number(0));
  llvm::append_range(carried, fetch(zero));
  auto loop = threads.forLoop(zero, count, ptx.constant(2), carried, [&](Value round, ValueRange values) {
    Values partial(values.take_front(4)), next = fetch(ptx.add(round, 1));
    fetched();
    sum(partial, values.drop_front(4), round);
    Values after = fetch(ptx.add(round, 2));
    fetched();
    sum(partial, next, ptx.add(round, 1));
    llvm::append_range(partial, after);
    return partial;
  });
  loop.walk(relax); // of rows of 16 bits
  describeTrips(loop, ownRounds / 2);
  auto result = [&](unsigned i) -> Value { return loop.getResult(i); };
  Value whole = ptx.sum(ptx.sum(result(0), result(1)), ptx.sum(result(2), result(3)));
  storeSum(sums, placeOfSum(op, row), whole, rows);
}

// In a launch of their own two warps have time for sums, but not for functions.
bool RoleEmitter::walkersSum() const {
  if (form.sharesScaled)
    return true;
  return (form.walksBeside || (phase == Phase::Prepare && plan.sumsFunctions())) && plan.walkersSum();
}

ArrayRef<Operation *> RoleEmitter::sumsOfWalkers() const {
  return plan.reductions.getArrayRef().take_front(walkersSum() ? plan.reductions.size() : 0);
}

// Of one sum over rows: of several chunks or, of those that walkers make, what each of two makes of a chunk,
// of two of these, and of one of the other block's.
int64_t RoleEmitter::bytesOfSums() const {
  return walkersSum() ? (ownPlaces + 1) * sumParts * slotBytes : chunksOfSums() * slotBytes;
}

Value RoleEmitter::sumsIn(Value place, Operation *op) {
  int64_t which = llvm::find(plan.reductions, op) - plan.reductions.begin();
  int64_t each = walkersSum() ? sumParts * slotBytes : slotBytes;
  return ptx.add(ptx.add(base, normsAt + which * bytesOfSums()), ptx.mul(place, each));
}

// Where the sums of a chunk are; they lie several chunks deep, see RoleEmitter::Summed.
Value RoleEmitter::sumsOf(Value chunk, Operation *op) {
  if (form.sharesWalk() && walkersSum())
    return sumsIn(ptx.choose(isOwn(chunk), ownPlace(chunk).first, ptx.constant(ownPlaces)), op);
  return sumsIn(ptx.bits(chunk, walkersSum() ? ownPlaces - 1 : chunksOfSums() - 1), op);
}

llvm::SetVector<Operation *> RoleEmitter::gramsOf(const ScoreRole &role) const {
  SmallVector<Value> roots;
  for (unsigned i : role.tiles)
    roots.push_back(plan.scores[i].value);
  if (role.system)
    roots.push_back(plan.system);
  return plan.gramsOf(roots);
}

// Sums over rows, by two warps or a warpgroup, which may change tiles before. The blocks of a
// team share the rows out.
void RoleEmitter::emitSums(Value chunks) {
  forChunks(chunks, {}, [&](Value chunk, Stage stage, ValueRange) {
    ptx.await(barrier(changesAhead() && !plan.scaling ? Changed : Loaded, stage.index), stage.phase);
    sumChunk(chunk, stage);
    return Values();
  });
}

// The same of a chunk that is there.
void RoleEmitter::sumChunk(Value chunk, Stage stage) {
  Value first = ptx.mul(ptx.bits(warp, sumWarps() - 1), rowsOfSumWarp());
  int64_t own = 32 * sumWarps(), all = own + 32;
  if (team > 1)
    first = ptx.add(first, ptx.mul(rank(), tokensOfChunk / team));
  if (sumsChange()) {
    changeTiles(chunk, stage);
    if (!hasSums())
      return ptx.meet(ptx.constant(4), all);
    ptx.meet(ptx.constant(14), own);
  }
  for (Operation *op : plan.reductions)
    sumRows(stage, sumsOf(chunk, op), first, cast<ReduceOp>(op));
  if (plan.scaling && hasSums())
    ptx.arrive(barrier(RowsRead, stage.index));
  if (team == 1)
    return ptx.meet(ptx.constant(4), all);
  ptx.fenceProxy();
  ptx.meet(ptx.constant(4), own);
  inOneThread([&] { handOverSums(chunk); });
}

// Waits, in the warp that makes numbers of them, for a chunk's sums, and for tiles to be changed.
void RoleEmitter::awaitSums(Value chunk, Stage stage) {
  if (!plan.reductions.empty() && walkersSum())
    return awaitTiles(chunk, stage); // they come with these
  if (!hasSums() && !sumsChange())
    return;
  if (team == 1 || !hasSums())
    ptx.meet(ptx.constant(4), 32 * (sumWarps() + 1));
  else
    ptx.await(barrier(Summed, ptx.bits(chunk, chunksOfSums() - 1)),
              ptx.bits(arith::DivUIOp::create(b, chunk, ptx.constant(chunksOfSums())), 1));
}

// Tells the numbers' warps, of the whole team, of this block's sums. Those in whose place they lie have been
// read: a place in the ring was free, so this block's chain has had all scores of as many chunks before as it
// has places, those of the others too, which followed from their numbers.
void RoleEmitter::handOverSums(Value chunk) {
  auto bytesOf = [&](Operation *op) { return 4 * sumWarps() * rowsOfSum(cast<ReduceOp>(op)); };
  int64_t bytes = 0;
  for (Operation *op : plan.reductions)
    bytes += bytesOf(op);
  Value own = ptx.mul(rank(), slotBytes / team);
  Value done = barrier(Summed, ptx.bits(chunk, chunksOfSums() - 1));
  ptx.arrive(done);
  forPeers([&](Value rank) {
    Value there = ptx.inBlock(done, rank);
    ptx.arriveThereExpecting(there, bytes);
    for (Operation *op : plan.reductions) {
      Value at = ptx.add(sumsOf(chunk, op), own);
      ptx.copyThere(ptx.inBlock(at, rank), at, bytesOf(op), there);
    }
  });
}

void RoleEmitter::forPeers(llvm::function_ref<void(Value)> body) {
  for (int64_t i = 1; i < team; ++i)
    body(ptx.bits(ptx.add(rank(), i), team - 1));
}
