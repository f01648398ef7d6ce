#include "lib/Cuda/SolvedPlan.h"
#include "lib/Cuda/ChunkEmitter.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

bool cuda::areUnitRows(Value rows) {
  if (auto argument = dyn_cast<BlockArgument>(rows))
    return cast<chunk::ProgramOp>(argument.getOwner()->getParentOp())
        .getArg(argument.getArgNumber())
        .getUnit();
  auto map = rows.getDefiningOp<chunk::MapOp>();
  if (!map)
    return false;
  Value row = map.getYield().getValues()[map.getCarried().size() + cast<OpResult>(rows).getResultNumber()];
  while (auto assume = row.getDefiningOp<AssumeOp>())
    row = assume.getOperand();
  auto quotient = row.getDefiningOp<DivOp>();
  auto root = quotient ? quotient.getRhs().getDefiningOp<SqrtOp>() : SqrtOp();
  Value square = root ? root->getOperand(0) : Value();
  if (auto sum = square ? square.getDefiningOp<AddOp>() : AddOp())
    for (unsigned i : {0, 1})
      if (auto eps = sum->getOperand(i).getDefiningOp<ConstantOp>(); eps && !eps.getValue().isNegative())
        square = sum->getOperand(1 - i);
  auto reduce = square ? square.getDefiningOp<ReduceOp>() : ReduceOp();
  auto squares = reduce ? reduce.getOperand().getDefiningOp<MulOp>() : MulOp();
  return squares && squares->getOperand(0) == quotient.getLhs() &&
         squares->getOperand(1) == quotient.getLhs();
}

bool cuda::onlyDecays(Value value) {
  auto decay = value.getDefiningOp<chunk::DecayOp>();
  if (auto constant = decay ? decay.getFactors().getDefiningOp<ConstantOp>() : ConstantOp())
    return isOne(constant.getType().getCols()) && constant.getValue().convertToDouble() >= 0 &&
           constant.getValue().convertToDouble() <= 1;
  auto log = decay && decay.getLog() ? dyn_cast<BlockArgument>(decay.getLog()) : BlockArgument();
  if (!log || !isOne(matType(decay.getFactors()).getCols()))
    return false;
  auto range = cast<chunk::ProgramOp>(log.getOwner()->getParentOp()).getArg(log.getArgNumber()).getRange();
  return range && range.getHi() <= 0;
}

bool cuda::isTokenColumn(Value value) {
  auto type = dyn_cast<MatType>(value.getType());
  return type && isOne(type.getCols()) && isa<StringAttr>(type.getRows());
}

bool ChunkEmitter::fitsHalves(chunk::ProgramOp program) {
  auto fits = [](MatmulOp product) {
    auto transpose = product.getLhs().getDefiningOp<TransposeOp>();
    Value rows = transpose ? transpose.getOperand() : Value();
    if (auto scaled = rows ? rows.getDefiningOp<MulOp>() : MulOp())
      for (unsigned i : {0, 1})
        if (isTokenColumn(scaled->getOperand(i)))
          rows = scaled->getOperand(1 - i);
    return rows && areUnitRows(rows);
  };
  return llvm::all_of(program.getBody().getOps<MatmulOp>(), fits) &&
         program.getBody().getOps<chunk::GramOp>().empty() &&
         program.getBody().getOps<chunk::TriSolveOp>().empty();
}

// A product's other factor.
static Value otherFactor(Value product, Value factor) {
  auto mul = product.getDefiningOp<MulOp>();
  for (unsigned i : {0, 1})
    if (mul && mul->getOperand(i) == factor)
      return mul->getOperand(1 - i);
  return {};
}

// The state that a product reads such that its independent indices are the result's columns.
static BlockArgument stateOf(Value right) {
  auto transpose = right.getDefiningOp<TransposeOp>();
  auto state = dyn_cast<BlockArgument>(transpose ? transpose.getOperand() : right);
  auto program = state ? dyn_cast<chunk::ProgramOp>(state.getOwner()->getParentOp()) : chunk::ProgramOp();
  if (!program || program.getArg(state.getArgNumber()).getKind() != ArgKind::State)
    return {};
  return (ChunkEmitter::stateDim(state) == 0) == bool(transpose) ? state : BlockArgument();
}

bool cuda::dependsOn(Value value, Value source) {
  llvm::SetVector<Value> open;
  open.insert(value);
  for (size_t i = 0; i < open.size(); ++i) {
    if (open[i] == source)
      return true;
    if (Operation *op = open[i].getDefiningOp())
      op->walk([&](Operation *part) { open.insert(part->operand_begin(), part->operand_end()); });
  }
  return false;
}

static void listTerms(Value sum, SmallVectorImpl<Value> &terms) {
  auto add = sum.getDefiningOp<AddOp>();
  if (!add || add->getOperand(0).getType() != add->getOperand(1).getType())
    return terms.push_back(sum);
  for (Value term : add->getOperands())
    listTerms(term, terms);
}

static bool takeTerm(Value term, Value rows, SolvedProduct &found) {
  if (Value factor = otherFactor(term, rows); factor || term == rows) {
    found.diagonals.push_back(factor);
    return factor != rows;
  }
  auto product = term.getDefiningOp<MatmulOp>();
  if (!product)
    return false;
  if (auto gram = product.getLhs().getDefiningOp<chunk::GramOp>()) {
    if (found.gram || gram.getLhs() != rows || gram.getRhs() == rows)
      return false;
    found.gram = gram;
    found.values = product.getRhs();
    if (auto scaled = found.values.getDefiningOp<MulOp>())
      for (unsigned i : {0, 1})
        if (isTokenColumn(scaled->getOperand(i)) && !isTokenColumn(scaled->getOperand(1 - i))) {
          found.scale = scaled->getOperand(i);
          found.values = scaled->getOperand(1 - i);
          break;
        }
    return true;
  }
  if (found.state)
    return false;
  found.weights = product.getLhs() == rows ? Value() : otherFactor(product.getLhs(), rows);
  found.state = stateOf(product.getRhs());
  return found.state && (product.getLhs() == rows || (found.weights && isTokenColumn(found.weights)));
}

static bool takeProduct(Value result, Value rows, SolvedProduct &found) {
  SmallVector<Value> terms;
  listTerms(result, terms);
  if (!llvm::all_of(terms, [&](Value term) { return takeTerm(term, rows, found); }) || !found.state ||
      !found.gram)
    return false;
  auto isOuter = [&](Value value) { return !value || !dependsOn(value, rows); };
  return llvm::all_of(found.diagonals, isOuter) && isOuter(found.weights) && isOuter(found.gram.getRhs()) &&
         isOuter(found.values) && isOuter(found.scale);
}

std::optional<SolvedPlan> SolvedPlan::find(chunk::ProgramOp program, ArrayRef<TensorArgument> tensors) {
  SolvedPlan plan;
  auto solves = program.getBody().getOps<chunk::ConjugateGradientsOp>();
  if (!llvm::hasSingleElement(solves) || program.getOutputs().size() != 1 ||
      ChunkEmitter::findPrecision(program, tensors) != Precision::Tf32)
    return std::nullopt;
  plan.solve = *solves.begin();
  Block &region = plan.solve.getProduct().front();
  Value output = program.getBodyYield().getValues().back();
  if (!takeProduct(region.getTerminator()->getOperand(0), region.getArgument(0), plan.product) ||
      !takeProduct(output, plan.solve, plan.readout) || !plan.readout.diagonals.empty())
    return std::nullopt;
  // Both meet the same keys, of which each is at most 1 long, and fade alike; a value is an input as it is.
  chunk::GramOp gram = plan.product.gram, other = plan.readout.gram;
  Value keys = gram.getRhs();
  auto input = dyn_cast<BlockArgument>(plan.readout.values);
  if (plan.product.values != keys || other.getRhs() != keys || other.getDecay() != gram.getDecay() ||
      other.getReach() != gram.getReach() || !areUnitRows(keys) ||
      (gram.getDecay() && !onlyDecays(gram.getDecay())) || !input ||
      program.getArg(input.getArgNumber()).getKind() != ArgKind::Input)
    return std::nullopt;
  auto inputs = program.argumentsOf(ArgKind::Input);
  FloatType element = tensors[llvm::find(inputs, input) - inputs.begin()].element;
  auto fits = [](int64_t n) { return n == 64 || n == 128; };
  MatType product = matType(plan.product.state), readout = matType(plan.readout.state);
  if (element.getWidth() != 16 || !fits(product.numRows()) || product.numCols() != product.numRows() ||
      !fits(plan.rows()) || readout.numElements() != plan.rows() * plan.keys())
    return std::nullopt;
  return plan;
}

SmallVector<unsigned> SolvedPlan::images() const {
  auto program = cast<chunk::ProgramOp>(product.state.getOwner()->getParentOp());
  SmallVector<BlockArgument> states = program.argumentsOf(ArgKind::State);
  SmallVector<unsigned> numbers;
  for (BlockArgument state : {product.state, readout.state})
    numbers.push_back(llvm::find(states, state) - states.begin());
  return numbers;
}
