// The ops that hold regions: rule, for, block and their yield.
#include "dialect/recur/Recur.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace recur;

static bool isInitArgument(ArgKind kind) {
  return kind == ArgKind::Param || kind == ArgKind::Head || kind == ArgKind::Heads;
}

static YieldOp yieldOf(Region &region) { return cast<YieldOp>(region.front().getTerminator()); }

//===----------------------------------------------------------------------===//
// rule
//===----------------------------------------------------------------------===//

YieldOp RuleOp::getBodyYield() { return yieldOf(getBody()); }
YieldOp RuleOp::getInitYield() { return yieldOf(getInit()); }

OperandRange RuleOp::yieldedStates() {
  return getBodyYield().getValues().take_front(argumentsOf(ArgKind::State).size());
}

OperandRange RuleOp::yieldedOutputs() {
  return getBodyYield().getValues().drop_front(argumentsOf(ArgKind::State).size());
}

SmallVector<BlockArgument> RuleOp::argumentsOf(ArgKind kind) {
  SmallVector<BlockArgument> result;
  for (BlockArgument argument : getBody().getArguments())
    if (getArg(argument).getKind() == kind)
      result.push_back(argument);
  return result;
}

BlockArgument RuleOp::findArgument(ArgKind kind, StringRef name) {
  for (BlockArgument argument : getBody().getArguments())
    if (getArg(argument).getKind() == kind && getArg(argument).getName() == name)
      return argument;
  return {};
}

SmallVector<StringAttr> RuleOp::symbols() {
  llvm::SetVector<StringAttr> found;
  auto note = [&](Attribute dim) {
    if (auto symbol = dyn_cast<StringAttr>(dim))
      found.insert(symbol);
  };
  auto noteType = [&](Type type) {
    if (auto steps = dyn_cast<StepsType>(type)) {
      note(steps.getCount());
      type = steps.getStep();
    }
    if (auto mat = dyn_cast<MatType>(type)) {
      note(mat.getRows());
      note(mat.getCols());
    }
  };
  llvm::SmallDenseSet<Attribute> lengths;
  walk([&](BlockOp block) { lengths.insert(block.getLengthAttr()); });
  for (BlockArgument argument : getBody().getArguments())
    noteType(argument.getType());
  walk<WalkOrder::PreOrder>([&](Operation *op) {
    for (Type type : op->getResultTypes())
      noteType(type);
    if (auto size = dyn_cast<SizeOp>(op))
      note(size.getDim());
    if (auto loop = dyn_cast<ForOp>(op))
      note(loop.getCount());
  });
  SmallVector<StringAttr> result;
  for (StringAttr symbol : found)
    if (!lengths.contains(symbol))
      result.push_back(symbol);
  return result;
}

void RuleOp::getAsmBlockArgumentNames(Region &region, OpAsmSetValueNameFn setName) {
  unsigned next = 0;
  for (unsigned i = 0, e = getArgs().size(); i != e; ++i) {
    ArgAttr arg = getArg(i);
    if (&region == &getInit() && !isInitArgument(arg.getKind()))
      continue;
    if (next == region.getNumArguments())
      return;
    std::string suffix = arg.getKind() == ArgKind::Stale ? "_at_" + std::to_string(arg.getBlock()) : "";
    setName(region.getArgument(next++), (arg.getName().getValue() + suffix).str());
  }
}

// An argument: KIND "NAME" %name: TYPE [in RANGE] [unit] [block N]
static ParseResult parseRuleArg(OpAsmParser &parser, SmallVectorImpl<OpAsmParser::Argument> &arguments,
                                SmallVectorImpl<Attribute> &args) {
  StringRef keyword;
  std::string name;
  OpAsmParser::Argument argument;
  RangeAttr range;
  int64_t block = 0;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&keyword))
    return failure();
  auto kind = symbolizeArgKind(keyword);
  if (!kind)
    return parser.emitError(loc) << "expected the kind of an argument, got: " << keyword;
  if (parser.parseString(&name) || parser.parseArgument(argument, /*allowType=*/true))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("in")) && parser.parseCustomAttributeWithFallback(range))
    return failure();
  bool unit = succeeded(parser.parseOptionalKeyword("unit"));
  if (succeeded(parser.parseOptionalKeyword("block")) && parser.parseInteger(block))
    return failure();
  if (parser.parseOptionalLocationSpecifier(argument.sourceLoc))
    return failure();
  arguments.push_back(argument);
  args.push_back(
      ArgAttr::get(parser.getContext(), *kind, parser.getBuilder().getStringAttr(name), range, unit, block));
  return success();
}

ParseResult RuleOp::parse(OpAsmParser &parser, OperationState &result) {
  StringAttr symbol;
  SmallVector<OpAsmParser::Argument> arguments;
  SmallVector<Attribute> args, outputs;
  if (parser.parseSymbolName(symbol, getSymNameAttrName(result.name), result.attributes) ||
      parser.parseCommaSeparatedList(OpAsmParser::Delimiter::Paren,
                                     [&] { return parseRuleArg(parser, arguments, args); }) ||
      parser.parseArrow() || parser.parseCommaSeparatedList(OpAsmParser::Delimiter::Paren, [&] {
        std::string name;
        if (parser.parseString(&name))
          return failure();
        outputs.push_back(parser.getBuilder().getStringAttr(name));
        return success();
      }))
    return failure();
  result.addAttribute(getArgsAttrName(result.name), parser.getBuilder().getArrayAttr(args));
  result.addAttribute(getOutputsAttrName(result.name), parser.getBuilder().getArrayAttr(outputs));
  if (parser.parseOptionalAttrDictWithKeyword(result.attributes))
    return failure();
  SmallVector<OpAsmParser::Argument> initArguments;
  for (auto [argument, arg] : llvm::zip(arguments, args))
    if (isInitArgument(cast<ArgAttr>(arg).getKind()))
      initArguments.push_back(argument);
  Region *init = result.addRegion(), *body = result.addRegion();
  if (parser.parseKeyword("init") || parser.parseRegion(*init, initArguments) ||
      parser.parseKeyword("body") || parser.parseRegion(*body, arguments))
    return failure();
  for (Region *region : {init, body})
    if (region->empty())
      region->emplaceBlock();
  return success();
}

void RuleOp::print(OpAsmPrinter &p) {
  p << " ";
  p.printSymbolName(getSymName());
  p << "(";
  llvm::interleaveComma(llvm::zip(getArgs().getAsRange<ArgAttr>(), getBody().getArguments()), p,
                        [&](auto pair) {
                          auto [arg, argument] = pair;
                          p << stringifyArgKind(arg.getKind()) << " " << arg.getName() << " ";
                          p.printRegionArgument(argument, {}, /*omitType=*/false);
                          if (arg.getRange()) {
                            p << " in ";
                            p.printStrippedAttrOrType(arg.getRange());
                          }
                          if (arg.getUnit())
                            p << " unit";
                          if (arg.getKind() == ArgKind::Stale)
                            p << " block " << arg.getBlock();
                        });
  p << ") -> (";
  llvm::interleaveComma(getOutputs(), p);
  p << ")";
  p.printOptionalAttrDictWithKeyword((*this)->getAttrs(),
                                     {getSymNameAttrName(), getArgsAttrName(), getOutputsAttrName()});
  p << " init ";
  p.printRegion(getInit(), /*printEntryBlockArgs=*/false);
  p << " body ";
  p.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

LogicalResult RuleOp::verify() {
  if (getBody().getNumArguments() != getArgs().size()) // recur_rule_c1
    return emitOpError() << "needs one body argument for each of its " << getArgs().size()
                         << " arguments, got: " << getBody().getNumArguments();
  llvm::StringSet<> names;
  for (ArgAttr arg : getArgs().getAsRange<ArgAttr>()) { // recur_rule_c2
    std::string key = arg.getName().str();
    if (arg.getKind() == ArgKind::Stale)
      key += "@" + std::to_string(arg.getBlock());
    if (!names.insert(key).second)
      return emitOpError() << "argument '" << key << "' appears twice";
  }
  llvm::StringSet<> outputs;
  for (StringAttr output : getOutputs().getAsRange<StringAttr>())
    if (!outputs.insert(output).second)
      return emitOpError() << "output '" << output.getValue() << "' appears twice";
  if (getOutputs().empty()) // recur_rule_c6
    return emitOpError() << "needs an output";
  for (BlockArgument argument : getBody().getArguments()) {
    ArgAttr arg = getArg(argument);
    bool mayHaveSteps = arg.getKind() == ArgKind::Input;
    if (!isa<MatType>(argument.getType()) && !(mayHaveSteps && isa<StepsType>(argument.getType())))
      return emitOpError() << "argument '" << arg.getName().getValue()
                           << "' must be a matrix, got: " << argument.getType();
    if (arg.getKind() >= ArgKind::Position && !matType(argument).isScalar()) // recur_rule_c7
      return emitOpError() << "argument '" << arg.getName().getValue()
                           << "' must be a scalar, got: " << argument.getType();
    if (arg.getKind() != ArgKind::Stale)
      continue;
    BlockArgument state = findArgument(ArgKind::State, arg.getName()); // recur_rule_c5
    if (!state || state.getType() != argument.getType() || arg.getBlock() < 1)
      return emitOpError() << "stale argument '" << arg.getName().getValue()
                           << "' needs a state of that name and type, and a positive block";
  }
  return success();
}

// Compares what a region yields with the types it must yield.
static LogicalResult verifyYield(Operation *op, YieldOp yield, TypeRange expected, StringRef what) {
  if (yield.getValues().size() != expected.size())
    return yield.emitOpError() << "needs " << expected.size() << " values for " << what
                               << ", got: " << yield.getValues().size();
  for (auto [index, value, type] : llvm::enumerate(yield.getValues(), expected))
    if (value.getType() != type)
      return yield.emitOpError() << "value " << index << " for " << what << " must be " << type
                                 << ", got: " << value.getType();
  return success();
}

static LogicalResult verifyTerminated(Operation *op, Region &region, StringRef name) {
  if (region.front().empty() || !isa<YieldOp>(region.front().back()))
    return op->emitOpError() << "region '" << name << "' must end with recur.yield";
  return success();
}

LogicalResult RuleOp::verifyRegions() {
  if (failed(verifyTerminated(*this, getInit(), "init")) ||
      failed(verifyTerminated(*this, getBody(), "body")))
    return failure();
  SmallVector<Type> states;
  for (BlockArgument state : argumentsOf(ArgKind::State))
    states.push_back(state.getType());
  OperandRange values = getBodyYield().getValues(); // recur_rule_c3
  if (values.size() != states.size() + getOutputs().size())
    return getBodyYield().emitOpError() << "needs " << states.size() << " states and " << getOutputs().size()
                                        << " outputs, got: " << values.size() << " values";
  for (auto [index, type] : llvm::enumerate(states))
    if (values[index].getType() != type)
      return getBodyYield().emitOpError()
             << "state '" << getArg(argumentsOf(ArgKind::State)[index]).getName().getValue() << "' must be "
             << type << ", got: " << values[index].getType();
  SmallVector<Type> initArguments;
  for (BlockArgument argument : getBody().getArguments())
    if (isInitArgument(getArg(argument).getKind()))
      initArguments.push_back(argument.getType());
  if (!llvm::equal(getInit().getArgumentTypes(), initArguments)) // recur_rule_c4
    return emitOpError() << "region 'init' must have the param, head and heads arguments";
  if (failed(verifyYield(*this, getInitYield(), states, "the initial states")))
    return failure();
  int64_t size = 0; // recur_rule_c8
  auto agree = [&](int64_t other) {
    size = size ? size : other;
    return size == other;
  };
  for (ArgAttr arg : getArgs().getAsRange<ArgAttr>())
    if (arg.getKind() == ArgKind::Stale && !agree(arg.getBlock()))
      return emitOpError() << "has blocks of " << size << " and of " << arg.getBlock() << " tokens";
  for (BlockOp block : getBody().getOps<BlockOp>())
    if (block.getSize() && !agree(*block.getSize()))
      return emitOpError() << "has blocks of " << size << " and of " << *block.getSize() << " tokens";
  return success();
}

//===----------------------------------------------------------------------===//
// for
//===----------------------------------------------------------------------===//

YieldOp ForOp::getYield() { return yieldOf(getBody()); }

ParseResult ForOp::parse(OpAsmParser &parser, OperationState &result) {
  OpAsmParser::Argument counter;
  SmallVector<OpAsmParser::Argument> carried;
  SmallVector<OpAsmParser::UnresolvedOperand> inits;
  SmallVector<Type> types;
  int64_t one;
  Attribute count;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseArgument(counter) || parser.parseEqual() || parser.parseInteger(one))
    return failure();
  if (one != 1)
    return parser.emitError(loc) << "micro-steps count from 1, got: " << one;
  if (parser.parseKeyword("to") || parseDim(parser, count))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("iter")) &&
      (parser.parseAssignmentList(carried, inits) || parser.parseArrowTypeList(types)))
    return failure();
  if (carried.size() != types.size())
    return parser.emitError(loc) << "needs a type for each carried value";
  counter.type = MatType::scalar(parser.getContext());
  for (auto [argument, type] : llvm::zip(carried, types))
    argument.type = type;
  carried.insert(carried.begin(), counter);
  result.addAttribute("count", count);
  result.addTypes(types);
  return failure(parser.resolveOperands(inits, types, loc, result.operands) ||
                 parser.parseRegion(*result.addRegion(), carried) ||
                 parser.parseOptionalAttrDict(result.attributes));
}

void ForOp::print(OpAsmPrinter &p) {
  p << " " << getCounter() << " = 1 to ";
  printDim(p, getCount());
  if (!getInits().empty()) {
    p << " iter(";
    llvm::interleaveComma(llvm::zip(getCarried(), getInits()), p,
                          [&](auto pair) { p << std::get<0>(pair) << " = " << std::get<1>(pair); });
    p << ") -> ";
    if (getResults().size() == 1)
      p << getResults()[0].getType();
    else
      p << "(" << getResultTypes() << ")";
  }
  p << " ";
  p.printRegion(getBody(), /*printEntryBlockArgs=*/false);
  p.printOptionalAttrDict((*this)->getAttrs(), {"count"});
}

LogicalResult ForOp::verify() {
  if (failed(verifyTerminated(*this, getBody(), "body")))
    return failure();
  SmallVector<Type> arguments = {MatType::scalar(getContext())};
  llvm::append_range(arguments, getInits().getTypes());
  if (!llvm::equal(getBody().getArgumentTypes(), arguments) ||
      getResultTypes() != getInits().getTypes()) // c1
    return emitOpError()
           << "must have a scalar counter and one region argument and result for each carried value, "
              "with its type";
  return verifyYield(*this, getYield(), getResultTypes(), "the carried values"); // recur_for_c2
}

//===----------------------------------------------------------------------===//
// block
//===----------------------------------------------------------------------===//

YieldOp BlockOp::getYield() { return yieldOf(getBody()); }

MatType BlockOp::rowsType(MatType tokenType) {
  return MatType::get(getContext(), getLengthAttr(), tokenType.getRows());
}

LogicalResult BlockOp::verify() {
  if (!isa<RuleOp>((*this)->getParentOp())) // recur_block_c4
    return emitOpError() << "must stand directly in the body of a rule";
  if (failed(verifyTerminated(*this, getBody(), "body")))
    return failure();
  SmallVector<Type> arguments, yields(getStates().getTypes());
  for (Value token : getTokens()) { // recur_block_c1
    if (!isOne(matType(token).getCols()))
      return emitOpError() << "a token value must be a scalar or a vector, got: " << token.getType();
    arguments.push_back(rowsType(matType(token)));
  }
  llvm::append_range(arguments, getShared().getTypes());
  if (!llvm::equal(getBody().getArgumentTypes(), arguments)) // recur_block_c2
    return emitOpError()
           << "must have the matrices of its token values and its shared values as region arguments";
  for (Value row : getRows()) {
    if (!isOne(matType(row).getCols()))
      return emitOpError() << "a result for each token must be a scalar or a vector, got: " << row.getType();
    yields.push_back(rowsType(matType(row)));
  }
  return verifyYield(*this, getYield(), yields, "its results"); // recur_block_c3
}
