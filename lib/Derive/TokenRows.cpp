// Functions of tokens for a program's body.
#include "lib/Derive/TokenRows.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recur;

TokenRows::TokenRows(const NormalForm &nf, chunk::ProgramOp program)
    : builder(program.getContext()), length(program.getLengthAttr()), nf(nf), program(program) {
  builder.setInsertionPointToEnd(&program.getBody().front());
  for (Operation **mark : {&sharedEnd, &anchor})
    *mark = UnrealizedConversionCastOp::create(builder, program.getLoc(),
                                               MatType::scalar(program.getContext()), {});
}

TokenRows::Source TokenRows::source(Value value) {
  if (auto known = sources.find(value); known != sources.end())
    return known->second;
  Source result = Shared;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    ArgKind kind = RuleOp(nf.rule).getArg(argument).getKind();
    result = kind == ArgKind::State || kind == ArgKind::Stale      ? Ahead
             : kind == ArgKind::Input || kind == ArgKind::Position ? Token
                                                                   : Shared;
  } else {
    for (Value operand : value.getDefiningOp()->getOperands())
      result = std::max(result, source(operand));
  }
  return sources[value] = result;
}

bool TokenRows::isShared(Value value) { return source(value) == Shared; }

Value TokenRows::clone(OpBuilder &builder, Value value, IRMapping &map) {
  if (Value known = map.lookupOrNull(value))
    return known;
  Operation *op = value.getDefiningOp();
  for (Value operand : op->getOperands())
    clone(builder, operand, map);
  builder.clone(*op, map);
  return map.lookup(value);
}

Value TokenRows::argumentOf(BlockArgument argument) {
  RuleOp rule = nf.rule;
  unsigned number = 0;
  for (BlockArgument before : rule.getBody().getArguments().take_front(argument.getArgNumber()))
    number += rule.getArg(before).getKind() != ArgKind::Stale;
  bool isStale = rule.getArg(argument).getKind() == ArgKind::Stale;
  return isStale ? Value() : program.getBody().getArgument(number);
}

Value TokenRows::shared(Value value) {
  OpBuilder before(sharedEnd);
  for (BlockArgument argument : RuleOp(nf.rule).getBody().getArguments())
    if (Value own = argumentOf(argument))
      sharedMap.map(argument, own);
  return clone(before, value, sharedMap);
}

Value TokenRows::placeholder(Value value) {
  OpBuilder before(anchor);
  Type type = chunk::MapOp::rowsType(value.getType(), length);
  return UnrealizedConversionCastOp::create(before, value.getLoc(), type, {}).getResult(0);
}

Value TokenRows::rows(Value value) {
  if (Value given = defined.lookup(value))
    return given;
  Source from = source(value);
  for (const Solved &state : solved)
    if (from == Ahead && state.governs(value)) {
      if (Value given = state.rows(value))
        return defined[value] = given;
      missing = true;
    }
  auto type = dyn_cast<MatType>(value.getType());
  if (from == Shared && type && isOne(type.getCols())) {
    Value row = builder.createOrFold<TransposeOp>(value.getLoc(), shared(value));
    auto rowsType = cast<MatType>(chunk::MapOp::rowsType(type, length));
    return builder.createOrFold<BroadcastOp>(value.getLoc(), rowsType, row);
  }
  if (auto argument = dyn_cast<BlockArgument>(value); argument && from == Token)
    return argumentOf(argument);
  Value &known = (from == Ahead ? ahead : plain)[value];
  if (!known)
    known = placeholder(value);
  return known;
}

bool TokenRows::isCarried(unsigned state) const {
  return nf.ahead[state] && llvm::none_of(solved, [&](const Solved &other) { return other.state == state; });
}

Value TokenRows::aheadState(unsigned state) {
  Value &known = aheadStates[state];
  if (!known) {
    OpBuilder before(anchor);
    known = UnrealizedConversionCastOp::create(before, program.getLoc(), nf.states[state].getType(), {})
                .getResult(0);
  }
  return known;
}

void TokenRows::collect(Value value, Leaves &leaves, DenseSet<Value> &seen,
                        function_ref<bool(Value)> isLeaf) {
  if (!seen.insert(value).second)
    return;
  if (isLeaf(value)) {
    (source(value) == Shared ? leaves.shared : leaves.rows).push_back(value);
    return;
  }
  if (Operation *op = value.getDefiningOp())
    for (Value operand : op->getOperands())
      collect(operand, leaves, seen, isLeaf);
}

void TokenRows::buildMap(ArrayRef<std::pair<Value, Value>> requests, bool isAhead) {
  RuleOp rule = nf.rule;
  // Ahead, what does not depend on the carried states is computed for all tokens first.
  auto isLeaf = [&](Value value) {
    if (isa<BlockArgument>(value))
      return source(value) != Ahead;
    auto type = dyn_cast<MatType>(value.getType());
    return isAhead && source(value) == Token && type && isOne(type.getCols());
  };
  Leaves leaves;
  DenseSet<Value> seen;
  for (auto &[value, placeholder] : requests)
    collect(value, leaves, seen, isLeaf);
  SmallVector<Value> carried, carriedIn, rowsIn, sharedIn;
  SmallVector<Type> types, lastTypes;
  for (auto [index, state] : llvm::enumerate(nf.states))
    if (isAhead && isCarried(index)) {
      collect(rule.yieldedStates()[index], leaves, seen, isLeaf);
      carried.push_back(state);
      carriedIn.push_back(argumentOf(state));
      lastTypes.push_back(state.getType());
    }
  for (Value leaf : leaves.rows)
    rowsIn.push_back(rows(leaf));
  for (Value leaf : leaves.shared)
    sharedIn.push_back(shared(leaf));
  for (auto &[value, placeholder] : requests)
    types.push_back(placeholder.getType());

  OpBuilder b(anchor);
  if (!isAhead)
    b.setInsertionPointAfter(sharedEnd);
  auto map = chunk::MapOp::create(b, rule.getLoc(), lastTypes, types, carriedIn, rowsIn, sharedIn);
  Block *block = b.createBlock(&map.getBody());
  IRMapping mapping;
  for (Value leaf : llvm::concat<Value>(carried, leaves.rows, leaves.shared))
    mapping.map(leaf, block->addArgument(leaf.getType(), leaf.getLoc()));
  SmallVector<Value> yields;
  for (unsigned index = 0; index < nf.states.size(); ++index)
    if (isAhead && isCarried(index))
      yields.push_back(clone(b, rule.yieldedStates()[index], mapping));
  for (auto &[value, placeholder] : requests)
    yields.push_back(clone(b, value, mapping));
  chunk::YieldOp::create(b, rule.getLoc(), yields);
  for (auto [request, result] : llvm::zip(requests, map.getResults()))
    Value(request.second).replaceAllUsesWith(result);
  unsigned last = 0;
  for (unsigned index = 0; index < nf.states.size(); ++index)
    if (isAhead && isCarried(index)) {
      if (Value placeholder = aheadStates.lookup(index))
        placeholder.replaceAllUsesWith(map.getLast()[last]);
      ++last;
    }
}

void TokenRows::finish() {
  if (llvm::any_of(llvm::seq<unsigned>(0, nf.states.size()),
                   [&](unsigned state) { return isCarried(state); }))
    buildMap(ahead.takeVector(), true);
  if (!plain.empty())
    buildMap(plain.takeVector(), false);
  for (Operation &op : llvm::make_early_inc_range(program.getBody().front()))
    if (isa<UnrealizedConversionCastOp>(op))
      op.erase();
}

SmallVector<Value> TokenRows::epilogue(ArrayRef<Value> values, ArrayRef<std::pair<Readout, Value>> known) {
  // Values that are rows need no function.
  auto rowsOf = [&](Value value) -> Value {
    for (const auto &[readout, rows] : known)
      if (readout.value == value && !readout.transposed)
        return rows;
    return nf.isTokenOnly(value) ? rows(value) : Value();
  };
  SmallVector<Value> results;
  for (Value value : values)
    results.push_back(rowsOf(value));
  if (llvm::all_of(results, [](Value value) { return bool(value); }))
    return results;
  DenseMap<Value, std::pair<Value, bool>> given;
  for (const auto &[readout, rows] : known)
    given[readout.value] = {rows, readout.transposed};
  auto isLeaf = [&](Value value) {
    if (given.contains(value))
      return true;
    auto type = dyn_cast<MatType>(value.getType());
    return nf.isTokenOnly(value) && (isa<BlockArgument>(value) || (type && isOne(type.getCols()))) &&
           !isa_and_nonnull<ConstantOp, SizeOp>(value.getDefiningOp());
  };
  Leaves leaves;
  DenseSet<Value> seen;
  SmallVector<Type> types;
  SmallVector<Value> wanted, rowsIn, sharedIn;
  for (auto [output, result] : llvm::zip(values, results))
    if (!result) {
      wanted.push_back(output);
      types.push_back(chunk::MapOp::rowsType(output.getType(), length));
    }
  for (auto &entry : given)
    sources[entry.first] = Token;
  for (Value output : wanted)
    collect(output, leaves, seen, isLeaf);
  for (Value leaf : leaves.rows)
    rowsIn.push_back(given.contains(leaf) ? given[leaf].first : rows(leaf));
  for (Value leaf : leaves.shared)
    sharedIn.push_back(shared(leaf));
  auto map =
      chunk::MapOp::create(builder, program.getLoc(), TypeRange(), types, ValueRange(), rowsIn, sharedIn);
  OpBuilder b(program.getContext());
  Block *block = b.createBlock(&map.getBody());
  IRMapping mapping;
  for (auto [leaf, in] : llvm::zip(leaves.rows, rowsIn)) {
    Value argument = block->addArgument(chunk::MapOp::tokenType(in.getType()), leaf.getLoc());
    if (given.contains(leaf) && given[leaf].second)
      argument = b.createOrFold<TransposeOp>(leaf.getLoc(), argument);
    mapping.map(leaf, argument);
  }
  for (Value leaf : leaves.shared)
    mapping.map(leaf, block->addArgument(leaf.getType(), leaf.getLoc()));
  SmallVector<Value> yields;
  for (Value output : wanted)
    yields.push_back(clone(b, output, mapping));
  chunk::YieldOp::create(b, program.getLoc(), yields);
  unsigned next = 0;
  for (Value &result : results)
    if (!result)
      result = map.getResults()[next++];
  return results;
}
