// The oracle: recur IR run in float64, token by token, plain and obvious. It is the meaning of a spec; every
// other path is compared with it.
#pragma once

#include "dialect/recur/Recur.h"

#include <vector>

namespace recur {

/// A dense matrix, row by row.
struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> data;

  Matrix() = default;
  Matrix(int64_t rows, int64_t cols, double fill = 0) : rows(rows), cols(cols), data(rows * cols, fill) {}
  double &at(int64_t i, int64_t j) { return data[i * cols + j]; }
  double at(int64_t i, int64_t j) const { return data[i * cols + j]; }
};

/// One head of one sequence. Entries of `inputs` and `states` follow the order of the rule's arguments of
/// that kind.
struct OracleCall {
  int64_t tokens = 0;
  int64_t position = 0; // of the first token in its sequence
  int64_t head = 0, heads = 1;
  /// inputs[i][t]: the value of input i at token t; several matrices for an input with micro-steps.
  std::vector<std::vector<std::vector<Matrix>>> inputs;
  std::vector<Matrix> params;
  /// Initial states; an empty matrix takes the rule's own. Final states after the call.
  std::vector<Matrix> states;
  /// Round what every op computes to float32: what single precision costs, whatever the code.
  bool single = false;
  /// outputs[i][t], written by the call.
  std::vector<std::vector<Matrix>> outputs;
};

/// Runs a rule whose dimensions are bound and whose gradients are expressions (recur-differentiate). Fails,
/// with an error at the op, when a state is read before the block that computes it has run.
mlir::LogicalResult interpret(RuleOp rule, OracleCall &call);

} // namespace recur
