#include "lib/Derive/Functions.h"
#include "lib/Algebra/LinearSum.h"
#include "lib/Algebra/ReadFunctions.h"
#include "lib/Algebra/Rewriting.h"
#include "lib/Derive/Blocks.h"
#include "mlir/Analysis/SliceAnalysis.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/SmallBitVector.h"

using namespace mlir;
using namespace recur;

namespace {
// A rule's program, of that of the rule whose reads are inputs.
class FunctionProgram {
public:
  FunctionProgram(RuleOp rule, chunk::ProgramOp inner, unsigned count)
      : rule(rule), inner(inner), b(rule.getContext()), inside(rule.getContext()), loc(rule.getLoc()),
        given(inner.getBody().getArguments().take_back(count)) {
    skipMaps();
    found = inner.getBodyYield().getValues().take_back(count);
  }

  /// Null where what is read is no sum of products with what is written.
  OwningOpRef<chunk::ProgramOp> build();

private:
  void skipMaps();
  void findDependent();
  bool depends(Value value) const { return dependent.contains(value); }
  void splitMap(chunk::MapOp map);
  void findWritten();
  LogicalResult takeSumsApart();
  OwningOpRef<chunk::ProgramOp> begin();
  Value token(Value rows);
  Value captured(Value value);
  Value inlined(chunk::MapOp map, unsigned result);
  LogicalResult substitute();

  RuleOp rule;
  chunk::ProgramOp inner, program;
  OpBuilder b, inside; // the program, and the region of functions
  Location loc;
  SmallVector<BlockArgument> given; // what is read
  SmallVector<Value> found;         // the same, of what is written
  DenseSet<Value> dependent;        // what follows from `given`
  // What is read, without what the chunk's tokens write, and the scores by which that is added, by write.
  SmallVector<Value> sides;
  SmallVector<llvm::MapVector<Value, Value>> scores;
  llvm::SetVector<Value> written;
  IRMapping values; // of the inner program in the one that comes of it
  Block *body = nullptr;
  IRMapping tokens; // of the inner program's rows in the functions' region
  SmallVector<Value> rows, shared;
};
} // namespace

// Rows that maps give as they take them follow from nothing else.
void FunctionProgram::skipMaps() {
  for (auto map : inner.getBody().getOps<chunk::MapOp>())
    for (auto [result, yielded] : llvm::zip(map.getResults(), map.getYield().getValues()))
      if (auto argument = dyn_cast<BlockArgument>(yielded);
          map.getCarried().empty() && argument && argument.getArgNumber() < map.getRows().size())
        result.replaceAllUsesWith(map.getRows()[argument.getArgNumber()]);
}

void FunctionProgram::findDependent() {
  dependent.clear();
  for (BlockArgument argument : given) {
    dependent.insert(argument);
    SetVector<Operation *> slice;
    ForwardSliceOptions options;
    options.filter = [&](Operation *op) { return op->getBlock() == &inner.getBody().front(); };
    getForwardSlice(argument, &slice, options);
    for (Operation *op : slice)
      dependent.insert(op->result_begin(), op->result_end());
  }
}

// A map in two: what does not follow from what is read, and, of that, what does.
void FunctionProgram::splitMap(chunk::MapOp map) {
  Block &own = map.getBody().front();
  DenseSet<Value> inside;
  for (auto [argument, value] : llvm::zip(own.getArguments(), map.getRows()))
    if (depends(value))
      inside.insert(argument);
  llvm::SetVector<Value> wanted;
  auto want = [&](Value value) {
    if (!inside.contains(value) && value.getDefiningOp() && !matchPattern(value, m_Constant()))
      wanted.insert(value);
  };
  for (Operation &op : own.without_terminator())
    if (llvm::any_of(op.getOperands(), [&](Value operand) { return inside.contains(operand); })) {
      inside.insert(op.result_begin(), op.result_end());
      llvm::for_each(op.getOperands(), want);
    }
  OperandRange yielded = map.getYield().getValues();
  llvm::for_each(yielded, want);
  if (wanted.empty())
    return;

  b.setInsertionPoint(map);
  auto types = llvm::map_to_vector(
      wanted, [&](Value value) { return chunk::MapOp::rowsType(value.getType(), inner.getLengthAttr()); });
  SmallVector<Value> before;
  IRMapping cloned;
  Block *first = new Block;
  for (auto [argument, value] : llvm::zip(own.getArguments(), map.getRows()))
    if (!depends(value)) {
      before.push_back(value);
      cloned.map(argument, first->addArgument(argument.getType(), loc));
    }
  for (BlockArgument argument : own.getArguments().take_back(map.getShared().size()))
    cloned.map(argument, first->addArgument(argument.getType(), loc));
  auto apart = chunk::MapOp::create(b, loc, TypeRange(), types, ValueRange(), before, map.getShared());
  apart.getBody().push_back(first);
  OpBuilder at = OpBuilder::atBlockEnd(first);
  for (Operation &op : own.without_terminator())
    if (llvm::none_of(op.getResults(), [&](Value result) { return inside.contains(result); }))
      at.clone(op, cloned);
  chunk::YieldOp::create(at, loc,
                         llvm::map_to_vector(wanted, [&](Value value) { return cloned.lookup(value); }));
  for (auto [value, result] : llvm::zip(yielded, map.getResults()))
    if (auto *it = llvm::find(wanted, value); it != wanted.end())
      result.replaceAllUsesWith(apart.getResult(it - wanted.begin()));
  // What it takes of that are rows more.
  unsigned count = map.getRows().size();
  for (auto [wantedValue, result] : llvm::zip(wanted, apart.getResults())) {
    Value value = wantedValue;
    value.replaceAllUsesWith(own.insertArgument(count++, value.getType(), loc));
    map.getRowsMutable().append(result);
  }
  eraseDead(own);
}

// Whether scores are of tokens before alone.
static bool areOfTokensBefore(Value scores) {
  SetVector<Operation *> slice;
  BackwardSliceOptions options;
  options.inclusive = true;
  if (failed(getBackwardSlice(scores, &slice, options)))
    return false;
  return llvm::none_of(slice, [](Operation *op) {
    auto reach = op->getAttrOfType<chunk::ReachAttr>("reach");
    return isa<chunk::TriSolveOp>(op) || (reach && reach.getValue() == chunk::Reach::Inclusive);
  });
}

// What follows from what is read and goes into products, where no token reads what is written in its chunk.
void FunctionProgram::findWritten() {
  for (auto product : inner.getBody().getOps<MatmulOp>())
    if (!depends(product.getLhs()) && depends(product.getRhs()))
      written.insert(product.getRhs());
}

LogicalResult FunctionProgram::takeSumsApart() {
  b.setInsertionPoint(inner.getBodyYield());
  auto isNumber = [&](Value value) { return !depends(value) && isOne(matType(value).getCols()); };
  for (Value sum : found) {
    Value side;
    auto &own = scores.emplace_back();
    for (auto [value, number] :
         LinearSum(b, sum, isNumber, [&](Value value) { return !depends(value); }).build()) {
      auto scaledBy = [&, number = number](Value value) { return scaled(b, loc, number, value); };
      if (!depends(value)) {
        Value term = scaledBy(value);
        side = side ? AddOp::create(b, loc, side, term).getResult() : term;
        continue;
      }
      auto product = value.getDefiningOp<MatmulOp>();
      if (!product || depends(product.getLhs()) || !areOfTokensBefore(product.getLhs()))
        return failure();
      written.insert(product.getRhs());
      Value term = scaledBy(product.getLhs()), &all = own[product.getRhs()];
      all = all ? AddOp::create(b, loc, all, term).getResult() : term;
    }
    sides.push_back(side ? side : ConstantOp::create(b, loc, 0.0, cast<MatType>(sum.getType())).getResult());
  }
  if (written.empty())
    findWritten();
  return success(!written.empty());
}

// The rule's outputs stand before those that say what is read.
OwningOpRef<chunk::ProgramOp> FunctionProgram::begin() {
  SmallVector<chunk::OutputPart> parts = chunk::outputParts(inner);
  llvm::erase_if(parts, [&](const auto &part) { return part.output >= rule.getOutputs().size(); });
  auto names = b.getArrayAttr(inner.getOutputs().getValue().take_front(parts.size()));
  auto result = emptyProgram(rule, inner.getLengthAttr(), names, parts);
  program = *result;
  program.setBlockAttr(inner.getBlockAttr());
  program.setStartsAttr(inner.getStartsAttr());
  for (auto [own, argument] : llvm::zip(inner.getBody().getArguments(), program.getBody().getArguments()))
    values.map(own, argument);
  return result;
}

// What does not follow from what is read, as an argument of the region: a token's of rows.
Value FunctionProgram::captured(Value value) {
  auto type = dyn_cast<MatType>(value.getType());
  bool isShared = type && type.getRows() != inner.getLengthAttr() && type.getCols() != inner.getLengthAttr();
  if (type && !isShared && (type.getRows() != inner.getLengthAttr() || type.getCols() == type.getRows()))
    return {};
  if (Value scalar = value; isShared && matchPattern(scalar, m_Constant()))
    return inside.clone(*scalar.getDefiningOp())->getResult(0);
  (isShared ? shared : rows).push_back(values.lookup(value));
  unsigned at = given.size() + rows.size() + (isShared ? shared.size() : 0) - 1;
  return body->insertArgument(at, isShared ? type : chunk::MapOp::tokenType(value.getType()), loc);
}

Value FunctionProgram::inlined(chunk::MapOp map, unsigned result) {
  Block &own = map.getBody().front();
  Value yielded = map.getYield().getValues()[result];
  IRMapping cloned;
  SetVector<Operation *> slice;
  BackwardSliceOptions options;
  options.inclusive = true;
  options.filter = [&](Operation *op) { return op->getBlock() == &own; };
  if (!map.getCarried().empty() || failed(getBackwardSlice(yielded, &slice, options)))
    return {};
  unsigned next = 0;
  for (Value value : llvm::concat<Value>(llvm::to_vector(map.getRows()), llvm::to_vector(map.getShared()))) {
    BlockArgument argument = own.getArgument(next++);
    bool isUsed = argument == yielded ||
                  llvm::any_of(argument.getUsers(), [&](Operation *user) { return slice.contains(user); });
    if (!isUsed)
      continue;
    Value known = token(value);
    if (!known)
      return {};
    cloned.map(argument, known);
  }
  for (Operation *op : slice)
    inside.clone(*op, cloned);
  return cloned.lookup(yielded);
}

// A token of rows, in the functions' region; null where it is none of one token alone.
Value FunctionProgram::token(Value value) {
  if (Value known = tokens.lookupOrNull(value))
    return known;
  auto find = [&]() -> Value {
    if (!depends(value))
      return captured(value);
    auto result = dyn_cast<OpResult>(value);
    if (!result)
      return {};
    Operation *op = result.getOwner();
    if (auto map = dyn_cast<chunk::MapOp>(op))
      return inlined(map, result.getResultNumber());
    if (!isa<ElementwiseOp>(op))
      return {};
    IRMapping operands;
    for (Value operand : op->getOperands()) {
      Value known = token(operand);
      if (!known)
        return {};
      operands.map(operand, known);
    }
    Operation *own = inside.clone(*op, operands);
    own->getResult(0).setType(cast<MatType>(chunk::MapOp::tokenType(value.getType())));
    return own->getResult(0);
  };
  Value found = find();
  if (found)
    tokens.map(value, found);
  return found;
}

LogicalResult FunctionProgram::substitute() {
  b.setInsertionPointToEnd(&program.getBody().front());
  Region region;
  region.push_back(body = new Block);
  inside.setInsertionPointToEnd(body);
  for (BlockArgument argument : given)
    tokens.map(argument, body->addArgument(chunk::MapOp::tokenType(argument.getType()), loc));
  SmallVector<Value> yields, blocks;
  for (Value value : written) {
    Value own = token(value);
    if (!own)
      return failure();
    yields.push_back(own);
  }
  chunk::YieldOp::create(inside, loc, yields);
  auto square = MatType::get(b.getContext(), inner.getLengthAttr(), inner.getLengthAttr());
  for (auto &own : scores)
    for (Value value : written) {
      Value block = own.lookup(value);
      blocks.push_back(block ? values.lookup(block) : ConstantOp::create(b, loc, 0.0, square).getResult());
    }
  auto of = [&](Value value) { return values.lookup(value); };
  auto typeOf = [](Value value) { return value.getType(); };
  auto op = chunk::SubstituteOp::create(b, loc, llvm::map_to_vector(sides, typeOf),
                                        llvm::map_to_vector(written, typeOf), blocks,
                                        llvm::map_to_vector(sides, of), rows, shared);
  op.getBody().takeBody(region);
  for (auto [own, value] : llvm::zip(given, op.getReads()))
    values.map(own, value);
  for (auto [own, value] : llvm::zip(written, op.getWrites()))
    values.map(own, value);
  return success();
}

OwningOpRef<chunk::ProgramOp> FunctionProgram::build() {
  findDependent();
  for (chunk::MapOp map : llvm::to_vector(inner.getBody().getOps<chunk::MapOp>()))
    if (map.getCarried().empty() && llvm::any_of(map.getRows(), [&](Value value) { return depends(value); }))
      splitMap(map);
  findDependent();
  if (failed(takeSumsApart()))
    return {};
  OwningOpRef<chunk::ProgramOp> result = begin();
  auto isDependent = [&](Operation &op) { return op.getNumResults() && depends(op.getResult(0)); };
  Block &all = inner.getBody().front();
  b.setInsertionPointToEnd(&program.getBody().front());
  for (Operation &op : all.without_terminator())
    if (!isDependent(op))
      b.clone(op, values);
  if (failed(substitute()))
    return {};
  b.setInsertionPointToEnd(&program.getBody().front());
  IRMapping known(values);
  for (Operation &op : all.without_terminator())
    if (isDependent(op)) {
      b.clone(op, values);
      for (Value value : op.getResults())
        if (written.contains(value))
          values.map(value, known.lookup(value));
    }
  SmallVector<Value> yields;
  for (Value value : inner.getBodyYield().getValues().drop_back(given.size()))
    yields.push_back(values.lookup(value));
  chunk::YieldOp::create(b, loc, yields);
  return result;
}

// The states that what is written joins, by number: each reads, by functions, what the others have become.
static SmallVector<int32_t> findJoined(RuleOp without, size_t reads) {
  auto states = without.argumentsOf(ArgKind::State);
  Block &body = without.getBody().front();
  SmallVector<llvm::SmallBitVector> reaches(states.size(), llvm::SmallBitVector(states.size()));
  auto of = [&](BlockArgument argument, SetVector<Operation *> &slice) {
    ForwardSliceOptions options;
    options.filter = [&](Operation *op) {
      return op->getBlock() == &body && !op->hasTrait<OpTrait::IsTerminator>();
    };
    getForwardSlice(argument, &slice, options);
  };
  SmallVector<BlockArgument> inputs = without.argumentsOf(ArgKind::Input);
  for (auto [given, found] :
       llvm::zip(ArrayRef(inputs).take_back(reads), without.getBodyYield().getValues().take_back(reads))) {
    SetVector<Operation *> written;
    of(given, written);
    for (auto [from, state] : llvm::enumerate(states)) {
      SetVector<Operation *> read;
      of(state, read);
      for (auto [to, next] : llvm::enumerate(without.yieldedStates()))
        if (read.contains(found.getDefiningOp()) && written.contains(next.getDefiningOp()))
          reaches[from].set(to);
    }
  }
  for (size_t by = 0; by < states.size(); ++by)
    for (llvm::SmallBitVector &own : reaches)
      if (own.test(by))
        own |= reaches[by];
  SmallVector<int32_t> joined;
  for (size_t first = 0; first < states.size() && joined.size() < 2; ++first) {
    joined.clear();
    for (size_t other = 0; other < states.size(); ++other)
      if (other == first || (reaches[first].test(other) && reaches[other].test(first) &&
                             states[other].getType() == states[first].getType()))
        joined.push_back(other);
  }
  return joined;
}

Derivation recur::deriveFunctions(RuleOp rule) {
  Derivation derivation;
  SmallVector<std::string> texts;
  OwningOpRef<ModuleOp> apart = takeReadsApart(rule, texts);
  if (!apart)
    return derivation;
  RuleOp without = *apart->getOps<RuleOp>().begin();
  if (failed(simplify(without)))
    return derivation;
  if (auto joined = findJoined(without, texts.size()); joined.size() > 1)
    without->setAttr(joinedAttr, DenseI32ArrayAttr::get(rule.getContext(), joined));
  NormalForm nf = normalise(without, /*withStarts=*/true);
  if (!nf.affine)
    return derivation;
  derivation = derive(normalise(without));
  if (!derivation.program)
    return {};
  ShortNames names = shortNames(nf);
  std::vector<DerivationStep> ofReads;
  explainProgram(*derivation.program, ofReads, names);
  derivation.steps.resize(derivation.steps.size() - ofReads.size());
  DerivationStep step{"substitute", {}};
  for (auto [i, text] : llvm::enumerate(texts))
    step.lines.push_back("read " + std::to_string(i + 1) + " = " + text);
  derivation.steps.insert(derivation.steps.begin(), step);
  derivation.program = FunctionProgram(rule, *derivation.program, texts.size()).build();
  if (!derivation.program)
    return {};
  if (failed(simplify(*derivation.program))) {
    derivation.program = nullptr;
    derivation.defect = "its functions of what is read are no program";
    return derivation;
  }
  explainProgram(*derivation.program, derivation.steps, names);
  return derivation;
}
