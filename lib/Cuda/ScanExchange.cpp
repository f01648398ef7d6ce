// The maps of runs, and what a block's threads make of them together.
#include "lib/Cuda/ScanEmitter.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

void ScanEmitter::makeBoards() {
  for (const auto &groups : form.phases) {
    auto &phase = boards.emplace_back();
    for (const ScanGroup &group : groups) {
      MapBoard board{&group, matType(states[group.states[0]]), {}, {}};
      if (isGrouped())
        board.maps = threads.allocate(shape.grid.groups * board.components(), board.size());
      if (isGrouped() || task == ScanTask::Segments)
        board.carried = threads.allocate(board.components(), board.size());
      phase.push_back(board);
    }
  }
}

SmallVector<ScanEmitter::TileMaps> ScanEmitter::makeMaps(unsigned phase) {
  SmallVector<TileMaps> maps;
  for (const MapBoard &board : boards[phase])
    forLayouts(states[board.group->states[0]], [&](Axis axis) {
      Tile tile = threads.shape(board.type, axis);
      size_t entries = tile.rows * tile.cols;
      maps.push_back({&board, std::move(tile), SmallVector<EntryMap>(entries)});
    });
  return maps;
}

void ScanEmitter::addToken(SmallVectorImpl<TileMaps> &maps, BodyEmitter &token, Value valid) {
  for (TileMaps &map : maps) {
    const ScanGroup &group = *map.board->group;
    for (int64_t r = 0; r < map.tile.rows; ++r)
      for (int64_t c = 0; c < map.tile.cols; ++c) {
        auto entry = [&](Value value) { return value ? token.like(value, map.tile).at(r, c) : Value(); };
        EntryMap next;
        next.factors = llvm::map_to_vector<4>(group.factors, entry);
        next.writes = llvm::map_to_vector<2>(group.writes, entry);
        if (valid)
          next = builder.where(group, valid, next);
        EntryMap &sum = map.entries[r * map.tile.cols + c];
        sum = sum.factors.empty() ? next : builder.compose(group, next, sum);
      }
  }
}

// One row, or one of each of a group's components, as a state's matrix.
Staged ScanEmitter::row(const Staged &rows, Value first, int64_t more, const MapBoard &board) {
  Value at = threads.constant(more);
  if (first)
    at = arith::AddIOp::create(b, first, at);
  return {threads.element(rows, at, threads.constant(0)), board.type.numRows(), board.type.numCols()};
}

void ScanEmitter::storeTile(const Staged &to, const Tile &tile) { threads.store(to, tile); }

// Shares out a state's entries to all threads of the block.
void ScanEmitter::forEntries(const MapBoard &board, llvm::function_ref<void(Value)> body) {
  int64_t all = entry.threads;
  for (int64_t first = 0; first < board.size(); first += all) {
    Value at = arith::AddIOp::create(b, threads.threadIndex(), threads.constant(first));
    Value exists;
    if (first + all > board.size())
      exists = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, at, threads.constant(board.size()));
    threads.when(exists, [&] { body(at); });
  }
}

// What the maps of all groups' runs, as they lie on a board, make of the states: where each begins from, in
// the place of what it writes; or, of a segment, what all together make of any state.
void ScanEmitter::combineRuns(const MapBoard &board, bool gather) {
  size_t n = board.group->states.size(), factors = board.group->factors.size();
  forEntries(board, [&](Value at) {
    auto load = [&](const Staged &rows, int64_t first, size_t count) {
      SmallVector<Value> values;
      for (size_t i = 0; i < count; ++i)
        values.push_back(threads.loadElement(rows, threads.constant(first + i), at));
      return values;
    };
    auto store = [&](const Staged &rows, int64_t first, ArrayRef<Value> values) {
      for (auto [i, value] : llvm::enumerate(values))
        threads.storeElement(rows, threads.constant(first + i), at, value);
    };
    SmallVector<EntryMap> all;
    for (int64_t g = 0; g < shape.grid.groups; ++g)
      all.push_back(EntryMap::ofFlat(load(board.maps, g * board.components(), board.components()), n));
    if (gather) {
      EntryMap sum = EntryMap::ofFlat(load(board.carried, 0, board.components()), n);
      for (const EntryMap &next : all)
        sum = builder.compose(*board.group, next, sum);
      return store(board.carried, 0, sum.flat());
    }
    SmallVector<Value> current = load(board.carried, 0, n);
    for (auto [g, next] : llvm::enumerate(all)) {
      store(board.maps, g * board.components() + factors, current);
      current = builder.apply(*board.group, next, current);
    }
    store(board.carried, 0, current);
  });
}

void ScanEmitter::exchange(MutableArrayRef<TileMaps> maps, bool gather) {
  for (TileMaps &map : maps) {
    const MapBoard &board = *map.board;
    if (map.tile.axis != placement.anyOf(states[board.group->states[0]]))
      continue;
    Value mine = arith::MulIOp::create(b, group, threads.constant(board.components()));
    SmallVector<SmallVector<Value>> flat;
    for (const EntryMap &entry : map.entries)
      flat.push_back(builder.filled(*board.group, entry).flat());
    for (size_t component = 0; component < board.components(); ++component) {
      Tile tile = map.tile;
      for (ArrayRef<Value> entry : flat)
        tile.entries.push_back(entry[component]);
      storeTile(row(board.maps, mine, component, board), tile);
    }
  }
  NVVM::Barrier0Op::create(b);
  for (TileMaps &map : maps)
    if (map.tile.axis == placement.anyOf(states[map.board->group->states[0]]))
      combineRuns(*map.board, gather);
  NVVM::Barrier0Op::create(b);
  if (gather)
    return;
  for (TileMaps &map : maps) {
    const MapBoard &board = *map.board;
    Value mine = arith::MulIOp::create(b, group, threads.constant(board.components()));
    for (auto [i, state] : llvm::enumerate(board.group->states))
      body.set(states[state], threads.load(row(board.maps, mine, board.group->factors.size() + i, board),
                                           board.type, map.tile.axis));
  }
}

// Lays the states where they are carried from tile to tile.
void ScanEmitter::carryStates() {
  Value isFirst =
      group ? arith::CmpIOp::create(b, arith::CmpIPredicate::eq, group, threads.constant(0)).getResult()
            : Value();
  for (const auto &phase : boards)
    for (const MapBoard &board : phase)
      threads.when(isFirst, [&] {
        for (auto [i, state] : llvm::enumerate(board.group->states))
          storeTile(row(board.carried, {}, i, board),
                    body.get(states[state], placement.anyOf(states[state])));
      });
  NVVM::Barrier0Op::create(b);
}

void ScanEmitter::loadCarried() {
  for (const auto &phase : boards)
    for (const MapBoard &board : phase)
      for (auto [i, state] : llvm::enumerate(board.group->states))
        forLayouts(states[state], [&, i = i, state = state](Axis axis) {
          body.set(states[state], threads.load(row(board.carried, {}, i, board), board.type, axis));
        });
}

// The block's part of the workspace.
Value ScanEmitter::scratchOf(Value block) {
  Value bytes =
      arith::MulIOp::create(b, arith::ExtUIOp::create(b, b.getI64Type(), block), i64(entry.scratchBytes));
  return LLVM::GEPOp::create(b, scratch.getType(), b.getI8Type(), scratch, ValueRange{bytes});
}

// What the segments before this one make of the states.
void ScanEmitter::beginSegment(const Part &part) {
  carryStates();
  int64_t before = 0;
  for (const auto &phase : boards)
    for (const MapBoard &board : phase) {
      size_t n = board.group->states.size();
      forEntries(board, [&](Value at) {
        SmallVector<Value> start;
        for (size_t i = 0; i < n; ++i)
          start.push_back(threads.loadElement(board.carried, threads.constant(i), at));
        auto loop = threads.forLoop(
            threads.constant(0), part.segment, threads.constant(1), start,
            [&](Value segment, ValueRange current) {
              Value behind = arith::SubIOp::create(b, part.segment, segment);
              behind = arith::MulIOp::create(b, behind, threads.constant(entry.shards));
              Staged maps{scratchOf(arith::SubIOp::create(b, part.block, behind)),
                          int64_t(before + board.components()), board.size()};
              SmallVector<Value> values;
              for (size_t i = 0; i < board.components(); ++i)
                values.push_back(threads.loadElement(maps, threads.constant(before + i), at));
              return builder.apply(*board.group, EntryMap::ofFlat(values, n), SmallVector<Value>(current));
            });
        for (size_t i = 0; i < n; ++i)
          threads.storeElement(board.carried, threads.constant(i), at, loop.getResult(i));
      });
      before += board.components();
    }
  NVVM::Barrier0Op::create(b);
  loadCarried();
}
