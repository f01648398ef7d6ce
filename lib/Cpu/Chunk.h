// The ops of a chunk program: linalg on tensors, and vector code where linalg has no word for them.
#pragma once
#include "lib/Cpu/ChunkDecay.h"
#include "lib/Cpu/LowerOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/OwningOpRef.h"

namespace recur::cpu {

/// A copy of a program for chunks of exactly `length` tokens.
mlir::OwningOpRef<chunk::ProgramOp> bindLength(chunk::ProgramOp program, int64_t length);

/// True for a state that goes from one chunk.ldl to the next chunk's: it is kept in f64 between them.
bool isWide(mlir::BlockArgument state);

/// Lowers the ops of a bound program at a builder's place. In `ops` values are entered and found: those with
/// a row per token as matrices of `length` rows, those of !chunk.tokens as matrices with a token axis.
class ChunkLowering {
public:
  ChunkLowering(mlir::OpBuilder &b, unsigned vectorWidth, int64_t length)
      : ops(b, vectorWidth), b(b), vectorWidth(vectorWidth), length(length) {}

  OpLowering ops;
  /// For matrices that hold the positions of the tokens, that of the first one as index.
  llvm::DenseMap<mlir::Value, mlir::Value> positions;

  /// Lowers a block up to its terminator. Fails after a diagnostic at the op that has no code.
  mlir::LogicalResult lower(mlir::Block &block);

private:
  using Value = mlir::Value;

  mlir::LogicalResult lower(mlir::Operation &op);
  void lowerDecay(chunk::DecayOp op);
  void lowerCascade(chunk::CascadeOp op);
  void lowerGram(chunk::GramOp op);
  void lowerMix(chunk::MixOp op);
  void lowerTriSolve(chunk::TriSolveOp op);
  void lowerLdl(chunk::LdlOp op);
  mlir::LogicalResult lowerConjugateGradients(chunk::ConjugateGradientsOp op);
  mlir::Value ownMemory(ChunkBuilder &v, mlir::Value value);
  Matrix lowerProduct(MatmulOp op, mlir::Value added);

  mlir::LogicalResult lowerMap(chunk::MapOp op);
  mlir::LogicalResult mapAtOnce(chunk::MapOp op);
  mlir::LogicalResult mapInOrder(chunk::MapOp op);
  void lowerScan(chunk::ScanOp op);
  mlir::LogicalResult lowerSubstitute(chunk::SubstituteOp op);
  mlir::scf::ForOp tokenLoop(mlir::Location loc, mlir::ValueRange carried, mlir::TypeRange results);
  void setResults(mlir::scf::ForOp loop, mlir::ValueRange last, mlir::ValueRange results);
  void enterTokens(OpLowering &inner, mlir::BlockArgument argument, Value rows, Value token);
  void enterToken(OpLowering &inner, llvm::ArrayRef<mlir::BlockArgument> arguments, mlir::ValueRange rows,
                  mlir::ValueRange shared, Value token);
  Matrix tokenOf(Value rows, Value token);
  Value emptyRows(mlir::Type type);
  Value insertToken(MatrixBuilder &m, const Matrix &token, Value rows, Value at);
  Matrix rowsFrom(Value tensor, mlir::Type type);

  Matrix matrix(Value value) const { return ops.matrices.lookup(value); }
  ChunkBuilder builder(mlir::Location loc) { return ChunkBuilder(loc, b, vectorWidth); }

  mlir::OpBuilder &b;
  unsigned vectorWidth;
  int64_t length;
  llvm::DenseMap<Value, ChunkDecay> decays;
  llvm::DenseSet<Value> triangular; // matrices between tokens that are 0 above the diagonal
};

} // namespace recur::cpu
