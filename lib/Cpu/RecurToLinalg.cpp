// From a rule to a function that loops over the tokens of one sequence and head.
#include "lib/Cpu/Chunk.h"
#include "lib/Cpu/KernelBuilder.h"

namespace recur::cpu {
#define GEN_PASS_DEF_RECURTOLINALG
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

std::string cpu::formatText(TensorFormat format) {
  std::string text = dtypeName(format.dtype).str();
  return format.rank < 0 ? text : text + ":" + std::to_string(format.rank);
}

FailureOr<SmallVector<TensorFormat>> cpu::parseFormats(Operation *op, ArrayRef<std::string> texts) {
  SmallVector<TensorFormat> formats;
  for (StringRef text : texts) {
    auto [name, rank] = text.split(':');
    llvm::Expected<DType> type = parseDType(name);
    if (!type)
      return op->emitError() << llvm::toString(type.takeError());
    TensorFormat &format = formats.emplace_back(TensorFormat{*type});
    if (!rank.empty() && rank.getAsInteger(10, format.rank))
      return op->emitError() << "a format must be a type, or a type and ':' and a rank, got: " << text;
  }
  return formats;
}

//===----------------------------------------------------------------------===//
// The loop over tokens
//===----------------------------------------------------------------------===//

// Memory for what states are at the start of a block.
SmallVector<Value> KernelBuilder::startBuffers() {
  SmallVector<Value> buffers;
  for (BlockArgument stale : rule.argumentsOf(ArgKind::Stale)) {
    Type type = storageType(b.getContext(), naturalAxes(matType(stale)), sizesOf(stale));
    auto tensor = dyn_cast<RankedTensorType>(type);
    ArrayRef<int64_t> shape = tensor ? tensor.getShape() : ArrayRef<int64_t>();
    buffers.push_back(memref::AllocOp::create(b, loc, MemRefType::get(shape, b.getF32Type())));
  }
  return buffers;
}

// Keeps the states where a block begins, and at the first token of the call.
void KernelBuilder::enterStarts(OpLowering &lowering, ArrayRef<Value> buffers, Value token) {
  Value zero = arith::ConstantIndexOp::create(b, loc, 0);
  for (auto [stale, buffer] : llvm::zip(rule.argumentsOf(ArgKind::Stale), buffers)) {
    ArgAttr arg = rule.getArg(stale);
    Value size = arith::ConstantIndexOp::create(b, loc, arg.getBlock());
    Value phase = arith::RemUIOp::create(b, loc, arith::AddIOp::create(b, loc, position, token), size);
    auto isZero = [&](Value x) { return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, x, zero); };
    Value state = lowering.matrices.lookup(rule.findArgument(ArgKind::State, arg.getName())).value;
    auto tensor = dyn_cast<RankedTensorType>(state.getType());
    auto begins = scf::IfOp::create(b, loc, arith::OrIOp::create(b, loc, isZero(phase), isZero(token)));
    {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(begins.thenBlock());
      if (tensor)
        bufferization::MaterializeInDestinationOp::create(b, loc, TypeRange(), state, buffer,
                                                          /*restrict=*/true, /*writable=*/true);
      else
        memref::StoreOp::create(b, loc, state, buffer);
    }
    Value kept =
        tensor ? bufferization::ToTensorOp::create(b, loc, tensor, buffer, /*restrict=*/true).getResult()
               : memref::LoadOp::create(b, loc, buffer).getResult();
    enter(lowering, stale, kept);
  }
}

LogicalResult KernelBuilder::tokenLoop(OpLowering &lowering) {
  SmallVector<BlockArgument> states = rule.argumentsOf(ArgKind::State);
  SmallVector<Value> inits;
  for (unsigned state = 0; state < states.size(); ++state) {
    FailureOr<Value> init = initialState(state, lowering);
    if (failed(init))
      return failure();
    inits.push_back(*init);
  }
  Value first = arith::ConstantIndexOp::create(b, loc, 0), one = arith::ConstantIndexOp::create(b, loc, 1);
  while (program) {
    FailureOr<Value> done = chunkLoop(lowering, first, inits);
    if (failed(done))
      return failure();
    first = *done;
    std::tie(program, length) = std::exchange(finer, {});
  }
  for (Value &init : inits)
    if (auto type = dyn_cast<MemRefType>(init.getType()))
      init = bufferization::ToTensorOp::create(b, loc,
                                               RankedTensorType::get(type.getShape(), type.getElementType()),
                                               init, /*restrict=*/true, /*writable=*/true);
  SmallVector<Value> starts = startBuffers();
  auto loop = scf::ForOp::create(b, loc, first, tokens, one, inits);
  b.setInsertionPointToStart(loop.getBody());
  Value token = loop.getInductionVar();
  for (auto [view, argument] : llvm::zip(viewsOf(Role::Input), rule.argumentsOf(ArgKind::Input)))
    if (!argument.use_empty())
      enter(lowering, argument, load(*view, token));
  for (auto [argument, carried] : llvm::zip(states, loop.getRegionIterArgs()))
    enter(lowering, argument, carried);
  enterStarts(lowering, starts, token);
  for (BlockArgument argument : rule.argumentsOf(ArgKind::Position))
    enterIndex(lowering, argument, arith::AddIOp::create(b, loc, position, token));
  if (failed(lowering.lower(rule.getBody().front())))
    return failure();

  MatrixBuilder m(b, loc);
  for (auto [view, output] : llvm::zip(viewsOf(Role::Output), rule.yieldedOutputs()))
    store(*view, token, m.stored(lowering.matrices.lookup(output), naturalAxes(matType(output))));
  SmallVector<Matrix> next;
  for (Value state : rule.yieldedStates())
    next.push_back(lowering.matrices.lookup(state));
  if (!states.empty()) // without states the builder has ended the loop's body
    scf::YieldOp::create(b, loc, storeCarried(m, next, loop.getRegionIterArgs()));

  b.setInsertionPointAfter(loop);
  for (auto [view, result] : llvm::zip(viewsOf(Role::FinalState), loop.getResults())) {
    auto given = scf::IfOp::create(b, loc, isGiven(*view));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(given.thenBlock());
    store(*view, {}, result);
  }
  return success();
}

LogicalResult KernelBuilder::build(StringRef symbol) {
  if (failed(checkRule()))
    return failure();
  SmallVector<KernelTensor> tensors = kernelTensors(rule);
  if (!formats.empty() && formats.size() != tensors.size())
    return rule.emitError() << "has " << tensors.size() << " tensors, got formats for " << formats.size();
  SmallVector<MemRefType> types;
  for (auto [i, tensor] : llvm::enumerate(tensors)) {
    FailureOr<MemRefType> type = viewType(tensor, formats.empty() ? TensorFormat() : formats[i]);
    if (failed(type))
      return failure();
    types.push_back(*type);
    views.push_back({tensor, {}, false, {}, {}});
  }
  createFunction(symbol, types);
  OpLowering lowering(b, vectorWidth);
  for (auto [view, argument] : llvm::zip(viewsOf(Role::Param), rule.argumentsOf(ArgKind::Param)))
    enter(lowering, argument, load(*view, {}));
  for (BlockArgument argument : rule.argumentsOf(ArgKind::Head))
    enterIndex(lowering, argument, head);
  for (BlockArgument argument : rule.argumentsOf(ArgKind::Heads))
    enterIndex(lowering, argument, heads);
  if (failed(tokenLoop(lowering)))
    return failure();
  func::ReturnOp::create(b, loc);
  allowContraction(function);
  rule.erase();
  return success();
}

chunk::ProgramOp cpu::chunkProgramOf(RuleOp rule) {
  return rule->getParentOfType<ModuleOp>().lookupSymbol<chunk::ProgramOp>(
      (rule.getSymName() + chunkSuffix).str());
}

FailureOr<func::FuncOp> cpu::lowerChunkLoop(RuleOp rule, chunk::ProgramOp program, int64_t length,
                                            StringRef symbol, ArrayRef<TensorFormat> formats,
                                            unsigned vectorWidth) {
  length = program.getBlock().value_or(length); // chunks that are blocks have their size
  OwningOpRef<chunk::ProgramOp> bound = bindLength(program, length);
  KernelBuilder builder(rule, formats, vectorWidth, *bound, length);
  // Token by token there is no f64 for what needs it: few tokens are to be left.
  constexpr int64_t fewTokens = 16;
  OwningOpRef<chunk::ProgramOp> finer;
  if (length > fewTokens && llvm::any_of(bound->argumentsOf(ArgKind::State), isWide)) {
    finer = bindLength(program, fewTokens);
    builder.refine(*finer, fewTokens);
  }
  if (failed(builder.build(symbol)))
    return failure();
  func::FuncOp function = builder.getFunction();
  function->getParentOp()->setAttr(formAttr, StringAttr::get(function.getContext(), "chunk"));
  program.erase();
  return function;
}

FailureOr<func::FuncOp> cpu::lowerTokenLoop(RuleOp rule, StringRef symbol, ArrayRef<TensorFormat> formats,
                                            unsigned vectorWidth, bool isDirect) {
  KernelBuilder builder(rule, formats, vectorWidth, {}, 0, isDirect);
  if (failed(builder.build(symbol)))
    return failure();
  return builder.getFunction();
}

namespace {
struct RecurToLinalg : recur::cpu::impl::RecurToLinalgBase<RecurToLinalg> {
  using RecurToLinalgBase::RecurToLinalgBase;

  void runOnOperation() override {
    FailureOr<SmallVector<TensorFormat>> parsed = parseFormats(getOperation(), formats);
    if (failed(parsed))
      return signalPassFailure();
    for (RuleOp rule : llvm::make_early_inc_range(getOperation().getOps<RuleOp>())) {
      chunk::ProgramOp program = chunkProgramOf(rule);
      if (failed(program ? lowerChunkLoop(rule, program, chunkLength, symbol, *parsed, vectorWidth)
                         : lowerTokenLoop(rule, symbol, *parsed, vectorWidth)))
        return signalPassFailure();
    }
  }
};
} // namespace
