#include "lib/Cpu/SweepColumns.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

Value SweepColumns::column(const SweepColumn &column) {
  switch (column.kind) {
  case SweepColumn::Read:
    return reads[column.index];
  case SweepColumn::Row:
    if (!rows[column.index])
      rows[column.index] = sum(plan.rows[column.index]);
    return rows[column.index];
  default:
    return load(column);
  }
}

// Null for 1.
Value SweepColumns::factor(const SweepFactor &factor) {
  Value value = factor.scalar ? scalar(*factor.scalar) : Value();
  return factor.number == 1 ? value : b.mul(b.splat(factor.number), value);
}

Value SweepColumns::sum(const SweepSum &terms) {
  Value result;
  for (const SweepTerm &term : terms) {
    Value value = column(term.column);
    for (const SweepColumn &map : term.maps)
      value = b.mul(column(map), value);
    Value c = factor(term.factor);
    if (!result)
      result = b.mul(c, value);
    else
      result = c ? b.fma(c, value, result) : b.sum(result, value);
  }
  return result ? result : b.splat(0.0);
}

Value SweepColumns::output(Value value) {
  if (Value known = outputs.lookup(value))
    return known;
  Value result;
  if (auto found = plan.columns.find(value); found != plan.columns.end()) {
    result = column(found->second);
  } else if (auto found = plan.scalars.find(value); found != plan.scalars.end()) {
    result = factor(found->second);
    result = result ? result : b.splat(1.0);
  } else {
    SmallVector<Value> operands;
    for (Value operand : value.getDefiningOp()->getOperands())
      operands.push_back(output(operand));
    auto op = dyn_cast<ElementwiseOp>(value.getDefiningOp());
    result = op ? op.lower(b, b.getLoc(), operands) : operands.front();
  }
  return outputs[value] = result;
}
