// Functions of what is read of the state, which are written to it: systems of rows that are not linear. Turns
// are as in RoleSubstitution.cpp, but that a thread tells what its token writes.
#include "lib/Cuda/ChunkEmitter.h"
#include "lib/Cuda/RoleSubstitution.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// A thread's entries of rows at a block of 16 tokens, or nothing.
Values RoleEmitter::Substitution::entriesOf(Value rows, int64_t block) {
  if (roles.plan.isRow(rows))
    return roles.columnsOf(state, {{rows}}, block);
  FailureOr<Values> entries = roles.sliceOf(state, rows, block);
  return succeeded(entries) ? *entries : Values();
}

LogicalResult RoleEmitter::Substitution::substitute(chunk::SubstituteOp op) {
  roles.awaitScores(state);
  SmallVector<Value> operands(op.getSides());
  llvm::append_range(operands, op.getRows());
  llvm::append_range(operands, op.getShared());
  Value left = arith::SubIOp::create(b, roles.tokensLeft(state.chunk), ptx.mul(pair, 2));
  Values known, read, written;
  for (int64_t block = 0; block < 4; ++block) {
    SmallVector<Values> entries;
    for (Value operand : operands)
      if (entries.emplace_back(entriesOf(operand, block)).empty())
        return failure();
    state.slices.clear();
    Values given = earlier(roles.plan.ownSystem, block, known, entries.front()), reads;
    auto function = [&](size_t e, Value found) {
      return lowerEntry(b, op, op.getYield().getValues().front(), roles.plan.isF16 ? 11 : 8,
                        [&](BlockArgument argument) {
                          return argument.getArgNumber() ? entries[argument.getArgNumber()][e] : found;
                        });
    };
    Values results = solve(block, {}, {}, given, function, &reads);
    // What tokens past the end would write may be no number. It comes to those before in products alone.
    for (auto [e, entry] : llvm::enumerate(results)) {
      int64_t token = block * 16 + e / 4 * 8 + e % 2;
      Value exists = ptx.compare(arith::CmpIPredicate::sgt, left, ptx.constant(token));
      entry = ptx.choose(exists, entry, ptx.number(0));
    }
    llvm::append_range(known, roles.sideOf(results));
    llvm::append_range(read, reads);
    llvm::append_range(written, results);
    leave(op.getWrites().front(), block, results);
  }
  state.slabs[op.getReads().front()] = read;
  state.slabs[op.getWrites().front()] = written;
  return success();
}
