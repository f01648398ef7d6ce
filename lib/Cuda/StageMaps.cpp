// Functions of an input's rows that stages of matrices apply to what they copy, instead of reading what a
// kernel before has made of them.
#include "lib/Cuda/StageCutter.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Those that one stage of matrices alone takes: what several read is rounded once for all, so that the errors
// of a quotient's parts are the same. A stage of vectors reads what the others do, where it takes part in it
// at all; and what decays is summed, or walked, as it is in memory.
void StageCutter::findMaps() {
  auto isInVectors = [&](Value value) {
    SmallVector<Value> work{value};
    while (!work.empty())
      for (Operation *user : work.pop_back_val().getUsers()) {
        if (isa<TransposeOp>(user))
          work.push_back(user->getResult(0));
        else if (user->getNumResults() == 1 && cores.entrywiseCoreOf(user->getResult(0)))
          return true;
      }
    return llvm::any_of(cores.cores,
                        [&](Core &core) { return core.isVector && taken[&core].contains(value); });
  };
  for (Value value : SmallVector<Value>(early.getArrayRef())) {
    auto takes = [&](Core &core) { return taken[&core].contains(value); };
    bool isTaken = llvm::count_if(cores.cores, takes) == 1;
    if (isTaken && !isInVectors(value) && !decays.contains(value) && !logs.contains(value) &&
        !bundles.contains(value) && RowMap::of(value)) {
      inPlace.insert(value);
      early.remove(value);
    }
  }
}

void StageCutter::nameMaps(Stages &stages, Names &named) {
  for (Value value : inPlace) {
    named.push_back({value, "recur.map." + std::to_string(named.size())});
    StringAttr source = rule.getArg(RowMap::of(value)->source).getName();
    stages.maps.push_back({named.back().second, source.str(), stage({}, Names{named.back()}, 0)});
  }
}
