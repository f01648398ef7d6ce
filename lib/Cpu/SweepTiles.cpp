#include "lib/Cpu/SweepTiles.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

TileLayout::TileLayout(const SweepShape &shape, const SweepOptions &options, const SweepLayout &layout) {
  const int64_t part = SweepTiles::part, parts = SweepTiles::parts, group = SweepTiles::group;
  const int64_t reads = shape.reads.size(), writes = shape.writes.size(), rows = shape.rows;
  int64_t next = layout.pairsBegin;
  auto take = [&](int64_t size) { return std::exchange(next, next + roundUp(size, 16)); };
  configBegin = take(16), controlBegin = take(2);
  decaysBegin = take(1 + parts);
  readTilesBegin = take(reads * group * rows / 2);
  scoreTilesBegin = take(reads * group * writes * group / 2);
  writeTilesBegin = take(writes * group * rows / 2);
  squaresBegin = take(parts * parts * reads * writes * part * part);
  turnedBegin = shape.rowDecay ? take(parts * writes * rows * part) : next;
  keysBegin = take(parts * writes * rows * part / 2);
  const bool decays = shape.rowDecay || shape.scalarDecay; // else both are the same
  queriesBegin = decays ? take(reads * group * rows / 2) : readTilesBegin;
  weightsBegin = take(group * part), endsBegin = take(2 * group), carryBegin = take(2 * group);
  laterBegin = take((parts - 1) * rows), factorsBegin = take(rows);
  readsBegin = take(reads * group * options.width());
  writesBegin = take(writes * part * options.width());
  operandBegin = take(writes * group * options.width() / 2);
  halvesStride = rows * options.width() / 2;
  halvesBegin = take(layout.blocks * halvesStride);
  size = next - layout.pairsBegin;
}

SweepTiles::SweepTiles(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, Value scratch,
                       SweepBlocks blocks)
    : b(b), rule(rule), shape(rule.shape), options(options), layout(shape, options),
      tiles(shape, options, layout),
      requests(b, shape, options, layout, group, sharesOfRequests(shape, options), scratch), scratch(scratch),
      blocks(blocks), reads(shape.reads.size()), writes(shape.writes.size()), zero(b.index(0)) {
  assert(options.chunk == group && "a chunk is one group");
  memory = memref::ExtractAlignedPointerAsIndexOp::create(b, scratch);
}

int64_t SweepTiles::partsAtOnce(const SweepShape &shape) {
  return shape.knownWrites && parts * int64_t(shape.reads.size()) <= amx::sums ? parts : 1;
}

bool SweepTiles::fit(const SweepShape &shape, int64_t lanes) {
  return lanes == part && !shape.columnDecay && shape.rows % (2 * lanes) == 0 && !shape.reads.empty() &&
         shape.reads.size() <= size_t(amx::sums) && !shape.writes.empty();
}

//===----------------------------------------------------------------------===//
// Instructions
//===----------------------------------------------------------------------===//

Value SweepTiles::number(int64_t value, unsigned bits) {
  return LLVM::ConstantOp::create(b, b.getIntegerAttr(b.getIntegerType(bits), value));
}

Value SweepTiles::address(Value at) {
  Value bytes = b.add(memory, b.scale(at, 4));
  Value integer = arith::IndexCastOp::create(b, b.getI64Type(), bytes);
  return LLVM::IntToPtrOp::create(b, LLVM::LLVMPointerType::get(b.getContext()), integer);
}

void SweepTiles::call(StringRef intrinsic, ValueRange operands) {
  LLVM::CallIntrinsicOp::create(b, b.getStringAttr(intrinsic), operands);
}

Value SweepTiles::call(StringRef intrinsic, Type type, ValueRange operands) {
  return LLVM::CallIntrinsicOp::create(b, type, b.getStringAttr(intrinsic), operands).getResult(0);
}

// Loads or stores a tile whose first row is at a place of the scratch memory.
void SweepTiles::tile(StringRef intrinsic, int64_t tile, Value at, int64_t bytesOfRow) {
  call(intrinsic, {number(tile, 8), address(at), number(bytesOfRow, 64)});
}

void SweepTiles::product(int64_t sum, int64_t left, int64_t right) {
  call("llvm.x86.tdpbf16ps", {number(sum, 8), number(left, 8), number(right, 8)});
}

// The entries of two vectors in bf16, those of `low` first.
Value SweepTiles::halves(Value low, Value high) {
  return call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", VectorType::get(2 * b.lanes, b.getBF16Type()),
              {high, low});
}

// The same in turns, as right operands have the rows that a sum takes together.
Value SweepTiles::interleaved(Value low, Value high) {
  SmallVector<int64_t> lanes;
  for (int64_t lane = 0; lane < 2 * b.lanes; ++lane)
    lanes.push_back(lane / 2 + lane % 2 * b.lanes);
  Value both = halves(low, high);
  return vector::ShuffleOp::create(b, both, both, lanes);
}

void SweepTiles::storeHalves(Value halves, Value at) {
  b.store(vector::BitCastOp::create(b, b.vector, halves), scratch, at);
}

// Calls `body` for 0, 1, ..; in a loop only where these are many.
void SweepTiles::steps(int64_t count, llvm::function_ref<void(Value)> body) {
  if (count > 8)
    return b.loop(zero, b.index(count), 1, body);
  for (int64_t i = 0; i < count; ++i)
    body(b.index(i));
}

// The lanes of the tokens before one.
Value SweepTiles::before(int64_t token) {
  SmallVector<bool> lanes(b.lanes, false);
  std::fill_n(lanes.begin(), token, true);
  auto type = VectorType::get(b.lanes, b.getI1Type());
  return arith::ConstantOp::create(b, DenseElementsAttr::get(type, ArrayRef<bool>(lanes)));
}

//===----------------------------------------------------------------------===//
// Around the groups
//===----------------------------------------------------------------------===//

void SweepTiles::begin() {
  requests.begin();
  // The palette, then of each register the bytes of a row and the number of rows.
  SmallVector<int32_t> config(16, 0);
  config[0] = 1;
  auto bytes = reinterpret_cast<uint8_t *>(config.data());
  for (int64_t i = 0; i < 8; ++i)
    bytes[16 + 2 * i] = 64, bytes[48 + i] = 16;
  auto words = VectorType::get(16, b.getI32Type());
  Value vector = arith::ConstantOp::create(b, DenseElementsAttr::get(words, ArrayRef<int32_t>(config)));
  b.store(vector::BitCastOp::create(b, b.vector, vector), scratch, b.index(tiles.configBegin));
  call("llvm.x86.ldtilecfg", {address(b.index(tiles.configBegin))});
  call("llvm.x86.sse.stmxcsr", {address(b.index(tiles.controlBegin))});
  constexpr int32_t flushToZero = 0x8000, denormalsAreZeros = 0x40;
  Value control =
      arith::BitcastOp::create(b, b.getI32Type(), b.loadScalar(scratch, b.index(tiles.controlBegin)));
  control =
      arith::OrIOp::create(b, control, arith::ConstantIntOp::create(b, flushToZero | denormalsAreZeros, 32));
  b.storeScalar(arith::BitcastOp::create(b, b.getF32Type(), control), scratch,
                b.index(tiles.controlBegin + 1));
  call("llvm.x86.sse.ldmxcsr", {address(b.index(tiles.controlBegin + 1))});
  // What tokens see of later ones is nothing.
  b.loop(b.index(tiles.squaresBegin), b.index(tiles.turnedBegin), b.lanes,
         [&](Value at) { b.store(b.splat(0.0), scratch, at); });
  for (int64_t t = 0; !shape.scalarDecay && t < part; ++t)
    for (int64_t p = 0; p < parts; ++p)
      b.store(arith::SelectOp::create(b, before(t), b.splat(1.0), b.splat(0.0)), scratch,
              b.index(tiles.weightsBegin + (p * part + t) * part));
  b.loop(blocks.begin, blocks.end, 1, [&](Value block) {
    b.loop(zero, b.index(shape.rows), 2, [&](Value row) { convertRows(row, 2, block); });
  });
}

void SweepTiles::run(Value begin) {
  coefficients();
  b.loop(blocks.begin, blocks.end, 1, [&](Value block) { columnBlock(begin, block); });
}

void SweepTiles::end() {
  call("llvm.x86.tilerelease", {});
  call("llvm.x86.sse.ldmxcsr", {address(b.index(tiles.controlBegin))});
}
