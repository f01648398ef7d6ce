// Which scans are sums that numbers are read of, so that products of a warp's tokens make them (ScanQuads.h).
#include "lib/Cuda/Cores.h"
#include "lib/Cuda/ParamProducts.h"
#include "lib/Cuda/ScanQuads.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

std::optional<SumReads> cuda::findSumReads(RuleOp rule, const ScanForm &form,
                                           ArrayRef<TensorArgument> tensors) {
  constexpr int64_t mostEntries = 256; // of a token's vectors, which the next tile's wait for in registers
  if (form.phases.size() != 1 || form.phases[0].size() != 1 || rule.argumentsOf(ArgKind::State).size() != 1)
    return std::nullopt;
  const ScanGroup &group = form.phases[0][0];
  BlockArgument state = rule.argumentsOf(ArgKind::State)[0];
  SumReads sums;
  sums.factor = group.factors[0], sums.written = group.writes[0];
  auto constantOf = [](Value value) -> std::optional<double> {
    auto constant = value ? value.getDefiningOp<ConstantOp>() : ConstantOp();
    return constant ? std::optional(constant.getValue().convertToDouble()) : std::nullopt;
  };
  std::optional<double> constant = sums.factor ? constantOf(sums.factor) : 0;
  if (constant)
    sums.factor = {}, sums.constant = *constant;
  if (group.kind != ScanGroup::Affine || !sums.written || sums.written.getType() != state.getType() ||
      (sums.factor && !isNumber(sums.factor)) || matType(state).numElements() < entriesOfStep)
    return std::nullopt;
  int64_t count = 0;
  for (const TensorArgument &tensor : tensors)
    if (tensor.argument && tensor.hasToken && !tensor.argument.use_empty()) {
      bool isVector = tensor.entry().numElements() > 1;
      if (tensor.element.isF32() && isVector)
        return std::nullopt;
      count += isVector ? tensor.entry().numElements() : 0;
    }
  if (count > mostEntries)
    return std::nullopt;
  // The state, times the factor and not, and with what is written.
  auto isFactor = [&](Value value) {
    return constant ? constantOf(value) == constant : value == sums.factor;
  };
  auto isScaled = [&](Value value) {
    auto product = value.getDefiningOp<MulOp>();
    return (constant == 1 && value == state) ||
           (product && ((product.getLhs() == state && isFactor(product.getRhs())) ||
                        (product.getRhs() == state && isFactor(product.getLhs()))));
  };
  auto isNext = [&](Value value) {
    auto sum = value.getDefiningOp<AddOp>();
    return sum && ((isScaled(sum.getLhs()) && sum.getRhs() == sums.written) ||
                   (isScaled(sum.getRhs()) && sum.getLhs() == sums.written));
  };
  if (constant == 0 ? rule.yieldedStates()[0] != sums.written : !isNext(rule.yieldedStates()[0]))
    return std::nullopt;
  llvm::DenseSet<Value> known, entries; // what follows from the state, and what has its entries
  known.insert(state);
  entries.insert(state);
  auto follows = [&](Value value) { return known.contains(value); };
  auto hasEntries = [&](Value value) { return entries.contains(value); };
  for (Operation &op : rule.getBody().front().without_terminator()) {
    if (!usesNoMatrix(op))
      return std::nullopt;
    if (llvm::none_of(op.getOperands(), follows))
      continue;
    Value result = op.getResult(0);
    known.insert(result);
    if (llvm::none_of(op.getOperands(), hasEntries))
      continue;
    sums.ofEntries.insert(&op);
    if (llvm::any_of(sums.reads, [&](const SumReads::Read &read) { return read.result == &op; }))
      continue;
    entries.insert(result);
    if (isScaled(result) || isNext(result))
      continue;
    // The terms of a read.
    auto terms = dyn_cast<MulOp>(op);
    bool fromFirst = terms && hasEntries(terms.getLhs());
    Value from = !terms ? Value() : fromFirst ? terms.getLhs() : terms.getRhs();
    Value along = !terms ? Value() : fromFirst ? terms.getRhs() : terms.getLhs();
    if (!terms || !(from == state || isNext(from)) || follows(along) || along.getType() != state.getType())
      return std::nullopt;
    for (Operation *user : op.getUsers()) {
      auto sum = dyn_cast<ReduceOp>(user);
      if (!sum || sum.getKind() != Reduction::Sum || !isNumber(sum.getResult()))
        return std::nullopt;
      sums.reads.push_back({sum, along, from != state});
    }
  }
  if (llvm::any_of(rule.yieldedOutputs(), hasEntries) || sums.reads.empty())
    return std::nullopt;
  return sums;
}
