#include "lib/Cpu/SweepRequests.h"
#include "lib/Cpu/SweepTiles.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

static int64_t requestsOfShare(const SweepShape &shape, int64_t group, int64_t shares) {
  return (group * shape.requests + shares - 1) / shares;
}

// Requests are for the first-level cache, which drops none: see PlannedRule::enter. But where most of it is
// used for tiles, or nothing spreads them, they are for the second.
SweepRequests::SweepRequests(VectorBuilder &b, const SweepShape &shape, const SweepOptions &options,
                             const SweepLayout &layout, int64_t group, int64_t shares, Value scratch)
    : b(b), shape(shape), options(options), layout(layout), group(group),
      shares(options.spread && shape.requests ? shares : 0),
      hint(options.spread && (options.tiles || !this->shares) ? 2 : 3) {
  if (!isQueue())
    return;
  ofShare = requestsOfShare(shape, group, shares);
  memory = memref::ExtractAlignedPointerAsIndexOp::create(b, scratch);
}

int64_t SweepRequests::size(const SweepShape &shape, const SweepOptions &options) {
  if (!options.spread)
    return 0;
  int64_t count = 0;
  auto take = [&](int64_t group, int64_t shares) {
    if (shares)
      count = std::max(count, shares * requestsOfShare(shape, group, shares));
  };
  take(options.group, sharesOfRows(shape));
  if (options.tiles)
    take(SweepTiles::group, SweepTiles::sharesOfRequests(shape, options));
  return roundUp(2 * count, 16);
}

Value SweepRequests::address(VectorBuilder &b, Value view, ValueRange place) {
  auto metadata = memref::ExtractStridedMetadataOp::create(b, b.denseView(view));
  Value entry = metadata.getOffset();
  for (auto [index, stride] : llvm::zip(place, metadata.getStrides()))
    entry = b.add(entry, b.scale(index, stride));
  int64_t bytes = cast<MemRefType>(view.getType()).getElementTypeBitWidth() / 8;
  return b.add(memref::ExtractAlignedPointerAsIndexOp::create(b, view), b.scale(entry, bytes));
}

Value SweepRequests::pointer(VectorBuilder &b, Value address) {
  Value integer = arith::IndexCastOp::create(b, b.getI64Type(), address);
  return LLVM::IntToPtrOp::create(b, LLVM::LLVMPointerType::get(b.getContext()), integer);
}

void SweepRequests::begin() {
  if (!isQueue())
    return;
  Value here = arith::IndexCastOp::create(b, b.getI64Type(), memory);
  b.loop(b.index(0), b.index(4 * size(shape, options)), 8, [&](Value at) {
    LLVM::StoreOp::create(b, here, pointer(b, b.add(b.add(memory, 4 * layout.requestsBegin), at)));
  });
}

void SweepRequests::ask(Value view, ValueRange place, bool write, bool now, Value unless) {
  if (!isQueue() || now) {
    auto request = [&] {
      memref::PrefetchOp::create(b, b.denseView(view), place, write, hint, /*isDataCache=*/true);
      return VectorBuilder::Values();
    };
    if (unless)
      b.branch(unless, TypeRange(), [] { return VectorBuilder::Values(); }, request);
    else
      request();
    return;
  }
  assert(asked < group * shape.requests && "the rule asks for more lines than it says");
  Value line = address(b, view, place);
  if (unless)
    line = arith::SelectOp::create(b, unless, memory, line); // at hand
  line = arith::IndexCastOp::create(b, b.getI64Type(), line);
  Value at = b.add(memory, b.scale(first, 8 * shape.requests));
  LLVM::StoreOp::create(b, line, pointer(b, b.add(at, 4 * layout.requestsBegin + 8 * asked++)));
}

void SweepRequests::make(Value share) {
  if (!isQueue())
    return;
  Value from = b.add(b.add(memory, 4 * layout.requestsBegin), b.scale(share, 8 * ofShare));
  for (int64_t i = 0; i < ofShare; ++i) {
    Value line =
        LLVM::LoadOp::create(b, LLVM::LLVMPointerType::get(b.getContext()), pointer(b, b.add(from, 8 * i)));
    LLVM::Prefetch::create(b, line, /*rw=*/0, hint, /*cache=*/1);
  }
}
