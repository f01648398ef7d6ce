// Dialect and verifiers.
#include "dialect/chunk/Chunk.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recur;
using namespace recur::chunk;

#include "dialect/chunk/ChunkDialect.cpp.inc"
#include "dialect/chunk/ChunkEnums.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "dialect/chunk/ChunkTypes.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialect/chunk/ChunkAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "dialect/chunk/ChunkOps.cpp.inc"

void ChunkDialect::initialize() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialect/chunk/ChunkTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/chunk/ChunkAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialect/chunk/ChunkOps.cpp.inc"
      >();
}

static MatType squareOf(MatType rows) {
  return MatType::get(rows.getContext(), rows.getRows(), rows.getRows());
}

// The number of channels of a decay fits a matrix: 1, or a channel for each of its columns.
static bool fits(DecayType decay, MatType rows, bool scalarToo) {
  MatType of = decay.getOf();
  return of.getRows() == rows.getRows() &&
         (of.getCols() == rows.getCols() || (scalarToo && isOne(of.getCols())));
}

//===----------------------------------------------------------------------===//
// Structure
//===----------------------------------------------------------------------===//

Type MapOp::tokenType(Type rows) {
  if (auto tokens = dyn_cast<TokensType>(rows))
    return tokens.getValue();
  auto type = cast<MatType>(rows);
  Attribute one = MatType::scalar(rows.getContext()).getRows();
  return MatType::get(rows.getContext(), type.getCols(), one);
}

Type MapOp::rowsType(Type token, Attribute length) {
  auto type = dyn_cast<MatType>(token);
  if (!type || !isOne(type.getCols()))
    return TokensType::get(token.getContext(), token);
  return MatType::get(token.getContext(), length, type.getRows());
}

chunk::YieldOp MapOp::getYield() { return cast<chunk::YieldOp>(getBody().front().getTerminator()); }

LogicalResult MapOp::verify() {
  SmallVector<Type> arguments(getCarried().getTypes()), yields(getCarried().getTypes());
  for (Value rows : getRows())
    arguments.push_back(tokenType(rows.getType()));
  llvm::append_range(arguments, getShared().getTypes());
  if (!llvm::equal(getBody().getArgumentTypes(), arguments)) // chunk_map_c1
    return emitOpError()
           << "must have the carried values, a token of each row value and the shared values as arguments";
  for (Value result : getResults())
    yields.push_back(tokenType(result.getType()));
  if (getBody().front().empty() || !isa<chunk::YieldOp>(getBody().front().back()) ||
      !llvm::equal(getYield().getValues().getTypes(), yields) ||
      !llvm::equal(getLast().getTypes(), getCarried().getTypes()))
    return emitOpError() << "must yield the carried values, then a token of each result"; // chunk_map_c2
  return success();
}

chunk::YieldOp ProgramOp::getBodyYield() { return cast<chunk::YieldOp>(getBody().front().getTerminator()); }

SmallVector<BlockArgument> ProgramOp::argumentsOf(ArgKind kind) {
  SmallVector<BlockArgument> arguments;
  for (BlockArgument argument : getBody().getArguments())
    if (getArg(argument.getArgNumber()).getKind() == kind)
      arguments.push_back(argument);
  return arguments;
}

static bool isInitArgument(ArgKind kind) {
  return kind == ArgKind::Param || kind == ArgKind::Head || kind == ArgKind::Heads;
}

void ProgramOp::getAsmBlockArgumentNames(Region &region, OpAsmSetValueNameFn setName) {
  unsigned next = 0;
  for (ArgAttr arg : getArgs().getAsRange<ArgAttr>())
    if ((&region == &getBody() || isInitArgument(arg.getKind())) && next < region.getNumArguments())
      setName(region.getArgument(next++), arg.getName().getValue());
}

LogicalResult ProgramOp::verifyRegions() {
  if (getBody().getNumArguments() != getArgs().size()) // chunk_program_c1
    return emitOpError() << "must have one argument in its body for each of its " << getArgs().size()
                         << " args, got: " << getBody().getNumArguments();
  SmallVector<Type> states;
  for (BlockArgument argument : getBody().getArguments()) {
    ArgAttr arg = getArg(argument.getArgNumber());
    if (arg.getKind() == ArgKind::Stale) // chunk_program_c3
      return emitOpError() << "cannot have a stale argument, got: " << arg;
    auto type = dyn_cast<MatType>(argument.getType());
    bool perToken = arg.getKind() == ArgKind::Input || arg.getKind() == ArgKind::Position;
    if (perToken && type && type.getRows() != getLengthAttr())
      return emitOpError() << "'" << arg.getName().getValue() << "' must have " << getLength()
                           << " rows, got: " << type;
    if (arg.getKind() == ArgKind::State)
      states.push_back(argument.getType());
  }
  auto yield = dyn_cast<chunk::YieldOp>(getBody().front().back());
  TypeRange yielded = yield ? TypeRange(yield.getValues().getTypes()) : TypeRange();
  if (yielded.size() != states.size() + getOutputs().size() ||
      !llvm::equal(yielded.take_front(states.size()), states) ||
      !llvm::all_of(yielded.drop_front(states.size()), [&](Type type) {
        return cast<MatType>(type).getRows() == getLengthAttr();
      })) // chunk_program_c2
    return emitOpError() << "must yield its " << states.size() << " states and then " << getOutputs().size()
                         << " outputs with " << getLength() << " rows";
  auto walked = getBody().walk([&](Operation *op) { // chunk_program_c4, chunk_held_c1
    auto reach = op->getAttrOfType<ReachAttr>("reach");
    auto span = op->getAttrOfType<SpanAttr>("span");
    bool reachesStart = isa<HeldOp>(op) || (reach && reach.getValue() == Reach::Start) ||
                        (span && span.getValue() == Span::Start);
    return reachesStart && !getStarts() ? WalkResult(op->emitOpError("reaches the start of a block, but the "
                                                                     "program has no blocks"))
                                        : WalkResult::advance();
  });
  return failure(walked.wasInterrupted());
}

//===----------------------------------------------------------------------===//
// Decays
//===----------------------------------------------------------------------===//

LogicalResult chunk::DecayOp::inferReturnTypes(MLIRContext *context, std::optional<Location>,
                                               ValueRange operands, DictionaryAttr, OpaqueProperties,
                                               RegionRange, SmallVectorImpl<Type> &results) {
  results.push_back(DecayType::get(context, matType(operands[0])));
  return success();
}

LogicalResult chunk::DecayOp::verify() {
  if (getLog() && getLog().getType() != getFactors().getType()) // chunk_decay_c1
    return emitOpError() << "must have logarithms of the factors' type, got: " << getLog().getType();
  return success();
}

LogicalResult CascadeOp::verify() {
  int64_t n = getType().getStates();
  if (int64_t(getFactors().size()) != n * n) // chunk_cascade_c1
    return emitOpError() << "must have " << n * n << " factors, got: " << getFactors().size();
  MatType of = getType().getOf();
  for (Value factor : getFactors())
    if (MatType own = matType(factor); own.getRows() != of.getRows() || !(own == of || isOne(own.getCols())))
      return emitOpError() << "must have factors of type " << of << " or one number per token, got: " << own;
  return success();
}

template <typename OpT>
static LogicalResult verifyEntry(OpT op) {
  auto cascade = dyn_cast<CascadeType>(op.getDecay().getType());
  uint64_t states = cascade ? cascade.getStates() : 1;
  if (op.getTo() >= states || op.getFrom() >= states) // chunk_mask_c2
    return op.emitOpError() << "must name one of " << states << " states, got: " << op.getTo() << " and "
                            << op.getFrom();
  return success();
}

LogicalResult chunk::MaskOp::verify() {
  MatType of = typeOfFactors(getDecay().getType());
  if (!isOne(of.getCols()) || getType() != squareOf(of)) // chunk_mask_c1
    return emitOpError() << "needs a scalar decay and gives a square matrix, got: " << of << " and "
                         << getType();
  return verifyEntry(*this);
}

LogicalResult WeightsOp::verify() {
  MatType of = typeOfFactors(getDecay().getType());
  MatType row = MatType::get(getContext(), of.getCols(), MatType::scalar(getContext()).getCols());
  if (getType() != (getSpan() == Span::Whole ? row : of)) // chunk_weights_c1
    return emitOpError() << "must give " << (getSpan() == Span::Whole ? row : of) << ", got: " << getType();
  return verifyEntry(*this);
}

//===----------------------------------------------------------------------===//
// Between tokens
//===----------------------------------------------------------------------===//

bool chunk::isLate(Value decay) {
  auto op = decay ? decay.getDefiningOp<chunk::DecayOp>() : chunk::DecayOp();
  return op && op.getLate();
}

LogicalResult GramOp::verify() {
  auto type = cast<MatType>(getLhs().getType());
  auto cascade = getDecay() ? dyn_cast<CascadeType>(getDecay().getType()) : CascadeType();
  bool fitsRows = !getDecay() || (cascade ? cascade.getOf() == type
                                          : fits(cast<DecayType>(getDecay().getType()), type, true));
  if (!fitsRows) // chunk_gram_c1
    return emitOpError() << "must have a scalar decay or one for each column of " << type
                         << ", got: " << getDecay().getType();
  if (getType() != squareOf(type)) // chunk_gram_c2
    return emitOpError() << "must give " << squareOf(type) << ", got: " << getType();
  size_t states = cascade ? cascade.getStates() : 0;
  auto isNumber = [&](Value value) {
    return matType(value).getRows() == type.getRows() && isOne(matType(value).getCols());
  };
  if (getWeights().size() != states || !llvm::all_of(getWeights(), isNumber) ||
      getTo() >= std::max<size_t>(states, 1)) // chunk_gram_c3
    return emitOpError() << "must have a number per token for each of " << states
                         << " states, and read one of them, got: " << getWeights().size() << " and "
                         << getTo();
  return success();
}

MatType chunk::typeOfFactors(Type decay) {
  if (auto cascade = dyn_cast<CascadeType>(decay))
    return cascade.getOf();
  return cast<DecayType>(decay).getOf();
}

LogicalResult MixOp::verify() {
  auto type = cast<MatType>(getValues().getType());
  if (getScores().getType() != squareOf(type) || getType() != type) // chunk_mix_c1
    return emitOpError() << "must have scores of type " << squareOf(type) << " and give " << type
                         << ", got: " << getScores().getType() << " and " << getType();
  if (!fits(getDecay().getType(), type, false)) // chunk_mix_c2
    return emitOpError() << "must have a decay for each column of " << type
                         << ", got: " << getDecay().getType();
  if (isLate(getDecay())) // chunk_mix_c3
    return emitOpError() << "cannot have a late decay";
  return success();
}

LogicalResult TriSolveOp::verify() {
  size_t n = getRhs().size();
  if (n == 0 || getBlocks().size() != n * n || getResults().size() != n) // chunk_tri_solve_c1
    return emitOpError() << "must have " << n * n << " blocks for " << n
                         << " right sides, got: " << getBlocks().size();
  auto type = cast<MatType>(getRhs().front().getType());
  for (Value block : getBlocks())
    if (block.getType() != squareOf(type)) // chunk_tri_solve_c2
      return emitOpError() << "must have blocks of type " << squareOf(type) << ", got: " << block.getType();
  for (Type other :
       llvm::concat<const Type>(llvm::to_vector(getRhs().getTypes()), llvm::to_vector(getResultTypes())))
    if (other != type) // chunk_tri_solve_c3
      return emitOpError() << "must have right sides and results of one type, got: " << type << " and "
                           << other;
  if (getDecay() && !fits(getDecay().getType(), type, false))
    return emitOpError() << "must have a decay for each column of " << type
                         << ", got: " << getDecay().getType();
  if (isLate(getDecay())) // chunk_tri_solve_c5
    return emitOpError() << "cannot have a late decay";
  if (getFactors().empty())
    return success();
  if (getFactors().size() != n ||
      !llvm::all_of(getFactors().getTypes(), [&](Type factors) { return factors == type; }))
    return emitOpError() << "must have no factors or " << n << " of type " << type // chunk_tri_solve_c4
                         << ", got: " << getFactors().getTypes();
  return success();
}

chunk::YieldOp SubstituteOp::getYield() { return cast<chunk::YieldOp>(getBody().front().getTerminator()); }

LogicalResult SubstituteOp::verify() {
  size_t n = getSides().size(), m = getWrites().size();
  if (n == 0 || m == 0 || getBlocks().size() != n * m) // chunk_substitute_c1
    return emitOpError() << "must have " << n * m << " blocks for " << n << " reads and " << m
                         << " writes, got: " << getBlocks().size();
  auto type = cast<MatType>(getSides().front().getType());
  for (Value block : getBlocks())
    if (block.getType() != squareOf(type))
      return emitOpError() << "must have blocks of type " << squareOf(type) << ", got: " << block.getType();
  auto isOfTokens = [&](Type own) { return cast<MatType>(own).getRows() == type.getRows(); };
  if (getReads().getTypes() != getSides().getTypes() || !llvm::all_of(getReads().getTypes(), isOfTokens) ||
      !llvm::all_of(getWrites().getTypes(), isOfTokens)) // chunk_substitute_c2
    return emitOpError() << "must give reads of the sides' types and writes with as many rows, got: "
                         << getResultTypes();
  SmallVector<Type> arguments, yields;
  for (Value rows : llvm::concat<Value>(llvm::to_vector(getSides()), llvm::to_vector(getRows())))
    arguments.push_back(MapOp::tokenType(rows.getType()));
  llvm::append_range(arguments, getShared().getTypes());
  if (!llvm::equal(getBody().getArgumentTypes(), arguments)) // chunk_substitute_c3
    return emitOpError()
           << "must have a token of each read and of each row value and the shared values as arguments";
  for (Value write : getWrites())
    yields.push_back(MapOp::tokenType(write.getType()));
  if (getBody().front().empty() || !isa<chunk::YieldOp>(getBody().front().back()) ||
      !llvm::equal(getYield().getValues().getTypes(), yields)) // chunk_substitute_c4
    return emitOpError() << "must yield a token of each write";
  return success();
}

LogicalResult LdlOp::verify() {
  auto state = cast<MatType>(getState().getType()), keys = cast<MatType>(getKeys().getType());
  if (state.getRows() != state.getCols() || state.getRows() != keys.getCols()) // chunk_ldl_c1
    return emitOpError() << "must have a square state that fits the keys, got: " << state << " and " << keys;
  MatType column = MatType::get(getContext(), keys.getRows(), MatType::scalar(getContext()).getCols());
  for (Value numbers : {getDecays(), getWeights(), getOffsets(), getDenominators()})
    if (numbers.getType() != column) // chunk_ldl_c2
      return emitOpError() << "must have numbers of type " << column << ", got: " << numbers.getType();
  if (getLower().getType() != squareOf(keys)) // chunk_ldl_c3
    return emitOpError() << "must give " << squareOf(keys) << ", got: " << getLower().getType();
  return success();
}

LogicalResult ScanOp::verify() {
  size_t n = getInit().size();
  if (n == 0 || getFactors().size() != n * n || getWrites().size() != n || getResults().size() != n ||
      getLast().size() != n) // chunk_scan_c1
    return emitOpError() << "must have " << n * n << " factors and " << n << " writes for " << n << " states";
  Type type = getWrites().front().getType(), token = MapOp::tokenType(type);
  auto is = [](Type expected) { return [=](Type type) { return type == expected; }; };
  if (!llvm::all_of(getFactors().getTypes(), is(type)) || !llvm::all_of(getWrites().getTypes(), is(type)) ||
      !llvm::all_of(getResults().getTypes(), is(type)) || !llvm::all_of(getInit().getTypes(), is(token)) ||
      !llvm::all_of(getLast().getTypes(), is(token))) // chunk_scan_c2
    return emitOpError() << "must have factors and writes of type " << type << " and states of type "
                         << token;
  return success();
}

LogicalResult NormaliserOp::verify() {
  MatType type = getQueries().getType(), scores = getScores().getType();
  auto isOfTokens = [&](MatType own) { return own.getRows() == type.getRows() && isOne(own.getCols()); };
  if (scores.getRows() != type.getRows() || scores.getCols() != type.getRows() ||
      !isOfTokens(getWeights().getType()) || !isOfTokens(getResult().getType())) // chunk_normaliser_c1
    return emitOpError()
           << "must have scores of all pairs, and a weight and a result for each, of the rows of " << type;
  if (Value whole = getWhole()) // chunk_normaliser_c2
    if (MatType own = matType(whole); !isOne(own.getRows()) || !isOne(own.getCols()))
      return emitOpError() << "must leave one number of the vector, got: " << own;
  return success();
}

LogicalResult ConjugateGradientsOp::verifyRegions() {
  Block &block = getProduct().front();
  auto yield = dyn_cast<chunk::YieldOp>(block.back());
  if (block.getNumArguments() != 1 || block.getArgument(0).getType() != getType() || !yield ||
      !llvm::equal(yield.getValues().getTypes(), ArrayRef<Type>(getType()))) // chunk_conjugate_gradients_c1
    return emitOpError() << "must multiply a matrix of type " << getType() << " in its region";
  return success();
}

//===----------------------------------------------------------------------===//
// Parts of outputs
//===----------------------------------------------------------------------===//

static constexpr llvm::StringLiteral partsAttr = "chunk.parts";

SmallVector<chunk::OutputPart> chunk::outputParts(ProgramOp program) {
  SmallVector<OutputPart> parts;
  if (auto list = program->getAttrOfType<ArrayAttr>(partsAttr)) {
    for (auto numbers : list.getAsRange<DenseI64ArrayAttr>())
      parts.push_back({unsigned(numbers[0]), numbers[1], numbers[2], numbers[3] != 0});
    return parts;
  }
  for (unsigned i = 0; i < program.getOutputs().size(); ++i)
    parts.push_back({i});
  return parts;
}

unsigned chunk::numOutputs(ProgramOp program) {
  SmallVector<OutputPart> parts = outputParts(program);
  return parts.empty() ? 0 : parts.back().output + 1;
}

void chunk::setOutputParts(ProgramOp program, ArrayRef<OutputPart> parts) {
  Builder b(program.getContext());
  if (llvm::any_of(parts, [](const OutputPart &part) { return part.count > 1; }))
    program->setAttr(partsAttr,
                     b.getArrayAttr(llvm::map_to_vector(parts, [&](const OutputPart &p) -> Attribute {
                       return b.getDenseI64ArrayAttr({int64_t(p.output), p.index, p.count, p.isRow});
                     })));
}
