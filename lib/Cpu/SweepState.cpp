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
  Value splat = b.splat(value), end = b.index(layout.blocks * layout.blockStride);
  b.loop(b.index(0), end, b.lanes, [&](Value i) { b.store(splat, scratch, i); });
}

// The position of an entry of H.
Value SweepState::at(Value row, Value column) {
  Value width = b.index(options.width());
  Value block = arith::DivUIOp::create(b, column, width), inBlock = arith::RemUIOp::create(b, column, width);
  return b.add(b.add(b.scale(block, layout.blockStride), b.scale(row, options.width())), inBlock);
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
    b.loop(zero, b.index(shape.columns), 1, [&](Value column) {
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
    b.loop(zero, b.index(shape.columns), lanes, [&](Value column) {
      Value corner = at(row, column);
      auto place = [&](int64_t i) {
        return transposed ? SmallVector<Value>{b.add(column, i), row} : SmallVector<Value>{b.add(row, i), column};
      };
      Values tile;
      for (int64_t i = 0; i < lanes; ++i)
        tile.push_back(isLoad ? Value(vector::LoadOp::create(b, b.vector, state, place(i)))
                              : b.mul(factor, b.load(scratch, b.add(corner, i * options.width()))));
      if (transposed)
        tile = transpose(tile);
      for (int64_t i = 0; i < lanes; ++i)
        if (isLoad)
          b.store(tile[i], scratch, b.add(corner, i * options.width()));
        else
          vector::StoreOp::create(b, tile[i], state, place(i));
    });
  });
}

// Exchanges blocks of 1, 2, 4, .. lanes between pairs of rows.
SmallVector<Value> SweepState::transpose(ArrayRef<Value> rows) {
  Values result(rows);
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
