#include "lib/Schedule/Advise.h"
#include "lib/Algebra/Passes.h"
#include "lib/Algebra/SplitColumns.h"
#include "lib/Schedule/Cost.h"
#include "mlir/IR/Matchers.h"

#include <set>

using namespace mlir;
using namespace recur;

// Below this a log decay times 16 tokens leaves the range of f32 products (THEORY: exp(16 * 5) fits).
static constexpr double leastLogDecay = -5;

static void adviseOnDecays(chunk::ProgramOp program, std::vector<std::string> &advice) {
  std::set<std::string> said;
  program->walk([&](chunk::DecayOp decay) {
    // A number of the spec: mostly the 0 of a state that is replaced by each token.
    if (matchPattern(decay.getFactors(), m_Constant()))
      return;
    Value value = decay.getLog() ? decay.getLog() : decay.getFactors();
    bool channels = !isOne(matType(value).getCols());
    BlockArgument argument = dyn_cast<BlockArgument>(value);
    // What a map yields is named by what it is in the map.
    std::string name;
    RangeAttr range;
    if (argument && argument.getOwner() == &program.getBody().front()) {
      ArgAttr arg = program.getArg(argument.getArgNumber());
      name = arg.getName().str();
      range = arg.getRange();
    }
    if (!decay.getLog())
      said.insert(
          (name.empty() ? "a decay is no exp(..)," : "the decay '" + name + "' is no exp(..),") +
          (name.empty() || (range && range.getLo() > 0) ? "" : " and may be zero for all that is known,") +
          " so chunks multiply factors where they could add logarithms: " +
          (range || name.empty() ? "" : "declare that it is in [0, 1], or in [-1, 1], or ") +
          "write it as exp(g) with an input g in (-inf, 0]");
    else if (channels && !(range && range.getLo() >= leastLogDecay))
      said.insert("the decay by channels" + (name.empty() ? std::string() : " '" + name + "'") +
                  " has no lower bound, so near tokens take an exponential for each channel and pair: a "
                  "declared range such as [-5, 0] lets them be matrix products, on sm_90a of rows that are "
                  "scaled once where the update reads the state");
  });
  advice.insert(advice.end(), said.begin(), said.end());
}

static void adviseOnStreams(const NormalForm &form, std::vector<std::string> &advice) {
  for (auto [state, update] : llvm::enumerate(form.updates)) {
    if (update == Row::none)
      continue;
    const std::vector<Write> &writes = form.versions[update].writes;
    auto isErase = [](const Write &write) { return !write.matrix && write.isErase(); };
    auto erase = llvm::find_if(writes, isErase);
    if (llvm::count_if(writes, isErase) != 1 || outerProducts(form.versions[update]) < 2)
      continue;
    bool alongRow = erase->row.kind == Column::Known;
    auto keyOf = [&](const Write &write) { return (alongRow ? write.row : write.column).value; };
    auto other = llvm::find_if(writes, [&](const Write &write) {
      return !write.matrix && keyOf(write) && keyOf(write) != keyOf(*erase);
    });
    if (keyOf(*erase) && other != writes.end())
      advice.push_back("what is erased from '" + notation(form.states[state]) + "' goes along '" +
                       notation(keyOf(*erase)) + "', what is written along '" + notation(keyOf(*other)) +
                       "': two streams. Along one vector, as in the delta rule, half of the products vanish");
  }
}

std::vector<std::string> recur::adviseOn(const NormalForm &form, chunk::ProgramOp program) {
  std::vector<std::string> advice;
  if (form.affine)
    adviseOnStreams(form, advice);
  if (program)
    adviseOnDecays(program, advice);
  auto ofEntries = [](const OldTerm &term) { return !term.elementwise.empty(); };
  if (form.ruleClass == RuleClass::C6 && llvm::any_of(form.versions, [&](const Version &version) {
        return llvm::any_of(version.old, ofEntries);
      }))
    advice.push_back("a decay that differs from entry to entry of a state has no matrix form: a decay by "
                     "rows, by columns, or one number would have one");
  if (form.ruleClass == RuleClass::C7)
    advice.push_back("a state is multiplied by a full matrix: a diagonal plus a few outer products costs a "
                     "fraction of it, such as K*K.T of an input K with up to " +
                     std::to_string(mostColumns) + " columns");
  return advice;
}
