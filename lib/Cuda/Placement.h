// Where the entries of each value live: which thread of a block holds which of them.
//
// The threads of a block form a grid of two axes. Axis 1 lies within a warp (`lanes` neighbours), axis 0
// across the rest. A dimension of a value is spread over one axis in packets of neighbouring indices; a value
// with one dimension is held again by every thread along the other axis, a scalar by all threads. So a
// product of entries needs no communication, and a sum over a dimension is a sum within threads and then
// along an axis.
#pragma once
#include "lib/Cuda/Classes.h"

#include <bitset>

namespace recur::cuda {

/// The threads of a block, or of one of its groups of the same work at different tokens. Groups of several
/// are at most a warp and do not exchange values.
struct Grid {
  int64_t threads = 128, lanes = 8;
  int64_t groups = 1;
  /// The blocks of a cluster, one after the other along axis 0. All that several exchange is sums and the
  /// vectors of HeldProducts.h.
  int64_t blocks = 1;
  /// Products with matrices are made elsewhere, of vectors along axis 1 and as such.
  bool productsApart = false;
  /// Registers of a thread for matrices of params, which are multiplied as HeldProducts.h says, by vectors
  /// along axis 0 and as such; 0 where they are not.
  int64_t heldRegisters = 0;
  /// The axis along which matrices lie that StateProducts.h multiplies, or -1 where it does not.
  int unitsAxis = -1;
  /// Whether matrices that are a token's own are among those that it multiplies with. They come as memory has
  /// them, so lanes have two neighbouring columns, and not four.
  bool unitsTakeInputs = false;

  /// The number of threads along an axis.
  int64_t extent(int axis) const { return axis ? lanes : blocks * threads / lanes; }
  /// The number of neighbouring indices that one thread holds, of `n` spread over an axis: 4, or 2 where
  /// there are few.
  int64_t packet(int64_t n, int axis) const { return n >= 4 * extent(axis) && !unitsTakeInputs ? 4 : 2; }
  /// The number of indices of a dimension that a thread holds, some perhaps past the end.
  int64_t owned(int64_t n, int axis) const;
};

/// The axis that a value's rows lie along; its columns lie along the other one. For a vector, the axis of its
/// entries, and 0 for a scalar. A value may be held in both ways at once.
using Axis = int;

/// The axes of rows and columns, -1 for a dimension of size 1.
struct Layout {
  int rows, cols;
};
Layout layoutOf(MatType type, Axis axis);

/// Of a loop: the number of a carried scalar, which is 0 where the loop ends early.
inline constexpr llvm::StringLiteral goesOnAttr = "recur.goes_on";

/// Which layouts of each value of a rule are needed: a least set such that every op finds its operands as it
/// needs them.
class Placement {
public:
  Placement(RuleOp rule, const Grid &grid);
  /// For a block of ops by itself, of which `results` are needed.
  Placement(mlir::Block &block, mlir::ValueRange results, const Grid &grid);

  bool needs(mlir::Value value, Axis axis) const { return demands.lookup(value) & (1 << axis); }
  bool isNeeded(mlir::Value value) const { return demands.lookup(value); }
  /// An axis along which the value is held.
  Axis anyOf(mlir::Value value) const { return demands.lookup(value) & 1 ? 0 : 1; }
  /// An axis along which all of the values are held.
  Axis commonAxis(mlir::ValueRange values) const;
  /// The axis along which a matrix is best held for a product: that in which it is computed without moving
  /// entries.
  Axis axisOf(mlir::Value matrix) const;

private:
  void demand(mlir::Value value, Axis axis);
  void demandLike(mlir::Value operand, MatType result, Axis axis);
  void demandTogether(mlir::ValueRange values);
  void demandAny(mlir::Value value);
  void visit(mlir::Operation *op);
  void visitRegion(mlir::Block &block);
  void visitMatmul(MatmulOp op, unsigned wanted);
  Axis natural(mlir::Value value) const;

  /// Of a rule with states whose columns are independent, which lie along axis 0 then.
  std::optional<IndexClasses> turned;
  /// The axis of vectors of which nothing else is known.
  Axis vectorAxis;
  bool productsApart, holdsMatrices, unitsTakeInputs;
  int unitsAxis;
  llvm::DenseMap<mlir::Value, unsigned> demands;
  bool changed = true;
};

/// The axis of an operand of an elementwise op or a broadcast, given the result's.
Axis operandAxis(MatType operand, MatType result, Axis axis);

/// A grid for a rule: enough threads that states fit into registers, with matrices that are the outputs of
/// `together` tokens, and lanes along the columns of matrices. A rule of vectors alone has one lane.
Grid chooseGrid(RuleOp rule, int64_t together = 1);
/// One for many tokens in turn: two rows of each state a thread, or four where all a head's rows are one
/// block's and warps wait for one another.
Grid gridAhead(RuleOp rule);

} // namespace recur::cuda
