// What keeps within the range of half precision.
#include "lib/Algebra/Bounds.h"
#include "lib/Cuda/RolePlan.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static constexpr double unbounded = std::numeric_limits<double>::infinity();

bool RolePlan::keepsRange(ArrayRef<RowFactor> factors) const {
  return !isF16 || llvm::all_of(factors, [](RowFactor factor) {
    Operation *op = trace(factor.value).getDefiningOp();
    if (auto constant = dyn_cast_if_present<ConstantOp>(op)) {
      constexpr double most = 256;
      double size = std::abs(constant.getValue().convertToDouble());
      return size >= 1 / most && size <= most;
    }
    return factor.divides && isa_and_present<SqrtOp>(op);
  });
}

bool RolePlan::isPacked(unsigned tensor) const {
  FloatType element = tensors[tensor].element;
  return isF16 ? element.isF16() : element.isBF16();
}

// Whether tiles are of the one type that products read; outputs may have bf16's range in any case.
bool RolePlan::areTensorsPacked() const {
  auto isOutput = [&](unsigned tensor) { return isPacked(tensor) || tensors[tensor].element.isBF16(); };
  return llvm::all_of(llvm::seq(countOutputs()), [&](unsigned i) { return isOutput(outputTensor(i)); }) &&
         llvm::all_of(neededInputs, [&](BlockArgument input) {
           return llvm::all_of(tensorsOf(input), [&](auto tensor) {
             return !tensor || (isPacked(*tensor) && (atOnce || !tensors[*tensor].stepsLast));
           });
         });
}

// What the norms of rows are at most, as the spec declares, as is known of inputs that are made, or because
// they are divided by theirs.
double RolePlan::longestOf(const TokenTile &tile) const {
  // What rows are multiplied with, entry by entry, may shorten them.
  const MadeTile *scaled = scaledIn(tile.input);
  Value rows = scaled ? scaled->rows : tile.rows();
  while (auto product = trace(rows).getDefiningOp<MulOp>()) {
    unsigned other = isWithinOne(product->getOperand(1)) ? 0 : 1;
    if (!isWithinOne(product->getOperand(1 - other)))
      return unbounded;
    rows = product->getOperand(other);
  }
  auto input = dyn_cast<BlockArgument>(trace(rows));
  if (!input)
    return unbounded;
  // Signs lengthen nothing.
  RowFactors scale = tile.scale;
  llvm::erase_if(scale, [](RowFactor factor) {
    auto weights = trace(factor.value).getDefiningOp<chunk::WeightsOp>();
    return weights && areSigns(weights.getDecay());
  });
  if (scale.empty()) {
    ArgAttr arg = program.getArg(input.getArgNumber());
    auto norms = program->getAttrOfType<DictionaryAttr>(normsAttr);
    auto norm = norms ? norms.getAs<FloatAttr>(arg.getName()) : FloatAttr();
    return arg.getUnit() ? 1 : norm ? norm.getValueAsDouble() : unbounded;
  }
  if (scale.size() != 1 || !scale[0].divides)
    return unbounded;
  auto root = trace(scale[0].value).getDefiningOp<SqrtOp>();
  Value square = root ? trace(root->getOperand(0)) : Value();
  if (auto sum = square ? square.getDefiningOp<AddOp>() : AddOp())
    for (unsigned i : {0, 1}) {
      RangeAttr eps = rangeOf(sum->getOperand(i));
      if (Value other = trace(sum->getOperand(1 - i));
          eps && eps.getLo() >= 0 && other.getDefiningOp<ReduceOp>())
        square = other;
    }
  auto reduce = square ? square.getDefiningOp<ReduceOp>() : ReduceOp();
  auto product = reduce ? trace(reduce.getOperand()).getDefiningOp<MulOp>() : MulOp();
  bool isOwn = product && trace(product->getOperand(0)) == input && trace(product->getOperand(1)) == input;
  return isOwn ? 1 : unbounded;
}

// Whether what decays only shrinks, as ranges say: of coupled states each number by itself.
bool RolePlan::shrinks(Value decay) const {
  if (auto cascade = decay.getDefiningOp<chunk::CascadeOp>())
    return llvm::all_of(cascade.getFactors(), [&](Value factor) { return isWithinOne(factor); });
  auto op = decay.getDefiningOp<chunk::DecayOp>();
  RangeAttr logs = op.getLog() ? rangeOf(op.getLog()) : RangeAttr();
  return areSigns(decay) || (op.getLog() ? logs && logs.getHi() <= 0 : isWithinOne(op.getFactors()));
}

// What no entry of some scores is beyond: products between tokens are of rows with norms, decays only shrink
// them.
double RolePlan::mostOf(Value scores) const {
  scores = trace(scores);
  if (!isScores(scores)) {
    RangeAttr range = rangeOf(scores);
    return range ? std::max(std::abs(range.getLo()), std::abs(range.getHi())) : unbounded;
  }
  Operation *op = scores.getDefiningOp();
  if (auto gram = dyn_cast<chunk::GramOp>(op)) {
    if (gram.getDecay() && !shrinks(gram.getDecay()))
      return unbounded;
    return longestOf(*asRows(gram.getLhs())) * longestOf(*asRows(gram.getRhs()));
  }
  if (auto mask = dyn_cast<chunk::MaskOp>(op))
    return shrinks(mask.getDecay()) ? 1 : unbounded;
  if (isa<NegOp, TransposeOp>(op))
    return mostOf(op->getOperand(0));
  if (isa<MulOp>(op))
    return mostOf(op->getOperand(0)) * mostOf(op->getOperand(1));
  if (isa<AddOp, SubOp>(op))
    return mostOf(op->getOperand(0)) + mostOf(op->getOperand(1));
  return unbounded;
}
