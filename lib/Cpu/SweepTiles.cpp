#include "lib/Cpu/SweepTiles.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

// Tile registers. Sums, and rows of H; the operands of the reads; those of the update.
static constexpr int64_t sums = 4, readLeft = 4, readRight = 5, writeLeft = 6, writeRight = 7;

TileLayout::TileLayout(const SweepShape &shape, const SweepOptions &options, const SweepLayout &layout) {
  const int64_t group = SweepTiles::group, reads = shape.reads.size(), writes = shape.writes.size();
  int64_t next = 0;
  auto take = [&](int64_t size) { return std::exchange(next, next + roundUp(size, 16)); };
  depth = writes % 2 ? group : 2 * group;
  carry = take(group), leave = take(group), rescale = take(1);
  products = take(reads * writes * group * group);
  readTiles = take(reads * group * shape.rows / 2);
  writeTiles = take(writes * group * shape.rows / 2);
  groupStride = std::exchange(next, layout.pairsBegin);
  configBegin = take(16);
  groupsBegin = take(options.chunk / group * groupStride);
  turnedBegin = take(writes * shape.rows * group);
  weightsBegin = take((group + 1) * group);
  inversesBegin = take(shape.rows), factorsBegin = take(options.chunk / group * shape.rows);
  readsBegin = take(reads * group * options.width());
  writesBegin = take(writes * group * options.width());
  operandBegin = take(writes * group * options.width() / 2);
  halvesStride = shape.rows * options.width() / 2;
  halvesBegin = take(layout.blocks * halvesStride);
  size = next - layout.pairsBegin;
}

SweepTiles::SweepTiles(VectorBuilder &b, SweepRule &rule, const SweepOptions &options, Value tokens,
                       Value scratch, SweepBlocks blocks)
    : b(b), rule(rule), shape(rule.shape), options(options), layout(shape, options),
      tiles(shape, options, layout), packer(b, rule.shape, layout, SweepGroup{rule.shape, group}, scratch),
      requests(b, shape, options, layout, group, sharesOfRequests(shape), scratch), tokens(tokens),
      scratch(scratch), blocks(blocks), reads(shape.reads.size()), writes(shape.writes.size()),
      zero(b.index(0)) {
  memory = memref::ExtractAlignedPointerAsIndexOp::create(b, scratch);
}

// Where much is solved for, that spreads requests enough; else the loops over strips of rows do, the one that
// updates and the one that converts.
int64_t SweepTiles::sharesOfRequests(const SweepShape &shape) {
  return shape.reads.size() + shape.writes.size() > 2 ? 0 : 2 * shape.rows / group;
}

bool SweepTiles::fit(const SweepShape &shape, int64_t lanes) {
  return lanes == group && !shape.columnDecay && shape.rows % (2 * lanes) == 0 && !shape.reads.empty() &&
         shape.reads.size() <= sums && !shape.writes.empty();
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

// Loads or stores a tile whose first row is at a place of the scratch memory.
void SweepTiles::tile(StringRef intrinsic, int64_t tile, Value at, int64_t bytesOfRow) {
  call(intrinsic, {number(tile, 8), address(at), number(bytesOfRow, 64)});
}

void SweepTiles::product(int64_t sum, int64_t left, int64_t right) {
  call("llvm.x86.tdpbf16ps", {number(sum, 8), number(left, 8), number(right, 8)});
}

// The entries of two vectors in bf16, those of `low` first, as a vector of f32.
Value SweepTiles::halves(Value low, Value high) {
  auto type = VectorType::get(2 * b.lanes, b.getBF16Type());
  return LLVM::CallIntrinsicOp::create(b, type, b.getStringAttr("llvm.x86.avx512bf16.cvtne2ps2bf16.512"),
                                       ValueRange{high, low})
      .getResult(0);
}

// Calls `body` for 0, 1, ..; in a loop only where these are many.
void SweepTiles::steps(int64_t count, llvm::function_ref<void(Value)> body) {
  if (count > 8)
    return b.loop(zero, b.index(count), 1, body);
  for (int64_t i = 0; i < count; ++i)
    body(b.index(i));
}

static constexpr StringLiteral load = "llvm.x86.tileloadd64", store = "llvm.x86.tilestored64";

void SweepTiles::begin() {
  requests.begin();
  // The palette, then of each register the bytes of a row and the number of rows.
  SmallVector<int32_t> config(16, 0);
  config[0] = 1;
  auto bytes = reinterpret_cast<uint8_t *>(config.data());
  for (int64_t i = 0; i < 8; ++i)
    bytes[16 + 2 * i] = 64, bytes[48 + i] = 16;
  bytes[16 + 2 * writeLeft] = 2 * tiles.depth, bytes[48 + writeRight] = tiles.depth / 2;
  auto words = VectorType::get(16, b.getI32Type());
  Value vector = arith::ConstantOp::create(b, DenseElementsAttr::get(words, ArrayRef<int32_t>(config)));
  b.store(vector::BitCastOp::create(b, b.vector, vector), scratch, b.index(tiles.configBegin));
  call("llvm.x86.ldtilecfg", {address(b.index(tiles.configBegin))});
  b.loop(blocks.begin, blocks.end, 1, [&](Value block) {
    b.loop(zero, b.index(shape.rows), 2, [&](Value row) { convertRows(row, 2, block); });
  });
}

void SweepTiles::end() { call("llvm.x86.tilerelease", {}); }

//===----------------------------------------------------------------------===//
// A column block
//===----------------------------------------------------------------------===//

Value SweepTiles::run(Value begin, Value from, Value to, Value scale) {
  Value ends = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, b.add(begin, to), tokens);
  Value next = coefficients(from, to, ends, scale);
  b.loop(blocks.begin, blocks.end, 1, [&](Value block) { columnBlock(begin, from, to, block); });
  return next;
}

Value SweepTiles::groupAt(Value first) {
  Value number = arith::DivUIOp::create(b, first, b.index(group));
  return b.add(b.scale(number, tiles.groupStride), tiles.groupsBegin);
}

void SweepTiles::columnBlock(Value begin, Value from, Value to, Value block) {
  b.loop(from, to, group, [&](Value first) {
    Value at = groupAt(first);
    read(at, block);
    solve(begin, first, at, block);
    turnOperand(at);
    multiplyRows(first, block);
    update(at, block);
  });
}

// As many columns at once as there are registers for their sums.
void SweepTiles::read(Value at, Value block) {
  int64_t most = 1;
  while (2 * most * reads <= sums && 2 * most <= options.vectors)
    most *= 2;
  Value halvesAt = b.add(b.scale(block, tiles.halvesStride), tiles.halvesBegin);
  for (int64_t x = 0; x < options.vectors; x += most) {
    for (int64_t sum = 0; sum < most * reads; ++sum)
      call("llvm.x86.tilezero", {number(sum, 8)});
    steps(shape.rows / (2 * b.lanes), [&](Value k) {
      Value left = b.add(b.add(at, tiles.readTiles), b.scale(k, b.lanes));
      Value right = b.add(b.add(halvesAt, b.scale(k, b.lanes * width())), x * b.lanes);
      for (int64_t n = 0; n < most; ++n) {
        tile(load, readRight, b.add(right, n * b.lanes), 4 * width());
        for (int64_t r = 0; r < reads; ++r) {
          if (most == 1 || reads > 1 || n == 0)
            tile(load, readLeft, b.add(left, r * group * shape.rows / 2), 2 * shape.rows);
          product(n * reads + r, readLeft, readRight);
        }
      }
    });
    for (int64_t n = 0; n < most; ++n)
      for (int64_t r = 0; r < reads; ++r)
        tile(store, n * reads + r, b.index(tiles.readsBegin + r * group * width() + (x + n) * b.lanes),
             4 * width());
  }
}

// Some tokens at once, first with what they see of the tokens before these, then one after the other by
// substitution: as many as keep their sums in registers.
void SweepTiles::solve(Value begin, Value first, Value at, Value block) {
  int64_t vectors = options.vectors, count = 4;
  while (count > 1 && count * reads * vectors > 24)
    count /= 2;
  Value column = b.scale(block, width());
  auto earlier = [&](Value token, int64_t w, int64_t x) {
    return b.load(scratch,
                  b.add(b.scale(token, width()), tiles.writesBegin + w * group * width() + x * b.lanes));
  };
  b.loop(zero, b.index(group), count, [&](Value from) {
    Value rows = b.scale(from, width()), products = b.add(b.add(at, b.scale(from, group)), tiles.products);
    auto seen = [&](int64_t t, int64_t r, Value j, int64_t w) {
      return b.loadSplat(scratch, b.add(b.add(products, j), ((r * writes + w) * group + t) * group));
    };
    Values sums;
    for (int64_t t = 0; t < count; ++t) {
      Value carry;
      if (shape.scalarDecay)
        carry = b.loadSplat(scratch, b.add(b.add(at, from), tiles.carry + t));
      for (int64_t r = 0; r < reads; ++r)
        for (int64_t x = 0; x < vectors; ++x) {
          Value place = b.add(rows, tiles.readsBegin + (r * group + t) * width() + x * b.lanes);
          sums.push_back(b.mul(b.load(scratch, place), carry));
        }
    }
    auto sum = [&](MutableArrayRef<Value> sums, int64_t t, int64_t r, int64_t x) -> Value & {
      return sums[(t * reads + r) * vectors + x];
    };
    sums = b.loop(zero, from, 1, sums, [&](Value j, ValueRange carried) {
      Values next(carried);
      for (int64_t w = 0; w < writes; ++w) {
        Values z;
        for (int64_t x = 0; x < vectors; ++x)
          z.push_back(earlier(j, w, x));
        for (int64_t t = 0; t < count; ++t)
          for (int64_t r = 0; r < reads; ++r) {
            Value factor = seen(t, r, j, w);
            for (int64_t x = 0; x < vectors; ++x)
              sum(next, t, r, x) = b.fma(factor, z[x], sum(next, t, r, x));
          }
      }
      return next;
    });
    Values z(count * writes * vectors);
    requests.restart(from);
    for (int64_t t = 0; t < count; ++t) {
      Value inChunk = b.add(b.add(first, from), t), token = b.add(begin, inChunk);
      rule.enter(b, layout, requests, {token, inChunk, column, {}}, block);
      for (int64_t r = 0; r < reads; ++r)
        for (int64_t j = 0; j < t; ++j)
          for (int64_t w = 0; w < writes; ++w) {
            Value factor = seen(t, r, b.add(from, j), w);
            for (int64_t x = 0; x < vectors; ++x)
              sum(sums, t, r, x) = b.fma(factor, z[(j * writes + w) * vectors + x], sum(sums, t, r, x));
          }
      for (int64_t x = 0; x < vectors; ++x) {
        ColumnStep step{token, inChunk, b.add(column, x * b.lanes), {}};
        for (int64_t r = 0; r < reads; ++r)
          step.reads.push_back(sum(sums, t, r, x));
        for (auto [w, value] : llvm::enumerate(rule.step(b, layout, scratch, step))) {
          z[(t * writes + w) * vectors + x] = value;
          Value place = b.add(rows, tiles.writesBegin + (w * group + t) * width() + x * b.lanes);
          b.store(value, scratch, place);
        }
      }
    }
  });
}

// z in bf16, each pair of tokens interleaved.
void SweepTiles::turnOperand(Value at) {
  SmallVector<int64_t> lanes;
  for (int64_t lane = 0; lane < 2 * b.lanes; ++lane)
    lanes.push_back(lane / 2 + lane % 2 * b.lanes);
  for (int64_t w = 0; w < writes; ++w)
    b.loop(zero, b.index(group), 2, [&](Value t) {
      Value from = b.add(b.scale(t, width()), tiles.writesBegin + w * group * width());
      Value to = b.add(b.scale(t, width() / 2), tiles.operandBegin + w * group * width() / 2);
      Value leave[2];
      for (int64_t i = 0; i < 2; ++i)
        if (shape.scalarDecay)
          leave[i] = b.loadSplat(scratch, b.add(b.add(at, t), tiles.leave + i));
      for (int64_t x = 0; x < options.vectors; ++x) {
        Value low = b.mul(b.load(scratch, b.add(from, x * b.lanes)), leave[0]);
        Value high = b.mul(b.load(scratch, b.add(from, width() + x * b.lanes)), leave[1]);
        Value both = halves(low, high);
        both = vector::ShuffleOp::create(b, both, both, lanes);
        b.store(vector::BitCastOp::create(b, b.vector, both), scratch, b.add(to, x * b.lanes));
      }
    });
}

// Where the scales have left their range, the rows of H are multiplied by what was kept beside them.
void SweepTiles::multiplyRows(Value first, Value block) {
  if (!shape.scalarDecay && !shape.rowDecay)
    return;
  Value factor = b.loadScalar(scratch, b.add(groupAt(first), tiles.rescale));
  Value usual = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, factor, b.number(1));
  Value factors =
      b.add(b.scale(arith::DivUIOp::create(b, first, b.index(group)), shape.rows), tiles.factorsBegin);
  b.branch(
      usual, TypeRange(), [] { return Values(); },
      [&] {
        Value base = b.scale(block, layout.blockStride), splat = b.splat(factor);
        b.loop(zero, b.index(shape.rows), 1, [&](Value i) {
          Value own = shape.rowDecay ? b.loadSplat(scratch, b.add(factors, i)) : splat;
          for (int64_t x = 0; x < options.vectors; ++x) {
            Value place = b.add(b.add(base, b.scale(i, width())), x * b.lanes);
            b.store(b.mul(own, b.load(scratch, place)), scratch, place);
          }
        });
        return Values();
      });
}

void SweepTiles::update(Value at, Value block) {
  Value base = b.scale(block, layout.blockStride);
  int64_t parts = writes * group / tiles.depth;
  b.loop(zero, b.index(shape.rows), b.lanes, [&](Value row) {
    Value left = b.add(b.add(at, tiles.writeTiles), b.scale(row, tiles.depth / 2));
    for (int64_t x = 0; x < options.vectors; ++x) {
      Value place = b.add(b.add(base, b.scale(row, width())), x * b.lanes);
      tile(load, x % sums, place, 4 * width());
      for (int64_t part = 0; part < parts; ++part) {
        if (x == 0 || parts > 1)
          tile(load, writeLeft, b.add(left, part * tiles.depth / 2 * shape.rows), 2 * tiles.depth);
        tile(load, writeRight, b.index(tiles.operandBegin + part * tiles.depth / 2 * width() + x * b.lanes),
             4 * width());
        product(x % sums, writeLeft, writeRight);
      }
      tile(store, x % sums, place, 4 * width());
    }
    requests.make(arith::DivUIOp::create(b, row, b.index(b.lanes)));
  });
  // Not in the same loop: what a tile has stored is loaded faster when it has reached the cache.
  b.loop(zero, b.index(shape.rows), b.lanes, [&](Value row) {
    convertRows(row, b.lanes, block);
    requests.make(b.add(arith::DivUIOp::create(b, row, b.index(b.lanes)), shape.rows / b.lanes));
  });
}

// The copy in bf16 of some rows of H.
void SweepTiles::convertRows(Value row, int64_t count, Value block) {
  SmallVector<int64_t> lanes;
  for (int64_t lane = 0; lane < 2 * b.lanes; ++lane)
    lanes.push_back(lane / 2 + lane % 2 * b.lanes);
  Value from = b.add(b.scale(block, layout.blockStride), b.scale(row, width()));
  Value to = b.add(b.add(b.scale(block, tiles.halvesStride), tiles.halvesBegin), b.scale(row, width() / 2));
  for (int64_t i = 0; i < count; i += 2)
    for (int64_t x = 0; x < options.vectors; ++x) {
      Value both = halves(b.load(scratch, b.add(from, i * width() + x * b.lanes)),
                          b.load(scratch, b.add(from, (i + 1) * width() + x * b.lanes)));
      both = vector::ShuffleOp::create(b, both, both, lanes);
      b.store(vector::BitCastOp::create(b, b.vector, both), scratch,
              b.add(to, i * width() / 2 + x * b.lanes));
    }
}
