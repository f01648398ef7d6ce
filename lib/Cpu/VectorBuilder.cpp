#include "lib/Cpu/VectorBuilder.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

SmallVector<Value> VectorBuilder::loop(Value lo, Value hi, int64_t step, ValueRange carried,
                                       llvm::function_ref<Values(Value, ValueRange)> body) {
  auto op = scf::ForOp::create(*this, lo, hi, index(step), carried);
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.getBody());
  Values results = body(op.getInductionVar(), op.getRegionIterArgs());
  if (!carried.empty()) // without carried values the builder has ended the body
    scf::YieldOp::create(*this, results);
  return Values(op.getResults());
}

void VectorBuilder::loop(Value lo, Value hi, int64_t step, llvm::function_ref<void(Value)> body) {
  loop(lo, hi, step, {}, [&](Value i, ValueRange) {
    body(i);
    return Values();
  });
}

SmallVector<Value> VectorBuilder::branch(Value condition, TypeRange types, llvm::function_ref<Values()> yes,
                                         llvm::function_ref<Values()> no) {
  auto op = scf::IfOp::create(*this, types, condition, /*addThenBlock=*/true, /*addElseBlock=*/true);
  for (bool first : {true, false}) {
    OpBuilder::InsertionGuard guard(*this);
    setInsertionPointToEnd(&(first ? op.getThenRegion() : op.getElseRegion()).front());
    scf::YieldOp::create(*this, first ? yes() : no());
  }
  return Values(op.getResults());
}
