// The lines of the caller's tensors that a planned rule asks for ahead of their use.
#include "lib/Cpu/SweepKernel.h"
#include "lib/Cpu/SweepRequests.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

SmallVector<PlannedRule::Rows> PlannedRule::rowsToAskFor() {
  SmallVector<Rows> result;
  int64_t blocks = SweepLayout(shape, options).blocks;
  auto visit = [&](Value view, bool packed, bool write) {
    auto type = cast<MemRefType>(view.getType());
    if (type.getRank() < 2 || ShapedType::isDynamic(type.getShape().back()))
      return;
    int64_t line = 512 / type.getElementTypeBitWidth(), steps = type.getRank() == 3 ? type.getDimSize(1) : 1;
    int64_t share = packed ? roundUp((type.getShape().back() + blocks - 1) / blocks, line) : options.width();
    result.push_back({view, packed, write, steps, share, (share + line - 1) / line * steps, line});
  };
  for (auto [view, isPackedView] : llvm::zip(views(Role::Input), isPacked))
    visit(view, isPackedView, false);
  for (Value view : views(Role::Output))
    visit(view, plan.hasEpilogue, true);
  return result;
}

// A token of a head is a page of its own in every tensor that has many heads, and some processors wait at a
// request until its page is looked up. So those of a chunk are looked up side by side, by a line of each.
void PlannedRule::lookAhead(VectorBuilder &b, Value begin) {
  SmallVector<Rows> all = rowsToAskFor();
  Value end = arith::MinUIOp::create(b, b.add(begin, 2 * options.chunk), tokenCount);
  b.loop(b.add(begin, options.chunk), end, 1, [&](Value token) {
    for (const Rows &rows : all) {
      Values place(cast<MemRefType>(rows.view.getType()).getRank(), b.index(0));
      place.front() = token;
      memref::PrefetchOp::create(b, b.denseView(rows.view), place, rows.write, /*hint=*/3,
                                 /*isDataCache=*/true);
    }
  });
}

// Asks for lines that are needed later, a few at each token, so that requests are spread evenly. What is
// packed is needed whole when the next chunk begins: all blocks together ask for one token of it after the
// other, so that a page is looked up once. What is read or written in place is needed column block by column
// block, and asked for one block ahead. Where requests do not wait in a queue they are for the first-level
// cache: in pages of 4 KB some processors drop those for the second alone where two lines are not a pair of
// 128 bytes.
void PlannedRule::enter(VectorBuilder &b, const SweepLayout &layout, SweepRequests &requests,
                        const ColumnStep &at, Value block) {
  Value begin = arith::SubIOp::create(b, at.token, at.inChunk), zero = b.index(0);
  Value hasNext =
      arith::CmpIOp::create(b, arith::CmpIPredicate::ule, b.add(begin, 2 * options.chunk), tokenCount);
  Value chunkAhead = arith::SelectOp::create(b, hasNext, b.index(options.chunk), zero);
  Value isLast = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, b.add(block, 1), blocks.end);
  Value nextColumn = arith::SelectOp::create(b, isLast, b.scale(blocks.begin, options.width()),
                                             b.add(at.column, options.width()));
  Value blockAhead = arith::SelectOp::create(b, isLast, chunkAhead, zero);
  SmallVector<Rows> all = rowsToAskFor();
  auto ask = [&](const Rows &rows, Value token, Value first, bool now) {
    for (int64_t step = 0; step < rows.steps; ++step)
      for (int64_t i = 0; i < rows.share; i += rows.line) {
        Values place = {token};
        if (cast<MemRefType>(rows.view.getType()).getRank() == 3)
          place.push_back(b.index(step));
        place.push_back(b.add(first, i));
        requests.ask(rows.view, place, rows.write, now, rows.write ? streams : Value());
      }
  };
  for (const Rows &rows : all)
    if (!rows.packed)
      ask(rows, b.add(at.token, blockAhead), nextColumn, /*now=*/false);
  // One share of a token's rows for each block of the head, whichever of them are here.
  auto askShare = [&](Value index, bool now) {
    Value token = arith::DivUIOp::create(b, index, b.index(layout.blocks));
    Value share = arith::RemUIOp::create(b, index, b.index(layout.blocks));
    token = b.add(b.add(begin, chunkAhead), token);
    for (const Rows &rows : all)
      if (rows.packed)
        ask(rows, token, b.scale(share, rows.share), now);
  };
  Value passed = b.add(b.scale(arith::SubIOp::create(b, block, blocks.begin), options.chunk), at.inChunk);
  if (!part)
    return askShare(passed, /*now=*/false);
  // A part of the head asks for all, the first share as if it were whole.
  Value here = arith::SubIOp::create(b, blocks.end, blocks.begin);
  auto sharesBefore = [&](Value tokens) -> Value {
    return arith::DivUIOp::create(b, b.scale(tokens, layout.blocks), here);
  };
  Value isWhole = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, here, b.index(layout.blocks));
  Value next = b.add(passed, 1);
  Values shares = b.branch(
      isWhole, {b.getIndexType(), b.getIndexType()}, [&] { return Values{passed, next}; },
      [&] { return Values{sharesBefore(passed), sharesBefore(next)}; });
  askShare(shares[0], /*now=*/false);
  b.loop(b.add(shares[0], 1), shares[1], 1, [&](Value index) { askShare(index, /*now=*/true); });
}
