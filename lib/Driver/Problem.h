// The arrays that a rule is run on: read from files or drawn at random, checked against the rule's arguments.
#pragma once

#include "dialect/recur/Recur.h"
#include "lib/Driver/Array.h"
#include "llvm/ADT/StringMap.h"

#include <map>

namespace recur {

/// Arrays by name and the sizes they agree on. Inputs are [batch, token, head, dims..], params [head,
/// dims..], states [sequence, head, dims..], whatever the files left out.
struct Problem {
  int64_t batch = 1, tokens = 0, heads = 1;
  int64_t position = 0; // of each sequence's first token
  std::map<std::string, Array> inputs, params;
  /// Given initial states, then final states.
  std::map<std::string, Array> states;
  std::map<std::string, Array> outputs;
  /// The file gave arrays without batch and head axes: one sequence of one head.
  bool single = false;
};

/// The own dimensions of an argument: micro-steps, rows, columns, without the literal 1s.
llvm::SmallVector<mlir::Attribute> ownDims(mlir::Type type);

/// Reads NAME.npy from a folder for each input and param, and for each state where there is one, and finds
/// the sizes of symbolic dimensions that `sizes` does not have.
mlir::LogicalResult readProblem(RuleOp rule, llvm::StringRef folder, llvm::StringMap<int64_t> &sizes,
                                Problem &problem);

/// What is special about drawn inputs.
enum class Inputs {
  Random,     // within the declared ranges (an open end at infinity from a normal distribution)
  Correlated, // vectors whose mean cosine is 0.95
  Repeated,   // every other token has the vectors of the one before
  Zeros,      // some vectors vanish
  Edges,      // ranges at their ends: decays of 1, of nearly 0 and of 0, gates of 0 and 1
  Mixed,      // all of this within one sequence
  LargeState, // initial states a thousand times as large as what is written
  SmallState,
};

/// Draws the inputs and params of a rule whose dimensions are bound: vectors declared `unit` with norm 1,
/// others that have no range of about that norm. Initial states are drawn where the inputs are about them;
/// `symbolic` is then the rule before its dimensions were bound. Fails after a diagnostic where the arrays
/// would be too large.
mlir::LogicalResult drawProblem(RuleOp rule, uint64_t seed, Problem &problem, Inputs kind = Inputs::Random,
                                RuleOp symbolic = {});

/// Writes an output or a state for each NAME.npy.
mlir::LogicalResult writeProblem(const Problem &problem, llvm::StringRef folder, bool float64,
                                 std::string &error);

/// Runs the rule's meaning in float64, with what every op computes rounded to float32 if wanted; fills
/// outputs and states.
mlir::LogicalResult runOracle(RuleOp rule, Problem &problem, bool single = false);

/// Moves every input and param by a random relative amount of at most `size`.
void perturb(Problem &problem, double size, uint64_t seed);

/// |x - reference| / |reference| in the Frobenius norm; the absolute norm where the reference is zero.
double relativeError(const Array &x, const Array &reference);

} // namespace recur
