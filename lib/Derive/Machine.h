// Runs rules token by token and chunk programs chunk by chunk, in F_p, float64 or float32.
//
// In F_p a function that is no field operation (exp, max, ..) is cut: its result is a pseudo-random element
// that depends on the function and its operands alone, so that both sides of a comparison see the same symbol
// and nothing else is known of it. In floating point decays take the numerically safe path: sums of
// logarithms or products of factors over later tokens only, with references every 16 tokens.
#pragma once

#include "dialect/chunk/Chunk.h"
#include "lib/Derive/Numbers.h"

namespace recur {

/// One head of one sequence, as in the oracle (lib/Oracle/Oracle.h).
template <typename F>
struct Call {
  int64_t tokens = 0, position = 0, head = 0, heads = 1;
  std::vector<std::vector<std::vector<Dense<F>>>> inputs; // [input][token][micro-step]
  std::vector<Dense<F>> params;
  std::vector<Dense<F>> states; // initial (an empty one takes the rule's own); final after the call
  std::vector<Dense<F>> starts; // states where the first token's block starts; none where that is such
  std::vector<std::vector<Dense<F>>> outputs; // [output][token]
};

/// Runs the token recurrence. Dimensions are bound, gradients are expressions, no blocks.
template <typename F>
mlir::LogicalResult runRule(RuleOp rule, Call<F> &call);

/// Runs a rule with one block over the whole sequence; its states must not depend on the block.
template <typename F>
mlir::LogicalResult runSequence(RuleOp rule, Call<F> &call);

/// Runs the program in chunks of `chunk` tokens, the last one as short as it comes; where chunks are blocks,
/// in such of `chunk` tokens.
template <typename F>
mlir::LogicalResult runProgram(chunk::ProgramOp program, Call<F> &call, int64_t chunk);

} // namespace recur
