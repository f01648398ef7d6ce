// What joined states and their vectors are called, and where their keys are.
#include "lib/Algebra/JoinedKeys.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace recur;

// Of a rule: whether its joined state has a row for each key; of each state that it is where its keys begin,
// their number, and the param that it begins with, -1 for zeros. The name of what several are is theirs, with
// this between.
static constexpr char between = '|';

std::optional<JoinedNames> recur::joinedNames(RuleOp rule, StringRef name) {
  auto places = rule->getAttrOfType<DenseI64ArrayAttr>(joinedKeysAttr);
  if (!places || !name.contains(between))
    return std::nullopt;
  JoinedNames joined;
  name.split(joined.names, between);
  joined.isTurned = places[0];
  for (ArrayRef<int64_t> rest = places.asArrayRef().drop_front(); !rest.empty(); rest = rest.drop_front(3)) {
    joined.firsts.push_back(rest[0]);
    joined.keys.push_back(rest[1]);
    joined.params.push_back(rest[2] < 0 ? std::nullopt : std::optional<unsigned>(rest[2]));
  }
  return joined;
}

std::string recur::joinNames(ArrayRef<std::string> names) {
  return llvm::join(names, StringRef(&between, 1));
}
