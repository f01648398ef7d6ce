#include "lib/Cuda/StateTensor.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

StateTensor::StateTensor(Threads &threads, ChunkEmitter &emitter, TensorAccess &access, Value state)
    : threads(threads), b(threads.b), emitter(emitter), access(access), type(matType(state)),
      isSlab(ChunkEmitter::isSlab(state)), dim(ChunkEmitter::stateDim(state)) {
  rows = dim ? type.numCols() : type.numRows();
  keys = type.numElements() / rows;
}

SmallVector<Value> StateTensor::load(unsigned tensor, const FirstState &otherwise, unsigned params) {
  SmallVector<Type> types(countEntries(), b.getF32Type());
  auto given = scf::IfOp::create(b, types, access.isGiven(tensor), true);
  OpBuilder::InsertionGuard guard(b);
  for (Block *block : {given.thenBlock(), given.elseBlock()}) {
    b.setInsertionPointToStart(block);
    SmallVector<Value> entries;
    for (int64_t e = 0; e < countEntries(); ++e) {
      auto [row, key, exists] = place(e);
      if (exists) {
        row = arith::SelectOp::create(b, exists, row, threads.constant(0));
        key = arith::SelectOp::create(b, exists, key, threads.constant(0));
      }
      Value r = dim ? key : row, c = dim ? row : key;
      Value entry = block == given.thenBlock()
                        ? LLVM::LoadOp::create(b, b.getF32Type(), access.entry(tensor, r, c)).getResult()
                        : access.firstEntry(otherwise, params, r, c);
      entries.push_back(exists ? arith::SelectOp::create(b, exists, entry, threads.number(0)).getResult()
                               : entry);
    }
    scf::YieldOp::create(b, entries);
  }
  return SmallVector<Value>(given.getResults());
}

void StateTensor::store(unsigned tensor, ValueRange entries) {
  Value isOwner = emitter.isSlabOwner(rows);
  for (auto [e, entry] : llvm::enumerate(entries)) {
    auto [row, key, exists] = place(e);
    threads.when(threads.both(isOwner, exists), [&, row = row, key = key, entry = entry] {
      LLVM::StoreOp::create(b, entry, access.entry(tensor, dim ? key : row, dim ? row : key));
    });
  }
}

std::tuple<Value, Value, Value> StateTensor::place(int64_t e) {
  Value row = arith::AddIOp::create(b, emitter.fragments.row(e), emitter.slabRow(rows));
  Value key = emitter.fragments.column(e), exists;
  for (auto [index, n] : {std::pair(row, rows), std::pair(key, keys)})
    if (n % 16)
      exists = threads.both(exists,
                            arith::CmpIOp::create(b, arith::CmpIPredicate::ult, index, threads.constant(n)));
  return {row, key, exists};
}
