// Requests for lines of the caller's tensors that a sweep needs later.
#pragma once

#include "lib/Cpu/SweepGroup.h"

namespace recur::cpu {

/// Emits requests: at once; or, where SweepOptions::spread says so, evenly over what is done next. What a
/// group of tokens asks for then waits in a queue in the scratch memory, from where it is requested in equal
/// shares.
class SweepRequests {
public:
  using Value = mlir::Value;

  /// The requests of `group` tokens at a time, in so many shares; 0: none waits.
  SweepRequests(VectorBuilder &b, const SweepShape &shape, const SweepOptions &options,
                const SweepLayout &layout, int64_t group, int64_t shares, Value scratch);

  /// Emits what has to be there before the first share: requests for a line that is at hand.
  void begin();
  /// Emits one for the line of an entry; `now`: it does not wait in the queue. None is made where the i1
  /// `unless`, if given, is true.
  void ask(Value view, mlir::ValueRange place, bool write, bool now = false, Value unless = {});
  /// The address of an entry in bytes, and an address as a pointer.
  static Value address(VectorBuilder &b, Value view, mlir::ValueRange place);
  static Value pointer(VectorBuilder &b, Value address);
  /// Emits a share of those that wait.
  void make(Value share);
  bool isQueue() const { return shares; }
  /// What is asked for from here on is that of a token of the next group, and of those after it.
  void restart(Value token) {
    first = token;
    asked = 0;
  }

  /// Shares for a sweep over rows: one for so many of them.
  static constexpr int64_t rowsOfShare = 4;
  static int64_t sharesOfRows(const SweepShape &shape) {
    return shape.rows % rowsOfShare ? 0 : shape.rows / rowsOfShare;
  }
  /// The f32 that the queue takes.
  static int64_t size(const SweepShape &shape, const SweepOptions &options);

private:
  VectorBuilder &b;
  const SweepShape &shape;
  const SweepOptions &options;
  const SweepLayout &layout;
  int64_t group, shares, hint;
  int64_t ofShare = 0; // requests
  Value memory;        // the address of the scratch memory, where there is a queue
  Value first;         // of the group's tokens, since then
  int64_t asked = 0;   // since then
};

} // namespace recur::cpu
