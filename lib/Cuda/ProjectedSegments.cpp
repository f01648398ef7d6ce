// What segments of sequences hand to one another: the map of each.
#include "lib/Cuda/ProjectedScan.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

std::optional<unsigned> cuda::phaseOfSegments(const ScanForm &form, ArrayRef<Delay> delays) {
  std::optional<unsigned> found;
  for (auto [phase, groups] : llvm::enumerate(form.phases)) {
    bool isDelayed = llvm::all_of(groups, [&](const ScanGroup &group) {
      return llvm::all_of(group.states, [&](unsigned state) { return delays[state].tokens != 0; });
    });
    if (isDelayed)
      continue;
    if (found)
      return std::nullopt;
    found = phase;
  }
  return found;
}

bool ProjectedScan::isGathered(const ScanGroup &group) const {
  return task == ScanTask::Gather &&
         llvm::any_of(mapped(), [&](const ScanGroup &own) { return &own == &group; });
}

// Sets the states that are inputs of tokens before to those before the segment.
void ProjectedScan::setDelayed(TensorAccess &access, const Part &part) {
  Value isLater = arith::CmpIOp::create(b, arith::CmpIPredicate::ne, part.segment, threads.constant(0));
  for (const auto &groups : form.phases)
    if (groups.data() != mapped().data())
      for (const ScanGroup &group : groups)
        for (unsigned state : group.states)
          forLayouts(states[state], [&](Axis axis) {
            Value token = arith::SelectOp::create(b, isLater, i64(-shape.delays[state].tokens), i64(0));
            Tile tile = body.get(states[state], axis);
            Tile before = access.load(shape.delays[state].input, axis, token);
            for (auto [entry, other] : llvm::zip(tile.entries, before.entries))
              entry = arith::SelectOp::create(b, isLater, other, entry);
            body.set(states[state], tile);
          });
}

int64_t ProjectedScan::bytesOfMaps() const {
  int64_t bytes = 0;
  for (const ScanGroup &group : mapped())
    bytes +=
        (group.factors.size() + group.writes.size()) * matType(states[group.states[0]]).numElements() * 4;
  return llvm::alignTo(bytes, 16);
}

// A block's part of the workspace.
Staged ProjectedScan::mapsOf(Value block) {
  Value bytes =
      arith::MulIOp::create(b, arith::ExtUIOp::create(b, b.getI64Type(), block), i64(entry.scratchBytes));
  Value base = LLVM::GEPOp::create(b, scratch.getType(), b.getI8Type(), scratch, ValueRange{bytes});
  return {base, 1, entry.scratchBytes / 4};
}

// What comes after so many numbers of it.
static Staged numbersOf(Threads &threads, const Staged &maps, int64_t numbers, MatType type) {
  return {threads.element(maps, threads.constant(0), threads.constant(numbers)), type.numRows(),
          type.numCols()};
}

// What the segments before this one make of the states.
void ProjectedScan::beginSegment(const Part &part) {
  SmallVector<Value> start = carriedOf(SmallVector<Value>(states.begin(), states.end()));
  auto loop = threads.forLoop(
      threads.constant(0), part.segment, threads.constant(1), start, [&](Value segment, ValueRange values) {
        setCarried(values);
        Value behind = arith::SubIOp::create(b, part.segment, segment);
        behind = arith::MulIOp::create(b, behind, threads.constant(entry.shards));
        Staged all = mapsOf(arith::SubIOp::create(b, part.block, behind));
        int64_t before = 0;
        for (const ScanGroup &group : mapped()) {
          MatType type = matType(states[group.states[0]]);
          size_t n = group.states.size(), components = group.factors.size() + group.writes.size();
          forLayouts(states[group.states[0]], [&](Axis axis) {
            SmallVector<Tile> parts, next;
            for (size_t i = 0; i < components; ++i)
              parts.push_back(
                  threads.load(numbersOf(threads, all, before + i * type.numElements(), type), type, axis));
            for (unsigned state : group.states)
              next.push_back(body.get(states[state], axis));
            for (size_t e = 0; e < next[0].entries.size(); ++e) {
              auto map = llvm::map_to_vector(parts, [&](const Tile &tile) { return tile.entries[e]; });
              auto current = llvm::map_to_vector(next, [&](const Tile &tile) { return tile.entries[e]; });
              for (auto [tile, value] : llvm::zip(next, maps.apply(group, EntryMap::ofFlat(map, n), current)))
                tile.entries[e] = value;
            }
            for (auto [state, tile] : llvm::zip(group.states, next))
              body.set(states[state], tile);
          });
          before += components * type.numElements();
        }
        return carriedOf(SmallVector<Value>(states.begin(), states.end()));
      });
  setCarried(loop.getResults());
}

void ProjectedScan::storeMaps(const Part &part) {
  Staged all = mapsOf(part.block);
  Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, turn, threads.constant(0));
  threads.when(isFirst, [&] {
    int64_t before = 0;
    for (const Gathered &own : gathered) {
      if (own.tile.axis != placement.anyOf(states[own.group->states[0]]))
        continue;
      for (size_t i = 0; i < own.entries.front().flat().size(); ++i) {
        Tile tile = own.tile;
        for (const EntryMap &entry : own.entries)
          tile.entries.push_back(entry.flat()[i]);
        threads.store(numbersOf(threads, all, before, tile.type), tile);
        before += tile.type.numElements();
      }
    }
  });
}
