// How long a form of a rule will take on a CPU: a model with few parameters, whose only use is to rank the
// forms.
#pragma once

#include "dialect/chunk/Chunk.h"
#include "lib/Schedule/Cost.h"

namespace recur {

/// A core of a CPU. The numbers are those of current server cores; forms are ranked by their ratios, which
/// hardly move.
struct CpuModel {
  double gigahertz = 4;
  double lanes = 16;         // f32 in a vector
  double products = 2;       // vectors of multiply-adds a cycle
  double smallCache = 48e3;  // bytes of the first level, at the speed of the arithmetic
  double cacheBytes = 64;    // bytes a cycle from the second level
  double memoryBytes = 5;    // bytes a cycle from memory, all cores busy
  bool pairs = false;        // multiplies pairs of bf16
  unsigned bytesOfValue = 4; // of inputs and outputs

  /// A vector of `lanes` f32; pairs where the tensors are bf16 and the target multiplies them.
  static CpuModel of(unsigned lanes, bool pairs, unsigned bytesOfValue);
};

/// One state and what a token does to it.
struct StateWork {
  double rows = 1, columns = 1; // of what is read: rows are summed over
  double reads = 0, writes = 0;
  bool rowDecay = false;
  bool scan = false; // entries run on their own: a chunk has nothing to multiply

  bool isMatrix() const { return rows > 1 && columns > 1; }
};

/// A rule as the model sees it.
struct RuleWork {
  std::vector<StateWork> states;
  double values = 0;     // numbers in and out of a token
  double tokenFlops = 0; // functions of the token alone
  double matrixFlops = 0,
         matrixBytes = 0; // products of vectors with given matrices, and the largest of these
  double streams = 0;     // unknown streams of a chunk's triangular system
  double flops = 0;       // that any form needs
  double ahead = 0;       // entries of matrices that run ahead of the others
  double inverses = 0;    // of these, entries that a chunk computes by one factorisation
};
RuleWork workOf(const NormalForm &form, const TokenCost &cost, chunk::ProgramOp program = {});

/// The time of one token of one head in a long sequence, in nanoseconds, and its parts.
struct FormCost {
  double arithmetic = 0, memory = 0, overhead = 0;
  double total() const { return std::max(arithmetic, memory) + overhead; }
  /// "arithmetic", "memory" or "overhead": the largest part.
  llvm::StringRef bound() const;
};

/// One token after the other: a pass over the state for each read and for each write.
FormCost predictSequential(const RuleWork &work, const CpuModel &cpu);
/// A few tokens for each pass over a block of the state.
FormCost predictSweep(const RuleWork &work, const CpuModel &cpu);
/// `chunk` tokens at once, by matrix products.
FormCost predictChunk(const RuleWork &work, const CpuModel &cpu, double chunk);
/// The form of that name: "sequential", "sweep" or "chunk".
FormCost predict(llvm::StringRef form, const RuleWork &work, const CpuModel &cpu);

} // namespace recur
