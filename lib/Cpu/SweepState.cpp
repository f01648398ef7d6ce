#include "lib/Cpu/SweepState.h"

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

void SweepState::load(Value state) {
  if (layout.columns != shape.columns)
    fill(0);
  copy(state, {}, /*isLoad=*/true);
}

void SweepState::store(Value state, Value scale) { copy(state, scale, /*isLoad=*/false); }

void SweepState::fill(double value) {
  Value splat = b.splat(value), begin = b.scale(blocks.begin, layout.blockStride);
  b.loop(begin, b.scale(blocks.end, layout.blockStride), b.lanes,
         [&](Value i) { b.store(splat, scratch, i); });
}

Value SweepState::endColumn() {
  return arith::MinUIOp::create(b, b.scale(blocks.end, options.width()), b.index(shape.columns));
}

// The position of an entry of H.
Value SweepState::at(Value row, Value column) {
  Value width = b.index(options.width());
  Value block = arith::DivUIOp::create(b, column, width), inBlock = arith::RemUIOp::create(b, column, width);
  Value begin = b.scale(block, layout.blockStride);
  if (!options.pairs)
    return b.add(b.add(begin, b.scale(row, options.width())), inBlock);
  Value odd = arith::RemUIOp::create(b, row, b.index(2)), even = arith::SubIOp::create(b, row, odd);
  return b.add(b.add(begin, b.scale(even, options.width())), b.add(b.scale(inBlock, 2), odd));
}

void SweepState::copy(Value state, Value scale, bool isLoad) {
  if (shape.rows % b.lanes || shape.columns % b.lanes)
    return copyEntries(state, scale, isLoad);
  b.branch(
      b.isDense(state), TypeRange(),
      [&] {
        copyTiles(state, scale, isLoad);
        return Values();
      },
      [&] {
        copyEntries(state, scale, isLoad);
        return Values();
      });
}

void SweepState::copyEntries(Value state, Value scale, bool isLoad) {
  Value zero = b.index(0);
  b.loop(zero, b.index(shape.rows), 1, [&](Value row) {
    b.loop(b.scale(blocks.begin, options.width()), endColumn(), 1, [&](Value column) {
      SmallVector<Value> entry = {row, column};
      if (transposed)
        std::swap(entry[0], entry[1]);
      if (isLoad)
        b.storeScalar(memref::LoadOp::create(b, state, entry), scratch, at(row, column));
      else
        memref::StoreOp::create(b, b.mul(scale, b.loadScalar(scratch, at(row, column))), state, entry);
    });
  });
}

// Squares of lanes x lanes through registers.
void SweepState::copyTiles(Value state, Value scale, bool isLoad) {
  state = b.denseView(state);
  Value zero = b.index(0), factor = scale ? b.splat(scale) : Value();
  int64_t lanes = b.lanes;
  b.loop(zero, b.index(shape.rows), lanes, [&](Value row) {
    b.loop(b.scale(blocks.begin, options.width()), endColumn(), lanes, [&](Value column) {
      Value corner = at(row, column);
      auto place = [&](int64_t i) {
        return transposed ? SmallVector<Value>{b.add(column, i), row}
                          : SmallVector<Value>{b.add(row, i), column};
      };
      Values tile;
      // Vector i of the tile in the scratch memory; two interleaved rows are one longer row.
      auto inScratch = [&](int64_t i) {
        return b.add(corner,
                     options.pairs ? i / 2 * 2 * options.width() + i % 2 * lanes : i * options.width());
      };
      for (int64_t i = 0; i < lanes; ++i)
        tile.push_back(isLoad ? Value(vector::LoadOp::create(b, b.vector, state, place(i)))
                              : b.mul(factor, b.load(scratch, inScratch(i))));
      if (!isLoad && options.pairs)
        interleave(tile, /*undo=*/true);
      if (transposed)
        tile = transposeSquare(b, tile);
      if (isLoad && options.pairs)
        interleave(tile, /*undo=*/false);
      for (int64_t i = 0; i < lanes; ++i)
        if (isLoad)
          b.store(tile[i], scratch, inScratch(i));
        else
          vector::StoreOp::create(b, tile[i], state, place(i));
    });
  });
}

void SweepState::interleave(MutableArrayRef<Value> rows, bool undo) {
  int64_t lanes = b.lanes;
  for (size_t i = 0; i < rows.size(); i += 2) {
    SmallVector<int64_t> low, high;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      low.push_back(undo ? 2 * lane : lane / 2 + lane % 2 * lanes);
      high.push_back(undo ? 2 * lane + 1 : lanes / 2 + lane / 2 + lane % 2 * lanes);
    }
    Value x = rows[i], y = rows[i + 1];
    rows[i] = vector::ShuffleOp::create(b, x, y, low);
    rows[i + 1] = vector::ShuffleOp::create(b, x, y, high);
  }
}

// Exchanges blocks of 1, 2, 4, .. lanes between pairs of rows.
SmallVector<Value> cpu::transposeSquare(VectorBuilder &b, ArrayRef<Value> rows) {
  SmallVector<Value> result(rows);
  int64_t lanes = b.lanes;
  for (int64_t half = 1; half < lanes; half *= 2)
    for (int64_t i = 0; i < lanes; ++i) {
      if (i & half)
        continue;
      SmallVector<int64_t> low, high;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        bool upper = lane & half;
        low.push_back(upper ? lanes + lane - half : lane);
        high.push_back(upper ? lanes + lane : lane + half);
      }
      Value x = result[i], y = result[i + half];
      result[i] = vector::ShuffleOp::create(b, x, y, low);
      result[i + half] = vector::ShuffleOp::create(b, x, y, high);
    }
  return result;
}
