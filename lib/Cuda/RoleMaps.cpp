// Functions of rows in place. A feature map of a query or key, a norm of one, or both, would be a kernel of
// its own before the states', which reads a tensor and writes another one of as many bytes: as long as the
// states' kernel waits for memory altogether. Here the copy engine brings rows as they are, and the warps
// that sum over rows (or those of scores, where these have time) put in their place what the function makes
// of them, before anyone else reads them.
//
// Of a row of 128 entries each of 8 lanes has two packets of 8, so that sums over it are three shuffles.
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/Count.h"
#include "lib/Cuda/Roles.h"
#include "lib/Cuda/Sequential.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

LogicalResult RolePlan::takeMaps(const RowMaps &known) {
  for (ArrayRef<BlockArgument> together : inputs)
    for (BlockArgument input : together) {
      llvm::SmallSetVector<StringRef, 2> names;
      bool isWhole = true;
      for (std::optional<unsigned> tensor : tensorsOf(input)) {
        isWhole &= tensor.has_value();
        BlockArgument argument = tensor ? tensors[*tensor].argument : BlockArgument();
        auto rule = argument ? dyn_cast<RuleOp>(argument.getOwner()->getParentOp()) : RuleOp();
        names.insert(rule ? rule.getArg(argument).getName().getValue() : StringRef());
      }
      if (llvm::none_of(names, [&](StringRef name) { return known.contains(name); }))
        continue;
      if (scaling)
        return failure();
      // All rows of a tile are made alike.
      const RowMap *map = nullptr;
      for (StringRef name : names) {
        auto own = known.find(name);
        if (own == known.end() || (map && map->text() != own->second.text()))
          return failure();
        map = &own->second;
      }
      // Those of a slab may be in several blocks. A state keeps rows of the token before as they are in
      // memory.
      if (!isWhole || rotated || areColumns(input) ||
          (isSlab(input) && (!map->isEntrywise || !map->params.empty())))
        return failure();
      maps[input] = *map;
      // Who walks channels has functions of its own; many products beside a system leave a fifth warpgroup no
      // registers.
      if (!isMapOfChain(*this, input) &&
          (decay || states > 1 || (system && (steps > 1 || hasManyProducts()))))
        return failure();
    }
  return success();
}

bool cuda::isMapOfChain(const RolePlan &plan, BlockArgument input) {
  return plan.maps.contains(input) && plan.isSlab(input) && !plan.isForScores(input);
}

bool cuda::mapsInPlace(const RolePlan &plan) {
  return plan.scaling ||
         llvm::any_of(plan.maps, [&](const auto &map) { return !isMapOfChain(plan, map.first); });
}

bool RoleForm::sharesMap(const RolePlan &plan, BlockArgument input) const {
  return team > 1 && plan.steps == 1 && plan.maps.contains(input) && !plan.isSlab(input) && mapsApart(plan);
}

// They take long for two warps, and one slab leaves registers.
bool RoleForm::mapsApart(const RolePlan &plan) const {
  return phase != Phase::Chain && phase != Phase::Prepare && mapsInPlace(plan) && !plan.scaling &&
         slabs(plan) == 1 && plan.states == 1 && !sumsApart(plan);
}

bool RoleForm::sharesMaps(const RolePlan &plan) const {
  return llvm::any_of(copiedInputs(plan, phase), [&](BlockArgument input) { return sharesMap(plan, input); });
}

llvm::SetVector<Value> RolePlan::paramsOf(const RowMap &map) const {
  llvm::SetVector<Value> params;
  for (BlockArgument param : map.params) {
    StringRef name = cast<RuleOp>(param.getOwner()->getParentOp()).getArg(param).getName();
    params.insert(*llvm::find_if(program.argumentsOf(ArgKind::Param), [&](BlockArgument own) {
      return program.getArg(own.getArgNumber()).getName() == name;
    }));
  }
  return params;
}

bool RoleEmitter::mapsTiles() const {
  return plan.scaling || llvm::any_of(copiedInputs(plan, phase), [&](BlockArgument input) {
           return plan.maps.contains(input) && !isMapOfChain(plan, input);
         });
}

bool RoleEmitter::scoresChange() const {
  if (plan.scaling)
    return true;
  return changesTiles() && team == 1 && !scorers.empty() && !plan.system && !plan.decay &&
         !form.sumsApart(plan) && !form.mapsApart(plan);
}

// Waits for tiles to be what all read.
void RoleEmitter::awaitChanged(Stage stage) {
  ptx.await(barrier(Changed, stage.index), stage.phase);
  if (form.sharesMaps(plan))
    ptx.await(barrier(MapsFull, stage.index), stage.phase);
}

void RoleEmitter::emitMaps(Value chunks) {
  forChunks(chunks, {}, [&](Value chunk, Stage stage, ValueRange) {
    ptx.await(barrier(Loaded, stage.index), stage.phase);
    changeTiles(chunk, stage);
    ptx.arrive(barrier(Changed, stage.index));
    if (form.sharesMaps(plan)) {
      ptx.meet(ptx.constant(14), 128);
      inOneThread([&] { giveMaps(stage); });
    }
    return Values();
  });
}

void RoleEmitter::changeTiles(Value chunk, Stage stage) {
  if (turnsColumns())
    turnColumns(stage);
  else
    mapTiles(chunk, stage);
  ptx.fenceProxy();
}

namespace {
// What a lane has of a row, and what follows from it.
class RowOfLane {
public:
  RowOfLane(OpBuilder &b, Ptx &ptx, const RowMap &map, Value lane, int64_t lanes)
      : b(b), ptx(ptx), map(map), lane(lane), lanes(lanes) {}

  Value entry(Value value, unsigned e);

  Values own;                           // entries of the input
  llvm::DenseMap<Value, Values> params; // and of params
  Values present;                       // whether a packet's are there; empty where all are

private:
  Value reduced(ReduceOp op);
  Value lowered(Operation *op, unsigned e);

  OpBuilder &b;
  Ptx &ptx;
  const RowMap &map;
  Value lane;
  int64_t lanes;
  llvm::DenseMap<std::pair<Value, unsigned>, Value> known;
  llvm::DenseMap<Value, Value> inverses;
};
} // namespace

Value RowOfLane::reduced(ReduceOp op) {
  bool isSum = op.getKind() == Reduction::Sum;
  auto join = [&](Value x, Value y) -> Value {
    return isSum ? ptx.sum(x, y) : arith::MaximumFOp::create(b, op.getLoc(), x, y).getResult();
  };
  Value neutral = ptx.number(isSum ? 0 : -std::numeric_limits<double>::infinity());
  // Two sums that do not wait for each other.
  Value partial[2];
  for (unsigned e = 0; e < own.size(); ++e) {
    Value x = entry(op.getOperand(), e);
    if (!present.empty())
      x = ptx.choose(present[e / 8], x, neutral);
    Value &sum = partial[e % 2];
    sum = sum ? join(sum, x) : x;
  }
  Value all = join(partial[0], partial[1]);
  for (int64_t distance = 1; distance < lanes; distance *= 2)
    all = join(all, ptx.exchange(all, distance));
  return all;
}

Value RowOfLane::lowered(Operation *op, unsigned e) {
  if (auto reduce = dyn_cast<ReduceOp>(op))
    return reduced(reduce);
  if (auto constant = dyn_cast<ConstantOp>(op))
    return ptx.number(constant.getValue().convertToDouble());
  if (isa<BroadcastOp>(op))
    return entry(op->getOperand(0), e);
  if (auto quotient = dyn_cast<DivOp>(op); quotient && isNumber(quotient.getRhs())) {
    Value &inverse = inverses[stripOrientation(quotient.getRhs())];
    if (!inverse)
      inverse = ptx.reciprocal(entry(quotient.getRhs(), 0));
    return ptx.multiply(entry(quotient.getLhs(), e), inverse);
  }
  Values operands;
  for (Value operand : op->getOperands())
    operands.push_back(entry(operand, e));
  return cast<ElementwiseOp>(op).lower(b, op->getLoc(), operands);
}

Value RowOfLane::entry(Value value, unsigned e) {
  value = stripOrientation(value);
  if (value == map.source)
    return own[e];
  if (auto param = params.find(value); param != params.end())
    return param->second[isNumber(value) ? 0 : e];
  std::pair<Value, unsigned> key{value, isNumber(value) ? 0 : e};
  if (Value found = known.lookup(key))
    return found;
  Value made = lowered(value.getDefiningOp(), e);
  return known[key] = made;
}

// Tiles that the same function makes are made by the same code.
void RoleEmitter::mapTiles(Value chunk, Stage stage) {
  auto mapOf = [&](BlockArgument input) -> const RowMap & { return plan.maps.find(input)->second; };
  SmallVector<SmallVector<BlockArgument>> groups;
  for (BlockArgument input : copiedInputs(plan, phase)) {
    if (!plan.maps.contains(input) || isMapOfChain(plan, input))
      continue;
    auto *group = llvm::find_if(groups, [&](ArrayRef<BlockArgument> inputs) {
      BlockArgument first = inputs.front();
      return mapOf(first).text() == mapOf(input).text() && halvesOf(first) == halvesOf(input) &&
             halfStride(first) == halfStride(input) && plan.filledRows(first) == plan.filledRows(input) &&
             form.sharesMap(plan, first) == form.sharesMap(plan, input);
    });
    group == groups.end() ? groups.push_back({input}) : group->push_back(input);
  }
  for (ArrayRef<BlockArgument> inputs : groups) {
    BlockArgument first = inputs.front();
    const RowMap &map = mapOf(first);
    int64_t halves = halvesOf(first), lanes = 4 * halves, together = 32 / lanes;
    bool isShared = form.sharesMap(plan, first);
    int64_t filled = plan.filledRows(first) / (isShared ? team : 1), rows = llvm::alignTo(filled, together);
    int64_t warps = changesAhead() ? 4 : sumWarps();
    int64_t size = plan.tensors[plan.tensorOf(first)].inMemory[0];
    bool isPadded = size && !plan.isSlab(first);
    Value own = ptx.bits(lane, lanes - 1), inTile = ptx.shiftRight(lane, llvm::Log2_64(lanes));
    Value left = isShared ? tokensLeft(chunk) : Value();
    // Of rows of 64 entries the odd ones begin with their other half, for the sake of banks.
    Value packet = halves > 1 ? own : ptx.add(own, ptx.mul(ptx.bits(inTile, 1), 4));
    Value inRow = ptx.mul(ptx.shiftRight(packet, 3), halfStride(first));
    int64_t all = rows * int64_t(inputs.size()), step = warps * together;
    // The places of a lane's two packets, and whether they are rows that there are.
    struct Place {
      Value first, second, isFilled;
    };
    auto placeOf = [&](Value at) {
      Value tile = tileAt(stage, first), begin = ptx.constant(0);
      for (size_t i = 1; i < inputs.size(); ++i) {
        Value is = ptx.compare(arith::CmpIPredicate::uge, at, ptx.constant(i * rows));
        tile = ptx.choose(is, tileAt(stage, inputs[i]), tile);
        begin = ptx.choose(is, ptx.constant(i * rows), begin);
      }
      Value row = ptx.add(arith::SubIOp::create(b, at, begin), inTile), isFilled;
      if (filled < rows)
        isFilled = ptx.below(row, ptx.constant(filled));
      // What others get is cleared past a sequence's end before.
      if (isShared) {
        row = ptx.add(row, ptx.mul(rank(), rows));
        isFilled = ptx.below(row, left);
      }
      Value from = ptx.add(ptx.add(tile, inRow), ptx.mul(row, rowBytes));
      from = ptx.add(from, ptx.mul(ptx.exclusiveOr(ptx.bits(packet, 7), ptx.bits(row, 7)), 16));
      Value second = halves > 1 ? ptx.add(from, halves / 2 * halfStride(first))
                                : ptx.exclusiveOr(from, ptx.constant(64));
      return Place{from, second, isFilled};
    };
    // Loads take long where products read as much of shared memory: those of the next rows are on their way
    // while these are made.
    auto fetch = [&](Value at) {
      Place place = placeOf(at);
      Values pairs = ptx.load(place.first, 0, 4, b.getI32Type());
      llvm::append_range(pairs, ptx.load(place.second, 0, 4, b.getI32Type()));
      return pairs;
    };
    Value begin = ptx.mul(ptx.bits(warp, warps - 1), together), end = ptx.constant(all);
    auto within = [&](Value at, Value otherwise) { return ptx.choose(ptx.below(at, end), at, otherwise); };
    auto entriesOf = [&](BlockArgument param, Value ofProgram) {
      if (isNumber(param))
        return ptx.loadFloats(base, vectorAt(ofProgram), 1);
      Values entries;
      for (Value number : {packet, ptx.exclusiveOr(packet, ptx.constant(lanes))}) {
        if (isPadded) // there is a place to be read
          number = ptx.choose(ptx.below(number, ptx.constant(size / 8)), number, ptx.constant(0));
        for (int64_t four : {0, 1})
          llvm::append_range(entries, ptx.loadFloats(ptx.add(base, ptx.mul(number, 32)),
                                                     vectorAt(ofProgram) + 16 * four, 4));
      }
      return entries;
    };
    auto body = [&](Value at, ValueRange fetched) {
      Values next = fetch(within(ptx.add(at, step), at));
      RowOfLane row(b, ptx, map, lane, lanes);
      for (Value pair : fetched)
        llvm::append_range(row.own, ptx.unpack(pair));
      for (auto [param, ofProgram] : llvm::zip(map.params, plan.paramsOf(map)))
        row.params[param] = entriesOf(param, ofProgram);
      if (isPadded)
        for (Value number : {packet, ptx.exclusiveOr(packet, ptx.constant(lanes))})
          row.present.push_back(ptx.below(number, ptx.constant(size / 8)));
      Place place = placeOf(at);
      Values made;
      for (unsigned e = 0; e < 16; e += 2) {
        made.push_back(ptx.pack(row.entry(map.result, e), row.entry(map.result, e + 1)));
        // What is not there stays zero.
        for (Value is : {isPadded ? row.present[e / 8] : Value(), place.isFilled})
          if (is)
            made.back() = ptx.choose(is, made.back(), ptx.constant(0));
      }
      ptx.store(place.first, 0, ArrayRef(made).take_front(4));
      ptx.store(place.second, 0, ArrayRef(made).drop_front(4));
      return next;
    };
    auto loop = threads.forLoop(begin, end, ptx.constant(step), fetch(within(begin, ptx.constant(0))), body);
    loop.walk(relax); // of rows of 16 bits
    describeTrips(loop, llvm::divideCeil(all, step));
  }
}

// Gives the rows that this block has made to the others of the team. Its loader has waited until all have
// done with what was in this place.
void RoleEmitter::giveMaps(Stage stage) {
  SmallVector<BlockArgument> shared;
  llvm::copy_if(copiedInputs(plan, phase), std::back_inserter(shared),
                [&](BlockArgument input) { return form.sharesMap(plan, input); });
  int64_t bytes = plan.tokens / team * rowBytes, all = 0;
  for (BlockArgument input : shared)
    all += halvesOf(input) * bytes;
  Value own = ptx.mul(rank(), bytes);
  forPeers([&](Value rank) {
    Value there = ptx.inBlock(barrier(MapsFull, stage.index), rank);
    ptx.arriveThereExpecting(there, all);
    for (BlockArgument input : shared)
      for (int64_t half = 0; half < halvesOf(input); ++half) {
        Value at = ptx.add(ptx.add(tileAt(stage, input), half * halfStride(input)), own);
        ptx.copyThere(ptx.inBlock(at, rank), at, bytes, there);
      }
  });
}

// What the chain has read of an input, made what the function makes of it.
Values &RoleEmitter::mapPairs(BlockArgument input, Values &pairs) {
  if (!isMapOfChain(plan, input))
    return pairs;
  const RowMap &map = plan.maps.find(input)->second;
  Relaxing listener;
  OpBuilder relaxed(b.getContext(), &listener);
  relaxed.setInsertionPoint(b.getInsertionBlock(), b.getInsertionPoint());
  for (Value &pair : pairs) {
    RowOfLane row(relaxed, ptx, map, lane, 1);
    row.own = ptx.unpack(pair);
    pair = ptx.pack(row.entry(map.result, 0), row.entry(map.result, 1));
  }
  return pairs;
}
