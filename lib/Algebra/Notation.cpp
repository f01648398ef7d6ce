// Values as the papers write them.
#include "lib/Algebra/Expander.h"
#include "mlir/IR/Matchers.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace recur;

std::string recur::numberText(double value) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.6g", value);
  size_t exponent = text.find('e'); // 1e-06 is 1e-6
  while (exponent != std::string::npos && text[exponent + 2] == '0')
    text.erase(exponent + 2, 1);
  return text;
}

namespace {
// Products of matrices and those entry by entry stand in brackets inside each other.
enum Precedence { Sum_, Product, Entries, Power, Atom };

struct Text {
  std::string text;
  Precedence precedence;
  std::string at(Precedence needed) const {
    bool fits = needed == Sum_ || precedence == needed || (precedence > needed && precedence >= Power);
    return fits ? text : "(" + text + ")";
  }
};

bool isNumber(Value value, double number) {
  FloatAttr constant;
  return matType(value).isScalar() && matchPattern(value, m_Constant(&constant)) &&
         constant.getValueAsDouble() == number;
}

using Names = DenseMap<Value, std::string>;

Value unrepeated(Value value) {
  while (Operation *op = value.getDefiningOp<BroadcastOp>())
    value = op->getOperand(0);
  return value;
}

// x where the value is what the language calls softmax(x), null elsewhere.
Value softmaxed(Value value) {
  auto quotient = value.getDefiningOp<DivOp>();
  auto exp = quotient ? quotient.getLhs().getDefiningOp<ExpOp>() : ExpOp();
  auto shifted = exp ? exp.getOperand().getDefiningOp<SubOp>() : SubOp();
  if (!shifted)
    return {};
  // Both are kept away from what is no number.
  auto isReduction = [](Value x, Reduction kind, Value of) {
    auto kept = unrepeated(x).getDefiningOp<MaxOp>();
    for (unsigned i = 0; kept && i < 2; ++i)
      if (auto reduce = kept->getOperand(i).getDefiningOp<ReduceOp>())
        return reduce.getKind() == kind && reduce.getOperand() == of;
    return false;
  };
  return isReduction(shifted.getRhs(), Reduction::Max, shifted.getLhs()) &&
                 isReduction(quotient.getRhs(), Reduction::Sum, exp)
             ? shifted.getLhs()
             : Value();
}

Text write(Value value, unsigned depth, const Names &names) {
  if (auto known = names.find(value); known != names.end())
    return {known->second, Atom};
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    if (auto rule = dyn_cast<RuleOp>(argument.getOwner()->getParentOp()))
      return {rule.getArg(argument).getName().str(), Atom};
    return {"x", Atom};
  }
  Operation *op = value.getDefiningOp();
  if (depth == 0 && !isa<ConstantOp>(op))
    return {"..", Atom};
  auto operand = [&](unsigned i) { return write(op->getOperand(i), depth - 1, names); };
  auto infix = [&](StringRef symbol, Precedence precedence, bool strict = false) {
    return Text{operand(0).at(precedence) + symbol.str() + operand(1).at(strict ? Power : precedence),
                precedence};
  };
  // A factor of 1 or -1 that the algebra left.
  auto withoutOne = [&]() -> std::optional<Text> {
    for (unsigned i : {0, 1}) {
      if (isNumber(op->getOperand(i), 1))
        return operand(1 - i);
      if (isNumber(op->getOperand(i), -1))
        return Text{"-" + operand(1 - i).at(Product), Sum_};
    }
    return std::nullopt;
  };
  if (auto constant = dyn_cast<ConstantOp>(op))
    return {numberText(constant.getValue().convertToDouble()), Atom};
  if (auto size = dyn_cast<SizeOp>(op))
    return {dimText(size.getDim()), Atom};
  if (isa<IdentityOp>(op))
    return {"I", Atom};
  if (isa<AddOp>(op)) {
    std::string right = operand(1).text;
    bool negative = StringRef(right).starts_with("-");
    return {operand(0).text + (negative ? " - " + right.substr(1) : " + " + right), Sum_};
  }
  if (isa<SubOp>(op))
    return {operand(0).at(Sum_) + " - " + operand(1).at(Product), Sum_};
  if (isa<MatmulOp>(op))
    return infix("*", Product);
  if (auto mul = dyn_cast<MulOp>(op)) {
    if (std::optional<Text> other = withoutOne())
      return *other;
    bool scales = matType(mul.getLhs()).isScalar() || matType(mul.getRhs()).isScalar();
    return scales ? infix("*", Product) : infix(".*", Entries);
  }
  if (Value scores = softmaxed(value))
    return {"softmax(" + write(scores, depth - 1, names).text + ")", Atom};
  if (Value vector = normalisedVector(value))
    return {"l2norm(" + write(vector, depth - 1, names).text + ")", Atom};
  if (auto div = dyn_cast<DivOp>(op))
    return matType(div.getRhs()).isScalar() ? infix("/", Product, true) : infix("./", Entries, true);
  if (isa<NegOp>(op))
    return {"-" + operand(0).at(Product), Sum_};
  if (isa<PowOp>(op))
    return {operand(0).at(Atom) + "^" + operand(1).at(Atom), Power};
  if (isa<TransposeOp>(op)) {
    Text inner = operand(0);
    bool shortName =
        inner.precedence == Atom && llvm::all_of(inner.text, [](char c) { return llvm::isAlpha(c); });
    return {inner.at(Atom) + (shortName ? "T" : ".T"), Atom};
  }
  if (auto extract = dyn_cast<ExtractOp>(op))
    return {operand(0).text + "[" + operand(1).text + "]", Atom};
  if (isa<BroadcastOp, AssumeOp>(op))
    return operand(0);
  std::string text = (isa<ReduceOp>(op) ? cast<ReduceOp>(op).getKind() == Reduction::Sum ? "sum" : "max"
                                        : op->getName().stripDialect())
                         .str() +
                     "(";
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    text += (i ? ", " : "") + operand(i).text;
  return {text + ")", Atom};
}
} // namespace

std::string recur::notation(Value value, const DenseMap<Value, std::string> &names, unsigned depth) {
  return write(value, depth, names).text;
}
std::string recur::notation(Value value) { return notation(value, Names()); }
std::string recur::factorNotation(Value value, const DenseMap<Value, std::string> &names) {
  return write(value, shownDepth, names).at(Product);
}
