#include "lib/Derive/ProofRuns.h"
#include "lib/Algebra/JoinedKeys.h"
#include "mlir/IR/AttrTypeSubElements.h"

#include <random>

using namespace mlir;
using namespace recur;

void Shrinker::shrink(Operation *op) {
  // There are as many columns as are joined.
  op->walk([&](JoinOp join) {
    Attribute count = Builder(op->getContext()).getI64IntegerAttr(join.getColumns().size());
    sizes.try_emplace(count, count);
  });
  // A vector is as long as its parts are together; those that stand for a vector keep their number.
  op->walk([&](ConcatOp concat) {
    int64_t rows = 0;
    SmallVector<int64_t> firsts;
    for (Value part : concat.getParts()) {
      Attribute own = matType(part).getRows();
      if (cast<IntegerAttr>(own).getInt() == keysOfVector)
        sizes.try_emplace(own, own);
      firsts.push_back(rows);
      rows += cast<IntegerAttr>(small(own)).getInt();
    }
    concat.setFirsts(firsts);
    sizes.try_emplace(matType(concat).getRows(), Builder(op->getContext()).getI64IntegerAttr(rows));
  });
  AttrTypeReplacer replacer;
  replacer.addReplacement([&](MatType type) {
    return MatType::get(type.getContext(), small(type.getRows()), small(type.getCols()));
  });
  replacer.recursivelyReplaceElementsIn(op, /*replaceAttrs=*/false, /*replaceLocs=*/false,
                                        /*replaceTypes=*/true);
  op->walk([&](SizeOp size) { size.setDimAttr(small(size.getDim())); });
}

Attribute Shrinker::small(Attribute dim) {
  if (isOne(dim) || dim == length)
    return dim;
  auto [entry, inserted] = sizes.try_emplace(dim, Attribute());
  if (inserted) // 3, 2, 4, 5, 6, ..
    entry->second = Builder(dim.getContext())
                        .getI64IntegerAttr(sizes.size() == 1   ? 3
                                           : sizes.size() == 2 ? 2
                                                               : sizes.size() + 1);
  return entry->second;
}

namespace {
class Random {
public:
  explicit Random(uint64_t seed) : engine(seed) {}
  Fp next() { return Fp(1 + engine() % (Fp::prime - 1)); }
  Dense<Fp> matrix(Type type) {
    auto mat = cast<MatType>(type);
    Dense<Fp> result(mat.numRows(), mat.numCols());
    for (Fp &entry : result.data)
      entry = next();
    return result;
  }

private:
  std::mt19937_64 engine;
};
} // namespace

Call<Fp> recur::randomCall(RuleOp rule, int64_t tokens, uint64_t seed, ArrayRef<bool> symmetric) {
  Random random(seed);
  Call<Fp> call;
  call.tokens = tokens;
  call.heads = 2;
  call.position = 5;
  for (BlockArgument argument : rule.getBody().getArguments()) {
    Type type = argument.getType();
    switch (rule.getArg(argument).getKind()) {
    case ArgKind::Input: {
      auto &values = call.inputs.emplace_back(tokens);
      auto steps = dyn_cast<StepsType>(type);
      int64_t count = steps ? cast<IntegerAttr>(steps.getCount()).getInt() : 1;
      for (auto &token : values)
        for (int64_t step = 0; step < count; ++step)
          token.push_back(random.matrix(steps ? steps.getStep() : type));
      break;
    }
    case ArgKind::Param:
      call.params.push_back(random.matrix(type));
      break;
    case ArgKind::State:
      call.states.push_back(random.matrix(type));
      if (call.states.size() <= symmetric.size() && symmetric[call.states.size() - 1])
        for (int64_t i = 0; i < call.states.back().rows; ++i)
          for (int64_t j = 0; j < i; ++j)
            call.states.back().at(i, j) = call.states.back().at(j, i);
      break;
    default:
      break;
    }
  }
  return call;
}

static std::string entryText(const Twine &what, size_t entry) {
  return (what + ", entry " + Twine(entry)).str();
}

std::string recur::difference(RuleOp rule, const Call<Fp> &a, const Call<Fp> &b) {
  for (int64_t t = 0; t < a.tokens; ++t)
    for (auto [index, name] : llvm::enumerate(rule.getOutputs().getAsRange<StringAttr>()))
      for (size_t i = 0; i < a.outputs[index][t].data.size(); ++i)
        if (a.outputs[index][t].data[i] != b.outputs[index][t].data[i])
          return entryText("output '" + name.getValue() + "', token " + Twine(t), i);
  for (auto [index, state] : llvm::enumerate(rule.argumentsOf(ArgKind::State)))
    for (size_t i = 0; i < a.states[index].data.size(); ++i)
      if (a.states[index].data[i] != b.states[index].data[i])
        return entryText("final state '" + rule.getArg(state).getName().getValue() + "'", i);
  return {};
}

std::string recur::compareRuns(RuleOp rule, int64_t tokens,
                               llvm::function_ref<LogicalResult(Call<Fp> &)> other,
                               llvm::function_ref<LogicalResult(RuleOp, Call<Fp> &)> run) {
  std::string where;
  for (uint64_t seed : {1, 2}) { // a division by zero may spoil one draw, not two
    Call<Fp> expected = randomCall(rule, tokens, seed), found = expected;
    if (failed(run(rule, expected)) || failed(other(found)))
      return "one of the two cannot be run in F_p";
    if (where = difference(rule, expected, found); where.empty())
      break;
  }
  return where;
}
