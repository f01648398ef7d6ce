// The kernel around the tiles: which tokens, where states come from and go to.
#include "lib/Cuda/Count.h"
#include "lib/Cuda/ScanEmitter.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

SmallVector<Value> ScanEmitter::carried() {
  if (task != ScanTask::Gather)
    return carriedOf(SmallVector<Value>(states.begin(), states.end()));
  SmallVector<Value> values;
  for (TileMaps &map : gathered)
    for (const EntryMap &entry : map.entries)
      llvm::append_range(values, builder.filled(*map.board->group, entry).flat());
  return values;
}

void ScanEmitter::setAllCarried(ValueRange values) {
  if (task != ScanTask::Gather)
    return setCarried(values);
  for (TileMaps &map : gathered)
    for (EntryMap &entry : map.entries) {
      entry = EntryMap::ofFlat(SmallVector<Value>(values.take_front(map.board->components())),
                               map.board->group->states.size());
      values = values.drop_front(map.board->components());
    }
}

// Sequences shorter than a run, which any group could do: all do, and the first one writes.
LogicalResult ScanEmitter::runShort(TensorAccess &access) {
  LogicalResult status = success();
  Value writes;
  if (group)
    writes = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, group, threads.constant(0));
  auto loop = threads.forLoop(i64(0), tokens, i64(1), carried(), [&](Value token, ValueRange values) {
    setAllCarried(values);
    Run run = startRun(access, fetchRun(access, token, 1), token, 1);
    status = walkAlone(access, run, writes);
    return carried();
  });
  setAllCarried(loop.getResults());
  return status;
}

// A part of the sequence tile by tile: a body is given the first token of each, what is carried on, and the
// thread's inputs. What is carried at last.
SmallVector<Value> ScanEmitter::forTiles(TensorAccess &access, ArrayRef<Value> inits, BeginFunction beginOf,
                                         TileBody body) {
  if (makeRing(access))
    return forTilesInRing(access, inits, beginOf, body);
  size_t kept = inits.size();
  SmallVector<Value> all(inits);
  llvm::append_range(all, fetchRun(access, beginOf(i64(0)), shape.run));
  int64_t tile = shape.tokens();
  auto loop = threads.forLoop(i64(0), tokens, i64(tile), all, [&](Value first, ValueRange values) {
    // The next tile's inputs are on their way while this one is worked on.
    Value next = arith::AddIOp::create(b, first, i64(tile));
    SmallVector<Value> ahead = fetchRun(access, beginOf(next), shape.run);
    SmallVector<Value> results = body(first, values.take_front(kept), values.drop_front(kept));
    llvm::append_range(results, ahead);
    return results;
  });
  return SmallVector<Value>(loop.getResults().take_front(kept));
}

// What groups carry on from tile to tile, at first.
void ScanEmitter::beginTiles() {
  if (isGrouped() && task == ScanTask::Gather) {
    for (const MapBoard &board : boards[0])
      forEntries(board, [&](Value at) {
        for (auto [i, value] : llvm::enumerate(builder.identity(*board.group).flat()))
          threads.storeElement(board.carried, threads.constant(i), at, value);
      });
    NVVM::Barrier0Op::create(b);
  } else if (isGrouped() && task == ScanTask::Whole) {
    carryStates();
  }
}

// And at last.
void ScanEmitter::endTiles() {
  if (task != ScanTask::Gather)
    return loadCarried();
  for (TileMaps &map : gathered) {
    SmallVector<Tile> components;
    for (size_t i = 0; i < map.board->components(); ++i)
      components.push_back(
          threads.load(row(map.board->carried, {}, i, *map.board), map.board->type, map.tile.axis));
    for (auto [e, entry] : llvm::enumerate(map.entries)) {
      SmallVector<Value> values;
      for (const Tile &component : components)
        values.push_back(component.entries[e]);
      entry = EntryMap::ofFlat(values, map.board->group->states.size());
    }
  }
}

LogicalResult ScanEmitter::runTiles(TensorAccess &access) {
  int64_t count = shape.run, tile = shape.tokens();
  beginTiles();
  // The run of this thread's group: at the end of the sequence it begins earlier, and the first tokens do not
  // count.
  Value last = arith::SubIOp::create(b, tokens, i64(count));
  auto runOf = [&](Value begin) -> Value {
    if (!group)
      return begin;
    Value offset = arith::MulIOp::create(b, group, threads.constant(count));
    return arith::AddIOp::create(b, begin, arith::ExtUIOp::create(b, b.getI64Type(), offset));
  };
  auto clamped = [&](Value begin) -> Value { return arith::MinSIOp::create(b, begin, last); };
  SmallVector<Value> inits;
  if (!isGrouped())
    inits = carried();
  size_t kept = inits.size();
  LogicalResult status = success();
  auto beginOf = [&](Value first) { return clamped(runOf(first)); };
  auto loop = forTiles(access, inits, beginOf, [&](Value first, ValueRange values, ValueRange fetched) {
    Value from = runOf(first), begin = clamped(from);
    Value next = arith::AddIOp::create(b, first, i64(tile));
    SmallVector<Type> types(kept, b.getF32Type());
    Value isFull = arith::CmpIOp::create(b, arith::CmpIPredicate::sle, next, tokens);
    auto branch = scf::IfOp::create(b, types, isFull, true);
    for (bool full : {true, false}) {
      OpBuilder::InsertionGuard guard(b);
      Block *block = full ? branch.thenBlock() : branch.elseBlock();
      if (kept)
        b.setInsertionPointToStart(block);
      else
        b.setInsertionPoint(block->getTerminator());
      if (kept)
        setAllCarried(values);
      Run run = startRun(access, fetched, full ? from : begin, count);
      for (int64_t i = 0; i < count && !full; ++i)
        run.valid[i] = arith::CmpIOp::create(b, arith::CmpIPredicate::sge,
                                             arith::AddIOp::create(b, begin, i64(i)), from);
      if (succeeded(status))
        status = isGrouped() ? walkGroups(access, run) : walkAlone(access, run, {});
      if (kept)
        scf::YieldOp::create(b, carried());
    }
    return SmallVector<Value>(branch.getResults());
  });
  if (isGrouped())
    endTiles();
  else
    setAllCarried(loop);
  return status;
}

LogicalResult ScanEmitter::run(LLVM::LLVMFuncOp function, int64_t sharedLimit) {
  threads.sharedLimit = sharedLimit;
  TensorAccess access(threads, function.getArgument(0), tensors, /*packed=*/true);
  auto shared = function->getParentOfType<ModuleOp>().lookupSymbol<LLVM::GlobalOp>("recur_shared");
  Value base = LLVM::AddressOfOp::create(b, shared);
  threads.begin(base, base);
  if (isGrouped())
    group = arith::DivUIOp::create(b, threads.threadIndex(), threads.constant(shape.grid.threads));
  bool segmented = task != ScanTask::Whole;
  Part part = findPart(threads, access, entry.shards, shape.slab, segmented ? shape.tokens() : 0);
  setPart(part);
  findStages();
  makeBoards();
  if (segmented) {
    for (const MapBoard &board : boards[0])
      entry.scratchBytes += board.components() * board.size() * 4;
    entry.scratchBytes = llvm::alignTo(entry.scratchBytes, 16);
    scratch = access.pointer(TensorAccess::Scratch);
  }
  LogicalResult status = success();
  threads.when(part.isPresent, [&] {
    status = beginSequence(access);
    if (failed(status))
      return;
    if (task == ScanTask::Segments)
      beginSegment(part);
    if (task == ScanTask::Gather) {
      gathered = makeMaps(0);
      for (TileMaps &map : gathered)
        map.entries.assign(map.entries.size(), builder.identity(*map.board->group));
    }
    if (shape.sums) {
      status = runSums(access);
    } else {
      SmallVector<Value> start = carried();
      Value isLong = arith::CmpIOp::create(b, arith::CmpIPredicate::sge, tokens, i64(shape.run));
      auto choice = scf::IfOp::create(b, TypeRange(ValueRange(start)), isLong, true);
      for (bool tiles : {true, false}) {
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToStart(tiles ? choice.thenBlock() : choice.elseBlock());
        setAllCarried(start);
        if (succeeded(status))
          status = tiles ? runTiles(access) : runShort(access);
        scf::YieldOp::create(b, carried());
      }
      setAllCarried(choice.getResults());
    }
    if (failed(status))
      return;
    Value isFirst;
    if (group)
      isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, group, threads.constant(0));
    if (task == ScanTask::Gather) {
      int64_t before = 0;
      threads.when(isFirst, [&] {
        for (TileMaps &map : gathered) {
          const MapBoard &board = *map.board;
          if (map.tile.axis != placement.anyOf(states[board.group->states[0]]))
            continue;
          Staged rows{scratchOf(part.block), int64_t(before + board.components()), board.size()};
          for (size_t i = 0; i < board.components(); ++i) {
            Tile tile = map.tile;
            for (const EntryMap &entry : map.entries)
              tile.entries.push_back(entry.flat()[i]);
            storeTile(row(rows, {}, before + i, board), tile);
          }
          before += board.components();
        }
      });
      return;
    }
    if (task == ScanTask::Segments)
      isFirst = threads.both(
          isFirst, arith::CmpIOp::create(b, arith::CmpIPredicate::eq, part.segment,
                                         arith::SubIOp::create(b, part.segments, threads.constant(1))));
    for (unsigned i = 0; i < states.size(); ++i)
      threads.when(threads.both(isFirst, access.isGiven(finalTensor(i))), [&] {
        access.store(finalTensor(i), body.get(states[i], placement.anyOf(states[i])), Value());
      });
  });
  describeLoops(function.getBody(), form.phases.empty() ? "turns" : "scan", 1,
                llvm::divideCeil(entry.threads, 32));
  LLVM::ReturnOp::create(b, ValueRange());
  entry.sharedBytes = threads.sharedBytes;
  return failure(failed(status) || threads.scratchBytes);
}

// The largest part of some rows, at least 16 and a multiple of 4; else all of them.
static int64_t partOf(int64_t rows, int64_t most) {
  for (int64_t part = most; part >= 16 && rows > most; part -= 4)
    if (rows % part == 0)
      return part;
  return rows;
}

std::optional<ScanShape> cuda::chooseScanShape(RuleOp rule, const ScanForm &form,
                                               ArrayRef<TensorArgument> tensors, const IndexClasses &classes,
                                               unsigned index) {
  constexpr int64_t mostEntries = 16;
  // Numbers: as many groups as their maps leave registers for.
  if (!index &&
      llvm::all_of(rule.argumentsOf(ArgKind::State), [](Value state) { return matType(state).isScalar(); }))
    return ScanShape{Grid{1, 1, 64}, /*run=*/8, /*slab=*/1};
  if (!index)
    return std::nullopt;
  int64_t rows = classes.sizeOf(index), cols = 1;
  for (Value state : rule.argumentsOf(ArgKind::State)) {
    if (classes.classOf(state, 0) != index)
      return std::nullopt;
    cols = std::max(cols, matType(state).numCols());
  }
  ScanShape shape;
  // Where entries are summed, a warp has all of them.
  bool isWhole = !classes.isIndependent(index);
  if (isWhole && cols > 1)
    return std::nullopt;
  if (cols == 1) {
    // Runs of 8 tokens if the maps and inputs of all of them fit into registers, the next ones' inputs beside
    // them.
    constexpr int64_t owned = 4, mostBits = 112 * 32;
    int64_t bits = 0;
    for (const auto &phase : form.phases)
      for (const ScanGroup &group : phase)
        bits += 32 * (group.factors.size() + group.writes.size());
    for (const TensorArgument &tensor : tensors)
      if (tensor.argument && tensor.hasToken)
        bits += FloatType(tensor.element).getWidth();
    // Few registers a token are few inputs, which memory gives best by wide rows.
    bool isLight = 8 * owned * bits <= mostBits;
    shape.run = isLight ? 8 : 4;
    shape.slab = partOf(rows, isLight ? 64 : 32);
    shape.grid = isLight ? Grid{16, 1, 8} : Grid{8, 1, 16};
    if (isWhole) {
      // A block has all that a head's processor works on, so it has many threads, of few registers.
      shape.run = 2 * 8 * owned * bits <= mostBits ? 8 : 4;
      shape.slab = rows;
      shape.grid = {32, 1, 16};
      if ((shape.sums = findSumReads(rule, form, tensors))) {
        shape.run = 16;
        shape.grid = {32, 1, 8};
      }
    }
  } else {
    // Rows of several entries: enough of them for all threads without other groups. Of wide ones a thread has
    // twice as many, so that fewer threads share a sum, and runs are short, as registers are few.
    bool isWide = cols > 16;
    int64_t lanes = std::clamp<int64_t>(llvm::PowerOf2Ceil(cols) / (isWide ? 8 : 4), 1, 32);
    int64_t threads = std::clamp<int64_t>(lanes * (isWide ? 8 : 16), 32, 256);
    shape.run = isWide ? 4 : 8;
    shape.slab = partOf(rows, std::min<int64_t>(2 * threads / lanes, 32));
    shape.grid = {threads, lanes, 1};
  }
  int64_t entries = shape.grid.owned(shape.slab, 0) * shape.grid.owned(cols, 1);
  if (entries > mostEntries)
    return std::nullopt;
  return shape;
}

std::optional<ScanShape> cuda::chooseTurnsShape(RuleOp rule, const IndexClasses &classes, unsigned index) {
  constexpr int64_t mostOwned = 8;
  for (BlockArgument state : rule.argumentsOf(ArgKind::State))
    if (!matType(state).isScalar() && (classes.classOf(state, 0) != index || matType(state).numCols() > 1))
      return std::nullopt;
  // What memory has of numbers is far apart, so that many are asked for at once.
  if (!index)
    return ScanShape{Grid{32, 1, 1}, /*run=*/32, /*slab=*/1};
  int64_t rows = classes.sizeOf(index);
  ScanShape shape{Grid{32, 1, 1}, /*run=*/16, classes.isIndependent(index) ? partOf(rows, 32) : rows};
  int64_t owned = shape.grid.owned(shape.slab, 0);
  if (owned > 1)
    shape.run = 8;
  return owned > mostOwned ? std::nullopt : std::optional(shape);
}

LogicalResult cuda::emitScan(LLVM::LLVMFuncOp function, RuleOp rule, const ScanForm &form,
                             ArrayRef<TensorArgument> tensors, const ScanShape &shape, ScanTask task,
                             int64_t sharedLimit, Entry &entry) {
  ImplicitLocOpBuilder b(rule.getLoc(), rule.getContext());
  b.setInsertionPointToStart(&function.getBody().front());
  Placement placement(rule, shape.grid);
  ScanEmitter emitter(b, rule, form, tensors, shape, placement, task, entry);
  if (failed(emitter.run(function, sharedLimit)))
    return failure();
  relaxMath(function, tensors);
  return success();
}
