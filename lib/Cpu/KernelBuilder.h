// Builds the function of one kernel.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "lib/Cpu/LowerOps.h"
#include "lib/Cpu/Passes.h"

namespace recur::cpu {

/// One tensor of the caller: an argument of the function.
struct View {
  KernelTensor tensor;
  mlir::Value memref;
  bool hasTokens;
  /// The dimensions of the view, without the token's, that are longer than 1 or count micro-steps.
  llvm::SmallVector<int64_t> kept;
  /// Whether entries along the last of `kept` are neighbours, as i1; null when there is none.
  mlir::Value isDense;
};

/// The function of a rule: a loop over the whole chunks of the sequence where there is a chunk program, and a
/// loop over the tokens that are left.
class KernelBuilder {
public:
  /// `program` may be null; else its dimensions are bound and it works on `length` tokens. `isDirect` is as
  /// in lowerTokenLoop.
  KernelBuilder(RuleOp rule, llvm::ArrayRef<TensorFormat> formats, unsigned vectorWidth,
                chunk::ProgramOp program = {}, int64_t length = 0, bool isDirect = false)
      : rule(rule), program(program), length(length), formats(formats), vectorWidth(vectorWidth),
        isDirect(isDirect), b(rule), loc(rule.getLoc()) {}
  /// Another program of the rule, for fewer tokens: it takes what the first one leaves.
  void refine(chunk::ProgramOp program, int64_t length) { finer = {program, length}; }
  mlir::LogicalResult build(llvm::StringRef symbol);
  mlir::func::FuncOp getFunction() { return function; }

private:
  using Value = mlir::Value;

  mlir::LogicalResult checkRule();
  mlir::FailureOr<mlir::MemRefType> viewType(const KernelTensor &tensor, TensorFormat format);
  void createFunction(llvm::StringRef symbol, llvm::ArrayRef<mlir::MemRefType> types);
  llvm::SmallVector<View *> viewsOf(Role role);

  Value isGiven(View &view);
  Value part(View &view, Value token, int64_t count = 1);
  Value loadDirectly(Value source);
  Value load(View &view, Value token, int64_t count = 1);
  void store(View &view, Value token, Value value, int64_t count = 1);
  void storePart(View &view, Value token, Value value, int64_t count, const chunk::OutputPart &part);
  void storeTo(View &view, Value target, Value value);
  void copy(View &view, Value from, Value to);
  void enter(OpLowering &lowering, mlir::BlockArgument argument, Value value);
  void enterIndex(OpLowering &lowering, mlir::BlockArgument argument, Value index);
  mlir::FailureOr<Value> initialState(unsigned state, const OpLowering &outer);

  llvm::SmallVector<Value> startBuffers();
  void enterStarts(OpLowering &lowering, llvm::ArrayRef<Value> buffers, Value token);
  mlir::LogicalResult tokenLoop(OpLowering &lowering);
  /// Runs the whole chunks from token `first` on. `states` are as initialState() gives them, and are updated.
  /// Returns the first token that is left.
  mlir::FailureOr<Value> chunkLoop(const OpLowering &outer, Value first, llvm::SmallVector<Value> &states);
  mlir::LogicalResult chunkBody(const OpLowering &outer, mlir::scf::ForOp loop,
                                llvm::ArrayRef<Matrix> carried);

  RuleOp rule;
  chunk::ProgramOp program;
  int64_t length;
  std::pair<chunk::ProgramOp, int64_t> finer;
  llvm::ArrayRef<TensorFormat> formats;
  unsigned vectorWidth;
  bool isDirect;
  mlir::OpBuilder b;
  mlir::Location loc;
  mlir::func::FuncOp function;
  llvm::SmallVector<View> views;
  Value tokens, position, head, heads;
};

} // namespace recur::cpu
