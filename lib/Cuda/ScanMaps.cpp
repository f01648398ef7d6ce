#include "lib/Cuda/ScanMaps.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

SmallVector<Value> EntryMap::flat() const {
  SmallVector<Value> values(factors.begin(), factors.end());
  llvm::append_range(values, writes);
  return values;
}

EntryMap EntryMap::ofFlat(ArrayRef<Value> values, size_t states) {
  EntryMap map;
  llvm::append_range(map.factors, values.take_front(states * states));
  llvm::append_range(map.writes, values.drop_front(states * states));
  return map;
}

Value MapBuilder::multiply(Value x, Value y) {
  return x && y ? arith::MulFOp::create(b, x, y).getResult() : Value();
}

Value MapBuilder::add(Value x, Value y) {
  return x && y ? arith::AddFOp::create(b, x, y).getResult() : x ? x : y;
}

EntryMap MapBuilder::identity(const ScanGroup &group) {
  EntryMap map;
  size_t n = group.states.size();
  for (size_t i = 0; i < n * n; ++i)
    map.factors.push_back(threads.number(group.kind == ScanGroup::Affine && i % (n + 1) == 0 ? 1 : 0));
  map.writes.assign(n, threads.identity(group.kind == ScanGroup::Max ? Reduction::Max : Reduction::Sum));
  return map;
}

EntryMap MapBuilder::filled(const ScanGroup &group, const EntryMap &map) {
  EntryMap result = map;
  for (Value &factor : result.factors)
    factor = factor ? factor : threads.number(0);
  for (Value &write : result.writes)
    write = write ? write : threads.identity(group.kind == ScanGroup::Max ? Reduction::Max : Reduction::Sum);
  return result;
}

EntryMap MapBuilder::compose(const ScanGroup &group, const EntryMap &after, const EntryMap &before) {
  EntryMap result;
  size_t n = group.states.size();
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      Value factor;
      for (size_t k = 0; k < n; ++k) {
        Value outer = after.factors[i * n + k], inner = before.factors[k * n + j];
        factor = add(factor, group.kind == ScanGroup::Max ? add(outer, inner) : multiply(outer, inner));
      }
      result.factors.push_back(factor);
    }
  llvm::append_range(result.writes, apply(group, after, before.writes));
  return result;
}

SmallVector<Value> MapBuilder::apply(const ScanGroup &group, const EntryMap &map, ArrayRef<Value> states) {
  size_t n = group.states.size();
  SmallVector<Value> result;
  if (group.kind == ScanGroup::Max) {
    Value moved = states[0] ? add(states[0], map.factors[0]) : Value();
    result.push_back(!moved           ? map.writes[0]
                     : !map.writes[0] ? moved
                                      : threads.combine(moved, map.writes[0], Reduction::Max));
    return result;
  }
  for (size_t i = 0; i < n; ++i) {
    Value sum = map.writes[i];
    for (size_t j = 0; j < n; ++j)
      sum = add(multiply(map.factors[i * n + j], states[j]), sum);
    result.push_back(sum);
  }
  return result;
}

EntryMap MapBuilder::where(const ScanGroup &group, Value condition, const EntryMap &map) {
  EntryMap result = filled(group, map), none = identity(group);
  for (auto [x, y] : llvm::zip(result.factors, none.factors))
    x = arith::SelectOp::create(b, condition, x, y);
  for (auto [x, y] : llvm::zip(result.writes, none.writes))
    x = arith::SelectOp::create(b, condition, x, y);
  return result;
}
