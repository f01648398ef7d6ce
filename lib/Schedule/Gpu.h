// How long a kernel will take on a GPU, from what its code does.
//
// A kernel is counted, not known: lib/Cuda walks the code that it has made and says what each part of a block
// (a warp role, or all of its warps) does for some tokens. The model turns that into time for a shape.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <string>
#include <vector>

namespace recur {

/// A GPU, as its usual board runs under load.
struct GpuModel {
  std::string board;
  double processors = 132, gigahertz = 1.755;
  /// Bytes a nanosecond that a large copy reads and writes; flops a nanosecond of large bf16 products.
  double copyRate = 4150, productRate = 790e3;
  /// Bytes of shared memory of a processor.
  double sharedBytes = 228 * 1024;

  /// The model of a chip by its name to the assembler: "sm_90a".
  static GpuModel of(llvm::StringRef chip);
};

/// What one warp of a part of a block does in a round of its loop over the tokens.
struct GpuPart {
  std::string name;
  double tokens = 1, warps = 1;
  /// All instructions; of these, functions, products of a warp, exchanges between lanes, and reads of shared
  /// and of other memory.
  double instructions = 0, functions = 0, products = 0, shuffles = 0, reads = 0, loads = 0;
  /// Instructions that nothing waits for, as there are many of a kind.
  double beside = 0;
  /// Cycles that the matrix units take for products of a warpgroup, and barriers and the like that it waits
  /// for.
  double groupCycles = 0, waits = 0;

  GpuPart &add(const GpuPart &more, double times = 1);
};

/// One launch: an entry point.
struct GpuLaunch {
  std::string name;
  /// Blocks for one head of one sequence, threads and bytes of shared memory of a block.
  double blocks = 1, threads = 0, sharedBytes = 0;
  /// Whether a block takes a whole sequence, one of several segments, as many as give `mostBlocks`, such a
  /// segment or the whole sequence where there are too few, a few tokens, segments such that all processors
  /// have the same to do, or segments that pass the state on, as many as take the processors the least time.
  enum Cut { Whole, Segments, SegmentsOrWhole, FewTokens, Spread, Passed } cut = Whole;
  /// The fewest segments, where there are to be several.
  double leastSegments = 2;
  /// For launches of at most so many blocks; 0: of any number. Or, `takesMore`, of any number on so many
  /// processors.
  double mostBlocks = 0;
  bool takesMore = false;
  /// With segments or one: for heads whose blocks are at most five eighths of `mostBlocks`.
  bool forFew = false;
  double leastTokens = 0;
  std::vector<GpuPart> parts;
};

/// Launches that follow one another, each finding what the one before has left.
struct GpuCandidate {
  std::string form;
  std::vector<GpuLaunch> launches;
  /// Bytes that a token of a head reads and writes, and what it leaves in between.
  double bytes = 0;
};

/// The shape of a call.
struct GpuShape {
  double sequences = 1, tokens = 8192, heads = 96;
};

struct GpuTime {
  double microseconds = 0;
  /// What takes longest: "memory", a part's name, or "launches".
  std::string bound;
  /// What is launched.
  std::string launches;
  /// Why the call's shape is not for it; empty if it is.
  std::string why;
};

/// The time of a call.
GpuTime predict(const GpuCandidate &candidate, const GpuShape &shape, const GpuModel &gpu);

} // namespace recur
