#include "lib/Algebra/JoinedMembers.h"

using namespace mlir;
using namespace recur;

Value recur::plain(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<TransposeOp, AssumeOp>(op) || isOfMatrix(value))
      break;
    value = op->getOperand(0);
  }
  return value;
}

LogicalResult JoinedMembers::find(bool areAlike) {
  auto hasRegion = [](Operation &op) { return op.getNumRegions() != 0; };
  if (states.size() > 64 || llvm::any_of(body, hasRegion))
    return failure();
  findReach();
  if (!findGroup(areAlike))
    return failure();
  MatType first = matType(member(0));
  isTurned = areReadOnLeft();
  rows = isTurned ? first.numCols() : first.numRows();
  for (unsigned i = 0; i < members.size(); ++i) {
    MatType type = matType(member(i));
    std::optional<int64_t> param = paramOf(rule.getInitYield()->getOperand(members[i]));
    if ((isTurned && !isVector(i) ? type.numCols() : type.numRows()) != rows || !param)
      return failure();
    params.push_back(*param);
    firsts.push_back(llvm::alignTo(keys, keysTogether));
    keys = firsts.back() + keysOf(i);
  }
  return success();
}

void JoinedMembers::findReach() {
  for (auto [i, state] : llvm::enumerate(states)) {
    reach[state] = uint64_t(1) << i;
    if (Value start = rule.findArgument(ArgKind::Stale, rule.getArg(state).getName()))
      reach[start] = reach[state];
  }
  for (Operation &op : body.without_terminator())
    for (Value result : op.getResults())
      for (Value operand : op.getOperands())
        reach[result] |= reach.lookup(operand);
}

// The states that the first matrix which needs others needs, and that need it, or those alike.
bool JoinedMembers::findGroup(bool areAlike) {
  SmallVector<uint64_t> needs;
  for (Value update : updates)
    needs.push_back(reach.lookup(update));
  for (bool more = true; std::exchange(more, false);)
    for (uint64_t &own : needs)
      for (auto [k, other] : llvm::enumerate(needs))
        if (own >> k & 1 && other & ~own)
          own |= other, more = true;
  for (auto [i, state] : llvm::enumerate(states)) {
    group = 0;
    auto others = [&](unsigned k) { return needs[k] & ~(uint64_t(1) << k); };
    for (unsigned k = 0; k < states.size(); ++k) {
      bool isIn = (needs[i] >> k & 1) && (needs[k] >> i & 1);
      if (areAlike)
        isIn = i == k || (!isOfMatrix(states[k]) && others(i) && others(i) == others(k));
      group |= uint64_t(isIn) << k;
    }
    if (!isOfMatrix(state) || llvm::popcount(group) < 2)
      continue;
    for (bool ofMatrices : {true, false})
      for (unsigned k = 0; k < states.size(); ++k)
        if (group >> k & 1 && isOfMatrix(states[k]) == ofMatrices)
          members.push_back(k);
    return true;
  }
  return false;
}

// Whether matrices of the group are read on their left.
bool JoinedMembers::areReadOnLeft() {
  for (auto read : body.getOps<MatmulOp>())
    for (unsigned i : {0, 1}) {
      Value matrix = read->getOperand(i);
      bool isLeft = i;
      while (auto turned = matrix.getDefiningOp<TransposeOp>())
        matrix = turned.getOperand(), isLeft = !isLeft;
      if (isOfMatrix(matrix) && !isOfToken(matrix) && !isOfMatrix(read->getOperand(1 - i)))
        return isLeft;
    }
  return false;
}

// The param that an initial state is, by number, or -1 for zeros; nothing for others.
std::optional<int64_t> JoinedMembers::paramOf(Value first) {
  if (auto constant = first.getDefiningOp<ConstantOp>(); constant && constant.getValue().isZero())
    return -1;
  unsigned next = 0;
  int64_t param = 0;
  for (BlockArgument argument : body.getArguments()) {
    ArgKind kind = rule.getArg(argument).getKind();
    if (kind != ArgKind::Param && kind != ArgKind::Head && kind != ArgKind::Heads)
      continue;
    bool isIt = rule.getInit().getArgument(next++) == first;
    if (kind == ArgKind::Param && isIt) // whose rows blocks then share out as those of the state
      return argument.use_empty() ? std::optional<int64_t>(param) : std::nullopt;
    param += kind == ArgKind::Param;
  }
  return std::nullopt;
}

std::optional<unsigned> JoinedMembers::memberOf(Value value, bool isUpdate) const {
  for (unsigned i = 0; i < members.size(); ++i)
    if (isUpdate ? plain(update(i)) == value : member(i) == value)
      return i;
  return std::nullopt;
}

std::optional<unsigned> JoinedMembers::memberAtStart(Value value) const {
  for (unsigned i = 0; i < members.size(); ++i)
    if (startOf(i) == value)
      return i;
  return std::nullopt;
}

// Whether a value follows from states that are not joined, as they were, are or were at a block's start,
// and from the joined ones through those alone.
bool JoinedMembers::isOfOthers(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    ArgKind kind = rule.getArg(argument).getKind();
    return isOfToken(value) && (kind == ArgKind::State || kind == ArgKind::Stale);
  }
  if (llvm::is_contained(updates, value))
    return !memberOf(plain(value), /*isUpdate=*/true);
  Operation *op = value.getDefiningOp();
  return isa<AddOp, SubOp, NegOp, MulOp, MatmulOp, TransposeOp>(op) && !isOfToken(value) &&
         llvm::all_of(op->getOperands(), [&](Value x) { return isOfToken(x) || isOfOthers(x); });
}

// The vector of which each entry is times a key of a state, where a product is that; else null.
Value JoinedMembers::channelsOf(Value term, Value state) {
  auto product = term.getDefiningOp<MulOp>();
  for (unsigned k : {0, 1})
    if (product && product->getOperand(k) == state) {
      Value vector = product->getOperand(1 - k);
      MatType type = matType(vector);
      if (isOfToken(vector) && !type.isScalar() && isOne(isTurned ? type.getCols() : type.getRows()))
        return vector;
    }
  return {};
}

std::optional<unsigned> JoinedMembers::memberOfChannels(Value term) {
  for (unsigned i = 0; i < members.size(); ++i)
    if (channelsOf(term, member(i)))
      return i;
  return std::nullopt;
}

// Whether keys that are a number times `entryOfVector` are about that in bf16, if it is a constant.
bool JoinedMembers::isKeyOfVector(Value number) {
  constexpr double most = 1.0 / (1 << 12); // that is off, of what is rounded by up to 2^-9
  auto asConstant = [](Value value) { return value ? value.getDefiningOp<ConstantOp>() : ConstantOp(); };
  auto quotient = number ? number.getDefiningOp<DivOp>() : DivOp();
  ConstantOp top = asConstant(quotient ? quotient.getLhs() : number);
  ConstantOp bottom = quotient ? asConstant(quotient.getRhs()) : ConstantOp();
  if (!top || (quotient && !bottom))
    return true;
  double exact = entryOfVector * top.getValue().convertToDouble();
  if (bottom)
    exact /= bottom.getValue().convertToDouble();
  APFloat rounded(exact);
  bool isInexact;
  rounded.convert(APFloat::BFloat(), APFloat::rmNearestTiesToEven, &isInexact);
  return std::abs(rounded.convertToFloat() - exact) <= most * std::abs(exact);
}
