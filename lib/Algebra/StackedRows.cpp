// What the rows of a token have in common is told once; what tells them apart are inputs that stand for
// several, and numbers of the row.
#include "lib/Algebra/StackedRows.h"
#include "lib/Algebra/BlockStates.h"
#include "lib/Algebra/Rewriting.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recur;

SmallVector<StackedInput> recur::stackedInputs(Operation *op) {
  SmallVector<StackedInput> inputs;
  if (auto list = op->getAttrOfType<ArrayAttr>(stackedAttr))
    for (auto numbers : list.getAsRange<DenseI32ArrayAttr>()) {
      StackedInput &input = inputs.emplace_back(StackedInput{unsigned(numbers[0]), {}});
      for (int32_t row : numbers.asArrayRef().drop_front())
        input.rows.push_back(row < 0 ? std::nullopt : std::optional<unsigned>(row));
    }
  return inputs;
}

void recur::setStackedInputs(Operation *op, ArrayRef<StackedInput> inputs,
                             llvm::function_ref<unsigned(unsigned)> numberOf) {
  Builder b(op->getContext());
  SmallVector<Attribute> list;
  for (const StackedInput &input : inputs) {
    SmallVector<int32_t> numbers{int32_t(numberOf(input.argument))};
    for (std::optional<unsigned> row : input.rows)
      numbers.push_back(row ? int32_t(numberOf(*row)) : -1);
    list.push_back(b.getDenseI32ArrayAttr(numbers));
  }
  op->setAttr(stackedAttr, b.getArrayAttr(list));
}

Value recur::beforeStackedRow(Value newState) { return newState.getDefiningOp<AddOp>().getLhs(); }

static bool isNumber(Value value) { return matType(value).isScalar(); }

bool StackedRows::isInput(Value value) const {
  auto argument = dyn_cast<BlockArgument>(value);
  return argument && RuleOp(rule).getArg(argument).getKind() == ArgKind::Input;
}

// Whether a vector of the token is what a value follows from.
bool StackedRows::followsFromVector(Value value) const {
  if (isInput(value))
    return !isNumber(value);
  Operation *op = value.getDefiningOp();
  return op && llvm::any_of(op->getOperands(), [&](Value operand) { return followsFromVector(operand); });
}

Value StackedRows::one() { return ConstantOp::create(b, loc, 1.0); }

Value StackedRows::isRow(unsigned row) {
  if (!rows[row])
    rows[row] = one();
  return rows[row];
}

Value StackedRows::once(Value number) {
  SmallVector<Value> numbers(2, one());
  numbers[0] = number;
  return choose(numbers);
}

// Rows after the last of the numbers have that one. As means of two, whose ranges are known.
Value StackedRows::choose(ValueRange numbers) {
  Value chosen = numbers.back();
  for (unsigned row = numbers.size() - 1; row-- > 0;) {
    Value others = SubOp::create(b, loc, one(), isRow(row));
    chosen = AddOp::create(b, loc, MulOp::create(b, loc, isRow(row), numbers[row]),
                           MulOp::create(b, loc, others, chosen));
  }
  return chosen;
}

static Value *lookUp(SmallVectorImpl<std::pair<SmallVector<Value>, Value>> &known, ArrayRef<Value> values) {
  auto *found = llvm::find_if(known, [&](const auto &entry) { return ArrayRef(entry.first) == values; });
  return found == known.end() ? nullptr : &found->second;
}

Value StackedRows::of(ValueRange values) {
  if (llvm::all_equal(values) && !followsFromVector(values[0]))
    return values[0];
  SmallVector<Value> key(values);
  if (Value *value = lookUp(known, key))
    return *value;
  Value value = ofOperands(values);
  if (!value)
    value = llvm::all_of(values, isNumber) ? choose(values) : ofScaled(values);
  known.push_back({key, value});
  return value;
}

// Of those that are the same function, that of their operands.
Value StackedRows::ofOperands(ValueRange values) {
  Value first = values[0];
  auto isSame = [&](Value value) { return value.getType() == first.getType(); };
  if (!llvm::all_of(values, isSame))
    return {};
  if (!isNumber(first) && llvm::all_of(values, [&](Value value) { return isInput(value); }))
    return inputOf(SmallVector<Value>(values));
  Operation *op = first.getDefiningOp();
  auto isAlike = [&](Value value) {
    Operation *other = value.getDefiningOp();
    return other && other->getName() == op->getName() && other->getNumOperands() == op->getNumOperands() &&
           other->getAttrDictionary() == op->getAttrDictionary();
  };
  if (!op || op->getNumResults() != 1 || op->getNumRegions() || !llvm::all_of(values, isAlike))
    return {};
  if (isa<ConstantOp>(op))
    return first;
  SmallVector<Value> operands;
  for (unsigned i = 0; i < op->getNumOperands(); ++i) {
    SmallVector<Value> own;
    for (Value value : values)
      own.push_back(value.getDefiningOp()->getOperand(i));
    // A product of what each row has with what the token has is a number of the token for each.
    if (isNumber(first) && !isNumber(own[0]) && llvm::all_equal(llvm::map_range(own, withoutTransposes)))
      return {};
    auto fits = [&](Value value) { return value.getType() == own[0].getType(); };
    operands.push_back(llvm::all_of(own, fits) ? of(own) : Value());
    if (!operands.back())
      return {};
  }
  if (operands.empty())
    return {};
  Operation *copy = b.clone(*op);
  copy->setOperands(operands);
  return copy->getResult(0);
}

// Inputs, each times numbers of its own.
Value StackedRows::ofScaled(ValueRange values) {
  SmallVector<Value> vectors, numbers;
  for (Value value : values) {
    Value number, vector = unscaled(b, loc, value, number);
    if (!isInput(vector))
      return {};
    vectors.push_back(vector), numbers.push_back(number);
  }
  if (llvm::none_of(numbers, [](Value number) { return bool(number); }))
    return {};
  for (Value &number : numbers)
    number = number ? number : one();
  Value number = of(numbers);
  return MulOp::create(b, loc, number, inputOf(vectors));
}

Value StackedRows::numberOf(ArrayRef<Value> vectors, ArrayRef<Value> numbers) {
  SmallVector<Value> own;
  for (auto [vector, number] : llvm::zip(vectors, numbers))
    if (vector)
      own.push_back(number);
  // Of what is zero any will do.
  if (own.size() == 1)
    return own[0];
  own.assign(numbers.begin(), numbers.end());
  return of(own);
}

Value StackedRows::ofSome(ArrayRef<Value> vectors) {
  if (llvm::all_of(vectors, [](Value vector) { return bool(vector); }))
    return of(vectors);
  SmallVector<Value> inputs, numbers;
  bool isScaled = false;
  for (Value vector : vectors) {
    Value number;
    inputs.push_back(vector ? unscaled(b, loc, vector, number) : Value());
    if (vector && !isInput(inputs.back()))
      return {};
    isScaled |= bool(number);
    numbers.push_back(number ? number : one());
  }
  Value rows = inputOf(inputs);
  return isScaled ? scaled(b, loc, numberOf(inputs, numbers), rows) : rows;
}

// An input that stands for several; or for some, where the other rows are zero.
Value StackedRows::inputOf(ArrayRef<Value> vectors) {
  if (Value *value = lookUp(inputs, vectors))
    return *value;
  auto argOf = [&](Value input) { return rule.getArg(cast<BlockArgument>(input)); };
  Value any = *llvm::find_if(vectors, [](Value vector) { return bool(vector); });
  std::string name;
  StackedInput own{rule.getBody().getNumArguments(), {}};
  bool isUnit = true, isSame = true;
  for (Value row : vectors) {
    name += (name.empty() ? "" : " over ") + (row ? argOf(row).getName().str() : std::string("0"));
    isUnit &= !row || argOf(row).getUnit();
    isSame &= row && argOf(row).getRange() == argOf(any).getRange();
    own.rows.push_back(row ? std::optional(cast<BlockArgument>(row).getArgNumber()) : std::nullopt);
  }
  stacked.push_back(own);
  Value input = addInput(rule, name, isSame ? argOf(any).getRange() : RangeAttr(), isUnit, any.getType());
  inputs.push_back({SmallVector<Value>(vectors), input});
  return input;
}

Value StackedRows::inputAt(Value input, unsigned row) {
  SmallVector<Value> vectors(rows.size() + 1);
  vectors[row] = input;
  return inputOf(vectors);
}

static bool followsFrom(Value value, ArrayRef<Value> states, llvm::SmallPtrSetImpl<Operation *> &seen) {
  if (llvm::is_contained(states, value))
    return true;
  Operation *op = value.getDefiningOp();
  return op && seen.insert(op).second &&
         llvm::any_of(op->getOperands(), [&](Value operand) { return followsFrom(operand, states, seen); });
}

Value StackedRows::ofOne(Value value, unsigned row, ArrayRef<Value> states) {
  if (llvm::is_contained(states, value))
    return value;
  auto known = ones.find({value, row});
  if (known != ones.end())
    return known->second;
  if (isInput(value) && !isNumber(value))
    return ones[{value, row}] = inputAt(value, row);
  Operation *op = value.getDefiningOp();
  if (!op)
    return value;
  llvm::SmallPtrSet<Operation *, 8> seen;
  bool isRead = followsFrom(value, states, seen);
  IRMapping map;
  for (Value operand : op->getOperands()) {
    // What stands beside a read, entry by entry, stays the token's.
    seen.clear();
    bool isBeside = isRead && !isa<MatmulOp>(op) && !followsFrom(operand, states, seen);
    map.map(operand, isBeside ? operand : ofOne(operand, row, states));
  }
  bool isSame =
      llvm::all_of(op->getOperands(), [&](Value operand) { return map.lookup(operand) == operand; });
  return ones[{value, row}] = isSame ? value : b.clone(*op, map)->getResult(0);
}

void StackedRows::finish(bool fillsUp) {
  MLIRContext *context = rule.getContext();
  for (auto [i, row] : llvm::enumerate(rows)) {
    Value input = addInput(rule, "row " + Twine(i + 1), RangeAttr::closed(context, 0, 1), /*isUnit=*/false,
                           MatType::scalar(context));
    if (row)
      row.replaceAllUsesWith(input);
  }
  setStackedInputs(rule, stacked, [](unsigned argument) { return argument; });
  size_t count = rows.size() + 1;
  setBlocks(rule, (fillsUp ? llvm::PowerOf2Ceil(count) : count) * blockOf(rule));
}
