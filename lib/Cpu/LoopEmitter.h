// One linalg op on buffers as loops over vectors.
#pragma once
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"

namespace recur::cpu {

/// Writes a linalg op of static size as a nest of loops before the op.
///
/// One loop, the vector loop, runs along entries that are neighbours in memory, a vector at a time; what is
/// left over is done with vectors of half the width, a quarter, and so on. Sums over the other loops stay in
/// registers: the loops of a sum are innermost, and several sums that do not depend on each other are
/// computed side by side ("jam").
class LoopEmitter {
public:
  LoopEmitter(mlir::linalg::LinalgOp op, unsigned vectorWidth, unsigned accumulators);
  void emit();

private:
  /// `trips` passes over `jam` times `width` indices each.
  struct Segment {
    int64_t start, trips, jam, width;
  };
  /// Where a loop stands: the first index of this pass, and what the pass covers.
  struct Place {
    mlir::Value base;
    int64_t jam = 1, width = 1;
  };
  using Next = llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::ValueRange sums)>;
  /// For each loop, which of the indices side by side is meant.
  using Instance = llvm::SmallVector<int64_t, 4>;

  void chooseVectorLoop();
  void chooseJam();
  int64_t strideAlong(mlir::OpOperand &operand, unsigned loop);
  bool uses(mlir::OpOperand &operand, unsigned loop);
  bool isVectorLoopIn(llvm::ArrayRef<unsigned> loops);
  bool isSum(mlir::OpOperand &init);
  llvm::SmallVector<Segment> segments(unsigned loop);
  llvm::SmallVector<mlir::Value> pass(unsigned loop, const Segment &segment, mlir::ValueRange sums,
                                      Next next);
  llvm::SmallVector<mlir::Value> nest(llvm::ArrayRef<unsigned> loops, mlir::ValueRange sums, Next next);

  llvm::SmallVector<mlir::Value> sumUp();
  void sumAlongVectors();
  mlir::Value neutral(mlir::OpOperand &sum, mlir::Type type);
  mlir::Value combine(mlir::OpOperand &sum, mlir::Value x, mlir::Value y);
  mlir::Value gather(mlir::OpOperand &sum, llvm::ArrayRef<mlir::Value> vectors);
  mlir::Value joined(llvm::ArrayRef<mlir::Value> scalars);
  bool isRun(mlir::OpOperand &operand);
  mlir::Value loadTogether(mlir::OpOperand &operand, llvm::ArrayRef<Instance> all);
  void storeTogether(mlir::OpOperand &operand, llvm::ArrayRef<Instance> all, mlir::Value value);

  llvm::SmallVector<mlir::Value> body(mlir::ValueRange sums);
  mlir::Value apply(mlir::Operation &op, const Instance &instance, mlir::IRMapping &values);
  llvm::SmallVector<Instance> instances();
  llvm::SmallVector<mlir::Value> indices(mlir::OpOperand &operand, const Instance &instance);
  mlir::Value position(unsigned loop, int64_t instance);
  mlir::Value load(mlir::OpOperand &operand, const Instance &instance);
  void store(mlir::OpOperand &operand, const Instance &instance, mlir::Value value);
  void shift(mlir::OpOperand &operand, llvm::SmallVectorImpl<mlir::Value> &place, int64_t lanes);
  mlir::Value spread(mlir::Value value);
  int64_t width() const { return vectorLoop < 0 ? 1 : places[vectorLoop].width; }

  mlir::linalg::LinalgOp op;
  int64_t vectorWidth, accumulators;
  mlir::OpBuilder b;
  mlir::Location loc;
  llvm::SmallVector<int64_t, 4> sizes, jam;
  int vectorLoop = -1;
  llvm::SmallVector<unsigned> parallel, reductions;
  llvm::SmallVector<mlir::OpOperand *> sums; // the inits that hold sums
  llvm::SmallVector<Place, 4> places;
};

} // namespace recur::cpu
