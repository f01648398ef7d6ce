// Where the coefficients of a group of tokens are in the sweep's scratch memory.
#pragma once

#include "lib/Cpu/Sweep.h"

namespace recur::cpu {

/// Positions for groups of `group` tokens: the tokens that are left at the end go one by one through the same
/// memory.
struct SweepGroup {
  const SweepShape &shape;
  int64_t group;

  unsigned reads() const { return shape.reads.size(); }
  unsigned writes() const { return shape.writes.size(); }

  /// The decay from the group's start to before token t.
  int64_t carry(int64_t t) const { return t; }
  /// The decay from token t to the group's end.
  int64_t leave(int64_t t) const { return group + t; }
  /// What is left to multiply the state by, nearly always 1.
  int64_t rescale() const { return 2 * group; }
  /// What read r of token t sees of write w of token j < t.
  int64_t gram(int64_t t, unsigned r, int64_t j, unsigned w) const {
    return 2 * group + 1 + (t * (t - 1) / 2 + j) * reads() * writes() + r * writes() + w;
  }
  /// The room for one group.
  int64_t size() const { return roundUp(gram(group, 0, 0, 0), 16); }
};

} // namespace recur::cpu
