// Values as the papers write them.
#include "lib/Algebra/Expander.h"
#include "llvm/ADT/APFloat.h"

using namespace mlir;
using namespace recur;

std::string recur::numberText(double value) {
  SmallString<16> text;
  APFloat(value).toString(text, /*FormatPrecision=*/6, /*FormatMaxPadding=*/3);
  return text.str().str();
}

namespace {
enum Precedence { Sum_, Product, Atom };

struct Text {
  std::string text;
  Precedence precedence;
  std::string at(Precedence needed) const { return precedence < needed ? "(" + text + ")" : text; }
};

using Names = DenseMap<Value, std::string>;

Text write(Value value, unsigned depth, const Names &names) {
  if (auto known = names.find(value); known != names.end())
    return {known->second, Atom};
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    if (auto rule = dyn_cast<RuleOp>(argument.getOwner()->getParentOp()))
      return {rule.getArg(argument).getName().str(), Atom};
    return {"x", Atom};
  }
  Operation *op = value.getDefiningOp();
  if (depth == 0)
    return {"..", Atom};
  auto operand = [&](unsigned i) { return write(op->getOperand(i), depth - 1, names); };
  auto infix = [&](StringRef symbol, Precedence precedence, bool strict = false) {
    return Text{operand(0).at(precedence) + symbol.str() + operand(1).at(strict ? Atom : precedence),
                precedence};
  };
  if (auto constant = dyn_cast<ConstantOp>(op))
    return {numberText(constant.getValue().convertToDouble()), Atom};
  if (auto size = dyn_cast<SizeOp>(op))
    return {dimText(size.getDim()), Atom};
  if (isa<IdentityOp>(op))
    return {"I", Atom};
  if (isa<AddOp>(op))
    return infix(" + ", Sum_);
  if (isa<SubOp>(op))
    return {operand(0).at(Sum_) + " - " + operand(1).at(Product), Sum_};
  if (isa<MatmulOp>(op))
    return infix("*", Product);
  if (auto mul = dyn_cast<MulOp>(op))
    return infix(matType(mul.getLhs()).isScalar() || matType(mul.getRhs()).isScalar() ? "*" : ".*", Product);
  if (Value vector = normalisedVector(value))
    return {"l2norm(" + write(vector, depth - 1, names).text + ")", Atom};
  if (auto div = dyn_cast<DivOp>(op))
    return infix(matType(div.getRhs()).isScalar() ? "/" : "./", Product, true);
  if (isa<NegOp>(op))
    return {"-" + operand(0).at(Product), Sum_};
  if (isa<PowOp>(op))
    return {operand(0).at(Atom) + "^" + operand(1).at(Atom), Product};
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
