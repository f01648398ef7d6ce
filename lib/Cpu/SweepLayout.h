// Where the sweep form keeps things in its scratch memory. All positions count f32.
#pragma once

#include "lib/Cpu/Sweep.h"

namespace recur {

/// Positions for groups of `group` tokens: the tokens that are left at the end go one by one through the same memory.
struct SweepLayout {
  SweepLayout(const SweepShape &shape, const SweepOptions &options, int64_t group)
      : shape(shape), options(options), group(group), rowStride(roundUp(shape.rows, options.lanes)),
        slotStride(options.chunk * rowStride), blocks((shape.columns + options.width() - 1) / options.width()),
        blockStride(shape.rows * options.width()), rowsBegin(roundUp(blocks * blockStride, 16)),
        scalarsBegin(rowsBegin + shape.rowSlots * slotStride),
        coefficientsBegin(scalarsBegin + roundUp(options.chunk * shape.scalarSlots, 16)) {}

  const SweepShape &shape;
  const SweepOptions &options;
  const int64_t group;
  const int64_t rowStride, slotStride; // of packed rows: from token to token, from slot to slot
  const int64_t blocks, blockStride;   // of H
  const int64_t rowsBegin, scalarsBegin, coefficientsBegin;

  unsigned reads() const { return shape.reads.size(); }
  unsigned writes() const { return shape.writes.size(); }

  /// How many sums a read is split into, over rows that are swept together. A sum takes one addition per row, whose latency
  /// has to be hidden by others.
  int64_t partialSums() const {
    return shape.rows % 2 == 0 && group * options.vectors * reads() <= options.fewSums ? 2 : 1;
  }

  /// Coefficients of a group. `carry(t)`: the decay from the group's start to before token t; `gram(t, r, j, w)`, j < t:
  /// what read r of token t sees of write w of token j; `leave(t)`: the decay from token t to the group's end;
  /// `rescale()`: what is left to multiply the state by, nearly always 1.
  int64_t carry(int64_t t) const { return t; }
  int64_t leave(int64_t t) const { return group + t; }
  int64_t rescale() const { return 2 * group; }
  int64_t gram(int64_t t, unsigned r, int64_t j, unsigned w) const {
    return 2 * group + 1 + (t * (t - 1) / 2 + j) * reads() * writes() + r * writes() + w;
  }
  int64_t coefficients() const { return roundUp(gram(group, 0, 0, 0), 16); }
  int64_t end() const { return coefficientsBegin + options.chunk / group * coefficients(); }
};

} // namespace recur
