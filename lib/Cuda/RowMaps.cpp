// Which vectors are functions of an input's rows.
#include "lib/Cuda/RowMaps.h"
#include "lib/Cuda/Cores.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// How often an entry of a function goes to the special function unit; none for functions that take many other
// instructions, too. What divides all entries is inverted once.
static std::optional<int> specialOf(Operation *op) {
  return llvm::TypeSwitch<Operation *, std::optional<int>>(op)
      .Case<ExpOp, LogOp, SqrtOp>([](auto) { return 1; })
      .Case<DivOp>([](DivOp quotient) { return isNumber(quotient.getRhs()) ? 0 : 1; })
      .Case<SigmoidOp, TanhOp>([](auto) { return 2; })
      .Case<SoftplusOp>([](auto) { return 3; })
      .Case<PowOp, ErfOp, SinOp, CosOp>([](auto) { return std::nullopt; })
      .Default([](auto) { return 0; });
}

std::optional<RowMap> RowMap::of(Value vector) {
  constexpr int mostSpecial = 3;
  RowMap map{stripOrientation(vector), {}, {}};
  int special = 0;
  llvm::SetVector<Value> values;
  values.insert(map.result);
  for (size_t i = 0; i < values.size(); ++i) {
    Value value = values[i];
    Operation *op = value.getDefiningOp();
    if (!op) {
      auto argument = cast<BlockArgument>(value);
      auto rule = dyn_cast<RuleOp>(argument.getOwner()->getParentOp());
      if (!rule || !isa<MatType>(value.getType()) || isMatrix(value))
        return std::nullopt;
      ArgKind kind = rule.getArg(argument).getKind();
      if (kind == ArgKind::Param) {
        map.params.push_back(argument);
        continue;
      }
      if (kind != ArgKind::Input || isNumber(value) || map.source)
        return std::nullopt;
      map.source = argument;
      continue;
    }
    if (isMatrix(value))
      return std::nullopt;
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      if (!isNumber(value) || isNumber(reduce.getOperand()) || isMatrix(reduce.getOperand()))
        return std::nullopt;
      map.isEntrywise = false;
    } else if (!isa<ConstantOp, BroadcastOp, ElementwiseOp>(op)) {
      return std::nullopt;
    }
    std::optional<int> own = specialOf(op);
    if (!own)
      return std::nullopt;
    special += isNumber(value) ? 0 : *own;
    for (Value operand : op->getOperands())
      values.insert(stripOrientation(operand));
  }
  auto sizeOf = [](Value value) { return matType(value).numElements(); };
  if (map.source && llvm::any_of(map.params, [&](Value param) {
        return !isNumber(param) && sizeOf(param) != sizeOf(map.source);
      }))
    return std::nullopt;
  if (!map.source || map.source == map.result || isNumber(map.result) || special > mostSpecial ||
      sizeOf(map.source) != sizeOf(map.result))
    return std::nullopt;
  return map;
}

std::string RowMap::text() const {
  std::string text;
  llvm::raw_string_ostream out(text);
  llvm::MapVector<Value, unsigned> numbers;
  std::function<unsigned(Value)> write = [&](Value value) {
    value = stripOrientation(value);
    if (auto known = numbers.find(value); known != numbers.end())
      return known->second;
    if (Operation *op = value.getDefiningOp()) {
      SmallVector<unsigned> operands;
      for (Value operand : op->getOperands())
        operands.push_back(write(operand));
      out << op->getName() << op->getDiscardableAttrDictionary() << op->getPropertiesAsAttribute();
      llvm::interleaveComma(operands, out);
      out << '\n';
    } else if (value != source) {
      auto argument = cast<BlockArgument>(value);
      out << cast<RuleOp>(argument.getOwner()->getParentOp()).getArg(argument).getName() << '\n';
    }
    unsigned number = numbers.size();
    return numbers[value] = number;
  };
  write(result);
  return text;
}
