// Products and sums in a program's body; null stands for zero.
#include "lib/Derive/Group.h"

using namespace mlir;
using namespace recur;

Value DeriveContext::add(Value x, Value y) {
  return !x ? y : !y ? x : AddOp::create(b(), loc, x, y).getResult();
}

Value DeriveContext::mul(Value x, Value y) {
  return x && y ? MulOp::create(b(), loc, x, y).getResult() : Value();
}

Value DeriveContext::matmul(Value x, Value y) {
  return x && y ? MatmulOp::create(b(), loc, x, y).getResult() : Value();
}

Value DeriveContext::transpose(Value x) { return x ? b().createOrFold<TransposeOp>(loc, x) : Value(); }

Value DeriveContext::scale(const Coefficient &c, Value x) {
  if (!x || c.isOne())
    return x;
  Coefficient factors = c;
  bool negative = c.number == -1;
  factors.number = negative ? 1 : c.number;
  if (!factors.isOne()) {
    OpBuilder atToken(RuleOp(nf.rule).getBody().front().getTerminator());
    Value scalar = buildCoefficient(atToken, loc, factors);
    x = MulOp::create(b(), loc, tokens.isShared(scalar) ? tokens.shared(scalar) : tokens.rows(scalar), x);
  }
  return negative ? NegOp::create(b(), loc, x).getResult() : x;
}

LogicalResult DeriveContext::fail(std::string why) {
  if (reason.empty())
    reason = std::move(why);
  return failure();
}

void DeriveContext::note(StringRef step, std::string line) {
  if (steps.empty() || steps.back().name != step)
    steps.push_back({step.str(), {}});
  steps.back().lines.push_back(std::move(line));
}
